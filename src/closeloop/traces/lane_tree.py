"""The lanes of a trace, one under the other."""

from __future__ import annotations

from collections.abc import Iterable

from closeloop.records.trace import Lane

MAX_INDENT = 8


def lane_depths(lanes: Iterable[Lane]) -> dict[str, int]:
    """How far each lane is indented: one step more than the lane that started it."""
    parents = {lane.id: lane.parent for lane in lanes}
    depth_by_lane: dict[str, int] = {}
    for name, parent in parents.items():
        above, steps = parent, 0
        while above is not None and steps < MAX_INDENT:
            above, steps = parents.get(above), steps + 1
        depth_by_lane[name] = steps
    return depth_by_lane
