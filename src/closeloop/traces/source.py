"""A file that may be a recording: its beginning, its lines, its document, all within limits."""

from __future__ import annotations

import codecs
import io
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import zstandard

from closeloop.traces.texts import SHORT_CHARACTERS, Skipped
from closeloop.traces.untrusted import decode

HEAD_BYTES = 1 << 16
HEAD_LINES = 12
DOCUMENT_BYTES = 40 << 20
"""A JSON document larger than this is not read: it would be held in memory whole."""
HEAVY_BYTES = 160 << 20
"""Nor one whose values would take more than about this."""
LIGHT_BYTES = 4 << 20
"""No document up to this size does."""
SHARED_BYTES = 1 << 20
"""A document up to this size is kept for a while: files of one recording name each other."""
LINE_BYTES = 16 << 20
LONG_BYTES = 4 << 20
"""How much of a file is looked at for the end of its first line."""
RECORD_BYTES = 300
"""About what a record takes besides its long texts."""
BLOCK_BYTES = 1 << 18
"""About as much of a file with many lines is decoded at once."""
ZSTD = b"\x28\xb5\x2f\xfd"
MARK = b"\xef\xbb\xbf"
"""What some programs write before UTF-8."""
UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)

_lines = msgspec.json.Decoder().decode_lines
_BAD = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)


