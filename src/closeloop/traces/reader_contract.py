"""What every reader must keep to, as a check that its author can run."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from closeloop.records.protocols import Reader
from closeloop.records.session import Session
from closeloop.records.trace import AnyEvent, Handoff, Lane
from closeloop.text.redaction import redact_record
from closeloop.text.untrusted import MAX_TEXT_CHARS
from closeloop.traces.file_source import FileSource
from closeloop.traces.recording_files import find_owner, installed_readers, list_parts
from closeloop.traces.tool_calls import has_result

DAMAGED_COPIES = 12
"""How many damaged copies of each recording are read."""
MAX_COPIED_BYTES = 1 << 20
"""A larger recording is not damaged: the same faults show in small ones."""
_SECRET = "AKIA" + "QYLPMN5HHHFPZAM2"
"""Looks like a key, and is none; in one piece, it would be redacted here too."""
_ODD_VALUES: tuple[Any, ...] = (None, True, -1, 1.5, 2**70, "", "x", [], {}, [None], {"type": 7})

FOREIGN_FILES: dict[str, bytes] = {
    "an empty file": b"",
    "binary": bytes(range(256)) * 64,
    "half a document": b'{"messages": [{"role": "user", "content": "hel',
    "lists nested too deeply": b"[" * 100_000 + b"]" * 100_000,
    "empty records": b"{}\n{}\n{}\n",
    "a package": b'{"name": "x", "version": "1.0.0", "scripts": {"test": "jest"}}',
    "logs of a service": b'{"level": "info", "msg": "GET /", "time": 1700000000}\n' * 9,
    "chats for training": b'{"messages": [{"role": "user", "content": "a"}]}\n' * 5,
    "bare chat lines": b'{"role": "user", "content": "a"}\n{"role": "assistant", "content": "b"}\n',
    "another tool's events": b'{"type": "event", "id": 1, "timestamp": "2026-01-01T00:00:00Z"}\n',
    "Markdown": b"# Notes\n\n> quoted\n\n```python\nprint()\n```\n",
}
"""Files that are recordings of no agent."""


def check_reader(
    reader: Reader, recordings: Iterable[Path], *, unanswered: int = 0
) -> list[Session]:
    """AssertionError where a reader does not keep to the contract; else the sessions it reads.

    `recordings` are whole recordings of its format, one of the files of each; `unanswered` is how
    many calls in them have no result. Each is read as it is, and in copies that are cut off, that
    have odd values in them, and whose texts are very long or hold a secret.
    """
    assert reader.name == "-".join(reader.name.lower().split()), "The name is in-small-letters."
    assert reader.version >= 1, "The version counts from 1."
    _check_foreign_files(reader)
    sessions = [one for path in recordings for one in _check_recording(reader, path)]
    assert any(one.trace.events for one in sessions), "Something is read from the recordings."
    calls = [has_result(event) for one in sessions for event in one.trace.events]
    assert calls.count(False) == unanswered, "Every call has its result, but for those named."
    return sessions


def check_session(session: Session, reader: Reader) -> None:
    """AssertionError where a session does not fit together or cannot be stored."""
    trace = session.trace
    assert session.id, "A session has an id."
    assert session.agent, "A session names its agent."
    assert (trace.reader, trace.reader_version) == (reader.name, reader.version), "It is named."
    numbers = [event.number for event in trace.events]
    assert numbers == list(range(1, len(numbers) + 1)), "Events are numbered from 1."
    lanes = {lane.id: lane for lane in trace.lanes}
    assert len(lanes) == len(trace.lanes), "Every lane has a name of its own."
    for lane in trace.lanes:
        assert lane.parent is None or lane.parent in lanes, "A lane's parent is there."
        assert lane.parent != lane.id, "No lane is its own parent."
    for event in trace.events:
        _check_event(event, lanes)
    if session.started and session.ended:
        assert session.started <= session.ended, "A session ends after it starts."
    assert all(count > 0 for count in trace.skipped.values()), "What is counted was skipped."
    stored = msgspec.msgpack.encode(session)
    assert msgspec.msgpack.decode(stored, type=Session) == session, "It can be stored."


def _check_event(event: AnyEvent, lanes: dict[str, Lane]) -> None:
    assert event.lane in lanes, "An event is in a lane that is there."
    turns = len(lanes[event.lane].turns)
    assert event.turn is None or 1 <= event.turn <= turns, "An event's turn is there."
    assert event.at is None or event.at.tzinfo is not None, "Times have a zone."
    if isinstance(event, Handoff):
        assert event.child is None or event.child in lanes, "A handoff's lane is there."


def _check_foreign_files(reader: Reader) -> None:
    with tempfile.TemporaryDirectory(prefix="closeloop-") as folder:
        for name, content in FOREIGN_FILES.items():
            path = Path(folder) / "file.jsonl"
            path.write_bytes(content)
            assert not reader.recognises(FileSource(path)), f"It takes {name} for a recording."


def _check_recording(reader: Reader, path: Path) -> list[Session]:
    assert reader.recognises(FileSource(path)), f"It recognises {path.name}."
    others = (one for one in installed_readers() if one.name != reader.name)
    known = [one.name for one in others if one.recognises(FileSource(path))]
    assert not known, f"{path.name} is also recognised by {', '.join(known)}."
    sessions = _read_sessions(reader, path)
    assert sessions == _read_sessions(reader, path), "Reading twice gives the same."
    with tempfile.TemporaryDirectory(prefix="closeloop-") as folder:
        elsewhere = Path(folder) / "notes.txt"
        shutil.copyfile(path, elsewhere)
        assert reader.recognises(FileSource(elsewhere)), "A file is known by its content alone."
        if path.stat().st_size <= MAX_COPIED_BYTES:
            _check_copies(reader, path, Path(folder))
    return sessions


def _check_copies(reader: Reader, path: Path, folder: Path) -> None:
    """Read a recording with its file damaged, within the folder that it stands in."""
    content = path.read_bytes()
    copy = folder / path.parent.name / path.name
    shutil.copytree(path.parent, copy.parent)
    for damaged in _iter_damaged(content):
        copy.write_bytes(damaged)
        if reader.recognises(FileSource(copy)):
            _read_sessions(reader, copy)
    copy.write_bytes(_with_texts(content, "x" * (MAX_TEXT_CHARS + 10)))
    for session in _read_sessions(reader, copy):
        lengths = map(len, _iter_texts(msgspec.to_builtins(session)))
        assert max(lengths, default=0) < MAX_TEXT_CHARS + 100, "Texts are stored shortened."
    copy.write_bytes(_with_texts(content, f" AWS_ACCESS_KEY_ID={_SECRET} "))
    for session in _read_sessions(reader, copy):
        redacted, _ = redact_record(session)
        assert _SECRET.encode() not in msgspec.json.encode(redacted), "Secrets can be redacted."


def _read_sessions(reader: Reader, path: Path) -> list[Session]:
    source = FileSource(path)
    parts = list_parts(reader, source)
    assert all(isinstance(part, Path) and part != path for part in parts), "Parts are other files."
    owner = find_owner(reader, source)
    assert owner is None or isinstance(owner, Path), "The owner is a file."
    sessions = list(reader.read(source))
    assert all(count > 0 for count in source.skipped.values()), "What is counted was skipped."
    for session in sessions:
        check_session(session, reader)
    return sessions


def _iter_damaged(content: bytes) -> Iterator[bytes]:
    """Copies that are cut off, and copies with odd values; always the same ones."""
    chance = random.Random(0)  # noqa: S311 - the same copies every time
    lines = content.splitlines(keepends=True)
    for number in range(DAMAGED_COPIES):
        if number % 3 == 0 or len(lines) < 2:
            yield content[: chance.randrange(len(content) + 1)]
        elif number % 3 == 1:
            yield b"".join(chance.sample(lines, len(lines) - 1))
        else:
            yield _map_json(content, lambda value: _replace_some(value, chance))


def _replace_some(value: Any, chance: random.Random) -> Any:
    if chance.random() < 0.03:
        return chance.choice(_ODD_VALUES)
    if isinstance(value, dict):
        return {key: _replace_some(inner, chance) for key, inner in value.items()}
    return [_replace_some(inner, chance) for inner in value] if isinstance(value, list) else value


def _with_texts(content: bytes, more: str) -> bytes:
    """The same with every long text made longer, so that the format is still recognised."""

    def lengthen(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: lengthen(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [lengthen(inner) for inner in value]
        return value + more if isinstance(value, str) and " " in value else value

    return _map_json(content, lengthen, most=3)


def _map_json(content: bytes, change: Any, most: int = 1 << 30) -> bytes:
    """A JSON document, or its first `most` lines that are JSON, with every value changed."""
    try:
        return msgspec.json.encode(change(msgspec.json.decode(content)))
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    changed: list[bytes] = []
    for line in content.splitlines():
        try:
            value = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            changed.append(line)
            continue
        changed.append(msgspec.json.encode(change(value)) if most > 0 else line)
        most -= 1
    return b"\n".join(changed) + b"\n"


def _iter_texts(value: Any) -> Iterator[str]:
    inner: Sequence[Any] = ()
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        inner = [*value, *value.values()]
    elif isinstance(value, list):
        inner = value
    for one in inner:
        yield from _iter_texts(one)
