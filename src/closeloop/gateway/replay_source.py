"""Answers of a recorded attempt, replayed without a model."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from closeloop.gateway.exchange_ledger import (
    MODEL_METHOD,
    AgentRequest,
    ExchangeEntry,
    ResponseWriter,
    find_route,
)
from closeloop.gateway.live_source import guess_token_count, parse_payload, send_reply
from closeloop.providers.provider_streams import DECODERS, RequestSplitter, read_provider_reply
from closeloop.providers.wire_format import MalformedRequest, ServedFormat
from closeloop.records.errors import MachineFailed
from closeloop.records.record import Record, content_digest
from closeloop.records.trace import ChatMessage, Exchange, ModelReply, ModelRequest
from closeloop.text.untrusted import find_seals
from closeloop.text.wording import compile_lazily

# Replay of a recorded attempt: which recorded reply belongs to which request.

REPLY_PATH = "reply"
"""Path of a built-in agent's requests in our own records."""
_MAX_QUOTE_CHARS = 60
_VOLATILE = compile_lazily(
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
"""Dates, times, durations, ids and paths that differ from run to run."""


class ComparableRequest(Record):
    """A request in a comparable form."""

    kind: str
    """`chat`, `count` or `reply`."""
    exact: str
    """Digest of its content without what differs from run to run."""
    conversation: str
    """Digest of the start of its conversation."""
    request: ModelRequest


class RecordedExchange(Record):
    """One recorded exchange. Its request is stored in pieces that many share."""

    asking: tuple[str, str, str]
    request: tuple[bytes, ...]
    exchange: Exchange


def parse_comparable_request(
    kind: str, served_format: ServedFormat | None, body: bytes
) -> ComparableRequest:
    """Parse a request; MalformedRequest if it is none."""
    try:
        if served_format is None:
            request = msgspec.json.decode(body, type=ModelRequest)
        else:
            request = served_format.read(msgspec.json.decode(body))
    except (ValueError, RecursionError):
        raise MalformedRequest("The request is not a JSON object.") from None
    message_texts = [_message_text(message) for message in request.messages]
    for seal in find_request_seals(request):
        message_texts = [message_text.replace(seal, "") for message_text in message_texts]
    tools = sorted(tool.name for tool in request.tools)
    first = next(
        (message_text for message_text in message_texts if message_text.startswith("user")), ""
    )
    return ComparableRequest(
        kind=kind,
        exact=content_digest(
            kind,
            remove_volatile(request.system or ""),
            tools,
            [remove_volatile(message_text) for message_text in message_texts],
        ),
        conversation=content_digest(remove_volatile(first), bool(tools)),
        request=request,
    )


def find_request_seals(request: ModelRequest) -> list[str]:
    """Return the seals of a request with fenced data; they differ each time."""
    return find_seals(request.messages[0].text) if request.messages else []


def remove_volatile(text: str) -> str:
    """Return the text without what differs from run to run."""
    return _VOLATILE.sub("…", text)


def load_recorded_exchanges(exchanges: Iterable[Exchange]) -> list[RecordedExchange]:
    """Load the exchanges whose answers can be replayed."""
    splitter, known_pieces = RequestSplitter(), dict[bytes, bytes]()
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
            known_pieces.setdefault(piece, piece) for piece in splitter.split(exchange.request)
        )
        identity = (comparable.kind, comparable.exact, comparable.conversation)
        bare_exchange = msgspec.structs.replace(exchange, request=b"")
        recorded.append(
            RecordedExchange(asking=identity, request=request_pieces, exchange=bare_exchange)
        )
    return recorded


def find_recorded_model(recording: Iterable[RecordedExchange]) -> str | None:
    """Return the model name that the agent was given."""
    for recorded in recording:
        if recorded.exchange.path != REPLY_PATH:
            path_match = MODEL_METHOD.search(recorded.exchange.path)
            fields = msgspec.json.decode(b"".join(recorded.request))
            name = path_match[1] if path_match else fields.get("model")
            if isinstance(name, str) and name:
                return name
    return None


