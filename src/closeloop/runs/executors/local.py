"""Many at once on this machine."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

import anyio

Item = TypeVar("Item")


async def each(
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
    left = {name: room.get(name, jobs) for name in lanes}
    places = anyio.Semaphore(jobs)
    freed = anyio.Event()

    async def one(name: str, item: Item) -> None:
        nonlocal freed
        try:
            await work(item)
        finally:
            left[name] += 1
            places.release()
            freed.set()
            freed = anyio.Event()

    with plainly():
        async with anyio.create_task_group() as group:
            while any(lanes.values()):
                await places.acquire()
                while not (free := [name for name in lanes if lanes[name] and left[name] > 0]):
                    await freed.wait()
                name = min(free, key=lambda name: lanes[name][0][0])
                left[name] -= 1
                group.start_soon(one, name, lanes[name].popleft()[1])


@contextmanager
def plainly() -> Iterator[None]:
    """The first error of a task group, without the groups around it."""
    try:
        yield
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from group
