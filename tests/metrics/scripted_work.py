"""Stores with scripted outcomes: what variants did on tasks, without running anything."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from closeloop.metrics.attempt_measuring import project_rulebook
from closeloop.records.attempt import Attempt, Grade, Outcome, Usage
from closeloop.records.experiment_plan import AttemptResult
from closeloop.records.settings import Settings
from closeloop.records.task import Acceptance, Task, Variant
from closeloop.store import Store

BOOK = project_rulebook(Settings())
START = datetime(2026, 11, 2, 9, tzinfo=UTC)
Repeats = Sequence[bool | float | None]
"""None is unscored."""
_numbers = itertools.count(1)


def add_task(store: Store, name: str, **given: Any) -> Task:
    defaults = {"digest": f"d-{name}", "grading": f"g-{name}", "acceptance": Acceptance(run="test")}
    task = Task(id=name, prompt=name, **defaults | given)
    store.save_task(task)
    return task


def add_variant(store: Store, name: str, **given: Any) -> Variant:
    variant = Variant(name=name, **{"agent": "builtin", "digest": f"v-{name}"} | given)
    store.save_variant(variant)
    return variant


def add_attempt(
    store: Store, task: Task | None, variant: Variant | None, passed: bool | None, **given: Any
) -> Attempt:
    """One attempt, graded; None is a machine's fault. A pass is confirmed unless said otherwise."""
    version = given.pop("version", 1)
    evidence = given.pop("evidence", "confirmed" if passed else None)
    cost, seconds = given.pop("cost", None), given.pop("seconds", 60.0)
    started = given.pop("started", START)
    attempt = Attempt(
        id=given.pop("id", None) or f"{next(_numbers):012x}",
        origin="experiment" if task else "production",
        task=task.id if task else None,
        task_digest=task.digest if task else None,
        variant=variant.digest if variant else None,
        started=started,
        ended=started + timedelta(seconds=seconds),
        usage=Usage(cost=cost, input_tokens=given.pop("tokens", None)),
        exit="finished",
        **given,
    )
    result = {True: "pass", False: "fail", None: "unscored"}[passed]
    grade = Grade(
        attempt=attempt.id,
        grading=task.grading if task else "",
        version=version,
        outcome=Outcome(result=result),  # type: ignore[arg-type]
        evidence=evidence,
    )
    store.save_attempt(AttemptResult(attempt=attempt, grade=grade if task else None))
    return attempt


def fill(store: Store, outcomes: Mapping[str, Mapping[str, Repeats]], **given: Any) -> None:
    """Variant → task → its repeats."""
    for name, tasks in outcomes.items():
        variant = add_variant(store, name)
        for task, repeats in tasks.items():
            saved = add_task(store, task)
            for number, passed in enumerate(repeats, 1):
                held = None if passed is None else bool(passed)
                add_attempt(store, saved, variant, held, number=number, **given)
