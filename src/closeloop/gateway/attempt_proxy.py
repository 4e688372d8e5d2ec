"""The proxy between one attempt and its model."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import msgspec

from closeloop.gateway.exchange_ledger import (
    AgentRequest,
    ExchangeEntry,
    ExchangeListener,
    Ledger,
    OpenRequests,
    RequestEncoder,
    ResponseWriter,
)
from closeloop.gateway.live_source import AnswerBroken
from closeloop.providers.model_prices import NO_USAGE, Budget
from closeloop.providers.provider_streams import read_provider_reply
from closeloop.providers.wire_format import MalformedRequest
from closeloop.records.attempt import Usage
from closeloop.records.errors import BadInput, Fault, MachineFailed, OutOfBudget
from closeloop.records.record import Record
from closeloop.records.task import Limits
from closeloop.records.trace import Exchange, ModelReply, ModelRequest
from closeloop.text.wording import count_with_noun

# Whether a model stopped answering an attempt, by how long its requests waited.
#
# An agent whose model does not answer loses its time through no
# fault of its own, so such an attempt says nothing about the
# agent. If the model answers, however slowly, the attempt counts.

SILENT_SECONDS = 120.0
SILENT_SHARE = 0.1
"""The shortest silence that counts, or this share of the time limit if that is less."""
TIMES_LONGEST = 3.0
"""A request that was not rejected may just be slow, unless it waits this many times longer than
any."""
TALKING_CHARS_PER_SECOND = 1.0
ENVELOPE_CHARS = 24
"""Characters of roles and types in an answer without content."""


class RequestWait(Record):
    """One request of an attempt, and how long it waited for the provider."""

    began: float
    ended: float
    """Both by the monotonic clock, without the time in which the agent did not read."""
    answered: bool
    """Whether a whole answer arrived, or the provider rejected the request as invalid."""
    refusal: str | None = None
    """Why the provider last refused it."""
    broken: str | None = None
    """Why the answer broke off, if that is the provider's fault."""
    is_talking: bool = False
    """Whether the answer was unfinished but arrived at the pace of a working model."""


def measure_request_wait(entry: ExchangeEntry) -> RequestWait:
    """Measure how long a finished request waited."""
    started, body = entry.began + entry.sending_seconds, b"".join(entry.response)
    answered, is_talking = entry.answered, False
    if not answered and entry.broken is None and body:
        streamed = read_provider_reply(body)
        # Clients disconnect after the last event, possibly before the connection ends.
        answered = entry.status < 300 and streamed.complete
        answer_chars = count_characters(streamed.answer) - ENVELOPE_CHARS
        is_talking = answer_chars > TALKING_CHARS_PER_SECOND * (entry.ended - started)
    return RequestWait(
        began=started,
        ended=entry.ended,
        answered=answered,
        refusal=entry.refusal,
        broken=entry.broken,
        is_talking=is_talking,
    )


def count_characters(answer: dict[str, Any] | None) -> int:
    """Count the characters of all texts in an answer, in any provider's format."""
    parts = [(answer or {}).get(key) for key in ("content", "choices", "output", "candidates")]
    total = 0
    while parts:
        part = parts.pop()
        if isinstance(part, str):
            total += len(part)
        elif isinstance(part, dict):
            parts.extend(part.values())
        elif isinstance(part, list):
            parts.extend(part)
    return total


def describe_silence(
    waits: Sequence[RequestWait], began: float, ended: float, limit_seconds: float
) -> str | None:
    """Return why the model counts as silent at the end of an attempt; None if it was answering.

    It is silent when the agent spent most of the time since the last whole answer waiting for
    one that did not come, and that was long: for a request that the provider turned away,
    SILENT_SECONDS or SILENT_SHARE of the limit; for one without any sign, also TIMES_LONGEST what
    the slowest answer took.
    """
    answers = [wait for wait in waits if wait.answered]
    last_answer_at = max((wait.ended for wait in answers), default=began)
    unanswered = [
        wait
        for wait in waits
        if not wait.answered and wait.ended > last_answer_at and not (answers and wait.is_talking)
    ]
    waited = measure_union(
        (max(wait.began, last_answer_at), min(wait.ended, ended)) for wait in unanswered
    )
    min_seconds = min(SILENT_SECONDS, SILENT_SHARE * limit_seconds)
    refusals = [wait.refusal for wait in unanswered if wait.refusal is not None]
    if not refusals and answers:
        min_seconds = max(
            min_seconds, TIMES_LONGEST * max(wait.ended - wait.began for wait in answers)
        )
    if waited < min_seconds or 2 * waited < ended - last_answer_at:
        return None
    answer_count = f"after {count_with_noun(len(answers), 'answer')}" if answers else "not once"
    last_refusal = f", whose last error was {refusals[-1]}" if refusals else ""
    return (
        f"The model {'stopped answering' if answers else 'did not answer'}, {answer_count}:"
        f" {waited:.0f} of {ended - began:.0f} seconds were spent waiting for it{last_refusal}. Try"
        " again later."
    )


def describe_break(waits: Sequence[RequestWait]) -> str | None:
    """Return why the last answer broke off, if that is the provider's fault and none followed."""
    last_wait = max(waits, key=lambda wait: wait.ended, default=None)
    return last_wait.broken if last_wait is not None else None


def measure_union(spans: Iterable[tuple[float, float]]) -> float:
    """Return the seconds covered by any of the spans; requests may wait at the same time."""
    total, covered_until = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, covered_until))
        covered_until = max(covered_until, end)
    return total


