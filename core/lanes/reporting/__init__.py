"""A report of lanes: what a comparison says, and what lies behind it, as one page for people.

==============  ==========================================================================
`model`         the page as values: sections of texts, tables, plots and logs
`build`         results in, the page out; `overview`, `curves`, `passes`, `found`,
                `surroundings` and `failures` make its sections
`hidden`        the page without secrets
`markdown`      the page for a forum or a repository
`html`, `svg`   the page as one file that needs nothing else
==============  ==========================================================================

Nothing here reads a file or judges anew.
"""
