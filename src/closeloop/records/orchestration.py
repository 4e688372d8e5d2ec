"""An orchestrated plan: a request in tasks that sub-agents work on, each output judged at once."""

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
"""The check that a change fails which does not go together with those of other tasks."""
TOGETHER_CHECK = "together"
"""The check that a change fails which makes commands of other tasks fail."""


# What is to be done


class SubtaskSpec(Subtask, forbid_unknown_fields=True):
    """One task of a plan, and who works on it within which bounds."""

    variant: str | None = None
    """A variant of closeloop.toml; None is whoever works on the plan."""
    scope: tuple[str, ...] = ()
    """Globs of the files it may change; none given means anywhere."""
    commands: tuple[str, ...] = ()
    """Must exit with 0 after the change, whatever a judge says."""


class OrchestrationPlan(Record):
    """A plan as somebody wrote it."""

    request: str
    plan: tuple[SubtaskSpec, ...]


class PlanningRun(Record):
    """How a model came to a plan."""

    model: str
    usage: Usage = Usage()
    seconds: float = 0.0


class Orchestration(Record):
    """A plan that is carried out."""

    id: str
    at: Time
    request: str
    tasks: tuple[SubtaskSpec, ...]
    repo: str | None = None
    base: str | None = None
    """The commit that all begin from; None for work without code."""
    about: str = ""
    """What is known of the repository beforehand."""
    worker: str
    """The variant for tasks that name none."""
    written: VariantSettings | None = None
    """As it was given, for a plan that is gone on with later."""
    judges: tuple[str, ...] = ()
    """Models."""
    planning: PlanningRun | None = None
    """None: the plan was given."""
    handed_in: bool = False
    """Others carry it out, and hand in what comes of it."""

    @property
    def job(self) -> str:
        """Names the work on it, on any machine."""
        return f"plan/{self.id}/0/0"


# What became of it


class SubtaskExecution(Record):
    """One try of a sub-agent at a task."""

    plan: str
    task: str
    number: int
    """Which try, from 1."""
    variant: str
    agent: str
    model: str | None = None
    brief: str
    built_on: tuple[str, ...] = ()
    """Tasks whose changes were there when it began."""
    exit: Exit
    cause: str | None = None
    report: str = ""
    patch: str = ""
    files: tuple[str, ...] = ()
    """Those that the patch changes."""
    checks: tuple[CommandResult, ...] = ()
    """The task's commands, run where it had worked."""
    facts: tuple[ComputedFact, ...] = ()
    """What was found out about it without a judge."""
    usage: Usage = Usage()
    started: Time
    ended: Time
    handed_in: bool = False
    """Others made it; both times are when they handed it in."""
    told_seconds: float | None = None
    """How long it took, as they say."""

    @property
    def seconds(self) -> float | None:
        """How long it took; None where those who made it do not say."""
        return self.told_seconds if self.handed_in else (self.ended - self.started).total_seconds()


class SubtaskAssessment(Record):
    """What a try was found to be worth."""

    plan: str
    task: str
    number: int
    passed: bool | None
    """None: the judge abstains, or the machine lost the try."""
    score: float | None = None
    issues: tuple[EvaluationIssue, ...] = ()
    why: str | None = None
    """Why there is no verdict."""
    ignored: bool = False
    """All that was wrong with the try before is wrong again, and nothing is better."""
    evaluation: Evaluation | None = None
    at: Time


class SubtaskTry(Record):
    """A try, and what it was worth once that is known."""

    execution: SubtaskExecution
    assessment: SubtaskAssessment | None = None
    judged_before: Usage = Usage()
    """What judges used who were asked about it before and gave no verdict."""


class SubtaskResult(Record):
    """A try as it is handed to the store."""

    execution: SubtaskExecution
    trace: Trace | None = None
    exchanges: bytes | None = None
    """What went between the sub-agent and its model, packed."""


class OrchestrationResult(Record):
    """What came of a plan when its last task was settled, or nothing more could be begun."""

    plan: str
    at: Time
    passed: bool | None
    """None: no task fails, but some have no verdict."""
    summary: str
    held: str | None = None
    """Why not everything was begun."""
    not_begun: dict[str, str] = {}
    """Tasks that nobody tried, and why."""
    checks: tuple[CommandResult, ...] = ()
    """The commands of all tasks, run on all changes together."""
    broken_by: dict[str, str] = {}
    """By command that fails there, the task whose change breaks it."""
    attempt: str | None = None
    """The attempt with the trace and the merged change."""
    usage: Usage = Usage()
    seconds: float = 0.0


class OrchestrationHistory(Record):
    """All that is kept of a plan."""

    plan: Orchestration
    tries: tuple[SubtaskTry, ...] = ()
    """In the order they were begun."""
    ending: OrchestrationResult | None = None
    """The newest; None while it goes on, or when it was cut short."""


class PlanGrade(Record):
    """How good a plan is, by the scores that count for its tasks."""

    letter: Literal["A", "B", "C", "F"] | None
    """F where it failed, else by its weakest task: A from 0.9, B from 0.8, C. None: no verdict."""
    score: float | None = None
    """The mean over its tasks; None where judges of several versions gave them, or one has none."""
    weakest: float | None = None
    """None where a task has no score, such as one whose command fails."""
    judged: int = 0
    passed: int = 0
    """Of the tasks that were judged."""


