"""A recorded attempt as something to answer from: which answer belongs to which request."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from closeloop.model.chat import ChatMessage, ModelRequest
from closeloop.model.exchange import Exchange
from closeloop.model.fences import find_seals
from closeloop.model.pieces import pieces
from closeloop.model.record import Record, digest
from closeloop.runs.gateway.routes import NAMED, route
from closeloop.runs.models.served.speech import Malformed, Speech

REPLY = "reply"
"""The path of what an agent of ours asked, in our own records."""
_QUOTED = 60
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


class Asking(Record):
    """A request in the form in which two of them are compared."""

    kind: str
    """`chat`, `count` or `reply`."""
    exact: str
    """Of all that is said in it, but for what differs from run to run."""
    conversation: str
    """Of how its conversation begins."""
    request: ModelRequest


class Kept(Record):
    """One recorded exchange. Its request is kept in pieces, which many share."""

    asking: tuple[str, str, str]
    request: tuple[bytes, ...]
    exchange: Exchange


def asking(kind: str, speech: Speech | None, body: bytes) -> Asking:
    """A request, read; Malformed when it is none."""
    try:
        if speech is None:
            request = msgspec.json.decode(body, type=ModelRequest)
        else:
            request = speech.read(msgspec.json.decode(body))
    except (ValueError, RecursionError):
        raise Malformed("The request is not a JSON object.") from None
    said = [_told(message) for message in request.messages]
    for seal in seals_in(request):
        said = [one.replace(seal, "") for one in said]
    tools = sorted(tool.name for tool in request.tools)
    first = next((one for one in said if one.startswith("user")), "")
    return Asking(
        kind=kind,
        exact=digest(kind, steady(request.system or ""), tools, [steady(one) for one in said]),
        conversation=digest(steady(first), bool(tools)),
        request=request,
    )


def seals_in(request: ModelRequest) -> list[str]:
    """The seals of a request whose data we fenced: they are others whenever that is asked."""
    return find_seals(request.messages[0].text) if request.messages else []


def steady(text: str) -> str:
    """The text without what differs from run to run."""
    return _VOLATILE.sub("…", text)


def load(exchanges: Iterable[Exchange]) -> list[Kept]:
    """The exchanges that got an answer which a later run may get again."""
    known: dict[bytes, bytes] = {}
    found = []
    for exchange in exchanges:
        if exchange.cause is not None or not exchange.response:
            continue
        way = None if exchange.path == REPLY else route(exchange.path)
        try:
            asked = asking(
                way.kind if way else REPLY, way.speech if way else None, exchange.request
            )
        except Malformed:
            continue
        cut = tuple(known.setdefault(piece, piece) for piece in pieces(exchange.request))
        identity = (asked.kind, asked.exact, asked.conversation)
        bare = msgspec.structs.replace(exchange, request=b"")
        found.append(Kept(asking=identity, request=cut, exchange=bare))
    return found


def asked_model(recording: Iterable[Kept]) -> str | None:
    """What the agent was told that its model is called."""
    for kept in recording:
        if kept.exchange.path != REPLY:
            named = NAMED.search(kept.exchange.path)
            fields = msgspec.json.decode(b"".join(kept.request))
            name = named[1] if named else fields.get("model")
            if isinstance(name, str) and name:
                return name
    return None


def recorded_request(kept: Kept) -> ModelRequest:
    """What was asked then."""
    way = None if kept.exchange.path == REPLY else route(kept.exchange.path)
    return asking("", way.speech if way else None, b"".join(kept.request)).request


def difference(asked: ModelRequest, kept: Kept) -> str:
    """Where a request first differs from a recorded one, in words."""
    other = recorded_request(kept)
    number = kept.exchange.number
    if steady(asked.system or "") != steady(other.system or ""):
        told = _apart(steady(asked.system or ""), steady(other.system or ""))
        return f"The system prompt is not that of recorded request {number}: {told}."
    ours, theirs = ({tool.name for tool in one.tools} for one in (asked, other))
    if ours != theirs:
        changed = ", ".join(sorted(ours ^ theirs)[:5])
        return f"The tools are not those of recorded request {number}: {changed}."
    for place, (one, two) in enumerate(zip(asked.messages, other.messages, strict=False), 1):
        said, was = steady(_told(one)), steady(_told(two))
        if said != was:
            told = _apart(said, was)
            return f"Message {place} is not that of recorded request {number}: {told}."
    counts = f"{len(asked.messages)} messages, not {len(other.messages)}"
    return f"There are {counts} as in recorded request {number}."


def _told(message: ChatMessage) -> str:
    calls = [
        f"{call.name} {msgspec.json.encode(call.arguments).decode()}" for call in message.calls
    ]
    return "\n".join([message.role, message.text, *calls])


def _apart(one: str, other: str) -> str:
    """Both texts from where they part."""
    pairs = zip(one, other, strict=False)
    same = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
    start = max(0, same - 10)
    here, there = one[start : start + _QUOTED], other[start : start + _QUOTED]
    return f"{here!r} was {there!r}"
