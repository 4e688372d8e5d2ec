"""Whatever a value of a recording is replaced by, nothing raises and the rest is still read."""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from closeloop.records.trace import SessionFilter
from closeloop.store import open_store
from closeloop.traces.file_source import stat_recording
from closeloop.traces.session_import import FileOutcome, read_recordings

FIXTURES = Path(__file__).parent / "fixtures"
FORMATS = sorted(path.name for path in FIXTURES.glob("*") if path.is_dir())
HOSTILE: list[Callable[[Any], str]] = [
    lambda value: json.dumps(f"{value}\ud83d"),
    lambda _: "1e400",
    lambda _: "9" * 5000,
    lambda _: str(2**80),
    lambda _: str(-(2**70)),
    lambda _: "NaN",
    lambda _: "[" * 300 + "]" * 300,
]
STAND_IN = "a value that is replaced"

Place = tuple[str | int, ...]


def places(value: Any, place: Place = ()) -> Iterator[tuple[Place, Any]]:
    """Every value of a JSON value that holds no other."""
    if not isinstance(value, dict | list):
        yield place, value
        return
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        yield from places(inner, (*place, key))


def told(value: Any, place: Place) -> str:
    """A JSON value with a stand-in at one place."""
    copy = json.loads(json.dumps(value))
    inner = copy
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = STAND_IN
    return json.dumps(copy)


def lines_of(content: bytes) -> list[Any]:
    """The records of a file, or its document; none where it is no JSON."""
    for pieces in ([content], content.splitlines()):
        try:
            return [value for value in map(json.loads, pieces) if isinstance(value, dict | list)]
        except ValueError:
            continue
    return []


def spoiled(path: Path, seen: set[object]) -> Iterator[bytes]:
    """The file with one value after the other replaced: of values at like places, the first."""
    records = lines_of(path.read_bytes())
    written = [json.dumps(record) for record in records]
    for record in records:
        kind = record.get("type") if isinstance(record, dict) else None
        for place, value in places(record):
            names = tuple(key for key in place if isinstance(key, str))
            if (like := (str(kind), names)) in seen:
                continue
            seen.add(like)
            hostile = HOSTILE[zlib.crc32(repr(like).encode()) % len(HOSTILE)](value)
            line = told(record, place).replace(json.dumps(STAND_IN), hostile)
            # At the end, where there are several: what a file is, its first lines say.
            yield "\n".join([*written, line] if len(records) > 1 else [line]).encode()


def looked(path: Path, folder: Path) -> FileOutcome:
    file = stat_recording(str(path))
    assert file is not None
    return read_recordings([file], SessionFilter(), str(folder))[0]


@pytest.mark.parametrize("name", FORMATS)
def test_a_hostile_value_costs_no_more_than_itself(name: str, tmp_path: Path) -> None:
    shutil.copytree(FIXTURES / name, tmp_path / name)
    seen: set[object] = set()
    with open_store(":memory:") as store:
        for path in sorted(path for path in (tmp_path / name).rglob("*") if path.is_file()):
            before = looked(path, tmp_path)
            content = path.read_bytes()
            for spoilt in spoiled(path, seen):
                path.write_bytes(spoilt)
                after = looked(path, tmp_path)
                assert after.trouble is None, spoilt
                store.save_sessions(after.sessions, [])
                if len(lines_of(content)) > 1:
                    assert after.reader == before.reader
                    assert after.count.sessions >= before.count.sessions
                    assert after.count.events >= before.count.events, spoilt
            path.write_bytes(content)
