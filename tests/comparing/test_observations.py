"""A lane that ran is evidence: for the same engine, version, GPU and recipe, here and at another site."""

from __future__ import annotations

import json

import pytest
from lanes import observations, verdicts
from lanes.comparing import grouping
from lanes.types import Evidence, Gpu, Kind, Node, Verdict

GB10 = Node(name="n", gpus=(Gpu(name="NVIDIA GB10", target="12.1"),))
H200 = Node(name="n", gpus=(Gpu(name="NVIDIA H200", target="9.0"),))
QUICK = ("--pp", "32", "--tg", "8", "--passes", "1", "--warmups", "0")


def document(
    status="measured", at=1_800_000_000.0, reason=None, image=None, version="1.0", target="12.1", **more
):
    gpus = [{"name": "g", "target": target}] if target else []
    lane = {
        "name": "r", "engine": "e", "status": status, "reason": reason, "overrides": [],
        "recipe": {"name": "r", "image": image}, "environment": {"engine_version": version, "nodes": [{"gpus": gpus}]},
    }  # fmt: skip
    return {"run": f"r{at:.0f}", "started_at": at, "lanes": [lane | more]}


def of(*documents, node=GB10, version="1.0", recipe="r", image=None, engine="e"):
    seen = observations.of_documents(documents)
    return list(observations.findings(seen, engine, version, [node], recipe, image))


def test_a_lane_that_was_measured_shows_that_the_hardware_runs_it():
    (finding,) = of(document(at=1.0), document(at=86_400.0 * 3))
    assert (finding.question, finding.kind, finding.verdict) == ("sm", Kind.HARDWARE, Verdict.RUNNABLE)
    assert finding.evidence is Evidence.OBSERVED
    assert finding.reason == "r was measured 2 times on 12.1"
    assert finding.source == "run r259200"
    # Also when nothing is asked of a recipe.
    assert of(document(), recipe=None) == of(document())


@pytest.mark.parametrize(
    "more",
    [{"node": H200}, {"version": "2.0"}, {"recipe": "other"}, {"engine": "other"}, {"image": "i"},
     {"node": Node(name="cpu", gpus=())}],
    ids=str,
)  # fmt: skip
def test_it_says_nothing_of_others(more):
    assert of(document(), **more) == []


def test_a_crash_degrades_and_says_nothing_of_the_hardware():
    found = of(document(at=1.0), document("crashed", at=2.0, reason="boom"))
    crash = next(finding for finding in found if finding.question == "crashes")
    assert (crash.kind, crash.verdict) == (Kind.SANITY, Verdict.DEGRADED)
    assert crash.reason == "r crashed or failed in 1 of 2 launches: boom"
    assert verdicts.judge(found).status is None
    assert [finding.question for finding in of(document("crashed", reason="boom"), recipe=None)] == []


def test_what_was_gone_on_against_is_told():
    (finding,) = of(document(overrides=["sm"]))
    assert finding.reason.endswith("despite sm")


def test_what_others_reported_or_what_never_ran_is_no_observation():
    assert of(document() | {"provenance": {"by": "x", "source": "y"}}) == []
    for status in ("unrunnable", "unmeasurable", "interrupted", "serving", "running"):
        assert of(document(status)) == []


