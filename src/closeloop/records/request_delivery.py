"""A request that is delivered: what was asked, each step of the work, and what came of it."""

from __future__ import annotations

from typing import Literal

from closeloop.records.change import ChangeReport
from closeloop.records.record import Record, Time
from closeloop.records.settings import VariantSettings
from closeloop.records.task import Task

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
