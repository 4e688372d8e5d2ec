"""Exchanges with a model, one per line, as closeloop's gateway records them."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Any

import msgspec
from msgspec.structs import replace

from closeloop.providers.provider_streams import read_provider_reply
from closeloop.records.protocols import RecordingSource
from closeloop.records.trace import UNKNOWN_AGENT, Exchange, Handoff, Session, Turn
from closeloop.text.untrusted import clean_unicode, truncate_middle
from closeloop.traces.message_parts import (
    MessagePart,
    RequestHistory,
    handoff_from_call,
    parse_message_parts,
)
from closeloop.traces.session_builder import ROOT_LANE, SessionBuilder, count_skip, derive_id
from closeloop.traces.tool_calls import files_in_patch
from closeloop.traces.untrusted_json import as_list, as_mapping, content_text, try_decode_json

name = "gateway"
version = 3
LAYOUT_VERSION = 1
"""Version of the written lines."""
_EXCHANGE_KEY = "closeloop_exchange"
NOT_A_TURN = "an exchange that is no turn"
UNREADABLE = "an exchange that cannot be read"
OWN_REPLY_PATH = "reply"
"""Path of a built-in agent's requests in our own records."""
_PROGRAM_TEXT_PREFIXES = (
    "<system-reminder>",
    "<environment_context>",
    "<user_instructions>",
    "<permissions",
    "# AGENTS.md instructions",
)
"""Beginnings of texts that agents put before the user's message."""
_ENVELOPES = ('{"output":', '{"error":')
_SYSTEM_KEYS = ("system", "instructions", "systemInstruction", "system_instruction")


def recognises(source: RecordingSource) -> bool:
    return _EXCHANGE_KEY.encode() in source.head and any(
        _EXCHANGE_KEY in as_mapping(line) for line in source.lines[:1]
    )


def read(source: RecordingSource) -> Iterator[Session]:
    yield session_from_exchanges(list(_iter_exchanges(source)), source.skipped)


def encode_exchange_line(exchange: Exchange) -> bytes:
    """Encode an exchange as a line of such a file."""
    fields = msgspec.to_builtins(exchange, builtin_types=(bytes,))
    fields |= {key: _body_to_json(fields[key]) for key in ("request", "response")}
    return msgspec.json.encode({_EXCHANGE_KEY: LAYOUT_VERSION, **fields}) + b"\n"


def _body_to_json(body: bytes) -> Any:
    try:
        return body.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(body).decode()}


def _iter_exchanges(source: RecordingSource) -> Iterator[Exchange]:
    for record in source.records():
        try:
            bodies = {
                key: _body_from_json(as_mapping(record).get(key)) for key in ("request", "response")
            }
            yield msgspec.convert({**as_mapping(record), **bodies}, Exchange)
        except (msgspec.ValidationError, ValueError):
            count_skip(source.skipped, UNREADABLE)


def _body_from_json(value: Any) -> bytes:
    if isinstance(value, dict):
        return base64.b64decode(str(value.get("base64")), validate=True)
    return value.encode("utf-8", "replace") if isinstance(value, str) else b""


def session_from_exchanges(exchanges: Sequence[Exchange], skipped: dict[str, int]) -> Session:
    """Build a session from all exchanges of one attempt, in order of the requests."""
    # Programs also request titles and summaries, without tools.
    exchange_session = _ExchangeSession(skipped, with_tools=any(map(_offers_tools, exchanges)))
    for exchange in exchanges:
        exchange_session.add_exchange(exchange)
    session = exchange_session.build_session()
    system = find_system_prompt(exchanges)
    return session if system is None else replace(session, system=truncate_middle(system))


MAX_PROMPT_EXCHANGES = 30
"""Number of requests that are searched for the system prompt."""


def find_system_prompt(exchanges: Sequence[Exchange]) -> str | None:
    """The system prompt that a program sent with its work: of several, the commonest.

    Requests without tools (titles, summaries, topics) count only where none offers tools.
    """
    texts: dict[bool, list[str]] = {True: [], False: []}
    for exchange in islice(exchanges, MAX_PROMPT_EXCHANGES):
        if exchange.path == OWN_REPLY_PATH:
            return None
        payload = as_mapping(try_decode_json(exchange.request))
        if text := _join_system_parts(payload):
            texts[bool(payload.get("tools"))].append(text)
    candidates = texts[True] or texts[False]
    return max(candidates, key=candidates.count, default=None)


