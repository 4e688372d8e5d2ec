"""ignored-return: a sub-agent reports a failure or a gap, and its parent claims success."""

from __future__ import annotations

from collections.abc import Mapping

from closeloop.model.finding import Finding, Rule, Unmeasured, found
from closeloop.model.steps import Reading
from closeloop.process.claims import claim_of
from closeloop.process.handing import Handed, handed
from closeloop.process.returns import Told, caveats, uses
from closeloop.process.telling import short

rule = Rule(
    name="ignored-return",
    version=1,
    about="A sub-agent reports a failure or a gap; its parent neither acts on it nor passes it on.",
    severity="error",
)


def detect(reading: Reading, limits: Mapping[str, float]) -> list[Finding] | Unmeasured:
    """Caveats of a report that no later step or word of the parent takes up, before a claim."""
    handoffs = handed(reading)
    if not handoffs:
        return []
    if not any(one.event.report for one in handoffs):
        return Unmeasured(rule=rule.name, reason="no report of a sub-agent is in the trace")
    return [finding for one in handoffs if (finding := _finding(one))]


def _finding(one: Handed) -> Finding | None:
    claim = claim_of(one.said[-1]) if one.event.report and one.said else None
    if claim is None:
        return None
    told = (Told(kind="caveat", text=text) for text in caveats(one))
    ignored = [caveat.text for caveat in told if not uses(caveat, one)]
    if not ignored:
        return None
    return found(
        rule,
        f"The sub-agent reported “{short(ignored[0])}”; its parent did nothing about it and said "
        f"“{short(claim.quote, 60)}”.",
        [one.said[-1].number, one.event.number],
        lane=one.event.lane,
        confidence=0.8,
    )
