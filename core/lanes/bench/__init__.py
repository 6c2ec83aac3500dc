"""The benchmark: takes an `Endpoint`, measures it, and knows no engine.

=================  ===============================================================================
`plan`             what to measure: `Plan`, its grid of `Cell`s, the `Limits` on waiting
`probe`            `measure(endpoint, plan, ...)`: the grid, pass by pass, to `CellResult`s
`measures`         each figure in one function, with its formula
`statistics`       a median with its 95% interval
`prompts` `prose`  cold prompts of natural text, cut to a number of tokens
`client`           one streamed request, stamped by the kernel
`discover`         an `Endpoint` from a bare URL
`session`          one server with all of that, and a look at whether it lives
`smoke`            does the server answer at all?
`codec`            every value to plain JSON data, and back
=================  ===============================================================================

Nothing is imported here, so that `import lanes.bench.plan` stays cheap.
"""
