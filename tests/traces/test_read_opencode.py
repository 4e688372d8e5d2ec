"""OpenCode's exports and its stream: recorded ones, and the traps of the format."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from closeloop.records.attempt import Usage
from closeloop.records.trace import AnyEvent, Command, Edit, Handoff, Message, Note, Read, Session
from closeloop.traces.file_source import FileSource
from closeloop.traces.readers import opencode, opencode_run

RECORDED = Path(__file__).parent / "fixtures" / "opencode"
WORKSPACE = "/tmp/opencode-recording/workspace"
CHILD = "ses_child"


def brief(event: AnyEvent) -> tuple[Any, ...]:
    """An event as its kind, its turn and what is most telling of it."""
    match event:
        case Message():
            told: tuple[Any, ...] = (event.role, event.intent, event.text)
        case Command():
            told = (event.command, event.exit_code, event.exit_from)
        case Edit():
            told = (event.path.removeprefix(WORKSPACE + "/"), event.action, event.ok)
        case Read():
            told = (event.path.removeprefix(WORKSPACE + "/"), event.first_line, event.last_line)
        case Handoff():
            told = (event.brief, event.report, event.ok)
        case Note():
            told = (event.about,)
        case _:
            told = (getattr(event, "name", None), getattr(event, "ok", None))
    return (type(event).__name__, event.turn, *told)


def export(path: Path, messages: list[Any], **info: Any) -> Path:
    about = {
        "id": "ses_1", "version": "1.0.0", "directory": "/workspace", "title": "t",
        "time": {"created": 1_700_000_000_000, "updated": 1_700_000_009_000}, **info,
    }  # fmt: skip
    path.write_text(json.dumps({"info": about, "messages": messages}))
    return path


def user(*parts: Any) -> dict[str, Any]:
    info = {"role": "user", "id": "msg_u", "time": {"created": 1_700_000_000_000}}
    return {"info": info, "parts": list(parts)}


def assistant(*parts: Any, **info: Any) -> dict[str, Any]:
    told = {
        "role": "assistant",
        "id": "msg_a",
        "modelID": "m",
        "time": {"created": 1_700_000_001_000},
    }
    return {"info": {**told, **info}, "parts": list(parts)}


def tool(name: str, given: Any, **state: Any) -> dict[str, Any]:
    return {
        "type": "tool", "tool": name, "callID": "c1",
        "state": {"status": "completed", "input": given, "output": "", "metadata": {}, **state},
    }  # fmt: skip


def read(path: Path) -> Session:
    source = FileSource(path)
    assert opencode.recognises(source)
    (session,) = opencode.read(source)
    return session


def events(tmp_path: Path, *messages: Any, **info: Any) -> list[AnyEvent]:
    return list(read(export(tmp_path / "e.json", list(messages), **info)).trace.events)


def test_a_recorded_export_is_told_event_by_event_with_its_child_as_a_lane() -> None:
    session = read(RECORDED / "export.json")
    root = [brief(event) for event in session.trace.events if event.lane == "root"]
    test, told = (
        "python3 -B -m unittest -q",
        "`total` in billing.py adds floats and does not round.",
    )
    asked = "Where are totals made, and are they rounded? Report file and function."
    assert root == [
        ("Message", None, "user", "request", '"The test of billing.py fails: make it pass."'),
        ("Message", 1, "agent", None, "I run the test first."),
        ("Command", 1, test, 1, "stated"),
        ("Message", 2, "agent", None, "It fails. A sub-agent looks where."),
        ("Handoff", 2, asked, told, True),
        ("Read", 3, "billing.py", 1, 2),
        ("Edit", 4, "billing.py", "change", False),
        ("Message", 5, "agent", None, "That text is not there; I replace the right one."),
        ("Edit", 5, "billing.py", "change", True),
        ("Command", 6, test, 0, "stated"),
        ("Edit", 6, "NOTES.md", "create", True),
        ("Message", 7, "agent", "claim", "`total` rounds to cents now, and the test passes."),
    ]
    lane = session.trace.lanes[1]
    handoff = next(event for event in session.trace.events if isinstance(event, Handoff))
    assert (lane.id, lane.parent, lane.agent) == (handoff.child, "root", "explore")
    assert [brief(event)[0] for event in session.trace.events if event.lane == lane.id] == [
        "Message", "Message", "ToolUse", "Read", "Message",
    ]  # fmt: skip
    edit = session.trace.events[13]
    assert isinstance(edit, Edit)
    assert (edit.before, edit.after) == ("return sum(prices)", "return round(sum(prices), 2)")
    assert "+    return round(sum(prices), 2)" in (edit.patch or "")


def test_a_recorded_export_counts_each_answer_of_the_provider_once() -> None:
    session = read(RECORDED / "export.json")
    both = [
        json.loads((RECORDED / file).read_text()) for file in ("export.json", "export-child.json")
    ]
    assert session.usage.input_tokens == sum(one["info"]["tokens"]["input"] for one in both)
    assert session.usage.output_tokens == sum(one["info"]["tokens"]["output"] for one in both)
    assert session.usage.cost is None, "a price of nothing is no price"
    assert [len(lane.turns) for lane in session.trace.lanes] == [7, 3]
    assert session.agent_version == both[0]["info"]["version"]
    assert (session.model, session.exit) == ("scripted", "finished")


def test_a_child_belongs_to_the_export_of_its_parent_beside_it() -> None:
    child, parent = RECORDED / "export-child.json", RECORDED / "export.json"
    assert opencode.owner(FileSource(child)) == parent
    assert opencode.parts(FileSource(parent)) == [child]
    assert opencode.owner(FileSource(parent)) is None


def test_a_child_without_its_parent_is_a_session_that_names_it(tmp_path: Path) -> None:
    alone = tmp_path / "child.json"
    alone.write_bytes((RECORDED / "export-child.json").read_bytes())
    assert opencode.owner(FileSource(alone)) is None
    assert read(alone).parent == read(RECORDED / "export.json").id


def test_completed_says_nothing_of_how_a_command_ended(tmp_path: Path) -> None:
    made = events(
        tmp_path,
        assistant(
            tool("bash", {"command": "a"}, output="no", metadata={"exit": 2}),
            tool("bash", {"command": "b"}, output="who knows"),
            tool("bash", {"command": "c"}, metadata={"exit": None}, output=(
                "x\n\n<shell_metadata>\nshell tool terminated command after exceeding timeout "
                "100 ms\n</shell_metadata>")),
            tool("bash", {"command": "d"}, status="running"),
        ),
    )  # fmt: skip
    assert [(e.exit_code, e.exit_from, e.stopped) for e in made if isinstance(e, Command)] == [
        (2, "stated", None), (None, None, None), (None, None, "out of time"), (None, None, None),
    ]  # fmt: skip
    assert [e.output is None for e in made if isinstance(e, Command)] == [False, False, False, True]


def test_a_question_is_followed_by_its_answer(tmp_path: Path) -> None:
    made = events(
        tmp_path,
        assistant(
            tool(
                "question",
                {"questions": [{"question": "Which?"}]},
                metadata={"answers": [["A", "B"]]},
            )
        ),
    )
    assert [brief(event)[2:] for event in made] == [
        ("agent", "question", "Which?"), ("user", "answer", "A, B"),
    ]  # fmt: skip


def test_a_refused_call_is_a_correction_in_the_users_words(tmp_path: Path) -> None:
    refused = "The user rejected permission to use this specific tool call"
    made = events(
        tmp_path,
        assistant(
            tool("edit", {"filePath": "a", "oldString": "x", "newString": "y"}, status="error",
                 error=f"{refused} with the following feedback: not there"),
        ),
    )  # fmt: skip
    assert [brief(event)[2:] for event in made] == [
        ("a", "change", False), ("user", "correction", "not there"),
    ]  # fmt: skip


def test_a_patch_edits_as_many_files_as_it_names(tmp_path: Path) -> None:
    files = [
        {"filePath": "/w/a", "type": "add", "patch": "+1"},
        {"filePath": "/w/b", "type": "delete", "patch": "-1"},
    ]
    made = events(
        tmp_path, assistant(tool("apply_patch", {"patchText": "…"}, metadata={"files": files}))
    )
    assert [(e.number, e.path, e.action, e.patch, e.ok) for e in made if isinstance(e, Edit)] == [
        (1, "/w/a", "create", "+1", True), (2, "/w/b", "delete", "-1", True),
    ]  # fmt: skip


def test_half_a_character_in_a_diff_can_be_kept(tmp_path: Path) -> None:
    given = {"filePath": "a.py", "oldString": "a", "newString": "b"}
    edited = tool("edit", given, metadata={"diff": "+b\ud83d"})
    (event,) = events(tmp_path, assistant(edited))
    assert isinstance(event, Edit)
    assert (event.patch or "").encode()


def test_a_patch_that_failed_is_an_edit_of_the_files_it_names(tmp_path: Path) -> None:
    patch = "*** Begin Patch\n*** Update File: a.py\n@@\n-x\n+y\n*** Delete File: b.py\n"
    failed = tool("apply_patch", {"patchText": patch}, status="error", error="No such line.")
    found = events(tmp_path, assistant(failed))
    assert [(e.path, e.action, e.ok) for e in found if isinstance(e, Edit)] == [
        ("a.py", "change", False),
        ("b.py", "delete", False),
    ]


def test_an_aborted_command_was_interrupted(tmp_path: Path) -> None:
    aborted = tool("bash", {"command": "x"}, status="error", error="Tool execution aborted")
    (command,) = events(tmp_path, assistant(aborted))
    assert isinstance(command, Command)
    assert (command.exit_code, command.stopped) == (None, "interrupted")


def test_messages_whose_ids_were_blackened_are_counted_each(tmp_path: Path) -> None:
    step = {"type": "step-finish", "tokens": {"input": 7, "output": 2, "cache": {}}, "cost": 0}
    twice = [assistant(step, id="REDACTED"), assistant(step, id="REDACTED")]
    session = read(export(tmp_path / "e.json", twice))
    assert (session.usage.input_tokens, session.usage.output_tokens) == (14, 4)


def test_compaction_retries_and_unknown_parts_are_kept_as_notes(tmp_path: Path) -> None:
    made = events(
        tmp_path,
        user(
            {"type": "compaction", "auto": True}, {"type": "text", "text": "s", "synthetic": True}
        ),
        assistant({"type": "text", "text": "All so far."}, summary=True),
        assistant({"type": "hologram", "x": 1}, {"type": "retry", "error": {"name": "APIError"}}),
    )
    assert [event.about for event in made if isinstance(event, Note)] == [
        "compaction", "added by agent", "compaction", "unknown: hologram", "retry",
    ]  # fmt: skip
    assert '"x":1' in [event.text for event in made if isinstance(event, Note)][3]


def test_several_steps_in_one_message_are_several_turns(tmp_path: Path) -> None:
    tokens = {"input": 10, "output": 2, "reasoning": 0, "cache": {"read": 5, "write": 0}}
    step = {"type": "step-finish", "reason": "tool-calls", "cost": 0.5, "tokens": tokens}
    path = export(
        tmp_path / "e.json",
        [
            assistant(
                {"type": "step-start"}, {"type": "text", "text": "a"}, step,
                {"type": "step-start"}, {"type": "text", "text": "b"}, {**step, "reason": "stop"},
                tokens=tokens, cost=1.0,
            )
        ],
    )  # fmt: skip
    session = read(path)
    assert [event.turn for event in session.trace.events] == [1, 2]
    assert session.usage == Usage(
        input_tokens=20, output_tokens=4, cache_read_tokens=10, cache_write_tokens=0,
        cost=1.0, cost_from="reported",
    )  # fmt: skip


def test_reasoning_is_part_of_the_output_and_zeros_are_not_believed(tmp_path: Path) -> None:
    tokens = {"total": 115, "input": 100, "output": 5, "reasoning": 10,
              "cache": {"read": 0, "write": 0}}  # fmt: skip
    zeros = {"input": 0, "output": 0, "reasoning": 0, "cache": {"read": 0, "write": 0}}
    session = read(
        export(
            tmp_path / "e.json",
            [assistant(tokens=tokens, id="1"), assistant(tokens=zeros, id="2", cost=0)],
        )
    )
    first, second = session.trace.lanes[0].turns
    assert (first.usage.output_tokens, first.usage.reasoning_tokens) == (15, 10)
    assert second.usage == Usage()


def test_an_aborted_answer_is_an_interrupt_and_ends_the_session_so(tmp_path: Path) -> None:
    error = {"name": "MessageAbortedError", "data": {"message": "Aborted"}}
    session = read(export(tmp_path / "e.json", [assistant(error=error)]))
    assert [brief(event) for event in session.trace.events] == [
        ("Message", None, "user", "interrupt", "Aborted")
    ]
    assert session.exit == "gave_up"


def test_a_child_in_the_background_reports_later(tmp_path: Path) -> None:
    sent = tool(
        "task", {"prompt": "look", "description": "d"}, metadata={"sessionId": CHILD},
        output=f'<task id="{CHILD}" state="running">\n<task_result>\n…\n</task_result>\n</task>',
    )  # fmt: skip
    back = f'<task id="{CHILD}" state="completed">\n<task_result>\nfound\n</task_result>\n</task>'
    made = events(
        tmp_path, assistant(sent), user({"type": "text", "text": back, "synthetic": True})
    )
    assert [brief(event) for event in made] == [("Handoff", 1, "look", "found", True)]


@pytest.mark.parametrize("document", [{"info": {}, "messages": []}, {"messages": [1]}, [1], {}])
def test_other_documents_are_refused(document: Any, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps(document))
    assert not opencode.recognises(FileSource(path))


def test_a_recorded_stream_is_told_without_the_user_and_without_the_child() -> None:
    source = FileSource(RECORDED / "run.jsonl")
    assert opencode_run.recognises(source)
    (session,) = opencode_run.read(source)
    whole = [event for event in read(RECORDED / "export.json").trace.events if event.lane == "root"]
    streamed = [brief(event) for event in session.trace.events]
    assert sorted(map(str, streamed)) == sorted(str(brief(event)) for event in whole[1:])
    assert [event.child for event in session.trace.events if isinstance(event, Handoff)] == [None]
    assert session.usage.input_tokens == json.loads(
        (RECORDED / "export.json").read_text()
    )["info"]["tokens"]["input"]  # fmt: skip
    assert (session.exit, session.trace.skipped) == ("finished", {})


def test_a_stream_that_ends_in_an_error_says_so(tmp_path: Path) -> None:
    path = tmp_path / "out"
    error = {"name": "APIError", "data": {"message": "no such model"}}
    line = {"type": "error", "timestamp": 1_700_000_000_000, "sessionID": "ses_1", "error": error}
    path.write_text(json.dumps(line) + "\n")
    assert opencode_run.recognises(FileSource(path))
    (session,) = opencode_run.read(FileSource(path))
    assert (session.id, session.exit) == ("ses_1", "machine")
    assert session.cause == "APIError: no such model"
    assert session.started == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
