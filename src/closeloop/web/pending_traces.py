"""Spans that arrived and wait to be put together: soon after the last one, never in the request."""

from __future__ import annotations

import time

import anyio
import anyio.to_thread

from closeloop.records.errors import Fault
from closeloop.store import Store
from closeloop.traces.session_import import build_trace_session

QUIET_SECONDS = 5.0
"""So long after its last span a conversation is put together; more may still come."""
MAX_WAIT_SECONDS = 60.0
"""At the latest so long after its first new span, however busy it is."""


class PendingTraces:
    """Traces of which spans have arrived that no session has yet."""

    def __init__(self, quiet: float) -> None:
        self.quiet = quiet
        self._times: dict[str, tuple[float, float]] = {}

    def note_arrivals(self, traces: set[str]) -> None:
        now = time.monotonic()
        for trace in traces:
            first, _ = self._times.get(trace, (now, now))
            self._times[trace] = (first, now)

    def pop_due(self) -> list[str]:
        """Those that have been quiet, or have waited long enough; they no longer wait."""
        now = time.monotonic()
        due = [
            trace
            for trace, (first, last) in self._times.items()
            if now - last >= self.quiet or now - first >= MAX_WAIT_SECONDS
        ]
        for trace in due:
            del self._times[trace]
        return due

    def pop_all(self) -> list[str]:
        """All of them."""
        remaining, self._times = list(self._times), {}
        return remaining


async def build_due_sessions(waiting: PendingTraces, store: Store) -> None:
    """Put together what is due, until cancelled."""
    while True:
        await anyio.sleep(min(waiting.quiet, 1.0))
        due = waiting.pop_due()
        if due:
            await anyio.to_thread.run_sync(build_sessions, due, store)


def build_sessions(traces: list[str], store: Store) -> None:
    for trace in traces:
        try:
            build_trace_session(trace, store)
        except Fault:
            # The spans are kept: the next start of the server, or the next span, tries again.
            continue
