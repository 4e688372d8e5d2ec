"""Feedback use: does what a failing check says lead to what is done next?"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import chain
from operator import attrgetter
from typing import Literal

from closeloop.process.measures.verification import needs_other_version
from closeloop.process.rule_helpers import cache_on_reading, uses_stash
from closeloop.process.text_words import mentions_any
from closeloop.records.estimate import Rate, wilson_rate
from closeloop.records.inspection import (
    CheckFailures,
    LaneReading,
    TraceStep,
)
from closeloop.records.record import Record
from closeloop.records.trace import (
    Command,
    Edit,
    Handoff,
    Message,
    Read,
    ToolUse,
)

FeedbackOutcome = Literal["used", "ignored", "repeated", "claimed"]

MAX_TEXT_CHARS = 4000
"""So much of each text is searched for what the output named."""
MAX_ERRORS = 40
MAX_EARLIER_CHECKS = 5
"""So many failing checks before one may have named what the test is about."""
_CALLED_NAME = re.compile(r"(\w{3,})\(")
_NAME_PART = re.compile(r"[a-z]{4,}")
_CODE_NAME = re.compile(r"\b[A-Za-z]\w*?(?:_|[a-z][A-Z])\w+")
"""A name of the code in a message: words of prose have neither underscores nor inner capitals."""
_DULL_WORD_LIST = """test tests test_ spec assert assertionerror error errors failed failure
exception none true false self line file python expected actual received should when with that
returns return does from into have been module cases case unit src lib app main init __init__"""
_DULL_WORDS = frozenset(_DULL_WORD_LIST.split())


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
MISSING_PACKAGE_MESSAGES = (
    "no module named",
    "modulenotfound",
    "cannot find module",
    "not found",
    "no such package",
)


class FeedbackUse(Record):
    """One failing check, and what the agent made of it."""

    check: TraceStep
    use: FeedbackOutcome
    then: tuple[int, ...] = ()
    """What it did instead."""


@cache_on_reading
def list_feedback_uses(lane: LaneReading) -> Sequence[FeedbackUse]:
    """Every failing check whose use can be told; the others are left out."""
    checks = lane.checks
    uses = []
    before: deque[tuple[CheckFailures, tuple[str, ...]]] = deque(maxlen=MAX_EARLIER_CHECKS)
    for position, step in enumerate(checks):
        if (
            step.check is not None
            and step.check.failures is not None
            and not needs_other_version(step)
        ):
            following = checks[position + 1] if position + 1 < len(checks) else None
            failures = step.check.failures
            tests = failures.errors.keys()
            evidence_words = [collect_evidence(failures)]
            evidence_words += [named for one, named in before if not tests.isdisjoint(one.errors)]
            use = _classify_use(step, failures, following, lane, evidence_words)
            if use is not None:
                uses.append(use)
            before.append((failures, evidence_words[0]))
    return uses


def feedback_rate(uses: Sequence[FeedbackUse]) -> Rate | None:
    """The share of failing checks whose output was used."""
    return wilson_rate(sum(use.use == "used" for use in uses), len(uses))


def _classify_use(
    step: TraceStep,
    failures: CheckFailures,
    following: TraceStep | None,
    lane: LaneReading,
    evidence: Sequence[tuple[str, ...]],
) -> FeedbackUse | None:
    """`evidence`: its own, then that of earlier failures of the same tests."""
    end = following.index if following else len(lane.steps)
    between = lane.steps[step.index + 1 : end]
    messages = _agent_messages(lane, step.number, following.number if following else None)
    words, *earlier = evidence
    admissions = (message.text[:MAX_TEXT_CHARS] for message in messages if _admits_failure(message))
    action_texts = [text.lower() for text in chain(_action_texts(between), admissions)]
    if any(mentions_any(text, words) for text in action_texts) or _narrows_check(
        step, following, words
    ):
        return FeedbackUse(check=step, use="used")
    if any(mentions_any(text, known) for known in earlier for text in action_texts):
        return FeedbackUse(check=step, use="used")
    if any(_installs_packages(other) for other in between) and _lacks_package(failures):
        return FeedbackUse(check=step, use="used")
    if (
        following is not None
        and _is_same_command(step, following)
        and all(map(_only_looks, between))
    ):
        return FeedbackUse(check=step, use="repeated", then=(following.number,))
    if following is not None and not any(
        other.changed and not uses_stash(other) for other in between
    ):
        # Another look at the same state: what it shows is used, or not, after it.
        return None
    claims = tuple(message.number for message in messages if message.intent == "claim")
    if following is None and claims:
        return FeedbackUse(check=step, use="claimed", then=claims)
    if following is None or not words or failures.parser == "tail":
        # The last lines of an unknown tool need not name what it is about.
        return None
    return FeedbackUse(
        check=step, use="ignored", then=tuple(other.number for other in between if other.changed)
    )


def _installs_packages(step: TraceStep) -> bool:
    return step.doing is not None and not INSTALLERS.isdisjoint(step.doing.programs)


def _lacks_package(failures: CheckFailures) -> bool:
    """Something is not installed: to install what is needed is to act on it, whatever its name."""
    return mentions_any(
        " ".join((*failures.errors, *failures.errors.values())).lower(), MISSING_PACKAGE_MESSAGES
    )


def _narrows_check(step: TraceStep, following: TraceStep | None, words: Sequence[str]) -> bool:
    """The next check names something of the output that this one did not name itself."""
    if following is None or not isinstance(following.event, Command):
        return False
    before = step.event.command.lower() if isinstance(step.event, Command) else ""
    after = following.event.command[:MAX_TEXT_CHARS].lower()
    return any(word in after and word not in before for word in words)


def _is_same_command(step: TraceStep, following: TraceStep) -> bool:
    """The very same command in the very same state."""
    one, other = step.event, following.event
    return (
        step.state == following.state
        and not following.changed
        and isinstance(one, Command)
        and isinstance(other, Command)
        and one.command.split() == other.command.split()
    )


def _only_looks(step: TraceStep) -> bool:
    """It only looks: other commands may change what lies outside of the workspace."""
    return step.doing is None or step.doing.searches or bool(step.doing.read)


def _agent_messages(lane: LaneReading, first: int, last: int | None) -> list[Message]:
    begin = bisect_right(lane.messages, first, key=attrgetter("number"))
    end = bisect_left(lane.messages, last, key=attrgetter("number")) if last else None
    return [message for message in lane.messages[begin:end] if message.role == "agent"]


def _admits_failure(message: Message) -> bool:
    """A question, or words to the user that own up to a failure."""
    if message.intent == "question":
        return True
    plain = message.text[:MAX_TEXT_CHARS].lower()
    return mentions_any(plain, ("fail", "error", "not pass", "unable", "could not"))


def collect_evidence(failures: CheckFailures) -> tuple[str, ...]:
    """Words that the output gives one to work with: files, tests, names, in small letters."""
    words: dict[str, None] = {}
    for path in failures.paths:
        name = path.replace("\\", "/").rsplit("/", 1)[-1].split(":", 1)[0].lower()
        words[name] = None
        words[_test_subject(name.split(".", 1)[0])] = None
    for symbol in failures.symbols:
        words[_test_subject(symbol.rsplit(".", 1)[-1].lower())] = None
    for test in list(failures.errors)[:MAX_ERRORS]:
        # A message is full of words that any edit has; the name of a test is not.
        if " " not in test or "::" in test or " > " in test:
            words.update(dict.fromkeys(_NAME_PART.findall(test[-200:].lower())))
        # What the failing line calls is what the test is about.
        called = failures.errors[test].partition("←")[2]
        words.update(dict.fromkeys(_CALLED_NAME.findall(called.lower()) if called else ()))
    for message in list(failures.errors.values())[:MAX_ERRORS]:
        for name in _CODE_NAME.findall(message[:300]):
            if not name.endswith(("Error", "Exception", "Type")):
                words[name.lower()] = None
    return tuple([word for word in words if len(word) > 2 and word not in _DULL_WORDS])


def _test_subject(name: str) -> str:
    """What a test is about: `test_cart` and `cart_test` are about `cart`."""
    for prefix in ("test_", "tests_", "test"):
        if name.startswith(prefix) and len(name) > len(prefix) + 2:
            return name[len(prefix) :]
    for suffix in ("_test", "_spec", ".test", ".spec", "tests", "test"):
        if name.endswith(suffix) and len(name) > len(suffix) + 2:
            return name[: -len(suffix)]
    return name


def _action_texts(steps: Iterable[TraceStep]) -> Iterable[str]:
    """What was acted on: what the action names, not what came out of it."""
    for step in steps:
        event = step.event
        if isinstance(event, Command):
            yield event.command[:MAX_TEXT_CHARS]
        elif isinstance(event, Edit):
            yield event.path
            for text in (event.before, event.after, event.patch):
                if text:
                    yield text[:MAX_TEXT_CHARS]
        elif isinstance(event, Read):
            yield event.path
        elif isinstance(event, ToolUse):
            yield str(event.arguments)[:MAX_TEXT_CHARS]
        elif isinstance(event, Handoff):
            yield event.brief[:MAX_TEXT_CHARS]
