"""How experiments stand: done, in hand, paid, paused."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from closeloop.model.plan import Course, State
from closeloop.model.variant import Experiment
from closeloop.store import Store
from closeloop.tasks.seal import hide_task


def courses(store: Store) -> list[Course]:
    """Every experiment, the newest first."""
    in_hand = store.course.in_hand()
    return [course_of(store, experiment, in_hand) for experiment in store.experiments()]


def course_of(store: Store, experiment: Experiment, in_hand: Sequence[str]) -> Course:
    """One experiment, given the keys of what any process works on."""
    done = store.counts.filled(experiment)
    total = len(experiment.tasks) * len(experiment.variants) * experiment.repeats
    running = sum(_is_of(key, experiment) for key in in_hand)
    spent = store.course.spent(experiment)
    tasks = [store.task(digest) for digest in experiment.tasks]
    variants = [store.variant(digest) for digest in experiment.variants]
    state: State = "stopped"
    if done == total:
        state = "done"
    elif store.course.is_paused(experiment.id):
        state = "paused"
    elif running:
        state = "running"
    elif experiment.budget is not None and (spent or 0.0) >= experiment.budget:
        state = "spent"
    return Course(
        experiment=experiment,
        tasks=tuple(hide_task(task).id for task in tasks if task),
        variants=tuple(variant.name for variant in variants if variant),
        total=total,
        done=done,
        running=running,
        cost=spent,
        begun=store.course.begun(experiment.id),
        state=state,
    )


def _is_of(key: str, experiment: Experiment) -> bool:
    """Keys of slots are task, variant, repeat and retry; other work has other keys."""
    task, variant, number = (*key.split("/"), "", "")[:3]
    known = task in experiment.tasks and variant in experiment.variants
    return known and int(number) <= experiment.repeats


def seconds_left(store: Store, course: Course) -> float | None:
    """Until it is done at the pace it has, by what its variants usually take; None is not known."""
    known = [store.variant(digest) for digest in course.experiment.variants]
    usual = [store.course.usual(variant).seconds for variant in known if variant]
    if not course.running or not usual or None in usual:
        return None
    each = fmean(seconds for seconds in usual if seconds is not None)
    return (course.total - course.done) * each / course.running
