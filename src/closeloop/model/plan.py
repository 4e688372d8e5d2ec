"""A plan of work: which variant tries which task how often, how it goes, and what came of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from closeloop.model.attempt import Attempt, AttemptRow, Grade
from closeloop.model.change import Change
from closeloop.model.measurement import Measurement
from closeloop.model.record import Record
from closeloop.model.session import Session
from closeloop.model.task import Task
from closeloop.model.trace import Trace
from closeloop.model.variant import Experiment, Variant

Stage = Literal["preparing", "prepared", "skipped", "started", "settled", "elsewhere"]
Place = tuple[str | None, str | None, int]
"""Task digest, variant digest, repeat."""


class Progress(Record):
    """What a run has to tell while it goes on."""

    stage: Stage
    task: str
    variant: str | None = None
    number: int | None = None
    row: AttemptRow | None = None
    why: str | None = None


class Slot(Record):
    """One repeat of one task by one variant: a place that one scored attempt fills."""

    task: Task
    variant: Variant
    number: int
    experiment: str

    @property
    def place(self) -> Place:
        return self.task.digest, self.variant.digest, self.number

    def key(self, retry: int) -> str:
        """Names one try at it, on any machine."""
        return f"{self.task.digest}/{self.variant.digest}/{self.number}/{retry}"

    def told(self, stage: Stage, row: AttemptRow | None = None) -> Progress:
        """What there is to say of it."""
        return Progress(
            stage=stage,
            task=self.task.id,
            variant=self.variant.name,
            number=self.number,
            row=row,
        )


class Plan(Record):
    """An experiment with its tasks and variants at hand."""

    experiment: Experiment
    tasks: tuple[Task, ...]
    variants: tuple[Variant, ...]

    def slots(self) -> Iterator[Slot]:
        """Interleaved, so that every variant meets every task early."""
        for number in range(1, self.experiment.repeats + 1):
            for task in self.tasks:
                for variant in self.variants:
                    yield Slot(
                        task=task, variant=variant, number=number, experiment=self.experiment.id
                    )


class Results(Record):
    """What came of a plan."""

    experiment: str
    tasks: tuple[Task, ...]
    variants: tuple[Variant, ...]
    attempts: tuple[AttemptRow, ...]
    """The one that counts of each slot: the last try."""
    measurements: dict[str, Measurement]
    """What the rules say, by attempt."""
    skipped: dict[str, str]
    """Tasks that were not run, and why."""
    sandbox: str
    """How the agents were caged, and what was not enforced."""


class Story(Record):
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
