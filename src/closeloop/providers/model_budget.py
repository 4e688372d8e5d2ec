"""A budget: what one attempt used of a model, counted and held against its limits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from closeloop.records.attempt import Usage, sum_usage
from closeloop.records.errors import BadInput, OutOfBudget
from closeloop.records.task import Limits

NO_USAGE = Usage()


class Budget:
    """Counts every reply once. Tokens are all that went in, cached or not, and came out.

    What was used before is no part of the usage, but of what the limits hold for.
    """

    def __init__(self, name: str, limits: Limits, before: Usage = NO_USAGE) -> None:
        self._name = name
        self._limits = limits
        self.usage = Usage()
        self.tokens = sum_tokens(before)
        self.spent = before.cost or 0.0
        """What is known to have been paid; `usage.cost` is None when that is not all."""
        self.turns = 0
        self._replies = 0
        self._most_tokens = 0
        self._dearest = 0.0
        self._under_way = 0
        self._ended = asyncio.Event()

    async def wait_for_room(self) -> None:
        """Wait while those under way may use up what is left: of them, one may go over a limit."""
        while self._may_exceed_limits():
            await self._ended.wait()

    def _may_exceed_limits(self) -> bool:
        """Should each cost what the dearest reply did; what the first one costs nobody knows."""
        if not self._under_way:
            return False
        limited_amounts = (
            (self._limits.tokens, self.tokens, self._most_tokens),
            (self._limits.money, self.spent, self._dearest),
        )
        return any(
            used < limit and (not self._replies or used + self._under_way * dearest >= limit)
            for limit, used, dearest in limited_amounts
            if limit is not None
        )

    @asynccontextmanager
    async def hold_turn(self) -> AsyncIterator[None]:
        """One turn, while it lasts; OutOfBudget when a limit is reached."""
        self.require_turn()
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1
            self._ended.set()
            self._ended = asyncio.Event()

    def require_turn(self) -> None:
        """One more turn; OutOfBudget when one of the limits is reached."""
        limits = self._limits
        if limits.tokens is not None and self.tokens >= limits.tokens:
            raise OutOfBudget(f"{self.tokens:,} of {limits.tokens:,} tokens are used.")
        if limits.money is not None and self.spent >= limits.money:
            raise OutOfBudget(f"${self.spent:.2f} of ${limits.money:.2f} are spent.")
        if self.turns >= limits.turns:
            raise OutOfBudget(f"{self.turns:,} of {limits.turns:,} turns are taken.")
        self.turns += 1

    def add_usage(self, usage: Usage) -> None:
        """What was used, as far as it is known; a request that was not answered tells nothing."""
        if usage == Usage():
            return
        self.usage = usage if self._replies == 0 else sum_usage((self.usage, usage))
        self._replies += 1
        self.tokens += sum_tokens(usage)
        self.spent += usage.cost or 0.0
        self._most_tokens = max(self._most_tokens, sum_tokens(usage))
        self._dearest = max(self._dearest, usage.cost or 0.0)

    def charge_reply(self, usage: Usage) -> None:
        """What a whole reply used; BadInput when that cannot be held against the limits."""
        self.add_usage(usage)
        if self._limits.money is not None and usage.cost is None:
            raise BadInput(
                f"The money limit needs the price of {self._name!r}: "
                "give its input_price and output_price, or set no money limit."
            )
        if self._limits.tokens is not None and usage.output_tokens is None:
            raise BadInput(f"{self._name!r} does not count its tokens: set no token limit for it.")


def sum_tokens(usage: Usage) -> int:
    """All tokens of a usage, as far as they are known."""
    return (
        (usage.input_tokens or 0)
        + (usage.cache_read_tokens or 0)
        + (usage.cache_write_tokens or 0)
        + (usage.output_tokens or 0)
    )
