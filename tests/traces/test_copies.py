"""A session that came in more than one form is one session: the agent's own files tell most."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from closeloop.flow import import_sessions
from closeloop.records.attempt import AttemptRow
from closeloop.records.trace import SessionFilter
from closeloop.store import Store, open_store

FIXTURES = Path(__file__).parents[1] / "traces" / "fixtures"
ID = "5b2c7a10-0000-4000-8000-00000000000a"
AT = "2026-11-15T05:46:0{}.000Z"
ROLLOUT = [
    {"timestamp": AT.format(0), "type": "session_meta",
     "payload": {"id": ID, "timestamp": AT.format(0), "cwd": "/tmp", "originator": "codex_exec",
                 "cli_version": "0.50.0"}},
    {"timestamp": AT.format(1), "type": "response_item",
     "payload": {"type": "message", "role": "user",
                 "content": [{"type": "input_text", "text": "Mend it."}]}},
    {"timestamp": AT.format(2), "type": "response_item",
     "payload": {"type": "message", "role": "assistant",
                 "content": [{"type": "output_text", "text": "Mended."}]}},
]  # fmt: skip
EXEC = [
    {"type": "thread.started", "thread_id": ID},
    {"type": "turn.started"},
    {"type": "item.completed", "item": {"id": "1", "type": "agent_message", "text": "Mended."}},
    {"type": "turn.completed", "usage": {"input_tokens": 1, "output_tokens": 1}},
]
CLAUDE: dict[str, Any] = {"uuid": "u1", "parentUuid": None, "sessionId": ID, "version": "2.1.114"}
CLAUDE |= {"isSidechain": False, "cwd": "/tmp", "userType": "external", "timestamp": AT.format(0)}
USAGE = {"input_tokens": 1, "output_tokens": 9}
SAID = {"id": "m1", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5",
        "content": [{"type": "text", "text": "Mended."}], "usage": USAGE}  # fmt: skip
TURNS = {
    "codex": (ROLLOUT, EXEC),
    "claude-code": (
        [
            {**CLAUDE, "type": "user", "message": {"role": "user", "content": "Mend it."}},
            {**CLAUDE, "type": "assistant", "uuid": "u2", "parentUuid": "u1", "message": SAID},
        ],
        [
            {"type": "system", "subtype": "init", "session_id": ID, "tools": [], "cwd": "/tmp"},
            {"type": "assistant", "session_id": ID, "parent_tool_use_id": None, "message": SAID},
            {"type": "result", "subtype": "success", "session_id": ID, "is_error": False,
             "result": "Mended.", "usage": USAGE},
        ],
    ),
    "gemini-cli": (
        [
            {"sessionId": ID, "projectHash": "x", "startTime": AT.format(0),
             "lastUpdated": AT.format(3), "kind": "main"},
            {"id": "1", "timestamp": AT.format(1), "type": "user", "content": "Mend it."},
            {"id": "2", "timestamp": AT.format(2), "type": "gemini", "content": "Mended."},
        ],
        [
            {"type": "init", "timestamp": AT.format(0), "session_id": ID, "model": "gemini-2.5"},
            {"type": "message", "timestamp": AT.format(1), "role": "assistant",
             "content": "Mended.", "delta": True},
            {"type": "result", "timestamp": AT.format(4), "status": "success", "stats": {}},
        ],
    ),
}  # fmt: skip


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    with open_store(store_url) as opened:
        yield opened


def lines(path: Path, records: list[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def listed(store: Store, *places: Path) -> list[AttemptRow]:
    """What is listed once some places were imported, one after the other."""
    for place in places:
        found = import_sessions(
            [place],
            store,
            session_filter=SessionFilter(),
            jobs=1,
            report_progress=lambda tally: None,
        )
        assert sum(count.sessions for count in found.formats.values()), place
    return store.list_attempts()


def readers(store: Store, rows: list[AttemptRow]) -> list[str]:
    traces = [store.load_trace(row.id) for row in rows]
    return sorted(trace.reader for trace in traces if trace)


@pytest.mark.parametrize("agent", TURNS)
@pytest.mark.parametrize("first", [0, 1])
def test_what_was_kept_and_what_was_printed_are_one_session(
    agent: str, first: int, store: Store, tmp_path: Path
) -> None:
    kept = lines(tmp_path / "kept" / f"{ID}.jsonl", TURNS[agent][0])
    printed = lines(tmp_path / "printed" / "out.jsonl", TURNS[agent][1])
    rows = listed(store, *((kept, printed) if first == 0 else (printed, kept)))
    assert readers(store, rows) == [{"claude-code": agent, "codex": agent}.get(agent, "gemini")]


@pytest.mark.parametrize("first", [0, 1])
def test_pi_and_qwen_keep_and_print(first: int, store: Store, tmp_path: Path) -> None:
    shutil.copytree(FIXTURES / "pi", tmp_path / "pi")
    shutil.copytree(FIXTURES / "qwen", tmp_path / "qwen")
    shutil.copytree(FIXTURES / "qwen_stream", tmp_path / "printed")
    kept = [next((tmp_path / "pi").glob("2026*")), tmp_path / "qwen"]
    printed = [tmp_path / "pi" / "printed.jsonl", tmp_path / "printed"]
    rename(next((tmp_path / "qwen").rglob("*.jsonl")), tmp_path / "printed" / "stream.jsonl")
    rename(kept[0], printed[0])
    rows = listed(store, *(kept + printed if first == 0 else printed + kept))
    assert readers(store, rows) == ["pi", "qwen"]
    assert all(row.started for row in rows), "the kept one"


def rename(kept: Path, printed: Path) -> None:
    """Let two recordings of the same work have one id."""
    first = json.loads(kept.read_text().splitlines()[0])
    name = first.get("sessionId") or first["id"]
    said = [json.loads(line) for line in printed.read_text().splitlines()]
    old = next(one.get("session_id") or one.get("id") for one in said)
    printed.write_text(printed.read_text().replace(old, name))


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0), (1, 0, 2)])
def test_of_opencode_its_store_counts_then_an_export_then_a_run(
    order: tuple[int, ...], store: Store
) -> None:
    folder = FIXTURES / "opencode"
    forms = [folder / "opencode.db", folder / "export.json", folder / "run.jsonl"]
    rows = listed(store, *(forms[number] for number in order))
    assert readers(store, rows) == ["opencode-store"]


def test_an_export_counts_where_only_a_run_is_known_besides(store: Store) -> None:
    folder = FIXTURES / "opencode"
    rows = listed(store, folder / "export.json", folder / "run.jsonl")
    assert readers(store, rows) == ["opencode"]


def test_two_runs_of_one_session_that_only_were_printed_both_count(
    store: Store, tmp_path: Path
) -> None:
    resumed = [{**EXEC[2], "item": {"id": "1", "type": "agent_message", "text": "And more."}}]
    lines(tmp_path / "1.jsonl", EXEC)
    lines(tmp_path / "2.jsonl", [*EXEC[:2], *resumed, EXEC[3]])
    assert readers(store, listed(store, tmp_path)) == ["codex-exec", "codex-exec"]
    lines(tmp_path / "kept.jsonl", ROLLOUT)
    assert readers(store, listed(store, tmp_path)) == ["codex"]


def test_a_trajectory_that_a_tool_made_of_a_session_does_not_count_beside_it(
    store: Store, tmp_path: Path
) -> None:
    step = {"step_id": 1, "source": "agent", "message": "Mended."}
    agent = {"name": "codex", "version": "0.50.0"}
    made = {"schema_version": "ATIF-v1.6", "session_id": ID, "agent": agent, "steps": [step]}
    (tmp_path / "trajectory.json").write_text(json.dumps(made))
    assert readers(store, listed(store, tmp_path)) == ["atif"]
    lines(tmp_path / "kept.jsonl", ROLLOUT)
    assert readers(store, listed(store, tmp_path)) == ["codex"]
