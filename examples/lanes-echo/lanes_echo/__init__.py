"""An engine that echoes the words of its prompt: a complete plugin for `lanes`, to read and to test with.

`engine` holds the hooks, `options` what a recipe may set, `server` the thing that is launched.
"""

__version__ = "0.1.0"
