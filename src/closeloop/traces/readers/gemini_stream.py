"""Output of Gemini CLI with `--output-format stream-json`, and the telemetry that it logs."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from closeloop.records.attempt import Exit, Usage
from closeloop.records.protocols import RecordingSource
from closeloop.records.trace import Command, Message, Read, Session, Turn
from closeloop.traces.readers.gemini import (
    event_from_gemini_call,
    finish_gemini_call,
    parse_shell_exit_code,
    usage_from_gemini,
)
from closeloop.traces.readers.otlp import iter_printed_values
from closeloop.traces.session_builder import ROOT_LANE, UNPAIRED_RESULT, SessionBuilder
from closeloop.traces.tool_calls import CallOrigin
from closeloop.traces.untrusted_json import (
    as_count,
    as_label,
    as_mapping,
    as_text,
    json_excerpt,
    seconds_between,
    storable_arguments,
    time_from_text,
    try_decode_json,
)

name = "gemini-stream"
version = 3

_BARE_EXIT_CODE = re.compile(r"Command exited with code: (-?\d{1,9})")
_EXITS: dict[str, Exit] = {
    "FatalTurnLimitedError": "out_of_budget",
    "FatalCancellationError": "gave_up",
}


def recognises(source: RecordingSource) -> bool:
    return _is_telemetry(source) or any(
        _is_own_record(record) for record in source.lines or _iter_printed_records(source)
    )


def read(source: RecordingSource) -> Iterator[Session]:
    """Yield one session for each run in the file."""
    if _is_telemetry(source):
        yield from _read_telemetry(source)
        return
    stream, runs = _GeminiStream(source), 0
    for record in source.records():
        fields = as_mapping(record)
        if stream.is_over(fields):
            yield _build_session(stream, source, runs)
            stream, runs = _GeminiStream(source), runs + 1
        stream.add_record(fields, record)
    yield _build_session(stream, source, runs)


def _build_session(stream: _GeminiStream, source: RecordingSource, index: int) -> Session:
    stream.flush_message()
    builder = stream.builder
    digest = hashlib.sha256(source.head).hexdigest()[:16]
    return builder.build_session(
        id=stream.session or (f"{digest}-{index + 1}" if index else digest),
        agent="gemini-cli",
        model=stream.model,
        exit=stream.exit,
        cause=stream.cause,
        usage=stream.usage,
        summary=builder.mark_claim(),
        copy="printed",
    )


def _is_own_record(record: object) -> bool:
    fields = as_mapping(record)
    if not isinstance(fields.get("timestamp"), str):
        return False
    keys_by_type = {"init": ("session_id", "model"), "tool_use": ("tool_name", "tool_id")}
    names = keys_by_type.get(str(fields.get("type")))
    return names is not None and all(isinstance(fields.get(key), str) for key in names)


def _iter_printed_records(source: RecordingSource) -> Iterator[Any]:
    """Yield the records of a terminal's log, which may begin with warnings."""
    if b'"session_id"' not in source.head or b'"init"' not in source.head:
        return
    for line in source.head.splitlines()[:40]:
        if line.startswith(b'{"type"'):
            yield try_decode_json(line)


def _exit_code(printed: str, *, failed: bool) -> int | None:
    """Return the exit code, stated if a command printed nothing or failed."""
    if match := _BARE_EXIT_CODE.fullmatch(printed):
        return int(match[1])
    return parse_shell_exit_code(printed) if failed else None


