"""TensorFold keeps to what every engine plugin must."""

from __future__ import annotations

from lanes.testing import EngineSuite


class TestTensorFold(EngineSuite):
    engine = "tensorfold"
    failures = {
        "tensorfold: DeepSeek-V4.1 has no CUDA engine yet: serve it on Apple Silicon": "no-cuda-path",
        "tensorfold: --tp 2 needs --master: rank 0's address on the link between the two machines": "no-master",
        "tensorfold: /model is neither a directory nor a Hugging Face repo id (owner/name)": "no-model",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB": "out-of-gpu-memory",
        "RuntimeError: RoCE proxy failed: RDMA write to rank 1": "roce-failed",
        "CUDA error: no kernel image is available for execution on the device": "no-gpu-code",
    }
