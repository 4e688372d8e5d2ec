from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from claude_log import SESSION, Log, only, read, session_of, words

from closeloop.records.trace import Command, Edit, Note, Thought, ToolUse
from closeloop.traces.session_import import explain_unknown_cost, usage_with_cost


@pytest.fixture
def log() -> Log:
    log = Log()
    log.user("Do it.")
    return log


# Results


@pytest.mark.parametrize(
    ("result", "more", "code", "stopped"),
    [
        ("fine", {"is_error": False}, 0, None),
        ("fine", {"detail": {"stdout": "fine", "stderr": ""}}, 0, None),
        ("fine", {}, None, None),
        ("Exit code 3\nbad", {"is_error": True}, 3, None),
        ("bad", {"is_error": True, "detail": "Error: Exit code 4\nbad"}, 4, None),
        ("Traceback", {"is_error": True, "detail": "Error: Traceback"}, None, None),
        ("", {"detail": {"stdout": "", "returnCodeInterpretation": "No matches found"}}, 1, None),
        ("", {"detail": {"stdout": "", "returnCodeInterpretation": "Odd"}}, None, None),
        ("", {"detail": {"stdout": "", "interrupted": True}}, None, "interrupted"),
        ("Sibling tool call errored", {"is_error": True}, None, "another call failed"),
        ("Command timed out after 2m", {"is_error": True}, None, "out of time"),
    ],
)
def test_exit_codes_are_what_the_results_say(
    log: Log, tmp_path: Path, result: str, more: dict[str, Any], code: Any, stopped: Any
) -> None:
    log.call("Bash", {"command": "x"}, result, **more)
    ran = only(session_of(log, tmp_path), Command)
    assert (ran.exit_code, ran.stopped, ran.output) == (code, stopped, result)
    assert ran.exit_from == (None if code is None else "parsed")


def test_a_refused_call_is_a_correction_in_the_users_words(log: Log, tmp_path: Path) -> None:
    refusal = "The user doesn't want to proceed with this tool use. The tool use was rejected."
    edit = {"file_path": "/w/a", "old_string": "a", "new_string": "b"}
    log.call("Edit", edit, f"{refusal} the user said:\nUse c.", is_error=True)
    log.call("Bash", {"command": "rm a"}, refusal, is_error=True, detail="User rejected tool use")
    log.user([{"type": "text", "text": "[Request interrupted by user for tool use]"}])
    session = session_of(log, tmp_path)
    assert words(session.trace.events)[1:] == [
        ("user", "correction", "Use c."),
        ("user", "correction", "The user doesn't want to proceed with this tool use."),
        ("user", "interrupt", "[Request interrupted by user for tool use]"),
    ]
    assert only(session, Edit).ok is False
    assert only(session, Command).stopped == "rejected"
    assert (session.exit, session.cause) == ("gave_up", "The user interrupted it.")


def test_edits_keep_what_was_replaced(log: Log, tmp_path: Path) -> None:
    hunk = {"oldStart": 1, "oldLines": 1, "newStart": 1, "newLines": 1, "lines": ["-a", "+b"]}
    detail = {"type": "update", "originalFile": "a\n", "structuredPatch": [hunk]}
    log.call("Write", {"file_path": "/w/a", "content": "b\n"}, "Updated.", detail=detail)
    log.call("Write", {"file_path": "/w/b", "content": "b\n"}, "File created.", detail={})
    edits = [{"old_string": "a", "new_string": "b"}, {"old_string": "c", "new_string": "d"}]
    log.call("MultiEdit", {"file_path": "/w/c", "edits": edits}, "Done.")
    missing = "<tool_use_error>String to replace not found in file.</tool_use_error>"
    one = {"file_path": "/w/d", "old_string": "a", "new_string": "b"}
    log.call("Edit", one, missing, is_error=True)
    log.call("Edit", one)
    events = session_of(log, tmp_path).trace.events
    update, create, several, failed, open_ = [e for e in events if isinstance(e, Edit)]
    assert (update.action, update.before, update.after) == ("change", "a\n", "b\n")
    assert update.patch == "@@ -1,1 +1,1 @@\n-a\n+b"
    assert (create.action, create.after, create.ok) == ("create", "b\n", True)
    assert several.patch == "@@\n-a\n+b\n@@\n-c\n+d"
    assert (failed.ok, failed.error) == (False, "String to replace not found in file.")
    assert (open_.ok, open_.error) == (None, None)


