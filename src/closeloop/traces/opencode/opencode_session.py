"""What OpenCode's messages and parts say, wherever they are kept: an export, a stream, a store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Literal, NamedTuple

import msgspec

from closeloop.records.attempt import Exit
from closeloop.records.session import Session
from closeloop.records.trace import Handoff, Message, Note, Thought, Turn
from closeloop.text.untrusted import truncate_middle
from closeloop.traces.call_results import mark_corrections
from closeloop.traces.opencode.opencode_parts import (
    REPORT_TAG,
    TASK_TAG,
    events_from_opencode_call,
    finish_opencode_call,
    usage_from_opencode,
)
from closeloop.traces.tool_calls import CallOrigin
from closeloop.traces.trace_builder import ROOT_LANE, TraceBuilder
from closeloop.traces.untrusted_json import (
    as_label,
    as_list,
    as_mapping,
    as_text,
    json_excerpt,
    seconds_between,
    storable_arguments,
    time_from_millis,
)

AGENT_NAME = "opencode"
MAX_CHILD_DEPTH = 20
_COPY_KINDS: dict[str, Literal["exported", "printed"]] = {
    "opencode": "exported",
    "opencode-run": "printed",
}
REJECTION_PREFIX = "The user rejected permission to use this specific tool call"
_EXITS: dict[str, Exit] = {
    "MessageAbortedError": "gave_up",
    "MessageOutputLengthError": "out_of_budget",
    "ContextOverflowError": "out_of_budget",
    "APIError": "machine",
    "ProviderAuthError": "machine",
}


class OpencodeRecording(NamedTuple):
    """A session as it was found: what it says of itself, and its messages in order."""

    info: Mapping[str, Any]
    messages: Iterable[Any]
    """Each with `info` and `parts`."""


class OpencodeFamily:
    """The sessions that came of one: children are looked up by their id."""

    def __init__(self, children: Mapping[str, Any], skipped: dict[str, int]) -> None:
        self.children = children
        self.skipped = skipped
        self.told: set[str] = set()

    def take_child(self, name: str | None) -> OpencodeRecording | None:
        """A child that is there and was not told yet."""
        if name is None or name in self.told or name not in self.children:
            return None
        self.told.add(name)
        child = self.children[name]
        return child if isinstance(child, OpencodeRecording) else None


class _OpencodeLane:
    """One session while it is told."""

    def __init__(
        self, builder: TraceBuilder, name: str, family: OpencodeFamily, depth: int
    ) -> None:
        self.builder = builder
        self.name = name
        self.family = family
        self.depth = depth
        self.model: str | None = None
        self.system: str | None = None
        self.finish: str | None = None
        self.error: tuple[Exit, str] | None = None
        self.asked = False
        self.last: int | None = None
        """The number of the last thing the agent said."""
        self.words: dict[str, int] = {}
        self.handoffs: dict[str, int] = {}
        """Child → the number of the event that sent it off."""
        self.first: datetime | None = None
        self.until: datetime | None = None

    def record_time(self, at: datetime | None) -> datetime | None:
        if at is not None:
            self.first = at if self.first is None else min(self.first, at)
            self.until = at if self.until is None else max(self.until, at)
        return at

    def truncate_text(self, value: str) -> str:
        return truncate_middle(value, self.family.skipped)


def session_from_opencode(
    recorded: OpencodeRecording, family: OpencodeFamily, reader: tuple[str, int]
) -> Session:
    """A session with its children as lanes."""
    builder = TraceBuilder(*reader)
    info = recorded.info
    builder.open_lane(agent=as_label(info.get("agent")))
    identity = as_label(info.get("id"))
    if identity:
        family.told.add(identity)
    lane = _OpencodeLane(builder, ROOT_LANE, family, 0)
    _add_messages(lane, recorded)
    claimed = lane.error is None and lane.finish == "stop"
    if claimed and lane.last is not None:
        event = builder.events[lane.last - 1]
        builder.events[lane.last - 1] = msgspec.structs.replace(event, intent="claim")
    last_message = builder.events[lane.last - 1] if lane.last is not None else None
    mark_corrections(builder)
    exit_, cause = lane.error or ("finished", None)
    time = as_mapping(info.get("time"))
    return Session(
        id=identity or "unnamed",
        agent=AGENT_NAME,
        trace=builder.build_trace(family.skipped),
        agent_version=as_label(info.get("version")),
        model=max(lane.words, key=lane.words.__getitem__) if lane.words else lane.model,
        system=lane.system,
        started=time_from_millis(time.get("created")) or lane.first,
        ended=lane.until or time_from_millis(time.get("updated")),
        exit=exit_,
        cause=cause,
        usage=builder.total_usage(),
        summary=last_message.text if isinstance(last_message, Message) else None,
        directory=as_label(info.get("directory")),
        parent=as_label(info.get("parentID")),
        copy=_COPY_KINDS.get(reader[0]),
        links={"share": url} if (url := as_label(as_mapping(info.get("share")).get("url"))) else {},
    )


def _add_messages(lane: _OpencodeLane, recorded: OpencodeRecording) -> None:
    reverted = as_text(as_mapping(recorded.info.get("revert")).get("messageID"))
    for message in recorded.messages:
        fields = as_mapping(message)
        info = as_mapping(fields.get("info"))
        if reverted and info.get("id") == reverted:
            lane.builder.add_note("What follows was taken back.", about="rewind", lane=lane.name)
        parts = (as_mapping(part) for part in as_list(fields.get("parts")))
        if info.get("role") == "user":
            _add_user_message(lane, info, parts)
        elif info.get("role") == "assistant":
            _add_assistant_message(lane, info, parts)
        else:
            lane.builder.add_note(json_excerpt(message), about="unknown: message", lane=lane.name)


def _add_user_message(
    lane: _OpencodeLane, info: Mapping[str, Any], parts: Iterator[dict[str, Any]]
) -> None:
    at = lane.record_time(time_from_millis(as_mapping(info.get("time")).get("created")))
    system = as_text(info.get("system"))
    if system and lane.system is None:
        lane.system = lane.truncate_text(system)
    for part in parts:
        said = as_text(part.get("text"))
        if part.get("type") == "text" and said is not None:
            if part.get("synthetic") is True and _finish_background_child(lane, said):
                continue
            if part.get("synthetic") is True or part.get("ignored") is True:
                lane.builder.add_note(
                    lane.truncate_text(said), about="added by agent", lane=lane.name, at=at
                )
                continue
            intent = None if lane.asked else "request"
            lane.asked = True
            lane.builder.add(
                Message(
                    number=lane.builder.next_number, lane=lane.name, at=at, role="user",
                    text=lane.truncate_text(said), intent=intent,  # type: ignore[arg-type]
                )
            )  # fmt: skip
        else:
            _add_aside(lane, part, at)


def _finish_background_child(lane: _OpencodeLane, said: str) -> bool:
    """The report of a child that worked in the background."""
    task_tag = TASK_TAG.match(said)
    number = lane.handoffs.get(task_tag[1]) if task_tag else None
    if task_tag is None or number is None or task_tag[2] == "running":
        return False
    report = REPORT_TAG.search(said)
    lane.builder.finish(
        lane.builder.events[number - 1],
        report=lane.truncate_text(report[1] if report else said),
        ok=task_tag[2] == "completed",
    )
    return True


def _add_aside(
    lane: _OpencodeLane, part: Mapping[str, Any], at: datetime | None, turn: Any = None
) -> None:
    """What is neither said nor done, but worth keeping."""
    kind = part.get("type")
    match kind:
        case "text" | "reasoning" | "step-start" | "snapshot":
            return
        case "compaction":
            about, note_text = "compaction", "The conversation was shortened."
        case "patch":
            files = [path for path in as_list(part.get("files")) if isinstance(path, str)]
            about, note_text = "files changed", "\n".join(files)
        case "file":
            about, note_text = (
                "attachment",
                as_text(part.get("filename")) or as_text(part.get("mime")) or "",
            )
        case "agent" | "subtask":
            about, note_text = (
                str(kind),
                as_text(part.get("prompt")) or as_text(part.get("name")) or "",
            )
        case "retry":
            about, note_text = "retry", json_excerpt(part.get("error"))
        case _:
            about, note_text = f"unknown: {kind}"[:100], json_excerpt(part)
    lane.builder.add(
        Note(
            number=lane.builder.next_number, lane=lane.name, turn=turn, at=at,
            text=lane.truncate_text(note_text), about=lane.truncate_text(about),
        )
    )  # fmt: skip


def _add_assistant_message(
    lane: _OpencodeLane, info: Mapping[str, Any], parts: Iterator[dict[str, Any]]
) -> None:
    builder, time = lane.builder, as_mapping(info.get("time"))
    at, until = (
        lane.record_time(time_from_millis(time.get("created"))),
        lane.record_time(time_from_millis(time.get("completed"))),
    )
    # Ids need not differ: who publishes sessions may have blackened them.
    model, key = as_label(info.get("modelID")), f"message {builder.count_turns(lane.name)}"
    lane.model = lane.model or model
    base = Turn(model=model, at=at, seconds=seconds_between(at, until))
    step, turn, counted = 0, None, False
    for part in parts:
        kind = part.get("type")
        # Older versions put several answers of the provider into one message, as steps.
        if turn is None or (kind == "step-start" and counted):
            step, counted = step + 1, False
            turn = builder.add_turn(lane.name, base, f"{key} {step}")
        if kind == "step-finish":
            usage = usage_from_opencode(part.get("tokens"), part.get("cost"))
            builder.add_turn(lane.name, msgspec.structs.replace(base, usage=usage), f"{key} {step}")
            counted = True
            lane.finish = as_text(part.get("reason")) or lane.finish
        else:
            _add_part(
                lane,
                part,
                CallOrigin(number=builder.next_number, lane=lane.name, turn=turn, at=at),
                info,
            )
    if turn is None:
        step, turn = 1, builder.add_turn(lane.name, base, f"{key} 1")
    if not counted and step == 1:
        usage = usage_from_opencode(info.get("tokens"), info.get("cost"))
        builder.add_turn(lane.name, msgspec.structs.replace(base, usage=usage), f"{key} 1")
    lane.finish = as_text(info.get("finish")) or lane.finish
    lane.error = None
    if info.get("error") is not None:
        add_failure(lane, info["error"], at)


def add_failure(lane: _OpencodeLane, error: Any, at: datetime | None) -> None:
    """An answer that was broken off, and why."""
    name = as_text(as_mapping(error).get("name")) or "error"
    message = as_text(as_mapping(as_mapping(error).get("data")).get("message")) or json_excerpt(
        error
    )
    lane.error = (_EXITS.get(name, "crashed"), lane.truncate_text(f"{name}: {message}")[:500])
    if name != "MessageAbortedError":
        lane.builder.add_note(lane.truncate_text(message), about="error", lane=lane.name, at=at)
        return
    number = lane.builder.next_number
    lane.builder.add(
        Message(
            number=number, lane=lane.name, at=at, role="user", text=lane.truncate_text(message),
            intent="interrupt",
        )
    )  # fmt: skip


def _add_part(
    lane: _OpencodeLane, part: dict[str, Any], origin: CallOrigin, info: Mapping[str, Any]
) -> None:
    kind, said = part.get("type"), part.get("text")
    time = as_mapping(part.get("time"))
    at = lane.record_time(time_from_millis(time.get("start"))) or origin.at
    lane.record_time(time_from_millis(time.get("end")))
    number, name, turn = origin.number, origin.lane, origin.turn
    if kind == "tool":
        _add_tool_part(lane, part, origin)
    elif kind == "text" and isinstance(said, str) and said.strip():
        if info.get("summary") is True:
            _add_summary(lane, lane.truncate_text(said), at)
            return
        model = as_label(info.get("modelID"))
        if model:
            lane.words[model] = lane.words.get(model, 0) + len(said)
        lane.last = number
        lane.builder.add(
            Message(
                number=number,
                lane=name,
                turn=turn,
                at=at,
                role="agent",
                text=lane.truncate_text(said),
            )
        )
    elif kind == "reasoning" and isinstance(said, str) and said.strip():
        lane.builder.add(
            Thought(number=number, lane=name, turn=turn, at=at, text=lane.truncate_text(said))
        )
    else:
        _add_aside(lane, part, at, turn)


def _add_summary(lane: _OpencodeLane, said: str, at: datetime | None) -> None:
    """What is left of a conversation that was shortened; that it was may be noted already."""
    mark = lane.builder.events[-1] if lane.builder.events else None
    if isinstance(mark, Note) and mark.about == "compaction" and mark.lane == lane.name:
        lane.builder.finish(mark, text=said)
    else:
        lane.builder.add_note(said, about="compaction", lane=lane.name, at=at)


def _add_tool_part(lane: _OpencodeLane, part: Mapping[str, Any], origin: CallOrigin) -> None:
    state = as_mapping(part.get("state"))
    time, metadata = as_mapping(state.get("time")), as_mapping(state.get("metadata"))
    start, end = (
        lane.record_time(time_from_millis(time.get("start"))),
        lane.record_time(time_from_millis(time.get("end"))),
    )
    name = lane.truncate_text(as_text(part.get("tool")) or "unnamed")
    call = as_text(part.get("callID"))
    call_arguments = storable_arguments(state.get("input"), lane.family.skipped)
    origin = CallOrigin(
        number=origin.number, lane=origin.lane, turn=origin.turn, at=start or origin.at,
        call=lane.truncate_text(call) if call else None,
    )  # fmt: skip
    status = state.get("status")
    succeeded = None if status not in ("completed", "error") else status == "completed"
    result_text = as_text(state.get("output")) if succeeded else as_text(state.get("error"))
    result = (
        lane.truncate_text(result_text) if result_text is not None else "" if succeeded else None
    )
    for event in events_from_opencode_call(name, call_arguments, metadata, origin):
        finished_event = finish_opencode_call(event, succeeded, result, metadata)
        lane.builder.add(
            msgspec.structs.replace(finished_event, seconds=seconds_between(start, end))
        )
    if isinstance(event, Handoff):
        _add_child(lane, event, as_text(metadata.get("sessionId")), call_arguments)
    elif isinstance(event, Message) and succeeded is not None:
        _add_answer(lane, succeeded, result, metadata, end)
    if succeeded is False and result and result.startswith(REJECTION_PREFIX):
        why = result.partition("with the following feedback: ")[2] or result
        lane.builder.add(
            Message(
                number=lane.builder.next_number, lane=lane.name, at=end, role="user",
                text=why, intent="correction",
            )
        )  # fmt: skip


def _add_answer(
    lane: _OpencodeLane,
    done: bool,
    result: str | None,
    metadata: Mapping[str, Any],
    at: datetime | None,
) -> None:
    """What the user said to a question, or that there was no answer."""
    answers = [
        ", ".join(str(choice) for choice in answer) if isinstance(answer, list) else str(answer)
        for answer in as_list(metadata.get("answers"))
    ]
    if not done:
        lane.builder.add_note(result or "", about="question unanswered", lane=lane.name, at=at)
        return
    said = lane.truncate_text("\n".join(answers) or result or "")
    lane.builder.add_incoming_message(said, lane=lane.name, at=at, intent="answer")


def _add_child(
    lane: _OpencodeLane, event: Handoff, name: str | None, given: Mapping[str, Any] | None
) -> None:
    """Tell the session that took the work, and say which lane it is."""
    if name is None:
        return
    lane.handoffs[name] = event.number
    builder, family = lane.builder, lane.family
    recording = family.take_child(name) if lane.depth < MAX_CHILD_DEPTH else None
    if recording is None:
        if name in family.told and name in family.children:
            # The same child was sent on with more work.
            builder.finish(builder.events[event.number - 1], child=lane.truncate_text(name))
        return
    agent = as_text(recording.info.get("agent")) or as_text(as_mapping(given).get("subagent_type"))
    child = builder.open_lane(
        lane.truncate_text(name), lane.name, lane.truncate_text(agent) if agent else None
    )
    builder.finish(builder.events[event.number - 1], child=child)
    inner = _OpencodeLane(builder, child, family, lane.depth + 1)
    _add_messages(inner, recording)
    for model, words in inner.words.items():
        lane.words[model] = lane.words.get(model, 0) + words
    lane.record_time(inner.first)
    lane.record_time(inner.until)
