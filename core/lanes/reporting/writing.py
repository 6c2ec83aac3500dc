"""A page into its file: all of it or nothing, and never over what is there unless that is asked for."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from lanes.errors import LanesError, UsageError


def write(text: str, target: Path, force: bool = False) -> None:
    """Write the text under its final name when all of it is on disk.

    Raises `UsageError` when the file exists and `force` is not set, `LanesError` when it cannot be written.
    """
    partial = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        # Half a character of a log is no UTF-8.
        partial.write_text(text, encoding="utf-8", errors="backslashreplace")
        if force:
            os.replace(partial, target)
        else:
            # Unlike a look beforehand, a link is refused whoever made the file meanwhile.
            os.link(partial, target)
    except FileExistsError:
        raise exists(target) from None
    except OSError as error:
        raise LanesError(
            f"{target} cannot be written: {error.strerror}", "name another place with --output"
        ) from None
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def exists(target: Path) -> UsageError:
    """What to say of a file that is there."""
    return UsageError(f"{target} exists already", "name another with --output, or add --force")
