"""Answers of a recorded attempt, given again without a model."""

from __future__ import annotations

import msgspec

from closeloop.model.answers import heard
from closeloop.model.chat import ModelReply, ModelRequest
from closeloop.model.errors import MachineFailed
from closeloop.model.exchange import Exchange
from closeloop.runs.gateway.asking import Asked, Out
from closeloop.runs.gateway.ledger import Entry
from closeloop.runs.gateway.live import guessed, parsed, said
from closeloop.runs.gateway.recording import (
    REPLY,
    Asking,
    Kept,
    asked_model,
    asking,
    difference,
    recorded_request,
    seals_in,
)
from closeloop.runs.gateway.routes import route
from closeloop.runs.models.decoding import DECODERS
from closeloop.runs.models.served.speech import Malformed


class Replay:
    """One door's way through a recording: each answer is given once."""

    def __init__(self, attempt: str, recording: list[Kept]) -> None:
        # Agents put their model's name into their prompts: with another, no request is the same.
        self.name = asked_model(recording) or attempt
        self._attempt = attempt
        self._left = dict(enumerate(recording))
        self._taken: dict[str, str] = {}
        """By the conversation that asks, the recorded one that answers."""

    async def reply(self, request: ModelRequest, entry: Entry) -> ModelReply:
        """One turn of an agent of ours."""
        asked = asking(REPLY, None, msgspec.json.encode(request))
        kept = self._next(asked, entry)
        return _free(_reply(kept.exchange), entry)

    async def answer(self, asked: Asked, out: Out) -> None:
        """A turn over HTTP, byte for byte where the agent asks in the recorded way."""
        assert out.entry is not None
        speech = asked.route.speech
        wanted = asking("chat", speech, asked.body)
        exchange = self._next(wanted, out.entry).exchange
        if _same_way(asked, exchange):
            _free(ModelReply(usage=exchange.usage, model=exchange.model), out.entry)
            await out.all(exchange.response, exchange.status, exchange.content_type)
        else:
            reply = _free(_reply(exchange), out.entry)
            await said(reply, speech, parsed(asked.body), out)

    async def count(self, asked: Asked, out: Out) -> None:
        """The recorded count, or a guess."""
        try:
            wanted = asking("count", asked.route.speech, asked.body).exact
        except Malformed:
            wanted = None
        for place, kept in self._left.items():
            if kept.asking[:2] == ("count", wanted):
                del self._left[place]
                await out.all(kept.exchange.response, kept.exchange.status)
                return
        await out.whole(guessed(asked))

    def _next(self, asked: Asking, entry: Entry) -> Kept:
        """The answer to the same request, else the next one of its conversation."""
        open_ones = {at: kept for at, kept in self._left.items() if kept.asking[0] != "count"}
        if not open_ones:
            raise MachineFailed(
                f"The recording {self._attempt} has no answer left: the agent asks for more turns "
                "than it did, so run it with a model."
            )
        same = [at for at, kept in open_ones.items() if kept.asking[1] == asked.exact]
        if same:
            place = same[0]
        else:
            talk = self._conversation(asked, open_ones)
            place = next(at for at, kept in open_ones.items() if kept.asking[2] == talk)
            entry.note = difference(asked.request, open_ones[place])
        kept = self._left.pop(place)
        self._taken.setdefault(asked.conversation, kept.asking[2])
        return with_seals_of(asked.request, kept)

    def _conversation(self, asked: Asking, open_ones: dict[int, Kept]) -> str:
        """The recorded conversation to go on with; a new one takes the first that is free."""
        left = list(dict.fromkeys(kept.asking[2] for kept in open_ones.values()))
        mine = self._taken.get(asked.conversation, asked.conversation)
        if mine in left:
            return mine
        others = set(self._taken.values())
        return next((talk for talk in left if talk not in others), left[0])


def with_seals_of(request: ModelRequest, kept: Kept) -> Kept:
    """The recorded answer with the seal that is asked for now, where it holds that of then."""
    now = seals_in(request)
    if not now:
        return kept
    answer = kept.exchange.response
    for old, new in zip(seals_in(recorded_request(kept)), now, strict=False):
        answer = answer.replace(old.encode(), new.encode())
    exchange = msgspec.structs.replace(kept.exchange, response=answer)
    return msgspec.structs.replace(kept, exchange=exchange)


def _same_way(asked: Asked, exchange: Exchange) -> bool:
    """Whether the agent wants the answer in the form in which it was recorded."""
    way = route(exchange.path) if exchange.path != REPLY else None
    if way is None or way.speech.name != asked.route.speech.name:
        return False
    if asked.route.speech.name == "gemini":
        return way.speech.streams == asked.route.speech.streams
    streams = exchange.content_type.startswith("text/event-stream")
    return exchange.status >= 300 or streams == bool(parsed(asked.body).get("stream"))


def _reply(exchange: Exchange) -> ModelReply:
    """A recorded answer in our own records."""
    if exchange.path == REPLY:
        return msgspec.json.decode(exchange.response, type=ModelReply)
    way = route(exchange.path)
    assert way is not None
    return msgspec.structs.replace(
        DECODERS[way.speech.name](heard(exchange.response).answer), usage=exchange.usage
    )


def _free(reply: ModelReply, entry: Entry) -> ModelReply:
    """The tokens are those of the recording; nothing is paid for them again."""
    usage = msgspec.structs.replace(reply.usage, cost=0.0, cost_from="reported")
    entry.model, entry.usage = reply.model, usage
    return msgspec.structs.replace(reply, usage=usage)
