"""Qwen Code's chats, with sub-agents recorded beside them; and its printed output."""

from __future__ import annotations

import hashlib
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from closeloop.records.attempt import Exit, Usage
from closeloop.records.protocols import RecordingSource
from closeloop.records.trace import AnyEvent, Command, Handoff, Message, Session, Thought, Turn
from closeloop.text.untrusted import truncate_middle
from closeloop.text.wording import count_with_noun
from closeloop.traces.readers.gemini import (
    event_from_gemini_call,
    finish_gemini_call,
    gemini_content_text,
    iter_function_calls,
    iter_function_responses,
    usage_from_gemini,
)
from closeloop.traces.session_builder import ROOT_LANE, UNPAIRED_RESULT, SessionBuilder
from closeloop.traces.tool_calls import CallOrigin
from closeloop.traces.untrusted_json import (
    as_amount,
    as_label,
    as_list,
    as_mapping,
    as_text,
    json_excerpt,
    storable_arguments,
    time_from_text,
)

# Output of Qwen Code with `--output-format stream-json`: Claude Code's shape, other meanings.
#
# A provider's message comes in several records, all but one with tokens of 0; cached tokens are
# part of the input; nothing has a time.


_STREAM_TOKEN_KEYS = {
    "input": "input_tokens",
    "output": "output_tokens",
    "cached": "cache_read_input_tokens",
    "total": "total_tokens",
}
_EXITS: dict[str, Exit] = {"success": "finished", "error_max_turns": "out_of_budget"}
_FRAGMENT_TYPES = ("stream_event", "control_request", "control_response", "control_cancel_request")
_TELEMETRY_TOKEN_KEYS = {
    "input": "input_token_count",
    "output": "output_token_count",
    "cached": "cached_content_token_count",
    "thoughts": "thoughts_token_count",
    "total": "total_token_count",
}


def is_qwen_stream(record: object) -> bool:
    """Whether this is the first record of a stream."""
    fields = as_mapping(record)
    is_start = fields.get("type") == "system" and fields.get("subtype") == "init"
    return is_start and "qwen_code_version" in fields and isinstance(fields.get("session_id"), str)


