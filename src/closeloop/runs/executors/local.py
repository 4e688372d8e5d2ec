"""Many at once on this machine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
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

    async with anyio.create_task_group() as group:
        for item in items:
            await places.acquire()
            group.start_soon(one, item)
