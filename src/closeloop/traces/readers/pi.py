"""pi's sessions: entries that form a tree; and its output with `--mode json`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

import msgspec

from closeloop.records.attempt import Usage
from closeloop.records.protocols import RecordingSource
from closeloop.records.trace import Command, Edit, Handoff, Message, Read, Session, Thought, Turn
from closeloop.text.untrusted import truncate_middle
from closeloop.text.wording import count_with_noun
from closeloop.traces.session_builder import ROOT_LANE, UNPAIRED_RESULT, SessionBuilder
from closeloop.traces.tool_calls import CallOrigin, event_from_call, result_fields
from closeloop.traces.untrusted_json import (
    as_amount,
    as_count,
    as_label,
    as_list,
    as_mapping,
    as_text,
    content_text,
    json_excerpt,
    make_usage,
    storable_arguments,
    time_from_millis,
    time_from_text,
)

name = "pi"
version = 2

_REDUNDANT_TYPES = frozenset({
    "agent_start", "agent_end", "turn_start", "turn_end", "message_start", "message_update",
    "tool_execution_start", "tool_execution_update", "tool_execution_end", "queue_update",
})  # fmt: skip
"""Records that are printed as they happen and repeated by a `message_end`."""
_NOTE_KINDS = {
    "model_change": ("model", "modelId"),
    "thinking_level_change": ("thinking level", "thinkingLevel"),
    "compaction": ("compaction", "summary"), "branch_summary": ("branch summary", "summary"),
    "session_info": ("title", "name"), "label": ("label", "label"),
    "compactionSummary": ("compaction", "summary"), "branchSummary": ("branch summary", "summary"),
    "auto_retry_start": ("retry", "errorMessage"), "auto_retry_end": ("retry", "finalError"),
    "custom": ("extension", "customType"),
}  # fmt: skip
_EXIT_CODE = re.compile(r"Command exited with code (\d{1,10})\s*\Z")
_TIMEOUT = re.compile(r"Command timed out after \S+ seconds\s*\Z")


def recognises(source: RecordingSource) -> bool:
    return bool(source.lines) and _is_header(source.lines[0])


def read(source: RecordingSource) -> Iterator[Session]:
    session = _PiSession(source)
    for record in source.records():
        session.add_record(record)
    builder, header = session.builder, session.header
    builder.mark_corrections()
    yield builder.build_session(
        id=as_label(header.get("id")) or "unknown",
        agent="pi",
        started=builder.started or time_from_text(header.get("timestamp")),
        ended=builder.ended,
        exit="crashed" if session.fault else "finished",
        cause=session.fault,
        summary=builder.mark_claim(),
        directory=as_label(header.get("cwd")),
        parent=_forked_from(header)[1],
        copy="printed" if session.printed else None,
    )


def _is_header(record: object) -> bool:
    fields = as_mapping(record)
    required_values = (fields.get(key) for key in ("id", "timestamp", "cwd"))
    return fields.get("type") == "session" and all(
        isinstance(value, str) for value in required_values
    )


def _forked_from(header: Mapping[str, Any]) -> tuple[PurePosixPath | None, str | None]:
    """Return the file this session began as a copy of, and the id in its name."""
    parent_path = as_text(header.get("parentSession"))
    if parent_path is None or len(parent_path) > 4000:
        return None, None
    path = PurePosixPath(PureWindowsPath(parent_path).as_posix())
    return path, as_label(path.stem.rpartition("_")[2])


class _PiSession:
    """Collects entries in the file's order, including abandoned branches."""

    def __init__(self, source: RecordingSource) -> None:
        self.source = source
        self.builder = SessionBuilder(name, version, source.skipped)
        self.header: Mapping[str, Any] = {}
        self.fault: str | None = None
        self.printed = False
        self._leaf: object = None
        self._born: datetime | None = None
        self._copies = 0

    def add_record(self, record: object) -> None:
        entry = as_mapping(record)
        kind = entry.get("type")
        if kind == "session":
            self._begin_session(entry)
            return
        time = time_from_text(entry.get("timestamp"))
        if self._born is not None and time is not None and time < self._born:
            self._copies += 1
            self._leaf = entry.get("id")
            return
        self._note_copies()
        self._note_branch(entry, time)
        self.builder.record_time(time)
        self.printed = self.printed or kind == "message_end"
        if kind in ("message", "message_end"):
            self._add_message(as_mapping(entry.get("message")), ROOT_LANE, time)
        elif kind == "custom_message":
            self._add_message({**entry, "role": "custom"}, ROOT_LANE, time)
        elif str(kind) not in _REDUNDANT_TYPES:
            self._add_note(entry, str(kind), ROOT_LANE, time)

    def _begin_session(self, header: Mapping[str, Any]) -> None:
        self.header = self.header or header
        path, parent = _forked_from(header)
        if path is None or parent is None:
            return
        folder = self.source.path.parent
        candidates = (folder / path.name, folder.parent / path.parent.name / path.name)
        try:
            if any(file.is_file() and file != self.source.path for file in candidates):
                # A fork begins with copies, which are read in the original session.
                self._born = time_from_text(header.get("timestamp"))
        except (OSError, ValueError):
            return

    def _note_copies(self) -> None:
        if self._copies:
            are = count_with_noun(self._copies, "entry is a copy", "entries are copies")
            text = f"{are} from {self.header.get('parentSession')}."
            self.builder.add_note(text, "fork")
            self._copies = 0

    def _note_branch(self, record: Mapping[str, Any], time: datetime | None) -> None:
        """An entry that does not follow the last one begins a branch."""
        if "parentId" not in record:
            return
        if record["parentId"] != self._leaf and self._leaf is not None:
            text = (
                f"The session goes on from {json_excerpt(record['parentId'])}, not from"
                f" {json_excerpt(self._leaf)}."
            )
            self.builder.add_note(text, about="rewind", at=time)
        self._leaf = record.get("id")

    def _add_note(
        self, record: Mapping[str, Any], kind: str, lane: str, time: datetime | None
    ) -> None:
        note_kind, key = _NOTE_KINDS.get(
            kind, (f"unknown: {truncate_middle(kind, max_chars=100)}", "")
        )
        text = as_text(record.get(key))
        self.builder.add_note(text or json_excerpt(record), note_kind, lane=lane, at=time)

    def _add_message(self, message: Mapping[str, Any], lane: str, time: datetime | None) -> None:
        time = time or time_from_millis(message.get("timestamp"))
        self.builder.record_time(time)
        role = message.get("role")
        if role == "user":
            self._add_user_message(message, lane, time)
        elif role == "assistant":
            self._add_assistant_message(message, lane, time)
        elif role == "toolResult":
            self._add_result(message, lane)
        elif role == "bashExecution":
            self._add_user_command(message, lane, time)
        elif role in ("custom", "hookMessage"):
            text = content_text(message.get("content"), _name_image)
            note_kind = f"extension: {as_label(message.get('customType')) or 'unknown'}"
            self.builder.add_note(
                text, truncate_middle(note_kind, max_chars=200), lane=lane, at=time
            )
        else:
            self._add_note(message, str(role), lane, time)

    def _add_user_message(
        self, message: Mapping[str, Any], lane: str, time: datetime | None
    ) -> None:
        text = self.builder.truncate_text(content_text(message.get("content"), _name_image))
        self.builder.add_incoming_message(text, lane=lane, time=time, asks=not text.startswith("/"))
        if lane == ROOT_LANE:
            self.fault = None

    def _add_user_command(
        self, message: Mapping[str, Any], lane: str, time: datetime | None
    ) -> None:
        """Add a command that the user ran."""
        text = f"$ {as_text(message.get('command')) or ''}\n{as_text(message.get('output')) or ''}"
        code = as_count(message.get("exitCode"))
        if code is not None:
            text += f"\nexit code {code}"
        self.builder.add_note(text, "command of the user", lane=lane, at=time)

    def _add_assistant_message(
        self, message: Mapping[str, Any], lane: str, time: datetime | None
    ) -> None:
        builder = self.builder
        model = as_label(message.get("model"))
        if model is not None:
            builder.models[model] += 1
        started = time_from_millis(message.get("timestamp"))
        turn = builder.add_turn(
            lane, Turn(usage=_parse_usage(message.get("usage")), model=model, at=started)
        )
        for block in as_list(message.get("content")):
            block_fields = as_mapping(block)
            kind = block_fields.get("type")
            place_fields: dict[str, Any] = {"lane": lane, "turn": turn, "at": time}
            if kind == "text" and (text := as_text(block_fields.get("text"))):
                fields = builder.event_fields(**place_fields)
                builder.add(Message(**fields, role="agent", text=builder.truncate_text(text)))
            elif kind == "thinking" and (text := as_text(block_fields.get("thinking"))):
                fields = builder.event_fields(**place_fields)
                builder.add(Thought(**fields, text=builder.truncate_text(text)))
            elif kind == "toolCall":
                fields = builder.event_fields(**place_fields) | {
                    "call": as_label(block_fields.get("id"))
                }
                self._add_call(block_fields, CallOrigin(**fields))
        self._add_stop(message, lane, time)

    def _add_stop(self, message: Mapping[str, Any], lane: str, time: datetime | None) -> None:
        stop = message.get("stopReason")
        text = self.builder.truncate_text(as_text(message.get("errorMessage")) or "")
        if stop == "aborted":
            number = self.builder.next_number
            text = text or "Request was aborted"
            self.builder.add(
                Message(
                    number=number, lane=lane, at=time, role="user", text=text, intent="interrupt"
                )
            )
        elif stop in ("error", "length"):
            self.builder.add_note(text or str(stop), about=str(stop), lane=lane, at=time)
        if lane == ROOT_LANE:
            self.fault = (text or "error") if stop == "error" else None

    def _add_call(self, call: Mapping[str, Any], origin: CallOrigin) -> None:
        call_arguments = storable_arguments(call.get("arguments"), self.builder.skipped)
        event = event_from_call(as_label(call.get("name")) or "unknown", call_arguments, origin)
        if isinstance(event, Read) and call_arguments is not None:
            first, limit = (
                as_count(call_arguments.get("offset")),
                as_count(call_arguments.get("limit")),
            )
            last = None if limit is None else (first or 1) + limit - 1
            event = msgspec.structs.replace(event, first_line=first, last_line=last)
        self.builder.add(event)

    def _add_result(self, message: Mapping[str, Any], lane: str) -> None:
        event = self.builder.find_open_call(lane, as_label(message.get("toolCallId")))
        if event is None:
            self.builder.add_note(json_excerpt(message), about=UNPAIRED_RESULT, lane=lane)
            return
        output = self.builder.truncate_text(content_text(message.get("content"), _name_image))
        failed = message.get("isError")
        ok = None if not isinstance(failed, bool) else not failed
        details = as_mapping(message.get("details"))
        if isinstance(event, Command):
            result = {"output": output, **_exit_fields(output, ok)}
        else:
            result = result_fields(event, output, ok)
        if isinstance(event, Edit) and (patch := as_text(details.get("diff"))):
            result["patch"] = self.builder.truncate_text(patch)
        elif isinstance(event, Handoff):
            self._add_children(event, details)
            event = self.builder.events[event.number - 1]
        self.builder.finish(event, **result)
        if isinstance(event, Message) and event.intent == "question":
            time = time_from_millis(message.get("timestamp"))
            self.builder.add_incoming_message(output, lane=lane, time=time, intent="answer")

    def _add_children(self, event: Handoff, details: Mapping[str, Any]) -> None:
        """Add sub-agents of pi's own extension, whose messages are part of the call's result."""
        for index, result in enumerate(as_list(details.get("results"))):
            messages = as_list(as_mapping(result).get("messages"))
            if not messages or event.lane != ROOT_LANE:
                continue
            lane = f"{event.number}-{index + 1}"
            self.builder.open_lane(lane, event.lane, as_label(as_mapping(result).get("agent")))
            if index == 0:
                self.builder.update_event(event, child=lane)
            for message in messages:
                self._add_message(as_mapping(message), lane, None)


def _name_image(block: dict[str, Any]) -> str | None:
    return (
        f"[{as_label(block.get('mimeType')) or 'image'}]" if block.get("type") == "image" else None
    )


def _parse_usage(value: object) -> Usage:
    fields = as_mapping(value)
    counts = [as_count(fields.get(key)) for key in ("input", "output", "cacheRead", "cacheWrite")]
    if not any(counts):
        return Usage()
    cost = as_amount(as_mapping(fields.get("cost")).get("total")) or None
    return make_usage(counts[0], counts[1], read=counts[2], write=counts[3], cost=cost)


def _exit_fields(output: str, ok: bool | None) -> dict[str, object]:
    """pi reports a command with a nonzero exit as failed, with its exit code."""
    if ok:
        return {"exit_code": 0, "exit_from": "parsed"}
    if match := _EXIT_CODE.search(output[-200:]):
        return {"exit_code": int(match[1]), "exit_from": "parsed"}
    stopped = "out of time" if _TIMEOUT.search(output[-200:]) else None
    return {"exit_code": None, "exit_from": None, "stopped": stopped}
