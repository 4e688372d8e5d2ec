"""The driver's end of a cluster: sends tries to nodes, and gets whole attempts back.

Only the driver claims places and writes results, so a node needs no way to the store and nothing
that it does late or twice can count. A node that is lost loses the tries it had in hand: each is
kept as failed by the machine, and begun again like any other such.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec.structs import replace

from closeloop.model.errors import MachineFailed
from closeloop.model.plan import Made, Plan, Try
from closeloop.model.record import Record, digest
from closeloop.running.attempting import unmade
from closeloop.running.node import FAULTS, Reply, attempt_there
from closeloop.running.parcel import wrap
from closeloop.running.tools import Tools
from closeloop.runs.executors.packs import pack, pack_name
from closeloop.runs.executors.ray import Cluster
from closeloop.store.bodies import encode
from closeloop.store.exchanges import Unpacked


class Driver(Record):
    """Makes attempts on the nodes of a cluster."""

    cluster: Cluster
    tools: Tools
    parcel: str
    """Its digest."""
    boxes: dict[str, Any]
    """References to the parcel and the repositories that nodes may ask for."""

    @property
    def places(self) -> int:
        return self.cluster.processors

    async def make(self, one: Try) -> Made:
        """One try, wherever there is room for it."""
        started = datetime.now(UTC)
        resources = self.tools.crews[one.slot.variant.digest].written.resources
        try:
            answer = await self.cluster.call(
                attempt_there, self.parcel, self.boxes, encode(one), resources=resources
            )
        except MachineFailed as lost:
            return unmade(one, started, f"The node was lost: {lost}")
        reply = msgspec.msgpack.decode(answer, type=Reply)
        if reply.made is not None and reply.exchanges is not None:
            return replace(reply.made, exchanges=Unpacked(reply.exchanges))
        if reply.fault == "MachineFailed":
            return unmade(one, started, reply.why)
        raise FAULTS[reply.fault or ""](reply.why)


@asynccontextmanager
async def open_cluster(plan: Plan, tools: Tools) -> AsyncIterator[Driver]:
    """Connect, and lay ready what nodes need."""
    parcel = wrap(plan, tools)
    name = digest(parcel)
    with Cluster(tools.settings.executor.address) as cluster:
        boxes = {name: cluster.put(encode(parcel))}
        for repo, commits in parcel.repositories.items():
            boxes[pack_name(commits)] = cluster.put(pack(repo, commits))
        yield Driver(cluster=cluster, tools=tools, parcel=name, boxes=boxes)
