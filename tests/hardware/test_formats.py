"""A scan names the GPU code of every library, however the library is packed."""

from __future__ import annotations

import bz2
import gzip
import json
import struct
import zipfile

import pytest
from lanes.hardware.scan import scan

CODES = "sm_80 sm_90a sm_100f compute_80"
EVERYTHING = "sm_80|sm_80 sm_90a|sm_121a compute_120"


@pytest.fixture
def library(build):
    return build.so(CODES)


def packed(build, kind, library):
    """One library in each kind of file that a scan reads, and the name that it has there."""
    layer = build.tar({"opt/lib/x.so": library})
    files = {
        "shared object": ("x.so", library),
        "wheel": ("x.whl", build.wheel({"pkg/x.so": library})),
        "wheel without compression": ("x.whl", build.wheel({"pkg/x.so": library}, zipfile.ZIP_STORED)),
        "tar": ("x.tar", layer),
        "tar.gz": ("x.tar.gz", gzip.compress(layer)),
        "tar with long names": ("x.tar", build.tar({"d/" * 60 + "x.so": library})),
        "pax tar": ("x.tar", build.tar({"d/" * 160 + "x.so": library}, format=2)),
        "docker save": ("x.tar", build.tar(build.saved(layer))),
        "docker save in gzip": ("x.tar.gz", gzip.compress(build.tar(build.saved(layer)))),
        "OCI layout": ("x.tar", build.tar(build.oci(layer))),
        "OCI layout of packed layers": ("x.tar", build.tar(build.oci(gzip.compress(layer)))),
    }
    return files[kind]


KINDS = (
    "shared object", "wheel", "wheel without compression", "tar", "tar.gz", "tar with long names", "pax tar",
    "docker save", "docker save in gzip", "OCI layout", "OCI layout of packed layers",
)  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_file_shows_the_same_code(look, build, put, library, kind):
    found = look(put(*packed(build, kind, library)))
    assert found.problems == []
    assert list(found.libraries.values()) == [CODES]
    assert found.json["libraries"][0]["machine"] == "x86_64"


def test_a_folder_shows_all_files_below_it_whatever_they_are_called(look, build, put, tmp_path, library):
    put("a/x.so", library)
    put("a/b/x.so.1.2", build.so("sm_75", machine=183))
    put("a/b/y.whl", build.wheel({"z.so": build.so("sm_120a")}))
    put("a/notes.txt", b"nothing to see")
    put("a/empty", b"")
    found = look(tmp_path / "a")
    assert found.problems == []
    assert found.libraries == {"x.so": CODES, "x.so.1.2": "sm_75", "z.so": "sm_120a"}


def test_an_oci_layout_may_be_a_folder(look, build, put, tmp_path, library):
    for name, data in build.oci(build.tar({"x.so": library})).items():
        put(f"image/{name}", data)
    assert look(tmp_path / "image").libraries == {"x.so": CODES}


def test_pieces_are_counted_by_library_and_folded_over_all(look, build, put):
    found = look(put("x.so", build.so(EVERYTHING)), put("y.so", build.so("sm_80 compute_120")))
    assert found.libraries == {"x.so": "sm_80 x2 sm_90a sm_121a compute_120", "y.so": "sm_80 compute_120"}
    folded = {code["name"]: code["count"] for code in found.json["codes"]}
    assert folded == {"sm_80": 3, "sm_90a": 1, "sm_121a": 1, "compute_120": 2}


def test_code_that_waits_for_a_linker_is_told_apart(look, build, put):
    found = look(put("x.so", build.so("sm_80", relocatable="sm_80 compute_90")))
    assert found.libraries == {"x.so": "sm_80 sm_80 (relocatable) compute_90 (relocatable)"}


def test_a_library_without_gpu_code_is_listed_as_such(look, build, put):
    assert look(put("x.so", build.so())).libraries == {"x.so": ""}


def test_a_library_without_a_section_table_is_searched(look, build, put):
    data = build.elf({".nv_fatbin": build.fatbin(CODES)}, table=False)
    assert look(put("x.so", data)).libraries == {"x.so": CODES}
    assert look(put("x.whl", build.wheel({"x.so": data}))).libraries == {"x.so": CODES}


