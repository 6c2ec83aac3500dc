"""Why llama.cpp failed, from the lines it logs.

The patterns were collected by provoking the failures with xllamacpp 2026.10 (llama.cpp of October
2026), those about GPUs, arguments and loaders from llama.cpp's sources. One failure echoes through the
layers above it (`failed to load model` comes six times); `lanes.causes` names
the first cause, and the echoes only when nothing better was found.
"""

from __future__ import annotations

from collections.abc import Sequence

from lanes import causes
from lanes.causes import known
from lanes.types import Cause, Postmortem

_KNOWN = (
    known(
        "model-missing",
        r"failed to open GGUF file|gguf_init_from_file.*failed to open|failed to open GGUF split",
        "llama.cpp could not open the model's file",
        "check that the path in the recipe exists and that this user may read it",
    ),
    known(
        "model-not-gguf",
        r"invalid magic characters|failed to read magic",
        "the model's file is not a GGUF",
        "name a GGUF file; weights in another format are converted with llama.cpp's convert_hf_to_gguf.py",
    ),
    known(
        "model-truncated",
        r"data is not within the file bounds|failed to read key-value pairs|failed to read tensor (info|data)"
        r"|unexpectedly reached end of file",
        "the model's file is cut off",
        "fetch it again and compare its size and checksum",
    ),
    known(
        "gguf-version",
        r"this GGUF file is version \d+ but|GGUFv\d+ is no longer supported",
        "the model's file is of a GGUF version that this llama.cpp does not read",
        "convert the model again, or use a newer llama.cpp",
    ),
    known(
        "architecture-unknown",
        r"unknown (model )?architecture|unknown pre-tokenizer type|missing tensor '|wrong number of tensors",
        "this llama.cpp does not know the model's architecture",
        "use a newer llama.cpp: pip install --upgrade xllamacpp, or a newer llama-server",
    ),
    known(
        "port-in-use",
        r"couldn't bind HTTP server socket",
        "llama.cpp could not listen on its port: another process has it",
        "stop that process, or leave the port to lanes, which looks for a free one",
        transient=True,
    ),
    known(
        "out-of-gpu-memory",
        r"CUDA error: out of memory|cudaMalloc failed: out of memory|hipMalloc failed|ErrorOutOfDeviceMemory",
        "the GPU's memory does not suffice for the model and its KV cache",
        "lower gpu_layers, context or parallel, or stop what else uses the GPU",
    ),
    known(
        "out-of-memory",
        r"std::bad_alloc|insufficient memory|failed to allocate|unable to allocate|cannot allocate memory",
        "memory does not suffice for the model, its KV cache and its buffers",
        "lower context or parallel, choose a smaller cache type (cache_type_k = \"q8_0\"), or a smaller model",
    ),
    known(
        "no-gpu-code",
        r"no kernel image is available for execution|unsupported toolchain",
        "this build of llama.cpp has no code for the GPU, or needs a newer driver",
        "use a llama-server that was built for this GPU",
    ),
    known(
        "gpu-driver",
        r"CUDA driver version is insufficient|failed to initialize CUDA",
        "the GPU's driver cannot be used by this build of llama.cpp",
        "update the driver, or use a build for the CUDA version that nvidia-smi prints",
    ),
    known(
        "argument-unknown",
        r"error: invalid argument|unknown argument|error while handling argument|unrecognized arguments",
        "the server does not know an argument, or refuses its value",
        "correct extra_args in the recipe, or use a newer llama-server",
    ),
    known(
        "flash-attention-needed",
        r"V cache (quantization )?requires flash_attn",
        "a quantized V cache needs flash attention",
        "set flash_attention = \"on\", or cache_type_v = \"f16\"",
    ),
    known(
        "library-missing",
        r"error while loading shared libraries|version `GLIBC\S*' not found|cannot open shared object file",
        "the server's program lacks a library of the system",
        "install the library that the line names, or use a build made for this system",
    ),
    known(
        "server-missing",
        r"xllamacpp cannot be imported|No module named '?(xllamacpp|lanes_llamacpp)",
        "xllamacpp is not installed beside lanes-llamacpp, or is broken",
        "pip install --force-reinstall xllamacpp, or put llama-server on PATH",
    ),
    known(
        "model-not-loaded",
        r"failed to load model|failed to create.context|exiting due to model loading error",
        "llama.cpp could not load the model",
        "see the lines above it in the log",
        echo=True,
    ),
)  # fmt: skip

_IN_ANSWER = known(
    # Only where HTTP said so: in a log it may be some earlier request's.
    "context-too-small",
    r"exceeds the available context size",
    "a request needs more tokens than the context of its slot",
    "raise context in the recipe, or ask for a shorter prompt",
)


def diagnose(postmortem: Postmortem) -> Sequence[Cause]:
    """The causes of a failure, the first first.

    Attempts may fail before one succeeds: llama.cpp tries what fits. What it got over is no cause.
    """
    if postmortem.http and _IN_ANSWER.pattern.search(postmortem.http):
        return (_IN_ANSWER.cause,)
    return causes.find(postmortem, _KNOWN, got_over=r"model loaded")
