"""Work given to other agents: which thread took it, and what came back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from closeloop.records.trace import Handoff
from closeloop.text.untrusted import truncate_middle
from closeloop.traces.trace_builder import TraceBuilder
from closeloop.traces.untrusted_json import as_mapping

_FAILURE_STATES = ("errored", "not_found")


class CodexHandoffs:
    """The handoffs of one lane."""

    def __init__(self, builder: TraceBuilder, lanes: Mapping[str, str]) -> None:
        self._builder = builder
        self._lanes = lanes
        """The lane of each thread whose file was found."""
        self._given: dict[str, list[int]] = {}
        self._threads: dict[str, str] = {}

    def assign_thread(self, number: int, agent: Any, path: Any = None) -> None:
        """A thread took the work of a handoff."""
        event = self._handoff_event(number)
        if event is None or not isinstance(agent, str) or not agent:
            return
        if isinstance(path, str):
            self._threads[path] = agent
        numbers = self._given.setdefault(agent, [])
        if number not in numbers:
            numbers.append(number)
        if agent in self._lanes:
            self._builder.finish(event, child=self._lanes[agent])

    def assign_path(self, number: int, path: str) -> None:
        """The work went to an agent known by its path."""
        self.assign_thread(number, self._threads.get(path, path))

    def mark_refusal(self, number: int, text: str) -> None:
        """Something else than an agent came back: nobody took the work."""
        event = self._handoff_event(number)
        if event is not None and not any(number in taken for taken in self._given.values()):
            self._builder.finish(event, ok=False, report=text)

    def add_status(self, agent: Any, status: Any) -> None:
        """What is told of an agent: only what it came back with is kept."""
        for state, words in as_mapping(status).items():
            if state in ("completed", *_FAILURE_STATES) and isinstance(words, str):
                self.add_report(agent, words, ok=state == "completed")

    def add_report(self, agent: Any, text: str, *, ok: bool | None) -> bool:
        """The newest handoff to this agent came back; False where there is none."""
        thread = self._threads.get(str(agent), str(agent))
        for number in reversed(self._given.get(thread, ())):
            event = self._handoff_event(number)
            if event is not None:
                self._builder.finish(event, report=truncate_middle(text), ok=ok)
                return True
        return False

    def _handoff_event(self, number: int) -> Handoff | None:
        event = self._builder.events[number - 1]
        return event if isinstance(event, Handoff) else None
