"""Where the tasks of a plan stand in a picture: to the right of all that they wait for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from closeloop.model.record import Record

WIDTH, HEIGHT = 196, 58
ACROSS, DOWN = 64, 18
MARGIN = 8
MOST_BOXES = 200


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


def picture(waits_for: Mapping[str, Sequence[str]]) -> Picture | None:
    """None where there are too many tasks to be looked at."""
    if not waits_for or len(waits_for) > MOST_BOXES:
        return None
    columns: dict[int, list[str]] = {}
    for task, depth in depths(waits_for).items():
        columns.setdefault(depth, []).append(task)
    places = {
        task: Box(
            task=task,
            x=MARGIN + depth * (WIDTH + ACROSS),
            y=MARGIN + row * (HEIGHT + DOWN),
        )
        for depth, tasks in columns.items()
        for row, task in enumerate(tasks)
    }
    return Picture(
        width=max(box.x for box in places.values()) + WIDTH + MARGIN,
        height=max(box.y for box in places.values()) + HEIGHT + MARGIN,
        boxes=tuple(places.values()),
        lines=tuple(
            _line(places[first], places[task])
            for task, firsts in waits_for.items()
            for first in firsts
            if first in places and places[first].x < places[task].x
        ),
    )


def depths(waits_for: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Steps from the beginning; whoever waits in a circle stays where it was first seen."""
    found = dict.fromkeys(waits_for, 0)
    for _ in waits_for:
        moved = {
            task: max((found[first] + 1 for first in firsts if first in found), default=0)
            for task, firsts in waits_for.items()
        }
        if moved == found:
            break
        found = {task: min(depth, len(waits_for) - 1) for task, depth in moved.items()}
    return found


def _line(first: Box, then: Box) -> str:
    begin, end = first.x + WIDTH, then.x
    middle = (begin + end) // 2
    top, bottom = first.y + HEIGHT // 2, then.y + HEIGHT // 2
    return f"M{begin} {top} C{middle} {top} {middle} {bottom} {end} {bottom}"
