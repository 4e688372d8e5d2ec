"""What every agent must keep to, as a test that the author of an agent can call.

from closeloop.agents.contract import check_agent

def test_the_agent_keeps_the_contract():
    check_agent(agent)
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import anyio
import msgspec

from closeloop.records.attempt import Usage, sum_usage
from closeloop.records.chat import ModelReply, ModelRequest
from closeloop.records.errors import MachineFailed
from closeloop.records.protocols import Agent, Assignment, Work
from closeloop.records.settings import SandboxSettings
from closeloop.records.task import Limits, Variant
from closeloop.records.trace import Handoff, Trace

DONE_REPLY = ModelReply(text="It is done.", usage=Usage(input_tokens=10, output_tokens=3))


class FixedReplyModel:
    """A model that gives these replies, one after the other, and keeps what it was asked."""

    name = "replies"

    def __init__(self, *replies: ModelReply) -> None:
        self.replies = replies
        self.requests: list[ModelRequest] = []

    async def reply(self, request: ModelRequest) -> ModelReply:
        self.requests.append(request)
        if len(self.requests) > len(self.replies):
            raise MachineFailed("There are no more replies: give the model as many as are asked.")
        return self.replies[len(self.requests) - 1]


def check_agent(agent: Agent, replies: Sequence[ModelReply] = (DONE_REPLY,)) -> Work:
    """Let the agent work with a model that gives these replies, and check what it leaves."""
    work = anyio.run(_run_agent, agent, replies)
    check_work(work)
    return work


def check_work(work: Work) -> None:
    """AssertionError when the work of an agent is not what the rest of closeloop counts on."""
    trace = work.trace
    turns = [turn.usage for lane in trace.lanes for turn in lane.turns]
    _require_rule(
        work.exit == "finished" or work.cause, f"An exit {work.exit!r} has a cause in words."
    )
    _require_rule(work.usage == sum_usage(turns), "The usage of the work is the sum of its turns'.")
    _require_rule(trace.lanes, "There is at least one lane.")
    _require_rule(_is_storable(trace), "The trace can be stored: its texts are valid UTF-8.")
    _check_lanes(trace)
    _check_events(trace)


def _is_storable(trace: Trace) -> bool:
    try:
        return msgspec.msgpack.decode(msgspec.msgpack.encode(trace), type=Trace) == trace
    except (ValueError, TypeError, OverflowError):
        return False


def _check_lanes(trace: Trace) -> None:
    seen: set[str] = set()
    for lane in trace.lanes:
        _require_rule(lane.id not in seen, f"The lane {lane.id!r} is there once.")
        _require_rule(
            lane.parent is None or lane.parent in seen, f"Lane {lane.id!r} follows its parent."
        )
        seen.add(lane.id)
    _require_rule(
        sum(lane.parent is None for lane in trace.lanes) == 1, "Exactly one lane is the root."
    )


def _check_events(trace: Trace) -> None:
    lanes = {lane.id: lane for lane in trace.lanes}
    numbers = [event.number for event in trace.events]
    _require_rule(
        numbers == list(range(1, len(numbers) + 1)), "Events are numbered from 1, without gaps."
    )
    times = [event.at for event in trace.events if event.at is not None]
    _require_rule(all(a <= b for a, b in pairwise(times)), "Events stand in the order they began.")
    for event in trace.events:
        lane = lanes.get(event.lane)
        _require_rule(lane is not None, f"Event {event.number} is in a lane of the trace.")
        turns = len(lane.turns) if lane is not None else 0
        known = event.turn is None or 1 <= event.turn <= turns
        _require_rule(known, f"Event {event.number} belongs to a turn of its lane.")
    for name in lanes:
        lane_turns = [event.turn for event in trace.events if event.lane == name and event.turn]
        _require_rule(
            lane_turns == sorted(lane_turns), f"The turns of lane {name!r} follow each other."
        )
    for event in trace.events:
        if isinstance(event, Handoff) and event.child is not None:
            child = lanes.get(event.child)
            _require_rule(
                child is not None and child.parent == event.lane,
                f"The handoff in event {event.number} names a lane that it is the parent of.",
            )
            first = next((other for other in trace.events if other.lane == event.child), event)
            _require_rule(
                event.number <= first.number, f"Lane {event.child!r} begins after its handoff."
            )


def _require_rule(condition: object, rule: str) -> None:
    if not condition:
        raise AssertionError(rule)


async def _run_agent(agent: Agent, replies: Sequence[ModelReply]) -> Work:
    from closeloop.sandbox.workspaces import WorkspacePool

    limits = Limits(seconds=60, turns=len(replies) + 10)
    with tempfile.TemporaryDirectory(prefix="closeloop-contract-") as folder:
        async with (
            WorkspacePool(Path(folder), SandboxSettings(kind="none")) as workspaces,
            workspaces.open(None, limits) as workspace,
        ):
            assignment = Assignment(
                prompt="Say that it is done.",
                system=None,
                cage=workspace.cage,
                model=FixedReplyModel(*replies),
                variant=Variant(name="contract", agent=agent.name, limits=limits),
                limits=limits,
                answer=lambda question: None,
            )
            return await agent.work(assignment)
