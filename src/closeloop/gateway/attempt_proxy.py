"""A door: one attempt's way to its model."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol

import msgspec

from closeloop.gateway.agent_request import AgentRequest, OpenRequests, ResponseWriter
from closeloop.gateway.exchange_ledger import ExchangeEntry, ExchangeListener, Ledger
from closeloop.gateway.live_source import AnswerBroken
from closeloop.gateway.model_silence import (
    RequestWait,
    describe_break,
    describe_silence,
    measure_request_wait,
)
from closeloop.providers.model_budget import NO_USAGE, Budget
from closeloop.providers.served.served_format import MalformedRequest
from closeloop.records.attempt import Usage
from closeloop.records.chat import ModelReply, ModelRequest
from closeloop.records.errors import BadInput, Fault, MachineFailed, OutOfBudget
from closeloop.records.exchange import Exchange
from closeloop.records.provider_streams import read_provider_reply
from closeloop.records.variant import Limits

HUNG_UP_CAUSE = "The agent hung up before the answer was whole."
MAX_BREAKS = 3
"""So many answers in a row that broke off half-way, and the provider is gone."""


class ReplySource(Protocol):
    """Where a door's answers come from. What it hears of them it writes into the entry."""

    @property
    def name(self) -> str: ...

    async def reply(self, request: ModelRequest, entry: ExchangeEntry) -> ModelReply: ...

    async def answer(self, asked: AgentRequest, out: ResponseWriter) -> None: ...

    async def count(self, asked: AgentRequest, out: ResponseWriter) -> None: ...


class ProxyEndpoint(Protocol):
    """How programs come to a door: made when somebody asks for it, as not every agent does."""

    def socket(self, door: AttemptProxy) -> str: ...

    def address(self, door: AttemptProxy) -> str: ...


