"""Waiting until a lane is ready: what is said on the way, and how soon it is known that it never will be."""

from __future__ import annotations

import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from lanes import health
from lanes.errors import LaneError
from lanes.executors import process
from lanes.testing.scripted import Script, ScriptedServer
from lanes.types import (
    CanaryRung,
    Dialect,
    Endpoint,
    ExecRung,
    HttpRung,
    Ladder,
    LogRung,
    Phase,
    Process,
    StopPlan,
)

SLEEP = "import time; time.sleep(60)"
STOP = StopPlan(patience_s=1.0)
HTTP = HttpRung(name="loaded", path="/health")


@pytest.fixture
def start(tmp_path):
    """Start Python programs as the ranks of a lane; nothing of them is left when the test is over."""
    folder, owner = tmp_path / "lane-1234", process.Owner()

    def start(*programs):
        for rank, program in enumerate(programs):
            argv = (sys.executable, "-u", "-c", program)
            process.start(folder, Process(rank=rank, argv=argv), STOP, owner)
        return folder

    yield start
    assert process.stop(folder, STOP, hurry=lambda: True) == []


class Answers(ThreadingHTTPServer):
    """Answers GET with the next of these: (status, body), or seconds to wait before hanging up."""

    daemon_threads = True

    def __init__(self, *answers):
        self.answers, self.asked, self.headers = list(answers), 0, []
        super().__init__(("127.0.0.1", 0), _Handler)
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()
        self.endpoint = Endpoint(url=f"http://127.0.0.1:{self.server_port}", model="m")

    def next(self):
        self.asked += 1
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.headers.append(dict(self.headers))
        answer = self.server.next()
        if not isinstance(answer, tuple):
            time.sleep(answer)
            return
        status, body = answer
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def wait(folder, *rungs, endpoint=None, said=None, **ladder):
    ladder.setdefault("deadline_s", 20.0)
    heard = [] if said is None else said
    health.wait_until_ready(Ladder(rungs=rungs, **ladder), endpoint, folder, heard.append)
    return heard


# -- HTTP -----------------------------------------------------------------------------------------


def test_a_server_that_loads_is_waited_for_and_what_it_says_is_shown(start):
    loading = json.dumps({"error": {"message": "Loading\x1b[31m model"}}).encode()
    with Answers((503, loading), (503, loading), (200, b"")) as server:
        heard = wait(start(SLEEP), HTTP, endpoint=server.endpoint)
    assert server.asked == 3
    assert heard == ["Loading model"]


def test_nobody_listens_yet_is_no_failure_while_the_process_lives(start):
    with Answers((200, b"")) as server:
        endpoint = server.endpoint
    with pytest.raises(health.NotReady) as caught:
        wait(start(SLEEP), HTTP, endpoint=endpoint, deadline_s=0.5)
    assert caught.value.message == "not ready after 0.5 s: loaded: nothing answers yet"
    assert caught.value.next_step == "`lanes logs` shows what it was at"


@pytest.mark.parametrize("status", [404, 401, 500])
def test_a_wrong_status_that_stays_is_told_long_before_the_deadline(status, start, monkeypatch):
    monkeypatch.setattr(health, "WRONG_STATUS_GRACE_S", 0.3)
    with Answers((status, b"no <b>such</b>\n  thing")) as server, pytest.raises(health.NotReady) as caught:
        wait(start(SLEEP), HTTP, endpoint=server.endpoint)
    assert caught.value.message == f"GET /health answers {status} (no <b>such</b> thing)"


def test_a_wrong_status_on_the_way_is_forgiven_each_time(start, monkeypatch):
    monkeypatch.setattr(health, "WRONG_STATUS_GRACE_S", 0.3)
    once = [(404, b"")] + [(503, b"loading")] * 3
    with Answers(*once, *once, *once, (200, b"")) as server:
        wait(start(SLEEP), HTTP, endpoint=server.endpoint)
    assert server.asked == 13


def test_an_engine_may_say_which_statuses_mean_not_yet(start, monkeypatch):
    monkeypatch.setattr(health, "WRONG_STATUS_GRACE_S", 0.0)
    rung = HttpRung(name="up", path="/health", loading=frozenset({404, 502}))
    with Answers((404, b""), (404, b""), (502, b""), (502, b""), (200, b"")) as server:
        wait(start(SLEEP), rung, endpoint=server.endpoint)


def test_a_server_that_hangs_up_is_asked_again(start):
    with Answers(0.0, 0.0, (200, b"")) as server:
        heard = wait(start(SLEEP), HTTP, endpoint=server.endpoint)
    assert "GET /health brings no answer" in heard[0]


def test_the_deadline_holds_though_the_server_never_answers(start):
    folder = start(SLEEP)
    began = time.monotonic()
    with Answers(30.0) as server, pytest.raises(health.NotReady, match=r"not ready after 0\.5 s: loaded"):
        wait(folder, HTTP, endpoint=server.endpoint, deadline_s=0.5)
    assert time.monotonic() - began < 15


def test_the_key_of_a_server_goes_to_it(start, monkeypatch):
    monkeypatch.setenv("MY_KEY", "sesame")
    with Answers((200, b"")) as server:
        endpoint = Endpoint(url=server.endpoint.url, model="m", dialect=Dialect(api_key_env="MY_KEY"))
        wait(start(SLEEP), HTTP, endpoint=endpoint)
    assert server.headers[0]["Authorization"] == "Bearer sesame"


