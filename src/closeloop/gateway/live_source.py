"""Answers of a live model: asked in its own format, or translated."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextlib import asynccontextmanager, suppress
from typing import Any, Protocol

import msgspec

from closeloop.gateway.exchange_ledger import (
    EVENT_STREAM,
    AgentRequest,
    ExchangeEntry,
    ResponseWriter,
)
from closeloop.providers.model_opening import OpenModel
from closeloop.providers.model_prices import sum_tokens
from closeloop.providers.wire_format import (
    ConversationTooLong,
    MalformedRequest,
    ModelMissing,
    RequestRejected,
    RetryListener,
    ServedFormat,
    describe_status,
)
from closeloop.records.errors import MachineFailed
from closeloop.records.record import content_digest
from closeloop.records.settings import ModelSettings
from closeloop.records.trace import ChatMessage, ModelReply, ModelRequest

# Rate limits of one provider, shared fairly between the proxies that wait for it.

_BURST_SECONDS = 6.0
"""Seconds' worth of a minute's requests that may be sent at once."""

MonotonicClock = Callable[[], float]


class _TokenBucket:
    """Fills with time up to a capacity; more can be taken than there is."""

    def __init__(self, a_minute: int, content: float) -> None:
        self._rate = a_minute / 60
        self._most = self._content = content
        self._at: float | None = None

    def take_amount(self, amount: float) -> None:
        self._content -= amount

    def seconds_until(self, least: float, now: float) -> float:
        """Return the seconds until that much is available."""
        if self._at is not None:
            self._content = min(self._most, self._content + (now - self._at) * self._rate)
        self._at = now
        return max(0.0, (least - self._content) / self._rate)


class RateLimiter:
    """Grants permits to send requests. Proxies take turns; after a 429 all of them wait."""

    def __init__(self, settings: ModelSettings, clock: MonotonicClock | None = None) -> None:
        self._clock = clock or asyncio.get_running_loop().time
        requests, tokens = settings.requests_per_minute, settings.tokens_per_minute
        burst = max(1.0, (requests or 0) * _BURST_SECONDS / 60)
        self._requests = _TokenBucket(requests, burst) if requests else None
        self._tokens = _TokenBucket(tokens, float(tokens)) if tokens else None
        self._most = float(settings.concurrency or "inf")
        self._allowed = self._most
        self._under_way = 0
        self._not_before = 0.0
        self._ahead: dict[Hashable, deque[asyncio.Future[None]]] = {}
        self._waiting: dict[Hashable, deque[asyncio.Future[None]]] = {}
        self._timer: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def hold_permit(self, proxy: Hashable, *, first: bool = False) -> AsyncIterator[None]:
        """Wait for this proxy's turn and hold the permit; `first` for requests that block other
        work."""
        if self._ahead or (self._waiting and not first) or self._next_delay() > 0:
            turn = asyncio.get_running_loop().create_future()
            (self._ahead if first else self._waiting).setdefault(proxy, deque()).append(turn)
            self._grant_permits()
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._release_permit()
                raise
        else:
            self._begin_request()
        try:
            yield
        finally:
            self._release_permit()

    def record_tokens(self, tokens: int) -> None:
        """Record the usage of an answer, which is known only afterwards."""
        if self._tokens is not None:
            self._tokens.take_amount(tokens)
        if self._allowed < self._most:
            self._allowed = min(self._most, self._allowed + 1 / self._allowed)

    def back_off(self, seconds: float) -> None:
        """Pause for the time the provider requests, then send fewer requests at once."""
        self._not_before = max(self._not_before, self._clock() + seconds)
        self._allowed = min(self._allowed, max(1.0, self._under_way / 2))

    def _begin_request(self) -> None:
        self._under_way += 1
        if self._requests is not None:
            self._requests.take_amount(1)

    def _release_permit(self) -> None:
        self._under_way -= 1
        self._grant_permits()

    def _next_delay(self) -> float:
        """Return the seconds until one more may begin; infinite until one ends."""
        if self._under_way >= max(1.0, self._allowed):
            return float("inf")
        now = self._clock()
        waits = [self._not_before - now]
        if self._requests is not None:
            waits.append(self._requests.seconds_until(1.0, now))
        if self._tokens is not None:
            waits.append(self._tokens.seconds_until(1.0, now))
        return max(waits)

    def _grant_permits(self) -> None:
        """Grant permits, one per proxy in turn."""
        while waiting := self._ahead or self._waiting:
            seconds = self._next_delay()
            if seconds > 0:
                if seconds != float("inf"):
                    self._schedule_wake(seconds)
                return
            proxy = next(iter(waiting))
            queue = waiting.pop(proxy)
            turn = queue.popleft()
            if queue:
                waiting[proxy] = queue  # at the end of the queue again
            if not turn.done():
                self._begin_request()
                turn.set_result(None)

    def _schedule_wake(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(seconds + 0.001, self._grant_permits)


PING_SECONDS = 15.0
"""Some agents treat a stream that is silent for longer as dead."""
MAX_ECHOES = 4096


class AnswerBroken(MachineFailed):
    """An answer that broke off on its way to the agent."""


class ProviderRelay(Protocol):
    """Passes requests to a provider in its own format."""

    def speaks_format(self, request: AgentRequest) -> bool: ...

    def drop_format(self, served_format: ServedFormat) -> bool:
        """Whether it turned out that the provider does not support this format."""
        ...

    async def pass_request(
        self, request: AgentRequest, writer: ResponseWriter, retried: RetryListener
    ) -> None:
        """Pass a request and its answer on; AnswerBroken if that ends half-way."""
        ...


class LiveSource:
    """One proxy's access to a model."""

    def __init__(
        self,
        model: OpenModel,
        rate_limiter: RateLimiter,
        relay: ProviderRelay | None = None,
        *,
        first: bool = False,
    ) -> None:
        self.name = model.name
        self._model = model
        self._first = first
        self._pace = rate_limiter
        self._relay = relay
        """Passes on requests that the provider understands as they are."""
        self._echoes: dict[str, Any] = {}

    async def reply(self, request: ModelRequest, entry: ExchangeEntry) -> ModelReply:
        """Answer one turn in our own records."""
        async with self._pace.hold_permit(self, first=self._first):
            reply = await self._model.reply(request, lambda *retry: self._note_retry(entry, *retry))
        entry.model, entry.usage = reply.model, reply.usage
        self._pace.record_tokens(sum_tokens(reply.usage))
        return reply

    def _note_retry(self, entry: ExchangeEntry, seconds: float, status: int | None) -> None:
        entry.retries += 1
        entry.refusal = describe_status(status) if status is not None else "nothing at all"
        if status == 429:
            self._pace.back_off(seconds)

    async def count(self, request: AgentRequest, writer: ResponseWriter) -> None:
        """Count the tokens of a request, by the provider or by its length."""
        if self._relay is not None and self._relay.speaks_format(request):
            with suppress(ModelMissing, RequestRejected, ConversationTooLong):
                await self._relay_request(self._relay, request, writer)
                return
        await writer.send_json(guess_token_count(request))

    async def answer(self, request: AgentRequest, writer: ResponseWriter) -> None:
        """Answer a turn over HTTP."""
        relay = self._relay
        if relay is None or not relay.speaks_format(request):
            await self._translate_and_answer(request, writer)
            return
        try:
            await self._relay_request(relay, request, writer)
        except (RequestRejected, ConversationTooLong) as refusal:
            # Agents understand their provider's error, and may request less.
            writer.note_cause(str(refusal))
            await writer.send_body(refusal.body, refusal.status)
        except ModelMissing:
            if not relay.drop_format(request.route.speech):
                raise
            await self._translate_and_answer(request, writer)

    async def _relay_request(
        self, relay: ProviderRelay, request: AgentRequest, writer: ResponseWriter
    ) -> None:
        entry = writer.entry
        assert entry is not None
        async with self._pace.hold_permit(self, first=self._first):
            await relay.pass_request(
                request, writer, lambda *retry: self._note_retry(entry, *retry)
            )
        self._pace.record_tokens(sum_tokens(entry.usage))

    async def _translate_and_answer(
        self, agent_request: AgentRequest, writer: ResponseWriter
    ) -> None:
        served_format, payload = agent_request.route.speech, parse_payload(agent_request.body)
        request = self._with_echoes(served_format.read(payload))
        streams = bool(served_format.streams or payload.get("stream"))
        assert writer.entry is not None
        try:
            pending_reply = self.reply(request, writer.entry)
            reply = await (
                _await_with_pings(pending_reply, served_format, writer)
                if streams
                else pending_reply
            )
        except (RequestRejected, ConversationTooLong) as refusal:
            writer.note_cause(str(refusal))
            await writer.send_fault(served_format, str(refusal))
            return
        if reply.echo is not None and reply.calls and len(self._echoes) < MAX_ECHOES:
            self._echoes[_digest_calls(reply)] = reply.echo
        await send_reply(reply, served_format, payload, writer)

    def _with_echoes(self, request: ModelRequest) -> ModelRequest:
        """Add data that the provider expects back with its turns and other formats cannot carry."""
        if not self._echoes:
            return request
        messages = tuple(
            msgspec.structs.replace(message, echo=self._echoes.get(_digest_calls(message)))
            if message.calls
            else message
            for message in request.messages
        )
        return msgspec.structs.replace(request, messages=messages)


