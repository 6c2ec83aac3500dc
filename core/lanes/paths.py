"""Where `lanes` keeps things. `LANES_HOME` moves all of it into one folder.

::

    settings.toml     what the user decides once, see `settings.py`
    recipes/          the user's own recipes
    clusters/         the user's clusters
    lanes/<id>/       one folder a started lane: what was launched, logs, how processes ended
    calibration.json  what the benchmark's client was found to hold on this machine
    history.sqlite    the store: every run, as it happened
    artefacts/<run>/  files that instruments left beside it
    observations/     what other sites saw of lanes
    staged/           model files that were joined from parts or copied
"""

from __future__ import annotations

import os
from pathlib import Path


def _home(kind: str) -> Path:
    if home := os.environ.get("LANES_HOME"):
        return Path(home).expanduser().absolute()
    import platformdirs

    return Path(getattr(platformdirs, f"user_{kind}_path")("lanes", appauthor=False))


def settings() -> Path:
    return _home("config") / "settings.toml"


def recipes() -> Path:
    return _home("config") / "recipes"


def clusters() -> Path:
    return _home("config") / "clusters"


def lanes() -> Path:
    return _home("state") / "lanes"


def calibration() -> Path:
    return _home("state") / "calibration.json"


def history() -> Path:
    return _home("data") / "history.sqlite"


def observations() -> Path:
    return _home("data") / "observations"


def artefacts() -> Path:
    return _home("data") / "artefacts"


def staged() -> Path:
    return _home("cache") / "staged"


def under(folder: Path, path: str) -> Path:
    """A path that a file of this folder names."""
    return folder.absolute() / os.path.expanduser(path)
