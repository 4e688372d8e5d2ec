"""dropped-brief: work is handed on without a fact that it needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from closeloop.process.handoff_briefs import (
    BriefNeed,
    HandoffContext,
    find_dropped_facts,
    list_all_needs,
    list_handoff_contexts,
    missing_planted_facts,
)
from closeloop.process.rule_helpers import truncate_line
from closeloop.records.finding import Finding, Rule, Unmeasured, make_finding
from closeloop.records.inspection import (
    TraceReading,
)
from closeloop.records.trace import (
    Handoff,
)

rule = Rule(
    name="dropped-brief",
    version=2,
    about="Work is handed on without a constraint, number or planted fact that it needs.",
    severity="error",
    mode="instruction drift",
    gates=True,
)
_MAX_CITED = 3
_MAX_QUOTED = 2
_BROKEN, _LIKELY = 0.95, 0.8
"""How sure it is when the child went against what it was not told, and when it did not."""


def detect(reading: TraceReading, limits: Mapping[str, float]) -> list[Finding] | Unmeasured:
    """With planted facts exactly those; without, what was asked and is beyond doubt needed."""
    if not reading.handoffs:
        return []
    if reading.task and reading.task.facts:
        facts = reading.task.facts
        briefs = ((event, missing_planted_facts(facts, event.brief)) for event in reading.handoffs)
        return [
            _planted_fact_finding(event, missing, len(facts))
            for event, missing in briefs
            if missing
        ]
    handoffs = list_handoff_contexts(reading)
    if all(one.asked is None for one in handoffs):
        return Unmeasured(rule=rule.name, reason="the trace does not show what was asked")
    judged = zip(handoffs, list_all_needs(reading), strict=True)
    return [finding for one, needed in judged if (finding := _build_finding(one, needed or ()))]


def _planted_fact_finding(event: Handoff, missing: tuple[str, ...], of: int) -> Finding:
    return make_finding(
        rule,
        f"The brief leaves out {len(missing)} of {of} facts that must survive:"
        f" {_quote_texts(missing)}.",
        [event.number],
        lane=event.lane,
    )


def _build_finding(one: HandoffContext, needed: Sequence[BriefNeed]) -> Finding | None:
    missing = find_dropped_facts(one, needed)
    if not missing:
        return None
    violations = [step for _, step in missing if step is not None]
    quoted_facts = _quote_texts([fact.text for fact, _ in missing])
    outcome = ", and the sub-agent went against it" if violations else ""
    return make_finding(
        rule,
        f"The brief leaves out what was asked: {quoted_facts}{outcome}.",
        [one.event.number, *(step.number for step in violations[:_MAX_CITED])],
        lane=one.event.lane,
        confidence=_BROKEN if violations else _LIKELY,
    )


def _quote_texts(texts: list[str] | tuple[str, ...]) -> str:
    shown = ", ".join(f"“{truncate_line(text, 60)}”" for text in texts[:_MAX_QUOTED])
    return f"{shown} and {len(texts) - _MAX_QUOTED} more" if len(texts) > _MAX_QUOTED else shown
