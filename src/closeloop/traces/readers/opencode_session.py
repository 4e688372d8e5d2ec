"""OpenCode's messages and parts, from an export, a stream or a store."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Literal, NamedTuple

import msgspec

from closeloop.records.attempt import Exit, Usage
from closeloop.records.trace import (
    AnyEvent,
    Command,
    Edit,
    Handoff,
    Message,
    Note,
    Read,
    Session,
    ToolUse,
    Turn,
)
from closeloop.traces.session_builder import ROOT_LANE, SessionBuilder
from closeloop.traces.tool_calls import CallOrigin, event_from_call, files_in_patch
from closeloop.traces.untrusted_json import (
    as_amount,
    as_count,
    as_exit_code,
    as_label,
    as_list,
    as_mapping,
    as_text,
    json_excerpt,
    make_usage,
    seconds_between,
    storable_arguments,
    storable_value,
    time_from_millis,
)

# The parts of OpenCode's messages: what a call starts, how it ended, what a reply used.


TASK_TAG = re.compile(r'<task id="([^"]{1,200})" state="(\w+)">')
REPORT_TAG = re.compile(r"<task_(?:result|error)>\n?(.*?)\n?</task_(?:result|error)>", re.DOTALL)


def usage_from_opencode(tokens: Any, cost: Any) -> Usage:
    """Return tokens and cost; only zeros is unknown."""
    token_fields, cache = as_mapping(tokens), as_mapping(as_mapping(tokens).get("cache"))
    input_tokens, output_tokens = (
        as_count(token_fields.get("input")),
        as_count(token_fields.get("output")),
    )
    reasoning, total = as_count(token_fields.get("reasoning")), as_count(token_fields.get("total"))
    read, write = as_count(cache.get("read")), as_count(cache.get("write"))
    if not any((input_tokens, output_tokens, reasoning, read, write)):
        return Usage()
    # Newer versions count reasoning separately from the output, older ones include it.
    is_separate = total is not None and total == sum(
        n or 0 for n in (input_tokens, output_tokens, reasoning, read, write)
    )
    paid = as_amount(cost) or None
    output_tokens = (output_tokens or 0) + (reasoning or 0) if is_separate else output_tokens
    reasoning = reasoning or None
    return make_usage(
        input_tokens, output_tokens, read=read, write=write, reasoning=reasoning, cost=paid
    )


def events_from_opencode_call(
    name: str, arguments: dict[str, Any] | None, metadata: Mapping[str, Any], origin: CallOrigin
) -> list[AnyEvent]:
    """Return the events of a call; a patch edits as many files as it names."""
    if name in ("apply_patch", "patch") and (edits := _patch_edits(arguments, metadata, origin)):
        return edits
    event = event_from_call(name, arguments, origin)
    patched = isinstance(event, Edit) and as_text(metadata.get("diff"))
    return (
        [msgspec.structs.replace(event, patch=storable_value(patched, {}))] if patched else [event]
    )


def _patch_edits(
    arguments: dict[str, Any] | None, metadata: Mapping[str, Any], origin: CallOrigin
) -> list[AnyEvent]:
    """Return the changed files; for a patch that failed, those that it names."""
    files = [as_mapping(file) for file in as_list(metadata.get("files"))]
    actions = {"add": "create", "delete": "delete", "move": "move"}
    file_edits = [
        {
            "path": storable_value(file["filePath"], {}),
            "action": actions.get(str(file.get("type")), "change"),
            "patch": storable_value(as_text(file.get("patch")) or as_text(file.get("diff")), {}),
        }
        for file in files
        if as_text(file.get("filePath"))
    ]
    patch = as_text(as_mapping(arguments).get("patchText"))
    if not file_edits and patch:
        file_edits = [file._asdict() for file in files_in_patch(patch)]
    origin_fields = msgspec.structs.asdict(origin)
    return [
        Edit(**{**origin_fields, "number": n, **file_edit})
        for n, file_edit in enumerate(file_edits, origin.number)
    ]


def _stop_reason(result: str) -> str | None:
    """Return what stopped a command early."""
    if "terminated command after exceeding timeout" in result[-600:]:
        return "out of time"
    return "interrupted" if result == "Tool execution aborted" else None


def finish_opencode_call(
    event: AnyEvent, done: bool | None, result: str | None, metadata: Mapping[str, Any]
) -> AnyEvent:
    """Return the event with its result; `done`: whether the tool worked, not the command."""
    event_fields: dict[str, Any] = {}
    match event:
        case Command():
            code = as_exit_code(metadata.get("exit"))
            event_fields = {"output": result, "stopped": _stop_reason(result or "")}
            if code is not None:
                event_fields |= {"exit_code": code, "exit_from": "stated"}
        case Edit():
            event_fields = {"ok": done, "error": result if done is False else None}
            if event.action == "create" and metadata.get("exists") is True:
                event_fields["action"] = "change"
        case Read():
            display = as_mapping(metadata.get("display"))
            event_fields = {"ok": done, "error": result if done is False else None}
            if done:
                event_fields |= {
                    "text": result,
                    "first_line": as_count(display.get("lineStart")),
                    "last_line": as_count(display.get("lineEnd")),
                }
        case Handoff():
            task = TASK_TAG.match(result) if result else None
            if task is None or task[2] != "running":
                report = REPORT_TAG.search(result) if result else None
                event_fields = {"report": report[1] if report else result, "ok": done}
        case ToolUse():
            event_fields = {"output": result, "ok": done}
    return msgspec.structs.replace(event, **event_fields) if event_fields else event


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
    """A session: its description, and its messages in order."""

    info: Mapping[str, Any]
    messages: Iterable[Any]
    """Each with `info` and `parts`."""


class OpencodeFamily:
    """A session and its descendants; children are found by id."""

    def __init__(self, children: Mapping[str, Any], skipped: dict[str, int]) -> None:
        self.children = children
        self.skipped = skipped
        self.read_ids: set[str] = set()

    def take_child(self, name: str | None) -> OpencodeRecording | None:
        """Return a child that exists and was not added yet."""
        if name is None or name in self.read_ids or name not in self.children:
            return None
        self.read_ids.add(name)
        child = self.children[name]
        return child if isinstance(child, OpencodeRecording) else None


class _OpencodeLane:
    """The state while one session is read."""

    def __init__(
        self, builder: SessionBuilder, name: str, family: OpencodeFamily, depth: int
    ) -> None:
        self.builder = builder
        self.name = name
        self.family = family
        self.depth = depth
        self.model: str | None = None
        self.system: str | None = None
        self.finish: str | None = None
        self.error: tuple[Exit, str] | None = None
        self.last: int | None = None
        """Number of the agent's last message."""
        self.handoffs: dict[str, int] = {}
        """Child → number of the event that started it."""


