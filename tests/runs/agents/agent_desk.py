"""An agent at work in a workspace, for the tests of agents."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from anyio.from_thread import BlockingPortal

from closeloop.agents.builtin import BuiltinAgent
from closeloop.contracts import FixedReplyModel, check_work
from closeloop.records.attempt import Usage
from closeloop.records.protocols import Assignment, Model, Work
from closeloop.records.task import Limits, Variant
from closeloop.records.trace import ModelReply, ModelToolCall
from patience import PATIENCE


def says(text: str = "", *calls: ModelToolCall, **fields: Any) -> ModelReply:
    usage = fields.pop("usage", Usage(input_tokens=100, output_tokens=10))
    return ModelReply(text=text, calls=calls, usage=usage, model="test-1", **fields)


_ids = itertools.count(1)


def calls(name: str, **arguments: Any) -> ModelToolCall:
    return ModelToolCall(id=f"c{next(_ids)}", name=name, arguments=arguments)


class Desk:
    """Where an agent is let to work, and what it was told there."""

    def __init__(self, sandbox: Any, portal: BlockingPortal) -> None:
        self.sandbox = sandbox
        self.portal = portal
        self.folder = Path(sandbox.root)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.model: Any = None
        self.limits = Limits(seconds=PATIENCE, turns=50)
        self.answer: Callable[[str], str | None] = lambda question: None
        self.changes: dict[str, Any] = {}

    def assignment(self, prompt: str = "Do it.") -> Assignment:
        given = {
            "prompt": prompt,
            "system": None,
            "sandbox": self.sandbox,
            "model": self.model,
            "variant": Variant(name="test", agent="builtin"),
            "limits": self.limits,
            "answer": self.answer,
        }
        return Assignment(**(given | self.changes))

    def work(self, *replies: ModelReply, model: Model | None = None) -> Work:
        self.model = model or FixedReplyModel(*replies)
        agent = BuiltinAgent(clock=ticking())
        work = self.portal.call(agent.work, self.assignment())
        check_work(work)
        return work

    def told(self, turn: int = -1) -> str:
        """The last message in a request to the model."""
        return self.model.requests[turn].messages[-1].text

    def failed(self, turn: int = -1) -> bool:
        return self.model.requests[turn].messages[-1].failed


def ticking() -> Callable[[], datetime]:
    """A clock that goes on by a second whenever somebody looks."""
    seconds = itertools.count()
    return lambda: datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=next(seconds))
