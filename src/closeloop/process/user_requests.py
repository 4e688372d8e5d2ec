"""What the user asked for: a rule that forbids something keeps quiet where it was asked for."""

from __future__ import annotations

import re

from closeloop.process.reading_cache import cache_on_reading
from closeloop.records.trace_steps import TraceReading

MAX_MESSAGE_CHARS = 4000
"""So much of each message is read, and of no more messages than this allows."""
MAX_MESSAGES = 100
MAX_CLAUSE_CHARS = 200
"""A word that forbids is looked for so far back."""


@cache_on_reading
def collect_user_requests(reading: TraceReading) -> str:
    """All that users and briefs asked, in small letters, each text cut where it is long."""
    texts = [reading.task.prompt] if reading.task else []
    for lane in reading.lanes.values():
        if len(texts) > MAX_MESSAGES:
            break
        texts += [lane.request] if lane.request else []
        texts += [message.text for message in lane.users]
    return "\n".join(text[:MAX_MESSAGE_CHARS] for text in texts[:MAX_MESSAGES]).lower()


def contains_request(said: str, wish: re.Pattern[str]) -> bool:
    """Whether a sentence of it wishes that, and does not forbid it."""
    for match in wish.finditer(said):
        start = max(0, match.start() - MAX_CLAUSE_CHARS)
        begin = max(start - 1, *(said.rfind(mark, start, match.start()) for mark in ".\n;:,"))
        if not _FORBIDDING_WORD.search(said, begin + 1, match.end()):
            return True
    return False


_FORBIDDING_WORD = re.compile(r"\b(?:not|never|without|avoid|no)\b|n't\b")
