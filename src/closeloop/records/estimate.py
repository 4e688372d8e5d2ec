"""Numbers with their bounds, n and method: rates, metrics, comparisons and trends."""

from __future__ import annotations

import html
from math import sqrt
from typing import Literal

from closeloop.records.record import Record, Time, html_table

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
    repeats: float | None = None
    """Of a task, on each side: the harmonic mean."""
    detectable: float | None = None
    """The smallest difference that so many tasks and repeats show four times in five."""
    detectable_here: float | None = None
    """The same on exactly these tasks."""
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


class WindowMean(Record):
    """The mean of a stretch of time."""

    value: float
    low: float | None = None
    high: float | None = None
    """95 % bounds; None where one item does not show the noise."""
    n: int
    method: str


class WindowEstimate(Record):
    """The items of one stretch of time, at its end. Observational: nobody chose what came when."""

    end: float
    estimate: WindowMean
    faint: bool
    """So few items that one should hardly look."""


class ChangePoint(Record):
    """Where a row of items is best cut in two, with the means before and after."""

    at: int
    """The first item of the new."""
    before: Estimate
    after: Estimate
    p: float


# A rate with what one must know of it: of how many, and between which bounds.

Z95 = 1.959963984540054


class Rate(Record):
    """So many of so many. A rate of nothing does not exist: that is None, not zero."""

    hits: float
    of: int
    low: float
    high: float
    """95 % Wilson score interval."""

    @property
    def value(self) -> float:
        return self.hits / self.of


def wilson_rate(hits: float, of: int) -> Rate | None:
    """The rate with its interval; None where there was nothing to count."""
    if of == 0:
        return None
    share, spread = hits / of, Z95 * Z95 / of
    middle = (share + spread / 2) / (1 + spread)
    half = sqrt(spread * (share * (1 - share) + spread / 4)) / (1 + spread)
    low, high = max(0.0, middle - half), min(1.0, middle + half)
    return Rate(hits=hits, of=of, low=0.0 if hits == 0 else low, high=1.0 if hits == of else high)


def pool_rates(*rates: Rate | None) -> Rate | None:
    """All of them as one; those that do not exist add nothing."""
    existing = [one for one in rates if one is not None]
    return wilson_rate(sum(one.hits for one in existing), sum(one.of for one in existing))


# A figure: the value of a metric, with all that one must know of it.

MetricFamily = Literal[
    "outcome",
    "production",
    "memory",
    "process",
    "endings",
    "failure modes",
    "risk",
    "cost",
    "scores",
    "plans",
]
MetricKind = Literal[
    "rate", "one of k", "all of k", "any of n", "mean", "median", "sum", "per pass"
]
SHARE_KINDS = ("rate", "one of k", "all of k", "any of n")
"""Kinds whose values lie between 0 and 1."""
BetterDirection = Literal["more", "less"] | None
MetricSource = Literal[
    "grade", "rules", "people", "attempt", "tests", "rule", "judge", "person", "code"
]
"""Where values come from: the grader, the rules, what people did with the change, the attempt;
of a score from the ledger, who gave it."""


class Metric(Record):
    """What a number means."""

    name: str
    family: MetricFamily
    kind: MetricKind
    source: MetricSource
    says: str
    """Its definition."""
    score: str
    """The score of attempts that it is the aggregate of."""
    unit: str = ""
    better: BetterDirection = None
    low: float | None = None
    high: float | None = None
    """The range of a score on a scale."""


class MetricValue(Record):
    """One metric of one group. Never without its n."""

    metric: str
    group: dict[str, str] = {}
    """By what it is grouped, and which group this is; empty is all attempts."""
    value: float | None = None
    """None is not known, which is not zero."""
    low: float | None = None
    high: float | None = None
    """95 % bounds on tasks like these; None where the method gives none."""
    n: int = 0
    """Of tasks; a session is a task of its own."""
    attempts: int = 0
    """With a value."""
    coverage: float | None = None
    """Of the attempts that should have a grade, a measurement or a delivery, those that have.

    None where none should: sessions are not graded, experiments are not delivered.
    """
    method: str | None = None
    more: dict[str, float] = {}
    """Of a spread: `p90` and `worst`; and what is counted beside it: `unconfirmed`, `tests-only`,
    of a failure mode the sources that show it."""


class ScopeLimit(Record):
    """How wide a change may be, and what such a limit would have stopped."""

    measure: str
    """`files` or `modules`."""
    aim: Literal["stops failures", "keeps completions"]
    """Nine of ten of them."""
    most: int
    failures_stopped: int
    failures: int
    completions_stopped: int
    completions: int


