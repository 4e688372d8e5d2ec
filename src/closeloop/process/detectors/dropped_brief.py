"""dropped-brief: work is handed on without a fact that it needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from closeloop.model.finding import Finding, Rule, Unmeasured, found
from closeloop.model.steps import Reading
from closeloop.model.trace import Handoff
from closeloop.process.briefs import Need, all_needs, dropped, planted
from closeloop.process.handing import Handed, handed
from closeloop.process.telling import short

rule = Rule(
    name="dropped-brief",
    version=2,
    about="Work is handed on without a constraint, number or planted fact that it needs.",
    severity="error",
    mode="instruction drift",
    gates=True,
)
_CITED = 3
_QUOTED = 2
_BROKEN, _LIKELY = 0.95, 0.8
"""How sure it is when the child went against what it was not told, and when it did not."""


def detect(reading: Reading, limits: Mapping[str, float]) -> list[Finding] | Unmeasured:
    """With planted facts exactly those; without, what was asked and is beyond doubt needed."""
    if not reading.handoffs:
        return []
    if reading.task and reading.task.facts:
        facts = reading.task.facts
        briefs = ((event, planted(facts, event.brief)) for event in reading.handoffs)
        return [_lost(event, missing, len(facts)) for event, missing in briefs if missing]
    handoffs = handed(reading)
    if all(one.asked is None for one in handoffs):
        return Unmeasured(rule=rule.name, reason="the trace does not show what was asked")
    judged = zip(handoffs, all_needs(reading), strict=True)
    return [finding for one, needed in judged if (finding := _finding(one, needed or ()))]


def _lost(event: Handoff, missing: tuple[str, ...], of: int) -> Finding:
    return found(
        rule,
        f"The brief leaves out {len(missing)} of {of} facts that must survive: {_quoted(missing)}.",
        [event.number],
        lane=event.lane,
    )


def _finding(one: Handed, needed: Sequence[Need]) -> Finding | None:
    missing = dropped(one, needed)
    if not missing:
        return None
    broken = [step for _, step in missing if step is not None]
    told = _quoted([fact.text for fact, _ in missing])
    outcome = ", and the sub-agent went against it" if broken else ""
    return found(
        rule,
        f"The brief leaves out what was asked: {told}{outcome}.",
        [one.event.number, *(step.number for step in broken[:_CITED])],
        lane=one.event.lane,
        confidence=_BROKEN if broken else _LIKELY,
    )


def _quoted(texts: list[str] | tuple[str, ...]) -> str:
    shown = ", ".join(f"“{short(text, 60)}”" for text in texts[:_QUOTED])
    return f"{shown} and {len(texts) - _QUOTED} more" if len(texts) > _QUOTED else shown
