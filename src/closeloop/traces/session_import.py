"""Imports sessions into the store: new or changed recordings, and spans as they arrive."""

from __future__ import annotations

import fcntl
import gc
import os
import re
import signal
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import lru_cache, partial
from hashlib import sha256
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec
from msgspec.structs import replace

from closeloop import plugins
from closeloop.providers.model_prices import ModelPrices, add_cost, find_model_prices
from closeloop.records.attempt import Attempt, Usage, count_without_output, sum_usage
from closeloop.records.errors import MachineFailed
from closeloop.records.protocols import Reader
from closeloop.records.record import Record, content_digest
from closeloop.records.settings import ModelSettings
from closeloop.records.trace import FormatCounts, ImportSummary, Note, Session, SessionFilter, Trace
from closeloop.store import Store
from closeloop.store.record_bodies import (
    compress_content,
    encode_record,
    pack_record,
    unpack_record,
)
from closeloop.store.session_rows import (
    ImportedFile,
    PackedSession,
    StoredSpan,
    build_packed_session,
    session_key,
)
from closeloop.text.redaction import redact_path, redact_record
from closeloop.text.untrusted import MAX_SESSION_CHARS
from closeloop.traces.file_source import (
    FileSource,
    RecordingFile,
    UnreadablePath,
    find_owner,
    find_reader,
    installed_readers,
    list_parts,
    stat_recording,
)
from closeloop.traces.session_builder import UNPAIRED_RESULT, count_skip
from closeloop.traces.tool_calls import has_result

if TYPE_CHECKING:
    from concurrent.futures import Future

    from closeloop.traces.readers.otel_sessions import OtelSpan

# The content of one file: detected, read, redacted and packed. Done in worker processes.


_JSON_START = re.compile(rb'\s*(?:\{|\[\s*\{)\s*"')
_CONVERSATION_KEY = re.compile(
    rb'"(?:messages|history|trajectory|steps|events|samples|observations|role)"\s*:'
)
UNKNOWN_NOTE = "unknown, kept as a note"
LARGE_BYTES = 8 << 20
SPILL_BYTES = 32 << 20
"""A larger recording is passed to the parent through a file."""
_ORIGIN = re.compile(r'^\[remote "origin"\]\s*\n(?:[^\[]*\n)?\s*url\s*=\s*(\S+)', re.MULTILINE)
_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+@")
MAX_CONFIG_CHARS = 1 << 20


class FileOutcome(Record):
    """The result of one file."""

    file: RecordingFile
    reader: str | None = None
    """None if no reader recognised it."""
    version: int = 0
    owner: str | None = None
    """The recording that it is part of."""
    parts: tuple[tuple[str, int, int], ...] = ()
    sessions: tuple[PackedSession, ...] = ()
    spilled: str | None = None
    """A file with further sessions."""
    unwanted: int = 0
    count: FormatCounts = FormatCounts()
    redacted: dict[str, int] = {}
    trouble: str | None = None


def end_with_parent() -> None:
    """End this worker process when the one that uses it ends, even by SIGKILL.

    Ctrl-C reaches all processes of a terminal, and the one that uses it decides what ends.
    """
    from multiprocessing import parent_process

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


