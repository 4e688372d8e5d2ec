"""One task over its repeats: iterations, whether output was used, whether the failure is gone.

The three numbers of a first evaluation of an agent's loop, for every run of one task that
sometimes spirals.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Literal

from closeloop.metrics.attempt_measuring import measure_attempts, measurement_basis
from closeloop.process.rulebook import Rulebook
from closeloop.records.attempt import AttemptMarks, AttemptRow
from closeloop.records.errors import unknown_name_error
from closeloop.records.estimate import Rate, pool_rates, wilson_rate
from closeloop.records.record import Record
from closeloop.store import Store
from closeloop.tasks.sealed_tasks import require_unsealed
from closeloop.text.wording import natural_order

OutcomeWord = Literal["pass", "fail", "unscored"]


class TaskRepeat(Record):
    """One attempt at the task."""

    attempt: str
    variant: str
    number: int
    outcome: OutcomeWord
    iterations: int | None = None
    """Rounds of changes and a check; None where nothing was recorded."""
    converged_after: int | None = None
    """Iterations until nothing failed for good; None where that never came."""
    output_used: Rate | None = None
    """Of the failing checks, those whose output was acted on; None where no check failed."""
    fixed: bool | None = None
    """Whether the failure that the task starts from is gone; None where that is not known."""
    replay_of: str | None = None
    """A replay, which the sums leave out."""


class VariantRepeats(Record):
    """All repeats of one variant together."""

    variant: str
    repeats: int
    iterations: float | None
    """The mean."""
    converged: Rate | None
    """Repeats in which all passed in the end, of those in which something failed."""
    output_used: Rate | None
    """Over the failing checks of all repeats."""
    fixed: Rate | None


class TaskRepeats(Record):
    """A task, repeat by repeat and by variant."""

    task: str
    variants: tuple[VariantRepeats, ...]
    repeats: tuple[TaskRepeat, ...]


def require_tried(store: Store, task: str | None, variant: str | None) -> None:
    """BadInput for a task or a variant without an attempt; held-out tasks are never named."""
    tasks = [*store.numbers.load_tasks().values()] if task else []
    if tasks and task not in {one.id for one in tasks}:
        raise unknown_name_error(
            "tried task",
            str(task),
            [one.id for one in tasks if one.split == "dev"],
            "closeloop sets",
        )
    variants = {one.name for one in store.numbers.load_variants().values()} if variant else set()
    if variants and variant not in variants:
        raise unknown_name_error("tried variant", str(variant), variants)


def load_task_repeats(
    store: Store, book: Rulebook, name: str, would_merge: Mapping[str, float]
) -> TaskRepeats:
    """Every repeat of a task as it was last said to be; measured where it was not."""
    newest = {one.id: one for one in store.numbers.load_tasks().values()}
    if name not in newest:
        known = [one.id for one in newest.values() if one.split == "dev"]
        raise unknown_name_error("task", name, known)
    require_unsealed(newest[name])
    rows = store.list_attempts(task_digests=[newest[name].digest])
    for _ in measure_attempts(store, rows, book):
        pass
    bases = {row.id: measurement_basis(row, book) for row in rows}
    marks = store.listing.load_marks(bases, bases)
    return next(iter(group_task_repeats(rows, marks, would_merge)), _sum_repeats(name, ()))


def group_task_repeats(
    rows: Iterable[AttemptRow], marks: Mapping[str, AttemptMarks], would_merge: Mapping[str, float]
) -> list[TaskRepeats]:
    """A table a task, in the order of their names; of each repeat the last try.

    Where nothing is checked, the outcome is what people say: the share who would merge it.
    """
    last_tries: dict[tuple[str | None, str | None, int], AttemptRow] = {}
    for row in sorted(rows, key=lambda row: row.retry):
        if row.task is not None:
            last_tries[row.task_digest, row.variant, row.number] = row
    by_task: dict[str, list[TaskRepeat]] = {}
    for row in last_tries.values():
        repeat = _build_repeat(row, marks.get(row.id), outcome_with_review(row, would_merge))
        by_task.setdefault(row.task or "", []).append(repeat)
    return [_sum_repeats(task, by_task[task]) for task in sorted(by_task, key=natural_order)]


def outcome_with_review(row: AttemptRow, would_merge: Mapping[str, float]) -> OutcomeWord:
    """Its grade; of what nothing checks, whether most reviewers would merge it."""
    if row.is_for_review and row.id in would_merge:
        return "pass" if would_merge[row.id] > 0.5 else "fail"
    return row.outcome or "unscored"


def _build_repeat(row: AttemptRow, marks: AttemptMarks | None, outcome: OutcomeWord) -> TaskRepeat:
    return TaskRepeat(
        attempt=row.id,
        variant=row.variant_name or "?",
        number=row.number,
        outcome=outcome,
        iterations=marks.iterations if marks else None,
        converged_after=marks.converged_after if marks else None,
        output_used=marks.feedback if marks else None,
        fixed=row.fixed,
        replay_of=row.replay_of,
    )


def _sum_repeats(task: str, repeats: Sequence[TaskRepeat]) -> TaskRepeats:
    ordered = tuple(sorted(repeats, key=lambda one: (one.variant, one.number, one.attempt)))
    counted = [one for one in ordered if one.replay_of is None]
    names = dict.fromkeys(one.variant for one in counted)
    return TaskRepeats(
        task=task,
        variants=tuple(
            _sum_variant(name, [one for one in counted if one.variant == name]) for name in names
        ),
        repeats=ordered,
    )


def _sum_variant(name: str, repeats: Sequence[TaskRepeat]) -> VariantRepeats:
    iterations = [one.iterations for one in repeats if one.iterations is not None]
    failing = [one for one in repeats if one.output_used or one.converged_after is not None]
    known = [one.fixed for one in repeats if one.fixed is not None]
    return VariantRepeats(
        variant=name,
        repeats=len(repeats),
        iterations=fmean(iterations) if iterations else None,
        converged=wilson_rate(
            sum(one.converged_after is not None for one in failing), len(failing)
        ),
        output_used=pool_rates(*(one.output_used for one in repeats)),
        fixed=wilson_rate(sum(known), len(known)),
    )
