"""What pages are made from: the store, the project's settings, and traces that were just read."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from closeloop.metrics.attempt_measuring import (
    measure_attempts,
    measurement_basis,
    project_rulebook,
)
from closeloop.metrics.attempt_table import AttemptTable, load_attempt_table
from closeloop.process.rulebook import Rulebook
from closeloop.process.trace_reading import build_reading
from closeloop.records.attempt import AttemptRow
from closeloop.records.attempt_lists import AttemptMarks
from closeloop.records.measurement import Measurement
from closeloop.records.settings import Settings
from closeloop.records.trace import Trace
from closeloop.records.trace_steps import TraceReading
from closeloop.store import Store
from closeloop.web.metric_cache import MetricCache

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
