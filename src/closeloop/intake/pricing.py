"""What a session cost, where its files do not say."""

from __future__ import annotations

from functools import lru_cache

from msgspec.structs import replace

from closeloop.model.attempt import Usage
from closeloop.model.session import Session
from closeloop.model.settings import ModelSettings
from closeloop.model.usage import total
from closeloop.runs.models.prices import Prices, priced, prices_of


@lru_cache(maxsize=1000)
def listed(model: str) -> Prices | None:
    """The published prices of a model, whichever provider it was had from."""
    return prices_of(ModelSettings(provider="openai", model=model.rpartition("/")[2]))


def costed(session: Session) -> Usage:
    """The session's usage with its cost: reported, or by the price of every model in it."""
    usage = session.usage
    if usage.cost is not None:
        return usage
    by_model: dict[str | None, list[Usage]] = {}
    for lane in session.trace.lanes:
        for turn in lane.turns:
            by_model.setdefault(turn.model or session.model, []).append(turn.usage)
    sums = {model: total(usages) for model, usages in by_model.items()}
    if total(sums.values()).input_tokens != usage.input_tokens:
        sums = {session.model: usage}
    cost = 0.0
    for model, used in sums.items():
        if used.input_tokens is None and used.output_tokens is None:
            continue
        paid = priced(used, listed(model)) if model else used
        if paid.cost is None:
            return usage
        cost += paid.cost
    return replace(usage, cost=cost, cost_from="prices") if cost else usage
