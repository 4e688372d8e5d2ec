"""Index of the repository around a change: definitions, names, imports and fingerprints."""

from __future__ import annotations

import ast
import inspect
import logging
import os
import re
import sqlite3
import subprocess
import sys
import tempfile
import threading
from array import array
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import cache, cached_property
from itertools import islice, takewhile
from pathlib import Path
from queue import SimpleQueue
from subprocess import DEVNULL, PIPE, Popen
from types import TracebackType
from typing import Any

import msgspec

from closeloop.changes import outline_worker
from closeloop.changes.change_sides import ChangeSides
from closeloop.changes.file_kinds import (
    classify_file,
    is_generated,
    is_lockfile,
    is_vendored,
    language_of,
)
from closeloop.changes.outline_worker import OutlineJob, OutlineRow, SourceFile
from closeloop.changes.quality.unsafe_code import find_ruff
from closeloop.changes.syntax import extract_words, parse_module
from closeloop.code_digest import digest_code
from closeloop.records.change import (
    ChangeSide,
    FileChange,
    Inspection,
    Language,
    SourceImport,
    SourceModule,
)
from closeloop.records.settings import CheckSettings
from closeloop.records.task import Task
from closeloop.text.code_patterns import parse_python
from closeloop.text.wording import matches_globs

# Python files of which a change alters only the layout, as a formatter does.


RUFF_SECONDS = 60
MAX_PARSED_FILES = 200
"""Maximum files formatted differently by ruff whose syntax trees are compared."""
MAX_PARSED_BYTES = 500_000
_WORD = re.compile(rb"\w+")
_STATEMENT_START = re.compile(rb"(?!(?:elif|else|except|finally)\b)[A-Za-z@]")
_LINE_LENGTH = 320
"""Maximum line length that ruff accepts: the less it wraps, the more sources look equal."""
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)

_Ends = tuple[bytes, bytes]


def find_layout_changes(sides: ChangeSides, files: Iterable[FileChange]) -> frozenset[str]:
    """Return paths of files whose words, including comments, are unchanged.

    Any other change nearly always changes a word, so the comparison costs nothing.
    """
    candidates: dict[str, _Ends] = {}
    for file in files:
        # A move is a change, however little else was edited.
        if file.path.endswith((".py", ".pyi")) and file.status == "changed":
            before = sides.read("before", file.path)
            after = sides.read("after", file.path)
            if before and after:
                word_counts = _count_words(before), _count_words(after)
                if word_counts[0] == word_counts[1] or _splits_imports(*word_counts):
                    candidates[file.path] = before, after
    differing = _format_differing_files(candidates) if candidates else {}
    parsed = dict(islice(differing.items(), MAX_PARSED_FILES))
    unchanged = {path for path, ends in parsed.items() if _has_same_syntax(*ends)}
    return frozenset((candidates.keys() - differing.keys()) | unchanged)


def _count_words(content: bytes) -> Counter[bytes]:
    """Count words without order, because a formatter may move a comment; `.5` equals `0.5`."""
    counts = Counter(_WORD.findall(content.lower()))
    del counts[b"0"]
    counts[b"rb"] += counts.pop(b"br", 0)
    return counts


def _splits_imports(before: Counter[bytes], after: Counter[bytes]) -> bool:
    """Return whether only the count of module names differs, as after isort, and no other word."""
    return before.keys() == after.keys() and before[b"import"] != after[b"import"]


def _format_differing_files(candidates: Mapping[str, _Ends]) -> Mapping[str, _Ends]:
    """Return files that differ after ruff, which never changes behaviour, formatted both sides.

    Without ruff, return all of them unchanged.
    """
    with tempfile.TemporaryDirectory(prefix="closeloop-") as name:
        file_pairs: dict[str, tuple[Path, Path]] = {}
        for number, (path, ends) in enumerate(candidates.items()):
            file_pairs[path] = Path(name, f"{number}a.py"), Path(name, f"{number}b.py")
            for file_path, content in zip(file_pairs[path], ends, strict=True):
                file_path.write_bytes(content)
        options = ["--line-length", str(_LINE_LENGTH)]
        options += ["--config", "format.skip-magic-trailing-comma=true"]
        try:
            subprocess.run(
                [find_ruff(), "format", "--isolated", "--no-cache", "--quiet", *options, name],
                capture_output=True,
                timeout=RUFF_SECONDS,
                check=False,
            )
        except (OSError, subprocess.SubprocessError):
            return candidates
        formatted = (
            (path, (before.read_bytes(), after.read_bytes()))
            for path, (before, after) in file_pairs.items()
        )
        return {path: ends for path, ends in formatted if ends[0] != ends[1]}


