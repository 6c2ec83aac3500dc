"""A plugin that is broken is told of by `lanes engines`, and everything else works."""

from __future__ import annotations

import pytest

ENGINE, EXTENSION = "lanes.engines", "lanes.extensions"

BREACHES = {
    "fails to import": (
        ENGINE,
        lambda _: "import no_such_module_at_all",
        "failed to import: ModuleNotFoundError",
    ),
    "exits at import": (ENGINE, lambda _: "raise SystemExit('bye')", "failed to import: SystemExit: bye"),
    "misspells a hook": (
        ENGINE,
        lambda good: good.replace("def lanes_launch", "def lanes_lanch"),
        "there is no hook 'lanes_lanch'; did you mean 'lanes_launch'?",
    ),
    "forgets the marker": (
        ENGINE,
        lambda good: good.replace("@lanes.hookimpl\ndef lanes_stop", "def lanes_stop"),
        "lanes_stop is not marked with @lanes.hookimpl",
    ),
    "lacks a hook": (
        ENGINE,
        lambda good: good[: good.index("@lanes.hookimpl\ndef lanes_stop")],
        "lacks lanes_stop",
    ),
    "takes an unknown argument": (
        ENGINE,
        lambda good: good.replace("def lanes_stage(lane)", "def lanes_stage(lane, speed)"),
        "speed",
    ),
    "is of another contract": (
        ENGINE,
        lambda good: good.replace("LANES_CONTRACT = 1", "LANES_CONTRACT = 7"),
        "made for contract 7, this lanes speaks contract 1",
    ),
    "does not name its contract": (
        ENGINE,
        lambda good: good.replace("LANES_CONTRACT = 1", ""),
        "should set LANES_CONTRACT = 1",
    ),
    "returns the wrong type": (
        ENGINE,
        lambda good: good.replace('EngineInfo(summary="sleeps")', '"sleeps"'),
        "lanes_engine of engine bad (from bad-plugin 1.0) returned a str, not EngineInfo",
    ),
    "answers for every engine": (
        EXTENSION,
        lambda _: (
            "import lanes\nLANES_CONTRACT = 1\n@lanes.hookimpl\ndef lanes_stage(lane):\n    return []\n"
        ),
        "an extension may only wrap lanes_stage",
    ),
    "wraps as an engine": (
        ENGINE,
        lambda good: good.replace(
            "@lanes.hookimpl\ndef lanes_stage", "@lanes.hookimpl(wrapper=True)\ndef lanes_stage"
        ),
        "an engine may not wrap hooks (lanes_stage)",
    ),
}


@pytest.mark.parametrize("breach", BREACHES)
def test_a_plugin_that(breach, lanes, site, sleepy):
    group, make, told = BREACHES[breach]
    site("bad-plugin", "bad_plugin", make(sleepy), {"bad": group})
    site("good-plugin", "good_plugin", sleepy, {"good": ENGINE})

    listing = lanes("engines")
    assert listing.code == 0
    assert "broken" in listing.said
    assert told in listing.said
    assert "bad-plugin" in listing.said

    good = lanes("run", "--engine", "good", "--model", "/", "--dry-run")
    assert good.code == 0, good.err
    assert "runnable" in good.out


def test_using_a_broken_engine_says_what_is_wrong_with_it(lanes, site):
    site("bad-plugin", "bad_plugin", "import no_such_module_at_all", {"bad": ENGINE})
    ran = lanes("run", "--engine", "bad")
    assert ran.code == 2
    assert "engine bad (from bad-plugin 1.0) cannot be used" in ran.err
    assert "no_such_module_at_all" in ran.err


def test_of_two_plugins_with_one_name_neither_is_taken(lanes, site, sleepy):
    site("first-plugin", "first_plugin", sleepy, {"twin": ENGINE})
    site("second-plugin", "second_plugin", sleepy, {"twin": ENGINE})
    site("good-plugin", "good_plugin", sleepy, {"good": ENGINE})
    rows = {(r["name"], r["distribution"]): r for r in lanes("engines", "--json").json}
    for distribution in ("first-plugin 1.0", "second-plugin 1.0"):
        problem = rows["twin", distribution]["problem"]
        assert "first-plugin 1.0, second-plugin 1.0" in problem
        assert "uninstall all but one" in problem
    assert rows["good", "good-plugin 1.0"]["problem"] is None
    assert lanes("run", "--engine", "twin").code == 2


@pytest.mark.parametrize(
    ("hook", "returns", "told"),
    [
        ("lanes_stage(lane)", '"model.gguf"', "returned a str, not a sequence of Files or Image"),
        ("lanes_stage(lane)", "[1]", "returned a int at index 0, not Files or Image"),
        ("lanes_launch(lane, placement, staged)", "None", "returned None, not Launch"),
        ("lanes_launch(lane, placement, staged)", "1 / 0", "raised ZeroDivisionError: division by zero"),
    ],
)
def test_a_wrong_result_names_the_plugin_and_nothing_is_started(lanes, site, hook, returns, told, sleepy):
    name = hook.partition("(")[0]
    start = sleepy.index(f"def {name}")
    end = sleepy.index("\n@lanes", start)
    source = sleepy[:start] + f"def {hook}:\n    return {returns}\n" + sleepy[end:]
    site("bad-plugin", "bad_plugin", source, {"bad": ENGINE})
    ran = lanes("run", "--engine", "bad", "--model", "/")
    assert ran.code == 1
    assert f"{name} of engine bad (from bad-plugin 1.0)" in ran.said
    assert told in ran.said


