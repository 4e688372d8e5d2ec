"""A sub-agent reports a failure or a gap; its parent neither acts on it nor reports it.

## What it looks for

Sentences in the report of a sub-agent which say that tests fail, or that something could not be
done, was not written, not run or not specified, was skipped, assumed or postponed. Resolved
failures, conditions (`fails if …`), intended omissions and statements about the program itself are
excluded; so are reports of sub-agents that neither changed nor checked anything.

The parent reacts if a later step, brief or message is about the same subject. A check is a reaction
to something that was not run or fails, but not to tests that were not written. A sentence that only
says that all is well does not pass the gap on. Only a parent that then claims success without
reservation, before the user's next message, is reported.

## Why it matters

The truth was one message away from the user.

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

If at least one report was returned. Gaps are recognised in English and, by common phrases, in
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

It is advisory, with a confidence of 0.8: it is right on every labelled trace, but reports are free
text, and the real handoffs it was tested on contain no case. The measure `returned` is the share of
all facts in reports (changed files, results of checks, caveats) that the parent uses.
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
    about="A sub-agent reports a failure or a gap; its parent neither acts on it nor reports it.",
    severity="error",
)


def detect(reading: TraceReading, limits: Mapping[str, float]) -> list[Finding] | Unmeasured:
    """Find caveats of a report that the parent does not take up before a claim."""
    handoffs = list_handoff_contexts(reading)
    if not handoffs:
        return []
    if not any(handoff.event.report for handoff in handoffs):
        return Unmeasured(rule=rule.name, reason="the trace contains no report of a sub-agent")
    return [
        finding for handoff in handoffs if (finding := _build_finding(until_user_speaks(handoff)))
    ]


def _build_finding(handoff: HandoffContext) -> Finding | None:
    claim = parse_claim(handoff.messages[-1]) if handoff.event.report and handoff.messages else None
    if claim is None:
        return None
    report_facts = (ReportFact(kind="caveat", text=text) for text in list_caveats(handoff))
    ignored_caveats = [
        caveat.text for caveat in report_facts if not parent_uses_fact(caveat, handoff)
    ]
    if not ignored_caveats:
        return None
    return make_finding(
        rule,
        f"The sub-agent reported “{truncate_line(ignored_caveats[0])}”; its parent did not act "
        f"on it and said “{truncate_line(claim.quote, 60)}”.",
        [handoff.messages[-1].number, handoff.event.number],
        lane=handoff.event.lane,
        confidence=0.8,
    )
