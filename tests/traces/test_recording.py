"""closeloop.record(): what an orchestrator says is what the session tells."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import closeloop
from closeloop import BadInput
from closeloop.records.trace import Command, Edit, Handoff, Message, Session, ToolUse
from closeloop.traces.file_source import FileSource
from closeloop.traces.readers import atif
from closeloop.traces.recording import SessionRecording

PAGE = Path(__file__).resolve().parents[2] / "docs" / "record.md"


def recorded(run: SessionRecording) -> Session:
    assert run.session is not None
    return run.session


def test_everything_that_is_said_stands_in_the_session_in_order() -> None:
    with closeloop.record("me", "Fix it.", system="Be brief.") as run:
        run.turn("m-1", input_tokens=10, output_tokens=2, cost=0.5)
        run.think("Hm.")
        run.say("Looking.")
        run.command("pytest", "1 failed", exit_code=1, seconds=2.0)
        run.read("a.py", "x = 1")
        run.edit("a.py", before="1", after="2", ok=True)
        run.tool("search", {"query": "x"}, "nothing")
        run.ask("Both?", "Yes.")
        run.user("No, the other one.", intent="correction")
        run.note("half of it was dropped", about="compaction")
        run.claim("Done.")
    session = recorded(run)
    assert [type(event).__name__ for event in session.trace.events] == [
        "Message", "Thought", "Message", "Command", "Read", "Edit", "ToolUse", "Message",
        "Message", "Message", "Note", "Message",
    ]  # fmt: skip
    assert [event.number for event in session.trace.events] == list(range(1, 13))
    intents = [event.intent for event in session.trace.events if isinstance(event, Message)]
    assert intents == ["request", None, "question", "answer", "correction", "claim"]
    command = session.trace.events[3]
    assert isinstance(command, Command)
    assert (command.exit_code, command.exit_from, command.turn) == (1, "stated", 1)
    assert (session.agent, session.model, session.system) == ("me", "m-1", "Be brief.")
    assert (session.usage.input_tokens, session.usage.cost) == (10, 0.5)
    assert (session.exit, session.summary) == ("finished", "Done.")
    assert session.started is not None
    assert session.ended is not None
    assert session.started <= session.ended


def test_a_recording_inside_another_is_a_handoff_to_a_lane_of_its_own() -> None:
    with closeloop.record("lead", "Do it.") as run:
        with closeloop.record("helper", "Count.") as helper:
            helper.command("wc -l a")
            helper.say("It is 2.")
        run.claim("2")
    session = recorded(run)
    handoff = session.trace.events[1]
    assert isinstance(handoff, Handoff)
    assert (handoff.brief, handoff.report, handoff.ok) == ("Count.", "It is 2.", True)
    child = next(lane for lane in session.trace.lanes if lane.id == handoff.child)
    assert (child.parent, child.agent) == ("root", "helper")
    assert helper.session is None
    assert [event.lane for event in session.trace.events] == [
        "root", "root", child.id, child.id, child.id, "root",
    ]  # fmt: skip


def test_a_decorated_function_is_recorded_at_every_call() -> None:
    sessions: list[Session] = []

    @closeloop.record("helper")
    def help_out(brief: str) -> str:
        closeloop.recording().command("ls")
        return f"did: {brief}"

    for _ in range(2):
        with closeloop.record("lead") as run:
            assert help_out("one") == "did: one"
            assert help_out("two") == "did: two"
        sessions.append(recorded(run))
    for session in sessions:
        handoffs = [event for event in session.trace.events if isinstance(event, Handoff)]
        assert [event.report for event in handoffs] == ["did: one", "did: two"]
        assert len(session.trace.lanes) == 3
    assert sessions[0].id != sessions[1].id


def test_tasks_that_run_at_once_stay_in_their_own_lanes() -> None:
    @closeloop.record("helper")
    async def help_out(brief: str) -> str:
        run = closeloop.recording()
        for number in range(3):
            run.command(f"{brief} {number}")
            await asyncio.sleep(0)
        return brief

    async def lead() -> Session:
        with closeloop.record("lead") as run:
            await asyncio.gather(*(help_out(name) for name in "abc"))
            assert closeloop.recording() is run
        return recorded(run)

    session = asyncio.run(lead())
    handoffs = [event for event in session.trace.events if isinstance(event, Handoff)]
    assert sorted(event.report or "" for event in handoffs) == ["a", "b", "c"]
    for handoff in handoffs:
        ran = [
            event.command
            for event in session.trace.events
            if isinstance(event, Command) and event.lane == handoff.child
        ]
        assert ran == [f"{handoff.brief} {number}" for number in range(3)]


def test_threads_write_into_one_recording_without_losing_anything() -> None:
    def work(run: SessionRecording, name: str) -> None:
        with run.handoff(name, f"part of {name}") as part:
            for number in range(200):
                part.command(str(number))

    with closeloop.record("lead") as run:
        threads = [threading.Thread(target=work, args=(run, f"t{n}")) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    events = recorded(run).trace.events
    assert [event.number for event in events] == list(range(1, len(events) + 1))
    assert len(events) == 4 * (1 + 1 + 200)
    lanes = {event.lane for event in events if isinstance(event, Command)}
    assert len(lanes) == 4


def test_an_exception_is_the_cause_and_goes_on_its_way() -> None:
    run = closeloop.record("lead")
    with pytest.raises(ValueError, match="no"), run, closeloop.record("helper", "Try."):
        raise ValueError("no")
    session = recorded(run)
    assert (session.exit, session.cause) == ("crashed", "ValueError: no")
    handoff = session.trace.events[0]
    assert isinstance(handoff, Handoff)
    assert (handoff.ok, handoff.report) == (False, "ValueError: no")
    with pytest.raises(BadInput, match="No recording is open"):
        closeloop.recording()


def test_a_recording_is_used_once_and_only_while_it_is_open() -> None:
    run = closeloop.record("lead")
    with pytest.raises(BadInput, match="using `with`"):
        run.say("too early")
    with run:
        pass
    with pytest.raises(BadInput, match="opened once"), run:
        pass


def test_texts_of_any_kind_can_be_stored() -> None:
    with closeloop.record("me") as run:
        run.command("cat", "\ud800\0" + "x" * (3 << 20))
        run.tool("t", {"a\0": ["\udfff"]}, None)
    command = recorded(run).trace.events[0]
    assert isinstance(command, Command)
    assert command.output is not None
    assert len(command.output.encode()) < 2 << 20


def test_the_example_on_the_page_is_recorded_and_read_back(tmp_path: Path) -> None:
    page = PAGE.read_text(encoding="utf-8")
    [code] = re.findall(r"<!-- file: orchestrator.py -->\n```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "orchestrator.py").write_text(code)
    (tmp_path / "tests.py").write_text("def test_a(): ...\ndef test_b(): ...\n")
    subprocess.run([sys.executable, "orchestrator.py"], cwd=tmp_path, check=True)
    [path] = (tmp_path / "traces").iterdir()
    assert atif.recognises(FileSource(path))
    [session] = atif.read(FileSource(path))
    assert [lane.agent for lane in session.trace.lanes] == ["planner", "counter"]
    edit = session.trace.events[-2]
    assert isinstance(edit, Edit)
    assert edit.after == "There are 2 tests."
    assert session.usage.input_tokens == 1200 + 210 + 1320
    costs = [turn.usage.cost for lane in session.trace.lanes for turn in lane.turns]
    assert costs == [0.004, 0.005, None]
    assert session.usage.cost is None


def test_whatever_a_caller_gives_is_kept_and_breaks_nothing(tmp_path: Path) -> None:
    around: dict[str, object] = {"n": 1 << 90, "path": Path("x"), "key": {1: b"\xff", "s": {2}}}
    around["self"] = around
    with closeloop.record("me", folder=tmp_path) as run:
        run.tool("look", around, ok=False)
        run.edit(Path("a.py"), ok=True)
        run.command(["ls", Path("b c")], b"out", exit_code=0)
    [path] = tmp_path.iterdir()
    [session] = atif.read(FileSource(path))
    tool, edit, command = session.trace.events
    assert isinstance(tool, ToolUse)
    assert tool.arguments is not None
    assert tool.ok is False
    assert tool.arguments["n"] == str(1 << 90)
    assert (tool.arguments["path"], tool.arguments["key"]) == ("x", {"1": "\ufffd", "s": [2]})
    assert isinstance(edit, Edit)
    assert edit.path == "a.py"
    assert isinstance(command, Command)
    assert (command.command, command.output) == ("ls b c", "out")


def test_a_brief_given_by_name_is_the_request() -> None:
    @closeloop.record("child")
    def child(*, number: int, brief: str) -> str:
        return f"{brief} {number}"

    with closeloop.record("parent") as run:
        child(number=1, brief="Count.")
    handoff = recorded(run).trace.events[0]
    assert isinstance(handoff, Handoff)
    assert (handoff.brief, handoff.report) == ("Count.", "Count. 1")


def test_a_secret_is_not_written_into_the_folder(tmp_path: Path) -> None:
    secret = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
    with closeloop.record("me", folder=tmp_path) as run:
        run.command("env", f"GITHUB_TOKEN={secret}", exit_code=0)
    [path] = tmp_path.iterdir()
    assert secret not in path.read_text()
    assert "[redacted: " in path.read_text()


def test_every_method_is_on_the_page() -> None:
    table = PAGE.read_text(encoding="utf-8").partition("## What can be recorded")[2]
    rows = re.findall(r"^\| (`.+?) \|", table, re.MULTILINE)
    documented = set(re.findall(r"`(\w+)`", " ".join(rows)))
    public = {name for name in vars(SessionRecording) if not name.startswith("_")}
    assert documented == public
