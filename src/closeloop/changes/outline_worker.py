"""Outline source files in a separate process: run with `python -m`, with minimal imports."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import IO

import msgspec

from closeloop.changes.file_kinds import FileKind, is_generated
from closeloop.changes.syntax import Outline, extract_words, outline_source
from closeloop.records.change import Language
from closeloop.records.record import Record

OutlineRow = tuple[str, bool, Outline]
"""A file's key, whether it is generated, and its outline."""


class SourceFile(Record):
    """A file of a supported language."""

    path: str
    language: Language
    blob: str
    kind: FileKind

    @property
    def is_vendored(self) -> bool:
        return self.kind == "vendored"

    @property
    def cache_key(self) -> str:
        """Return the cache key: third-party code is stored as words only, tests without
        fingerprints."""
        prefix = {"vendored": "words", "source": self.language}.get(
            self.kind, f"{self.language} unprinted"
        )
        return f"{prefix}:{self.blob}"


class OutlineJob(Record):
    """A file to read."""

    source: SourceFile
    content: bytes


def send_frame(stream: IO[bytes], content: bytes) -> None:
    stream.write(len(content).to_bytes(8, "little"))
    stream.write(content)
    stream.flush()


def receive_frame(stream: IO[bytes]) -> bytes:
    length = stream.read(8)
    content = stream.read(int.from_bytes(length, "little")) if length else b""
    if not content:
        raise EOFError
    return content


def outline_batch(jobs: Iterable[OutlineJob]) -> list[OutlineRow]:
    return [_outline_file(job.source, job.content) for job in jobs]


def _outline_file(source: SourceFile, content: bytes) -> OutlineRow:
    if source.is_vendored:
        return source.cache_key, False, Outline(names=b"\n".join(extract_words(content)))
    outline = outline_source(source.language, content, fingerprints=source.kind == "source")
    return source.cache_key, is_generated(source.path, content), outline


def _serve_jobs(commands: IO[bytes], answers: IO[bytes]) -> None:
    """Serve jobs in the worker process until the input ends."""
    with suppress(EOFError):
        while True:
            jobs = msgspec.msgpack.decode(receive_frame(commands), type=list[OutlineJob])
            send_frame(answers, msgspec.msgpack.encode(outline_batch(jobs)))


if __name__ == "__main__":
    _serve_jobs(sys.stdin.buffer, sys.stdout.buffer)
