"""Is one better than the other? Groups of attempts, the first held against the others.

On tasks that both tried, task by task; where they share none, as independent groups, which shows a
difference and no cause.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from closeloop.metrics.attempt_selection import (
    AttemptSelection,
    covering_span,
    select_attempts,
    selection_mask,
)
from closeloop.metrics.attempt_table import AttemptTable, MeasuringProgress, load_attempt_table
from closeloop.metrics.baseline_gate import MIN_COVERAGE
from closeloop.metrics.metric_definitions import PRIMARY_METRIC
from closeloop.metrics.metric_figures import REPEAT_KINDS, number_tasks
from closeloop.metrics.score_columns import attach_scores, find_metric
from closeloop.metrics.score_definitions import ScoreCatalogue, build_catalogue
from closeloop.metrics.variant_pairs import (
    ComparedSide,
    collect_task_values,
    collect_unit_values,
    compare_independent_sides,
    compare_with_first,
)
from closeloop.process.rulebook import Rulebook
from closeloop.records.errors import BadInput
from closeloop.records.estimate import CompareReport, Metric, VariantSide
from closeloop.statistics.rate_comparison import DEFAULT_MARGIN
from closeloop.store import Store
from closeloop.text.wording import count_with_noun, format_percent

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]


REVIEW_SCORE = "would-merge"
SESSION_SCORES = (PRIMARY_METRIC, "task completion rate", "without findings")
"""What sessions are compared by: the first of these that is known of all sides."""


def compare_by_name(  # noqa: PLR0913 - what the command takes
    store: Store,
    book: Rulebook,
    names: Sequence[str],
    *,
    margin: float = DEFAULT_MARGIN,
    scores: Sequence[str] = (),
    catalogue: ScoreCatalogue | None = None,
    tell: MeasuringProgress = lambda done, of: None,
) -> CompareReport:
    """Variants, agents, models, prompts, repositories, experiments or times by name.

    The first score decides, the others are explored beside it.
    """
    if len(set(names)) < 2:
        raise BadInput("One variant compares with nothing: name two or more that differ.")
    variants = store.numbers.load_variants()
    choices = [select_attempts(name, variants, store) for name in names]
    span = covering_span(choices)
    work = load_attempt_table(store, book, span, tell)
    names_at_hand = scores or default_scores(work, choices)
    work = attach_scores(work, store, catalogue or build_catalogue({}), names_at_hand, span, tell)
    return compare_variants(work, choices, margin=margin, scores=names_at_hand)


def default_scores(work: AttemptTable, choices: Sequence[AttemptSelection]) -> tuple[str, ...]:
    """What decides unless somebody says otherwise: whether tasks are resolved, by their checks.

    Where no task has a check, whether people would merge; where a side has sessions alone, the
    first of the scores of sessions that all have.
    """
    import numpy as np

    masks = [selection_mask(work, choice) for choice in choices]
    unchecked, at_task = work.columns["unchecked"], work.columns["task_digest"].known()
    is_at_tasks = [bool((mask & at_task).any()) for mask in masks]
    if not all(is_at_tasks) and any(mask.any() for mask in masks):
        for name in SESSION_SCORES:
            values = find_metric(work, name)[1](work.columns)
            if all(np.isfinite(values[mask]).any() for mask in masks):
                return (name,)
    is_all_unchecked = any(is_at_tasks) and all(unchecked[mask & at_task].all() for mask in masks)
    return (REVIEW_SCORE,) if is_all_unchecked else (PRIMARY_METRIC,)


def compare_variants(
    work: AttemptTable,
    choices: Sequence[AttemptSelection],
    *,
    margin: float = DEFAULT_MARGIN,
    scores: Sequence[str] = (PRIMARY_METRIC,),
) -> CompareReport:
    """All of them against the first, by the first of the scores."""
    primary, values_of = find_metric(work, scores[0])
    require_deciding(primary)
    values = values_of(work.columns)
    every = [selection_mask(work, choice) for choice in choices]
    _refuse_overlap(every, choices)
    masks = [mask & work.columns["task_digest"].known() for mask in every]
    left_out, dropped = _list_left_out_tasks(work, masks, choices)
    if primary.name == PRIMARY_METRIC:
        masks = [_drop_unchecked_tasks(work, mask, left_out) for mask in masks]
    if not _share_tasks(work, masks):
        return _compare_groups(work, every, choices, values, primary, (margin, scores, left_out))
    compared_sides = [
        ComparedSide(
            side=_build_side(work, mask, choice, values),
            mask=mask,
            values=collect_task_values(work, mask, dropped, values),
        )
        for mask, choice in zip(masks, choices, strict=True)
    ]
    refusal = (
        next(_coverage_refusals(compared_sides), None) if primary.name == PRIMARY_METRIC else None
    )
    _refuse_incomparable(compared_sides, left_out if refusal is None else None, primary)
    notes = (*work.notes, *(one.note for one in choices if one.note))
    if primary.name != PRIMARY_METRIC:
        notes += tuple(_coverage_notes(compared_sides, primary))
    if len({(one.since, one.until) for one in choices}) > 1:
        notes += ("Times differ in more than what you changed: this is observational.",)
    return CompareReport(
        sides=tuple(one.side for one in compared_sides),
        pairs=()
        if refusal
        else compare_with_first(work, compared_sides, margin, primary, scores[1:]),
        refusal=refusal,
        left_out=tuple(left_out),
        notes=notes,
    )


def _share_tasks(work: AttemptTable, masks: Sequence[Array]) -> bool:
    """Whether each side tried a task that the first one tried."""
    tasks = work.columns["task_digest"]
    first, *others = [{*tasks[mask].tolist()} for mask in masks]
    return all(first & other for other in others)


def _compare_groups(
    work: AttemptTable,
    masks: Sequence[Array],
    choices: Sequence[AttemptSelection],
    values: Array,
    primary: Metric,
    asked: tuple[float, Sequence[str], Sequence[str]],
) -> CompareReport:
    """Sides without a common task: sessions, or other tasks. Each task or session weighs once."""
    margin, scores, left_out = asked
    units = number_tasks(work)
    sides = [
        ComparedSide(
            side=_build_side(work, mask, choice, values),
            mask=mask,
            values=collect_unit_values(units, mask, values),
        )
        for mask, choice in zip(masks, choices, strict=True)
    ]
    for one in sides:
        if not one.side.attempts:
            raise BadInput(
                f"{one.side.name!r} stands for no attempt and no session: `closeloop run` or "
                "`closeloop import` brings some."
            )
        if not one.side.scored:
            raise BadInput(
                f"{primary.name} is not known of {one.side.name!r}: compare by another score, "
                "which `closeloop scores` lists."
            )
    notes = (
        *work.notes,
        *(one.note for one in choices if one.note),
        *_coverage_notes(sides, primary),
    )
    return CompareReport(
        sides=tuple(one.side for one in sides),
        pairs=compare_independent_sides(work, sides, margin, primary, scores[1:]),
        left_out=tuple(one for one in left_out if "was not tried by all" not in one),
        notes=notes,
    )


def require_deciding(metric: Metric) -> None:
    """BadInput of a score that cannot decide: of repeats, or without a better direction."""
    if metric.kind in (*REPEAT_KINDS, "sum", "per pass"):
        raise BadInput(f"{metric.name!r} is no score of single attempts: compare {metric.score!r}.")
    if metric.better is None:
        raise BadInput(
            f"Nobody said whether more or less of {metric.name!r} is better, so it cannot decide: "
            "name it after another score, or declare `better` in closeloop.toml."
        )


def _drop_unchecked_tasks(work: AttemptTable, mask: Array, left_out: list[str]) -> Array:
    """Attempts at tasks with a check; the others wait for what people say."""
    is_unchecked = mask & work.columns["unchecked"]
    for name in sorted({*work.columns["task"][is_unchecked].tolist()} - {None}):
        line = f"task {name!r} has no check: `--score {REVIEW_SCORE}` compares what people say"
        left_out += [] if line in left_out else [line]
    kept: Array = mask & ~is_unchecked
    return kept


def _coverage_notes(held: Sequence[ComparedSide], primary: Metric) -> Iterator[str]:
    """How much of each side has the score; who has none says nothing in either direction."""
    for side in (one.side for one in held):
        if side.scored < side.attempts:
            yield (
                f"{primary.name} is known of {side.scored:,} of {side.attempts:,} attempts of "
                f"{side.name!r}"
                + (
                    ": choose what is scored by chance, or score all."
                    if primary.family == "scores"
                    else "."
                )
            )


def _build_side(
    work: AttemptTable, mask: Array, choice: AttemptSelection, values: Array
) -> VariantSide:
    import numpy as np

    columns = work.columns
    scored = np.isfinite(values[mask])
    count = int(mask.sum())
    return VariantSide(
        name=choice.name,
        variants=tuple(sorted({*columns["variant"][mask].tolist()} - {None})),
        tasks=len({*columns["task_digest"][mask].tolist()} - {None}),
        attempts=count,
        scored=int(scored.sum()),
        coverage=float(scored.mean()) if count else None,
    )


def _refuse_overlap(masks: Sequence[Array], choices: Sequence[AttemptSelection]) -> None:
    for place, first in enumerate(masks):
        for other in range(place + 1, len(masks)):
            if shared := int((first & masks[other]).sum()):
                names = f"{choices[place].name!r} and {choices[other].name!r}"
                many = count_with_noun(shared, "attempt")
                raise BadInput(f"{names} have {many} in common: name what differs.")


def _refuse_incomparable(
    held: Sequence[ComparedSide], left_out: Sequence[str] | None, primary: Metric
) -> None:
    """Sides without an attempt; and without a common task, where they are to be compared."""
    for one in held:
        if not one.side.attempts:
            task = "a task with a check" if primary.score == "resolved" else "a task"
            raise BadInput(
                f"{one.side.name!r} has no attempt at {task}: `closeloop run` makes some."
            )
    first = held[0]
    for other in held[1:] if left_out is not None else ():
        if not first.values.keys() & other.values.keys():
            if primary.family == "scores" and first.side.scored + other.side.scored < 2:
                raise BadInput(
                    f"{primary.name} is not known of {first.side.name!r} and {other.side.name!r}: "
                    "`closeloop review` or `closeloop score` say it."
                )
            why = f" ({left_out[0]})" if left_out else ""
            raise BadInput(
                f"{first.side.name!r} and {other.side.name!r} have no task in common{why}: "
                "run both on the same tasks."
            )


def _coverage_refusals(held: Sequence[ComparedSide]) -> Iterator[str]:
    for side in (one.side for one in held):
        if side.coverage is not None and side.coverage < MIN_COVERAGE:
            yield (
                f"Only {format_percent(side.coverage)} of the attempts of {side.name!r} could be "
                f"scored, and under {format_percent(MIN_COVERAGE)} there is no verdict: "
                "`closeloop run --rerun unscored` makes the others again."
            )


def _list_left_out_tasks(
    work: AttemptTable, masks: Sequence[Array], choices: Sequence[AttemptSelection]
) -> tuple[list[str], set[str]]:
    """Tasks that ask for something else, or were graded in another way, on the two sides."""
    columns = work.columns
    digests_by_task: dict[str, dict[str, set[str]]] = {}
    gradings_by_digest: dict[str, set[str]] = {}
    for mask, choice in zip(masks, choices, strict=True):
        for task, digest, grading in zip(
            columns["task"][mask].tolist(),
            columns["task_digest"][mask].tolist(),
            columns["grading"][mask].tolist(),
            strict=True,
        ):
            digests_by_task.setdefault(task or digest, {}).setdefault(choice.name, set()).add(
                digest
            )
            if grading is not None:
                gradings_by_digest.setdefault(digest, set()).add(grading)
    lines = []
    for task, by_side in sorted(digests_by_task.items()):
        if len(by_side) < len(choices):
            lines.append(f"task {task!r} was not tried by all of them")
        elif len({frozenset(each) for each in by_side.values()}) > 1:
            lines.append(f"task {task!r} asked for something else")
    dropped = {digest for digest, each in gradings_by_digest.items() if len(each) > 1}
    names = {
        key: task
        for task, sides in digests_by_task.items()
        for one in sides.values()
        for key in one
    }
    lines += [
        f"task {names[digest]!r} was graded in two ways: `closeloop run --regrade` makes them one"
        for digest in sorted(dropped)
    ]
    return lines, dropped
