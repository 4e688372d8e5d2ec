"""Numbers with bounds, n and method: rates, metrics, comparisons and trends."""

from __future__ import annotations

from math import sqrt
from typing import Literal

from closeloop.records.record import Record, Time, html_table

ComparisonVerdict = Literal[
    "better", "worse", "no difference larger than the margin", "not enough data"
]


class Estimate(Record):
    """A number with the 95 % bounds of its method."""

    value: float
    low: float
    high: float
    n: int
    """Number of tasks; of pairs, items or attempts if the method says so."""
    method: str


class TwoEstimates(Record):
    """One number for two questions. The bounds can differ threefold."""

    here: Estimate | None
    """On exactly these tasks. None if the repeats do not show the noise."""
    alike: Estimate | None
    """On tasks like these. None if there are too few to know how tasks vary."""
    attempts: int
    notes: tuple[str, ...] = ()


class PairedTest(Record):
    """Probability of a difference at least this large if there were none."""

    p: float
    n: int
    method: str


class SampleSizeAdvice(Record):
    """The sample that would show a difference of that size with 80 % power."""

    effect: float
    tasks: int | None
    """Number of additional tasks with as many repeats each; None if no feasible number suffices."""
    repeats: int | None
    """Number of additional repeats of each task and variant."""


class Comparison(Record):
    """Difference between the second and the first, on the tasks that both attempted."""

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
    """None if no such test is possible."""
    repeats: float | None = None
    """Repeats of a task on each side: the harmonic mean."""
    detectable: float | None = None
    """The smallest difference that this many tasks and repeats show with 80 % power."""
    detectable_here: float | None = None
    """The same on exactly these tasks."""
    advice: SampleSizeAdvice | None = None
    """None if the question is decided."""
    notes: tuple[str, ...] = ()


class Agreement(Record):
    """Agreement of a judge with people on the same items."""

    cells: tuple[tuple[str, str, int], ...]
    """The judge's label, the people's label, and the count."""
    positive: str
    agreeing: Estimate
    sensitivity: Estimate | None
    """Share of the items that people call positive and the judge does too; None if there are none.
    """
    specificity: Estimate | None
    kappa: Estimate | None
    """Cohen's kappa; None if all labels are equal, as it is then undefined."""
    ac1: Estimate
    """Gwet's AC1."""


class CorrectedRate(Record):
    """A judge's rate corrected towards people's labels, or why that is impossible."""

    estimate: Estimate | None
    refusal: str | None = None


class SampleRatio(Record):
    """Whether the variants received their intended shares of the work."""

    p: float
    method: str
    holds: bool


class WindowMean(Record):
    """The mean of a time window."""

    value: float
    low: float | None = None
    high: float | None = None
    """95 % bounds; None if a single item does not show the noise."""
    n: int
    method: str


class WindowEstimate(Record):
    """The items of one time window, at its end. Observational: nothing was randomised."""

    end: float
    estimate: WindowMean
    faint: bool
    """Whether there are too few items to draw conclusions."""


class ChangePoint(Record):
    """The best split of a sequence of items, with the means before and after."""

    at: int
    """Index of the first item after the change."""
    before: Estimate
    after: Estimate
    p: float


# A rate with its sample size and its bounds.

Z95 = 1.959963984540054


class Rate(Record):
    """A number of hits in a total. A rate of nothing is None, not zero."""

    hits: float
    of: int
    low: float
    high: float
    """95 % Wilson score interval."""

    @property
    def value(self) -> float:
        return self.hits / self.of


def wilson_rate(hits: float, total: int) -> Rate | None:
    """The rate with its interval; None if the total is zero."""
    if total == 0:
        return None
    share, spread = hits / total, Z95 * Z95 / total
    middle = (share + spread / 2) / (1 + spread)
    half = sqrt(spread * (share * (1 - share) + spread / 4)) / (1 + spread)
    low, high = max(0.0, middle - half), min(1.0, middle + half)
    return Rate(
        hits=hits, of=total, low=0.0 if hits == 0 else low, high=1.0 if hits == total else high
    )


