"""A file that is cut off, lies, or means harm ends in a finding: never in a traceback, a hang or full memory.

`look` sees to the last three for every scan of these tests.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import random
import socket
import struct
import subprocess
import tarfile
import threading
import zipfile
import zlib

import pytest
from lanes.hardware.scan import scan
from lanes.hardware.targets import parse_target
from lanes.hardware.verdict import verdict

GIB = 1 << 30
FATBIN = b"\x50\xed\x55\xba"


def section(build, data):
    return build.so(raw={".nv_fatbin": data})


def table_at(data, offset, count=None):
    """The same ELF file with its section table said to lie elsewhere."""
    changed = bytearray(data)
    struct.pack_into("<Q", changed, 40, offset)
    if count is not None:
        struct.pack_into("<H", changed, 60, count)
    return bytes(changed)


def row(data, index, **fields):
    """The same ELF file with fields of a section's header changed."""
    changed = bytearray(data)
    (table,) = struct.unpack_from("<Q", data, 40)
    for name, value in fields.items():
        at, form = {"name": (0, "<I"), "kind": (4, "<I"), "offset": (24, "<Q"), "size": (32, "<Q")}[name]
        struct.pack_into(form, changed, table + 64 * index + at, value)
    return bytes(changed)


def gpu_sections(build, count):
    """A file that claims many sections of GPU code, all of them the same bytes."""
    data = bytearray(build.so("sm_80"))
    table, entries = struct.unpack_from("<Q", data, 40)[0], struct.unpack_from("<H", data, 60)[0]
    code = bytes(data[table + 128 : table + 192])
    data += code * count
    struct.pack_into("<H", data, 60, entries + count)
    struct.pack_into("<H", data, 62, entries - 1)
    return bytes(data)


