"""What people, judges and a team's own programs say of attempts, beside the rules and the grade.

Reviews leave it in the ledger of scores: whether they would merge, how long they took, and which
failure modes they saw. Who reviews is asked for all five modes, so none is left unexamined.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, get_args

from closeloop.metrics.attempt_values import FAILURE_MODES
from closeloop.records.finding import ModeSource, ModeTag
from closeloop.records.score import Score
from closeloop.store import Store
from closeloop.store.attempt_rows import join_modes
from closeloop.store.metrics_section import (
    AttemptColumns,
    AttemptSpan,
    Column,
    TextColumn,
    find_last_rows,
    find_row_places,
)
from closeloop.text.wording import name_score, truncate_words

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]

VERDICT, SECONDS = "would-merge", "review-seconds"
MODE_NAMES = {name_score(mode): mode for mode in FAILURE_MODES}
GIVING_SOURCES: tuple[ModeSource, ...] = ("person", "judge", "code")
LEAST_SHOWN = 0.5
"""A value from here on says yes."""
MAX_REASON_CHARS = 200


def load_said_columns(
    store: Store, span: AttemptSpan, places: Mapping[str, int]
) -> dict[str, Column]:
    """What was said of each attempt in its place: the verdict of people, their time, the modes."""
    import numpy as np

    held = store.scores.load_named_columns(span, [VERDICT, SECONDS, *MODE_NAMES])
    rows = _newest_rows(held, places)
    at, name, source = (rows[key] for key in ("at", "name", "source"))
    value, size = rows["value"], len(places)
    by_people = source.are(("person",))
    is_verdict, is_time = by_people & name.are((VERDICT,)), by_people & name.are((SECONDS,))
    refused = np.bincount(at[is_verdict], value[is_verdict] < LEAST_SHOWN, minlength=size)
    asked = np.bincount(at[is_verdict], minlength=size)
    timed = np.bincount(at[is_time], minlength=size)
    seconds = np.bincount(at[is_time], value[is_time], minlength=size)
    is_mode = name.are(MODE_NAMES) & source.are(GIVING_SOURCES)
    modes = {key: column[is_mode] for key, column in rows.items()}
    return {
        "would_merge": np.where(asked > 0, refused == 0, np.nan),
        "reviewer_seconds": np.where(timed > 0, seconds, np.nan),
        "said_modes": _join_rows(modes, modes["value"] >= LEAST_SHOWN, size),
        "said_examined": _join_rows(modes, np.isfinite(modes["value"]), size),
    }


def _newest_rows(held: AttemptColumns, places: Mapping[str, int]) -> dict[str, Any]:
    """Of each attempt, name, source and person the last, with the attempt's place."""
    at = find_row_places(held, places)
    name, source, who = (held.held[key] for key in ("name", "source", "who"))
    rows = find_last_rows(at, name, source, who)
    value = held.held["value"][rows]
    return {"at": at[rows], "name": name[rows], "source": source[rows], "value": value}


def _join_rows(rows: Mapping[str, Any], chosen: Array, size: int) -> TextColumn:
    """For each place the modes of its chosen rows with their sources, as one text."""
    import numpy as np

    pairs = [(mode, source) for mode in FAILURE_MODES for source in GIVING_SOURCES]
    mode = rows["name"].each({name: place for place, name in enumerate(MODE_NAMES)}.get)
    source = rows["source"].each({name: place for place, name in enumerate(GIVING_SOURCES)}.get)
    bits = np.left_shift(1, (mode * len(GIVING_SOURCES) + source).astype(np.int64))
    marks = np.zeros(size, np.int64)
    np.bitwise_or.at(marks, rows["at"][chosen], bits[chosen])
    kinds, codes = np.unique(marks, return_inverse=True)
    labels = [
        join_modes(pair for place, pair in enumerate(pairs) if kind >> place & 1) or None
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