def test_observations_go_from_site_to_site(echo, tmp_path):
    echo("run", "--recipe", "echo", *QUICK)
    file = tmp_path / "seen.json"
    assert echo("caps", "--export", str(file), "--by", "site-a").code == 0
    told = json.loads(file.read_text())
    assert (told["schema"], told["by"]) == ("lanes.observations/1", "site-a")
    assert "observed" in echo("check", "echo").out

    echo.env["LANES_HOME"] = str(tmp_path / "site-b")
    assert "observed" not in echo("check", "echo").out
    assert echo("caps", "--import", str(file)).code == 0
    found = echo("check", "echo", "--json").json["findings"]
    (ran,) = [one for one in found if one["evidence"] == "observed"]
    assert (ran["question"], ran["verdict"], ran["engine_version"]) == ("ran", "runnable", "0.1.0")
    assert ran["source"].startswith("site-a: run ")
    # What site B hands on is still what site A saw.
    echo("caps", "--export", str(tmp_path / "again.json"), "--by", "site-b")
    assert json.loads((tmp_path / "again.json").read_text())["observations"][0]["by"] == "site-a"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("no json", "cannot be read"),
        ("[]", "holds no observations (lanes.observations/1). `lanes caps --export FILE` writes one"),
        ('{"schema": "lanes.observations/1"}', "is damaged: an observation lacks what one has"),
        ('{"schema": "lanes.observations/1", "by": "x", "observations": [{}]}', "is damaged"),
    ],
)
def test_other_files_are_refused(content, said, lanes, tmp_path):
    (tmp_path / "x.json").write_text(content)
    ran = lanes("caps", "--import", str(tmp_path / "x.json"))
    assert ran.code == 2
    assert said in ran.said
    assert not list(lanes.home.glob("observations/*"))


def rehearsed(*steps, at=1.0, image=None):
    """A document of a rehearsal with these steps: name, status, reason."""
    failed = next((f"{name}: {reason}" for name, status, reason in steps if status == "failed"), None)
    told = [{"name": name, "status": status, "reason": reason} for name, status, reason in steps]
    return document("failed" if failed else "rehearsed", at, failed, image, rehearsal=told)


GOOD = (
    ("flags", "ok", "f"),
    ("kernels", "ok", "k"),
    ("network", "not possible", "one node"),
    ("answer", "ok", "a"),
)
BAD = (
    ("flags", "ok", "f"),
    ("kernels", "failed", "no kernel image"),
    ("answer", "skipped", "kernels failed"),
)


def test_a_rehearsal_shows_that_kernels_ran_and_which_steps_went_well():
    hardware, whole = of(rehearsed(*GOOD))
    assert (hardware.question, hardware.verdict) == ("sm", Verdict.RUNNABLE)
    assert hardware.reason == "in a rehearsal of r on 12.1 kernels and answer went well"
    assert (whole.question, whole.kind) == ("rehearsal", Kind.CONFIGURATION), "dummy weights answer no sense"
    assert whole.reason == "r was rehearsed on 12.1: flags, kernels, answer went well"
    assert of(rehearsed(*GOOD), recipe=None) == [hardware]


def test_a_step_that_failed_is_told_with_its_run_and_forbids_nothing():
    (kernels,) = of(rehearsed(*BAD))
    assert (kernels.question, kernels.kind) == ("rehearsal of kernels", Kind.HARDWARE)
    assert kernels.verdict is Verdict.DEGRADED and kernels.evidence is Evidence.OBSERVED
    assert "no kernel image" in kernels.reason and kernels.source == "run r1" and kernels.date
    assert verdicts.judge([kernels]).status is None
    assert of(rehearsed(*BAD), recipe=None) == [kernels], "what kernels do is said of the hardware"


def test_only_the_latest_rehearsal_counts_and_it_is_no_launch():
    mended = of(rehearsed(*BAD, at=1.0), rehearsed(*GOOD, at=2.0))
    assert [one.question for one in mended] == ["sm", "rehearsal"]
    both = of(document("measured", at=1.0), rehearsed(*BAD, at=2.0))
    assert [one.question for one in both] == ["sm", "rehearsal of kernels"]
    assert grouping.launches([rehearsed(*GOOD)]) == []


def test_rehearsals_go_from_site_to_site(tmp_path):
    seen = observations.of_documents([rehearsed(*BAD)])
    observations.write(tmp_path / "o.json", seen, "others")
    (found,) = observations.findings(observations.read(tmp_path / "o.json"), "e", "1.0", [GB10], "r", None)
    assert found.source == "others: run r1" and found.question == "rehearsal of kernels"
