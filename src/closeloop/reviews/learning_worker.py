"""Learn beside a server: whenever there is news, by one process at a time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import anyio
import anyio.to_thread

from closeloop.records.errors import Fault
from closeloop.store import Store
from closeloop.store.lease_owners import current_owner, is_owner_dead

LEARNING_JOB = "memory:learning"
LEASE_SECONDS = 300.0
LOOK_SECONDS, TROUBLED_SECONDS = 1.0, 60.0
IDLE_FACTOR = 9
"""Learning takes one part of the processor's time in so many and one: receiving goes before."""
_log = logging.getLogger(__name__)


async def run_learning_worker(store: Store, learn: Callable[[], object]) -> None:
    """Until cancelled; what cannot be learned now is tried again, and is said only once."""
    seen: tuple[object, ...] | None = None
    last_error = ""
    while True:
        pause = LOOK_SECONDS
        try:
            news = await anyio.to_thread.run_sync(store.memory.learning_marker)
            if news != seen:
                busy_seconds = await anyio.to_thread.run_sync(learn_once, store, learn)
                if busy_seconds is not None:
                    seen, last_error = news, ""
                    pause = max(pause, IDLE_FACTOR * busy_seconds)
        except Exception as error:
            pause = TROUBLED_SECONDS
            if str(error) != last_error:
                known = isinstance(error, Fault)
                _log.warning("Nothing is learned from reviews: %s", error, exc_info=not known)
                last_error = str(error)
        await anyio.sleep(pause)


def learn_once(store: Store, learn: Callable[[], object]) -> float | None:
    """The seconds of a processor that it took; None while another process does."""
    if not store.claim_job(LEARNING_JOB, current_owner(), LEASE_SECONDS, is_owner_dead):
        return None
    began = time.thread_time()
    try:
        learn()
    finally:
        store.release_jobs(current_owner(), LEARNING_JOB)
    return time.thread_time() - began
