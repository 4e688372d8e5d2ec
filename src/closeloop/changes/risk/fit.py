"""How likely a change of some size goes wrong here, learned from what became of past ones.

Lines added is the one predictor that holds everywhere; the number of files joins it where that
helps on later changes. Nothing about authors is used.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence

import msgspec

from closeloop.changes.kinds import kind_of
from closeloop.changes.risk.history import History, Past
from closeloop.changes.risk.level import LEVELS, Impact, band_of
from closeloop.changes.risk.logistic import Row, auc, dot, logistic, shifted, squash
from closeloop.model.rates import Z95, Rate, rate
from closeloop.model.record import Record
from closeloop.model.report import Chance, Level

ENOUGH = 200
ENOUGH_WRONG = 20
"""Fewer past changes, or fewer that went wrong, teach nothing: the shipped default ranks then."""
RANKED = 50
"""With fewer past changes than this, a change is ranked among those of other projects."""
_TRAINED = 0.7
_HELPS = 0.005
_BINS = 10
_RANKS = 1_000
_GRADES: Mapping[str, Impact] = {"ci": "breaking", "schema": "breaking", "migration": "breaking"}
_COLUMNS = (("lines added",), ("lines added", "files"))

DEFAULT_SLOPE = 0.52
DEFAULT_LINES = (0, 1, 1, 2, 3, 4, 5, 7, 9, 11, 14, 17, 20, 25, 32, 41, 56, 79, 123, 295)
"""The shipped default, from 33,323 changes of three large projects in Go and Java: the weight of
log lines added, and the lines added in the middle of each twentieth of the changes."""


class Model(Record):
    """What turns a change into a score, and, where it was learned here, into a chance."""

    columns: tuple[str, ...] = ("lines added",)
    weights: tuple[float, ...] = (0.0, DEFAULT_SLOPE)
    """That of the constant first."""
    covariance: tuple[tuple[float, ...], ...] = ()
    of: int = 0
    """Past changes it was learned from; 0 for the shipped default."""
    ranks: tuple[float, ...] = ()
    """Scores of past changes to sources, in order; of very many, every so manieth."""
    past: int = 0
    """How many those were; 0 where the ranks are those of other projects."""


class Bin(Record):
    """One point of the calibration curve: what was foretold, and what came."""

    foretold: float
    came: Rate


class Held(Record):
    """Past changes that a level would have held, and how many of them went wrong.

    Of past changes only size and kinds of files are known, so breaks of the API do not count.
    """

    level: Level
    wrong: Rate


class Fit(Record):
    """A model with what speaks for it."""

    model: Model
    note: str
    """How it was learned, or why it was not."""
    changes: int
    """Past changes to sources, old enough to be judged."""
    wrong: int
    reverted: int
    auc: float | None = None
    """On the later changes, learned from the earlier ones."""
    baseline: float | None = None
    """Of lines added alone, on the same later changes."""
    tested: int = 0
    calibration: tuple[Bin, ...] = ()
    held: tuple[Held, ...] = ()


def fit(history: History) -> Fit:
    """Learn from the first part of the past, try it on the later part, then learn from all."""
    past = history.judged
    wrong = sum(one.wrong for one in past)
    if len(past) < ENOUGH or wrong < ENOUGH_WRONG:
        model = _ranked(Model(), history)
        note = (
            f"not learned here: {wrong} of {len(past):,} past changes are known to have gone wrong,"
            f" and {ENOUGH_WRONG} of {ENOUGH} are needed; the shipped default ranks by lines added"
        )
        told = _Trial()
    else:
        columns = _best(past[: int(len(past) * _TRAINED)])
        model = _ranked(_learned(past, columns), history)
        told = _tried(past, columns)
        note = (
            f"learned from {' and '.join(columns)} of {len(past):,} past changes; tried on the"
            f" latest {told.tested:,} of them after learning from those before"
        )
    return Fit(
        model=model,
        note=note,
        changes=len(past),
        wrong=wrong,
        reverted=sum(one.reverted for one in past),
        auc=told.auc,
        baseline=told.baseline,
        tested=told.tested,
        calibration=told.calibration,
        held=_held(model, history),
    )


def rank_of(model: Model, added: int | None, files: int) -> float:
    """The share of past changes that score lower, ties counted half; 0 where no source changed."""
    if added is None:
        return 0.0
    score, ranks = _score(model, added, files), model.ranks
    if not ranks:
        score, ranks = float(added), DEFAULT_LINES
    return (bisect_left(ranks, score) + bisect_right(ranks, score)) / 2 / len(ranks)


def chance_of(model: Model, added: int | None, files: int) -> Chance | None:
    """How likely it is to be reverted or repaired; None where that was not learned here."""
    if not model.of or added is None:
        return None
    row = (1.0, *_row(model.columns, added, files))
    middle = dot(model.weights, row)
    spread = dot(row, [dot(line, row) for line in model.covariance])
    half = Z95 * math.sqrt(max(0.0, spread))
    return Chance(
        value=squash(middle),
        low=squash(middle - half),
        high=squash(middle + half),
        of=model.of,
        method=f"logistic regression on {' and '.join(model.columns)}",
    )


def _row(columns: Sequence[str], added: int, files: int) -> Row:
    values = {"lines added": math.log1p(added), "files": math.log1p(files)}
    return tuple(values[column] for column in columns)


def _score(model: Model, added: int, files: int) -> float:
    return dot(model.weights, (1.0, *_row(model.columns, added, files)))


def _scores(model: Model, past: Sequence[Past]) -> list[float]:
    return [_score(model, one.added or 0, len(one.files)) for one in past]


def _ranked(model: Model, history: History) -> Model:
    scores = sorted(_scores(model, [one for one in history.past if one.added is not None]))
    if len(scores) < RANKED:
        return model
    step = max(1, len(scores) // _RANKS)
    return msgspec.structs.replace(model, ranks=tuple(scores[step // 2 :: step]), past=len(scores))


def _learned(past: Sequence[Past], columns: tuple[str, ...]) -> Model:
    """Slopes from all of them; the constant from the latest, for projects calm down with age."""
    rows = [_row(columns, one.added or 0, len(one.files)) for one in past]
    weights, covariance = logistic(rows, [one.wrong for one in past])
    cut = int(len(past) * _TRAINED)
    scores = [dot(weights, (1.0, *row)) for row in rows[cut:]]
    shift, variance = shifted(scores, sum(one.wrong for one in past[cut:]))
    weights[0] += shift
    covariance[0][0] += variance
    return Model(
        columns=columns,
        weights=tuple(weights),
        covariance=tuple(tuple(line) for line in covariance),
        of=len(past),
    )


def _best(past: Sequence[Past]) -> tuple[str, ...]:
    """The columns that foretell the later of these best; more than one only where it helps."""
    best: tuple[str, ...] = _COLUMNS[0]
    top = 0.0
    for columns in _COLUMNS:
        reached = _tried(past, columns).auc
        if reached is not None and reached > top + _HELPS:
            best, top = columns, reached
    return best


class _Trial(Record):
    """What became of the later changes, foretold by what was learned from the earlier."""

    auc: float | None = None
    baseline: float | None = None
    tested: int = 0
    calibration: tuple[Bin, ...] = ()


def _tried(past: Sequence[Past], columns: tuple[str, ...]) -> _Trial:
    cut = int(len(past) * _TRAINED)
    later = past[cut:]
    hits = [one.wrong for one in later]
    scores = _scores(_learned(past[:cut], columns), later)
    return _Trial(
        auc=auc(scores, hits),
        baseline=auc([float(one.added or 0) for one in later], hits),
        tested=len(later),
        calibration=_curve([squash(score) for score in scores], hits),
    )


def _curve(chances: Sequence[float], hits: Sequence[bool]) -> tuple[Bin, ...]:
    """Bins of equal size, from the least likely to the likeliest."""
    ordered = sorted(zip(chances, hits, strict=True))
    bins = []
    for number in range(_BINS):
        some = ordered[len(ordered) * number // _BINS : len(ordered) * (number + 1) // _BINS]
        came = rate(sum(hit for _, hit in some), len(some))
        if came is not None:
            bins.append(Bin(foretold=sum(chance for chance, _ in some) / len(some), came=came))
    return tuple(bins)


def _held(model: Model, history: History) -> tuple[Held, ...]:
    grades: list[Impact] = [_GRADES.get(kind_of(path), "none") for path in history.paths]
    counts: dict[Level, list[bool]] = {"low": [], "medium": [], "high": [], "critical": []}
    for one in history.judged:
        band = band_of(rank_of(model, one.added or 0, len(one.files)))
        touched = {grades[file] for file in one.files}
        impact: Impact = "breaking" if "breaking" in touched else "none"
        counts[LEVELS[band][impact]].append(one.wrong)
    rates = {level: rate(sum(hits), len(hits)) for level, hits in counts.items()}
    return tuple(Held(level=level, wrong=came) for level, came in rates.items() if came)
