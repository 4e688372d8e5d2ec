"""How likely a change of some size goes wrong here, learned from past changes.

Lines added is the one predictor that holds everywhere; the number of files is added if that
improves predictions for later changes. Nothing about authors is used.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from closeloop.changes.file_kinds import classify_file
from closeloop.changes.risk.change_history import History, PastChange
from closeloop.records.change import RISK_LEVELS, RevertChance, RiskFactor, RiskLevel, SizeBand
from closeloop.records.estimate import Z95, Rate, wilson_rate
from closeloop.records.record import Record
from closeloop.records.settings import IMPACT_ROWS, CheckSettings, ImpactRow
from closeloop.statistics.special_functions import roc_auc
from closeloop.text.wording import format_percent

# The level of risk: likelihood combined with impact.


BANDS: tuple[tuple[SizeBand, float], ...] = (
    ("small", 0.60),
    ("medium", 0.85),
    ("large", 0.97),
    ("huge", 1.0),
)
"""Likelihood bands: the highest rank among past changes for each."""

LEVELS: Mapping[ImpactRow, tuple[RiskLevel, ...]] = {
    "none": ("low", "low", "medium", "high"),
    "shared": ("low", "medium", "high", "high"),
    "breaking": ("critical", "critical", "critical", "critical"),
}
"""The level in each band, by impact. `check.risk_levels` changes rows of it."""
_ROW_WEIGHTS: tuple[tuple[float, ImpactRow], ...] = ((3.0, "breaking"), (2.0, "shared"))
"""Minimum weight of a fact for each row; lighter facts are only reported."""


def likelihood_band(rank: float) -> SizeBand:
    return next((band for band, up_to in BANDS if rank < up_to), "huge")


def impact_row(factors: Sequence[RiskFactor], rows: Mapping[str, ImpactRow]) -> ImpactRow:
    """Return the most severe row of any fact; `check.risk_rows` may move a fact to another one."""
    impact_rows = {
        rows.get(factor.name) or _row_of_weight(factor.weight)
        for factor in factors
        if factor.axis == "impact" and factor.name != "coverage"
    }
    return max(impact_rows, key=IMPACT_ROWS.index, default="none")


def _row_of_weight(weight: float) -> ImpactRow:
    return next((row for least, row in _ROW_WEIGHTS if weight >= least), "none")


def determine_risk_level(
    rank: float, factors: Sequence[RiskFactor], settings: CheckSettings | None = None
) -> RiskLevel:
    """Look up the level in the matrix; uncovered changed lines raise it by one, up to high."""
    settings = settings or CheckSettings()
    levels = {**LEVELS, **settings.risk_levels}
    bands = [band for band, _ in BANDS]
    level = levels[impact_row(factors, settings.risk_rows)][bands.index(likelihood_band(rank))]
    uncovered = any(factor.name == "coverage" and factor.value for factor in factors)
    if uncovered and level in ("low", "medium"):
        return "medium" if level == "low" else "high"
    return level


def risk_reasons(level: RiskLevel, factors: Sequence[RiskFactor]) -> tuple[str, ...]:
    """Return what counted, most important first; for a low level, what it rests on."""
    ordered = sorted(factors, key=lambda factor: -factor.weight)
    important = tuple(factor.text for factor in ordered if factor.weight >= 1)
    if important and level != "low":
        return important
    return tuple(factor.text for factor in ordered[:3])


# Whether higher levels went wrong more often here, and what a level means if not.


MIN_COMPARED_CHANGES = 10
"""With fewer changes of a level, its share that went wrong is not shown."""


class LevelRate(Record):
    """Past changes that a level would have had, and how many of them went wrong.

    For past changes only size and kinds of files are known, so API breaks do not count.
    """

    level: RiskLevel
    wrong: Rate


def list_disordered_levels(level_rates: Sequence[LevelRate]) -> dict[RiskLevel, LevelRate]:
    """Return levels whose past changes went wrong less often than a lower level's, with that
    one."""
    disordered: dict[RiskLevel, LevelRate] = {}
    for index, level_rate in enumerate(level_rates):
        worst = max(level_rates[:index], key=lambda lower: lower.wrong.value, default=None)
        if worst is not None and level_rate.wrong.value < worst.wrong.value:
            disordered[level_rate.level] = worst
    return disordered


def explain_level(
    level: RiskLevel,
    row: ImpactRow,
    level_rates: Sequence[LevelRate],
    chance: RevertChance | None,
    *,
    uncovered: bool = False,
) -> str | None:
    """Explain that a level states impact or size rather than likelihood; None if it need not be
    said."""
    if level == "low":
        return None
    by_level = {level_rate.level: level_rate.wrong for level_rate in level_rates}
    lower = list_disordered_levels(level_rates).get(level)
    if lower is not None:
        own_rate = by_level[level]
        subject = "size" if row == "none" else "impact"
        if min(own_rate.of, lower.wrong.of) < MIN_COMPARED_CHANGES:
            return (
                f"{level} refers to {subject} only: too few such changes are known here to say "
                "how often they go wrong"
            )
        return (
            f"{level} refers to {subject} only: here {format_percent(own_rate.value)} of "
            f"{own_rate.of:,} such changes went wrong, and "
            f"{format_percent(lower.wrong.value)} of {lower.wrong.of:,} {lower.level} "
            "ones"
        )
    if row == "breaking":
        return f"{level} is about impact: what this change touches, not how often such ones fail"
    if chance is not None and chance.usual is not None and chance.value <= chance.usual:
        if row == "none" and not uncovered:
            return f"{level} refers to size only: larger changes did not go wrong more often here"
        return f"{level} refers to impact only: by its size the change is an ordinary one"
    return None


def describe_size_effect(model: RiskModel, *, is_small: bool) -> str | None:
    """Describe how often changes of this size go wrong; None if the history here shows nothing or
    the opposite."""
    size_rates = [level_rate for level_rate in model.held if level_rate.level != "critical"]
    if list_disordered_levels(size_rates) or (model.of and model.weights[1] <= 0):
        return None
    place = "here" if model.of else "in most projects"
    if is_small:
        return f"smaller changes go wrong less often {place}"
    return f"larger changes go wrong more often {place}"


# Minimal logistic regression.

FeatureRow = tuple[float, ...]
Matrix = list[list[float]]
_RIDGE_PENALTY = 1e-3
_MAX_ROUNDS = 25


def fit_logistic(rows: Sequence[FeatureRow], hits: Sequence[bool]) -> tuple[list[float], Matrix]:
    """Return the weights, intercept first, and their covariance; equal rows count once."""
    count: Counter[FeatureRow] = Counter(rows)
    positive: Counter[FeatureRow] = Counter(row for row, hit in zip(rows, hits, strict=True) if hit)
    cells = [((1.0, *row), n, positive[row]) for row, n in count.items()]
    size = len(cells[0][0])
    weights = [0.0] * size
    inverse: Matrix = []
    for _ in range(_MAX_ROUNDS):
        gradient = [-_RIDGE_PENALTY * weight for weight in weights]
        curvature = [[_RIDGE_PENALTY * (i == j) for j in range(size)] for i in range(size)]
        for row, n, hits_in_cell in cells:
            chance = sigmoid(dot_product(weights, row))
            spread = n * chance * (1 - chance)
            for i in range(size):
                gradient[i] += row[i] * (hits_in_cell - n * chance)
                for j in range(size):
                    curvature[i][j] += spread * row[i] * row[j]
        inverse = invert_matrix(curvature)
        step = [dot_product(line, gradient) for line in inverse]
        weights = [
            weight + max(-4.0, min(4.0, move)) for weight, move in zip(weights, step, strict=True)
        ]
        if max(map(abs, step)) < 1e-8:
            break
    return weights, inverse


def fit_shift(scores: Sequence[float], hits: int) -> tuple[float, float]:
    """Return the shift of all scores at which they predict that many hits, and its variance."""
    target = min(max(float(hits), 0.5), len(scores) - 0.5)
    shift = spread = 0.0
    for _ in range(_MAX_ROUNDS):
        chances = [sigmoid(score + shift) for score in scores]
        spread = sum(chance * (1 - chance) for chance in chances)
        move = max(-1.0, min(1.0, (target - sum(chances)) / max(spread, 1e-9)))
        shift += move
        if abs(move) < 1e-6:
            break
    return shift, 1 / max(spread, 1e-9)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0


def dot_product(left: Sequence[float], right: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))


def invert_matrix(matrix: Matrix) -> Matrix:
    """Invert a small positive definite matrix, by elimination."""
    size = len(matrix)
    wide = [[*line, *(float(i == j) for j in range(size))] for i, line in enumerate(matrix)]
    for i in range(size):
        pivot = max(range(i, size), key=lambda line: abs(wide[line][i]))
        wide[i], wide[pivot] = wide[pivot], wide[i]
        wide[i] = [value / wide[i][i] for value in wide[i]]
        for j in range(size):
            if j != i:
                factor = wide[j][i]
                wide[j] = [a - factor * b for a, b in zip(wide[j], wide[i], strict=True)]
    return [line[size:] for line in wide]


MIN_CHANGES = 200
MIN_WRONG_CHANGES = 20
"""With fewer past changes, or fewer that went wrong, nothing is learned: the default ranks."""
MIN_RANKED_CHANGES = 50
"""With fewer past changes than this, a change is ranked among those of other projects."""
_TRAINING_SHARE = 0.7
_MIN_AUC_GAIN = 0.005
_CALIBRATION_BINS = 10
_MAX_RANKS = 1_000
_BREAKING_KINDS = frozenset(("ci", "schema", "migration"))
_SHARED_KINDS = frozenset(("config", "manifest"))
_COLUMN_CHOICES = (("lines added",), ("lines added", "files"))

_SIZE_ONLY = (
    "only size is used: in ten projects, the history of files, tests and authors did not improve "
    "the prediction"
)

DEFAULT_SLOPE = 0.52
DEFAULT_LINES = (0, 1, 1, 2, 3, 4, 5, 7, 9, 11, 14, 17, 20, 25, 32, 41, 56, 79, 123, 295)
"""The shipped default, from 33,323 changes of three large projects in Go and Java: the weight of
log lines added, and the lines added in the middle of each twentieth of the changes."""


class RiskModel(Record):
    """Turns a change into a score and, if it was learned here, into a probability."""

    columns: tuple[str, ...] = ("lines added",)
    weights: tuple[float, ...] = (0.0, DEFAULT_SLOPE)
    """Intercept first."""
    covariance: tuple[tuple[float, ...], ...] = ()
    of: int = 0
    """Number of past changes it was learned from; 0 for the shipped default."""
    ranks: tuple[float, ...] = ()
    """Sorted scores of past changes to sources; of very many, an even sample."""
    past: int = 0
    """Number of past changes ranked; 0 if the ranks are those of other projects."""
    usual: float | None = None
    """Share of the training changes that went wrong."""
    held: tuple[LevelRate, ...] = ()
    """How often past changes of each level went wrong here."""


class CalibrationBin(Record):
    """One point of the calibration curve: predicted and observed."""

    foretold: float
    came: Rate


class RiskFit(Record):
    """A model with the evidence for it."""

    model: RiskModel
    note: str
    """How it was learned, or why it was not."""
    changes: int
    """Past changes to sources that are old enough to be judged."""
    wrong: int
    reverted: int
    auc: float | None = None
    """AUC on the later changes, learned from the earlier ones."""
    baseline: float | None = None
    """AUC of lines added alone, on the same later changes."""
    tested: int = 0
    tested_wrong: int = 0
    """Of the later changes, those that went wrong: with few, the AUC says little."""
    calibration: tuple[CalibrationBin, ...] = ()
    held: tuple[LevelRate, ...] = ()


def learn_risk_model(history: History) -> RiskModel:
    """Return the model alone, or the shipped default if too little went wrong."""
    past = history.judged_changes
    wrong = sum(change.went_wrong for change in past)
    if len(past) < MIN_CHANGES or wrong < MIN_WRONG_CHANGES:
        model = _add_ranks(RiskModel(), history)
        level_rates = _level_rates(model, history) if len(past) >= MIN_RANKED_CHANGES else ()
        return msgspec.structs.replace(model, held=level_rates)
    columns = _choose_columns(past[: int(len(past) * _TRAINING_SHARE)])
    model = _add_ranks(_train_model(past, columns), history)
    return msgspec.structs.replace(
        model, usual=wrong / len(past), held=_level_rates(model, history)
    )


def fit_risk_model(history: History) -> RiskFit:
    """Learn from the first part of the past, test on the later part, then learn from all."""
    past = history.judged_changes
    wrong = sum(change.went_wrong for change in past)
    model = learn_risk_model(history)
    if not model.of:
        note = (
            f"the default model, which ranks by lines added: only {wrong} of "
            f"{len(past):,} past changes are known to have gone wrong, and fitting "
            f"needs {MIN_WRONG_CHANGES} of {MIN_CHANGES}; {_SIZE_ONLY}"
        )
        backtest = _BacktestResult()
    else:
        backtest = _backtest_model(past, model.columns)
        note = (
            f"fitted to {' and '.join(model.columns)} of {len(past):,} past changes; "
            f"tested on the latest {backtest.tested:,} after fitting to the earlier "
            f"ones; {_SIZE_ONLY}"
        )
    level_rates = model.held or _level_rates(model, history)
    counts = {level_rate.level: level_rate.wrong.of for level_rate in level_rates}
    for level, lower in list_disordered_levels(level_rates).items():
        few = min(counts[level], lower.wrong.of) < MIN_COMPARED_CHANGES
        note += (
            f"; {level} went wrong less often than {lower.level}"
            f"{' (few changes)' if few else ''}, so it refers to impact or size, not to likelihood"
        )
    return RiskFit(
        model=model,
        note=note,
        changes=len(past),
        wrong=wrong,
        reverted=sum(change.reverted for change in past),
        auc=backtest.auc,
        baseline=backtest.baseline,
        tested=backtest.tested,
        tested_wrong=backtest.tested_wrong,
        calibration=backtest.calibration,
        held=level_rates,
    )


def rank_change(model: RiskModel, added: int | None, files: int) -> float:
    """Return the share of past changes that score lower, ties count half; 0 without sources."""
    if added is None:
        return 0.0
    score, ranks = _score_change(model, added, files), model.ranks
    if not ranks:
        score, ranks = float(added), DEFAULT_LINES
    return (bisect_left(ranks, score) + bisect_right(ranks, score)) / 2 / len(ranks)


def estimate_chance(model: RiskModel, added: int | None, files: int) -> RevertChance | None:
    """Estimate how likely it is to be reverted or repaired; None if not learned here."""
    if not model.of or added is None:
        return None
    row = (1.0, *_feature_row(model.columns, added, files))
    middle = dot_product(model.weights, row)
    spread = dot_product(row, [dot_product(line, row) for line in model.covariance])
    half = Z95 * math.sqrt(max(0.0, spread))
    return RevertChance(
        value=sigmoid(middle),
        low=sigmoid(middle - half),
        high=sigmoid(middle + half),
        of=model.of,
        method=f"logistic regression on {' and '.join(model.columns)}",
        usual=model.usual,
    )


def _feature_row(columns: Sequence[str], added: int, files: int) -> FeatureRow:
    values = {"lines added": math.log1p(added), "files": math.log1p(files)}
    return tuple(values[column] for column in columns)


def _score_change(model: RiskModel, added: int, files: int) -> float:
    return dot_product(model.weights, (1.0, *_feature_row(model.columns, added, files)))


def _score_changes(model: RiskModel, past: Sequence[PastChange]) -> list[float]:
    return [_score_change(model, change.added or 0, len(change.files)) for change in past]


def _add_ranks(model: RiskModel, history: History) -> RiskModel:
    scores = sorted(
        _score_changes(model, [change for change in history.past if change.added is not None])
    )
    if len(scores) < MIN_RANKED_CHANGES:
        return model
    step = max(1, len(scores) // _MAX_RANKS)
    return msgspec.structs.replace(model, ranks=tuple(scores[step // 2 :: step]), past=len(scores))


def _train_model(past: Sequence[PastChange], columns: tuple[str, ...]) -> RiskModel:
    """Fit slopes on all changes, the intercept on the latest: projects calm down with age."""
    rows = [_feature_row(columns, change.added or 0, len(change.files)) for change in past]
    weights, covariance = fit_logistic(rows, [change.went_wrong for change in past])
    cut = int(len(past) * _TRAINING_SHARE)
    scores = [dot_product(weights, (1.0, *row)) for row in rows[cut:]]
    shift, variance = fit_shift(scores, sum(change.went_wrong for change in past[cut:]))
    weights[0] += shift
    covariance[0][0] += variance
    return RiskModel(
        columns=columns,
        weights=tuple(weights),
        covariance=tuple(tuple(line) for line in covariance),
        of=len(past),
    )


def _choose_columns(past: Sequence[PastChange]) -> tuple[str, ...]:
    """Return the columns that best predict the later changes; several only if that helps."""
    best: tuple[str, ...] = _COLUMN_CHOICES[0]
    top = 0.0
    for columns in _COLUMN_CHOICES:
        auc = _backtest_model(past, columns).auc
        if auc is not None and auc > top + _MIN_AUC_GAIN:
            best, top = columns, auc
    return best


class _BacktestResult(Record):
    """Predictions for the later changes, learned from the earlier, with the outcomes."""

    auc: float | None = None
    baseline: float | None = None
    tested: int = 0
    tested_wrong: int = 0
    calibration: tuple[CalibrationBin, ...] = ()


def _backtest_model(past: Sequence[PastChange], columns: tuple[str, ...]) -> _BacktestResult:
    cut = int(len(past) * _TRAINING_SHARE)
    later = past[cut:]
    hits = [change.went_wrong for change in later]
    scores = _score_changes(_train_model(past[:cut], columns), later)
    return _BacktestResult(
        auc=roc_auc(scores, hits),
        baseline=roc_auc([float(change.added or 0) for change in later], hits),
        tested=len(later),
        tested_wrong=sum(hits),
        calibration=_calibration_curve([sigmoid(score) for score in scores], hits),
    )


def _calibration_curve(
    chances: Sequence[float], hits: Sequence[bool]
) -> tuple[CalibrationBin, ...]:
    """Return bins of equal size, from the least likely to the likeliest."""
    ordered = sorted(zip(chances, hits, strict=True))
    bins = []
    for number in range(_CALIBRATION_BINS):
        bin_changes = ordered[
            len(ordered) * number // _CALIBRATION_BINS : len(ordered)
            * (number + 1)
            // _CALIBRATION_BINS
        ]
        rate = wilson_rate(sum(hit for _, hit in bin_changes), len(bin_changes))
        if rate is not None:
            bins.append(
                CalibrationBin(
                    foretold=sum(chance for chance, _ in bin_changes) / len(bin_changes), came=rate
                )
            )
    return tuple(bins)


def _level_rates(model: RiskModel, history: History) -> tuple[LevelRate, ...]:
    kinds = [classify_file(path) for path in history.paths]
    counts: dict[RiskLevel, list[bool]] = {level: [] for level in RISK_LEVELS}
    names = [name for name, _ in BANDS]
    bands: dict[tuple[int, int], int] = {}
    for judged_change in history.judged_changes:
        size = (judged_change.added or 0, len(judged_change.files))
        if size not in bands:
            bands[size] = names.index(likelihood_band(rank_change(model, *size)))
        changed_kinds = {kinds[file] for file in judged_change.files}
        row: ImpactRow = "shared" if changed_kinds & _SHARED_KINDS else "none"
        row = "breaking" if changed_kinds & _BREAKING_KINDS else row
        counts[LEVELS[row][bands[size]]].append(judged_change.went_wrong)
    rates = {level: wilson_rate(sum(hits), len(hits)) for level, hits in counts.items()}
    return tuple(LevelRate(level=level, wrong=rate) for level, rate in rates.items() if rate)
