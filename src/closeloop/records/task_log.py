"""The structured log of one task: what was asked, changed, tested, corrected and decided."""

from __future__ import annotations

from typing import Literal

from closeloop.records.attempt import Origin
from closeloop.records.change import Change
from closeloop.records.finding import FailureMode
from closeloop.records.orchestration import PlanGrade
from closeloop.records.pull_request import Correction
from closeloop.records.record import Record, Time

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
