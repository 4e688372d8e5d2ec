"""A file that may be a recording: its beginning, its lines, its document, all within limits."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import zstandard

from closeloop.traces.untrusted import decode

HEAD_BYTES = 1 << 16
HEAD_LINES = 12
DOCUMENT_BYTES = 256 << 20
"""A JSON document larger than this is not read: it would be held in memory whole."""
LINE_BYTES = 64 << 20
BUFFER = 1 << 20
ZSTD = b"\x28\xb5\x2f\xfd"


class FileSource:
    """Opened when it is used; nothing of it is held longer than that."""

    def __init__(self, path: Path, skipped: dict[str, int] | None = None) -> None:
        self.path = path
        self.skipped = {} if skipped is None else skipped

    def skip(self, why: str, count: int = 1) -> None:
        """Count what could not be read."""
        self.skipped[why] = self.skipped.get(why, 0) + count

    def beside(self, path: Path) -> FileSource:
        return FileSource(path, self.skipped)

    def open(self) -> BinaryIO:
        """The content, unpacked where it is packed as a whole."""
        file = self.path.open("rb", BUFFER)
        if file.read(4) != ZSTD:
            file.seek(0)
            return file
        file.seek(0)
        unpacked = zstandard.ZstdDecompressor().stream_reader(file, closefd=True)
        return io.BufferedReader(unpacked, HEAD_BYTES)

    @cached_property
    def head(self) -> bytes:
        try:
            with self.open() as file:
                return file.read(HEAD_BYTES)
        except (OSError, zstandard.ZstdError):
            return b""

    @cached_property
    def lines(self) -> Sequence[Any]:
        text = self.head.removeprefix(b"\xef\xbb\xbf").lstrip()
        if text[:1] not in (b"{", b"["):
            return ()
        complete = text.splitlines()
        if len(self.head) == HEAD_BYTES and len(complete) > 1:
            complete.pop()
        values = []
        for line in complete[:HEAD_LINES]:
            try:
                values.append(decode(line))
            except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
                if not values:
                    return ()
        return values

    @cached_property
    def document(self) -> Any:
        if self.head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] not in (b"{", b"["):
            return None
        try:
            with self.open() as file:
                content = file.read(DOCUMENT_BYTES + 1)
            if len(content) > DOCUMENT_BYTES:
                self.skip("a document that is too large")
                return None
            return decode(content.removeprefix(b"\xef\xbb\xbf"))
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError, OSError):
            return None
        except zstandard.ZstdError:
            return None

    def records(self) -> Iterator[Any]:
        try:
            with self.open() as file:
                yield from self._decoded(file)
        except (OSError, zstandard.ZstdError):
            self.skip("a file that cannot be read to its end")

    def _decoded(self, file: BinaryIO) -> Iterator[Any]:
        while line := file.readline(LINE_BYTES):
            if len(line) == LINE_BYTES and not line.endswith(b"\n"):
                self.skip("a line that is too long")
                while (rest := file.readline(LINE_BYTES)) and not rest.endswith(b"\n"):
                    pass
                continue
            if line.isspace():
                continue
            try:
                yield decode(line.removeprefix(b"\xef\xbb\xbf"))
            except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
                self.skip("a line that is not JSON")
