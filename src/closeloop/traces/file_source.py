"""A file that may be a recording: its beginning, lines and document, all within limits."""

from __future__ import annotations

import codecs
import io
import os
import stat
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, cached_property, lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, TypeVar, cast

import msgspec
import zstandard

from closeloop import plugins
from closeloop.code_digest import digest_code, load_derived, save_derived
from closeloop.records.protocols import Reader, Recording, RecordingSource
from closeloop.records.record import Record
from closeloop.records.trace import Exchange, Session
from closeloop.sqlite_files import SQLITE_MAGIC
from closeloop.text.untrusted import SHORT_TEXT_CHARS, SkipCounts
from closeloop.traces.untrusted_json import decode_json

HEAD_BYTES = 1 << 16
HEAD_LINES = 12
MAX_DOCUMENT_BYTES = 40 << 20
"""A larger JSON document is not read, because it would be held in memory as a whole."""
MAX_MEMORY_BYTES = 160 << 20
"""A document whose values would take more memory than this is not read."""
ALWAYS_LIGHT_BYTES = 4 << 20
"""No document up to this size exceeds the memory limit."""
MAX_SHARED_BYTES = 1 << 20
"""A document up to this size is cached, because files of one recording refer to each other."""
MAX_LINE_BYTES = 16 << 20
MAX_FIRST_LINE_BYTES = 4 << 20
"""Bytes that are searched for the end of the first line."""
RECORD_BYTES = 300
"""Approximate size of a record without its long texts."""
BLOCK_BYTES = 1 << 18
"""Approximate size of a file's part that is decoded at once."""
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
UTF8_BOM = b"\xef\xbb\xbf"
"""The byte order mark that some programs write before UTF-8."""
UTF16_BOMS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)

_decode_lines = msgspec.json.Decoder().decode_lines
_DECODE_ERRORS = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)
Value = TypeVar("Value")


class FileSource:
    """Opened when used; only the beginning of the content is held."""

    def __init__(self, path: Path, skipped: SkipCounts | None = None) -> None:
        self.path = path
        self.skipped = SkipCounts() if skipped is None else skipped
        self._packed = False
        """Whether the content is decompressed or decoded."""
        self._several = False
        """Whether more lines follow the long one at the beginning."""
        self._first: list[Any] = []
        """Records that `lines` has decoded, for the next reader."""
        self._rest = 0
        """Position of the lines after those."""

    def count_skip(self, why: str, count: int = 1) -> None:
        """Count what could not be read."""
        self.skipped[why] = self.skipped.get(why, 0) + count

    def beside(self, path: Path) -> FileSource:
        return FileSource(path, self.skipped)

    def open(self, buffer: int = BLOCK_BYTES) -> BinaryIO:
        """Open the content, decompressed if the whole file is compressed, in UTF-8."""
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
        """Return the head without what may precede JSON; empty if it is not JSON."""
        text = self.head.removeprefix(UTF8_BOM).lstrip()
        return text if text[:1] in (b"{", b"[") else b""

    @property
    def _is_whole(self) -> bool:
        return len(self.head) < HEAD_BYTES

    @cached_property
    def lines(self) -> Sequence[Any]:
        *complete, last_line = self._json_head.split(b"\n", HEAD_LINES)
        if self._json_head and not complete and not self._is_whole:
            return self._read_long_line()
        if self._is_whole and len(complete) < HEAD_LINES:
            complete.append(last_line)
            last_line = b""
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
            self._first, self._rest = values, len(self.head) - len(last_line)
        return values

    def _read_long_line(self) -> Sequence[Any]:
        """Read the first of several lines if the head contains only its beginning."""
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
            is_decoded = self._first and self._rest == len(self.head)
            return self._first[0] if is_decoded else _decode_document(self._json_head)
        try:
            status = self.path.stat()
            if status.st_size <= MAX_SHARED_BYTES and not self._packed:
                return _read_shared_document(self.path, status.st_size, status.st_mtime_ns)
            return self._read_large_document(status.st_size)
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
        # Handed out once: a caller may have changed them.
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
        """Yield whole lines, many at once; only what two blocks share is copied."""
        pieces: list[bytes] = []
        size = 0
        while block := file.read(BLOCK_BYTES):
            first, last = block.find(b"\n") + 1, block.rfind(b"\n") + 1
            pieces.append(block[:first] if first else block)
            size += len(pieces[-1])
            if size > MAX_LINE_BYTES:
                pieces.clear()
            if first:
                yield from self._join_line(pieces, size)
                if first < last:
                    yield memoryview(block)[first:last]
                pieces = [block[last:]]
                size = len(pieces[0])
        yield from self._join_line(pieces, size)

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
        """Decode lines of which some are not JSON."""
        values = []
        for line in block.split(b"\n"):
            if line and not line.isspace():
                try:
                    values.append(decode_json(line.removeprefix(UTF8_BOM)))
                except _DECODE_ERRORS:
                    self.count_skip("a line that is not JSON")
        return values


