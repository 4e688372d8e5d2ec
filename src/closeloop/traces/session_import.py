"""Import sessions into the store: recordings that are new or changed, and spans as they come."""

from __future__ import annotations

import gc
import os
import tempfile
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from datetime import UTC, datetime
from itertools import chain, islice
from multiprocessing import get_context

import msgspec

from closeloop import plugins
from closeloop.records.errors import MachineFailed
from closeloop.records.record import content_digest
from closeloop.records.session import FormatCounts, ImportSummary, SessionFilter
from closeloop.store import Store
from closeloop.store.record_bodies import pack_record, unpack_record
from closeloop.store.session_rows import ImportedFile, PackedSession, StoredSpan
from closeloop.text.redaction import redact_record
from closeloop.traces.file_intake import (
    FileOutcome,
    add_counts,
    end_with_parent,
    pack_session,
    read_recordings,
    read_spilled_sessions,
    repository_address,
    storable_path,
    without_garbage_collection,
)
from closeloop.traces.readers import otlp
from closeloop.traces.readers.otel_sessions import sessions_from_spans
from closeloop.traces.readers.otel_spans import OtelSpan, span_conversation
from closeloop.traces.recording_files import (
    RecordingFile,
    UnreadablePath,
    installed_readers,
    stat_recording,
)

LOOKUP_FILES = 500
"""Files at a time about which the store is asked."""
BATCH_FILES, BATCH_BYTES = 64, 4 << 20
"""What a worker is given at once."""
SAVED_SESSIONS, SAVED_FILES, SAVED_BYTES = 200, 2000, 16 << 20
"""What is saved in one transaction."""
MAX_TROUBLES = 20
PROGRESS_FILES = 16
"""Files between two reports of progress."""

TallyCallback = Callable[[ImportSummary], None]
FileBatch = list[RecordingFile]
ReaderVersions = dict[str | None, int]
OTLP_PREFIX = "otlp:"
"""Stands before a trace's id where files have their path."""


def find_changed_files(
    found: Iterable[RecordingFile | UnreadablePath], buffer: ImportBuffer, wish: SessionFilter
) -> Iterator[RecordingFile]:
    """The files that the store does not know as they are now."""
    files, versions = iter(found), _reader_versions()
    while chunk := list(islice(files, LOOKUP_FILES)):
        for each in chunk:
            if isinstance(each, UnreadablePath):
                buffer.add_trouble(each.path, each.why)
        readable_files = [each for each in chunk if isinstance(each, RecordingFile)]
        known = buffer.store.load_imported_files(
            [storable_path(file.path) for file in readable_files]
        )
        for file in readable_files:
            if wish.since and datetime.fromtimestamp(file.changed / 1e9, UTC) < wish.since:
                buffer.unwanted += 1
            elif (row := known.get(storable_path(file.path))) is None or not _is_unchanged(
                file, row, versions
            ):
                yield file
            elif row.reader is None:
                buffer.others += 1
            else:
                buffer.unchanged += 1
                buffer.empty += row.sessions == 0


def _is_unchanged(file: RecordingFile, row: ImportedFile, versions: ReaderVersions) -> bool:
    """Whether a file, with all parts of its recording, is as it was when it was last read."""
    if (row.size, row.changed) != (file.size, file.changed):
        return False
    if row.version != versions.get(row.reader):
        return False
    now = (stat_recording(path) for path, _, _ in row.parts)
    return row.parts == tuple((part.path, part.size, part.changed) for part in now if part)


def _reader_versions() -> ReaderVersions:
    """Of each reader; for files that none knew, of all of them together."""
    installed: ReaderVersions = {each.name: each.version for each in installed_readers()}
    return installed | {None: int(content_digest(list(installed.items()))[:12], 16)}


