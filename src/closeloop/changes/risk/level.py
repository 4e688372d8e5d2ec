"""The level of risk: how likely the change goes wrong, joined with what it would hit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from closeloop.model.report import Factor, Level

Band = Literal["small", "moderate", "large", "huge"]
Impact = Literal["none", "some", "wide", "breaking"]

BANDS: tuple[tuple[Band, float], ...] = (
    ("small", 0.60),
    ("moderate", 0.85),
    ("large", 0.97),
    ("huge", 1.0),
)
"""Likelihood: the rank of the change among past ones, up to which it is in the band."""

IMPACTS: tuple[Impact, ...] = ("none", "some", "wide", "breaking")
"""A factor's weight says its grade: below 1 it is only told, from 3 on it breaks something."""

LEVELS: dict[Band, dict[Impact, Level]] = {
    "small": {"none": "low", "some": "medium", "wide": "high", "breaking": "critical"},
    "moderate": {"none": "medium", "some": "medium", "wide": "high", "breaking": "critical"},
    "large": {"none": "high", "some": "high", "wide": "high", "breaking": "critical"},
    "huge": {"none": "high", "some": "high", "wide": "critical", "breaking": "critical"},
}


def band_of(rank: float) -> Band:
    return next((band for band, up_to in BANDS if rank < up_to), "huge")


def impact_of(factors: Sequence[Factor]) -> Impact:
    """The gravest of them."""
    weights = [factor.weight for factor in factors if factor.axis == "impact"]
    return IMPACTS[min(3, int(max(weights, default=0.0)))]


def level_of(rank: float, factors: Sequence[Factor]) -> Level:
    return LEVELS[band_of(rank)][impact_of(factors)]


def reasons_of(level: Level, factors: Sequence[Factor]) -> tuple[str, ...]:
    """What counted, the most telling first; for a low level, what it rests on."""
    ordered = sorted(factors, key=lambda factor: -factor.weight)
    counted = tuple(factor.text for factor in ordered if factor.weight >= 1)
    if counted and level != "low":
        return counted
    return tuple(factor.text for factor in ordered[:3])
