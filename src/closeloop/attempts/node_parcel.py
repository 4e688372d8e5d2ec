"""What a node must have to make attempts of a plan: settings, prompts, scripts, repositories.

Keys and the store's address stay here: a node finds keys in its own environment, and has no need
of the store.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec.structs import replace

from closeloop import __version__
from closeloop.attempts.commit_packs import name_pack, unpack_commits
from closeloop.attempts.run_resources import RunResources
from closeloop.grading.variants import ResolvedVariant
from closeloop.records.errors import BadInput
from closeloop.records.experiment_plan import ExperimentPlan
from closeloop.records.record import Record
from closeloop.records.settings import ModelSettings, Settings, VariantSettings
from closeloop.sandbox.workspaces.source_repository import is_remote_address


class NodeParcel(Record):
    """Small, whatever the repositories are: these travel beside it, once each."""

    version: str
    """Of closeloop: a node must have the same."""
    settings: Settings
    files: dict[str, bytes]
    """By their path below the node's root."""
    repositories: dict[str, tuple[str, ...]]
    """Those on the driver's machine, by their path there: the commits that tasks start from."""


def build_parcel(plan: ExperimentPlan, tools: RunResources) -> NodeParcel:
    """The parcel for a plan."""
    files: dict[str, bytes] = {}

    def add_file(path: Path) -> str:
        content = path.read_bytes()
        name = f"files/{hashlib.sha256(content).hexdigest()}{path.suffix}"
        files[name] = content
        return name

    models, variants = {}, {}
    for crew in tools.crews.values():
        variants[crew.variant.name] = _pack_variant(crew, tools.root, add_file)
        if crew.model is not None and crew.variant.model is not None:
            models[crew.variant.model] = _pack_model(crew.model, tools.root, add_file)
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
    crew: ResolvedVariant, root: Path, packed: Callable[[Path], str]
) -> VariantSettings:
    if crew.written.prompt is None:
        return crew.written
    return replace(crew.written, prompt=packed(root / Path(crew.written.prompt).expanduser()))


def _pack_model(model: ModelSettings, root: Path, packed: Callable[[Path], str]) -> ModelSettings:
    if model.provider == "scripted":
        return replace(model, model=packed(root / model.model))
    if model.provider not in ("anthropic", "openai", "gemini"):
        raise BadInput(f"A {model.provider} model answers on this machine: leave out --executor.")
    if model.key_file is not None:
        return replace(model, key_file=str(root / Path(model.key_file).expanduser()))
    return model


def write_parcel_files(parcel: NodeParcel, folder: Path) -> None:
    """The files of a parcel, below a folder; those that are there are the same."""
    if parcel.version != __version__:
        raise BadInput(
            f"This node has closeloop {__version__}, the driver {parcel.version}: "
            "install the same on every node."
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
    """Where the parcel's repositories are on this node, fetched where they were not yet."""
    repository_paths = {}
    for repo, commits in parcel.repositories.items():
        name = name_pack(commits)
        if not (folder / name).is_dir():
            unpack_commits(content(name), commits, folder / name)
        repository_paths[repo] = str(folder / name)
    return repository_paths
