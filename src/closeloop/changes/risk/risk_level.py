"""The level of risk: how likely the change goes wrong, joined with what it would hit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from closeloop.records.change_report import RiskFactor, RiskLevel

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

LEVELS: dict[Band, dict[Impact, RiskLevel]] = {
    "small": {"none": "low", "some": "medium", "wide": "high", "breaking": "critical"},
    "moderate": {"none": "medium", "some": "medium", "wide": "high", "breaking": "critical"},
    "large": {"none": "high", "some": "high", "wide": "high", "breaking": "critical"},
    "huge": {"none": "high", "some": "high", "wide": "critical", "breaking": "critical"},
}


def likelihood_band(rank: float) -> Band:
    return next((band for band, up_to in BANDS if rank < up_to), "huge")


def greatest_impact(factors: Sequence[RiskFactor]) -> Impact:
    """The gravest of them."""
    weights = [factor.weight for factor in factors if factor.axis == "impact"]
    return IMPACTS[min(3, int(max(weights, default=0.0)))]


def determine_risk_level(rank: float, factors: Sequence[RiskFactor]) -> RiskLevel:
    return LEVELS[likelihood_band(rank)][greatest_impact(factors)]


def risk_reasons(level: RiskLevel, factors: Sequence[RiskFactor]) -> tuple[str, ...]:
    """What counted, the most telling first; for a low level, what it rests on."""
    ordered = sorted(factors, key=lambda factor: -factor.weight)
    counted = tuple(factor.text for factor in ordered if factor.weight >= 1)
    if counted and level != "low":
        return counted
    return tuple(factor.text for factor in ordered[:3])