def pool_rates(*rates: Rate | None) -> Rate | None:
    """Add up rates; None ones add nothing."""
    known_rates = [rate for rate in rates if rate is not None]
    return wilson_rate(sum(rate.hits for rate in known_rates), sum(rate.of for rate in known_rates))


# A figure: the value of a metric, with everything needed to interpret it.

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
"""Source of the values: the grader, the rules, what people did with the change, the attempt; for a
score from the ledger, who gave it."""


class Metric(Record):
    """The definition of a metric."""

    name: str
    family: MetricFamily
    kind: MetricKind
    source: MetricSource
    says: str
    """Its definition as a sentence."""
    score: str
    """The attempt score that it aggregates."""
    unit: str = ""
    better: BetterDirection = None
    low: float | None = None
    high: float | None = None
    """Upper end of a score's scale."""


class MetricValue(Record):
    """One metric of one group, always with its n."""

    metric: str
    group: dict[str, str] = {}
    """Grouping keys and values; empty for all attempts."""
    value: float | None = None
    """None means unknown, not zero."""
    low: float | None = None
    high: float | None = None
    """95 % bounds on tasks like these; None if the method gives none."""
    n: int = 0
    """Number of tasks; a session counts as a task of its own."""
    attempts: int = 0
    """Number of attempts with a value."""
    coverage: float | None = None
    """Share of the attempts that should have a grade, a measurement or a delivery and do have it.

    None if none should: sessions are not graded, experiments are not delivered.
    """
    method: str | None = None
    more: dict[str, float] = {}
    """For a distribution `p90` and `worst`; also side counts: of the pass rate the passes by
    evidence (`confirmed`, `reported`, `weak`, `by answer`, `unknown evidence`); `unconfirmed`,
    `tests-only`, and for a failure mode its sources."""


class ScopeLimit(Record):
    """A limit on the width of a change, and what it would have stopped."""

    measure: str
    """`files` or `modules`."""
    aim: Literal["stops failures", "keeps completions"]
    """The limit stops, or keeps, nine of ten of them."""
    most: int
    failures_stopped: int
    failures: int
    completions_stopped: int
    completions: int


class MetricsReport(Record):
    """The figures of one query of a store."""

    by: tuple[str, ...]
    attempts: int
    definitions: tuple[Metric, ...]
    figures: tuple[MetricValue, ...]
    limits: tuple[ScopeLimit, ...] = ()
    """A scope policy suggested from the blast radius of failed attempts."""
    notes: tuple[str, ...] = ()


# Variants compared on the same tasks: the observations, and the conclusions they allow.


class VariantSide(Record):
    """One side of a comparison: the attempts that a name stands for."""

    name: str
    variants: tuple[str, ...]
    """Digests of the variants."""
    tasks: int
    attempts: int
    """Number of attempts that were made for a task."""
    scored: int
    coverage: float | None
    passes: dict[str, int] = {}
    """Number of passes by evidence: `confirmed`, `reported`, `weak`, `by answer` or `unknown
    evidence`."""


class TaskPair(Record):
    """One task attempted by both sides."""

    task: str
    first: tuple[int | float, ...]
    second: tuple[int | float, ...]
    """Scores of its repeats: 1 passed, 0 failed, or the value of the primary score."""


class PairTable(Record):
    """Tasks by who passed them, meaning more than half of the repeats."""

    both: int
    only_first: int
    only_second: int
    neither: int


UNCLEAR_WORD = "no clear difference"


class SecondaryMetric(Record):
    """Another metric of the same attempts. Exploratory: one of many."""

    metric: str
    tasks: int
    first: float
    second: float
    low: float | None = None
    high: float | None = None
    """Upper bound of the difference on tasks like these."""
    p: float | None = None
    """p-value of a paired t test; None under six tasks or if nothing differs."""
    adjusted: float | None = None
    """Adjusted by Benjamini and Hochberg over all such metrics."""
    kind: MetricKind = "rate"
    unit: str = ""
    """Empty for a rate."""
    word: str = UNCLEAR_WORD


