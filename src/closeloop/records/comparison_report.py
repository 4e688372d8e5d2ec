"""Variants held against each other on the same tasks: what was seen, and what it allows to say."""

from __future__ import annotations

from closeloop.records.estimate import Comparison, TwoEstimates
from closeloop.records.record import Record


class VariantSide(Record):
    """What is compared: the attempts that a name stands for."""

    name: str
    variants: tuple[str, ...]
    """Digests."""
    tasks: int
    attempts: int
    """Those that were made for a task."""
    scored: int
    coverage: float | None


class TaskPair(Record):
    """One task, tried by both."""

    task: str
    first: tuple[int, ...]
    second: tuple[int, ...]
    """Its scored repeats: 1 passed, 0 failed."""


class PairTable(Record):
    """Tasks by who got them right: by whom more than half of the repeats passed."""

    both: int
    only_first: int
    only_second: int
    neither: int


class SecondaryMetric(Record):
    """Another metric of the same attempts. Exploratory: one of many that were looked at."""

    metric: str
    tasks: int
    first: float
    second: float
    low: float | None = None
    high: float | None = None
    """Of the difference, on tasks like these."""
    p: float | None = None
    """Of a paired t; None under six tasks, and where nothing differs."""
    adjusted: float | None = None
    """By Benjamini and Hochberg, over all such metrics."""
    word: str = "no clear difference"


class VariantComparison(Record):
    """The second held against the first."""

    first: str
    second: str
    primary: str
    """The metric that decides, declared before."""
    comparison: Comparison
    adjusted: float | None = None
    """The p of the exact test after Holm, where several are held against the first."""
    words: tuple[str, ...]
    """The answer to both questions; and what would settle what is open."""
    table: PairTable
    tasks: tuple[TaskPair, ...]
    """Those that differ most first."""
    secondary: tuple[SecondaryMetric, ...]
    ratios: dict[str, TwoEstimates]
    """How many times as much the second took: cost, time, tokens."""


class CompareReport(Record):
    """All variants against the first."""

    sides: tuple[VariantSide, ...]
    pairs: tuple[VariantComparison, ...] = ()
    refusal: str | None = None
    """Why there is no verdict, where there is none."""
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