class QwenStream:
    """Collects records."""

    def __init__(self, builder: SessionBuilder, source: RecordingSource) -> None:
        self.builder = builder
        self.source = source
        self.about: Mapping[str, Any] = {}
        self.exit: Exit = "crashed"
        self.cause: str | None = "The output ends before its result."
        self.usage: Usage | None = None
        self._lanes = {ROOT_LANE}
        self._callers: dict[str, str] = {}
        """The lane of each handoff."""

    def build_session(self, name: str) -> Session:
        """Build the session, with `name` if it has none."""
        return self.builder.build_session(
            id=as_label(self.about.get("session_id")) or name,
            agent="qwen-code",
            agent_version=as_label(self.about.get("qwen_code_version")),
            model=as_label(self.about.get("model")),
            exit=self.exit,
            cause=self.cause,
            usage=self.usage or self.builder.total_usage(),
            summary=self.builder.mark_claim(),
            directory=as_label(self.about.get("cwd")),
            copy="printed",
        )

    def add_record(self, record: object) -> None:
        fields = as_mapping(record)
        kind = fields.get("type")
        if kind in ("assistant", "user"):
            message = as_mapping(fields.get("message"))
            lane = self._lane_of_call(fields.get("parent_tool_use_id"))
            turn = self._add_turn(message, lane) if kind == "assistant" else None
            for block in _content_blocks(message.get("content")):
                if turn is None:
                    self._add_user_block(block, lane)
                else:
                    self._add_agent_block(block, lane, turn)
        elif is_qwen_stream(record):
            self.about = fields
        elif kind == "result":
            self._add_run_result(fields)
        elif kind not in _FRAGMENT_TYPES:
            self.builder.add_note(json_excerpt(record), about=f"unknown: {as_label(kind)}")

    def _lane_of_call(self, call: object) -> str:
        lane = as_label(call)
        if lane is None:
            return ROOT_LANE
        if lane not in self._lanes:
            self._lanes.add(lane)
            event = self.builder.find_open_call(self._callers.get(lane, ROOT_LANE), lane)
            self.builder.open_lane(lane, ROOT_LANE if event is None else event.lane)
            if isinstance(event, Handoff):
                # Not finished yet: only its child is known.
                self.builder.update_event(event, child=lane)
        return lane

    def _add_turn(self, message: Mapping[str, Any], lane: str) -> int:
        usage = usage_from_gemini(message.get("usage"), _STREAM_TOKEN_KEYS)
        return self.builder.continue_turn(
            lane, Turn(usage=usage, model=as_label(message.get("model")))
        )

    def _add_agent_block(self, block: Mapping[str, Any], lane: str, turn: int) -> None:
        event_fields: dict[str, Any] = {
            "number": self.builder.next_number,
            "lane": lane,
            "turn": turn,
        }
        kind = block.get("type")
        skipped = self.source.skipped
        if kind == "text" and (text := as_text(block.get("text"))):
            self.builder.add(
                Message(**event_fields, role="agent", text=self.builder.truncate_text(text))
            )
        elif kind == "thinking" and (text := as_text(block.get("thinking"))):
            self.builder.add(Thought(**event_fields, text=self.builder.truncate_text(text)))
        elif kind == "tool_use":
            origin = CallOrigin(**event_fields, call=as_label(block.get("id")))
            call_arguments = storable_arguments(block.get("input"), skipped)
            event = self.builder.add(
                event_from_gemini_call(
                    as_label(block.get("name")) or "unknown", call_arguments, origin
                )
            )
            if isinstance(event, Handoff) and event.call is not None:
                self._callers[event.call] = lane

    def _add_user_block(self, block: Mapping[str, Any], lane: str) -> None:
        self.builder.end_turn(lane)
        if block.get("type") != "tool_result":
            text = self.builder.truncate_text(as_text(block.get("text")) or "")
            fields = self.builder.event_fields(lane=lane)
            self.builder.add(Message(**fields, role="user", text=text, intent="request"))
            return
        event = self.builder.find_open_call(lane, as_label(block.get("tool_use_id")))
        if event is None:
            self.builder.add_note(json_excerpt(block), about=UNPAIRED_RESULT, lane=lane)
            return
        output = "\n".join(
            as_text(part.get("text")) or "" for part in _content_blocks(block.get("content"))
        )
        failed = block.get("is_error")
        ok = None if not isinstance(failed, bool) else not failed
        exit_fields: dict[str, object] = {}
        if isinstance(event, Command):
            # The text is the command's own output: no exit code is recorded.
            exit_fields = {"exit_code": None, "exit_from": None}
        finish_gemini_call(
            self.builder, event, self.builder.truncate_text(output), ok, **exit_fields
        )

    def _add_run_result(self, record: Mapping[str, Any]) -> None:
        failed = record.get("is_error") is True
        subtype = str(record.get("subtype"))
        self.exit = "crashed" if failed and subtype == "success" else _EXITS.get(subtype, "crashed")
        error = as_mapping(record.get("error"))
        self.cause = None if self.exit == "finished" else as_label(error.get("message")) or subtype
        usage = usage_from_gemini(record.get("usage"), _STREAM_TOKEN_KEYS)
        self.usage = usage if usage != Usage() else None


