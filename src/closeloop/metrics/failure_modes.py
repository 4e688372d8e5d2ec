"""What people, judges and a team's own programs say of attempts, beside the rules and the grade.

Reviews leave it in the ledger of scores: whether they would merge, how long they took, and which
failure modes they saw. Who reviews is asked for all five modes, so none is left unexamined; a
review that a program hands in without them has examined none.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import product
from typing import TYPE_CHECKING, Any, Literal, get_args

from closeloop.metrics.attempt_values import FAILURE_MODES
from closeloop.records.finding import ModeSource, ModeTag
from closeloop.records.score import Score, ScoreSource
from closeloop.store import Store
from closeloop.store.attempt_rows import join_modes
from closeloop.store.metrics_section import (
    AttemptSpan,
    Column,
    RowPlacer,
    TextColumn,
    divide_known,
)
from closeloop.text.wording import name_score, truncate_words

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]

VERDICT, SECONDS = "would-merge", "review-seconds"
MODE_NAMES = {name_score(mode): mode for mode in FAILURE_MODES}
GivenSource = Literal["person", "judge", "code"]
GIVING_SOURCES: tuple[GivenSource, ...] = get_args(GivenSource)
LEAST_SHOWN = 0.5
"""A value from here on says yes."""
MAX_REASON_CHARS = 200


def load_said_columns(
    store: Store, span: AttemptSpan, places: Mapping[str, int]
) -> dict[str, Column]:
    """What was said of each attempt in its place: the verdict of people, their time, the modes.

    And of each name and source it was taken from the scores themselves, as `given_column` has it.
    """
    import numpy as np

    size, placer = len(places), RowPlacer(places)
    unknown = np.full(size, np.nan)
    columns: dict[str, Column] = {"would_merge": unknown, "reviewer_seconds": unknown}
    shown, examined = np.zeros((2, size), np.int64)
    asked: list[tuple[str, GivenSource]] = [(VERDICT, "person"), (SECONDS, "person"), *_MODE_BITS]
    sources = store.scores.list_sources()
    for name, source in asked:
        if source not in sources.get(name, ()):
            continue
        held = store.scores.load_score_columns(span, name, source)
        at, value = placer.find_newest(held)
        count = np.bincount(at, minlength=size)
        total = np.bincount(at, value, minlength=size)
        yes = np.bincount(at, value >= LEAST_SHOWN, minlength=size)
        if source == "person":  # of others not every last word counts
            columns[given_column(name, source)] = divide_known(total, count)
        if name == VERDICT:
            columns["would_merge"] = np.where(count > 0, yes == count, np.nan)
        elif name == SECONDS:
            columns["reviewer_seconds"] = np.where(count > 0, total, np.nan)
        else:
            shown |= np.where(yes > 0, _MODE_BITS[name, source], 0)
            examined |= np.where(count > 0, _MODE_BITS[name, source], 0)
    return {**columns, "said_modes": _name_modes(shown), "said_examined": _name_modes(examined)}


def given_column(name: str, source: ScoreSource) -> str:
    """Where the table of attempts has the scores of a name and source, if it has them."""
    return f"given {source}:{name}"


_MODE_BITS: dict[tuple[str, GivenSource], int] = {
    (name, source): 1 << place
    for place, (name, source) in enumerate(product(MODE_NAMES, GIVING_SOURCES))
}


def _name_modes(marks: Array) -> TextColumn:
    """For each place its modes with their sources, as one text."""
    import numpy as np

    kinds, codes = np.unique(marks, return_inverse=True)
    labels = [
        join_modes(
            (MODE_NAMES[name], source) for (name, source), bit in _MODE_BITS.items() if kind & bit
        )
        or None
        for kind in kinds.tolist()
    ]
    return TextColumn(codes=codes, labels=tuple(labels))


# The same of a few attempts, with the reasons.


def load_said_tags(store: Store, attempts: Collection[str]) -> dict[str, tuple[ModeTag, ...]]:
    """By attempt: the modes that people, judges, checks of its change and later reverts show."""
    tags: dict[str, list[ModeTag]] = {}
    for attempt, mode, source in store.numbers.list_checked_modes(attempts):
        reason = "The newest check of the change says so."
        tags.setdefault(attempt, []).append(ModeTag(mode=mode, reason=reason, source=source))
    scores = store.scores.list_attempts_scores(attempts)
    notes = {(one.attempt, one.by): one.note for one in scores if one.name == VERDICT}
    for one in scores:
        if one.name in MODE_NAMES and one.value is not None and one.value >= LEAST_SHOWN:
            tags.setdefault(one.attempt, []).append(_tag_from_score(one, notes))
    for attempt in store.numbers.list_regressed_attempts(attempts):
        reason = "It was taken back or repaired after it was merged."
        tag = ModeTag(mode="silent regression", reason=reason, source="delivery")
        tags.setdefault(attempt, []).append(tag)
    return {attempt: tuple(each) for attempt, each in tags.items()}


def _tag_from_score(one: Score, notes: Mapping[tuple[str, str], str]) -> ModeTag:
    note = truncate_words(one.note or notes.get((one.attempt, one.by), ""), MAX_REASON_CHARS)
    source: Any = one.source if one.source in get_args(ModeSource) else "code"
    reason = f"{one.by or one.source} says so" + (f": {note}" if note else ".")
    return ModeTag(mode=MODE_NAMES[one.name], reason=reason, source=source)
