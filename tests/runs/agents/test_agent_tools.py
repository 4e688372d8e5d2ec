"""What each tool of the built-in agent does, tells the model and leaves in the trace."""

from __future__ import annotations

import json

import msgspec
import pytest
from agent_desk import Desk, calls, says

from closeloop.agents.builtin import (
    NO_ANSWER,
    SYSTEM_PROMPT,
    TOOL_FUNCTIONS,
    TOOL_SPECS,
    BuiltinAgent,
)
from closeloop.agents.headless_agent import MAX_RESULT_CHARS
from closeloop.records.task import Limits
from closeloop.records.trace import Command, Edit, Handoff, Message, Note, Read, ToolUse
from patience import PATIENCE

END = says("Done.")


def test_a_command_tells_its_exit_code_first_and_then_its_output(desk: Desk) -> None:
    work = desk.work(says("", calls("run", command="echo out; echo err >&2; exit 3")), END)
    assert desk.told() == "exit code 3\nout\nerr\n"
    assert not desk.failed()
    command = work.trace.events[1]
    assert isinstance(command, Command)
    assert (command.exit_code, command.exit_from, command.stopped) == (3, "stated", None)
    assert command.output == "out\nerr\n"


def test_a_command_that_is_stopped_has_no_exit_code(desk: Desk) -> None:
    work = desk.work(says("", calls("run", command="echo begun; sleep 99", seconds=0.2)), END)
    assert desk.told().startswith("no exit code: stopped, out of time")
    assert desk.failed()
    command = work.trace.events[1]
    assert isinstance(command, Command)
    assert (command.exit_code, command.exit_from, command.stopped) == (None, None, "out of time")


def test_a_command_cannot_ask_for_more_time_than_the_limit(desk: Desk) -> None:
    desk.limits = Limits(seconds=PATIENCE, command_seconds=0.2)
    work = desk.work(says("", calls("run", command="sleep 99", seconds=1000)), END)
    assert work.trace.events[1].stopped == "out of time"


def test_long_output_is_given_as_head_and_tail_that_say_what_is_missing(desk: Desk) -> None:
    work = desk.work(says("", calls("run", command="seq 100000")), END)
    told = desk.told()
    assert len(told) < MAX_RESULT_CHARS + 200
    assert told.startswith("exit code 0\n1\n2\n")
    assert told.endswith("99999\n100000\n")
    assert "characters left out" in told
    assert len(work.trace.events[1].output) < MAX_RESULT_CHARS + 200


def test_a_file_is_read_whole_or_by_lines(desk: Desk) -> None:
    (desk.folder / "poem.txt").write_text("one\ntwo\x0cstill two\nthree\n")
    work = desk.work(
        says("", calls("read", path="poem.txt")),
        says("", calls("read", path="poem.txt", first_line=2, last_line=2)),
        says("", calls("read", path="poem.txt", first_line=3)),
        END,
    )
    assert desk.told(1) == "one\ntwo\x0cstill two\nthree\n"
    assert desk.told(2) == "two\x0cstill two"
    assert desk.told(3) == "three"
    read = work.trace.events[2]
    assert isinstance(read, Read)
    assert (read.first_line, read.last_line, read.text) == (2, 2, "two\x0cstill two")
    assert read.ok is True


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"path": "missing.txt"}, "No such file or directory"),
        ({"path": "folder"}, "Is a directory"),
        ({"path": "/etc/passwd"}, "outside the workspace"),
        ({"path": "binary"}, "binary is not text: 4 bytes."),
        ({"path": "large"}, "larger than"),
        ({"path": "short", "first_line": 9}, "short has 1 lines: there are none from 9"),
        ({"path": "short", "first_line": 2, "last_line": 1}, "there are none from 2 to 1"),
    ],
)
def test_what_cannot_be_read_is_told_and_recorded(
    desk: Desk, arguments: dict[str, object], told: str
) -> None:
    (desk.folder / "folder").mkdir()
    (desk.folder / "binary").write_bytes(b"a\0b\xff")
    (desk.folder / "large").write_bytes(b"x" * 1_000_001)
    (desk.folder / "short").write_text("one\n")
    work = desk.work(says("", calls("read", **arguments)), END)
    assert told in desk.told()
    assert desk.failed()
    read = work.trace.events[1]
    assert (read.ok, read.text) == (False, None)
    assert told in read.error
    assert work.exit == "finished"


