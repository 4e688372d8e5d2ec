"""Feedback use: does what a failing check says lead to what is done next?"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import chain
from operator import attrgetter
from typing import Literal

from closeloop.model.rates import Rate, rate
from closeloop.model.record import Record
from closeloop.model.steps import Failures, LaneReading, Step
from closeloop.model.trace import Command, Edit, Handoff, Message, Read, ToolUse
from closeloop.process.git import sets_aside
from closeloop.process.measures.verification import broken
from closeloop.process.once import once
from closeloop.process.words import mentions

Use = Literal["used", "ignored", "repeated", "claimed"]

LOOKED_AT = 4000
"""So much of each text is searched for what the output named."""
WORDS = 40
EARLIER = 5
"""So many failing checks before one may have named what the test is about."""
_CALLED = re.compile(r"(\w{3,})\(")
_PART = re.compile(r"[a-z]{4,}")
_CODE = re.compile(r"\b[A-Za-z]\w*?(?:_|[a-z][A-Z])\w+")
"""A name of the code in a message: words of prose have neither underscores nor inner capitals."""
_WORDS = """test tests test_ spec assert assertionerror error errors failed failure exception none
true false self line file python expected actual received should when with that returns return does
from into have been module cases case unit src lib app main init __init__"""
_DULL = frozenset(_WORDS.split())


INSTALLERS = frozenset(
    (
        "pip",
        "pip3",
        "uv",
        "poetry",
        "npm",
        "pnpm",
        "yarn",
        "bun",
        "go",
        "cargo",
        "bundle",
        "apt-get",
    )
)
MISSING = (
    "no module named",
    "modulenotfound",
    "cannot find module",
    "not found",
    "no such package",
)


class Feedback(Record):
    """One failing check, and what the agent made of it."""

    check: Step
    use: Use
    then: tuple[int, ...] = ()
    """What it did instead."""


@once
def feedback_uses(lane: LaneReading) -> Sequence[Feedback]:
    """Every failing check whose use can be told; the others are left out."""
    checks = lane.checks
    told = []
    before: deque[tuple[Failures, tuple[str, ...]]] = deque(maxlen=EARLIER)
    for position, step in enumerate(checks):
        if step.check is not None and step.check.failures is not None and not broken(step):
            following = checks[position + 1] if position + 1 < len(checks) else None
            failures = step.check.failures
            tests = failures.errors.keys()
            words = [evidence(failures)]
            words += [named for one, named in before if not tests.isdisjoint(one.errors)]
            made = _use(step, failures, following, lane, words)
            if made is not None:
                told.append(made)
            before.append((failures, words[0]))
    return told


def feedback(uses: Sequence[Feedback]) -> Rate | None:
    """The share of failing checks whose output was used."""
    return rate(sum(use.use == "used" for use in uses), len(uses))


def _use(
    step: Step,
    failures: Failures,
    following: Step | None,
    lane: LaneReading,
    evidence: Sequence[tuple[str, ...]],
) -> Feedback | None:
    """`evidence`: its own, then that of earlier failures of the same tests."""
    end = following.index if following else len(lane.steps)
    between = lane.steps[step.index + 1 : end]
    said = _said(lane, step.number, following.number if following else None)
    words, *earlier = evidence
    told = (message.text[:LOOKED_AT] for message in said if _tells(message))
    acted = [text.lower() for text in chain(_texts(between), told)]
    if any(mentions(text, words) for text in acted) or _narrows(step, following, words):
        return Feedback(check=step, use="used")
    if any(mentions(text, known) for known in earlier for text in acted):
        return Feedback(check=step, use="used")
    if any(_installs(other) for other in between) and _lacks(failures):
        return Feedback(check=step, use="used")
    if following is not None and _unchanged(step, following) and all(map(_looks, between)):
        return Feedback(check=step, use="repeated", then=(following.number,))
    if following is not None and not any(
        other.changed and not sets_aside(other) for other in between
    ):
        # Another look at the same state: what it shows is used, or not, after it.
        return None
    claims = tuple(message.number for message in said if message.intent == "claim")
    if following is None and claims:
        return Feedback(check=step, use="claimed", then=claims)
    if following is None or not words or failures.parser == "tail":
        # The last lines of an unknown tool need not name what it is about.
        return None
    return Feedback(
        check=step, use="ignored", then=tuple(other.number for other in between if other.changed)
    )


def _installs(step: Step) -> bool:
    return step.doing is not None and not INSTALLERS.isdisjoint(step.doing.programs)


def _lacks(failures: Failures) -> bool:
    """Something is not installed: to install what is needed is to act on it, whatever its name."""
    return mentions(" ".join((*failures.errors, *failures.errors.values())).lower(), MISSING)


def _narrows(step: Step, following: Step | None, words: Sequence[str]) -> bool:
    """The next check names something of the output that this one did not name itself."""
    if following is None or not isinstance(following.event, Command):
        return False
    before = step.event.command.lower() if isinstance(step.event, Command) else ""
    after = following.event.command[:LOOKED_AT].lower()
    return any(word in after and word not in before for word in words)


def _unchanged(step: Step, following: Step) -> bool:
    """The very same command in the very same state."""
    one, other = step.event, following.event
    return (
        step.state == following.state
        and not following.changed
        and isinstance(one, Command)
        and isinstance(other, Command)
        and one.command.split() == other.command.split()
    )


def _looks(step: Step) -> bool:
    """It only looks: other commands may change what lies outside of the workspace."""
    return step.doing is None or step.doing.searches or bool(step.doing.read)


def _said(lane: LaneReading, first: int, last: int | None) -> list[Message]:
    begin = bisect_right(lane.messages, first, key=attrgetter("number"))
    end = bisect_left(lane.messages, last, key=attrgetter("number")) if last else None
    return [message for message in lane.messages[begin:end] if message.role == "agent"]


def _tells(message: Message) -> bool:
    """A question, or words to the user that own up to a failure."""
    if message.intent == "question":
        return True
    plain = message.text[:LOOKED_AT].lower()
    return mentions(plain, ("fail", "error", "not pass", "unable", "could not"))


def evidence(failures: Failures) -> tuple[str, ...]:
    """Words that the output gives one to work with: files, tests, names, in small letters."""
    words: dict[str, None] = {}
    for path in failures.paths:
        name = path.replace("\\", "/").rsplit("/", 1)[-1].split(":", 1)[0].lower()
        words[name] = None
        words[_subject(name.split(".", 1)[0])] = None
    for symbol in failures.symbols:
        words[_subject(symbol.rsplit(".", 1)[-1].lower())] = None
    for test in list(failures.errors)[:WORDS]:
        # A message is full of words that any edit has; the name of a test is not.
        if " " not in test or "::" in test or " > " in test:
            words.update(dict.fromkeys(_PART.findall(test[-200:].lower())))
        # What the failing line calls is what the test is about.
        called = failures.errors[test].partition("←")[2]
        words.update(dict.fromkeys(_CALLED.findall(called.lower()) if called else ()))
    for message in list(failures.errors.values())[:WORDS]:
        for name in _CODE.findall(message[:300]):
            if not name.endswith(("Error", "Exception", "Type")):
                words[name.lower()] = None
    return tuple([word for word in words if len(word) > 2 and word not in _DULL])


def _subject(name: str) -> str:
    """What a test is about: `test_cart` and `cart_test` are about `cart`."""
    for prefix in ("test_", "tests_", "test"):
        if name.startswith(prefix) and len(name) > len(prefix) + 2:
            return name[len(prefix) :]
    for suffix in ("_test", "_spec", ".test", ".spec", "tests", "test"):
        if name.endswith(suffix) and len(name) > len(suffix) + 2:
            return name[: -len(suffix)]
    return name


def _texts(steps: Iterable[Step]) -> Iterable[str]:
    """What was acted on: what the action names, not what came out of it."""
    for step in steps:
        event = step.event
        if isinstance(event, Command):
            yield event.command[:LOOKED_AT]
        elif isinstance(event, Edit):
            yield event.path
            for text in (event.before, event.after, event.patch):
                if text:
                    yield text[:LOOKED_AT]
        elif isinstance(event, Read):
            yield event.path
        elif isinstance(event, ToolUse):
            yield str(event.arguments)[:LOOKED_AT]
        elif isinstance(event, Handoff):
            yield event.brief[:LOOKED_AT]