class _GeminiStream:
    """Collects events; a message arrives in pieces."""

    def __init__(self, source: RecordingSource) -> None:
        self.source = source
        self.builder = SessionBuilder(name, version, source.skipped)
        self.session: str | None = None
        self.model: str | None = None
        self.exit: Exit = "crashed"
        self.cause: str | None = "The output ends before its result."
        self.usage = Usage()
        self.ended = False
        self._pieces: list[str] = []
        self._begun: datetime | None = None
        self._turn: int | None = None

    def is_over(self, record: Mapping[str, Any]) -> bool:
        """Whether a record belongs to another run: each has an id and ends with its result."""
        kind, session = record.get("type"), as_label(record.get("session_id"))
        if kind == "init" and self.session is not None:
            return session != self.session
        return self.ended and kind in ("init", "message")

    def add_record(self, fields: Mapping[str, Any], record: object) -> None:
        time = self.builder.record_time(time_from_text(fields.get("timestamp")))
        kind = fields.get("type")
        if kind == "message" and fields.get("role") == "assistant":
            self._add_message_piece(fields, time)
            return
        self.flush_message()
        if kind == "message" and fields.get("role") == "user":
            self._add_user_message(fields, time)
        elif kind == "tool_use":
            self._add_call(fields, time)
        elif kind == "tool_result":
            self._add_result(fields)
        elif kind == "init":
            self.session = as_label(fields.get("session_id")) or self.session
            self.model = as_label(fields.get("model")) or self.model
        elif kind == "result":
            self._end_run(fields)
        elif kind == "error":
            severity = as_label(fields.get("severity")) or "error"
            self.builder.add_note(as_text(fields.get("message")) or "", severity, at=time)
        else:
            self.builder.add_note(
                json_excerpt(record), about=f"unknown: {json_excerpt(kind)}", at=time
            )

    def _open_turn(self, time: datetime | None) -> int:
        """Results end a turn; the model's next output is another message."""
        if self._turn is None:
            self._turn = self.builder.add_turn(ROOT_LANE, Turn(model=self.model, at=time))
        return self._turn

    def _add_message_piece(self, record: Mapping[str, Any], time: datetime | None) -> None:
        if record.get("delta") is not True:
            self.flush_message()
        self._open_turn(time)
        if not self._pieces:
            self._begun = time
        self._pieces.append(as_text(record.get("content")) or "")

    def flush_message(self) -> None:
        text = self.builder.truncate_text("".join(self._pieces))
        self._pieces.clear()
        if text:
            fields = self.builder.event_fields(turn=self._turn, at=self._begun)
            self.builder.add(Message(**fields, role="agent", text=text))

    def _add_user_message(self, record: Mapping[str, Any], time: datetime | None) -> None:
        self._turn = None
        text = self.builder.truncate_text(as_text(record.get("content")) or "")
        self.builder.add_incoming_message(text, lane=ROOT_LANE, time=time)

    def _add_call(self, record: Mapping[str, Any], time: datetime | None) -> None:
        call = as_label(record.get("tool_id"))
        origin = CallOrigin(
            number=self.builder.next_number,
            lane=ROOT_LANE,
            turn=self._open_turn(time),
            at=time,
            call=call,
        )
        call_arguments = storable_arguments(record.get("parameters"), self.source.skipped)
        self.builder.add(
            event_from_gemini_call(
                as_label(record.get("tool_name")) or "unknown", call_arguments, origin
            )
        )

    def _add_result(self, record: Mapping[str, Any]) -> None:
        self._turn = None
        event = self.builder.find_open_call(ROOT_LANE, as_label(record.get("tool_id")))
        if event is None:
            self.builder.add_note(json_excerpt(record), about=UNPAIRED_RESULT)
            return
        status = record.get("status")
        ok = {"success": True, "error": False}.get(status) if isinstance(status, str) else None
        printed = as_text(record.get("output"))
        error = as_text(as_mapping(record.get("error")).get("message")) if ok is False else None
        text = "\n".join(dict.fromkeys(part for part in (printed, error) if part))
        output = self.builder.truncate_text(text) if text else None
        result_fields: dict[str, object] = {
            "seconds": seconds_between(event.at, time_from_text(record.get("timestamp")))
        }
        if isinstance(event, Command):
            output = output or ("" if ok is not None else None)
            code = _exit_code(printed or "", failed=ok is False)
            result_fields |= {"exit_code": code, "exit_from": None if code is None else "parsed"}
        elif isinstance(event, Read) and ok:
            # A display text, not the content that was read.
            result_fields["text"] = None
        # A sub-agent's return does not show whether it succeeded.
        finish_gemini_call(self.builder, event, output, ok, {"state": "unknown"}, **result_fields)

    def _end_run(self, record: Mapping[str, Any]) -> None:
        self.ended = True
        error = as_mapping(record.get("error"))
        if record.get("status") == "success":
            self.exit, self.cause = "finished", None
        else:
            self.exit = _EXITS.get(str(error.get("type")), "crashed")
            self.cause = as_label(error.get("message")) or as_label(error.get("type"))
        stats = as_mapping(record.get("stats"))
        input_tokens, total = (
            as_count(stats.get("input_tokens")),
            as_count(stats.get("total_tokens")),
        )
        if not input_tokens or not total:
            return
        cached = as_count(stats.get("cached"))
        # Thoughts are only included in the total.
        output_tokens = max(total - input_tokens, as_count(stats.get("output_tokens")) or 0)
        uncached_tokens = max(input_tokens - (cached or 0), 0)
        self.usage = Usage(
            input_tokens=uncached_tokens, output_tokens=output_tokens, cache_read_tokens=cached
        )
        tokens_by_model = {
            model: as_count(as_mapping(model_stats).get("total_tokens")) or 0
            for model, model_stats in as_mapping(stats.get("models")).items()
        }
        if any(tokens_by_model.values()):
            self.model = as_label(max(tokens_by_model, key=lambda key: tokens_by_model[key]))


