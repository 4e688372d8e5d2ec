from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from read_back import FIXTURES, REAL, actions, recognised_by, sessions, told, written

from closeloop.records.trace import Command, Edit
from closeloop.traces.file_source import FileSource
from closeloop.traces.readers import openhands_events

FOLDER = FIXTURES / "openhands_events"
RECORDINGS = sorted((REAL / "openhands_events").rglob("*.json*"))


def event(number: int, **more: Any) -> dict[str, Any]:
    return {"id": number, "timestamp": f"2025-01-01T00:00:{number:02d}", "source": "agent", **more}


def run(events: list[Any], tmp_path: Path) -> Any:
    (session,) = sessions(openhands_events, written(tmp_path / "x", events))
    return session


def test_a_list_of_events_is_read_event_by_event() -> None:
    (session,) = sessions(openhands_events, FOLDER / "trajectory.json")
    assert told(session) == [
        ("user", "request", "Make the sum right."),
        ("note", "recall", "Added workspace context"),
        ("thought", "I run the test first."),
        ("run", "python test_sums.py", 1, "stated", None),
        ("agent", "question", "Should zero count?"),
        ("note", "state", "awaiting_user_input"),
        ("user", "answer", "Yes."),
        ("thought", "I take all of them."),
        ("change", "/workspace/sums.py", "sum(numbers[1:])", "sum(numbers)", True),
        ("thought", "Somebody else should check."),
        ("handoff", "Run the tests and say how they end.", "delegate-11", "The tests pass."),
        ("run", "python test_sums.py", 0, "stated", None),
        ("agent", "claim", "The tests pass."),
        ("run", "tail -f log", None, None, None),
        ("agent", "claim", "The sum is right and checked."),
        ("note", "state", "finished"),
    ]
    _, child = session.trace.lanes
    assert (child.parent, child.agent) == ("root", "VerifierAgent")
    assert [e.number for e in session.trace.events if e.lane == child.id] == [12, 13]
    assert (session.agent_version, session.system) == ("0.39.0", "You are OpenHands agent.")
    assert session.trace.events[3].seconds == 2.0
    edit = session.trace.events[8]
    assert isinstance(edit, Edit)
    assert (edit.patch or "").startswith("--- a\n+++ b")


def test_growing_totals_are_counted_once() -> None:
    (session,) = sessions(openhands_events, FOLDER / "trajectory.json")
    root, child = ([turn.usage for turn in lane.turns] for lane in session.trace.lanes)
    assert [usage.input_tokens for usage in root] == [1000, 200, 200, 1300, 1400, 1500]
    assert [usage.cache_read_tokens for usage in root[:3]] == [0, 900, 1000]
    assert child[0].input_tokens == 300
    assert session.usage.output_tokens == 50 + 10 + 80 + 40 + 20 + 30 + 30
    assert [usage.cost for usage in root] == [0.01, 0.01, 0.01, 0.01, None, None]
    # Two replies were not part of the growing total: what all of it cost is not known.
    assert session.usage.cost is None


def test_the_lines_of_an_evaluation_are_sessions_in_pairs_or_flat() -> None:
    pairs, flat = sessions(openhands_events, FOLDER / "output.jsonl")
    assert told(pairs)[1:] == [
        ("thought", "I run the test first."),
        ("run", "python test_sums.py", 1, "stated", None),
        ("thought", "I edit it."),
        ("change", "sums.py", "numbers[1:]", "numbers", True),
        ("note", "submission", "diff --git a/sums.py b/sums.py"),
    ]
    assert pairs.exit == "out_of_budget"
    assert (pairs.usage.cost, pairs.links) == (0.02, {"instance": "sums-1"})
    assert told(flat) == [
        ("user", "request", "Add a licence."),
        ("thought", "I begin with a file."),
        ("run", "touch LICENSE", 0, "stated", None),
        ("agent", "claim", "There is a licence now."),
        ("note", "submission", "diff --git a/LICENSE b/LICENSE"),
    ]


def test_the_files_of_a_session_are_one_recording() -> None:
    folder = FOLDER / "session" / "events"
    first, *others = sorted(folder.iterdir())
    assert openhands_events.owner(FileSource(first)) is None
    assert list(openhands_events.parts(FileSource(first))) == others
    assert {openhands_events.owner(FileSource(path)) for path in others} == {first}
    (session,) = sessions(openhands_events, first)
    assert told(session)[-1] == ("run", "python test_sums.py", 1, "stated", None)