def test_an_edit_the_user_changed_is_a_correction(log: Log, tmp_path: Path) -> None:
    edit = {"file_path": "/w/a", "old_string": "a", "new_string": "b"}
    log.call("Edit", edit, "Updated.", detail={"userModified": True, "newString": "c"})
    session = session_of(log, tmp_path)
    assert only(session, Edit).after == "c"
    assert session.trace.events[-1].intent == "correction"  # type: ignore[union-attr]


def test_questions_and_plans_have_their_answers(log: Log, tmp_path: Path) -> None:
    asked = {"questions": [{"question": "Tabs?"}]}
    log.call(
        "AskUserQuestion", asked, 'Answered: "Tabs?"="No"', detail={"answers": {"Tabs?": "No"}}
    )
    log.call("ExitPlanMode", {}, "User has approved your plan.", detail={"plan": "1. Go"})
    assert words(session_of(log, tmp_path).trace.events)[1:] == [
        ("agent", "question", "Tabs?"),
        ("user", "answer", "No"),
        ("agent", "question", "1. Go"),
        ("user", "answer", "User has approved your plan."),
    ]


def test_what_the_client_says_among_the_users_words_is_a_note(log: Log, tmp_path: Path) -> None:
    log.user("<agent-notification>\n<agent-id>a1</agent-id>\n</agent-notification>")
    log.user("Operation stopped by hook: Another session is active.")
    log.user("<ide_opened_file>The user opened a.py.</ide_opened_file>\nNow the other one.")
    log.user("<command-message>review</command-message>\n<command-name>/review</command-name>")
    events = session_of(log, tmp_path).trace.events[1:]
    assert [(event.about if isinstance(event, Note) else event.role) for event in events] == [  # type: ignore[union-attr]
        "agent notification",
        "hook",
        "user",
        "user",
    ]


def test_ids_that_are_used_again_are_paired_in_order(log: Log, tmp_path: Path) -> None:
    for output in ("one", "two"):
        log.call("Bash", {"command": output}, output, id="functions.Bash:0", is_error=False)
    log.user([{"type": "tool_result", "tool_use_id": "functions.Bash:0", "content": "three"}])
    session = session_of(log, tmp_path)
    ran = [event for event in session.trace.events if isinstance(event, Command)]
    assert [(event.command, event.output) for event in ran] == [("one", "one"), ("two", "two")]
    assert (only(session, Note).about, only(session, Note).text) == (
        "result without a call",
        "three",
    )


def test_a_call_at_the_end_stays_open(log: Log, tmp_path: Path) -> None:
    log.call("Bash", {"command": "sleep 99"})
    session = session_of(log, tmp_path)
    ran = only(session, Command)
    assert (ran.output, ran.exit_code) == (None, None)
    assert (session.exit, session.cause) == (
        "crashed",
        "The recording ends before a call's result.",
    )


# Tokens


def test_a_message_in_several_records_counts_once(log: Log, tmp_path: Path) -> None:
    counts = {"input_tokens": 7, "cache_read_input_tokens": 3, "cache_creation_input_tokens": 2}
    for number, block in enumerate(({"type": "thinking", "thinking": "Hm."}, "Yes.")):
        given = {**counts, "output_tokens": 5 + number}
        log.agent(block, name="msg_1", message={"usage": given})
    session = session_of(log, tmp_path)
    usage = session.usage
    assert (usage.input_tokens, usage.cache_read_tokens, usage.cache_write_tokens) == (7, 3, 2)
    assert usage.output_tokens == 6
    assert only(session, Thought).turn == 1


