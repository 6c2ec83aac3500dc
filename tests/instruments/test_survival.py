"""survival against servers that die, hang, leak, fail or refuse, each in its own way, and one that does not."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
from collections.abc import Mapping
from typing import Any

import pytest
from lanes.errors import LaneError
from lanes.instruments import survival
from lanes.instruments.survival_shape import parts
from lanes.testing.scripted import Script, ScriptedServer, count_tokens
from lanes.types import Endpoint

CLIMB = ["1,024 tokens", "2,048 tokens", "4,096 tokens"]
BURSTS = [f"{n} prompts of 512 tokens at once" for n in (2, 4)]
QUICK = survival.Options(bursts=(2, 4), burst_tokens=512)


def size(body: Mapping[str, Any]) -> int:
    return sum(count_tokens(m["content"]) for m in body["messages"])


def big(server: ScriptedServer) -> list[dict[str, Any]]:
    """The requests that steps sent."""
    return [a.body for a in server.answers if a.body["max_tokens"] == QUICK.answer]


def above(limit: int, **fields: Any) -> Any:
    """A server that answers so when a prompt has more tokens."""

    def script(number: int, body: Mapping[str, Any]) -> Script:
        return Script(**fields) if size(body) > limit else Script()

    return script


def test_a_server_that_does_not_mind_has_no_fault(drive):
    with ScriptedServer(context=8192) as server:
        seen = drive(survival, server.url, QUICK)
    assert seen.measured.status == "measured"
    assert list(seen.rows) == [*CLIMB, "8,168 tokens", *BURSTS]
    assert set(seen.statuses.values()) == {"survived"} and not seen.faults
    for name, row in seen.rows.items():
        assert row["figures"]["question_s"] >= 0
        if name not in BURSTS:
            asked = float(name.split()[0].replace(",", ""))
            assert row["figures"]["prompt_tokens"] == pytest.approx(asked, abs=6)
    assert seen.plan["shape"] == "an agent's prompt with tools and their results"
    assert seen.plan["context"] == 8192
    # No prompt goes beyond the context, and all that fits is used.
    assert 8100 < max(map(size, big(server))) + 10 + QUICK.answer <= 8192
    assert any("s left" in told for told in seen.told) or len(seen.told) > 5


def test_prompts_have_an_agents_shape_and_are_cold(drive):
    with ScriptedServer(context=4096) as server:
        drive(survival, server.url, QUICK)
    bodies = big(server)
    assert len(bodies) == 3 + 2 + 4
    for body in bodies:
        roles = [m["role"] for m in body["messages"]]
        assert roles == ["system", "user", *["assistant", "tool"] * 8, "assistant", "user"]
        called = [c["id"] for m in body["messages"] for c in m.get("tool_calls", ())]
        assert called == [m["tool_call_id"] for m in body["messages"] if m["role"] == "tool"]
        assert {tool["function"]["name"] for tool in body["tools"]} >= {"read_file", "run"}
        for call in (c for m in body["messages"] for c in m.get("tool_calls", ())):
            json.loads(call["function"]["arguments"])
    # The nonce is at the very start, so no two share more than its bracket.
    assert len({body["messages"][0]["content"][:18] for body in bodies}) == len(bodies)


def test_a_real_process_that_dies_above_8192_tokens_is_named_diagnosed_and_bisected(echo):
    ran = echo(
        "run", "--engine", "echo", "--set", "die_above_tokens=8192", "--instrument", "survival",
        "--bisect", "--json", timeout=180,
    )  # fmt: skip
    (lane,) = ran.json["lanes"]
    assert lane["status"] == "unmeasurable"
    assert lane["reason"] == (
        "crashes at 8,193 tokens: the process exited with code 8 while measuring: echo died of a prompt longer than "
        "die_above_tokens"
    )
    assert "remove die_above_tokens from the recipe" in lane["next_step"]
    assert "lanes report --bug RUN" in lane["next_step"]
    rows = {row["name"]: row for row in lane["instruments"][0]["rows"]}
    assert [row["status"] for row in rows.values()] == ["survived"] * 4 + ["crashed", "found"]
    assert [name for name, row in rows.items() if row["fault"]] == [
        "16,384 tokens",
        "smallest prompt that kills",
    ]
    died = rows["16,384 tokens"]
    assert died["evidence"]["causes"] == ["told-to-die-of-long-prompts"]
    assert "a prompt of 16384 tokens: kernel timed out" in died["evidence"]["log"][-1]
    found = rows["smallest prompt that kills"]
    assert found["reason"] == "8,193 tokens kill, 8,192 do not"
    assert found["evidence"]["alone"] is True
    kept = echo.home / "artefacts" / ran.json["run"] / "lane0" / "survival"
    request = json.loads((kept / "request1.json").read_text())
    assert sum(len(str(m["content"]).split()) for m in request["messages"]) == 8193
    assert "a prompt of 8193 tokens" in (kept / "rank0.log").read_text()
    shown = echo("history", "show", ran.json["run"]).said
    assert "unmeasurable: crashes at 8,193 tokens" in shown


STAND_IN = """
import os, sys, threading
from lanes.testing.scripted import Script, ScriptedServer, count_tokens

