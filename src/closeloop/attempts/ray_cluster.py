"""Attempts on a Ray cluster: the driver, the nodes, and the data between them."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import platform
import secrets
import shutil
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, redirect_stdout
from datetime import UTC, datetime
from functools import cache
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import anyio
import msgspec
from msgspec.structs import replace

from closeloop import __version__
from closeloop.attempts.attempt_execution import lost_attempt, make_attempt
from closeloop.attempts.run_resources import RunResources, open_run_resources, prepare_task_base
from closeloop.git import GitFailed, run_git
from closeloop.grading.variants import ResolvedVariant
from closeloop.records.errors import BadInput, Fault, MachineFailed, PluginFailed
from closeloop.records.experiment_plan import AttemptOrder, AttemptResult, ExperimentPlan
from closeloop.records.record import Record, content_digest
from closeloop.records.settings import ModelSettings, Settings, VariantSettings
from closeloop.sandbox.workspaces.workspace_patches import (
    PLAIN_ENVIRONMENT,
    git_folder,
    is_remote_address,
)
from closeloop.store.fact_rows import LazyExchanges, PackedExchanges, exchanges_to_rows
from closeloop.store.record_bodies import encode_record

# What a node needs for the attempts of a plan: settings, prompts, scripts, repositories.
#
# Keys and the store's address are not sent: a node finds keys in its own environment, and does not
# use the store.

# Repositories sent to nodes: some commits of one, without their history, as a pack of objects.


def name_pack(commits: Sequence[str]) -> str:
    """Name a pack of commits by its content."""
    return content_digest(sorted(commits))[:32]


def pack_commits(repo: str, commits: Sequence[str]) -> bytes:
    """Pack all files of these commits of a local repository."""
    folder = git_folder(repo)
    object_list = _run_pack_git(folder, "rev-list", "--objects", "--no-walk", *sorted(commits))
    return _run_pack_git(
        folder, "pack-objects", "-q", "--stdout", "--delta-base-offset", stdin=object_list
    )


def unpack_commits(content: bytes, commits: Sequence[str], folder: Path) -> None:
    """Unpack these commits into a bare repository, atomically."""
    temporary_folder = folder.with_name(f"{folder.name}.{secrets.token_hex(4)}")
    temporary_folder.mkdir(parents=True)
    try:
        kind = "sha256" if len(commits[0]) == 64 else "sha1"
        _run_pack_git(
            str(temporary_folder), "init", "-q", "--bare", "--template=", f"--object-format={kind}"
        )
        # Their parents are missing, and must not be fetched.
        (temporary_folder / "shallow").write_text(
            "".join(f"{commit}\n" for commit in sorted(commits))
        )
        _run_pack_git(str(temporary_folder), "index-pack", "--stdin", stdin=content)
        for commit in commits:
            _run_pack_git(str(temporary_folder), "update-ref", f"refs/heads/{commit}", commit)
        os.rename(temporary_folder, folder)  # noqa: PTH104
    except OSError:
        if not folder.is_dir():  # otherwise another process wrote the same content first
            raise
    finally:
        shutil.rmtree(temporary_folder, ignore_errors=True)


def _run_pack_git(folder: str, *arguments: str, stdin: bytes = b"") -> bytes:
    try:
        return run_git(
            folder, *arguments, env={**PLAIN_ENVIRONMENT, "GIT_DIR": folder}, stdin=stdin
        )
    except GitFailed as failed:
        reason = str(failed).removeprefix("Git says: ")
        raise BadInput(f"`git {arguments[0]}` failed in {folder}: {reason}") from None


class NodeParcel(Record):
    """Small, because repositories travel separately, once each."""

    version: str
    """Version of closeloop; nodes must have the same."""
    settings: Settings
    files: dict[str, bytes]
    """By path relative to the node's root."""
    repositories: dict[str, tuple[str, ...]]
    """Commits that tasks start from, by the path of the repository on the driver's machine."""