@contextmanager
def delay_interrupt() -> Iterator[None]:
    """Let Ctrl-C wait while a worker process starts, which prints a traceback if left half-started.

    The server that starts them inherits the mask of signals, so that Ctrl-C does not stop its
    imports either.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, _: arrived.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, handler or signal.SIG_DFL)
        if arrived:
            signal.raise_signal(signal.SIGINT)


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Disable garbage collection: traces have no cycles, and it costs a third of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            # First: otherwise it would scan all existing objects.
            gc.collect(1)
            gc.enable()


def read_recordings(
    files: Sequence[RecordingFile], session_filter: SessionFilter, folder: str
) -> list[FileOutcome]:
    """Read every file; one that cannot be read is reported, and the rest continues."""
    with without_garbage_collection():
        outcomes = []
        for file in files:
            with _lock_large_file(file, folder):
                outcomes.append(_read_recording(file, session_filter, folder))
    return outcomes


@contextmanager
def _lock_large_file(file: RecordingFile, folder: str) -> Iterator[None]:
    """Only one worker at a time has a large file in memory."""
    if file.size < LARGE_BYTES:
        yield
        return
    with open(Path(folder) / "large", "ab") as lock:  # noqa: PTH123
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
        import ctypes

        # Before the next one allocates as much; only some C libraries support it.
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)


def _read_recording(file: RecordingFile, session_filter: SessionFilter, folder: str) -> FileOutcome:
    try:
        source = FileSource(Path(file.path))
        if not source.head:
            # Empty, otherwise the reason.
            os.close(os.open(file.path, os.O_RDONLY))
        reader = find_reader(source)
        if reader is None:
            return FileOutcome(file=file, trouble=_describe_damage(source))
        owner = find_owner(reader, source)
        if owner is not None and str(owner) != file.path and stat_recording(str(owner)) is not None:
            return FileOutcome(
                file=file,
                reader=reader.name,
                version=reader.version,
                owner=str(owner),
                count=FormatCounts(files=1),
            )
        return _read_sessions(file, source, reader, session_filter, folder)
    except OSError as error:
        return FileOutcome(file=file, trouble=error.strerror or str(error))
    except Exception as error:  # a reader is a plug-in and may raise anything
        return FileOutcome(file=file, trouble=f"{type(error).__name__}: {error}")


def _describe_damage(source: FileSource) -> str | None:
    """Return what is wrong with an unrecognised file that begins like a recording."""
    if source.skipped:
        return next(iter(source.skipped))
    if not _JSON_START.match(source.head) or source.lines or source.document is not None:
        return None
    return (
        "JSON that is broken or ends in the middle"
        if _CONVERSATION_KEY.search(source.head)
        else None
    )


def _read_sessions(
    file: RecordingFile,
    source: FileSource,
    reader: Reader,
    session_filter: SessionFilter,
    folder: str,
) -> FileOutcome:
    parts = [stat_recording(str(part)) for part in list_parts(reader, source)]
    packed_sessions: list[PackedSession] = []
    counts: dict[str, int] = {"files": 1}
    unknown: dict[str, int] = {}
    redacted: dict[str, int] = {}
    size = unwanted = 0
    spilled: str | None = None
    for raw_session in reader.read(source):
        source.skipped.room = MAX_SESSION_CHARS
        session, redactions = redact_record(raw_session)
        repo = repository_address(session.directory)
        if not _matches_query(session, repo, file, session_filter):
            unwanted += 1
            continue
        add_counts(redacted, redactions)
        _count_events(session.trace, counts, unknown)
        packed_sessions.append(
            pack_session(session, repo, session_key(session, storable_path(file.path)))
        )
        size += len(packed_sessions[-1].trace)
        if size > SPILL_BYTES:
            spilled, size = _spill_sessions(packed_sessions, spilled, folder), 0
            packed_sessions.clear()
    return FileOutcome(
        file=file,
        reader=reader.name,
        version=reader.version,
        parts=tuple((storable_path(part.path), part.size, part.changed) for part in parts if part),
        sessions=tuple(packed_sessions),
        spilled=spilled,
        unwanted=unwanted,
        count=FormatCounts(**counts, skipped=source.skipped | unknown),
        redacted=redacted,
    )


def storable_path(path: str) -> str:
    """Return a path that any database can store, without secrets, made unique by a digest."""
    name = path.encode("utf-8", "backslashreplace").decode()
    redacted = redact_path(name)
    return name if redacted == name else f"{redacted}#{content_digest(name)[:16]}"


def pack_session(session: Session, repo: str | None, key: str) -> PackedSession:
    """Convert a session to an attempt for the store."""
    trace = session.trace
    encoded = encode_record(trace)
    bare = Trace(reader=trace.reader, reader_version=trace.reader_version)
    content_hash = sha256(
        encode_record(replace(session, trace=Trace(reader=trace.reader, reader_version=0)))
    )
    # The same content read by a newer reader is equal: details about the reader are removed.
    content_hash.update(memoryview(encoded)[len(encode_record(bare)) :])
    attempt = Attempt(
        id=content_hash.hexdigest()[:12],
        origin="production",
        started=session.started,
        ended=session.ended,
        exit=session.exit,
        cause=session.cause,
        usage=usage_with_cost(session),
        summary=session.summary,
        branch=session.branch,
        repo=repo,
        user=session.user,
        links=session.links,
    )
    return build_packed_session(attempt, session, key, compress_content(encoded))


def _matches_query(
    session: Session, repo: str | None, file: RecordingFile, session_filter: SessionFilter
) -> bool:
    if session_filter.since is not None:
        last = session.ended or session.started
        if last is not None and last < session_filter.since:
            return False
    if session_filter.repo is None or repo == session_filter.repo:
        return True
    is_inside = Path(session.directory or "/nowhere").is_relative_to(session_filter.repo)
    return session.directory is not None and is_inside


def _count_events(trace: Trace, counts: dict[str, int], unknown: dict[str, int]) -> None:
    calls = paired = 0
    notes: dict[str, int] = {}
    for event in trace.events:
        if (is_paired := has_result(event)) is not None:
            calls += 1
            paired += is_paired
        elif type(event) is Note and event.about:
            if event.about.startswith("unknown"):
                count_skip(notes, UNKNOWN_NOTE)
            elif event.about == UNPAIRED_RESULT:
                count_skip(notes, UNPAIRED_RESULT)
    add_counts(unknown, notes)
    session_counts = {
        "sessions": 1,
        "events": len(trace.events),
        "calls": calls,
        "paired": paired,
        "callless_sessions": int(UNPAIRED_RESULT in notes and not calls),
    }
    add_counts(counts, session_counts)


def add_counts(counts: dict[str, int], added_counts: dict[str, int]) -> None:
    """Add counts."""
    for name, number in added_counts.items():
        counts[name] = counts.get(name, 0) + number


def _spill_sessions(sessions: Sequence[PackedSession], name: str | None, folder: str) -> str:
    if name is None:
        handle, name = tempfile.mkstemp(dir=folder)
        os.close(handle)
    with open(name, "ab") as file:  # noqa: PTH123
        for session in sessions:
            body = encode_record(session)
            file.write(len(body).to_bytes(8) + body)
    return name


def read_spilled_sessions(name: str) -> Iterator[PackedSession]:
    """Yield the spilled sessions one at a time, and delete the file."""
    path = Path(name)
    with path.open("rb") as file:
        while size := file.read(8):
            yield msgspec.msgpack.decode(file.read(int.from_bytes(size)), type=PackedSession)
    path.unlink()


@lru_cache(maxsize=1000)
def published_prices(model: str) -> ModelPrices | None:
    """Return the published prices of a model, whichever provider served it."""
    return find_model_prices(ModelSettings(provider="openai", model=model.rpartition("/")[2]))


def usage_with_cost(session: Session) -> Usage:
    """Return the usage with its cost: reported, or by the prices of all its models."""
    usage = session.usage
    if usage.cost is not None:
        return usage
    usage_by_model = _split_usage_by_model(session.trace, session.model, usage)
    cost = 0.0
    for model, model_usage in usage_by_model.items():
        if model_usage.input_tokens is None and model_usage.output_tokens is None:
            continue
        priced_usage = add_cost(model_usage, published_prices(model)) if model else model_usage
        if priced_usage.cost is None:
            return usage
        cost += priced_usage.cost
    return replace(usage, cost=cost, cost_from="prices") if cost else usage


def _split_usage_by_model(
    trace: Trace, session_model: str | None, usage: Usage
) -> dict[str | None, Usage]:
    """Return the usage of each model; all of it is the session model's if turns do not add up."""
    by_model: dict[str | None, list[Usage]] = {}
    for lane in trace.lanes:
        for turn in lane.turns:
            by_model.setdefault(turn.model or session_model, []).append(turn.usage)
    usage_by_model = {model: sum_usage(usages) for model, usages in by_model.items()}
    if sum_usage(usage_by_model.values()).input_tokens != usage.input_tokens:
        return {session_model: usage}
    return usage_by_model


