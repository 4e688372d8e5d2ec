"""Patterns in which `*` stands for anything, and nothing else is special."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

MAX_MATCHED_CHARS = 300


def matches_wildcards(text: str | None, patterns: Iterable[str]) -> bool:
    """Whether a text, whatever its case, is one of the patterns."""
    return text is not None and any(
        _compile_wildcard(pattern).fullmatch(text[:MAX_MATCHED_CHARS]) is not None
        for pattern in patterns
    )


@lru_cache(maxsize=1000)
def _compile_wildcard(pattern: str) -> re.Pattern[str]:
    # One star after another would only make it slow.
    parts = re.split(r"\*+", pattern)
    return re.compile(".*?".join(map(re.escape, parts)), re.IGNORECASE | re.DOTALL)
