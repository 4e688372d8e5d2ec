"""Experiments: which variant attempts which task how often; baselines and trials."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Literal

from closeloop.records.attempt import Attempt, AttemptRow, Grade, Insight, Origin, Proof
from closeloop.records.change import Change
from closeloop.records.estimate import (
    BetterDirection,
    ComparisonVerdict,
    Estimate,
    Metric,
    SampleRatio,
)
from closeloop.records.evaluation import Evaluation
from closeloop.records.finding import FailureMode, HandoffFacts, Measurement
from closeloop.records.orchestration import PlanGrade
from closeloop.records.pull_request import Correction
from closeloop.records.record import Record, Time
from closeloop.records.score import Score
from closeloop.records.task import Experiment, PromptVersion, Task, Variant
from closeloop.records.trace import Exchange, LogEvent, Session, Trace

# The structured log of one task: the request, changes, tests, corrections and decisions.


MergeDecision = Literal["merged", "not merged", "open", "would merge", "would not merge", "split"]
"""From the pull request, else from people's reviews, which may disagree."""


class TouchedFile(Record):
    """One file of the change."""

    path: str
    status: Literal["added", "changed", "deleted", "renamed"]
    added: int | None = 0
    removed: int | None = 0
    """Number of removed lines; None means unknown, not 0."""
    in_scope: bool | None = None
    """None if no scope was declared or nothing was graded."""
    in_reference: bool | None = None
    """Whether the reference changes it too; None without a reference."""


class SuiteCounts(Record):
    """One run of the tests, or of the acceptance commands if tests are not listed."""

    of: Literal["tests", "commands"]
    passed: int
    failed: int
    skipped: int = 0
    failing: tuple[str, ...] = ()
    """The first ids or commands that fail."""


class LoggedReview(Record):
    """One person's review of it."""

    by: str
    at: Time
    merge: bool | None = None
    tags: tuple[FailureMode, ...] = ()
    notes: str = ""
    seconds: float | None = None


class FileDifference(Record):
    """One file as changed by the attempt and by the reference."""

    path: str
    both: int
    """Number of changed lines in both, ignoring layout."""
    only_attempt: tuple[str, ...] = ()
    only_reference: tuple[str, ...] = ()
    """Changed lines of one side only, with their sign; the first ones."""
    more: int = 0
    """Number of lines not listed."""


class ReferenceDifference(Record):
    """The reference change, and the attempt's differences from it."""

    similarity: float | None
    """Twice the changed lines in both ÷ those of both sides. Files that decide the verdict and the
    agent's own tests are left out, as in grading."""
    files_in_both: tuple[str, ...] = ()
    only_attempt: tuple[str, ...] = ()
    only_reference: tuple[str, ...] = ()
    files: tuple[FileDifference, ...] = ()
    change: Change
    """The reference."""


class LoggedPlan(Record):
    """For a plan of several sub-agents: the results of its tasks."""

    id: str
    passed: bool | None
    summary: str
    grade: PlanGrade | None = None
    tasks: int
    first_try: tuple[int, int] | None = None
    after_feedback: tuple[int, int] | None = None
    final: tuple[int, int] | None = None
    """Number of tasks that passed in the end, of all."""
    tries: int = 0
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cost: float | None = None
    seconds: float | None = None


class TaskLog(Record):
    """The record of an attempt: request, change, tests, reviews and decision."""

    attempt: str
    origin: Origin
    task: str | None
    description: str
    """The request."""
    repo: str | None = None
    variant: str | None = None
    agent: str | None = None
    model: str | None = None
    started: Time | None = None
    ended: Time | None = None
    cost: float | None = None
    outcome: Literal["pass", "fail", "unscored"] | None = None
    reasons: tuple[str, ...] = ()
    """Why it failed or could not be scored."""
    files: tuple[TouchedFile, ...] | None = None
    """None if no change is recorded."""
    recovered: bool = False
    """Whether the files come from the edits of the recording, because no diff was stored."""
    tests_before: SuiteCounts | None = None
    tests_after: SuiteCounts | None = None
    broken: tuple[str, ...] = ()
    mended: tuple[str, ...] = ()
    """Tests that the change broke and then fixed."""
    review_cycles: int | None = None
    """How often reviewers sent it back; None if no review is known."""
    reviews: tuple[LoggedReview, ...] = ()
    corrections: tuple[Correction, ...] = ()
    merge_decision: MergeDecision | None = None
    """None: undecided."""
    pull: str | None = None
    """The pull request, as `owner/name#12`."""
    reference: ReferenceDifference | None = None
    plan: LoggedPlan | None = None


