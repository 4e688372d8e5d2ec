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

from closeloop.measuring.work import Work
from closeloop.model.errors import BadInput

T = TypeVar("T")
PATIENCE = 0.12
"""Seconds that a page waits."""
TIRED = 0.5
"""A page that has waited in vain does not wait again for its other numbers."""
REST = 5.0
"""What took a second is left alone for so many, however much is added meanwhile."""
TURN = 0.0005
"""Seconds after which whoever counts lets a request go on."""
MOST_KEPT = 64
MOST_WAITING = 16
"""Whoever asks for more at once asks again."""


class Made:
    """One thing that is counted, as it was made last."""

    def __init__(self) -> None:
        self.mark: str | None = None
        self.value: Any = None
        self.fault: Exception | None = None
        self.rests_until = 0.0
        self.done = threading.Event()
        self.waits = False


class Counted(Generic[T]):
    """What there is to show, and whether more is on its way."""

    def __init__(self, value: T | None, *, fresh: bool) -> None:
        self.value = value
        self.fresh = fresh


Job = Callable[[], tuple[str, Any]]
"""Gives what was counted, and the mark that it is of."""
Line = SimpleQueue[tuple[Made, str, Job]]


class Counting:
    """Counts in two threads of its own, large things and small ones; safe to ask from many."""

    def __init__(
        self, mark: Callable[[], str], work: Callable[[], Work], patience: float | None = PATIENCE
    ) -> None:
        self.patience = patience
        """None waits for numbers of now, however long they take and whenever they were made."""
        self._mark = mark
        self._count = work
        self._work = Made()
        self._made: OrderedDict[str, Made] = OrderedDict()
        self._lock = threading.Lock()
        self._large: Line = SimpleQueue()
        self._small: Line = SimpleQueue()
        self._begun = False
        self._tired = threading.local()

    def of_work(self, key: str, make: Callable[[Work], T]) -> Counted[T]:
        """Made of all attempts."""

        def job() -> tuple[str, T]:
            mark, work = self._work_now()
            return mark, make(work)

        return self._asked(self._large, key, self._mark(), job)

    def of_store(self, key: str, mark: str, make: Callable[[], T]) -> Counted[T]:
        """Made of something else, of which another mark tells when it changed."""
        return self._asked(self._small, key, mark, lambda: (mark, make()))

    def _asked(self, line: Line, key: str, mark: str, job: Job) -> Counted[Any]:
        with self._lock:
            made = self._made.setdefault(key, Made())
            self._made.move_to_end(key)
            if len(self._made) > MOST_KEPT:
                self._made.popitem(last=False)
            stale = made.mark != mark
            due = not made.waits and self._rested(made)
            if stale and due and line.qsize() < MOST_WAITING:
                made.waits = True
                made.done.clear()
                line.put((made, mark, job))
                self._begin()
        if stale and made.waits:
            self._wait(made)
        if made.fault is not None:
            raise made.fault
        # More may have come since somebody asked, and be counted already.
        return Counted(made.value, fresh=made.mark in (mark, self._mark()))

    def _wait(self, made: Made) -> None:
        rested = time.monotonic() - getattr(self._tired, "since", -TIRED) >= TIRED
        if self.patience is None:
            made.done.wait()
        elif rested and not made.done.wait(self.patience):
            self._tired.since = time.monotonic()

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            # A request lets go of the interpreter at each query and waits to have it back.
            sys.setswitchinterval(TURN)
            for line in (self._large, self._small):
                threading.Thread(target=self._run, args=(line,), daemon=True).start()

    def _run(self, line: Line) -> None:
        while True:
            made, asked, job = line.get()
            begun = time.monotonic()
            mark: str | None
            value, fault = made.value, None
            try:
                mark, value = job()
            except Exception as error:
                # What was asked wrongly stays wrong; what the machine failed is tried again.
                mark, fault = asked if isinstance(error, BadInput) else None, error
            with self._lock:
                made.mark, made.value, made.fault = mark, value, fault
                made.rests_until = _rest(begun)
                made.waits = False
            made.done.set()

    def _work_now(self) -> tuple[str, Work]:
        """All attempts, read again only when there are others and the last reading is a while ago.

        Only the thread for large things comes here.
        """
        mark, known = self._mark(), self._work
        if known.mark is None or (known.mark != mark and self._rested(known)):
            begun = time.monotonic()
            known.value, known.mark = self._count(), mark
            # Looking through so much for cycles, of which it has none, would hold up some request.
            gc.freeze()
            known.rests_until = _rest(begun)
        return known.mark, known.value

    def _rested(self, made: Made) -> bool:
        return self.patience is None or time.monotonic() >= made.rests_until


def _rest(begun: float) -> float:
    now = time.monotonic()
    return now + REST * (now - begun)