def _content_blocks(content: object) -> list[Mapping[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [as_mapping(block) for block in as_list(content)]


class QwenTelemetry:
    """Collects telemetry events; `recorded` are the agents with files of their own."""

    def __init__(
        self, builder: SessionBuilder, source: RecordingSource, recorded: set[str]
    ) -> None:
        self.builder = builder
        self.source = source
        self.fault: str | None = None
        """Error of the last request to the provider."""
        self._recorded = recorded
        self._lanes: set[str] = set()
        self._handed: dict[str, deque[int]] = {}
        self._settled: set[int] = set()
        self._took: dict[str, deque[float]] = {}
        self._waited: float | None = None

    def open_handoff(self, number: int, agent: str) -> None:
        """Mark a handoff as open: the next hidden agent of this kind has taken it."""
        self._handed.setdefault(agent, deque()).append(number)

    def close_handoff(self, number: int) -> None:
        """Close a handoff."""
        self._settled.add(number)

    def take_reply_seconds(self) -> float | None:
        """Return how long the next recorded provider message took."""
        waited, self._waited = self._waited, None
        self.fault = None
        return waited

    def take_call_seconds(self, call_id: str) -> float | None:
        """Return how long the next recorded call took."""
        took = self._took.get(call_id)
        return took.popleft() if took else None

    def add_event(self, event: Mapping[str, Any], time: datetime | None) -> None:
        kind = str(event.get("event.name")).removeprefix("qwen-code.")
        took = as_amount(event.get("duration_ms"))
        seconds = None if took is None else took / 1000
        prompt = str(event.get("prompt_id")).split("#")
        if len(prompt) == 3 and prompt[1]:
            lane = truncate_middle(prompt[1])
            if lane not in self._recorded:
                self._add_hidden_event(lane, kind, event, Turn(at=time, seconds=seconds))
        elif kind == "api_response":
            self._waited = seconds
        elif kind == "tool_call" and seconds is not None:
            self._took.setdefault(str(event.get("function_name")), deque()).append(seconds)
        elif kind == "api_error":
            self.fault = as_label(event.get("error_message")) or "error"
            self.builder.add_note(self.fault, about="error", at=time)

    def _add_hidden_event(self, lane: str, kind: str, event: Mapping[str, Any], turn: Turn) -> None:
        builder, skipped = self.builder, self.source.skipped
        if lane not in self._lanes and lane != ROOT_LANE:
            self._lanes.add(lane)
            builder.open_lane(lane, ROOT_LANE, as_label(event.get("subagent_name")))
            self._join_handoff(lane)
        event_fields: dict[str, Any] = {"lane": lane, "number": builder.next_number, "at": turn.at}
        if kind == "api_response":
            usage = usage_from_gemini(event, _TELEMETRY_TOKEN_KEYS)
            model = as_label(event.get("model"))
            number = builder.add_turn(lane, msgspec.structs.replace(turn, usage=usage, model=model))
            if text := as_text(event.get("response_text")):
                text = self.builder.truncate_text(text)
                builder.add(Message(**event_fields, turn=number, role="agent", text=text))
        elif kind == "tool_call":
            call_arguments = storable_arguments(event.get("function_args"), skipped)
            origin = CallOrigin(**event_fields, turn=builder.count_turns(lane) or None)
            call_event = event_from_gemini_call(
                as_label(event.get("function_name")) or "unknown", call_arguments, origin
            )
            ok = event.get("success")
            error = as_label(event.get("error"))
            ok = ok if isinstance(ok, bool) else None
            finish_gemini_call(builder, builder.add(call_event), error, ok, seconds=turn.seconds)
        elif kind == "api_error":
            builder.add_note(
                as_label(event.get("error_message")) or "error", about="error", lane=lane
            )

    def _join_handoff(self, lane: str) -> None:
        """An agent's id is its kind and some letters."""
        waiting = self._handed.get(lane.rpartition("-")[0])
        while waiting:
            number = waiting.popleft()
            if number not in self._settled:
                self.builder.update_event(self.builder.events[number - 1], child=lane)
                return


name = "qwen"
version = 2

MAX_CHILDREN = 1000
_SAFE_NAME = re.compile(r"[\w-]{1,128}")
_SUCCESS_BY_STATUS = {"success": True, "error": False, "cancelled": False}
_TOKEN_KEYS = {
    "input": "promptTokenCount",
    "output": "candidatesTokenCount",
    "cached": "cachedContentTokenCount",
    "thoughts": "thoughtsTokenCount",
    "tool": "toolUsePromptTokenCount",
    "total": "totalTokenCount",
}
_CLIENT_SUBTYPES = ("notification", "cron", "goal_runtime")
_BOOKKEEPING_SUBTYPES = frozenset({
    "attribution_snapshot", "branch_checkpoint", "file_history_snapshot", "goal_state",
    "session_artifact_event", "session_artifact_snapshot", "session_source", "user_text_elements",
})  # fmt: skip
_NOTE_KINDS = {
    "agent_bootstrap": "context", "at_command": "files given", "custom_title": "title",
    "rewind": "rewind", "session_model": "model", "slash_command": "command of the user",
    "turn_result": "end of a turn", "agent_retry": "retry", "agent_launch_prompt": "brief",
}  # fmt: skip


def recognises(source: RecordingSource) -> bool:
    if source.lines:
        return any(_is_chat_record(line) or is_qwen_stream(line) for line in source.lines)
    # The first line alone may be longer than the part that is read.
    start = source.head[:2000]
    return start.startswith(b'{"uuid":') and b'"parentUuid":' in start and b'"parts":[' in start


def parts(source: RecordingSource) -> Sequence[Path]:
    return [path for child in _list_children(source) for path in (child.path, child.meta) if path]


def owner(source: RecordingSource) -> Path | None:
    first = _first_chat_record(source)
    session = first.get("sessionId")
    if first.get("isSidechain") is not True or not isinstance(session, str):
        return None
    if not _SAFE_NAME.fullmatch(session):
        return None
    folder = source.path.parent.parent
    for path in (folder.parent / "chats" / f"{session}.jsonl", folder / f"{session}.jsonl"):
        owner_record = _first_chat_record(source.beside(path))
        if owner_record.get("sessionId") == session and owner_record.get("isSidechain") is not True:
            return path
    return None


def read(source: RecordingSource) -> Iterator[Session]:
    builder = SessionBuilder(name, version, source.skipped)
    digest = hashlib.sha256(source.head).hexdigest()[:16]
    if any(is_qwen_stream(line) for line in source.lines):
        stream = QwenStream(builder, source)
        for record in source.records():
            stream.add_record(record)
        yield stream.build_session(digest)
        return
    chat = _QwenChat(builder, source)
    for record in source.records():
        chat.add_record(record, ROOT_LANE)
    chat.add_remaining_children()
    header = chat.about
    is_subagent = header.get("isSidechain") is True
    session = as_label(header.get("sessionId"))
    yield builder.build_session(
        id=(as_label(header.get("agentId")) if is_subagent else session) or digest,
        agent="qwen-code",
        agent_version=as_label(header.get("version")),
        exit="crashed" if chat.final_error else "finished",
        cause=chat.final_error,
        summary=builder.mark_claim(),
        directory=as_label(header.get("cwd")),
        branch=as_label(header.get("gitBranch")),
        parent=session if is_subagent else chat.parent,
    )


def _is_chat_record(record: object) -> bool:
    fields = as_mapping(record)
    if not isinstance(fields.get("uuid"), str) or not isinstance(fields.get("sessionId"), str):
        return False
    has_parts = isinstance(as_mapping(fields.get("message")).get("parts"), list)
    return "parentUuid" in fields and (has_parts or "systemPayload" in fields)


def _first_chat_record(source: RecordingSource) -> Mapping[str, Any]:
    return next((as_mapping(line) for line in source.lines if _is_chat_record(line)), {})


class _QwenChild(NamedTuple):
    """A sub-agent's own file, and what is known about its start."""

    path: Path
    meta: Path | None
    agent: str
    kind: str | None
    call: str | None
    brief: str


def _list_children(source: RecordingSource) -> list[_QwenChild]:
    first = _first_chat_record(source)
    session = first.get("sessionId")
    is_subagent = first.get("isSidechain") is True
    if is_subagent or not isinstance(session, str) or not _SAFE_NAME.fullmatch(session):
        return []
    folder = source.path.parent.parent / "subagents" / session
    try:
        paths = sorted(islice(folder.glob("*.jsonl"), MAX_CHILDREN))
    except OSError:
        return []
    return [child for path in paths if (child := _load_child(source.beside(path), session))]


def _load_child(source: RecordingSource, session: str) -> _QwenChild | None:
    first = _first_chat_record(source)
    agent = as_label(first.get("agentId"))
    if agent is None or first.get("sessionId") != session or first.get("isSidechain") is not True:
        return None
    meta_path = source.path.with_suffix(".meta.json")
    meta = meta_path if meta_path.is_file() else None
    meta_fields = as_mapping(source.beside(meta_path).document) if meta else {}
    brief = next(
        (gemini_content_text(line.get("message")) for line in source.lines if _is_brief(line)), ""
    )
    kind = as_label(meta_fields.get("agentType")) or as_label(first.get("agentName"))
    return _QwenChild(source.path, meta, agent, kind, as_label(meta_fields.get("toolUseId")), brief)


def _is_brief(line: object) -> bool:
    return as_mapping(line).get("type") == "user"


class _QwenChat:
    """Collects records, those of sub-agents where they were started."""

    def __init__(self, builder: SessionBuilder, source: RecordingSource) -> None:
        self.builder = builder
        self.source = source
        self.about: Mapping[str, Any] = {}
        self.parent: str | None = None
        self._children = _list_children(source)
        recorded = {child.agent for child in self._children}
        self._telemetry = QwenTelemetry(builder, source, recorded)
        self._lanes = {ROOT_LANE}
        self._copies = 0

    @property
    def final_error(self) -> str | None:
        """Return the failure that the recording ends with."""
        return self._telemetry.fault

    def add_record(self, record: object, lane: str) -> None:
        fields = as_mapping(record)
        if not _is_chat_record(fields) and "message" not in fields:
            self.builder.add_note(
                json_excerpt(record), about=f"unknown: {as_label(fields.get('type'))}", lane=lane
            )
            return
        self.about = self.about or fields
        if self._is_copy(fields):
            self._copies += 1
            return
        self._note_copies()
        time = self.builder.record_time(time_from_text(fields.get("timestamp")))
        kind = fields.get("type")
        if kind == "user":
            self._add_user_message(fields, lane, time)
        elif kind == "assistant":
            self._add_assistant_message(fields, lane, time)
        elif kind == "tool_result":
            self._add_result(fields, lane)
        elif kind == "system":
            self._add_system_record(fields, lane, time)
        else:
            self.builder.add_note(
                json_excerpt(fields), about=f"unknown: {as_label(kind)}", lane=lane, at=time
            )

    def add_remaining_children(self) -> None:
        """Add sub-agents without a call last."""
        self._note_copies()
        for child in list(self._children):
            self._start_child(child, ROOT_LANE)

    def _is_copy(self, record: Mapping[str, Any]) -> bool:
        """A branch begins with copies of its origin, which are read from that file if it exists."""
        origin = as_mapping(record.get("forkedFrom")).get("sessionId")
        if not isinstance(origin, str) or not _SAFE_NAME.fullmatch(origin):
            return False
        self.parent = origin
        return self.source.path.with_name(f"{origin}.jsonl").is_file()

    def _note_copies(self) -> None:
        if self._copies:
            are = count_with_noun(self._copies, "record is a copy", "records are copies")
            text = f"{are} from session {self.parent}."
            self.builder.add_note(text, about="fork")
            self._copies = 0

    def _add_user_message(
        self, record: Mapping[str, Any], lane: str, time: datetime | None
    ) -> None:
        self.builder.end_turn(lane)
        text = self.builder.truncate_text(gemini_content_text(record.get("message")))
        if not text.strip():
            return
        is_client = record.get("subtype") in _CLIENT_SUBTYPES
        self.builder.add_incoming_message(text, lane=lane, time=time, is_client=is_client)

    def _add_assistant_message(
        self, record: Mapping[str, Any], lane: str, time: datetime | None
    ) -> None:
        model = as_label(record.get("model"))
        if model is not None:
            self.builder.models[model] += 1
        usage = usage_from_gemini(record.get("usageMetadata"), _TOKEN_KEYS)
        took = self._telemetry.take_reply_seconds() if lane == ROOT_LANE else None
        turn = self.builder.continue_turn(
            lane, Turn(usage=usage, model=model, at=time, seconds=took)
        )
        message = record.get("message")
        for thought in (True, False):
            if text := self.builder.truncate_text(gemini_content_text(message, thought)):
                fields = self.builder.event_fields(lane=lane, turn=turn, at=time)
                event = Thought(**fields, text=text) if thought else None
                self.builder.add(event or Message(**fields, role="agent", text=text))
        for call in iter_function_calls(message):
            self._add_call(
                call, CallOrigin(number=self.builder.next_number, lane=lane, turn=turn, at=time)
            )

    def _add_call(self, call: Mapping[str, Any], origin: CallOrigin) -> None:
        origin = msgspec.structs.replace(origin, call=as_label(call.get("id")))
        call_arguments = storable_arguments(call.get("args"), self.source.skipped)
        event = self.builder.add(
            event_from_gemini_call(as_label(call.get("name")) or "unknown", call_arguments, origin)
        )
        if not isinstance(event, Handoff):
            return
        for child in self._children:
            if (child.call or child.brief) in (event.call, event.brief):
                self._start_child(child, event.lane, event)
                return
        if event.lane == ROOT_LANE:
            self._telemetry.open_handoff(
                event.number, as_label(as_mapping(call_arguments).get("subagent_type")) or ""
            )

    def _start_child(self, child: _QwenChild, parent: str, event: AnyEvent | None = None) -> None:
        self._children.remove(child)
        if child.agent in self._lanes:
            return
        self._lanes.add(child.agent)
        self.builder.open_lane(child.agent, parent, child.kind)
        if event is not None:
            self.builder.update_event(event, child=child.agent)
        for record in self.source.beside(child.path).records():
            self.add_record(record, child.agent)

    def _add_result(self, record: Mapping[str, Any], lane: str) -> None:
        self.builder.end_turn(lane)
        call_result = as_mapping(record.get("toolCallResult"))
        status, display = call_result.get("status"), call_result.get("resultDisplay")
        for response in iter_function_responses(record.get("message")):
            event = self.builder.find_open_call(
                lane, response.call or as_label(call_result.get("callId"))
            )
            if event is None:
                self.builder.add_note(json_excerpt(record), about=UNPAIRED_RESULT, lane=lane)
                continue
            ok = _SUCCESS_BY_STATUS.get(status) if isinstance(status, str) else not response.failed
            output = self.builder.truncate_text(response.text)
            took = as_amount(call_result.get("durationMs"))
            seconds = None if took is None else took / 1000
            if lane == ROOT_LANE:
                seconds = (
                    self._telemetry.take_call_seconds(response.name or "")
                    if took is None
                    else seconds
                )
                self._telemetry.close_handoff(event.number)
            finish_gemini_call(self.builder, event, output, ok, display, seconds=seconds)

    def _add_system_record(
        self, record: Mapping[str, Any], lane: str, time: datetime | None
    ) -> None:
        subtype = record.get("subtype")
        payload = as_mapping(record.get("systemPayload"))
        if subtype == "ui_telemetry":
            self._telemetry.add_event(as_mapping(payload.get("uiEvent")), time)
        elif subtype == "chat_compression":
            history = payload.get("compressedHistory")
            history_text = (
                "\n".join(gemini_content_text(content) for content in history)
                if isinstance(history, list)
                else ""
            )
            text = history_text or json_excerpt(payload)
            self.builder.add_note(text, "compaction", lane=lane, at=time)
        elif subtype == "parent_session":
            self.parent = as_label(payload.get("parentSessionId")) or self.parent
        elif str(subtype) in _BOOKKEEPING_SUBTYPES:
            reason = f"bookkeeping: {subtype}"
            self.builder.count_skip(reason)
        else:
            note_kind = _NOTE_KINDS.get(str(subtype), f"unknown: {as_label(subtype)}")
            self.builder.add_note(json_excerpt(payload), about=note_kind, lane=lane, at=time)
