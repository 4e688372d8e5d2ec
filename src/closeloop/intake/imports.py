"""An import from end to end.

    walk ──► what has not changed is passed over
         ──► worker processes: detect, read, redact, pack
         ──► the store, some two hundred sessions in one transaction

Only what a worker holds of one recording is in memory, however many files there are.
"""

from __future__ import annotations

import gc
import os
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from datetime import UTC, datetime
from itertools import chain, islice
from multiprocessing import get_context
from pathlib import Path

import msgspec

from closeloop import plugins
from closeloop.intake.reading import (
    Outcome,
    add,
    end_with_parent,
    look,
    name_of,
    spilled_sessions,
    without_collector,
)
from closeloop.model.errors import MachineFailed
from closeloop.model.intake import Count, Tally, Wish
from closeloop.model.record import digest
from closeloop.store import Store
from closeloop.store.sessions import Imported, Packed
from closeloop.traces.detect import readers
from closeloop.traces.find import Closed, File, file_at, walk

LOOKED_UP = 500
"""Files at a time about which the store is asked."""
BATCH_FILES, BATCH_BYTES = 64, 4 << 20
"""What a worker is given at once."""
SAVED_SESSIONS, SAVED_FILES, SAVED_BYTES = 200, 2000, 16 << 20
"""What is saved in one transaction."""
MOST_TROUBLES = 20
TOLD = 16
"""Files between two reports of progress."""

Tell = Callable[[Tally], None]
Batch = list[File]
Versions = dict[str | None, int]


def import_sessions(
    places: Sequence[Path], store: Store, *, wish: Wish, jobs: int, tell: Tell
) -> Tally:
    """Read every recording in some places that is new or has changed, and keep its sessions."""
    taken: set[int] = set()
    """Hashes: there may be a million paths."""
    with without_collector(), tempfile.TemporaryDirectory() as folder:
        shelf = Shelf(store)
        files = _changed(walk(places), shelf, wish)
        while True:
            owners: list[str] = []
            for outcome in _looked_at(_batches(files), wish, jobs, folder):
                taken.add(hash(outcome.file.path))
                if outcome.owner is not None:
                    owners.append(outcome.owner)
                shelf.add(outcome)
                if len(taken) % TOLD == 0:
                    tell(shelf.tally())
            # A part that is new or has changed makes its whole recording new.
            again = [path for path in dict.fromkeys(owners) if hash(path) not in taken]
            if not again:
                break
            files = (file for file in map(file_at, again) if file is not None)
    shelf.save()
    tell(shelf.tally())
    return shelf.tally()


def _changed(found: Iterable[File | Closed], shelf: Shelf, wish: Wish) -> Iterator[File]:
    """The files that the store does not know as they are now."""
    files, versions = iter(found), _versions()
    while some := list(islice(files, LOOKED_UP)):
        for each in some:
            if isinstance(each, Closed):
                shelf.trouble(each.path, each.why)
        there = [each for each in some if isinstance(each, File)]
        known = shelf.store.imported([name_of(file.path) for file in there])
        for file in there:
            if wish.since and datetime.fromtimestamp(file.changed / 1e9, UTC) < wish.since:
                shelf.unwanted += 1
            elif (row := known.get(name_of(file.path))) is None or not _is_known(
                file, row, versions
            ):
                yield file
            elif row.reader is None:
                shelf.others += 1
            else:
                shelf.unchanged += 1
                shelf.empty += row.sessions == 0


def _is_known(file: File, row: Imported, versions: Versions) -> bool:
    """Whether a file, with all parts of its recording, is as it was when it was last read."""
    if (row.size, row.changed) != (file.size, file.changed):
        return False
    if row.version != versions.get(row.reader):
        return False
    now = (file_at(path) for path, _, _ in row.parts)
    return row.parts == tuple((part.path, part.size, part.changed) for part in now if part)


def _versions() -> Versions:
    """Of each reader; for files that none knew, of all of them together."""
    installed: Versions = {each.name: each.version for each in readers()}
    return installed | {None: int(digest(list(installed.items()))[:12], 16)}


