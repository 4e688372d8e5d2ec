"""How many examples Hypothesis tries: few each day; CLOSELOOP_TEST_EXAMPLES=10 tries ten times."""

from __future__ import annotations

import os

FACTOR = float(os.environ.get("CLOSELOOP_TEST_EXAMPLES", "1"))


def scale_examples(count: int) -> int:
    """So many examples, times what the environment asks for."""
    return max(1, round(count * FACTOR))