def script(number, body):
    if sum(count_tokens(m["content"]) for m in body["messages"]) + 10 > 9215:
        print("tensor-parallel peer failed: RoCE proxy failed: two-shot op 812 abandoned: kernel timed out at seq 40961",
              file=sys.stderr, flush=True)
        os._exit(1)
    return Script()

ScriptedServer(script, port=int(sys.argv[1]), models=("m",), context=16384).start()
threading.Event().wait()
"""


def test_the_seeds_flare_lane_is_named_as_in_its_table(lanes, tmp_path):
    """Its engine's own plugin says why, from the log; without a tokenizer the length is nearly met."""
    pytest.importorskip("lanes_flare")
    (tmp_path / "flare.py").write_text(STAND_IN)
    recipe = tmp_path / "flare.toml"
    recipe.write_text(
        'name = "flare"\nengine = "flare"\n[model]\nname = "m"\npath = "/models/m"\n[options]\nhealth = "/health"\n'
        f'command = ["{sys.executable}", "{tmp_path}/flare.py", "{{port}}"]\n'
    )
    run = (
        "run",
        "--recipe",
        str(recipe),
        "--despite",
        "sm",
        "--instrument",
        "survival",
        "--bisect",
        "--json",
    )
    (lane,) = lanes(*run, timeout=180).json["lanes"]
    found = re.fullmatch(
        r"crashes at (\d,\d{3}) tokens: the process exited with code 1 while measuring: the ranks' exchange over RoCE "
        r"timed out and ended FLARE; .*",
        lane["reason"],
    )
    assert lane["status"] == "unmeasurable" and found, lane["reason"]
    assert int(found[1].replace(",", "")) == pytest.approx(9216, rel=0.02)
    assert "try another revision of the package, or another engine" in lane["next_step"]
    died = next(row for row in lane["instruments"][0]["rows"] if row["status"] == "crashed")
    assert died["evidence"]["causes"][0] == "roce-crash"
    last = lane["instruments"][0]["rows"][-1]
    assert last["reason"].endswith(", by estimates: the server has no tokenizer")


def test_a_real_process_that_leaks_its_places_hangs(echo):
    """A place less for each long prompt, until the small question gets none."""
    ran = echo(
        "run", "--engine", "echo", "--set", "leak_above_tokens=3000", "--set", "parallel=2",
        "--instrument", "survival", "--with", "survival.patience_s=2", "--json", timeout=120,
    )  # fmt: skip
    (lane,) = ran.json["lanes"]
    assert lane["status"] == "unmeasurable"
    assert lane["reason"] == (
        "hangs at 8,192 tokens: a small question after it: the server did not answer within 2 s"
    )
    (fault,) = [row for row in lane["instruments"][0]["rows"] if row["fault"]]
    assert fault["status"] == "hung"
    assert any("leaked a slot" in line for line in fault["evidence"]["log"])


