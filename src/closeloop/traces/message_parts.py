"""Messages of providers and instrumentations, converted to parts of one shape."""

from __future__ import annotations

import ast
import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Literal, NamedTuple

import msgspec

from closeloop.records.trace import AnyEvent, Command, Handoff, Message, Thought, ToolUse, Turn
from closeloop.text.client_markup import strip_client_markup
from closeloop.text.untrusted import clean_unicode
from closeloop.traces.session_builder import CUT_OFF, ROOT_LANE, UNPAIRED_RESULT, SessionBuilder
from closeloop.traces.tool_calls import CallOrigin, event_from_call, result_fields
from closeloop.traces.trace_export import EXPORT_KEY, restore_event
from closeloop.traces.untrusted_json import (
    as_list,
    as_mapping,
    clean_text,
    json_excerpt,
    storable_arguments,
    text_or_json,
    unfold_json,
)

PartRole = Literal["user", "agent", "system", "tool"]
MAX_NESTING = 16
MAX_STEP_CHARS = 1 << 18

_ROLES: dict[str, PartRole] = {
    "user": "user", "human": "user", "assistant": "agent", "model": "agent", "ai": "agent",
    "agent": "agent", "system": "system", "developer": "system", "tool": "tool",
    "function": "tool", "tool-call": "agent", "tool-response": "tool",
}  # fmt: skip
_TEXT_TYPES = frozenset({"text", "input_text", "output_text", "refusal"})
_THOUGHT_TYPES = frozenset({"reasoning", "think", "thinking", "redacted_thinking"})
_CALL_TYPES = frozenset({"tool_call", "tool_use", "tool-call", "function", "function_call",
                    "custom_tool_call", "server_tool_use", "mcp_call"})  # fmt: skip
_RESULT_TYPES = frozenset(
    {
        "tool_call_response",
        "tool_result",
        "tool-result",
        "function_call_output",
        "custom_tool_call_output",
        "server_tool_call_response",
        "mcp_tool_result",
    }
)
_CALL_KEYS = frozenset({"toolCallId", "function", "functionCall", "function_call"})
_RESULT_KEYS = frozenset({"functionResponse", "function_response"})
_MEDIA_TYPES = frozenset(
    {
        "image",
        "image_url",
        "input_image",
        "audio",
        "input_audio",
        "video",
        "file",
        "input_file",
        "document",
        "blob",
        "uri",
        "media",
    }
)
_SYSTEM_KEYS = ("system", "system_instruction", "systemInstruction", "instructions")
_STEP_CALLS = "Calling tools:\n["
_STEP_RESULT = re.compile(r"\A(?:Call id: \S+\n)?(?=(Observation|Error):\n)(?:Observation:\n)?")
"""How smolagents writes its code and the result into its dialogue."""
_WRAPPER_KEYS = (
    *_SYSTEM_KEYS,
    "config",
    "messages",
    "contents",
    "new_message",
    "prompt",
    "choices",
    "candidates",
    "message",
)


class MessagePart(NamedTuple):
    """One part of a message."""

    role: PartRole
    kind: Literal["text", "thought", "call", "result", "unknown"]
    text: str = ""
    name: str | None = None
    id: str | None = None
    arguments: Any = None
    ok: bool | None = None
    own: Mapping[str, Any] | None = None


def parse_message_parts(value: Any, role: PartRole, depth: int = 0) -> list[MessagePart]:
    """Parse messages, one message, parts, or plain text by `role`."""
    parts: list[MessagePart] = []
    _collect_parts(value, role, depth, parts)
    return parts


def _collect_parts(value: Any, role: PartRole, depth: int, parts: list[MessagePart]) -> None:
    if isinstance(value, str):
        value = unfold_json(value)
    if depth > MAX_NESTING:
        return
    if isinstance(value, str):
        if value and not value.isspace():
            parts += _parse_step_text(value, role, parts)
    elif isinstance(value, list):
        for item in value:
            _collect_parts(item, role, depth + 1, parts)
    elif isinstance(value, dict):
        _collect_message(value, role, depth, parts)


