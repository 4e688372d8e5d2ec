"""Gemini CLI's sessions: a JSON document, or a log of patches to one, with sub-agents beside it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from closeloop.records.attempt import Usage
from closeloop.records.protocols import RecordingSource
from closeloop.records.trace import (
    AnyEvent,
    Command,
    Edit,
    Handoff,
    Message,
    Read,
    Session,
    Thought,
    Turn,
)
from closeloop.text.untrusted import truncate_middle
from closeloop.text.wording import count_with_noun
from closeloop.traces.session_builder import ROOT_LANE, SessionBuilder
from closeloop.traces.tool_calls import CallOrigin, event_from_call, result_fields
from closeloop.traces.untrusted_json import (
    as_count,
    as_label,
    as_list,
    as_mapping,
    as_text,
    json_excerpt,
    make_usage,
    storable_arguments,
    time_from_text,
    try_decode_json,
)

# Contents in the shape of Google's API, as Gemini CLI and Qwen Code store them.


_TRAILER_PREFIXES = ("Process Group PGID:", "Background PIDs:", "Signal:", "Exit Code:")
_OUTPUT_PREFIXES = ("Output:", "Output too large. ")
_TIMED_OUT = "Command was automatically cancelled because it exceeded the timeout"
_REJECTION_PREFIXES = ("User did not allow tool call", "User denied", "[Operation Cancelled]")
_CANCELLED_PREFIX = "[Operation Cancelled] Reason: Operation cancelled"
_MAX_EVENTS_BACK = 200
"""Events back in which the same interrupt may have been reported."""
_HANDOFF_STATES = {"completed": True, "error": False, "failed": False, "cancelled": False}


class FunctionResponse(NamedTuple):
    """The result of a call."""

    call: str | None
    name: str | None
    text: str
    failed: bool


def content_parts(content: object) -> list[Any]:
    """Return the parts of a text, a part, a list of them, or a content with a role."""
    if isinstance(content, dict):
        content = content.get("parts", [content])
    return [{"text": content}] if isinstance(content, str) else as_list(content)


def gemini_content_text(content: object, thought: bool = False) -> str:
    """Return the text of a content, or with `thought` only its thoughts."""
    return "".join(_part_text(part, thought) for part in content_parts(content))


def _part_text(part: object, thought: bool) -> str:
    if isinstance(part, str):
        return "" if thought else part
    if not isinstance(part, dict) or (part.get("thought") is True) is not thought:
        return ""
    text = part.get("text")
    if isinstance(text, str):
        return text
    for name in ("inlineData", "fileData"):
        if name in part:
            return f"[{as_mapping(part[name]).get('mimeType') or 'data'}]"
    return ""


def iter_function_calls(content: object) -> Iterator[Mapping[str, Any]]:
    """Yield the calls of a content."""
    for part in content_parts(content):
        if isinstance(part, dict) and isinstance(part.get("functionCall"), dict):
            yield part["functionCall"]


def iter_function_responses(content: object) -> Iterator[FunctionResponse]:
    """Yield the results of a content; other parts belong to the last one."""
    for part in content_parts(content):
        response = part.get("functionResponse") if isinstance(part, dict) else None
        if isinstance(response, dict):
            text, failed = parse_function_response(response.get("response"))
            yield FunctionResponse(
                as_label(response.get("id")), as_label(response.get("name")), text, failed
            )


def parse_function_response(response: object) -> tuple[str, bool]:
    """Return the text of a response, and whether it is an error."""
    if not isinstance(response, dict):
        return (response if isinstance(response, str) else ""), False
    failed = "error" in response
    for name in ("error", "output", "result", "content"):
        if name in response:
            value = response[name]
            return (
                value
                if isinstance(value, str)
                else gemini_content_text(value) or json_excerpt(value)
            ), failed
    return json_excerpt(response), False


def event_from_gemini_call(
    tool: str, arguments: dict[str, Any] | None, origin: CallOrigin
) -> AnyEvent:
    """Return the event of a call, with the requested lines of a read: `offset` counts from 0."""
    event = event_from_call(tool, arguments, origin)
    if not isinstance(event, Read) or arguments is None:
        return event
    first, last = as_count(arguments.get("start_line")), as_count(arguments.get("end_line"))
    offset, limit = as_count(arguments.get("offset")), as_count(arguments.get("limit"))
    if offset is not None or limit is not None:
        first = (offset or 0) + 1
        last = None if limit is None else (offset or 0) + limit
    return msgspec.structs.replace(event, first_line=first, last_line=last)


def parse_shell_exit_code(output: str) -> int | None:
    """Return the exit code that the shell tool prints below the output, which may imitate it."""
    body = output.removesuffix("\n</untrusted_context>").removeprefix("<untrusted_context>\n")
    has_trailer = killed = False
    for line in reversed(body[-600:].split("\n")):
        if not line.startswith(_TRAILER_PREFIXES):
            break
        if line.startswith("Exit Code:"):
            code = line.removeprefix("Exit Code:").strip()
            return int(code) if code.lstrip("-").isdigit() and len(code) < 11 else None
        killed |= line.startswith("Signal:") and line not in ("Signal: 0", "Signal: (none)")
        has_trailer = True
    # Newer versions omit an exit code of 0, but always report the ended process.
    return 0 if has_trailer and not killed and body.startswith(_OUTPUT_PREFIXES) else None


def usage_from_gemini(record: object, names: Mapping[str, str]) -> Usage:
    """Return tokens unless all are zero; `names` maps our names to the file's."""
    counts = {name: as_count(as_mapping(record).get(key)) for name, key in names.items()}
    input_tokens, output_tokens = counts.get("input"), counts.get("output")
    if not input_tokens and not output_tokens:
        return Usage()
    cached, thoughts = counts.get("cached"), counts.get("thoughts")
    tool, total = counts.get("tool") or 0, counts.get("total") or 0
    if (
        output_tokens is not None
        and thoughts
        and total > (input_tokens or 0) + tool + output_tokens
    ):
        # Google counts thoughts separately from the output; OpenAI's counts include them.
        output_tokens += thoughts
    uncached_tokens = None if input_tokens is None else max(input_tokens - (cached or 0), 0) + tool
    return make_usage(uncached_tokens, output_tokens, read=cached, reasoning=thoughts)