def explain_unknown_cost(trace: Trace, session_model: str | None, usage: Usage) -> str:
    """Explain in one sentence why a session has no cost, and what is known."""
    used_models = {
        model: model_usage
        for model, model_usage in _split_usage_by_model(trace, session_model, usage).items()
        if model_usage.input_tokens is not None or model_usage.output_tokens is not None
    }
    if not used_models:
        return "the recording has no token counts"
    if None in used_models:
        return "the recording does not name the model"
    prices = {model: published_prices(model) for model in used_models if model}
    unpriced = sorted(model for model, price in prices.items() if price is None)
    if not unpriced:
        lacking, turns = count_without_output(
            turn.usage for lane in trace.lanes for turn in lane.turns
        )
        if 0 < lacking < turns:
            return f"the recording lacks the output tokens of {lacking} of {turns} turns"
        return "the recording has no output token counts"
    text = f"no list price for {', '.join(unpriced)}"
    costs = {
        model: add_cost(used_models[model], price).cost for model, price in prices.items() if price
    }
    parts = [f"${cost:,.2f} for {model}" for model, cost in sorted(costs.items()) if cost]
    return f"{text}; at list prices {', '.join(parts)}" if parts else text


@lru_cache(maxsize=10_000)
def repository_address(directory: str | None) -> str | None:
    """Return the address of its origin, else its top folder, else the directory itself."""
    if not directory or not directory.startswith("/"):
        return directory or None
    folder = Path(directory)
    try:
        for ancestor in (folder, *folder.parents):
            git = ancestor / ".git"
            if git.exists():
                return _origin_url(git) or str(ancestor)
    except (OSError, ValueError):
        pass
    return directory