def _plain_role(value: Mapping[str, Any]) -> str:
    """Return the role that a message states; smolagents may write enumeration members."""
    role = str(value.get("role") or value.get("type"))
    return role.rpartition(".")[2].lower().replace("_", "-") if "." in role else role


def _parse_step_text(text: str, role: PartRole, before: list[MessagePart]) -> list[MessagePart]:
    """Return a text, or the calls and the result that smolagents writes into one."""
    if role == "agent" and text.startswith(_STEP_CALLS) and len(text) < MAX_STEP_CHARS:
        try:
            calls = ast.literal_eval(text[len(_STEP_CALLS) - 1 :].strip())
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            calls = None
        # Their ids count from 1 in every agent, and newer results have none: match them in order.
        parts = [
            _parse_call(call, None)._replace(id=None)
            for call in as_list(calls)
            if isinstance(call, dict)
        ]
        return parts or [MessagePart(role, "text", text)]
    follows = bool(before) and before[-1].kind in ("call", "result")
    if role == "user" and follows and (header := _STEP_RESULT.match(text)) is not None:
        ok = False if header[1] == "Error" else None
        return [MessagePart("tool", "result", text[header.end() :], ok=ok)]
    return [MessagePart(role, "text", text)]


def id_text(value: Any) -> str | None:
    """Return an id, which may be composed of several; None if there is none."""
    value = unfold_json(value)
    return text_or_json(value) if value not in (None, "", [], {}) else None


def _collect_message(
    value: Mapping[str, Any], role: PartRole, depth: int, parts: list[MessagePart]
) -> None:
    part = _parse_part(value, role)
    if part is not None:
        plain = part.kind == "text" and part.own is None
        parts += _parse_step_text(part.text, part.role, parts) if plain else [part]
        return
    stated_role = _ROLES.get(_plain_role(value))
    content = unfold_json(value.get("parts") or value.get("content"))
    if stated_role is None:
        for name in _WRAPPER_KEYS:
            if (inner := value.get(name)) is not None:
                _collect_parts(inner, "system" if name in _SYSTEM_KEYS else role, depth + 1, parts)
        if not isinstance(content, list | dict) and role == "user":
            # Content without a role says nothing about the user.
            if content and (tool := clean_text(value.get("role"))):
                parts.append(MessagePart("tool", "result", text_or_json(content), tool))
            content = None
    thoughts = (value.get("reasoning_content"), value.get("reasoning"))
    parts += [
        MessagePart("agent", "thought", thought) for thought in thoughts if isinstance(thought, str)
    ]
    _collect_content(value, content, stated_role or role, depth, parts)
    calls = value.get("tool_calls") or value.get("toolCalls")
    calls = calls or as_mapping(value.get("additional_kwargs")).get("tool_calls")
    parts += [
        _parse_call(call, None) for call in as_list(unfold_json(calls)) if isinstance(call, dict)
    ]


def _collect_content(
    value: Mapping[str, Any], content: Any, role: PartRole, depth: int, parts: list[MessagePart]
) -> None:
    if role != "tool" or _holds_results(content):
        _collect_parts(content, role, depth + 1, parts)
        return
    if isinstance(content, dict) and "parameters" in _function_fields(content):
        # LangChain records tool results as messages of the tool.
        return
    raw_content = value.get("parts") or value.get("content")
    text = "\n".join(
        [message_part.text for message_part in parse_message_parts(content, "tool", depth + 1)]
    )
    if isinstance(raw_content, str) or (raw_content is not None and not text.strip()):
        text = result_text(raw_content)
    name = value.get("name")
    if _plain_role(value) == "tool-response":
        text = _STEP_RESULT.sub("", text)
    call_id = id_text(value.get("tool_call_id") or value.get("id"))
    parts.append(
        MessagePart("tool", "result", text, name if isinstance(name, str) else None, call_id)
    )


def _holds_results(content: Any) -> bool:
    """Whether a tool's message consists of parts that name the call they answer."""
    parts = content if isinstance(content, list) else [content]
    return any(
        clean_text(part.get("type")) in _RESULT_TYPES
        or "functionResponse" in part
        or "function_response" in part
        for part in parts
        if isinstance(part, dict)
    )


