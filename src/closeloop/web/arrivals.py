"""Spans that arrived and wait to be put together: soon after the last one, never in the request."""

from __future__ import annotations

import time

import anyio
import anyio.to_thread

from closeloop.intake.spans import build
from closeloop.model.errors import Fault
from closeloop.store import Store

QUIET_SECONDS = 5.0
"""So long after its last span a conversation is put together; more may still come."""
LONGEST_WAIT = 60.0
"""At the latest so long after its first new span, however busy it is."""


class Waiting:
    """Traces of which spans have arrived that no session has yet."""

    def __init__(self, quiet: float) -> None:
        self.quiet = quiet
        self._times: dict[str, tuple[float, float]] = {}

    def arrived(self, traces: set[str]) -> None:
        now = time.monotonic()
        for trace in traces:
            first, _ = self._times.get(trace, (now, now))
            self._times[trace] = (first, now)

    def due(self) -> list[str]:
        """Those that have been quiet, or have waited long enough; they no longer wait."""
        now = time.monotonic()
        due = [
            trace
            for trace, (first, last) in self._times.items()
            if now - last >= self.quiet or now - first >= LONGEST_WAIT
        ]
        for trace in due:
            del self._times[trace]
        return due

    def rest(self) -> list[str]:
        """All of them."""
        rest, self._times = list(self._times), {}
        return rest


async def build_due(waiting: Waiting, store: Store) -> None:
    """Put together what is due, until cancelled."""
    while True:
        await anyio.sleep(min(waiting.quiet, 1.0))
        due = waiting.due()
        if due:
            await anyio.to_thread.run_sync(build_each, due, store)


def build_each(traces: list[str], store: Store) -> None:
    for trace in traces:
        try:
            build(trace, store)
        except Fault:
            # The spans are kept: the next start of the server, or the next span, tries again.
            continue
