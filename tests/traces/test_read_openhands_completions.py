from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from read_back import FIXTURES, REAL, actions, recognised_by, sessions, told, written

from closeloop.records.attempt import Usage
from closeloop.traces.file_source import FileSource
from closeloop.traces.readers import openhands_completions

FOLDER = FIXTURES / "openhands_completions"
ABANDONED, *ATTEMPT = sorted((FOLDER / "sums-1").iterdir())
RECORDINGS = [
    path
    for path in sorted((REAL / "openhands_llm_completions").rglob("*.json"))
    if path.name not in ("metadata.json", "report.json")
]


def test_the_calls_of_an_attempt_are_one_recording_and_a_retry_is_another() -> None:
    assert openhands_completions.owner(FileSource(ABANDONED)) is None
    assert openhands_completions.parts(FileSource(ABANDONED)) == []
    last = ATTEMPT[-1]
    assert {openhands_completions.owner(FileSource(path)) for path in ATTEMPT} == {None, last}
    assert list(openhands_completions.parts(FileSource(last))) == ATTEMPT[:-1]


def test_an_attempt_is_read_event_by_event_across_a_compaction() -> None:
    (session,) = sessions(openhands_completions, ATTEMPT[-1])
    assert told(session) == [
        ("user", "request", "Make the sum right."),
        ("thought", "I run the test."),
        ("run", "python test_sums.py", 1, "parsed", None),
        ("thought", "I take all."),
        ("change", "/workspace/sums.py", "numbers[1:]", "numbers", True),
        ("run", "python test_sums.py", 0, "parsed", None),
        ("note", "compaction", "The dialogue was shortened."),
        ("user", None, "<summary>The test failed with 2; sums.py was edited.</summar"),
        ("agent", "claim", "The sum is right."),
    ]
    assert [turn.usage.input_tokens for turn in session.trace.lanes[0].turns] == [
        100,
        150,
        200,
        160,
    ]
    assert session.usage.cost == pytest.approx(0.04)
    assert (session.exit, session.system) == ("finished", "You are OpenHands agent.")
    assert session.started is not None
    assert session.ended is not None
    assert (session.ended - session.started).total_seconds() == 6


def test_the_usage_of_a_dialogue_without_its_other_calls_is_unknown(tmp_path: Path) -> None:
    stretch = ATTEMPT[2]
    (session,) = sessions(openhands_completions, written(tmp_path / "c.json", stretch.read_text()))
    turns = session.trace.lanes[0].turns
    assert [turn.usage.input_tokens for turn in turns] == [None, None, 200]
    assert session.usage == Usage()


def test_an_abandoned_attempt_ends_with_its_call() -> None:
    (session,) = sessions(openhands_completions, ABANDONED)
    assert told(session)[-1] == ("run", "python test_sums.py", None, None, None)
    assert (session.exit, session.cause) == ("crashed", "the log ends with a call")


def test_calls_in_text_are_paired_with_the_results_that_follow() -> None:
    (session,) = sessions(openhands_completions, next((FOLDER / "licence-2").iterdir()))
    assert told(session)[1:] == [
        ("thought", "I make the file."),
        ("run", "touch LICENSE && cat LICENCE", 1, "parsed", None),
        ("agent", "claim", "There is a LICENSE now."),
    ]


def test_one_id_for_every_call_pairs_in_order(tmp_path: Path) -> None:
    def call(line: str) -> dict[str, Any]:
        function = {"name": "execute_bash", "arguments": json.dumps({"command": line})}
        return {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "t", "function": function}],
        }

    def result(text: str) -> dict[str, Any]:
        return {"role": "tool", "tool_call_id": "t", "content": text}

    running = "[Command finished with exit code -1]"
    messages = [
        {"role": "user", "content": "Go"},
        call("a"),
        result("A"),
        call("b"),
        result(running),
    ]
    answer = {"choices": [{"message": {"role": "assistant", "content": "Done."}}]}
    log = {"messages": messages, "response": answer, "kwargs": {}, "timestamp": 1.0, "cost": 0}
    (session,) = sessions(openhands_completions, written(tmp_path / "x", log))
    found = [(event.output, event.exit_code) for event in actions([session])]  # type: ignore[union-attr]
    assert found == [("A", None), (running, None)]


