"""The work that numbers are about: the attempts that count, column by column."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import repeat
from math import isnan
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from closeloop.metrics.attempt_measuring import BATCH_ATTEMPTS, basis_from_grade, measure_from_store
from closeloop.process.rulebook import Rulebook
from closeloop.records.errors import BadInput, unknown_name_error
from closeloop.records.estimate import Metric
from closeloop.records.record import Record
from closeloop.records.task import Task, Variant
from closeloop.store import Store
from closeloop.store.metrics_section import (
    AttemptColumns,
    AttemptSpan,
    Column,
    TextColumn,
    align_columns,
)
from closeloop.tasks.sealed_tasks import held_out_digests, hide_task, task_alias
from closeloop.text.wording import count_with_noun, repository_name

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]


MeasuringProgress = Callable[[int, int], None]
"""How many of how many are measured now."""
SCORED_OUTCOMES = ("pass", "fail")


class AttemptTable(Record):
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
    metrics: dict[str, tuple[Metric, Any]] = {}
    """By name, the scores of the ledger that are at hand, as metrics, with their values."""

    def __len__(self) -> int:
        return len(self.attempts)

    def select_rows(self, mask: Any) -> AttemptTable:
        """Some of the attempts, with all that is known of them."""
        kept = zip(self.attempts, mask.tolist(), strict=True)
        return replace(
            self,
            attempts=[name for name, keep in kept if keep],
            columns={name: column[mask] for name, column in self.columns.items()},
        )


def load_attempt_table(
    store: Store,
    book: Rulebook,
    span: AttemptSpan | None = None,
    tell: MeasuringProgress = lambda done, of: None,
    *,
    again: bool | None = True,
) -> AttemptTable:
    """What is kept of some time or of some variants, measured by the rules where it was not.

    What was measured before the rules, their code or settings, or the grade changed is measured
    again; if it may not be, it stays as it was, and a note tells how much of it there is. With
    None nothing is measured, and no trace read.
    """
    span = span or AttemptSpan()
    tables = store.numbers
    known = tables.load_attempt_columns(span)
    if span.attempts is None:
        known = _keep_last_tries(known)
    places = {name: place for place, name in enumerate(known.attempts)}
    delivered = tables.load_delivery_columns(span)
    measured, outdated = _measurement_columns(store, book, span, known, tell, again)
    columns = {
        **known.held,
        **measured,
        **align_columns(delivered, _row_places(delivered, places), len(places)),
    }
    columns["arm"] = _memory_arms(store, known)
    notes = (*_exclude_unusable(columns), *_tell_outdated(outdated, len(places)))
    tasks = tables.load_tasks()
    _forget_needless_questions(columns, tasks)
    tasks = _hide_sealed_tasks(columns, tasks)
    return AttemptTable(
        attempts=known.attempts,
        columns=columns,
        tasks=tasks,
        variants=tables.load_variants(),
        notes=notes,
        outdated=outdated,
    )


def _row_places(part: AttemptColumns, places: dict[str, int]) -> Array:
    """Where each row's attempt stands; -1 where it does not count."""
    import numpy as np

    row_numbers = map(places.get, part.attempts, repeat(-1))
    return np.fromiter(row_numbers, np.intp, len(part.attempts))


def _memory_arms(store: Store, known: AttemptColumns) -> TextColumn:
    """Whether each attempt was told what reviewers taught, by its own name or by its branch."""
    import numpy as np

    arms: dict[tuple[str | None, ...], str] = {}
    for offer in store.memory.list_offers():
        arms[(offer.key,)] = arms[(offer.repo, offer.key)] = offer.arm
    codes = np.zeros(len(known.attempts), np.intp)
    labels = (None, "memory", "control")
    if arms:
        repos = known.held["repo"].translated(lambda repo: repo and repository_name(repo))
        branches = zip(repos.tolist(), known.held["branch"].tolist(), strict=True)
        for place, (name, branch) in enumerate(zip(known.attempts, branches, strict=True)):
            codes[place] = labels.index(arms.get((name,)) or arms.get(branch))
    return TextColumn(codes=codes, labels=labels)


def _hide_sealed_tasks(columns: dict[str, Column], tasks: dict[str, Task]) -> dict[str, Task]:
    """Held-out tasks go by another name, and say no more of themselves."""
    if sealed := held_out_digests([*tasks.values()]):
        names = columns["task_digest"].translated(
            lambda digest: task_alias(digest) if digest in sealed else None
        )
        columns["task"] = names.otherwise(columns["task"])
    return {key: hide_task(task) for key, task in tasks.items()}


