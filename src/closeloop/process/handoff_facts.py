"""Which facts a handoff's score counts: what arrived, what was lost, what the parent used."""

from __future__ import annotations

from collections.abc import Sequence

from closeloop.process.brief_needs import BriefNeed, list_all_needs
from closeloop.process.child_reports import find_redone_edits, list_report_facts, parent_uses_fact
from closeloop.process.handoff_briefs import (
    HandoffContext,
    is_brief_understood,
    list_handoff_contexts,
    missing_planted_facts,
)
from closeloop.records.finding import HandoffFacts
from closeloop.records.inspection import TraceReading


def list_handoff_facts(
    reading: TraceReading, planted: Sequence[str] = ()
) -> tuple[HandoffFacts, ...]:
    """Every handoff in order; planted facts take the place of what the request seems to need."""
    if not reading.handoffs:
        return ()
    return tuple(
        _collect_facts(one, needed or (), planted)
        for one, needed in zip(list_handoff_contexts(reading), list_all_needs(reading), strict=True)
    )


def _collect_facts(
    one: HandoffContext, needed: Sequence[BriefNeed], planted: Sequence[str]
) -> HandoffFacts:
    if planted:
        missing = set(missing_planted_facts(planted, one.event.brief))
        needs = [(fact, fact not in missing) for fact in planted]
    else:
        needs = [(need.fact.text, need.present) for need in needed]
    returned = _list_returned(one)
    return HandoffFacts(
        event=one.event.number,
        child=one.event.child,
        arrived=tuple(text for text, present in needs if present),
        lost=tuple(text for text, present in needs if not present),
        understood=is_brief_understood(one),
        used=tuple(text for text, used in returned if used),
        unused=tuple(text for text, used in returned if not used),
    )


def _list_returned(one: HandoffContext) -> list[tuple[str, bool]]:
    """Facts of the report; what the parent does again or takes back, it does not use."""
    if not one.event.report or not (one.after or one.said):
        return []
    facts = list_report_facts(one)
    redone = dict.fromkeys(again.path for again in find_redone_edits(one))
    returned = [
        (fact.text, parent_uses_fact(fact, one) and fact.text not in redone) for fact in facts
    ]
    reported = {fact.text for fact in facts}
    return returned + [(path, False) for path in redone if path not in reported]
