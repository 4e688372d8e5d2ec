"""What Cline's client says in the user's name, and what newer clients name differently."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from read_back import sessions, told, written

from closeloop.records.trace import Handoff, Message, Session, ToolUse
from closeloop.traces.readers import cline

TALK, VIEW = "api_conversation_history.json", "ui_messages.json"


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def call(name: str, **given: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"call {name}", "name": name, "input": given}


def talk(tmp_path: Path, *turns: list[Any]) -> Session:
    """A task whose user and agent speak in turn, the user first."""
    messages = [
        {"role": ("user", "assistant")[number % 2], "content": one}
        for number, one in enumerate([[text("<task>\nDo it.\n</task>")], *turns])
    ]
    (session,) = sessions(cline, written(tmp_path / "tasks" / "1" / TALK, messages))
    return session


def view(tmp_path: Path, *rows: tuple[str, str, Any]) -> Session:
    told_rows = [
        {"ts": 1_700_000_000_000 + number, "type": kind, kind: name,
         "text": said if isinstance(said, str) else json.dumps(said)}
        for number, (kind, name, said) in enumerate(rows)
    ]  # fmt: skip
    (session,) = sessions(cline, written(tmp_path / "tasks" / "1" / VIEW, told_rows))
    return session


@pytest.mark.parametrize(
    "reminder",
    [
        "\n# task_progress RECOMMENDED\n\nWhen starting a new task, …",
        "\n\n\t\t# TODO LIST UPDATE REQUIRED - You MUST include …",
        "**All 3 items have been completed!**",
        "(The user did not provide a new message. Consider asking …)",
    ],
)
def test_a_reminder_of_the_client_is_neither_the_users_word_nor_a_result(
    reminder: str, tmp_path: Path
) -> None:
    result = [text("[read_file for 'a.py'] Result:\nx = 1"), text(reminder)]
    session = talk(tmp_path, [call("read_file", path="a.py")], result, [text("Fine.")], [])
    assert told(session) == [
        ("user", "request", "Do it."),
        ("read", "a.py", True),
        ("agent", None, "Fine."),
    ]
    assert session.trace.events[1].text == "\nx = 1".strip()  # type: ignore[union-attr]
    assert session.trace.skipped == {"a reminder of the client": 1}


def test_files_that_the_user_attached_are_no_words_of_the_user(tmp_path: Path) -> None:
    attached = 'Files attached by the user:\n\n<file_content path="a.md">\nA\n</file_content>'
    session = talk(tmp_path, [text("Which?")], [text(attached), text("The <b>first</b> one.")])
    assert told(session)[2:] == [
        ("note", "attachment", "Files attached by the user:"),
        ("user", None, "The <b>first</b> one."),
    ]


@pytest.mark.parametrize(
    "said",
    [
        "The content was successfully saved to /w/a.py.",
        "The user made the following updates to your content:\n\n@@ -1 +1 @@\n-x\n+y",
    ],
)
def test_a_file_named_by_its_absolute_path_is_an_edit_that_was_made(
    said: str, tmp_path: Path
) -> None:
    written_to = call("write_to_file", absolutePath="/w/a.py", content="x")
    result = [text(f"[write_to_file for '/w/a.py'] Result:\n{said}")]
    session = talk(tmp_path, [written_to], result)
    assert told(session)[1:] == [("create", "/w/a.py", None, "x", True)]


def test_what_sub_agents_report_goes_to_the_call_that_sent_them(tmp_path: Path) -> None:
    asked = call("use_subagents", prompt_1="Look here.", prompt_2="Look there.")
    report = [text("[subagents] Result:\nTotal: 2\nSucceeded: 2")]
    handoff = talk(tmp_path, [asked], report).trace.events[1]
    assert isinstance(handoff, Handoff)
    assert handoff.brief == "Look here.\n\nLook there."
    assert handoff.report == "\nTotal: 2\nSucceeded: 2".strip()


def test_rows_of_newer_clients_are_known(tmp_path: Path) -> None:
    session = view(
        tmp_path,
        ("say", "text", "Do it."),
        ("say", "error_retry", {"attempt": 1, "errorMessage": "busy"}),
        ("ask", "act_mode_respond", {"response": "I begin."}),
        ("say", "browser_action_launch", "http://localhost"),
        ("say", "browser_action_result", {"currentUrl": "http://localhost/", "logs": "ready"}),
        ("say", "subagent_usage", {}),
        ("say", "completion_result", "Done."),
    )
    assert told(session) == [
        ("user", "request", "Do it."),
        ("note", "error", '{"attempt": 1, "errorMessage": "busy"}'),
        ("agent", None, "I begin."),
        ("tool", "browser_action", None),
        ("agent", "claim", "Done."),
    ]
    seen = session.trace.events[3]
    assert isinstance(seen, ToolUse)
    assert (seen.arguments, seen.output) == (
        {"url": "http://localhost"},
        "http://localhost/\nready",
    )
    assert not [one for one in session.trace.events if isinstance(one, Message) and not one.text]


def test_results_that_only_the_next_request_tells_are_read(tmp_path: Path) -> None:
    request = (
        "[read_file for 'a.py'] Result:\n\nx = 1\n\n"
        "[execute_command for 'make'] Result:\n\nCommand failed with exit code 2.\nOutput:\nno\n\n"
        "[replace_in_file for 'b.py'] Result:\n\nThe content was successfully saved to b.py.\n\n"
        "<environment_details>\n# Time\n</environment_details>"
    )
    session = view(
        tmp_path,
        ("say", "text", "Do it."),
        ("say", "api_req_started", {"request": "<task>Do it.</task>"}),
        ("ask", "tool", {"tool": "readFile", "path": "a.py"}),
        ("ask", "command", "make"),
        ("say", "tool", {"tool": "editedExistingFile", "path": "b.py", "diff": "x"}),
        ("say", "api_req_started", {"request": request}),
        ("say", "completion_result", "Done."),
    )
    read, ran, edited = session.trace.events[1:4]
    assert read.text == "x = 1"
    assert (ran.exit_code, ran.output) == (2, "Command failed with exit code 2.\nOutput:\nno")
    assert edited.ok is True
