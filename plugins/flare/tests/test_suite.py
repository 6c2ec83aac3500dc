"""FLARE keeps to what every engine plugin must."""

from __future__ import annotations

import pytest
from lanes import recipes
from lanes.plugins import Engine, Plugins
from lanes.testing import EngineSuite
from lanes.types import Lane

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

    @pytest.fixture
    def lanes(self, plugin: Engine) -> list[Lane]:
        """The shipped recipes, with what a person has to add before they can be launched."""
        command = '["start", "{model}", "{host}:{port}", "{rank}/{nnodes}", "{address}", "{head}:{rendezvous_port}"]'
        added = {"command": command, "health": "/ready", "model.path": "/models/x"}
        names = [entry.name for entry in recipes.listed(Plugins(), self.engine)]
        return [recipes.lane(recipes.find(name, Plugins(), added), plugin) for name in names]