def recorded_request(recorded: RecordedExchange) -> ModelRequest:
    """Return the recorded request."""
    gateway_route = (
        None if recorded.exchange.path == REPLY_PATH else find_route(recorded.exchange.path)
    )
    return parse_comparable_request(
        "", gateway_route.speech if gateway_route else None, b"".join(recorded.request)
    ).request


def describe_request_difference(request: ModelRequest, recorded: RecordedExchange) -> str:
    """Describe where a request first differs from a recorded one."""
    old_request = recorded_request(recorded)
    number = recorded.exchange.number
    if remove_volatile(request.system or "") != remove_volatile(old_request.system or ""):
        difference = _quote_difference(
            remove_volatile(request.system or ""), remove_volatile(old_request.system or "")
        )
        return f"The system prompt differs from recorded request {number}: {difference}."
    new_tools, old_tools = (
        {tool.name for tool in either.tools} for either in (request, old_request)
    )
    if new_tools != old_tools:
        changed = ", ".join(sorted(new_tools ^ old_tools)[:5])
        return f"The tools differ from recorded request {number}: {changed}."
    for position, (new_message, old_message) in enumerate(
        zip(request.messages, old_request.messages, strict=False), 1
    ):
        new_text, old_text = (
            remove_volatile(_message_text(new_message)),
            remove_volatile(_message_text(old_message)),
        )
        if new_text != old_text:
            difference = _quote_difference(new_text, old_text)
            return f"Message {position} differs from recorded request {number}: {difference}."
    counts = f"{len(request.messages)} messages, not {len(old_request.messages)}"
    return f"There are {counts} as in recorded request {number}."


def _message_text(message: ChatMessage) -> str:
    calls = [
        f"{call.name} {msgspec.json.encode(call.arguments).decode()}" for call in message.calls
    ]
    return "\n".join([message.role, message.text, *calls])


def _quote_difference(new_text: str, old_text: str) -> str:
    """Quote both texts from where they differ."""
    pairs = zip(new_text, old_text, strict=False)
    first_difference = next(
        (i for i, (a, b) in enumerate(pairs) if a != b), min(len(new_text), len(old_text))
    )
    start = max(0, first_difference - 10)
    new_quote, old_quote = (
        new_text[start : start + _MAX_QUOTE_CHARS],
        old_text[start : start + _MAX_QUOTE_CHARS],
    )
    return f"{new_quote!r} was {old_quote!r}"