def test_a_server_that_answers_nothing_after_a_long_prompt_hangs(drive):
    stuck = threading.Event()

    def script(number: int, body: Mapping[str, Any]) -> Script:
        if size(body) > 3000:
            stuck.set()
            return Script()
        return Script(stall_after=0) if stuck.is_set() else Script()

    with ScriptedServer(script, context=8192) as server:
        seen = drive(survival, server.url, survival.Options(bursts=(2,), patience_s=1))
    assert (seen.measured.status, seen.measured.reason) == (
        "unmeasurable",
        "hangs at 4,096 tokens: a small question after it: the server stalled: nothing came for 1 s before the "
        "first token",
    )
    assert seen.faults == {"4,096 tokens": "hung"}
    assert list(seen.rows) == CLIMB  # nothing is asked of a server that hangs


def test_a_500_for_long_prompts_is_a_fault_and_not_the_end(drive):
    with ScriptedServer(above(3000, status=500, message="peer failed"), context=16384) as server:
        seen = drive(survival, server.url, QUICK)
    assert seen.measured.status == "measured"
    assert seen.faults == {"4,096 tokens": "failed"}
    assert seen.rows["4,096 tokens"]["reason"] == "the server answered HTTP 500: peer failed"
    assert list(seen.rows) == [*CLIMB, *BURSTS]  # longer ones are not tried


def test_a_refusal_counts_only_where_the_prompt_fits(drive):
    refusing = {"status": 400, "message": "maximum context length is 3000 tokens"}
    with ScriptedServer(above(3000, **refusing), context=8192) as server:
        seen = drive(survival, server.url, QUICK)
    assert seen.faults == {"4,096 tokens": "refused"}
    with ScriptedServer(context=3000, tells_context=False) as server:
        seen = drive(survival, server.url, QUICK)
    assert seen.statuses["4,096 tokens"] == "refused" and not seen.faults
    assert seen.measured.status == "measured"


def test_a_server_without_tools_is_asked_otherwise(drive):
    def script(number: int, body: Mapping[str, Any]) -> Script:
        return Script(status=400, message="no tools here") if "tools" in body else Script()

    with ScriptedServer(script, context=4096) as server:
        seen = drive(survival, server.url, QUICK)
    assert seen.statuses["an agent's prompt with tools and their results"] == "refused" and not seen.faults
    assert seen.plan["shape"] == "a system prompt and a conversation"
    assert {m["role"] for m in big(server)[0]["messages"]} == {"system", "user", "assistant"}

    def broken(number: int, body: Mapping[str, Any]) -> Script:
        return Script(status=500, message="template error") if "tools" in body else Script()

    with ScriptedServer(broken, context=4096) as server:
        seen = drive(survival, server.url, QUICK)
    assert seen.faults == {"an agent's prompt with tools and their results": "failed"}


def test_a_server_that_dies_in_a_burst(drive):
    with ScriptedServer(context=4096) as server:
        fine = server.script

        def script(number: int, body: Mapping[str, Any]) -> Script:
            if len(big(server)) == 3 + 2 + 4:
                threading.Thread(target=server.stop).start()
                return Script(stall_after=0)
            return fine if isinstance(fine, Script) else Script()

        server.script = script
        seen = drive(survival, server.url, QUICK, subject={"alive": lambda: None})
    assert seen.measured.status == "unmeasurable"
    assert seen.measured.reason.startswith("crashes with 4 prompts of 512 tokens at once: ")
    assert "connection refused" in seen.measured.reason
    assert seen.faults == {BURSTS[1]: "crashed"}
    assert sorted(p.name for p in seen.folder.glob("request*.json")) == [
        f"request{n}.json" for n in (1, 2, 3, 4)
    ]