def _forget_needless_questions(columns: dict[str, Column], tasks: dict[str, Task]) -> None:
    """Whether somebody asked first is only known of tasks that lack a decision."""
    import numpy as np

    ambiguous = {key for key, task in tasks.items() if task.ambiguous}
    columns["asked"] = np.where(columns["task_digest"].are(ambiguous), columns["asked"], np.nan)


def _keep_last_tries(known: AttemptColumns) -> AttemptColumns:
    """One attempt a place: of an experiment the last try, of a session all there is."""
    import numpy as np

    task, variant, number, retry = (
        known.held[name] for name in ("task_digest", "variant", "number", "retry")
    )
    placed = np.flatnonzero(task.known() & variant.known())
    keys = (retry[placed], number[placed], variant.codes[placed], task.codes[placed])
    order = placed[np.lexsort(keys)]
    is_superseded = np.ones(max(0, len(order) - 1), np.bool_)
    for column in (number, variant.codes, task.codes):
        is_superseded &= column[order][1:] == column[order][:-1]
    if not is_superseded.any():
        return known
    is_kept = np.ones(len(known.attempts), np.bool_)
    is_kept[order[:-1][is_superseded]] = False
    return AttemptColumns(
        attempts=[
            name for name, keep in zip(known.attempts, is_kept.tolist(), strict=True) if keep
        ],
        held={name: column[is_kept] for name, column in known.held.items()},
    )


def _measurement_columns(
    store: Store,
    book: Rulebook,
    span: AttemptSpan,
    known: AttemptColumns,
    tell: MeasuringProgress,
    again: bool | None,
) -> tuple[dict[str, Column], int]:
    """What the rules say of each attempt; how many of those are as they were said before.

    They are asked first where they never were, and, if they may be, where something changed.
    """
    import numpy as np

    places = {name: place for place, name in enumerate(known.attempts)}
    bases = _measurement_bases(known, book)
    measurements, at, before = _load_measurements(store, span, bases, places)
    missing = _missing(bases, at if again else before)
    unmeasured = [] if again is None else np.flatnonzero(missing).tolist()
    for first in range(0, len(unmeasured), BATCH_ATTEMPTS):
        part = unmeasured[first : first + BATCH_ATTEMPTS]
        attempt_bases = zip(
            [known.attempts[place] for place in part], bases[part].tolist(), strict=True
        )
        store.save_measurements(
            [(*one, measure_from_store(store, one[0], book)) for one in attempt_bases]
        )
        tell(first + len(part), len(unmeasured))
    if unmeasured:
        measurements, at, before = _load_measurements(store, span, bases, places)
    outdated = _missing(bases, at)
    # The last is what -1, an attempt that does not count, finds.
    at = np.where(np.append(outdated, False)[before], before, at)
    return align_columns(measurements, at, len(places)), int(outdated.sum())


def _missing(bases: TextColumn, at: Array) -> Array:
    """Which attempts with a trace have no measurement among those at these places."""
    missing = bases.known()
    missing[at[at >= 0]] = False
    return missing


def _measurement_bases(known: AttemptColumns, book: Rulebook) -> TextColumn:
    """What each attempt with a trace is measured from."""
    import numpy as np

    grading, outcome = known.held["grading"], known.held["outcome"]
    versions, version = np.unique(known.held["version"], return_inverse=True)
    kinds = (grading.codes.astype(np.int64) * len(versions) + version) * len(outcome.labels)
    _, rows, codes = np.unique(kinds + outcome.codes, return_index=True, return_inverse=True)
    labels = [
        basis_from_grade((graded, None if each != each else int(each), word), book)  # noqa: PLR0124
        for graded, each, word in zip(
            grading[rows].tolist(),
            known.held["version"][rows].tolist(),
            outcome[rows].tolist(),
            strict=True,
        )
    ]
    has_events = ~np.isnan(known.held["events"])
    return TextColumn(codes=np.where(has_events, codes, len(labels)), labels=(*labels, None))


def _load_measurements(
    store: Store, span: AttemptSpan, bases: TextColumn, places: dict[str, int]
) -> tuple[AttemptColumns, Array, Array]:
    """All measurements; the place of its attempt for each that holds now, and for each."""
    import numpy as np

    measurements = store.numbers.load_measurement_columns(span)
    basis, at = measurements.held.pop("basis"), _row_places(measurements, places)
    codes = {label: code for code, label in enumerate(basis.labels)}
    now = np.array([codes.get(label, -1) for label in bases.labels])[bases.codes]
    # The last is what -1, an attempt that does not count, finds.
    return measurements, np.where(np.append(now, -1)[at] == basis.codes, at, -1), at


