"""The user's settings: `settings.toml` in their configuration."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping

from attrs import evolve, field, frozen

from lanes import paths
from lanes.errors import UsageError
from lanes.structure import Mistake, structure
from lanes.types import HostScript


@frozen(kw_only=True)
class Settings:
    """`scripts` are host scripts that may run on nodes: by name, the path of the very file that may."""

    scripts: Mapping[str, str] = field(factory=dict)


def read() -> Settings:
    """The settings; without a file there are none. Raises UsageError."""
    file = paths.settings()
    try:
        settings = structure(tomllib.loads(file.read_text(encoding="utf-8-sig")), Settings)
    except FileNotFoundError:
        return Settings()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} cannot be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{file} is not TOML: {error}", "mend the line that it names") from None
    except Mistake as mistake:
        raise UsageError(f"{file}: {mistake.key}: {mistake.problem}") from None
    folder = file.parent
    return evolve(
        settings, scripts={name: str(paths.under(folder, path)) for name, path in settings.scripts.items()}
    )


Allowed = Mapping[str, str | None]
"""The host scripts that the user lets run, by name: the path of the very file, or None for what the recipe
names."""
NOTHING: Allowed = {}


def resolved(script: HostScript, allowed: Allowed) -> HostScript:
    """The script, where the user says that it is."""
    return evolve(script, path=allowed.get(script.name) or script.path)


def how_to_allow(names: Iterable[str]) -> str:
    """What to do about scripts that nobody allowed."""
    options = " ".join(f"--allow-script {name}" for name in names)
    return (
        f"read them (--dry-run shows their text), then add {options}, or name their files under [scripts] in "
        f"{paths.settings()}; or run them by hand, and take them out of the recipe"
    )
