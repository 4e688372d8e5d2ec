"""A recorded attempt as something to answer from: which answer belongs to which request."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from closeloop.gateway.gateway_routes import MODEL_METHOD, find_route
from closeloop.providers.served.served_format import MalformedRequest, ServedFormat
from closeloop.records.chat import ChatMessage, ModelRequest
from closeloop.records.exchange import Exchange
from closeloop.records.fences import find_seals
from closeloop.records.record import Record, content_digest
from closeloop.records.request_pieces import split_into_pieces

REPLY_PATH = "reply"
"""The path of what an agent of ours asked, in our own records."""
_MAX_QUOTE_CHARS = 60
_VOLATILE = re.compile(
    r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"
    r"|(?:/private)?/(?:tmp|var/tmp|var/folders|dev/shm)/[^\s\"'\\,;:()<>]{1,300}"
    r"|\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d{1,9})?)?(?:Z|[+-]\d\d:?\d\d)?)?"
    r"|(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]{0,6},? )?"
    r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]{0,6} +\d{1,2},?(?: +\d{4})?"
    r"|\b\d\d?:\d\d(?::\d\d(?:\.\d{1,9})?)?(?: ?[AP]M)?\b"
    r"|\b\d{1,2}/\d{1,2}/\d{4}\b"
    r"|\b\d{1,9}(?:\.\d{1,9})? ?(?:ms|s|sec|secs|seconds?|minutes?)\b"
    r"|\b(?=[0-9a-f]{0,39}\d)[0-9a-f]{7,40}\b"
    r"|(?<=Chunk ID: )[0-9a-f]{4,16}"
    r"|\b(?:call|toolu|msg|resp|item|rs|fc|req|chatcmpl)[_-][A-Za-z0-9_-]{1,80}"
)
"""Dates, times, durations, ids and places of the moment: they differ from run to run."""


class ComparableRequest(Record):
    """A request in the form in which two of them are compared."""

    kind: str
    """`chat`, `count` or `reply`."""
    exact: str
    """Of all that is said in it, but for what differs from run to run."""
    conversation: str
    """Of how its conversation begins."""
    request: ModelRequest


class RecordedExchange(Record):
    """One recorded exchange. Its request is kept in pieces, which many share."""

    asking: tuple[str, str, str]
    request: tuple[bytes, ...]
    exchange: Exchange


def parse_comparable_request(
    kind: str, speech: ServedFormat | None, body: bytes
) -> ComparableRequest:
    """A request, read; Malformed when it is none."""
    try:
        if speech is None:
            request = msgspec.json.decode(body, type=ModelRequest)
        else:
            request = speech.read(msgspec.json.decode(body))
    except (ValueError, RecursionError):
        raise MalformedRequest("The request is not a JSON object.") from None
    message_texts = [_message_text(message) for message in request.messages]
    for seal in find_request_seals(request):
        message_texts = [one.replace(seal, "") for one in message_texts]
    tools = sorted(tool.name for tool in request.tools)
    first = next((one for one in message_texts if one.startswith("user")), "")
    return ComparableRequest(
        kind=kind,
        exact=content_digest(
            kind,
            remove_volatile(request.system or ""),
            tools,
            [remove_volatile(one) for one in message_texts],
        ),
        conversation=content_digest(remove_volatile(first), bool(tools)),
        request=request,
    )


def find_request_seals(request: ModelRequest) -> list[str]:
    """The seals of a request whose data we fenced: they are others whenever that is asked."""
    return find_seals(request.messages[0].text) if request.messages else []


def remove_volatile(text: str) -> str:
    """The text without what differs from run to run."""
    return _VOLATILE.sub("…", text)


def load_recorded_exchanges(exchanges: Iterable[Exchange]) -> list[RecordedExchange]:
    """The exchanges that got an answer which a later run may get again."""
    known: dict[bytes, bytes] = {}
    recorded = []
    for exchange in exchanges:
        if exchange.cause is not None or not exchange.response:
            continue
        gateway_route = None if exchange.path == REPLY_PATH else find_route(exchange.path)
        try:
            comparable = parse_comparable_request(
                gateway_route.kind if gateway_route else REPLY_PATH,
                gateway_route.speech if gateway_route else None,
                exchange.request,
            )
        except MalformedRequest:
            continue
        request_pieces = tuple(
            known.setdefault(piece, piece) for piece in split_into_pieces(exchange.request)
        )
        identity = (comparable.kind, comparable.exact, comparable.conversation)
        bare_exchange = msgspec.structs.replace(exchange, request=b"")
        recorded.append(
            RecordedExchange(asking=identity, request=request_pieces, exchange=bare_exchange)
        )
    return recorded


def find_recorded_model(recording: Iterable[RecordedExchange]) -> str | None:
    """What the agent was told that its model is called."""
    for recorded in recording:
        if recorded.exchange.path != REPLY_PATH:
            path_match = MODEL_METHOD.search(recorded.exchange.path)
            fields = msgspec.json.decode(b"".join(recorded.request))
            name = path_match[1] if path_match else fields.get("model")
            if isinstance(name, str) and name:
                return name
    return None


def recorded_request(kept: RecordedExchange) -> ModelRequest:
    """What was asked then."""
    gateway_route = None if kept.exchange.path == REPLY_PATH else find_route(kept.exchange.path)
    return parse_comparable_request(
        "", gateway_route.speech if gateway_route else None, b"".join(kept.request)
    ).request


def describe_request_difference(asked: ModelRequest, kept: RecordedExchange) -> str:
    """Where a request first differs from a recorded one, in words."""
    other = recorded_request(kept)
    number = kept.exchange.number
    if remove_volatile(asked.system or "") != remove_volatile(other.system or ""):
        where = _quote_difference(
            remove_volatile(asked.system or ""), remove_volatile(other.system or "")
        )
        return f"The system prompt is not that of recorded request {number}: {where}."
    new_tools, old_tools = ({tool.name for tool in one.tools} for one in (asked, other))
    if new_tools != old_tools:
        changed = ", ".join(sorted(new_tools ^ old_tools)[:5])
        return f"The tools are not those of recorded request {number}: {changed}."
    for place, (one, two) in enumerate(zip(asked.messages, other.messages, strict=False), 1):
        new_text, old_text = (
            remove_volatile(_message_text(one)),
            remove_volatile(_message_text(two)),
        )
        if new_text != old_text:
            where = _quote_difference(new_text, old_text)
            return f"Message {place} is not that of recorded request {number}: {where}."
    counts = f"{len(asked.messages)} messages, not {len(other.messages)}"
    return f"There are {counts} as in recorded request {number}."


def _message_text(message: ChatMessage) -> str:
    calls = [
        f"{call.name} {msgspec.json.encode(call.arguments).decode()}" for call in message.calls
    ]
    return "\n".join([message.role, message.text, *calls])


def _quote_difference(one: str, other: str) -> str:
    """Both texts from where they part."""
    pairs = zip(one, other, strict=False)
    same = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
    start = max(0, same - 10)
    here, there = one[start : start + _MAX_QUOTE_CHARS], other[start : start + _MAX_QUOTE_CHARS]
    return f"{here!r} was {there!r}"