class ReplaySource:
    """Replays a recording for one proxy: each answer is given once."""

    def __init__(self, attempt: str, recording: list[RecordedExchange]) -> None:
        # Agents write their model's name into prompts: with another model, no request is equal.
        self.name = find_recorded_model(recording) or attempt
        self._attempt = attempt
        self._left = dict(enumerate(recording))
        self._taken: dict[str, str] = {}
        """The recorded conversation that answers, by the requesting one."""

    async def reply(self, request: ModelRequest, entry: ExchangeEntry) -> ModelReply:
        """Answer one turn of a built-in agent."""
        comparable = parse_comparable_request(REPLY_PATH, None, msgspec.json.encode(request))
        recorded = self._take_exchange(comparable, entry)
        return _without_cost(_decode_reply(recorded.exchange), entry)

    async def answer(self, request: AgentRequest, writer: ResponseWriter) -> None:
        """Answer a turn over HTTP, byte for byte if the agent uses the recorded format."""
        assert writer.entry is not None
        served_format = request.route.speech
        comparable = parse_comparable_request("chat", served_format, request.body)
        exchange = self._take_exchange(comparable, writer.entry).exchange
        if _is_same_format(request, exchange):
            _without_cost(ModelReply(usage=exchange.usage, model=exchange.model), writer.entry)
            await writer.send_body(exchange.response, exchange.status, exchange.content_type)
        else:
            reply = _without_cost(_decode_reply(exchange), writer.entry)
            await send_reply(reply, served_format, parse_payload(request.body), writer)

    async def count(self, request: AgentRequest, writer: ResponseWriter) -> None:
        """Return the recorded count, or an estimate."""
        try:
            exact_digest = parse_comparable_request(
                "count", request.route.speech, request.body
            ).exact
        except MalformedRequest:
            exact_digest = None
        for index, recorded in self._left.items():
            if recorded.asking[:2] == ("count", exact_digest):
                del self._left[index]
                await writer.send_body(recorded.exchange.response, recorded.exchange.status)
                return
        await writer.send_json(guess_token_count(request))

    def _take_exchange(self, request: ComparableRequest, entry: ExchangeEntry) -> RecordedExchange:
        """Take the answer to the same request, else the next one of its conversation."""
        open_exchanges = {
            index: exchange
            for index, exchange in self._left.items()
            if exchange.asking[0] != "count"
        }
        if not open_exchanges:
            raise MachineFailed(
                f"The recording {self._attempt} has no more replies: the agent makes "
                "more requests than were recorded, so run it with a model."
            )
        same_indexes = [
            index
            for index, exchange in open_exchanges.items()
            if exchange.asking[1] == request.exact
        ]
        if same_indexes:
            position = same_indexes[0]
        else:
            conversation = self._find_conversation(request, open_exchanges)
            position = next(
                index
                for index, exchange in open_exchanges.items()
                if exchange.asking[2] == conversation
            )
            entry.note = describe_request_difference(request.request, open_exchanges[position])
        recorded = self._left.pop(position)
        self._taken.setdefault(request.conversation, recorded.asking[2])
        return replace_seals(request.request, recorded)

    def _find_conversation(
        self, request: ComparableRequest, open_exchanges: dict[int, RecordedExchange]
    ) -> str:
        """Return the recorded conversation to continue; a new one takes the first free one."""
        open_conversations = list(
            dict.fromkeys(recorded.asking[2] for recorded in open_exchanges.values())
        )
        conversation = self._taken.get(request.conversation, request.conversation)
        if conversation in open_conversations:
            return conversation
        taken_conversations = set(self._taken.values())
        return next(
            (candidate for candidate in open_conversations if candidate not in taken_conversations),
            open_conversations[0],
        )


def replace_seals(request: ModelRequest, recorded: RecordedExchange) -> RecordedExchange:
    """Replace the recorded seal in the answer by the current one."""
    current_seals = find_request_seals(request)
    if not current_seals:
        return recorded
    answer = recorded.exchange.response
    for old_seal, new_seal in zip(
        find_request_seals(recorded_request(recorded)), current_seals, strict=False
    ):
        answer = answer.replace(old_seal.encode(), new_seal.encode())
    exchange = msgspec.structs.replace(recorded.exchange, response=answer)
    return msgspec.structs.replace(recorded, exchange=exchange)


def _is_same_format(request: AgentRequest, exchange: Exchange) -> bool:
    """Whether the agent uses the recorded format."""
    recorded_route = find_route(exchange.path) if exchange.path != REPLY_PATH else None
    if recorded_route is None or recorded_route.speech.name != request.route.speech.name:
        return False
    if request.route.speech.name == "gemini":
        return recorded_route.speech.streams == request.route.speech.streams
    streams = exchange.content_type.startswith("text/event-stream")
    return exchange.status >= 300 or streams == bool(parse_payload(request.body).get("stream"))


def _decode_reply(exchange: Exchange) -> ModelReply:
    """Decode a recorded answer."""
    if exchange.path == REPLY_PATH:
        return msgspec.json.decode(exchange.response, type=ModelReply)
    recorded_route = find_route(exchange.path)
    assert recorded_route is not None
    return msgspec.structs.replace(
        DECODERS[recorded_route.speech.name](read_provider_reply(exchange.response).answer),
        usage=exchange.usage,
    )


def _without_cost(reply: ModelReply, entry: ExchangeEntry) -> ModelReply:
    """Keep the recorded tokens without their cost, because nothing is paid again."""
    usage = msgspec.structs.replace(reply.usage, cost=0.0, cost_from="reported")
    entry.model, entry.usage = reply.model, usage
    return msgspec.structs.replace(reply, usage=usage)