def _tell_outdated(outdated: int, attempts: int) -> Iterator[str]:
    if outdated:
        yield (
            f"{outdated:,} of {count_with_noun(attempts, 'attempt')} are outdated: measured before"
            " the rules, their settings or the grade changed. `closeloop measure --all` measures"
            " them again."
        )


def _exclude_unusable(columns: dict[str, Column]) -> Iterator[str]:
    """Take out what must not be mixed in, and say so: it is not known, and never zero."""
    import numpy as np

    outcome, version, seconds = (columns[name] for name in ("outcome", "version", "seconds"))
    scored = outcome.are(SCORED_OUTCOMES)
    if scored.any() and (is_outdated := scored & (version < version[scored].max())).any():
        codes = np.where(is_outdated, len(outcome.labels), outcome.codes)
        columns["outcome"] = TextColumn(codes=codes, labels=(*outcome.labels, None))
        were = count_with_noun(int(is_outdated.sum()), "attempt was", "attempts were")
        yield (
            f"{were} graded by an older grader than version {version[scored].max():.0f} "
            "and left unscored here: `closeloop run --regrade` grades anew."
        )
    if (task_attempts := int(columns["task_digest"].known().sum())) and not scored.any():
        yield (
            f"None of {task_attempts} attempts at tasks could be scored: `closeloop run --rerun"
            " unscored` makes them again."
        )
    if (backwards := seconds < 0).any():
        seconds[backwards] = np.nan
        end = count_with_noun(
            int(backwards.sum()), "attempt ends before it starts", "attempts end before they start"
        )
        yield f"{end}: no time is known."


# By what work can be grouped: repository, user, agent, model, prompt, tag, week and more.

UNKNOWN_LABEL = "–"
"""Where it is not known."""
DAY_MICROSECONDS = 86_400_000_000


def group_attempts(
    work: AttemptTable, by: Sequence[str]
) -> tuple[list[tuple[str, ...]], Array, Array]:
    """The groups in order; and for each attempt in each of its groups its place, and the group's.

    With several tags, an attempt counts in each of their groups.
    """
    import numpy as np

    for name in by:
        if name not in DIMENSIONS:
            raise unknown_name_error("grouping", name, DIMENSIONS)
    places = np.arange(len(work))
    names: list[tuple[str, ...]] = [()]
    groups = np.zeros(len(work), dtype=np.intp)
    for name in by:
        dimension = DIMENSIONS[name](work)[places]
        if name == "tag":
            rows, dimension = _split_labels(dimension)
            places, groups = places[rows], groups[rows]
        labels = sorted({label or UNKNOWN_LABEL for label in dimension.labels})
        ranks = {label: rank for rank, label in enumerate(labels)}
        parts = np.array([ranks[label or UNKNOWN_LABEL] for label in dimension.labels], np.intp)[
            dimension.codes
        ]
        present_codes, groups = np.unique(groups * len(labels) + parts, return_inverse=True)
        pairs = (divmod(code, len(labels)) for code in present_codes.tolist())
        names = [(*names[before], labels[own]) for before, own in pairs]
    return names, places, groups


def _split_labels(several: TextColumn) -> tuple[Array, TextColumn]:
    """Of rows with any number of labels: for each label its row, and the label."""
    import numpy as np

    labels = [label or (None,) for label in several.labels]
    counts = np.array([len(each) for each in labels], np.intp)
    rows = np.repeat(np.arange(len(several)), counts[several.codes])
    first_codes = np.concatenate([[0], np.cumsum(counts)])[several.codes[rows]]
    within = np.arange(len(rows)) - np.searchsorted(rows, rows)
    flat_labels = tuple(label for each in labels for label in each)
    return rows, TextColumn(codes=first_codes + within, labels=flat_labels)


def _column_dimension(name: str) -> Callable[[AttemptTable], TextColumn]:
    return lambda work: work.columns[name]


def _variant_dimension(name: str, session: str | None) -> Callable[[AttemptTable], TextColumn]:
    """What the variant says; of a session, what its files do."""

    def held(work: AttemptTable) -> TextColumn:
        known = {key: getattr(variant, name) or None for key, variant in work.variants.items()}
        said: TextColumn = work.columns["variant"].translated(known.get)
        return said.otherwise(work.columns[session]) if session else said

    return held