@pytest.mark.skipif(not RECORDINGS, reason="no shared recordings")
@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_real_logs_pair_every_result_and_count_only_what_is_there(path: Path) -> None:
    assert recognised_by(path) == ["openhands-completions"]
    log = json.loads(path.read_text())
    (session,) = sessions(openhands_completions, path)
    results = [message for message in log["fncall_messages"] if message["role"] == "tool"]
    assert not [
        event
        for event in session.trace.events
        if getattr(event, "about", "") == "result without a call"
    ]
    named = [event for event in session.trace.events if event.call is not None]
    replies = [message for message in log["fncall_messages"] if message["role"] == "assistant"]
    calls = sum(len(reply.get("tool_calls") or ()) for reply in replies)
    calls += len(log["fncall_response"]["choices"][0]["message"].get("tool_calls") or ())
    assert len(named) == calls
    assert len(results) in (calls, calls - 1)
    assert len(session.trace.lanes[0].turns) == len(replies) + 1
    assert (
        session.trace.lanes[0].turns[-1].usage.output_tokens
        == log["response"]["usage"]["completion_tokens"]
    )
    assert session.usage.output_tokens is None, "the other calls are not logged"


@pytest.mark.parametrize(
    ("said", "given", "claim"),
    [
        ("All is done.", "{}", "All is done."),
        ("", "{}", "finish"),
        ("Hm.", '{"message": "It works."}', "It works."),
    ],
)
def test_a_finish_is_a_claim_whether_it_says_something_or_not(
    said: str, given: str, claim: str, tmp_path: Path
) -> None:
    function = {"name": "finish", "arguments": given}
    message = {
        "role": "assistant",
        "content": said,
        "tool_calls": [{"id": "f", "function": function}],
    }
    log = {
        "messages": [{"role": "user", "content": "Go"}],
        "response": {"choices": [{"message": message}]},
        "kwargs": {},
        "timestamp": 1.0,
        "cost": 0,
    }
    (session,) = sessions(openhands_completions, written(tmp_path / "x", log))
    assert told(session)[-1] == ("agent", "claim", claim)
    assert not actions([session])
    assert (session.exit, session.summary) == ("finished", claim)


def test_what_the_harness_says_in_the_users_name_is_the_systems(tmp_path: Path) -> None:
    def call(name: str, **given: str) -> dict[str, Any]:
        function = {"name": name, "arguments": json.dumps(given)}
        return {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "t", "function": function}],
        }

    def result(text: str) -> dict[str, Any]:
        return {"role": "tool", "tool_call_id": "t", "content": text}

    lost = "Missing required parameters for function 'str_replace_editor': {'path'}"
    refused = "ERROR: Cannot execute multiple commands at once.\n(1) a\n(2) b"
    edit = {"command": "str_replace", "path": "/w/a", "old_str": "", "new_str": "b"}
    broken = "-----------\nValueError   Traceback (most recent call last)\nCell In[1], line 1"
    messages = [
        {"role": "user", "content": "Go"},
        {"role": "user", "content": f"{lost}\n[Error occurred in processing last action]"},
        call("execute_bash", command="a\nb"),
        result(refused),
        call("str_replace_editor", **edit),
        result(broken),
    ]
    answer = {"choices": [{"message": {"role": "assistant", "content": "Done."}}]}
    log = {"messages": messages, "response": answer, "kwargs": {}, "timestamp": 1.0, "cost": 0}
    (session,) = sessions(openhands_completions, written(tmp_path / "x", log))
    assert told(session)[1:4] == [
        ("system", None, lost[:60]),
        ("run", "a\nb", None, None, "not executed"),
        ("change", "/w/a", "", "b", False),
    ]
    assert actions([session])[1].error == broken  # type: ignore[union-attr]