def test_calls_with_one_id_for_all_are_paired_by_their_cause(tmp_path: Path) -> None:
    call = {"tool_call_metadata": {"tool_call_id": "toolu_01"}}
    events = [
        event(1, action="run", args={"command": "a"}, **call),
        event(2, action="run", args={"command": "b"}, **call),
        event(3, observation="run", cause=2, content="of b", extras={"exit_code": 2}),
        event(4, observation="run", cause=1, content="of a", extras={}),
    ]
    found = [
        (e.output, e.exit_code) for e in actions([run(events, tmp_path)]) if isinstance(e, Command)
    ]
    assert found == [("of a", None), ("of b", 2)]


def test_errors_rejections_and_lost_results_are_told(tmp_path: Path) -> None:
    lost = {"agent_state": "error", "reason": "lost"}
    events = [
        event(1, action="read", args={"path": "/a", "view_range": [3, 9]}),
        event(2, observation="error", cause=1, content="No such file"),
        event(3, action="run", args={"command": "rm -rf /"}),
        event(4, observation="user_rejected", cause=3, content="Never!"),
        event(5, observation="error", content="The agent is stuck"),
        event(6, action="later", args={"x": 1}),
        event(7, observation="agent_state_changed", extras=lost),
    ]
    session = run(events, tmp_path)
    assert told(session) == [
        ("read", "/a", False),
        ("run", "rm -rf /", None, None, "not executed"),
        ("user", "correction", "Never!"),
        ("note", "error", "The agent is stuck"),
        ("tool", "later", None),
        ("note", "state", "error lost"),
    ]
    opened = session.trace.events[0]
    assert (opened.first_line, opened.last_line, opened.error) == (3, 9, "No such file")
    assert (session.exit, session.cause) == ("crashed", "lost")


def test_an_edit_by_way_of_a_cell_is_read_and_never_run(tmp_path: Path) -> None:
    code = "print(file_editor(**{'command': 'create', 'path': '/a', 'file_text': 'x'}))"
    cell = "create_file(__import__('os').system('touch /tmp/never'))"
    session = run(
        [
            event(1, action="edit", args={"path": "/a", "translated_ipython_code": code}),
            event(2, action="run_ipython", args={"code": cell}),
            event(
                3, observation="run_ipython", cause=2, content="Traceback (most recent call last):"
            ),
        ],
        tmp_path,
    )
    assert told(session) == [("create", "/a", None, "x", None), ("tool", "run_ipython", False)]


def test_a_delegate_with_a_count_of_its_own_is_not_subtracted(tmp_path: Path) -> None:
    def metrics(tokens: int) -> dict[str, Any]:
        return {"llm_metrics": {"accumulated_token_usage": {"prompt_tokens": tokens}}}

    session = run(
        [
            event(
                1, action="delegate", args={"agent": "A", "inputs": {"task": "t"}}, **metrics(1000)
            ),
            event(2, action="run", args={"command": "a"}, **metrics(10)),
            event(3, observation="delegate", content="done", extras={}),
            event(4, action="run", args={"command": "b"}, **metrics(1500)),
        ],
        tmp_path,
    )
    assert session.usage.input_tokens == 1000 + 10 + 500


@pytest.mark.skipif(not RECORDINGS, reason="no shared recordings")
@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name)
def test_real_recordings_pair_what_the_file_pairs(path: Path) -> None:
    assert recognised_by(path) == ["openhands-events"]
    text = path.read_text()
    documents = [json.loads(line) for line in text.splitlines()] if path.suffix == ".jsonl" else []
    histories = [line["history"] for line in documents] or [json.loads(text)]
    found = sessions(openhands_events, path)
    assert len(found) == len(histories)
    for session, history in zip(found, histories, strict=True):
        results = [
            e for e in history if e.get("observation") in ("run", "run_ipython", "edit", "read")
        ]
        done = actions([session])
        unknown = [
            e for e in done if getattr(e, "ok", 0) is None and getattr(e, "output", 0) is None
        ]
        assert len(done) - len(unknown) == len(results)