def test_an_empty_file_is_said_to_be_empty(desk: Desk) -> None:
    (desk.folder / "empty").touch()
    work = desk.work(says("", calls("read", path="empty")), END)
    assert desk.told() == "(the file is empty)"
    assert work.trace.events[1].text == ""


def test_writing_creates_a_file_and_then_replaces_it(desk: Desk) -> None:
    work = desk.work(
        says("", calls("write", path="a/b.txt", text="first\n")),
        says("", calls("write", path="a/b.txt", text="second\n")),
        END,
    )
    assert (desk.folder / "a/b.txt").read_text() == "second\n"
    assert (desk.told(1), desk.told(2)) == ("a/b.txt created.", "a/b.txt replaced.")
    created, replaced = work.trace.events[1:3]
    assert isinstance(created, Edit)
    assert (created.action, created.before, created.after) == ("create", None, "first\n")
    assert isinstance(replaced, Edit)
    assert (replaced.action, replaced.before, replaced.after) == ("change", "first\n", "second\n")


def test_writing_outside_is_refused_and_recorded(desk: Desk) -> None:
    work = desk.work(says("", calls("write", path="../out.txt", text="x")), END)
    assert desk.failed()
    assert (work.trace.events[1].ok, work.trace.events[1].after) == (False, "x")
    assert not (desk.folder.parent / "out.txt").exists()


def test_an_edit_replaces_a_passage_that_occurs_once(desk: Desk) -> None:
    (desk.folder / "a.py").write_bytes(b"x = 1\r\ny = 2\r\n")
    work = desk.work(says("", calls("edit", path="a.py", old="x = 1", new="x = 3")), END)
    assert (desk.folder / "a.py").read_bytes() == b"x = 3\r\ny = 2\r\n"
    edit = work.trace.events[1]
    assert isinstance(edit, Edit)
    assert (edit.before, edit.after, edit.ok) == ("x = 1", "x = 3", True)


@pytest.mark.parametrize(
    ("path", "old", "new", "told"),
    [
        ("a.py", "z", "q", "old occurs 0 times in a.py, not once"),
        ("a.py", "x", "q", "old occurs 2 times in a.py, not once"),
        ("a.py", "", "q", "old must not be empty"),
        ("a.py", "x x", "x x", "new must differ"),
        ("b.py", "x", "q", "No such file"),
        ("latin", "x", "q", "latin is not UTF-8 text"),
    ],
)
def test_an_edit_that_does_not_fit_changes_nothing(
    desk: Desk, path: str, old: str, new: str, told: str
) -> None:
    (desk.folder / "a.py").write_text("x x\n")
    (desk.folder / "latin").write_bytes(b"x\xe9")
    work = desk.work(says("", calls("edit", path=path, old=old, new=new)), END)
    assert (desk.folder / "a.py").read_text() == "x x\n"
    assert told in desk.told()
    assert desk.failed()
    assert (work.trace.events[1].ok, work.trace.events[1].before) == (False, old)


def test_a_search_gives_path_line_and_text(desk: Desk) -> None:
    (desk.folder / "src").mkdir()
    (desk.folder / ".git").mkdir()
    (desk.folder / ".git/config").write_text("total")
    (desk.folder / "src/a.py").write_text("def total(items):\n    pass\n\n\ntotals = 1\n")
    (desk.folder / "b:c.txt").write_text("the total: 5\n")
    (desk.folder / "picture").write_bytes(b"total\0")
    work = desk.work(
        says("", calls("search", pattern=r"\btotals?\b")),
        says("", calls("search", pattern="total", path="src")),
        says("", calls("search", pattern="nothing at all")),
        END,
    )
    assert sorted(desk.told(1).splitlines()) == [
        "b:c.txt:1: the total: 5",
        "src/a.py:1: def total(items):",
        "src/a.py:5: totals = 1",
    ]
    assert len(desk.told(2).splitlines()) == 2
    assert desk.told(3) == "No match."
    search = work.trace.events[2]
    assert isinstance(search, ToolUse)
    assert search.arguments == {"pattern": "total", "path": "src"}
    assert (search.name, search.ok, search.output) == ("search", True, desk.told(2))


