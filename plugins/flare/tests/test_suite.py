"""FLARE keeps to what every engine plugin must."""

from __future__ import annotations

from lanes.testing import EngineSuite

CRASH = (
    "tensor-parallel peer failed: RoCE proxy failed: two-shot op 812 abandoned: kernel timed out at seq 40961"
)


class TestFlare(EngineSuite):
    engine = "flare"
    failures = {
        CRASH: "roce-crash",
        "ERROR RoCE proxy failed: RDMA write: vendor_err 0x81": "roce-failed",
        'POST /v1/chat/completions 500: tool_choice: "required"': "tool-choice",
        "CUDA_ERROR_OUT_OF_MEMORY: out of memory": "out-of-gpu-memory",
        "CUDA error: no kernel image is available for execution on the device": "no-gpu-code",
    }
    needed = {
        "command": '["start", "{model}", "{host}:{port}", "{rank}/{nnodes}", "{address}", "{head}:{rendezvous_port}"]',
        "health": "/ready",
        "model.path": "/models/x",
    }
