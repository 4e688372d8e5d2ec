"""What pages are made from: the store, the project's settings, and traces that were just read."""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from msgspec.structs import replace

from closeloop.metrics.attempt_measuring import (
    measure_attempts,
    measurement_basis,
    project_rulebook,
)
from closeloop.metrics.attempt_table import AttemptTable, load_attempt_table
from closeloop.metrics.score_columns import project_scores
from closeloop.metrics.score_definitions import ScoreCatalogue
from closeloop.process.rulebook import Rulebook
from closeloop.process.trace_reading import build_reading
from closeloop.records.attempt import AttemptMarks, AttemptRow
from closeloop.records.errors import BadInput
from closeloop.records.finding import Measurement
from closeloop.records.inspection import (
    TraceReading,
)
from closeloop.records.settings import Settings
from closeloop.records.trace import (
    Trace,
)
from closeloop.store import Store

# Numbers that take long: made beside the requests, kept, and made anew when there is more.
#
# Whoever asks waits a moment. Then they get what there is: the numbers, those from before, or
# none yet, and whether they are those of now.

T = TypeVar("T")
WAIT_SECONDS = 0.12
"""Seconds that a page waits."""
WAIT_PAUSE_SECONDS = 0.5
"""A page that has waited in vain does not wait again for its other numbers."""
REST_FACTOR = 5.0
"""What took a second is left alone for so many, however much is added meanwhile."""
SWITCH_INTERVAL_SECONDS = 0.0005
"""Seconds after which whoever counts lets a request go on."""
MAX_ENTRIES = 64
MAX_QUEUED_JOBS = 16
"""Whoever asks for more at once asks again."""


class CacheEntry:
    """One thing that is counted, as it was made last."""

    def __init__(self) -> None:
        self.mark: str | None = None
        self.value: Any = None
        self.fault: Exception | None = None
        self.rests_until = 0.0
        self.done = threading.Event()
        self.waits = False


class CachedValue(Generic[T]):
    """What there is to show, and whether more is on its way."""

    def __init__(self, value: T | None, *, fresh: bool) -> None:
        self.value = value
        self.fresh = fresh


CacheJob = Callable[[], tuple[str, Any]]
"""Gives what was counted, and the mark that it is of."""
JobQueue = SimpleQueue[tuple[CacheEntry, str, CacheJob]]


class MetricCache:
    """Counts in two threads of its own, large things and small ones; safe to ask from many."""

    def __init__(
        self,
        mark: Callable[[], str],
        work: Callable[[], AttemptTable],
        patience: float | None = WAIT_SECONDS,
    ) -> None:
        self.patience = patience
        """None waits for numbers of now, however long they take and whenever they were made."""
        self._mark = mark
        self._count = work
        self._work = CacheEntry()
        self._made: OrderedDict[str, CacheEntry] = OrderedDict()
        self._lock = threading.Lock()
        self._large: JobQueue = SimpleQueue()
        self._small: JobQueue = SimpleQueue()
        self._begun = False
        self._tired = threading.local()

    def compute_from_work(self, key: str, make: Callable[[AttemptTable], T]) -> CachedValue[T]:
        """Made of all attempts."""

        def compute_value() -> tuple[str, T]:
            mark, work = self._load_current_work()
            return mark, make(work)

        return self._request_value(self._large, key, self._mark(), compute_value)

    def compute_from_store(self, key: str, mark: str, make: Callable[[], T]) -> CachedValue[T]:
        """Made of something else, of which another mark tells when it changed."""
        return self._request_value(self._small, key, mark, lambda: (mark, make()))

    def _request_value(
        self, line: JobQueue, key: str, mark: str, job: CacheJob
    ) -> CachedValue[Any]:
        with self._lock:
            entry = self._made.setdefault(key, CacheEntry())
            self._made.move_to_end(key)
            if len(self._made) > MAX_ENTRIES:
                self._made.popitem(last=False)
            is_stale = entry.mark != mark
            is_due = not entry.waits and self._may_recompute(entry)
            if is_stale and is_due and line.qsize() < MAX_QUEUED_JOBS:
                entry.waits = True
                entry.done.clear()
                line.put((entry, mark, job))
                self._start_threads()
        if is_stale and entry.waits:
            self._wait_for_entry(entry)
        if entry.fault is not None:
            raise entry.fault
        # More may have come since somebody asked, and be counted already.
        return CachedValue(entry.value, fresh=entry.mark in (mark, self._mark()))

    def _wait_for_entry(self, made: CacheEntry) -> None:
        may_wait = (
            time.monotonic() - getattr(self._tired, "since", -WAIT_PAUSE_SECONDS)
            >= WAIT_PAUSE_SECONDS
        )
        if self.patience is None:
            made.done.wait()
        elif may_wait and not made.done.wait(self.patience):
            self._tired.since = time.monotonic()

    def _start_threads(self) -> None:
        if not self._begun:
            self._begun = True
            # A request lets go of the interpreter at each query and waits to have it back.
            sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
            for line in (self._large, self._small):
                threading.Thread(target=self._run_jobs, args=(line,), daemon=True).start()

    def _run_jobs(self, line: JobQueue) -> None:
        while True:
            entry, requested_mark, job = line.get()
            started_at = time.monotonic()
            mark: str | None
            value, fault = entry.value, None
            try:
                mark, value = job()
            except Exception as error:
                # What was asked wrongly stays wrong; what the machine failed is tried again.
                mark, fault = requested_mark if isinstance(error, BadInput) else None, error
            with self._lock:
                entry.mark, entry.value, entry.fault = mark, value, fault
                entry.rests_until = _rest_until(started_at)
                entry.waits = False
            entry.done.set()

    def _load_current_work(self) -> tuple[str, AttemptTable]:
        """All attempts, read again only when there are others and the last reading is a while ago.

        Only the thread for large things comes here.
        """
        mark, entry = self._mark(), self._work
        if entry.mark is None or (entry.mark != mark and self._may_recompute(entry)):
            started_at = time.monotonic()
            entry.value, entry.mark = self._count(), mark
            # Looking through so much for cycles, of which it has none, would hold up some request.
            gc.freeze()
            entry.rests_until = _rest_until(started_at)
        return entry.mark, entry.value

    def _may_recompute(self, made: CacheEntry) -> bool:
        return self.patience is None or time.monotonic() >= made.rests_until


