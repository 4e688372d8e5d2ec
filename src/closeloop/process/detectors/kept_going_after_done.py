"""kept-going-after-done: the work is done and said to be, and the agent goes on."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import cache

from closeloop.model.finding import Finding, Rule, Unmeasured, found
from closeloop.model.steps import LaneReading, Reading, Step
from closeloop.model.trace import Command, Message
from closeloop.process.asked import asked, asked_for
from closeloop.process.claims import claim_of
from closeloop.process.measures.verification import NUMBER
from closeloop.process.phrases import automaton, first, holds
from closeloop.process.telling import short, unreadable_checks

rule = Rule(
    name="kept-going-after-done",
    version=1,
    about="The checks pass, the agent says it is done, and goes on changing or checking.",
    severity="info",
    thresholds={"edits": 3, "reruns": 3},
)

_ends = cache(
    lambda: automaton(("omplete", "done", "Done", "inished", "othing", "esolved", "mplemented"))
)
_COMPLETE = re.compile(
    r"\b(?:(?:task|work|implementation|feature|fix|everything|all|request) (?:\w+ ){0,3}?"
    r"(?:is|are|has been|have been) (?:now |fully )?"
    r"(?:complete\w*|done|finished|resolved|implemented)"
    r"|(?:i have|i've) (?:now |successfully )?(?:completed|finished) (?:all|the|everything|this)"
    r"|^(?:all )?done[.!]|nothing (?:else|more) (?:is |needs? )?(?:left|to (?:do|be done)))",
    re.MULTILINE,
)
_begins = cache(lambda: automaton((
    "task", "work", "implementation", "feature", "fix", "everything", "all", "request", "i have",
    "i've", "done", "nothing",
)))  # fmt: skip
_GOES_ON = re.compile(
    r"\b(?:next|now (?:let|i)|let me|let's|i'll|i will|remaining|still (?:need|have)"
    r"|step \d|phase \d|then|first|todo|moving on|part of)\b"
)
_AGAIN = re.compile(
    r"\b(?:flak\w*|several times|repeatedly|\d+ times|stress|in a loop|many times)\b"
)


def detect(reading: Reading, limits: Mapping[str, float]) -> list[Finding] | Unmeasured:
    """Changes after a completion that was true, and checks that pass again and again unchanged."""
    if reason := unreadable_checks(reading):
        return Unmeasured(rule=rule.name, reason=reason)
    findings = [
        finding
        for lane in reading.lanes.values()
        for finding in (
            *_changes_on(lane, int(limits["edits"])),
            *_checks_on(lane, int(limits["reruns"])),
        )
    ]
    if findings and asked_for(asked(reading), _AGAIN):
        findings = [finding for finding in findings if "passed again" not in finding.message]
    return sorted(findings, key=lambda finding: finding.events)


def _changes_on(lane: LaneReading, most: int) -> Iterator[Finding]:
    """Edits after its own word that all is done, with passing checks and no new wish."""
    if len(lane.changes) < most:
        return
    users = [message.number for message in lane.users]
    last = lane.changes[-most].number if most else float("inf")
    for message in lane.messages:
        if message.number >= last:
            return
        if message.role != "agent" or not holds(_ends(), message.text):
            continue
        told = bisect_right(users, message.number)
        until = users[told] if told < len(users) else float("inf")
        more = _between(lane.changes, message.number, until)
        if len(more) < most or not _completes(message):
            continue
        at = bisect_right(lane.checks, message.number, key=NUMBER)
        before = lane.checks[at - 1].check if at else None
        later = [step.check for step in _between(lane.checks, message.number, until)]
        named = [step for step in more if step.written]
        if (
            len(named) >= most
            and before is not None
            and before.passed is True
            and all(check is None or check.passed is not False for check in later)
        ):
            yield found(
                rule,
                f"“{_quote(message)}” was said, and {len(named)} changes followed that nobody "
                f"asked for, first of {named[0].written[0]}.",
                [named[0].number, message.number, *(step.number for step in named[1:5])],
                lane=lane.lane.id,
                confidence=0.75,
            )
            return


def _between(steps: Sequence[Step], after: int, until: float) -> Sequence[Step]:
    begin, end = bisect_right(steps, after, key=NUMBER), bisect_left(steps, until, key=NUMBER)
    return steps[begin:end]


def _completes(message: Message) -> bool:
    plain = message.text[:3000].lower().replace("’", "'")
    found_words = first(_COMPLETE, _begins(), plain)
    return (
        found_words is not None
        and not _GOES_ON.search(plain, found_words.end())
        and claim_of(message) is not None
    )


def _quote(message: Message) -> str:
    claim = claim_of(message)
    return claim.quote if claim else short(message.text)


def _checks_on(lane: LaneReading, most: int) -> Iterator[Finding]:
    """The same check, passing, of the same state, once more and once more."""
    if len(lane.checks) <= most:
        return
    row: list[Step] = []
    for step in (*lane.checks, None):
        if step is not None and row and _is_same(row[-1], step):
            row.append(step)
            continue
        if len(row) > most:
            yield found(
                rule,
                f"{short(row[0].check.target if row[0].check else '')} passed again {len(row) - 1} "
                "times although nothing had changed.",
                [step.number for step in row],
                lane=lane.lane.id,
                confidence=0.9,
            )
        row = [step] if step is not None and step.check and step.check.passed else []


def _is_same(one: Step, other: Step) -> bool:
    return (
        one.check is not None
        and other.check is not None
        and other.check.passed is True
        and one.check.target == other.check.target
        and one.state == other.state
        and not other.changed
        and isinstance(one.event, Command)
        and isinstance(other.event, Command)
        and one.event.command.split() == other.event.command.split()
    )
