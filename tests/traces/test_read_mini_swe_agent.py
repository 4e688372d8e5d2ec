from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from read_back import FIXTURES, REAL, actions, recognised_by, sessions, told, written

from closeloop.records.trace import Command
from closeloop.traces.readers import mini_swe_agent

FOLDER = FIXTURES / "mini_swe_agent"
RECORDINGS = sorted((REAL / "mini_swe_agent_traj").glob("*/*.json"))
SYSTEM = {"role": "system", "content": "Be brief."}
TASK = {"role": "user", "content": "Fix it."}


def document(form: str, messages: list[Any], **info: Any) -> dict[str, Any]:
    return {
        "info": {"exit_status": "Submitted", **info},
        "messages": [SYSTEM, TASK, *messages],
        "trajectory_format": form,
    }


def first(messages: list[Any], tmp_path: Path, **info: Any) -> Any:
    path = written(tmp_path / "x", document("mini-swe-agent-1", messages, **info))
    return sessions(mini_swe_agent, path)[0]


def second(messages: list[Any], tmp_path: Path, **info: Any) -> Any:
    path = written(tmp_path / "x", document("mini-swe-agent-1.1", messages, **info))
    return sessions(mini_swe_agent, path)[0]


def test_a_recording_of_version_1_is_read_event_by_event() -> None:
    (session,) = sessions(mini_swe_agent, FOLDER / "v1.traj.json")
    assert told(session) == [
        ("user", "request", "Please solve this issue: The sum in sums.py is wrong: make t"),
        ("agent", None, "THOUGHT: Let me see the test fail first."),
        ("run", "python3 test_sums.py", 1, "parsed", None),
        ("agent", None, "THOUGHT: The first number is left out, I think."),
        ("note", "format error", "Please always provide EXACTLY ONE action in triple backticks"),
        ("agent", None, "THOUGHT: I sum all of them."),
        ("run", "sed -i 's/numbers\\[1:\\]/numbers/' sums.py", 0, "parsed", None),
        ("agent", None, "THOUGHT: Now the test again."),
        ("run", "python3 test_sums.py && echo passed", 0, "parsed", None),
        ("agent", "claim", "THOUGHT: All is well: I hand it in."),
        ("run", "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && git diff", None, None, None),
        ("note", "submission", "diff --git a/sums.py b/sums.py"),
    ]
    assert session.exit == "finished"
    assert session.agent_version == "1.17.5"
    assert session.system is not None
    said = [turn.usage.output_tokens for turn in session.trace.lanes[0].turns]
    assert said == [19, 12, 21, 20, 26]
    assert session.usage.cost is None
    assert session.started is not None
    assert session.trace.events[2].seconds is not None


def test_a_recording_of_version_2_is_read_event_by_event() -> None:
    (session,) = sessions(mini_swe_agent, FOLDER / "v2.traj.json")
    assert told(session)[1:] == [
        ("agent", None, "Let me see the test fail first."),
        ("run", "python3 test_sums.py", 1, "stated", None),
        ("agent", None, "The first number is left out, I think."),
        ("note", "format error", "Tool call error:"),
        ("agent", None, "I sum all of them."),
        ("run", "sed -i 's/numbers\\[1:\\]/numbers/' sums.py", 0, "stated", None),
        ("run", "cat sums.py", 0, "stated", None),
        ("agent", None, "Now the test again."),
        ("run", "python3 test_sums.py && echo passed", 0, "stated", None),
        ("agent", "claim", "All is well: I hand it in."),
        ("run", "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && git diff", 0, "parsed", None),
        ("run", "rm -rf build", None, None, "not executed"),
        ("note", "submission", "diff --git a/sums.py b/sums.py"),
    ]
    assert len(session.trace.lanes[0].turns) == 5
    assert session.trace.events[2].call == "call-1-0"


def test_the_last_user_message_of_version_1_is_the_submission_and_no_result(tmp_path: Path) -> None:
    reply = {"role": "assistant", "content": "```bash\necho COMPLETE\n```"}
    session = first([reply, {"role": "user", "content": "diff"}], tmp_path, submission="diff")
    assert told(session)[1:] == [
        ("run", "echo COMPLETE", None, None, None),
        ("agent", "claim", "Submitted"),
        ("note", "submission", "diff"),
    ]


def test_a_crashed_run_keeps_its_last_result(tmp_path: Path) -> None:
    reply = {"role": "assistant", "content": "```bash\nls\n```"}
    came = {"role": "user", "content": "<returncode>2</returncode>\n<output>\nno\n</output>"}
    session = first([reply, came], tmp_path, exit_status="TimeoutError")
    (command,) = (event for event in session.trace.events if isinstance(event, Command))
    assert (command.output, command.exit_code) == ("no\n", 2)
    assert (session.exit, session.cause) == ("crashed", "TimeoutError")


