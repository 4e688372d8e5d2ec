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

from closeloop.attempts.attempt_execution import lost_attempt
from closeloop.attempts.cluster_node import FAULT_TYPES, NodeReply, attempt_on_node
from closeloop.attempts.commit_packs import name_pack, pack_commits
from closeloop.attempts.node_parcel import build_parcel
from closeloop.attempts.ray_cluster import RayCluster
from closeloop.attempts.run_resources import RunResources
from closeloop.records.errors import MachineFailed
from closeloop.records.experiment_plan import AttemptOrder, AttemptResult, ExperimentPlan
from closeloop.records.record import Record, content_digest
from closeloop.store.exchange_rows import LazyExchanges
from closeloop.store.record_bodies import encode_record


class ClusterDriver(Record):
    """Makes attempts on the nodes of a cluster."""

    cluster: RayCluster
    tools: RunResources
    parcel: str
    """Its digest."""
    boxes: dict[str, Any]
    """References to the parcel and the repositories that nodes may ask for."""

    @property
    def places(self) -> int:
        return self.cluster.processors

    async def run_attempt(self, one: AttemptOrder) -> AttemptResult:
        """One try, wherever there is room for it."""
        started = datetime.now(UTC)
        resources = self.tools.crews[one.slot.variant.digest].written.resources
        try:
            answer = await self.cluster.call_on_node(
                attempt_on_node, self.parcel, self.boxes, encode_record(one), resources=resources
            )
        except MachineFailed as lost:
            return lost_attempt(one, started, f"The node was lost: {lost}")
        reply = msgspec.msgpack.decode(answer, type=NodeReply)
        if reply.made is not None and reply.exchanges is not None:
            return replace(reply.made, exchanges=LazyExchanges(reply.exchanges))
        if reply.fault == "MachineFailed":
            return lost_attempt(one, started, reply.why)
        raise FAULT_TYPES[reply.fault or ""](reply.why)


@asynccontextmanager
async def open_cluster(plan: ExperimentPlan, tools: RunResources) -> AsyncIterator[ClusterDriver]:
    """Connect, and lay ready what nodes need."""
    parcel = build_parcel(plan, tools)
    name = content_digest(parcel)
    with RayCluster(tools.settings.executor.address) as cluster:
        boxes = {name: cluster.put_content(encode_record(parcel))}
        for repo, commits in parcel.repositories.items():
            boxes[name_pack(commits)] = cluster.put_content(pack_commits(repo, commits))
        yield ClusterDriver(cluster=cluster, tools=tools, parcel=name, boxes=boxes)
