"""An orchestrated plan: a request split into tasks for sub-agents, each output judged at once."""

from __future__ import annotations

from typing import Literal

from closeloop.records.attempt import CommandResult, Exit, Usage
from closeloop.records.change import ChangeReport
from closeloop.records.estimate import Rate
from closeloop.records.evaluation import ComputedFact, Evaluation, EvaluationIssue, Subtask
from closeloop.records.record import Record, Time
from closeloop.records.settings import VariantSettings
from closeloop.records.task import Task
from closeloop.records.trace import Trace

SubtaskStage = Literal["started", "returned", "judged", "blocked", "held"]
MERGE_CHECK = "merge"
"""The check that fails if a change conflicts with those of other tasks."""
TOGETHER_CHECK = "together"
"""The check that fails if a change breaks commands of other tasks."""


# The work to do


class SubtaskSpec(Subtask, forbid_unknown_fields=True):
    """One task of a plan, with its worker and its limits."""

    variant: str | None = None
    """A variant of closeloop.toml; None is the plan's worker."""
    scope: tuple[str, ...] = ()
    """Globs of the files it may change; empty means anywhere."""
    commands: tuple[str, ...] = ()
    """Commands that must exit with 0 after the change, whatever a judge says."""


class OrchestrationPlan(Record):
    """A plan as its author wrote it."""

    request: str
    plan: tuple[SubtaskSpec, ...]


class PlanningRun(Record):
    """How a model made a plan."""

    model: str
    usage: Usage = Usage()
    seconds: float = 0.0


class Orchestration(Record):
    """A plan that is being carried out."""

    id: str
    at: Time
    request: str
    tasks: tuple[SubtaskSpec, ...]
    repo: str | None = None
    base: str | None = None
    """The commit that all tasks start from; None for work without code."""
    about: str = ""
    """Summary of the repository."""
    worker: str
    """The variant for tasks that name none."""
    written: VariantSettings | None = None
    """The variant's settings, kept to resume the plan later."""
    judges: tuple[str, ...] = ()
    """Names of the judges' models."""
    planning: PlanningRun | None = None
    """None if the plan was given."""
    handed_in: bool = False
    """Whether others carry it out and submit the outputs."""

    @property
    def job(self) -> str:
        """Key of the work on it, equal on all machines."""
        return f"plan/{self.id}/0/0"


# The results


class SubtaskExecution(Record):
    """One try of a sub-agent at a task."""

    plan: str
    task: str
    number: int
    """Number of the try, from 1."""
    variant: str
    agent: str
    model: str | None = None
    brief: str
    built_on: tuple[str, ...] = ()
    """Tasks whose changes were present when it began."""
    exit: Exit
    cause: str | None = None
    report: str = ""
    patch: str = ""
    files: tuple[str, ...] = ()
    """The files that the patch changes."""
    checks: tuple[CommandResult, ...] = ()
    """Results of the task's commands, run in its workspace."""
    facts: tuple[ComputedFact, ...] = ()
    """Facts computed without a judge."""
    usage: Usage = Usage()
    started: Time
    ended: Time
    handed_in: bool = False
    """Whether others made it; both times are then the time of submission."""
    told_seconds: float | None = None
    """Its duration as reported by others."""

    @property
    def seconds(self) -> float | None:
        """Its duration; None if those who made it do not report one."""
        return self.told_seconds if self.handed_in else (self.ended - self.started).total_seconds()


class SubtaskAssessment(Record):
    """The assessment of a try."""

    plan: str
    task: str
    number: int
    passed: bool | None
    """None: the judge abstains, or a machine fault lost the try."""
    score: float | None = None
    issues: tuple[EvaluationIssue, ...] = ()
    why: str | None = None
    """Why there is no verdict."""
    ignored: bool = False
    """Whether every issue of the previous try is still there and nothing improved."""
    evaluation: Evaluation | None = None
    at: Time


class SubtaskTry(Record):
    """A try, with its assessment once known."""

    execution: SubtaskExecution
    assessment: SubtaskAssessment | None = None
    judged_before: Usage = Usage()
    """Usage of judges who were asked about it before and gave no verdict."""


class SubtaskResult(Record):
    """A try as passed to the store."""

    execution: SubtaskExecution
    trace: Trace | None = None
    exchanges: bytes | None = None
    """Packed exchanges between the sub-agent and its model."""


class OrchestrationResult(Record):
    """The result of a plan when its last task is settled or nothing more can start."""

    plan: str
    at: Time
    passed: bool | None
    """None: no task fails, but some have no verdict."""
    summary: str
    held: str | None = None
    """Why not every task was started."""
    not_begun: dict[str, str] = {}
    """Tasks that were not tried, with the reason."""
    checks: tuple[CommandResult, ...] = ()
    """The commands of all tasks, run on all changes together."""
    broken_by: dict[str, str] = {}
    """By failing command, the task whose change breaks it."""
    attempt: str | None = None
    """The attempt with the trace and the merged change."""
    usage: Usage = Usage()
    seconds: float = 0.0


class OrchestrationHistory(Record):
    """Everything stored about a plan."""

    plan: Orchestration
    tries: tuple[SubtaskTry, ...] = ()
    """In order of their start."""
    ending: OrchestrationResult | None = None
    """The latest; None while it runs, or if it was interrupted."""


