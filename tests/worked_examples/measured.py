"""Short traces, read and measured by all rules, as the worked examples need them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import msgspec
from story import Told, story

from closeloop.metrics.attempt_measuring import project_rulebook
from closeloop.process.rulebook import Rulebook
from closeloop.process.trace_measurement import measure_reading
from closeloop.process.trace_reading import build_reading
from closeloop.records.change import TraceReading
from closeloop.records.finding import Measurement
from closeloop.records.settings import Settings


@cache
def default_rules() -> Rulebook:
    """All built-in rules with their default thresholds."""
    return project_rulebook(Settings())


def read_events(
    *events: Told, lanes: Mapping[str, str | None] | None = None, **known: Any
) -> TraceReading:
    """A trace of these events, with what else is known of the attempt."""
    return msgspec.structs.replace(build_reading(story(events, lanes)), **known)


def measure_events(*events: Told, **given: Any) -> Measurement:
    """What all rules and measures say of these events."""
    return measure_reading(read_events(*events, **given), default_rules())
