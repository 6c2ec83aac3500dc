"""The report's tables come out of its data with the same figures; what does not fit is told; no finding gets a
better word than its data carries."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from lanes.comparing.compare import compare
from lanes.results import files

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "examples/campaign-2026-10"
DOCUMENTS = files.read(FOLDER)
SGLANG, FLARE = "dsv41-flash-1017-4x-sglang", "dsv41-flash-1017-4x-flare"
TENSORFOLD, BEAM = "dsv41-flash-1017-2x-tensorfold", "beam-1.0-nvfp4-4x"

TABLE = {
    #            quality  resp.  turn  prefill  c1           c2    c4    KV pool
    SGLANG:     (87,      75,    1.4,  3019,    (45.6,),     67.8, None, 9_300_000),
    TENSORFOLD: (89,      23,    6.7,  380,     (50.4,),     None, None, 26_600_000),
    FLARE:      (None,    None,  None, 2400,    (22.0, 27.0), None, None, 26_600_000),
    BEAM:       (90,      34,    4.7,  2501,    (26.2,),     41.1, 62.3, 6_810_000),
}  # fmt: skip
"""The report's four-lane comparison, as it stands there."""
AB = {
    "ep4-512k": [(3019, 44.9), (2597, 52.6), (3038, 46.6), (2870, 39.6), (2430, 53.6)],
    "ep4-512k-fp4-indexer": [(2942, 45.1), (2128, 55.5), (3019, 48.5), (2829, 43.6), (2132, 51.3)],
    "ep2-512k": [(3054, 61.0), (1089, 58.8), (2372, 42.3), (1965, 41.1), (1753, 56.9)],
    "ep2-512k-repeat": [(2485, 43.2), (2607, 60.5), (3009, 44.1), (2692, 48.6), (1874, 65.5)],
    "ep4-1m-chunk8192": [(3275, 42.3)],
    "ep2-1m": [(2358, 45.6), (1916, 67.8), (2533, 45.4), (2859, 45.8), (2677, 38.5)],
}
"""Its table of the A/B: prefill and decode at d0 c1, d0 c2, d4K c1, d8K c1, d8K c2."""
DEPTHS = {
    16384: (3530, 2279, 39.0, 32.7, 46.5, 62.5),
    65536: (1532, 2151, 32.0, 6.0, 47.3, 62.1),
    131072: (1545, 1561, 36.1, 2.7, 42.1, 61.2),
    262144: (1447, 1525, 50.5, 1.4, 46.4, 67.5),
}
"""Its depth sweep: ctx prefill c1, c2; ctx decode c1, c2; decode after a suffix c1, c2."""


def of(*only, **more):
    return compare(DOCUMENTS, only=only, **more)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: d["run"])
def test_each_is_a_result_and_says_whose(document):
    jsonschema.Draft202012Validator(json.loads((ROOT / "docs/result.schema.json").read_text())).validate(
        document
    )
    assert document["command"] == "import"
    assert document["provenance"]["source"].startswith("DSV4.1-1017 4x SGLang")


def test_the_four_lane_table():
    found = of("four-lanes")
    columns = {column.title: column.entries for column in found.columns}
    titles = ("quality", "responsiveness", "median turn s", "prefill tok/s",
              "decode tok/s c1", "decode tok/s c2", "decode tok/s c4")  # fmt: skip
    assert tuple(columns) == titles
    for lane, row in TABLE.items():
        for title, said in zip(titles, row, strict=False):
            entry = columns[title].get(lane)
            if isinstance(said, tuple):
                assert (entry.figure.lo, entry.figure.hi) == (said[0], said[-1])
            else:
                assert (entry.figure.median if entry else None) == said, (lane, title)
        assert found.side(lane).lane_metrics == {"kv_pool_tokens": row[-1]}
    flare = found.side(FLARE)
    assert flare.status == "crashed"
    assert "two-shot op N abandoned: kernel timed out" in flare.reason
    assert not any(figure.best for side in found.sides for p in side.points for figure in p.figures.values())


def test_the_table_of_the_ab():
    for run, rows in AB.items():
        (side,) = of(run).sides
        cells = {p.name: p.figures for p in side.points if p.instrument == "benchy" and p.figures}
        names = ("pp2048 tg128", "pp2048 tg128 c2", "pp2048 tg128 @ d4096", "pp2048 tg128 @ d8192",
                 "pp2048 tg128 @ d8192 c2")  # fmt: skip
        assert tuple(cells) == names[: len(rows)]
        for name, (prefill, decode) in zip(names, rows, strict=False):
            few = "batch_" if name.endswith("c2") else ""
            assert cells[name][f"{few}prefill_tps"].median == prefill
            assert cells[name][f"{few}decode_tps"].median == decode


