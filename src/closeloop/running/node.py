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

from closeloop.model.errors import BadInput, Fault, MachineFailed, PluginFailed
from closeloop.model.plan import Made, Try
from closeloop.model.record import Record
from closeloop.model.settings import Settings
from closeloop.running.attempting import make
from closeloop.running.parcel import Parcel, lay_out, repositories
from closeloop.running.tools import Tools, base_of, open_tools
from closeloop.runs.executors.ray import fetched
from closeloop.store.bodies import encode
from closeloop.store.exchanges import Packed, packed

Answer = TypeVar("Answer")
FAULTS: dict[str, type[Fault]] = {
    kind.__name__: kind for kind in (BadInput, PluginFailed, MachineFailed)
}


class Reply(Record):
    """What comes back to the driver."""

    made: Made | None = None
    exchanges: Packed | None = None
    """Those of the attempt: as they are, they would be many times as long."""
    fault: str | None = None
    """The kind of a fault, and what it says."""
    why: str = ""


class Bench(Record):
    """What a worker process keeps open."""

    tools: Tools
    repositories: Mapping[str, str]


_benches: dict[str, Bench] = {}


def attempt_there(digest: str, boxes: Mapping[str, Any], order: bytes) -> bytes:
    """Make one attempt here; `boxes` holds references to the parcel and its repositories."""
    try:
        bench = _benches.get(digest) or _open(digest, boxes)
        made = _await(_make(msgspec.msgpack.decode(order, type=Try), bench))
        exchanges = packed(made.attempt.id, made.exchanges)
        reply = Reply(made=replace(made, exchanges=()), exchanges=exchanges)
    except Fault as fault:
        reply = Reply(fault=type(fault).__name__, why=str(fault))
    return encode(reply)


async def _make(one: Try, bench: Bench) -> Made:
    task, tools = one.slot.task, bench.tools
    if one.slot.variant.digest not in tools.crews:
        here = ", ".join(
            f"{crew.variant.agent} {crew.variant.agent_version}" for crew in tools.crews.values()
        )
        raise BadInput(
            f"The node {platform.node()} would run other agents than the driver ({here}): "
            "install the same versions on every node."
        )
    if task.digest not in tools.bases:
        repo = bench.repositories.get(task.repo or "", task.repo)
        tools.bases[task.digest] = await base_of(replace(task, repo=repo), tools.workspaces)
    return await make(one, tools)


def _open(digest: str, boxes: Mapping[str, Any]) -> Bench:
    """Unpack a parcel by its digest, once on a node, and open what it asks for."""
    parcel = msgspec.msgpack.decode(fetched(boxes[digest]), type=Parcel)
    place = _place(parcel.settings)
    root = place / "parcels" / digest
    lay_out(parcel, root)
    found = repositories(parcel, place / "repositories", lambda name: fetched(boxes[name]))
    settings = replace(parcel.settings, cache=str(place / "cache"))
    opened: Future[Tools] = Future()
    _start(_keep_open(settings, root, opened))
    _benches[digest] = Bench(tools=opened.result(), repositories=found)
    return _benches[digest]


async def _keep_open(settings: Settings, root: Path, opened: Future[Tools]) -> None:
    """Until the worker ends: Ray ends it without a word."""
    try:
        names = list(settings.variants)
        async with open_tools(settings, root, names, os.environ, lambda name: ()) as tools:
            opened.set_result(tools)
            await anyio.sleep_forever()
    except Exception as error:
        opened.set_exception(error)


def _place(settings: Settings) -> Path:
    """A folder of this node's own: the cache where that is named in full, else a temporary one."""
    if settings.cache and Path(settings.cache).is_absolute():
        return Path(settings.cache) / "nodes"
    place = Path(tempfile.gettempdir()) / f"closeloop-{os.getuid()}"
    place.mkdir(mode=0o700, exist_ok=True)
    if place.is_symlink() or place.stat().st_uid != os.getuid():
        raise MachineFailed(f"{place} belongs to somebody else: name a `cache` in the settings.")
    return place


def _await(work: Coroutine[Any, Any, Answer]) -> Answer:
    return _start(work).result()


def _start(work: Coroutine[Any, Any, Answer]) -> Future[Answer]:
    return asyncio.run_coroutine_threadsafe(work, _loop())


@cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True, name="attempts").start()
    return loop
