"""A file that may be a recording: its beginning, its lines, its document, all within limits."""

from __future__ import annotations

import codecs
import io
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import msgspec
import zstandard

from closeloop.records.protocols import RecordingSource
from closeloop.sqlite_files import SQLITE_MAGIC
from closeloop.text.untrusted import SHORT_TEXT_CHARS, SkipCounts
from closeloop.traces.untrusted_json import decode_json

HEAD_BYTES = 1 << 16
HEAD_LINES = 12
MAX_DOCUMENT_BYTES = 40 << 20
"""A JSON document larger than this is not read: it would be held in memory whole."""
MAX_MEMORY_BYTES = 160 << 20
"""Nor one whose values would take more than about this."""
ALWAYS_LIGHT_BYTES = 4 << 20
"""No document up to this size does."""
MAX_SHARED_BYTES = 1 << 20
"""A document up to this size is kept for a while: files of one recording name each other."""
MAX_LINE_BYTES = 16 << 20
MAX_FIRST_LINE_BYTES = 4 << 20
"""How much of a file is looked at for the end of its first line."""
RECORD_BYTES = 300
"""About what a record takes besides its long texts."""
BLOCK_BYTES = 1 << 18
"""About as much of a file with many lines is decoded at once."""
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
UTF8_BOM = b"\xef\xbb\xbf"
"""What some programs write before UTF-8."""
UTF16_BOMS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)

_decode_lines = msgspec.json.Decoder().decode_lines
_DECODE_ERRORS = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)
Value = TypeVar("Value")


