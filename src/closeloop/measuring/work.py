"""The work that numbers are about: the attempts that count, column by column."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import repeat
from typing import TYPE_CHECKING, Any

from closeloop.measuring.attempts import AT_ONCE, basis_of, measure_stored
from closeloop.model.addresses import repository_name
from closeloop.model.plural import plural
from closeloop.model.record import Record
from closeloop.model.task import Task
from closeloop.model.variant import Variant
from closeloop.process.rulebook import Rulebook
from closeloop.store import Store
from closeloop.store.columns import Column, Columns, Texts, joined
from closeloop.store.numbers import Span
from closeloop.tasks.seal import alias, hide_task, sealed_of

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]

Tell = Callable[[int, int], None]
"""How many of how many are measured now."""
SCORED = ("pass", "fail")


class Work(Record):
    """Attempts, a place in each column for each."""

    attempts: list[str]
    columns: dict[str, Column]
    """Numbers, NaN where one is not known; and texts, None there."""
    tasks: dict[str, Task]
    variants: dict[str, Variant]
    """By digest."""
    notes: tuple[str, ...] = ()
    outdated: int = 0
    """So many were measured before something changed, and are as they were then."""

    def __len__(self) -> int:
        return len(self.attempts)


def work_of(
    store: Store,
    book: Rulebook,
    span: Span | None = None,
    tell: Tell = lambda done, of: None,
    *,
    again: bool = True,
) -> Work:
    """What is kept of some time or of some variants, measured by the rules where it was not.

    What was measured before the rules, their code or settings, or the grade changed is measured
    again; if it may not be, it stays as it was, and a note tells how much of it there is.
    """
    span = span or Span()
    tables = store.numbers
    known = _last_tries(tables.attempts(span))
    places = {name: place for place, name in enumerate(known.attempts)}
    delivered = tables.deliveries(span)
    measured, outdated = _measured(store, book, span, known, tell, again)
    columns = {
        **known.held,
        **measured,
        **joined(delivered, _places(delivered, places), len(places)),
    }
    columns["arm"] = _arms(store, known)
    notes = (*_set_apart(columns), *_tell_outdated(outdated, len(places)))
    tasks = _sealed(columns, tables.tasks())
    return Work(
        attempts=known.attempts,
        columns=columns,
        tasks=tasks,
        variants=tables.variants(),
        notes=notes,
        outdated=outdated,
    )


def _places(part: Columns, places: dict[str, int]) -> Array:
    """Where each row's attempt stands; -1 where it does not count."""
    import numpy as np

    found = map(places.get, part.attempts, repeat(-1))
    return np.fromiter(found, np.intp, len(part.attempts))


def _arms(store: Store, known: Columns) -> Texts:
    """Whether each attempt was told what reviewers taught, by its own name or by its branch."""
    import numpy as np

    arms: dict[tuple[str | None, ...], str] = {}
    for offer in store.memory.offers():
        arms[(offer.key,)] = arms[(offer.repo, offer.key)] = offer.arm
    codes = np.zeros(len(known.attempts), np.intp)
    labels = (None, "memory", "control")
    if arms:
        repos = known.held["repo"].translated(lambda repo: repo and repository_name(repo))
        branches = zip(repos.tolist(), known.held["branch"].tolist(), strict=True)
        for place, (name, branch) in enumerate(zip(known.attempts, branches, strict=True)):
            codes[place] = labels.index(arms.get((name,)) or arms.get(branch))
    return Texts(codes=codes, labels=labels)


def _sealed(columns: dict[str, Column], tasks: dict[str, Task]) -> dict[str, Task]:
    """Held-out tasks go by another name, and say no more of themselves."""
    if sealed := sealed_of([*tasks.values()]):
        names = columns["task_digest"].translated(
            lambda digest: alias(digest) if digest in sealed else None
        )
        columns["task"] = names.otherwise(columns["task"])
    return {key: hide_task(task) for key, task in tasks.items()}


def _last_tries(known: Columns) -> Columns:
    """One attempt a place: of an experiment the last try, of a session all there is."""
    import numpy as np

    task, variant, number, retry = (
        known.held[name] for name in ("task_digest", "variant", "number", "retry")
    )
    placed = np.flatnonzero(task.known() & variant.known())
    keys = (retry[placed], number[placed], variant.codes[placed], task.codes[placed])
    order = placed[np.lexsort(keys)]
    same = np.ones(max(0, len(order) - 1), np.bool_)
    for column in (number, variant.codes, task.codes):
        same &= column[order][1:] == column[order][:-1]
    if not same.any():
        return known
    kept = np.ones(len(known.attempts), np.bool_)
    kept[order[:-1][same]] = False
    return Columns(
        attempts=[name for name, keep in zip(known.attempts, kept.tolist(), strict=True) if keep],
        held={name: column[kept] for name, column in known.held.items()},
    )


