"""A brief to a sub-agent omits a constraint, number or planted fact that it needs.

## What it looks for

If the task plants `facts`: each of them must occur in the brief of every handoff, word for word
(ignoring case, punctuation and line breaks; numbers include their signs and units).

Without planted facts, the rule reads the request: the user's last self-contained message with later
answers and corrections, or, for a sub-agent that delegates, its own brief. Only clear cases are
reported:

- a prohibition or restriction (`Do not touch app/ledger.py`, `only change …`, `… stays where it
  is`), if the sub-agent changes files and the restriction concerns the same part of the project, or
  if the sub-agent violates it;
- a requirement on the result (`Never fall back to local time`, `10,000 dates in under 50 ms`, `must
  …`, `at most …`, `no new dependencies`), if the sub-agent makes changes and the brief covers the
  subject of the requirement without mentioning the requirement;
- a quantity (`must expire 45 minutes after …`), if the brief repeats the rest of the sentence.

A brief for a part of the work needs only what concerns that part. A requirement belongs to the
sentence before it; one below a heading such as `Constraints` applies to all of the work.
Requirements about other files, about work that the parent does itself, and those that the parent
gives to another sub-agent are not missing.

A restriction may be reworded: `Leave ledger.py alone`, `Touch no other file`. A brief that is
longer than the request may state the requirements in its own words. Facts that the sub-agent gets
in another way, or reads itself, are not lost. Sub-agents that only explore or review need no rules
for changes. Committing, pushing and reporting are up to the parent. Text that a client adds to the
user's messages (tags of slash commands, reminders) is not part of the request.

## Why it matters

A sub-agent sees only its brief. It violates omitted constraints in good faith, and nobody notices
until the review.

## Bad

```text
#1  user     Add a `total` column in app/export.py. Do not touch app/ledger.py, it is being audited.
#2  handoff  Add a `total` column in app/export.py and make the tests pass.
#5    edit   app/ledger.py
```

```text
#1  user     Write a date parser in src/dates.py. Never fall back to local time; 10,000 dates in
             under 50 ms.
#2  handoff  Write a date parser in src/dates.py.
```

## Good

```text
#1  user     Add a `total` column in app/export.py. Do not touch app/ledger.py, it is being audited.
#2  handoff  Add a `total` column in app/export.py. Leave app/ledger.py alone. Report the tests.
```

## When it can be measured

If the trace or the task contains the request. Planted facts need only the briefs. Restrictions are
recognised in English only.

## Thresholds and silencing

It has no thresholds.

```toml
[rules.dropped-brief]
enabled = false

[[silence]]
rule = "dropped-brief"
task = "spike-*"
reason = "sub-agents share the conversation there"
```

## How sure it is

It may gate. With planted facts it is exact (confidence 1). Otherwise the confidence is 0.95 if the
sub-agent violated the omitted constraint, else 0.8. The share of all facts that are included,
doubtful ones too, is the measure `brief`; it never gates.
"""

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
from closeloop.records.change import TraceReading
from closeloop.records.finding import Finding, Rule, Unmeasured, make_finding
from closeloop.records.trace import Handoff

rule = Rule(
    name="dropped-brief",
    version=3,
    about="A brief to a sub-agent omits a constraint, number or planted fact that it needs.",
    severity="error",
    mode="instruction drift",
    gates=True,
)
_MAX_CITED = 3
_MAX_QUOTED = 2
_BROKEN, _LIKELY = 0.95, 0.8
"""Confidence if the child violated the missing fact, and if it did not."""


def detect(reading: TraceReading, limits: Mapping[str, float]) -> list[Finding] | Unmeasured:
    """Find missing planted facts; without any, missing requirements that are certainly needed."""
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
    if all(handoff.request is None for handoff in handoffs):
        return Unmeasured(rule=rule.name, reason="the trace does not contain the request")
    handoff_needs = zip(handoffs, list_all_needs(reading), strict=True)
    return [
        finding
        for handoff, needs in handoff_needs
        if (finding := _build_finding(handoff, needs or ()))
    ]


def _planted_fact_finding(event: Handoff, missing: tuple[str, ...], total: int) -> Finding:
    return make_finding(
        rule,
        f"The brief omits {len(missing)} of {total} needed facts: {_quote_texts(missing)}.",
        [event.number],
        lane=event.lane,
    )


def _build_finding(handoff: HandoffContext, needs: Sequence[BriefNeed]) -> Finding | None:
    missing = find_dropped_facts(handoff, needs)
    if not missing:
        return None
    violations = [step for _, step in missing if step is not None]
    quoted_facts = _quote_texts([fact.text for fact, _ in missing])
    outcome = ", and the sub-agent violated it" if violations else ""
    return make_finding(
        rule,
        f"The brief omits part of the request: {quoted_facts}{outcome}.",
        [handoff.event.number, *(step.number for step in violations[:_MAX_CITED])],
        lane=handoff.event.lane,
        confidence=_BROKEN if violations else _LIKELY,
    )


def _quote_texts(texts: list[str] | tuple[str, ...]) -> str:
    quotes = ", ".join(f"“{truncate_line(text, 60)}”" for text in texts[:_MAX_QUOTED])
    return f"{quotes} and {len(texts) - _MAX_QUOTED} more" if len(texts) > _MAX_QUOTED else quotes