class FileSource:
    """Opened when it is used; of what is in it, only the beginning is held."""

    def __init__(self, path: Path, skipped: SkipCounts | None = None) -> None:
        self.path = path
        self.skipped = SkipCounts() if skipped is None else skipped
        self._packed = False
        """Whether what is read is not what is on the disk."""
        self._several = False
        """Whether there are more lines than the long one at the beginning."""
        self._first: list[Any] = []
        """Records that `lines` has decoded: who reads them next need not do it again."""
        self._rest = 0
        """Where the lines after those begin."""

    def count_skip(self, why: str, count: int = 1) -> None:
        """Count what could not be read."""
        self.skipped[why] = self.skipped.get(why, 0) + count

    def beside(self, path: Path) -> FileSource:
        return FileSource(path, self.skipped)

    def open(self, buffer: int = BLOCK_BYTES) -> BinaryIO:
        """The content, unpacked where it is packed as a whole, in UTF-8."""
        file = self.path.open("rb", buffer)
        start = file.read(4)
        file.seek(0)
        if start == ZSTD_MAGIC:
            unpacked = zstandard.ZstdDecompressor().stream_reader(file, closefd=True)
            return io.BufferedReader(unpacked, HEAD_BYTES)
        return (
            io.BufferedReader(_Utf16Reader(file), HEAD_BYTES) if start[:2] in UTF16_BOMS else file
        )

    @cached_property
    def head(self) -> bytes:
        try:
            with self.path.open("rb", 0) as file:
                start = file.read(HEAD_BYTES)
            self._packed = start.startswith((ZSTD_MAGIC, *UTF16_BOMS))
            if not self._packed:
                return start
            with self.open() as unpacked:
                return unpacked.read(HEAD_BYTES)
        except (OSError, zstandard.ZstdError):
            return b""

    @cached_property
    def _json_head(self) -> bytes:
        """The head, without what may stand before JSON; nothing where it is none."""
        text = self.head.removeprefix(UTF8_BOM).lstrip()
        return text if text[:1] in (b"{", b"[") else b""

    @property
    def _is_whole(self) -> bool:
        return len(self.head) < HEAD_BYTES

    @cached_property
    def lines(self) -> Sequence[Any]:
        *complete, rest = self._json_head.split(b"\n", HEAD_LINES)
        if self._json_head and not complete and not self._is_whole:
            return self._read_long_line()
        if self._is_whole and len(complete) < HEAD_LINES:
            complete.append(rest)
            rest = b""
        values: list[Any] = []
        bad = False
        for line in complete:
            try:
                if line and not line.isspace():
                    values.append(decode_json(line))
            except _DECODE_ERRORS:
                if not values:
                    return ()
                bad = True
        if not bad:
            self._first, self._rest = values, len(self.head) - len(rest)
        return values

    def _read_long_line(self) -> Sequence[Any]:
        """The first of several lines, where the head holds only the beginning of it."""
        try:
            with self.open() as file:
                line = file.readline(MAX_FIRST_LINE_BYTES)
                if not line.endswith(b"\n") or not file.read(64).strip():
                    return ()
            value = decode_json(line.removeprefix(UTF8_BOM))
        except (*_DECODE_ERRORS, OSError, zstandard.ZstdError):
            return ()
        self._several = True
        return [value]

    @cached_property
    def document(self) -> Any:
        if not self._json_head or len(self.lines) > 1 or self._several:
            return None
        if self._is_whole:
            known = self._first and self._rest == len(self.head)
            return self._first[0] if known else _decode_document(self._json_head)
        try:
            about = self.path.stat()
            if about.st_size <= MAX_SHARED_BYTES and not self._packed:
                return _read_shared_document(self.path, about.st_size, about.st_mtime_ns)
            return self._read_large_document(about.st_size)
        except (OSError, zstandard.ZstdError):
            return None

    def _read_large_document(self, size: int) -> Any:
        if self._packed:
            with self.open() as file:
                content = file.read(MAX_DOCUMENT_BYTES + 1)
            size = len(content)
        elif size <= MAX_DOCUMENT_BYTES:
            content = self.path.read_bytes()
        if size > MAX_DOCUMENT_BYTES or is_heavy(content):
            self.count_skip("a document that is too large")
            return None
        return _decode_document(content)

    def records(self) -> Iterator[Any]:
        # Given away once: whoever asks again may have changed them.
        first, start, self._first = self._first, self._rest if self._first else 0, []
        yield from first
        try:
            if self.head and self._is_whole:
                yield from self._decode_block(self.head[start:])
                return
            with self.open(0) as file:
                if self._packed:
                    file.read(start)
                elif start:
                    file.seek(start)
                for block in self._iter_blocks(file):
                    if self.skipped.room <= 0:
                        self.count_skip("the rest of a session that is too large")
                        break
                    yield from self._decode_block(block)
        except (OSError, zstandard.ZstdError):
            self.count_skip("a file that cannot be read to its end")

    def _iter_blocks(self, file: BinaryIO) -> Iterator[bytes | memoryview]:
        """Whole lines, many at once; only what two blocks share is copied."""
        begun: list[bytes] = []
        size = 0
        while block := file.read(BLOCK_BYTES):
            first, last = block.find(b"\n") + 1, block.rfind(b"\n") + 1
            begun.append(block[:first] if first else block)
            size += len(begun[-1])
            if size > MAX_LINE_BYTES:
                begun.clear()
            if first:
                yield from self._join_line(begun, size)
                if first < last:
                    yield memoryview(block)[first:last]
                begun = [block[last:]]
                size = len(begun[0])
        yield from self._join_line(begun, size)

    def _join_line(self, pieces: list[bytes], size: int) -> Iterator[bytes]:
        if size > MAX_LINE_BYTES:
            self.count_skip("a line that is too long")
        elif size:
            yield b"".join(pieces)

    def _decode_block(self, block: bytes | memoryview) -> list[Any]:
        try:
            values = _decode_lines(block)
        except _DECODE_ERRORS:
            values = self._decode_each_line(bytes(block))
        count = len(values)
        self.skipped.room -= min(len(block), SHORT_TEXT_CHARS * count) + RECORD_BYTES * count
        return values

    def _decode_each_line(self, block: bytes) -> list[Any]:
        """The values of lines of which some are no JSON."""
        values = []
        for line in block.split(b"\n"):
            if line and not line.isspace():
                try:
                    values.append(decode_json(line.removeprefix(UTF8_BOM)))
                except _DECODE_ERRORS:
                    self.count_skip("a line that is not JSON")
        return values


class _Utf16Reader(io.RawIOBase):
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
    if len(content) <= ALWAYS_LIGHT_BYTES:
        return False
    weights = ((b",", 58), (b"[", 64), (b"{", 200))
    return sum(content.count(mark) * weight for mark, weight in weights) > MAX_MEMORY_BYTES


def _decode_document(content: bytes) -> Any:
    try:
        return decode_json(content.removeprefix(UTF8_BOM))
    except _DECODE_ERRORS:
        return None


@lru_cache(maxsize=8)
def _read_shared_document(path: Path, size: int, changed: int) -> Any:
    return _decode_document(path.read_bytes())


class LazyMapping(Mapping[str, Value]):
    """What a table has by id, read when it is asked for."""

    def __init__(self, ids: Collection[str], read: Callable[[str], Value]) -> None:
        self._ids = ids
        self._read = read

    def __getitem__(self, one: str) -> Value:
        if one not in self._ids:
            raise KeyError(one)
        return self._read(one)

    def __contains__(self, one: object) -> bool:
        return one in self._ids

    def __iter__(self) -> Iterator[str]:
        return iter(self._ids)

    def __len__(self) -> int:
        return len(self._ids)


def is_database(source: RecordingSource) -> bool:
    """By its first bytes."""
    return source.head.startswith(SQLITE_MAGIC)