# Held-out tasks: the ledger of unsealings, and their results compared with dev.


class HeldOutRun(Record):
    """One run on held-out tasks, recorded before it begins."""

    at: Time
    who: str
    reason: str
    tasks: str
    """Digest of all tasks that were run."""
    change: str
    """Digest of what was run: the variants and the tasks."""
    experiment: str
    variants: tuple[str, ...]
    """Names of the variants."""
    models: tuple[str, ...] = ()
    count: int
    """Number of tasks."""


class HeldOutGap(Record):
    """Difference of a variant's result between dev tasks and held-out tasks."""

    variant: str
    digest: str
    """Digest of this version of the variant."""
    label: str
    """The name; with a digest prefix if several versions share it."""
    dev: Estimate
    held_out: Estimate
    gap: Estimate
    """Dev minus held-out, on tasks like these."""


class GapChange(Record):
    """Change of a variant's gap from its first version to its last.

    A gap can exist because one set is harder. A growing gap has one cause: the changes helped the
    tasks that people looked at, and no others.
    """

    variant: str
    since: Time
    """First run of one of its versions."""
    until: Time
    """First run of the last version."""
    dev: Estimate
    held_out: Estimate
    """Difference between the last and the first version on the same held-out tasks."""
    change: Estimate
    """Change of the gap; its bounds hold for all such changes in the ledger so far."""
    overfitted: bool
    """Whether the gap has certainly grown."""
    says: str
    """The same as a sentence."""


class HeldOutReport(Record):
    """Results on held-out tasks, shown separately with the ledger's entry."""

    looks: int
    last_look: HeldOutRun
    gaps: tuple[HeldOutGap, ...] = ()
    """By variant."""
    changes: tuple[GapChange, ...] = ()
    """For variants with several versions that were run on both sets."""


# What is due: tasks that no longer discriminate, setups that changed, runs that are old.


class StaleTask(Record):
    """A dev task that has lost value, and why."""

    task: str
    reasons: tuple[str, ...]
    commits_behind: int | None = None
    """Number of commits on HEAD that its base lacks; None if git does not know."""
    told_apart: bool | None = None
    """False if all variants always had the same result; None if too few attempts are scored."""
    flaky: int = 0
    """Number of tests whose result varied when the task was proved."""


class SetupChange(Record):
    """Something that the last comparison did not include."""

    name: str
    """Name of a variant, or of an agent and model seen in sessions."""
    says: str


class LastRun(Record):
    """An experiment that compared variants."""

    experiment: str
    at: Time
    days: int
    """Days since then."""
    tasks: int
    variants: tuple[str, ...]
    """Names of the variants."""


class DueReport(Record):
    """What to run or renew, and since when."""

    says: tuple[str, ...]
    """What is due, as sentences; empty if nothing is."""
    tasks: int
    """Number of dev tasks examined."""
    stale: tuple[StaleTask, ...] = ()
    changes: tuple[SetupChange, ...] = ()
    """Since the last comparison."""
    last_comparison: LastRun | None = None
    last_full_run: LastRun | None = None
    """The last comparison with at least half of the dev tasks, due once a quarter."""
    last_look: HeldOutRun | None = None