async def send_reply(
    reply: ModelReply, served_format: ServedFormat, payload: dict[str, Any], writer: ResponseWriter
) -> None:
    """Send a reply in the agent's format."""
    if served_format.streams or payload.get("stream"):
        if not writer.started:
            await writer.start_response(200, EVENT_STREAM)
        await writer.write_chunk("".join(served_format.events(reply, payload)).encode())
        await writer.end_response()
    else:
        await writer.send_json(served_format.answer(reply, payload))


async def _await_with_pings(
    pending_reply: Awaitable[ModelReply], served_format: ServedFormat, writer: ResponseWriter
) -> ModelReply:
    """Wait for the reply, sending pings meanwhile."""
    task = asyncio.ensure_future(pending_reply)
    try:
        while not (await asyncio.wait({task}, timeout=PING_SECONDS))[0]:
            if served_format.ping is not None:
                if not writer.started:
                    await writer.start_response(200, EVENT_STREAM)
                await writer.write_chunk(served_format.ping)
        return task.result()
    finally:
        task.cancel()


def _digest_calls(turn: ModelReply | ChatMessage) -> str:
    return content_digest(*((call.id, call.name, call.arguments) for call in turn.calls))


def parse_payload(body: bytes) -> dict[str, Any]:
    """Parse the request as JSON."""
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except (ValueError, RecursionError):
        raise MalformedRequest("The request is not a JSON object.") from None


def guess_token_count(request: AgentRequest) -> dict[str, Any]:
    """Estimate the tokens of a request by its length: one for four characters."""
    tokens = len(request.body) // 4 + 1
    if request.route.speech.name == "gemini":
        return {"totalTokens": tokens}
    return {"input_tokens": tokens}