def _parse_part(value: Mapping[str, Any], role: PartRole) -> MessagePart | None:
    kind = value.get("type")
    kind = kind if isinstance(kind, str) and kind else None
    export_fields = value.get(EXPORT_KEY)
    export_fields = export_fields if isinstance(export_fields, dict) else None
    if kind in _RESULT_TYPES:
        return _parse_result(value, export_fields)
    if kind in _CALL_TYPES or (not _CALL_KEYS.isdisjoint(value) and _is_call(value)):
        return _parse_call(value, export_fields)
    if kind in _TEXT_TYPES or (
        kind is None and "role" not in value and isinstance(value.get("text"), str)
    ):
        text = value.get("text") or value.get("content") or value.get("refusal") or ""
        return MessagePart(role, "text", text_or_json(text), own=export_fields)
    if kind in _THOUGHT_TYPES:
        names = ("content", "thinking", "think", "reasoning", "text", "summary", "data")
        return MessagePart(
            "agent", "thought", text_or_json(_first_nonempty(value, names) or ""), own=export_fields
        )
    if not _RESULT_KEYS.isdisjoint(value):
        for name in ("functionResponse", "function_response"):
            if isinstance(value.get(name), dict):
                return _parse_result(value[name], export_fields)
    if kind and "role" not in value and "content" not in value and kind not in _ROLES:
        if kind in _MEDIA_TYPES:
            return MessagePart(role, "text", f"[{kind}]")
        return MessagePart(role, "unknown", json_excerpt(value), clean_unicode(kind))
    return None


def _is_call(value: Mapping[str, Any]) -> bool:
    return "toolCallId" in value or bool(_function_fields(value))


def _function_fields(value: Mapping[str, Any]) -> Mapping[str, Any]:
    for name in ("function", "functionCall", "function_call"):
        if isinstance(value.get(name), dict):
            return as_mapping(value[name])
    return {}


def _parse_call(value: Mapping[str, Any], export_fields: Mapping[str, Any] | None) -> MessagePart:
    function = _function_fields(value) or value
    name = function.get("name") or value.get("toolName") or value.get("tool.name")
    raw_id = value.get("call_id") or value.get("toolCallId") or value.get("id")
    call_arguments = _first_present(function, ("arguments", "args", "input"), value.get("input"))
    call_id = id_text(raw_id or function.get("id"))
    return MessagePart(
        "agent",
        "call",
        "",
        text_or_json(name or "unknown"),
        call_id,
        unfold_json(call_arguments),
        own=export_fields,
    )


def _parse_result(value: Mapping[str, Any], export_fields: Mapping[str, Any] | None) -> MessagePart:
    raw_id = _first_nonempty(value, ("tool_use_id", "tool_call_id", "toolCallId", "call_id", "id"))
    content = _first_present(value, ("response", "result", "content", "output"), "")
    name = value.get("name") or value.get("toolName")
    ok = False if value.get("is_error") is True or value.get("isError") is True else None
    tool = name if isinstance(name, str) else None
    return MessagePart(
        "tool", "result", result_text(content), tool, id_text(raw_id), ok=ok, own=export_fields
    )


