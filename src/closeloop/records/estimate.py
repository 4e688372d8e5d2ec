"""Numbers that never travel without their bounds, their n and their method."""

from __future__ import annotations

from typing import Literal

from closeloop.records.record import Record

ComparisonVerdict = Literal[
    "better", "worse", "no difference larger than the margin", "not enough data"
]


class Estimate(Record):
    """A number, and the 95 % bounds that its method gives it."""

    value: float
    low: float
    high: float
    n: int
    """Of tasks; of pairs, items or attempts where the method says so."""
    method: str


class TwoEstimates(Record):
    """One number, asked twice. The bounds differ up to threefold."""

    here: Estimate | None
    """On exactly these tasks. None where the repeats do not show their noise."""
    alike: Estimate | None
    """On tasks like these. None where there are too few to tell how tasks differ."""
    attempts: int
    notes: tuple[str, ...] = ()


class PairedTest(Record):
    """The chance of a difference at least as large if there were none."""

    p: float
    n: int
    method: str


class SampleSizeAdvice(Record):
    """What would show a difference of that size, four times in five."""

    effect: float
    tasks: int | None
    """So many more, with as many repeats each; None where no reachable number would do."""
    repeats: int | None
    """So many more of each task and variant."""


class Comparison(Record):
    """How much more the second has than the first, on the tasks that both tried."""

    tasks: int
    first: float | None = None
    second: float | None = None
    here: Estimate | None = None
    """The difference on exactly these tasks."""
    here_word: ComparisonVerdict = "not enough data"
    alike: Estimate | None = None
    """The difference on tasks like these."""
    alike_word: ComparisonVerdict = "not enough data"
    margin: float
    test: PairedTest | None = None
    """None where no such test can be made."""
    detectable: float | None = None
    """The smallest difference that so many tasks and repeats show four times in five."""
    advice: SampleSizeAdvice | None = None
    """None where nothing is left to decide."""
    notes: tuple[str, ...] = ()


class Agreement(Record):
    """How far a judge says what people say of the same items."""

    cells: tuple[tuple[str, str, int], ...]
    """The judge's label, the people's, and how often."""
    positive: str
    agreeing: Estimate
    sensitivity: Estimate | None
    """Of what people call positive, the share that the judge does too; None of nothing."""
    specificity: Estimate | None
    kappa: Estimate | None
    """Cohen's; None where all labels are the same, as then it has no value."""
    ac1: Estimate
    """Gwet's."""


class CorrectedRate(Record):
    """A judge's rate as people would have given it, or why it cannot be told."""

    estimate: Estimate | None
    refusal: str | None = None


class SampleRatio(Record):
    """Whether variants got the shares of the work that they were to get."""

    p: float
    method: str
    holds: bool


class WindowEstimate(Record):
    """The items of one stretch of time, at its end. Observational: nobody chose what came when."""

    end: float
    estimate: Estimate
    faint: bool
    """So few items that one should hardly look."""


class ChangePoint(Record):
    """Where a row of items is best cut in two, with the means before and after."""

    at: int
    """The first item of the new."""
    before: Estimate
    after: Estimate
    p: float
