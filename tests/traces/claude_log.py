"""Sessions of Claude Code written by hand, and what is read of them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from closeloop.records.trace import AnyEvent, Message, Session
from closeloop.traces.file_source import FileSource
from closeloop.traces.readers import claude_code

SESSION = "11111111-2222-4333-8444-555555555555"


def read(path: Path) -> tuple[list[Session], dict[str, int]]:
    source = FileSource(path)
    assert claude_code.recognises(source)
    return list(claude_code.read(source)), source.skipped


class Log:
    """Writes the lines of a session as Claude Code does."""

    def __init__(self, **common: Any) -> None:
        self.lines: list[dict[str, Any]] = []
        self.common = {"sessionId": SESSION, "isSidechain": False, "cwd": "/w", **common}
        self.last: str | None = None

    def put(self, kind: str, **fields: Any) -> str:
        number = len(self.lines) + 1
        uuid = f"{self.common.get('agentId', 'main')}-{number}"
        line = {
            "parentUuid": self.last,
            "type": kind,
            "uuid": uuid,
            "timestamp": f"2026-01-01T00:00:{number:02}.000Z",
            **self.common,
            **fields,
        }
        self.lines.append(line)
        self.last = uuid
        return uuid

    def user(self, content: Any, **fields: Any) -> str:
        return self.put("user", message={"role": "user", "content": content}, **fields)

    def agent(self, *blocks: Any, name: str | None = None, **fields: Any) -> str:
        message = {
            "id": name or f"msg-{len(self.lines)}",
            "model": "claude-x",
            "stop_reason": "tool_use",
            "usage": {"input_tokens": 10, "output_tokens": 5},
            **fields.pop("message", {}),
            "content": [{"type": "text", "text": b} if isinstance(b, str) else b for b in blocks],
        }
        return self.put("assistant", message=message, **fields)

    def call(self, tool: str, given: dict[str, Any], result: Any = None, **more: Any) -> None:
        """A call and, unless there is none, its result."""
        used = more.pop("id", f"call-{len(self.lines)}")
        self.agent({"type": "tool_use", "id": used, "name": tool, "input": given})
        if result is not None:
            block = {"type": "tool_result", "tool_use_id": used, "content": result}
            detail = more.pop("detail", None)
            extra = {} if detail is None else {"toolUseResult": detail}
            self.user([{**block, **more}], **extra)

    def write(self, path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(line) + "\n" for line in self.lines))
        return path


def session_of(log: Log, folder: Path) -> Session:
    (session,), _ = read(log.write(folder / f"{SESSION}.jsonl"))
    return session


def only(session: Session, kind: type[Any]) -> Any:
    (event,) = [event for event in session.trace.events if isinstance(event, kind)]
    return event


def words(events: Iterable[AnyEvent]) -> list[tuple[str, str | None, str]]:
    return [(e.role, e.intent, e.text) for e in events if isinstance(e, Message)]
