"""What is worked out once for a reading."""

from __future__ import annotations

import gc

import msgspec
from story import story

from closeloop.process.rule_helpers import cache_on_reading
from closeloop.process.trace_reading import build_reading
from closeloop.records.change import TraceReading
from closeloop.records.task import Task


def test_a_reading_is_asked_once_and_another_one_by_itself() -> None:
    asked: list[str | None] = []

    @cache_on_reading
    def task_of(reading: TraceReading) -> str | None:
        name = reading.task.id if reading.task else None
        asked.append(name)
        return name

    reading = build_reading(story([{"user": "Fix it"}]))
    with_task = msgspec.structs.replace(reading, task=Task(id="one", prompt=""))
    assert [task_of(reading), task_of(with_task)] * 2 == [None, "one"] * 2
    assert [task_of(with_task), task_of(reading)] == ["one", None]
    assert asked == [None, "one"]


def test_what_was_said_of_a_reading_goes_with_it() -> None:
    class Answer:
        alive = 0

        def __init__(self) -> None:
            Answer.alive += 1

        def __del__(self) -> None:
            Answer.alive -= 1

    @cache_on_reading
    def answer(reading: TraceReading) -> Answer:
        return Answer()

    readings = [build_reading(story([])) for _ in range(3)]
    assert len({id(answer(reading)) for reading in readings}) == 3
    del readings[1:]
    gc.collect()
    assert Answer.alive == 1
    assert answer(readings[0]) is answer(readings[0])
