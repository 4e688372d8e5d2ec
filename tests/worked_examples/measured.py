"""Short traces, read and measured by all rules, as the worked examples need them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import msgspec
from story import Told, story

from closeloop.measuring.attempts import book_of
from closeloop.model.measurement import Measurement
from closeloop.model.settings import Settings
from closeloop.model.steps import Reading
from closeloop.process.measure import measure
from closeloop.process.reading import read
from closeloop.process.rulebook import Rulebook


@cache
def default_rules() -> Rulebook:
    """All built-in rules with their default thresholds."""
    return book_of(Settings())


def read_events(
    *events: Told, lanes: Mapping[str, str | None] | None = None, **known: Any
) -> Reading:
    """A trace of these events, with what else is known of the attempt."""
    return msgspec.structs.replace(read(story(events, lanes)), **known)


def measure_events(*events: Told, **given: Any) -> Measurement:
    """What all rules and measures say of these events."""
    return measure(read_events(*events, **given), default_rules())