class MetricsReport(Record):
    """Figures of one look at a store."""

    by: tuple[str, ...]
    attempts: int
    definitions: tuple[Metric, ...]
    figures: tuple[MetricValue, ...]
    limits: tuple[ScopeLimit, ...] = ()
    """A scope policy, suggested from the blast radius of what failed."""
    notes: tuple[str, ...] = ()


# Variants held against each other on the same tasks: what was seen, and what it allows to say.


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
    first: tuple[int | float, ...]
    second: tuple[int | float, ...]
    """The scores of its repeats: 1 passed, 0 failed, or the value of the primary score."""


class PairTable(Record):
    """Tasks by who got them right: by whom more than half of the repeats passed."""

    both: int
    only_first: int
    only_second: int
    neither: int


UNCLEAR_WORD = "no clear difference"


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
    kind: MetricKind = "rate"
    unit: str = ""
    """Of a rate, none."""
    word: str = UNCLEAR_WORD


class VariantComparison(Record):
    """The second held against the first."""

    first: str
    second: str
    primary: str
    """The metric that decides, declared before."""
    kind: MetricKind = "rate"
    unit: str = ""
    observational: bool = False
    """Whether they share no task, so that the work itself may differ: two independent groups."""
    comparison: Comparison
    adjusted: float | None = None
    """The p of the exact test after Holm, where several are held against the first."""
    words: tuple[str, ...]
    """The answer to both questions; and what would settle what is open."""
    table: PairTable | None
    """None of a score that is not yes or no, and where they share no task."""
    tasks: tuple[TaskPair, ...]
    """Those that differ most first; none where they share none."""
    secondary: tuple[SecondaryMetric, ...]
    ratios: dict[str, TwoEstimates]
    """How many times as much the second took: cost, time, tokens."""


class CompareReport(Record):
    """A comparison of variants: the first is the baseline of all others."""

    sides: tuple[VariantSide, ...]
    pairs: tuple[VariantComparison, ...] = ()
    refusal: str | None = None
    """Why there is no verdict, where there is none."""
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        names = " against ".join(side.name for side in self.sides)
        return f"<CompareReport {names}: {' '.join(self.sentences())}>"

    def _repr_html_(self) -> str:
        """A notebook's view: who was compared, and the verdicts, with all text escaped."""
        sides = [(one.name, one.tasks, one.attempts, one.scored) for one in self.sides]
        lines = "".join(f"<li>{html.escape(line)}</li>" for line in self.sentences())
        table = html_table(("", "tasks", "attempts", "scored"), sides)
        return f"{table}<ul>{lines}</ul>"

    def sentences(self) -> tuple[str, ...]:
        """The verdicts of all pairs, the notes, and why there is no verdict."""
        verdicts = (line for pair in self.pairs for line in pair.words)
        return (*verdicts, *self.notes, *([self.refusal] if self.refusal else []))


# How metrics went over time. Observational: nobody chose what came when.


class VersionMark(Record):
    """Something that was first seen then: an agent's variant, a model, a prompt."""

    at: Time
    what: str


class RollingWindow(Record):
    """The items of some weeks, up to a moment."""

    until: Time
    estimate: WindowMean
    faint: bool
    """Fewer than five items."""


class PeriodShift(Record):
    """A later time against an earlier one."""

    before: Estimate
    after: Estimate
    low: float
    high: float
    """95 % bounds of the difference."""


class TurningPoint(Record):
    """Where the mean changed."""

    at: Time
    before: Estimate
    after: Estimate
    p: float
    near: tuple[str, ...] = ()
    """What was first seen within a week of it: perhaps the cause, and no more than perhaps."""


class MetricSeries(Record):
    """One metric of one group over time."""

    metric: str
    group: dict[str, str] = {}
    stretches: tuple[RollingWindow, ...]
    """Rolling windows, one a week."""
    week: PeriodShift | None = None
    """The last week against the one before."""
    since: PeriodShift | None = None
    """All since the baseline's end against all before."""
    turns: tuple[TurningPoint, ...] = ()


class MetricRegression(Record):
    """A turn for the worse."""

    metric: str
    group: dict[str, str] = {}
    turn: TurningPoint
    adjusted: float
    """Its p after Benjamini and Hochberg, over all turns that were found."""

    @property
    def key(self) -> str:
        """The same for the same turn, so that nobody is told twice."""
        where = ",".join(f"{name}={value}" for name, value in self.group.items())
        return f"{self.metric}|{where}|{self.turn.at:%G-W%V}"


class TrendReport(Record):
    """All courses, and what became worse, most evident first."""

    weeks: int
    """The width of the rolling windows."""
    courses: tuple[MetricSeries, ...]
    marks: tuple[VersionMark, ...]
    regressions: tuple[MetricRegression, ...]
    notes: tuple[str, ...] = ()
