"""Answers of a model that is there: asked in its own format, or by way of ours."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from typing import Any, Protocol

import msgspec

from closeloop.model.chat import ChatMessage, ModelReply, ModelRequest
from closeloop.model.errors import MachineFailed
from closeloop.model.record import digest
from closeloop.runs.gateway.asking import STREAM, Asked, Out
from closeloop.runs.gateway.ledger import Entry
from closeloop.runs.gateway.pace import Pace
from closeloop.runs.models.budget import tokens_of
from closeloop.runs.models.dialect import Retried
from closeloop.runs.models.opening import OpenModel
from closeloop.runs.models.refusals import Missing, Rejected, TooLong, phrase
from closeloop.runs.models.served.speech import Malformed, Speech

PING_SECONDS = 15.0
"""A stream that is silent for longer is taken for dead by some agents."""
ECHOES = 4096


class Broken(MachineFailed):
    """An answer that broke off on its way to the agent."""


class Relay(Protocol):
    """A way to a provider for requests in its own format."""

    def speaks(self, asked: Asked) -> bool: ...

    def forgoes(self, speech: Speech) -> bool:
        """Whether it is found out only now that the provider does not speak this format."""
        ...

    async def pass_on(self, asked: Asked, out: Out, retried: Retried) -> None:
        """Pass a request and its answer on; Broken when that ends half-way."""
        ...


class Live:
    """One door's share of a model."""

    def __init__(
        self, model: OpenModel, pace: Pace, relay: Relay | None = None, *, first: bool = False
    ) -> None:
        self.name = model.name
        self._model = model
        self._first = first
        self._pace = pace
        self._relay = relay
        """For what its provider understands as it is."""
        self._echoes: dict[str, Any] = {}

    async def reply(self, request: ModelRequest, entry: Entry) -> ModelReply:
        """One turn in our own records."""
        async with self._pace.permit(self, first=self._first):
            reply = await self._model.reply(request, lambda *why: self._retried(entry, *why))
        entry.model, entry.usage = reply.model, reply.usage
        self._pace.used(tokens_of(reply.usage))
        return reply

    def _retried(self, entry: Entry, seconds: float, status: int | None) -> None:
        entry.retries += 1
        entry.refusal = phrase(status) if status is not None else "nothing at all"
        if status == 429:
            self._pace.hold(seconds)

    async def count(self, asked: Asked, out: Out) -> None:
        """How many tokens a request has, by the provider or by its length."""
        if self._relay is not None and self._relay.speaks(asked):
            with suppress(Missing, Rejected, TooLong):
                await self._passed(self._relay, asked, out)
                return
        await out.whole(guessed(asked))

    async def answer(self, asked: Asked, out: Out) -> None:
        """A turn over HTTP."""
        relay = self._relay
        if relay is None or not relay.speaks(asked):
            await self._translated(asked, out)
            return
        try:
            await self._passed(relay, asked, out)
        except (Rejected, TooLong) as refusal:
            # Agents know what their provider says, and may ask for less.
            out.noted(str(refusal))
            await out.all(refusal.body, refusal.status)
        except Missing:
            if not relay.forgoes(asked.route.speech):
                raise
            await self._translated(asked, out)

    async def _passed(self, relay: Relay, asked: Asked, out: Out) -> None:
        entry = out.entry
        assert entry is not None
        async with self._pace.permit(self, first=self._first):
            await relay.pass_on(asked, out, lambda *why: self._retried(entry, *why))
        self._pace.used(tokens_of(entry.usage))

    async def _translated(self, asked: Asked, out: Out) -> None:
        speech, payload = asked.route.speech, parsed(asked.body)
        request = self._with_echoes(speech.read(payload))
        streams = bool(speech.streams or payload.get("stream"))
        assert out.entry is not None
        try:
            asking = self.reply(request, out.entry)
            reply = await (_awaited(asking, speech, out) if streams else asking)
        except (Rejected, TooLong) as refusal:
            out.noted(str(refusal))
            await out.fail(speech, str(refusal))
            return
        if reply.echo is not None and reply.calls and len(self._echoes) < ECHOES:
            self._echoes[_identity(reply)] = reply.echo
        await said(reply, speech, payload, out)

    def _with_echoes(self, request: ModelRequest) -> ModelRequest:
        """With what the provider wants back with its turns, and no other format has a place for."""
        if not self._echoes:
            return request
        messages = tuple(
            msgspec.structs.replace(message, echo=self._echoes.get(_identity(message)))
            if message.calls
            else message
            for message in request.messages
        )
        return msgspec.structs.replace(request, messages=messages)


async def said(reply: ModelReply, speech: Speech, payload: dict[str, Any], out: Out) -> None:
    """A reply in the agent's format."""
    if speech.streams or payload.get("stream"):
        if not out.started:
            await out.start(200, STREAM)
        await out.write("".join(speech.events(reply, payload)).encode())
        await out.end()
    else:
        await out.whole(speech.answer(reply, payload))


async def _awaited(asking: Awaitable[ModelReply], speech: Speech, out: Out) -> ModelReply:
    """The reply, with a sign of life now and then while it takes its time."""
    task = asyncio.ensure_future(asking)
    try:
        while not (await asyncio.wait({task}, timeout=PING_SECONDS))[0]:
            if speech.ping is not None:
                if not out.started:
                    await out.start(200, STREAM)
                await out.write(speech.ping)
        return task.result()
    finally:
        task.cancel()


def _identity(turn: ModelReply | ChatMessage) -> str:
    return digest(*((call.id, call.name, call.arguments) for call in turn.calls))


def parsed(body: bytes) -> dict[str, Any]:
    """The request as JSON."""
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except (ValueError, RecursionError):
        raise Malformed("The request is not a JSON object.") from None


def guessed(asked: Asked) -> dict[str, Any]:
    """How many tokens a request has, by its length: about one for four characters."""
    tokens = len(asked.body) // 4 + 1
    if asked.route.speech.name == "gemini":
        return {"totalTokens": tokens}
    return {"input_tokens": tokens}
