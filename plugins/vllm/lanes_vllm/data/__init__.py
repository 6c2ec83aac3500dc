"""Snapshots of vLLM's command line: option string -> [dest, type, nargs, choices].

Read off the sources in the wheel of that version: the arguments of `EngineArgs` and `FrontendArgs` with
the types of their fields. A type or a choice that those do not spell out is left open.
"""
