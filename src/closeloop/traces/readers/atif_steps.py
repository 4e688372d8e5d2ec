"""The steps of one trajectory as events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from closeloop.records.attempt import Usage
from closeloop.records.protocols import RecordingSource
from closeloop.records.trace import AnyEvent, Command, Handoff, Message, Thought, Turn
from closeloop.text.untrusted import MAX_NOTE_CHARS
from closeloop.traces.provider_values import make_usage, uncached_input_tokens
from closeloop.traces.request_history import handoff_from_call
from closeloop.traces.session_builder import ROOT_LANE, SessionBuilder
from closeloop.traces.tool_calls import CallOrigin, event_from_call, result_fields
from closeloop.traces.trace_export import EXPORT_KEY, restore_event
from closeloop.traces.untrusted_json import (
    as_amount,
    as_count,
    as_list,
    as_mapping,
    clean_text,
    storable_arguments,
    text_or_json,
    time_from_text,
)

LocatedTrajectory = tuple[Mapping[str, Any], Path]
MAX_FILES = 1000


class AtifRun(Protocol):
    """What the steps need of the run that they are part of."""

    source: RecordingSource
    builder: SessionBuilder
    system: str | None
    asked: set[str]
    """Lanes whose agent was given its request."""

    def resolve_reference(
        self, reference: Mapping[str, Any], path: Path
    ) -> LocatedTrajectory | None: ...

    def add_child_lane(self, trajectory: Mapping[str, Any], parent: str, path: Path) -> str: ...


class AtifStepReader:
    """One trajectory's steps, one after another."""

    def __init__(self, run: AtifRun, trajectory: Mapping[str, Any], lane: str, path: Path) -> None:
        self.run = run
        self.builder = run.builder
        self.lane = lane
        self.path = path
        self.model = clean_text(as_mapping(trajectory.get("agent")).get("model_name"))
        steps = as_list(trajectory.get("steps"))
        self.counted = any(as_mapping(step).get("metrics") for step in steps)
        self.turn: int | None = None
        self.thought: str | None = None

    def add_step(self, step: Mapping[str, Any]) -> None:
        own = as_mapping(as_mapping(step.get("extra")).get(EXPORT_KEY))
        if own.get("empty") is True:
            return
        match step.get("source"):
            case "agent":
                self._add_agent_step(step, own)
            case "user":
                self._add_user_message(step, own)
            case "system":
                self._add_system_message(step, own)
            case other:
                about = f"unknown: {other}"
                self.builder.add_note(
                    text_or_json(step)[:MAX_NOTE_CHARS], about=about, lane=self.lane
                )

    def _add_user_message(self, step: Mapping[str, Any], own: Mapping[str, Any]) -> None:
        intent: Any = None if self.lane in self.run.asked else "request"
        self.run.asked.add(self.lane)
        self.turn = None
        event = Message(
            number=self.builder.next_number,
            lane=self.lane,
            at=time_from_text(step.get("timestamp")),
            role="user",
            text=self.builder.truncate_text(atif_content_text(step.get("message"))),
            intent=intent,
        )
        self._restore_event(event, own)
        self._pair_results(step, [])

    def _add_system_message(self, step: Mapping[str, Any], own: Mapping[str, Any]) -> None:
        said = atif_content_text(step.get("message"))
        at = time_from_text(step.get("timestamp"))
        first = self.lane == ROOT_LANE and self.run.system is None and not self.run.asked
        managed = as_mapping(as_mapping(step.get("extra")).get("context_management"))
        if first and not own and self.turn is None:
            self.run.system = self.builder.truncate_text(said)
        elif managed:
            about = clean_text(managed.get("type")) or "context management"
            self.builder.add_note(said, about=about, lane=self.lane, at=at)
        elif said or own:
            event = Message(
                number=self.builder.next_number,
                lane=self.lane,
                at=at,
                role="system",
                text=self.builder.truncate_text(said),
            )
            self._restore_event(event, own)
        self._pair_results(step, [])

    def _restore_event(self, event: Message | Thought, own: Mapping[str, Any]) -> None:
        self.builder.add(restore_event(event, own.get("event")))

    def _add_agent_step(self, step: Mapping[str, Any], own: Mapping[str, Any]) -> None:
        at = time_from_text(step.get("timestamp"))
        fresh_turn = self._begin_turn(step, own)
        base: dict[str, Any] = {"lane": self.lane, "turn": self.turn, "at": at}
        thought = clean_text(step.get("reasoning_content"))
        new = bool(thought) and (fresh_turn or thought != self.thought)
        if "thought" in own or (new and not own):
            # Steps of one reply that was cut into several repeat its reasoning.
            thought_event = Thought(
                number=self.builder.next_number,
                **base,
                text=self.builder.truncate_text(thought or ""),
            )
            self.builder.add(restore_event(thought_event, own.get("thought")))
        self.thought = thought
        calls = [call for call in as_list(step.get("tool_calls")) if isinstance(call, dict)]
        said = atif_content_text(step.get("message"))
        if (said and not _is_placeholder_text(said, calls)) or "message" in own:
            message = Message(
                number=self.builder.next_number,
                **base,
                role="agent",
                text=self.builder.truncate_text(said),
            )
            self.builder.add(restore_event(message, own.get("message")))
        events = [self._add_call(call, base, said) for call in calls]
        self._pair_results(step, events)
        for event, call in zip(events, calls, strict=True):
            own_fields = as_mapping(call.get("extra")).get(EXPORT_KEY)
            if isinstance(own_fields, dict):
                restored_event = restore_event(self.builder.events[event.number - 1], own_fields)
                self.builder.replace_event(restored_event)

    def _begin_turn(self, step: Mapping[str, Any], own: Mapping[str, Any]) -> bool:
        """Whether a step begins another reply. One without metrics goes on with the last."""
        metrics = as_mapping(step.get("metrics"))
        model = clean_text(step.get("model_name")) or self.model
        own_turn = None
        if "turn" in own:
            stated_turn = as_count(own["turn"]) or 0
            if stated_turn <= self.builder.count_turns(self.lane):
                self.turn = stated_turn or None
                return True
            own_turn = _parse_turn(own.get("reply"))
        elif step.get("llm_call_count") == 0:
            self.turn = None
            return True
        elif self.counted and not metrics and self.turn is not None:
            return False
        turn = Turn(
            usage=usage_from_atif(metrics), model=model, at=time_from_text(step.get("timestamp"))
        )
        self.turn = self.builder.add_turn(self.lane, own_turn or turn)
        if model:
            self.builder.models[model] += 1
        return True

    def _add_call(self, call: Mapping[str, Any], base: Mapping[str, Any], said: str) -> AnyEvent:
        tool = clean_text(call.get("function_name")) or "unknown"
        origin = CallOrigin(
            number=self.builder.next_number, **base, call=clean_text(call.get("tool_call_id"))
        )
        call_arguments = storable_arguments(call.get("arguments"), self.run.source.skipped)
        if tool == "mark_task_complete":
            return self._add_claim(origin, said)
        if call_arguments and isinstance(call_arguments.get("keystrokes"), str):
            typed = Command(
                number=self.builder.next_number,
                **base,
                call=origin.call,
                command=call_arguments["keystrokes"],
            )
            return self.builder.add(typed)
        return self.builder.add(event_from_call(tool, call_arguments, origin))

    def _add_claim(self, origin: CallOrigin, said: str) -> AnyEvent:
        """The step's message says that the work is done; without one, an empty one does."""
        last = self.builder.events[-1] if self.builder.events else None
        if isinstance(last, Message) and last.text == said and last.turn == origin.turn:
            return self.builder.finish(last, intent="claim", call=origin.call)
        claim = Message(**msgspec.structs.asdict(origin), role="agent", text=said, intent="claim")
        return self.builder.add(claim)

    def _pair_results(self, step: Mapping[str, Any], events: list[AnyEvent]) -> None:
        """Pair each result with the call it names, or with the last one where it names none."""
        open_calls = list(events)
        results = observation_results(step)
        for result in results:
            call_id = clean_text(result.get("source_call_id"))
            event = next((one for one in open_calls if one.call == call_id), None)
            if event is None and call_id is None and open_calls:
                event = open_calls[0 if len(results) == len(events) else -1]
            if event is not None:
                open_calls.remove(event)
            elif call_id is not None:
                # Some write what came of a call into a step of its own.
                event = self.builder.find_open_call(self.lane, call_id)
            if event is not None:
                event = self._finish_call(event, result, step, alone=len(events) == 1)
            elif said := atif_content_text(result.get("content")):
                at = time_from_text(step.get("timestamp"))
                self.builder.add_note(said, "observation", lane=self.lane, at=at)
            self._join_subagents(event, result)

    def _finish_call(
        self, event: AnyEvent, result: Mapping[str, Any], step: Mapping[str, Any], *, alone: bool
    ) -> AnyEvent:
        content = result.get("content")
        output = None if content is None else atif_content_text(content)
        extra, step_extra = (
            as_mapping(result.get("extra")),
            as_mapping(step.get("extra")) if alone else {},
        )
        meta = as_mapping(step_extra.get("tool_result_metadata"))
        raw = as_mapping(meta.get("raw_tool_result"))
        if isinstance(raw.get("content"), str) and output is not None:
            # Harbor's converter says the output twice in the content, with marks of its own.
            output = text_or_json(raw["content"])
        # A raw result is Anthropic's, where what is not said to be an error is none.
        failed = raw.get("is_error", False) if raw else meta.get("is_error")
        flags = (extra.get("is_error"), step_extra.get("tool_result_is_error"), failed)
        ok = False if True in flags else True if False in flags else None
        if output is not None and output.endswith("[error] tool reported failure"):
            ok = False
        event_fields = result_fields(
            event, None if output is None else self.builder.truncate_text(output), ok
        )
        if isinstance(event, Command) and ok is True and event_fields["exit_code"] is None:
            event_fields |= _success_fields(meta)
        if isinstance(event, Message) and event.intent == "question" and output:
            self.builder.add_incoming_message(
                self.builder.truncate_text(output), lane=self.lane, at=None, intent="answer"
            )
        return self.builder.finish(event, **event_fields)

    def _join_subagents(self, event: AnyEvent | None, result: Mapping[str, Any]) -> None:
        """The sub-agents that a result refers to, joined to the call that handed over to them."""
        for reference in subagent_references(result):
            located = self.run.resolve_reference(reference, self.path)
            if located is None:
                self.builder.count_skip("a sub-agent's trajectory that is not there")
                continue
            if event is None:
                event = self.builder.add(
                    Handoff(number=self.builder.next_number, lane=self.lane, brief="")
                )
            lane = self.run.add_child_lane(located[0], self.lane, located[1])
            brief, report = _brief_and_report(located[0])
            joined = handoff_from_call(event, lane)
            back = (report or None) if joined.report is None else joined.report
            joined = msgspec.structs.replace(joined, brief=joined.brief or brief, report=back)
            self.builder.replace_event(joined)
            event = None


