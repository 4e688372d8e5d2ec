"""Learn beside a server: whenever there is news, by one process at a time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import anyio
import anyio.to_thread

from closeloop.model.errors import Fault
from closeloop.store import Store
from closeloop.store.owners import is_dead, this_process

JOB = "memory:learning"
LEASE_SECONDS = 300.0
LOOK_SECONDS, TROUBLED_SECONDS = 1.0, 60.0
PATIENCE = 9
"""Learning takes one part of the processor's time in so many and one: receiving goes before."""
_log = logging.getLogger(__name__)


async def learn_always(store: Store, learn: Callable[[], object]) -> None:
    """Until cancelled; what cannot be learned now is tried again, and is said only once."""
    seen: tuple[object, ...] | None = None
    said = ""
    while True:
        pause = LOOK_SECONDS
        try:
            news = await anyio.to_thread.run_sync(store.memory.news)
            if news != seen:
                took = await anyio.to_thread.run_sync(learn_once, store, learn)
                if took is not None:
                    seen, said = news, ""
                    pause = max(pause, PATIENCE * took)
        except Exception as error:
            pause = TROUBLED_SECONDS
            if str(error) != said:
                known = isinstance(error, Fault)
                _log.warning("Nothing is learned from reviews: %s", error, exc_info=not known)
                said = str(error)
        await anyio.sleep(pause)


def learn_once(store: Store, learn: Callable[[], object]) -> float | None:
    """The seconds of a processor that it took; None while another process does."""
    if not store.claim(JOB, this_process(), LEASE_SECONDS, is_dead):
        return None
    began = time.thread_time()
    try:
        learn()
    finally:
        store.release(this_process(), JOB)
    return time.thread_time() - began