def _rest_until(begun: float) -> float:
    now = time.monotonic()
    return now + REST_FACTOR * (now - begun)


Kept = TypeVar("Kept")
_NEVER_MARKED = (-2.0, "", "")
MAX_CACHED_EVENTS = 200_000
"""Of all traces that are kept at hand together; a single one is kept whatever its size."""


class PageContext:
    """Shared by all pages of a server; safe to use from several threads."""

    def __init__(self, store: Store, settings: Settings | None = None, root: Path | None = None):
        self.store = store
        self.settings = settings or Settings()
        self.root = root or Path()
        self.user = "somebody"
        """Who is meant where nobody has logged in."""
        self.stopping = threading.Event()
        """Set when the server is about to stop: nobody should wait for news any more."""
        self._traces: OrderedDict[str, Trace] = OrderedDict()
        self._derived: dict[str, dict[Any, Any]] = {}
        self._lock = threading.Lock()
        self._marking = threading.Lock()
        self._marked = _NEVER_MARKED
        self._measures_again = False
        """Whether outdated attempts are measured the next time that numbers are counted."""

    @cached_property
    def rulebook(self) -> Rulebook:
        """The rules as they are set here."""
        return project_rulebook(self.settings)

    @cached_property
    def score_catalogue(self) -> ScoreCatalogue:
        """The scores as they are declared here; whoever reads a page lets no scorer work."""
        return replace(project_scores(self.settings), scorers={})

    @cached_property
    def metric_cache(self) -> MetricCache:
        """Numbers of all attempts."""
        return MetricCache(self.store_mark, self._count_work)

    def _count_work(self) -> AttemptTable:
        """All attempts; where some are outdated, first as they were, and soon measured again.

        Measuring again may take minutes, in which pages would have nothing to show.
        """
        again = self._measures_again or self.metric_cache.patience is None
        work = load_attempt_table(self.store, self.rulebook, again=again)
        if work.outdated:
            with self._marking:
                self._measures_again = True
                self._marked = _NEVER_MARKED
        return work

    def store_mark(self) -> str:
        """Another one when something was added to the store, or is about to be measured again."""
        return self._refresh_marks()[1]

    def news_mark(self) -> str:
        """Another one then too, and when somebody takes up a plan or lets it go."""
        return self._refresh_marks()[2]

    def _refresh_marks(self) -> tuple[float, str, str]:
        """Once a second for all."""
        with self._marking:
            if time.monotonic() - self._marked[0] > 1:
                mark = f"{self.store.listing.change_marker()}{'-again' * self._measures_again}"
                news_text = " ".join((mark, *sorted(self.store.plans.running_plan_ids())))
                self._marked = (time.monotonic(), mark, news_text)
            return self._marked

    def load_trace(self, attempt: str) -> Trace:
        """The events of an attempt, by its full id. They never change, so they are kept a while."""
        with self._lock:
            if (cached_trace := self._traces.get(attempt)) is not None:
                self._traces.move_to_end(attempt)
                return cached_trace
        loaded_trace = self.store.load_trace(attempt) or Trace(reader="none", reader_version=1)
        with self._lock:
            self._traces[attempt] = loaded_trace
            total = sum(len(each.events) for each in self._traces.values())
            while total > MAX_CACHED_EVENTS and len(self._traces) > 1:
                name, evicted_trace = self._traces.popitem(last=False)
                self._derived.pop(name, None)
                total -= len(evicted_trace.events)
        return loaded_trace

    def derive_from_trace(self, attempt: str, make: Callable[[Trace], Kept]) -> Kept:
        """What a function makes of a trace, kept as long as the trace itself."""
        trace = self.load_trace(attempt)
        derived_values = self._derived.setdefault(attempt, {})
        if make not in derived_values:
            derived_values[make] = make(trace)
        value: Kept = derived_values[make]
        return value

    def load_trace_reading(self, attempt: str) -> TraceReading:
        """A trace as the rules see it: steps, checks, iterations, handoffs."""
        return self.derive_from_trace(attempt, self._build_trace_reading)

    def _build_trace_reading(self, trace: Trace) -> TraceReading:
        return build_reading(trace, self.rulebook.own_checks)

    def load_attempt_marks(self, rows: Sequence[AttemptRow]) -> dict[str, AttemptMarks]:
        """What the rules say of attempts, in short; told where it is outdated."""
        bases = {row.id: measurement_basis(row, self.rulebook) for row in rows}
        return self.store.listing.load_marks(bases, bases)

    def load_measurement(self, row: AttemptRow, *, make: bool = True) -> Measurement | None:
        """What the rules say of an attempt; made and kept where it is not known, if it may be.

        Where it may not be, it is the last one, which may be outdated: `marks` tells.
        """
        if row.events is None:
            return None
        if not make:
            known = self.store.load_measurements(
                {row.id: measurement_basis(row, self.rulebook)}
            ).get(row.id)
            return known or self.store.last_measurement(row.id)
        return next(iter(measure_attempts(self.store, [row], self.rulebook))).measurement
