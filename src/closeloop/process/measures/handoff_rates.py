"""The shares of a handoff: what the brief held, what the child understood, what the parent used."""

from __future__ import annotations

from collections.abc import Sequence

from closeloop.process.child_reports import find_redone_edits, list_report_facts, parent_uses_fact
from closeloop.process.handoff_briefs import (
    BRIEF_PARTS,
    BriefNeed,
    count_brief_parts,
    is_brief_understood,
    is_hidden_text,
    list_all_needs,
    missing_planted_facts,
)
from closeloop.process.handoff_contexts import HandoffContext, list_handoff_contexts
from closeloop.records.rates import Rate, wilson_rate
from closeloop.records.record import Record
from closeloop.records.trace_steps import TraceReading


class HandoffRates(Record):
    """Rates over some handoffs; None where none of them could be measured."""

    brief: Rate | None = None
    brief_parts: Rate | None = None
    understood: Rate | None = None
    returned: Rate | None = None
    planted: Rate | None = None


def handoff_rates_by_lane(reading: TraceReading) -> dict[str | None, HandoffRates]:
    """By the lane that handed work on; under None all of them together."""
    if not reading.handoffs:
        return {}
    facts = reading.task.facts if reading.task else ()
    counted = [
        (one.event.lane, _count_handoff(one, needed, facts))
        for one, needed in zip(list_handoff_contexts(reading), list_all_needs(reading), strict=True)
    ]
    lanes = dict.fromkeys(lane for lane, _ in counted)
    by_lane = {lane: [counts for of, counts in counted if of == lane] for lane in lanes}
    return {lane: _compute_rates(counts) for lane, counts in by_lane.items()} | {
        None: _compute_rates([counts for _, counts in counted])
    }


HitCount = tuple[int, int]
"""So many of so many."""


def _count_handoff(
    one: HandoffContext, needed: Sequence[BriefNeed] | None, facts: Sequence[str]
) -> dict[str, HitCount]:
    counts = {
        "planted": (len(facts) - len(missing_planted_facts(facts, one.event.brief)), len(facts)),
        "returned": _count_used_facts(one),
    }
    if not is_hidden_text(one.event.brief):
        counts["brief_parts"] = count_brief_parts(one.event.brief), BRIEF_PARTS
    if needed is not None:
        counts["brief"] = sum(need.present for need in needed), len(needed)
    if (is_understood := is_brief_understood(one)) is not None:
        counts["understood"] = int(is_understood), 1
    return counts


def _count_used_facts(one: HandoffContext) -> HitCount:
    """Facts of the report that the parent uses; it does not use what it does again or undoes."""
    if not one.event.report or not (one.after or one.said):
        return 0, 0
    facts = list_report_facts(one)
    redone_paths = {again.path for again in find_redone_edits(one)}
    used = sum(parent_uses_fact(fact, one) and fact.text not in redone_paths for fact in facts)
    return used, len(facts) + len(redone_paths - {fact.text for fact in facts})


def _compute_rates(judged: Sequence[dict[str, HitCount]]) -> HandoffRates:
    def share(name: str) -> Rate | None:
        counts = [one[name] for one in judged if name in one]
        return wilson_rate(sum(hits for hits, _ in counts), sum(of for _, of in counts))

    return HandoffRates(
        brief=share("brief"),
        brief_parts=share("brief_parts"),
        understood=share("understood"),
        returned=share("returned"),
        planted=share("planted"),
    )
