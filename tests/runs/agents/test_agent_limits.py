"""How an attempt of the built-in agent ends, whatever ends it."""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest
from agent_desk import Desk, calls, says, ticking

from closeloop.agents import headless_agent
from closeloop.agents.builtin import CUT_OFF_HINT, EMPTY_REPLY_HINT, BuiltinAgent
from closeloop.contracts import FixedReplyModel, check_work
from closeloop.records.attempt import Usage
from closeloop.records.errors import BadInput, MachineFailed, OutOfBudget
from closeloop.records.protocols import ProcessResult, Work
from closeloop.records.task import Limits
from closeloop.records.trace import Handoff, Message, ModelReply, ModelRequest, Note
from patience import SCALES

END = says("Done.")
BUSY = says("Working.", calls("run", command="true"))


class Failing(FixedReplyModel):
    """Gives its replies, then raises."""

    def __init__(self, error: BaseException, *replies: ModelReply) -> None:
        super().__init__(*replies)
        self.error = error

    async def reply(self, request: ModelRequest) -> ModelReply:
        if len(self.requests) == len(self.replies):
            raise self.error
        return await super().reply(request)


def stick(desk: Desk) -> anyio.Event:
    """No command in the workspace ever ends; the event tells that one has begun."""
    stuck = anyio.Event()

    async def run(command: Any, **_: Any) -> ProcessResult:
        stuck.set()
        await anyio.sleep_forever()
        raise AssertionError

    desk.sandbox.run = run
    return stuck


def failing(error: Exception) -> Callable[..., Awaitable[Any]]:
    async def fail(*_: Any, **__: Any) -> Any:
        raise error

    return fail


def test_the_turn_limit_counts_the_turns_of_all_lanes(desk: Desk) -> None:
    desk.limits = Limits(turns=3)
    work = desk.work(says("", calls("delegate", brief="Go.")), *[BUSY] * 9)
    assert (work.exit, work.cause) == ("out_of_budget", "turn limit")
    assert [len(lane.turns) for lane in work.trace.lanes] == [1, 2]
    handoff = work.trace.events[1]
    assert isinstance(handoff, Handoff)
    assert (handoff.ok, handoff.report) == (False, None)
    assert isinstance(work.trace.events[-1], Note)
    assert (work.trace.events[-1].about, work.trace.events[-1].lane) == ("out_of_budget", "root")


def test_the_time_limit_keeps_what_was_done(desk: Desk) -> None:
    for scale in SCALES:
        desk.limits = Limits(seconds=0.5 * scale)
        stuck = stick(desk)
        write, run = calls("write", path="a", text="b"), calls("run", command="make")
        work = desk.work(says("", write, run))
        if stuck.is_set():
            break
    assert (work.exit, work.cause) == ("out_of_time", "time limit")
    edit, command = work.trace.events[1:3]
    assert edit.ok is True
    assert (command.output, command.exit_code, command.stopped) == (None, None, "interrupted")
    assert work.usage.output_tokens == 10


def test_the_time_limit_stops_a_model_that_does_not_answer(desk: Desk) -> None:
    class Silent(FixedReplyModel):
        async def reply(self, request: ModelRequest) -> ModelReply:
            await anyio.sleep_forever()
            return END

    desk.limits = Limits(seconds=0.1)
    work = desk.work(model=Silent())
    assert (work.exit, work.usage) == ("out_of_time", Usage())
    assert [type(event) for event in work.trace.events] == [Message, Note]


def test_being_called_off_from_outside_keeps_the_partial_trace(desk: Desk) -> None:
    stuck = stick(desk)
    desk.model = FixedReplyModel(
        says("", calls("delegate", brief="Wait.")), says("", calls("run", command="make"))
    )

    async def call_off() -> tuple[Work | None, bool]:
        work, went_on = None, False
        async with anyio.create_task_group() as group:
            with anyio.CancelScope() as scope:
                group.start_soon(cancel_when_stuck, scope)
                work = await BuiltinAgent(clock=ticking()).work(desk.assignment())
                await anyio.lowlevel.checkpoint()
                went_on = True
        return work, went_on

    async def cancel_when_stuck(scope: anyio.CancelScope) -> None:
        await stuck.wait()
        scope.cancel()

    work, went_on = desk.portal.call(call_off)
    assert work is not None
    check_work(work)
    assert (work.exit, work.cause) == ("out_of_time", "stopped from outside")
    assert [(type(e).__name__, e.lane) for e in work.trace.events] == [
        ("Message", "root"),
        ("Handoff", "root"),
        ("Message", "sub-1"),
        ("Command", "sub-1"),
        ("Note", "root"),
    ]
    assert not went_on, "the caller is still called off at its next await"


def test_the_models_budget_ends_the_attempt(desk: Desk) -> None:
    work = desk.work(model=Failing(OutOfBudget("2 dollars are spent"), BUSY))
    assert (work.exit, work.cause) == ("out_of_budget", "2 dollars are spent")
    assert len(work.trace.events) == 4


def test_a_provider_that_fails_is_the_machines_fault_and_the_trace_is_kept(desk: Desk) -> None:
    work = desk.work(model=Failing(MachineFailed("The provider answers 500."), BUSY))
    assert (work.exit, work.cause) == ("machine", "The provider answers 500.")
    assert work.trace.events[2].exit_code == 0


