"""The far end of a cluster: makes attempts in a worker process of a node.

A worker makes one attempt after another. What they are made with is opened for the first and
stays open, in a thread with an event loop of its own.
"""

from __future__ import annotations

import asyncio
import os
import platform
import tempfile
import threading
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import anyio
import msgspec
from msgspec.structs import replace

from closeloop.attempts.attempt_execution import make_attempt
from closeloop.attempts.node_parcel import NodeParcel, fetch_repositories, write_parcel_files
from closeloop.attempts.ray_cluster import fetch_content
from closeloop.attempts.run_resources import RunResources, open_run_resources, prepare_task_base
from closeloop.records.errors import BadInput, Fault, MachineFailed, PluginFailed
from closeloop.records.experiment_plan import AttemptOrder, AttemptResult
from closeloop.records.record import Record
from closeloop.records.settings import Settings
from closeloop.store.exchange_rows import PackedExchanges, exchanges_to_rows
from closeloop.store.record_bodies import encode_record

Answer = TypeVar("Answer")
FAULT_TYPES: dict[str, type[Fault]] = {
    kind.__name__: kind for kind in (BadInput, PluginFailed, MachineFailed)
}


class NodeReply(Record):
    """What comes back to the driver."""

    made: AttemptResult | None = None
    exchanges: PackedExchanges | None = None
    """Those of the attempt: as they are, they would be many times as long."""
    fault: str | None = None
    """The kind of a fault, and what it says."""
    why: str = ""


class WorkerState(Record):
    """What a worker process keeps open."""

    tools: RunResources
    repositories: Mapping[str, str]


_worker_states: dict[str, WorkerState] = {}


def attempt_on_node(digest: str, boxes: Mapping[str, Any], order: bytes) -> bytes:
    """Make one attempt here; `boxes` holds references to the parcel and its repositories."""
    try:
        worker = _worker_states.get(digest) or _open_worker(digest, boxes)
        made = _run_coroutine(
            _make_on_node(msgspec.msgpack.decode(order, type=AttemptOrder), worker)
        )
        exchanges = exchanges_to_rows(made.attempt.id, made.exchanges)
        reply = NodeReply(made=replace(made, exchanges=()), exchanges=exchanges)
    except Fault as fault:
        reply = NodeReply(fault=type(fault).__name__, why=str(fault))
    return encode_record(reply)


async def _make_on_node(one: AttemptOrder, bench: WorkerState) -> AttemptResult:
    task, tools = one.slot.task, bench.tools
    if one.slot.variant.digest not in tools.crews:
        installed_agents = ", ".join(
            f"{crew.variant.agent} {crew.variant.agent_version}" for crew in tools.crews.values()
        )
        raise BadInput(
            f"The node {platform.node()} would run other agents than the driver"
            f" ({installed_agents}): install the same versions on every node."
        )
    if task.digest not in tools.bases:
        repo = bench.repositories.get(task.repo or "", task.repo)
        tools.bases[task.digest] = await prepare_task_base(
            replace(task, repo=repo), tools.workspaces
        )
    return await make_attempt(one, tools)


def _open_worker(digest: str, boxes: Mapping[str, Any]) -> WorkerState:
    """Unpack a parcel by its digest, once on a node, and open what it asks for."""
    parcel = msgspec.msgpack.decode(fetch_content(boxes[digest]), type=NodeParcel)
    node_folder = _node_folder(parcel.settings)
    root = node_folder / "parcels" / digest
    write_parcel_files(parcel, root)
    repository_paths = fetch_repositories(
        parcel, node_folder / "repositories", lambda name: fetch_content(boxes[name])
    )
    settings = replace(parcel.settings, cache=str(node_folder / "cache"))
    opened: Future[RunResources] = Future()
    _start_coroutine(_hold_resources_open(settings, root, opened))
    _worker_states[digest] = WorkerState(tools=opened.result(), repositories=repository_paths)
    return _worker_states[digest]


async def _hold_resources_open(
    settings: Settings, root: Path, opened: Future[RunResources]
) -> None:
    """Until the worker ends: Ray ends it without a word."""
    try:
        names = list(settings.variants)
        async with open_run_resources(settings, root, names, os.environ, lambda name: ()) as tools:
            opened.set_result(tools)
            await anyio.sleep_forever()
    except Exception as error:
        opened.set_exception(error)


def _node_folder(settings: Settings) -> Path:
    """A folder of this node's own: the cache where that is named in full, else a temporary one."""
    if settings.cache and Path(settings.cache).is_absolute():
        return Path(settings.cache) / "nodes"
    folder = Path(tempfile.gettempdir()) / f"closeloop-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise MachineFailed(f"{folder} belongs to somebody else: name a `cache` in the settings.")
    return folder


def _run_coroutine(work: Coroutine[Any, Any, Answer]) -> Answer:
    return _start_coroutine(work).result()


def _start_coroutine(work: Coroutine[Any, Any, Answer]) -> Future[Answer]:
    return asyncio.run_coroutine_threadsafe(work, _event_loop())


@cache
def _event_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True, name="attempts").start()
    return loop
