"""What pages are made from: the store, the project's settings, and traces that were just read."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from closeloop.measuring.attempts import basis, book_of, measured
from closeloop.measuring.work import Work, work_of
from closeloop.model.attempt import AttemptRow
from closeloop.model.listing import Marks
from closeloop.model.measurement import Measurement
from closeloop.model.settings import Settings
from closeloop.model.steps import Reading
from closeloop.model.trace import Trace
from closeloop.process.reading import read
from closeloop.process.rulebook import Rulebook
from closeloop.store import Store
from closeloop.web.counting import Counting

Kept = TypeVar("Kept")
_NEVER_MARKED = (-2.0, "", "")
MOST_EVENTS = 200_000
"""Of all traces that are kept at hand together; a single one is kept whatever its size."""


class Desk:
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
    def book(self) -> Rulebook:
        """The rules as they are set here."""
        return book_of(self.settings)

    @cached_property
    def counting(self) -> Counting:
        """Numbers of all attempts."""
        return Counting(self.mark, self._count_work)

    def _count_work(self) -> Work:
        """All attempts; where some are outdated, first as they were, and soon measured again.

        Measuring again may take minutes, in which pages would have nothing to show.
        """
        again = self._measures_again or self.counting.patience is None
        work = work_of(self.store, self.book, again=again)
        if work.outdated:
            with self._marking:
                self._measures_again = True
                self._marked = _NEVER_MARKED
        return work

    def mark(self) -> str:
        """Another one when something was added to the store, or is about to be measured again."""
        return self._looked_up()[1]

    def news(self) -> str:
        """Another one then too, and when somebody takes up a plan or lets it go."""
        return self._looked_up()[2]

    def _looked_up(self) -> tuple[float, str, str]:
        """Once a second for all."""
        with self._marking:
            if time.monotonic() - self._marked[0] > 1:
                mark = f"{self.store.listing.mark()}{'-again' * self._measures_again}"
                news = " ".join((mark, *sorted(self.store.plans.under_way())))
                self._marked = (time.monotonic(), mark, news)
            return self._marked

    def trace(self, attempt: str) -> Trace:
        """The events of an attempt, by its full id. They never change, so they are kept a while."""
        with self._lock:
            if (known := self._traces.get(attempt)) is not None:
                self._traces.move_to_end(attempt)
                return known
        found = self.store.trace(attempt) or Trace(reader="none", reader_version=1)
        with self._lock:
            self._traces[attempt] = found
            total = sum(len(each.events) for each in self._traces.values())
            while total > MOST_EVENTS and len(self._traces) > 1:
                name, old = self._traces.popitem(last=False)
                self._derived.pop(name, None)
                total -= len(old.events)
        return found

    def derived(self, attempt: str, make: Callable[[Trace], Kept]) -> Kept:
        """What a function makes of a trace, kept as long as the trace itself."""
        trace = self.trace(attempt)
        known = self._derived.setdefault(attempt, {})
        if make not in known:
            known[make] = make(trace)
        value: Kept = known[make]
        return value

    def reading(self, attempt: str) -> Reading:
        """A trace as the rules see it: steps, checks, iterations, handoffs."""
        return self.derived(attempt, self._read)

    def _read(self, trace: Trace) -> Reading:
        return read(trace, self.book.own_checks)

    def marks(self, rows: Sequence[AttemptRow]) -> dict[str, Marks]:
        """What the rules say of attempts, in short; told where it is outdated."""
        bases = {row.id: basis(row, self.book) for row in rows}
        return self.store.listing.marks(bases, bases)

    def measurement(self, row: AttemptRow, *, make: bool = True) -> Measurement | None:
        """What the rules say of an attempt; made and kept where it is not known, if it may be.

        Where it may not be, it is the last one, which may be outdated: `marks` tells.
        """
        if row.events is None:
            return None
        if not make:
            known = self.store.measurements({row.id: basis(row, self.book)}).get(row.id)
            return known or self.store.last_measurement(row.id)
        return next(iter(measured(self.store, [row], self.book))).measurement