def finish_gemini_call(
    builder: SessionBuilder,
    event: AnyEvent,
    output: str | None,
    ok: bool | None,
    display: object = None,
    **more: object,
) -> AnyEvent:
    """Join a result to its call; `display` is what the agent showed."""
    display_fields = as_mapping(display)
    refused = ok is False and output is not None and output.startswith(_REJECTION_PREFIXES)
    if isinstance(event, Command):
        code = parse_shell_exit_code(output or "")
        exit_from = None if code is None else "parsed"
        result: dict[str, object] = {"output": output, "exit_code": code, "exit_from": exit_from}
        result["stopped"] = _stop_reason(output or "", refused)
    else:
        result = result_fields(event, output, ok)
    if isinstance(event, Edit):
        result |= _edit_fields(event, output, display_fields)
    elif isinstance(event, Handoff) and ok and display_fields:
        result["ok"] = _HANDOFF_STATES.get(
            str(display_fields.get("state") or display_fields.get("status"))
        )
    finished_event = builder.finish(event, **(result | more))
    if isinstance(event, Message) and event.intent == "question" and output is not None:
        builder.add_incoming_message(
            _user_answers(output), lane=event.lane, time=event.at, intent="answer"
        )
    elif refused and output is not None and output.startswith(_CANCELLED_PREFIX):
        add_interrupt(builder, output, event.lane, event.at)
    elif refused and output is not None:
        builder.add_incoming_message(output, lane=event.lane, time=event.at, intent="correction")
    return finished_event


def _stop_reason(output: str, refused: bool) -> str | None:
    """Return what stopped a command early."""
    if refused:
        return "interrupted" if output.startswith(_CANCELLED_PREFIX) else "rejected"
    return "out of time" if output.startswith(_TIMED_OUT) else None