def _has_same_syntax(before: bytes, after: bytes) -> bool:
    """Return whether two files have equal syntax trees; a common end is parsed only if needed."""
    if max(len(before), len(after)) > MAX_PARSED_BYTES:
        return False
    for ends in (_cut_common_end(before, after), (before, after)):
        try:
            return _trees_match(parse_python(ends[0]), parse_python(ends[1]))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
    return False


def _cut_common_end(before: bytes, after: bytes) -> _Ends:
    """Return both without the statements at their end that are the same text.

    If the rest parses, the cut is between two statements of the module.
    """
    before_lines, after_lines = before.splitlines(keepends=True), after.splitlines(keepends=True)
    pairs = zip(reversed(before_lines), reversed(after_lines), strict=False)
    common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    while common and not _STATEMENT_START.match(before_lines[-common]):
        common -= 1
    return b"".join(before_lines[: len(before_lines) - common]), b"".join(
        after_lines[: len(after_lines) - common]
    )


def _trees_match(before: ast.AST, after: ast.AST) -> bool:
    """Return whether two syntax trees are equal, ignoring positions and docstring whitespace.

    Consecutive imports from one module count as one.
    """
    pairs: list[tuple[object, object]] = [(before, after)]
    while pairs:
        old_node, new_node = pairs.pop()
        if old_node.__class__ is not new_node.__class__:
            return False
        if isinstance(old_node, ast.AST):
            _normalise_body(old_node)
            _normalise_body(new_node)
            pairs += [
                (getattr(old_node, name, None), getattr(new_node, name, None))
                for name in old_node._fields
            ]
        elif isinstance(old_node, list):
            if len(old_node) != len(new_node):  # type: ignore[arg-type]
                return False
            pairs += zip(old_node, new_node, strict=True)  # type: ignore[call-overload]
        elif old_node != new_node:
            return False
    return True


