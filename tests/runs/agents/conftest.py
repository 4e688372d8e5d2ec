"""Fixtures for the tests of agents."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_desk import Desk
from anyio.from_thread import start_blocking_portal
from git_trees import git
from program_stage import Stage

from closeloop.records.errors import MachineFailed
from closeloop.records.settings import SandboxSettings
from closeloop.records.task import Limits
from closeloop.sandbox.workspaces import WorkspacePool


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    workspaces = WorkspacePool(tmp_path, SandboxSettings(kind="none"))
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(workspaces) as opened,
        portal.wrap_async_context_manager(opened.open(None, Limits())) as workspace,
    ):
        yield Desk(workspace.sandbox, portal)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """The best cage there is, around a repository with one file."""
    folder = tmp_path_factory.mktemp("stage")
    repo = folder / "repo"
    repo.mkdir()
    git(repo, "init", "-q", "-b", "main")
    (repo / "file.txt").write_text("one\n")
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "first")
    head = git(repo, "rev-parse", "HEAD")
    try:
        workspaces = WorkspacePool(folder / "cache", SandboxSettings())
    except MachineFailed as fault:
        pytest.skip(f"NOT TESTED HERE: {fault}")
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(workspaces) as opened:
        yield Stage(folder, opened, portal.call(opened.prepare_base, str(repo), head), portal)
