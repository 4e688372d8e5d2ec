"""Answers of a recorded attempt, given again without a model."""

from __future__ import annotations

import msgspec

from closeloop.gateway.agent_request import AgentRequest, ResponseWriter
from closeloop.gateway.exchange_ledger import ExchangeEntry
from closeloop.gateway.gateway_routes import find_route
from closeloop.gateway.live_source import guess_token_count, parse_payload, send_reply
from closeloop.gateway.recorded_attempt import (
    REPLY_PATH,
    ComparableRequest,
    RecordedExchange,
    describe_request_difference,
    find_recorded_model,
    find_request_seals,
    parse_comparable_request,
    recorded_request,
)
from closeloop.providers.answer_decoders import DECODERS
from closeloop.providers.served.served_format import MalformedRequest
from closeloop.records.chat import ModelReply, ModelRequest
from closeloop.records.errors import MachineFailed
from closeloop.records.exchange import Exchange
from closeloop.records.provider_streams import read_provider_reply


class ReplaySource:
    """One door's way through a recording: each answer is given once."""

    def __init__(self, attempt: str, recording: list[RecordedExchange]) -> None:
        # Agents put their model's name into their prompts: with another, no request is the same.
        self.name = find_recorded_model(recording) or attempt
        self._attempt = attempt
        self._left = dict(enumerate(recording))
        self._taken: dict[str, str] = {}
        """By the conversation that asks, the recorded one that answers."""

    async def reply(self, request: ModelRequest, entry: ExchangeEntry) -> ModelReply:
        """One turn of an agent of ours."""
        comparable = parse_comparable_request(REPLY_PATH, None, msgspec.json.encode(request))
        recorded = self._take_exchange(comparable, entry)
        return _without_cost(_decode_reply(recorded.exchange), entry)

    async def answer(self, asked: AgentRequest, out: ResponseWriter) -> None:
        """A turn over HTTP, byte for byte where the agent asks in the recorded way."""
        assert out.entry is not None
        speech = asked.route.speech
        comparable = parse_comparable_request("chat", speech, asked.body)
        exchange = self._take_exchange(comparable, out.entry).exchange
        if _is_same_format(asked, exchange):
            _without_cost(ModelReply(usage=exchange.usage, model=exchange.model), out.entry)
            await out.send_body(exchange.response, exchange.status, exchange.content_type)
        else:
            reply = _without_cost(_decode_reply(exchange), out.entry)
            await send_reply(reply, speech, parse_payload(asked.body), out)

    async def count(self, asked: AgentRequest, out: ResponseWriter) -> None:
        """The recorded count, or a guess."""
        try:
            exact_digest = parse_comparable_request("count", asked.route.speech, asked.body).exact
        except MalformedRequest:
            exact_digest = None
        for place, recorded in self._left.items():
            if recorded.asking[:2] == ("count", exact_digest):
                del self._left[place]
                await out.send_body(recorded.exchange.response, recorded.exchange.status)
                return
        await out.send_json(guess_token_count(asked))

    def _take_exchange(self, asked: ComparableRequest, entry: ExchangeEntry) -> RecordedExchange:
        """The answer to the same request, else the next one of its conversation."""
        open_ones = {at: kept for at, kept in self._left.items() if kept.asking[0] != "count"}
        if not open_ones:
            raise MachineFailed(
                f"The recording {self._attempt} has no answer left: the agent asks for more turns "
                "than it did, so run it with a model."
            )
        same_places = [at for at, kept in open_ones.items() if kept.asking[1] == asked.exact]
        if same_places:
            place = same_places[0]
        else:
            conversation = self._find_conversation(asked, open_ones)
            place = next(at for at, kept in open_ones.items() if kept.asking[2] == conversation)
            entry.note = describe_request_difference(asked.request, open_ones[place])
        recorded = self._left.pop(place)
        self._taken.setdefault(asked.conversation, recorded.asking[2])
        return replace_seals(asked.request, recorded)

    def _find_conversation(
        self, asked: ComparableRequest, open_ones: dict[int, RecordedExchange]
    ) -> str:
        """The recorded conversation to go on with; a new one takes the first that is free."""
        left = list(dict.fromkeys(kept.asking[2] for kept in open_ones.values()))
        conversation = self._taken.get(asked.conversation, asked.conversation)
        if conversation in left:
            return conversation
        others = set(self._taken.values())
        return next((talk for talk in left if talk not in others), left[0])


def replace_seals(request: ModelRequest, kept: RecordedExchange) -> RecordedExchange:
    """The recorded answer with the seal that is asked for now, where it holds that of then."""
    now = find_request_seals(request)
    if not now:
        return kept
    answer = kept.exchange.response
    for old, new in zip(find_request_seals(recorded_request(kept)), now, strict=False):
        answer = answer.replace(old.encode(), new.encode())
    exchange = msgspec.structs.replace(kept.exchange, response=answer)
    return msgspec.structs.replace(kept, exchange=exchange)


def _is_same_format(asked: AgentRequest, exchange: Exchange) -> bool:
    """Whether the agent wants the answer in the form in which it was recorded."""
    recorded_route = find_route(exchange.path) if exchange.path != REPLY_PATH else None
    if recorded_route is None or recorded_route.speech.name != asked.route.speech.name:
        return False
    if asked.route.speech.name == "gemini":
        return recorded_route.speech.streams == asked.route.speech.streams
    streams = exchange.content_type.startswith("text/event-stream")
    return exchange.status >= 300 or streams == bool(parse_payload(asked.body).get("stream"))


def _decode_reply(exchange: Exchange) -> ModelReply:
    """A recorded answer in our own records."""
    if exchange.path == REPLY_PATH:
        return msgspec.json.decode(exchange.response, type=ModelReply)
    recorded_route = find_route(exchange.path)
    assert recorded_route is not None
    return msgspec.structs.replace(
        DECODERS[recorded_route.speech.name](read_provider_reply(exchange.response).answer),
        usage=exchange.usage,
    )


def _without_cost(reply: ModelReply, entry: ExchangeEntry) -> ModelReply:
    """The tokens are those of the recording; nothing is paid for them again."""
    usage = msgspec.structs.replace(reply.usage, cost=0.0, cost_from="reported")
    entry.model, entry.usage = reply.model, usage
    return msgspec.structs.replace(reply, usage=usage)
