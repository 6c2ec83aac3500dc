"""Why llama.cpp failed, from the lines it logs.

The patterns were collected by provoking the failures with xllamacpp 2026.10 (llama.cpp of October
2026), those about GPUs, arguments and loaders from llama.cpp's sources. One failure echoes through the
layers above it (`failed to load model` comes six times); so the causes are named in the order in which
their first line appears, and the echoes only when nothing better was found.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from attrs import evolve, frozen
from lanes.types import Cause, Postmortem


@frozen(kw_only=True)
class _Known:
    pattern: re.Pattern[str]
    cause: Cause


def _known(name: str, pattern: str, meaning: str, advice: str, *, transient: bool = False) -> _Known:
    cause = Cause(name=name, meaning=meaning, advice=advice, transient=transient)
    return _Known(pattern=re.compile(pattern, re.IGNORECASE), cause=cause)


_KNOWN = (
    _known(
        "model-missing",
        r"failed to open GGUF file|gguf_init_from_file.*failed to open|failed to open GGUF split",
        "llama.cpp could not open the model's file",
        "check that the path in the recipe exists and that this user may read it",
    ),
    _known(
        "model-not-gguf",
        r"invalid magic characters|failed to read magic",
        "the model's file is not a GGUF",
        "name a GGUF file; weights in another format are converted with llama.cpp's convert_hf_to_gguf.py",
    ),
    _known(
        "model-truncated",
        r"data is not within the file bounds|failed to read key-value pairs|failed to read tensor (info|data)"
        r"|unexpectedly reached end of file",
        "the model's file is cut off",
        "fetch it again and compare its size and checksum",
    ),
    _known(
        "gguf-version",
        r"this GGUF file is version \d+ but|GGUFv\d+ is no longer supported",
        "the model's file is of a GGUF version that this llama.cpp does not read",
        "convert the model again, or use a newer llama.cpp",
    ),
    _known(
        "architecture-unknown",
        r"unknown (model )?architecture|unknown pre-tokenizer type|missing tensor '|wrong number of tensors",
        "this llama.cpp does not know the model's architecture",
        "use a newer llama.cpp: pip install --upgrade xllamacpp, or a newer llama-server",
    ),
    _known(
        "port-in-use",
        r"couldn't bind HTTP server socket",
        "llama.cpp could not listen on its port: another process has it",
        "stop that process, or leave the port to lanes, which looks for a free one",
        transient=True,
    ),
    _known(
        "out-of-gpu-memory",
        r"CUDA error: out of memory|cudaMalloc failed: out of memory|hipMalloc failed|ErrorOutOfDeviceMemory",
        "the GPU's memory does not suffice for the model and its KV cache",
        "lower gpu_layers, context or parallel, or stop what else uses the GPU",
    ),
    _known(
        "out-of-memory",
        r"std::bad_alloc|insufficient memory|failed to allocate|unable to allocate|cannot allocate memory",
        "memory does not suffice for the model, its KV cache and its buffers",
        "lower context or parallel, choose a smaller cache type (cache_type_k = \"q8_0\"), or a smaller model",
    ),
    _known(
        "no-gpu-code",
        r"no kernel image is available for execution|unsupported toolchain",
        "this build of llama.cpp has no code for the GPU, or needs a newer driver",
        "use a llama-server that was built for this GPU",
    ),
    _known(
        "gpu-driver",
        r"CUDA driver version is insufficient|failed to initialize CUDA",
        "the GPU's driver cannot be used by this build of llama.cpp",
        "update the driver, or use a build for the CUDA version that nvidia-smi prints",
    ),
    _known(
        "argument-unknown",
        r"error: invalid argument|unknown argument|error while handling argument|unrecognized arguments",
        "the server does not know an argument, or refuses its value",
        "correct extra_args in the recipe, or use a newer llama-server",
    ),
    _known(
        "flash-attention-needed",
        r"V cache (quantization )?requires flash_attn",
        "a quantized V cache needs flash attention",
        "set flash_attention = \"on\", or cache_type_v = \"f16\"",
    ),
    _known(
        "library-missing",
        r"error while loading shared libraries|version `GLIBC\S*' not found|cannot open shared object file",
        "the server's program lacks a library of the system",
        "install the library that the line names, or use a build made for this system",
    ),
    _known(
        "server-missing",
        r"xllamacpp cannot be imported|No module named '?(xllamacpp|lanes_llamacpp)",
        "xllamacpp is not installed beside lanes-llamacpp, or is broken",
        "pip install --force-reinstall xllamacpp, or put llama-server on PATH",
    ),
)  # fmt: skip

_IN_ANSWER = _known(
    # Only where HTTP said so: in a log it may be some earlier request's.
    "context-too-small",
    r"exceeds the available context size",
    "a request needs more tokens than the context of its slot",
    "raise context in the recipe, or ask for a shorter prompt",
)

_ECHO = _known(
    "model-not-loaded",
    r"failed to load model|failed to create.context|exiting due to model loading error",
    "llama.cpp could not load the model",
    "see the lines above it in the log",
)

_LOADED = re.compile(r"model loaded")

_SIGNALS = {
    "SIGKILL": Cause(
        name="killed",
        meaning="the server was killed from outside, by a person or by the system for want of memory",
        advice="look at the system's log (dmesg); if memory ran out, lower context or parallel",
    ),
    "SIGILL": Cause(
        name="cpu-too-old",
        meaning="the server's program uses instructions that this CPU does not have",
        advice="use a build for this CPU; xllamacpp from PyPI runs on every x86-64 and ARMv8-A",
    ),
    "SIGSEGV": Cause(
        name="crashed",
        meaning="the server crashed (SIGSEGV)",
        advice="try another version of llama.cpp, and report the log's last lines to its authors",
    ),
    "SIGABRT": Cause(
        name="aborted",
        meaning="the server gave up (SIGABRT), as llama.cpp does when an assertion fails",
        advice="the log's last lines name the assertion; try another version of llama.cpp",
    ),
}
_OOM_KILLED = Cause(
    name="out-of-memory",
    meaning="the system killed the server because memory ran out",
    advice="lower context or parallel, choose a smaller model, or give the node more memory",
)


def diagnose(postmortem: Postmortem) -> Sequence[Cause]:
    """The causes of a failure, the first first."""
    found = [c for rank, lines in sorted(postmortem.logs.items()) for c in _in_log(rank, lines)]
    if postmortem.http and _IN_ANSWER.pattern.search(postmortem.http):
        found.append(_IN_ANSWER.cause)
    for rank, end in sorted(postmortem.exits.items()):
        if end.oom_killed:
            found.append(evolve(_OOM_KILLED, rank=rank))
        elif not found and end.signal in _SIGNALS:
            # After a cause in the log, an abort is only its echo.
            found.append(evolve(_SIGNALS[end.signal], rank=rank))
    return found


def _in_log(rank: int, lines: Sequence[str]) -> Iterator[Cause]:
    loaded = [number for number, line in enumerate(lines) if _LOADED.search(line)]
    # Attempts may fail before one succeeds: llama.cpp tries what fits. What it got over is no cause.
    telling = lines[loaded[-1] :] if loaded else lines
    seen: dict[str, tuple[Cause, list[str]]] = {}
    for line in telling:
        for known in _KNOWN:
            if known.pattern.search(line):
                seen.setdefault(known.cause.name, (known.cause, []))[1].append(line)
                break
    if not seen and (echoes := [line for line in telling if _ECHO.pattern.search(line)]):
        seen[_ECHO.cause.name] = (_ECHO.cause, echoes)
    for cause, told in seen.values():
        yield evolve(cause, rank=rank, lines=tuple(told[:3]))