def test_a_server_that_dies_of_tools_at_once(drive):
    """No length is to blame, and nothing can be bisected."""
    with ScriptedServer(context=4096) as server:

        def script(number: int, body: Mapping[str, Any]) -> Script:
            if "tools" in body:
                threading.Thread(target=server.stop).start()
                return Script(stall_after=0)
            return Script()

        server.script = script
        seen = drive(survival, server.url, BISECT)
    what = "a short prompt: an agent's prompt with tools and their results"
    assert seen.measured.status == "unmeasurable"
    assert seen.measured.reason.startswith(f"crashes with {what}: ")
    assert seen.faults == {what: "crashed"} and list(seen.rows) == [what]
    assert "tools" in json.loads((seen.folder / "request1.json").read_text())


def test_lengths_are_met_without_a_tokenizer(drive):
    with ScriptedServer(context=8192, tokenizer=False) as server:
        seen = drive(survival, server.url, QUICK, dialect={"tokenize_path": None})
    assert not seen.faults
    for name in CLIMB:
        asked = float(name.split()[0].replace(",", ""))
        assert seen.rows[name]["figures"]["prompt_tokens"] == pytest.approx(asked, rel=0.08)


class Fragile:
    """A server that dies above a limit, and can be launched anew; then it is `forgiving`, and does not die.
    `got` holds the long prompts of all launches."""

    def __init__(self, limit: int, forgiving: bool = False) -> None:
        self.limit, self.forgiving = limit, forgiving
        self.launches = 0
        self.got: list[Mapping[str, Any]] = []
        self.server = self.launch()

    def launch(self) -> ScriptedServer:
        limit = 10**9 if self.forgiving and self.launches else self.limit

        def script(number: int, body: Mapping[str, Any]) -> Script:
            if size(body) > 500:
                self.got.append(body)
            if size(body) + 10 > limit:
                threading.Thread(target=self.server.stop).start()
                return Script(stall_after=0)
            return Script()

        return ScriptedServer(script, context=8192).start()

    def relaunch(self) -> Endpoint:
        self.launches += 1
        self.server.stop()
        self.server = self.launch()
        from lanes.types import Dialect

        return Endpoint(url=self.server.url, model="scripted", dialect=Dialect(tokenize_path="/tokenize"))


ROW = "smallest prompt that kills"
BISECT = survival.Options(bursts=(2,), burst_tokens=512, bisect=True)


def test_the_smallest_prompt_is_found_in_few_launches(drive):
    lane = Fragile(5000)
    seen = drive(survival, lane.server.url, BISECT, subject={"relaunch": lane.relaunch})
    lane.server.stop()
    figures = seen.rows[ROW]["figures"]
    # As near as whole words can be cut.
    assert figures["survived_tokens"] < figures["prompt_tokens"]
    assert figures["survived_tokens"] == pytest.approx(5000, abs=12)
    assert figures["prompt_tokens"] == pytest.approx(5000, abs=12)
    assert seen.rows[ROW]["evidence"]["launches"] == lane.launches <= 14
    assert seen.measured.reason.startswith(f"crashes at {figures['prompt_tokens']:,.0f} tokens: ")
    assert seen.rows[ROW]["status"] == "found"
    assert any("kill; launching" in told for told in seen.told)


def test_a_tolerance_saves_launches(drive):
    lane = Fragile(5000)
    options = survival.Options(bursts=(2,), burst_tokens=512, bisect=True, tolerance=1000)
    seen = drive(survival, lane.server.url, options, subject={"relaunch": lane.relaunch})
    lane.server.stop()
    figures = seen.rows[ROW]["figures"]
    assert figures["survived_tokens"] <= 5000 < figures["prompt_tokens"] <= figures["survived_tokens"] + 1000
    assert lane.launches <= 4


