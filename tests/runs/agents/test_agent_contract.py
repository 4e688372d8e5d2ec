"""The contract of agents: the built-in one keeps it, and it finds those that do not."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from agent_desk import Desk, calls, says

from closeloop import plugins
from closeloop.contracts import check_agent, check_work
from closeloop.records.attempt import Usage
from closeloop.records.protocols import Work
from closeloop.records.trace import Lane, Trace


def test_the_built_in_agent_keeps_the_contract() -> None:
    work = check_agent(plugins.load_plugin("agents", "builtin"))
    assert (work.exit, work.summary) == ("finished", "It is done.")


def test_the_built_in_agent_keeps_it_in_a_longer_piece_of_work() -> None:
    work = check_agent(
        plugins.load_plugin("agents", "builtin"),
        [
            says("", calls("write", path="src/a.txt", text="one\n")),
            says("", calls("edit", path="src/a.txt", old="one", new="two")),
            says("", calls("delegate", brief="Look at src/a.txt.")),
            says("", calls("run", command="cat src/a.txt")),
            says("", calls("read", path="src/a.txt"), calls("search", pattern="t.o")),
            says("It says two."),
            says("", calls("read", path="../outside"), calls("nothing")),
            says("", calls("finish", summary="Done.")),
        ],
    )
    assert work.exit == "finished"
    commands = [event.output for event in work.trace.events if hasattr(event, "exit_code")]
    assert commands == ["two\n"]


def _work(desk: Desk) -> Work:
    return desk.work(
        says("", calls("delegate", brief="Go.")), says("Gone.", usage=Usage()), says("Done.")
    )


@pytest.mark.parametrize(
    ("position", "changes", "rule"),
    [
        (0, {"number": 2}, "numbered from 1"),
        (0, {"at": datetime(2099, 1, 1, tzinfo=UTC)}, "in the order they began"),
        (0, {"lane": "nowhere"}, "Event 1 is in a lane"),
        (0, {"turn": 9}, "Event 1 belongs to a turn"),
        (0, {"turn": 0}, "Event 1 belongs to a turn"),
        (0, {"turn": 2}, "turns of lane 'root' follow each other"),
        (0, {"lane": "sub-1"}, "'sub-1' begins after its handoff"),
        (1, {"child": "nowhere"}, "event 2 names a lane"),
        (1, {"child": "root"}, "event 2 names a lane"),
        (2, {"text": "\ud83d"}, "valid UTF-8"),
    ],
)
def test_a_trace_that_is_not_well_formed_is_found(
    desk: Desk, position: int, changes: dict[str, Any], rule: str
) -> None:
    work = _work(desk)
    check_work(work)
    events = list(work.trace.events)
    events[position] = msgspec.structs.replace(events[position], **changes)
    trace = msgspec.structs.replace(work.trace, events=tuple(events))
    with pytest.raises(AssertionError, match=rule):
        check_work(msgspec.structs.replace(work, trace=trace))


@pytest.mark.parametrize(
    ("lanes", "rule"),
    [
        ([], "at least one lane"),
        ([Lane(id="root"), Lane(id="root")], "'root' is there once"),
        ([Lane(id="root"), Lane(id="other")], "Exactly one lane is the root"),
        ([Lane(id="sub-1", parent="root"), Lane(id="root")], "'sub-1' follows its parent"),
    ],
)
def test_lanes_that_are_not_a_tree_are_found(lanes: list[Lane], rule: str) -> None:
    trace = Trace(reader="mine", reader_version=1, lanes=tuple(lanes))
    with pytest.raises(AssertionError, match=rule):
        check_work(Work(exit="finished", trace=trace))


def test_usage_that_is_not_the_sum_and_an_exit_without_a_cause_are_found(desk: Desk) -> None:
    work = _work(desk)
    with pytest.raises(AssertionError, match="sum of its turns"):
        check_work(msgspec.structs.replace(work, usage=Usage(input_tokens=1)))
    with pytest.raises(AssertionError, match="has a cause"):
        check_work(msgspec.structs.replace(work, exit="crashed"))