@pytest.mark.parametrize(
    ("outputs", "reason", "known"),
    [([1], None, None), ([1, 1], None, None), ([1, 90], None, 90), ([90], "end_turn", 90),
     ([25], None, None), ([25, 25], None, None), ([90], None, 90), ([25], "end_turn", 25),
     ([0], "end_turn", None)],
)  # fmt: skip
def test_placeholders_are_not_believed(
    log: Log, tmp_path: Path, outputs: list[int], reason: Any, known: Any
) -> None:
    for output in outputs:
        usage = {"input_tokens": 7, "output_tokens": output}
        log.agent("x", name="msg_1", message={"usage": usage, "stop_reason": reason})
    assert session_of(log, tmp_path).usage.output_tokens == known


@pytest.mark.parametrize(("unknown", "output"), [(1, 90), (2, None)])
def test_a_part_of_the_output_is_no_total(
    log: Log, tmp_path: Path, unknown: int, output: int | None
) -> None:
    """A tenth of the turns may lack their count, as those that were interrupted."""
    usage = {"input_tokens": 7, "output_tokens": 1}
    for number in range(10):
        known = {"usage": {**usage, "output_tokens": 10}, "stop_reason": "end_turn"}
        message = {"usage": usage, "stop_reason": None} if number < unknown else known
        log.agent("x", message={"model": "claude-sonnet-4-20250514", **message})
    session = session_of(log, tmp_path)
    assert (session.usage.input_tokens, session.usage.output_tokens) == (70, output)
    priced = usage_with_cost(session)
    assert (priced.cost is None) == (output is None)
    if output is None:
        assert explain_unknown_cost(session.trace, session.model, priced) == (
            "the recording lacks the output tokens of 2 of 10 turns"
        )


def test_what_the_client_says_in_the_models_place_is_no_turn(log: Log, tmp_path: Path) -> None:
    log.agent("API Error: 529", message={"model": "<synthetic>"}, isApiErrorMessage=True)
    session = session_of(log, tmp_path)
    assert session.trace.lanes[0].turns == ()
    assert only(session, Note).about == "api error"
    assert (session.exit, session.cause, session.model) == ("machine", "API Error: 529", None)


# The conversation


def test_a_rewind_is_noted_and_nothing_of_it_lost(log: Log, tmp_path: Path) -> None:
    start = log.agent("One?")
    log.user("Yes.")
    log.agent("Done.")
    log.last = start
    log.user("No.")
    session = session_of(log, tmp_path)
    note = only(session, Note)
    assert (note.about, note.text) == ("rewind", "The conversation goes back to event 2.")
    assert [text for _, _, text in words(session.trace.events)] == [
        "Do it.", "One?", "Yes.", "Done.", "No.",
    ]  # fmt: skip


def test_results_of_parallel_calls_are_no_rewind(log: Log, tmp_path: Path) -> None:
    calls = [{"type": "tool_use", "id": f"c{n}", "name": "LS", "input": {}} for n in (1, 2)]
    first = log.agent(calls[0], name="msg_1")
    second = log.agent(calls[1], name="msg_1")
    for parent, call in ((first, "c1"), (second, "c2")):
        log.last = parent
        log.user([{"type": "tool_result", "tool_use_id": call, "content": "x"}])
    log.agent("Done.")
    log.user("Thanks.")
    session = session_of(log, tmp_path)
    assert not [event for event in session.trace.events if isinstance(event, Note)]
    assert [e.output for e in session.trace.events if isinstance(e, ToolUse)] == ["x", "x"]


def test_a_compaction_is_one_note_with_its_summary(log: Log, tmp_path: Path) -> None:
    log.put("system", subtype="compact_boundary", content="Conversation compacted")
    log.user("This session is being continued…", isCompactSummary=True)
    events = session_of(log, tmp_path).trace.events
    notes = [(event.about, event.text) for event in events if isinstance(event, Note)]
    assert notes == [("compaction", "This session is being continued…")]


def test_what_the_client_puts_among_the_users_words_is_not_theirs(tmp_path: Path) -> None:
    log = Log()
    log.user("Caveat: The messages below were generated by the user while…", isMeta=True)
    log.user("<command-name>/clear</command-name>")
    log.user("<local-command-stdout></local-command-stdout>")
    log.user([
        {"type": "text", "text": "<ide_opened_file>a.py</ide_opened_file>"},
        {"type": "text", "text": "Do it."},
    ])  # fmt: skip
    log.user("<command-name>/review</command-name>")
    session = session_of(log, tmp_path)
    assert words(session.trace.events) == [
        ("user", "request", "Do it."),
        ("user", None, "<command-name>/review</command-name>"),
    ]