class _Utf16Reader(io.RawIOBase):
    """Reads UTF-16 as UTF-8."""

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
    """Whether many small values take far more memory than in the file."""
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
    """A table's rows by id, read on demand."""

    def __init__(self, ids: Collection[str], read: Callable[[str], Value]) -> None:
        self._ids = ids
        self._read = read

    def __getitem__(self, key: str) -> Value:
        if key not in self._ids:
            raise KeyError(key)
        return self._read(key)

    def __contains__(self, key: object) -> bool:
        return key in self._ids

    def __iter__(self) -> Iterator[str]:
        return iter(self._ids)

    def __len__(self) -> int:
        return len(self._ids)


def is_database(source: RecordingSource) -> bool:
    """Whether it is a database, by its first bytes."""
    return source.head.startswith(SQLITE_MAGIC)


# Find recordings: candidate files, the reader of each, and those of an attempt.


SESSION_FOLDERS = """
.claude/projects
.codex/sessions .codex/archived_sessions
.gemini/tmp
.cline/data/sessions
.qwen/projects .qwen/tmp
.local/share/opencode
.local/share/goose/sessions .config/goose/sessions
.pi/agent/sessions
.cursor/projects .factory/sessions .kimi/sessions
.local/share/kiro-cli .local/share/amazon-q
.copilot/session-state .copilot/history-session-state
.openhands/conversations .openhands/sessions .openhands-state/sessions
"""
EDITORS = "Code Code/Insiders VSCodium Cursor Windsurf"
EXTENSIONS = "saoudrizwan.claude-dev rooveterinaryinc.roo-cline"
SKIPPED_FOLDERS = frozenset({".closeloop", ".git", "node_modules", "__pycache__"})
DATABASE_SUFFIXES = (".db", ".sqlite", ".sqlite3")
START_BYTES = 12
MAX_STARTS = 1000
_likely_readers: dict[bytes, list[Reader]] = {}
"""Readers, ordered by which last recognised a file with the same first bytes."""


class RecordingFile(Record):
    """A file with its size and time."""

    path: str
    size: int
    changed: int
    """Modification time in nanoseconds."""


class UnreadablePath(Record):
    """A file or folder that could not be read, and why."""

    path: str
    why: str


def default_folders(home: Path) -> list[Path]:
    """Return the existing session folders of agents."""
    folders = [home / name for name in SESSION_FOLDERS.split()]
    for base in (home / ".config", home / "Library/Application Support"):
        for editor in EDITORS.split():
            storage = base / editor / "User/globalStorage"
            folders += [storage / name / "tasks" for name in EXTENSIONS.split()]
    folders += [home / ".vscode-server/data/User/globalStorage" / e for e in EXTENSIONS.split()]
    return [folder for folder in folders if folder.is_dir()]


