"""Run many tasks at once on this machine."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Generic, TypeVar, TypeVarTuple

import anyio
import anyio.lowlevel

Item = TypeVar("Item")


async def run_limited(
    items: Iterable[Item], work: Callable[[Item], Awaitable[None]], *, jobs: int
) -> None:
    """Run `work` on every item, at most `jobs` at a time; the first error stops the rest."""
    await run_in_places(items, lambda item, place: work(item), jobs=jobs)


async def run_in_places(
    items: Iterable[Item],
    work: Callable[[Item, WorkPlace], Awaitable[None]],
    *,
    jobs: int,
    lane: Callable[[Item], str] = lambda item: "",
    limits_by_lane: Mapping[str, int] = {},
    ready: Callable[[Item], anyio.Event | None] = lambda item: None,
) -> None:
    """Run `work` on every item, each in one of `jobs` places; the first error stops the rest.

    Work whose expensive part is done may give its place back, and finish beside the next item. A
    lane may have fewer places: while it is full, items of other lanes go first. They also go before
    an item that is not ready: one whose event is not set.
    """
    queue = _LaneQueue(items, jobs, lane, limits_by_lane, ready)
    finishing = anyio.CapacityLimiter(jobs)

    async def work_on(lane_name: str, item: Item) -> None:
        async with WorkPlace(finishing, lambda: queue.free_place(lane_name)) as place:
            await work(item, place)

    async def wait_until_ready(event: anyio.Event) -> None:
        await event.wait()
        queue.wake()

    with unwrap_exception_group():
        async with anyio.create_task_group() as group:
            for event in queue.list_unset_events():
                group.start_soon(wait_until_ready, event)
            while queue.has_items():
                if (next_item := queue.take_next()) is None:
                    await queue.changed.wait()
                else:
                    group.start_soon(work_on, *next_item)


class WorkPlace:
    """The place of one item among those that are worked on at a time."""

    def __init__(self, finishing: anyio.CapacityLimiter, free_place: Callable[[], None]) -> None:
        self._finishing = finishing
        self._free_place = free_place
        self._is_held = True

    async def __aenter__(self) -> WorkPlace:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._is_held:
            self._free_place()
        else:
            self._finishing.release_on_behalf_of(self)

    async def give_back(self) -> None:
        """Let the next item begin, once fewer than `jobs` items without a place are unfinished."""
        if self._is_held:
            await self._finishing.acquire_on_behalf_of(self)
            self._is_held = False
            self._free_place()


class _LaneQueue(Generic[Item]):
    """Items that wait for one of some places, in lanes that each have a limit."""

    def __init__(
        self,
        items: Iterable[Item],
        places: int,
        lane: Callable[[Item], str],
        limits_by_lane: Mapping[str, int],
        ready: Callable[[Item], anyio.Event | None],
    ) -> None:
        self._free_places = places
        self._lanes: dict[str, dict[int, Item]] = {}
        for number, item in enumerate(items):
            self._lanes.setdefault(lane(item), {})[number] = item
        self._free = {name: limits_by_lane.get(name, places) for name in self._lanes}
        self._ready = ready
        self.changed = anyio.Event()
        """Set when another item may be taken, and then replaced by a new event."""

    def has_items(self) -> bool:
        return any(self._lanes.values())

    def list_unset_events(self) -> set[anyio.Event]:
        """Return the events that items wait for."""
        waiting = (item for items in self._lanes.values() for item in items.values())
        return {event for event in map(self._ready, waiting) if event and not event.is_set()}

    def take_next(self) -> tuple[str, Item] | None:
        """Return the first ready item whose lane has room, and its lane; None if all is full."""
        firsts = self._free_places and [
            (number, name)
            for name, items in self._lanes.items()
            if self._free[name] > 0 and (number := self._find_first_ready(items)) is not None
        ]
        if not firsts:
            return None
        number, name = min(firsts)
        self._free_places -= 1
        self._free[name] -= 1
        return name, self._lanes[name].pop(number)

    def _find_first_ready(self, items: dict[int, Item]) -> int | None:
        return next((number for number, item in items.items() if self._is_ready(item)), None)

    def _is_ready(self, item: Item) -> bool:
        event = self._ready(item)
        return event is None or event.is_set()

    def free_place(self, name: str) -> None:
        """Free a place, which an item of this lane had."""
        self._free_places += 1
        self._free[name] += 1
        self.wake()

    def wake(self) -> None:
        """Make whoever waits for an item look again."""
        self.changed.set()
        self.changed = anyio.Event()


@contextmanager
def unwrap_exception_group() -> Iterator[None]:
    """Raise the first error of a task group, without the groups around it."""
    try:
        yield
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from group


# Long computations in a thread beside the event loop, stopped by Ctrl-C.

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")


async def compute_in_thread(
    function: Callable[[*Arguments], Result], *arguments: *Arguments
) -> Result:
    """Return what a read-only function returns, or raise what it raises.

    A thread cannot be stopped. On cancellation the thread is left behind, and ends with the
    process, which does not wait for it.
    """
    finished, loop = anyio.Event(), asyncio.get_running_loop()
    results: list[Result] = []
    failures: list[BaseException] = []

    def work() -> None:
        try:
            results.append(function(*arguments))
        except BaseException as failure:  # raised again by the waiting caller
            failures.append(failure)
        with suppress(RuntimeError):  # no caller waits any more, and the loop is closed
            loop.call_soon_threadsafe(finished.set)

    threading.Thread(target=work, name="closeloop computation", daemon=True).start()
    await finished.wait()
    if failures:
        raise failures[0]
    return results[0]


def run_event_loop(
    function: Callable[[*Arguments], Awaitable[Result]], *arguments: *Arguments
) -> Result:
    """Run `anyio.run` without its delay for a large result.

    At its end Python restores the handler of Ctrl-C, and for that formats the main task as text
    with all that it returned: a second for a report on two thousand files.
    """
    results: list[Result] = []

    async def keep_result() -> None:
        results.append(await function(*arguments))

    anyio.run(keep_result)
    return results[0]
