"""Agents ask closeloop about their own work: the protocol's own client, over stdio."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from judge_scripts import judge_script

from closeloop.store import open_store
from patience import PATIENCE

mcp = pytest.importorskip("mcp", reason="the extra closeloop[mcp] is not installed")

SCRIPT = judge_script(("return a [+] b", "yes", "return a + b"), ("BEGIN task", "no", "sum of two"))
SETTINGS = """
[judge]
models = ["scripted:judge.yaml"]
[commands]
test = "grep -q return add.py"
[sandbox]
kind = "none"
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "judge.yaml").write_bytes(SCRIPT)
    (tmp_path / "closeloop.toml").write_text(SETTINGS)
    (tmp_path / "add.py").write_text("def add(a, b):\n    return a + b\n")
    who = ["-c", "user.name=Ann", "-c", "user.email=ann@example.org"]
    for arguments in (["init", "-q"], ["add", "."], [*who, "commit", "-qm", "Start"]):
        subprocess.run(["git", *arguments], cwd=tmp_path, check=True)
    return tmp_path


def asked(project: Path, ask: Callable[[Any], Awaitable[Any]]) -> Any:
    """What a client in that folder is told."""
    plain = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    server = mcp.StdioServerParameters(
        command=sys.executable,
        args=["-m", "closeloop", "mcp"],
        cwd=project,
        env={**plain, "XDG_CACHE_HOME": str(project / ".cache")},
    )

    async def go() -> Any:
        with anyio.fail_after(PATIENCE):
            async with mcp.Client(server) as client:
                return await ask(client)

    return anyio.run(go)


def test_three_tools_are_offered_with_what_they_take_and_give(project: Path) -> None:
    tools = asked(project, lambda client: client.list_tools()).tools
    assert [one.name for one in tools] == ["evaluate", "check_change", "measure_trace"]
    for one in tools:
        assert one.input_schema["type"] == one.output_schema["type"] == "object"
    assert tools[0].input_schema["required"] == ["request", "results"]


def test_an_agent_has_its_outputs_judged_and_learns_what_is_wrong(project: Path) -> None:
    results = [{"task": "good", "text": "return a + b"}, {"task": "bad", "text": "return 7"}]
    handed = {"request": "The sum of two.", "results": results}
    told = asked(project, lambda client: client.call_tool("evaluate", handed))
    assert not told.is_error
    made = told.structured_content
    assert made["passed"] is False
    assert [one["passed"] for one in made["tasks"]] == [True, False]
    assert made["tasks"][1]["issues"][0]["text"]
    with open_store(str(project / ".closeloop/closeloop.db")) as store:
        kept = store.judged.load_evaluation(made["tasks"][0]["evaluation"])
        assert kept is not None
        assert kept.passed is True


def test_an_agent_learns_that_its_change_breaks_a_test(project: Path) -> None:
    (project / "add.py").write_text("def add(a, b):\n    raise SystemExit\n")
    wish = {"tiers": ["tools"]}
    told = asked(project, lambda client: client.call_tool("check_change", wish))
    assert not told.is_error, told.content
    assert told.structured_content["verdict"] == "block"
    assert told.structured_content["tools"][0]["state"] == "failed"


def test_an_agent_reads_how_it_worked(project: Path) -> None:
    shared = {"sessionId": "s", "isSidechain": False, "cwd": "/w", "version": "2.0.0"}
    edit = {"file_path": "/w/a.py", "old_string": "1", "new_string": "2"}
    spoken = [
        {"role": "user", "content": "Fix it."},
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "t", "name": "Edit", "input": edit}],
        },
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "t", "content": "Edited."}],
        },
        {"role": "assistant", "content": [{"type": "text", "text": "Fixed, and all tests pass."}]},
    ]
    lines = [
        {**shared, "type": one["role"], "message": one, "uuid": f"{number}", "parentUuid": None}
        for number, one in enumerate(spoken)
    ]
    session = "".join(json.dumps(line) + "\n" for line in lines)
    (project / "session.jsonl").write_text(session)
    wish = {"trace": "session.jsonl"}
    told = asked(project, lambda client: client.call_tool("measure_trace", wish))
    assert not told.is_error, told.content
    (trace,) = told.structured_content["traces"]
    assert "unverified-claim" in [one["rule"] for one in trace["findings"]]


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("evaluate", {"request": "r"}, "'results' is missing"),
    ("evaluate", {"request": "r", "results": []}, "no results"),
    ("check_change", {"change": "nowhere"}, "nowhere"),
    ("check_change", {"tiers": ["tolls"]}, "tolls"),
    ("check_change", {"tiers": []}, "at least one tier"),
    ("measure_trace", {"trace": "nothing"}, "No attempt begins"),
    ("measure_trace", {"trace": "x" * 5000}, "No attempt begins"),
    ("measure_trace", {}, "'trace' is missing"),
    ("evalute", {}, "Did you mean 'evaluate'"),
]


def test_what_cannot_be_done_is_told_to_the_agent_in_one_sentence(project: Path) -> None:
    async def ask(client: Any) -> list[Any]:
        return [await client.call_tool(tool, wish) for tool, wish, _ in REFUSED]

    (project / ".closeloop").mkdir(exist_ok=True)
    open_store(str(project / ".closeloop/closeloop.db")).close()
    for told, (_, _, message) in zip(asked(project, ask), REFUSED, strict=True):
        assert told.is_error
        assert message in told.content[0].text
        assert len(told.content[0].text) <= 1000