def walk_files(paths: Sequence[Path]) -> Iterator[RecordingFile | UnreadablePath]:
    """Yield every file below some paths once, lazily."""
    seen_folders: set[tuple[int, int]] = set()
    for path in paths:
        try:
            status = path.stat()
        except OSError as error:
            yield UnreadablePath(path=str(path), why=error.strerror or "cannot be read")
            continue
        if stat.S_ISDIR(status.st_mode):
            yield from _walk_folder(str(path.absolute()), seen_folders)
        elif recording := _recording_file(str(path.absolute()), status):
            yield recording


def _walk_folder(
    path: str, seen_folders: set[tuple[int, int]]
) -> Iterator[RecordingFile | UnreadablePath]:
    """Yield the files of a folder and below; a link to a folder seen before is not followed."""
    pending = [path]
    while pending:
        folder = pending.pop()
        try:
            status = os.stat(folder)  # noqa: PTH116 - a million paths need not be objects
            if (status.st_dev, status.st_ino) in seen_folders:
                continue
            seen_folders.add((status.st_dev, status.st_ino))
            subfolders: list[str] = []
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.name in SKIPPED_FOLDERS:
                        continue
                    try:
                        if entry.is_dir():
                            subfolders.append(entry.path)
                        elif recording := _recording_file(entry.path, entry.stat()):
                            yield recording
                    except OSError as error:
                        yield UnreadablePath(
                            path=entry.path, why=error.strerror or "cannot be read"
                        )
            pending += sorted(subfolders, reverse=True)
        except OSError as error:
            yield UnreadablePath(path=folder, why=error.strerror or "cannot be read")


def stat_recording(path: str) -> RecordingFile | None:
    """Return one file as it is now; None if it does not exist."""
    try:
        return _recording_file(path, os.stat(path))  # noqa: PTH116
    except (OSError, ValueError):
        return None


def _recording_file(path: str, status: os.stat_result) -> RecordingFile | None:
    """Only regular files: no pipe, no device."""
    if not stat.S_ISREG(status.st_mode):
        return None
    size, changed = status.st_size, status.st_mtime_ns
    if path.endswith(DATABASE_SUFFIXES):
        # A database that is open somewhere has its newest pages in a file beside it.
        with suppress(OSError):
            log = os.stat(f"{path}-wal")  # noqa: PTH116
            size, changed = size + log.st_size, max(changed, log.st_mtime_ns)
    return RecordingFile(path=path, size=size, changed=changed)


READER_MARKS = {
    b'"parentUuid"': "claude-code",
    b'"session_meta"': "codex",
    b'"thread.started"': "codex-exec",
    b'"projectHash"': "gemini",
    b'"trajectory_format"': "mini-swe-agent",
    b'"resourceSpans"': "otlp",
    b"# aider chat": "aider",
    b"ATIF-v": "atif",
    b'"session.start"': "copilot-cli",
    b'"session_start"': "droid",
    b'"parentId"': "pi",
    b"SQLite format 3": "opencode-store",
}
"""What most files of a format have near their beginning: its reader is asked first."""


class InstalledReader:
    """A reader that is installed; its code is imported when it is first asked about a file."""

    def __init__(self, entry: str, module: str, name: str, version: int) -> None:
        self._entry = entry
        self._place = module
        self._version = version
        self.name = name

    @property
    def version(self) -> int:
        """What the code says once it is imported."""
        module: Any = sys.modules.get(self._place)
        return self._version if module is None else int(module.version)

    def __getattr__(self, attribute: str) -> Any:
        return getattr(_load_reader(self._entry), attribute)


@cache
def _load_reader(entry: str) -> Reader:
    reader: Reader = plugins.load_plugin("readers", entry)
    return reader