def test_an_elided_output_is_kept_as_the_file_has_it(tmp_path: Path) -> None:
    reply = {"role": "assistant", "content": "```bash\nls\n```"}
    text = (
        "<returncode>0</returncode>\n<warning>\nToo long\n</warning><output_head>\na</output_head>"
    )
    session = first([reply, {"role": "user", "content": text}, reply, TASK], tmp_path)
    assert session.trace.events[1].output == text
    assert session.trace.events[1].exit_code == 0


def test_a_limit_is_told_and_an_empty_last_message_is_not(tmp_path: Path) -> None:
    last = {"role": "user", "content": ""}
    session = first(
        [{"role": "assistant", "content": "x"}, last], tmp_path, exit_status="LimitsExceeded"
    )
    assert told(session)[-1] == ("note", "limit", "LimitsExceeded")
    assert (session.exit, session.cause) == ("out_of_budget", "LimitsExceeded")


def test_a_timeout_and_a_rejection_are_no_exit_codes(tmp_path: Path) -> None:
    reply = {"role": "assistant", "content": "```bash\nsleep 9\n```"}
    late = "The last command <command>sleep 9</command> timed out and has been killed."
    no = "Command not executed. The user rejected your command with the following message: no"
    session = first(
        [
            reply,
            {"role": "user", "content": late},
            reply,
            {"role": "user", "content": no},
            reply,
            TASK,
        ],
        tmp_path,
    )
    assert told(session)[1:4] == [
        ("run", "sleep 9", None, None, "out of time"),
        ("run", "sleep 9", None, None, None),
        ("user", "correction", no[:60]),
    ]


def test_results_of_version_2_are_paired_by_id_in_any_order(tmp_path: Path) -> None:
    calls = [{"command": line, "tool_call_id": line} for line in ("a", "b")]
    results = [
        {"role": "tool", "tool_call_id": line, "extra": {"returncode": code, "raw_output": line}}
        for line, code in (("b", 3), ("a", 0))
    ]
    reply = {"role": "assistant", "content": None, "tool_calls": [{}], "extra": {"actions": calls}}
    session = second([reply, *results], tmp_path, exit_status="")
    assert [(event.output, event.exit_code) for event in actions([session])] == [("a", 0), ("b", 3)]
    assert session.exit == "crashed"


def test_minus_one_with_an_exception_is_no_exit_code(tmp_path: Path) -> None:
    reply = {"role": "assistant", "content": "x", "extra": {"actions": [{"command": "sleep 9"}]}}
    trouble = {
        "returncode": -1,
        "raw_output": "so far",
        "exception_info": "An error occurred: Command timed out after 30 seconds",
        "exception_type": "TimeoutExpired",
    }
    session = second([reply, {"role": "user", "content": "", "extra": trouble}], tmp_path)
    assert told(session)[2] == ("run", "sleep 9", None, None, "out of time")
    assert session.trace.events[2].output.startswith("so far\nAn error occurred")


def test_the_responses_api_is_read_too(tmp_path: Path) -> None:
    reply = {
        "object": "response",
        "output": [
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]},
            {"type": "message", "content": [{"type": "output_text", "text": "I look."}]},
            {"type": "function_call", "call_id": "c", "name": "bash", "arguments": "{}"},
        ],
        "usage": {
            "input_tokens": 100,
            "input_tokens_details": {"cached_tokens": 60},
            "output_tokens": 7,
            "output_tokens_details": {"reasoning_tokens": 2},
        },
        "extra": {"actions": [{"command": "ls", "tool_call_id": "c"}], "cost": 0.25},
    }
    result = {
        "type": "function_call_output",
        "call_id": "c",
        "extra": {"returncode": 0, "raw_output": "f"},
    }
    session = second([reply, result], tmp_path, model_stats={"instance_cost": 0.25})
    assert told(session)[1:4] == [
        ("thought", "Hm."),
        ("agent", "claim", "I look."),
        ("run", "ls", 0, "stated", None),
    ]
    usage = session.usage
    assert (usage.input_tokens, usage.cache_read_tokens, usage.output_tokens) == (40, 60, 7)
    assert (usage.reasoning_tokens, usage.cost, usage.cost_from) == (2, 0.25, "reported")


@pytest.mark.skipif(not RECORDINGS, reason="no shared recordings")
@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_real_recordings_lose_no_result_and_count_each_message_once(path: Path) -> None:
    assert recognised_by(path) == ["mini-swe-agent"]
    told = json.loads(path.read_text())
    (session,) = sessions(mini_swe_agent, path)
    texts = [m["content"] for m in told["messages"] if m["role"] == "user"]
    results = [text for text in texts if text.startswith(("<returncode>", "The last command <c"))]
    paired = [event for event in actions([session]) if event.output is not None]  # type: ignore[union-attr]
    # The last user message is what the last command handed in.
    handed = "-1.1" not in told["trajectory_format"] and told["info"]["exit_status"] == "Submitted"
    assert len(paired) == len(results) + handed
    replies = [m for m in told["messages"] if m["role"] == "assistant"]
    assert len(session.trace.lanes[0].turns) == len(replies)
    assert session.usage.cost == pytest.approx(told["info"]["model_stats"]["instance_cost"])
    usages = [mini_usage(reply) for reply in replies]
    assert session.usage.output_tokens == sum(usages)


