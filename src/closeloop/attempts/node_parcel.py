"""What a node must have to make attempts of a plan: settings, prompts, scripts, repositories.

Keys and the store's address stay here: a node finds keys in its own environment, and has no need
of the store.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from closeloop import __version__
from closeloop.attempts.run_resources import RunResources
from closeloop.git import GitFailed, run_git
from closeloop.grading.variants import ResolvedVariant
from closeloop.records.errors import BadInput
from closeloop.records.experiment_plan import ExperimentPlan
from closeloop.records.record import Record, content_digest
from closeloop.records.settings import ModelSettings, Settings, VariantSettings
from closeloop.sandbox.workspaces.source_repository import (
    PLAIN_ENVIRONMENT,
    git_folder,
    is_remote_address,
)

# Repositories that travel: some commits of one, without their history, as a pack of objects.


def name_pack(commits: Sequence[str]) -> str:
    """Commits are named by their content, so a pack of them is too."""
    return content_digest(sorted(commits))[:32]


def pack_commits(repo: str, commits: Sequence[str]) -> bytes:
    """All files of these commits of a repository on this machine."""
    folder = git_folder(repo)
    object_list = _run_pack_git(folder, "rev-list", "--objects", "--no-walk", *sorted(commits))
    return _run_pack_git(
        folder, "pack-objects", "-q", "--stdout", "--delta-base-offset", stdin=object_list
    )


def unpack_commits(content: bytes, commits: Sequence[str], folder: Path) -> None:
    """A bare repository with just these commits; it becomes visible whole or not at all."""
    temporary_folder = folder.with_name(f"{folder.name}.{secrets.token_hex(4)}")
    temporary_folder.mkdir(parents=True)
    try:
        kind = "sha256" if len(commits[0]) == 64 else "sha1"
        _run_pack_git(
            str(temporary_folder), "init", "-q", "--bare", "--template=", f"--object-format={kind}"
        )
        # Their parents are not there, and nobody shall look for them.
        (temporary_folder / "shallow").write_text(
            "".join(f"{commit}\n" for commit in sorted(commits))
        )
        _run_pack_git(str(temporary_folder), "index-pack", "--stdin", stdin=content)
        for commit in commits:
            _run_pack_git(str(temporary_folder), "update-ref", f"refs/heads/{commit}", commit)
        os.rename(temporary_folder, folder)  # noqa: PTH104
    except OSError:
        if not folder.is_dir():  # else somebody else was first, with the same
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
