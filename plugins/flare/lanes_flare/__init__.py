"""FLARE as an engine of `lanes`."""

__version__ = "0.1.0"