def test_a_search_shows_the_first_matches_and_counts_the_rest(desk: Desk) -> None:
    (desk.folder / "many").write_text("match\n" * 500)
    (desk.folder / "wide").write_text("needle" * 10_000)
    desk.work(
        says("", calls("search", pattern="match")), says("", calls("search", pattern="need")), END
    )
    assert len(desk.told(1).splitlines()) == 201
    assert "300 more lines left out" in desk.told(1)
    assert len(desk.told(2)) < 400


@pytest.mark.parametrize("arguments", [{"pattern": "(("}, {"pattern": "x", "path": "missing"}])
def test_a_search_that_fails_says_why(desk: Desk, arguments: dict[str, str]) -> None:
    work = desk.work(says("", calls("search", **arguments)), END)
    assert desk.told().startswith("The search failed: grep:")
    assert desk.failed()
    assert work.trace.events[1].ok is False


def test_a_pattern_is_never_an_option_or_a_shell_line(desk: Desk) -> None:
    (desk.folder / "a").write_text("--version $(touch owned)\n")
    desk.work(
        says("", calls("search", pattern="--version", path=".")),
        says("", calls("search", pattern="$(touch owned); touch owned")),
        says("", calls("search", pattern="x", path="--help")),
        END,
    )
    assert desk.told(1) == "a:1: --version $(touch owned)"
    assert not (desk.folder / "owned").exists()
    assert "No such file" in desk.told(3)


def test_a_question_gets_the_users_answer(desk: Desk) -> None:
    desk.answer = {"Which currency?": "Euro."}.get
    work = desk.work(
        says("", calls("ask", question="Which currency?")),
        says("", calls("write", path="currency", text="EUR")),
        END,
    )
    assert desk.told(1) == "Euro."
    question, answer, edit = work.trace.events[1:4]
    assert (question.role, question.intent, question.text) == (
        "agent",
        "question",
        "Which currency?",
    )
    assert (answer.role, answer.intent, answer.text) == ("user", "answer", "Euro.")
    assert question.call == answer.call
    assert isinstance(edit, Edit)


def test_a_question_without_an_answer_is_left_to_the_agent(desk: Desk) -> None:
    work = desk.work(says("", calls("ask", question="Why?")), END)
    assert desk.told() == NO_ANSWER
    assert (work.trace.events[2].role, work.trace.events[2].intent) == ("system", "answer")


def test_a_sub_agent_sees_only_its_brief_and_reports_back(desk: Desk) -> None:
    work = desk.work(
        says("I hand this on.", calls("delegate", brief="Write a file named x.")),
        says("", calls("write", path="x", text="")),
        says("", calls("finish", summary="x is there.")),
        END,
    )
    first = desk.model.requests[1]
    assert [message.text for message in first.messages] == ["Write a file named x."]
    assert first.system == SYSTEM_PROMPT
    assert {tool.name for tool in first.tools} == set(TOOL_FUNCTIONS) - {"delegate"}
    assert desk.told() == "x is there."
    root, child = work.trace.lanes
    assert (root.parent, child.parent) == (None, root.id)
    assert (len(root.turns), len(child.turns)) == (2, 2)
    handoff = work.trace.events[2]
    assert isinstance(handoff, Handoff)
    assert (handoff.brief, handoff.child) == ("Write a file named x.", child.id)
    assert (handoff.report, handoff.ok) == ("x is there.", True)
    assert [(event.lane, event.turn) for event in work.trace.events[3:]] == [
        (child.id, None),
        (child.id, 1),
        (child.id, 2),
        (root.id, 2),
    ]
    assert work.usage.input_tokens == 400


