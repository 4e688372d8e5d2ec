"""Harbor's trajectories are read: steps, sub-agents, files that go on in others."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from closeloop.records.trace import (
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
from closeloop.traces.file_source import FileSource, installed_readers
from closeloop.traces.readers import atif

FIXTURES = Path(__file__).parent / "fixtures" / "atif"
SHARED = Path(__file__).resolve().parents[3] / "shared" / "traces"


def read(path: Path) -> Session:
    assert atif.recognises(FileSource(path))
    [session] = list(atif.read(FileSource(path)))
    return session


def made(tmp_path: Path, *steps: dict[str, Any], **more: Any) -> Session:
    """A small trajectory of an agent named `one`, read."""
    numbered = [{"step_id": number, **step} for number, step in enumerate(steps, 1)]
    agent = {"name": "one", "version": "1"}
    document = {"schema_version": "ATIF-v1.7", "agent": agent, "steps": numbered, **more}
    path = tmp_path / "made.json"
    path.write_text(json.dumps(document))
    return read(path)


def test_a_part_finds_its_owner_without_a_look_at_other_files(tmp_path: Path) -> None:
    def trajectory(name: str, *named: str) -> Path:
        steps = [
            {
                "step_id": number,
                "source": "agent",
                "observation": {
                    "results": [{"subagent_trajectory_ref": [{"trajectory_path": one}]}]
                },
            }
            for number, one in enumerate(named, 1)
        ]
        document = {"schema_version": "ATIF-v1.7", "agent": {"name": "one"}, "steps": steps}
        path = tmp_path / name
        path.write_text(json.dumps(document))
        return path

    owner = trajectory("run.json", "run.first.json", "run.first.inner.json")
    first, inner = trajectory("run.first.json"), trajectory("run.first.inner.json")
    stranger = trajectory("run.other.json")
    (tmp_path / "run.").mkdir()
    assert atif.owner(FileSource(first)) == owner
    assert atif.owner(FileSource(inner)) == owner
    assert atif.owner(FileSource(stranger)) is None
    assert atif.parts(FileSource(owner)) == [first, inner]


def test_embedded_sub_agents_are_lanes_joined_to_the_call_that_refers_to_them() -> None:
    session = read(FIXTURES / "embedded.json")
    events = session.trace.events
    assert [(event.lane, type(event)) for event in events] == [
        ("root", Message), ("root", Thought), ("root", Message), ("root", Command),
        ("root", Handoff), ("reader-1", Message), ("reader-1", Read), ("reader-1", Message),
        ("root", Edit), ("root", Message), ("unused", Message),
    ]  # fmt: skip
    assert session.system == "You are the lead."
    request, command, handoff, edit, claim = (events[place] for place in (0, 3, 4, 8, 9))
    assert isinstance(request, Message)
    assert request.text == "Fix the rounding.\n[image: images/bill.png]"
    assert isinstance(command, Command)
    assert (command.exit_code, command.exit_from) == (1, "parsed")
    assert isinstance(handoff, Handoff)
    assert (handoff.brief, handoff.child) == ("Read billing.py.", "reader-1")
    assert handoff.report == "It truncates."
    assert isinstance(edit, Edit)
    assert (edit.ok, edit.error, edit.turn) == (False, "no such text", None)
    assert isinstance(claim, Message)
    assert claim.intent == "claim"
    assert session.summary == "The rounding is right now."
    assert (session.directory, session.branch) == ("/workspace", "main")


def test_tokens_are_fresh_input_and_the_stated_cost_of_the_whole_counts() -> None:
    usage = read(FIXTURES / "embedded.json").usage
    assert usage.input_tokens == (1000 - 600 - 100) + (1200 - 1100) + 300 + 340
    assert (usage.cache_read_tokens, usage.cache_write_tokens) == (1700, 100)
    assert (usage.output_tokens, usage.reasoning_tokens) == (98, 20)
    assert (usage.cost, usage.cost_from) == (0.02, "reported")


def test_a_run_in_several_files_is_one_session_without_its_copies() -> None:
    path = FIXTURES / "trajectory.json"
    session = read(path)
    child = "run-2-summarization-1-summary"
    texts = [event.text for event in session.trace.events if isinstance(event, Message)]
    assert texts == [
        "Make greeting.txt.", "Analysis: nothing is there yet.", "Summarize what you did.",
        "greeting.txt says hello.", "Here is what was done: greeting.txt says hello.",
        "It is complete.",
    ]  # fmt: skip
    abouts = [event.about for event in session.trace.events if isinstance(event, Note)]
    assert abouts == ["compaction", "copied context", "copied context"]
    [handoff] = [event for event in session.trace.events if isinstance(event, Handoff)]
    assert (handoff.child, handoff.report) == (child, "greeting.txt says hello.")
    assert session.usage.input_tokens == 500 + 600 + 150
    last = session.trace.events[-1]
    assert isinstance(last, Message)
    assert (last.intent, last.call) == ("claim", "call_1_task_complete")
    assert atif.parts(FileSource(path)) == [
        FIXTURES / "trajectory.summarization-1-summary.json",
        FIXTURES / "trajectory.cont-1.json",
    ]
    for part in atif.parts(FileSource(path)):
        assert atif.owner(FileSource(part)) == path
    assert atif.owner(FileSource(path)) is None


def test_a_sub_agents_file_that_is_not_there_is_counted(tmp_path: Path) -> None:
    shutil.copy(FIXTURES / "trajectory.json", tmp_path)
    source = FileSource(tmp_path / "trajectory.json")
    list(atif.read(source))
    assert source.skipped == {"a sub-agent's trajectory that is not there": 1}


def test_a_file_outside_the_folder_is_never_opened(tmp_path: Path) -> None:
    shutil.copy(FIXTURES / "trajectory.cont-1.json", tmp_path / "secret.json")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "link.json").symlink_to(tmp_path / "secret.json")
    (folder / "out").symlink_to(tmp_path)
    names = ("../secret.json", str(tmp_path / "secret.json"), "https://host/secret.json",
             "link.json", "out/secret.json")  # fmt: skip
    for named in names:
        session = made(folder, {"source": "user", "message": "Go."}, continued_trajectory_ref=named)
        assert len(session.trace.events) == 1


def test_what_the_converter_for_claude_code_made_up_is_not_taken_for_words() -> None:
    session = read(FIXTURES / "claude_code.json")
    assert [type(event).__name__ for event in session.trace.events] == [
        "Message", "Thought", "Command", "Command", "Message", "Read",
    ]  # fmt: skip
    listed, failed = (event for event in session.trace.events if isinstance(event, Command))
    assert (listed.output, listed.exit_code, listed.exit_from) == ("a.txt", 0, "parsed")
    assert (failed.exit_code, failed.exit_from) == (2, "parsed")
    assert [event.turn for event in session.trace.events] == [None, 1, 1, 1, 2, 2]
    unfinished = session.trace.events[-1]
    assert isinstance(unfinished, Read)
    assert (unfinished.text, unfinished.ok) == (None, None)


def test_terminal_keystrokes_are_commands_and_one_screen_is_the_last_ones_output() -> None:
    session = read(FIXTURES / "trajectory.json")
    first, second = (event for event in session.trace.events if isinstance(event, Command))
    assert (first.command, first.output) == ("echo hello > greeting.txt\n", None)
    assert second.output == "$ cat greeting.txt\nhello"
    assert second.exit_code is None


def test_ids_that_are_used_again_pair_in_order(tmp_path: Path) -> None:
    calls = [
        {"tool_call_id": "x", "function_name": "lookup", "arguments": {"n": n}} for n in range(3)
    ]
    results = [{"source_call_id": "x", "content": f"result {n}"} for n in range(2)]
    session = made(
        tmp_path,
        {"source": "agent", "message": "", "tool_calls": calls,
         "observation": {"results": results}},
    )  # fmt: skip
    outputs = [event.output for event in session.trace.events if isinstance(event, ToolUse)]
    assert outputs == ["result 0", "result 1", None]


def test_totals_are_believed_where_steps_say_nothing_and_zeros_are_not(tmp_path: Path) -> None:
    step = {"source": "agent", "message": "Hi."}
    told = made(tmp_path, step, final_metrics={"total_prompt_tokens": 70, "total_cost_usd": 0.5})
    assert (told.usage.input_tokens, told.usage.cost) == (70, 0.5)
    zeros = made(tmp_path, step, final_metrics={"total_prompt_tokens": 0, "total_cost_usd": 0.0})
    assert (zeros.usage.input_tokens, zeros.usage.cost) == (None, None)
    assert len(zeros.trace.lanes[0].turns) == 1


def test_an_answer_to_a_question_is_the_users(tmp_path: Path) -> None:
    call = {"tool_call_id": "q", "function_name": "ask_user", "arguments": {"question": "Which?"}}
    results = [{"source_call_id": "q", "content": "The first."}]
    session = made(
        tmp_path,
        {"source": "agent", "message": "", "tool_calls": [call],
         "observation": {"results": results}},
    )  # fmt: skip
    told = [(e.role, e.intent, e.text) for e in session.trace.events if isinstance(e, Message)]
    assert told == [("agent", "question", "Which?"), ("user", "answer", "The first.")]


def test_a_step_from_nobody_known_is_kept_as_a_note(tmp_path: Path) -> None:
    session = made(tmp_path, {"source": "oracle", "message": "Hm."})
    [note] = session.trace.events
    assert isinstance(note, Note)
    assert note.about == "unknown: oracle"
    assert "Hm." in note.text


def test_what_only_claims_to_be_ours_cannot_make_a_trace_that_does_not_fit(tmp_path: Path) -> None:
    own = {"event": {"kind": "handoff", "brief": "b", "child": "nowhere", "lane": "x", "number": 9}}
    session = made(tmp_path, {"source": "user", "message": "Hi.", "extra": {"closeloop": own}})
    [event] = session.trace.events
    assert isinstance(event, Handoff)
    assert (event.number, event.lane, event.child) == (1, "root", None)


def test_other_json_is_not_taken_for_a_trajectory(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    for other in ({"schema_version": "ATIF-v1.2"}, {"steps": []}, {"schema_version": 1}, []):
        path.write_text(json.dumps(other))
        assert not atif.recognises(FileSource(path))


def test_trajectories_may_stand_one_a_line(tmp_path: Path) -> None:
    lines = [
        json.dumps(json.loads((FIXTURES / name).read_text()))
        for name in ("embedded.json", "claude_code.json")
    ]
    path = tmp_path / "many.jsonl"
    path.write_text("\n".join([*lines, '{"a": 1}', ""]))
    source = FileSource(path)
    assert [session.id for session in atif.read(source)] == ["run-1", "run-3"]
    assert source.skipped == {"a record that is no trajectory": 1}


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared recordings are not here")
def test_every_shared_recording_is_read_with_all_its_pairs() -> None:
    paths = sorted((SHARED / "harbor_atif").rglob("trajectory.json"))
    assert paths
    for path in paths:
        document = json.loads(path.read_text())
        assert [one.name for one in installed_readers() if one.recognises(FileSource(path))] == [
            "atif"
        ]
        session = read(path)
        steps = document["steps"]
        calls = [call for step in steps for call in step.get("tool_calls") or []]
        paired = [
            one for step in steps for one in (step.get("observation") or {}).get("results", [])
        ]
        events = [event for event in session.trace.events if event.call is not None]
        done = [
            event
            for event in events
            if any(getattr(event, name, None) is not None for name in ("output", "text", "ok"))
        ]
        assert len(events) == len(calls)
        assert len(done) == len(paired)
        final = document["final_metrics"]
        usage = session.usage
        assert usage.output_tokens == final["total_completion_tokens"]
        assert usage.cache_read_tokens == final["total_cached_tokens"]
        total = (usage.input_tokens or 0) + (usage.cache_write_tokens or 0)
        assert total == final["total_prompt_tokens"] - final["total_cached_tokens"]


def test_a_result_in_a_step_of_its_own_goes_to_the_call_it_names(tmp_path: Path) -> None:
    asked = {"tool_call_id": "a", "function_name": "exec", "arguments": {"command": "make"}}
    result = {"source_call_id": "a", "content": '{"output": "failed", "exit_code": 2}'}
    session = made(
        tmp_path,
        {"source": "agent", "message": "(no assistant text)", "tool_calls": [asked]},
        {"source": "system", "message": "", "observation": {"results": [result]}},
    )
    (command,) = session.trace.events
    assert isinstance(command, Command)
    assert (command.output, command.exit_code, command.exit_from) == ("failed", 2, "parsed")


@pytest.mark.parametrize(
    ("said", "ok"),
    [
        ("Successfully replaced 1 block(s) in a.py.", True),
        ("The file a.py has been updated.\nraise Error", True),
        ('{"success": true, "diff": "error"}', True),
        ('{"success": false}', False),
        ("Error: a.py was not found", False),
        ("No replacement was performed: old_str was not found.", None),
        ("1 + 1", None),
    ],
)
def test_the_words_of_a_result_say_whether_an_edit_was_made(
    said: str, ok: bool | None, tmp_path: Path
) -> None:
    given = {"path": "a.py", "old_string": "x", "new_string": "y"}
    asked = {"tool_call_id": "a", "function_name": "patch", "arguments": given}
    results = {"results": [{"source_call_id": "a", "content": said}]}
    step = {"source": "agent", "message": "", "tool_calls": [asked], "observation": results}
    (edit,) = made(tmp_path, step).trace.events
    assert isinstance(edit, Edit)
    assert (edit.before, edit.after, edit.ok) == ("x", "y", ok)


@pytest.mark.parametrize(
    ("asked", "read", "wrote", "fresh"),
    [(100, 60, 30, 10), (100, 90, 30, 10), (100, 200, 5, 100), (100, None, None, 100)],
)
def test_what_a_cache_gave_is_not_counted_as_fresh(
    asked: int, read: int | None, wrote: int | None, fresh: int, tmp_path: Path
) -> None:
    metrics = {
        "prompt_tokens": asked,
        "completion_tokens": 1,
        "cached_tokens": read,
        "extra": {"cache_creation_input_tokens": wrote},
    }
    session = made(tmp_path, {"source": "agent", "message": "x", "metrics": metrics})
    assert session.usage.input_tokens == fresh


def test_a_trajectory_that_ends_inside_a_call_did_not_finish(tmp_path: Path) -> None:
    ask = {"source": "user", "message": "Fix it"}
    call = {"tool_call_id": "c", "function_name": "bash", "arguments": {"command": "make"}}
    step = {"source": "agent", "message": "I build.", "tool_calls": [call]}
    cut = made(tmp_path, ask, step)
    assert (cut.exit, cut.cause) == ("crashed", "The recording ends before a call's result.")
    assert cut.summary == "I build."
    result = {"results": [{"source_call_id": "c", "content": "ok"}]}
    assert made(tmp_path, ask, step | {"observation": result}).exit == "finished"
