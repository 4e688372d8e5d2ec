"""What a careful reader of Claude Code's sessions would write down, and an early one did not."""

from __future__ import annotations

from pathlib import Path

import pytest
from claude_log import SESSION, Log, only, session_of
from read_back import told, written

from closeloop.records.trace import Command, Edit, Handoff, Message, Note
from closeloop.traces.file_source import FileSource
from closeloop.traces.readers import claude_stream


@pytest.fixture
def log() -> Log:
    return Log()


def test_a_command_out_of_time_keeps_the_exit_code_it_was_killed_with(
    log: Log, tmp_path: Path
) -> None:
    words = "Exit code 143\nCommand timed out after 2m 0.0s"
    log.call("Bash", {"command": "sleep 999"}, words, is_error=True, detail=f"Error: {words}")
    assert told(session_of(log, tmp_path)) == [("run", "sleep 999", 143, "parsed", "out of time")]


def test_an_edit_of_a_notebook_says_what_was_written(log: Log, tmp_path: Path) -> None:
    given = {"notebook_path": "/w/a.ipynb", "cell_id": "c1", "new_source": "x = 1"}
    log.call("NotebookEdit", given, "Updated cell c1 with x = 1")
    (event,) = session_of(log, tmp_path).trace.events
    assert isinstance(event, Edit)
    assert (event.path, event.after, event.ok) == ("/w/a.ipynb", "x = 1", True)


def test_two_sub_agents_with_the_same_brief_are_both_joined_in_order(
    log: Log, tmp_path: Path
) -> None:
    log.user("go")
    for name in ("t1", "t2"):
        given = {"description": "d", "prompt": "find bugs", "subagent_type": "Explore"}
        log.agent({"type": "tool_use", "id": name, "name": "Task", "input": given}, name="one")
    main = log.last
    for words in ("first", "second"):
        log.last = None
        log.user("find bugs", isSidechain=True)
        log.agent(words, isSidechain=True)
    log.last = main
    for name, words in (("t1", "first"), ("t2", "second")):
        log.user([{"type": "tool_result", "tool_use_id": name, "content": words}])
    trace = session_of(log, tmp_path).trace
    said = {
        event.lane: event.text
        for event in trace.events
        if isinstance(event, Message) and event.role == "agent"
    }
    handoffs = [event for event in trace.events if isinstance(event, Handoff)]
    assert [said[event.child or ""] for event in handoffs] == ["first", "second"]
    assert [event.report for event in handoffs] == ["first", "second"]


@pytest.mark.parametrize(
    ("words", "intent"), [("no, use trash instead", "correction"), ("Continue.", None)]
)
def test_what_the_user_says_after_an_interrupt_is_a_correction(
    log: Log, tmp_path: Path, words: str, intent: str | None
) -> None:
    log.user("go")
    log.user([{"type": "text", "text": "[Request interrupted by user]"}])
    log.user(words)
    log.user("thanks")
    events = session_of(log, tmp_path).trace.events
    assert [event.intent for event in events if isinstance(event, Message)] == [
        "request",
        "interrupt",
        intent,
        None,
    ]


def test_a_compaction_in_a_stream_is_one_note(tmp_path: Path) -> None:
    common = f'"session_id": "{SESSION}", "parent_tool_use_id": null'
    init = f'{{"type": "system", "subtype": "init", "tools": [], {common}}}'
    mark = f'{{"type": "system", "subtype": "compact_boundary", {common}}}'
    said = '"This session is being continued from a previous conversation."'
    summary = f'{{"type": "user", "message": {{"role": "user", "content": {said}}}, {common}}}'
    path = written(tmp_path / "log.txt", "\n".join(["$ claude -p", init, mark, summary, ""]))
    assert claude_stream.recognises(FileSource(path)), "whatever a terminal wrote above it"
    (session,) = claude_stream.read(FileSource(path))
    (note,) = session.trace.events
    assert isinstance(note, Note)
    assert (note.about, note.text[:20]) == ("compaction", "This session is bein")


