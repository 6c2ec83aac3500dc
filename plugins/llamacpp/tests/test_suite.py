"""llama.cpp keeps to what every engine plugin must."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from lanes.lifecycle import Attempt
from lanes.testing import EngineSuite


@pytest.fixture(scope="module")
def shared_home() -> Iterator[Path]:
    """One home for the tests that serve, so that the model is staged once and not kept."""
    folder = Path(tempfile.mkdtemp(prefix="lanes-test-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


class TestLlamaCpp(EngineSuite):
    engine = "llamacpp"
    recipe = "gemma3-270m"
    overrides = {"context": "1024"}
    failures = {
        "E gguf_init_from_file: failed to open GGUF file 'x.gguf' (No such file or directory)": "model-missing",
        "E gguf_init_from_reader: invalid magic characters: 'hell', expected 'GGUF'": "model-not-gguf",
        "E llama_model_load: error loading model: tensor 'token_embd.weight' data is not within the file "
        "bounds, model is corrupted or incomplete": "model-truncated",
        "E gguf_init_from_reader: this GGUF file is version 9 but this software only supports up to version 3": (
            "gguf-version"
        ),
        "E llama_model_load: error loading model: unknown model architecture: 'x'": "architecture-unknown",
        "E srv start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 8080": "port-in-use",
        "E ggml_aligned_malloc: insufficient memory (attempted to allocate 11718.75 MB)": "out-of-memory",
        "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 90.00 MiB on device 0: cudaMalloc failed: "
        "out of memory": "out-of-gpu-memory",
        "CUDA error: no kernel image is available for execution on the device": "no-gpu-code",
        "error: invalid argument: --frobnicate": "argument-unknown",
        "llama-server: error while loading shared libraries: libcudart.so.13: cannot open shared object "
        "file: No such file or directory": "library-missing",
    }

    @pytest.fixture
    def home(self, shared_home: Path) -> Path:
        return shared_home

    @pytest.mark.model
    def test_serves_and_is_stopped(self, attempt: Attempt) -> None:
        super().test_serves_and_is_stopped(attempt)

    @pytest.mark.model
    def test_a_killed_server_is_found_dead(self, attempt: Attempt) -> None:
        super().test_a_killed_server_is_found_dead(attempt)
