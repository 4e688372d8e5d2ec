"""Read source files a little, in a process of its own: `python -m` this, which imports no more."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import IO

import msgspec

from closeloop.changes.kinds import Kind, is_generated
from closeloop.changes.syntax import Outline, skim, words
from closeloop.model.inspection import Language
from closeloop.model.record import Record

Row = tuple[str, bool, Outline]
"""A file's key, whether a program wrote it, and what it says."""


class Source(Record):
    """A file of a known language."""

    path: str
    language: Language
    blob: str
    kind: Kind

    @property
    def vendored(self) -> bool:
        return self.kind == "vendored"

    @property
    def key(self) -> str:
        """Of others' code only the words are kept, and nobody looks for copies of tests."""
        kept = {"vendored": "words", "source": self.language}.get(
            self.kind, f"{self.language} unprinted"
        )
        return f"{kept}:{self.blob}"


class Job(Record):
    """A file to read."""

    source: Source
    content: bytes


def send(stream: IO[bytes], content: bytes) -> None:
    stream.write(len(content).to_bytes(8, "little"))
    stream.write(content)
    stream.flush()


def received(stream: IO[bytes]) -> bytes:
    length = stream.read(8)
    content = stream.read(int.from_bytes(length, "little")) if length else b""
    if not content:
        raise EOFError
    return content


def rows(jobs: Iterable[Job]) -> list[Row]:
    return [_row(job.source, job.content) for job in jobs]


def _row(source: Source, content: bytes) -> Row:
    if source.vendored:
        return source.key, False, Outline(names=b"\n".join(words(content)))
    outline = skim(source.language, content, printed=source.kind == "source")
    return source.key, is_generated(source.path, content), outline


def _work(commands: IO[bytes], answers: IO[bytes]) -> None:
    """What the other process does, until nobody asks any more."""
    with suppress(EOFError):
        while True:
            jobs = msgspec.msgpack.decode(received(commands), type=list[Job])
            send(answers, msgspec.msgpack.encode(rows(jobs)))


if __name__ == "__main__":
    _work(sys.stdin.buffer, sys.stdout.buffer)
