"""Work given to other agents: which thread took it, and what came back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from closeloop.model.trace import Handoff
from closeloop.traces.builder import Builder
from closeloop.traces.texts import shortened
from closeloop.traces.untrusted import mapping

_FAILED = ("errored", "not_found")


class Handoffs:
    """The handoffs of one lane."""

    def __init__(self, builder: Builder, lanes: Mapping[str, str]) -> None:
        self._builder = builder
        self._lanes = lanes
        """The lane of each thread whose file was found."""
        self._given: dict[str, list[int]] = {}
        self._threads: dict[str, str] = {}

    def taken(self, number: int, agent: Any, path: Any = None) -> None:
        """A thread took the work of a handoff."""
        event = self._event(number)
        if event is None or not isinstance(agent, str) or not agent:
            return
        if isinstance(path, str):
            self._threads[path] = agent
        numbers = self._given.setdefault(agent, [])
        if number not in numbers:
            numbers.append(number)
        if agent in self._lanes:
            self._builder.finish(event, child=self._lanes[agent])

    def named(self, number: int, path: str) -> None:
        """The work went to an agent known by its path."""
        self.taken(number, self._threads.get(path, path))

    def refused(self, number: int, text: str) -> None:
        """Something else than an agent came back: nobody took the work."""
        event = self._event(number)
        if event is not None and not any(number in taken for taken in self._given.values()):
            self._builder.finish(event, ok=False, report=text)

    def returned(self, agent: Any, status: Any) -> None:
        """What is told of an agent: only what it came back with is kept."""
        for state, words in mapping(status).items():
            if state in ("completed", *_FAILED) and isinstance(words, str):
                self.reported(agent, words, ok=state == "completed")

    def reported(self, agent: Any, text: str, *, ok: bool | None) -> bool:
        """The newest handoff to this agent came back; False where there is none."""
        thread = self._threads.get(str(agent), str(agent))
        for number in reversed(self._given.get(thread, ())):
            event = self._event(number)
            if event is not None:
                self._builder.finish(event, report=shortened(text), ok=ok)
                return True
        return False

    def _event(self, number: int) -> Handoff | None:
        event = self._builder.events[number - 1]
        return event if isinstance(event, Handoff) else None
