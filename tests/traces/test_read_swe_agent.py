from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from read_back import FIXTURES, REAL, recognised_by, sessions, told, written

from closeloop.records.trace import Note, Read
from closeloop.traces.readers import swe_agent

FOLDER = FIXTURES / "swe_agent"
RECORDINGS = sorted((REAL / "swe_agent_traj").glob("*/*"))


def step(action: str, observation: str = "", **more: Any) -> dict[str, Any]:
    state = {"open_file": "/p/a.py", "working_dir": "/p"}
    return {"action": action, "observation": observation, "thought": "", "state": state, **more}


def run(steps: list[Any], tmp_path: Path, **more: Any) -> Any:
    document = {"trajectory": steps, "history": [], "info": {"exit_status": "submitted"}, **more}
    return sessions(swe_agent, written(tmp_path / "x", document))[0]


def test_a_run_of_version_0_is_read_event_by_event() -> None:
    (session,) = sessions(swe_agent, FOLDER / "v0.traj")
    assert told(session) == [
        ("user", "request", "We're solving this issue: the sum is wrong."),
        ("thought", "Let us look at the file."),
        ("read", "/project/sums.py", True),
        ("thought", "Now the test."),
        ("run", "python test_sums.py", None, None, None),
        ("thought", "I take all numbers."),
        ("change", "/project/sums.py", None, "   return sum(numbers", False),
        ("thought", "With its bracket."),
        ("change", "/project/sums.py", None, "    return sum(numbers)", True),
        ("thought", "I try to serve it."),
        ("run", "python -m http.server", None, None, "out of time"),
        ("thought", "The test again."),
        ("run", "python test_sums.py", None, None, None),
        ("agent", "claim", "The test passes, so I hand it in."),
        ("tool", "submit", None),
        ("note", "submission", "diff --git a/sums.py b/sums.py"),
    ]
    assert session.system == "SETTING: You are an autonomous programmer."
    assert session.directory == "/project"
    usage = session.usage
    assert (usage.input_tokens, usage.output_tokens, usage.cost) == (28000, 310, 0.31)
    assert all(event.at is None for event in session.trace.events)


def test_a_run_of_version_1_is_read_event_by_event() -> None:
    (session,) = sessions(swe_agent, FOLDER / "v1.traj")
    assert told(session) == [
        ("user", "request", "Make the sum right."),
        ("thought", "I look at the file."),
        ("read", "/testbed/sums.py", True),
        ("thought", "I change it."),
        ("change", "/testbed/sums.py", "sum(numbers)", "add(numbers)", False),
        ("thought", "With the right text."),
        (
            "change",
            "/testbed/sums.py",
            "    return sum(numbers[1:])",
            "    return sum(numbers)",
            True,
        ),
        ("thought", "I run the test."),
        ("run", "python test_sums.py (", None, None, None),
        ("thought", "Done, I think."),
        ("note", "format error", "no action"),
        ("thought", "I run the test without the bracket."),
        ("run", "python test_sums.py", None, None, None),
        ("note", "limit", "Exit due to cost limit"),
        ("note", "submission", "diff --git a/sums.py b/sums.py"),
    ]
    refused, ran = session.trace.events[8], session.trace.events[12]
    assert (refused.output, ran.output, ran.seconds) == (None, "ok", 0.6)  # type: ignore[union-attr]
    assert (session.exit, session.cause) == ("out_of_budget", "submitted (exit_cost)")
    assert (session.model, session.commit) == ("gpt-4o", "bfd2593d4b41")
    assert session.links == {"instance": "sums-1"}


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        ("open b.py 12", ("read", "/p/b.py", True)),
        ("goto 40", ("read", "/p/a.py", True)),
        ("scroll_down", ("read", "/p/a.py", True)),
        ("create c.py", ("create", "/p/c.py", None, None, True)),
        (
            "edit 1:2\nx = 1\ny = 2\nend_of_edit\n",
            ("change", "/p/a.py", None, "x = 1\ny = 2", True),
        ),
        ("edit\nx = 1\nend_of_edit", ("change", "/p/a.py", None, "x = 1", True)),
        ("edit 'old\nlines' 'new\nlines'", ("change", "/p/a.py", "old\nlines", "new\nlines", True)),
        ("edit 'all of it'", ("change", "/p/a.py", None, "all of it", True)),
        ("insert 'more' 3", ("change", "/p/a.py", None, "more", True)),
        (
            "str_replace_editor create /p/n.py --file_text 'a = 1\n'",
            ("create", "/p/n.py", None, "a = 1\n", True),
        ),
        ("create c.py && cat c.py", ("run", "create c.py && cat c.py", None, None, None)),
        ("search_dir total src", ("run", "search_dir total src", None, None, None)),
    ],
)
def test_the_shells_own_commands_are_told_as_what_they_do(
    action: str, expected: tuple[Any, ...], tmp_path: Path
) -> None:
    session = run([step(action, "[File: /p/a.py (2 lines total)]\n1:x")], tmp_path)
    assert told(session)[0] == expected