def test_a_model_that_fails_under_a_sub_agent_is_not_the_sub_agents_fault(desk: Desk) -> None:
    delegating = says("", calls("delegate", brief="Go."))
    work = desk.work(model=Failing(TimeoutError("no answer"), delegating))
    assert (work.exit, work.cause) == ("machine", "TimeoutError: no answer")
    work = desk.work(model=Failing(MachineFailed("gone \udcff\0"), delegating))
    assert (work.exit, work.cause) == ("machine", "gone ?\ufffd")


def test_a_wrong_key_is_the_users_and_is_raised(desk: Desk) -> None:
    with pytest.raises(BadInput, match="key"):
        desk.work(model=Failing(BadInput("The key is refused: set it anew.")))


def test_a_bug_is_the_machines_fault_and_has_its_name(desk: Desk) -> None:
    work = desk.work(model=Failing(ZeroDivisionError("oh"), BUSY))
    assert (work.exit, work.cause) == ("machine", "ZeroDivisionError: oh")


@pytest.mark.parametrize("error", [MachineFailed("The sandbox is gone."), RuntimeError("bug")])
def test_a_cage_that_breaks_is_not_the_agents_fault(desk: Desk, error: Exception) -> None:
    desk.sandbox.run = failing(error)
    work = desk.work(BUSY, END)
    assert work.exit == "machine"
    assert work.trace.events[2].stopped == str(error)


def test_a_system_error_is_told_without_a_path_of_this_machine(desk: Desk) -> None:
    desk.sandbox.write = failing(OSError(errno.EROFS, "Read-only file system", "/home/someone/x"))
    work = desk.work(says("", calls("write", path="x", text="y")), END)
    assert work.exit == "finished"
    assert (desk.told(), desk.failed()) == ("Read-only file system", True)


def test_a_machine_that_runs_short_is_not_the_agents_fault(desk: Desk) -> None:
    desk.sandbox.run = failing(OSError(errno.EMFILE, "Too many open files"))
    advice = "free some space, or run fewer attempts at once."
    work = desk.work(BUSY, END)
    assert (work.exit, work.cause) == ("machine", f"Too many open files: {advice}")
    desk.sandbox.write = failing(OSError(errno.ENOSPC, "No space left on device"))
    work = desk.work(says("", calls("write", path="x", text="y")), END)
    assert (work.exit, work.cause) == ("machine", f"No space left on device: {advice}")


def test_one_empty_reply_is_forgiven_and_two_are_not(desk: Desk) -> None:
    assert desk.work(says(), END).exit == "finished"
    assert desk.told() == EMPTY_REPLY_HINT
    assert desk.work(says(), BUSY, says(" \n"), END).exit == "finished"
    work = desk.work(BUSY, says(), says())
    assert (work.exit, work.cause) == ("gave_up", "2 empty replies in a row")
    assert [len(lane.turns) for lane in work.trace.lanes] == [3]


def test_a_reply_that_is_cut_off_is_not_the_end(desk: Desk) -> None:
    work = desk.work(says("I think that", stop="length"), END)
    assert desk.told() == CUT_OFF_HINT
    assert [event.text for event in work.trace.events] == [
        "Do it.",
        "I think that",
        CUT_OFF_HINT,
        "Done.",
    ]
    assert work.trace.events[1].intent is None


def test_a_call_that_is_cut_off_is_not_run(desk: Desk) -> None:
    desk.work(
        says(
            "",
            calls("write", path="whole", text="all of it"),
            calls("write", path="half", text="hal"),
            stop="length",
        ),
        END,
    )
    assert (desk.folder / "whole").exists()
    assert not (desk.folder / "half").exists()
    assert "cut off" in desk.told()
    assert desk.failed()


def test_a_model_that_refuses_gives_up(desk: Desk) -> None:
    work = desk.work(says("No.", calls("run", command="touch x"), stop="refused"))
    assert (work.exit, work.cause, work.summary) == ("gave_up", "the model refused", "No.")
    assert work.trace.events[1].intent is None
    assert not (desk.folder / "x").exists()


def test_a_trace_that_grows_beyond_reason_ends_the_attempt(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(headless_agent, "MAX_TRACE_CHARS", 1_000)
    work = desk.work(says("", *[calls("run", command="seq 100")] * 50), END)
    assert (work.exit, work.cause) == ("out_of_budget", "trace limit")
    assert len(work.trace.events) < 10


def test_a_variant_without_a_model_is_the_users_to_mend(desk: Desk) -> None:
    desk.changes = {"model": None}
    with pytest.raises(BadInput, match="needs a model"):
        desk.work()


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"temprature": 0.5}, "Did you mean 'temperature'?"),
        ({"temperature": "hot"}, "must be a number"),
        ({"max_tokens": True}, "must be a number"),
        ({"max_tokens": 1.5}, "must be a number"),
    ],
)
def test_a_setting_that_is_wrong_is_the_users_to_mend(
    desk: Desk, settings: dict[str, Any], match: str
) -> None:
    variant = desk.assignment().variant
    desk.changes = {"variant": msgspec.structs.replace(variant, settings=settings)}
    with pytest.raises(BadInput, match=match):
        desk.work(END)


def test_usage_counts_every_provider_message_once_and_unknown_stays_unknown(desk: Desk) -> None:
    priced = Usage(input_tokens=1, output_tokens=2, cost=0.25, cost_from="reported")
    guessed = Usage(input_tokens=1, cost=0.5, cost_from="prices")
    work = desk.work(
        says("", calls("run", command="true"), calls("run", command="true"), usage=priced),
        says("Done.", usage=guessed),
    )
    # The output of one turn of two is no total.
    assert work.usage == Usage(input_tokens=2, cost=0.75, cost_from="prices")
    assert [turn.usage for turn in work.trace.lanes[0].turns] == [priced, guessed]
