"""lanes-echo keeps to what every engine plugin must."""

from lanes.testing import EngineSuite


class TestEcho(EngineSuite):
    engine = "echo"
    recipe = "echo"
    failures = {
        "echo: error: the pretended memory does not suffice": "out-of-memory",
        "echo: error: cannot listen on 127.0.0.1:8080: Address already in use": "port-in-use",
        "echo: fatal: died, as it was told to": "told-to-die",
    }
