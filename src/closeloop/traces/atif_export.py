"""A trace as Harbor's ATIF 1.8: one document, sub-agents embedded.

What ATIF has no place for stands under `closeloop` in `extra`, so that reading it back tells the
same.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import msgspec

from closeloop.records.attempt import Usage, sum_usage
from closeloop.records.trace import AnyEvent, Handoff, Lane, Message, Thought, Trace, Turn
from closeloop.traces.trace_export import (
    EXPORT_KEY,
    ExportSource,
    call_from_event,
    events_by_lane,
    extra_fields,
    is_call_event,
    lanes_in_order,
    session_extras,
    source_agent,
    source_agent_version,
    source_model,
    source_system_prompt,
)

SCHEMA = "ATIF-v1.8"


def export_atif(of: ExportSource, trace: Trace) -> bytes:
    """The trajectory as JSON."""
    return msgspec.json.format(msgspec.json.encode(build_trajectory(of, trace)), indent=1)


def build_trajectory(of: ExportSource, trace: Trace) -> dict[str, Any]:
    """The trajectory as JSON values."""
    events = events_by_lane(trace)
    trajectories: dict[str, dict[str, Any]] = {}
    for lane, parent in lanes_in_order(trace):
        root = parent is None
        steps = list(
            _AtifStepWriter(lane, source_system_prompt(of) if root else None).iter_steps(
                events.get(lane.id, [])
            )
        )
        name = source_agent(of, trace) if root else lane.agent or "unknown"
        usage = _root_usage(of, lane) if root else sum_usage(turn.usage for turn in lane.turns)
        trajectories[lane.id] = _drop_none(
            schema_version=SCHEMA,
            session_id=of.id,
            trajectory_id=lane.id,
            agent=_drop_none(
                name=name,
                version=(source_agent_version(of) if root else None) or "unknown",
                model_name=source_model(of, trace) if root else _lane_model(lane),
            ),
            steps=steps,
            final_metrics=_final_metrics(usage, len(steps)),
            extra={EXPORT_KEY: session_extras(of)} if root else None,
        )
        if parent is not None:
            trajectories[parent].setdefault("subagent_trajectories", []).append(
                trajectories[lane.id]
            )
    return next(iter(trajectories.values()))


class _AtifStepWriter:
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

    def iter_steps(self, events: list[AnyEvent]) -> Iterator[dict[str, Any]]:
        if self.system is not None:
            yield self._make_step(source="system", message=self.system)
        for event in events:
            if not _is_by_agent(event):
                yield from self._close_step()
                yield self._message_step(event)
                continue
            if not self._fits_open_step(event):
                yield from self._close_step()
                yield from self._silent_steps(event.turn or 0)
                self._open_step(event)
            self._add_event(event)
        yield from self._close_step()
        yield from self._silent_steps(len(self.lane.turns) + 1)
        if not self.number:
            # A trajectory must have a step, also where nothing was recorded.
            yield self._make_step(source="system", message="", extra={EXPORT_KEY: {"empty": True}})

    def _make_step(self, **fields: Any) -> dict[str, Any]:
        self.number += 1
        return {"step_id": self.number, **_drop_none(**fields)}

    def _close_step(self) -> Iterator[dict[str, Any]]:
        if self.step is not None:
            yield self.step
        self.step = None

    def _silent_steps(self, before: int) -> Iterator[dict[str, Any]]:
        """Turns without events come before the one that has some: they too were paid for."""
        while self.told + 1 < before and self.told < len(self.lane.turns):
            self.told += 1
            own = {"turn": self.told, **self._reply_fields(self.told)}
            yield self._make_step(
                source="agent", message="", **_turn_fields(self.lane.turns[self.told - 1]),
                extra={EXPORT_KEY: own},
            )  # fmt: skip

    def _reply_fields(self, turn: int) -> dict[str, Any]:
        return {"reply": msgspec.to_builtins(self.lane.turns[turn - 1])}

    def _message_step(self, event: AnyEvent) -> dict[str, Any]:
        """A message of the user or the system, or a note, is a step of its own."""
        user = isinstance(event, Message) and event.role == "user"
        role: Any = "user" if user else "system"
        intent: Any = "request" if user and not self.asked else None
        self.asked = self.asked or user
        text = getattr(event, "text", "")
        bare_message = Message(
            number=event.number, lane=event.lane, at=event.at, role=role, text=text, intent=intent
        )
        own_fields = extra_fields(event, bare_message)
        # A system's message that says no more would be taken for the system prompt.
        extra = None if user and not own_fields else {EXPORT_KEY: {"event": own_fields}}
        return self._make_step(
            source=role, message=text, timestamp=_format_time(event.at), extra=extra
        )

    def _fits_open_step(self, event: AnyEvent) -> bool:
        """Whether an event may still be told in the open step: reasoning, message, calls."""
        step = self.step
        if step is None or event.turn != self.turn:
            return False
        if is_call_event(event):
            # Ids that are used again would pair a result with the wrong call.
            return event.call not in [call["tool_call_id"] for call in step.get("tool_calls", [])]
        has_message_or_calls = "tool_calls" in step or "message" in step["extra"][EXPORT_KEY]
        return not has_message_or_calls and not (
            "reasoning_content" in step and isinstance(event, Thought)
        )

    def _open_step(self, event: AnyEvent) -> None:
        turns = self.lane.turns
        self.turn, self.at = event.turn, event.at
        number = event.turn if event.turn is not None and event.turn <= len(turns) else 0
        own: dict[str, Any] = {"turn": number}
        used: dict[str, Any] = {}
        if number > self.told:
            self.told = number
            own |= self._reply_fields(number)
            used = _turn_fields(turns[number - 1])
        self.step = self._make_step(
            source="agent",
            message="",
            timestamp=_format_time(event.at),
            **used,
            extra={EXPORT_KEY: own},
        )

    def _add_event(self, event: AnyEvent) -> None:
        assert self.step is not None
        own = self.step["extra"][EXPORT_KEY]
        place: dict[str, Any] = {
            "number": event.number,
            "lane": event.lane,
            "turn": event.turn,
            "at": self.at,
        }
        if is_call_event(event):
            self._add_call(event)
        elif isinstance(event, Thought):
            self.step["reasoning_content"] = event.text
            own["thought"] = extra_fields(event, Thought(**place, text=event.text))
        elif isinstance(event, Message):
            self.step["message"] = event.text
            own["message"] = extra_fields(event, Message(**place, role="agent", text=event.text))

    def _add_call(self, event: AnyEvent) -> None:
        assert self.step is not None
        call = call_from_event(event, self.at)
        own_fields = dict(call.more)
        if isinstance(event, Handoff):
            # Where these are empty, a reader would look for them in the child's trajectory.
            own_fields |= {"brief": event.brief, "report": event.report}
        tool_call = _drop_none(
            tool_call_id=call.id,
            function_name=call.name,
            arguments=call.arguments,
            extra={EXPORT_KEY: own_fields} if own_fields else None,
        )
        self.step.setdefault("tool_calls", []).append(tool_call)
        child = getattr(event, "child", None)
        if call.result is None and call.ok is None and child is None:
            return
        result = _drop_none(
            source_call_id=call.id,
            content=call.result,
            subagent_trajectory_ref=[{"trajectory_id": child}] if child else None,
            extra=None if call.ok is None else {"is_error": not call.ok},
        )
        self.step.setdefault("observation", {"results": []})["results"].append(result)


def _is_by_agent(event: AnyEvent) -> bool:
    if isinstance(event, Message):
        return event.role == "agent"
    return isinstance(event, Thought) or is_call_event(event)


def _drop_none(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _format_time(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()


def _lane_model(lane: Lane) -> str | None:
    return next((turn.model for turn in lane.turns if turn.model), None)


def _turn_fields(turn: Turn) -> dict[str, Any]:
    return {"model_name": turn.model, "metrics": _usage_metrics(turn.usage), "llm_call_count": 1}


def _usage_metrics(usage: Usage) -> dict[str, Any] | None:
    """Prompt tokens are all input, what is cached too."""
    known = usage.input_tokens is not None
    cached = (usage.cache_read_tokens or 0) + (usage.cache_write_tokens or 0)
    extra = _drop_none(
        cache_creation_input_tokens=usage.cache_write_tokens,
        reasoning_tokens=usage.reasoning_tokens,
    )
    metrics = _drop_none(
        prompt_tokens=(usage.input_tokens or 0) + cached if known else None,
        completion_tokens=usage.output_tokens,
        cached_tokens=usage.cache_read_tokens,
        cost_usd=usage.cost,
        extra=extra or None,
    )
    return metrics or None


def _root_usage(of: ExportSource, lane: Lane) -> Usage:
    """The root's own sum, and what all of it cost; the record's where the turns say nothing."""
    summed = sum_usage(turn.usage for turn in lane.turns)
    if summed == Usage():
        return of.usage
    return msgspec.structs.replace(summed, cost=of.usage.cost, cost_from=of.usage.cost_from)


def _final_metrics(usage: Usage, steps: int) -> dict[str, Any]:
    metrics = _usage_metrics(usage) or {}
    extra = metrics.pop("extra", None)
    return _drop_none(
        **{f"total_{name}": value for name, value in metrics.items()},
        total_steps=steps,
        extra=extra,
    )
