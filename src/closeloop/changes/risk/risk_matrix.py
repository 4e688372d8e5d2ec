"""The level of risk: how likely the change goes wrong, joined with what it would hit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from closeloop.records.change import RevertChance, RiskFactor, RiskLevel
from closeloop.records.estimate import Rate
from closeloop.records.record import Record
from closeloop.records.settings import IMPACT_ROWS, CheckSettings, ImpactRow
from closeloop.text.wording import format_percent

Band = Literal["small", "medium", "large", "huge"]

BANDS: tuple[tuple[Band, float], ...] = (
    ("small", 0.60),
    ("medium", 0.85),
    ("large", 0.97),
    ("huge", 1.0),
)
"""Likelihood: the rank of the change among past ones, up to which it is in the band."""

LEVELS: Mapping[ImpactRow, tuple[RiskLevel, ...]] = {
    "none": ("low", "low", "medium", "high"),
    "shared": ("low", "medium", "high", "high"),
    "breaking": ("critical", "critical", "critical", "critical"),
}
"""By impact, the level in each band. `check.risk_levels` changes rows of it."""
_ROW_WEIGHTS: tuple[tuple[float, ImpactRow], ...] = ((3.0, "breaking"), (2.0, "shared"))
"""From which weight on a fact is in a row; what weighs less is only told."""


def likelihood_band(rank: float) -> Band:
    return next((band for band, up_to in BANDS if rank < up_to), "huge")


def impact_row(factors: Sequence[RiskFactor], rows: Mapping[str, ImpactRow]) -> ImpactRow:
    """The gravest row of any fact; `check.risk_rows` may put a fact into another one."""
    found = {
        rows.get(factor.name) or _row_of_weight(factor.weight)
        for factor in factors
        if factor.axis == "impact" and factor.name != "coverage"
    }
    return max(found, key=IMPACT_ROWS.index, default="none")


def _row_of_weight(weight: float) -> ImpactRow:
    return next((row for least, row in _ROW_WEIGHTS if weight >= least), "none")


def determine_risk_level(
    rank: float, factors: Sequence[RiskFactor], settings: CheckSettings | None = None
) -> RiskLevel:
    """By the matrix; changed lines that no test reaches raise it by one, up to high."""
    settings = settings or CheckSettings()
    levels = {**LEVELS, **settings.risk_levels}
    bands = [band for band, _ in BANDS]
    level = levels[impact_row(factors, settings.risk_rows)][bands.index(likelihood_band(rank))]
    uncovered = any(factor.name == "coverage" and factor.value for factor in factors)
    if uncovered and level in ("low", "medium"):
        return "medium" if level == "low" else "high"
    return level


def risk_reasons(level: RiskLevel, factors: Sequence[RiskFactor]) -> tuple[str, ...]:
    """What counted, the most telling first; for a low level, what it rests on."""
    ordered = sorted(factors, key=lambda factor: -factor.weight)
    counted = tuple(factor.text for factor in ordered if factor.weight >= 1)
    if counted and level != "low":
        return counted
    return tuple(factor.text for factor in ordered[:3])


# Whether levels are in order here, and what one speaks of where they are not.


class LevelRate(Record):
    """Past changes that a level would have held, and how many of them went wrong.

    Of past changes only size and kinds of files are known, so breaks of the API do not count.
    """

    level: RiskLevel
    wrong: Rate


def list_disordered_levels(held: Sequence[LevelRate]) -> dict[RiskLevel, LevelRate]:
    """Levels whose past changes went wrong less often than those of a lower one, with that one."""
    disordered: dict[RiskLevel, LevelRate] = {}
    for place, one in enumerate(held):
        worst = max(held[:place], key=lambda lower: lower.wrong.value, default=None)
        if worst is not None and one.wrong.value < worst.wrong.value:
            disordered[one.level] = worst
    return disordered


def explain_level(
    level: RiskLevel, row: ImpactRow, held: Sequence[LevelRate], chance: RevertChance | None
) -> str | None:
    """Where a level says what a change would hit and not how likely it goes wrong, that it does."""
    if level == "low":
        return None
    by_level = {one.level: one.wrong for one in held}
    lower = list_disordered_levels(held).get(level)
    if lower is not None:
        mine = by_level[level]
        subject = "size" if row == "none" else "impact"
        return (
            f"{level} speaks of {subject} only: here {format_percent(mine.value)} of {mine.of:,}"
            f" such changes went wrong, and {format_percent(lower.wrong.value)} of"
            f" {lower.wrong.of:,} that were {lower.level}"
        )
    if row == "breaking":
        return f"{level} speaks of impact: it is the rule for what this change touches"
    if chance is not None and chance.usual is not None and chance.value <= chance.usual:
        return f"{level} speaks of impact only: by its size the change is an ordinary one"
    return None
