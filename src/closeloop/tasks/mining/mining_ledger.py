"""Which commits were tried, and what came of it: so that mining goes on where it stopped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from closeloop.records.errors import MachineFailed
from closeloop.records.record import Record, Time

Kind = TypeVar("Kind", bound=Record)
LEDGER_VERSION = 1
"""Of how candidates are made and proved: entries of another one are tried again."""


class LedgerEntry(Record):
    """One commit, tried once."""

    commit: str
    state: Literal["proved", "refused", "failed"]
    """Failed: for reasons that may be gone tomorrow."""
    why: str | None = None
    task: str | None = None
    change: str | None = None
    """The digest of what it changes: the same work may have been committed twice."""
    base: str | None = None
    """The commit that a task starts from."""
    at: Time
    seconds: float
    version: int = LEDGER_VERSION


def read_ledger(path: Path) -> dict[str, LedgerEntry]:
    """The last entry of every commit; lines that are torn, or of other versions, do not count."""
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise MachineFailed(f"{path} cannot be read: {error.strerror}.") from error
    entries = decode_whole_lines(lines, LedgerEntry)
    return {entry.commit: entry for entry in entries if entry.version == LEDGER_VERSION}


def decode_whole_lines(lines: Iterable[bytes], kind: type[Kind]) -> Iterator[Kind]:
    """The records of a file, a line each; lines that are torn do not count."""
    for line in lines:
        with suppress(ValueError, RecursionError):
            yield msgspec.json.decode(line, type=kind)


def append_entry(path: Path, entry: Record) -> None:
    """Add a line, whole: a torn one before it must not swallow it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as opened:
            opened.write(b"\n" + msgspec.json.encode(entry) + b"\n")
    except OSError as error:
        raise MachineFailed(f"{path} cannot be written: {error.strerror}.") from error
