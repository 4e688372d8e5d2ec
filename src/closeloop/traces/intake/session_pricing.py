"""What a session cost, where its files do not say."""

from __future__ import annotations

from functools import lru_cache

from msgspec.structs import replace

from closeloop.providers.model_prices import ModelPrices, add_cost, find_model_prices
from closeloop.records.attempt import Usage, sum_usage
from closeloop.records.session import Session
from closeloop.records.settings import ModelSettings


@lru_cache(maxsize=1000)
def published_prices(model: str) -> ModelPrices | None:
    """The published prices of a model, whichever provider it was had from."""
    return find_model_prices(ModelSettings(provider="openai", model=model.rpartition("/")[2]))


def usage_with_cost(session: Session) -> Usage:
    """The session's usage with its cost: reported, or by the price of every model in it."""
    usage = session.usage
    if usage.cost is not None:
        return usage
    by_model: dict[str | None, list[Usage]] = {}
    for lane in session.trace.lanes:
        for turn in lane.turns:
            by_model.setdefault(turn.model or session.model, []).append(turn.usage)
    usage_by_model = {model: sum_usage(usages) for model, usages in by_model.items()}
    if sum_usage(usage_by_model.values()).input_tokens != usage.input_tokens:
        usage_by_model = {session.model: usage}
    cost = 0.0
    for model, used in usage_by_model.items():
        if used.input_tokens is None and used.output_tokens is None:
            continue
        priced_usage = add_cost(used, published_prices(model)) if model else used
        if priced_usage.cost is None:
            return usage
        cost += priced_usage.cost
    return replace(usage, cost=cost, cost_from="prices") if cost else usage
