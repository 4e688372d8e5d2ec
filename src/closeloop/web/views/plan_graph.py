"""Where the tasks of a plan stand in a picture: to the right of all that they wait for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from closeloop.records.record import Record

WIDTH, HEIGHT = 196, 58
ACROSS, DOWN = 64, 18
GRAPH_MARGIN = 8
MAX_BOXES = 200


class Box(Record):
    task: str
    x: int
    y: int


class Picture(Record):
    """Boxes, and lines from what comes first to what waits for it."""

    width: int
    height: int
    box_width: int = WIDTH
    box_height: int = HEIGHT
    boxes: tuple[Box, ...]
    lines: tuple[str, ...]
    """As paths of SVG."""


def draw_plan_graph(waits_for: Mapping[str, Sequence[str]]) -> Picture | None:
    """None where there are too many tasks to be looked at."""
    if not waits_for or len(waits_for) > MAX_BOXES:
        return None
    columns: dict[int, list[str]] = {}
    for task, depth in task_depths(waits_for).items():
        columns.setdefault(depth, []).append(task)
    places = {
        task: Box(
            task=task,
            x=GRAPH_MARGIN + depth * (WIDTH + ACROSS),
            y=GRAPH_MARGIN + row * (HEIGHT + DOWN),
        )
        for depth, tasks in columns.items()
        for row, task in enumerate(tasks)
    }
    return Picture(
        width=max(box.x for box in places.values()) + WIDTH + GRAPH_MARGIN,
        height=max(box.y for box in places.values()) + HEIGHT + GRAPH_MARGIN,
        boxes=tuple(places.values()),
        lines=tuple(
            _connect_boxes(places[first], places[task])
            for task, firsts in waits_for.items()
            for first in firsts
            if first in places and places[first].x < places[task].x
        ),
    )


def task_depths(waits_for: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Steps from the beginning; whoever waits in a circle stays where it was first seen."""
    depth_by_task = dict.fromkeys(waits_for, 0)
    for _ in waits_for:
        moved = {
            task: max(
                (depth_by_task[first] + 1 for first in firsts if first in depth_by_task), default=0
            )
            for task, firsts in waits_for.items()
        }
        if moved == depth_by_task:
            break
        depth_by_task = {task: min(depth, len(waits_for) - 1) for task, depth in moved.items()}
    return depth_by_task


def _connect_boxes(first: Box, then: Box) -> str:
    begin, end = first.x + WIDTH, then.x
    middle = (begin + end) // 2
    top, bottom = first.y + HEIGHT // 2, then.y + HEIGHT // 2
    return f"M{begin} {top} C{middle} {top} {middle} {bottom} {end} {bottom}"
