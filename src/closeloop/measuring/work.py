"""The work that numbers are about: the attempts that count, column by column."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from closeloop.measuring.attempts import AT_ONCE, basis_of, measure_stored
from closeloop.model.record import Record
from closeloop.model.task import Task
from closeloop.model.variant import Variant
from closeloop.process.rulebook import Rulebook
from closeloop.store import Store
from closeloop.store.numbers import Columns, Span, columns_of
from closeloop.tasks.seal import alias, hide_task, sealed_of

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]

Tell = Callable[[int, int], None]
"""How many of how many are measured now."""
SCORED = ("pass", "fail")
TEXTS = frozenset(
    [
        "id",
        "origin",
        "task",
        "task_digest",
        "variant",
        "exit",
        "user",
        "grading",
        "outcome",
        "agent",
        "model",
        "repo",
        "branch",
        "attempt",
        "basis",
        "category",
        "modes",
        "risk",
    ]
)


class Work(Record):
    """Attempts, a place in each column for each."""

    columns: dict[str, Array]
    """Numbers, NaN where one is not known; and texts, None there."""
    tasks: dict[str, Task]
    variants: dict[str, Variant]
    """By digest."""
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.columns["id"])


def work_of(
    store: Store, book: Rulebook, span: Span | None = None, tell: Tell = lambda done, of: None
) -> Work:
    """What is kept of some time or of some variants, measured by the rules where it was not."""
    span = span or Span()
    tables = store.numbers
    known = _last_tries(tables.attempts(span))
    columns = {name: _array(name, values) for name, values in known.items()}
    places = {name: place for place, name in enumerate(known["id"])}
    for part in _measured(store, book, span, known, tell):
        _put(columns, part, places)
    _put(columns, tables.deliveries(span), places)
    notes = tuple(_set_apart(columns))
    tasks = _sealed(columns, tables.tasks())
    return Work(columns=columns, tasks=tasks, variants=tables.variants(), notes=notes)


def _sealed(columns: dict[str, Array], tasks: dict[str, Task]) -> dict[str, Task]:
    """Held-out tasks go by another name, and say no more of themselves."""
    sealed = sealed_of([*tasks.values()])
    if sealed:
        digests = columns["task_digest"]
        hidden = is_one(digests, [*sealed])
        columns["task"][hidden] = [alias(digest) for digest in digests[hidden].tolist()]
    return {key: hide_task(task) for key, task in tasks.items()}


def is_one(column: Array, texts: Sequence[str]) -> Array:
    """Where a text is one of a few: numpy's own way sorts, which texts are slow at."""
    import numpy as np

    wanted = frozenset(texts)
    return np.array([text in wanted for text in column.tolist()], dtype=bool)


def _array(name: str, values: Sequence[Any]) -> Array:
    import numpy as np

    return np.array(values, dtype=object if name in TEXTS else np.float64)


def _put(columns: dict[str, Array], part: Columns, places: dict[str, int]) -> None:
    """Join what is known of some attempts to those that count."""
    import numpy as np

    at = np.array([places.get(name, -1) for name in part["attempt"]], dtype=np.intp)
    there = at >= 0
    for name, values in part.items():
        blank: Any = None if name in TEXTS else np.nan
        kind = object if name in TEXTS else np.float64
        column = columns.setdefault(name, np.full(len(places), blank, dtype=kind))
        column[at[there]] = _array(name, values)[there]


def _last_tries(known: Columns) -> Columns:
    """One attempt a place: of an experiment the last try, of a session all there is."""
    last: dict[Any, int] = {}
    places = zip(known["task_digest"], known["variant"], known["number"], strict=True)
    retries = known["retry"]
    for index, place in enumerate(places):
        key = index if place[0] is None or place[1] is None else place
        if key not in last or retries[last[key]] <= retries[index]:
            last[key] = index
    if len(last) == len(retries):
        return known
    kept = sorted(last.values())
    return {name: [column[index] for index in kept] for name, column in known.items()}


def _measured(
    store: Store, book: Rulebook, span: Span, known: Columns, tell: Tell
) -> Iterator[Columns]:
    """What the rules say of each attempt now; said first where they were never asked."""
    graded = list(zip(known["grading"], known["version"], known["outcome"], strict=True))
    bases = {each: basis_of(each, book) for each in set(graded)}
    missing = {
        name: bases[each]
        for name, each, events in zip(known["id"], graded, known["events"], strict=True)
        if events is not None
    }
    made = store.numbers.measurements(span)
    pairs = zip(made["attempt"], made["basis"], strict=True)
    right = [missing.get(name) == basis for name, basis in pairs]
    yield (
        made
        if all(right)
        else {
            name: [value for value, holds in zip(values, right, strict=True) if holds]
            for name, values in made.items()
        }
    )
    for name, holds in zip(made["attempt"], right, strict=True):
        if holds:
            del missing[name]
    rest = list(missing.items())
    for first in range(0, len(rest), AT_ONCE):
        part = rest[first : first + AT_ONCE]
        new = [(name, basis, measure_stored(store, name, book)) for name, basis in part]
        store.save_measurements(new)
        yield columns_of(new)
        tell(first + len(part), len(rest))


def _set_apart(columns: dict[str, Array]) -> Iterator[str]:
    """Take out what must not be mixed in, and say so: it is not known, and never zero."""
    import numpy as np

    outcome, version, seconds = (columns[name] for name in ("outcome", "version", "seconds"))
    scored = is_one(outcome, SCORED)
    if scored.any() and (old := scored & (version < version[scored].max())).any():
        outcome[old] = None
        yield (
            f"{old.sum()} attempts were graded by an older grader than version "
            f"{version[scored].max():.0f} and count as unscored: `closeloop run --regrade` grades "
            "them anew."
        )
    if (backwards := seconds < 0).any():
        seconds[backwards] = np.nan
        yield f"{backwards.sum()} attempts end before they start: their time is not known."