def test_a_check_that_raises_is_unknown_not_the_end(lanes, site, sleepy):
    source = sleepy.replace("return [Finding(", "raise ValueError('odd driver')\n    return [Finding(")
    site("bad-plugin", "bad_plugin", source, {"bad": ENGINE})
    ran = lanes("run", "--engine", "bad", "--model", "/", "--dry-run")
    assert ran.code == 0
    assert "unknown" in ran.said
    assert "ValueError: odd driver" in ran.said


WRAPPER = """
import attrs
import lanes

LANES_CONTRACT = 1

@lanes.hookimpl(wrapper=True)
def lanes_launch(lane):
    launch = yield
    return attrs.evolve(
        launch, processes=tuple(attrs.evolve(p, env={**p.env, "SITE_POLICY": lane.engine}) for p in launch.processes)
    )

@lanes.hookimpl
def lanes_check(lane, nodes):
    if lane.engine != "banned":
        return []
    return [
        lanes.Finding(
            question="policy", verdict=lanes.Verdict.UNRUNNABLE, reason="not on this site", source="the site's policy",
            evidence=lanes.Evidence.PROBED, next_step="ask the site's owner",
        )
    ]
"""


def test_an_extension_wraps_the_launch_of_every_engine(lanes, site, sleepy):
    site("one-plugin", "one_plugin", sleepy, {"one": ENGINE})
    site("two-plugin", "two_plugin", sleepy, {"two": ENGINE})
    site("policy", "site_policy", WRAPPER, {"policy": EXTENSION})
    for engine in ("one", "two"):
        (dry,) = lanes("run", "--engine", engine, "--model", "/", "--dry-run", "--json").json
        assert dry["launch"]["processes"][0]["env"] == {"SITE_POLICY": engine}


def test_an_extension_can_make_a_lane_unrunnable(lanes, site, sleepy):
    site("banned-plugin", "banned_plugin", sleepy, {"banned": ENGINE})
    site("policy", "site_policy", WRAPPER, {"policy": EXTENSION})
    ran = lanes("run", "--engine", "banned", "--model", "/")
    assert ran.code == 3
    assert "unrunnable: not on this site" in ran.said
    assert "ask the site's owner" in ran.said


def test_going_on_despite_a_finding_is_in_the_result_for_ever(lanes, site, sleepy):
    site("banned-plugin", "banned_plugin", sleepy, {"banned": ENGINE})
    site("policy", "site_policy", WRAPPER, {"policy": EXTENSION})
    ran = lanes("run", "--engine", "banned", "--model", "/", "--despite", "policy", "--json")
    (lane,) = ran.json["lanes"]
    assert lane["status"] == "unmeasurable"
    assert lane["overrides"] == ["policy"]
    assert [f["question"] for f in lane["findings"]] == ["cpu", "policy"]


def test_an_unknown_engine_names_the_near_ones(lanes, site, sleepy):
    site("good-plugin", "good_plugin", sleepy, {"turbofan": ENGINE})
    ran = lanes("run", "--engine", "trubofan")
    assert ran.code == 2
    assert "there is no engine 'trubofan'. did you mean 'turbofan'?" in ran.err


LABELS = """
import attrs
import lanes

LANES_CONTRACT = 1

@lanes.hookimpl(wrapper=True)
def lanes_launch(lane):
    launch = yield

    def marked(process):
        box = process.container
        if box is not None:
            box = attrs.evolve(box, labels={**box.labels, "site.owner": "ops"})
        return attrs.evolve(process, env={**process.env, "SITE_POLICY": lane.engine}, container=box)

    return attrs.evolve(launch, processes=tuple(map(marked, launch.processes)))
"""


def test_a_policy_marks_every_process_of_every_engine_that_is_installed(lanes, site):
    site("policy", "label_policy", LABELS, {"policy": EXTENSION})
    listed = lanes("recipes", "--json").json
    boxes = 0
    for row in listed:
        (dry,) = lanes("run", "--recipe", row["name"], "--arch", "gb10", "--dry-run", "--json").json
        for process in dry["launch"]["processes"] if dry["launch"] else ():
            assert process["env"]["SITE_POLICY"] == row["engine"]
            if process["container"] is not None:
                boxes += 1
                assert process["container"]["labels"]["site.owner"] == "ops"
    installed = {row["name"] for row in lanes("engines", "--json").json if row["kind"] == "engine"}
    assert boxes or not installed & {"sglang", "vllm", "tensorfold"}