def add_interrupt(builder: SessionBuilder, text: str, lane: str, time: datetime | None) -> None:
    """Add an interrupt once: each interrupted call and a notice report it."""
    recent_events = islice(reversed(builder.events), _MAX_EVENTS_BACK)
    last = next(
        (event for event in recent_events if event.lane == lane and isinstance(event, Message)),
        None,
    )
    if last is None or last.intent != "interrupt":
        builder.add_incoming_message(text, lane=lane, time=time, intent="interrupt")


def _user_answers(output: str) -> str:
    """Return the user's text from the tool's JSON."""
    answers = (
        as_mapping(as_mapping(try_decode_json(output)).get("answers")) if output[:1] == "{" else {}
    )
    return "\n".join(answer for answer in answers.values() if isinstance(answer, str)) or output


def _edit_fields(
    event: Edit, output: str | None, display_fields: Mapping[str, Any]
) -> dict[str, object]:
    patch = display_fields.get("fileDiff")
    edit_fields: dict[str, object] = (
        {"patch": truncate_middle(patch)} if isinstance(patch, str) else {}
    )
    overwrote = output is not None and "overwrote file" in output[:200]
    if event.action == "create" and (display_fields.get("isNewFile") is False or overwrote):
        edit_fields["action"] = "change"
    return edit_fields


name = "gemini"
version = 2

MAX_CHILDREN = 1000
_TOKEN_KEYS = {name: name for name in ("input", "output", "cached", "thoughts", "tool", "total")}
_HEADER_KEYS = frozenset(
    {"sessionId", "projectHash", "startTime", "lastUpdated", "kind", "directories", "messages"}
)
_CLIENT_TEXT_PREFIXES = ("<session_context>", "System: Please continue.", "Please continue.")
_DIRECTORY = re.compile(r"(?:Workspace Directories:\*\*\n  - |working in the directory: )(.+)")
_SAFE_NAME = re.compile(r"[\w-]{1,128}")
_SUCCESS_BY_STATUS = {"success": True, "error": False, "cancelled": False}


def recognises(source: RecordingSource) -> bool:
    return bool(_session_header(source))


def parts(source: RecordingSource) -> Sequence[Path]:
    header = _session_header(source)
    return () if header.get("kind") == "subagent" else tuple(_child_files(source, header).values())


def owner(source: RecordingSource) -> Path | None:
    folder = source.path.parent
    if _session_header(source).get("kind") != "subagent" or not _SAFE_NAME.fullmatch(folder.name):
        return None
    try:
        # The name only selects candidates: the content decides.
        candidates = sorted(islice(folder.parent.glob(f"*{folder.name[:8]}*.json*"), 20))
    except OSError:
        return None
    for path in candidates:
        header = _session_header(source.beside(path))
        if header.get("sessionId") == folder.name and header.get("kind") != "subagent":
            return path
    return None


def read(source: RecordingSource) -> Iterator[Session]:
    log = _replay_log(source)
    header = log.about
    builder = SessionBuilder(name, version, source.skipped)
    session = _GeminiSession(builder, source, _child_files(source, header))
    session.add_log(log, ROOT_LANE)
    session.add_remaining_children()
    builder.mark_corrections()
    digest = hashlib.sha256(source.head).hexdigest()[:16]
    yield builder.build_session(
        id=as_label(header.get("sessionId")) or digest,
        agent="gemini-cli",
        started=time_from_text(header.get("startTime")) or builder.started,
        ended=max(
            filter(None, (time_from_text(header.get("lastUpdated")), builder.ended)), default=None
        ),
        exit="crashed" if session.fault else "finished",
        cause=session.fault,
        summary=builder.mark_claim(),
        directory=_first_directory(header) or session.directory,
        parent=_parent_session(source, header),
    )


def _session_header(source: RecordingSource) -> Mapping[str, Any]:
    """Return the record that names the session; empty if there is none."""
    if b'"projectHash"' not in source.head or b'"sessionId"' not in source.head:
        return {}
    for candidate in source.lines or [source.document]:
        if (
            isinstance(candidate, dict)
            and isinstance(candidate.get("sessionId"), str)
            and isinstance(candidate.get("projectHash"), str)
            and "uuid" not in candidate
        ):
            return candidate
    return {}


