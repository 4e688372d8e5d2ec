"""Whether a model stopped answering an attempt, decided from how long its requests waited.

An agent whose model does not answer loses its time through no fault of its own, so such an attempt
says nothing about the agent. One whose model answers, however slowly, has had its chance.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from closeloop.gateway.exchange_ledger import ExchangeEntry
from closeloop.records.plural import count_with_noun
from closeloop.records.provider_streams import read_provider_reply
from closeloop.records.record import Record

SILENT_SECONDS = 120.0
SILENT_SHARE = 0.1
"""The shortest silence that counts: so long, or that share of the time limit where it is less."""
TIMES_LONGEST = 3.0
"""A request that was not turned away may just be slow, unless it waits so much longer than any."""
TALKING_CHARS_PER_SECOND = 1.0
ENVELOPE_CHARS = 24
"""Roles and types in an answer that says nothing yet."""


class RequestWait(Record):
    """One request of an attempt, and how it waited for the provider."""

    began: float
    ended: float
    """Both by the monotonic clock; the time in which the agent did not read is left out."""
    answered: bool
    """A whole answer came, or the provider said what is wrong with the request."""
    refusal: str | None = None
    """Why the provider turned it away when it was last asked."""
    broken: str | None = None
    """Why the answer broke off, where that is the provider's fault."""
    is_talking: bool = False
    """There was no end of the answer yet, but it came at the pace of a model that is there."""


def measure_request_wait(entry: ExchangeEntry) -> RequestWait:
    """How a request that is over waited."""
    began, body = entry.began + entry.sending_seconds, b"".join(entry.response)
    answered, is_talking = entry.answered, False
    if not answered and entry.broken is None and body:
        streamed = read_provider_reply(body)
        # Clients hang up when they have heard the end, which may be before the connection's.
        answered = entry.status < 300 and streamed.complete
        answer_chars = count_characters(streamed.answer) - ENVELOPE_CHARS
        is_talking = answer_chars > TALKING_CHARS_PER_SECOND * (entry.ended - began)
    return RequestWait(
        began=began,
        ended=entry.ended,
        answered=answered,
        refusal=entry.refusal,
        broken=entry.broken,
        is_talking=is_talking,
    )


def count_characters(answer: dict[str, Any] | None) -> int:
    """Characters of all texts in what an answer says, in any provider's format."""
    parts = [(answer or {}).get(key) for key in ("content", "choices", "output", "candidates")]
    total = 0
    while parts:
        part = parts.pop()
        if isinstance(part, str):
            total += len(part)
        elif isinstance(part, dict):
            parts.extend(part.values())
        elif isinstance(part, list):
            parts.extend(part)
    return total


def describe_silence(
    waits: Sequence[RequestWait], began: float, ended: float, limit_seconds: float
) -> str | None:
    """Why the model counts as silent at the end of an attempt; None where it was answering.

    It is silent when the agent spent most of the time since the last whole answer waiting for
    one that did not come, and that was long: for a request that the provider turned away,
    SILENT_SECONDS or SILENT_SHARE of the limit; for one without any sign, also TIMES_LONGEST what
    the slowest answer took.
    """
    answers = [wait for wait in waits if wait.answered]
    since = max((wait.ended for wait in answers), default=began)
    unanswered = [
        wait
        for wait in waits
        if not wait.answered and wait.ended > since and not (answers and wait.is_talking)
    ]
    waited = measure_union((max(wait.began, since), min(wait.ended, ended)) for wait in unanswered)
    min_seconds = min(SILENT_SECONDS, SILENT_SHARE * limit_seconds)
    refusals = [wait.refusal for wait in unanswered if wait.refusal is not None]
    if not refusals and answers:
        min_seconds = max(
            min_seconds, TIMES_LONGEST * max(wait.ended - wait.began for wait in answers)
        )
    if waited < min_seconds or 2 * waited < ended - since:
        return None
    answer_count = f"after {count_with_noun(len(answers), 'answer')}" if answers else "not once"
    last_refusal = f", which last said {refusals[-1]}" if refusals else ""
    return (
        f"The model {'stopped answering' if answers else 'did not answer'}, {answer_count}:"
        f" {waited:.0f} of {ended - began:.0f} seconds were spent waiting for it{last_refusal}. Try"
        " again later."
    )


def describe_break(waits: Sequence[RequestWait]) -> str | None:
    """Why the last answer broke off, where that is the provider's fault and none came after it."""
    last = max(waits, key=lambda wait: wait.ended, default=None)
    return last.broken if last is not None else None


def measure_union(spans: Iterable[tuple[float, float]]) -> float:
    """Seconds that lie in any of the spans; several requests may wait at once."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
