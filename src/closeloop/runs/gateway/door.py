"""A door: one attempt's way to its model."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol

import msgspec

from closeloop.model.answers import heard
from closeloop.model.attempt import Usage
from closeloop.model.chat import ModelReply, ModelRequest
from closeloop.model.errors import BadInput, Fault, MachineFailed, OutOfBudget
from closeloop.model.exchange import Exchange
from closeloop.model.variant import Limits
from closeloop.runs.gateway.asking import Asked, Crowd, Out
from closeloop.runs.gateway.ledger import Entry, Ledger, Listener
from closeloop.runs.gateway.live import Broken
from closeloop.runs.gateway.silence import RequestWait, describe_break, describe_silence, wait_of
from closeloop.runs.models.budget import NOTHING, Budget
from closeloop.runs.models.served.speech import Malformed

HUNG_UP = "The agent hung up before the answer was whole."
MOST_BREAKS = 3
"""So many answers in a row that broke off half-way, and the provider is gone."""


class Source(Protocol):
    """Where a door's answers come from. What it hears of them it writes into the entry."""

    @property
    def name(self) -> str: ...

    async def reply(self, request: ModelRequest, entry: Entry) -> ModelReply: ...

    async def answer(self, asked: Asked, out: Out) -> None: ...

    async def count(self, asked: Asked, out: Out) -> None: ...


class Entrance(Protocol):
    """How programs come to a door: made when somebody asks for it, as not every agent does."""

    def socket(self, door: OpenDoor) -> str: ...

    def address(self, door: OpenDoor) -> str: ...


class OpenDoor:
    """Open while the attempt lasts; shut for good when its budget or its provider is gone."""

    def __init__(
        self,
        source: Source,
        limits: Limits,
        entrance: Entrance,
        listener: Listener | None = None,
        before: Usage = NOTHING,
    ) -> None:
        self.name = source.name
        self.crowd = Crowd()
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

    def shut(self, reason: OutOfBudget | Fault) -> None:
        """Nothing more goes through; the first reason is the one that is told."""
        self._reason = self._reason or reason
        self._shut.set()

    async def leave(self) -> None:
        """The attempt is over: what is still under way is broken off, and recorded so."""
        self.shut(MachineFailed("The attempt is over."))
        for task in self._under_way:
            task.cancel()
        if self._under_way:
            await asyncio.wait(self._under_way)

    async def reply(self, request: ModelRequest) -> ModelReply:
        """One turn of an agent of ours."""
        entry = self._ledger.begin("reply")
        try:
            await self._ledger.record_request(entry, msgspec.json.encode(request))
            async with self._turn():
                reply = await self._source.reply(request, entry)
                entry.status, entry.answered = 200, True
                entry.told(msgspec.json.encode(reply))
                self._budget.charge(entry.usage)
        except (OutOfBudget, Fault) as reason:
            entry.cause = str(reason)
            self.shut(reason)
            raise
        else:
            return reply
        finally:
            self._end(entry)

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        if self._reason is None:
            await self._budget.room()
        if self._reason is not None:
            raise self._reason
        async with self._budget.turn():
            yield

    async def answer(self, asked: Asked, out: Out) -> None:
        """Whatever an agent asks over HTTP."""
        if asked.route.kind == "alive":
            await out.whole({"gateway": "closeloop"})
        elif asked.route.kind == "models":
            await out.whole(listing(self.name))
        elif asked.method != "POST":
            await out.whole(asked.route.speech.fault("Ask with POST."), 405)
        else:
            await self._recorded(asked, out)

    async def _recorded(self, asked: Asked, out: Out) -> None:
        entry = out.entry = self._ledger.begin(asked.path)
        task = asyncio.current_task()
        assert task is not None
        self._under_way.add(task)
        try:
            await self._ledger.record_request(entry, asked.body)
            await self._judged(asked, out, entry)
        except asyncio.CancelledError:
            entry.cause = None if heard(b"".join(entry.response)).complete else HUNG_UP
            self._budget.count(entry.usage)
            if self._reason is not None and not out.started:
                await out.fail(asked.route.speech, str(self._reason))
            raise
        except Exception as error:  # whatever came, the other attempts go on
            self._shut_by(entry, MachineFailed(f"The gateway failed: {type(error).__name__}."))
        finally:
            self._under_way.discard(task)
            self._end(entry)

    async def _judged(self, asked: Asked, out: Out, entry: Entry) -> None:
        """A turn, and what its end means: for the agent, and for the attempt."""
        speech = asked.route.speech
        try:
            if asked.route.kind == "count":
                await self._source.count(asked, out)
                entry.answered = True
                return
            async with self._turn():
                await self._source.answer(asked, out)
        except Malformed as wrong:
            entry.cause, entry.answered = str(wrong), True
            await out.fail(speech, str(wrong))
            return
        except Broken as fault:
            entry.cause = entry.broken = str(fault)
            self._budget.count(entry.usage)
            self._breaks += 1
            if self._breaks >= MOST_BREAKS:
                self.shut(fault)
            await out.fail(speech, str(fault))
            return
        except (OutOfBudget, Fault) as reason:
            self._shut_by(entry, reason)
            await out.fail(speech, str(reason))
            return
        self._breaks, entry.answered = 0, True
        if entry.status < 300:
            try:
                self._budget.charge(entry.usage)
            except BadInput as fault:
                self._shut_by(entry, fault)

    def _end(self, entry: Entry) -> None:
        entry.ended = time.monotonic()
        self._waits.append(wait_of(entry))
        self._ledger.end(entry)

    def describe_silence(self, began: float, ended: float, limit_seconds: float) -> str | None:
        """Why the model counts as silent when an attempt ended; None where it was answering.

        Asked when the door is shut: what is under way is not known yet.
        """
        return describe_silence(self._waits, began, ended, limit_seconds)

    def describe_break(self) -> str | None:
        """Why the last answer broke off, where that is the provider's fault."""
        return describe_break(self._waits)

    def _shut_by(self, entry: Entry, reason: OutOfBudget | Fault) -> None:
        entry.cause = str(reason)
        self.shut(reason)


def listing(name: str) -> dict[str, Any]:
    """The one model there is, as all clients want it told."""
    model = {"id": name, "object": "model", "created": 0, "owned_by": "closeloop"}
    named = {"type": "model", "display_name": name, "created_at": "1970-01-01T00:00:00Z"}
    ends = {"has_more": False, "first_id": name, "last_id": name}
    gemini = {"name": f"models/{name}", "displayName": name}
    return {"object": "list", "data": [{**model, **named}], "models": [gemini], **ends}