def build_parcel(plan: ExperimentPlan, tools: RunResources) -> NodeParcel:
    """Build the parcel of a plan."""
    files: dict[str, bytes] = {}

    def add_file(path: Path) -> str:
        content = path.read_bytes()
        name = f"files/{hashlib.sha256(content).hexdigest()}{path.suffix}"
        files[name] = content
        return name

    models, variants = {}, {}
    for resolved in tools.resolved_variants.values():
        variants[resolved.variant.name] = _pack_variant(resolved, tools.root, add_file)
        if resolved.model is not None and resolved.variant.model is not None:
            models[resolved.variant.model] = _pack_model(resolved.model, tools.root, add_file)
    repositories: dict[str, set[str]] = {}
    for task in plan.tasks:
        if task.repo is not None and task.base is not None and not is_remote_address(task.repo):
            repositories.setdefault(task.repo, set()).add(task.base)
    node_settings = replace(
        tools.settings, store=Settings().store, models=models, variants=variants
    )
    return NodeParcel(
        version=__version__,
        settings=node_settings,
        files=files,
        repositories={repo: tuple(sorted(commits)) for repo, commits in repositories.items()},
    )


def _pack_variant(
    resolved_variant: ResolvedVariant, root: Path, pack_file: Callable[[Path], str]
) -> VariantSettings:
    if resolved_variant.written.prompt is None:
        return resolved_variant.written
    return replace(
        resolved_variant.written,
        prompt=pack_file(root / Path(resolved_variant.written.prompt).expanduser()),
    )


def _pack_model(model: ModelSettings, root: Path, packed: Callable[[Path], str]) -> ModelSettings:
    if model.provider == "scripted":
        return replace(model, model=packed(root / model.model))
    if model.provider not in ("anthropic", "openai", "gemini"):
        raise BadInput(
            f"A {model.provider} model runs on this machine: set executor.kind to local."
        )
    if model.key_file is not None:
        return replace(model, key_file=str(root / Path(model.key_file).expanduser()))
    return model


def write_parcel_files(parcel: NodeParcel, folder: Path) -> None:
    """Write a parcel's files below a folder; existing ones are the same."""
    if parcel.version != __version__:
        raise BadInput(
            f"This node has closeloop {__version__}, the driver {parcel.version}: "
            "install the same version on every node."
        )
    for name, content in parcel.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            temporary_path = path.with_name(
                f"{path.name}.{hashlib.sha256(content).hexdigest()[:8]}"
            )
            temporary_path.write_bytes(content)
            temporary_path.replace(path)


def fetch_repositories(
    parcel: NodeParcel, folder: Path, content: Callable[[str], bytes]
) -> Mapping[str, str]:
    """Return where the parcel's repositories are on this node, fetching missing ones."""
    repository_paths = {}
    for repo, commits in parcel.repositories.items():
        name = name_pack(commits)
        if not (folder / name).is_dir():
            unpack_commits(content(name), commits, folder / name)
        repository_paths[repo] = str(folder / name)
    return repository_paths


_OPTIONS = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}


