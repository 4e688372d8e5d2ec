"""Secrets that were made up for tests: put together here, so that no scanner takes them for leaks.

The store keeps bodies compressed, so that it is looked through body by body.
"""

from __future__ import annotations

import random
import sqlite3
import string
from contextlib import closing
from pathlib import Path

import zstandard

ANY = string.ascii_letters + string.digits
HEX = "0123456789abcdef"
UPPER = string.ascii_uppercase + string.digits
BASE32 = string.ascii_uppercase + "234567"


def make(alphabet: str, size: int, seed: object = 0) -> str:
    """Random characters, always the same for the same seed."""
    draw = random.Random(f"{alphabet}/{size}/{seed}")
    return "".join(draw.choice(alphabet) for _ in range(size))


def readable(database: Path) -> bytes:
    """Everything that somebody with a SQLite store can read in it, outside of private bodies."""
    found: list[bytes] = []
    with closing(sqlite3.connect(database)) as connection:
        names = [row[0] for row in connection.execute("SELECT name FROM sqlite_schema")]
        tables = {row[0] for row in connection.execute("SELECT tbl_name FROM sqlite_schema")}
        assert names
        for table in sorted(tables - {"private_bodies", "sqlite_sequence"}):
            for row in connection.execute(f"SELECT * FROM {table}"):
                found += [unpacked(value) for value in row]
    return b"\n".join(found)


def unpacked(value: object) -> bytes:
    if not isinstance(value, bytes):
        return str(value).encode("utf-8", "replace")
    try:
        return zstandard.ZstdDecompressor().decompress(value)
    except zstandard.ZstdError:
        return value