def _origin_url(git: Path) -> str | None:
    try:
        if git.is_file():  # a worktree, whose own folder is inside the repository's
            gitdir_line = git.read_text(encoding="utf-8", errors="replace")[:4096]
            git = Path(git.parent, gitdir_line.removeprefix("gitdir:").strip()).parent.parent
        with (git / "config").open(encoding="utf-8", errors="replace") as file:
            match = _ORIGIN.search(file.read(MAX_CONFIG_CHARS))
    except (OSError, ValueError):
        return None
    return _CREDENTIALS.sub("", match[1]) if match else None


LOOKUP_FILES = 500
"""Files per lookup in the store."""
BATCH_FILES, BATCH_BYTES = 64, 4 << 20
"""Files and bytes per batch of a worker."""
SAVED_SESSIONS, SAVED_FILES, SAVED_BYTES = 200, 2000, 16 << 20
"""Limits of what is saved in one transaction."""
MAX_TROUBLES = 20
PROGRESS_FILES = 16
"""Files between two reports of progress."""

Item = TypeVar("Item")
Answer = TypeVar("Answer")
TallyCallback = Callable[[ImportSummary], None]
FileBatch = list[RecordingFile]
ReaderVersions = dict[str | None, int]
OTLP_PREFIX = "otlp:"
"""Prefix of a trace's id in place of a file's path."""


def find_changed_files(
    entries: Iterable[RecordingFile | UnreadablePath],
    buffer: ImportBuffer,
    session_filter: SessionFilter,
) -> Iterator[RecordingFile]:
    """Yield the files that are new or changed since the store last read them."""
    files, versions = iter(entries), _reader_versions()
    while chunk := list(islice(files, LOOKUP_FILES)):
        for entry in chunk:
            if isinstance(entry, UnreadablePath):
                buffer.add_trouble(entry.path, entry.why)
        readable_files = [entry for entry in chunk if isinstance(entry, RecordingFile)]
        imported_by_path = buffer.store.load_imported_files(
            [storable_path(file.path) for file in readable_files]
        )
        for file in readable_files:
            if (
                session_filter.since
                and datetime.fromtimestamp(file.changed / 1e9, UTC) < session_filter.since
            ):
                buffer.unwanted += 1
            elif (
                row := imported_by_path.get(storable_path(file.path))
            ) is None or not _is_unchanged(file, row, versions):
                yield file
            elif row.reader is None:
                buffer.add_other(file.path)
            else:
                buffer.unchanged += 1
                buffer.empty += row.sessions == 0


def _is_unchanged(file: RecordingFile, row: ImportedFile, versions: ReaderVersions) -> bool:
    """Whether a file and all parts of its recording are unchanged."""
    if (row.size, row.changed) != (file.size, file.changed):
        return False
    if row.version != versions.get(row.reader):
        return False
    current_parts = (stat_recording(path) for path, _, _ in row.parts)
    return row.parts == tuple(
        (part.path, part.size, part.changed) for part in current_parts if part
    )


def _reader_versions() -> ReaderVersions:
    """Return each reader's version; for unrecognised files, one for all readers."""
    installed: ReaderVersions = {
        installed_reader.name: installed_reader.version for installed_reader in installed_readers()
    }
    return installed | {None: int(content_digest(list(installed.items()))[:12], 16)}


def read_changed_files(
    files: Iterable[RecordingFile], session_filter: SessionFilter, jobs: int
) -> Iterator[FileOutcome]:
    """Read files, `jobs` at once; a part that is new or has changed makes its whole recording new.

    What an outcome has spilled into files is there until the next one is asked for.
    """
    path_hashes: set[int] = set()
    """Hashes, because there may be a million paths."""
    with without_garbage_collection(), tempfile.TemporaryDirectory() as folder:
        while True:
            owners: list[str] = []
            for outcome in _read_batches(_split_batches(files), session_filter, jobs, folder):
                path_hashes.add(hash(outcome.file.path))
                if outcome.owner is not None:
                    owners.append(outcome.owner)
                yield outcome
            unread_owners = [
                path for path in dict.fromkeys(owners) if hash(path) not in path_hashes
            ]
            if not unread_owners:
                break
            files = (file for file in map(stat_recording, unread_owners) if file is not None)