def test_handoffs_in_one_reply_are_done_in_order_each_in_its_lane(desk: Desk) -> None:
    work = desk.work(
        says("", calls("delegate", brief="one"), calls("delegate", brief="two")),
        says("First."),
        says("Second."),
        END,
    )
    handoffs = [event for event in work.trace.events if isinstance(event, Handoff)]
    assert [(event.brief, event.report) for event in handoffs] == [
        ("one", "First."),
        ("two", "Second."),
    ]
    assert len({lane.id for lane in work.trace.lanes}) == 3
    results = [m.text for m in desk.model.requests[-1].messages if m.role == "tool"]
    assert results == ["First.", "Second."]


def test_a_sub_agent_cannot_delegate(desk: Desk) -> None:
    desk.work(
        says("", calls("delegate", brief="Go on.")),
        says("", calls("delegate", brief="No, you.")),
        says("All right."),
        END,
    )
    assert desk.told(2).startswith("No tool named 'delegate'.")


def test_a_sub_agent_that_gives_up_says_so_to_its_parent(desk: Desk) -> None:
    work = desk.work(
        says("", calls("delegate", brief="Do what cannot be done.")),
        says("", calls("finish", summary="It cannot be done.", done=False)),
        END,
    )
    assert desk.told() == "The sub-agent gave up. It cannot be done."
    assert desk.failed()
    handoff = work.trace.events[1]
    assert (handoff.ok, handoff.report) == (False, "It cannot be done.")
    note = work.trace.events[4]
    assert (note.lane, note.about) == ("sub-1", "gave_up")
    assert work.exit == "finished"


def test_finishing_ends_the_work_with_a_claim(desk: Desk) -> None:
    work = desk.work(
        says("Ready.", calls("finish", summary="All tests pass."), calls("run", command="echo no"))
    )
    assert (work.exit, work.summary, work.cause) == ("finished", "All tests pass.", None)
    said, claim, note = work.trace.events[1:]
    assert (said.text, said.intent) == ("Ready.", None)
    assert isinstance(claim, Message)
    assert (claim.text, claim.intent, claim.role) == ("All tests pass.", "claim", "agent")
    assert note.text == "Calls after finish that were not run: 1."


def test_giving_up_is_no_claim(desk: Desk) -> None:
    work = desk.work(says("", calls("finish", summary="I cannot.", done=False)))
    assert (work.exit, work.summary) == ("gave_up", "I cannot.")
    assert work.trace.events[1].intent is None
    note = work.trace.events[2]
    assert isinstance(note, Note)
    assert note.about == "gave_up"


def test_a_reply_without_calls_is_the_last_word(desk: Desk) -> None:
    work = desk.work(says("The answer is 42."))
    assert (work.exit, work.summary) == ("finished", "The answer is 42.")
    assert work.trace.events[1].intent == "claim"


def test_every_tool_that_is_offered_can_be_used() -> None:
    assert [spec.name for spec in TOOL_SPECS] == list(TOOL_FUNCTIONS)


def test_the_prompt_is_the_same_text_every_time_and_names_every_tool() -> None:
    text, tools = BuiltinAgent().prompt(None)
    assert (text, tools) == BuiltinAgent().prompt(None)
    assert text == SYSTEM_PROMPT
    assert [tool["name"] for tool in json.loads(tools)] == list(TOOL_FUNCTIONS)
    assert BuiltinAgent().prompt("Be brief.") == ("Be brief.", tools)


def test_the_variants_prompt_and_settings_reach_the_model(desk: Desk) -> None:
    desk.work(END)
    assert desk.model.requests[0].system == SYSTEM_PROMPT
    variant = desk.assignment().variant
    desk.changes = {
        "system": "Be brief.",
        "variant": msgspec.structs.replace(
            variant, settings={"temperature": 0.5, "max_tokens": 100}
        ),
    }
    desk.work(END)
    request = desk.model.requests[0]
    assert (request.system, request.temperature, request.max_tokens) == ("Be brief.", 0.5, 100)
