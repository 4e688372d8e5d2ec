"""Experiments: which variant tries which task how often; baselines and trials."""

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

# The structured log of one task: what was asked, changed, tested, corrected and decided.


MergeDecision = Literal["merged", "not merged", "open", "would merge", "would not merge", "split"]
"""By the pull request; else by people's reviews, who may be split."""


class TouchedFile(Record):
    """One file of the change."""

    path: str
    status: Literal["added", "changed", "deleted", "renamed"]
    added: int | None = 0
    removed: int | None = 0
    """Lines; None where they were not told, which is not 0."""
    in_scope: bool | None = None
    """None where no scope was declared, or nothing was graded."""
    in_reference: bool | None = None
    """Whether the reference changes it too; None where there is none."""


class SuiteCounts(Record):
    """One run of the tests, or of the acceptance commands where tests are not told apart."""

    of: Literal["tests", "commands"]
    passed: int
    failed: int
    skipped: int = 0
    failing: tuple[str, ...] = ()
    """The first ids or commands that fail."""


class LoggedReview(Record):
    """What one person said of it."""

    by: str
    at: Time
    merge: bool | None = None
    tags: tuple[FailureMode, ...] = ()
    notes: str = ""
    seconds: float | None = None


class FileDifference(Record):
    """One file, as the attempt and the reference change it."""

    path: str
    both: int
    """Changed lines that both have, layout aside."""
    only_attempt: tuple[str, ...] = ()
    only_reference: tuple[str, ...] = ()
    """Changed lines that only one has, with their sign; the first ones."""
    more: int = 0
    """Lines that are not listed."""


class ReferenceDifference(Record):
    """The reference change, and how the attempt's differs from it."""

    similarity: float | None
    """Twice the changed lines that both have ÷ those of both; files that decide the verdict and
    the agent's own tests are left out, as grading leaves them out."""
    files_in_both: tuple[str, ...] = ()
    only_attempt: tuple[str, ...] = ()
    only_reference: tuple[str, ...] = ()
    files: tuple[FileDifference, ...] = ()
    change: Change
    """The reference itself."""


class LoggedPlan(Record):
    """Of an attempt that is a plan of several sub-agents: how its tasks went."""

    id: str
    passed: bool | None
    summary: str
    grade: PlanGrade | None = None
    tasks: int
    first_try: tuple[int, int] | None = None
    after_feedback: tuple[int, int] | None = None
    final: tuple[int, int] | None = None
    """So many of so many tasks."""
    tries: int = 0
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cost: float | None = None
    seconds: float | None = None


class TaskLog(Record):
    """What an agent's task leaves behind, in one record."""

    attempt: str
    origin: Origin
    task: str | None
    description: str
    """What was asked for."""
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
    """None where no change is on record."""
    recovered: bool = False
    """Whether those are the files that the edits in the recording name: no diff was stored."""
    tests_before: SuiteCounts | None = None
    tests_after: SuiteCounts | None = None
    broken: tuple[str, ...] = ()
    mended: tuple[str, ...] = ()
    """Tests that the change made fail, and made pass."""
    review_cycles: int | None = None
    """How often people sent it back; None where nobody is known to have looked."""
    reviews: tuple[LoggedReview, ...] = ()
    corrections: tuple[Correction, ...] = ()
    merge_decision: MergeDecision | None = None
    """None: nobody decided."""
    pull: str | None = None
    """The pull request, as `owner/name#12`."""
    reference: ReferenceDifference | None = None
    plan: LoggedPlan | None = None


# Held-out tasks: the ledger of looks, and what they show beside dev.


class HeldOutRun(Record):
    """One run on held-out tasks, written down before it begins."""

    at: Time
    who: str
    reason: str
    tasks: str
    """Digest of the tasks that were looked at, together."""
    change: str
    """Digest of what was tried on them: the variants and the tasks."""
    experiment: str
    variants: tuple[str, ...]
    """Names."""
    models: tuple[str, ...] = ()
    count: int
    """Of tasks."""


class HeldOutGap(Record):
    """How much better a variant does on the dev tasks than on those held out."""

    variant: str
    digest: str
    """Of this version of the variant."""
    label: str
    """The name, and where several versions have it, the beginning of the digest."""
    dev: Estimate
    held_out: Estimate
    gap: Estimate
    """Dev less held-out, on tasks like these."""


