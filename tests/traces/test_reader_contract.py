"""What every reader promises, whatever it is given: real recordings, damaged ones, other files."""

from __future__ import annotations

import json
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from closeloop import plugins
from closeloop.contracts import check_reader, check_session
from closeloop.records.protocols import Reader, RecordingSource
from closeloop.records.trace import Command, Session
from closeloop.traces.file_source import FileSource, find_owner, installed_readers, list_parts
from closeloop.traces.session_builder import SessionBuilder
from closeloop.traces.untrusted_json import as_count, as_mapping, as_text
from example_counts import scale_examples

FIXTURES = Path(__file__).parent / "fixtures"
READERS: dict[str, Reader] = {reader.name: reader for reader in installed_readers()}
UNANSWERED = {
    "atif": 2,
    "codex-exec": 1,
    "gateway": 4,
    "gemini-stream": 1,
    "openhands-completions": 4,
    "swe-agent": 1,
}
"""Calls in the recordings that have no result: of agents that were stopped, or in other files."""
FORMATS = sorted(path.name for path in FIXTURES.glob("*") if path.is_dir())


def recordings(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def recognising(path: Path) -> list[str]:
    return [name for name, reader in READERS.items() if reader.recognises(FileSource(path))]


def read(path: Path) -> list[Session]:
    """What comes of a file, held to the contract; nothing where no reader knows it."""
    names = recognising(path)
    assert len(names) <= 1, f"{path} is recognised by several readers: {names}"
    if not names:
        return []
    reader = READERS[names[0]]
    source = FileSource(path)
    parts = [*list_parts(reader, source)]
    assert all(isinstance(part, Path) for part in parts)
    assert path not in parts
    owner = find_owner(reader, source)
    assert owner is None or isinstance(owner, Path)
    sessions = list(reader.read(source))
    assert sessions == list(reader.read(FileSource(path))), "reading twice gives the same"
    assert all(count > 0 for count in source.skipped.values())
    for session in sessions:
        check_session(session, reader)
    return sessions


# Real recordings


def test_readers_are_known_by_the_names_they_give_themselves() -> None:
    assert READERS.keys() == plugins.installed_plugins("readers").keys()
    assert all(reader.version >= 1 for reader in READERS.values())


def test_every_reader_has_a_recording_to_be_tried_on() -> None:
    read_by = {name for path in recordings(FIXTURES) for name in recognising(path)}
    assert read_by == READERS.keys()


@pytest.mark.parametrize("name", FORMATS)
def test_every_recording_is_read_into_sessions_that_fit_together(name: str) -> None:
    files = recordings(FIXTURES / name)
    assert any(read(path) for path in files), f"nothing in {name} was read"


@pytest.mark.parametrize("name", sorted(READERS))
def test_every_reader_keeps_the_contract_that_authors_check_theirs_by(name: str) -> None:
    own = [path for path in recordings(FIXTURES) if recognising(path) == [name]]
    assert check_reader(READERS[name], own, unanswered=UNANSWERED.get(name, 0))


class FieldReader:
    """A reader that counts on one field to be there, of which the contract test knows nothing."""

    name, version = "field", 1

    def recognises(self, source: RecordingSource) -> bool:
        return bool(source.lines) and "field" in as_mapping(source.lines[0])

    def read(self, source: RecordingSource) -> Iterator[Session]:
        builder = SessionBuilder(self.name, self.version, source.skipped)
        for line in map(as_mapping, source.records()):
            if "command" in line:
                call = builder.add_command(as_text(line["command"]) or "")
                builder.add_result(call, as_text(line["output"]), exit_code=as_count(line["exit"]))
        yield builder.build_session(id="s", agent="field")


def test_the_contract_names_the_field_that_a_reader_counts_on(tmp_path: Path) -> None:
    recording = tmp_path / "session.jsonl"
    lines = [{"field": 1}, {"command": "make it", "output": "done", "exit": 3}]
    recording.write_bytes(b"\n".join(map(msgspec.json.encode, lines)))
    with pytest.raises(KeyError) as raised:
        check_reader(FieldReader(), [recording])
    assert any("session.jsonl without any '" in note for note in raised.value.__notes__)


def test_a_stated_exit_code_is_kept_of_commands_only() -> None:
    builder = SessionBuilder("field", 1, {})
    command = builder.add_result(builder.add_command("make"), "exit code 0", exit_code=3)
    other = builder.add_result(builder.add_tool_use("look", {}), "exit code 0", exit_code=3)
    assert isinstance(command, Command)
    assert (command.exit_code, command.exit_from) == (3, "stated")
    assert not hasattr(other, "exit_code")


@pytest.mark.parametrize("name", FORMATS)
def test_a_recording_is_found_by_its_content_wherever_it_lies(name: str, tmp_path: Path) -> None:
    for number, path in enumerate(recordings(FIXTURES / name)):
        before = recognising(path)
        elsewhere = tmp_path / str(number) / "notes.txt"
        elsewhere.parent.mkdir()
        shutil.copy(path, elsewhere)
        assert recognising(elsewhere) == before, path


# Damaged recordings

_PLAIN = (None, True, False, 0, -1, 1.5, 2**53, "", "x", "\x00", "2026-13-45T99:99:99Z", "é" * 50)
_NESTED = ([], {}, [[]], [None], {"type": 7}, {"": None}, [{}], {"content": [{"type": "text"}]})
_odd = st.sampled_from((*_PLAIN, *_NESTED)).map(deepcopy)
LIMITS = settings(
    max_examples=scale_examples(20),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something stands inside a JSON value."""
    if len(path) > 12:
        return
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in pairs:
        yield (*path, key)
        if isinstance(inner, dict | list):
            yield from places(inner, (*path, key))


def changed(value: Any, draw: Any) -> Any:
    """A JSON value with some of its parts gone, doubled or replaced."""
    for _ in range(draw(st.integers(1, 4))):
        known = list(places(value)) if isinstance(value, dict | list) else []
        if not known:
            return draw(_odd)
        *path, last = draw(st.sampled_from(known))
        inner = value
        for key in path:
            inner = inner[key]
        match draw(st.sampled_from(["drop", "replace", "double"])):
            case "drop":
                del inner[last]
            case "double" if isinstance(inner, list):
                inner.insert(last, inner[last])
            case _:
                inner[last] = draw(_odd)
    return value


def damaged(content: bytes, draw: Any) -> bytes:
    """A file with something wrong in its values, its lines or its bytes."""
    kind = draw(st.sampled_from(["values", "values", "lines", "cut", "bytes"]))
    lines = content.splitlines(keepends=True)
    if kind == "cut":
        return content[: draw(st.integers(0, len(content)))]
    if kind == "bytes":
        place = draw(st.integers(0, len(content)))
        return content[:place] + draw(st.binary(max_size=8)) + content[place + 4 :]
    if kind == "lines" and len(lines) > 1:
        order = draw(st.lists(st.integers(0, len(lines) - 1), max_size=len(lines) + 2))
        return b"".join(lines[number] for number in order)
    try:
        return msgspec.json.encode(changed(msgspec.json.decode(content), draw))
    except msgspec.DecodeError:
        pass
    if not lines:
        return content
    number = draw(st.integers(0, len(lines) - 1))
    try:
        lines[number] = msgspec.json.encode(changed(msgspec.json.decode(lines[number]), draw))
    except msgspec.DecodeError:
        return content[::-1]
    return b"".join([*lines[:number], lines[number] + b"\n", *lines[number + 1 :]])


@pytest.mark.parametrize("name", FORMATS)
@LIMITS
@given(data=st.data())
def test_a_damaged_recording_is_read_as_far_as_it_goes(name: str, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "recording"
        shutil.copytree(FIXTURES / name, folder)
        path = data.draw(st.sampled_from(recordings(folder)))
        path.write_bytes(damaged(path.read_bytes(), data.draw))
        for file in recordings(folder):
            read(file)


_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.text(max_size=4) | st.sampled_from(["type", "id", "role", "content", "messages"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(LIMITS, max_examples=scale_examples(100))
@given(
    st.binary(max_size=300)
    | _json.map(msgspec.json.encode)
    | st.lists(_json, max_size=4).map(lambda values: b"\n".join(map(msgspec.json.encode, values)))
)
def test_any_bytes_and_any_json_are_met_calmly(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "file"
        path.write_bytes(content)
        read(path)


# Files that are not recordings


def bomb() -> bytes:
    """A packed gigabyte of zeros, without making one."""
    packer = zstandard.ZstdCompressor(level=1).compressobj()
    block = bytes(1 << 20)
    return b"".join([*(packer.compress(block) for _ in range(1024)), packer.flush()])


OTHERS: dict[str, bytes] = {
    "empty": b"",
    "a newline": b"\n",
    "a byte order mark": b"\xef\xbb\xbf",
    "binary": bytes(range(256)) * 64,
    "half a document": b'{"messages": [{"role": "user", "content": "hel',
    "nested too deeply": b"[" * 100_000 + b"]" * 100_000,
    "objects nested too deeply": b'{"content":' * 50_000 + b"1" + b"}" * 50_000,
    "a number": b"7",
    "null lines": b"null\n" * 20,
    "empty records": b"{}\n{}\n{}\n",
    "empty lists": b"[]\n[]\n",
    "a package": b'{"name": "x", "version": "1.0.0", "scripts": {"test": "jest"}}',
    "a lock file": b'{"lockfileVersion": 3, "packages": {"": {"name": "x"}}}',
    "logs of a service": b"".join(
        msgspec.json.encode({"level": "info", "msg": f"GET /{n}", "time": 1700000000 + n}) + b"\n"
        for n in range(30)
    ),
    "chats for training": b'{"messages": [{"role": "user", "content": "a"}, '
    b'{"role": "assistant", "content": "b"}]}\n' * 5,
    "bare chat lines": b'{"role": "user", "content": "a"}\n{"role": "assistant", "content": "b"}\n',
    "another tool's events": b'{"type": "event", "id": 1, "timestamp": "2026-01-01T00:00:00Z"}\n'
    b'{"type": "message", "id": 2}\n',
    "surrogates": b'{"type": "user", "text": "\\ud800"}\n{"a": "\\udfff\\ud800"}\n',
    "not UTF-8": b'{"type": "user", "text": "\xff\xfe"}\n',
    "Markdown": b"# Notes\n\n> quoted\n\n```python\nprint()\n```\n",
    "a database by name only": b"SQLite format 3\x00" + bytes(84),
    "zstd that ends early": zstandard.ZstdCompressor().compress(b'{"a": 1}\n' * 1000)[:20],
    "a zstd bomb": bomb(),
    "a zip by name only": b"PK\x03\x04" + bytes(100),
    "protobuf of nothing": b"\x0a\x00",
}


@pytest.mark.parametrize("name", OTHERS)
def test_files_that_are_no_recordings_are_refused_by_all(name: str, tmp_path: Path) -> None:
    path = tmp_path / "file.jsonl"
    path.write_bytes(OTHERS[name])
    assert recognising(path) == []


def test_a_zip_bomb_is_neither_unpacked_nor_believed(tmp_path: Path) -> None:
    path = tmp_path / "log.eval"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        with packed.open("header.json", "w", force_zip64=True) as member:
            for _ in range(512):
                member.write(b" " * (1 << 20))
        packed.writestr("samples/1_epoch_1.json", "{}")
    read(path)


def test_a_folder_an_absent_file_and_a_closed_one_are_refused(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.write_text("{}")
    closed.chmod(0)
    for path in (tmp_path, tmp_path / "absent", closed):
        assert recognising(path) == []


@pytest.mark.parametrize("name", FORMATS)
def test_a_torn_last_line_costs_no_more_than_that_line(name: str, tmp_path: Path) -> None:
    for number, path in enumerate(recordings(FIXTURES / name)):
        names, content = recognising(path), path.read_bytes()
        if not names or not is_lines(content):
            continue
        folder = tmp_path / str(number)
        shutil.copytree(path.parent, folder)
        torn = folder / path.name
        torn.write_bytes(content.rstrip(b"\n") + b'\n{"type": "assistant", "mess')
        assert recognising(torn) == names
        whole, rest = events(read(path)), events(read(torn))
        assert len(rest) >= len(whole), path


def is_lines(content: bytes) -> bool:
    lines = content.splitlines()
    if len(lines) < 2:
        return False
    try:
        return all(isinstance(json.loads(line), dict) for line in lines)
    except ValueError:
        return False


def events(sessions: Sequence[Session]) -> list[Any]:
    return [event for session in sessions for event in session.trace.events]
