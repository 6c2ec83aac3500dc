"""A bundle for an engine's maintainers: what failed, how to see it again, and no secret.

=============  ==========================================================================
`secrets`      takes secrets out of text: by value where they are known, by form else
`bundle`       collects what is known of a lane's failure, and writes it
`markdown`     the page that a maintainer reads first
=============  ==========================================================================
"""