def mini_usage(reply: dict[str, Any]) -> int:
    usage = reply["extra"]["response"]["usage"]
    return int(usage.get("completion_tokens", usage.get("output_tokens")))


def test_what_the_last_command_printed_is_what_it_handed_in(tmp_path: Path) -> None:
    reply = {"role": "assistant", "content": "Now.\n\n```bash\nsubmit\n```"}
    session = first([reply, {"role": "user", "content": "diff of exit code 1"}], tmp_path)
    (command,) = actions([session])
    assert isinstance(command, Command)
    assert (command.output, command.exit_code) == ("diff of exit code 1", None)


def test_a_result_without_a_template_tells_its_exit_code_too(tmp_path: Path) -> None:
    reply = {"role": "assistant", "content": "```bash\nfalse\n```"}
    result = {"role": "user", "content": "Observation: {'output': 'no', 'returncode': 1}"}
    session = first([reply, result], tmp_path, exit_status="LimitsExceeded")
    (command,) = actions([session])
    assert isinstance(command, Command)
    assert (command.exit_code, command.exit_from) == (1, "parsed")


@pytest.mark.parametrize(
    "block",
    [
        "  ```bash\n  ls -l\n  ```",
        "```sh\nls -l\n```",
        "<bash_code>ls -l</bash_code>",
        "<mswea_bash_command>\nls -l\n</mswea_bash_command>",
    ],
)
def test_a_block_that_was_run_is_a_command_however_it_is_written(
    block: str, tmp_path: Path
) -> None:
    reply = {"role": "assistant", "content": f"1. I look.\n\n{block}"}
    result = {"role": "user", "content": "<returncode>2</returncode>\n<output>\nno\n</output>"}
    session = first([reply, result], tmp_path, exit_status="LimitsExceeded")
    assert told(session)[1:] == [("agent", None, "1. I look."), ("run", "ls -l", 2, "parsed", None)]
    session = first([reply, TASK, reply, TASK], tmp_path, exit_status="LimitsExceeded")
    assert actions([session]) == [], "Nothing shows that it ran."


def test_a_result_whose_command_is_nowhere_is_kept_as_such(tmp_path: Path) -> None:
    reply = {"role": "assistant", "content": "I run it: `ls`"}
    result = {"role": "user", "content": "<returncode>0</returncode>\n<output>\na\n</output>"}
    session = first([reply, result], tmp_path, exit_status="LimitsExceeded")
    assert told(session)[2][:2] == ("note", "result without a call")


EARLY = [
    SYSTEM,
    {"role": "user", "content": "Fix it. To finish: `echo MINI_SWE_AGENT_FINAL_OUTPUT`."},
    {"role": "assistant", "content": "I look.\n\n```bash\ncat a; false\n```"},
    {
        "role": "user",
        "content": "<returncode>\n1\n</returncode>\n<stderr>\ncat: a\n</stderr>\n"
        "<stdout>\n\n</stdout>",
    },
    {"role": "assistant", "content": "Done.\n\n```bash\necho MINI_SWE_AGENT_FINAL_OUTPUT\n```"},
    {"role": "user", "content": "a patch"},
]


def test_recordings_from_before_formats_were_stated_are_read(tmp_path: Path) -> None:
    """As July 2025 wrote them: first bare dialogues, then with facts beside the messages."""
    stats = {"instance_cost": 0.5, "api_calls": 2}
    info = {"exit_status": "Submitted", "submission": "a patch", "model_stats": stats}
    events = []
    for number, value in enumerate([EARLY, {"info": info, "messages": EARLY}]):
        path = written(tmp_path / str(number), value)
        assert recognised_by(path) == ["mini-swe-agent"]
        (session,) = sessions(mini_swe_agent, path)
        assert session.exit == "finished"
        events.append([one for one in told(session) if one[0] != "note"])
        (command, _) = actions([session])
        assert isinstance(command, Command)
        assert command.output == "cat: a"
    assert events[0] == events[1]
    assert events[0][1:] == [
        ("agent", None, "I look."),
        ("run", "cat a; false", 1, "parsed", None),
        ("agent", "claim", "Done."),
        ("run", "echo MINI_SWE_AGENT_FINAL_OUTPUT", None, None, None),
    ]


def test_a_dialogue_of_somebody_else_is_not_taken_for_an_early_one(tmp_path: Path) -> None:
    bare = [SYSTEM, TASK, {"role": "assistant", "content": "```bash\nls\n```"}]
    assert recognised_by(written(tmp_path / "x", bare)) == []
    assert recognised_by(written(tmp_path / "y", {"info": {}, "messages": EARLY})) == []