def test_the_depth_sweep():
    (side,) = of("ep2-1m-depth").sides
    for depth, (pp1, pp2, t1, t2, s1, s2) in DEPTHS.items():
        for name, metric, said in (
            (f"ctx{depth} tg128", "prefill_tps", pp1), (f"ctx{depth} tg128 c2", "batch_prefill_tps", pp2),
            (f"ctx{depth} tg128", "decode_tps", t1), (f"ctx{depth} tg128 c2", "batch_decode_tps", t2),
            (f"pp2048 tg128 @ d{depth}", "decode_tps", s1), (f"pp2048 tg128 @ d{depth} c2", "batch_decode_tps", s2),
        ):  # fmt: skip
            point = side.point("benchy", name)
            assert point is not None and point.figures[metric].median == said, (name, metric)


def test_what_does_not_fit_in_the_four_lane_table_is_told():
    said = {flag.kind: [] for flag in of("four-lanes").flags}
    for flag in of("four-lanes").flags:
        said[flag.kind].append(flag.sentence)
    (quoted,) = said["quoted"]
    assert "3,019" in quoted and "2,358" in quoted and "ep4-512k" in quoted and "ep_size 4" in quoted
    decode = next(s for s in said["instruments"] if s.startswith("decode tok/s c1"))
    assert f"probe.py for {TENSORFOLD}" in decode and f"benchy for {SGLANG}" in decode
    (pools,) = said["one lane, two values"]
    assert "9,180,000" in pools and "9,300,000" in pools
    (copied,) = said["two engines, one value"]
    assert "26,600,000" in copied and FLARE in copied and TENSORFOLD in copied


def test_a_lane_that_measured_itself_gets_no_such_flag():
    assert [flag.kind for flag in of("ep4-512k", "ep4-512k-fp4-indexer").flags] == []


FINDINGS = {
    1: ((SGLANG,), {"by": "ep_size"}),
    2: (("ep4-512k", "ep4-512k-fp4-indexer"), {}),
    3: (("ep4-512k", "ep4-1m-chunk8192"), {}),
    4: (("ep2-512k", "ep2-512k-repeat", "ep2-512k-probe", "ep2-1m", "ep2-1m-probe-1", "ep2-1m-probe-2"), {}),
    5: (("ep4-512k", "knapcio-v2.4"), {}),
}


@pytest.mark.parametrize("number", FINDINGS)
@pytest.mark.parametrize("margin", [0.02, 0.05, 0.2])
def test_no_finding_is_resolved_by_its_data(number, margin):
    only, more = FINDINGS[number]
    found = of(*only, margin=margin, **more)
    assert len(found.sides) == 2
    assert found.verdicts
    assert {verdict.judgement.word for verdict in found.verdicts} == {"unresolved"}
    assert {verdict.cause for verdict in found.verdicts} == {None}


def test_ep_size_is_four_against_two_at_two_in_fifteen():
    found = of(SGLANG, by="ep_size")
    (verdict,) = [v for v in found.verdicts if (v.instrument, v.metric) == ("probe.py", "decode_tps")]
    judgement = verdict.judgement
    assert {verdict.a: judgement.n_a, verdict.b: judgement.n_b} == {"ep_size=2": 4, "ep_size=4": 2}
    assert judgement.p == pytest.approx(2 / 15)
    assert not judgement.paired
    others = {difference.factor for difference in found.differences}
    assert {"ep_size", "context", "chunked_prefill_size"} <= others


def test_one_thing_differs_with_the_indexer_and_more_with_the_chunk():
    def differing(number):
        only, more = FINDINGS[number]
        return [one.factor for one in of(*only, **more).differences]

    assert differing(2) == ["enable_deepseek_v4_fp4_indexer"]
    assert differing(3) == ["context", "chunked_prefill_size", "env SPARK_ENGRAM_MAX_IDS"]
    assert differing(4) == ["context"]
    assert len(differing(5)) == 9


def test_the_commands_of_its_page_say_what_it_says(lanes):
    page = (FOLDER / "README.md").read_text()
    commands = [line.split("`")[1] for line in page.splitlines() if line.startswith("| ") and "`lanes compare" in line
                for line in [line[line.index("`lanes compare"):]]]  # fmt: skip
    assert len(commands) == 5
    for command in commands:
        words = command.replace("examples/campaign-2026-10", str(FOLDER)).split()[1:]
        ran = lanes(*words)
        assert ran.code == 0
        assert "unresolved" in ran.out
        assert " is faster than" not in ran.out and "no difference beyond" not in ran.out
