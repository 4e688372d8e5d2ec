"""What tokens cost, as the providers published it by 15 November 2026.

US dollars per million tokens, at the standard rate for prompts of usual length. Settings win over
this table, and a model that is not in it has no price: a wrong one would be worse.
"""

from __future__ import annotations

import re

import msgspec

from closeloop.records.attempt import Usage
from closeloop.records.record import Record
from closeloop.records.settings import ModelSettings


class ModelPrices(Record):
    """Of one model."""

    input: float
    output: float
    cache_read: float | None = None
    cache_write: float | None = None
    """None: as fresh input."""


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
"""What may follow a name: `gpt-5-mini` is no `gpt-5`, `gpt-5-2025-08-07` is one."""


def find_model_prices(settings: ModelSettings) -> ModelPrices | None:
    """What the settings say, else what the table says, else None."""
    listed_prices = _look_up_prices(settings.model)
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


def _look_up_prices(model: str) -> ModelPrices | None:
    names = [
        name
        for name in _PRICE_TABLE
        if model == name or (model.startswith(name) and _SNAPSHOT.fullmatch(model[len(name) :]))
    ]
    if not names:
        return None
    into, out, read, write = _PRICE_TABLE[max(names, key=len)]
    return ModelPrices(input=into, output=out, cache_read=read, cache_write=write)


def add_cost(usage: Usage, prices: ModelPrices | None) -> Usage:
    """The usage with its cost, unless the provider reported one or nothing is known."""
    if usage.cost is not None or prices is None:
        return usage
    if usage.input_tokens is None or usage.output_tokens is None:
        return usage
    read = prices.input if prices.cache_read is None else prices.cache_read
    write = prices.input if prices.cache_write is None else prices.cache_write
    cost = (
        usage.input_tokens * prices.input
        + usage.output_tokens * prices.output
        + (usage.cache_read_tokens or 0) * read
        + (usage.cache_write_tokens or 0) * write
    ) / 1e6
    return msgspec.structs.replace(usage, cost=cost, cost_from="prices")
