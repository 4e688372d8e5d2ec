"""Logs of Inspect: `.eval` archives, also of crashed runs, and logs as JSON.

Every sample is a session. Work of scorers and of the sandbox's setup is not the agent's; it is left
out and counted.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import zstandard

from closeloop.records.attempt import Exit, Usage
from closeloop.records.protocols import RecordingSource
from closeloop.records.record import Record
from closeloop.records.trace import AnyEvent, Command, Intent, Message, Session, Turn
from closeloop.text.untrusted import MAX_NOTE_CHARS, truncate_middle
from closeloop.traces.file_source import MAX_DOCUMENT_BYTES, is_heavy
from closeloop.traces.message_parts import MessagePart, PartRole, RequestHistory, handoff_from_call
from closeloop.traces.session_builder import ROOT_LANE, SessionBuilder, count_skip
from closeloop.traces.untrusted_json import (
    as_amount,
    as_count,
    as_exit_code,
    as_list,
    as_mapping,
    clean_text,
    decode_json,
    make_usage,
    text_or_json,
    time_from_text,
    uncached_input_tokens,
)

# One sample of an Inspect log: its events as a trace.


SCORING_EVENT = "an event of scoring or set-up"
ATTACHMENT_PREFIX = "attachment://"
_OUTSIDE_SPANS = frozenset({"scorers", "scorer", "init"})
_STRUCTURE_EVENTS = frozenset({"sample_init", "state", "store", "span_end", "score", "score_edit"})
_ROLES: dict[str, PartRole] = {"user": "user", "assistant": "agent", "system": "system"}
_LIMITS: dict[str, Exit] = {"time": "out_of_time", "working": "out_of_time"}
_COMMON_KEYS = frozenset({"uuid", "span_id", "timestamp", "working_start", "event", "metadata"})


class InspectSpan(Record):
    """A span of the log, to which its events belong."""

    lane: str = ROOT_LANE
    outside: bool = False
    """Whether it is not part of the agent's work."""
    agent: bool = False
    """Whether an agent works in it."""
    number: int | None = None
    """The event of the call that it carries out."""
    handoff: str | None = None
    """The surrounding span, if it only wraps a handoff call."""