def test_the_line_that_is_opened_is_kept(tmp_path: Path) -> None:
    event = run([step("open b.py 12", "[File: /p/b.py (99 lines total)]")], tmp_path).trace.events[
        0
    ]
    assert isinstance(event, Read)
    assert event.first_line == 12


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ("submitted", ("finished", None)),
        ("submitted (exit_context)", ("out_of_budget", "submitted (exit_context)")),
        ("exit_cost", ("out_of_budget", "exit_cost")),
        ("exit_format", ("gave_up", "exit_format")),
        ("exit_total_execution_time", ("out_of_time", "exit_total_execution_time")),
        ("exit_environment_error", ("machine", "exit_environment_error")),
        ("early_exit", ("crashed", "early_exit")),
        (None, ("crashed", "no exit status")),
    ],
)
def test_how_a_run_ended_is_told(status: str | None, expected: Any, tmp_path: Path) -> None:
    session = run([step("ls")], tmp_path, info={"exit_status": status})
    assert (session.exit, session.cause) == expected


def test_several_attempts_are_several_sessions_and_the_chosen_one_is_no_more(
    tmp_path: Path,
) -> None:
    runs = [
        {"trajectory": [step(line, execution_time=time)], "history": [], "info": {}}
        for line, time in (("ls", 0.1), ("pwd", 0.2))
    ]
    found = sessions(swe_agent, written(tmp_path / "x", {"attempts": runs, **runs[1]}))
    assert [told(session)[0][1] for session in found] == ["ls", "pwd"]
    assert len({session.id for session in found}) == 2


def test_counts_of_a_replay_without_calls_are_not_believed(tmp_path: Path) -> None:
    stats = {"tokens_sent": 0, "tokens_received": 0, "instance_cost": 0, "api_calls": 0}
    usage = run([step("ls")], tmp_path, info={"model_stats": stats}).usage
    assert (usage.input_tokens, usage.output_tokens, usage.cost) == (None, None, None)


@pytest.mark.skipif(not RECORDINGS, reason="no shared recordings")
@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name[:60])
def test_real_recordings_keep_every_step_with_its_observation(path: Path) -> None:
    assert recognised_by(path) == ["swe-agent"]
    document = json.loads(path.read_text())
    (session,) = sessions(swe_agent, path)
    steps = document["trajectory"]
    assert len(session.trace.lanes[0].turns) == len(steps)
    done = [
        entry for entry in told(session) if entry[0] not in ("user", "agent", "thought", "note")
    ]
    assert len(done) == sum(bool(one["action"].strip()) for one in steps)
    assert not any("demonstration of how" in event.text for event in messages(session))
    stats = document["info"]["model_stats"]
    assert (session.usage.output_tokens or 0) == stats["tokens_received"]


def messages(session: Any) -> list[Any]:
    return [
        event for event in session.trace.events if hasattr(event, "role") or isinstance(event, Note)
    ]