class VariantComparison(Record):
    """The second side compared with the first."""

    first: str
    second: str
    primary: str
    """The deciding metric, declared beforehand."""
    kind: MetricKind = "rate"
    unit: str = ""
    observational: bool = False
    """Whether they share no task, so that the work itself may differ: two independent groups."""
    comparison: Comparison
    adjusted: float | None = None
    """p-value of the exact test after Holm, if several sides are compared with the first."""
    words: tuple[str, ...]
    """The answers to both questions, and what would decide the open ones."""
    table: PairTable | None
    """None for a score that is not yes or no, and if no task is shared."""
    tasks: tuple[TaskPair, ...]
    """Largest differences first; empty if no task is shared."""
    secondary: tuple[SecondaryMetric, ...]
    ratios: dict[str, TwoEstimates]
    """Ratios of the second to the first: cost, time, tokens."""


class CompareReport(Record):
    """A comparison of variants: the first is the baseline of all others."""

    sides: tuple[VariantSide, ...]
    pairs: tuple[VariantComparison, ...] = ()
    refusal: str | None = None
    """Why there is no verdict."""
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        names = " against ".join(side.name for side in self.sides)
        sentence = next(iter(self.sentences()), "no verdict")
        return f"<CompareReport {names}: {sentence}>"

    def _repr_html_(self) -> str:
        """HTML for notebooks: the sides and the verdicts, with all text escaped."""
        import html

        levels: dict[str, str] = {}
        for pair in self.pairs:
            values = ((pair.first, pair.comparison.first), (pair.second, pair.comparison.second))
            for name, value in values:
                if value is not None:
                    text = f"{value:.0%}" if pair.kind == "rate" else f"{value:.3g} {pair.unit}"
                    levels.setdefault(name, text.strip())
        sides = [
            (side.name, side.tasks, side.attempts, side.scored, levels.get(side.name, "–"))
            for side in self.sides
        ]
        lines = "".join(f"<li>{html.escape(line)}</li>" for line in self.sentences())
        primary = next((pair.primary for pair in self.pairs), "value")
        table = html_table(("", "tasks", "attempts", "scored", primary), sides)
        return f"{table}<ul>{lines}</ul>"

    def sentences(self) -> tuple[str, ...]:
        """The verdicts of all pairs, the notes, and why there is no verdict."""
        verdicts = (line for pair in self.pairs for line in pair.words)
        return (*verdicts, *self.notes, *([self.refusal] if self.refusal else []))


# Metrics over time. Observational: nobody chose what came when.


class VersionMark(Record):
    """The first appearance of a variant, a model or a prompt."""

    at: Time
    what: str


class RollingWindow(Record):
    """The items of some weeks up to a point in time."""

    until: Time
    estimate: WindowMean
    faint: bool
    """Whether there are fewer than five items."""


class PeriodShift(Record):
    """A later period compared with an earlier one."""

    before: Estimate
    after: Estimate
    low: float
    high: float
    """95 % bounds of the difference."""


class TurningPoint(Record):
    """A point in time at which the mean changed."""

    at: Time
    before: Estimate
    after: Estimate
    p: float
    near: tuple[str, ...] = ()
    """What first appeared within a week of it: possible causes."""


class MetricSeries(Record):
    """One metric of one group over time."""

    metric: str
    group: dict[str, str] = {}
    stretches: tuple[RollingWindow, ...]
    """Rolling windows, one a week."""
    week: PeriodShift | None = None
    """The last week compared with the one before."""
    since: PeriodShift | None = None
    """Everything since the end of the baseline compared with everything before."""
    turns: tuple[TurningPoint, ...] = ()


class MetricRegression(Record):
    """A change for the worse."""

    metric: str
    group: dict[str, str] = {}
    kind: MetricKind = "rate"
    unit: str = ""
    turn: TurningPoint
    adjusted: float
    """p-value after Benjamini and Hochberg, over all turning points found."""

    @property
    def key(self) -> str:
        """Equal for the same turning point, so that it is reported once."""
        group_text = ",".join(f"{name}={value}" for name, value in self.group.items())
        return f"{self.metric}|{group_text}|{self.turn.at:%G-W%V}"


class TrendReport(Record):
    """All series, and the regressions, clearest first."""

    weeks: int
    """The width of the rolling windows."""
    courses: tuple[MetricSeries, ...]
    marks: tuple[VersionMark, ...]
    regressions: tuple[MetricRegression, ...]
    notes: tuple[str, ...] = ()