def _batches(files: Iterable[File]) -> Iterator[Batch]:
    batch: Batch = []
    size = 0
    for file in files:
        batch.append(file)
        size += file.size
        if len(batch) >= BATCH_FILES or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _looked_at(batches: Iterator[Batch], wish: Wish, jobs: int, folder: str) -> Iterator[Outcome]:
    """Outcomes in the order of the files, so that two imports of the same save the same."""
    first = list(islice(batches, 2))
    if jobs == 1 or len(first) < 2:
        for batch in chain(first, batches):
            yield from look(batch, wish, folder)
        return
    # New processes would look for modules in the current folder first, which is anybody's.
    os.environ["PYTHONSAFEPATH"] = "1"
    context = get_context("forkserver")
    modules = [entry.module for entry in plugins.known("readers").values()]
    context.set_forkserver_preload(["closeloop.intake.reading", *modules])
    with ProcessPoolExecutor(jobs, context, initializer=end_with_parent) as pool:
        running: deque[Future[list[Outcome]]] = deque()
        try:
            for batch in chain(first, batches):
                running.append(pool.submit(look, batch, wish, folder))
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


class Shelf:
    """What waits to be saved, and the count of all that was done."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.unchanged = self.empty = self.unwanted = self.others = 0
        self._unreadable = 0
        self._troubles: list[str] = []
        self._redacted: dict[str, int] = {}
        self._formats: dict[str, dict[str, int]] = {}
        self._skipped: dict[str, dict[str, int]] = {}
        self._sessions: list[Packed] = []
        self._readers: dict[str, str] = {}
        self._files: list[Imported] = []
        self._bytes = 0
        self._nobody = _versions()[None]

    def trouble(self, path: str, why: str) -> None:
        """Something could not be read; the first few are named."""
        self._unreadable += 1
        if len(self._troubles) < MOST_TROUBLES:
            self._troubles.append(f"{name_of(path)}: {why}")

    def add(self, outcome: Outcome) -> None:
        """One file was looked at."""
        if outcome.trouble is not None:
            self.trouble(outcome.file.path, outcome.trouble)
            return
        if outcome.reader is None:
            self.others += 1
        else:
            counts = msgspec.structs.asdict(outcome.count)
            add(self._skipped.setdefault(outcome.reader, {}), counts.pop("skipped"))
            add(self._formats.setdefault(outcome.reader, {}), counts)
        add(self._redacted, outcome.redacted)
        for session in outcome.sessions:
            self._add_session(session, outcome.reader or "")
        for session in spilled_sessions(outcome.spilled) if outcome.spilled else ():
            self._add_session(session, outcome.reader or "")
        self.unwanted += outcome.unwanted
        if not outcome.unwanted:
            # Only now: a file is known when all of it is.
            self._files.append(_imported(outcome, self._nobody))
        if len(self._files) >= SAVED_FILES:
            self.save()

    def _add_session(self, session: Packed, reader: str) -> None:
        self._sessions.append(session)
        self._readers[session.attempt.id] = reader
        self._bytes += len(session.trace)
        if len(self._sessions) >= SAVED_SESSIONS or self._bytes >= SAVED_BYTES:
            self.save()

    def save(self) -> None:
        """Keep what waits, in one transaction."""
        for name in self.store.keep_sessions(self._sessions, self._files):
            add(self._formats[self._readers[name]], {"new": 1})
        self._sessions, self._files, self._readers, self._bytes = [], [], {}, 0
        gc.collect(0)

    def tally(self) -> Tally:
        """As it stands now."""
        return Tally(
            formats={
                name: Count(**counts, skipped=self._skipped[name])
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


def _imported(outcome: Outcome, nobody: int) -> Imported:
    file = outcome.file
    return Imported(
        path=name_of(file.path),
        size=file.size,
        changed=file.changed,
        parts=outcome.parts,
        reader=outcome.reader,
        version=outcome.version if outcome.reader else nobody,
        sessions=1 if outcome.owner else outcome.count.sessions,
    )
