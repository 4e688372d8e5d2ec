"""ignored-return: a sub-agent reports a failure or a gap, and its parent claims success."""

from __future__ import annotations

from collections.abc import Mapping

from closeloop.process.agent_claims import parse_claim
from closeloop.process.child_reports import ReportFact, list_caveats, parent_uses_fact
from closeloop.process.handoff_briefs import HandoffContext, list_handoff_contexts
from closeloop.process.rule_helpers import truncate_line
from closeloop.records.finding import Finding, Rule, Unmeasured, make_finding
from closeloop.records.inspection import (
    TraceReading,
)

rule = Rule(
    name="ignored-return",
    version=1,
    about="A sub-agent reports a failure or a gap; its parent neither acts on it nor passes it on.",
    severity="error",
)


def detect(reading: TraceReading, limits: Mapping[str, float]) -> list[Finding] | Unmeasured:
    """Caveats of a report that no later step or word of the parent takes up, before a claim."""
    handoffs = list_handoff_contexts(reading)
    if not handoffs:
        return []
    if not any(one.event.report for one in handoffs):
        return Unmeasured(rule=rule.name, reason="no report of a sub-agent is in the trace")
    return [finding for one in handoffs if (finding := _build_finding(one))]


def _build_finding(one: HandoffContext) -> Finding | None:
    claim = parse_claim(one.said[-1]) if one.event.report and one.said else None
    if claim is None:
        return None
    report_facts = (ReportFact(kind="caveat", text=text) for text in list_caveats(one))
    ignored = [caveat.text for caveat in report_facts if not parent_uses_fact(caveat, one)]
    if not ignored:
        return None
    return make_finding(
        rule,
        f"The sub-agent reported “{truncate_line(ignored[0])}”; its parent did nothing about it and"
        f" said “{truncate_line(claim.quote, 60)}”.",
        [one.said[-1].number, one.event.number],
        lane=one.event.lane,
        confidence=0.8,
    )
