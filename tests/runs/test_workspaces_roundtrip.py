"""Any tree, changed into any other, is told by a patch that does the same elsewhere."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from git_trees import Tree, git, plant
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from closeloop.records.settings import SandboxSettings
from closeloop.records.task import Limits
from closeloop.sandbox.workspaces import WorkspacePool
from example_counts import scale_examples


def harvest(folder: Path) -> Tree:
    found: Tree = {}
    for parent, folders, files in os.walk(folder):
        if Path(parent) == folder:
            folders.remove(".git")
        for name in [*files, *(each for each in folders if Path(parent, each).is_symlink())]:
            path = Path(parent, name)
            if path.is_symlink():
                found[str(path.relative_to(folder))] = ("link", os.readlink(os.fsencode(path)))  # noqa: PTH115
            else:
                kind = "program" if path.stat().st_mode & 0o100 else "file"
                found[str(path.relative_to(folder))] = (kind, path.read_bytes())
    return found


def commit_of(folder: Path, tree: Tree) -> str:
    """A repository with these files, and its commit."""
    folder.mkdir()
    git(folder, "init", "-q")
    plant(folder, tree)
    git(folder, "add", "-A", "-f")
    git(folder, "commit", "-q", "--allow-empty", "-m", "x")
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def uncaged(cache: Path) -> Iterator[WorkspacePool]:
    workspaces = WorkspacePool(cache, SandboxSettings(kind="none"))
    yield workspaces
    workspaces.close()


names = st.text(st.sampled_from("abcö 漢'\"\\*?[]$\n\t~#!%:-."), min_size=1, max_size=5).filter(
    lambda name: name not in (".", "..") and not name.startswith(".git")
)
paths = st.lists(names, min_size=1, max_size=3).map("/".join)
contents = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([b"", b"\n", b"a\nb\nc\n", b"a\nb\nc", b"a\r\nb\r\n", b"caf\xe9\n", b"\0\1\2"]),
)
links = st.text(st.sampled_from("ab/.ö ~"), min_size=1, max_size=8).map(str.encode)
entries = st.one_of(
    st.tuples(st.sampled_from(["file", "program"]), contents), st.tuples(st.just("link"), links)
)


def possible(tree: Tree) -> bool:
    """No file where another one needs a folder."""
    return not any(f"{parent}" in tree for path in tree for parent in list(Path(path).parents)[:-1])


trees = (
    st.dictionaries(paths, entries, max_size=6)
    .map(lambda tree: {str(Path(path)): entry for path, entry in tree.items()})
    .filter(lambda tree: possible({str(Path(p)): e for p, e in tree.items()}))
)


@given(before=trees, now=trees, kept=st.sets(st.integers(0, 5)))
@settings(
    max_examples=scale_examples(12),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_a_patch_brings_any_tree_to_any_other(
    uncaged: WorkspacePool,
    tmp_path_factory: pytest.TempPathFactory,
    before: Tree,
    now: Tree,
    kept: set[int],
) -> None:
    same = {path: before[path] for index, path in enumerate(sorted(before)) if index in kept}
    if possible({**now, **same}):
        now = {**now, **same}
    assert round_trip(uncaged, tmp_path_factory.mktemp("case"), before, now) == now


def round_trip(workspaces: WorkspacePool, folder: Path, before: Tree, now: Tree) -> Tree:
    async def main() -> Tree:
        base = await workspaces.prepare_base(
            str(folder / "repo"), commit_of(folder / "repo", before)
        )
        async with workspaces.open(base, Limits()) as workspace:
            root = Path(workspace.sandbox.place.folder, "root/workspace")
            replace(root, now)
            patch = await workspace.read_diff()
        async with workspaces.open(base, Limits()) as workspace:
            await workspace.apply_patch(patch)
            assert await workspace.read_diff() == patch
            return harvest(Path(workspace.sandbox.place.folder, "root/workspace"))

    return anyio.run(main)


def replace(root: Path, tree: Tree) -> None:
    for entry in root.iterdir():
        if entry.is_dir() and not entry.is_symlink() and entry.name != ".git":
            shutil.rmtree(entry)
        elif entry.name != ".git":
            entry.unlink()
    plant(root, tree)