def read_changed_files(
    files: Iterable[RecordingFile], wish: SessionFilter, jobs: int
) -> Iterator[FileOutcome]:
    """Read files, `jobs` at once; a part that is new or has changed makes its whole recording new.

    What an outcome has spilled into files is there until the next one is asked for.
    """
    path_hashes: set[int] = set()
    """Hashes: there may be a million paths."""
    with without_garbage_collection(), tempfile.TemporaryDirectory() as folder:
        while True:
            owners: list[str] = []
            for outcome in _read_batches(_split_batches(files), wish, jobs, folder):
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
    batches: Iterator[FileBatch], wish: SessionFilter, jobs: int, folder: str
) -> Iterator[FileOutcome]:
    """Outcomes in the order of the files, so that two imports of the same save the same."""
    first_batches = list(islice(batches, 2))
    if jobs == 1 or len(first_batches) < 2:
        for batch in chain(first_batches, batches):
            yield from read_recordings(batch, wish, folder)
        return
    # New processes would look for modules in the current folder first, which is anybody's.
    os.environ["PYTHONSAFEPATH"] = "1"
    context = get_context("forkserver")
    modules = [entry.module for entry in plugins.installed_plugins("readers").values()]
    context.set_forkserver_preload(["closeloop.traces.file_intake", *modules])
    with ProcessPoolExecutor(jobs, context, initializer=end_with_parent) as pool:
        running: deque[Future[list[FileOutcome]]] = deque()
        try:
            for batch in chain(first_batches, batches):
                running.append(pool.submit(read_recordings, batch, wish, folder))
                if len(running) > 2 * jobs:
                    yield from running.popleft().result()
            while running:
                yield from running.popleft().result()
        except BrokenProcessPool as error:
            raise MachineFailed(
                "A process that read files was killed, perhaps for want of memory: run the same "
                "with --jobs 1; what was read so far is kept."
            ) from error
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


class ImportBuffer:
    """What waits to be saved, and the count of all that was done."""

    def __init__(self, store: Store, tell: TallyCallback) -> None:
        self.store, self._tell = store, tell
        self.unchanged = self.empty = self.unwanted = self.others = 0
        self._unreadable = self._outcomes = 0
        self._troubles: list[str] = []
        self._redacted: dict[str, int] = {}
        self._formats: dict[str, dict[str, int]] = {}
        self._skipped: dict[str, dict[str, int]] = {}
        self._sessions: list[PackedSession] = []
        self._readers: dict[str, str] = {}
        self._files: list[ImportedFile] = []
        self._bytes = 0
        self._nobody = _reader_versions()[None]

    def add_trouble(self, path: str, why: str) -> None:
        """Something could not be read; the first few are named."""
        self._unreadable += 1
        if len(self._troubles) < MAX_TROUBLES:
            self._troubles.append(f"{storable_path(path)}: {why}")

    def add_outcome(self, outcome: FileOutcome) -> None:
        """One file was looked at; every few of them, progress is reported."""
        self._count_outcome(outcome)
        self._outcomes += 1
        if self._outcomes % PROGRESS_FILES == 0:
            self._tell(self.make_tally())

    def _count_outcome(self, outcome: FileOutcome) -> None:
        if outcome.trouble is not None:
            self.add_trouble(outcome.file.path, outcome.trouble)
            return
        if outcome.reader is None:
            self.others += 1
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
            # Only now: a file is known when all of it is.
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
        """Keep what waits, in one transaction."""
        for name in self.store.save_sessions(self._sessions, self._files):
            add_counts(self._formats[self._readers[name]], {"new": 1})
        self._sessions, self._files, self._readers, self._bytes = [], [], {}, 0
        gc.collect(0)

    def finish_import(self) -> ImportSummary:
        """Keep what waits, and report all that was done."""
        self.save_waiting()
        tally = self.make_tally()
        self._tell(tally)
        return tally

    def make_tally(self) -> ImportSummary:
        """As it stands now."""
        return ImportSummary(
            formats={
                name: FormatCounts(**counts, skipped=self._skipped[name])
                for name, counts in sorted(self._formats.items())
            },
            unchanged=self.unchanged,
            empty=self.empty,
            unwanted=self.unwanted,
            others=self.others,
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
    return {one.trace for one in stored_spans}


def build_trace_session(trace: str, store: Store) -> list[str]:
    """Put the session of a trace together as far as its spans have come; new versions' ids."""
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
    counts = store.count_spans()
    known = store.load_imported_files([OTLP_PREFIX + trace for trace in counts])
    return [
        trace
        for trace, count in counts.items()
        if (row := known.get(OTLP_PREFIX + trace)) is None
        or (row.size, row.version) != (count, otlp.version)
    ]


def _make_built_file(trace: str, count: int, sessions: int) -> ImportedFile:
    return ImportedFile(
        path=OTLP_PREFIX + trace,
        size=count,
        changed=0,
        reader=otlp.name,
        version=otlp.version,
        sessions=sessions,
    )