# The log of its telemetry (`telemetry.outfile`): prompts, calls without their results, and tokens.


_TELEMETRY_EVENT = re.compile(rb'"event\.name"\s*:\s*"gemini_cli\.')
_TOKEN_COUNTS = {
    "input": "input_token_count",
    "output": "output_token_count",
    "cached": "cached_content_token_count",
    "thoughts": "thoughts_token_count",
    "tool": "tool_token_count",
    "total": "total_token_count",
}


def _is_telemetry(source: RecordingSource) -> bool:
    return source.head[:1] == b"{" and _TELEMETRY_EVENT.search(source.head) is not None


def _read_telemetry(source: RecordingSource) -> Iterator[Session]:
    """Yield one session for each id in the log."""
    sessions: dict[str, _TelemetrySession] = {}
    printed = () if source.lines else iter_printed_values(source.path, source.skipped)
    for record in source.records() if source.lines else printed:
        event = as_mapping(as_mapping(record).get("attributes"))
        kind, session = as_label(event.get("event.name")), as_label(event.get("session.id"))
        if kind and session and kind.startswith("gemini_cli."):
            if session not in sessions:
                sessions[session] = _TelemetrySession(source)
            sessions[session].add_event(kind.removeprefix("gemini_cli."), event)
    for session, events in sessions.items():
        builder = events.builder
        yield builder.build_session(
            id=session,
            agent="gemini-cli",
            exit="finished",
            summary=builder.mark_claim(),
            copy="printed",
        )


class _TelemetrySession:
    """Collects the events of one session."""

    def __init__(self, source: RecordingSource) -> None:
        self.builder = SessionBuilder(name, version, source.skipped)
        self._skipped = source.skipped
        self._turn: int | None = None

    def add_event(self, kind: str, event: Mapping[str, Any]) -> None:
        time = self.builder.record_time(time_from_text(event.get("event.timestamp")))
        if kind == "user_prompt":
            text = self.builder.truncate_text(as_text(event.get("prompt")) or "")
            if text:
                self.builder.add_incoming_message(text, lane=ROOT_LANE, time=time)
        elif kind == "api_response":
            self._add_response(event, time)
        elif kind == "tool_call":
            self._add_call(event, time)
        elif kind == "api_error":
            message = as_text(event.get("error")) or as_text(event.get("error.message")) or ""
            self.builder.add_note(message, "error", at=time)

    def _add_response(self, event: Mapping[str, Any], time: datetime | None) -> None:
        model = as_label(event.get("model"))
        usage = usage_from_gemini(event, _TOKEN_COUNTS)
        self._turn = self.builder.add_turn(ROOT_LANE, Turn(model=model, at=time, usage=usage))
        if model:
            self.builder.models[model] += usage.output_tokens or 1
        text = self.builder.truncate_text(as_text(event.get("response_text")) or "")
        if text and text[:1] not in "[{":
            fields = self.builder.event_fields(turn=self._turn, at=time)
            self.builder.add(Message(**fields, role="agent", text=text))

    def _add_call(self, event: Mapping[str, Any], time: datetime | None) -> None:
        given = event.get("function_args")
        call_arguments = try_decode_json(given) if isinstance(given, str) else given
        origin = CallOrigin(
            number=self.builder.next_number,
            lane=ROOT_LANE,
            turn=self._turn,
            at=time,
            call=f"{self.builder.next_number}",
        )
        call = self.builder.add(
            event_from_gemini_call(
                as_label(event.get("function_name")) or "unknown",
                storable_arguments(call_arguments, self._skipped),
                origin,
            )
        )
        succeeded = event.get("success")
        ok = succeeded if isinstance(succeeded, bool) else None
        error = as_text(event.get("error")) if ok is False else None
        milliseconds = as_count(event.get("duration_ms"))
        seconds = None if milliseconds is None else milliseconds / 1000
        stopped = {"stopped": "rejected"} if event.get("decision") == "reject" else {}
        more = stopped if isinstance(call, Command) else {}
        finish_gemini_call(self.builder, call, error, ok, seconds=seconds, **more)