RunStage = Literal["preparing", "prepared", "skipped", "started", "settled", "elsewhere", "held"]
RunMode = Literal["fill", "all", "unscored", "grades"]
"""Run what is missing, everything, what could not be scored, or only grade again."""
ExperimentState = Literal["done", "paused", "running", "spent", "stopped"]
"""State of an experiment; `spent` means its budget is used up."""
SlotPlace = tuple[str | None, str | None, int]
"""Task digest, variant digest, repeat."""


class RunProgress(Record):
    """A progress report of a run."""

    stage: RunStage
    task: str
    variant: str | None = None
    number: int | None = None
    row: AttemptRow | None = None
    why: str | None = None


class ScheduledAttempt(Record):
    """One repeat of one task by one variant: a slot for one scored attempt."""

    task: Task
    variant: Variant
    number: int
    experiment: str
    feedback: bool = False
    context: str = ""
    """Team rules to append to the system prompt."""

    @property
    def place(self) -> SlotPlace:
        return self.task.digest, self.variant.digest, self.number

    def job_key(self, retry: int) -> str:
        """Key of one try at it, equal on all machines."""
        return f"{self.task.digest}/{self.variant.digest}/{self.number}/{retry}"

    def progress_event(
        self, stage: RunStage, row: AttemptRow | None = None, reason: str | None = None
    ) -> RunProgress:
        """A progress report about this slot."""
        return RunProgress(
            stage=stage,
            task=self.task.id,
            variant=self.variant.name,
            number=self.number,
            row=row,
            why=reason,
        )


class AttemptOrder(Record):
    """One try at a slot: everything a machine needs to run the attempt."""

    slot: ScheduledAttempt
    retry: int
    parent: str | None
    """The attempt that this one retries."""
    proof: Proof
    beneath: str = ""
    """A patch that is applied to the base before it begins."""
    draft: str = ""
    """A patch on top of that, which is part of its change."""

    @property
    def key(self) -> str:
        return self.slot.job_key(self.retry)


class AttemptResult(Record):
    """A finished attempt before it is stored."""

    attempt: Attempt
    trace: Trace | None = None
    change: Change | None = None
    grade: Grade | None = None
    exchanges: Sequence[Exchange] = ()
    """Read one by one, because they repeat each other and are many times larger than their unique
    parts."""
    prompt: PromptVersion | None = None
    """The system prompt that a wrapped program sent."""
    insights: tuple[Insight, ...] = ()
    events: tuple[LogEvent, ...] = ()
    mend: str | None = None
    """What the user must fix before a retry is useful."""


class ExperimentPlan(Record):
    """An experiment with its loaded tasks and variants."""

    experiment: Experiment
    tasks: tuple[Task, ...]
    variants: tuple[Variant, ...]

    def list_slots(self) -> Iterator[ScheduledAttempt]:
        """All slots, by repeat, task and variant; none for a task that a control cannot try."""
        for number in range(1, self.experiment.repeats + 1):
            for task in self.tasks:
                for variant in self.variants:
                    if variant.can_attempt(task):
                        yield self._build_slot(task, variant, number)

    def shuffle_slots(self) -> Iterator[ScheduledAttempt]:
        """All slots in the order they start: every variant meets every task early, shuffled by the
        seed."""
        if len(self.tasks) == len(self.variants) == 1:
            yield from self.list_slots()
            return
        for number in range(1, self.experiment.repeats + 1):
            random_order = Random(f"{self.experiment.seed}/{number}")  # noqa: S311
            for task in random_order.sample(self.tasks, len(self.tasks)):
                for variant in random_order.sample(self.variants, len(self.variants)):
                    if variant.can_attempt(task):
                        yield self._build_slot(task, variant, number)

    def _build_slot(self, task: Task, variant: Variant, number: int) -> ScheduledAttempt:
        experiment = self.experiment
        return ScheduledAttempt(
            task=task,
            variant=variant,
            number=number,
            experiment=experiment.id,
            feedback=experiment.feedback,
        )


