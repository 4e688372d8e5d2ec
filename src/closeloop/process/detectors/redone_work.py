"""redone-work: an agent does again what it had handed on, or takes it back."""

from __future__ import annotations

from collections.abc import Mapping

from closeloop.process.child_reports import RedoneEdit, find_redone_edits, find_repeated_lookups
from closeloop.process.handoff_briefs import HandoffContext, list_handoff_contexts, step_input
from closeloop.process.rule_helpers import truncate_line
from closeloop.records.finding import Finding, Rule, Unmeasured, make_finding
from closeloop.records.inspection import (
    TraceReading,
    TraceStep,
)
from closeloop.text.wording import count_with_noun

rule = Rule(
    name="redone-work",
    version=1,
    about="An agent makes the same edits or lookups again that its sub-agent made, or undoes them.",
    severity="info",
    thresholds={"alike": 0.9, "lookups": 3},
)
_MAX_CITED = 3


def detect(reading: TraceReading, limits: Mapping[str, float]) -> list[Finding] | Unmeasured:
    """Edits with the same lines in the same file; lookups that had been made already."""
    handoffs = list_handoff_contexts(reading)
    if not handoffs:
        return []
    if all(one.child is None for one in handoffs):
        return Unmeasured(rule=rule.name, reason="no sub-agent's own work is in the trace")
    changed: dict[str, frozenset[str]] = {}
    findings = []
    for one in handoffs:
        if one.child is None:
            continue
        lane = one.event.lane
        if lane not in changed:
            changed[lane] = frozenset(path for step in one.parent.changes for path in step.written)
        if redone_edits := find_redone_edits(one, alike=limits["alike"]):
            findings.append(_redone_edit_finding(one, redone_edits))
        repeated = find_repeated_lookups(one, changed[lane])
        if len(repeated) >= limits["lookups"]:
            findings.append(_repeated_lookup_finding(one, repeated))
    return findings


def _redone_edit_finding(one: HandoffContext, again: list[RedoneEdit]) -> Finding:
    first = again[0]
    what = "takes back what its sub-agent did" if first.undone else "does the same edit again"
    return make_finding(
        rule,
        f"The agent {what} in {truncate_line(first.path)}"
        + (f", and {count_with_noun(len(again) - 1, 'time')} more." if len(again) > 1 else "."),
        [number for pair in again[:_MAX_CITED] for number in (pair.parent, pair.child)],
        lane=one.event.lane,
        confidence=0.8,
    )


def _repeated_lookup_finding(
    one: HandoffContext, repeated: list[tuple[TraceStep, TraceStep]]
) -> Finding:
    return make_finding(
        rule,
        f"The agent repeats {count_with_noun(len(repeated), 'lookup')} of its sub-agent, the first"
        f" being {truncate_line(step_input(repeated[0][1]))}.",
        [number for first, then in repeated[:_MAX_CITED] for number in (then.number, first.number)],
        lane=one.event.lane,
        confidence=0.5,
    )
