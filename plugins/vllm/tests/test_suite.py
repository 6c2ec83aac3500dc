"""vLLM keeps to what every engine plugin must."""

from __future__ import annotations

from lanes.testing import EngineSuite


class TestVllm(EngineSuite):
    engine = "vllm"
    failures = {
        "ValueError: No available memory for the cache blocks.": "no-room-for-kv-cache",
        "ValueError: Free memory on device cuda:0 (10.0/121.7 GiB) on startup is less than desired GPU memory "
        "utilization (0.9, 109.5 GiB).": "gpu-memory-taken",
        "ValueError: To serve at least one request with the model's max seq len (1048576)": "context-too-long",
        "ValueError: World size (4) is larger than the number of available GPUs (1) in this node.": "too-few-gpus",
        "Waited 600s (configured by VLLM_ENGINE_READY_TIMEOUT_S).": "ready-timeout",
        "CUDA error: no kernel image is available for execution on the device": "no-gpu-code",
    }
