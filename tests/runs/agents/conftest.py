"""Fixtures for the tests of agents."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_desk import Desk
from anyio.from_thread import start_blocking_portal

from closeloop.model.settings import SandboxSettings
from closeloop.model.variant import Limits
from closeloop.runs.workspaces import Workspaces


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    workspaces = Workspaces(tmp_path, SandboxSettings(kind="none"))
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(workspaces) as opened,
        portal.wrap_async_context_manager(opened.open(None, Limits())) as workspace,
    ):
        yield Desk(workspace.cage, portal)
