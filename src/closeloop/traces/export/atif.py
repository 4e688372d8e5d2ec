"""A trace as Harbor's ATIF 1.8: one document, sub-agents embedded.

What ATIF has no place for stands under `closeloop` in `extra`, so that reading it back tells the
same.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import msgspec

from closeloop.model.attempt import Usage
from closeloop.model.trace import AnyEvent, Handoff, Lane, Message, Thought, Trace, Turn
from closeloop.model.usage import total
from closeloop.traces.export.told import (
    Exported,
    agent_of,
    call_of,
    events_by_lane,
    is_call,
    lanes_in_order,
    model_of,
    system_of,
    version_of,
)
from closeloop.traces.results import OWN, facts, kept

SCHEMA = "ATIF-v1.8"


def export(of: Exported, trace: Trace) -> bytes:
    """The trajectory as JSON."""
    return msgspec.json.format(msgspec.json.encode(trajectory(of, trace)), indent=1)


def trajectory(of: Exported, trace: Trace) -> dict[str, Any]:
    """The trajectory as JSON values."""
    events = events_by_lane(trace)
    made: dict[str, dict[str, Any]] = {}
    for lane, parent in lanes_in_order(trace):
        root = parent is None
        steps = list(_Steps(lane, system_of(of) if root else None).of(events.get(lane.id, [])))
        name = agent_of(of, trace) if root else lane.agent or "unknown"
        usage = _stated(of, lane) if root else total(turn.usage for turn in lane.turns)
        made[lane.id] = _filled(
            schema_version=SCHEMA,
            session_id=of.id,
            trajectory_id=lane.id,
            agent=_filled(
                name=name,
                version=(version_of(of) if root else None) or "unknown",
                model_name=model_of(of, trace) if root else _model(lane),
            ),
            steps=steps,
            final_metrics=_final(usage, len(steps)),
            extra={OWN: kept(of)} if root else None,
        )
        if parent is not None:
            made[parent].setdefault("subagent_trajectories", []).append(made[lane.id])
    return next(iter(made.values()))


class _Steps:
    """The steps of one lane while they are made."""

    def __init__(self, lane: Lane, system: str | None) -> None:
        self.lane = lane
        self.system = system
        self.number = 0
        self.told = 0
        """How many turns have a step that tells what they used."""
        self.step: dict[str, Any] | None = None
        self.turn: int | None = None
        self.at: datetime | None = None
        self.asked = False

    def of(self, events: list[AnyEvent]) -> Iterator[dict[str, Any]]:
        if self.system is not None:
            yield self._numbered(source="system", message=self.system)
        for event in events:
            if not _by_agent(event):
                yield from self._close()
                yield self._said(event)
                continue
            if not self._fits(event):
                yield from self._close()
                yield from self._silent(event.turn or 0)
                self._open(event)
            self._add(event)
        yield from self._close()
        yield from self._silent(len(self.lane.turns) + 1)
        if not self.number:
            # A trajectory must have a step, also where nothing was recorded.
            yield self._numbered(source="system", message="", extra={OWN: {"empty": True}})

    def _numbered(self, **fields: Any) -> dict[str, Any]:
        self.number += 1
        return {"step_id": self.number, **_filled(**fields)}

    def _close(self) -> Iterator[dict[str, Any]]:
        if self.step is not None:
            yield self.step
        self.step = None

    def _silent(self, before: int) -> Iterator[dict[str, Any]]:
        """Turns without events come before the one that has some: they too were paid for."""
        while self.told + 1 < before and self.told < len(self.lane.turns):
            self.told += 1
            own = {"turn": self.told, **self._reply(self.told)}
            yield self._numbered(
                source="agent", message="", **_used(self.lane.turns[self.told - 1]),
                extra={OWN: own},
            )  # fmt: skip

    def _reply(self, turn: int) -> dict[str, Any]:
        return {"reply": msgspec.to_builtins(self.lane.turns[turn - 1])}

    def _said(self, event: AnyEvent) -> dict[str, Any]:
        """A message of the user or the system, or a note, is a step of its own."""
        user = isinstance(event, Message) and event.role == "user"
        role: Any = "user" if user else "system"
        intent: Any = "request" if user and not self.asked else None
        self.asked = self.asked or user
        text = getattr(event, "text", "")
        plain = Message(
            number=event.number, lane=event.lane, at=event.at, role=role, text=text, intent=intent
        )
        more = facts(event, plain)
        # A system's message that says no more would be taken for the system prompt.
        extra = None if user and not more else {OWN: {"event": more}}
        return self._numbered(source=role, message=text, timestamp=_time(event.at), extra=extra)

    def _fits(self, event: AnyEvent) -> bool:
        """Whether an event may still be told in the open step: reasoning, message, calls."""
        step = self.step
        if step is None or event.turn != self.turn:
            return False
        if is_call(event):
            # Ids that are used again would pair a result with the wrong call.
            return event.call not in [call["tool_call_id"] for call in step.get("tool_calls", [])]
        told = "tool_calls" in step or "message" in step["extra"][OWN]
        return not told and not ("reasoning_content" in step and isinstance(event, Thought))

    def _open(self, event: AnyEvent) -> None:
        turns = self.lane.turns
        self.turn, self.at = event.turn, event.at
        number = event.turn if event.turn is not None and event.turn <= len(turns) else 0
        own: dict[str, Any] = {"turn": number}
        used: dict[str, Any] = {}
        if number > self.told:
            self.told = number
            own |= self._reply(number)
            used = _used(turns[number - 1])
        self.step = self._numbered(
            source="agent", message="", timestamp=_time(event.at), **used, extra={OWN: own}
        )

    def _add(self, event: AnyEvent) -> None:
        assert self.step is not None
        own = self.step["extra"][OWN]
        place: dict[str, Any] = {
            "number": event.number,
            "lane": event.lane,
            "turn": event.turn,
            "at": self.at,
        }
        if is_call(event):
            self._call(event)
        elif isinstance(event, Thought):
            self.step["reasoning_content"] = event.text
            own["thought"] = facts(event, Thought(**place, text=event.text))
        elif isinstance(event, Message):
            self.step["message"] = event.text
            own["message"] = facts(event, Message(**place, role="agent", text=event.text))

    def _call(self, event: AnyEvent) -> None:
        assert self.step is not None
        call = call_of(event, self.at)
        more = dict(call.more)
        if isinstance(event, Handoff):
            # Where these are empty, a reader would look for them in the child's trajectory.
            more |= {"brief": event.brief, "report": event.report}
        told = _filled(
            tool_call_id=call.id,
            function_name=call.name,
            arguments=call.arguments,
            extra={OWN: more} if more else None,
        )
        self.step.setdefault("tool_calls", []).append(told)
        child = getattr(event, "child", None)
        if call.result is None and call.ok is None and child is None:
            return
        result = _filled(
            source_call_id=call.id,
            content=call.result,
            subagent_trajectory_ref=[{"trajectory_id": child}] if child else None,
            extra=None if call.ok is None else {"is_error": not call.ok},
        )
        self.step.setdefault("observation", {"results": []})["results"].append(result)


def _by_agent(event: AnyEvent) -> bool:
    if isinstance(event, Message):
        return event.role == "agent"
    return isinstance(event, Thought) or is_call(event)


def _filled(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _time(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()


def _model(lane: Lane) -> str | None:
    return next((turn.model for turn in lane.turns if turn.model), None)


def _used(turn: Turn) -> dict[str, Any]:
    return {"model_name": turn.model, "metrics": _metrics(turn.usage), "llm_call_count": 1}


def _metrics(usage: Usage) -> dict[str, Any] | None:
    """Prompt tokens are all input, what is cached too."""
    known = usage.input_tokens is not None
    cached = (usage.cache_read_tokens or 0) + (usage.cache_write_tokens or 0)
    extra = _filled(
        cache_creation_input_tokens=usage.cache_write_tokens,
        reasoning_tokens=usage.reasoning_tokens,
    )
    found = _filled(
        prompt_tokens=(usage.input_tokens or 0) + cached if known else None,
        completion_tokens=usage.output_tokens,
        cached_tokens=usage.cache_read_tokens,
        cost_usd=usage.cost,
        extra=extra or None,
    )
    return found or None


def _stated(of: Exported, lane: Lane) -> Usage:
    """The root's own sum, and what all of it cost; the record's where the turns say nothing."""
    summed = total(turn.usage for turn in lane.turns)
    if summed == Usage():
        return of.usage
    return msgspec.structs.replace(summed, cost=of.usage.cost, cost_from=of.usage.cost_from)


def _final(usage: Usage, steps: int) -> dict[str, Any]:
    metrics = _metrics(usage) or {}
    extra = metrics.pop("extra", None)
    return _filled(
        **{f"total_{name}": value for name, value in metrics.items()},
        total_steps=steps,
        extra=extra,
    )
