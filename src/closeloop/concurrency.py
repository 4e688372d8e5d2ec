"""Many at once on this machine."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

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
