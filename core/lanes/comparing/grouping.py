"""Which launches are of one lane: same name, and nothing known differs in their making."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attrs import evolve, field, frozen

from lanes.comparing import factors, visits


@frozen(kw_only=True)
class Launch:
    """One launch of a lane, or one report of it: its entry in a result, and where that stands.

    `quoted` when the document only repeats what was measured elsewhere. `block` is (A/B, number, side) for a
    launch that `lanes ab` made.
    """

    run: str
    lane: Mapping[str, Any]
    factors: Mapping[str, str]
    reported: str | None = None
    quoted: bool = False
    block: tuple[str, int, str] | None = None
    torn: bool = False
    """Whether its block was cut, and maybe begun anew: then it has no partner."""
    mirrored: bool = False
    """Whether its A/B holds a lane against itself: then the sides are kept apart."""

    @property
    def key(self) -> tuple[Any, ...]:
        side = self.block[2] if self.block and self.mirrored else None
        return (self.lane["name"], tuple(sorted(self.factors.items())), self.quoted, side)


@frozen(kw_only=True)
class Group:
    """The launches of one lane, oldest first. `factors` are those that all share, and for each other one all
    its values."""

    name: str
    launches: tuple[Launch, ...]
    factors: Mapping[str, str] = field(factory=dict)


def launches(documents: Iterable[Mapping[str, Any]]) -> list[Launch]:
    """All launches of `lanes.result/1` documents, oldest first."""
    found = []
    for document in sorted(documents, key=lambda d: d.get("started_at") or 0.0):
        provenance = document.get("provenance") or {}
        ab = document.get("ab") or {}
        last = _last_attempts(document["lanes"])
        for lane, whole in visits.folded(document["lanes"]):
            if lane.get("rehearsal"):
                # With dummy weights it is no launch of the lane.
                continue
            block = lane.get("block")
            found.append(
                Launch(
                    run=document["run"],
                    lane=lane,
                    factors=factors.of(lane),
                    reported=provenance.get("by"),
                    quoted=bool(provenance.get("quotes")),
                    block=(document["run"], block["number"], block["side"]) if block else None,
                    torn=block is not None and (not whole or block["attempt"] < last[block["number"]]),
                    mirrored=bool(ab.get("mirrored")),
                )
            )
    return found


def _last_attempts(lanes: Iterable[Mapping[str, Any]]) -> dict[int, int]:
    last: dict[int, int] = {}
    for block in (lane["block"] for lane in lanes if lane.get("block")):
        last[block["number"]] = max(last.get(block["number"], 0), block["attempt"])
    return last


def by_lane(found: Sequence[Launch]) -> list[Group]:
    """Group launches of one making; lanes of one name are told apart by what differs, or else by run."""
    groups: dict[tuple[Any, ...], list[Launch]] = {}
    for launch in found:
        groups.setdefault(launch.key, []).append(launch)
    made = [
        Group(name=some[0].lane["name"], launches=tuple(some), factors=some[0].factors)
        for some in groups.values()
    ]
    return _named(made)


def by_factor(found: Sequence[Launch], factor: str) -> list[Group]:
    """Group launches by one factor's value, whatever else differs; what is only quoted is left out. Raises
    KeyError when none has it."""
    found = [one for one in found if not one.quoted]
    values = [one.factors.get(factor) for one in found]
    if not any(values):
        raise KeyError(factor)
    groups: dict[str, list[Launch]] = {}
    for launch, value in zip(found, values, strict=True):
        groups.setdefault(f"{factor}={value if value is not None else 'not told'}", []).append(launch)
    return [Group(name=name, launches=tuple(some), factors=_merged(some)) for name, some in groups.items()]


def _merged(some: Sequence[Launch]) -> dict[str, str]:
    """Each factor's value, or its values with how many launches have each."""
    merged = {}
    for name in dict.fromkeys(name for one in some for name in one.factors):
        values = Counter(one.factors.get(name, "not told") for one in some)
        merged[name] = (
            next(iter(values))
            if len(values) == 1
            else ", ".join(f"{value} ({count} launches)" for value, count in values.items())
        )
    return merged


def _named(groups: list[Group]) -> list[Group]:
    """Give each group a name of its own; where all lanes have one name, it is not repeated."""
    by_name: dict[str, list[Group]] = {}
    for group in groups:
        by_name.setdefault(group.name, []).append(group)
    alone = len(by_name) == 1
    return [
        evolve(group, name=_name(group, by_name[group.name], alone))
        if len(by_name[group.name]) > 1
        else group
        for group in groups
    ]


_FEW = 4


def _name(group: Group, same: Sequence[Group], alone: bool) -> str:
    first = group.launches[0]
    differing = [
        difference.factor
        for difference in factors.differences([(str(i), other.factors) for i, other in enumerate(same)])
    ]
    told = []
    if len(differing) <= _FEW:
        told = [f"{name}={group.factors.get(name, 'not told')}" for name in differing]
    if first.quoted:
        told.append(f"quoted in {first.run}")
    if first.mirrored and first.block:
        told.append(first.block[2].upper())
    others = [other for other in same if other is not group]
    if (len(differing) > _FEW and not first.quoted) or any(
        _alike(group, other, differing) for other in others
    ):
        told.append(first.run)
    if not told:
        return group.name
    return ", ".join(told) if alone else f"{group.name} ({', '.join(told)})"


def _alike(one: Group, other: Group, names: Sequence[str]) -> bool:
    """Whether what is told of them does not tell them apart."""
    a, b = one.launches[0], other.launches[0]
    return (
        all(one.factors.get(name) == other.factors.get(name) for name in names)
        and a.quoted == b.quoted
        and (a.block or ("", 0, ""))[2] == (b.block or ("", 0, ""))[2]
    )
