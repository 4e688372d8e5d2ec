"""Published token prices, and the budget of one attempt."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from closeloop.records.attempt import Usage, sum_usage
from closeloop.records.errors import BadInput, OutOfBudget
from closeloop.records.record import Record
from closeloop.records.settings import ModelSettings
from closeloop.records.task import Limits

if TYPE_CHECKING:
    import asyncio


class ModelPrices(Record):
    """The prices of one model."""

    input: float
    output: float
    cache_read: float | None = None
    cache_write: float | None = None
    """None: as uncached input."""


_PRICE_TABLE: dict[str, tuple[float, float, float | None, float | None]] = {
    # name: input, output, cache read, cache write
    "claude-fable-5-1": (10.0, 50.0, 0.25, 12.5),
    "claude-fable-5": (10.0, 50.0, 1.0, 12.5),
    "claude-opus-5-5": (4.0, 20.0, 0.2, 5.0),
    "claude-opus-5": (5.0, 25.0, 0.5, 6.25),
    "claude-opus-4-8": (5.0, 25.0, 0.5, 6.25),
    "claude-opus-4-7": (5.0, 25.0, 0.5, 6.25),
    "claude-opus-4-6": (5.0, 25.0, 0.5, 6.25),
    "claude-opus-4-5": (5.0, 25.0, 0.5, 6.25),
    "claude-opus-4-1": (15.0, 75.0, 1.5, 18.75),
    "claude-opus-4": (15.0, 75.0, 1.5, 18.75),
    "claude-sonnet-5-5": (2.0, 10.0, 0.1, 2.5),
    "claude-sonnet-5": (2.0, 10.0, 0.2, 2.5),
    "claude-sonnet-4-6": (3.0, 15.0, 0.3, 3.75),
    "claude-sonnet-4-5": (3.0, 15.0, 0.3, 3.75),
    "claude-sonnet-4": (3.0, 15.0, 0.3, 3.75),
    "claude-haiku-4-5": (1.0, 5.0, 0.1, 1.25),
    "gpt-5.5": (5.0, 30.0, 0.5, None),
    "gpt-5.4": (2.5, 15.0, 0.25, None),
    "gpt-5.4-mini": (0.75, 4.5, 0.075, None),
    "gpt-5.4-nano": (0.2, 1.25, 0.02, None),
    "gpt-5": (1.25, 10.0, 0.125, None),
    "gpt-5-mini": (0.25, 2.0, 0.025, None),
    "gpt-5-nano": (0.05, 0.4, 0.005, None),
    "gpt-4.1": (2.0, 8.0, 0.5, None),
    "gpt-4.1-mini": (0.4, 1.6, 0.1, None),
    "gpt-4.1-nano": (0.1, 0.4, 0.025, None),
    "gpt-4o": (2.5, 10.0, 1.25, None),
    "gpt-4o-mini": (0.15, 0.6, 0.075, None),
}

_SNAPSHOT = re.compile(r"[-@](latest|\d{8}|\d{4}-\d{2}-\d{2})")
"""What may follow a name: `gpt-5-mini` is not `gpt-5`, but `gpt-5-2025-08-07` is."""


def find_model_prices(settings: ModelSettings) -> ModelPrices | None:
    """Return the price from the settings, else from the table, else None."""
    listed_prices = find_listed_prices(settings.model)
    given_prices = {
        "input": settings.input_price,
        "output": settings.output_price,
        "cache_read": settings.cache_read_price,
        "cache_write": settings.cache_write_price,
    }
    given_prices = {name: price for name, price in given_prices.items() if price is not None}
    if listed_prices is not None:
        return msgspec.structs.replace(listed_prices, **given_prices)
    if "input" not in given_prices or "output" not in given_prices:
        return None
    return ModelPrices(**given_prices)  # type: ignore[arg-type]


def find_listed_prices(model: str) -> ModelPrices | None:
    """Return the provider's published price for a model name."""
    names = [
        name
        for name in _PRICE_TABLE
        if model == name or (model.startswith(name) and _SNAPSHOT.fullmatch(model[len(name) :]))
    ]
    if not names:
        return None
    input_price, output_price, read_price, write_price = _PRICE_TABLE[max(names, key=len)]
    return ModelPrices(
        input=input_price, output=output_price, cache_read=read_price, cache_write=write_price
    )


