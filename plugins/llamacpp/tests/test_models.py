"""Finding a model: a path, a split model, a package in chunks."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest
from lanes.types import Model
from lanes_llamacpp import models


def install(site: Path, name: str, files: dict[str, bytes], requires: tuple[str, ...] = ()) -> None:
    """Lay out a distribution as pip does."""
    module = name.replace("-", "_")
    info = site / f"{module}-1.0.dist-info"
    info.mkdir(parents=True)
    metadata = [f"Name: {name}", "Version: 1.0", *(f"Requires-Dist: {r}" for r in requires)]
    (info / "METADATA").write_text("Metadata-Version: 2.1\n" + "\n".join(metadata) + "\n")
    paths = [f"{module}/data/{file}" for file in files]
    (info / "RECORD").write_text("".join(f"{path},,\n" for path in paths))
    for path, content in zip(paths, files.values(), strict=True):
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_bytes(content)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed packages."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    return folder


def test_a_path_is_used_where_it_is(make_gguf: Callable[..., Path]) -> None:
    path = make_gguf()
    [file] = models.find(Model(name="toy", path=str(path)))
    assert file.parts == (path,) and file.whole and file.size_bytes == path.stat().st_size


def test_a_split_model_needs_all_its_files(make_gguf: Callable[..., Path]) -> None:
    first, second = (make_gguf(f"big-0000{n}-of-00002.gguf") for n in (1, 2))
    files = models.find(Model(name="big", path=str(first)))
    assert [file.parts for file in files] == [(first,), (second,)]
    with pytest.raises(models.NotFound, match="not the first file") as not_first:
        models.find(Model(name="big", path=str(second)))
    assert "big-00001-of-00002.gguf" in not_first.value.next_step
    second.unlink()
    with pytest.raises(models.NotFound, match="big-00002-of-00002"):
        models.find(Model(name="big", path=str(first)))


def test_chunks_of_several_packages_are_one_model(site: Path) -> None:
    digest = hashlib.sha256(b"onetwothree").hexdigest()
    parts = ("toy-gguf-part1==1.0", "Toy_GGUF.part2==1.0", "toy-gguf-part3==1.0", "numpy; extra == 'test'")
    install(site, "toy-gguf", {"SHA256SUMS": f"{digest}  toy.gguf\n".encode()}, parts)
    install(site, "toy-gguf-part3", {"toy.gguf.part02": b"three"})
    install(site, "toy-gguf-part1", {"toy.gguf.part00": b"one"})
    install(site, "toy-gguf-part2", {"toy.gguf.part01": b"two"})
    [file] = models.find(Model(name="toy", package="toy-gguf"))
    assert b"".join(part.read_bytes() for part in file.parts) == b"onetwothree"
    assert (file.name, file.size_bytes, file.sha256) == ("toy.gguf", 11, digest)


def test_a_package_with_one_file_is_used_in_place(site: Path) -> None:
    install(site, "small-gguf", {"small.gguf": b"GGUF"})
    [file] = models.find(Model(name="small", package="small-gguf"))
    assert file.whole and file.name == "small.gguf"


@pytest.mark.parametrize(
    ("files", "requires", "says"),
    [
        ({"README": b""}, (), "no GGUF file"),
        ({"a.gguf": b"", "b.gguf": b""}, (), "2 models"),
        ({"a.gguf.part00": b"", "a.gguf.part02": b""}, (), "lacks a part"),
        ({}, ("odd-gguf-part1",), "odd-gguf-part1 .* is not installed"),
    ],
)
def test_a_package_that_is_no_model(
    site: Path, files: dict[str, bytes], requires: tuple[str, ...], says: str
) -> None:
    install(site, "odd-gguf", files, requires)
    with pytest.raises(models.NotFound, match=says):
        models.find(Model(name="odd", package="odd-gguf"))


def test_a_file_that_vanished_from_a_package(site: Path) -> None:
    install(site, "lost-gguf", {"lost.gguf": b"GGUF"})
    (site / "lost_gguf/data/lost.gguf").unlink()
    with pytest.raises(models.NotFound, match="has lost its file"):
        models.find(Model(name="lost", package="lost-gguf"))


def test_a_package_that_is_not_installed_says_how_to_get_it() -> None:
    with pytest.raises(models.NotFound) as error:
        models.find(Model(name="none", package="no-such-gguf"))
    assert error.value.next_step == "pip install no-such-gguf"


def test_a_repository_is_not_downloaded() -> None:
    with pytest.raises(models.NotFound, match="does not say where"):
        models.find(Model(name="far", repo="org/model"))
