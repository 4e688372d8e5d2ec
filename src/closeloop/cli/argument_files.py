"""Files that somebody names on the command line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from closeloop.records.errors import BadInput


def read_file_content(file: Path, most: int = -1) -> bytes:
    """What a file holds: all of it, or so many bytes at the most."""
    try:
        with file.open("rb") as stream:
            return stream.read(most)
    except OSError as error:
        raise BadInput(f"{file} cannot be read: {error.strerror}.") from error


@contextmanager
def report_write_errors(file: Path | None) -> Iterator[None]:
    """BadInput where the file cannot be written."""
    try:
        yield
    except OSError as error:
        raise BadInput(f"{file} cannot be written ({error.strerror}): name another.") from error


def write_named_file(file: Path, made: bytes) -> None:
    with report_write_errors(file):
        file.write_bytes(made)