class GapChange(Record):
    """How the gap of a variant changed from the first of its versions to the last.

    A gap may be there because one set is harder than the other. That it widens has one cause:
    what was changed helped the tasks that people looked at, and no others.
    """

    variant: str
    since: Time
    """The first look at one of its versions."""
    until: Time
    """The first look at the last of them."""
    dev: Estimate
    held_out: Estimate
    """How much more of the same tasks the last version passes than the first."""
    change: Estimate
    """Of the gap; its bounds hold for all such changes that the ledger has shown so far."""
    overfitted: bool
    """Whether the gap has widened for certain."""
    says: str
    """The same in a sentence."""


class HeldOutReport(Record):
    """What may be said of held-out tasks: under a heading of its own, with the ledger's entry."""

    looks: int
    last_look: HeldOutRun
    gaps: tuple[HeldOutGap, ...] = ()
    """By variant."""
    changes: tuple[GapChange, ...] = ()
    """Of variants with several versions that were tried on both sets."""


# What is due: tasks that no longer tell, setups that changed, runs that are long ago.


class StaleTask(Record):
    """A dev task that tells less than it should, and why."""

    task: str
    reasons: tuple[str, ...]
    commits_behind: int | None = None
    """Commits of the repository's HEAD that its base lacks; None where git does not know."""
    told_apart: bool | None = None
    """False where variants always did the same on it; None where too few attempts are scored."""
    flaky: int = 0
    """Tests whose result differed when the task was proved."""


class SetupChange(Record):
    """Something that the last comparison did not have."""

    name: str
    """Of a variant, or of an agent and model that were seen in sessions."""
    says: str


class LastRun(Record):
    """An experiment that held variants against each other."""

    experiment: str
    at: Time
    days: int
    """Ago."""
    tasks: int
    variants: tuple[str, ...]
    """Names."""


class DueReport(Record):
    """What to run or renew, and since when."""

    says: tuple[str, ...]
    """What is due, in sentences; nothing where all is well."""
    tasks: int
    """Dev tasks that were looked at."""
    stale: tuple[StaleTask, ...] = ()
    changes: tuple[SetupChange, ...] = ()
    """Since the last comparison."""
    last_comparison: LastRun | None = None
    last_full_run: LastRun | None = None
    """The last comparison with at least half of the dev tasks: the one to take once a quarter."""
    last_look: HeldOutRun | None = None


RunStage = Literal["preparing", "prepared", "skipped", "started", "settled", "elsewhere", "held"]
RunMode = Literal["fill", "all", "unscored", "grades"]
"""Make what is missing, make again what could not be scored, or only grade again."""
ExperimentState = Literal["done", "paused", "running", "spent", "stopped"]
"""Of an experiment; spent is its budget."""
SlotPlace = tuple[str | None, str | None, int]
"""Task digest, variant digest, repeat."""


class RunProgress(Record):
    """What a run has to tell while it goes on."""

    stage: RunStage
    task: str
    variant: str | None = None
    number: int | None = None
    row: AttemptRow | None = None
    why: str | None = None


class ScheduledAttempt(Record):
    """One repeat of one task by one variant: a place that one scored attempt fills."""

    task: Task
    variant: Variant
    number: int
    experiment: str
    feedback: bool = False
    context: str = ""
    """What reviewers taught, for the end of the system prompt."""

    @property
    def place(self) -> SlotPlace:
        return self.task.digest, self.variant.digest, self.number

    def job_key(self, retry: int) -> str:
        """Names one try at it, on any machine."""
        return f"{self.task.digest}/{self.variant.digest}/{self.number}/{retry}"

    def progress_event(
        self, stage: RunStage, row: AttemptRow | None = None, why: str | None = None
    ) -> RunProgress:
        """What there is to say of it."""
        return RunProgress(
            stage=stage,
            task=self.task.id,
            variant=self.variant.name,
            number=self.number,
            row=row,
            why=why,
        )


class AttemptOrder(Record):
    """One try at a slot: all that a machine must know to make the attempt."""

    slot: ScheduledAttempt
    retry: int
    parent: str | None
    """The attempt that this one retries."""
    proof: Proof
    beneath: str = ""
    """A patch that is there when it begins, as if it had always been."""
    draft: str = ""
    """A patch on top of that, which is part of what it hands in."""

    @property
    def key(self) -> str:
        return self.slot.job_key(self.retry)