def _split_batches(files: Iterable[RecordingFile]) -> Iterator[FileBatch]:
    batch: FileBatch = []
    size = 0
    for file in files:
        batch.append(file)
        size += file.size
        if len(batch) >= BATCH_FILES or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _read_batches(
    batches: Iterator[FileBatch], session_filter: SessionFilter, jobs: int, folder: str
) -> Iterator[FileOutcome]:
    """Yield outcomes in the order of the files, so that equal imports save the same."""
    first_batches = list(islice(batches, 2))
    every_batch = chain(first_batches, batches)
    work = partial(read_recordings, session_filter=session_filter, folder=folder)
    if jobs == 1 or len(first_batches) < 2:
        yield from chain.from_iterable(map(work, every_batch))
        return
    modules = [entry.module for entry in plugins.installed_plugins("readers").values()]
    advice = "run the same command with --jobs 1; what was imported so far is saved"
    answers = map_in_processes(work, every_batch, jobs, [__name__, *modules], advice)
    yield from chain.from_iterable(answers)


def map_in_processes(
    work: Callable[[Item], Answer],
    items: Iterable[Item],
    jobs: int,
    modules: Sequence[str],
    advice: str,
) -> Iterator[Answer]:
    """Answers in the order of the items, of which few wait; `modules` are imported once for all."""
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import get_context

    # New processes would import modules from the current folder first, which is untrusted.
    os.environ["PYTHONSAFEPATH"] = "1"
    context = get_context("forkserver")
    context.set_forkserver_preload(list(modules))
    with ProcessPoolExecutor(jobs, context, initializer=end_with_parent) as pool:
        running: deque[Future[Answer]] = deque()
        try:
            for item in items:
                with delay_interrupt():
                    running.append(pool.submit(work, item))
                if len(running) > 2 * jobs:
                    yield running.popleft().result()
            while running:
                yield running.popleft().result()
        except BrokenProcessPool as error:
            raise MachineFailed(
                f"A process that did a part of the work was killed, perhaps because of too little "
                f"memory: {advice}."
            ) from error
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


class ImportBuffer:
    """Results that wait to be saved, and the counts so far."""

    def __init__(self, store: Store, report_progress: TallyCallback) -> None:
        self.store, self._tell = store, report_progress
        self.unchanged = self.empty = self.unwanted = self.others = 0
        self._unreadable = self._outcomes = 0
        self._troubles: list[str] = []
        self._other_paths: list[str] = []
        self._redacted: dict[str, int] = {}
        self._formats: dict[str, dict[str, int]] = {}
        self._skipped: dict[str, dict[str, int]] = {}
        self._sessions: list[PackedSession] = []
        self._readers: dict[str, str] = {}
        self._files: list[ImportedFile] = []
        self._bytes = 0
        self._nobody = _reader_versions()[None]

    def add_trouble(self, path: str, reason: str) -> None:
        """Report what could not be read; the first few are named."""
        self._unreadable += 1
        if len(self._troubles) < MAX_TROUBLES:
            self._troubles.append(f"{storable_path(path)}: {reason}")

    def add_other(self, path: str) -> None:
        """Count a file that is not a recording; the first few are named."""
        self.others += 1
        if len(self._other_paths) < MAX_TROUBLES:
            self._other_paths.append(storable_path(path))

    def add_outcome(self, outcome: FileOutcome) -> None:
        """Add the outcome of one file, and report progress now and then."""
        self._count_outcome(outcome)
        self._outcomes += 1
        if self._outcomes % PROGRESS_FILES == 0:
            self._tell(self.make_tally())

    def _count_outcome(self, outcome: FileOutcome) -> None:
        if outcome.trouble is not None:
            self.add_trouble(outcome.file.path, outcome.trouble)
            return
        if outcome.reader is None:
            self.add_other(outcome.file.path)
        else:
            counts = msgspec.structs.asdict(outcome.count)
            add_counts(self._skipped.setdefault(outcome.reader, {}), counts.pop("skipped"))
            add_counts(self._formats.setdefault(outcome.reader, {}), counts)
        add_counts(self._redacted, outcome.redacted)
        for session in outcome.sessions:
            self._add_session(session, outcome.reader or "")
        for session in read_spilled_sessions(outcome.spilled) if outcome.spilled else ():
            self._add_session(session, outcome.reader or "")
        self.unwanted += outcome.unwanted
        if not outcome.unwanted:
            # Not earlier: a file is known only when all of it was read.
            self._files.append(_make_imported_file(outcome, self._nobody))
        if len(self._files) >= SAVED_FILES:
            self.save_waiting()

    def _add_session(self, session: PackedSession, reader: str) -> None:
        self._sessions.append(session)
        self._readers[session.attempt.id] = reader
        self._bytes += len(session.trace)
        if len(self._sessions) >= SAVED_SESSIONS or self._bytes >= SAVED_BYTES:
            self.save_waiting()

    def save_waiting(self) -> None:
        """Save what waits, in one transaction."""
        for name in self.store.save_sessions(self._sessions, self._files):
            add_counts(self._formats[self._readers[name]], {"new": 1})
        self._sessions, self._files, self._readers, self._bytes = [], [], {}, 0
        gc.collect(0)

    def finish_import(self) -> ImportSummary:
        """Save what waits, and return the summary."""
        self.save_waiting()
        tally = self.make_tally()
        self._tell(tally)
        return tally

    def make_tally(self) -> ImportSummary:
        """Return the current counts."""
        return ImportSummary(
            formats={
                name: FormatCounts(**counts, skipped=self._skipped[name])
                for name, counts in sorted(self._formats.items())
            },
            unchanged=self.unchanged,
            empty=self.empty,
            unwanted=self.unwanted,
            others=self.others,
            other_paths=tuple(self._other_paths),
            unreadable=self._unreadable,
            troubles=tuple(self._troubles),
            redacted=dict(sorted(self._redacted.items())),
        )


