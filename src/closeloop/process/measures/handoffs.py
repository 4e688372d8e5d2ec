"""The shares of a handoff: what the brief held, what the child understood, what the parent used."""

from __future__ import annotations

from collections.abc import Sequence

from closeloop.model.rates import Rate, rate
from closeloop.model.record import Record
from closeloop.model.steps import Reading
from closeloop.process.briefs import PARTS, Need, all_needs, is_hidden, parts, planted, understood
from closeloop.process.handing import Handed, handed
from closeloop.process.returns import redone, told, uses


class Handoffs(Record):
    """Rates over some handoffs; None where none of them could be measured."""

    brief: Rate | None = None
    brief_parts: Rate | None = None
    understood: Rate | None = None
    returned: Rate | None = None
    planted: Rate | None = None


def handoffs(reading: Reading) -> dict[str | None, Handoffs]:
    """By the lane that handed work on; under None all of them together."""
    if not reading.handoffs:
        return {}
    facts = reading.task.facts if reading.task else ()
    judged = [
        (one.event.lane, _judged(one, needed, facts))
        for one, needed in zip(handed(reading), all_needs(reading), strict=True)
    ]
    lanes = dict.fromkeys(lane for lane, _ in judged)
    by_lane = {lane: [counts for of, counts in judged if of == lane] for lane in lanes}
    return {lane: _rates(counts) for lane, counts in by_lane.items()} | {
        None: _rates([counts for _, counts in judged])
    }


Count = tuple[int, int]
"""So many of so many."""


def _judged(one: Handed, needed: Sequence[Need] | None, facts: Sequence[str]) -> dict[str, Count]:
    counts = {
        "planted": (len(facts) - len(planted(facts, one.event.brief)), len(facts)),
        "returned": _returned(one),
    }
    if not is_hidden(one.event.brief):
        counts["brief_parts"] = parts(one.event.brief), PARTS
    if needed is not None:
        counts["brief"] = sum(need.present for need in needed), len(needed)
    if (aims := understood(one)) is not None:
        counts["understood"] = int(aims), 1
    return counts


def _returned(one: Handed) -> Count:
    """Facts of the report that the parent uses; it does not use what it does again or undoes."""
    if not one.event.report or not (one.after or one.said):
        return 0, 0
    facts = told(one)
    wasted = {again.path for again in redone(one)}
    used = sum(uses(fact, one) and fact.text not in wasted for fact in facts)
    return used, len(facts) + len(wasted - {fact.text for fact in facts})


def _rates(judged: Sequence[dict[str, Count]]) -> Handoffs:
    def share(name: str) -> Rate | None:
        counts = [one[name] for one in judged if name in one]
        return rate(sum(hits for hits, _ in counts), sum(of for _, of in counts))

    return Handoffs(
        brief=share("brief"),
        brief_parts=share("brief_parts"),
        understood=share("understood"),
        returned=share("returned"),
        planted=share("planted"),
    )
