"""An insight: what somebody learned from an attempt, kept for those who come after."""

from __future__ import annotations

from typing import Literal

from closeloop.records.record import Record, Time

InsightType = Literal["agent_self_feedback"]


class Insight(Record):
    """One thing said of one attempt."""

    attempt: str
    repo: str | None = None
    """Of the task, where it has one."""
    type: InsightType
    text: str
    at: Time
