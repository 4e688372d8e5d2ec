"""Is one better than the other? Variants on the same tasks, the first held against the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from closeloop.measuring.choosing import Choice, choose
from closeloop.measuring.gate import COVERAGE_FLOOR
from closeloop.measuring.pairs import Held, against_first, values_of
from closeloop.measuring.work import SCORED, Tell, Work, work_of
from closeloop.model.errors import BadInput
from closeloop.model.plural import plural
from closeloop.model.versus import CompareReport, Side
from closeloop.process.rulebook import Rulebook
from closeloop.stats.compare import MARGIN
from closeloop.store import Store
from closeloop.store.numbers import Span

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]


def compare_named(
    store: Store,
    book: Rulebook,
    names: Sequence[str],
    *,
    margin: float = MARGIN,
    tell: Tell = lambda done, of: None,
) -> CompareReport:
    """Variants, agents, models, prompts or times by name, from what the store holds."""
    if len(set(names)) < 2:
        raise BadInput("One variant compares with nothing: name two or more that differ.")
    variants = store.numbers.variants()
    choices = [choose(name, variants) for name in names]
    return compare(work_of(store, book, _span(choices), tell), choices, margin=margin)


def compare(work: Work, choices: Sequence[Choice], *, margin: float = MARGIN) -> CompareReport:
    """All of them against the first."""
    masks = [mask_of(work, choice) for choice in choices]
    _refuse_shared(masks, choices)
    left_out, dropped = _left_out(work, masks, choices)
    held = [
        Held(side=_side(work, mask, choice), mask=mask, values=values_of(work, mask, dropped))
        for mask, choice in zip(masks, choices, strict=True)
    ]
    refusal = next(_refusals(held), None)
    _refuse_apart(held, left_out if refusal is None else None)
    notes = (*work.notes, *(one.note for one in choices if one.note))
    if any(one.since or one.until for one in choices):
        notes += ("Times differ in more than what you changed: this is observational.",)
    return CompareReport(
        sides=tuple(one.side for one in held),
        pairs=() if refusal else against_first(work, held, margin),
        refusal=refusal,
        left_out=tuple(left_out),
        notes=notes,
    )


def _span(choices: Sequence[Choice]) -> Span:
    """The smallest that holds them all."""
    variants: list[str] | None = []
    for one in choices:
        variants = None if variants is None or one.variants is None else [*variants, *one.variants]
    return Span(
        variants=None if variants is None else tuple(dict.fromkeys(variants)),
        since=_extreme(min, [one.since for one in choices]),
        until=_extreme(max, [one.until for one in choices]),
    )


def _extreme(pick: Any, moments: Sequence[datetime | None]) -> datetime | None:
    known = [one for one in moments if one is not None]
    found: datetime | None = pick(known) if len(known) == len(moments) else None
    return found


def mask_of(work: Work, choice: Choice) -> Array:
    """Attempts at tasks alone: sessions have none to be paired by."""
    columns = work.columns
    mask: Array = columns["task_digest"].known()
    if choice.variants is not None:
        mask = mask & columns["variant"].are(choice.variants)
    if choice.since is not None:
        mask = mask & (columns["started"] >= choice.since.timestamp() * 1e6)
    if choice.until is not None:
        mask = mask & (columns["started"] < choice.until.timestamp() * 1e6)
    return mask


def _side(work: Work, mask: Array, choice: Choice) -> Side:
    columns = work.columns
    scored = columns["outcome"][mask].are(SCORED)
    count = int(mask.sum())
    return Side(
        name=choice.name,
        variants=tuple(sorted({*columns["variant"][mask].tolist()} - {None})),
        tasks=len({*columns["task_digest"][mask].tolist()}),
        attempts=count,
        scored=int(scored.sum()),
        coverage=float(scored.mean()) if count else None,
    )


def _refuse_shared(masks: Sequence[Array], choices: Sequence[Choice]) -> None:
    for place, first in enumerate(masks):
        for other in range(place + 1, len(masks)):
            if shared := int((first & masks[other]).sum()):
                names = f"{choices[place].name!r} and {choices[other].name!r}"
                many = plural(shared, "attempt")
                raise BadInput(f"{names} have {many} in common: name what differs.")


def _refuse_apart(held: Sequence[Held], left_out: Sequence[str] | None) -> None:
    """Sides without an attempt; and without a common task, where they are to be compared."""
    for one in held:
        if not one.side.attempts:
            raise BadInput(
                f"{one.side.name!r} has no attempt at a task: `closeloop run` makes some."
            )
    first = held[0]
    for other in held[1:] if left_out is not None else ():
        if not first.values.keys() & other.values.keys():
            why = f" ({left_out[0]})" if left_out else ""
            raise BadInput(
                f"{first.side.name!r} and {other.side.name!r} have no task in common{why}: "
                "run both on the same tasks."
            )


def _refusals(held: Sequence[Held]) -> Iterator[str]:
    for side in (one.side for one in held):
        if side.coverage is not None and side.coverage < COVERAGE_FLOOR:
            yield (
                f"Only {side.coverage:.0%} of the attempts of {side.name!r} could be scored, and "
                f"under {COVERAGE_FLOOR:.0%} there is no verdict: `closeloop run --rerun unscored` "
                "makes the others again."
            )


def _left_out(
    work: Work, masks: Sequence[Array], choices: Sequence[Choice]
) -> tuple[list[str], set[str]]:
    """Tasks that ask for something else, or were graded in another way, on the two sides."""
    columns = work.columns
    asked: dict[str, dict[str, set[str]]] = {}
    graded: dict[str, set[str]] = {}
    for mask, choice in zip(masks, choices, strict=True):
        for task, digest, grading in zip(
            columns["task"][mask].tolist(),
            columns["task_digest"][mask].tolist(),
            columns["grading"][mask].tolist(),
            strict=True,
        ):
            asked.setdefault(task or digest, {}).setdefault(choice.name, set()).add(digest)
            if grading is not None:
                graded.setdefault(digest, set()).add(grading)
    lines = []
    for task, by_side in sorted(asked.items()):
        if len(by_side) < len(choices):
            lines.append(f"task {task!r} was not tried by all of them")
        elif len({frozenset(each) for each in by_side.values()}) > 1:
            lines.append(f"task {task!r} asked for something else")
    dropped = {digest for digest, each in graded.items() if len(each) > 1}
    names = {key: task for task, sides in asked.items() for one in sides.values() for key in one}
    lines += [
        f"task {names[digest]!r} was graded in two ways: `closeloop run --regrade` makes them one"
        for digest in sorted(dropped)
    ]
    return lines, dropped