class ExperimentForecast(Record):
    """What is known about a plan before it begins."""

    attempts: int
    """Number of attempts of the plan."""
    missing: int
    """Number of missing attempts."""
    tasks: int
    repeats: int
    effect: float | None
    """The smallest difference between two variants that it will probably show on similar tasks."""
    effect_here: float | None
    """The same on exactly these tasks."""
    seconds: float | None
    cost: float | None
    """Expected cost of the missing attempts, from earlier ones; None if unknown."""
    paid: tuple[str, ...]
    """Models that cost money."""


class ExperimentResults(Record):
    """The results of a plan."""

    experiment: str
    tasks: tuple[Task, ...]
    variants: tuple[Variant, ...]
    attempts: tuple[AttemptRow, ...]
    """The counted attempt of each slot: the last try."""
    measurements: dict[str, Measurement]
    """Measurements by attempt."""
    insights: tuple[Insight, ...]
    """What the agents said they lacked, if they were asked."""
    skipped: dict[str, str]
    """Tasks that were not run, with the reason."""
    sandbox: str
    """The sandbox that was used, and what it did not enforce."""
    would_merge: dict[str, float] = {}
    """By reviewed attempt, the share of reviewers who would merge it."""


class ExperimentStatus(Record):
    """The state of an experiment."""

    experiment: Experiment
    tasks: tuple[str, ...]
    variants: tuple[str, ...]
    """Names of the variants."""
    total: int
    done: int
    """Slots filled by an attempt without a machine fault."""
    running: int
    """Attempts that are running now."""
    not_run: int
    """Slots that wait, or that no run has filled."""
    for_review: int = 0
    """Attempts at tasks without a check that no person has reviewed."""
    cost: float | None
    """Cost of the tries made for it; None if unknown."""
    shared_cost: float | None = None
    """Cost of tries in its slots that another experiment paid for."""
    begun: Time | None
    """Start of its first attempt; None if other experiments made all of them, or none exists."""
    state: ExperimentState


class AttemptDetails(Record):
    """Everything known about one attempt."""

    attempt: Attempt
    task: Task | None
    variant: Variant | None
    trace: Trace | None
    change: Change | None
    grade: Grade | None
    session: Session | None
    """For an imported attempt, what its files contain besides the trace."""
    measurement: Measurement
    """Its measurement by the rules."""
    handoffs: tuple[HandoffFacts, ...] = ()
    """Facts that arrived, were used or were lost at each handoff."""
    replay_of: str | None = None
    """The recorded attempt that this one replays. Replays are not counted anywhere."""
    is_control: bool = False
    """Whether a control made it, and not an agent."""
    insights: tuple[Insight, ...] = ()
    evaluations: tuple[Evaluation, ...] = ()
    """Judges' evaluations, if loaded."""
    scores: tuple[Score, ...] = ()
    """The latest score of each person, judge and scorer."""
    log: TaskLog | None = None
    """The request, change, tests, corrections and decision, if loaded."""


# A trial: variants to which work in production is assigned at random, to compare them.

TrialCall = Literal["better", "worse", "hopeless", "go on"]


class Trial(Record):
    """The arms of a trial and its deciding metric. Written once, before the work starts."""

    name: str
    shares: dict[str, float]
    """Shares by variant; the first is the baseline."""
    metric: str
    """The deciding rate."""
    horizon: int | None = None
    """Evaluate once, after this many outcomes; None is at any time."""
    margin: float = 0.05
    """A difference that is certainly smaller is not worth waiting for."""
    started: Time


class TrialAssignment(Record):
    """The variant assigned to a piece of work."""

    trial: str
    key: str
    """Key of a task, a branch or an attempt."""
    variant: str
    at: Time


class TrialArm(Record):
    """The results of one variant in a trial."""

    variant: str
    share: float
    assigned: int
    outcomes: int
    """Pieces of work whose deciding rate is known."""
    rates: dict[str, float | None]
    """Means of the other metrics; None is unknown."""


class OutcomeComparison(Record):
    """Comparison of the outcomes of two groups of work, worded as in `compare`."""

    verdict: ComparisonVerdict = "not enough data"
    difference: Estimate | None = None
    """Second minus first; more is better. None if one side has no outcome."""
    margin: float
    effect: float | None = None
    """The difference that `needed` is for: the observed one, or the margin if larger."""
    needed: int | None = None
    """Missing outcomes of both sides; None if it is decided or no feasible number suffices."""


