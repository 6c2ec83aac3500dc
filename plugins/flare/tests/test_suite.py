"""FLARE keeps to what every engine plugin must."""

from __future__ import annotations

from lanes.testing import EngineSuite


class TestFlare(EngineSuite):
    engine = "flare"
    failures = {
        "ERROR tensor-parallel peer failed: RoCE proxy failed: two-shot op 8412 abandoned: kernel timed out "
        "at seq 8412": "roce-timeout",
        "RoCE proxy failed: completion with error": "roce-failed",
        'POST /v1/chat/completions tool_choice="required" 500': "tool-choice-required",
        "CUDA error: no kernel image is available for execution on the device": "no-gpu-code",
        "Error: Address already in use (os error 98)": "port-in-use",
    }
