"""What several rules ask of the same reading is worked out once."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from closeloop.records.trace_steps import LaneReading, TraceReading

Read = TypeVar("Read", TraceReading, LaneReading)
Answer = TypeVar("Answer")
_UNKNOWN: Any = object()


def cache_on_reading(function: Callable[[Read], Answer]) -> Callable[[Read], Answer]:
    """Keep what a pure function says of a reading with that reading; nobody may change it."""
    key: Any = function

    @wraps(function)
    def answer(reading: Read) -> Answer:
        known = reading.__dict__
        kept: Answer = known.get(key, _UNKNOWN)
        if kept is _UNKNOWN:
            kept = known[key] = function(reading)
        return kept

    return answer
