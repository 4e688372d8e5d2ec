"""Helpers of several rules: sentences, cached results, git commands, user requests."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, wraps
from typing import Any, TypeVar

from closeloop.records.change import CheckFailures, LaneReading, TraceReading, TraceStep
from closeloop.records.trace import AnyEvent, Command, Edit, Read
from closeloop.text.client_markup import strip_client_markup

# Results that several rules need of the same reading are computed once.

AnyReading = TypeVar("AnyReading", TraceReading, LaneReading)
Answer = TypeVar("Answer")
_UNKNOWN: Any = object()


def cache_on_reading(function: Callable[[AnyReading], Answer]) -> Callable[[AnyReading], Answer]:
    """Cache a pure function's result on the reading; nobody may modify it."""
    key: Any = function

    @wraps(function)
    def answer(reading: AnyReading) -> Answer:
        cache = reading.__dict__
        result: Answer = cache.get(key, _UNKNOWN)
        if result is _UNKNOWN:
            result = cache[key] = function(reading)
        return result

    return answer


MAX_QUOTE_CHARS = 80


def truncate_line(text: str, length: int = MAX_QUOTE_CHARS) -> str:
    """Return the first line of a text, truncated."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= length else line[: length - 1] + "…"


def cite_row(numbers: Sequence[int], max_count: int) -> Sequence[int]:
    """Return the first and the last of many events, so that a finding shows its extent."""
    return numbers if len(numbers) <= max_count else (*numbers[: max_count - 1], numbers[-1])


def join_names(names: Iterable[str]) -> str:
    """Return the first names in full, and the number of others."""
    short_lines = [truncate_line(name, 2 * MAX_QUOTE_CHARS) for name in names]
    shown_count = 1
    while (
        shown_count < len(short_lines)
        and len(", ".join(short_lines[: shown_count + 1])) <= MAX_QUOTE_CHARS
    ):
        shown_count += 1
    hidden_count = len(short_lines) - shown_count
    return ", ".join(short_lines[:shown_count]) + (
        f" and {hidden_count} more" if hidden_count > 0 else ""
    )


def describe_failures(failures: CheckFailures) -> str:
    """Describe the first failure, and the number of others.

    A message whose values are replaced by placeholders says less than the test's name.
    """
    key, message = next(iter(failures.errors.items()))
    has_values = message and "#" not in message and "''" not in message
    first = truncate_line(f"{key} ({message})" if has_values else key, 2 * MAX_QUOTE_CHARS)
    other_count = len(failures.errors) - 1
    return f"{first} and {other_count} more" if other_count else first


@cache_on_reading
def explain_unreadable_checks(reading: TraceReading) -> str | None:
    """Return why rules about checks cannot be applied, if so."""
    if not reading.trace.events:
        return "the trace is empty"
    has_checks = False
    for lane in reading.lanes.values():
        for step in lane.checks:
            if step.check is not None and step.check.passed is not None:
                return None
            has_checks = True
    return "no check in the trace says whether it passed" if has_checks else None


_NOT_RUN_MESSAGES = (
    "Sibling tool call",
    "Cancelled: parallel tool call",
    "The user doesn't want to",
)
"""Messages of a tool about a call that was never made."""
_CUT_SHORT_CAUSES = frozenset(("another call failed", "interrupted", "rejected"))


def fails_by_itself(step: TraceStep) -> bool:
    """Whether a failing step failed by itself, not because of another or an interrupt."""
    return not is_cut_short(step.event)


def is_cut_short(event: AnyEvent) -> bool:
    """Whether the user, or the failure of another call, kept a call from being made or ending."""
    if isinstance(event, Command):
        return event.stopped in _CUT_SHORT_CAUSES
    return isinstance(event, Edit | Read) and (event.error or "").startswith(_NOT_RUN_MESSAGES)


# Which of git's commands a step runs.

_GIT_VERB = re.compile(
    r"(?<![\w./-])git(?:\s+(?:-[Cc]\s+\S+|--?[\w-]+(?:=\S+)?))*\s+([a-z][a-z-]+)(?![\w./=])"
)


def list_git_verbs(step: TraceStep) -> frozenset[str]:
    """Return the git commands of a step, such as `commit`; empty if it does not run git."""
    event = step.event
    if not isinstance(event, Command) or step.effect is None or "git" not in step.effect.programs:
        return frozenset()
    return _parse_git_verbs(event.command[:4000])


@lru_cache(maxsize=4096)
def _parse_git_verbs(command: str) -> frozenset[str]:
    return frozenset(_GIT_VERB.findall(command))


def uses_stash(step: TraceStep) -> bool:
    """Whether work is stashed for a moment, or restored."""
    return "stash" in list_git_verbs(step)


# What the user requested: a rule that forbids something reports nothing if it was requested.

MAX_MESSAGE_CHARS = 4000
"""Characters of each message that are read, and messages within that limit."""
MAX_MESSAGES = 100
MAX_CLAUSE_CHARS = 200
"""Characters before a match that are searched for a negation."""

_NO_CHECK_WISH = re.compile(
    r"\bno need to (?:run|test|check|verify|execute)"
    r"|\b(?:do not|don't|without) (?:run|test|check|execut|verify)"
)


@cache_on_reading
def collect_user_requests(reading: TraceReading) -> str:
    """Join all requests of users and briefs in lower case, each truncated."""
    texts = [reading.task.prompt] if reading.task else []
    for lane in reading.lanes.values():
        if len(texts) > MAX_MESSAGES:
            break
        texts += [lane.request] if lane.request else []
        texts += [message.text for message in lane.users]
    return "\n".join(
        strip_client_markup(text[:MAX_MESSAGE_CHARS]) for text in texts[:MAX_MESSAGES]
    ).lower()


def waives_checks(reading: TraceReading) -> bool:
    """Whether the user says that nothing needs to be run or tested."""
    return _NO_CHECK_WISH.search(collect_user_requests(reading)) is not None


def contains_request(text: str, request_pattern: re.Pattern[str]) -> bool:
    """Whether a sentence of it requests that, and does not forbid it."""
    for match in request_pattern.finditer(text):
        start = max(0, match.start() - MAX_CLAUSE_CHARS)
        begin = max(
            start - 1, *(text.rfind(separator, start, match.start()) for separator in ".\n;:,")
        )
        if not _FORBIDDING_WORD.search(text, begin + 1, match.end()):
            return True
    return False


_FORBIDDING_WORD = re.compile(r"\b(?:not|never|without|avoid|no)\b|n't\b")
