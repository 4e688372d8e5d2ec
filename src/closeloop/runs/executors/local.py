"""Many at once on this machine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import anyio

Item = TypeVar("Item")


async def each(
    items: Iterable[Item], work: Callable[[Item], Awaitable[None]], *, jobs: int
) -> None:
    """Work on every item, at most `jobs` of them at a time; the first error stops the rest."""
    places = anyio.Semaphore(jobs)

    async def one(item: Item) -> None:
        try:
            await work(item)
        finally:
            places.release()

    with plainly():
        async with anyio.create_task_group() as group:
            for item in items:
                await places.acquire()
                group.start_soon(one, item)


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
