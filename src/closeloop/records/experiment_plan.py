"""A plan of work: which variant tries which task how often, how it goes, and what came of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Literal

from closeloop.records.attempt import Attempt, AttemptRow, Grade, Proof
from closeloop.records.change import Change
from closeloop.records.evaluation import Evaluation
from closeloop.records.event_log import LogEvent
from closeloop.records.exchange import Exchange
from closeloop.records.insight import Insight
from closeloop.records.measurement import Measurement
from closeloop.records.record import Record, Time
from closeloop.records.session import Session
from closeloop.records.task import Task
from closeloop.records.trace import Trace
from closeloop.records.variant import Experiment, Variant

RunStage = Literal["preparing", "prepared", "skipped", "started", "settled", "elsewhere", "held"]
RunMode = Literal["fill", "unscored", "regrade"]
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
    typical: dict[str, float]
    """Seconds of an attempt, by the variant's digest, where that is known."""


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
    """Of all tries; None where none is known."""
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
    insights: tuple[Insight, ...] = ()
    evaluations: tuple[Evaluation, ...] = ()
    """What judges say of it, where somebody looked that up."""
