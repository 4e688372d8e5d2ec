"""The agent claims success, and the user's next message contradicts it.

## What it looks for

A claim of success, as in [unverified-claim](unverified-claim.md), with which the agent hands over
to the user, and a sentence in the user's next message that contradicts it: `it doesn't work`,
`still fails`, `that's wrong`, `you didn't change it`, `the tests are failing`, `nothing changed`.
English, German, French, Spanish, Portuguese, Italian, Russian, Chinese and Japanese are recognised
by common phrases. If the sentence names something (`the blur does not work`), the claim, the
request or a changed file must be about it too. A failing check contradicts any claim; a complaint
of a linter contradicts only a claim about checks.

Questions, conditions, wishes, agreement, other matters (`separately`, `another issue`, `also`),
pasted output, pasted reviews and text of the client contradict nothing. If the agent changed
nothing, only a statement that checks pass is a claim.

## Why it matters

It is the clearest evidence that a claim was wrong: the user tried it.

## Bad

```text
#1  user   The menu does not close on a phone.
#2  edit   menu.js
#3  agent  "Done! The menu now closes on all devices."
#4  user   Still doesn't work.
```

## Good

```text
#3  agent  "I changed how the menu closes, and could not try it on a phone. Does it close now?"
#4  user   Still doesn't work.
```

## When it can be measured

If the trace contains the user's messages.

## Thresholds and silencing

It has no thresholds.

```toml
[rules.refuted-claim]
enabled = false

[[silence]]
rule = "refuted-claim"
task = "demo-*"
reason = "scripted users always complain"
```

## How sure it is

It may gate. It trusts the user, who may be mistaken.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence

from closeloop.process.agent_claims import (
    NO_END,
    ClosingMessage,
    SuccessClaim,
    list_closings,
    parse_claim,
)
from closeloop.process.user_corrections import is_about, parse_objection
from closeloop.process.verification import EVENT_NUMBER
from closeloop.records.change import LaneReading, TraceReading, TraceStep
from closeloop.records.finding import Finding, Rule, Unmeasured, make_finding
from closeloop.records.trace import Message

rule = Rule(
    name="refuted-claim",
    version=3,
    about="The agent claims success, and the user's next message contradicts it.",
    severity="error",
    gates=True,
)
_MAX_CHANGES = 200


def detect(reading: TraceReading, limits: Mapping[str, float]) -> list[Finding] | Unmeasured:
    """Find claims that the user contradicts next."""
    root = next(iter(reading.lanes.values()), None)
    if root is None or not root.users:
        return Unmeasured(rule=rule.name, reason="the trace contains no message of the user")
    return list(_find_refuted_claims(root)) if len(root.users) > 1 else []


def _find_refuted_claims(root: LaneReading) -> Iterator[Finding]:
    users = {message.number: message for message in root.users}
    for closing in list_closings(root):
        answer = users.get(int(closing.until)) if closing.until != NO_END else None
        if answer is None or answer.intent in ("interrupt", "request"):
            continue
        claim = parse_claim(closing.message)
        objection = parse_objection(answer.text) if claim else None
        if claim is None or objection is None or not objection.refuted:
            continue
        if not claim.passing and not _list_work(root, closing):
            # A review describes the work of others.
            continue
        if _speaks_of_style(objection.quote) and not _claims_checks(claim):
            # A linter's complaint does not refute the claim.
            continue
        if not is_about(objection, _list_subject_texts(root, closing, users.get(closing.since))):
            continue
        yield make_finding(
            rule,
            f"The agent claimed “{claim.quote}”, and the user replied: “{objection.quote}”",
            [closing.message.number, answer.number],
            lane=root.lane.id,
            confidence=0.9,
        )


def _speaks_of_style(text: str) -> bool:
    return "lint" in text.lower()


def _claims_checks(claim: SuccessClaim) -> bool:
    return claim.passing or "lint" in claim.quote.lower()


def _list_work(root: LaneReading, closing: ClosingMessage) -> Sequence[TraceStep]:
    """Return the first changes since the user had spoken."""
    begin = bisect_right(root.changes, closing.since, key=EVENT_NUMBER)
    end = bisect_left(root.changes, closing.message.number, key=EVENT_NUMBER)
    return root.changes[begin : min(end, begin + _MAX_CHANGES)]


def _list_subject_texts(
    root: LaneReading, closing: ClosingMessage, request: Message | None
) -> Iterator[str]:
    """Yield what was claimed, requested and worked on."""
    yield closing.message.text
    if request is not None:
        yield request.text
    for step in _list_work(root, closing):
        yield from step.written