def session_from_opencode(
    recorded: OpencodeRecording, family: OpencodeFamily, reader: tuple[str, int]
) -> Session:
    """Build a session with its children as lanes."""
    builder = SessionBuilder(*reader, family.skipped)
    info = recorded.info
    builder.open_lane(agent=as_label(info.get("agent")))
    identity = as_label(info.get("id"))
    if identity:
        family.read_ids.add(identity)
    lane = _OpencodeLane(builder, ROOT_LANE, family, 0)
    _add_messages(lane, recorded)
    claimed = lane.error is None and lane.finish == "stop"
    if claimed and lane.last is not None:
        builder.update_event(builder.events[lane.last - 1], intent="claim")
    last_message = builder.events[lane.last - 1] if lane.last is not None else None
    builder.mark_corrections()
    exit_, cause = lane.error or ("finished", None)
    time = as_mapping(info.get("time"))
    return builder.build_session(
        id=identity or "unnamed",
        agent=AGENT_NAME,
        agent_version=as_label(info.get("version")),
        model=builder.most_used_model() or lane.model,
        system=lane.system,
        started=time_from_millis(time.get("created")) or builder.started,
        ended=builder.ended or time_from_millis(time.get("updated")),
        exit=exit_,
        cause=cause,
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
    time = lane.builder.record_time(time_from_millis(as_mapping(info.get("time")).get("created")))
    system = as_text(info.get("system"))
    if system and lane.system is None:
        lane.system = lane.builder.truncate_text(system)
    for part in parts:
        message_text = as_text(part.get("text"))
        if part.get("type") == "text" and message_text is not None:
            if part.get("synthetic") is True and _finish_background_child(lane, message_text):
                continue
            if part.get("synthetic") is True or part.get("ignored") is True:
                lane.builder.add_note(message_text, "added by agent", lane=lane.name, at=time)
                continue
            text = lane.builder.truncate_text(message_text)
            lane.builder.add_incoming_message(text, lane=lane.name, time=time)
        else:
            _add_aside(lane, part, time)


def _finish_background_child(lane: _OpencodeLane, text: str) -> bool:
    """Add the report of a background child."""
    task_tag = TASK_TAG.match(text)
    number = lane.handoffs.get(task_tag[1]) if task_tag else None
    if task_tag is None or number is None or task_tag[2] == "running":
        return False
    report = REPORT_TAG.search(text)
    lane.builder.finish(
        lane.builder.events[number - 1],
        report=lane.builder.truncate_text(report[1] if report else text),
        ok=task_tag[2] == "completed",
    )
    return True


def _add_aside(
    lane: _OpencodeLane, part: Mapping[str, Any], time: datetime | None, turn: Any = None
) -> None:
    """Add what is neither a message nor an action."""
    kind = part.get("type")
    match kind:
        case "text" | "reasoning" | "step-start" | "snapshot":
            return
        case "compaction":
            note_kind, note_text = "compaction", "The conversation was shortened."
        case "patch":
            files = [path for path in as_list(part.get("files")) if isinstance(path, str)]
            note_kind, note_text = "files changed", "\n".join(files)
        case "file":
            note_kind, note_text = (
                "attachment",
                as_text(part.get("filename")) or as_text(part.get("mime")) or "",
            )
        case "agent" | "subtask":
            note_kind, note_text = (
                str(kind),
                as_text(part.get("prompt")) or as_text(part.get("name")) or "",
            )
        case "retry":
            note_kind, note_text = "retry", json_excerpt(part.get("error"))
        case _:
            note_kind, note_text = f"unknown: {kind}"[:100], json_excerpt(part)
    lane.builder.add_note(note_text, note_kind, lane=lane.name, turn=turn, at=time)


def _add_assistant_message(
    lane: _OpencodeLane, info: Mapping[str, Any], parts: Iterator[dict[str, Any]]
) -> None:
    builder, time_fields = lane.builder, as_mapping(info.get("time"))
    started, ended = (
        lane.builder.record_time(time_from_millis(time_fields.get("created"))),
        lane.builder.record_time(time_from_millis(time_fields.get("completed"))),
    )
    # Ids may be equal: published sessions may have redacted ids.
    model, key = as_label(info.get("modelID")), f"message {builder.count_turns(lane.name)}"
    lane.model = lane.model or model
    base = Turn(model=model, at=started, seconds=seconds_between(started, ended))
    step, turn, is_counted = 0, None, False
    for part in parts:
        kind = part.get("type")
        # Older versions put several answers of the provider into one message, as steps.
        if turn is None or (kind == "step-start" and is_counted):
            step, is_counted = step + 1, False
            turn = builder.add_turn(lane.name, base, f"{key} {step}")
        if kind == "step-finish":
            usage = usage_from_opencode(part.get("tokens"), part.get("cost"))
            builder.add_turn(lane.name, msgspec.structs.replace(base, usage=usage), f"{key} {step}")
            is_counted = True
            lane.finish = as_text(part.get("reason")) or lane.finish
        else:
            _add_part(
                lane,
                part,
                CallOrigin(number=builder.next_number, lane=lane.name, turn=turn, at=started),
                info,
            )
    if turn is None:
        step, turn = 1, builder.add_turn(lane.name, base, f"{key} 1")
    if not is_counted and step == 1:
        usage = usage_from_opencode(info.get("tokens"), info.get("cost"))
        builder.add_turn(lane.name, msgspec.structs.replace(base, usage=usage), f"{key} 1")
    lane.finish = as_text(info.get("finish")) or lane.finish
    lane.error = None
    if info.get("error") is not None:
        add_failure(lane, info["error"], started)


def add_failure(lane: _OpencodeLane, error: Any, time: datetime | None) -> None:
    """Add an answer that was aborted, and why."""
    name = as_text(as_mapping(error).get("name")) or "error"
    message = as_text(as_mapping(as_mapping(error).get("data")).get("message")) or json_excerpt(
        error
    )
    lane.error = (
        _EXITS.get(name, "crashed"),
        lane.builder.truncate_text(f"{name}: {message}")[:500],
    )
    if name != "MessageAbortedError":
        lane.builder.add_note(message, "error", lane=lane.name, at=time)
        return
    text = lane.builder.truncate_text(message)
    lane.builder.add_incoming_message(text, lane=lane.name, time=time, intent="interrupt")


def _add_part(
    lane: _OpencodeLane, part: dict[str, Any], origin: CallOrigin, info: Mapping[str, Any]
) -> None:
    kind, text = part.get("type"), part.get("text")
    time_fields = as_mapping(part.get("time"))
    start = lane.builder.record_time(time_from_millis(time_fields.get("start"))) or origin.at
    lane.builder.record_time(time_from_millis(time_fields.get("end")))
    number, name, turn = origin.number, origin.lane, origin.turn
    if kind == "tool":
        _add_tool_part(lane, part, origin)
    elif kind == "text" and isinstance(text, str) and text.strip():
        if info.get("summary") is True:
            _add_summary(lane, text, start)
            return
        model = as_label(info.get("modelID"))
        if model:
            lane.builder.models[model] += len(text)
        lane.last = number
        lane.builder.add_agent_message(text, lane=name, turn=turn, at=start)
    elif kind == "reasoning" and isinstance(text, str) and text.strip():
        lane.builder.add_thought(text, lane=name, turn=turn, at=start)
    else:
        _add_aside(lane, part, start, turn)


def _add_summary(lane: _OpencodeLane, text: str, time: datetime | None) -> None:
    """Add the summary of a compaction, which may already be noted."""
    last_event = lane.builder.events[-1] if lane.builder.events else None
    if (
        isinstance(last_event, Note)
        and last_event.about == "compaction"
        and last_event.lane == lane.name
    ):
        lane.builder.finish(last_event, text=lane.builder.truncate_text(text))
    else:
        lane.builder.add_note(text, about="compaction", lane=lane.name, at=time)


def _add_tool_part(lane: _OpencodeLane, part: Mapping[str, Any], origin: CallOrigin) -> None:
    state = as_mapping(part.get("state"))
    time, metadata = as_mapping(state.get("time")), as_mapping(state.get("metadata"))
    start, end = (
        lane.builder.record_time(time_from_millis(time.get("start"))),
        lane.builder.record_time(time_from_millis(time.get("end"))),
    )
    name = lane.builder.truncate_text(as_text(part.get("tool")) or "unnamed")
    call = as_text(part.get("callID"))
    call_arguments = storable_arguments(state.get("input"), lane.family.skipped)
    origin = CallOrigin(
        number=origin.number, lane=origin.lane, turn=origin.turn, at=start or origin.at,
        call=lane.builder.truncate_text(call) if call else None,
    )  # fmt: skip
    status = state.get("status")
    succeeded = None if status not in ("completed", "error") else status == "completed"
    result_text = as_text(state.get("output")) if succeeded else as_text(state.get("error"))
    result = (
        lane.builder.truncate_text(result_text)
        if result_text is not None
        else ""
        if succeeded
        else None
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
        feedback = result.partition("with the following feedback: ")[2] or result
        lane.builder.add_incoming_message(feedback, lane=lane.name, time=end, intent="correction")


def _add_answer(
    lane: _OpencodeLane,
    succeeded: bool,
    result: str | None,
    metadata: Mapping[str, Any],
    time: datetime | None,
) -> None:
    """Add the user's answer to a question, or that there was none."""
    answers = [
        ", ".join(str(choice) for choice in answer) if isinstance(answer, list) else str(answer)
        for answer in as_list(metadata.get("answers"))
    ]
    if not succeeded:
        lane.builder.add_note(result or "", about="question unanswered", lane=lane.name, at=time)
        return
    text = lane.builder.truncate_text("\n".join(answers) or result or "")
    lane.builder.add_incoming_message(text, lane=lane.name, time=time, intent="answer")


def _add_child(
    lane: _OpencodeLane, event: Handoff, name: str | None, arguments: Mapping[str, Any] | None
) -> None:
    """Add the session that received the work, and set its lane."""
    if name is None:
        return
    lane.handoffs[name] = event.number
    builder, family = lane.builder, lane.family
    recording = family.take_child(name) if lane.depth < MAX_CHILD_DEPTH else None
    if recording is None:
        if name in family.read_ids and name in family.children:
            # The same child got more work.
            builder.finish(builder.events[event.number - 1], child=lane.builder.truncate_text(name))
        return
    agent = as_text(recording.info.get("agent")) or as_text(
        as_mapping(arguments).get("subagent_type")
    )
    child = builder.open_lane(
        lane.builder.truncate_text(name),
        lane.name,
        lane.builder.truncate_text(agent) if agent else None,
    )
    builder.finish(builder.events[event.number - 1], child=child)
    _add_messages(_OpencodeLane(builder, child, family, lane.depth + 1), recording)
