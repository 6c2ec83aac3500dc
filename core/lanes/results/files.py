"""Result documents in files: one a file, a list of them, or a folder of such files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lanes.errors import UsageError
from lanes.results.document import SCHEMA


def read(path: Path) -> list[dict[str, Any]]:
    """The `lanes.result/1` documents of a file, or of the `*.json` in a folder, by name.

    Raises `UsageError` for a file that holds something else.
    """
    if path.is_dir():
        found = [document for file in sorted(path.glob("*.json")) for document in read(file)]
        if not found:
            raise UsageError(f"{path} holds no *.json", "name a result document or a folder of them")
        return found
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{path} cannot be read: {error}", "`lanes history show RUN --json` makes one"
        ) from None
    documents = value if isinstance(value, list) else [value]
    for document in documents:
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            raise UsageError(
                f"{path} is not a result of lanes ({SCHEMA})", "`lanes history show RUN --json` makes one"
            )
    return documents