@pytest.mark.parametrize("rung", [HTTP, CanaryRung()], ids=["http", "canary"])
def test_a_rung_that_needs_a_server_where_there_is_none_is_the_plugins_fault(rung, start):
    with pytest.raises(health.NotReady, match="needs a server, and the engine has none"):
        wait(start(SLEEP), rung)


# -- Log, exec, canary ----------------------------------------------------------------------------


def test_a_line_of_the_log_makes_it_ready_of_the_rank_that_is_meant(start):
    folder = start(SLEEP, f"print('\\x1b[32mINFO\\x1b[0m: ready'); {SLEEP}")
    wait(folder, LogRung(name="up", pattern=r"^INFO: ready$", rank=1))
    with pytest.raises(health.NotReady, match="up: rank 0's log does not show it yet"):
        wait(folder, LogRung(name="up", pattern=r"ready"), deadline_s=0.3)


def test_a_line_that_a_flood_has_washed_away_still_counts(start):
    folder = start(f"print('ready')\nfor n in range(20000): print('x' * 100)\nprint('done'); {SLEEP}")
    wait(folder, LogRung(name="all", pattern="^done$"), LogRung(name="up", pattern="^ready$"))


def test_a_line_that_comes_in_pieces_is_seen_whole(start):
    pieces = "import sys, time\nfor p in ('one\\nre', 'a', 'dy'):\n sys.stdout.write(p); time.sleep(0.3)\n"
    wait(start(pieces + SLEEP), LogRung(name="up", pattern="^ready$"))


def test_a_program_that_ends_well_makes_it_ready(start, tmp_path):
    folder = start(SLEEP)
    flag = tmp_path / "flag"
    test = (sys.executable, "-c", f"import os, sys; sys.exit(not os.path.exists({str(flag)!r}))")
    threading.Timer(0.5, flag.touch).start()
    heard = wait(folder, ExecRung(name="up", argv=test))
    assert heard[0] in (f"{sys.executable} exits with 1", "no answer yet")


def test_a_program_that_is_not_there_is_named_at_the_deadline(start):
    with pytest.raises(health.NotReady, match=r"up: /no/such/program: .*No such file"):
        wait(start(SLEEP), ExecRung(name="up", argv=("/no/such/program",)), deadline_s=0.3)


def test_a_canary_must_bring_a_token(start):
    folder = start(SLEEP)
    with ScriptedServer() as server:
        wait(folder, CanaryRung(), endpoint=Endpoint(url=server.url, model="scripted"))
        assert server.answers
    with ScriptedServer(Script(status=500)) as server, pytest.raises(LaneError, match="500"):
        wait(folder, CanaryRung(), endpoint=Endpoint(url=server.url, model="scripted"))


def test_a_canary_that_gets_no_answer_does_not_outlast_the_deadline(start):
    folder = start(SLEEP)
    began = time.monotonic()
    with ScriptedServer(Script(ttft_s=30.0)) as server, pytest.raises(health.NotReady, match="answers: "):
        wait(folder, CanaryRung(), endpoint=Endpoint(url=server.url, model="scripted"), deadline_s=0.5)
    assert time.monotonic() - began < 15


# -- Deaths, silence, phases ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "rung", [HTTP, LogRung(name="up", pattern="never"), ExecRung(name="up", argv=("sleep", "20"))],
    ids=["a server that hangs", "the log", "a program that hangs"],
)  # fmt: skip
def test_a_death_is_noticed_within_a_second(rung, start):
    folder = start("import time; time.sleep(0.5); raise SystemExit(9)")
    began = time.monotonic()
    with Answers(30.0) as server, pytest.raises(health.Died, match=r"^the process exited with code 9$"):
        wait(folder, rung, endpoint=server.endpoint)
    assert time.monotonic() - began < 0.5 + 1 + 8  # one to be noticed in, the others for a busy machine


def test_of_several_ranks_the_one_that_died_is_named(start):
    folder = start(SLEEP, "import os; os.kill(os.getpid(), 9)")
    with pytest.raises(health.Died, match=r"^rank 1: the process was killed by SIGKILL$"):
        wait(folder, LogRung(name="up", pattern="never"))


def test_silence_is_told_apart_from_slowness(start):
    rung = LogRung(name="up", pattern="never")
    busy = start("import time\nfor n in range(99): print(n); time.sleep(0.1)")
    with pytest.raises(health.NotReady, match=r"not ready after 1\.5 s"):
        wait(busy, rung, quiet_s=1.0, deadline_s=1.5)


def test_silence_ends_the_wait_where_the_engine_says_so(start):
    folder = start(f"print('loading'); {SLEEP}")
    with pytest.raises(health.NotReady) as caught:
        wait(folder, LogRung(name="up", pattern="never"), quiet_s=0.5)
    assert caught.value.message == (
        "its log has been silent for 0.5 s: up: rank 0's log does not show it yet"
    )


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("weights 37% done", "loading 37 %"),
        ("weights 0.42 done", "loading 42 %"),
        ("weights 3/8 done", "loading 3/8"),
        ("weights are read", "loading"),
    ],
)
def test_the_boot_tells_how_far_it_is(line, shown, start):
    folder = start(f"print({line!r}); {SLEEP}")
    phase = Phase(
        name="loading", pattern=r"weights (?:(?P<percent>\d+)%|(?P<fraction>\d\.\d+|\d/\d)|are read)"
    )
    heard = []
    with pytest.raises(health.NotReady):
        wait(folder, LogRung(name="up", pattern="never"), phases=(phase,), deadline_s=0.4, said=heard)
    assert heard[-1] == shown


def test_a_ladder_without_rungs_is_ready_at_once(start):
    assert wait(start(SLEEP)) == []