class RayCluster:
    """A connection to a Ray cluster, or a small local one while it is open."""

    def __init__(self, address: str | None) -> None:
        self._address = address
        # Ray prints messages about its nodes to standard output, which is for results only.
        self._aside = redirect_stdout(sys.stderr)
        self._known: dict[Callable[..., bytes], Any] = {}
        """Functions registered with Ray, each once."""

    def __enter__(self) -> Self:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            self._ray: Any = import_module("ray")
        except ImportError as error:
            raise BadInput("Ray is not installed: pip install 'closeloop[ray]'.") from error
        is_local = self._address is None
        local_options = (
            {"include_dashboard": False, "_node_ip_address": "127.0.0.1"} if is_local else {}
        )
        try:
            self._ray.init(
                address="local" if is_local else self._address,
                log_to_driver=False,
                logging_level=logging.ERROR,
                **local_options,
            )
        except Exception as error:  # whatever Ray raises, the cluster is unusable
            error_lines = str(error).strip().splitlines() or [type(error).__name__]
            raise MachineFailed(
                f"There is no Ray cluster at {self._address or 'this machine'} "
                f"({error_lines[0].rstrip('.')}): start one with `ray start --head`."
            ) from error
        self._aside.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ray.shutdown()
        self._aside.__exit__(kind, error, traceback)

    @property
    def processors(self) -> int:
        """Number of processors of all current nodes."""
        return max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def put_content(self, content: bytes) -> Any:
        """Store content for all nodes; return the reference for `fetch_content`."""
        return self._ray.put(content)

    async def call_on_node(
        self, function: Callable[..., bytes], *arguments: Any, resources: Mapping[str, float]
    ) -> bytes:
        """Call the function on a node with free resources; MachineFailed if the call is lost."""
        needed_resources = {"CPU": 1.0, **resources}
        options: dict[str, Any] = {
            _OPTIONS[n]: v for n, v in needed_resources.items() if n in _OPTIONS
        }
        options["resources"] = {n: v for n, v in needed_resources.items() if n not in _OPTIONS}
        # Retries are decided by the caller, which records every try.
        options["max_retries"] = 0
        if function not in self._known:
            self._known[function] = self._ray.remote(function)
        pending = self._known[function].options(**options).remote(*arguments)
        try:
            answer: bytes = await asyncio.wrap_future(pending.future())
        except self._ray.exceptions.RayError as error:
            error_lines = str(error).strip().splitlines() or [""]
            raise MachineFailed(f"{type(error).__name__}: {error_lines[-1][:300]}") from error
        return answer


def fetch_content(reference: Any) -> bytes:
    """Return content of the driver, on a node."""
    content: bytes = import_module("ray").get(reference)
    return content


# The worker side of a cluster: runs attempts in a worker process of a node.
#
# A worker runs one attempt after another. Their resources are opened for the first one and stay
# open, in a thread with an event loop of its own.

Answer = TypeVar("Answer")
FAULT_TYPES: dict[str, type[Fault]] = {
    kind.__name__: kind for kind in (BadInput, PluginFailed, MachineFailed)
}


class NodeReply(Record):
    """A node's reply to the driver."""

    made: AttemptResult | None = None
    exchanges: PackedExchanges | None = None
    """The attempt's exchanges, packed because they are many times longer otherwise."""
    fault: str | None = None
    """Kind and message of a fault."""
    why: str = ""


class WorkerState(Record):
    """Open resources of a worker process."""

    tools: RunResources
    repositories: Mapping[str, str]


_worker_states: dict[str, WorkerState] = {}


def attempt_on_node(digest: str, boxes: Mapping[str, Any], order: bytes) -> bytes:
    """Make one attempt on this node; `boxes` has references to the parcel and its repositories."""
    try:
        worker = _worker_states.get(digest) or _open_worker(digest, boxes)
        result = _run_coroutine(
            _make_on_node(msgspec.msgpack.decode(order, type=AttemptOrder), worker)
        )
        exchanges = exchanges_to_rows(result.attempt.id, result.exchanges)
        reply = NodeReply(made=replace(result, exchanges=()), exchanges=exchanges)
    except Fault as fault:
        reply = NodeReply(fault=type(fault).__name__, why=str(fault))
    return encode_record(reply)


async def _make_on_node(order: AttemptOrder, worker: WorkerState) -> AttemptResult:
    task, tools = order.slot.task, worker.tools
    if order.slot.variant.digest not in tools.resolved_variants:
        installed_agents = ", ".join(
            f"{resolved.variant.agent} {resolved.variant.agent_version}"
            for resolved in tools.resolved_variants.values()
        )
        raise BadInput(
            f"The node {platform.node()} has other agents than the driver "
            f"({installed_agents}): install the same versions on every node."
        )
    if task.digest not in tools.bases:
        repo = worker.repositories.get(task.repo or "", task.repo)
        tools.bases[task.digest] = await prepare_task_base(
            replace(task, repo=repo), tools.workspaces
        )
    return await make_attempt(order, tools)


