"""A trial: variants that share the work in production, by lot, so that they can be compared."""

from __future__ import annotations

from typing import Literal

from closeloop.records.estimate import Estimate, SampleRatio
from closeloop.records.record import Record, Time

TrialCall = Literal["better", "worse", "hopeless", "go on"]


class Trial(Record):
    """Who shares the work, and what decides. Written once, before the work starts."""

    name: str
    shares: dict[str, float]
    """By variant; the first is the one that the others are held against."""
    metric: str
    """The rate that decides."""
    horizon: int | None = None
    """Look once, after so many outcomes; None is to look at any time."""
    margin: float = 0.05
    """A difference that is surely smaller is not worth waiting for."""
    started: Time


class TrialAssignment(Record):
    """Which variant is to do a piece of work."""

    trial: str
    key: str
    """Of a task, a branch or an attempt."""
    variant: str
    at: Time


class TrialArm(Record):
    """What became of the work of one variant."""

    variant: str
    share: float
    assigned: int
    outcomes: int
    """Pieces of work whose deciding rate is known."""
    rates: dict[str, float | None]
    """Means of what else is looked at, by metric; None is not known."""


class TrialStanding(Record):
    """One variant against the first."""

    variant: str
    call: TrialCall
    why: str
    difference: Estimate | None = None


class TrialReport(Record):
    """How a trial stands."""

    trial: Trial
    ratio: SampleRatio | None
    arms: tuple[TrialArm, ...]
    standings: tuple[TrialStanding, ...]
    refusal: str | None = None
    """Why nothing can be called: work that was not shared as it should have been."""
