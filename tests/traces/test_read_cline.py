"""Roo Code and Cline task folders: made ones, the traps of their words, and real recordings."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from closeloop.records.attempt import Usage
from closeloop.records.trace import (
    AnyEvent,
    Command,
    Edit,
    Handoff,
    Message,
    Note,
    Read,
    Session,
    Thought,
    ToolUse,
)
from closeloop.traces.file_source import FileSource
from closeloop.traces.readers import cline

MADE = Path(__file__).parent / "fixtures" / "cline"
PARENT = MADE / "5b2c7a10-0000-4000-8000-000000000001"
CHILD = MADE / "5b2c7a10-0000-4000-8000-000000000002"
TALK, VIEW = "api_conversation_history.json", "ui_messages.json"
SHARED = Path(__file__).resolve().parents[3] / "shared" / "traces" / "roo_code"


def read(path: Path) -> Session:
    source = FileSource(path)
    assert cline.recognises(source)
    (session,) = cline.read(source)
    return session


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def talk(tmp_path: Path, *turns: list[Any], rows: list[Any] | None = None) -> Session:
    """A task whose user and agent speak in turn, the user first."""
    folder = tmp_path / "tasks" / "1700000000000"
    folder.mkdir(parents=True)
    messages = [
        {"role": ("user", "assistant")[n % 2], "ts": 1_700_000_000_000 + 10_000 * n, "content": one}
        for n, one in enumerate([[text("<task>\nDo it.\n</task>")], *turns])
    ]
    (folder / TALK).write_text(json.dumps(messages))
    if rows is not None:
        (folder / VIEW).write_text(json.dumps(rows))
    return read(folder / TALK)


def brief(event: AnyEvent) -> Any:
    match event:
        case Message():
            return (event.role, event.intent, event.text)
        case Command():
            return (event.command, event.exit_code, event.exit_from)
        case Edit():
            return (event.path, event.action, event.ok)
        case Read():
            return (event.path, event.ok)
        case Handoff():
            return (event.child, event.report)
        case Note():
            return event.about
        case Thought():
            return event.text
        case ToolUse():
            return (event.name, event.ok)


def test_a_task_of_roo_code_is_told_with_its_sub_task_as_a_lane() -> None:
    session = read(PARENT / TALK)
    test, found = "python -m unittest -q", "`total` in billing.py adds floats and does not round."
    asked = "Find where totals are rounded in billing.py. Change nothing. Report file and function."
    told = [(event.lane, event.turn, brief(event)) for event in session.trace.events]
    child = CHILD.name
    assert told == [
        ("root", None, ("user", "request", "The test of billing.py fails: make it pass.")),
        ("root", 1, "The failing test shows what is wrong."),
        ("root", 1, ("agent", None, "I run the test first.")),
        ("root", 1, (test, 1, "parsed")),
        ("root", 2, ("agent", None, "A sub-task looks where.")),
        ("root", 2, (child, found)),
        (child, None, ("user", "request", asked)),
        (child, 1, ("agent", None, "I read both files.")),
        (child, 1, ("billing.py", True)),
        (child, 1, ("missing.py", False)),
        (child, 2, "That answers it."),
        (child, 2, ("agent", "claim", found)),
        ("root", 3, ("agent", "question", "Round to cents, or use Decimal?")),
        ("root", None, ("user", "answer", "Round to cents")),
        ("root", 4, ("billing.py", "change", False)),
        ("root", None, "error"),
        ("root", 5, ("billing.py", "change", True)),
        ("root", 5, ("agent", None, "Done already.")),
        ("root", 6, ("git push --force", None, None)),
        ("root", None, ("user", "correction", "Never push. Run the test.")),
        ("root", 7, (test, 0, "parsed")),
        ("root", 8, ("agent", "claim", "`total` rounds to cents now, and the test passes.")),
    ]
    assert (session.agent, session.model, session.exit) == (
        "roo-code",
        "scripted/large",
        "finished",
    )
    assert (session.directory, session.parent) == ("/workspace", None)
    assert [lane.agent for lane in session.trace.lanes] == ["code", "ask"]


def test_tokens_and_cost_come_from_the_view_and_cached_input_is_not_fresh() -> None:
    session = read(PARENT / TALK)
    assert session.usage == Usage(
        input_tokens=2000, output_tokens=330, cache_read_tokens=10400, cache_write_tokens=0,
        cost=pytest.approx(0.08), cost_from="reported",
    )  # fmt: skip


def test_every_file_of_a_family_of_tasks_belongs_to_its_first_conversation() -> None:
    root = PARENT / TALK
    for path in [*CHILD.iterdir(), PARENT / VIEW, PARENT / "history_item.json"]:
        assert cline.recognises(FileSource(path))
        assert cline.owner(FileSource(path)) == root
        assert list(cline.parts(FileSource(path))) == []
    assert cline.owner(FileSource(root)) is None
    assert set(cline.parts(FileSource(root))) == {
        PARENT / VIEW, PARENT / "history_item.json", *CHILD.iterdir(),
    }  # fmt: skip


def test_a_sub_task_is_found_by_its_brief_where_no_file_names_its_parent(tmp_path: Path) -> None:
    for folder in (PARENT, CHILD):
        shutil.copytree(folder, tmp_path / "tasks" / folder.name)
        (tmp_path / "tasks" / folder.name / "history_item.json").unlink()
    session = read(tmp_path / "tasks" / PARENT.name / TALK)
    assert [lane.id for lane in session.trace.lanes] == ["root", CHILD.name]


def test_a_sub_task_without_its_parent_is_a_session_that_names_it(tmp_path: Path) -> None:
    shutil.copytree(CHILD, tmp_path / "tasks" / CHILD.name)
    path = tmp_path / "tasks" / CHILD.name / TALK
    assert cline.owner(FileSource(path)) is None
    assert read(path).parent == PARENT.name


def test_the_view_alone_tells_the_task_too(tmp_path: Path) -> None:
    alone = tmp_path / "tasks" / PARENT.name / VIEW
    alone.parent.mkdir(parents=True)
    shutil.copy(PARENT / VIEW, alone)
    session = read(alone)
    kinds = [type(event).__name__ for event in session.trace.events]
    assert kinds == [
        "Message", "Thought", "Message", "Command", "Handoff", "Message", "Message", "Note",
        "Message", "Message",
    ]  # fmt: skip
    assert session.usage == read(PARENT / TALK).usage
    command, handoff = session.trace.events[3], session.trace.events[4]
    assert isinstance(command, Command)
    assert (command.exit_code, command.output is None) == (None, False)
    assert isinstance(handoff, Handoff)
    assert handoff.report == "`total` in billing.py adds floats and does not round."
    assert session.trace.skipped == {"a draft": 1}


def test_a_task_of_cline_pairs_results_that_have_no_id() -> None:
    session = read(MADE / "1794700100000" / TALK)
    assert [(event.call, brief(event)) for event in session.trace.events] == [
        (None, ("user", "request", "Say what billing.py does.")),
        (None, "I read it."),
        ("call_a", ("billing.py", True)),
        ("call_b", ("python -c 'import billing'", None, None)),
        ("call_c", ("agent", "claim", "It adds prices and rounds to cents.")),
    ]
    assert (session.agent, session.model) == ("cline", "scripted-small")
    assert session.usage == Usage(
        input_tokens=300, output_tokens=45, cache_read_tokens=2700,
        cost=pytest.approx(0.004), cost_from="reported",
    )  # fmt: skip


def test_a_call_without_a_result_does_not_take_the_result_of_the_next(tmp_path: Path) -> None:
    call = "<execute_command>\n<command>{}</command>\n</execute_command>"
    resumed = "[TASK RESUMPTION] It was interrupted.\n\n<user_message>\nOn.\n</user_message>"
    result = "[execute_command for 'b'] Result:", "Command executed. Exit code: 2\nOutput:\n"
    session = talk(
        tmp_path,
        [text(call.format("a"))],
        [text(resumed)],
        [text(call.format("b"))],
        [text(words) for words in result],
    )
    commands = [event for event in session.trace.events if isinstance(event, Command)]
    assert [(one.command, one.output is None, one.exit_code) for one in commands] == [
        ("a", True, None), ("b", False, 2),
    ]  # fmt: skip


def test_an_exit_code_in_the_output_itself_is_not_believed(tmp_path: Path) -> None:
    session = talk(
        tmp_path,
        [text("<execute_command><command>x</command></execute_command>")],
        [text("[execute_command for 'x'] Result:\nCommand executed.\nOutput:\nExit code: 7\nend")],
    )
    command = session.trace.events[1]
    assert isinstance(command, Command)
    assert (command.exit_code, command.exit_from) == (None, None)


def test_refusals_in_the_newer_shape_are_corrections(tmp_path: Path) -> None:
    use = {"type": "tool_use", "id": "t", "name": "write_to_file",
           "input": {"path": "p", "content": "c"}}  # fmt: skip
    denied = json.dumps({"status": "denied", "feedback": "Not that file."})
    session = talk(
        tmp_path, [use], [{"type": "tool_result", "tool_use_id": "t", "content": denied}]
    )
    assert [brief(event) for event in session.trace.events[1:]] == [
        ("p", "create", False), ("user", "correction", "Not that file."),
    ]  # fmt: skip


def test_content_that_holds_tags_of_its_own_ends_where_its_tag_closes_last(tmp_path: Path) -> None:
    inner = "<content>x</content>"
    session = talk(
        tmp_path,
        [text(f"<write_to_file><path>a</path><content>\n{inner}\n</content></write_to_file>")],
    )
    edit = session.trace.events[1]
    assert isinstance(edit, Edit)
    assert edit.after == inner


def test_a_tool_that_is_only_mentioned_is_not_called(tmp_path: Path) -> None:
    session = talk(tmp_path, [text("I would use <read_file> here, but will not.")])
    assert [type(event) for event in session.trace.events] == [Message, Message]


def test_what_a_summary_replaced_is_told_from_the_view(tmp_path: Path) -> None:
    start = 1_700_000_000_000

    def request(at: int) -> dict[str, Any]:
        used = json.dumps({"apiProtocol": "openai", "tokensIn": 10, "tokensOut": 1, "cost": 0.5})
        return {"ts": start + at, "type": "say", "say": "api_req_started", "text": used}

    rows = [
        {"ts": start, "type": "say", "say": "text", "text": "Do it."},
        request(100),
        {"ts": start + 200, "type": "say", "say": "text", "text": "Lost words."},
        {"ts": start + 300, "type": "ask", "ask": "command", "text": "lost command"},
        {"ts": start + 400, "type": "say", "say": "condense_context",
         "contextCondense": {"summary": "All so far.", "cost": 0.25}},
        request(25_000),
        {"ts": start + 26_000, "type": "say", "say": "text", "text": "Kept words."},
    ]  # fmt: skip
    folder = tmp_path / "tasks" / "1700000000000"
    folder.mkdir(parents=True)
    messages = [
        {"role": "user", "ts": start, "content": [text("<task>\nDo it.\n</task>")]},
        {"role": "assistant", "ts": start + 20_000, "isSummary": True, "content": "All so far."},
        {"role": "assistant", "ts": start + 30_000, "content": [text("Kept words.")]},
    ]
    (folder / TALK).write_text(json.dumps(messages))
    (folder / VIEW).write_text(json.dumps(rows))
    session = read(folder / TALK)
    assert [brief(event) for event in session.trace.events] == [
        ("user", "request", "Do it."),
        ("agent", None, "Lost words."),
        ("lost command", None, None),
        "compaction",
        ("agent", None, "Kept words."),
    ]
    assert session.usage == Usage(
        input_tokens=20, output_tokens=2, cost=pytest.approx(1.25), cost_from="reported"
    )


@pytest.mark.parametrize(
    "document",
    [
        [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}],
        [{"ts": 1, "type": "event", "event": "x"}],
        [],
        {"id": "x", "ts": 1},
    ],
)
def test_other_documents_are_refused(document: Any, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps(document))
    assert not cline.recognises(FileSource(path))


@pytest.mark.skipif(not SHARED.is_dir(), reason="no shared recordings here")
def test_real_tasks_are_one_family_with_every_result_paired_and_every_cent_counted() -> None:
    files = sorted(SHARED.rglob("*.json"))
    assert all(cline.recognises(FileSource(path)) for path in files)
    roots = [path for path in files if cline.owner(FileSource(path)) is None]
    (root,) = roots
    source = FileSource(root)
    (session,) = cline.read(source)
    assert {path.parent.name for path in files} - {root.parent.name} == {
        lane.id for lane in session.trace.lanes[1:]
    }
    headers = cost = 0
    for path in files:
        for one in json.loads(path.read_text()):
            if path.name == TALK and one["role"] == "user":
                headers += sum(
                    block["text"].startswith("[") and "] Result:" in block["text"]
                    and not block["text"].startswith("[new_task")
                    for block in one["content"]
                )  # fmt: skip
            if path.name == VIEW and one.get("say") == "api_req_started":
                cost += json.loads(one["text"])["cost"]
            if path.name == VIEW:
                cost += one.get("contextCondense", {}).get("cost", 0)
    done = [
        event
        for event in session.trace.events
        if (isinstance(event, Command) and event.exit_code is not None)
        or (isinstance(event, Edit | Read) and event.ok is not None)
        or (isinstance(event, ToolUse) and event.name in ("list_files", "update_todo_list"))
    ]
    # Of the requests that a summary replaced, the rows of the next ones tell the results.
    assert len(done) == headers + 4
    assert not [e for e in session.trace.events if brief(e) == "result without a call"]
    assert session.usage.cost == pytest.approx(cost)
    assert set(source.skipped) == {"environment details"}


def test_what_the_user_says_to_a_completion_sets_the_agent_right(tmp_path: Path) -> None:
    done = "<attempt_completion><result>Done.</result></attempt_completion>"
    said = "The user has provided feedback on the results.\n<feedback>\nNot yet.\n</feedback>"
    session = talk(
        tmp_path, [text(done)], [text("[attempt_completion] Result:"), text(said)], [text("Sorry.")]
    )
    told = [brief(event) for event in session.trace.events]
    assert told[1:3] == [("agent", "claim", "Done."), ("user", "correction", "Not yet.")]


def test_what_the_user_says_to_a_completion_is_known_from_the_view_alone(tmp_path: Path) -> None:
    folder = tmp_path / "tasks" / "1700000000000"
    folder.mkdir(parents=True)
    rows = [
        {"ts": 1, "type": "say", "say": "text", "text": "Do it."},
        {"ts": 2, "type": "say", "say": "completion_result", "text": "Done."},
        {"ts": 3, "type": "say", "say": "user_feedback", "text": "Not yet."},
        {"ts": 4, "type": "say", "say": "user_feedback", "text": "And more."},
    ]
    (folder / VIEW).write_text(json.dumps(rows))
    told = [brief(event)[1] for event in read(folder / VIEW).trace.events]
    assert told == ["request", "claim", "correction", None]


def test_thinking_in_the_text_is_a_thought(tmp_path: Path) -> None:
    written = (
        "<write_to_file><path>a</path><content><thinking>x</thinking></content></write_to_file>"
    )
    session = talk(
        tmp_path,
        [text(f"<thinking>\nLook first.\n</thinking>\nI look.\n{written}")],
        [text("[write_to_file for 'a'] Result:"), text("saved successfully")],
        [text("<thinking>cut off")],
    )
    assert [brief(event) for event in session.trace.events][1:] == [
        "Look first.",
        ("agent", None, "I look."),
        ("a", "create", True),
        "cut off",
    ]
    [edit] = [event for event in session.trace.events if isinstance(event, Edit)]
    assert edit.after == "<thinking>x</thinking>"


@pytest.mark.parametrize("told_by", ["rows", "words"])
def test_a_cancelled_request_is_an_interrupt_and_what_follows_a_correction(
    tmp_path: Path, told_by: str
) -> None:
    words = "I delete" + (
        " it all.\n\n[Response interrupted by user]" if told_by == "words" else ""
    )
    info = json.dumps({"cancelReason": "user_cancelled"} if told_by == "rows" else {})
    rows = [{"ts": 1_700_000_005_000, "type": "say", "say": "api_req_started", "text": info}]
    session = talk(tmp_path, [text(words)], [text("Keep it.")], rows=rows)
    assert [brief(event) for event in session.trace.events][1:] == [
        ("agent", None, words.partition("\n")[0]),
        ("user", "interrupt", "The request was cancelled."),
        ("user", "correction", "Keep it."),
    ]


def test_an_agent_is_named_by_what_only_it_writes(tmp_path: Path) -> None:
    def told(name: str, reply: str, **more: Any) -> str:
        folder = tmp_path / "tasks" / name
        folder.mkdir(parents=True)
        messages = [
            {"role": "user", "content": [text("<task>\nDo it.\n</task>")]},
            {"role": "assistant", "content": [text(reply)], **more},
        ]
        (folder / TALK).write_text(json.dumps(messages))
        return read(folder / TALK).agent

    assert told("1700000000001", "<switch_mode><mode_slug>ask</mode_slug></switch_mode>") == (
        "roo-code"
    )
    assert told("1700000000002", "Done.", ts=1_700_000_000_000) == "roo-code"
    assert told("1700000000003", "Done.") == "cline"
    known = {"modelInfo": {"modelId": "m"}, "ts": 1_700_000_000_000}
    assert told("1700000000004", "Done.", **known) == "cline"