def add_cost(usage: Usage, prices: ModelPrices | None) -> Usage:
    """Add the cost, unless the provider reported one or the price is unknown."""
    if usage.cost is not None or prices is None:
        return usage
    if usage.input_tokens is None or usage.output_tokens is None:
        return usage
    read_price = prices.input if prices.cache_read is None else prices.cache_read
    write_price = prices.input if prices.cache_write is None else prices.cache_write
    cost = (
        usage.input_tokens * prices.input
        + usage.output_tokens * prices.output
        + (usage.cache_read_tokens or 0) * read_price
        + (usage.cache_write_tokens or 0) * write_price
    ) / 1e6
    return msgspec.structs.replace(usage, cost=cost, cost_from="prices")


# A budget: an attempt's use of a model, counted and compared with its limits.

NO_USAGE = Usage()


class Budget:
    """Counts every reply once, with all input and output tokens.

    Earlier usage is not part of `usage`, but counts towards the limits.
    """

    def __init__(self, name: str, limits: Limits, usage_before: Usage = NO_USAGE) -> None:
        self._name = name
        self._limits = limits
        self._usages: list[Usage] = []
        self.tokens = sum_tokens(usage_before)
        self.spent = usage_before.cost or 0.0
        """The known cost so far; `usage.cost` is None if that is incomplete."""
        self.turns = 0
        self._replies = 0
        self._most_tokens = 0
        self._dearest = 0.0
        self._under_way = 0
        self._ended = _make_event()

    @property
    def usage(self) -> Usage:
        """Usage of all replies together."""
        if len(self._usages) > 1:
            self._usages = [sum_usage(self._usages)]
        return self._usages[0] if self._usages else NO_USAGE

    async def wait_for_room(self) -> None:
        """Wait while the requests in progress may use up the rest, so that at most one exceeds a
        limit."""
        while self._may_exceed_limits():
            await self._ended.wait()

    def _may_exceed_limits(self) -> bool:
        """Whether the rest would be exceeded if each cost as much as the most expensive reply so
        far."""
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

    @contextmanager
    def hold_turn(self) -> Iterator[None]:
        """Hold one turn; OutOfBudget if a limit is reached."""
        self.require_turn()
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1
            self._ended.set()
            self._ended = _make_event()

    def require_turn(self) -> None:
        """Require one more turn; OutOfBudget if a limit is reached."""
        limits = self._limits
        if limits.tokens is not None and self.tokens >= limits.tokens:
            raise OutOfBudget(f"{self.tokens:,} of {limits.tokens:,} tokens are used.")
        if limits.money is not None and self.spent >= limits.money:
            raise OutOfBudget(f"${self.spent:.2f} of ${limits.money:.2f} are spent.")
        if self.turns >= limits.turns:
            raise OutOfBudget(f"{self.turns:,} of {limits.turns:,} turns are used.")
        self.turns += 1

    def add_usage(self, usage: Usage) -> None:
        """Add known usage; a request without an answer adds nothing."""
        if usage == NO_USAGE:
            return
        self._usages.append(usage)
        self._replies += 1
        tokens = sum_tokens(usage)
        self.tokens += tokens
        self.spent += usage.cost or 0.0
        self._most_tokens = max(self._most_tokens, tokens)
        self._dearest = max(self._dearest, usage.cost or 0.0)

    def charge_reply(self, usage: Usage) -> None:
        """Charge a whole reply; BadInput if it cannot be counted towards the limits."""
        self.add_usage(usage)
        if self._limits.money is not None and usage.cost is None:
            raise BadInput(
                f"The money limit needs the price of {self._name!r}: set its "
                "input_price and output_price, or no money limit."
            )
        if self._limits.tokens is not None and usage.output_tokens is None:
            raise BadInput(f"{self._name!r} does not report its tokens: remove its token limit.")


def _make_event() -> asyncio.Event:
    """Create the event lazily, because reading prices needs no event loop."""
    import asyncio

    return asyncio.Event()


def sum_tokens(usage: Usage) -> int:
    """Sum all known tokens of a usage."""
    return (
        (usage.input_tokens or 0)
        + (usage.cache_read_tokens or 0)
        + (usage.cache_write_tokens or 0)
        + (usage.output_tokens or 0)
    )