class TrialStanding(Record):
    """One variant compared with the first."""

    variant: str
    call: TrialCall
    why: str
    comparison: OutcomeComparison

    @property
    def difference(self) -> Estimate | None:
        return self.comparison.difference


class PromptEffect(Record):
    """Work under one version of a prompt compared with the version before; observational."""

    metric: str
    old: str
    new: str
    before: Estimate | None
    after: Estimate | None
    """None if unknown."""
    comparison: OutcomeComparison
    notes: tuple[str, ...] = ()


class TrialReport(Record):
    """The state of a trial."""

    trial: Trial
    ratio: SampleRatio | None
    arms: tuple[TrialArm, ...]
    standings: tuple[TrialStanding, ...]
    refusal: str | None = None
    """Why no verdict is possible: the work was not assigned as planned, or not at all."""


# A baseline: attempts that later ones are compared with; and the result of the comparison.

BaselineVerdict = Literal["better", "worse", "no clear difference", "not enough data"]


class Baseline(Record):
    """Attempts of one experiment, saved under a name."""

    name: str
    experiment: str
    attempts: tuple[str, ...]
    at: Time
    reason: str | None = None


class MetricDifference(Record):
    """One metric of one variant, now and in the baseline, over the tasks that both have."""

    variant: str
    metric: str
    verdict: BaselineVerdict
    tasks: int
    """Number of tasks with a value on both sides."""
    before: float | None = None
    now: float | None = None
    """Mean over those tasks, weighted equally."""
    low: float | None = None
    high: float | None = None
    """Upper bound of the difference on exactly these tasks; all metrics together at 95 %."""
    method: str = "per-task difference, Jeffreys variances"


class TaskDifference(Record):
    """The pass rate of one task, now and in the baseline, so that no mean hides a lost task."""

    variant: str
    task: str
    verdict: BaselineVerdict
    before: float | None
    """None without a baseline."""
    now: float
    repeats: int
    """Number of scored repeats now."""


class MetricThreshold(Record):
    """A required value of a metric, independent of the baseline."""

    variant: str
    metric: str
    """`each task` requires it of every task."""
    least: float
    """The minimum; the maximum for a score of which less is better."""
    value: float | None
    """For `each task` the lowest; None if nothing was scored."""
    holds: bool
    better: BetterDirection = "more"


class GateDemands(Record):
    """What a gate requires besides no significant regression."""

    least: dict[str, float] = {}
    """Minimum by metric, or for `each task`."""
    margin: float | None = None
    """Largest acceptable loss of the pass rate; a larger one must be ruled out."""
    scores: dict[str, Metric] = {}
    """Other scores that must not get worse, by name."""
    values: dict[str, dict[str, float]] = {}
    """Their values by attempt."""


class GateReport(Record):
    """The result of a gate."""

    baseline: Baseline | None
    """None if only thresholds were checked."""
    experiment: str
    passed: bool
    reasons: tuple[str, ...] = ()
    """Why it did not pass."""
    differences: tuple[MetricDifference, ...]
    tasks: tuple[TaskDifference, ...] = ()
    thresholds: tuple[MetricThreshold, ...] = ()
    margin: float | None = None
    """Largest acceptable loss of the pass rate, if given; a larger one must be ruled out."""
    coverage: float | None
    """Share of the attempts to be scored that were scored."""
    left_out: tuple[str, ...] = ()
    """Tasks and variants that only one side has, and why they are not compared."""
    rules: tuple[str, ...] = ()
    """The gating rules, whose findings count in `without gating findings`."""
    passes: dict[str, int] = {}
    """Passes of the experiment by evidence: `confirmed`, `reported`, `weak`, `by answer` or
    `unknown evidence`.
    """


class GateRun(Record):
    """A stored report of a gate."""

    number: int
    at: Time
    report: GateReport
