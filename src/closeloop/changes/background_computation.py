"""Long computations beside the event loop, which Ctrl-C stops."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar, TypeVarTuple

import anyio

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")


async def compute_in_thread(
    function: Callable[[*Arguments], Result], *arguments: *Arguments
) -> Result:
    """Return what a function that only reads returns, or raise what it raises.

    A thread cannot be stopped. When this is cancelled the thread is left behind, and ends with the
    process, which does not wait for it.
    """
    finished, loop = anyio.Event(), asyncio.get_running_loop()
    results: list[Result] = []
    failures: list[BaseException] = []

    def work() -> None:
        try:
            results.append(function(*arguments))
        except BaseException as failure:  # raised again by whoever waits
            failures.append(failure)
        with suppress(RuntimeError):  # nobody waits any more, and the loop is closed
            loop.call_soon_threadsafe(finished.set)

    threading.Thread(target=work, name="closeloop computation", daemon=True).start()
    await finished.wait()
    if failures:
        raise failures[0]
    return results[0]