def _make_imported_file(outcome: FileOutcome, nobody: int) -> ImportedFile:
    file = outcome.file
    return ImportedFile(
        path=storable_path(file.path),
        size=file.size,
        changed=file.changed,
        parts=outcome.parts,
        reader=outcome.reader,
        version=outcome.version if outcome.reader else nobody,
        sessions=1 if outcome.owner else outcome.count.sessions,
    )


def save_spans(spans: Iterable[OtelSpan], store: Store) -> set[str]:
    """Save spans, rid of secrets; the traces that they belong to."""
    from closeloop.traces.readers.otel_sessions import span_conversation

    stored_spans = []
    for span in spans:
        cleaned, _ = redact_record(span)
        body = pack_record(cleaned)
        stored_spans.append(
            StoredSpan(
                trace=cleaned.trace,
                conversation=span_conversation(cleaned),
                digest=content_digest(body),
                body=body,
            )
        )
    store.save_spans(stored_spans)
    return {stored_span.trace for stored_span in stored_spans}


def build_trace_session(trace: str, store: Store) -> list[str]:
    """Put the session of a trace together as far as its spans have come; new versions' ids."""
    from closeloop.traces.readers import otlp
    from closeloop.traces.readers.otel_sessions import OtelSpan, sessions_from_spans

    count = store.count_spans(trace).get(trace, 0)
    spans = (unpack_record(body, OtelSpan) for body in store.load_spans(trace))
    skipped: dict[str, int] = {}
    packed = [
        pack_session(
            session, repository_address(session.directory), content_digest(OTLP_PREFIX, session.id)
        )
        for session in sessions_from_spans(spans, otlp.name, otlp.version, skipped)
    ]
    return store.save_sessions(packed, [_make_built_file(trace, count, len(packed))])


def list_unbuilt_traces(store: Store) -> Collection[str]:
    """Traces with spans that no session has yet: their server was stopped."""
    from closeloop.traces.readers import otlp

    counts = store.count_spans()
    imported_files = store.load_imported_files([OTLP_PREFIX + trace for trace in counts])
    return [
        trace
        for trace, count in counts.items()
        if (row := imported_files.get(OTLP_PREFIX + trace)) is None
        or (row.size, row.version) != (count, otlp.version)
    ]


def _make_built_file(trace: str, count: int, sessions: int) -> ImportedFile:
    from closeloop.traces.readers import otlp

    return ImportedFile(
        path=OTLP_PREFIX + trace,
        size=count,
        changed=0,
        reader=otlp.name,
        version=otlp.version,
        sessions=sessions,
    )
