"""A program of others works in every kind of cage that this machine can have, by the gateway."""

from __future__ import annotations

from pathlib import Path

import pytest
from anyio.from_thread import start_blocking_portal
from git_trees import git
from program_stage import ASKS, SCRIPT, Played, Stage
from test_sandbox_escape import TIERS, at_tier

from closeloop.agents import programs
from closeloop.gateway.model_gateway import open_local_proxy
from closeloop.records.settings import ModelSettings, SandboxSettings
from closeloop.records.task import Limits
from closeloop.sandbox.workspaces import WorkspacePool
from patience import PATIENCE

WORKS = (
    ASKS
    + """
open("readme", "a").write("three\\n")
print(ask("Done?"))
try:
    open("OUTSIDE", "w").write("x")
except OSError:
    pass
"""
)


@pytest.mark.parametrize("tier", [*TIERS, "none"])
def test_a_program_works_in_every_kind_of_cage(tier: str, repo: Path, tmp_path: Path) -> None:
    none = SandboxSettings(kind="none")
    cache = tmp_path / "cache"
    workspaces = WorkspacePool(cache, none) if tier == "none" else at_tier(tier, cache)
    (tmp_path / "script.json").write_bytes(SCRIPT)
    model = ModelSettings(provider="scripted", model="script.json")

    async def play(stage: Stage, limits: Limits) -> Played:
        text = WORKS.replace("OUTSIDE", f"{tmp_path}/outside")
        agent = programs.command.with_settings({"program": stage.program(text)})
        async with open_local_proxy(model, limits, tmp_path) as door:
            return await stage._attempt(agent, limits, door, {})

    with start_blocking_portal() as portal, portal.wrap_async_context_manager(workspaces) as opened:
        base = portal.call(opened.prepare_base, str(repo), git(repo, "rev-parse", "HEAD"))
        played = portal.call(play, Stage(tmp_path, opened, base, portal), Limits(seconds=PATIENCE))
    assert (played.work.exit, played.work.cause) == ("finished", None)
    assert played.work.summary == "Well done."
    assert "+three" in played.diff
    assert played.work.usage.output_tokens
    assert (tmp_path / "outside").exists() is (tier == "none")


@pytest.mark.parametrize("tier", TIERS)
def test_a_frozen_workspace_can_be_read_only(tier: str, tmp_path: Path) -> None:
    workspaces = at_tier(tier, tmp_path)
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(workspaces) as opened,
        portal.wrap_async_context_manager(opened.open(None, Limits())) as workspace,
    ):
        portal.call(workspace.sandbox.write, "kept.txt", b"one\n")
        frozen = workspace.sandbox.as_read_only()
        tries = "cat kept.txt; echo 2 > kept.txt; rm kept.txt; echo x > new; : > ~/x && echo home"
        ran = portal.call(frozen.run, f"({tries}) 2>/dev/null")
        assert ran.output == "one\nhome\n"
        assert portal.call(workspace.sandbox.run, "cat kept.txt; ls").output == "one\nkept.txt\n"
