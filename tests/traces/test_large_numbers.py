"""Whatever numbers a recording holds, wherever they stand, its sessions can be stored."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import zipfile
from pathlib import Path
from typing import Any

import msgspec
import pytest

from closeloop.records.protocols import Reader
from closeloop.text.redaction import redact_record
from closeloop.traces import otlp_export, trace_export
from closeloop.traces.file_source import FileSource, installed_readers

FIXTURES = Path(__file__).parent / "fixtures"
READERS: dict[str, Reader] = {reader.name: reader for reader in installed_readers()}
FORMATS = sorted(path.name for path in FIXTURES.glob("*") if path.is_dir())
NUMBERS = {"huge": 2**80, "negative": -(2**70), "wide": 2**64 - 1, "listed": [10**40], "odd": 1e308}
_TOOL = re.compile(r'(\\*"(?:name|tool|toolName|tool_name|function_name)\\*": \\*")\w+(\\*")')
HALF = {"half": "\ud83d"}
"""Half of a pair: what holds it goes through another decoder."""


def swollen(value: Any) -> Any:
    """A JSON value with numbers beyond 64 bits in every object, also in those inside texts."""
    if isinstance(value, dict):
        return {**{key: swollen(inner) for key, inner in value.items()}, **NUMBERS, **HALF}
    if isinstance(value, list):
        return [swollen(inner) for inner in value]
    if isinstance(value, str) and value.startswith("{"):
        try:
            return json.dumps(swollen(json.loads(value)))
        except ValueError:
            return value
    return value


def unknown(value: Any) -> Any:
    """The same, and every tool is one that nobody knows: its arguments are kept as they are."""
    told = json.dumps(swollen(value))
    return json.loads(_TOOL.sub(r"\1some_tool\2", told))


def enlarged(value: Any) -> Any:
    """A JSON value whose numbers are all too large."""
    if isinstance(value, dict):
        return {key: enlarged(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [enlarged(inner) for inner in value]
    return 2**80 if isinstance(value, int) and not isinstance(value, bool) else value


def rewritten(content: bytes, change: Any) -> bytes:
    try:
        return json.dumps(change(json.loads(content))).encode()
    except ValueError:
        pass
    try:
        lines = [json.loads(line) for line in content.splitlines()]
    except ValueError:
        return content
    return b"".join(json.dumps(change(line)).encode() + b"\n" for line in lines)


def rewrite(path: Path, change: Any) -> None:
    if path.suffix == ".db":
        with sqlite3.connect(path) as database:
            tables = [row[0] for row in database.execute("SELECT name FROM sqlite_master")]
            for table in [name for name in tables if not name.startswith("sqlite")]:
                rewrite_table(database, table, change)
    elif path.suffix == ".eval":
        with zipfile.ZipFile(path) as packed:
            if any(member.compress_type not in (0, 8) for member in packed.infolist()):
                return
            members = {name: packed.read(name) for name in packed.namelist()}
        with zipfile.ZipFile(path, "w") as packed:
            for name, content in members.items():
                packed.writestr(name, rewritten(content, change))
    else:
        path.write_bytes(rewritten(path.read_bytes(), change))


def rewrite_table(database: sqlite3.Connection, table: str, change: Any) -> None:
    try:
        rows = database.execute(f'SELECT rowid, * FROM "{table}"')
    except sqlite3.OperationalError:
        return
    names = [column[0] for column in rows.description][1:]
    for number, *values in rows.fetchall():
        for name, value in zip(names, values, strict=True):
            if isinstance(value, str) and value[:1] in ("{", "["):
                told = rewritten(value.encode(), change).decode()
                statement = f'UPDATE "{table}" SET "{name}" = ? WHERE rowid = ?'
                database.execute(statement, (told, number))


def stored(folder: Path) -> set[str]:
    """Every session of a folder, read, rid of secrets, packed and exported: who read any."""
    found = set()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        source = FileSource(path)
        for name in [name for name, reader in READERS.items() if reader.recognises(source)]:
            for read in READERS[name].read(source):
                session, _ = redact_record(read)
                packed = msgspec.msgpack.encode(session)
                assert msgspec.msgpack.decode(packed, type=type(session)) == session
                for export in (
                    trace_export.export_atif,
                    otlp_export.export_otlp,
                    trace_export.export_jsonl,
                ):
                    assert list(export(session, session.trace))
                found.add(name)
    return found


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("change", [swollen, unknown, enlarged])
def test_numbers_that_no_store_can_hold_do_not_break_a_reader(
    name: str, change: Any, tmp_path: Path
) -> None:
    shutil.copytree(FIXTURES / name, tmp_path / name)
    before = stored(tmp_path / name)
    for path in sorted(path for path in (tmp_path / name).rglob("*") if path.is_file()):
        rewrite(path, change)
    after = stored(tmp_path / name)
    assert change is not swollen or after == before