def _child_files(source: RecordingSource, header: Mapping[str, Any]) -> dict[str, Path]:
    session = header.get("sessionId")
    if not isinstance(session, str) or not _SAFE_NAME.fullmatch(session):
        return {}
    try:
        paths = sorted(islice((source.path.parent / session).iterdir(), MAX_CHILDREN))
    except OSError:
        return {}
    children: dict[str, Path] = {}
    for path in paths:
        child = _session_header(source.beside(path))
        if child.get("kind") == "subagent" and path != source.path:
            children.setdefault(as_label(child["sessionId"]) or path.stem, path)
    return children


def _first_directory(header: Mapping[str, Any]) -> str | None:
    directories = as_list(header.get("directories"))
    return (
        truncate_middle(directories[0]) if directories and isinstance(directories[0], str) else None
    )


def _parent_session(source: RecordingSource, header: Mapping[str, Any]) -> str | None:
    folder = source.path.parent.name
    is_subagent = header.get("kind") == "subagent" and re.fullmatch(
        r"[0-9a-f]{8}-[0-9a-f-]{27}", folder
    )
    return folder if is_subagent else None


class _GeminiLog:
    """Applies a session's patches: every message once, in its last version."""

    def __init__(self) -> None:
        self.about: dict[str, Any] = {}
        self.entries: list[dict[str, Any] | tuple[str, str]] = []
        """Messages, and between them the topics and texts of notes."""
        self._places: dict[str, int] = {}
        self._order: list[str] = []

    def apply_record(self, record: object) -> None:
        fields = as_mapping(record)
        if isinstance(fields.get("$rewindTo"), str):
            self._rewind_to(fields["$rewindTo"])
        elif isinstance(fields.get("id"), str):
            self._write_message(fields)
        elif isinstance(fields.get("$set"), dict):
            self._update_header(fields["$set"])
        elif "sessionId" in fields:
            self._update_header(fields)
        else:
            self.entries.append(("unknown: record", json_excerpt(record)))

    def _write_message(self, message: dict[str, Any]) -> None:
        key = message["id"]
        index = self._places.get(key)
        if index is not None and isinstance(self.entries[index], dict):
            self.entries[index] = message
            return
        if index is None:
            self._order.append(key)
        self._places[key] = len(self.entries)
        self.entries.append(message)

    def _rewind_to(self, target: str) -> None:
        message_count = len(self._order)
        while self._order:
            key = self._order.pop()
            self._places.pop(key, None)
            if key == target:
                break
        removed_count = message_count - len(self._order)
        were = count_with_noun(removed_count, "message was", "messages were")
        self.entries.append(("rewind", f"{were} taken back, to before {target}."))

    def _update_header(self, record: dict[str, Any]) -> None:
        self.about |= {
            key: record[key] for key in _HEADER_KEYS & record.keys() if key != "messages"
        }
        if isinstance(record.get("messages"), list):
            self._apply_checkpoint(
                [m for m in record["messages"] if isinstance(as_mapping(m).get("id"), str)]
            )
        for key in record.keys() - _HEADER_KEYS:
            is_known = key in ("summary", "memoryScratchpad")
            text = record[key] if isinstance(record[key], str) else json_excerpt(record[key])
            self.entries.append((key if is_known else f"unknown: {key}", text))

    def _apply_checkpoint(self, messages: Sequence[dict[str, Any]]) -> None:
        """Apply the history that the model sees from now on; what leaves it still happened."""
        kept_ids = dict.fromkeys(message["id"] for message in messages)
        removed_ids = [
            key for key in self._order if key not in kept_ids and self._is_dialogue_message(key)
        ]
        new = [message for message in messages if message["id"] not in self._places]
        self._order = [key for key in kept_ids if key in self._places]
        if removed_ids:
            text = "\n".join(
                filter(None, (gemini_content_text(message.get("content")) for message in new))
            )
            note = f"{count_with_noun(len(removed_ids), 'message')} left the context."
            note_kind = "compaction" if text else "context"
            self.entries.append((note_kind, f"{note}\n{text}" if text else note))
            self._places |= {message["id"]: len(self.entries) - 1 for message in new}
            self._order = list(kept_ids)
            return
        for message in new:
            self._write_message(message)

    def _is_dialogue_message(self, key: str) -> bool:
        return as_mapping(self.entries[self._places[key]]).get("type") in ("user", "gemini")


