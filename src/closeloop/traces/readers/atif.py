"""Harbor's Agent Trajectory Interchange Format, ATIF 1.0 to 1.8.

A sub-agent's trajectory is embedded in its parent's or in its own file; a long run continues in
another file, which begins with a copy of what came before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from closeloop.records.attempt import Usage
from closeloop.records.protocols import RecordingSource
from closeloop.records.record import content_digest
from closeloop.records.trace import (
    UNKNOWN_AGENT,
    AnyEvent,
    Command,
    Handoff,
    Message,
    Session,
    Thought,
    Turn,
)
from closeloop.text.untrusted import MAX_NOTE_CHARS
from closeloop.traces.message_parts import handoff_from_call
from closeloop.traces.session_builder import CUT_OFF, ROOT_LANE, SessionBuilder, count_skip
from closeloop.traces.tool_calls import CallOrigin, event_from_call, result_fields
from closeloop.traces.trace_export import (
    EXPORT_KEY,
    SessionExtras,
    parse_session_extras,
    restore_event,
)
from closeloop.traces.untrusted_json import (
    as_amount,
    as_count,
    as_list,
    as_mapping,
    clean_text,
    make_usage,
    storable_arguments,
    text_or_json,
    time_from_text,
    uncached_input_tokens,
)

# The steps of one trajectory as events.


LocatedTrajectory = tuple[Mapping[str, Any], Path]
MAX_FILES = 1000


class AtifRun(Protocol):
    """What the steps need of their run."""

    source: RecordingSource
    builder: SessionBuilder
    system: str | None
    asked: set[str]
    """Lanes whose agent received its request."""

    def resolve_reference(
        self, reference: Mapping[str, Any], path: Path
    ) -> LocatedTrajectory | None: ...

    def add_child_lane(self, trajectory: Mapping[str, Any], parent: str, path: Path) -> str: ...


class AtifStepReader:
    """Reads the steps of one trajectory."""

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
        export_fields = as_mapping(as_mapping(step.get("extra")).get(EXPORT_KEY))
        if export_fields.get("empty") is True:
            return
        match step.get("source"):
            case "agent":
                self._add_agent_step(step, export_fields)
            case "user":
                self._add_user_message(step, export_fields)
            case "system":
                self._add_system_message(step, export_fields)
            case step_source:
                note_kind = f"unknown: {step_source}"
                self.builder.add_note(
                    text_or_json(step)[:MAX_NOTE_CHARS], about=note_kind, lane=self.lane
                )

    def _add_user_message(self, step: Mapping[str, Any], export_fields: Mapping[str, Any]) -> None:
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
        self._restore_event(event, export_fields)
        self._pair_results(step, [])

    def _add_system_message(
        self, step: Mapping[str, Any], export_fields: Mapping[str, Any]
    ) -> None:
        text = atif_content_text(step.get("message"))
        time = time_from_text(step.get("timestamp"))
        first = self.lane == ROOT_LANE and self.run.system is None and not self.run.asked
        managed = as_mapping(as_mapping(step.get("extra")).get("context_management"))
        if first and not export_fields and self.turn is None:
            self.run.system = self.builder.truncate_text(text)
        elif managed:
            note_kind = clean_text(managed.get("type")) or "context management"
            self.builder.add_note(text, about=note_kind, lane=self.lane, at=time)
        elif text or export_fields:
            event = Message(
                number=self.builder.next_number,
                lane=self.lane,
                at=time,
                role="system",
                text=self.builder.truncate_text(text),
            )
            self._restore_event(event, export_fields)
        self._pair_results(step, [])

    def _restore_event(self, event: Message | Thought, export_fields: Mapping[str, Any]) -> None:
        self.builder.add(restore_event(event, export_fields.get("event")))

    def _add_agent_step(self, step: Mapping[str, Any], export_fields: Mapping[str, Any]) -> None:
        time = time_from_text(step.get("timestamp"))
        fresh_turn = self._begin_turn(step, export_fields)
        base: dict[str, Any] = {"lane": self.lane, "turn": self.turn, "at": time}
        thought = clean_text(step.get("reasoning_content"))
        new = bool(thought) and (fresh_turn or thought != self.thought)
        if "thought" in export_fields or (new and not export_fields):
            # Steps that were split from one reply repeat its reasoning.
            thought_event = Thought(
                number=self.builder.next_number,
                **base,
                text=self.builder.truncate_text(thought or ""),
            )
            self.builder.add(restore_event(thought_event, export_fields.get("thought")))
        self.thought = thought
        calls = [call for call in as_list(step.get("tool_calls")) if isinstance(call, dict)]
        text = atif_content_text(step.get("message"))
        if (text and not _is_placeholder_text(text, calls)) or "message" in export_fields:
            message = Message(
                number=self.builder.next_number,
                **base,
                role="agent",
                text=self.builder.truncate_text(text),
            )
            self.builder.add(restore_event(message, export_fields.get("message")))
        events = [self._add_call(call, base, text) for call in calls]
        self._pair_results(step, events)
        for event, call in zip(events, calls, strict=True):
            own_fields = as_mapping(call.get("extra")).get(EXPORT_KEY)
            if isinstance(own_fields, dict):
                restored_event = restore_event(self.builder.events[event.number - 1], own_fields)
                self.builder.replace_event(restored_event)

    def _begin_turn(self, step: Mapping[str, Any], export_fields: Mapping[str, Any]) -> bool:
        """Whether a step begins another reply. One without metrics continues the last."""
        metrics = as_mapping(step.get("metrics"))
        model = clean_text(step.get("model_name")) or self.model
        own_turn = None
        if "turn" in export_fields:
            stated_turn = as_count(export_fields["turn"]) or 0
            if stated_turn <= self.builder.count_turns(self.lane):
                self.turn = stated_turn or None
                return True
            own_turn = _parse_turn(export_fields.get("reply"))
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

    def _add_call(self, call: Mapping[str, Any], base: Mapping[str, Any], text: str) -> AnyEvent:
        tool = clean_text(call.get("function_name")) or "unknown"
        origin = CallOrigin(
            number=self.builder.next_number, **base, call=clean_text(call.get("tool_call_id"))
        )
        call_arguments = storable_arguments(call.get("arguments"), self.run.source.skipped)
        if tool == "mark_task_complete":
            return self._add_claim(origin, text)
        if call_arguments and isinstance(call_arguments.get("keystrokes"), str):
            typed = Command(
                number=self.builder.next_number,
                **base,
                call=origin.call,
                command=call_arguments["keystrokes"],
            )
            return self.builder.add(typed)
        return self.builder.add(event_from_call(tool, call_arguments, origin))

    def _add_claim(self, origin: CallOrigin, text: str) -> AnyEvent:
        """Add the step's message as the claim; an empty one if it has none."""
        last = self.builder.events[-1] if self.builder.events else None
        if isinstance(last, Message) and last.text == text and last.turn == origin.turn:
            return self.builder.finish(last, intent="claim", call=origin.call)
        claim = Message(**msgspec.structs.asdict(origin), role="agent", text=text, intent="claim")
        return self.builder.add(claim)

    def _pair_results(self, step: Mapping[str, Any], events: list[AnyEvent]) -> None:
        """Pair each result with the call it names, or with the last one."""
        open_calls = list(events)
        results = observation_results(step)
        for result in results:
            call_id = clean_text(result.get("source_call_id"))
            event = next((open_call for open_call in open_calls if open_call.call == call_id), None)
            if event is None and call_id is None and open_calls:
                event = open_calls[0 if len(results) == len(events) else -1]
            if event is not None:
                open_calls.remove(event)
            elif call_id is not None:
                # Some write a call's result into a separate step.
                event = self.builder.find_open_call(self.lane, call_id)
            if event is not None:
                event = self._finish_call(event, result, step, alone=len(events) == 1)
            elif text := atif_content_text(result.get("content")):
                time = time_from_text(step.get("timestamp"))
                self.builder.add_note(text, "observation", lane=self.lane, at=time)
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
            # Harbor's converter repeats the output in the content, with its own markers.
            output = text_or_json(raw["content"])
        # A raw result is in Anthropic's format: without an error flag it is a success.
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
                self.builder.truncate_text(output), lane=self.lane, time=None, intent="answer"
            )
        return self.builder.finish(event, **event_fields)

    def _join_subagents(self, event: AnyEvent | None, result: Mapping[str, Any]) -> None:
        """Join the sub-agents of a result to the call that started them."""
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
            final_report = (report or None) if joined.report is None else joined.report
            joined = msgspec.structs.replace(
                joined, brief=joined.brief or brief, report=final_report
            )
            self.builder.replace_event(joined)
            event = None