def _join_system_parts(payload: Mapping[str, Any]) -> str:
    """Join the system parts of a request in any provider's format."""
    gemini = as_mapping(payload.get("systemInstruction") or payload.get("system_instruction"))
    messages = payload.get("messages") or payload.get("input")
    parts = [
        message.get("content")
        for message in (messages if isinstance(messages, list) else ())
        if isinstance(message, dict) and message.get("role") in ("system", "developer")
    ]
    sources = (payload.get("system"), payload.get("instructions"), gemini.get("parts"), *parts)
    return "\n\n".join(filter(None, map(content_text, sources)))


class _ExchangeLane:
    """One conversation: all requests with the same beginning."""

    def __init__(self, name: str, dialogue: RequestHistory) -> None:
        self.name = name
        self.dialogue = dialogue
        self.begun = False


class _ExchangeSession:
    """Builds a program's conversations."""

    def __init__(self, skipped: dict[str, int], *, with_tools: bool) -> None:
        self.with_tools = with_tools
        self.builder = SessionBuilder(name, version, skipped)
        self.lanes: dict[tuple[Any, ...], _ExchangeLane] = {}
        self.first: str | None = None
        self.first_at: datetime | None = None
        self.trouble: str | None = None
        self.patched: dict[str, list[str | None]] = {}
        self._known: dict[bytes, list[MessagePart]] = {}
        """Parsed messages; most are repeated with every request."""

    def add_exchange(self, exchange: Exchange) -> None:
        """Add one request and its answer."""
        if exchange.path.endswith(("count_tokens", ":countTokens")):
            self.builder.count_skip(NOT_A_TURN)
            return
        payload = as_mapping(try_decode_json(exchange.request))
        is_own = exchange.path == OWN_REPLY_PATH
        parts = self._request_parts(payload, is_own=is_own)
        if not parts:
            self.builder.count_skip(UNREADABLE)
            return
        self.builder.record_time(exchange.at)
        self.first_at = self.first_at or exchange.at
        lane = self._lane_of_request(payload, parts)
        # The model's messages are known from its answers; a client may repeat them in other words.
        new_parts = (
            parts if not lane.begun else [part for part in parts if part.role in ("user", "tool")]
        )
        lane.begun = True
        lane.dialogue.add_request(new_parts, lane.name, exchange.at)
        self.trouble = exchange.cause
        if exchange.cause is not None:
            note_kind = "out of budget" if exchange.status == 400 else "model"
            self.builder.add_note(
                clean_unicode(exchange.cause), about=note_kind, lane=lane.name, at=exchange.at
            )
        if exchange.status < 300:
            self._add_answer(exchange, lane)

    def _add_answer(self, exchange: Exchange, lane: _ExchangeLane) -> None:
        turn = Turn(
            usage=exchange.usage, model=exchange.model, at=exchange.at, seconds=exchange.seconds
        )
        number = self.builder.add_turn(lane.name, turn)
        if exchange.model:
            self.builder.models[exchange.model] += 1
        answer = read_provider_reply(exchange.response).answer or {}
        for part in self._normalise_parts(
            _answer_parts(answer, is_own=exchange.path == OWN_REPLY_PATH)
        ):
            lane.dialogue.add_reply_part(part, lane.name, exchange.at, number)

    def _lane_of_request(self, payload: dict[str, Any], parts: list[MessagePart]) -> _ExchangeLane:
        """Return the conversation that a request continues, by its beginning."""
        first = next((part.text for part in parts if part.role == "user"), "")
        key = (first, bool(payload.get("tools")))
        if key in self.lanes:
            return self.lanes[key]
        name = ROOT_LANE
        if self.first is None and key[1] == self.with_tools:
            self.first = first
        else:
            name = f"conversation {len(self.lanes) + 1}"
            self.builder.open_lane(name, ROOT_LANE)
            self._join_handoff(name, first)
        lane = self.lanes[key] = _ExchangeLane(name, RequestHistory(self.builder))
        return lane

    def _join_handoff(self, child: str, first: str) -> None:
        """Join a conversation to the call whose brief it begins with."""
        for event in reversed(self.builder.events):
            if isinstance(event, Handoff) and event.child is None and event.brief in first:
                self.builder.events[event.number - 1] = handoff_from_call(event, child)
                return

    def _request_parts(self, payload: dict[str, Any], *, is_own: bool) -> list[MessagePart]:
        """Return the parts of a request in any format, the system prompt first."""
        parts: list[MessagePart] = []
        for name in _SYSTEM_KEYS:
            if name in payload:
                parts += self._normalise_parts(parse_message_parts(payload[name], "system"))
        for name in ("messages", "contents", "input"):
            messages = payload.get(name)
            if isinstance(messages, list):
                for message in messages:
                    parts += self._message_parts(message, is_own=is_own)
            elif messages is not None and not is_own:
                parts += self._normalise_parts(parse_message_parts(messages, "user"))
        return parts

    def _message_parts(self, message: Any, *, is_own: bool) -> list[MessagePart]:
        try:
            key = msgspec.json.encode(message)
        except (ValueError, OverflowError, RecursionError):
            key = b""
        parts = self._known.get(key)
        if parts is None:
            provider_message = _to_provider_message(as_mapping(message)) if is_own else message
            parts = self._normalise_parts(parse_message_parts(provider_message, "user", 1))
            if key:
                self._known[key] = parts
        return parts

    def _normalise_parts(self, parts: Iterable[MessagePart]) -> list[MessagePart]:
        """Keep the user's text, and split patches of several files into calls."""
        normalised: list[MessagePart] = []
        for part in parts:
            if part.role == "user" and part.text.lstrip().startswith(_PROGRAM_TEXT_PREFIXES):
                normalised.append(part._replace(role="system"))
            elif part.kind == "call" and part.name == "apply_patch" and part.id:
                normalised += self._split_patch(part)
            elif part.kind == "result":
                result = _unwrap_result(part)
                ids = self.patched.get(part.id or "")
                normalised += [result._replace(id=call_id) for call_id in ids] if ids else [result]
            else:
                normalised.append(part)
        return normalised

    def _split_patch(self, part: MessagePart) -> Iterator[MessagePart]:
        patch_arguments = part.arguments
        patch = (
            patch_arguments.get("input") or patch_arguments.get("patch")
            if isinstance(patch_arguments, dict)
            else patch_arguments
        )
        files = files_in_patch(patch) if isinstance(patch, str) else []
        if not files or part.id is None:
            yield part
            return
        ids = [f"{part.id}/{number}" for number in range(1, len(files) + 1)]
        if self.patched.get(part.id) != ids:
            self.patched[part.id] = [*ids]
            # Each of them gets a result.
            self._known.clear()
        for call_id, file in zip(ids, files, strict=True):
            if file.action == "create":
                name, file_arguments = "create_file", {"content": file.after}
            else:
                name, file_arguments = "apply_patch", {"patch": file.patch}
            yield part._replace(
                id=call_id, name=name, arguments={"path": file.path, **file_arguments}
            )

    def build_session(self) -> Session:
        """Build the session."""
        finished = self.trouble is None
        summary = self.builder.mark_claim() if finished else None
        lanes = self.lanes.values()
        system = next((lane.dialogue.system for lane in lanes if lane.name == ROOT_LANE), None)
        first_at = () if self.first_at is None else (self.first_at,)
        return self.builder.build_session(
            id=derive_id(name, self.first, *first_at),
            agent=UNKNOWN_AGENT,
            system=system,
            exit="finished" if finished else "crashed",
            cause=None if self.trouble is None else clean_unicode(self.trouble),
            summary=summary,
        )