def _replay_log(source: RecordingSource) -> _GeminiLog:
    log = _GeminiLog()
    if source.lines:
        for record in source.records():
            log.apply_record(record)
    else:
        log.apply_record(source.document)
    return log


class _GeminiSession:
    """Converts the messages of a session and its sub-agents to events."""

    def __init__(
        self, builder: SessionBuilder, source: RecordingSource, children: dict[str, Path]
    ) -> None:
        self.builder = builder
        self.source = source
        self.children = children
        self.fault: str | None = None
        self.directory: str | None = None

    def add_log(self, log: _GeminiLog, lane: str) -> None:
        for entry in log.entries:
            if isinstance(entry, tuple):
                note_kind, text = entry
                self.builder.add_note(text, note_kind, lane=lane)
                continue
            time = self.builder.record_time(time_from_text(entry.get("timestamp")))
            kind = entry.get("type")
            if kind == "user":
                self._add_user_message(entry, lane, time)
            elif kind == "gemini":
                self._add_agent_message(entry, lane, time)
            elif kind in ("info", "error", "warning"):
                self._add_notice(entry, lane, time)
            else:
                self.builder.add_note(
                    json_excerpt(entry), about=f"unknown: {as_label(kind)}", lane=lane, at=time
                )

    def add_remaining_children(self) -> None:
        """Add sub-agents without a recorded call, whose call never finished."""
        for child in list(self.children):
            self._add_child(child, ROOT_LANE, None)

    def _add_child(self, child: str, parent: str, agent: str | None) -> bool:
        path = self.children.pop(child, None)
        if path is None or child == ROOT_LANE:
            return False
        self.builder.open_lane(child, parent, agent)
        self.add_log(_replay_log(self.source.beside(path)), child)
        return True

    def _add_user_message(
        self, message: Mapping[str, Any], lane: str, time: datetime | None
    ) -> None:
        content = message.get("content")
        for response in iter_function_responses(content):
            # Most are copies: their call has its result already.
            event = self.builder.find_open_call(lane, response.call)
            if event is not None:
                output = self.builder.truncate_text(response.text)
                finish_gemini_call(self.builder, event, output, not response.failed)
        text = self.builder.truncate_text(gemini_content_text(content))
        if not text.strip():
            return
        is_client = text.startswith(_CLIENT_TEXT_PREFIXES)
        if is_client and self.directory is None and (directory_match := _DIRECTORY.search(text)):
            self.directory = directory_match[1].strip()
        self.builder.add_incoming_message(
            text, lane=lane, time=time, is_client=is_client, asks=not text.startswith("/")
        )
        self.fault = None

    def _add_notice(self, message: Mapping[str, Any], lane: str, time: datetime | None) -> None:
        text, kind = gemini_content_text(message.get("content")), message["type"]
        if text in ("Request cancelled.", "User cancelled the request."):
            add_interrupt(self.builder, text, lane, time)
            return
        if kind == "error" and lane == ROOT_LANE:
            self.fault = truncate_middle(text)
        self.builder.add_note(text, kind, lane=lane, at=time)

    def _add_agent_message(
        self, message: Mapping[str, Any], lane: str, time: datetime | None
    ) -> None:
        builder = self.builder
        model = as_label(message.get("model"))
        if model is not None:
            builder.models[model] += 1
        usage = usage_from_gemini(message.get("tokens"), _TOKEN_KEYS)
        turn = builder.add_turn(lane, Turn(usage=usage, model=model, at=time))
        content = message.get("content")
        thoughts = [
            _thought_text(thought_record) for thought_record in as_list(message.get("thoughts"))
        ]
        for text, thought_time in thoughts or [(gemini_content_text(content, thought=True), None)]:
            if text:
                thought = self.builder.truncate_text(text)
                event_fields: dict[str, Any] = {
                    "number": builder.next_number,
                    "lane": lane,
                    "turn": turn,
                }
                builder.add(Thought(**event_fields, at=thought_time or time, text=thought))
        if text := self.builder.truncate_text(gemini_content_text(content)):
            event_fields = {"number": builder.next_number, "lane": lane, "turn": turn}
            builder.add(Message(**event_fields, at=time, role="agent", text=text))
            self.fault = None if lane == ROOT_LANE else self.fault
        finished_calls = [
            call for call in as_list(message.get("toolCalls")) if isinstance(call, dict)
        ]
        for call in finished_calls:
            self._add_call(call, lane, turn, time)
        finished_ids = {str(call.get("id")) for call in finished_calls}
        for requested_call in iter_function_calls(content):
            if str(requested_call.get("id")) not in finished_ids:
                self._add_call(requested_call, lane, turn, time)

    def _add_call(
        self, call: Mapping[str, Any], lane: str, turn: int, time: datetime | None
    ) -> None:
        builder, skipped = self.builder, self.source.skipped
        tool_name = as_label(call.get("name")) or "unknown"
        call_arguments = storable_arguments(call.get("args"), skipped)
        origin = CallOrigin(
            number=builder.next_number, lane=lane, turn=turn, at=time, call=as_label(call.get("id"))
        )
        event = builder.add(_event_from_call(tool_name, call_arguments, call, origin))
        status = str(call.get("status"))
        child = as_label(call.get("agentId"))
        if isinstance(event, Handoff) and child is not None:
            agent = as_label(as_mapping(call_arguments).get("agent_name")) or tool_name
            if self._add_child(child, lane, agent):
                event = builder.finish(event, child=child)
        result = call.get("result")
        if result is None and status not in _SUCCESS_BY_STATUS:
            return
        response = next(iter(iter_function_responses(result)), None)
        output = (
            response.text
            if response is not None
            else parse_function_response(result)[0] or gemini_content_text(result)
        )
        display = call.get("resultDisplay")
        finish_gemini_call(
            builder,
            event,
            self.builder.truncate_text(output),
            _SUCCESS_BY_STATUS.get(status),
            display,
        )


