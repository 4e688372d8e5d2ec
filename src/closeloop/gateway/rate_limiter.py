"""How fast one provider may be asked, shared fairly between the doors that wait for it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager

from closeloop.records.settings import ModelSettings

_BURST_SECONDS = 6.0
"""So much of a minute's requests may come at once."""

MonotonicClock = Callable[[], float]


class _TokenBucket:
    """Fills with time up to some content; what is taken may be more than there is."""

    def __init__(self, a_minute: int, content: float) -> None:
        self._rate = a_minute / 60
        self._most = self._content = content
        self._at: float | None = None

    def take_amount(self, amount: float) -> None:
        self._content -= amount

    def seconds_until(self, least: float, now: float) -> float:
        """Seconds until there is so much."""
        if self._at is not None:
            self._content = min(self._most, self._content + (now - self._at) * self._rate)
        self._at = now
        return max(0.0, (least - self._content) / self._rate)


class RateLimiter:
    """Permits to ask. Doors take turns; a provider that says 429 is left alone by all of them."""

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
    async def hold_permit(self, door: Hashable, *, first: bool = False) -> AsyncIterator[None]:
        """Wait for a turn of this door, and hold it; first are those whom other work waits for."""
        if self._ahead or (self._waiting and not first) or self._next_delay() > 0:
            turn = asyncio.get_running_loop().create_future()
            (self._ahead if first else self._waiting).setdefault(door, deque()).append(turn)
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
        """A good answer came: what it used is known only now."""
        if self._tokens is not None:
            self._tokens.take_amount(tokens)
        if self._allowed < self._most:
            self._allowed = min(self._most, self._allowed + 1 / self._allowed)

    def back_off(self, seconds: float) -> None:
        """The provider wants to be left alone for so long, and then asked less at once."""
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
        """Seconds until one more may begin; infinite while only an end can help."""
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
        """Let begin who may, one of each door in turn."""
        while waiting := self._ahead or self._waiting:
            seconds = self._next_delay()
            if seconds > 0:
                if seconds != float("inf"):
                    self._schedule_wake(seconds)
                return
            door = next(iter(waiting))
            queue = waiting.pop(door)
            turn = queue.popleft()
            if queue:
                waiting[door] = queue  # at the end of the row again
            if not turn.done():
                self._begin_request()
                turn.set_result(None)

    def _schedule_wake(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(seconds + 0.001, self._grant_permits)
