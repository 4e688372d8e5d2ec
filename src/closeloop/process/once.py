"""What several rules ask of the same reading is worked out once."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import wraps
from typing import TypeVar

from closeloop.model.steps import LaneReading, Reading

Read = TypeVar("Read", Reading, LaneReading)
Answer = TypeVar("Answer")


def once(function: Callable[[Read], Answer]) -> Callable[[Read], Answer]:
    """Keep what a pure function says of a reading for as long as that reading lives.

    The answer is shared, so nobody may change it; and it must not hold the reading itself, which
    would then live forever.
    """
    known: dict[int, tuple[weakref.ref[Read], Answer]] = {}

    @wraps(function)
    def answer(reading: Read) -> Answer:
        # By identity: equal readings are rare, and to compare them is slow.
        key = id(reading)
        kept = known.get(key)
        if kept is None:
            alive = weakref.ref(reading, lambda _: known.pop(key, None))
            kept = known[key] = alive, function(reading)
        return kept[1]

    return answer
