"""Patterns in which `*` stands for anything, and nothing else is special."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

LONGEST = 300


def matching(text: str | None, patterns: Iterable[str]) -> bool:
    """Whether a text, whatever its case, is one of the patterns."""
    return text is not None and any(
        _compiled(pattern).fullmatch(text[:LONGEST]) is not None for pattern in patterns
    )


@lru_cache(maxsize=1000)
def _compiled(pattern: str) -> re.Pattern[str]:
    # One star after another would only make it slow.
    parts = re.split(r"\*+", pattern)
    return re.compile(".*?".join(map(re.escape, parts)), re.IGNORECASE | re.DOTALL)
