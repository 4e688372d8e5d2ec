"""Goose: its session database, a session exported as JSON, and the older JSONL files."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from closeloop.records.attempt import Usage, sum_usage
from closeloop.records.protocols import RecordingSource
from closeloop.records.trace import (
    AnyEvent,
    Command,
    Handoff,
    Message,
    Session,
    Thought,
    ToolUse,
    Turn,
)
from closeloop.sqlite_files import find_journal, has_tables, open_database, table_columns
from closeloop.traces.file_source import LazyMapping, is_database
from closeloop.traces.session_builder import ROOT_LANE, UNPAIRED_RESULT, SessionBuilder, count_skip
from closeloop.traces.tool_calls import CallOrigin, event_from_call, result_fields
from closeloop.traces.untrusted_json import (
    as_count,
    as_exit_code,
    as_label,
    as_list,
    as_mapping,
    as_text,
    json_excerpt,
    seconds_between,
    storable_arguments,
    time_from_millis,
    time_from_seconds,
    time_from_text,
    try_decode_json,
)

name = "goose"
version = 2

_TABLES: dict[str, Sequence[str]] = {
    "sessions": ("id", "working_dir", "created_at", "updated_at"),
    "messages": ("id", "session_id", "role", "content_json", "created_timestamp"),
}
_OPTIONAL_COLUMNS = ("session_type", "accumulated_input_tokens", "accumulated_output_tokens",
           "input_tokens", "output_tokens", "model_config_json", "name")  # fmt: skip
_EXIT_CODE_FOOTER = re.compile(r"^Command exited with code (-?\d+)\s*\Z", re.MULTILINE)
_ASIDE_NOTES = {
    "systemNotification": "notification", "conversationCompacted": "compaction",
    "summarizationRequested": "compaction", "contextLengthExceeded": "compaction",
    "image": "attachment",
}  # fmt: skip


def recognises(source: RecordingSource) -> bool:
    if is_database(source):
        return has_tables(source.path, _TABLES)
    lines = source.lines
    if len(lines) > 1 and _is_header(lines[0]):
        return all(_is_message(line) for line in lines[1:4])
    return b'"conversation"' in source.head and _export_info(source.document) is not None


def _is_header(line: Any) -> bool:
    header = as_mapping(line)
    return "role" not in header and (
        "message_count" in header or ("working_dir" in header and "description" in header)
    )


def _is_message(line: Any) -> bool:
    message = as_mapping(line)
    return (
        message.get("role") in ("user", "assistant")
        and as_count(message.get("created")) is not None
        and isinstance(message.get("content"), list)
    )


def _export_info(document: Any) -> dict[str, Any] | None:
    """Return the session of an exported document; None for other documents."""
    info = as_mapping(document)
    if "working_dir" not in info or not isinstance(info.get("conversation"), list):
        return None
    return info if all(_is_message(message) for message in info["conversation"][:3]) else None


def parts(source: RecordingSource) -> Sequence[Path]:
    pending = find_journal(source.path) if is_database(source) else None
    return [pending] if pending else ()


def read(source: RecordingSource) -> Iterator[Session]:
    if is_database(source):
        try:
            with open_database(source.path) as base:
                yield from _iter_stored_sessions(base, source.skipped)
        except (sqlite3.Error, OSError, ValueError):
            count_skip(source.skipped, "a database that cannot be read to its end")
        return
    info = _export_info(source.document) if len(source.lines) < 2 else None
    if info is not None:
        recorded = GooseRecording(info, info["conversation"])
    else:
        records = source.records()
        header = as_mapping(next(records, None))
        recorded = GooseRecording({"id": source.path.stem, **header}, records)
    yield GooseSession({}, (name, version), source.skipped).build_session(recorded)


def _iter_stored_sessions(base: sqlite3.Connection, skipped: dict[str, int]) -> Iterator[Session]:
    known_columns = table_columns(base, "sessions")
    columns = [
        *_TABLES["sessions"],
        *(column for column in _OPTIONAL_COLUMNS if column in known_columns),
    ]
    infos_by_id: dict[str, dict[str, Any]] = {}
    for row in base.execute(f"SELECT {', '.join(columns)} FROM sessions ORDER BY created_at, id"):  # noqa: S608
        info = dict(zip(columns, row, strict=True))
        if as_text(info["id"]):
            info["model_config"] = try_decode_json(info.get("model_config_json"))
            infos_by_id[info["id"]] = info
    # Children last: they are read with the session that mentions them, if any.
    order = sorted(infos_by_id, key=lambda key: infos_by_id[key].get("session_type") == "sub_agent")
    seen_ids: set[str] = set()
    for session_id in order:
        if session_id in seen_ids:
            continue
        lost: dict[str, int] = {}
        stored = LazyMapping(infos_by_id, partial(_load_recording, base, infos_by_id, lost))
        builder = GooseSession(stored, (name, version), lost)
        session = builder.build_session(stored[session_id])
        seen_ids |= builder.read_ids
        for reason, number in lost.items():
            skipped[reason] = skipped.get(reason, 0) + number
        if session.trace.events:
            yield session
        else:
            count_skip(skipped, "a session without messages")


def _load_recording(
    base: sqlite3.Connection, record: Mapping[str, Any], lost: dict[str, int], session: str
) -> GooseRecording:
    return GooseRecording(record[session], _load_messages(base, session, lost))


def _load_messages(base: sqlite3.Connection, session: str, lost: dict[str, int]) -> list[Any]:
    known_columns = table_columns(base, "messages")
    optional_columns = ["message_id"] if "message_id" in known_columns else ["NULL"]
    optional_columns += ["metadata_json"] if "metadata_json" in known_columns else ["NULL"]
    query = (
        f"SELECT role, content_json, created_timestamp, {', '.join(optional_columns)} "  # noqa: S608
        "FROM messages WHERE session_id = ? ORDER BY id"
    )
    result = []
    for role, content, created, identity, metadata in base.execute(query, (session,)):
        parsed = try_decode_json(content)
        if isinstance(parsed, list):
            message = {"role": role, "created": created, "content": parsed, "id": identity}
            result.append({**message, "metadata": try_decode_json(metadata)})
        else:
            count_skip(lost, "a message that is not JSON")
    return result


class GooseRecording(NamedTuple):
    """A session with its messages."""

    about: Mapping[str, Any]
    messages: Iterable[Any]


class GooseSession:
    """The state while a session and its children are read."""

    def __init__(
        self,
        children: Mapping[str, GooseRecording],
        reader: tuple[str, int],
        skipped: dict[str, int],
    ) -> None:
        self.builder = SessionBuilder(*reader, skipped, several=True)
        self.children = children
        self.read_ids: set[str] = set()
        self.usages: list[Usage] = []
        self.handoffs: dict[str, int] = {}

    def build_session(self, recorded: GooseRecording) -> Session:
        info = recorded.about
        identity = as_label(info.get("id")) or "unnamed"
        model = as_label(as_mapping(info.get("model_config")).get("model_name"))
        self._add_lane(ROOT_LANE, recorded, model)
        summary = self.builder.mark_claim()
        return self.builder.build_session(
            id=identity,
            agent="goose",
            model=model,
            started=_parse_time(info.get("created_at")) or self.builder.started,
            ended=self.builder.ended or _parse_time(info.get("updated_at")),
            usage=sum_usage(self.usages),
            summary=summary,
            directory=as_label(info.get("working_dir")),
        )

    def _add_lane(self, lane: str, recorded: GooseRecording, model: str | None) -> None:
        if identity := as_text(recorded.about.get("id")):
            self.read_ids.add(identity)
        self.usages.append(_session_usage(recorded.about))
        for message in recorded.messages:
            if isinstance(message, dict) and isinstance(message.get("content"), list):
                self._add_message(lane, message, model)
            else:
                self.builder.add_note(json_excerpt(message), about="unknown: message", lane=lane)

    def _add_message(self, lane: str, message: Mapping[str, Any], model: str | None) -> None:
        time = self.builder.record_time(_parse_time(message.get("created")))
        turn = None
        if message.get("role") == "assistant":
            turn = self.builder.add_turn(
                lane, Turn(model=model, at=time), as_label(message.get("id"))
            )
        hidden = as_mapping(message.get("metadata")).get("userVisible") is False
        for item in message["content"]:
            content = as_mapping(item)
            origin = CallOrigin(number=self.builder.next_number, lane=lane, turn=turn, at=time)
            self._add_content(content, origin, hidden)

    def _add_content(self, content: dict[str, Any], origin: CallOrigin, hidden: bool) -> None:
        kind, lane, time = content.get("type"), origin.lane, origin.at
        match kind:
            case "text":
                self._add_text(as_text(content.get("text")), origin, hidden)
            case "thinking" | "reasoning":
                text = as_text(content.get("thinking")) or as_text(content.get("text"))
                if text:
                    fields = self.builder.event_fields(lane=lane, turn=origin.turn, at=time)
                    self.builder.add(Thought(**fields, text=self.builder.truncate_text(text)))
            case "toolRequest" | "frontendToolRequest":
                self._add_call(content, origin)
            case "toolResponse":
                self._add_result(content, lane, time)
            case "actionRequired":
                self._add_elicitation(as_mapping(content.get("data")), origin)
            case str() if kind in _ASIDE_NOTES:
                text = as_label(content.get("msg")) or as_label(content.get("mimeType")) or ""
                self.builder.add_note(text, about=_ASIDE_NOTES[kind], lane=lane, at=time)
            case "toolConfirmationRequest" | "redactedThinking":
                return
            case _:
                note_kind = f"unknown: {kind}"[:100]
                self.builder.add_note(json_excerpt(content), note_kind, lane=lane, at=time)

    def _add_text(self, raw_text: str | None, origin: CallOrigin, hidden: bool) -> None:
        if raw_text is None or not raw_text.strip():
            return
        if hidden:
            # Visible only to the agent: the summary that replaces removed messages.
            self.builder.add_note(raw_text, "compaction", lane=origin.lane, at=origin.at)
            return
        if origin.turn is None:
            text = self.builder.truncate_text(raw_text)
            self.builder.add_incoming_message(text, lane=origin.lane, time=origin.at)
        else:
            self.builder.add_agent_message(
                raw_text, lane=origin.lane, turn=origin.turn, at=origin.at
            )

    def _add_call(self, content: Mapping[str, Any], origin: CallOrigin) -> None:
        call, tool_call = as_label(content.get("id")), as_mapping(content.get("toolCall"))
        origin = msgspec.structs.replace(origin, call=call)
        value = as_mapping(tool_call.get("value"))
        tool = as_label(value.get("name"))
        if tool is None:
            error = as_text(tool_call.get("error")) or json_excerpt(tool_call)
            base = ToolUse(
                number=origin.number, lane=origin.lane, turn=origin.turn, at=origin.at, call=call,
                name="unnamed", ok=False, output=self.builder.truncate_text(error),
            )  # fmt: skip
            self.builder.add(base)
            return
        self.builder.add(
            _event_for_tool(
                tool, storable_arguments(value.get("arguments"), self.builder.skipped), origin
            )
        )

    def _add_result(self, content: Mapping[str, Any], lane: str, time: datetime | None) -> None:
        event = self.builder.find_open_call(lane, as_label(content.get("id")))
        if event is None:
            self.builder.add_note(json_excerpt(content), about=UNPAIRED_RESULT, lane=lane, at=time)
            return
        result = as_mapping(content.get("toolResult"))
        value = result.get("value")
        value_fields = as_mapping(value)
        ok = None
        if result.get("status") in ("success", "error"):
            ok = result["status"] == "success" and value_fields.get("isError") is not True
        output = self.builder.truncate_text(_result_text(value, result))
        event_fields = result_fields(event, output, ok)
        if isinstance(event, Command):
            event_fields |= _exit_code_fields(
                output, as_mapping(value_fields.get("structuredContent"))
            )
        event = self.builder.finish(event, **event_fields, seconds=seconds_between(event.at, time))
        meta = as_mapping(value_fields.get("_meta")) or as_mapping(value_fields.get("meta"))
        child = as_text(meta.get("subagent_session_id"))
        if isinstance(event, Handoff) and child:
            self._add_child(event, child)
        elif isinstance(event, ToolUse) and event.name.endswith("load") and ok:
            # A child in the background reports when it is queried.
            number = self.handoffs.get(str(as_mapping(event.arguments).get("source")))
            if number is not None:
                self.builder.finish(self.builder.events[number - 1], report=output)

    def _add_child(self, event: Handoff, child: str) -> None:
        self.handoffs[child] = event.number
        # In Goose a child cannot start children, so there is no deeper level.
        if child in self.read_ids or child not in self.children or event.lane != ROOT_LANE:
            return
        recorded = self.children[child]
        inner = self.builder.open_lane(self.builder.truncate_text(child), event.lane, "sub_agent")
        self.builder.finish(event, child=inner)
        model = as_label(as_mapping(recorded.about.get("model_config")).get("model_name"))
        self._add_lane(inner, recorded, model)

    def _add_elicitation(self, data: Mapping[str, Any], origin: CallOrigin) -> None:
        lane, time = origin.lane, origin.at
        if data.get("actionType") == "elicitation":
            text = self.builder.truncate_text(as_text(data.get("message")) or "")
            fields = self.builder.event_fields(lane=lane, turn=origin.turn, at=time)
            self.builder.add(Message(**fields, role="agent", text=text, intent="question"))
        elif data.get("actionType") == "elicitationResponse":
            text = json_excerpt(data.get("userData", data.get("user_data")))
            self.builder.add_incoming_message(text, lane=lane, time=time, intent="answer")


def _event_for_tool(tool: str, arguments: dict[str, Any] | None, origin: CallOrigin) -> AnyEvent:
    fields = as_mapping(arguments)
    short_name = tool.rpartition("__")[2]
    if short_name == "text_editor" and fields.get("command") == "write":
        return event_from_call("write", fields, origin)
    if short_name == "edit" and isinstance(fields.get("before"), str):
        renamed = {**fields, "old_string": fields["before"], "new_string": fields.get("after")}
        return event_from_call("edit", renamed, origin)
    if short_name == "delegate" and "instructions" not in fields and as_text(fields.get("source")):
        return event_from_call("delegate", {**fields, "instructions": fields["source"]}, origin)
    return event_from_call(tool, arguments, origin)


def _exit_code_fields(output: str, structured: Mapping[str, Any]) -> dict[str, object]:
    """Newer versions have a field; otherwise the last line shows it if it is not 0."""
    code = as_exit_code(structured.get("exit_code"))
    if code is not None:
        return {"exit_code": code, "exit_from": "stated"}
    match = _EXIT_CODE_FOOTER.search(output[-200:])
    if match and len(match[1]) < 12:
        return {"exit_code": int(match[1]), "exit_from": "parsed"}
    return {}


def _result_text(value: Any, result: Mapping[str, Any]) -> str:
    """Return the text of a result for the agent, without the user's copy."""
    contents = value if isinstance(value, list) else as_list(as_mapping(value).get("content"))
    texts = []
    for content in contents:
        content_fields = as_mapping(content)
        audience = as_mapping(content_fields.get("annotations")).get(
            "audience", content_fields.get("audience")
        )
        if isinstance(audience, list) and audience and "assistant" not in audience:
            continue
        if text := as_text(content_fields.get("text")):
            texts.append(text)
    return "\n".join(texts) or as_text(result.get("error")) or ""


def _session_usage(info: Mapping[str, Any]) -> Usage:
    """Return a session's totals, including cached input: Goose stores no others."""
    input_tokens = as_count(info.get("accumulated_input_tokens")) or as_count(
        info.get("input_tokens")
    )
    output_tokens = as_count(info.get("accumulated_output_tokens")) or as_count(
        info.get("output_tokens")
    )
    return Usage(input_tokens=input_tokens or None, output_tokens=output_tokens or None)


def _parse_time(value: Any) -> datetime | None:
    """Parse seconds, milliseconds or text, by version."""
    number = as_count(value)
    if number is None:
        return time_from_text(value)
    return time_from_millis(number) if number > 1 << 36 else time_from_seconds(number)
