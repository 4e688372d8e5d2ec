"""A lane's steps and messages, sorted by what rules ask for: each is where it belongs."""

from __future__ import annotations

import pytest
from story import labelled

from closeloop.process.trace_reading import build_reading
from closeloop.records.trace import Command, Edit, Handoff, ToolUse

READINGS = [build_reading(one.trace) for one in labelled()]


@pytest.mark.parametrize(
    ("name", "kind"), [("commands", Command), ("edits", Edit), ("tools", ToolUse)]
)
def test_steps_are_sorted_by_kind(name: str, kind: type) -> None:
    for reading in READINGS:
        for lane in reading.lanes.values():
            wanted = [step for step in lane.steps if isinstance(step.event, kind)]
            assert list(getattr(lane, name)) == wanted


def test_steps_are_sorted_by_what_came_of_them() -> None:
    for reading in READINGS:
        for lane in reading.lanes.values():
            assert list(lane.reads) == [step for step in lane.steps if step.read]
            assert list(lane.failing) == [step for step in lane.steps if step.failed]
            assert list(lane.users) == [one for one in lane.messages if one.role == "user"]


def test_handoffs_are_told_in_order() -> None:
    for reading in READINGS:
        events = reading.trace.events
        assert list(reading.handoffs) == [one for one in events if isinstance(one, Handoff)]
    assert any(reading.handoffs for reading in READINGS)