class AttemptResult(Record):
    """An attempt as it was made, not yet kept."""

    attempt: Attempt
    trace: Trace | None = None
    change: Change | None = None
    grade: Grade | None = None
    exchanges: Sequence[Exchange] = ()
    """Read one by one: together they are many times as long as what they share."""
    prompt: PromptVersion | None = None
    """The system prompt that another's program was seen to send."""
    insights: tuple[Insight, ...] = ()
    events: tuple[LogEvent, ...] = ()
    mend: str | None = None
    """What the user must mend before it is of any use to try again."""


class ExperimentPlan(Record):
    """An experiment with its tasks and variants at hand."""

    experiment: Experiment
    tasks: tuple[Task, ...]
    variants: tuple[Variant, ...]

    def list_slots(self) -> Iterator[ScheduledAttempt]:
        """As they are listed: by repeat, task and variant."""
        for number in range(1, self.experiment.repeats + 1):
            for task in self.tasks:
                for variant in self.variants:
                    yield self._build_slot(task, variant, number)

    def shuffle_slots(self) -> Iterator[ScheduledAttempt]:
        """As they are begun: every variant meets every task early, in an order the seed gives."""
        if len(self.tasks) == len(self.variants) == 1:
            yield from self.list_slots()
            return
        for number in range(1, self.experiment.repeats + 1):
            random_order = Random(f"{self.experiment.seed}/{number}")  # noqa: S311
            for task in random_order.sample(self.tasks, len(self.tasks)):
                for variant in random_order.sample(self.variants, len(self.variants)):
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
    """What is known of a plan before it begins."""

    attempts: int
    """Of the plan, in all."""
    missing: int
    """Not made yet."""
    effect: float | None
    """The smallest difference between two variants that it will probably show."""
    seconds: float | None
    cost: float | None
    """For what is missing, by what such attempts took before; None is not known."""
    paid: tuple[str, ...]
    """Models that cost money."""


class ExperimentResults(Record):
    """What came of a plan."""

    experiment: str
    tasks: tuple[Task, ...]
    variants: tuple[Variant, ...]
    attempts: tuple[AttemptRow, ...]
    """The one that counts of each slot: the last try."""
    measurements: dict[str, Measurement]
    """What the rules say, by attempt."""
    insights: tuple[Insight, ...]
    """What the agents said they lacked, where they were asked."""
    skipped: dict[str, str]
    """Tasks that were not run, and why."""
    sandbox: str
    """How the agents were caged, and what was not enforced."""
    would_merge: dict[str, float] = {}
    """By attempt that people have reviewed: the share of them who would merge it."""


class ExperimentStatus(Record):
    """How an experiment stands."""

    experiment: Experiment
    tasks: tuple[str, ...]
    variants: tuple[str, ...]
    """Names."""
    total: int
    done: int
    """Places filled by an attempt that the machine did not fail."""
    running: int
    """Attempts that a process has in hand now."""
    cost: float | None
    """Of the tries that were made for it; None where none is known."""
    shared_cost: float | None = None
    """Of tries at its places that another experiment made and paid for."""
    begun: Time | None
    """When its first attempt started; None where others had made all of them, or none is made."""
    state: ExperimentState


class AttemptDetails(Record):
    """All that is known of one attempt."""

    attempt: Attempt
    task: Task | None
    variant: Variant | None
    trace: Trace | None
    change: Change | None
    grade: Grade | None
    session: Session | None
    """Of an imported one, what its files say besides the trace."""
    measurement: Measurement
    """What the rules say of it."""
    handoffs: tuple[HandoffFacts, ...] = ()
    """Which facts arrived, were used or lost at each handoff."""
    replay_of: str | None = None
    """The recorded attempt whose answers it was given again; such an attempt counts nowhere."""
    insights: tuple[Insight, ...] = ()
    evaluations: tuple[Evaluation, ...] = ()
    """What judges say of it, where somebody looked that up."""
    scores: tuple[Score, ...] = ()
    """What people, judges and scorers gave it, of each the last."""
    log: TaskLog | None = None
    """What was asked, changed, tested, corrected and decided, where somebody looked that up."""


