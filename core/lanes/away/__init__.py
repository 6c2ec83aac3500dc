"""Measure from another host: `lanes` there is the client, and what it finds comes here as it is found.

`here` starts it over the user's own ssh and journals what comes; `there` is what runs on the node; `wire` is what
they say to each other, and what is believed of it. Nothing of a measurement stays on the node.

A conversation is lines of JSON. There says `["hello", {...}]`. Here may ask it to `discover` the server at a URL, which
it answers with `["ready", {...}]`, and says what to `measure`; the API key is in these lines, and in no command line
and no file. Then there sends each event of the journal as it happens, and `["end", {...}]` or `["error", {...}]`.
Both give signs of life meanwhile, and end when the other gives none.
"""
