"""Numbers that take long: made beside the requests, kept, and made anew when there is more.

Whoever asks waits a moment. Then they get what there is: the numbers, those from before, or
none yet, and whether they are those of now.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from closeloop.metrics.attempt_table import AttemptTable
from closeloop.records.errors import BadInput

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