def _normalise_body(node: object) -> None:
    """Join imports of a block, and strip its docstring."""
    body = getattr(node, "body", None)
    if not isinstance(body, list):
        return
    _join_imports(body)
    if isinstance(node, _DOCUMENTED) and body:
        value = body[0].value if isinstance(body[0], ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            value.value = inspect.cleandoc(value.value).strip()


def _join_imports(body: list[ast.stmt]) -> None:
    """Join `from a import b` and `from a import c` into one statement, with names sorted."""
    for index in range(len(body) - 1, -1, -1):
        statement, previous = body[index], body[index - 1] if index else None
        if not isinstance(statement, ast.ImportFrom):
            continue
        if isinstance(previous, ast.ImportFrom) and _module_key(previous) == _module_key(statement):
            previous.names += statement.names
            del body[index]
        else:
            statement.names.sort(key=lambda name: (name.name, name.asname or ""))


def _module_key(statement: ast.ImportFrom) -> tuple[str | None, int]:
    return statement.module, statement.level


# Cache of outlines by content: one SQLite file that several processes may share.
#
# The file is named after the code that reads: results of other code are not reused. It may have
# been restored from what others could write, as in CI: nothing in its schema is run, and rows that
# this code cannot have written are read anew.


_SCHEMA = """
CREATE TABLE IF NOT EXISTS outlines (
    key TEXT PRIMARY KEY, generated INTEGER NOT NULL, names BLOB NOT NULL, defined BLOB NOT NULL,
    defined_lines BLOB NOT NULL, prints BLOB NOT NULL, print_lines BLOB NOT NULL,
    imports BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS modules (key TEXT PRIMARY KEY, module BLOB NOT NULL);
"""
_MAX_VALUE_BYTES = 64 << 20
_log = logging.getLogger(__name__)
_READING_MODULES = (__name__, "closeloop.changes.syntax.*")
_SPARE_STALE_FILES = 10_000
"""Stale files tolerated in the cache, on top of four times the wanted ones."""


class ParseCache:
    """An open cache. It never fails: at worst it is empty, and says so in `notes`."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / f"syntax-{digest_code(*_READING_MODULES)[:12]}.db"
        self.notes: list[str] = []
        self._lock = threading.Lock()
        self._connection = self._open_database()

    def read_columns(self, *names: str) -> Iterator[Sequence[Any]]:
        """Yield every file's key and these columns of its outline."""
        return iter(self._query_rows(f"SELECT key, {', '.join(names)} FROM outlines"))  # noqa: S608

    def read_module(self, key: str) -> bytes | None:
        rows = self._query_rows("SELECT module FROM modules WHERE key = ?", (key,))
        return rows[0][0] if rows else None

    def add_outlines(self, rows: Iterable[OutlineRow]) -> None:
        self._execute_write(
            "INSERT OR REPLACE INTO outlines VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            [
                (key, flag, o.names, o.defined, o.defined_lines, o.prints, o.print_lines, o.imports)
                for key, flag, o in rows
            ],
        )

    def add_modules(self, rows: Iterable[tuple[str, bytes]]) -> None:
        if encoded_modules := list(rows):
            self._execute_write("INSERT OR REPLACE INTO modules VALUES (?, ?)", encoded_modules)

    def drop_stale_rows(self, keys: Iterable[str]) -> None:
        """Remove files that the repository no longer has, once they are by far the majority."""
        keys = list(keys)
        row_count = self._query_rows("SELECT count(*) FROM outlines")
        if row_count and row_count[0][0] > 4 * len(keys) + _SPARE_STALE_FILES:
            self._execute_write("CREATE TEMP TABLE IF NOT EXISTS wanted (key TEXT PRIMARY KEY)")
            self._execute_write(
                "INSERT OR IGNORE INTO temp.wanted VALUES (?)", [(key,) for key in keys]
            )
            for table in ("outlines", "modules"):
                deletion = f"DELETE FROM {table} WHERE key NOT IN (SELECT key FROM temp.wanted)"  # noqa: S608
                self._execute_write(deletion)

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def _open_database(self) -> sqlite3.Connection:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if not self.path.exists():
                for old in self.path.parent.glob("syntax-*.db*"):
                    old.unlink(missing_ok=True)
            return _connect_database(self.path)
        except (OSError, sqlite3.DatabaseError) as fault:
            return self._replace_database(fault)

    def _replace_database(self, fault: Exception) -> sqlite3.Connection:
        """Recreate a damaged file; continue without one that cannot be used now."""
        if isinstance(fault, sqlite3.DatabaseError) and not isinstance(
            fault, sqlite3.OperationalError
        ):
            self._report(f"{self.path} was damaged ({fault}) and is rebuilt.")
            try:
                for ending in ("", "-wal", "-shm"):
                    Path(f"{self.path}{ending}").unlink(missing_ok=True)
                return _connect_database(self.path)
            except (OSError, sqlite3.DatabaseError) as another:
                fault = another
        self._report(f"The index of the repository cannot be saved: {fault}.")
        return _connect_database(None)

    def _report(self, note: str) -> None:
        self.notes.append(note)
        _log.warning(note)

    def _query_rows(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        with self._lock:
            try:
                return self._connection.execute(query, values).fetchall()
            except sqlite3.DatabaseError as fault:
                self._connection.close()
                self._connection = self._replace_database(fault)
        return []

    def _execute_write(self, query: str, rows: list[Any] | None = None) -> None:
        with self._lock:
            try:
                with self._connection:
                    if rows is None:
                        self._connection.execute(query)
                    else:
                        self._connection.executemany(query, rows)
            except sqlite3.DatabaseError as fault:
                self._connection.close()
                self._connection = self._replace_database(fault)


def _connect_database(path: Path | None) -> sqlite3.Connection:
    connection = sqlite3.connect(path or ":memory:", timeout=20, check_same_thread=False)
    try:
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_VALUE_BYTES)
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA cell_size_check = ON")
        _require_own_schema(connection)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.executescript(_SCHEMA)
    except BaseException:
        connection.close()
        raise
    return connection


def _require_own_schema(connection: sqlite3.Connection) -> None:
    if not _list_definitions(connection) <= _list_own_definitions():
        raise sqlite3.DatabaseError("it has tables that closeloop does not make")


