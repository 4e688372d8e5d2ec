"""Joins streams of the providers' formats into complete answers."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import msgspec

from closeloop.providers import anthropic, gemini, openai, responses
from closeloop.records.record import Record

StreamEvent = dict[str, Any]
_NEW_LINE = ord("\n")
_decode_json = msgspec.json.Decoder().decode


class ProviderReply(Record):
    """The answer to a request, as far as it arrived."""

    answer: dict[str, Any] | None
    """The answer as without streaming; None if it has no known format."""
    complete: bool
    """Whether it marks its own end."""


def read_provider_reply(body: bytes) -> ProviderReply:
    """Read an answer, whole or streamed."""
    if not body.lstrip()[:6].startswith((b"event:", b"data:", b"id:", b":")):
        return _read_whole_reply(body)
    data = _event_data(body)
    is_done = b"[DONE]" in data
    events = [event for item in data if (event := _decode_event(item)) is not None]
    for join_events in (_join_anthropic, _join_responses, _join_openai, _join_gemini):
        if (result := join_events(events)) is not None:
            answer, complete = result
            return ProviderReply(answer=answer, complete=complete or is_done)
    return ProviderReply(answer=None, complete=False)


def _read_whole_reply(body: bytes) -> ProviderReply:
    try:
        answer = _decode_json(body)
    except (ValueError, RecursionError):
        return ProviderReply(answer=None, complete=False)
    if isinstance(answer, list):  # Gemini streams an array if no events are requested
        joined = _join_gemini([event for event in answer if isinstance(event, dict)])
        return ProviderReply(answer=joined[0] if joined else None, complete=joined is not None)
    return ProviderReply(answer=answer if isinstance(answer, dict) else None, complete=True)


def _event_data(body: bytes) -> list[bytes]:
    """Return the data of every event with data."""
    chunks = []
    body = body.replace(b"\r\n", b"\n") if b"\r" in body else body
    end = 0
    while (start := body.find(b"data:", end)) >= 0:
        end = start + 5
        if start and body[start - 1] != _NEW_LINE:
            continue
        end = _find_or_end(body, b"\n", end)
        data = body[start + 5 : end].strip()
        if not body.startswith(b"\n", end + 1):
            end = _find_or_end(body, b"\n\n", end)
            lines = body[start:end].split(b"\n")
            data = b"\n".join([line[5:].strip() for line in lines if line.startswith(b"data:")])
        if data:
            chunks.append(data)
    return chunks


def _find_or_end(body: bytes, needle: bytes, start: int) -> int:
    offset = body.find(needle, start)
    return offset if offset >= 0 else len(body)


def _decode_event(data: bytes) -> StreamEvent | None:
    try:
        event = _decode_json(data)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) else None


def _join_anthropic(events: list[StreamEvent]) -> tuple[StreamEvent, bool] | None:
    kinds = [event.get("type") for event in events]
    if "message_start" not in kinds:
        return None
    answer: StreamEvent = {}
    blocks: dict[Any, StreamEvent] = {}
    for event, kind in zip(events, kinds, strict=True):
        index, inner = event.get("index"), event.get("delta")
        if kind == "content_block_delta":
            if isinstance(index, int) and isinstance(inner, dict) and index in blocks:
                _add_delta(blocks[index], inner)
        elif kind == "content_block_start":
            block = event.get("content_block")
            if isinstance(index, int) and isinstance(block, dict):
                blocks[index] = {**block, "_": []}
        elif kind == "message_start":
            if isinstance(message := event.get("message"), dict):
                answer = {**message}
        elif kind == "message_delta":
            answer.update(_as_object(inner))
            usage = {**_as_object(answer.get("usage")), **_as_object(event.get("usage"))}
            answer["usage"] = usage
    answer["content"] = [_finish_block(blocks[index]) for index in sorted(blocks)]
    return answer, "message_stop" in kinds


def _add_delta(block: StreamEvent, delta: StreamEvent) -> None:
    for name in ("text", "thinking", "signature"):
        if isinstance(delta.get(name), str):
            block[name] = str(block.get(name) or "") + delta[name]
    if isinstance(delta.get("partial_json"), str):
        block["_"].append(delta["partial_json"])


def _finish_block(block: StreamEvent) -> StreamEvent:
    partial_json = "".join(block.pop("_"))
    if partial_json:
        try:
            block["input"] = msgspec.json.decode(partial_json)
        except (ValueError, RecursionError):
            block["input"] = partial_json
    return block


def _join_responses(events: list[StreamEvent]) -> tuple[StreamEvent, bool] | None:
    if not any(str(event.get("type")).startswith("response.") for event in events):
        return None
    output: list[Any] = []
    started: StreamEvent = {}
    for event in events:
        response = event.get("response")
        if event.get("type") in ("response.completed", "response.incomplete", "response.failed"):
            if isinstance(response, dict):
                # Some servers send the items only one by one.
                return {**response, "output": response.get("output") or output}, True
        elif isinstance(response, dict):
            started = response
        elif event.get("type") == "response.output_item.done":
            output.append(event.get("item"))
    return {**started, "output": output}, False


def _join_openai(events: list[StreamEvent]) -> tuple[StreamEvent, bool] | None:
    if not any(isinstance(event.get("choices"), list) for event in events):
        return None
    answer: StreamEvent = {}
    message: StreamEvent = {"role": "assistant", "content": None}
    calls: dict[Any, StreamEvent] = {}
    finish = None
    for event in events:
        answer.update({k: v for k, v in event.items() if k != "choices" and v is not None})
        for choice in _as_list(event.get("choices")):
            # Only the first of several answers is ever used.
            if not isinstance(choice, dict) or choice.get("index", 0) != 0:
                continue
            finish = choice.get("finish_reason") or finish
            for name, value in _as_object(choice.get("delta")).items():
                if name == "tool_calls":
                    _add_call_deltas(calls, value)
                elif isinstance(value, str) and name != "role":
                    message[name] = (message.get(name) or "") + value
                elif isinstance(value, list):
                    message[name] = (message.get(name) or []) + value
    if calls:
        message["tool_calls"] = list(calls.values())
    answer["choices"] = [{"index": 0, "message": message, "finish_reason": finish}]
    return answer, finish is not None


def _add_call_deltas(calls: dict[Any, StreamEvent], deltas: Any) -> None:
    for delta in _as_list(deltas):
        if not isinstance(delta, dict):
            continue
        function = _as_object(delta.get("function"))
        # Some servers send every call whole, without a number.
        index = delta.get("index", len(calls))
        call = calls.setdefault(
            index, {"type": "function", "function": {"name": "", "arguments": ""}}
        )
        call.update({k: v for k, v in delta.items() if v is not None and k not in ("function",)})
        for name in ("name", "arguments"):
            if isinstance(function.get(name), str):
                call["function"][name] += function[name]


def _join_gemini(events: list[StreamEvent]) -> tuple[StreamEvent, bool] | None:
    if not any("candidates" in event or "usageMetadata" in event for event in events):
        return None
    answer: StreamEvent = {}
    parts: list[Any] = []
    first: StreamEvent = {}
    for event in events:
        answer.update(event)
        for candidate in _as_list(event.get("candidates")):
            if isinstance(candidate, dict) and candidate.get("index", 0) == 0:
                first.update(candidate)
                content = _as_object(candidate.get("content")).get("parts")
                for part in _as_list(content):
                    _append_part(parts, part)
    answer["candidates"] = [{**first, "content": {"role": "model", "parts": parts}}]
    return answer, bool(first.get("finishReason"))


def _append_part(parts: list[Any], part: Any) -> None:
    """Add a part; the continuation of a text is appended to it."""
    last = parts[-1] if parts else None
    goes_on = {"text", "thought"}
    if (
        isinstance(last, dict)
        and isinstance(part, dict)
        and last.keys() | part.keys() <= goes_on
        and last.get("thought") == part.get("thought")
        and isinstance(last.get("text"), str)
        and isinstance(part.get("text"), str)
    ):
        parts[-1] = {**last, "text": last["text"] + part["text"]}
    else:
        parts.append(part)


def _as_object(value: Any) -> StreamEvent:
    return value if isinstance(value, dict) else {}


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


# A request split into pieces that the next request of the conversation shares.
#
# An agent sends the whole conversation each time. Split where values end, earlier content gives the
# same pieces as before, so that n turns need the space of one conversation and not of n.

MIN_PIECE_BYTES = 2048
"""Minimum bytes of a piece, unless its value ends before."""
MAX_OPEN_CONVERSATIONS = 4
"""Conversations of sub-agents that alternate; with more, some requests are split from the start."""

_fields_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_items_decoder = msgspec.json.Decoder(list[msgspec.Raw])


class _SplitRequest(NamedTuple):
    """A split request, and where the next one of its conversation can continue."""

    body: bytes
    pieces: list[bytes]
    resumes: list[tuple[int, int, int]]
    """After each object of a list: its end, the number of cuts before, and the last cut."""


class RequestSplitter:
    """Splits the requests of conversations, reusing the pieces of earlier ones."""

    def __init__(self) -> None:
        self._recent: list[_SplitRequest] = []

    def split(self, body: bytes) -> list[bytes]:
        """Split the body into pieces that join to it byte for byte; known pieces are the same
        objects.

        The pieces are those of `split_into_pieces`.
        """
        best = max(
            ((_count_shared_resumes(body, recent), recent) for recent in self._recent),
            key=lambda pair: pair[0],
            default=None,
        )
        split = None
        if best is not None and best[0]:
            split = _cut_request(body, best[1], best[0])
        if split is None:
            split = _cut_request(body, _SplitRequest(b"", [], []), 0)
        if split is None:
            return [body] if body else []
        other_splits = [recent for recent in self._recent if best is None or recent is not best[1]]
        self._recent = [split, *(other_splits if best and best[0] else self._recent)]
        del self._recent[MAX_OPEN_CONVERSATIONS:]
        return split.pieces


def split_into_pieces(body: bytes) -> list[bytes]:
    """Split the body into pieces that join to it byte for byte."""
    return RequestSplitter().split(body)


def _count_shared_resumes(body: bytes, earlier: _SplitRequest) -> int:
    """Count the resume points of a split request that lie in the common prefix with the body."""
    resumes = earlier.resumes
    if not resumes:
        return 0
    # Nearly always all of them, or all but those of the last messages.
    step, low, high = 1, 0, len(resumes)
    while high > low:
        offset = resumes[max(high - step, low)][0]
        if body.startswith(earlier.body[:offset]):
            low = max(high - step, low) + 1
            break
        high = max(high - step, low)
        step *= 2
    while high > low:
        middle = (low + high) // 2
        if body.startswith(earlier.body[: resumes[middle][0]]):
            low = middle + 1
        else:
            high = middle
    return low


def _cut_request(body: bytes, earlier: _SplitRequest, shared: int) -> _SplitRequest | None:
    """Split a body after the shared resume points; None if it is not an object."""
    position, cut_count, last_cut = earlier.resumes[shared - 1] if shared else (0, 0, 0)
    try:
        # The known part is replaced by a list whose first item has just ended.
        remaining = b'{"":[0' + body[position:] if shared else body
        values = [bytes(value) for value in _fields_decoder.decode(remaining).values()]
    except (ValueError, RecursionError):
        return None
    resumes, cuts = earlier.resumes[:shared], [last_cut]
    for number, value in enumerate(values):
        is_list = value.startswith(b"[")
        items = _array_items(value)
        for item in items[1:] if shared and number == 0 else items:
            # The position of a cut only decides what can be shared.
            offset = body.find(item, position)
            position = position if offset < 0 else offset + len(item)
            if position - cuts[-1] >= MIN_PIECE_BYTES:
                cuts.append(position)
            if is_list and item.startswith(b"{"):
                resumes.append((position, cut_count + len(cuts) - 1, cuts[-1]))
        if position - cuts[-1] >= MIN_PIECE_BYTES // 8:
            cuts.append(position)
    edges = [*cuts, len(body)]
    new_pieces = [body[start:end] for start, end in pairwise(edges) if start < end]
    return _SplitRequest(body, earlier.pieces[:cut_count] + new_pieces, resumes)


def _array_items(value: bytes) -> list[bytes]:
    if not value.startswith(b"["):
        return [value]
    try:
        return [bytes(item) for item in _items_decoder.decode(value)]
    except (ValueError, RecursionError):
        return [value]


# The content of a reply in each format, in our own records.

DECODERS = {
    "openai": openai.decode_openai,
    "responses": responses.decode_responses,
    "anthropic": anthropic.decode_anthropic,
    "gemini": gemini.decode_gemini,
}