def test_a_file_with_several_sessions_gives_each_of_them(tmp_path: Path) -> None:
    log = Log()
    log.user("One.", sessionId="s1")
    log.agent("Done.", sessionId="s1")
    log.user("Two.", sessionId="s2")
    path = log.write(tmp_path / "s2.jsonl")
    first, second = read(path)[0]
    assert (first.id, second.id, second.links) == ("s1", "s2", {"continues": "s1"})
    log.write(tmp_path / "s1.jsonl")
    assert [session.id for session in read(path)[0]] == ["s2"]


def test_records_copied_from_another_session_are_not_told_again(tmp_path: Path) -> None:
    log = Log()
    origin = {"sessionId": "other", "messageUuid": "x"}
    log.user("Old.", forkedFrom=origin)
    log.agent("Old too.", forkedFrom=origin)
    log.user("New.")
    log.agent("Done.")
    session = session_of(log, tmp_path)
    assert [text for _, _, text in words(session.trace.events)] == ["New.", "Done."]
    assert session.links == {"forked from": "other"}
    assert session.usage.input_tokens == 10


def test_lines_that_are_there_twice_count_once(log: Log, tmp_path: Path) -> None:
    log.agent("Done.")
    log.lines *= 2
    session = session_of(log, tmp_path)
    assert len(session.trace.events) == 2


def test_what_stands_beside_the_talk_is_kept_or_counted(log: Log, tmp_path: Path) -> None:
    leaf = log.agent("Done.")
    log.lines[0:0] = [
        {"type": "summary", "summary": "Of another", "leafUuid": "elsewhere"},
        {"type": "file-history-snapshot", "messageId": "m", "snapshot": {}},
    ]
    log.lines += [
        {"type": "summary", "summary": "Its title", "leafUuid": leaf},
        {"type": "mode", "mode": "plan", "sessionId": SESSION},
        {"type": "mode", "mode": "normal", "sessionId": SESSION},
        {
            "type": "queue-operation",
            "operation": "enqueue",
            "content": "More",
            "sessionId": SESSION,
        },
        {"type": "progress", "data": {"type": "bash_progress"}, "sessionId": SESSION},
        {"type": "brand-new", "value": 1, "sessionId": SESSION},
    ]
    (session,), skipped = read(log.write(tmp_path / f"{SESSION}.jsonl"))
    assert [(e.about, e.text) for e in session.trace.events if isinstance(e, Note)] == [
        ("mode", "normal"),
        ("unknown: brand-new", f'{{"type":"brand-new","value":1,"sessionId":"{SESSION}"}}'),
        ("title", "Its title"),
        ("queued message", "More"),
    ]
    assert skipped == {
        "file-history-snapshot": 1,
        "progress: bash_progress": 1,
        "summary of another session": 1,
    }


def test_a_message_sent_while_the_agent_works_is_the_users(log: Log, tmp_path: Path) -> None:
    log.put("queue-operation", operation="enqueue", content="Also b.")
    log.put("attachment", attachment={"type": "queued_command", "prompt": "Also b."})
    session = session_of(log, tmp_path)
    assert words(session.trace.events)[1:] == [("user", None, "Also b.")]


def test_words_taken_from_the_queue_were_heard_before_the_agent_went_on(
    log: Log, tmp_path: Path
) -> None:
    for content in ("Also b.", '{"task_id":"t"}', "Not c."):
        log.put("queue-operation", operation="enqueue", content=content)
    log.put("queue-operation", operation="remove")
    log.put("queue-operation", operation="remove")
    log.agent("Then b, too.")
    log.put("attachment", attachment={"type": "queued_command", "prompt": "Also b."})
    log.put("queue-operation", operation="popAll", content="Not c.")
    events = session_of(log, tmp_path).trace.events
    assert words(events)[1:] == [("user", None, "Also b."), ("agent", "claim", "Then b, too.")]
    notes = [(event.about, event.text) for event in events if isinstance(event, Note)]
    assert notes == [("queued message", "Not c.")]
