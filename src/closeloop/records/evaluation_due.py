"""What is due: tasks that no longer tell, setups that changed, runs that are long ago."""

from __future__ import annotations

from closeloop.records.held_out import HeldOutRun
from closeloop.records.record import Record, Time


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
