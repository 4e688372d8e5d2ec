"""A sub-agent reports a failure or a gap; its parent neither acts on it nor passes it on.

## What it looks for

Sentences of the report that say in ordinary words that tests fail, that something could not be
done, was not written, not run or not said, was skipped, assumed or left for later. What the report
says of failures that are over, of conditions (`fails if …`), of what was left out as asked or of
the program itself is left out; so is the report of a sub-agent that neither changed nor checked
anything.

The parent has taken it up when a later step, brief or message of it is about the same thing. A
check takes up what was not run or fails, but not tests that were not written. A sentence that only
says that all is well passes nothing on. Only a parent that then claims success without reserve,
before the user has the next word, is reported.

## Why it matters

The truth was known, one message away from the user.

## Bad

```text
#2  handoff  Port etl/importer.py to the new API and run the tests.
             → Ported. 2 tests still fail because the fixture server is version 1.
#6  agent    The importer is ported. Everything is done.
```

```text
#2  handoff  Write the session store in web/sessions.py.
             → Written. I was not told how long and assumed 24 hours; tests were not written.
#6  agent    The session store is complete. Everything is done.
```

## Good

```text
#2  handoff  Port etl/importer.py to the new API and run the tests.
             → Ported. 2 tests still fail because the fixture server is version 1.
#6  run      pytest -q
#7  agent    Ported. Two tests fail: the fixture server is version 1. Shall I update it?
```

## When it can be measured

When at least one report came back. Gaps are read in English and, in their common phrasings, in
German, French, Spanish, Portuguese, Italian, Russian, Chinese, Japanese and Korean.

## Thresholds and silencing

It has no thresholds.

```toml
[rules.ignored-return]
enabled = false

[[silence]]
rule = "ignored-return"
task = "nightly-*"
reason = "known gaps are listed in the ticket"
```

## How sure it is

It advises, with a confidence of 0.8: it is right on every labelled trace, but reports are free
text, and among the real handoffs it was tried on there was no case of it. The measure `returned`
is the share of all facts in reports (files changed, what checks said, caveats) that the parent
uses.
"""

from __future__ import annotations

from collections.abc import Mapping

from closeloop.process.agent_claims import parse_claim
from closeloop.process.child_reports import ReportFact, list_caveats, parent_uses_fact
from closeloop.process.handoff_briefs import (
    HandoffContext,
    list_handoff_contexts,
    until_user_speaks,
)
from closeloop.process.rule_helpers import truncate_line
from closeloop.records.change import TraceReading
from closeloop.records.finding import Finding, Rule, Unmeasured, make_finding

rule = Rule(
    name="ignored-return",
    version=2,
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
    return [finding for one in handoffs if (finding := _build_finding(until_user_speaks(one)))]


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
