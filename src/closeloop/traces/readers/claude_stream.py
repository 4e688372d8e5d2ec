"""Claude Code's output: `--output-format stream-json`, or `json` with all messages."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

import msgspec

from closeloop.records.attempt import Exit, Usage, sum_usage
from closeloop.records.protocols import RecordingSource
from closeloop.records.record import content_digest
from closeloop.records.trace import Command, Session
from closeloop.text.untrusted import truncate_middle
from closeloop.traces.readers.claude_conversation import (
    ClaudeConversation,
    join_child_lanes,
    mark_final_claim,
    non_negative_int,
    session_outcome,
    usage_from_claude,
)
from closeloop.traces.session_builder import ROOT_LANE, count_skip
from closeloop.traces.untrusted_json import json_excerpt, make_usage

name = "claude-stream"
version = 4

_EXITS: dict[str, Exit] = {
    "success": "finished",
    "error_max_turns": "out_of_budget",
    "error_max_budget_usd": "out_of_budget",
    "error_during_execution": "crashed",
}
_REDUNDANT_TYPES = ("tool_progress", "keep_alive")
_REDUNDANT_SUBTYPES = ("task_started", "task_progress", "task_updated", "status")
_START = re.compile(rb'\{"type":\s?"system",\s?"subtype":\s?"init",')
_FRAME_KEYS = ("session_id", "subtype", "type", "uuid")


def recognises(source: RecordingSource) -> bool:
    lines = _first_records(source)
    if not lines:
        # Terminal output may precede the first line, or that line may be long.
        return bool(_START.search(source.head)) and b'"session_id":' in source.head
    return any(_is_claude_line(line) for line in lines) and not any(
        _is_qwen(line) for line in lines
    )


def _is_qwen(line: Any) -> bool:
    """Qwen Code writes a similar format with other tool results."""
    return isinstance(line, dict) and "qwen_code_version" in line


def _first_records(source: RecordingSource) -> Sequence[Any]:
    lines = source.lines
    if len(lines) == 1 and isinstance(lines[0], list):
        return lines[0][:12]
    if not lines and source.head.lstrip()[:1] == b"[" and b'"session_id"' in source.head:
        document = source.document
        return document[:12] if isinstance(document, list) else ()
    return lines


def _is_claude_line(line: Any) -> bool:
    if not isinstance(line, dict) or not isinstance(line.get("session_id"), str):
        return False
    kind = line.get("type")
    if kind == "system":
        # Output of hooks comes first, and may be long.
        hook = "hook_id" in line and "hook_event" in line
        return hook or (line.get("subtype") == "init" and isinstance(line.get("tools"), list))
    if kind in ("assistant", "user"):
        return "parent_tool_use_id" in line and isinstance(line.get("message"), dict)
    return kind == "result" and "num_turns" in line and "subtype" in line


def read(source: RecordingSource) -> Iterator[Session]:
    """Yield one session for each id in the stream, in order of their start."""
    streams: dict[str, _ClaudeStream] = {}
    current = None
    for record in _iter_records(source):
        if not isinstance(record, dict):
            count_skip(source.skipped, "not a record")
            continue
        session = record.get("session_id")
        if current is None or (isinstance(session, str) and session != current.id):
            session_id = session if isinstance(session, str) else ""
            current = streams.get(session_id) or streams.pop("", None) or _ClaudeStream(source)
            current.id = session_id
            streams[session_id] = current
        current.add_record(record)
    for stream in streams.values():
        if stream.conversation.builder.events or stream.results:
            yield stream.build_session()


def _iter_records(source: RecordingSource) -> Iterator[Any]:
    first = _first_records(source)
    lines = source.lines
    if first and (not lines or first is not lines):
        document = source.document
        yield from document if isinstance(document, list) else ()
    else:
        yield from source.records()


class _ClaudeStream:
    """Collects the lines of one session."""

    def __init__(self, source: RecordingSource) -> None:
        self.id = ""
        self.conversation = ClaudeConversation(name, version, source.skipped)
        self.start: dict[str, Any] = {}
        self.results: list[dict[str, Any]] = []
        self.spent: list[Usage] = []
        """Usage of whole runs; a run repeats what it reported before."""
        self._starts: dict[str, dict[str, Any]] = {}
        self._denied: set[str] = set()

    def add_record(self, record: dict[str, Any]) -> None:
        kind, time = record.get("type"), self.conversation.record_time(record.get("timestamp"))
        lane = self._lane_of_record(record)
        if kind == "assistant":
            self.conversation.add_agent_message(lane, record, time)
        elif kind == "user":
            self.conversation.add_user_record(lane, record, record.get("tool_use_result"), time)
        elif kind == "system":
            self._add_system_record(lane, record, time)
        elif kind == "result":
            self._add_run_result(record)
        elif kind == "stream_event":
            self._add_stream_event(lane, record.get("event"))
        elif kind not in _REDUNDANT_TYPES:
            self.conversation.add_unknown(kind, record, lane, time)

    def _lane_of_record(self, record: dict[str, Any]) -> str:
        """A sub-agent's lines name the call that started it."""
        call = record.get("parent_tool_use_id")
        if not isinstance(call, str) or not call:
            return ROOT_LANE
        return self.conversation.open_lane(truncate_middle(call, max_chars=200))

    def _add_stream_event(self, lane: str, event: Any) -> None:
        """Read messages as they arrive. Only their ends matter, which have the real counts."""
        if not isinstance(event, dict):
            return
        message, delta, usage = event.get("message"), event.get("delta"), event.get("usage")
        if event.get("type") == "message_start" and isinstance(message, dict):
            self._starts[lane] = message
        elif isinstance(usage, dict) and isinstance(delta, dict) and lane in self._starts:
            message = self._starts.pop(lane)
            before = message.get("usage")
            total_usage = {**(before if isinstance(before, dict) else {}), **usage}
            reason = delta.get("stop_reason")
            self.conversation.add_turn(
                lane, {**message, "usage": total_usage, "stop_reason": reason}, None, None
            )

    def _add_system_record(self, lane: str, record: dict[str, Any], time: datetime | None) -> None:
        subtype = record.get("subtype")
        if subtype == "init":
            self.start = self.start or record
            return
        if subtype in _REDUNDANT_SUBTYPES:
            return
        if subtype == "task_notification":
            self.conversation.finish_background_task(
                record.get("task_id"), _notification_text(record)
            )
        text = json_excerpt(
            {name: value for name, value in record.items() if name not in _FRAME_KEYS}
        )
        if subtype == "compact_boundary":
            self.conversation.add_compaction(text, lane, time, summary=False)
        else:
            self.conversation.add_note(
                text, truncate_middle(f"system: {subtype}", max_chars=100), lane, time
            )

    def _add_run_result(self, record: dict[str, Any]) -> None:
        """Add the end of a run; one program may answer several prompts and keeps counting."""
        usage = _run_usage(record)
        if self.conversation.builder.models and not any(
            (usage.input_tokens, usage.output_tokens, usage.cache_read_tokens, usage.cost)
        ):
            usage = Usage()  # A provider that reports only zeros has not counted.
        before = self.spent[-1] if self.spent else None
        if before is not None and (usage.cost or 0) >= (before.cost or 0):
            self.spent.pop()
        self.spent.append(usage)
        self.results.append(record)
        denials = record.get("permission_denials")
        for denial in denials if isinstance(denials, list) else ():
            self.conversation.add_note(json_excerpt(denial), "permission denied")
            self._denied.add(str(denial.get("tool_use_id")) if isinstance(denial, dict) else "")

    def build_session(self) -> Session:
        conversation = self.conversation
        for event in conversation.builder.events:
            if isinstance(event, Command) and event.call in self._denied and not event.stopped:
                conversation.builder.finish(event, stopped="not permitted")
        join_child_lanes(conversation)
        conversation.builder.mark_corrections()
        outcome, cause = self._session_outcome()
        claim = mark_final_claim(conversation, finished=outcome == "finished")
        result_text = self.results[-1].get("result") if self.results else None
        if isinstance(result_text, str) and result_text.strip() and claim is None:
            conversation.builder.add_agent_message(result_text)
            claim = mark_final_claim(conversation, finished=outcome == "finished")
        release, model, cwd = (
            truncate_middle(value, max_chars=1000) if isinstance(value, str) else None
            for value in map(self.start.get, ("claude_code_version", "model", "cwd"))
        )
        main_model = conversation.builder.most_used_model() or model
        return conversation.builder.build_session(
            id=truncate_middle(self.id, max_chars=400)
            or content_digest(msgspec.msgpack.encode(conversation.builder.build_trace())),
            agent="claude-code",
            agent_version=release,
            model=main_model and truncate_middle(main_model, max_chars=1000),
            exit=outcome,
            cause=cause,
            usage=sum_usage(self.spent) if self.spent else conversation.builder.total_usage(),
            summary=claim,
            directory=cwd,
            copy="printed",
        )

    def _session_outcome(self) -> tuple[Exit, str | None]:
        if not self.results:
            if self.conversation.trouble is not None:
                return session_outcome(self.conversation)
            return "crashed", "The stream ends without a result."
        last = self.results[-1]
        subtype, text = str(last.get("subtype")), last.get("result")
        if subtype == "success" and last.get("is_error") is True:
            cause = text if isinstance(text, str) else "The run ended in an error."
            return "machine", truncate_middle(cause, max_chars=300)
        outcome = _EXITS.get(subtype, "crashed")
        return outcome, None if outcome == "finished" else truncate_middle(subtype, max_chars=100)