class AttemptProxy:
    """Open while the attempt lasts; shut for good when its budget or its provider is gone."""

    def __init__(
        self,
        source: ReplySource,
        limits: Limits,
        entrance: ProxyEndpoint,
        listener: ExchangeListener | None = None,
        before: Usage = NO_USAGE,
    ) -> None:
        self.name = source.name
        self.crowd = OpenRequests()
        self._entrance = entrance
        self._source = source
        self._budget = Budget(source.name, limits, before)
        self._ledger = Ledger(listener)
        self._reason: OutOfBudget | Fault | None = None
        self._shut = asyncio.Event()
        self._breaks = 0
        self._under_way: set[asyncio.Task[None]] = set()
        self._waits: list[RequestWait] = []

    @property
    def socket(self) -> str:
        return self._entrance.socket(self)

    @property
    def address(self) -> str:
        return self._entrance.address(self)

    @property
    def usage(self) -> Usage:
        return self._budget.usage

    @property
    def exchanges(self) -> Sequence[Exchange]:
        return self._ledger

    @property
    def busy(self) -> bool:
        return bool(self._under_way)

    async def closed(self) -> OutOfBudget | Fault:
        await self._shut.wait()
        assert self._reason is not None
        return self._reason

    def shut_off(self, reason: OutOfBudget | Fault) -> None:
        """Nothing more goes through; the first reason is the one that is told."""
        self._reason = self._reason or reason
        self._shut.set()

    async def end_attempt(self) -> None:
        """The attempt is over: what is still under way is broken off, and recorded so."""
        self.shut_off(MachineFailed("The attempt is over."))
        for task in self._under_way:
            task.cancel()
        if self._under_way:
            await asyncio.wait(self._under_way)

    async def reply(self, request: ModelRequest) -> ModelReply:
        """One turn of an agent of ours."""
        entry = self._ledger.begin_entry("reply")
        try:
            await self._ledger.record_request(entry, msgspec.json.encode(request))
            async with self._take_turn():
                reply = await self._source.reply(request, entry)
                entry.status, entry.answered = 200, True
                entry.add_response(msgspec.json.encode(reply))
                self._budget.charge_reply(entry.usage)
        except (OutOfBudget, Fault) as reason:
            entry.cause = str(reason)
            self.shut_off(reason)
            raise
        else:
            return reply
        finally:
            self._end_entry(entry)

    @asynccontextmanager
    async def _take_turn(self) -> AsyncIterator[None]:
        if self._reason is None:
            await self._budget.wait_for_room()
        if self._reason is not None:
            raise self._reason
        async with self._budget.hold_turn():
            yield

    async def answer(self, asked: AgentRequest, out: ResponseWriter) -> None:
        """Whatever an agent asks over HTTP."""
        if asked.route.kind == "alive":
            await out.send_json({"gateway": "closeloop"})
        elif asked.route.kind == "models":
            await out.send_json(list_model_json(self.name))
        elif asked.method != "POST":
            await out.send_json(asked.route.speech.fault("Ask with POST."), 405)
        else:
            await self._record_and_answer(asked, out)

    async def _record_and_answer(self, asked: AgentRequest, out: ResponseWriter) -> None:
        entry = out.entry = self._ledger.begin_entry(asked.path)
        task = asyncio.current_task()
        assert task is not None
        self._under_way.add(task)
        try:
            await self._ledger.record_request(entry, asked.body)
            await self._answer_turn(asked, out, entry)
        except asyncio.CancelledError:
            entry.cause = (
                None if read_provider_reply(b"".join(entry.response)).complete else HUNG_UP_CAUSE
            )
            self._budget.add_usage(entry.usage)
            if self._reason is not None and not out.started:
                await out.send_fault(asked.route.speech, str(self._reason))
            raise
        except Exception as error:  # whatever came, the other attempts go on
            self._shut_off_by(entry, MachineFailed(f"The gateway failed: {type(error).__name__}."))
        finally:
            self._under_way.discard(task)
            self._end_entry(entry)

    async def _answer_turn(
        self, asked: AgentRequest, out: ResponseWriter, entry: ExchangeEntry
    ) -> None:
        """A turn, and what its end means: for the agent, and for the attempt."""
        speech = asked.route.speech
        try:
            if asked.route.kind == "count":
                await self._source.count(asked, out)
                entry.answered = True
                return
            async with self._take_turn():
                await self._source.answer(asked, out)
        except MalformedRequest as malformed:
            entry.cause, entry.answered = str(malformed), True
            await out.send_fault(speech, str(malformed))
            return
        except AnswerBroken as fault:
            entry.cause = entry.broken = str(fault)
            self._budget.add_usage(entry.usage)
            self._breaks += 1
            if self._breaks >= MAX_BREAKS:
                self.shut_off(fault)
            await out.send_fault(speech, str(fault))
            return
        except (OutOfBudget, Fault) as reason:
            self._shut_off_by(entry, reason)
            await out.send_fault(speech, str(reason))
            return
        self._breaks, entry.answered = 0, True
        if entry.status < 300:
            try:
                self._budget.charge_reply(entry.usage)
            except BadInput as fault:
                self._shut_off_by(entry, fault)

    def _end_entry(self, entry: ExchangeEntry) -> None:
        entry.ended = time.monotonic()
        self._waits.append(measure_request_wait(entry))
        self._ledger.end_entry(entry)

    def describe_silence(self, began: float, ended: float, limit_seconds: float) -> str | None:
        """Why the model counts as silent when an attempt ended; None where it was answering.

        Asked when the door is shut: what is under way is not known yet.
        """
        return describe_silence(self._waits, began, ended, limit_seconds)

    def describe_break(self) -> str | None:
        """Why the last answer broke off, where that is the provider's fault."""
        return describe_break(self._waits)

    def _shut_off_by(self, entry: ExchangeEntry, reason: OutOfBudget | Fault) -> None:
        entry.cause = str(reason)
        self.shut_off(reason)


def list_model_json(name: str) -> dict[str, Any]:
    """The one model there is, as all clients want it told."""
    model = {"id": name, "object": "model", "created": 0, "owned_by": "closeloop"}
    anthropic_fields = {"type": "model", "display_name": name, "created_at": "1970-01-01T00:00:00Z"}
    page_fields = {"has_more": False, "first_id": name, "last_id": name}
    gemini = {"name": f"models/{name}", "displayName": name}
    return {
        "object": "list",
        "data": [{**model, **anthropic_fields}],
        "models": [gemini],
        **page_fields,
    }
