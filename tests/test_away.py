"""`lanes bench --from`: the client on another host, over a real sshd."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
from pathlib import Path

import jsonschema
import psutil
import pytest
from lanes._version import __version__
from lanes.testing.scripted import Script, ScriptedServer

pytestmark = pytest.mark.sshd

SCHEMA = json.loads((Path(__file__).parent.parent / "docs/result.schema.json").read_text())
QUICK = ("--pp", "96", "--tg", "8", "--passes", "2", "--warmups", "1")
SLOW = ("--pp", "96", "--tg", "200", "--passes", "50", "--warmups", "0")
KEY = "sk-away-0123456789abcdef"


def address() -> str:
    """An address of this machine that is not its loopback."""
    for held in psutil.net_if_addrs().values():
        for one in held:
            if one.family == socket.AF_INET and not one.address.startswith("127."):
                return one.address
    pytest.skip("this machine has no address but its loopback")


def serving(script: Script, **how):
    return ScriptedServer(script, host=address(), **how)


@pytest.fixture
def server():
    with serving(Script(ttft_s=0.01, gap_s=0.002, usage="every")) as one:
        yield one


@pytest.fixture
def slow():
    with serving(Script(ttft_s=0.01, gap_s=0.003, usage="every")) as one:
        yield one


class Node:
    """What `box` has: a home and a path of its own, on which `lanes` is whatever a test puts there."""

    def __init__(self, folder: Path) -> None:
        self.home, self.bin = folder / "node-home", folder / "node-bin"
        self.home.mkdir()
        self.bin.mkdir()
        authorized = folder / "authorized"
        forced = f'env PATH={self.bin}:/usr/bin:/bin HOME={self.home} LANES_AWAY_NODE=1 sh -c \\"$SSH_ORIGINAL_COMMAND\\"'
        authorized.write_text(f'command="{forced}" {authorized.read_text()}')

    def install(self, script: str) -> None:
        path = self.bin / "lanes"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def install_lanes(self) -> None:
        self.install(f'exec {sys.executable} -P -m lanes "$@"')

    def says(self, *lines: str, then: str = "") -> None:
        """A program in the place of `lanes` that prints these."""
        text = "".join(f"{line}\n" for line in lines)
        (self.home / "said").write_text(text)
        self.install(f"cat {self.home}/said; {then}")

    @staticmethod
    def clients() -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if "--away" in process.cmdline() and "LANES_AWAY_NODE" in process.environ():
                    found.append(process)
        return found


@pytest.fixture
def node(ssh_host, tmp_path, wait_for):
    one = Node(tmp_path)
    yield one
    wait_for(lambda: not one.clients(), "the client on the node to be gone")
    # Nothing of a measurement stays there, but what the program in its place had.
    assert {path.name for path in one.home.rglob("*")} <= {"said"}


def hello(**more) -> str:
    return json.dumps(["hello", {"lanes": __version__, "host": "box", "cpus": 2, **more}])


READY = json.dumps(["ready", {"endpoint": {"url": "http://x", "model": "m", "dialect": {}}}])


def event(kind: str, **data) -> str:
    return json.dumps(["event", {"kind": kind, "data": data}])


def test_a_server_is_measured_from_another_host_and_the_result_lands_here(lanes, node, server):
    node.install_lanes()
    ran = lanes("bench", "--url", server.url, "--from", "box", *QUICK, "--json")
    assert ran.code == 0, ran.said
    jsonschema.Draft202012Validator(SCHEMA).validate(ran.json)
    (lane,) = ran.json["lanes"]
    client = lane["environment"]["client"]
    assert client["from"] == "box"
    assert client["lanes"] == __version__
    assert client["host"] == socket.gethostname()
    assert client["calibration"] is None
    (instrument,) = lane["instruments"]
    (cell,) = instrument["cells"]
    assert [one["warmup"] for one in cell["passes"]] == [True, False, False]
    assert cell["metrics"]["ttft_s"]["n"] == 2
    assert instrument["status"] == "done"
    # The node made the requests, and the timelines are here.
    assert len(server.answers) >= 3
    shown = lanes("history", "show", ran.json["run"], "--recompute")
    assert "computed anew, every figure is what it was" in shown.said
    assert lanes("history", "--json").json == [ran.json]


def test_a_load_and_other_instruments_come_whole_with_their_files(lanes, node):
    node.install_lanes()
    hung = []

    def script(_, body):
        hung.extend([1] if len(json.dumps(body)) > 8000 else [])
        return Script(usage="every", cut_after=0 if hung else None)

    what = (
        "--instrument", "smoke,probe,survival", *QUICK, "--load", "closed", "--concurrency", "2", "--requests", "8",
        "--with", "survival.longest=4096", "--with", "survival.patience_s=1.5", "--json",
    )  # fmt: skip
    with serving(script, context=8192) as server:
        ran = lanes("bench", "--url", server.url, "--from", "box", *what)
        hung.clear()
        here = lanes("bench", "--url", server.url, *what)
    jsonschema.Draft202012Validator(SCHEMA).validate(ran.json)

    def shape(ran):
        return [
            (
                one["name"],
                one["status"],
                [(row["name"], row["status"]) for row in one["rows"]],
                len(one["cells"]),
            )
            for one in ran.json["lanes"][0]["instruments"]
        ]

    def files(run):
        folder = lanes.home / "artefacts" / run
        return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())

    assert shape(ran) == shape(here)
    assert [name for name, *_ in shape(ran)] == ["smoke", "probe", "survival"]
    assert files(ran.json["run"]) == files(here.json["run"]) != []
    assert ran.json["lanes"][0]["status"] == here.json["lanes"][0]["status"]
    assert "computed anew, every figure" in lanes("history", "show", ran.json["run"], "--recompute").said


def test_the_key_is_in_no_command_line_no_file_and_no_result(lanes, node, tmp_path):
    node.install(
        f'echo "$@" >> {tmp_path}/argv; env >> {tmp_path}/argv; exec {sys.executable} -P -m lanes "$@"'
    )
    lanes.env["AWAY_KEY"] = KEY
    with serving(Script(usage="every"), key=KEY) as server:
        ran = lanes(
            "bench", "--url", server.url, "--from", "box", "--api-key-env", "AWAY_KEY", *QUICK, "--json"
        )
        assert ran.code == 0, ran.said
        refused = lanes("bench", "--url", server.url, "--from", "box", *QUICK)
        assert refused.code == 2
        assert "wants an API key (HTTP 401) (seen from box). Name the variable" in refused.said
    assert "bench --away" in (tmp_path / "argv").read_text()
    assert KEY not in (tmp_path / "argv").read_text()
    assert KEY not in ran.out + ran.err
    for path in [*lanes.home.rglob("*"), *node.home.rglob("*")]:
        assert not path.is_file() or KEY.encode() not in path.read_bytes()


def test_the_interpreter_of_the_node_can_be_named(lanes, node, server):
    ran = lanes(
        "bench", "--url", server.url, "--from", "box", "--from-python", sys.executable, *QUICK, "--json"
    )  # fmt: skip
    assert ran.code == 0, ran.said
    wrong = lanes("bench", "--url", server.url, "--from", "box", "--from-python", "/no/such/python", *QUICK)
    assert wrong.code == 1
    assert "there is no lanes on box for /no/such/python" in wrong.said


def test_a_node_of_a_cluster_is_found_by_its_name(lanes, node, server, tmp_path):
    node.install_lanes()
    file = tmp_path / "c.toml"
    file.write_text('name = "c"\n[[nodes]]\nname = "n1"\nssh = "box"\n[[nodes]]\nname = "n2"\n')
    ran = lanes("bench", "--url", server.url, "--from", "n1", "--cluster", str(file), *QUICK, "--json")
    assert ran.json["lanes"][0]["environment"]["client"]["from"] == "box"
    # n2 is this machine.
    ran = lanes("bench", "--url", server.url, "--from", "n2", "--cluster", str(file), *QUICK, "--json")
    assert ran.json["lanes"][0]["environment"] == {}
    ran = lanes("bench", "--url", server.url, "--from", "n3", "--cluster", str(file))
    assert (ran.code, ran.err) == (2, "lanes: cluster 'c' has no node 'n3'. it has n1, n2\n")


# -- What cannot be ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:8000", "localhost:8000/v1", "http://[::1]:1", "http://0.0.0.0:1"]
)
def test_a_loopback_address_is_refused(lanes, node, url):
    node.install_lanes()
    ran = lanes("bench", "--url", url, "--from", "box")
    assert ran.code == 2
    assert "is box itself when seen from there, and this machine when seen from here" in ran.said
    assert "give the server's address on the network that box is in" in ran.said


def test_a_node_without_lanes_is_one_sentence_with_what_to_do(lanes, node, server):
    ran = lanes("bench", "--url", server.url, "--from", "box", *QUICK)
    assert ran.code == 1
    assert f"lanes: there is no lanes on box. `pip install lanes-core=={__version__}` there" in ran.said
    assert "--from-python PATH" in ran.said


def test_another_version_on_the_node_is_one_sentence(lanes, node, server):
    node.says(hello(lanes="0.0.9"))
    ran = lanes("bench", "--url", server.url, "--from", "box", *QUICK)
    assert f"lanes on box is 0.0.9, and here {__version__}: both must be the same" in ran.said
    node.install("echo 'Error: No such option: --away' >&2; exit 2")
    ran = lanes("bench", "--url", server.url, "--from", "box", *QUICK)
    assert "lanes on box is of another version" in ran.said


def test_a_host_that_cannot_be_reached_is_one_sentence(lanes, node):
    ran = lanes("bench", "--url", "http://192.0.2.1", "--from", "no-such-host.invalid", *QUICK)
    assert ran.code == 1
    assert "no-such-host.invalid cannot be reached: " in ran.said
    assert "`ssh no-such-host.invalid` must work without a password" in ran.said


def test_a_server_that_the_node_does_not_see_is_told_as_seen_from_there(lanes, node, server):
    node.install_lanes()
    server.stop()
    ran = lanes("bench", "--url", server.url, "--from", "box", *QUICK)
    assert ran.code == 1
    assert f"nothing answers at {server.url}" in ran.said
    assert "(seen from box)" in ran.said
    server.stop = lambda: None


def test_a_lane_on_this_machines_loopback_cannot_be_measured_from_elsewhere(echo, node):
    node.install_lanes()
    assert echo("serve", "--engine", "echo").code == 0
    ran = echo("bench", "--from", "box", *QUICK)
    assert ran.code == 2
    assert "is box itself when seen from there" in ran.said
    assert echo("stop").code == 0
    ran = echo("run", "--engine", "echo", "--from", "box", *QUICK)
    assert ran.code == 2
    assert "http://127.0.0.1 is box itself when seen from there" in ran.said
    assert len(echo.records()) == 1, "nothing was launched the second time"


def test_options_of_from_without_it_are_refused(lanes):
    ran = lanes("bench", "--url", "http://192.0.2.1", "--cluster", "c")
    assert (ran.code, ran.err) == (
        2,
        "lanes: --cluster goes with --from. say from which of its nodes to measure\n",
    )


# -- What ends too early -------------------------------------------------------------------------------


def begun(lanes, wait_for, server):
    run = lanes.start("bench", "--url", server.url, "--from", "box", *SLOW, "--json")
    wait_for(lambda: lanes.passes() >= 2 or run.poll() is not None, "two passes", 60)
    assert run.poll() is None, run.communicate()
    return run


def ssh_of(run) -> psutil.Process:
    (found,) = (p for p in psutil.Process(run.pid).children(recursive=True) if p.name() == "ssh")
    return found


def test_a_connection_that_is_lost_in_mid_pass_keeps_what_had_come(lanes, node, slow, wait_for):
    node.install_lanes()
    run = begun(lanes, wait_for, slow)
    # sshd's own process for this connection goes, as when a network does.
    (client,) = (one for one in node.clients() if one.name() != "sh")
    next(one for one in client.parents() if one.name().startswith("sshd")).kill()
    ran = lanes.finish(run)
    assert ran.code == 1
    (lane,) = ran.json["lanes"]
    jsonschema.Draft202012Validator(SCHEMA).validate(ran.json)
    assert lane["status"] == "failed"
    assert lane["reason"].startswith("the connection to box was lost: ")
    (instrument,) = lane["instruments"]
    assert (instrument["status"], instrument["reason"]) == ("failed", lane["reason"])
    assert "what had come is kept" in lane["next_step"]
    (cell,) = instrument["cells"]
    assert len(cell["passes"]) >= 2
    assert all(one["figures"]["ttft_s"] > 0 for one in cell["passes"])


def test_the_client_ends_when_the_controller_is_killed(lanes, node, slow, wait_for):
    node.install_lanes()
    run = begun(lanes, wait_for, slow)
    assert node.clients()
    run.kill()
    wait_for(lambda: not node.clients(), "the client to be gone", 15)
    (document,) = lanes("history", "--json").json
    assert document["status"] == "interrupted"
    assert len(document["lanes"][0]["instruments"][0]["cells"][0]["passes"]) >= 2


def test_ctrl_c_ends_the_client_in_order_and_keeps_what_had_come(lanes, node, slow, wait_for):
    node.install_lanes()
    run = begun(lanes, wait_for, slow)
    run.send_signal(signal.SIGINT)
    ran = lanes.finish(run, 20)
    assert ran.code == 130
    assert not node.clients()
    (document,) = lanes("history", "--json").json
    (lane,) = document["lanes"]
    assert (lane["status"], lane["reason"]) == ("interrupted", "interrupted by the user")
    assert len(lane["instruments"][0]["cells"][0]["passes"]) >= 2


def test_a_client_that_is_killed_is_told(lanes, node, slow, wait_for):
    node.install_lanes()
    run = begun(lanes, wait_for, slow)
    for one in node.clients():
        with contextlib.suppress(psutil.Error):
            os.kill(one.pid, signal.SIGKILL)
    ran = lanes.finish(run)
    assert ran.code == 1
    (lane,) = ran.json["lanes"]
    assert lane["reason"].startswith("the client on box ended too early: ")
    assert len(lane["instruments"][0]["cells"][0]["passes"]) >= 2


# -- What is not believed ------------------------------------------------------------------------------

CELL = {"pp": 96, "tg": 8, "depth": 0, "concurrency": 1}
BEGUN = event("instrument", instrument="probe", plan={})


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (["Welcome to box!"], "'Welcome to box!' is no message of lanes"),
        (["[" * 100000], "is no message of lanes"),
        (["\x1b[31m\x00"], "is no message of lanes"),
        (["[1, 2]"], "is no message of lanes"),
        ([event("lane-end", status="measured")], "'event' came first"),
    ],
)
def test_rubbish_instead_of_a_hello_is_one_sentence(lanes, node, server, lines, why):
    node.says(*lines)
    ran = lanes("bench", "--url", server.url, "--from", "box", *QUICK)
    assert ran.code == 1
    assert "what came from box is not believed: " in ran.said
    assert why in ran.said
    assert "\x1b" not in ran.err
    assert lanes("history", "--json").json == []


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (["}"], "'}' is no message of lanes"),
        (['["event", {"kind": NaN}]'], "is no message of lanes"),
        (['["shell", {"argv": ["true"]}]'], "'shell' was not to come"),
        ([event("lane-end", status="measured")], "'lane-end' is nothing that a measurement has"),
        ([event("launched", lane=0)], "'launched' is nothing that a measurement has"),
        ([event("run", command="run")], "'run' is nothing that a measurement has"),
        ([event("instrument", instrument="evil", plan={})], "it names an instrument that was not asked for"),
        (
            [event("instrument", instrument="probe", plan={"slo": {"ttft_s": "soon"}})],
            "a 'instrument' has not the form of one",
        ),
        (
            [
                BEGUN,
                event("row", instrument="probe", row={"name": "x", "status": "y", "figures": {"a": 1e999}}),
            ],
            "is no message of lanes",
        ),
        ([BEGUN, event("row", instrument="probe", row=7)], "a 'row' has not the form of one"),
        (
            [
                BEGUN,
                event("row", instrument="probe", row={"name": "x", "status": "y", "figures": {"a": "b"}}),
            ],
            "a figure is no number",
        ),
        (
            [BEGUN, event("cell", instrument="probe", cell={**CELL, "status": "splendid"})],
            "a 'cell' has not the form",
        ),
        (
            [BEGUN, event("pass", instrument="probe", cell=CELL, measured={})],
            "a 'pass' has not the form of one",
        ),
        (
            [BEGUN, event("requests", instrument="probe", cell=CELL, number=1, count=1, packed="AAAA")],
            "its timelines are damaged",
        ),
        (['["file", {"instrument": "probe", "name": "../../x", "content": ""}]'], "a file has a name"),
        (['["end", {"session": {"status": "glorious"}}]'], "the status of an end is none"),
    ],
)
def test_rubbish_in_a_measurement_is_refused_and_the_result_stays_whole(lanes, node, server, lines, why):
    node.says(hello(), READY, *lines, then="cat > /dev/null")
    ran = lanes("bench", "--url", server.url, "--from", "box", *QUICK, "--json")
    assert ran.code == 1, ran.said
    jsonschema.Draft202012Validator(SCHEMA).validate(ran.json)
    (lane,) = ran.json["lanes"]
    assert lane["status"] == "failed"
    assert lane["reason"].startswith("what came from box is not believed: ")
    assert why in lane["reason"]
    assert lanes("history", "show", ran.json["run"]).code == 0
    assert not list(lanes.home.rglob("x"))


def test_a_message_without_end_is_refused_before_it_fills_memory(lanes, node, server):
    node.install(f"echo '{hello()}'; exec head -c 300000000 /dev/zero")
    ran = lanes("bench", "--url", server.url, "--from", "box", *QUICK)
    assert ran.code == 1
    assert "it is more than any measurement has to say" in ran.said
