"""What a comparison says, sentence by sentence: the same wherever it is shown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lanes.comparing.comparison import Comparison, Point, Side, Verdict
from lanes.comparing.metrics import METRICS, Metric

LONG = 32
"""Characters of a name beyond which lanes are called by letters in tables."""


def labels(comparison: Comparison) -> dict[str, str]:
    """What lanes are called in tables: letters, where names leave no room for figures."""
    names = [side.name for side in comparison.sides]
    if max(map(len, names), default=0) <= LONG or len(names) > 26:
        return {name: name for name in names}
    return {name: chr(ord("A") + index) for index, name in enumerate(names)}


def status(side: Side) -> str:
    """How its launches ended: `measured, 2 crashed`."""
    others = "".join(f", {count} {word}" for word, count in side.failures.items())
    return f"{side.status}{others}"


def ends(comparison: Comparison) -> Iterator[str]:
    """Why a lane is not measured, and what was overruled; then why a cell or a row is not good."""
    for side in comparison.sides:
        yield from lane_ends(side)
        yield from point_ends(side, side.points)


def lane_ends(side: Side) -> Iterator[str]:
    """Why a lane is not measured, and what was overruled."""
    said = [f"{side.status}: {side.reason}"] if side.reason and side.status != "measured" else []
    if side.overrides:
        said.append(f"despite {', '.join(side.overrides)}")
    if said and side.next_step:
        said.append(side.next_step)
    if said:
        yield f"{side.name}: {'; '.join(said)}"


def point_ends(side: Side, points: Iterable[Point]) -> Iterator[str]:
    """The reasons of a lane's cells and rows, those that share one together."""
    cells: dict[str, list[str]] = {}
    for point in points:
        if point.reason:
            cells.setdefault(f"{point.status}: {point.reason}", []).append(point.name)
    for reason, names in cells.items():
        yield f"{side.name}, {', '.join(names)}: {reason}"


_SHOWN = (
    "ttft_s",
    "prefill_tps",
    "decode_tps",
    "stream_decode_tps",
    "span_tps",
    "batch_prefill_tps",
    "batch_decode_tps",
)


def metrics(comparison: Comparison) -> list[Metric]:
    """The figures that a table of all cells shows: those that are judged, or shown after a run."""
    held = {name for side in comparison.sides for point in side.points for name in point.figures}
    return [metric for metric in METRICS.values() if metric.name in held and _wanted(metric.name, held)]


def _wanted(name: str, held: set[str]) -> bool:
    if name == "span_tps" and "stream_decode_tps" not in held:
        return False
    return name in _SHOWN or METRICS[name].judged or name in ("contention", "responsiveness")


_SAID = 6


def verdicts(comparison: Comparison, rest_in: str = "--json") -> Iterator[str]:
    """What was shown, then what was not, the likeliest first; `rest_in` has those that are not told."""
    shown = [one for one in comparison.verdicts if one.judgement.word != "unresolved"]
    rest = [one for one in comparison.verdicts if one.judgement.word == "unresolved"]
    rest.sort(key=lambda one: one.judgement.p)
    yield from (_verdict(one) for one in (*shown, *rest[:_SAID]))
    if len(rest) > _SAID:
        yield f"{len(rest) - _SAID} more figures are unresolved: {rest_in} has them"


def _verdict(one: Verdict) -> str:
    said = one.judgement.sentence
    if one.cause is not None:
        return f"{said}. One thing differs: {one.cause}"
    if one.judgement.word in ("unresolved", "no difference"):
        return said
    return f"{said}. No cause can be named: not exactly one thing is known to differ"


def differences(comparison: Comparison) -> Iterator[str]:
    """Each factor that differs, with who has which value."""
    for one in comparison.differences:
        by_value: dict[str, list[str]] = {}
        for lane, value in one.values.items():
            by_value.setdefault(value if value is not None else "not told", []).append(lane)
        if len(comparison.sides) == 2:
            yield f"{one.factor}: {' / '.join(by_value)}"
        else:
            yield f"{one.factor}: " + "; ".join(f"{v} ({', '.join(lanes)})" for v, lanes in by_value.items())


def choices(comparison: Comparison) -> Iterator[str]:
    """Which lane suits which shape of work."""
    for choice in comparison.choices:
        yield choice.sentence
        if len(choice.figures) > 1 and not choice.scores and len(choice.front) < len(choice.lanes):
            yield f"{choice.shape}, beaten by none in all of {', '.join(choice.figures)}: {', '.join(choice.front)}"


def notes(comparison: Comparison) -> Iterator[str]:
    """What a reader should know of the figures."""
    figures = [
        figure for side in comparison.sides for point in side.points for figure in point.figures.values()
    ]
    if any(figure.best for figure in figures):
        yield "* shown to be better than every other lane's, over launches"
    if any(figure.unit == "launch" for figure in figures):
        yield "medians with 95% intervals over launches"
    if any(figure.unit == "pass" and figure.n > 2 for figure in figures):
        yield "intervals over the passes of one launch: another launch may lie outside"
    by: dict[str, list[str]] = {}
    for side in comparison.sides:
        if side.reported:
            by.setdefault(side.reported, []).append(side.name)
    for who, lanes in by.items():
        yield f"reported by {who}, not measured by this program: {', '.join(lanes)}"
    for text, lanes in _cell_notes(comparison).items():
        yield f"{', '.join(lanes)}: {text}"


def _cell_notes(comparison: Comparison) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for side in comparison.sides:
        for point in side.points:
            for note in point.notes:
                lanes = found.setdefault(note, [])
                if side.name not in lanes:
                    lanes.append(side.name)
    return found