def _thought_text(thought: object) -> tuple[str, datetime | None]:
    fields = as_mapping(thought)
    text = [as_text(fields.get(key)) for key in ("subject", "description")]
    return "\n".join(filter(None, text)), time_from_text(fields.get("timestamp"))


def _event_from_call(
    tool: str, arguments: dict[str, Any] | None, call: Mapping[str, Any], origin: CallOrigin
) -> AnyEvent:
    """An agent's own tools: any may be a sub-agent, and one marks the end of the work."""
    if tool == "complete_task" and arguments is not None:
        result = arguments.get("result", arguments)
        text = result.get("response") if isinstance(result, dict) else result
        claim = text if isinstance(text, str) else json_excerpt(result)
        event_fields = {
            key: getattr(origin, key) for key in ("number", "lane", "turn", "at", "call")
        }
        return Message(**event_fields, role="agent", text=claim, intent="claim")
    if not _is_subagent_call(call):
        return event_from_gemini_call(tool, arguments, origin)
    event = event_from_gemini_call("invoke_agent", arguments, origin)
    if not isinstance(event, Handoff):
        brief = next(
            (argument for argument in (arguments or {}).values() if isinstance(argument, str)), ""
        )
        return Handoff(**msgspec.structs.asdict(origin), brief=brief)
    return event


def _is_subagent_call(call: Mapping[str, Any]) -> bool:
    """Whether a tool is a sub-agent, whatever its name; older versions only say so."""
    display = call.get("resultDisplay")
    is_labelled = isinstance(display, str) and display.lstrip().startswith("Subagent ")
    return is_labelled or "agentId" in call or as_mapping(display).get("isSubagentProgress") is True