def _unwrap_result(result: MessagePart) -> MessagePart:
    """Return a result without the object that Gemini's clients put around its text."""
    inner = try_decode_json(result.text) if result.text.startswith(_ENVELOPES) else None
    if not isinstance(inner, dict) or len(inner) != 1:
        return result
    ((name, inner_text),) = inner.items()
    ok = False if name == "error" else result.ok
    return result._replace(text=inner_text, ok=ok) if isinstance(inner_text, str) else result


def _offers_tools(exchange: Exchange) -> bool:
    return b'"tools"' in exchange.request and bool(
        as_mapping(try_decode_json(exchange.request)).get("tools")
    )


def _answer_parts(answer: dict[str, Any], *, is_own: bool) -> list[MessagePart]:
    """Return the parts of an answer in any format."""
    if is_own:
        answer = _to_provider_message(answer)
    elif isinstance(answer.get("output"), list):
        answer = {"role": "assistant", "content": answer["output"]}
    return [part for part in parse_message_parts(answer, "agent") if part.role == "agent"]


def _to_provider_message(message: dict[str, Any]) -> dict[str, Any]:
    """Convert a message of our own records to a common shape."""
    if message.get("role") == "tool":
        result = {
            "type": "tool_result",
            "tool_use_id": message.get("call"),
            "content": message.get("text") or "",
            "is_error": bool(message.get("failed")),
        }
        return {"role": "tool", "content": [result]}
    texts = [{"type": "text", "text": message["text"]}] if message.get("text") else []
    calls = [{"type": "tool_use", **as_mapping(call)} for call in as_list(message.get("calls"))]
    return {"role": message.get("role") or "assistant", "content": [*texts, *calls]}