HUNG_UP_CAUSE = "The agent closed the connection before the reply was complete."
MAX_BREAKS = 3
"""After this many broken answers in a row, the provider counts as unavailable."""


class ReplySource(Protocol):
    """The source of a proxy's answers. It records what it learns in the entry."""

    @property
    def name(self) -> str: ...

    async def reply(self, request: ModelRequest, entry: ExchangeEntry) -> ModelReply: ...

    async def answer(self, request: AgentRequest, writer: ResponseWriter) -> None: ...

    async def count(self, request: AgentRequest, writer: ResponseWriter) -> None: ...


class ProxyEndpoint(Protocol):
    """How programs connect to a proxy; created on demand, because not every agent needs it."""

    def socket(self, proxy: AttemptProxy) -> str: ...

    def address(self, proxy: AttemptProxy) -> str: ...


class AttemptProxy:
    """Open while the attempt lasts; closed for good when its budget or its provider is
    exhausted."""

    def __init__(
        self,
        source: ReplySource,
        limits: Limits,
        endpoint: ProxyEndpoint,
        listener: ExchangeListener | None = None,
        usage_before: Usage = NO_USAGE,
    ) -> None:
        self.name = source.name
        self.crowd = OpenRequests()
        self._entrance = endpoint
        self._source = source
        self._budget = Budget(source.name, limits, usage_before)
        self._ledger = Ledger(listener)
        self._encoder = RequestEncoder()
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
        """Reject all further requests; the first reason is reported."""
        self._reason = self._reason or reason
        self._shut.set()

    def end_turns(self) -> None:
        """Let no further turn begin, because the attempt is over."""
        self.shut_off(MachineFailed("The attempt has ended."))

    async def end_attempt(self) -> None:
        """End the attempt: abort and record the requests in progress."""
        self.end_turns()
        for task in self._under_way:
            task.cancel()
        if self._under_way:
            await asyncio.wait(self._under_way)

    async def reply(self, request: ModelRequest) -> ModelReply:
        """Answer one turn of a built-in agent."""
        entry = self._ledger.begin_entry("reply")
        try:
            await self._ledger.record_pieces(entry, self._encoder.encode(request))
            await self._wait_for_turn()
            with self._budget.hold_turn():
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

    async def _wait_for_turn(self) -> None:
        """Wait until a turn may begin; raise the reason if the proxy is closed."""
        if self._reason is None:
            await self._budget.wait_for_room()
        if self._reason is not None:
            raise self._reason

    async def answer(self, request: AgentRequest, writer: ResponseWriter) -> None:
        """Answer any HTTP request of an agent."""
        if request.route.kind == "alive":
            await writer.send_json({"gateway": "closeloop"})
        elif request.route.kind == "models":
            await writer.send_json(list_model_json(self.name))
        elif request.method != "POST":
            await writer.send_json(request.route.speech.fault("Use POST."), 405)
        else:
            await self._record_and_answer(request, writer)

    async def _record_and_answer(self, request: AgentRequest, writer: ResponseWriter) -> None:
        entry = writer.entry = self._ledger.begin_entry(request.path)
        task = asyncio.current_task()
        assert task is not None
        self._under_way.add(task)
        try:
            await self._ledger.record_request(entry, request.body)
            await self._answer_turn(request, writer, entry)
        except asyncio.CancelledError:
            entry.cause = (
                None if read_provider_reply(b"".join(entry.response)).complete else HUNG_UP_CAUSE
            )
            self._budget.add_usage(entry.usage)
            if self._reason is not None and not writer.started:
                await writer.send_fault(request.route.speech, str(self._reason))
            raise
        except Exception as error:  # whatever happens, the other attempts continue
            self._shut_off_by(entry, MachineFailed(f"The gateway failed: {type(error).__name__}."))
        finally:
            self._under_way.discard(task)
            self._end_entry(entry)

    async def _answer_turn(
        self, request: AgentRequest, writer: ResponseWriter, entry: ExchangeEntry
    ) -> None:
        """Answer a turn, and handle its end for the agent and the attempt."""
        served_format = request.route.speech
        try:
            if request.route.kind == "count":
                await self._source.count(request, writer)
                entry.answered = True
                return
            await self._wait_for_turn()
            with self._budget.hold_turn():
                await self._source.answer(request, writer)
        except MalformedRequest as malformed:
            entry.cause, entry.answered = str(malformed), True
            await writer.send_fault(served_format, str(malformed))
            return
        except AnswerBroken as fault:
            entry.cause = entry.broken = str(fault)
            self._budget.add_usage(entry.usage)
            self._breaks += 1
            if self._breaks >= MAX_BREAKS:
                self.shut_off(fault)
            await writer.send_fault(served_format, str(fault))
            return
        except (OutOfBudget, Fault) as reason:
            self._shut_off_by(entry, reason)
            await writer.send_fault(served_format, str(reason))
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
        """Return why the model counts as silent when an attempt ended; None if it was answering.

        Call it after the proxy is closed: requests in progress are not known before.
        """
        return describe_silence(self._waits, began, ended, limit_seconds)

    def describe_break(self) -> str | None:
        """Return why the last answer broke off, if that is the provider's fault."""
        return describe_break(self._waits)

    def _shut_off_by(self, entry: ExchangeEntry, reason: OutOfBudget | Fault) -> None:
        entry.cause = str(reason)
        self.shut_off(reason)


def list_model_json(name: str) -> dict[str, Any]:
    """List the only model, in a form that all clients accept."""
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
