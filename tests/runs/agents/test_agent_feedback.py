"""The built-in agent is asked, at the end, what it lacked."""

from __future__ import annotations

from agent_desk import Desk, calls, says

from closeloop.records.task import Limits
from closeloop.records.trace import ModelToolCall
from patience import PATIENCE

LACKED = "Nobody said which cents."


def asked(desk: Desk) -> list[str]:
    return [message.text for message in desk.model.requests[-1].messages]


def test_one_more_turn_asks_what_was_missing_and_is_counted(desk: Desk) -> None:
    desk.changes = {"feedback": True}
    work = desk.work(says("", calls("run", command="true")), says("Done."), says(LACKED))
    assert (work.exit, work.summary, work.feedback) == ("finished", "Done.", LACKED)
    assert "which information, context or instructions" in asked(desk)[-1]
    assert work.usage.input_tokens == 300
    assert LACKED not in str(work.trace.events)


def test_nobody_is_asked_unless_that_was_wished(desk: Desk) -> None:
    assert desk.work(says("Done.")).feedback is None
    assert len(desk.model.requests) == 1


def test_calls_are_neither_sent_back_without_results_nor_run(desk: Desk) -> None:
    desk.changes = {"feedback": True}
    finish = (calls("run", command="true"), calls("finish", summary="All well."))
    writes: ModelToolCall = calls("write", path="late.txt", text="late")
    work = desk.work(says("So.", *finish), says(LACKED, writes))
    assert work.feedback == LACKED
    assert not any(message.calls for message in desk.model.requests[-1].messages)
    assert not (desk.folder / "late.txt").exists()


def test_an_answer_that_cannot_be_had_is_none_and_the_work_stays_done(desk: Desk) -> None:
    desk.changes = {"feedback": True}
    work = desk.work(says("Done."))
    assert (work.exit, work.feedback) == ("finished", None)
    desk.limits = Limits(seconds=PATIENCE, turns=1)
    work = desk.work(says("Done."), says(LACKED))
    assert (work.exit, work.feedback) == ("finished", None)
