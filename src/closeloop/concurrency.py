"""Many at once on this machine."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TypeVar, TypeVarTuple

import anyio

Item = TypeVar("Item")


async def run_limited(
    items: Iterable[Item],
    work: Callable[[Item], Awaitable[None]],
    *,
    jobs: int,
    lane: Callable[[Item], str] = lambda item: "",
    room: Mapping[str, int] = {},
) -> None:
    """Work on every item, at most `jobs` of them at a time; the first error stops the rest.

    A lane may have room for fewer: while it is full, others overtake its items.
    """
    lanes: dict[str, deque[tuple[int, Item]]] = {}
    for number, item in enumerate(items):
        lanes.setdefault(lane(item), deque()).append((number, item))
    free_in_lane = {name: room.get(name, jobs) for name in lanes}
    free_jobs = anyio.Semaphore(jobs)
    freed = anyio.Event()

    async def run_item(name: str, item: Item) -> None:
        nonlocal freed
        try:
            await work(item)
        finally:
            free_in_lane[name] += 1
            free_jobs.release()
            freed.set()
            freed = anyio.Event()

    with unwrap_exception_group():
        async with anyio.create_task_group() as group:
            while any(lanes.values()):
                await free_jobs.acquire()
                while not (
                    free := [name for name in lanes if lanes[name] and free_in_lane[name] > 0]
                ):
                    await freed.wait()
                name = min(free, key=lambda name: lanes[name][0][0])
                free_in_lane[name] -= 1
                group.start_soon(run_item, name, lanes[name].popleft()[1])


@contextmanager
def unwrap_exception_group() -> Iterator[None]:
    """The first error of a task group, without the groups around it."""
    try:
        yield
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from group


# Long computations beside the event loop, which Ctrl-C stops.

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


def run_event_loop(
    function: Callable[[*Arguments], Awaitable[Result]], *arguments: *Arguments
) -> Result:
    """`anyio.run`, for a large result.

    At its end Python restores the handler of Ctrl-C, and for that writes the main task out as
    text with all that it returned: a second for a report on two thousand files.
    """
    results: list[Result] = []

    async def keep_result() -> None:
        results.append(await function(*arguments))

    anyio.run(keep_result)
    return results[0]
