"""`lanes serve` leaves a lane running; status, bench, logs and stop work on it from any terminal."""

from __future__ import annotations

import signal
import socket
import time
from urllib.parse import urlsplit

import httpx2

QUICK = ("--pp", "64", "--tg", "16", "--passes", "2", "--warmups", "0")


def test_a_lane_serves_until_it_is_stopped(echo):
    served = echo("serve", "--engine", "echo", "--json").json
    assert httpx2.get(served["url"] + "/health", trust_env=False).status_code == 200

    (status,) = echo("status", "--json").json
    assert (status["id"], status["state"], status["url"]) == (served["id"], "serving", served["url"])

    bench = echo("bench", *QUICK, "--json")
    assert bench.code == 0
    assert bench.json["lanes"][0]["status"] == "measured"

    assert "ready" in echo("logs", served["id"]).out
    assert echo("logs", "-n", "1", "echo").out.count("\n") == 1

    assert echo("stop").out == f"stopped {served['id']}\n"
    assert not echo.processes()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", urlsplit(served["url"]).port))
    assert echo("stop").out == "nothing to stop\n"
    assert echo("stop", served["id"]).code == 0
    assert echo("status", "--json").json == []
    assert "ready" in echo("logs", served["id"]).out


def test_bench_measures_a_server_that_anybody_started(echo):
    served = echo("serve", "--engine", "echo", "--json").json
    for url in (served["url"], served["url"] + "/v1", served["url"].removeprefix("http://")):
        ran = echo("bench", "--url", url, *QUICK, "--json")
        assert ran.code == 0
        assert ran.json["lanes"][0]["name"] == "echo-1"
    wrong = echo("bench", "--url", served["url"], "--model", "gpt-5", *QUICK)
    assert wrong.code == 2
    assert "echo-1" in wrong.err
    echo("stop")


def test_bench_says_when_nothing_is_there(lanes, free_port):
    ran = lanes("bench", "--url", f"http://127.0.0.1:{free_port}", *QUICK)
    assert ran.code in (1, 2)
    assert f"127.0.0.1:{free_port}" in ran.err
    assert len(ran.err.strip().splitlines()) == 1


def test_bench_without_a_lane_says_what_to_name(lanes):
    ran = lanes("bench")
    assert ran.code == 2
    assert "no lane is running" in ran.err


def test_ctrl_c_while_following_the_log_leaves_the_lane_alone(echo, wait_for):
    served = echo("serve", "--engine", "echo", "--json").json
    follow = echo.start("logs", "-f", served["id"])
    while "ready" not in follow.stdout.readline():
        assert follow.poll() is None
    follow.send_signal(signal.SIGINT)
    echo.finish(follow)
    assert echo("status", "--json").json[0]["state"] == "serving"
    echo("stop")


def test_following_ends_with_the_lane(echo):
    served = echo("serve", "--engine", "echo", "--json").json
    follow = echo.start("logs", "-f", served["id"])
    time.sleep(0.5)
    echo("stop")
    assert echo.finish(follow, 10).code == 0


def test_a_lane_that_dies_while_serving_is_told_of(echo, wait_for):
    served = echo("serve", "--engine", "echo", "--json").json
    for process in echo.processes():
        if "lanes_echo.server" in process.cmdline():
            process.kill()
    wait_for(lambda: echo("status", "--json").json[0]["state"] == "died", "the lane to be dead")
    assert "died while serving: rank 0: the process was killed by SIGKILL" in echo("status").said
    bench = echo("bench", served["id"], *QUICK)
    assert bench.code == 2
    assert "died while serving" in bench.err
    assert "cleaned up after" in echo("stop").out


def test_a_bench_of_a_lane_that_dies_meanwhile_ends_with_the_reason(echo):
    echo("serve", "--engine", "echo", "--set", "die_after_tokens=25")
    ran = echo("bench", *QUICK, "--json")
    assert ran.code == 1
    assert ran.json["lanes"][0]["status"] == "crashed"
    assert "exited with code 7" in ran.json["lanes"][0]["reason"]
    echo("stop")


def test_serve_that_fails_says_why_and_leaves_nothing(echo):
    ran = echo("serve", "--engine", "echo", "--set", "die_while_loading=true")
    assert ran.code == 1
    assert ran.err.startswith(
        "lanes: the process exited with code 3 while loading: echo ran out of the memory"
    )
    assert echo("status", "--json").json == []


def test_with_two_lanes_stop_asks_which(echo):
    first = echo("serve", "--engine", "echo", "--json").json["id"]
    second = echo("serve", "--engine", "echo", "--json").json["id"]
    ran = echo("stop")
    assert ran.code == 2
    assert first in ran.err
    assert second in ran.err
    assert echo("stop", first).out == f"stopped {first}\n"
    assert [s["id"] for s in echo("status", "--json").json] == [second]
    assert echo("stop", "--all").code == 0


def test_a_served_lane_is_in_the_history_as_serving(echo):
    echo("serve", "--engine", "echo")
    (past,) = echo("history", "--json").json
    assert past["lanes"][0]["status"] == "serving"
    echo("stop")