def _notification_text(record: dict[str, Any]) -> str:
    """Convert a notice of the stream to the wording of session files."""
    status, summary = record.get("status"), record.get("summary")
    return f"<status>{status}</status>\n<summary>{summary}</summary>"


def _run_usage(record: dict[str, Any]) -> Usage:
    """Usage of all models including sub-agents; without that, of the main lane only."""
    cost = record.get("total_cost_usd")
    if isinstance(cost, bool) or not isinstance(cost, int | float) or not 0 <= cost < 1e9:
        cost = None
    models = record.get("modelUsage")
    model_usages = [
        make_usage(
            non_negative_int(model_fields.get("inputTokens")),
            non_negative_int(model_fields.get("outputTokens")),
            read=non_negative_int(model_fields.get("cacheReadInputTokens")),
            write=non_negative_int(model_fields.get("cacheCreationInputTokens")),
        )
        for model_fields in (models.values() if isinstance(models, dict) else ())
        if isinstance(model_fields, dict)
    ]
    usage = record.get("usage")
    if model_usages:
        total_usage = sum_usage(model_usages)
    else:
        usage_fields = usage if isinstance(usage, dict) else {}
        total_usage = usage_from_claude(
            usage_fields, non_negative_int(usage_fields.get("output_tokens"))
        )
    if cost is None:
        return total_usage
    return msgspec.structs.replace(total_usage, cost=float(cost), cost_from="reported")
