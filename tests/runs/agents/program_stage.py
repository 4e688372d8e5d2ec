"""Small programs that play an agent, in a real cage, with a scripted model behind a door."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
from anyio.from_thread import BlockingPortal
from stand_in_door import StandIn, stand_in

from closeloop.agents import programs
from closeloop.agents.headless_agent import HeadlessAgent
from closeloop.records.protocols import Assignment, Work
from closeloop.records.task import Limits, Variant
from closeloop.sandbox.workspaces import WorkspaceBase, WorkspacePool
from patience import PATIENCE

ASKS = f"""#!{sys.executable} -IS
import json, os, sys, urllib.request
def ask(text):
    body = json.dumps({{"model": "m", "messages": [{{"role": "user", "content": text}}]}}).encode()
    to = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body,
                                {{"content-type": "application/json"}})
    with urllib.request.urlopen(to) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]
"""
"""The beginning of a program that can ask its model."""
SCRIPT = b'{"name": "scripted", "dialogues": [{"turns": [{"say": "Well done.", "repeat": true}]}]}'


class Played(msgspec.Struct):
    """What came of it."""

    work: Work
    diff: str
    model_proxy: StandIn | None
    refused: dict[str, int]


class Stage:
    """A repository, cages, and programs to run there."""

    def __init__(
        self, folder: Path, workspaces: WorkspacePool, base: WorkspaceBase, portal: BlockingPortal
    ) -> None:
        self.folder = folder
        self.workspaces = workspaces
        self.base = base
        self.portal = portal

    def program(self, text: str, name: str = "program") -> str:
        path = self.folder / name
        path.write_text(text if text.startswith("#!") else f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return str(path)

    def play(self, text: str, **changes: Any) -> Played:
        """Let the program work, by the agent `command`."""
        settings = {"program": self.program(text), **changes.pop("settings", {})}
        return self.let(programs.command.with_settings(settings), **changes)

    def let(self, agent: HeadlessAgent, **changes: Any) -> Played:
        return self.portal.call(self._let, agent, changes)

    async def _let(self, agent: HeadlessAgent, changes: dict[str, Any]) -> Played:
        limits = Limits(**({"seconds": PATIENCE} | changes.pop("limits", {})))
        if changes.pop("modelless", False):
            return await self._attempt(agent, limits, None, changes)
        async with stand_in(SCRIPT, changes.pop("closes_after", None)) as door:
            if reason := changes.pop("closed", None):
                door.close(reason)
            door.busy = changes.pop("busy", False)
            return await self._attempt(agent, limits, door, changes)

    async def _attempt(
        self, agent: HeadlessAgent, limits: Limits, door: StandIn | None, changes: dict[str, Any]
    ) -> Played:
        async with self.workspaces.open(self.base, limits) as workspace:
            given = {"prompt": "Do it.", "system": None, "feedback": False} | changes
            assignment = Assignment(
                sandbox=workspace.sandbox,
                model=door,
                model_proxy=door,
                variant=Variant(name="test", agent=agent.name),
                limits=limits,
                answer=lambda question: None,
                **given,
            )
            work = await agent.work(assignment)
            return Played(work, await workspace.read_diff(), door, dict(workspace.sandbox.refused))
