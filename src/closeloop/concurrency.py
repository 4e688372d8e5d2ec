"""Many at once on this machine."""

from __future__ import annotations

import asyncio
import threading
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
    ready: Callable[[Item], anyio.Event | None] = lambda item: None,
) -> None:
    """Work on every item, at most `jobs` of them at a time; the first error stops the rest.

    A lane may have room for fewer: while it is full, others overtake its items. So they do with an
    item that is not ready: one whose event is not set.
    """
    lanes: dict[str, dict[int, Item]] = {}
    for number, item in enumerate(items):
        lanes.setdefault(lane(item), {})[number] = item
    free_in_lane = {name: room.get(name, jobs) for name in lanes}
    free_jobs = anyio.Semaphore(jobs)
    freed = anyio.Event()

    def look_again() -> None:
        nonlocal freed
        freed.set()
        freed = anyio.Event()

    async def run_item(name: str, item: Item) -> None:
        try:
            await work(item)
        finally:
            free_in_lane[name] += 1
            free_jobs.release()
            look_again()

    async def wait_until_ready(event: anyio.Event) -> None:
        await event.wait()
        look_again()

    def find_first_ready(name: str) -> int | None:
        return next(
            (number for number, item in lanes[name].items() if _is_ready(ready(item))), None
        )

    def pick_next() -> tuple[int, str] | None:
        firsts = [
            (number, name)
            for name in lanes
            if free_in_lane[name] > 0 and (number := find_first_ready(name)) is not None
        ]
        return min(firsts, default=None)

    with unwrap_exception_group():
        async with anyio.create_task_group() as group:
            waiting = (item for lane_items in lanes.values() for item in lane_items.values())
            for event in filter(None, {ready(item) for item in waiting}):
                group.start_soon(wait_until_ready, event)
            while any(lanes.values()):
                await free_jobs.acquire()
                while (chosen := pick_next()) is None:
                    await freed.wait()
                number, name = chosen
                free_in_lane[name] -= 1
                group.start_soon(run_item, name, lanes[name].pop(number))


def _is_ready(event: anyio.Event | None) -> bool:
    return event is None or event.is_set()


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
