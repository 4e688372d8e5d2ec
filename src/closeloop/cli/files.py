"""Files that somebody names on the command line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from closeloop.model.errors import BadInput


def content_of(file: Path, most: int = -1) -> bytes:
    """What a file holds: all of it, or so many bytes at the most."""
    try:
        with file.open("rb") as opened:
            return opened.read(most)
    except OSError as error:
        raise BadInput(f"{file} cannot be read: {error.strerror}.") from error


@contextmanager
def writing(file: Path | None) -> Iterator[None]:
    """BadInput where the file cannot be written."""
    try:
        yield
    except OSError as error:
        raise BadInput(f"{file} cannot be written ({error.strerror}): name another.") from error


def write(file: Path, made: bytes) -> None:
    with writing(file):
        file.write_bytes(made)