def _measured(
    store: Store, book: Rulebook, span: Span, known: Columns, tell: Tell, again: bool
) -> tuple[dict[str, Column], int]:
    """What the rules say of each attempt; how many of those are as they were said before.

    They are asked first where they never were, and, if they may be, where something changed.
    """
    import numpy as np

    places = {name: place for place, name in enumerate(known.attempts)}
    bases = _bases(known, book)
    made, at, before = _made(store, span, bases, places)
    rest = np.flatnonzero(_missing(bases, at if again else before)).tolist()
    for first in range(0, len(rest), AT_ONCE):
        part = rest[first : first + AT_ONCE]
        named = zip([known.attempts[place] for place in part], bases[part].tolist(), strict=True)
        store.save_measurements([(*one, measure_stored(store, one[0], book)) for one in named])
        tell(first + len(part), len(rest))
    if rest:
        made, at, before = _made(store, span, bases, places)
    outdated = _missing(bases, at)
    # The last is what -1, an attempt that does not count, finds.
    at = np.where(np.append(outdated, False)[before], before, at)
    return joined(made, at, len(places)), int(outdated.sum())


def _missing(bases: Texts, at: Array) -> Array:
    """Which attempts with a trace have no measurement among those at these places."""
    missing = bases.known()
    missing[at[at >= 0]] = False
    return missing


def _bases(known: Columns, book: Rulebook) -> Texts:
    """What each attempt with a trace is measured from."""
    import numpy as np

    grading, outcome = known.held["grading"], known.held["outcome"]
    versions, version = np.unique(known.held["version"], return_inverse=True)
    kinds = (grading.codes.astype(np.int64) * len(versions) + version) * len(outcome.labels)
    _, rows, codes = np.unique(kinds + outcome.codes, return_index=True, return_inverse=True)
    labels = [
        basis_of((graded, None if each != each else int(each), word), book)  # noqa: PLR0124
        for graded, each, word in zip(
            grading[rows].tolist(),
            known.held["version"][rows].tolist(),
            outcome[rows].tolist(),
            strict=True,
        )
    ]
    told = ~np.isnan(known.held["events"])
    return Texts(codes=np.where(told, codes, len(labels)), labels=(*labels, None))


def _made(
    store: Store, span: Span, bases: Texts, places: dict[str, int]
) -> tuple[Columns, Array, Array]:
    """All measurements; the place of its attempt for each that holds now, and for each."""
    import numpy as np

    made = store.numbers.measurements(span)
    basis, at = made.held.pop("basis"), _places(made, places)
    codes = {label: code for code, label in enumerate(basis.labels)}
    now = np.array([codes.get(label, -1) for label in bases.labels])[bases.codes]
    # The last is what -1, an attempt that does not count, finds.
    return made, np.where(np.append(now, -1)[at] == basis.codes, at, -1), at


def _tell_outdated(outdated: int, attempts: int) -> Iterator[str]:
    if outdated:
        yield (
            f"{outdated:,} of {plural(attempts, 'attempt')} are outdated: measured before the "
            "rules, their settings or the grade changed. `closeloop measure --all` measures them "
            "again."
        )


def _set_apart(columns: dict[str, Column]) -> Iterator[str]:
    """Take out what must not be mixed in, and say so: it is not known, and never zero."""
    import numpy as np

    outcome, version, seconds = (columns[name] for name in ("outcome", "version", "seconds"))
    scored = outcome.are(SCORED)
    if scored.any() and (old := scored & (version < version[scored].max())).any():
        codes = np.where(old, len(outcome.labels), outcome.codes)
        columns["outcome"] = Texts(codes=codes, labels=(*outcome.labels, None))
        were = plural(int(old.sum()), "attempt was", "attempts were")
        yield (
            f"{were} graded by an older grader than version {version[scored].max():.0f} "
            "and left unscored here: `closeloop run --regrade` grades anew."
        )
    if (asked := int(columns["task_digest"].known().sum())) and not scored.any():
        yield (
            f"None of {asked} attempts at tasks could be scored: `closeloop run --rerun unscored` "
            "makes them again."
        )
    if (backwards := seconds < 0).any():
        seconds[backwards] = np.nan
        end = plural(
            int(backwards.sum()), "attempt ends before it starts", "attempts end before they start"
        )
        yield f"{end}: no time is known."
