"""What every agent may be asked when its work is over."""

from __future__ import annotations

import time

from closeloop.records.variant import Limits

FEEDBACK_QUESTION = """\
The work is over; change nothing any more. For those who write such requests and look after this \
repository: which information, context or instructions were missing, wrong or hard to find, so \
that you lost time or had to guess? Answer in a few plain sentences, the most useful first. If \
nothing was missing, say so.
"""
MAX_FEEDBACK_SECONDS, GRACE_SECONDS = 600.0, 20.0
"""For the answer, and how far it may reach beyond the time that the attempt has."""


def compute_feedback_seconds(limits: Limits, began: float) -> float:
    """How long an agent that began then, by the monotonic clock, may take to answer."""
    left = limits.seconds + GRACE_SECONDS - (time.monotonic() - began)
    return max(1.0, min(MAX_FEEDBACK_SECONDS, left))
