"""How far the client can be trusted on this machine.

==============  ================================================================================
`metronome`     a server that streams on an exact schedule and keeps what it really sent
`habits`        the habits of real servers that leave timing unchanged, in all combinations
`calibrate`     the client against the metronome: its error, its cost, what it sustains
`envelope`      what was found, kept; and whether a cell went beyond it
==============  ================================================================================
"""
