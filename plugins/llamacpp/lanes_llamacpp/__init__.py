"""llama.cpp as an engine of `lanes`.

The hooks are in `engine`. Nothing is imported here, because the server that `lanes` starts imports
this package too.
"""

__version__ = "0.1.0"