def _repository_labels(work: AttemptTable) -> TextColumn:
    known = {key: task.repo or None for key, task in work.tasks.items()}
    task_repos: TextColumn = work.columns["task_digest"].translated(known.get)
    repos: TextColumn = task_repos.otherwise(work.columns["repo"])
    # A clone says its address, a pull request only owner and name.
    return repos.translated(lambda name: name and repository_name(name))


def _tag_labels(work: AttemptTable) -> TextColumn:
    known = {key: tuple(dict.fromkeys(task.tags)) for key, task in work.tasks.items()}
    tags: TextColumn = work.columns["task_digest"].translated(known.get)
    return tags


def _week_labels(work: AttemptTable) -> TextColumn:
    """`2026-W46`, in UTC; each day is looked up once."""
    import numpy as np

    days, codes = np.unique(work.columns["started"] // DAY_MICROSECONDS, return_inverse=True)
    return TextColumn(codes=codes, labels=tuple(map(_iso_week, days.tolist())))


def _iso_week(day: float) -> str | None:
    if isnan(day):
        return None
    year, week, _ = datetime.fromtimestamp(day * 86400, UTC).isocalendar()
    return f"{year}-W{week:02}"


DIMENSIONS: dict[str, Callable[[AttemptTable], TextColumn]] = {
    "repo": _repository_labels,
    "user": _column_dimension("user"),
    "agent": _variant_dimension("agent", "agent"),
    "model": _variant_dimension("model", "model"),
    "prompt": _variant_dimension("prompt", None),
    "variant": _variant_dimension("name", None),
    "tag": _tag_labels,
    "task": _column_dimension("task"),
    "week": _week_labels,
    "risk": _column_dimension("risk"),
    "arm": _column_dimension("arm"),
}


# What a name on the command line stands for: a variant, an agent, a model, a prompt, a time.

VARIANT_FIELDS = ("agent", "model", "prompt")


class AttemptSelection(Record):
    """Attempts by their variants or by their time."""

    name: str
    variants: tuple[str, ...] | None = None
    """Digests; None is any."""
    since: datetime | None = None
    until: datetime | None = None
    note: str | None = None


def select_attempts(name: str, variants: Mapping[str, Variant]) -> AttemptSelection:
    """`closer`, a digest or its beginning, `agent:X`, `model:X`, `prompt:ID`, `DAY..DAY`."""
    if not variants:
        raise BadInput("No variant has tried a task yet: `closeloop run` lets some.")
    if ".." in name:
        return _select_period(name)
    field, colon, value = name.partition(":")
    if colon and field in VARIANT_FIELDS:
        matches = [
            key
            for key, one in variants.items()
            if _matches_field(getattr(one, field), value, field)
        ]
        if not matches:
            known = {getattr(one, field) for one in variants.values()} - {None}
            raise unknown_name_error(field, value, sorted(known))
        return AttemptSelection(name=name, variants=tuple(matches))
    same_name = [key for key, one in variants.items() if one.name == name]
    if same_name:
        older = len(same_name) - 1
        note = (
            f"{count_with_noun(older, 'older variant')} of that name left out: digests name each"
            " one."
        )
        return AttemptSelection(name=name, variants=(same_name[-1],), note=note if older else None)
    prefix_matches = [key for key in variants if key.startswith(name)] if name else []
    if len(prefix_matches) == 1:
        return AttemptSelection(name=name, variants=(prefix_matches[0],))
    if prefix_matches:
        raise BadInput(
            f"{name!r} begins the digests of {len(prefix_matches)} variants: type more of it."
        )
    raise unknown_name_error("variant", name, sorted({one.name for one in variants.values()}))


def _matches_field(held: str | None, value: str, field: str) -> bool:
    if held is None or not value:
        return False
    return held.startswith(value) if field == "prompt" else held == value


def _select_period(name: str) -> AttemptSelection:
    first, _, last = name.partition("..")
    since, until = _parse_moment(first), _parse_moment(last)
    if (since is None and until is None) or (since and until and since >= until):
        raise BadInput(f"{name!r} is no time: write it like 2026-11-01..2026-11-08.")
    return AttemptSelection(name=name, since=since, until=until)


def _parse_moment(text: str) -> datetime | None:
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise BadInput(f"{text!r} is no date: write it like 2026-11-01.") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