def _brief_and_report(trajectory: Mapping[str, Any]) -> tuple[str, str]:
    """What a sub-agent was asked, and what it said last."""
    brief = report = ""
    for step in as_list(trajectory.get("steps")):
        fields = as_mapping(step)
        if fields.get("is_copied_context") is True:
            continue
        if fields.get("source") == "user":
            brief = brief or atif_content_text(fields.get("message"))
        elif fields.get("source") == "agent":
            report = atif_content_text(fields.get("message")) or report
    return brief, report


def _is_placeholder_text(said: str, calls: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a message is only what Harbor's converters write where the agent said nothing."""
    if not calls:
        return False
    if said in ("(no assistant text)", "(tool use)", "(tool calls)"):
        return True
    tools = [(call.get("function_name"), call.get("tool_call_id")) for call in calls]
    plain = said.removesuffix(" (no result)")
    return any(plain in (f"Executed {tool}", f"Executed {tool} {key}") for tool, key in tools)


def _success_fields(meta: Mapping[str, Any]) -> dict[str, object]:
    """Claude Code says nothing of an exit code only where it is 0."""
    tool_result = as_mapping(meta.get("tool_use_result"))
    odd = ("interrupted", "backgroundTaskId", "returnCodeInterpretation")
    if "stdout" not in tool_result or any(tool_result.get(key) for key in odd):
        return {}
    return {"exit_code": 0, "exit_from": "parsed"}


def _parse_turn(value: Any) -> Turn | None:
    try:
        return msgspec.convert(value, Turn) if isinstance(value, dict) else None
    except msgspec.ValidationError:
        return None


def atif_content_text(content: Any) -> str:
    """A message or a result: text, or parts with text and with media, which are named."""
    if content is None:
        return ""
    if not isinstance(content, list):
        return text_or_json(content)
    pieces = []
    for part in content:
        fields = as_mapping(part)
        path = clean_text(as_mapping(fields.get("source")).get("path"))
        media = f"[{fields.get('type')}: {path}]" if path else ""
        pieces.append(clean_text(fields.get("text")) or media)
    return "\n".join(one for one in pieces if one)


def usage_from_atif(metrics: Mapping[str, Any]) -> Usage:
    """What one step used; prompt tokens have in them what came from and went to a cache."""
    extra = as_mapping(metrics.get("extra"))
    read = as_count(metrics.get("cached_tokens"))
    write = as_count(extra.get("cache_creation_input_tokens"))
    prompt_tokens, completion_tokens = (
        as_count(metrics.get("prompt_tokens")),
        as_count(metrics.get("completion_tokens")),
    )
    cost = as_amount(metrics.get("cost_usd"))
    if not prompt_tokens and not completion_tokens and not cost:
        return Usage()
    reasoning = extra.get("reasoning_tokens", extra.get("reasoning_output_tokens"))
    return make_usage(
        uncached_input_tokens(prompt_tokens, read, write),
        completion_tokens,
        read=read,
        write=write,
        reasoning=as_count(reasoning),
        cost=cost,
    )


def is_trajectory(value: Any) -> bool:
    """Whether a JSON value is one trajectory."""
    return (
        isinstance(value, dict)
        and isinstance(value.get("schema_version"), str)
        and value["schema_version"].startswith("ATIF-v")
        and isinstance(value.get("steps"), list)
    )


def iter_referenced_paths(document: Any) -> Iterator[str]:
    """The files that a trajectory names: sub-agents' and the one in which it goes on."""
    for trajectory in (document, *iter_embedded_trajectories(document)):
        for step in as_list(as_mapping(trajectory).get("steps")):
            for result in observation_results(as_mapping(step)):
                for reference in subagent_references(result):
                    if path := clean_text(reference.get("trajectory_path")):
                        yield path
        if path := clean_text(as_mapping(trajectory).get("continued_trajectory_ref")):
            yield path


def iter_embedded_trajectories(trajectory: Any) -> Iterator[Mapping[str, Any]]:
    """Sub-agents' trajectories inside it, at any depth."""
    for inner in as_list(as_mapping(trajectory).get("subagent_trajectories")):
        if isinstance(inner, dict):
            yield inner
            yield from iter_embedded_trajectories(inner)


def find_trajectory_file(path: Path, named: str) -> Path | None:
    """A file that is named, where it is there and nowhere but below the folder of the first."""
    try:
        inner = path.parent / named
        if "://" in named or not inner.is_file():
            return None
        near = inner.parent == path.parent and not inner.is_symlink()
        if near or inner.resolve().is_relative_to(path.parent.resolve()):
            return inner
    except (OSError, ValueError, RuntimeError):
        pass
    return None


def observation_results(step: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    results = as_list(as_mapping(step.get("observation")).get("results"))
    return [result for result in results if isinstance(result, dict)]


def subagent_references(result: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    references = result.get("subagent_trajectory_ref")
    references = references if isinstance(references, list) else [references]
    return [reference for reference in references if isinstance(reference, dict)]