class InspectSample:
    """The state while a sample is read."""

    def __init__(self, sample: Mapping[str, Any], builder: SessionBuilder) -> None:
        self.sample = sample
        self.builder = builder
        self.dialogue = RequestHistory(builder)
        self.places: dict[str, InspectSpan] = {}
        self.steps: list[bool] = []
        self.seen: set[str] = set()
        self.renamed = False
        self.pooled: set[tuple[str, int]] = set()
        self.agent: str | None = None
        self.tool_span: dict[str, str] = {}
        """The last span opened inside another for a call whose event follows."""
        attachments = sample.get("attachments")
        self.attached = (
            attachments if isinstance(attachments, dict) else dict(enumerate(as_list(attachments)))
        )
        data = as_mapping(sample.get("events_data"))
        self.pool = as_list(data.get("messages") or sample.get("message_pool"))

    def build_session(self, header: Mapping[str, Any]) -> Session:
        events = as_list(self.sample.get("events"))
        for event in events:
            if isinstance(event, dict):
                self._add_event(event)
        if not any(as_mapping(event).get("event") == "model" for event in events):
            self._add_messages()
        self._add_scores()
        eval_info = as_mapping(header.get("eval"))
        ident, epoch = text_or_json(self.sample.get("id")), text_or_json(self.sample.get("epoch"))
        run = (
            clean_text(eval_info.get("eval_id")) or clean_text(eval_info.get("run_id")) or "inspect"
        )
        finish, cause = self._session_exit()
        times = [
            time for event in events if (time := time_from_text(as_mapping(event).get("timestamp")))
        ]
        summary = self.builder.mark_claim()
        return self.builder.build_session(
            id=clean_text(self.sample.get("uuid")) or f"{run}/{ident}/{epoch}",
            agent=self.agent
            or clean_text(eval_info.get("solver"))
            or last_solver(header)
            or "inspect",
            agent_version=clean_text(as_mapping(eval_info.get("packages")).get("inspect_ai")),
            model=self.builder.most_used_model() or clean_text(eval_info.get("model")),
            system=self.dialogue.system,
            started=time_from_text(self.sample.get("started_at")) or min(times, default=None),
            ended=time_from_text(self.sample.get("completed_at")) or max(times, default=None),
            exit=finish,
            cause=cause,
            summary=summary,
            links={
                "task": clean_text(eval_info.get("task")) or "unknown",
                "sample": ident,
                "epoch": epoch,
            },
        )

    def _session_exit(self) -> tuple[Exit, str | None]:
        limit, error = as_mapping(self.sample.get("limit")), as_mapping(self.sample.get("error"))
        if error:
            return "crashed", self._to_text(error.get("message"))
        if limit:
            kind = text_or_json(limit.get("type"))
            return _LIMITS.get(kind, "out_of_budget"), f"{kind} limit of {limit.get('limit')}"
        return "finished", None

    def _span_of_event(self, event: Mapping[str, Any]) -> InspectSpan:
        span = self.places.get(text_or_json(event.get("span_id")), InspectSpan())
        return InspectSpan(outside=True) if any(self.steps) else span

    def _add_event(self, event: Mapping[str, Any]) -> None:
        kind = text_or_json(event.get("event"))
        if kind == "span_begin":
            return self._begin_span(event)
        if kind == "step":
            return self._add_step(event)
        if kind in _STRUCTURE_EVENTS or event.get("pending") is True:
            return None
        span = self._span_of_event(event)
        if span.outside:
            self.builder.count_skip(SCORING_EVENT)
            return None
        time = time_from_text(event.get("timestamp"))
        match kind:
            case "model":
                self._add_model_event(event, span.lane, time)
            case "tool":
                self._add_tool_event(event, span.lane, time)
            case "sandbox":
                self._add_sandbox_event(event, span, time)
            case "subtask":
                self._add_inner_events(event)
            case _:
                self._add_aside(event, span, time)
        return None

    def _begin_span(self, event: Mapping[str, Any]) -> None:
        parent_id, span_id = text_or_json(event.get("parent_id")), text_or_json(event.get("id"))
        parent, kind = self.places.get(parent_id, InspectSpan()), text_or_json(event.get("type"))
        span = msgspec.structs.replace(parent, handoff=parent_id if kind == "handoff" else None)
        if parent.outside or kind in _OUTSIDE_SPANS:
            span = msgspec.structs.replace(span, outside=True)
        elif kind == "agent":
            span = InspectSpan(lane=self._open_agent_lane(event, span_id, parent), agent=True)
        elif kind == "tool":
            self.tool_span[parent.handoff or parent_id] = span_id
        self.places[span_id] = span

    def _open_agent_lane(self, event: Mapping[str, Any], span_id: str, parent: InspectSpan) -> str:
        """The first agent has the root lane; nested ones have their own."""
        name = clean_text(event.get("name"))
        if self.agent is None and parent.number is None:
            self.agent = name or "agent"
            return self.builder.open_lane(agent=name)
        if span_id in self.places:
            return self.builder.open_lane(self.places[span_id].lane, agent=name)
        lane = self.builder.open_lane(span_id, parent.lane, name)
        if parent.number is not None:
            call_event = self.builder.events[parent.number - 1]
            self.builder.replace_event(handoff_from_call(call_event, lane))
        return lane

    def _add_step(self, event: Mapping[str, Any]) -> None:
        """Handle the marks of old logs, now spans."""
        if event.get("action") == "begin":
            kind = text_or_json(event.get("type"))
            self.steps.append(kind in _OUTSIDE_SPANS or event.get("name") == "init")
        elif self.steps:
            self.steps.pop()

    def _add_model_event(self, event: Mapping[str, Any], lane: str, time: datetime | None) -> None:
        self._add_input(list(self._iter_new_input(event)), lane, time)
        output = as_mapping(event.get("output"))
        model = clean_text(output.get("model")) or clean_text(event.get("model"))
        usage = (
            Usage()
            if event.get("cache") == "read"
            else usage_from_inspect(as_mapping(output.get("usage")))
        )
        seconds = as_amount(event.get("working_time")) or as_amount(output.get("time"))
        turn = self.builder.add_turn(lane, Turn(usage=usage, model=model, at=time, seconds=seconds))
        if model:
            self.builder.models[model] += 1
        choices = as_list(output.get("choices"))
        message = as_mapping(as_mapping(choices[0]).get("message")) if choices else {}
        self.seen.add(text_or_json(message.get("id")))
        end_time = time_from_text(event.get("completed")) or time
        for part in self._message_parts(message):
            self.dialogue.add_reply_part(part, lane, end_time, turn)
        if error := clean_text(event.get("error")):
            self.builder.add_note(
                text_or_json(self._expand_attachments(error)), "model error", lane=lane, at=time
            )

    def _iter_new_input(self, event: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        """Yield new messages: stored in the event, or in a pool that events refer to."""
        for message in as_list(event.get("input")):
            if isinstance(message, dict):
                yield message
        for pair in as_list(event.get("input_refs")):
            first, last = (as_count(bound) for bound in (*as_list(pair), None, None)[:2])
            for index in range(first or 0, min(last or 0, len(self.pool))):
                if ("pool", index) not in self.pooled:
                    self.pooled.add(("pool", index))
                    yield as_mapping(self.pool[index])

    def _add_input(
        self, messages: list[Mapping[str, Any]], lane: str, time: datetime | None
    ) -> None:
        new = [message for message in messages if clean_text(message.get("id")) not in self.seen]
        self.renamed = self.renamed or any(self._has_new_id(message, lane) for message in new)
        if self.renamed or any(clean_text(message.get("id")) is None for message in new):
            self.dialogue.add_request(
                (part for message in messages for part in self._message_parts(message)), lane, time
            )
            return
        for message in new:
            message_id = clean_text(message.get("id")) or ""
            if message_id not in self.seen:
                self.seen.add(message_id)
                for part in self._message_parts(message):
                    self.dialogue.mark_known(part, lane)
                    self.dialogue.add_part(part, lane, time)

    def _has_new_id(self, message: Mapping[str, Any], lane: str) -> bool:
        """Whether it is known under another id: some writers assign a new one each time."""
        if not message.get("tool_calls") or clean_text(message.get("id")) is None:
            return False
        calls = (part for part in self._message_parts(message) if part.kind == "call" and part.id)
        return any(self.dialogue.is_known(call, lane) for call in calls)

    def _add_messages(self) -> None:
        """Add the messages of a log without events."""
        for message in as_list(self.sample.get("messages")):
            turn = None
            if as_mapping(message).get("role") == "assistant":
                turn = self.builder.add_turn(
                    ROOT_LANE, Turn(model=clean_text(message.get("model")))
                )
            for part in self._message_parts(as_mapping(message)):
                self.dialogue.add_reply_part(part, ROOT_LANE, None, turn)

    def _message_parts(self, message: Mapping[str, Any]) -> Iterator[MessagePart]:
        content, role = self._expand_attachments(message.get("content")), message.get("role")
        if role == "tool":
            error = as_mapping(self._expand_attachments(message.get("error")))
            text = inspect_content_text(content) or text_or_json(error.get("message") or "")
            call_id, ok = clean_text(message.get("tool_call_id")), False if error else None
            yield MessagePart(
                "tool", "result", text, clean_text(message.get("function")), call_id, ok=ok
            )
            return
        speaker = _ROLES.get(text_or_json(role), "user")
        for part in content if isinstance(content, list) else [content]:
            fields = as_mapping(part)
            if fields.get("type") == "reasoning":
                thought = fields.get("reasoning") or fields.get("summary")
                yield MessagePart("agent", "thought", text_or_json(thought or ""))
            elif fields.get("type") == "tool_use":
                name = clean_text(fields.get("name"))
                yield MessagePart(
                    "agent", "call", "", name, clean_text(fields.get("id")), fields.get("arguments")
                )
            else:
                yield MessagePart(speaker, "text", inspect_content_text(part))
        for call in as_list(message.get("tool_calls")):
            fields = as_mapping(call)
            arguments = self._expand_attachments(fields.get("arguments"))
            name, call_id = clean_text(fields.get("function")), clean_text(fields.get("id"))
            yield MessagePart("agent", "call", "", name or "unknown", call_id, arguments)

    def _add_tool_event(self, event: Mapping[str, Any], lane: str, time: datetime | None) -> None:
        name = clean_text(event.get("function")) or "unknown"
        arguments = self._expand_attachments(event.get("arguments"))
        call = MessagePart("agent", "call", "", name, clean_text(event.get("id")), arguments)
        called_event = self.dialogue.find_open_call(lane, call)
        if called_event is None:
            self.dialogue.mark_known(call, lane)
            called_event = self.dialogue.add_part(
                call, lane, time, self.builder.count_turns(lane) or None
            )
        assert called_event is not None
        self.seen.add(text_or_json(event.get("message_id")))
        self._assign_tool_span(event, called_event)
        finished_event = self._finish_call(event, called_event)
        seconds = as_amount(event.get("working_time"))
        finished_event = msgspec.structs.replace(
            finished_event, at=time or finished_event.at, seconds=seconds
        )
        child = clean_text(event.get("agent_span_id"))
        if child and child not in self.places:
            # The agent's own span comes later: the lane is opened for it here.
            self.places[child] = InspectSpan(lane=self.builder.open_lane(child, lane), agent=True)
            finished_event = handoff_from_call(finished_event, child)
        self.builder.replace_event(finished_event)
        self._add_inner_events(event)

    def _assign_tool_span(self, event: Mapping[str, Any], call_event: AnyEvent) -> None:
        """Assign the events of the span that was opened for the call to the call."""
        span = self.tool_span.pop(text_or_json(event.get("span_id")), None)
        if span in self.places:
            call_span = self.places[span]
            self.places[span] = msgspec.structs.replace(call_span, number=call_event.number)

    def _finish_call(self, event: Mapping[str, Any], call_event: AnyEvent) -> AnyEvent:
        error = as_mapping(self._expand_attachments(event.get("error")))
        if event.get("completed") is None and not error and not event.get("result"):
            return call_event
        output = inspect_content_text(self._expand_attachments(event.get("result")))
        if error:
            output = "\n".join(
                text for text in (output, text_or_json(error.get("message") or "")) if text
            )
        failed = bool(error) or event.get("failed") is True
        finished_event = self.dialogue.finish_call(call_event, output, not failed)
        if isinstance(finished_event, Command) and error.get("type") == "timeout":
            finished_event = msgspec.structs.replace(finished_event, stopped="out of time")
        return finished_event

    def _add_sandbox_event(
        self, event: Mapping[str, Any], span: InspectSpan, time: datetime | None
    ) -> None:
        """Add what really ran: the exit code of a call, or the agent's own command."""
        code = as_exit_code(event.get("result"))
        if event.get("action") != "exec":
            return
        if span.number is None and not span.agent:
            self.builder.count_skip(SCORING_EVENT)
            return
        if span.number is not None:
            call_event = self.builder.events[span.number - 1]
            if (
                isinstance(call_event, Command)
                and call_event.exit_from != "stated"
                and code is not None
            ):
                exit_fields: dict[str, Any] = {"exit_code": code, "exit_from": "stated"}
                self.builder.replace_event(msgspec.structs.replace(call_event, **exit_fields))
            return
        self.builder.add(
            Command(
                number=self.builder.next_number,
                lane=span.lane,
                at=time,
                command=self._to_text(event.get("cmd")),
                output=self._to_text(event.get("output")) if event.get("output") else None,
                exit_code=code,
                exit_from=None if code is None else "stated",
            )
        )

    def _add_inner_events(self, event: Mapping[str, Any]) -> None:
        """Old logs store a call's events inside the call."""
        for inner in as_list(event.get("events")):
            if isinstance(inner, dict):
                self._add_event({**inner, "span_id": event.get("span_id")})

    def _add_aside(
        self, event: Mapping[str, Any], span: InspectSpan, time: datetime | None
    ) -> None:
        lane, kind = span.lane, text_or_json(event.get("event"))
        if kind == "input" and span.number is None:
            self._add_input_event(event, lane, time)
        elif kind == "approval" and event.get("decision") in ("reject", "terminate"):
            by_user = event.get("approver") == "human"
            # Its `message` accompanies the call; it is not the reply.
            text = self._to_text(event.get("explanation"))
            intent: Intent | None = "correction" if by_user else None
            self.builder.add_incoming_message(
                text or "rejected", lane=lane, time=time, intent=intent, asks=False
            )
        elif kind == "interrupt" and event.get("source") == "user_cancel":
            self.builder.add_incoming_message(
                "interrupted", lane=lane, time=time, intent="interrupt"
            )
        elif kind in ("approval", "input"):
            return
        elif kind in ("compaction", "error", "info", "interrupt", "logger", "sample_limit"):
            own_fields = {key: value for key, value in event.items() if key not in _COMMON_KEYS}
            note_kind = {"sample_limit": "limit", "logger": "log"}.get(kind, kind)
            self.builder.add_note(
                self._to_text(own_fields)[:MAX_NOTE_CHARS], about=note_kind, lane=lane, at=time
            )
        else:
            raw = self._to_text(event)[:MAX_NOTE_CHARS]
            self.builder.add_note(raw, about=f"unknown: {kind}", lane=lane, at=time)

    def _add_input_event(self, event: Mapping[str, Any], lane: str, time: datetime | None) -> None:
        if question := clean_text(event.get("message")):
            self.builder.add(
                Message(
                    number=self.builder.next_number,
                    lane=lane,
                    at=time,
                    role="agent",
                    text=self._to_text(question),
                    intent="question",
                )
            )
        answer = self._to_text(event.get("content") or event.get("input"))
        intent: Intent | None = "answer" if event.get("message") else None
        self.builder.add_incoming_message(answer, lane=lane, time=time, intent=intent, asks=False)

    def _add_scores(self) -> None:
        for scorer, score in as_mapping(self.sample.get("scores")).items():
            value = as_mapping(score).get("value")
            self.builder.add_note(
                f"{scorer}: {text_or_json(value)}"[:MAX_NOTE_CHARS], about="score"
            )

    def _to_text(self, value: Any) -> str:
        return truncate_middle(
            text_or_json("" if value is None else self._expand_attachments(value)),
            self.builder.skipped,
        )

    def _expand_attachments(self, value: Any) -> Any:
        """Replace references by the attached content."""
        if isinstance(value, str):
            if not value.startswith(ATTACHMENT_PREFIX):
                return value
            key = value.removeprefix(ATTACHMENT_PREFIX)
            index = as_count(key)
            return self.attached.get(key, self.attached.get(index, value))
        if isinstance(value, list):
            return [self._expand_attachments(item) for item in value]
        if isinstance(value, dict):
            return {key: self._expand_attachments(item) for key, item in value.items()}
        return value


def usage_from_inspect(usage: Mapping[str, Any]) -> Usage:
    """Input without cached tokens, as newer versions count; older ones include them."""
    input_tokens, output_tokens = (
        as_count(usage.get("input_tokens")),
        as_count(usage.get("output_tokens")),
    )
    read = as_count(usage.get("input_tokens_cache_read"))
    write = as_count(usage.get("input_tokens_cache_write"))
    if not input_tokens and not output_tokens:
        return Usage()
    if input_tokens is not None and as_count(usage.get("total_tokens")) == input_tokens + (
        output_tokens or 0
    ):
        input_tokens = uncached_input_tokens(input_tokens, read, write)
    cost = as_amount(usage.get("total_cost"))
    reasoning = as_count(usage.get("reasoning_tokens"))
    return make_usage(
        input_tokens, output_tokens, read=read, write=write, reasoning=reasoning, cost=cost
    )


def inspect_content_text(content: Any) -> str:
    """Return a text, or the texts of parts; media are named."""
    if content is None:
        return ""
    parts: Sequence[Any] = content if isinstance(content, list) else [content]
    texts = []
    for part in parts:
        if isinstance(part, dict) and "type" in part:
            plain = part.get("text")
            texts.append(text_or_json(plain) if isinstance(plain, str) else f"[{part['type']}]")
        else:
            texts.append(text_or_json(part))
    return "\n".join(texts)


def last_solver(header: Mapping[str, Any]) -> str | None:
    """Return who worked on a sample, from the plan of a log."""
    steps = as_list(as_mapping(header.get("plan")).get("steps"))
    return clean_text(as_mapping(steps[-1]).get("solver")) if steps else None


name = "inspect-eval"
version = 2
MAX_MEMBER_BYTES = MAX_DOCUMENT_BYTES
MAX_RATIO = 400
"""No genuine member of this size has a higher compression ratio: a bomb does."""
MIN_RATIO_BYTES = 16 << 20
ZSTD_METHOD = 93
TOO_LARGE = "a member that unpacks to too much"
DAMAGED = "a member that cannot be read"
_READ_ERRORS = (
    OSError,
    ValueError,
    RuntimeError,
    NotImplementedError,
    zipfile.BadZipFile,
    zlib.error,
    zstandard.ZstdError,
    EOFError,
    RecursionError,
    msgspec.DecodeError,
)


def recognises(source: RecordingSource) -> bool:
    if is_log_archive(source):
        return True
    head = source.head
    return b'"eval"' in head and b'"task"' in head and is_inspect_log(source.document)


def read(source: RecordingSource) -> Iterator[Session]:
    for header, sample in iter_samples(source):
        yield InspectSample(
            sample, SessionBuilder(name, version, source.skipped, several=True)
        ).build_session(header)


def is_log_archive(source: RecordingSource) -> bool:
    """Whether a file is a ZIP with the members of a log."""
    if source.head[:4] != b"PK\x03\x04":
        return False
    names = member_names(source.path)
    return any(name in names for name in ("header.json", "_journal/start.json")) and any(
        name.startswith(("samples/", "_journal/")) for name in names
    )


def is_inspect_log(value: Any) -> bool:
    """Whether a JSON value is a whole log."""
    eval_fields = as_mapping(as_mapping(value).get("eval"))
    return isinstance(as_mapping(value).get("version"), int) and {"task", "model"} <= {*eval_fields}


def member_names(path: Path) -> list[str]:
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.namelist()
    except _READ_ERRORS:
        return []


def iter_samples(source: RecordingSource) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Yield each sample with the log's header, decompressed one at a time."""
    if source.head[:4] != b"PK\x03\x04":
        log = as_mapping(source.document)
        for sample in as_list(log.get("samples")):
            if isinstance(sample, dict):
                yield log, sample
        return
    try:
        with source.path.open("rb") as file, zipfile.ZipFile(file) as archive:
            yield from _iter_archive_samples(source, file, archive)
    except _READ_ERRORS:
        count_skip(source.skipped, DAMAGED)


def _iter_archive_samples(
    source: RecordingSource, file: BinaryIO, archive: zipfile.ZipFile
) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    # A rewritten member occurs twice; the last one counts.
    members = archive.NameToInfo
    header = as_mapping(_read_member(source, file, archive, "header.json"))
    header = header or as_mapping(_read_member(source, file, archive, "_journal/start.json"))
    for name in members:
        if not name.startswith("samples/") or not name.endswith(".json"):
            continue
        path_parts = name.split("/")[1:]
        if len(path_parts) == 1:
            sample = _read_member(source, file, archive, name)
        elif path_parts[1:] == ["sample.json"]:
            sample = _read_chunked_sample(source, file, archive, name.removesuffix("sample.json"))
        else:
            continue
        if isinstance(sample, dict):
            yield header, sample


def _read_chunked_sample(
    source: RecordingSource, file: BinaryIO, archive: zipfile.ZipFile, prefix: str
) -> dict[str, Any]:
    """Read a large sample: a shell and sequences in chunks named by their first item."""
    sample = dict(as_mapping(_read_member(source, file, archive, f"{prefix}sample.json")))
    for sequence_name, key in (("events", "events"), ("messages", "message_pool"),
                               ("attachments", "attachments")):  # fmt: skip
        start = f"{prefix}{sequence_name}/"
        chunks = [
            (first, name)
            for name in archive.NameToInfo
            if name.startswith(start)
            and (first := as_count(name.removeprefix(start).removesuffix(".json"))) is not None
        ]
        sequence_items: list[Any] = []
        for _, name in sorted(chunks):
            sequence_items.extend(as_list(_read_member(source, file, archive, name)))
        if chunks:
            sample[key] = sequence_items
    return sample


def _read_member(
    source: RecordingSource, file: BinaryIO, archive: zipfile.ZipFile, name: str
) -> Any:
    """Return a member's JSON; None, and counted, if it is too large or damaged."""
    info = archive.NameToInfo.get(name)
    if info is None:
        return None
    packed = info.compress_size
    if info.file_size > MAX_MEMBER_BYTES or _is_bomb(info.file_size, packed):
        return count_skip(source.skipped, TOO_LARGE)
    try:
        if info.compress_type == ZSTD_METHOD:
            content = _unpack_zstd(file, info)
        else:
            with archive.open(info) as member:
                content = member.read(MAX_MEMBER_BYTES + 1)
        large = len(content) > MAX_MEMBER_BYTES or is_heavy(content)
        if large or _is_bomb(len(content), packed):
            return count_skip(source.skipped, TOO_LARGE)
        return decode_json(content)
    except _READ_ERRORS:
        return count_skip(source.skipped, DAMAGED)


def _is_bomb(size: int, packed: int) -> bool:
    return size > MIN_RATIO_BYTES and size > MAX_RATIO * packed


def _unpack_zstd(file: BinaryIO, info: zipfile.ZipInfo) -> bytes:
    """Decompress a zstd member, which Python's zipfile does not support before 3.14."""
    file.seek(info.header_offset)
    header = file.read(30)
    if header[:4] != b"PK\x03\x04":
        raise zipfile.BadZipFile("no member where one should begin")
    # The lengths of its name and its extra field, which may differ from the directory's.
    lengths = int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
    file.seek(info.header_offset + 30 + lengths)
    packed = file.read(info.compress_size)
    reader = zstandard.ZstdDecompressor().stream_reader(packed, read_across_frames=True)
    max_bytes = min(MAX_MEMBER_BYTES, max(MIN_RATIO_BYTES, MAX_RATIO * len(packed)))
    return reader.read(max_bytes + 1)