@cache
def installed_readers() -> Sequence[Reader]:
    """Every reader that is installed, in a fixed order.

    What ships with closeloop is imported only where no earlier process has seen the same code.
    """
    module_by_entry = {
        name: entry.value for name, entry in sorted(plugins.installed_plugins("readers").items())
    }
    own_modules = [module for module in module_by_entry.values() if module.startswith("closeloop.")]
    key = f"readers-{digest_code(*own_modules)[:16]}"
    known_readers = load_derived(key, dict[str, tuple[str, int]]) or {}
    if not known_readers.keys() >= {*own_modules}:
        loaded = [(module_by_entry[entry], _load_reader(entry)) for entry in module_by_entry]
        known_readers = {
            module: (reader.name, reader.version)
            for module, reader in loaded
            if module in own_modules
        }
        save_derived(key, known_readers)
    return [
        cast("Reader", InstalledReader(entry, module, *known_readers[module]))
        if module in known_readers
        else _load_reader(entry)
        for entry, module in module_by_entry.items()
    ]


def find_reader(source: RecordingSource) -> Reader | None:
    """Return the one reader that recognises a file.

    A test ensures that formats exclude each other.
    """
    if len(_likely_readers) > MAX_STARTS:
        _likely_readers.clear()
    start = source.head[:START_BYTES]
    if start not in _likely_readers:
        marked_names = {name for mark, name in READER_MARKS.items() if mark in source.head}
        _likely_readers[start] = sorted(
            installed_readers(), key=lambda reader: reader.name not in marked_names
        )
    candidates = _likely_readers[start]
    for index, reader in enumerate(candidates):
        if reader.recognises(source):
            candidates.insert(0, candidates.pop(index))
            return reader
    return None


def contains_recording(paths: Sequence[Path]) -> bool:
    """Return whether a reader recognises any file below some paths; stop at the first."""
    for file in walk_files(paths):
        if isinstance(file, RecordingFile):
            try:
                if find_reader(FileSource(Path(file.path))) is not None:
                    return True
            except Exception:  # a reader is a plug-in and may raise anything: the import says so
                return True
    return False


def list_parts(reader: Reader, source: RecordingSource) -> Sequence[Path]:
    """Return the other files of a recording; empty for single-file readers."""
    parts: Callable[[RecordingSource], Sequence[Path]] | None = getattr(reader, "parts", None)
    return parts(source) if parts is not None else ()


def find_owner(reader: Reader, source: RecordingSource) -> Path | None:
    """Return the file whose recording includes this one; None for a file on its own."""
    owner: Callable[[RecordingSource], Path | None] | None = getattr(reader, "owner", None)
    return owner(source) if owner is not None else None


def session_from_recordings(recordings: Sequence[Recording]) -> Session | None:
    """Return the session in the files: of several the most complete, preferably not a copy."""
    if not recordings:
        return None
    with tempfile.TemporaryDirectory(prefix="closeloop-") as folder:
        paths = [
            path
            for recording in recordings
            if (path := _write_recording(recording, Path(folder))) is not None
        ]
        sessions = [session for path in paths for session in _iter_sessions(path)]
    nonempty_sessions = [session for session in sessions if session.trace.events]
    return max(
        nonempty_sessions,
        key=lambda session: (session.copy is None, len(session.trace.events)),
        default=None,
    )


def session_from_gateway(exchanges: Sequence[Exchange]) -> Session | None:
    """Return the session from the requests to the model, if its files contain nothing."""
    from closeloop.traces.readers.gateway import session_from_exchanges

    session = session_from_exchanges(exchanges, {}) if exchanges else None
    return session if session and session.trace.events else None


def _write_recording(recording: Recording, folder: Path) -> Path | None:
    """Write the recording to the path the agent reported."""
    parts = PurePosixPath(recording.path).parts
    if not parts or any(part in ("/", "..") or "\0" in part for part in parts):
        return None
    path = folder.joinpath(*parts)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(recording.content)
    except OSError:  # a name that is too long, or a file in place of a folder
        return None
    return path


def _iter_sessions(path: Path) -> Iterator[Session]:
    """Readers are plug-ins and files come from agents: either may fail anywhere."""
    try:
        source = FileSource(path)
        reader = find_reader(source)
        if reader is None:
            return
        owner = find_owner(reader, source)
        if owner is None or owner == path or not owner.exists():
            yield from reader.read(source)
    except Exception:  # noqa: S110 - what was read until here is told, the rest by other files
        pass
