"""Snapshots of SGLang's own command-line parser: option string -> [dest, type, nargs, choices]."""
