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
from closeloop.model.errors import BadInput
from closeloop.model.plan import Plan
from closeloop.model.record import Record
from closeloop.model.settings import ModelSettings, Settings, VariantSettings
from closeloop.running.tools import Tools
from closeloop.runs.executors.packs import pack_name, unpack
from closeloop.runs.variants import Crew
from closeloop.runs.workspaces.repository import is_address


class Parcel(Record):
    """Small, whatever the repositories are: these travel beside it, once each."""

    version: str
    """Of closeloop: a node must have the same."""
    settings: Settings
    files: dict[str, bytes]
    """By their path below the node's root."""
    repositories: dict[str, tuple[str, ...]]
    """Those on the driver's machine, by their path there: the commits that tasks start from."""


def wrap(plan: Plan, tools: Tools) -> Parcel:
    """The parcel for a plan."""
    files: dict[str, bytes] = {}

    def packed(path: Path) -> str:
        content = path.read_bytes()
        name = f"files/{hashlib.sha256(content).hexdigest()}{path.suffix}"
        files[name] = content
        return name

    models, variants = {}, {}
    for crew in tools.crews.values():
        variants[crew.variant.name] = _variant(crew, tools.root, packed)
        if crew.model is not None and crew.variant.model is not None:
            models[crew.variant.model] = _model(crew.model, tools.root, packed)
    repositories: dict[str, set[str]] = {}
    for task in plan.tasks:
        if task.repo is not None and task.base is not None and not is_address(task.repo):
            repositories.setdefault(task.repo, set()).add(task.base)
    there = replace(tools.settings, store=Settings().store, models=models, variants=variants)
    return Parcel(
        version=__version__,
        settings=there,
        files=files,
        repositories={repo: tuple(sorted(commits)) for repo, commits in repositories.items()},
    )


def _variant(crew: Crew, root: Path, packed: Callable[[Path], str]) -> VariantSettings:
    if crew.written.prompt is None:
        return crew.written
    return replace(crew.written, prompt=packed(root / Path(crew.written.prompt).expanduser()))


def _model(model: ModelSettings, root: Path, packed: Callable[[Path], str]) -> ModelSettings:
    if model.provider == "scripted":
        return replace(model, model=packed(root / model.model))
    if model.provider not in ("anthropic", "openai", "gemini"):
        raise BadInput(f"A {model.provider} model answers on this machine: leave out --executor.")
    if model.key_file is not None:
        return replace(model, key_file=str(root / Path(model.key_file).expanduser()))
    return model


def lay_out(parcel: Parcel, folder: Path) -> None:
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
            making = path.with_name(f"{path.name}.{hashlib.sha256(content).hexdigest()[:8]}")
            making.write_bytes(content)
            making.replace(path)


def repositories(
    parcel: Parcel, folder: Path, content: Callable[[str], bytes]
) -> Mapping[str, str]:
    """Where the parcel's repositories are on this node, fetched where they were not yet."""
    found = {}
    for repo, commits in parcel.repositories.items():
        name = pack_name(commits)
        if not (folder / name).is_dir():
            unpack(content(name), commits, folder / name)
        found[repo] = str(folder / name)
    return found