def test_a_prompt_that_kills_only_after_others_is_told_apart(drive):
    lane = Fragile(5000, forgiving=True)
    seen = drive(survival, lane.server.url, BISECT, subject={"relaunch": lane.relaunch})
    lane.server.stop()
    assert seen.rows[ROW]["status"] == "found"
    assert "it kills only after others: a fresh launch survives it" in seen.rows[ROW]["reason"]
    assert seen.measured.reason.startswith("crashes at 8,1")
    # Another of that length might be a token shorter, and prove nothing.
    killer = json.loads((seen.folder / "request1.json").read_text())
    assert lane.got[-1] == killer and lane.got.count(killer) == 2


def test_a_lane_that_cannot_be_launched_again_keeps_what_was_found(drive):
    lane = Fragile(5000)
    seen = drive(survival, lane.server.url, BISECT)
    assert seen.rows[ROW]["status"] == "not bisected"
    assert seen.rows[ROW]["reason"] == "only `lanes run` can launch the lane again"

    def fails() -> Endpoint:
        raise LaneError("the NAS is away")

    lane = Fragile(5000)
    seen = drive(survival, lane.server.url, BISECT, subject={"relaunch": fails})
    assert (seen.rows[ROW]["status"], seen.rows[ROW]["reason"]) == ("interrupted", "the NAS is away")
    assert seen.measured.reason.startswith("crashes at 8,1")


def test_ctrl_c_keeps_the_steps_that_had_ended(echo, wait_for):
    run = echo.start(
        "run", "--engine", "echo", "--set", "prefill_tokens_per_second=1500", "--instrument", "survival"
    )

    def rows() -> list[dict[str, Any]]:
        runs = echo("history", "--json").json
        lanes = runs[0]["lanes"] if runs else []
        return [row for lane in lanes for one in lane["instruments"] for row in one["rows"]]

    wait_for(lambda: len(rows()) >= 2, "two steps", 60)
    os.kill(run.pid, signal.SIGINT)
    assert echo.finish(run).code == 130
    (lane,) = echo("history", "--json").json[0]["lanes"]
    assert lane["status"] == "interrupted"
    assert [row["status"] for row in lane["instruments"][0]["rows"]][:2] == ["survived", "survived"]
    assert not echo.processes()


def test_what_cannot_be_asked_for_is_one_sentence(echo):
    for setting, said in (
        ("survival.bisct=true", "there is no such key; did you mean 'bisect'?"),
        ("survival.longest=0", "should be at least 1, not 0"),
        ("survival.bursts=[0]", "bursts should hold numbers of at least 1"),
    ):
        ran = echo("run", "--engine", "echo", "--instrument", "survival", "--with", setting)
        assert ran.code == 2 and said in ran.said, ran.said


def test_a_text_is_cut_between_its_words():
    text = "[0123] " + " ".join(f"word{n}" for n in range(100))
    cut = parts(text, 8)
    assert len(cut) == 8 and " ".join(cut) == text
    assert max(map(len, cut)) < 2 * min(map(len, cut))
    assert parts("one two", 3) == ["one", "two", "(empty)"]


def test_lengths_double_up_to_the_longest():
    assert survival.lengths(600, 8168) == [1024, 2048, 4096, 8168]
    assert survival.lengths(1500, 4096) == [2048, 4096]
    assert survival.lengths(100, 700) == [700]
    assert survival.lengths(5000, 4096) == []


def test_a_context_that_does_not_hold_the_shape_is_told(drive):
    with ScriptedServer(context=8192) as server:
        seen = drive(survival, server.url, survival.Options(longest=100))
    assert seen.measured.status == "failed"
    assert re.fullmatch(
        r"the shape alone has \d{3} tokens, and 100 is the longest prompt", seen.measured.reason
    )
    assert seen.measured.next_step == "give the lane a longer context"