def _brief_and_report(trajectory: Mapping[str, Any]) -> tuple[str, str]:
    """Return a sub-agent's request and its last message."""
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


def _is_placeholder_text(text: str, calls: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a message is only the placeholder of Harbor's converters."""
    if not calls:
        return False
    if text in ("(no assistant text)", "(tool use)", "(tool calls)"):
        return True
    tools = [(call.get("function_name"), call.get("tool_call_id")) for call in calls]
    plain = text.removesuffix(" (no result)")
    return any(plain in (f"Executed {tool}", f"Executed {tool} {key}") for tool, key in tools)


def _success_fields(meta: Mapping[str, Any]) -> dict[str, object]:
    """Claude Code omits an exit code only if it is 0."""
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
    """Return the text of a message or result; media are named."""
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
    return "\n".join(piece for piece in pieces if piece)


def usage_from_atif(metrics: Mapping[str, Any]) -> Usage:
    """Return the usage of one step; prompt tokens include cache reads and writes."""
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
    """Yield the files that a trajectory names: sub-agents' and its continuation."""
    for trajectory in (document, *iter_embedded_trajectories(document)):
        for step in as_list(as_mapping(trajectory).get("steps")):
            for result in observation_results(as_mapping(step)):
                for reference in subagent_references(result):
                    if path := clean_text(reference.get("trajectory_path")):
                        yield path
        if path := clean_text(as_mapping(trajectory).get("continued_trajectory_ref")):
            yield path


def iter_embedded_trajectories(trajectory: Any) -> Iterator[Mapping[str, Any]]:
    """Yield embedded trajectories of sub-agents, at any depth."""
    for inner in as_list(as_mapping(trajectory).get("subagent_trajectories")):
        if isinstance(inner, dict):
            yield inner
            yield from iter_embedded_trajectories(inner)


def find_trajectory_file(path: Path, file_name: str) -> Path | None:
    """Return a named file if it exists below the folder of the first."""
    try:
        inner = path.parent / file_name
        if "://" in file_name or not inner.is_file():
            return None
        is_sibling = inner.parent == path.parent and not inner.is_symlink()
        if is_sibling or inner.resolve().is_relative_to(path.parent.resolve()):
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


name = "atif"
version = 3
COPIED_CONTEXT = "copied context"


def recognises(source: RecordingSource) -> bool:
    if b"ATIF-v" not in source.head:
        return False
    lines = source.lines
    if lines and is_trajectory(lines[0]):
        return True
    return is_trajectory(source.document)


def parts(source: RecordingSource) -> Sequence[Path]:
    return list(_iter_named_files(source))


def _iter_named_files(source: RecordingSource) -> Iterator[Path]:
    """Yield the files that a trajectory names, and those that they name, nearest first."""
    seen_paths = {source.path}
    pending = [source.path]
    while pending:
        path = pending.pop(0)
        document = source.document if path == source.path else source.beside(path).document
        for file_name in dict.fromkeys(iter_referenced_paths(document)):
            inner = find_trajectory_file(path, file_name)
            if inner is not None and inner not in seen_paths and len(seen_paths) <= MAX_FILES:
                seen_paths.add(inner)
                pending.append(inner)
                yield inner


def owner(source: RecordingSource) -> Path | None:
    folder, file_name = source.path.parent, source.path.name
    # `run.json` may own `run.agent.json`: no other file of the folder is read.
    ends = [index for index, letter in enumerate(file_name) if letter == "."]
    owner_paths = sorted(folder / f"{file_name[:end]}.json" for end in ends)
    for path in (*owner_paths, folder / "trajectory.json", folder.parent / "trajectory.json"):
        if (
            path != source.path
            and path.is_file()
            and source.path in _iter_named_files(source.beside(path))
        ):
            return path
    return None


def read(source: RecordingSource) -> Iterator[Session]:
    document = source.document
    for trajectory in source.records() if document is None else [document]:
        if is_trajectory(trajectory):
            yield AtifSession(
                source, trajectory, SessionBuilder(name, version, source.skipped)
            ).build_session()
        else:
            key = "a record that is no trajectory"
            count_skip(source.skipped, key)


class AtifSession:
    """Builds one run."""

    def __init__(
        self, source: RecordingSource, trajectory: Mapping[str, Any], builder: SessionBuilder
    ) -> None:
        self.source = source
        self.top = trajectory
        self.builder = builder
        self.system: str | None = None
        self.read: set[int] = set()
        self.files = {source.path}
        self.inside = {
            id(embedded_trajectory): embedded_trajectory
            for embedded_trajectory in iter_embedded_trajectories(trajectory)
        }
        self.lanes = {ROOT_LANE}
        self.asked: set[str] = set()

    def build_session(self) -> Session:
        top, agent = self.top, as_mapping(self.top.get("agent"))
        extra = as_mapping(agent.get("extra"))
        self.builder.open_lane(agent=clean_text(agent.get("name")))
        self.add_lane(top, ROOT_LANE, self.source.path)
        self.builder.drop_unknown_children(self.lanes)
        times = [event.at for event in self.builder.events if event.at]
        cut_off = self.builder.ends_inside_call()
        extras = parse_session_extras(
            as_mapping(top.get("extra")).get(EXPORT_KEY)
        ) or SessionExtras(
            exit="crashed" if cut_off else "finished",
            cause=CUT_OFF if cut_off else None,
            started=min(times, default=None),
            ended=max(times, default=None),
            summary=self.builder.mark_claim(),
            directory=_first_text(extra, "cwds", "cwd"),
            branch=_first_text(extra, "git_branches", "git_branch"),
        )
        if notes := clean_text(top.get("notes")):
            self.builder.add_note(notes, "notes")
        stated_version = agent.get("version")
        return self.builder.build_session(
            id=clean_text(top.get("session_id"))
            or clean_text(top.get("trajectory_id"))
            or content_digest(text_or_json(top)),
            agent=clean_text(agent.get("name")) or UNKNOWN_AGENT,
            agent_version=clean_text(stated_version) if stated_version != "unknown" else None,
            model=self.builder.most_used_model() or clean_text(agent.get("model_name")),
            system=self.system,
            usage=self.total_usage(),
            copy="exported",
            **msgspec.structs.asdict(extras),
        )

    def total_usage(self) -> Usage:
        """Return the sum of the steps, or the stated total if steps have none."""
        summed = self.builder.total_usage()
        final = as_mapping(self.top.get("final_metrics"))
        stated_metrics = {key.removeprefix("total_"): value for key, value in final.items()}
        stated_usage = usage_from_atif(stated_metrics)
        if summed == Usage():
            return stated_usage
        if stated_usage.cost:
            # The total includes the cost of sub-agents, which their steps may lack.
            return msgspec.structs.replace(summed, cost=stated_usage.cost, cost_from="reported")
        return summed

    def add_lane(self, trajectory: Mapping[str, Any], lane: str, path: Path) -> None:
        """Add the steps of one agent and their continuation."""
        self.read.add(id(trajectory))
        steps = [as_mapping(step) for step in as_list(trajectory.get("steps"))]
        new = [step for step in steps if step.get("is_copied_context") is not True]
        if len(new) < len(steps):
            copied = f"steps that are copies: {len(steps) - len(new)}"
            self.builder.add_note(copied, about=COPIED_CONTEXT, lane=lane)
        lane_steps = AtifStepReader(self, trajectory, lane, path)
        for step in new:
            lane_steps.add_step(step)
        for inner in as_list(trajectory.get("subagent_trajectories")):
            if isinstance(inner, dict) and id(inner) not in self.read:
                self.add_child_lane(inner, lane, path)
        next_path = clean_text(trajectory.get("continued_trajectory_ref"))
        if next_path and (continuation := self.load_file(path, next_path)) is not None:
            self.add_lane(continuation[0], lane, continuation[1])

    def load_file(self, path: Path, file_name: str) -> tuple[Mapping[str, Any], Path] | None:
        """Load another file of the run, once."""
        sibling = find_trajectory_file(path, file_name)
        if sibling is None or sibling in self.files or len(self.files) > MAX_FILES:
            return None
        self.files.add(sibling)
        document = self.source.beside(sibling).document
        return (document, sibling) if is_trajectory(document) else None

    def resolve_reference(
        self, reference: Mapping[str, Any], path: Path
    ) -> tuple[Mapping[str, Any], Path] | None:
        """Return the trajectory of a reference: embedded, or in a file beside."""
        for key in ("trajectory_id", "session_id"):
            wanted_id = clean_text(reference.get(key))
            for inner in self.inside.values():
                if wanted_id and inner.get(key) == wanted_id and id(inner) not in self.read:
                    return inner, path
        named_path = clean_text(reference.get("trajectory_path"))
        return self.load_file(path, named_path) if named_path else None

    def add_child_lane(self, trajectory: Mapping[str, Any], parent: str, path: Path) -> str:
        """Open a sub-agent's lane and read it."""
        stated_id = clean_text(trajectory.get("trajectory_id")) or clean_text(
            trajectory.get("session_id")
        )
        lane = stated_id or f"agent {len(self.lanes)}"
        while lane in self.lanes:
            lane = f"{lane}'"
        self.lanes.add(lane)
        agent = clean_text(as_mapping(trajectory.get("agent")).get("name"))
        self.builder.open_lane(lane, parent, agent)
        self.add_lane(trajectory, lane, path)
        return lane


def _first_text(fields: Mapping[str, Any], list_key: str, key: str) -> str | None:
    values = as_list(fields.get(list_key))
    return clean_text(values[0]) if values else clean_text(fields.get(key))