class PlanGrade(Record):
    """The grade of a plan, from the scores that count for its tasks."""

    letter: Literal["A", "B", "C", "F"] | None
    """F if it failed, else by its weakest task: A from 0.9, B from 0.8, C. None: no verdict."""
    score: float | None = None
    """Mean over its tasks; None if several judge versions gave them, or one is missing."""
    weakest: float | None = None
    """None if a task has no score, such as one whose command fails."""
    judged: int = 0
    passed: int = 0
    """Number of judged tasks that passed."""


class OrchestrationRow(Record):
    """One row of the list of plans."""

    id: str
    at: Time
    request: str
    passed: bool | None = None
    ended: bool = False
    tasks: int
    tries: int = 0
    cost: float | None = None
    seconds: float | None = None
    summary: str | None = None
    grade: PlanGrade | None = None
    """None if it has not ended, or nothing was scored."""


class PlanGradeDay(Record):
    """The plans that ended on one day."""

    day: Time
    plans: int
    passed: Rate | None
    """Share of passes among those with a verdict."""
    grades: dict[str, int]
    """Number of plans by letter."""


class PlanQualityDay(Record):
    """Tries that one judge version judged on one day."""

    day: Time
    judge: str | None
    judged: int
    passed: Rate | None
    first_try: Rate | None
    """Share of passes among first tries."""
    score: float | None
    completeness: float | None
    quality: float | None
    relevance: float | None
    """Mean; scores of different judges are never averaged."""


class PlanTotals(Record):
    """Totals of all plans that ended: three task rates that are never mixed."""

    plans: int = 0
    passed: Rate | None = None
    """Share of passes among those with a verdict."""
    grades: dict[str, int] = {}
    """Number of plans by letter."""
    first_try: Rate | None = None
    after_feedback: Rate | None = None
    final: Rate | None = None


class PlanTrend(Record):
    """Results of plans and tries: in total and by day, newest first."""

    totals: PlanTotals = PlanTotals()
    grades: tuple[PlanGradeDay, ...] = ()
    quality: tuple[PlanQualityDay, ...] = ()


class OrchestrationProgress(Record):
    """A progress report of a plan."""

    stage: SubtaskStage
    task: str
    number: int = 0
    assessment: SubtaskAssessment | None = None
    why: str | None = None


# A delivered request: the request, each step of the work, and the result.


DeliveryStep = Literal[
    "requested", "worked", "fixed", "checked", "saved", "branched", "opened", "ended"
]
DeliveryState = Literal["delivered", "unresolved", "held", "nothing"]
"""Unresolved: delivered, with its failures documented. Held: its risk requires a person. Nothing:
the agent changed nothing, so there is nothing to merge."""


class HostIssue(Record):
    """An issue as returned by its host. Its text is untrusted."""

    number: int
    title: str
    body: str = ""
    url: str | None = None
    author: str | None = None
    closable: bool = False
    """Whether it belongs to the repository that the work is delivered to."""


class AskedWork(Record):
    """A request: text, an issue, or both."""

    text: str = ""
    issue: HostIssue | None = None
    target: str | None = None
    """The branch to merge into; None if it starts from no branch."""
    user: str | None = None


class DeliveryOrder(Record):
    """A delivery, recorded before anything is done, so that it can be resumed."""

    id: str
    """Also the id of the attempt that it becomes."""
    at: Time
    title: str
    request: str
    """The request as people wrote it."""
    task: Task
    """The agent's task, with its repository and base commit."""
    variant: str
    """Name of the variant."""
    written: VariantSettings
    """The variant's settings, kept to resume the delivery later."""
    target: str | None = None
    issue: HostIssue | None = None
    user: str | None = None
    """The person who asked."""
    number: int = 1
    """Number of this delivery among those of the same request, variant and base commit."""

    @property
    def job(self) -> str:
        """Key of the work on it, equal on all machines."""
        return f"delivery/{self.id}/0/0"


class CheckedChange(Record):
    """The delivered change, with the results of the checks on exactly that change."""

    patch: str
    """The patch from the base, byte for byte."""
    report: ChangeReport
    cycles: int = 0
    """How often an agent was asked to fix it."""
    note: str | None = None
    """Why fixing stopped early, or why its result was left out."""


class SavedDelivery(Record):
    """The stored attempt of a delivery."""

    attempt: str
    report: int | None = None
    """Number of its report; None if nothing was changed."""


class DeliveryBranch(Record):
    """A branch of the user's repository with the change on top of the base."""

    name: str
    commit: str
    base: str


class DeliveredPull(Record):
    """An opened pull request, and what was written to it."""

    host: Literal["github", "gitlab"]
    repo: str
    number: int
    url: str
    draft: bool = False
    labels: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """What could not be done, and why."""


class DeliveryResult(Record):
    """The result of a delivery."""

    id: str
    state: DeliveryState
    title: str
    attempt: str
    variant: str
    reasons: tuple[str, ...] = ()
    """Why it is not delivered without reservation."""
    verdict: str | None = None
    risk: str | None = None
    cycles: int = 0
    cost: float | None = None
    feedback: str | None = None
    """What the agent said it lacked."""
    branch: DeliveryBranch | None = None
    pull: DeliveredPull | None = None
    notes: tuple[str, ...] = ()
    """Further notes: why there is no pull request, what could not be written."""
    report: ChangeReport | None = None


class DeliveryProgress(Record):
    """A progress report of a delivery."""

    delivery: str
    step: DeliveryStep
    done: bool
    """False when the step begins."""
    text: str
    known: bool = False
    """Whether it was done before and is skipped."""
