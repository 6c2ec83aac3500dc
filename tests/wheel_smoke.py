"""Build a wheel of every distribution, install them where no sources are, and run the main job.

    python tests/wheel_smoke.py ROOT_OF_THE_REPOSITORY

What an editable install hides comes out here: a package or a recipe that is not in its wheel.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

MEASURE = ("--pp", "128", "--tg", "16", "--passes", "1", "--warmups", "0")


def main(root: Path) -> None:
    sources = [
        root,
        *(p.parent for p in sorted(root.glob("plugins/*/setup.cfg"))),
        root / "examples/lanes-echo",
    ]
    wheels = Path("wheels").absolute()
    shutil.rmtree(wheels, ignore_errors=True)
    for source in sources:
        _run("-m", "build", "--wheel", "--no-isolation", "--outdir", str(wheels), str(source))
    built = sorted(wheels.glob("*.whl"))
    for source, wheel in ((s, _of(s, built)) for s in sources):
        missing = _files(source) - set(zipfile.ZipFile(wheel).namelist())
        assert not missing, f"{wheel.name} lacks {', '.join(sorted(missing))}"
    _run("-m", "pip", "install", "--quiet", "--find-links", str(wheels), *map(str, built))
    _run("-m", "pip", "install", "--quiet", "--find-links", str(wheels), "lanes-llamacpp[demo]")
    for argv in (
        ("engines",),
        ("recipes",),
        ("run", "--engine", "echo", *MEASURE),
        ("run", "--engine", "llamacpp", *MEASURE),
    ):
        _run("-m", "lanes", *argv)
    print(f"{len(built)} wheels, built, complete, installed, and run")


def _files(source: Path) -> set[str]:
    """The files of a distribution that must be in its wheel: code, type marks, recipes and data."""
    top = source / "core" if (source / "core").is_dir() else source
    kinds = (".py", ".toml", ".json", ".css", ".typed")
    return {
        str(file.relative_to(top))
        for package in top.glob("lanes*")
        if (package / "__init__.py").exists()
        for file in package.rglob("*")
        if file.suffix in kinds or file.name == "py.typed"
    }


def _of(source: Path, wheels: list[Path]) -> Path:
    name = "lanes_core" if (source / "core").is_dir() else "lanes_" + source.name.removeprefix("lanes-")
    return next(wheel for wheel in wheels if wheel.name.startswith(name + "-"))


def _run(*argv: str) -> None:
    print("$ python", *argv, flush=True)
    subprocess.run([sys.executable, *argv], check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
