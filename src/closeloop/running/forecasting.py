"""What can be said of a plan before it begins: how much it will show, take and cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from urllib.parse import urlsplit

from closeloop.model.errors import BadInput
from closeloop.model.plan import Forecast, Plan, Slot
from closeloop.model.settings import ModelSettings
from closeloop.runs.models.prices import prices_of
from closeloop.runs.variants import Crew
from closeloop.stats.power import detectable
from closeloop.store import Store


def forecast(
    plan: Plan, missing: Iterable[Slot], crews: Mapping[str, Crew], store: Store, jobs: int
) -> Forecast:
    """By what attempts of the same variants, or else the same agents and models, took before."""
    waiting = Counter(slot.variant.digest for slot in missing)
    usual = {variant.digest: store.course.usual(variant) for variant in plan.variants}
    paid = [crew for crew in crews.values() if crew.model is not None and is_paid(crew.model)]
    seconds: float | None = 0.0
    cost: float | None = 0.0
    for digest, count in waiting.items():
        took, model = usual[digest], crews[digest].model
        free = model is None or not is_paid(model)
        spent = 0.0 if free and took.cost is None else took.cost
        seconds = _plus(seconds, count, took.seconds)
        cost = _plus(cost, count, spent)
    several = len(plan.variants) > 1
    return Forecast(
        attempts=len(plan.tasks) * len(plan.variants) * plan.experiment.repeats,
        missing=sum(waiting.values()),
        effect=detectable(len(plan.tasks), plan.experiment.repeats) if several else None,
        seconds=None if seconds is None else seconds / jobs,
        cost=cost,
        paid=tuple(dict.fromkeys(crew.variant.model or "" for crew in paid)),
        typical={key: took.seconds for key, took in usual.items() if took.seconds is not None},
    )


def _plus(total: float | None, count: int, each: float | None) -> float | None:
    return None if total is None or each is None else total + count * each


def is_paid(model: ModelSettings) -> bool:
    """Whether somebody sends a bill: not for what answers here, nor for a server of one's own."""
    if model.provider in ("scripted", "recorded"):
        return False
    if model.base_url is None:
        return True
    host = urlsplit(model.base_url).hostname or ""
    try:
        here = ip_address(host).is_loopback
    except ValueError:
        here = host == "localhost" or host.endswith(".localhost")
    return not here and prices_of(model) is not None


def demand_prices(budget: float | None, crews: Mapping[str, Crew]) -> None:
    """A budget of money can be kept only where money can be counted."""
    for crew in crews.values() if budget is not None else ():
        model = crew.model
        if model is not None and is_paid(model) and prices_of(model) is None:
            raise BadInput(
                f"The budget needs the price of {crew.variant.model!r}: "
                "give its input_price and output_price, or set no budget."
            )
