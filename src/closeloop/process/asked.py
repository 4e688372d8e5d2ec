"""What the user asked for: a rule that forbids something keeps quiet where it was asked for."""

from __future__ import annotations

import re

from closeloop.model.steps import Reading
from closeloop.process.once import once

LOOKED_AT = 4000
"""So much of each message is read, and of no more messages than this allows."""
MOST_MESSAGES = 100
CLAUSE = 200
"""A word that forbids is looked for so far back."""


@once
def asked(reading: Reading) -> str:
    """All that users and briefs asked, in small letters, each text cut where it is long."""
    texts = [reading.task.prompt] if reading.task else []
    for lane in reading.lanes.values():
        if len(texts) > MOST_MESSAGES:
            break
        texts += [lane.request] if lane.request else []
        texts += [message.text for message in lane.users]
    return "\n".join(text[:LOOKED_AT] for text in texts[:MOST_MESSAGES]).lower()


def asked_for(said: str, wish: re.Pattern[str]) -> bool:
    """Whether a sentence of it wishes that, and does not forbid it."""
    for found in wish.finditer(said):
        start = max(0, found.start() - CLAUSE)
        begin = max(start - 1, *(said.rfind(mark, start, found.start()) for mark in ".\n;:,"))
        if not _FORBIDS.search(said, begin + 1, found.end()):
            return True
    return False


_FORBIDS = re.compile(r"\b(?:not|never|without|avoid|no)\b|n't\b")
