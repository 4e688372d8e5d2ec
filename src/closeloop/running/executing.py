"""Where attempts are made: on this machine, or on a cluster."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from closeloop.model.plan import Made, Plan, Try
from closeloop.model.record import Record
from closeloop.running.attempting import make
from closeloop.running.tools import Tools


class Executor(Record):
    """Makes attempts, several at once."""

    make: Callable[[Try], Awaitable[Made]]
    places: int
    """How many at once, where nobody says."""


@asynccontextmanager
async def open_executor(plan: Plan, tools: Tools) -> AsyncIterator[Executor]:
    """The one that the settings name, for the attempts of a plan."""
    if tools.settings.executor.kind == "ray":
        from closeloop.running.cluster import open_cluster

        async with open_cluster(plan, tools) as cluster:
            yield Executor(make=cluster.make, places=cluster.places)
        return

    async def here(one: Try) -> Made:
        return await make(one, tools)

    yield Executor(make=here, places=os.cpu_count() or 1)