def _first_nonempty(value: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    for name in names:
        if first_value := value.get(name):
            return first_value
    return None


def _first_present(value: Mapping[str, Any], names: tuple[str, ...], default: Any) -> Any:
    for name in names:
        if name in value:
            return value[name]
    return default


def result_text(value: Any) -> str:
    """Return a tool's output without the envelope of protocols."""
    inner = unfold_json(value)
    if isinstance(inner, dict):
        if inner.get("type") in ("text", "json") and ("value" in inner or "text" in inner):
            return text_or_json(inner.get("value", inner.get("text")))
        if isinstance(inner.get("content"), list) and set(inner) <= {
            "content",
            "isError",
            "is_error",
        }:
            inner = inner["content"]
    if (
        isinstance(inner, list)
        and inner
        and all(isinstance(item, dict) and isinstance(item.get("text"), str) for item in inner)
    ):
        return "\n".join(text_or_json(item["text"]) for item in inner)
    return text_or_json(value)


# A conversation that every request repeats: each message or action is read once.


class RequestHistory:
    """Events of all lanes, and the parts known so far."""

    def __init__(self, builder: SessionBuilder) -> None:
        self.builder = builder
        self.system: str | None = None
        self._most: Counter[tuple[Any, ...]] = Counter()
        self._by_id: dict[tuple[str | None, str | None], deque[int]] = {}
        self._by_name: dict[tuple[str, str | None], deque[int]] = {}
        self._without_id: dict[tuple[str, str | None], deque[int]] = {}
        self._alike: dict[tuple[str, str | None, str], list[int]] = {}
        """Calls by their content."""
        self._done: set[int] = set()
        self._stable = False
        """Whether calls keep their ids, so that a new id is a new call also in a shortened history.
        """

    def add_request(self, parts: Iterable[MessagePart], lane: str, time: datetime | None) -> None:
        """Add what a request contains: a part is new if it occurs more often than ever before."""
        count_by_key: dict[tuple[Any, ...], int] = {}
        calls: list[MessagePart] = []
        call_counts: Counter[tuple[Any, ...]] = Counter()
        for part in parts:
            if part.kind == "call":
                calls.append(part)
            key = _part_key(part, lane)
            times = count_by_key[key] = count_by_key.get(key, 0) + 1
            if times > self._most.get(key, 0):
                self._most[key] = times
                if part.kind == "call":
                    # Not earlier: most requests have no new one.
                    call_counts.update((call.name, text_or_json(call.arguments)) for call in calls)
                    calls.clear()
                if part.kind != "call" or not self._is_renamed_call(part, call_counts, lane):
                    self.add_part(part, lane, time)
            elif part.kind == "call" and part.id:
                self._stable = True

    def _is_renamed_call(
        self, part: MessagePart, call_counts: Counter[tuple[Any, ...]], lane: str
    ) -> bool:
        """Whether it is a known call without an id or with another one."""
        written_arguments = text_or_json(part.arguments)
        known_numbers, occurrence = (
            self._alike.get((lane, part.name, written_arguments), ()),
            call_counts[part.name, written_arguments],
        )
        if occurrence > len(known_numbers):
            return False
        event = self.builder.events[known_numbers[occurrence - 1] - 1]
        if event.call is not None and self._stable:
            return False
        if event.call is None:
            self.builder.replace_event(msgspec.structs.replace(event, call=part.id))
        for key_lane in (lane, None) if part.id else ():
            _append_number(self._by_id, (key_lane, part.id), event.number)
        return True

    def add_reply_part(
        self, part: MessagePart, lane: str, time: datetime | None, turn: int | None
    ) -> None:
        """Add what an agent says now: new, even if it said the same before."""
        self.mark_known(part, lane)
        self.add_part(part, lane, time, turn)

    def is_known(self, part: MessagePart, lane: str) -> bool:
        """Whether it is known."""
        return self._most[_part_key(part, lane)] > 0

    def mark_known(self, part: MessagePart, lane: str) -> None:
        """Mark a part that a later request may repeat."""
        self._most[_part_key(part, lane)] += 1

    def add_part(
        self, part: MessagePart, lane: str, time: datetime | None, turn: int | None = None
    ) -> AnyEvent | None:
        """Add the event of a part; None for the system prompt or a result."""
        if part.kind == "result":
            event = self.find_open_call(lane, part)
            if event is not None:
                self.finish_call(event, part.text, part.ok)
            elif part.text and not self._is_repeated_result(lane, part):
                self.builder.add_note(part.text, UNPAIRED_RESULT, lane=lane)
            return None
        if part.kind == "call":
            return self._add_call(part, lane, time, turn)
        if part.kind == "unknown":
            self.builder.add_note(
                part.text, about=f"unknown: {part.name}"[:100], lane=lane, at=time
            )
            return None
        if part.role == "system" and part.own is None:
            self._add_system_prompt(part, lane, time)
            return None
        if not part.text and part.own is None:
            return None
        event = self._add_message(part, lane, time, turn)
        if part.own is not None:
            event = restore_event(event, part.own)
            self.builder.replace_event(event)
        return event

    def find_open_call(self, lane: str, call: MessagePart) -> AnyEvent | None:
        """Return the oldest call without a result with this id, or this name if ids are missing."""
        if call.id:
            keys = ((lane, call.id), (None, call.id))
            queues = [*map(self._by_id.get, keys), self._without_id.get((lane, call.name))]
        else:
            queues = [self._by_name.get((lane, call.name))]
        for queue in queues:
            while queue and queue[0] in self._done:
                queue.popleft()
            if queue:
                return self.builder.events[queue[0] - 1]
        return None

    def complete_call(self, event: AnyEvent, call: MessagePart) -> AnyEvent:
        """Add arguments that are known only from the tool's own record."""
        if (
            not isinstance(event, ToolUse)
            or event.arguments
            or not isinstance(call.arguments, dict)
        ):
            return event
        origin = CallOrigin(
            number=event.number, lane=event.lane, turn=event.turn, at=event.at, call=event.call
        )
        arguments = storable_arguments(call.arguments, self.builder.skipped)
        completed = event_from_call(event.name, arguments, origin)
        self.builder.replace_event(completed)
        return completed

    def finish_call(self, event: AnyEvent, output: str | None, ok: bool | None) -> AnyEvent:
        """Add a call's result; the answer to a question is a user message."""
        self._done.add(event.number)
        output = None if output is None else self.builder.truncate_text(output)
        finished_event = self.builder.finish(event, **result_fields(event, output, ok))
        if isinstance(event, Message) and event.intent == "question" and output:
            self.builder.add_incoming_message(output, lane=event.lane, time=None, intent="answer")
        return finished_event

    def close_call(self, event: AnyEvent) -> None:
        """Close a call without a further result."""
        self._done.add(event.number)

    def _add_call(
        self, part: MessagePart, lane: str, time: datetime | None, turn: int | None
    ) -> AnyEvent:
        number = self.builder.next_number
        origin = CallOrigin(number=number, lane=lane, turn=turn, at=time, call=part.id)
        call_arguments = part.arguments
        if call_arguments is not None and not isinstance(call_arguments, dict):
            call_arguments = {"input": call_arguments} if call_arguments != "" else {}
        call_arguments = storable_arguments(call_arguments, self.builder.skipped)
        event = self.builder.add(event_from_call(part.name or "unknown", call_arguments, origin))
        self._alike.setdefault((lane, part.name, text_or_json(part.arguments)), []).append(number)
        if part.id:
            _append_number(self._by_id, (lane, part.id), number)
            _append_number(self._by_id, (None, part.id), number)
        else:
            _append_number(self._without_id, (lane, part.name), number)
        _append_number(self._by_name, (lane, part.name), number)
        _append_number(self._by_name, (lane, None), number)
        return event

    def _is_repeated_result(self, lane: str, part: MessagePart) -> bool:
        """Whether a known result is repeated in other words."""
        return (None, part.id) in self._by_id or (lane, part.name) in self._by_name

    def _add_message(
        self, part: MessagePart, lane: str, time: datetime | None, turn: int | None
    ) -> AnyEvent:
        text = self.builder.truncate_text(part.text)
        number = self.builder.next_number
        event_fields: dict[str, Any] = {"number": number, "lane": lane, "turn": turn, "at": time}
        if part.kind == "thought":
            return self.builder.add(Thought(**event_fields, text=text))
        if part.role == "agent":
            return self.builder.add(Message(**event_fields, role="agent", text=text))
        return self.builder.add_incoming_message(
            text, lane=lane, time=time, is_client=part.role == "system"
        )

    def _add_system_prompt(self, part: MessagePart, lane: str, time: datetime | None) -> None:
        if lane == ROOT_LANE and self.system is None:
            self.system = self.builder.truncate_text(part.text)
        elif part.text != self.system:
            self.builder.add_note(part.text, "system prompt", lane=lane, at=time)


def handoff_brief(event: AnyEvent) -> str:
    """Return the brief of a handoff call."""
    if isinstance(event, Handoff):
        return event.brief
    call_input = getattr(event, "arguments", None) or getattr(event, "command", None) or ""
    if isinstance(call_input, dict):
        call_input = next(
            (value for value in call_input.values() if isinstance(value, str)), call_input
        )
    return text_or_json(call_input)


def handoff_from_call(event: AnyEvent, child: str, brief: str = "") -> Handoff:
    """Convert a call that another agent carried out to a handoff."""
    report = getattr(event, "report", getattr(event, "output", None))
    return Handoff(
        number=event.number, lane=event.lane, turn=event.turn, at=event.at, seconds=event.seconds,
        call=event.call, brief=brief or handoff_brief(event), child=child, report=report,
        ok=getattr(event, "ok", None),
    )  # fmt: skip


def _append_number(table: dict[Any, deque[int]], key: tuple[str | None, ...], number: int) -> None:
    queue = table.get(key)
    if queue is None:
        table[key] = deque((number,))
    else:
        queue.append(number)


def _part_key(part: MessagePart, lane: str) -> tuple[Any, ...]:
    """Return what distinguishes a part; without an id, other agents may do and receive the same."""
    if part.id:
        return (part.kind, part.id)
    if part.kind == "call":
        return (lane, part.kind, part.name, text_or_json(part.arguments))
    key_lane = lane if part.kind == "result" else None
    return (key_lane, part.role, part.kind, part.name, part.text)


# A session whose file has one message per line, in a provider's own message format.


PartChange = Callable[[MessagePart], MessagePart]
ExitCodeParser = Callable[[str], int | None]


class MessageLog:
    """Adds messages in order; calls are paired with results by id, else in order."""

    def __init__(
        self,
        builder: SessionBuilder,
        *,
        change_call: PartChange = lambda part: part,
        parse_exit_code: ExitCodeParser = lambda text: None,
    ) -> None:
        """`change_call` renames a call and its arguments to the common ones."""
        self.builder = builder
        self.model: str | None = None
        self._dialogue = RequestHistory(builder)
        self._change_call = change_call
        self._parse_exit_code = parse_exit_code
        self._ids_are_stated = False
        """Whether calls have ids, so that a result belongs to the named call or to none."""

    def add_message(
        self, message: Mapping[str, Any], time: datetime | None = None, *, ok: bool | None = None
    ) -> None:
        """Add a message of the user, model or tools; `ok` if it says whether they succeeded."""
        self.builder.record_time(time)
        turn = None
        if message.get("role") == "assistant":
            turn = self.builder.add_turn(ROOT_LANE, Turn(model=self.model, at=time))
        for part in parse_message_parts(dict(message), "user"):
            if part.kind == "call":
                self._ids_are_stated = self._ids_are_stated or part.id is not None
                self._dialogue.add_reply_part(self._change_call(part), ROOT_LANE, time, turn)
            elif part.kind == "result":
                self._add_result(part if ok is None else part._replace(ok=ok), time)
            elif part.role == "user":
                text = strip_client_markup(part.text) or part.text
                self._dialogue.add_part(part._replace(text=text), ROOT_LANE, time)
            else:
                self._dialogue.add_part(part, ROOT_LANE, time, turn)

    def _add_result(self, part: MessagePart, time: datetime | None) -> None:
        event = self._dialogue.find_open_call(ROOT_LANE, part)
        if event is None and not self._ids_are_stated:
            in_order = part._replace(id=None, name=None)
            event = self._dialogue.find_open_call(ROOT_LANE, in_order)
        if event is None:
            self._dialogue.add_part(part, ROOT_LANE, time)
            return
        finished_event: AnyEvent = self._dialogue.finish_call(event, part.text, part.ok)
        if isinstance(finished_event, Command) and finished_event.exit_code is None:
            code = self._parse_exit_code(part.text)
            if code is not None:
                self.builder.update_event(finished_event, exit_code=code, exit_from="parsed")

    def session_facts(self) -> dict[str, Any]:
        """Return how the session ended and its claim."""
        cut_off = self.builder.ends_inside_call()
        return {
            "exit": "crashed" if cut_off else "finished",
            "cause": CUT_OFF if cut_off else None,
            "model": self.model,
            "summary": self.builder.mark_claim(),
        }
