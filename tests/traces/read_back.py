"""Read a recording in a test, and say shortly what became of it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from closeloop.records.protocols import Reader
from closeloop.records.trace import (
    AnyEvent,
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

FIXTURES = Path(__file__).parent / "fixtures"
REAL = Path(__file__).resolve().parents[3] / "shared" / "traces"


def sessions(reader: Reader, path: Path) -> list[Session]:
    source = FileSource(path)
    assert reader.recognises(source)
    return list(reader.read(source))


def written(path: Path, value: Any) -> Path:
    """A file with one JSON value, or with a text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


def told(session: Session) -> list[tuple[Any, ...]]:
    """Each event in a few words."""
    return [_short(event) for event in session.trace.events]


def _short(event: AnyEvent) -> tuple[Any, ...]:
    match event:
        case Message():
            return (event.role, event.intent, _line(event.text))
        case Thought():
            return ("thought", _line(event.text))
        case Command():
            return ("run", event.command, event.exit_code, event.exit_from, event.stopped)
        case Edit():
            return (event.action, event.path, event.before, event.after, event.ok)
        case Read():
            return ("read", event.path, event.ok)
        case ToolUse():
            return ("tool", event.name, event.ok)
        case Handoff():
            return ("handoff", event.brief, event.child, event.report)
        case Note():
            return ("note", event.about, _line(event.text))


def _line(text: str) -> str:
    return text.strip().split("\n")[0][:60]


def actions(found: Iterable[Session]) -> list[AnyEvent]:
    """What was done, in all sessions."""
    events = (event for session in found for event in session.trace.events)
    return [event for event in events if isinstance(event, Command | Edit | Read | ToolUse)]


def recognised_by(path: Path) -> list[str]:
    return [reader.name for reader in installed_readers() if reader.recognises(FileSource(path))]
