"""redone-work: an agent does again what it had handed on, or takes it back."""

from __future__ import annotations

from collections.abc import Mapping

from closeloop.model.finding import Finding, Rule, Unmeasured, found
from closeloop.model.plural import plural
from closeloop.model.steps import Reading, Step
from closeloop.process.handing import Handed, handed, input_of
from closeloop.process.returns import Redone, looked_up_again, redone
from closeloop.process.telling import short

rule = Rule(
    name="redone-work",
    version=1,
    about="An agent makes the same edits or lookups again that its sub-agent made, or undoes them.",
    severity="info",
    thresholds={"alike": 0.9, "lookups": 3},
)
_CITED = 3


def detect(reading: Reading, limits: Mapping[str, float]) -> list[Finding] | Unmeasured:
    """Edits with the same lines in the same file; lookups that had been made already."""
    handoffs = handed(reading)
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
        if again := redone(one, alike=limits["alike"]):
            findings.append(_edits(one, again))
        repeated = looked_up_again(one, changed[lane])
        if len(repeated) >= limits["lookups"]:
            findings.append(_lookups(one, repeated))
    return findings


def _edits(one: Handed, again: list[Redone]) -> Finding:
    first = again[0]
    what = "takes back what its sub-agent did" if first.undone else "does the same edit again"
    return found(
        rule,
        f"The agent {what} in {short(first.path)}"
        + (f", and {plural(len(again) - 1, 'time')} more." if len(again) > 1 else "."),
        [number for pair in again[:_CITED] for number in (pair.parent, pair.child)],
        lane=one.event.lane,
        confidence=0.8,
    )


def _lookups(one: Handed, repeated: list[tuple[Step, Step]]) -> Finding:
    return found(
        rule,
        f"The agent repeats {plural(len(repeated), 'lookup')} of its sub-agent, the first being "
        f"{short(input_of(repeated[0][1]))}.",
        [number for first, then in repeated[:_CITED] for number in (then.number, first.number)],
        lane=one.event.lane,
        confidence=0.5,
    )
