"""Reports that are kept, and the change of an attempt as something to check."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec.structs import replace

from closeloop.changes.sources import NoChange, Wanted
from closeloop.model.record import Record
from closeloop.model.report import Report
from closeloop.model.task import Task
from closeloop.store import Store
from closeloop.tasks.seal import demand_open
from closeloop.traces.redact import redact


class Subject(Record):
    """What is checked, and whose work it is where that is known."""

    wanted: Wanted
    attempt: str | None = None
    task: Task | None = None


@contextmanager
def work_of(name: str, store: Store, base: str | None = None) -> Iterator[Subject]:
    """An attempt's change, on the commit that it began from; what is held out stays sealed."""
    attempt = store.attempt(name)
    task = store.task(attempt.task_digest) if attempt.task_digest else None
    demand_open(task)
    change = store.exact_change(attempt.id)
    if change is None or not change.patch.strip():
        raise NoChange(f"Attempt {attempt.id} changed nothing: there is nothing to check.")
    with TemporaryDirectory(prefix="closeloop-") as folder:
        patch = Path(folder) / f"attempt-{attempt.id}"
        patch.write_bytes(change.patch.encode("utf-8", "replace"))
        wanted = Wanted(patch=patch, base=base or change.base)
        yield Subject(wanted=wanted, attempt=attempt.id, task=task)


def keep(report: Report, store: Store, repo: str | None, attempt: str | None = None) -> int:
    """Without secrets, and without the patch, which git or the attempt has. Its number."""
    bare = replace(report, change=replace(report.change, patch=""))
    at = report.at or datetime.now(UTC)
    number = store.reports.add(redact(bare)[0], at, repo=repo, attempt=attempt)
    told = store.pulls.delivery(attempt) if attempt and report.risk else None
    if told is not None and told.risk is None and report.risk is not None:
        store.pulls.deliver(replace(told, risk=report.risk.level))
    return number
