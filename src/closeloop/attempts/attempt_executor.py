"""Where attempts are made: on this machine, or on a cluster."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from closeloop.attempts.attempt_execution import make_attempt
from closeloop.attempts.run_resources import RunResources
from closeloop.records.experiment_plan import AttemptOrder, AttemptResult, ExperimentPlan
from closeloop.records.record import Record


class AttemptExecutor(Record):
    """Makes attempts, several at once."""

    make: Callable[[AttemptOrder], Awaitable[AttemptResult]]
    places: int
    """How many at once, where nobody says."""


@asynccontextmanager
async def open_executor(
    plan: ExperimentPlan, tools: RunResources
) -> AsyncIterator[AttemptExecutor]:
    """The one that the settings name, for the attempts of a plan."""
    if tools.settings.executor.kind == "ray":
        from closeloop.attempts.cluster_driver import open_cluster

        async with open_cluster(plan, tools) as cluster:
            yield AttemptExecutor(make=cluster.run_attempt, places=cluster.places)
        return

    async def make_here(one: AttemptOrder) -> AttemptResult:
        return await make_attempt(one, tools)

    yield AttemptExecutor(make=make_here, places=os.cpu_count() or 1)
