"""gave-up-early: the agent stops with a failing check after hardly trying."""

from __future__ import annotations

import re
from collections.abc import Mapping

from closeloop.model.finding import Finding, Rule, Unmeasured, found
from closeloop.model.steps import LaneReading, Reading, Step
from closeloop.model.trace import Message
from closeloop.process.claims import owns_up
from closeloop.process.measures.verification import could_not_run
from closeloop.process.telling import short, told_failures, unreadable_checks

rule = Rule(
    name="gave-up-early",
    version=2,
    about="The agent stopped with a failing check after too few tries, and asked nobody.",
    severity="warning",
    thresholds={"iterations": 2},
)

_JUSTIFIED = re.compile(
    r"\b(?:permission|credential|access|network|offline|internet|api key|token|password"
    r"|not installed|unavailable|sandbox|timed? ?out|pre-?existing|unrelated|out of scope"
    r"|read-only|licen[cs]e"
    r"|please (?:provide|confirm|advise|let me know|clarify)"
    r"|before (?:i|we) (?:go on|proceed|continue)"
    r"|as (?:you )?(?:asked|requested|instructed))\b"
)
_STOPS = re.compile(
    r"\b(?:i(?:'m| am)? (?:was )?(?:unable|not able|giving up|stuck|stopping)|i give up|gave up"
    r"|(?:could not|couldn't|cannot|can't) (?:fix|resolve|solve|find|get|make|figure|complete)"
    r"|beyond (?:my|the scope)|still fail\w*|remain\w* (?:failing|unresolved|unfixed)"
    r"|not (?:been )?(?:resolved|fixed|solved)|did(?:n't| not) (?:work|succeed|manage))\b"
)


def detect(reading: Reading, limits: Mapping[str, float]) -> list[Finding] | Unmeasured:
    """The root's end: its last check failed, and fewer iterations than the limit were tried."""
    if reason := unreadable_checks(reading):
        return Unmeasured(rule=rule.name, reason=reason)
    exit_ = reading.attempt.exit if reading.attempt else None
    if exit_ not in (None, "finished", "gave_up") or not reading.lanes:
        return []
    root = next(iter(reading.lanes.values()))
    failing = _failing(root)
    if failing is None or len(root.iterations) >= limits["iterations"]:
        return []
    last = next((one for one in reversed(root.messages) if one.role == "agent"), None)
    if not _stops(last, given_up=exit_ == "gave_up", after=failing) or _was_told(root, failing):
        return []
    assert failing.check is not None, "it is a check"
    assert failing.check.failures is not None, "it failed"
    tries = len(root.iterations)
    said = f": “{short(last.text)}”" if last is not None else ""
    return [
        found(
            rule,
            f"It stopped after {tries} {'try' if tries == 1 else 'tries'} with "
            f"{short(told_failures(failing.check.failures))} failing{said}.",
            [failing.number, *([last.number] if last else [])],
            lane=root.lane.id,
            confidence=0.9 if exit_ == "gave_up" else 0.75,
        )
    ]


def _failing(root: LaneReading) -> Step | None:
    """The last check, where it failed and nothing was changed since."""
    last = root.checks[-1] if root.checks else None
    if last is None or last.check is None or last.check.failures is None or could_not_run(last):
        return None
    changed = root.changes[-1].number if root.changes else 0
    return last if changed <= last.number else None


def _stops(last: Message | None, *, given_up: bool, after: Step) -> bool:
    """It ends without success, and with no reason that is not its own."""
    if last is None or last.intent == "question":
        return given_up and last is None
    plain = last.text[:6000].lower().replace("’", "'")
    if plain.rstrip().endswith("?") or _JUSTIFIED.search(plain):
        return False
    if last.number < after.number:
        return given_up
    return given_up or _STOPS.search(plain) is not None or owns_up(plain)


def _was_told(root: LaneReading, failing: Step) -> bool:
    """The user spoke or was asked since: to stop was not the agent's own choice."""
    return any(
        message.number > failing.number and (message.role == "user" or message.intent == "question")
        for message in reversed(root.messages)
    )