@pytest.mark.parametrize(
    "wrap", [lambda build, so: ("x.so", so), lambda build, so: ("x.whl", build.wheel({"x.so": so}))]
)
def test_what_only_looks_like_a_fat_binary_is_none(look, build, put, wrap):
    """Programs that handle fat binaries hold their first bytes, as text or as code."""
    text = b"\x50\xed\x55\xba" * 3 + b"\x50\xed\x55\xba\x01\x00\x10\x00" + b"\xff" * 8 + bytes(500)
    found = look(put(*wrap(build, build.so("sm_90", text=text, raw={".data": build.fatbin("sm_70")}))))
    assert found.libraries == {"x.so": "sm_90"}
    assert found.problems == []


@pytest.mark.parametrize("size", [0, 1, 4094, 4095, 4096, 4097, 262_143, 1_048_575, 1_048_576])
def test_no_fat_binary_is_lost_between_two_reads(build, put, size):
    so = build.so(raw={".nv_fatbin": build.fatbin("sm_80", bytes(size)) + bytes(8) + build.fatbin("sm_90")})
    for path in (put("x.so", so), put("x.whl", build.wheel({"x.so": so}))):
        (library,) = scan([path]).libraries
        assert [code.name for code, _ in library.codes] == ["sm_80", "sm_90"]


def test_a_large_library_in_a_packed_layer_is_read_too(look, build, put):
    so = build.so(raw={".nv_fatbin": build.fatbin("sm_80 sm_90a", bytes(9 << 20))})
    layer = gzip.compress(build.tar({"x.so": so}), 1)
    found = look(put("x.tar", build.tar(build.oci(layer))))
    assert (found.libraries, found.problems) == ({"x.so": "sm_80 sm_90a"}, [])