GOOD = "sm_80 sm_90a"
BROKEN_ELF = {
    "cut within its header": lambda b: b.so(GOOD)[:40],
    "cut within its code": lambda b: b.so(GOOD)[:8300],
    "cut within its section table": lambda b: b.so(GOOD)[:-70],
    "section table far outside": lambda b: table_at(b.so(GOOD), 1 << 62),
    "section table is the header": lambda b: table_at(b.so(GOOD), 0x20),
    "65535 sections": lambda b: table_at(b.so(GOOD), 64, 0xFFFF),
    "number of sections elsewhere, and absurd": lambda b: table_at(row(b.so(GOOD), 0, size=1 << 60), len(b.so(GOOD)) - 256, 0),
    "code outside the file": lambda b: row(b.so(GOOD), 2, offset=1 << 60),
    "code larger than the file": lambda b: row(b.so(GOOD), 2, size=1 << 60),
    "names outside the file": lambda b: row(b.so(GOOD), 3, offset=1 << 60),
    "a thousand sections of code": lambda b: gpu_sections(b, 1000),
    "32 bit in a 64-bit name": lambda b: b"\x7fELF\x03" + bytes(200),
    "fat binary cut off": lambda b: section(b, b.fatbin(GOOD)[:-1]),
    "fat binary larger than its section": lambda b: section(b, struct.pack("<4sHHQ", FATBIN, 1, 16, 1 << 60) + bytes(300)),
    "fat binary of an unknown version": lambda b: section(b, struct.pack("<4sHHQ", FATBIN, 9, 16, 100) + bytes(300)),
    "piece larger than its fat binary": lambda b: section(b, b.fatbin(GOOD)[:16] + struct.pack("<HHIQ", 2, 1, 64, 1 << 63) + b.fatbin(GOOD)[32:]),
    "piece with a header of no bytes": lambda b: section(b, b.fatbin(GOOD)[:20] + bytes(4) + b.fatbin(GOOD)[24:]),
    "piece for architecture 0": lambda b: section(b, b.fatbin("sm_80").replace(struct.pack("<I", 80), bytes(4))),
    "piece for architecture 4 billion": lambda b: section(b, b.fatbin("sm_80").replace(struct.pack("<I", 80), b"\xff" * 4)),
    "code that is none": lambda b: section(b, b"\x01" * (3 << 20)),
    "code that ends in something else": lambda b: section(b, b.fatbin(GOOD) + bytes(2 << 20)),
    "a million fat binaries": lambda b: section(b, struct.pack("<4sHHQ", FATBIN, 1, 16, 0) * 1_000_000),
    "a million pieces": lambda b: section(b, struct.pack("<4sHHQ", FATBIN, 1, 16, 64_000_000) + b.entry("sm_80", b"") * 1_000_000),
    "AMD code of an unknown kind": lambda b: b.so(hip=b"\x01" * 5000),
    "AMD bundle of 2^60 entries": lambda b: b.so(hip=b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<Q", 1 << 60)),
    "AMD bundle with a name of 2^60 bytes": lambda b: b.so(hip=b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<QQQQ", 1, 0, 0, 1 << 60)),
    "AMD bundle cut off": lambda b: b.so(hip=b.bundle("gfx942")[:60]),
    "AMD bundle larger than the file": lambda b: b.so(hip=b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<QQQQ", 1, 0, 1 << 60, 3) + b"abc"),
    "packed AMD code that is broken": lambda b: b.so(hip=b.packed_bundle("gfx942")[:24] + b"\xff" * 200),
    "packed AMD code of an unknown version": lambda b: b.so(hip=b"CCOB" + struct.pack("<HH", 77, 0) + bytes(99)),
    "packed AMD code of an unknown method": lambda b: b.so(hip=b.packed_bundle("gfx942").replace(b"CCOB\x02\0\0\0", b"CCOB\x02\0\x09\0")),
    "packed AMD code that is no bundle": lambda b: b.so(hip=b"CCOB" + struct.pack("<HHIIQ", 2, 0, 90, 9, 0) + zlib.compress(bytes(99)).ljust(90)),
    "AMD code and then megabytes of nothing": lambda b: b.so(hip=b.bundle("gfx942") + bytes(3 << 20)),
    "cubin for architecture 1": lambda b: b.elf({}, machine=190, flags=1),
    "cubin with a note outside the file": lambda b: row(b.elf({".note.nv.tkinfo": b"x"}, machine=190, flags=0x7800, abi=8), 2, offset=1 << 60),
}  # fmt: skip


@pytest.mark.parametrize("fault", BROKEN_ELF)
def test_a_broken_library_is_a_finding_wherever_it_lies(look, build, put, fault):
    files = {"bad.so": BROKEN_ELF[fault](build), "good.so": build.so("sm_120a")}
    places = (
        put("file/bad.so", files["bad.so"]),
        put("x.whl", build.wheel(files)),
        put("x.tar.gz", gzip.compress(build.tar(build.saved(build.tar(files))))),
    )
    found = look(*places)
    assert [problem["file"] for problem in found.json["problems"]] == list(map(str, places))
    assert all(len(problem) < 300 for problem in found.problems)
    good = [library for library in found.json["libraries"] if library["member"] == "good.so"]
    assert [library["codes"][0]["name"] for library in good] == ["sm_120a"] * 2, "one bad file hides no other"


@pytest.mark.parametrize("arch", ["h200", "v100"])
@pytest.mark.parametrize("fault", BROKEN_ELF)
def test_whether_a_broken_library_runs_is_unknown(build, put, fault, arch):
    found = scan([put("bad.so", BROKEN_ELF[fault](build))])
    assert verdict(found, parse_target(arch)).verdict.value == "unknown"


# -- Archives ------------------------------------------------------------------------------------


def lying_wheel(build, *, size=None, packed=None, method=None, flags=None, header=None):
    """A wheel whose directory says something else of its library than is true."""
    data = bytearray(build.wheel({"bad.so": build.so(GOOD)}))
    at = data.rindex(b"PK\x01\x02")
    for offset, form, value in (
        (24, "<I", size),
        (20, "<I", packed),
        (10, "<H", method),
        (8, "<H", flags),
        (42, "<I", header),
    ):
        if value is not None:
            struct.pack_into(form, data, at + offset, value)
    return bytes(data)  # fmt: skip


def bomb(size=GIB):
    """A deflated gibibyte of zeros behind the head of a library."""
    engine = zlib.compressobj(9, zlib.DEFLATED, -15)
    head = b"\x7fELF\x02\x01\x01".ljust(64, b"\0")
    zeros = bytes(1 << 20)
    return (
        engine.compress(head) + b"".join(engine.compress(zeros) for _ in range(size >> 20)) + engine.flush()
    )


def bomb_wheel(claimed):
    """A wheel with one bomb that claims to unpack to so many bytes."""
    packed = bomb()
    name = b"bad.so"
    local = (
        struct.pack("<4sHHHHHIIIHH", b"PK\x03\x04", 20, 0, 8, 0, 0, 0, len(packed), claimed, len(name), 0)
        + name
    )
    central = (
        struct.pack(
            "<4sHHHHHHIIIHHHHHII",
            b"PK\x01\x02",
            20,
            20,
            0,
            8,
            0,
            0,
            0,
            len(packed),
            claimed,
            len(name),
            0,
            0,
            0,
            0,
            0,
            0,
        )
        + name
    )
    end = struct.pack("<4sHHHHIIH", b"PK\x05\x06", 0, 0, 1, 1, len(central), len(local) + len(packed), 0)
    return local + packed + central + end  # fmt: skip


def overlapping_wheel(count=5000):
    """A zip bomb in which all members are the same bytes."""
    packed = bomb(64 << 20)
    name = b"bad.so"
    local = (
        struct.pack("<4sHHHHHIIIHH", b"PK\x03\x04", 20, 0, 8, 0, 0, 0, len(packed), 64 << 20, len(name), 0)
        + name
    )
    central = (
        struct.pack(
            "<4sHHHHHHIIIHHHHHII",
            b"PK\x01\x02",
            20,
            20,
            0,
            8,
            0,
            0,
            0,
            len(packed),
            64 << 20,
            len(name),
            0,
            0,
            0,
            0,
            0,
            0,
        )
        + name
    )
    end = struct.pack(
        "<4sHHHHIIH", b"PK\x05\x06", 0, 0, count, count, len(central) * count, len(local) + len(packed), 0
    )
    return local + packed + central * count + end  # fmt: skip


BROKEN_ZIP = {
    "cut off": lambda b: b.wheel({"bad.so": b.so(GOOD)})[:-30],
    "half of it": lambda b: b.wheel({"bad.so": b.so(GOOD)})[:200],
    "directory outside the file": lambda b: b.wheel({"bad.so": b.so(GOOD)})[:-6] + b"\xf0\xff\xff\x7f\0\0",
    "65535 files claimed": lambda b: b.wheel({"bad.so": b.so(GOOD)})[:-14] + b"\xff\xff\xff\xff" + b.wheel({"bad.so": b.so(GOOD)})[-10:],
    "library claims fewer bytes than it has": lambda b: lying_wheel(b, size=5000),
    "library claims more bytes than it has": lambda b: lying_wheel(b, size=50_000_000),
    "library claims four gigabytes": lambda b: lying_wheel(b, size=0xFFFFFFF0),
    "library claims to be packed into more than the file": lambda b: lying_wheel(b, packed=0xFFFFFFF0),
    "library said to lie outside": lambda b: lying_wheel(b, header=0x7FFFFFF0),
    "library encrypted": lambda b: lying_wheel(b, flags=1),
    "library packed by an unknown method": lambda b: lying_wheel(b, method=93),
    "bomb that admits it": lambda b: bomb_wheel(GIB),
    "bomb that does not admit it": lambda b: bomb_wheel(70_000),
    "overlapping members": lambda b: overlapping_wheel(),
}  # fmt: skip


@pytest.mark.parametrize("fault", BROKEN_ZIP)
def test_a_broken_wheel_is_a_finding(look, build, put, fault):
    found = look(put("bad.whl", BROKEN_ZIP[fault](build)), "--arch", "h200")
    assert found.problems
    assert found.json["verdict"] == "unknown"


def member(name="x.so", size=0, kind=b"0", data=b"", size_field=None):
    """One entry of a tar, its size as claimed."""
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    head = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    if size_field is not None:
        head[124:136] = size_field
        head[148:156] = b" " * 8
        head[148:156] = b"%06o\0 " % sum(head)
    return bytes(head) + data + bytes(-len(data) % 512)


BROKEN_TAR = {
    "cut within a library": lambda b: b.tar({"bad.so": b.so(GOOD)})[:6000],
    "member of 2^63 bytes": lambda b: member(size_field=b"\x80" + b"\xff" * 11),
    "member of a negative size": lambda b: member(size_field=b"\xff" * 12),
    "member whose size is no number": lambda b: member(size_field=b"12345q789ab\0"),
    "long name of gigabytes": lambda b: member("././@LongLink", kind=b"L", size_field=b"77777777777\0"),
    "extended header of gigabytes": lambda b: member("x", kind=b"x", size_field=b"77777777777\0"),
    "extended header that is broken": lambda b: member("x", 20, b"x", b"99999 path=whatever\n") + member(),
    "extended size that is absurd": lambda b: member("x", 28, b"x", b"28 size=999999999999999999\n\0") + member("bad.so", data=b.so(GOOD)),
    "second member broken": lambda b: member("y", 3, data=b"abc") + b"garbage" * 100,
}  # fmt: skip


@pytest.mark.parametrize("wrap", ["tar", "tar.gz", "layer"])
@pytest.mark.parametrize("fault", BROKEN_TAR)
def test_a_broken_tar_is_a_finding(look, build, put, fault, wrap):
    data = BROKEN_TAR[fault](build)
    if wrap == "tar.gz":
        data = gzip.compress(data)
    elif wrap == "layer":
        data = build.tar(build.saved(build.tar({"good.so": build.so("sm_120a")}), data))
    found = look(put(f"bad.{wrap if wrap != 'layer' else 'tar'}", data), "--arch", "h200")
    assert found.problems
    assert found.json["verdict"] != "runnable"
    if wrap == "layer":
        assert found.libraries["good.so"] == "sm_120a"


BROKEN_IMAGE = {
    "layer that is not there": lambda b: {"manifest.json": json.dumps([{"Layers": ["no/layer.tar"]}]).encode()},
    "layer outside the archive": lambda b: {"manifest.json": b'[{"Layers": ["../../../../etc/passwd"]}]'},
    "layer whose gzip is broken": lambda b: b.saved(gzip.compress(b.tar({"x.so": b.so(GOOD)}))[:200]),
    "layer that is text": lambda b: b.saved(b"hello" * 500),
    "manifest that names a layer a million times": lambda b: b.saved(b.tar({f"{i}.so": b.so() for i in range(30)}))
    | {"manifest.json": json.dumps([{"Layers": [f"{0:064x}/layer.tar"] * 50_000}] * 1).encode().replace(b", ", b",")},
    "link to itself": lambda b: {"a/layer.tar": "layer.tar", "manifest.json": b'[{"Layers": ["a/layer.tar"]}]'},
    "links in a circle": lambda b: {"a.tar": "b.tar", "b.tar": "a.tar", "manifest.json": b'[{"Layers": ["a.tar"]}]'},
}  # fmt: skip


@pytest.mark.parametrize("fault", [fault for fault in BROKEN_IMAGE if "million" not in fault])
def test_a_broken_image_is_a_finding(look, build, put, fault):
    found = look(put("bad.tar", build.tar(BROKEN_IMAGE[fault](build))), "--arch", "h200")
    assert found.problems
    assert found.json["verdict"] == "unknown"


def test_a_layer_named_a_million_times_costs_no_time(look, build, put):
    files = BROKEN_IMAGE["manifest that names a layer a million times"](build)
    assert look(put("bad.tar", build.tar(files))).seconds < 20


ODD_MANIFESTS = (
    b"[]", b"{}", b"[[[]]]", b'[{"Layers": 7}]', b'[{"Layers": [7, null, {}]}]', b'[null, 3, "x"]', b"[" * 100_000,
    b'{"manifests": [{"digest": 7}, null, {"digest": "sha256:x", "platform": 9}]}', b'[{"RepoTags": [null]}]', b"\xff{",
)  # fmt: skip


@pytest.mark.parametrize("name", ["manifest.json", "index.json"])
@pytest.mark.parametrize("text", ODD_MANIFESTS, ids=range(len(ODD_MANIFESTS)))
def test_a_manifest_that_is_no_manifest_is_none(look, build, put, name, text):
    look(put("x.tar", build.tar({name: text, "layer.tar": build.tar({"x.so": build.so(GOOD)})})))


def test_indexes_that_name_each_other_end(look, build, put):
    files = {
        "blobs/sha256/a": b'{"manifests": [{"digest": "sha256:b"}]}',
        "blobs/sha256/b": b'{"manifests": [{"digest": "sha256:a"}]}',
        "index.json": b'{"manifests": [{"digest": "sha256:a"}]}',
        "oci-layout": b"{}",
    }
    look(put("x.tar", build.tar(files)))


@pytest.mark.parametrize("depth", [2, 3, 50])
def test_a_tar_within_a_tar_within_a_tar_ends(look, build, put, depth):
    data = build.tar({"x.so": build.so(GOOD)})
    for _ in range(depth):
        data = build.tar({"inner.tar": data})
    look(put("x.tar", data))


def gzip_bomb(levels):
    data = member("bad.so", GIB, data=b"\x7fELF\x02\x01\x01".ljust(512, b"\0"))
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb") as out:
        out.write(data)
        for _ in range(1024):
            out.write(bytes(1 << 20))
    bomb = packed.getvalue()
    if levels == 2:
        bomb = gzip.compress(member("layer.tar.gz", len(bomb), data=bomb) + bytes(1024))
    return bomb


@pytest.mark.parametrize("levels", [1, 2])
def test_a_bomb_of_gzip_is_stopped_early(look, put, levels):
    found = look(put("bad.tar.gz", gzip_bomb(levels)), "--arch", "h200")
    assert "bomb" in found.problems[0]
    assert found.seconds < 20


def test_gzip_of_a_million_empty_parts_is_read_in_time(look, put):
    assert look(put("bad.tar.gz", gzip.compress(b"") * 300_000)).seconds < 20


# -- Size ----------------------------------------------------------------------------------------


def sparse(path, size, *writes):
    with path.open("wb") as file:
        for at, data in writes:
            file.seek(at)
            file.write(data)
        file.truncate(size)
    return path


@pytest.mark.parametrize("size", [GIB, 1 << 40])
def test_a_huge_library_costs_no_more_than_a_small_one(look, build, tmp_path, size):
    """Headers are read, payloads are not: a fat binary whose pieces are gigabytes each."""
    piece = size // 4
    head = struct.pack("<HHIQ", 2, 0x101, 64, piece).ljust(28, b"\0") + struct.pack("<I", 121)
    head = head.ljust(64, b"\0")
    small = build.so("sm_80")
    table, strings = len(small) - 4 * 64, small[2 * 4096 + 4096 :]
    whole = 2 * (64 + piece)
    code_at, names_at = 8192, 8192 + 16 + whole
    rows = bytearray(small[table:])
    struct.pack_into("<QQ", rows, 2 * 64 + 24, code_at, 16 + whole)
    (length,) = struct.unpack_from("<Q", rows, 3 * 64 + 32)
    struct.pack_into("<Q", rows, 3 * 64 + 24, names_at)
    path = sparse(
        tmp_path / "huge.so",
        size,
        (0, table_at(small[:64], names_at + 4096)),
        (code_at, struct.pack("<4sHHQ", FATBIN, 1, 16, whole) + head),
        (code_at + 16 + 64 + piece, head),
        (names_at, strings[:length]),
        (names_at + 4096, bytes(rows)),
    )
    found = look(path)
    assert (found.libraries, found.problems) == ({"huge.so": "sm_121 x2"}, [])
    assert found.seconds < 5
    assert found.peak_bytes < 80 << 20


@pytest.mark.parametrize("name", ["x.so", "x.whl", "x.tar", "x.cubin"])
def test_a_huge_file_of_nothing_is_done_with_at_once(look, tmp_path, name):
    found = look(sparse(tmp_path / name, 1 << 40))
    assert found.problems
    assert found.seconds < 5


def test_a_huge_library_without_a_section_table_is_searched_within_bounds(look, build, tmp_path):
    head = build.elf({}, table=False)[:64]
    found = look(
        sparse(tmp_path / "x.so", 1 << 40, (0, head), (GIB, build.fatbin("sm_80"))), "--arch", "h200"
    )
    assert found.problems
    assert found.libraries == {"x.so": "sm_80"}
    assert found.json["verdict"] == "unknown"


def test_an_archive_of_more_libraries_than_anybody_has_is_cut_short(look, build, tmp_path):
    entry = member("x.so", 64, data=build.elf({}, table=False)[:64])
    path = tmp_path / "x.tar"
    with path.open("wb") as file:
        for _ in range(300):
            file.write(entry * 1000)
    found = look(path)
    assert found.problems


# -- Names and things that are no files -----------------------------------------------------------

ODD_NAMES = (
    "../../../../etc/x.so", "/etc/x.so", "a/\x1b[2J\x1b]0;title\x07.so", "[red]x[/red].so", "[/nothing].so", "line\nbreak.so",
    "right\u202eto left.so", "nul\u0001.so", "l" * 3000 + ".so", "%s{}$(x)`x`.so", "é漢字.so",
)  # fmt: skip


@pytest.mark.parametrize("pack", ["wheel", "tar"])
def test_odd_names_are_shown_and_do_nothing(look, build, put, tmp_path, pack, lanes):
    files = {name: build.so(GOOD) for name in ODD_NAMES}
    path = put("x.whl", build.wheel(files)) if pack == "wheel" else put("x.tar", build.tar(files))
    before = {p for p in tmp_path.rglob("*") if "home" not in p.parts}
    found = look(path)
    assert len(found.libraries) == len(ODD_NAMES)
    assert all(name.isprintable() for name in found.libraries)
    shown = lanes("scan", str(path), "--arch", "gb10")
    assert (shown.code, "\x1b" in shown.out, "\x07" in shown.out) == (3, False, False)
    assert {p for p in tmp_path.rglob("*") if "home" not in p.parts} == before, "nothing is unpacked"


def test_names_that_are_no_text_are_shown(look, build, tmp_path):
    name = os.path.join(os.fsencode(tmp_path), b"caf\xe9.so")
    with open(name, "wb") as file:
        file.write(build.so(GOOD))
    assert list(look(tmp_path).libraries) == ["caf\\udce9.so"]
    assert list(look(os.fsdecode(name)).libraries) == ["caf\\udce9.so"]


@pytest.fixture
def fifo(tmp_path):
    os.mkfifo(tmp_path / "fifo.so")
    return tmp_path / "fifo.so"


def test_what_is_no_regular_file_is_not_opened(look, fifo, tmp_path):
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as listening:
        listening.bind(str(tmp_path / "s.so"))
        for path in (fifo, tmp_path / "s.so", "/dev/zero", "/dev/null"):
            assert look(path).problems == ["it is not a regular file"]


def test_a_folder_with_pipes_and_loops_of_links_ends(look, build, put, fifo, tmp_path):
    put("lib/x.so", build.so(GOOD))
    (tmp_path / "lib/again").symlink_to(tmp_path)
    (tmp_path / "lib/self").symlink_to("self")
    (tmp_path / "lib/y.so").symlink_to("x.so")
    found = look(tmp_path)
    assert (found.libraries, found.problems) == ({"x.so": GOOD}, [])


@pytest.fixture
def deep(tmp_path):
    """A folder that is taken away by a program: Python's own way of doing so calls itself too often."""
    (tmp_path / "deep").mkdir()
    yield tmp_path / "deep"
    subprocess.run(["rm", "-rf", str(tmp_path / "deep")], check=True)


def test_a_folder_of_a_thousand_levels_ends(look, build, deep):
    here = os.getcwd()
    try:
        os.chdir(deep)
        for _ in range(1500):
            os.mkdir("d")
            os.chdir("d")
        with open("x.so", "wb") as file:
            file.write(build.so(GOOD))
    finally:
        os.chdir(here)
    assert list(look(deep).libraries.values()) == [GOOD]


@pytest.mark.parametrize("name", ["nowhere.so", "loop", "x" * 5000, "file.so/below"])
def test_a_path_that_leads_nowhere_is_a_mistake_of_the_command_line(look, put, tmp_path, name):
    (tmp_path / "loop").symlink_to("loop")
    put("file.so", b"")
    ran = look(tmp_path / name)
    assert ran.code == 2
    assert "cannot be looked at" in ran.err


OTHER = {
    "empty.so": b"", "text.so": b"hello, this is no library", "x.whl": b"PK", "x.tar.gz": b"\x1f\x8b\x08" + bytes(20),
    "page.html": b"<html>", "one": b"\x7f", "old.so": b"\x7fELF\x01\x01\x01".ljust(600, b"\0"), "x.tar": bytes(10240),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER)
def test_a_named_file_that_cannot_hold_code_is_a_finding(look, put, name):
    assert look(put(name, OTHER[name])).problems


@pytest.mark.parametrize("name", [name for name in OTHER if name not in ("page.html", "one", "old.so")])
def test_in_a_folder_only_files_that_should_hold_code_are_findings(look, put, tmp_path, name):
    put(f"a/{name}", OTHER[name])
    put("a/README", b"hello")
    put("a/data.bin", b"\x1f\x8b" + bytes(99))
    put("a/data.zst", b"\x28\xb5\x2f\xfd" + bytes(99))
    put("a/libc.so", b"/* GNU ld script\n*/ GROUP ( libc.so.6 )")
    put("a/libncurses.so", b"INPUT(libncurses.so.6 -ltinfo)")
    put("a/apple.so", b"\xcf\xfa\xed\xfe" + bytes(99))
    put("a/old.so", OTHER["old.so"])
    assert len(look(tmp_path / "a").problems) == 1


def test_a_file_that_may_not_be_read_is_a_finding(look, build, put):
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    path = put("x.so", build.so(GOOD))
    path.chmod(0)
    assert look(path).problems == ["Permission denied"]


def test_a_file_that_shrinks_while_it_is_read_is_a_finding(build, put):
    """As a download does that is started anew."""
    from lanes.hardware.binaries import file_opener, read_binary

    data = build.so(GOOD)
    with put("x.so", data[:9000]).open("rb", buffering=0) as file:
        assert read_binary(file_opener(file, 0, len(data)), len(data)).problem


def test_every_cut_of_a_wheel_ends_in_a_finding(build, put):
    data = build.wheel({"x.so": build.so(GOOD), "y.so": build.so("sm_121a")}, zipfile.ZIP_STORED)
    for size in range(0, len(data), 997):
        assert scan([put("cut.whl", data[:size])]).problems, size


def test_every_changed_byte_of_a_library_ends_somehow(build, put):
    """Each byte of the headers changed to the values that do most harm."""
    data = build.so(GOOD)
    places = [*range(64), *range(8192, 8192 + 100), *range(len(data) - 256, len(data))]
    for at in places:
        for value in (0, 1, 0x7F, 0xFF):
            changed = bytearray(data)
            changed[at] = value
            scan([put("x.so", bytes(changed))])


def test_scans_do_not_disturb_each_other(build, put):
    path = put("x.whl", build.wheel({"x.so": build.so(GOOD)}))
    found = []
    threads = [threading.Thread(target=lambda: found.append(scan([path]))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == found[:1] * 8


@pytest.mark.parametrize("kind", ["so", "whl", "tar", "saved", "tar.gz"])
def test_a_file_changed_at_random_ends_in_whatever_but_a_crash(build, put, kind):
    """The same changes each time: what is found here can be found again."""
    chance = random.Random(kind)
    library = build.so("sm_80 sm_90a", relocatable="compute_90", hip=build.bundle("gfx942"))
    layer = build.tar({"x.so": library, "y.so": "x.so"})
    packed = {
        "so": library,
        "whl": build.wheel({"x.so": library}),
        "tar": layer,
        "saved": build.tar(build.saved(layer, gzip.compress(layer))),
        "tar.gz": gzip.compress(layer),
    }
    for _ in range(150):
        data = bytearray(packed[kind])
        for _ in range(chance.choice((1, 2, 8, 30))):
            at = chance.randrange(max(1, len(data) - 1))
            if chance.random() < 0.8:
                data[at] = chance.choice((0, 1, 2, 0x7F, 0x80, 0xFF, chance.randrange(256)))
            else:
                del data[at + 1 : at + chance.randrange(1000)]
        verdict(scan([put(f"x.{kind}", bytes(data))]), parse_target("gb10"))
