"""What a message points back at: the change that it takes back, or repairs."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Literal

from closeloop.records.pull_request import BackReference, PointerKind

PointerMethod = Literal["trailer", "message"]

MAX_MESSAGE_CHARS = 20_000
MAX_POINTERS = 20
_PULL_NUMBER = r"([\w.-]{1,100}/[\w./-]{1,200})?[#!](\d{1,9})\b"
_REVERTED_COMMIT = re.compile(r"\breverts?:? (?:commit )?([0-9a-f]{7,64})\b", re.IGNORECASE)
_REVERTED_PULL = re.compile(
    rf"\breverts:? (?:(?:pull|merge) request |pr )?{_PULL_NUMBER}", re.IGNORECASE
)
_FIXED_COMMIT = re.compile(r"^fixes: ([0-9a-f]{7,64})\b", re.IGNORECASE | re.MULTILINE)
_BROKEN_BY = (
    r"\b(?:introduced|broken?|regress(?:ed|ion)|caused|bug)(?: \w{1,20}){0,3}"
    r" (?:in|by|from|since|with|after) (?:commit |pull request |merge request |pr )?"
)
_BROKEN_PULL = re.compile(_BROKEN_BY + _PULL_NUMBER, re.IGNORECASE)
_BROKEN_COMMIT = re.compile(_BROKEN_BY + r"([0-9a-f]{7,64})\b", re.IGNORECASE)
_FOLLOW_UP = re.compile(
    rf"\bfollow[ -]?up (?:to|of|for) (?:pull request |pr )?{_PULL_NUMBER}", re.IGNORECASE
)
_SAYS_FIX = re.compile(r"\bfix(?:e[sd]|ing)?\b", re.IGNORECASE)
_BY_COMMIT: tuple[tuple[re.Pattern[str], PointerKind, PointerMethod], ...] = (
    (_REVERTED_COMMIT, "revert", "message"),
    (_FIXED_COMMIT, "fix", "trailer"),
    (_BROKEN_COMMIT, "fix", "message"),
)
_BY_NUMBER: tuple[tuple[re.Pattern[str], PointerKind], ...] = (
    (_REVERTED_PULL, "revert"),
    (_BROKEN_PULL, "fix"),
    (_FOLLOW_UP, "fix"),
)


def parse_pointers(
    message: str, repo: str, by: str, at: datetime
) -> list[tuple[int | None, BackReference]]:
    """What a commit or a pull request of a repository points at: by number, or by commit."""
    text = message.strip()[:MAX_MESSAGE_CHARS]
    title = message_title(text)
    pointers: dict[str, tuple[int | None, BackReference]] = {}
    for pattern, kind, how in _BY_COMMIT:
        for match in pattern.finditer(text):
            sha = match[1].lower()
            pointer = BackReference(kind=kind, at=at, how=how, sha=sha, by=by, title=title)
            pointers.setdefault(sha, (None, pointer))
    for pattern, kind in _BY_NUMBER:
        if pattern is _FOLLOW_UP and not _SAYS_FIX.search(title):
            continue
        for match in pattern.finditer(text):
            if match[1] in (None, repo) and by != f"#{match[2]}":
                pointer = BackReference(kind=kind, at=at, how="message", by=by, title=title)
                pointers.setdefault(f"#{match[2]}", (int(match[2]), pointer))
    return list(pointers.values())[:MAX_POINTERS]


def message_title(message: str) -> str:
    """Its first line, as far as it is shown."""
    return (message.splitlines() or [""])[0][:200]