class OrchestrationRow(Record):
    """A plan as far as a list shows it."""

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
    """None where it has not ended, or nothing was scored."""


class PlanGradeDay(Record):
    """The plans that ended on one day."""

    day: Time
    plans: int
    passed: Rate | None
    """Of those that have a verdict."""
    grades: dict[str, int]
    """How many have each letter."""


class PlanQualityDay(Record):
    """The tries that one version of a judge judged on one day."""

    day: Time
    judge: str | None
    judged: int
    passed: Rate | None
    first_try: Rate | None
    """Of the first tries among them."""
    score: float | None
    completeness: float | None
    quality: float | None
    relevance: float | None
    """Means; scores of different judges are never averaged."""


class PlanTotals(Record):
    """What came of all plans that ended: three rates of tasks that are never mixed."""

    plans: int = 0
    passed: Rate | None = None
    """Of those that have a verdict."""
    grades: dict[str, int] = {}
    """How many have each letter."""
    first_try: Rate | None = None
    after_feedback: Rate | None = None
    final: Rate | None = None


class PlanTrend(Record):
    """How plans and their tries went: in all, and day by day, the newest first."""

    totals: PlanTotals = PlanTotals()
    grades: tuple[PlanGradeDay, ...] = ()
    quality: tuple[PlanQualityDay, ...] = ()


class OrchestrationProgress(Record):
    """What there is to tell while a plan is carried out."""

    stage: SubtaskStage
    task: str
    number: int = 0
    assessment: SubtaskAssessment | None = None
    why: str | None = None


# A request that is delivered: what was asked, each step of the work, and what came of it.


DeliveryStep = Literal[
    "requested", "worked", "fixed", "checked", "saved", "branched", "opened", "ended"
]
DeliveryState = Literal["delivered", "unresolved", "held", "nothing"]
"""Unresolved: delivered, with what fails written down. Held: its risk waits for a person. Nothing:
the agent changed nothing, so there is nothing to merge."""


class HostIssue(Record):
    """An issue as its host tells it. Anybody may have written it."""

    number: int
    title: str
    body: str = ""
    url: str | None = None
    author: str | None = None
    closable: bool = False
    """It is one of the repository that the work is delivered to."""


class AskedWork(Record):
    """What somebody wants: in words, by an issue, or both."""

    text: str = ""
    issue: HostIssue | None = None
    target: str | None = None
    """The branch that it is to be merged into; None where it starts from no branch."""
    user: str | None = None


class DeliveryOrder(Record):
    """What is to be delivered: written down before anything is done, and gone on with."""

    id: str
    """Also the id of the attempt that it becomes."""
    at: Time
    title: str
    request: str
    """As people wrote it."""
    task: Task
    """What the agent is asked, where, and from which commit on."""
    variant: str
    """By name."""
    written: VariantSettings
    """As it was given, for a delivery that is gone on with later."""
    target: str | None = None
    issue: HostIssue | None = None
    user: str | None = None
    """Who asked."""
    number: int = 1
    """Which delivery of this request by this variant from this commit on."""

    @property
    def job(self) -> str:
        """Names the work on it, on any machine."""
        return f"delivery/{self.id}/0/0"


class CheckedChange(Record):
    """What is delivered, with what the checks say of exactly that."""

    patch: str
    """Byte for byte, from the base on."""
    report: ChangeReport
    cycles: int = 0
    """How often an agent was asked to mend it."""
    note: str | None = None
    """Why mending stopped early, or why what it made was left out."""


class SavedDelivery(Record):
    """The attempt of a delivery as it was saved."""

    attempt: str
    report: int | None = None
    """The number of its report; None where nothing was changed."""


class DeliveryBranch(Record):
    """A branch of the user's repository with the change on top of the base."""

    name: str
    commit: str
    base: str


class DeliveredPull(Record):
    """A pull request that was opened, and what it was told."""

    host: Literal["github", "gitlab"]
    repo: str
    number: int
    url: str
    draft: bool = False
    labels: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """What could not be done, and why."""


class DeliveryResult(Record):
    """What came of a request."""

    id: str
    state: DeliveryState
    title: str
    attempt: str
    variant: str
    reasons: tuple[str, ...] = ()
    """Why it is not plainly delivered."""
    verdict: str | None = None
    risk: str | None = None
    cycles: int = 0
    cost: float | None = None
    feedback: str | None = None
    """What the agent said it lacked."""
    branch: DeliveryBranch | None = None
    pull: DeliveredPull | None = None
    notes: tuple[str, ...] = ()
    """What else people should know: why there is no pull request, what could not be written."""
    report: ChangeReport | None = None


class DeliveryProgress(Record):
    """What there is to tell while a request is delivered."""

    delivery: str
    step: DeliveryStep
    done: bool
    """False where the step begins."""
    text: str
    known: bool = False
    """It was done before, and is not done again."""
