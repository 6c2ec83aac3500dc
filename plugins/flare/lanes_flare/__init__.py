"""FLARE as an engine of `lanes`. The hooks are in `engine`."""

__version__ = "0.1.0"
