"""How experiments stand: done, in hand, paid, paused."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from closeloop.records.experiment_plan import ExperimentState, ExperimentStatus
from closeloop.records.variant import Experiment
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
