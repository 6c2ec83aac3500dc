"""DeepInfer keeps to what every engine plugin must."""

from __future__ import annotations

from lanes.testing import EngineSuite


class TestDeepInfer(EngineSuite):
    engine = "deepinfer"
    failures = {
        "RuntimeError: unknown GPU type": "gpu-not-admitted",
        "CUDA error: no kernel image is available for execution on the device": "no-gpu-code",
        "ModuleNotFoundError: No module named 'deepinfer'": "not-installed",
        "python: can't open file '/x/examples/offline_inference.py': [Errno 2] No such file": "no-checkout",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB": "out-of-gpu-memory",
    }