def _open_worker(digest: str, references: Mapping[str, Any]) -> WorkerState:
    """Unpack a parcel by its digest, once per node, and open its resources."""
    parcel = msgspec.msgpack.decode(fetch_content(references[digest]), type=NodeParcel)
    node_folder = _node_folder(parcel.settings)
    root = node_folder / "parcels" / digest
    write_parcel_files(parcel, root)
    repository_paths = fetch_repositories(
        parcel, node_folder / "repositories", lambda name: fetch_content(references[name])
    )
    settings = replace(parcel.settings, cache=str(node_folder / "cache"))
    resources_future: Future[RunResources] = Future()
    _start_coroutine(_hold_resources_open(settings, root, resources_future))
    _worker_states[digest] = WorkerState(
        tools=resources_future.result(), repositories=repository_paths
    )
    return _worker_states[digest]


async def _hold_resources_open(
    settings: Settings, root: Path, resources_future: Future[RunResources]
) -> None:
    """Keep resources open until Ray ends the worker, which it does without notice."""
    try:
        names = list(settings.variants)
        async with open_run_resources(settings, root, names, os.environ, lambda name: ()) as tools:
            resources_future.set_result(tools)
            await anyio.sleep_forever()
    except Exception as error:
        resources_future.set_exception(error)


def _node_folder(settings: Settings) -> Path:
    """Return this node's folder: the cache if it is an absolute path, else a temporary one."""
    if settings.cache and Path(settings.cache).is_absolute():
        return Path(settings.cache) / "nodes"
    folder = Path(tempfile.gettempdir()) / f"closeloop-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise MachineFailed(f"{folder} belongs to another user: set `cache` to another folder.")
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


# The driver side of a cluster: sends scheduled attempts to nodes, and receives results.
#
# Only the driver claims slots and writes results, so a node needs no access to the store and
# nothing that it does late or twice can count. If a node is lost, each attempt it was running is
# saved as failed by the machine, and started again like any other such attempt.


class ClusterDriver(Record):
    """Makes attempts on the nodes of a cluster."""

    cluster: RayCluster
    tools: RunResources
    parcel: str
    """Digest of the parcel."""
    boxes: dict[str, Any]
    """References to the parcel and the repositories."""

    @property
    def places(self) -> int:
        return self.cluster.processors

    async def run_attempt(self, order: AttemptOrder) -> AttemptResult:
        """Make one attempt on a node with free resources."""
        started = datetime.now(UTC)
        resources = self.tools.resolved_variants[order.slot.variant.digest].written.resources
        try:
            answer = await self.cluster.call_on_node(
                attempt_on_node, self.parcel, self.boxes, encode_record(order), resources=resources
            )
        except MachineFailed as lost:
            return lost_attempt(order, started, f"The node was lost: {lost}")
        reply = msgspec.msgpack.decode(answer, type=NodeReply)
        if reply.made is not None and reply.exchanges is not None:
            return replace(reply.made, exchanges=LazyExchanges(reply.exchanges))
        if reply.fault == "MachineFailed":
            return lost_attempt(order, started, reply.why)
        raise FAULT_TYPES[reply.fault or ""](reply.why)


@asynccontextmanager
async def open_cluster(plan: ExperimentPlan, tools: RunResources) -> AsyncIterator[ClusterDriver]:
    """Connect, and provide what nodes need."""
    parcel = build_parcel(plan, tools)
    name = content_digest(parcel)
    with RayCluster(tools.settings.executor.address) as cluster:
        references = {name: cluster.put_content(encode_record(parcel))}
        for repo, commits in parcel.repositories.items():
            references[name_pack(commits)] = cluster.put_content(pack_commits(repo, commits))
        yield ClusterDriver(cluster=cluster, tools=tools, parcel=name, boxes=references)