def test_the_cost_that_the_first_versions_wrote_is_kept_once(log: Log, tmp_path: Path) -> None:
    log.agent("one", name="m1", costUSD=0.25)
    log.agent("more of it", name="m1", costUSD=0.25)
    log.agent("two", name="m2", costUSD=0.5)
    usage = session_of(log, tmp_path).usage
    assert (usage.cost, usage.cost_from) == (0.75, "reported")


def test_an_empty_session_id_is_none(log: Log, tmp_path: Path) -> None:
    log.user("go")
    log.agent("gone", sessionId="")
    session = session_of(log, tmp_path)
    assert (session.id, len(session.trace.events)) == (SESSION, 2)
    nameless = Log(sessionId="")
    nameless.user("go")
    assert session_of(nameless, tmp_path).id


def test_a_result_written_before_its_call_is_the_calls(log: Log, tmp_path: Path) -> None:
    log.user("Do it.")
    log.call("Bash", {"command": "ls"}, "a.py", id="c1")
    log.agent("Listed.")
    call, result = log.lines[1], log.lines[2]
    log.lines[1:3] = [result, call]
    session = session_of(log, tmp_path)
    assert [type(event) for event in session.trace.events] == [Message, Command, Message]
    assert only(session, Command).output == "a.py"


def test_a_result_whose_call_never_comes_is_kept(log: Log, tmp_path: Path) -> None:
    log.user("Do it.")
    lost = {"type": "tool_result", "tool_use_id": "c9", "content": "lost"}
    log.user([lost], parentUuid="nowhere")
    log.call("Bash", {"command": "ls"}, "a.py", id="c9")
    notes = [event for event in session_of(log, tmp_path).trace.events if isinstance(event, Note)]
    assert [(note.about, note.text) for note in notes] == [("result without a call", "lost")]


def test_modes_and_titles_are_noted_when_they_change(log: Log, tmp_path: Path) -> None:
    log.user("Do it.")
    for mode in ("normal", "normal", "vim"):
        log.put("mode", mode=mode)
        log.put("permission-mode", permissionMode="default")
        log.put("ai-title", aiTitle="Doing it")
        log.put("bridge-session", bridgeSessionId="b")
    notes = [event for event in session_of(log, tmp_path).trace.events if isinstance(event, Note)]
    assert [(note.about, note.text) for note in notes] == [("title", "Doing it"), ("mode", "vim")]


def test_the_clients_own_commands_ask_the_model_nothing(log: Log, tmp_path: Path) -> None:
    def command(name: str, given: str) -> str:
        return (
            f"<command-name>/{name}</command-name>\n            "
            f"<command-message>{name}</command-message>\n            "
            f"<command-args>{given}</command-args>"
        )

    for line in (command("effort", ""), command("new-one", ""), command("fast", "on")):
        log.user(line)
    log.user(command("plan", "Move the files."))
    events = session_of(log, tmp_path).trace.events
    assert [event.about for event in events if isinstance(event, Note)] == ["slash command"] * 3
    (asked,) = [event for event in events if isinstance(event, Message)]
    assert (asked.intent, "Move the files." in asked.text) == ("request", True)


def test_a_notice_in_the_queue_tells_how_work_in_the_background_ended(
    log: Log, tmp_path: Path
) -> None:
    detail = {"stdout": "", "backgroundTaskId": "b1"}
    log.call("Bash", {"command": "make"}, "Command running in background", detail=detail)
    notice = (
        "<task-notification>\n<task-id>b1</task-id>\n<status>failed</status>\n"
        '<summary>Background command "make" failed with exit code 2</summary>\n'
        "</task-notification>"
    )
    for content in ('{"task_id":"b1","task_type":"local_bash"}', notice):
        log.put("queue-operation", operation="enqueue", content=content)
    assert told(session_of(log, tmp_path)) == [("run", "make", 2, "parsed", None)]