# A trial: variants to which work in production is assigned at random, to compare them.

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


class OutcomeComparison(Record):
    """Outcomes of two groups of work: what may be said, in the words of `compare`."""

    verdict: ComparisonVerdict = "not enough data"
    difference: Estimate | None = None
    """How much more the second has; more is better. None where one has no outcome."""
    margin: float
    effect: float | None = None
    """The difference that `needed` is for: that seen, or the margin where it is larger."""
    needed: int | None = None
    """Outcomes of both that are still lacking; None where it is decided, or no reachable number
    would do."""


class TrialStanding(Record):
    """One variant against the first."""

    variant: str
    call: TrialCall
    why: str
    comparison: OutcomeComparison

    @property
    def difference(self) -> Estimate | None:
        return self.comparison.difference


class PromptEffect(Record):
    """Work under one version of a prompt against work under the one before it; observational."""

    metric: str
    old: str
    new: str
    before: Estimate | None
    after: Estimate | None
    """None where nothing is known."""
    comparison: OutcomeComparison
    notes: tuple[str, ...] = ()


class TrialReport(Record):
    """How a trial stands."""

    trial: Trial
    ratio: SampleRatio | None
    arms: tuple[TrialArm, ...]
    standings: tuple[TrialStanding, ...]
    refusal: str | None = None
    """Why nothing can be called: work that was not shared as it should have been, or not at all."""


# A baseline: attempts that later ones are held against; and what came of doing so.

BaselineVerdict = Literal["better", "worse", "no clear difference", "not enough data"]


class Baseline(Record):
    """Attempts of one experiment, kept under a name."""

    name: str
    experiment: str
    attempts: tuple[str, ...]
    at: Time
    reason: str | None = None


class MetricDifference(Record):
    """One metric of one variant, now against the baseline, over the tasks that both have."""

    variant: str
    metric: str
    verdict: BaselineVerdict
    tasks: int
    """How many tasks both sides have a value for."""
    before: float | None = None
    now: float | None = None
    """Means over those tasks, each task weighing the same."""
    low: float | None = None
    high: float | None = None
    """Bounds of the difference on exactly these tasks, all metrics taken together at 95 %."""
    method: str = "per-task difference, Jeffreys variances"


class TaskDifference(Record):
    """The pass rate of one task, now against the baseline: a lost task hides in no mean."""

    variant: str
    task: str
    verdict: BaselineVerdict
    before: float | None
    """None where there is no baseline to it."""
    now: float
    repeats: int
    """Scored, now."""


class MetricThreshold(Record):
    """What somebody demands of a metric, whatever the baseline says."""

    variant: str
    metric: str
    """`each task` demands it of every task."""
    least: float
    """Of a score of which less is better, the most."""
    value: float | None
    """Of `each task`, the lowest; None where nothing was scored."""
    holds: bool
    better: BetterDirection = "more"


class GateDemands(Record):
    """What a gate asks for besides being no worse than noise allows."""

    least: dict[str, float] = {}
    """By metric, or for `each task`."""
    margin: float | None = None
    """How much worse the pass rate may be, and must be shown not to be more."""
    scores: dict[str, Metric] = {}
    """By name, what else must not be worse."""
    values: dict[str, dict[str, float]] = {}
    """By attempt, what is known of those."""


class GateReport(Record):
    """What a gate saw."""

    baseline: Baseline | None
    """None where only thresholds were asked about."""
    experiment: str
    passed: bool
    reasons: tuple[str, ...] = ()
    """Why it did not pass."""
    differences: tuple[MetricDifference, ...]
    tasks: tuple[TaskDifference, ...] = ()
    thresholds: tuple[MetricThreshold, ...] = ()
    margin: float | None = None
    """Where one is given, it must be shown that the pass rate is not worse by more than this."""
    coverage: float | None
    """Of the attempts that were to be scored, those that were."""
    left_out: tuple[str, ...] = ()
    """Tasks and variants that only one side has, and why they are not compared."""
    rules: tuple[str, ...] = ()
    """Those that gate: whose findings count in `without findings`."""


class GateRun(Record):
    """A gate's report as it was kept."""

    number: int
    at: Time
    report: GateReport