def test_a_wheel_may_use_the_zip_format_for_more_than_four_gigabytes(look, build, put):
    """Its sizes and places stand in 64-bit fields then, and the old ones are full of ones."""
    so, name, full = build.so("sm_90a"), b"x.so", 0xFFFFFFFF
    local = struct.pack("<4sHHHHHIIIHH", b"PK\x03\x04", 45, 0, 0, 0, 0, 0, full, full, 4, 20) + name
    local += struct.pack("<HHQQ", 1, 16, len(so), len(so)) + so
    extra = struct.pack("<HHHHHQQQ", 9, 2, 0, 1, 24, len(so), len(so), 0)
    central = struct.pack("<4sHHHHHHIII", b"PK\x01\x02", 45, 45, 0, 0, 0, 0, 0, full, full)
    central += struct.pack("<HHHHHII", 4, len(extra), 0, 0, 0, 0, full) + name + extra
    end64 = struct.pack("<4sQHHIIQQQQ", b"PK\x06\x06", 44, 45, 45, 0, 0, 1, 1, len(central), len(local))
    locator = struct.pack("<4sIQI", b"PK\x06\x07", 0, len(local) + len(central), 1)
    end = struct.pack("<4sHHHHIIH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, full, full, 0)
    found = look(put("x.whl", local + central + end64 + locator + end))
    assert (found.libraries, found.problems) == ({"x.so": "sm_90a"}, [])


# -- AMD -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "section",
    [
        pytest.param(lambda build: build.bundle("gfx90a gfx942:sramecc+:xnack-"), id="plain"),
        *(
            pytest.param(
                lambda build, v=version, m=method: build.packed_bundle("gfx90a gfx942:sramecc+:xnack-", version=v, method=m),
                id=f"{method}, version {version}",
            )
            for method in ("zlib", "zstd")
            for version in (1, 2, 3)
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("pack", ["x.so", "x.whl"])
def test_amd_code_objects_are_named(look, build, put, section, pack):
    so = build.so(hip=section(build))
    found = look(put(pack, so if pack == "x.so" else build.wheel({"x.so": so})))
    assert found.problems == []
    assert found.libraries == {"x.so": "gfx90a gfx942:sramecc+:xnack-"}


def test_bundles_of_many_sources_lie_one_behind_the_other(look, build, put):
    page = lambda data: data + bytes(-len(data) % 4096)  # noqa: E731
    hip = page(build.bundle("gfx942")) + page(build.packed_bundle("gfx950 gfx942")) + build.bundle("gfx1151")
    assert look(put("x.so", build.so(hip=hip))).libraries == {"x.so": "gfx942 x2 gfx950 gfx1151"}


@pytest.mark.parametrize(
    "flags, name", [(0x4C, "gfx942"), (0x54C, "gfx942"), (0x4A, "gfx1151"), (0xFE, "gfx-unknown-0xfe")]
)
def test_an_amd_code_object_may_be_a_file_of_its_own(look, build, put, flags, name):
    assert look(put("x.hsaco", build.elf({}, machine=224, flags=flags))).libraries == {"x.hsaco": name}


# -- Cubins --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "abi, flags, note, name",
    [
        (7, 0x5A, b"", "sm_90"),
        (7, 0x85A, b"", "sm_90a"),
        (8, 0x7900, b"", "sm_121"),
        (8, 0x7900, b"ptxas -arch sm_121a -O3", "sm_121a"),
        (8, 0x7800, b"ptxas -arch=sm_120f", "sm_120f"),
        (8, 0x7800, b"ptxas -arch sm_90a", "sm_120"),
    ],
)
@pytest.mark.parametrize("pack", ["x.cubin", "x.whl"])
def test_a_cubin_may_be_a_file_of_its_own(look, build, put, abi, flags, note, name, pack):
    data = build.elf({".note.nv.tkinfo": note} if note else {}, machine=190, flags=flags, abi=abi)
    found = look(put(pack, data if pack == "x.cubin" else build.wheel({"x.cubin": data})))
    assert found.libraries == {"x.cubin": name}
    assert found.json["libraries"][0]["machine"] is None


# -- Images --------------------------------------------------------------------------------------


def test_an_image_shows_what_a_container_would_see(look, build, put):
    """What a later layer replaces, deletes, empties or hides is not there any more."""
    base = {f"lib/{name}.so": build.so("sm_70") for name in ("kept", "replaced", "deleted", "hidden")}
    base |= {"old/a.so": build.so("sm_60"), "gone/deep/b.so": build.so("sm_60")}
    later = {
        "lib/replaced.so": build.so("sm_90"),
        "lib/.wh.deleted.so": b"",
        "lib/hidden.so": "kept.so",
        "old/.wh..wh..opq": b"",
        "old/c.so": build.so("sm_100"),
        ".wh.gone": b"",
    }
    found = look(put("x.tar", build.tar(build.saved(build.tar(base), build.tar(later)))))
    assert found.libraries == {"lib/kept.so": "sm_70", "lib/replaced.so": "sm_90", "old/c.so": "sm_100"}


def test_a_layer_that_two_images_share_is_a_link(look, build, put, library):
    files = build.saved(build.tar({"x.so": library}))
    name = next(iter(files))
    second = [{"Layers": ["other/layer.tar"], "RepoTags": ["second:1"]}]
    files["other/layer.tar"] = f"../{name}"
    files["manifest.json"] = json.dumps(json.loads(files["manifest.json"]) + second).encode()
    assert look(put("x.tar", build.tar(files))).libraries == {"engine:1:x.so": CODES, "second:1:x.so": CODES}


def test_the_platforms_of_an_image_are_told_apart(look, build, put):
    arm, intel = (
        build.oci(build.tar({"x.so": build.so(codes, machine=machine)}), platform=platform)
        for codes, machine, platform in (("sm_121a", 183, "linux/arm64"), ("sm_120a", 62, "linux/amd64"))
    )
    both = [d for files in (arm, intel) for d in json.loads(files["index.json"])["manifests"]]
    files = arm | intel | {"index.json": json.dumps({"manifests": both}).encode()}
    found = look(put("x.tar", build.tar(files)))
    assert found.libraries == {"linux/arm64:x.so": "sm_121a", "linux/amd64:x.so": "sm_120a"}


def test_a_platform_that_was_not_saved_is_no_problem(look, build, put, library):
    files = build.oci(build.tar({"x.so": library}))
    index = json.loads(files["index.json"])
    index["manifests"].append(
        {"digest": "sha256:" + "0" * 64, "platform": {"os": "linux", "architecture": "s390x"}}
    )
    files["index.json"] = json.dumps(index).encode()
    found = look(put("x.tar", build.tar(files)))
    assert (found.libraries, found.problems) == ({"x.so": CODES}, [])


def test_files_beside_the_libraries_of_an_archive_are_passed_over(look, build, put, library):
    """A manual page in gzip and text in bzip2 are no layers."""
    files = {
        "x.so": library,
        "man.gz": gzip.compress(b"text"),
        "t.bz2": bz2.compress(b"text"),
        "f": b"\x1f\x8b",
    }
    found = look(put("x.tar", build.tar(files)))
    assert found.libraries == {"x.so": CODES}
