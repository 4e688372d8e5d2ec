"""How experiments stand, and what can be said of one before it begins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from ipaddress import ip_address
from statistics import fmean
from urllib.parse import urlsplit

from closeloop.grading.variants import ResolvedVariant
from closeloop.providers.model_prices import find_model_prices
from closeloop.records.errors import BadInput
from closeloop.records.experiment_plan import (
    ExperimentForecast,
    ExperimentPlan,
    ExperimentState,
    ExperimentStatus,
    ScheduledAttempt,
)
from closeloop.records.settings import ModelSettings
from closeloop.records.task import Experiment
from closeloop.statistics.rate_comparison import detectable_difference
from closeloop.store import Store
from closeloop.tasks.sealed_tasks import hide_task


def list_experiment_statuses(store: Store) -> list[ExperimentStatus]:
    """Every experiment, the newest first."""
    claimed_jobs = store.course.list_claimed_jobs()
    return [
        read_experiment_status(store, experiment, claimed_jobs)
        for experiment in store.list_experiments()
    ]


def read_experiment_status(
    store: Store, experiment: Experiment, in_hand: Sequence[str]
) -> ExperimentStatus:
    """One experiment, given the keys of what any process works on."""
    done = store.counts.count_filled_slots(experiment)
    total = len(experiment.tasks) * len(experiment.variants) * experiment.repeats
    running = sum(_belongs_to(key, experiment) for key in in_hand)
    spent = store.course.total_cost(experiment)
    tasks = [store.load_task(digest) for digest in experiment.tasks]
    variants = [store.load_variant(digest) for digest in experiment.variants]
    state: ExperimentState = "stopped"
    if done == total:
        state = "done"
    elif store.course.is_paused(experiment.id):
        state = "paused"
    elif running:
        state = "running"
    elif experiment.budget is not None and (spent or 0.0) >= experiment.budget:
        state = "spent"
    return ExperimentStatus(
        experiment=experiment,
        tasks=tuple(hide_task(task).id for task in tasks if task),
        variants=tuple(variant.name for variant in variants if variant),
        total=total,
        done=done,
        running=running,
        cost=spent,
        shared_cost=store.course.shared_cost(experiment),
        begun=store.course.first_start_time(experiment.id),
        state=state,
    )


def _belongs_to(key: str, experiment: Experiment) -> bool:
    """Keys of slots are task, variant, repeat and retry; other work has other keys."""
    task, variant, number = (*key.split("/"), "", "")[:3]
    is_member = task in experiment.tasks and variant in experiment.variants
    return is_member and int(number) <= experiment.repeats


def estimate_seconds_left(store: Store, course: ExperimentStatus) -> float | None:
    """Until it is done at the pace it has, by what its variants usually take; None is not known."""
    variants = [store.load_variant(digest) for digest in course.experiment.variants]
    average_seconds = [
        store.course.average_attempt(variant).seconds for variant in variants if variant
    ]
    if not course.running or not average_seconds or None in average_seconds:
        return None
    mean_seconds = fmean(seconds for seconds in average_seconds if seconds is not None)
    return (course.total - course.done) * mean_seconds / course.running


# What can be said of a plan before it begins: how much it will show, take and cost.


def forecast_run(
    plan: ExperimentPlan,
    missing: Iterable[ScheduledAttempt],
    crews: Mapping[str, ResolvedVariant],
    store: Store,
    jobs: int,
) -> ExperimentForecast:
    """By what attempts of the same variants, or else the same agents and models, took before."""
    missing_counts = Counter(slot.variant.digest for slot in missing)
    averages = {variant.digest: store.course.average_attempt(variant) for variant in plan.variants}
    paid = [crew for crew in crews.values() if crew.model is not None and is_paid_model(crew.model)]
    seconds: float | None = 0.0
    cost: float | None = 0.0
    for digest, count in missing_counts.items():
        average, model = averages[digest], crews[digest].model
        free = model is None or not is_paid_model(model)
        spent = 0.0 if free and average.cost is None else average.cost
        seconds = _add_product(seconds, count, average.seconds)
        cost = _add_product(cost, count, spent)
    several = len(plan.variants) > 1
    return ExperimentForecast(
        attempts=len(plan.tasks) * len(plan.variants) * plan.experiment.repeats,
        missing=sum(missing_counts.values()),
        effect=detectable_difference(len(plan.tasks), plan.experiment.repeats) if several else None,
        seconds=None if seconds is None else seconds / jobs,
        cost=cost,
        paid=tuple(dict.fromkeys(crew.variant.model or "" for crew in paid)),
        typical={key: took.seconds for key, took in averages.items() if took.seconds is not None},
    )


def _add_product(total: float | None, count: int, each: float | None) -> float | None:
    return None if total is None or each is None else total + count * each


def is_paid_model(model: ModelSettings) -> bool:
    """Whether somebody sends a bill: not for what answers here, nor for a server of one's own."""
    if model.provider in ("scripted", "recorded"):
        return False
    if model.base_url is None:
        return True
    host = urlsplit(model.base_url).hostname or ""
    try:
        is_local = ip_address(host).is_loopback
    except ValueError:
        is_local = host == "localhost" or host.endswith(".localhost")
    return not is_local and find_model_prices(model) is not None


def require_prices(budget: float | None, crews: Mapping[str, ResolvedVariant]) -> None:
    """A budget of money can be kept only where money can be counted."""
    for crew in crews.values() if budget is not None else ():
        model = crew.model
        if model is not None and is_paid_model(model) and find_model_prices(model) is None:
            raise BadInput(
                f"The budget needs the price of {crew.variant.model!r}: "
                "give its input_price and output_price, or set no budget."
            )
