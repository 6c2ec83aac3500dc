"""Binaries, wheels and images made of bytes, and the program run on them with its time and memory watched."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import struct
import subprocess
import sys
import tarfile
import time
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest

SLOWEST_S = 60
MOST_BYTES = 200 << 20
"""What a scan may take at most, whatever it is given: Python itself and the program take 40 MB of it."""

_KINDS = {"compute": 1, "sm": 2, "lto": 8}
_FLAGS = {"": 0, "a": 0x100000, "f": 0x200000}

WATCHED = """
import sys
from lanes.cli import main
try:
    main()
finally:
    with open("/proc/self/status") as status:
        peak = next(line.split()[1] for line in status if line.startswith("VmHWM"))
    print("peak", peak, file=sys.stderr)
"""


class Build:
    """Makes the files that a scan looks into."""

    def entry(self, name: str, payload: bytes = bytes(64)) -> bytes:
        """One piece of a fat binary: `sm_90a`, `compute_80`."""
        kind, arch, suffix = re.fullmatch(r"([a-z]+)_(\d+)([af]?)", name).groups()
        head = struct.pack("<HHIQ", _KINDS[kind], 0x101, 64, len(payload)).ljust(28, b"\0")
        head = (head + struct.pack("<I", int(arch))).ljust(40, b"\0") + struct.pack("<Q", _FLAGS[suffix])
        return head.ljust(64, b"\0") + payload

    def fatbin(self, codes: str, payload: bytes = bytes(64)) -> bytes:
        """A fat binary that holds `sm_80 sm_90a compute_80`."""
        body = b"".join(self.entry(name, payload) for name in codes.split())
        return struct.pack("<4sHHQ", b"\x50\xed\x55\xba", 1, 16, len(body)) + body

    def so(
        self,
        codes: str = "",
        *,
        relocatable: str = "",
        hip: bytes = b"",
        machine: int = 62,
        text: bytes = bytes(100),
        raw: Mapping[str, bytes] | None = None,
    ) -> bytes:
        """A shared object that holds `sm_80 sm_90a`, one fat binary for each part split by `|`."""
        sections = {".text": text} | dict(raw or {})
        for name, said in ((".nv_fatbin", codes), ("__nv_relfatbin", relocatable)):
            if said:
                sections[name] = bytes(8).join(self.fatbin(part) for part in said.split("|"))
        if hip:
            sections[".hip_fatbin"] = hip
        return self.elf(sections, machine=machine)

    def elf(
        self,
        sections: Mapping[str, bytes],
        *,
        machine: int = 62,
        flags: int = 0,
        abi: int = 0,
        table: bool = True,
    ) -> bytes:
        """An ELF file of these sections, each on a page of its own, and the section table at its end."""
        names = [*sections, ".shstrtab"]
        strings = b"\0" + b"".join(name.encode() + b"\0" for name in names)
        body = bytearray(64)
        rows = [bytes(64)]
        for name, data in (*sections.items(), (".shstrtab", strings)):
            body += bytes(-len(body) % 4096)
            at = strings.index(b"\0" + name.encode() + b"\0") + 1
            kind = 3 if name == ".shstrtab" else 1
            rows.append(struct.pack("<IIQQQQ", at, kind, 2, 0, len(body), len(data)).ljust(64, b"\0"))
            body += data
        ident = struct.pack("4sBBBBB", b"\x7fELF", 2, 1, 1, 0, abi).ljust(16, b"\0")
        place, count = (len(body), len(rows)) if table else (0, 0)
        head = ident + struct.pack(
            "<HHIQQQIHHHHHH", 3, machine, 1, 0, 0, place, flags, 64, 0, 0, 64, count, max(count - 1, 0)
        )
        body[:64] = head
        return bytes(body) + (b"".join(rows) if table else b"")

    def bundle(self, targets: str, ids: str = "hipv4-amdgcn-amd-amdhsa--") -> bytes:
        """clang's bundle of AMD code objects for `gfx942 gfx90a`, filled up to a page."""
        names = ["host-x86_64-unknown-linux--", *(ids + target for target in targets.split())]
        heads = b"".join(
            struct.pack("<QQQ", 4096, 0 if index == 0 else 32, len(name)) + name.encode()
            for index, name in enumerate(names)
        )
        head = b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<Q", len(names)) + heads
        return head.ljust(4096, b"\0") + bytes(32)

    def packed_bundle(self, targets: str, *, version: int = 2, method: str = "zlib") -> bytes:
        """The same, compressed."""
        plain = self.bundle(targets)
        if method == "zstd":
            packed = pytest.importorskip("zstandard").compress(plain)
        else:
            packed = zlib.compress(plain)
        number = {"zlib": 0, "zstd": 1}[method]
        sizes = {1: "", 2: "I", 3: "Q"}[version]
        length = 8 + {1: 12, 2: 16, 3: 24}[version] + len(packed)
        values = [length] if sizes else []
        middle = struct.pack(f"<{sizes}{sizes or 'I'}Q", *values, len(plain), 0)
        return b"CCOB" + struct.pack("<HH", version, number) + middle + packed

    def wheel(self, files: Mapping[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
        """A zip of these files."""
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", method) as archive:
            for name, data in files.items():
                archive.writestr(name, data)
        return out.getvalue()

    def tar(self, files: Mapping[str, bytes | str], format: int = tarfile.GNU_FORMAT) -> bytes:
        """A tar of these files; text is the target of a symbolic link."""
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=format) as archive:
            for name, data in files.items():
                member = tarfile.TarInfo(name)
                if isinstance(data, str):
                    member.type, member.linkname = tarfile.SYMTYPE, data
                    archive.addfile(member)
                else:
                    member.size = len(data)
                    archive.addfile(member, io.BytesIO(data))
        return out.getvalue()

    def saved(self, *layers: bytes, tag: str = "engine:1") -> dict[str, bytes | str]:
        """The files of `docker save`, as old engines write them; the manifest comes last."""
        files: dict[str, bytes | str] = {f"{index:064x}/layer.tar": data for index, data in enumerate(layers)}
        manifest = [{"Config": "c.json", "RepoTags": [tag], "Layers": list(files)}]
        return files | {"c.json": b"{}", "manifest.json": json.dumps(manifest).encode()}

    def oci(self, *layers: bytes, platform: str = "linux/arm64") -> dict[str, bytes | str]:
        """The files of an OCI layout."""
        files: dict[str, bytes | str] = {}

        def blob(data: bytes) -> str:
            digest = hashlib.sha256(data).hexdigest()
            files[f"blobs/sha256/{digest}"] = data
            return f"sha256:{digest}"

        manifest = blob(json.dumps({"layers": [{"digest": blob(layer)} for layer in layers]}).encode())
        system, _, machine = platform.partition("/")
        known = {"digest": manifest, "platform": {"os": system, "architecture": machine}}
        index = blob(json.dumps({"manifests": [known]}).encode())
        files["oci-layout"] = b'{"imageLayoutVersion": "1.0.0"}'
        files["index.json"] = json.dumps({"manifests": [{"digest": index}]}).encode()
        return files


@attrs.frozen
class Look:
    """What `lanes scan --json` said."""

    code: int
    json: Any
    err: str
    peak_bytes: int
    seconds: float

    @property
    def libraries(self) -> dict[str, str]:
        """Library -> its code, each with its count where that is not 1."""
        return {
            lib["member"] or os.path.basename(lib["file"]): " ".join(
                code["name"] + (f" x{code['count']}" if code["count"] > 1 else "") for code in lib["codes"]
            )
            for lib in self.json["libraries"]
        }

    @property
    def problems(self) -> list[str]:
        return [problem["reason"] for problem in self.json["problems"]]


@pytest.fixture
def build() -> Build:
    return Build()


@pytest.fixture
def look(tmp_path: Path) -> Callable[..., Look]:
    """`lanes scan --json` in a process of its own; it may neither hang nor fill the memory."""

    def run(*words: str | os.PathLike[str], env: Mapping[str, str] | None = None) -> Look:
        began = time.monotonic()
        ran = subprocess.run(
            [sys.executable, "-c", WATCHED, "scan", "--json", *map(os.fspath, words)],
            capture_output=True, text=True, errors="replace", timeout=SLOWEST_S, check=False,
            stdin=subprocess.DEVNULL, env={**os.environ, "LANES_HOME": str(tmp_path / "home"), **(env or {})},
        )  # fmt: skip
        seconds = time.monotonic() - began
        assert "Traceback" not in ran.stderr, ran.stderr
        peak = int(ran.stderr.rpartition("peak ")[2]) * 1024
        assert peak < MOST_BYTES, f"it took {peak / 2**20:.0f} MiB"
        document = json.loads(ran.stdout) if ran.stdout else None
        return Look(ran.returncode, document, ran.stderr, peak, seconds)

    return run


@pytest.fixture
def put(tmp_path: Path) -> Callable[[str, bytes], Path]:
    """Write a file for a test and give its path."""

    def write(name: str, data: bytes) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return path

    return write