def _list_definitions(connection: sqlite3.Connection) -> set[Any]:
    """Return every table, view, index and trigger with the statement that made it."""
    return set(connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master"))


@cache
def _list_own_definitions() -> set[Any]:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(_SCHEMA)
        return _list_definitions(connection)


def _is_valid_row(columns: Sequence[str], values: Sequence[Any]) -> bool:
    """Return whether these can be columns of an outline."""
    row = dict(zip(columns, values, strict=True))
    if row.pop("generated", 0) not in (0, 1):
        return False
    if not all(isinstance(value, bytes) for value in row.values()):
        return False
    if row.get("defined"):
        line_count: int = row["defined"].count(b"\n") + 1
        return len(row["defined_lines"]) == array("I").itemsize * line_count
    if "prints" in row:
        hashes, rest = divmod(len(row["prints"]), array("Q").itemsize)
        return not rest and len(row["print_lines"]) == array("I").itemsize * hashes
    lines = row.get("imports", b"").split(b"\n")
    return lines == [b""] or all(line.count(b"\t") == 2 and _is_text(line) for line in lines)


def _is_text(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


# Outline every source file of a repository, on all processors if there are many.

MIN_PARALLEL_FILES = 500
"""Minimum files to read in parallel."""
MAX_PROCESSES = 4
BATCH_FILES = 100


def list_source_files(sides: ChangeSides, settings: CheckSettings) -> Iterator[SourceFile]:
    """Yield files of supported languages after the change, including generated and vendored
    ones."""
    for path, blob in sides.tree("after").items():
        language = language_of(path)
        if language and blob.strip("0"):
            kind = classify_file(path, settings=settings)
            yield SourceFile(path=path, language=language, blob=blob, kind=kind)


def read_outlines(sides: ChangeSides, sources: Sequence[SourceFile]) -> Iterator[list[OutlineRow]]:
    """Yield their outlines in batches, without files that cannot be read."""
    contents = ((source, sides.read_blob(source.blob)) for source in sources)
    jobs = (
        OutlineJob(source=source, content=read) for source, read in contents if read is not None
    )
    batches = iter(lambda: list(islice(jobs, BATCH_FILES)), [])
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    if len(sources) <= MIN_PARALLEL_FILES or processors < 2:
        yield from map(outline_worker.outline_batch, batches)
    else:
        yield from _read_in_parallel(batches, min(processors, MAX_PROCESSES) - 1)


def _read_in_parallel(
    batches: Iterable[list[OutlineJob]], helpers: int
) -> Iterator[list[OutlineRow]]:
    """Hand out a few batches, refill as they return, and read one here if all workers are busy."""
    free: SimpleQueue[Popen[bytes]] = SimpleQueue()
    waiting: deque[Future[list[OutlineRow]]] = deque()
    with ExitStack() as stack:
        for _ in range(helpers):
            # -P: do not import from the current folder, which is untrusted.
            command = [sys.executable, "-P", "-m", outline_worker.__name__]
            worker = Popen(command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL)
            stack.callback(_stop_worker, worker)
            free.put(worker)
        threads = stack.enter_context(ThreadPoolExecutor(helpers))
        for batch in batches:
            while waiting and waiting[0].done():
                yield waiting.popleft().result()
            if len(waiting) < 2 * helpers:
                waiting.append(threads.submit(_outline_remotely, free, batch))
            else:
                yield outline_worker.outline_batch(batch)
        while waiting:
            yield waiting.popleft().result()


def _outline_remotely(free: SimpleQueue[Popen[bytes]], batch: list[OutlineJob]) -> list[OutlineRow]:
    """Outline a batch in a worker; in this process if the worker fails."""
    worker = free.get()
    try:
        assert worker.stdin
        assert worker.stdout
        outline_worker.send_frame(worker.stdin, msgspec.msgpack.encode(batch))
        return msgspec.msgpack.decode(
            outline_worker.receive_frame(worker.stdout), type=list[OutlineRow]
        )
    except (OSError, EOFError, msgspec.DecodeError):
        return outline_worker.outline_batch(batch)
    finally:
        free.put(worker)


def _stop_worker(worker: Popen[bytes]) -> None:
    worker.kill()
    worker.communicate()


MAX_CACHED_MODULES = 300
"""Maximum modules cached in memory."""


class RepositoryIndex:
    """Index of every source file after the change. Outlines are cached by content."""

    def __init__(
        self, sides: ChangeSides, parse_cache: ParseCache, settings: CheckSettings
    ) -> None:
        self.sides, self.parse_cache, self.settings = sides, parse_cache, settings
        self.sources = {source.path: source for source in list_source_files(sides, settings)}
        self._changed = {file.path for file in sides.change.files}
        self._places: dict[str, list[str]] = defaultdict(list)
        for source in self.sources.values():
            self._places[source.cache_key].append(source.path)
        self._modules: OrderedDict[str, SourceModule] = OrderedDict()
        self._unsaved: dict[str, bytes] = {}
        generated = {key for key, flag in self._read_outlines("generated") if flag}
        self._paths = [
            source.path
            for source in self.sources.values()
            if not source.is_vendored
            and source.cache_key not in generated
            and not matches_globs(source.path, settings.generated)
        ]
        self._own = set(self._paths)

    @property
    def notes(self) -> Sequence[str]:
        """Return problems with the cache."""
        return self.parse_cache.notes

    def paths(self) -> Sequence[str]:
        """Return source files of supported languages, without generated and vendored ones."""
        return self._paths

    def module(self, path: str) -> SourceModule | None:
        """Return the full syntax of one file; None if there is no such source."""
        source = self.sources.get(path)
        return self.parse_blob(source.language, source.blob) if source else None

    def parse_blob(self, language: Language, blob: str) -> SourceModule | None:
        """Return the syntax of a blob on either side; None if it is unavailable."""
        key = f"{language}:{blob}"
        if key in self._modules:
            self._modules.move_to_end(key)
            return self._modules[key]
        module = self._load_cached_module(key) or self._parse_new_module(key, language, blob)
        if module:
            self._modules[key] = module
            if len(self._modules) > MAX_CACHED_MODULES:
                self._modules.popitem(last=False)
        return module

    def _load_cached_module(self, key: str) -> SourceModule | None:
        encoded = self._unsaved.get(key) or self.parse_cache.read_module(key)
        try:
            return msgspec.msgpack.decode(encoded, type=SourceModule) if encoded else None
        except (msgspec.DecodeError, TypeError, RecursionError):
            return None

    def _parse_new_module(self, key: str, language: Language, blob: str) -> SourceModule | None:
        content = self.sides.read_blob(blob)
        if content is None:
            return None
        module = parse_module(language, content)
        self._unsaved[key] = msgspec.msgpack.encode(module)
        if len(self._unsaved) >= MAX_CACHED_MODULES:
            self._save_modules()
        return module

    def _save_modules(self) -> None:
        self.parse_cache.add_modules(self._unsaved.items())
        self._unsaved.clear()

    def defined(self, name: str) -> Sequence[tuple[str, int]]:
        """Return where the name is defined: path and line."""
        return self._definition_places.get(name.encode(), ())

    def known(self, name: str) -> bool:
        """Return whether the name occurs in the repository, outside the change's added lines."""
        return name.encode() in self._known_words

    def count_files(self, names: Iterable[str]) -> Mapping[str, int]:
        """Return the number of files in which each name occurs."""
        encoded_names = {name.encode() for name in names}
        counts: Counter[bytes] = Counter()
        for key, words in self._read_outlines("names"):
            for word in encoded_names.intersection(words.split(b"\n")):
                counts[word] += len(self._places[key])
        return {word.decode(): count for word, count in counts.items()}

    def imports(self) -> Mapping[str, Sequence[SourceImport]]:
        """Return what each file imports, by path, without line numbers."""
        imports_by_path: dict[str, list[SourceImport]] = {path: [] for path in self._paths}
        for key, lines in self._read_outlines("imports"):
            fields = [line.split("\t") for line in lines.decode().split("\n")] if lines else ()
            imports = [
                SourceImport(module=module, name=name or None, alias=alias or None, line=0)
                for module, name, alias in fields
            ]
            for path in self._places[key]:
                if path in imports_by_path:
                    imports_by_path[path] = imports
        return imports_by_path

    def copies(self, prints: Sequence[int]) -> Mapping[int, Sequence[tuple[str, int]]]:
        """Return where each of these fingerprints occurs: path and line."""
        fingerprints = set(prints)
        spots: dict[int, list[tuple[str, int]]] = defaultdict(list)
        for paths, hashes, lines in self._fingerprint_rows:
            if not fingerprints.isdisjoint(hashes):
                for hashed, line in zip(hashes, lines, strict=True):
                    if hashed in fingerprints:
                        spots[hashed].extend((path, line) for path in paths)
        return spots

    def close(self) -> None:
        """Save what was parsed."""
        self._save_modules()
        self.parse_cache.close()

    def __enter__(self) -> RepositoryIndex:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @cached_property
    def _definition_places(self) -> Mapping[bytes, list[tuple[str, int]]]:
        definitions: dict[bytes, list[tuple[str, int]]] = defaultdict(list)
        for key, defined, lines in self._read_outlines("defined", "defined_lines"):
            if defined:
                for path in self._places[key]:
                    for name, line in zip(defined.split(b"\n"), array("I", lines), strict=True):
                        definitions[name].append((path, line))
        return definitions

    @cached_property
    def _known_words(self) -> set[bytes]:
        known_words: set[bytes] = set()
        for key, names in self._read_outlines("names"):
            if any(path not in self._changed for path in self._places[key]):
                known_words.update(names.split(b"\n"))
        added, _ = self.sides.changed_lines
        for path in self._changed & self.sources.keys():
            lines = (self.sides.read("after", path) or b"").split(b"\n")
            new = added.get(path, frozenset())
            known_words |= extract_words(
                b"\n".join(line for number, line in enumerate(lines, 1) if number not in new)
            )
        return known_words

    @cached_property
    def _fingerprint_rows(self) -> list[tuple[list[str], array[int], array[int]]]:
        rows = []
        for key, hashes, lines in self._read_outlines("prints", "print_lines"):
            paths = [path for path in self._places[key] if path in self._own]
            if hashes and paths:
                rows.append((paths, array("Q", hashes), array("I", lines)))
        return rows

    def _read_outlines(self, *columns: str) -> Iterator[Sequence[Any]]:
        """Yield the key and these columns of every file; missing files are read now."""
        missing = dict.fromkeys(self._places)
        for row in self.parse_cache.read_columns(*columns):
            if row[0] in missing and _is_valid_row(columns, row[1:]):
                del missing[row[0]]
                yield row
        sources = [self.sources[self._places[key][0]] for key in missing]
        for rows in read_outlines(self.sides, sources):
            self.parse_cache.add_outlines(rows)
            for key, generated, outline in rows:
                parts = {"generated": generated, **msgspec.structs.asdict(outline)}
                yield (key, *(parts[column] for column in columns))
        if missing:
            self.parse_cache.drop_stale_rows(self._places)


def open_index(sides: ChangeSides, cache: Path, settings: CheckSettings) -> RepositoryIndex:
    """Open the index of a change's repository, with its cache in that folder.

    Close it after use.
    """
    return RepositoryIndex(sides, ParseCache(cache), settings)


# Inspect a change: the input of the checks.


def inspect_change(
    sides: ChangeSides,
    index: RepositoryIndex,
    *,
    task: Task | None = None,
    request: str | None = None,
    settings: CheckSettings | None = None,
    installed: Sequence[Path] = (),
) -> Inspection:
    """Return the change with its syntax on both sides, for hand-written files.

    Files that were only reformatted are left out. `installed`: folders with packages, beside the
    repository.
    """
    settings = settings or CheckSettings()
    hand_written = [file for file in sides.change.files if _is_written(sides, file, settings)]
    layout = find_layout_changes(sides, hand_written)
    files = tuple(file for file in hand_written if file.path not in layout)
    added, removed = sides.changed_lines
    if layout:
        added = {path: lines for path, lines in added.items() if path not in layout}
        removed = {path: lines for path, lines in removed.items() if path not in layout}
    return Inspection(
        change=sides.change,
        sides=sides,
        index=index,
        files=files,
        added=added,
        removed=removed,
        modules=_ChangedModules(sides, index, files),
        task=task,
        request=request if request is not None or task is None else task.prompt,
        settings=settings,
        installed=(sides.root, *installed),
    )


def _is_written(sides: ChangeSides, file: FileChange, settings: CheckSettings) -> bool:
    if file.binary or is_lockfile(file.path) or is_vendored(file.path, settings.vendored):
        return False
    side: ChangeSide = "before" if file.status == "deleted" else "after"
    content = sides.read(side, file.path) or b""
    return not is_generated(file.path, content, settings.generated)


class _ChangedModules(Mapping[tuple[ChangeSide, str], SourceModule]):
    """Modules parsed on demand: a change of ten thousand files must not fill the memory."""

    def __init__(
        self, sides: ChangeSides, index: RepositoryIndex, files: tuple[FileChange, ...]
    ) -> None:
        self._index = index
        self._blobs: dict[tuple[ChangeSide, str], tuple[Language, str]] = {}
        for file in files:
            module_keys: tuple[tuple[ChangeSide, str], ...] = (
                ("before", file.old_path or file.path),
                ("after", file.path),
            )
            for side, path in module_keys:
                language, blob = language_of(path), sides.tree(side).get(path)
                if language and blob and blob.strip("0"):
                    self._blobs[side, path] = (language, blob)

    def __getitem__(self, key: tuple[ChangeSide, str]) -> SourceModule:
        module = self._index.parse_blob(*self._blobs[key])
        if module is None:
            raise KeyError(key)
        return module

    def __iter__(self) -> Iterator[tuple[ChangeSide, str]]:
        return iter(self._blobs)

    def __len__(self) -> int:
        return len(self._blobs)