class FileSource:
    """Opened when it is used; of what is in it, only the beginning is held."""

    def __init__(self, path: Path, skipped: Skipped | None = None) -> None:
        self.path = path
        self.skipped = Skipped() if skipped is None else skipped
        self._packed = False
        """Whether what is read is not what is on the disk."""
        self._several = False
        """Whether there are more lines than the long one at the beginning."""
        self._first: list[Any] = []
        """Records that `lines` has decoded: who reads them next need not do it again."""
        self._rest = 0
        """Where the lines after those begin."""

    def skip(self, why: str, count: int = 1) -> None:
        """Count what could not be read."""
        self.skipped[why] = self.skipped.get(why, 0) + count

    def beside(self, path: Path) -> FileSource:
        return FileSource(path, self.skipped)

    def open(self, buffer: int = BLOCK_BYTES) -> BinaryIO:
        """The content, unpacked where it is packed as a whole, in UTF-8."""
        file = self.path.open("rb", buffer)
        start = file.read(4)
        file.seek(0)
        if start == ZSTD:
            unpacked = zstandard.ZstdDecompressor().stream_reader(file, closefd=True)
            return io.BufferedReader(unpacked, HEAD_BYTES)
        return io.BufferedReader(_Recoded(file), HEAD_BYTES) if start[:2] in UTF_16 else file

    @cached_property
    def head(self) -> bytes:
        try:
            with self.path.open("rb", 0) as file:
                start = file.read(HEAD_BYTES)
            self._packed = start.startswith((ZSTD, *UTF_16))
            if not self._packed:
                return start
            with self.open() as unpacked:
                return unpacked.read(HEAD_BYTES)
        except (OSError, zstandard.ZstdError):
            return b""

    @cached_property
    def _text(self) -> bytes:
        """The head, without what may stand before JSON; nothing where it is none."""
        text = self.head.removeprefix(MARK).lstrip()
        return text if text[:1] in (b"{", b"[") else b""

    @property
    def _is_whole(self) -> bool:
        return len(self.head) < HEAD_BYTES

    @cached_property
    def lines(self) -> Sequence[Any]:
        *complete, rest = self._text.split(b"\n", HEAD_LINES)
        if self._text and not complete and not self._is_whole:
            return self._long_line()
        if self._is_whole and len(complete) < HEAD_LINES:
            complete.append(rest)
            rest = b""
        values: list[Any] = []
        bad = False
        for line in complete:
            try:
                if line and not line.isspace():
                    values.append(decode(line))
            except _BAD:
                if not values:
                    return ()
                bad = True
        if not bad:
            self._first, self._rest = values, len(self.head) - len(rest)
        return values

    def _long_line(self) -> Sequence[Any]:
        """The first of several lines, where the head holds only the beginning of it."""
        try:
            with self.open() as file:
                line = file.readline(LONG_BYTES)
                if not line.endswith(b"\n") or not file.read(64).strip():
                    return ()
            value = decode(line.removeprefix(MARK))
        except (*_BAD, OSError, zstandard.ZstdError):
            return ()
        self._several = True
        return [value]

    @cached_property
    def document(self) -> Any:
        if not self._text or len(self.lines) > 1 or self._several:
            return None
        if self._is_whole:
            known = self._first and self._rest == len(self.head)
            return self._first[0] if known else _document(self._text)
        try:
            about = self.path.stat()
            if about.st_size <= SHARED_BYTES and not self._packed:
                return _shared(self.path, about.st_size, about.st_mtime_ns)
            return self._large(about.st_size)
        except (OSError, zstandard.ZstdError):
            return None

    def _large(self, size: int) -> Any:
        if self._packed:
            with self.open() as file:
                content = file.read(DOCUMENT_BYTES + 1)
            size = len(content)
        elif size <= DOCUMENT_BYTES:
            content = self.path.read_bytes()
        if size > DOCUMENT_BYTES or is_heavy(content):
            self.skip("a document that is too large")
            return None
        return _document(content)

    def records(self) -> Iterator[Any]:
        # Given away once: whoever asks again may have changed them.
        first, start, self._first = self._first, self._rest if self._first else 0, []
        yield from first
        try:
            if self.head and self._is_whole:
                yield from self._decoded(self.head[start:])
                return
            with self.open(0) as file:
                if self._packed:
                    file.read(start)
                elif start:
                    file.seek(start)
                for block in self._blocks(file):
                    if self.skipped.room <= 0:
                        self.skip("the rest of a session that is too large")
                        break
                    yield from self._decoded(block)
        except (OSError, zstandard.ZstdError):
            self.skip("a file that cannot be read to its end")

    def _blocks(self, file: BinaryIO) -> Iterator[bytes | memoryview]:
        """Whole lines, many at once; only what two blocks share is copied."""
        begun: list[bytes] = []
        size = 0
        while block := file.read(BLOCK_BYTES):
            first, last = block.find(b"\n") + 1, block.rfind(b"\n") + 1
            begun.append(block[:first] if first else block)
            size += len(begun[-1])
            if size > LINE_BYTES:
                begun.clear()
            if first:
                yield from self._line(begun, size)
                if first < last:
                    yield memoryview(block)[first:last]
                begun = [block[last:]]
                size = len(begun[0])
        yield from self._line(begun, size)

    def _line(self, pieces: list[bytes], size: int) -> Iterator[bytes]:
        if size > LINE_BYTES:
            self.skip("a line that is too long")
        elif size:
            yield b"".join(pieces)

    def _decoded(self, block: bytes | memoryview) -> list[Any]:
        try:
            values = _lines(block)
        except _BAD:
            values = self._each(bytes(block))
        count = len(values)
        self.skipped.room -= min(len(block), SHORT_CHARACTERS * count) + RECORD_BYTES * count
        return values

    def _each(self, block: bytes) -> list[Any]:
        """The values of lines of which some are no JSON."""
        values = []
        for line in block.split(b"\n"):
            if line and not line.isspace():
                try:
                    values.append(decode(line.removeprefix(MARK)))
                except _BAD:
                    self.skip("a line that is not JSON")
        return values


class _Recoded(io.RawIOBase):
    """UTF-16 read as UTF-8."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._decoder = codecs.getincrementaldecoder("utf-16")("replace")
        self._ready = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            block = self._file.read(HEAD_BYTES)
            self._ready = self._decoder.decode(block, final=not block).encode()
            if not block and not self._ready:
                return 0
        size = min(len(buffer), len(self._ready))
        buffer[:size], self._ready = self._ready[:size], self._ready[size:]
        return size

    def close(self) -> None:
        self._file.close()
        super().close()


def is_heavy(content: bytes) -> bool:
    """Whether many small values take far more memory than they do in the file."""
    if len(content) <= LIGHT_BYTES:
        return False
    weights = ((b",", 58), (b"[", 64), (b"{", 200))
    return sum(content.count(mark) * weight for mark, weight in weights) > HEAVY_BYTES


def _document(content: bytes) -> Any:
    try:
        return decode(content.removeprefix(MARK))
    except _BAD:
        return None


@lru_cache(maxsize=8)
def _shared(path: Path, size: int, changed: int) -> Any:
    return _document(path.read_bytes())
