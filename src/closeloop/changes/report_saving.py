"""Reports that are kept, and the change of an attempt as something to check."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec.structs import replace

from closeloop.changes.change_sides import ChangeQuery, NoChange
from closeloop.records.change_report import ChangeReport
from closeloop.records.record import Record
from closeloop.records.secret_redaction import redact_record
from closeloop.records.task import Task
from closeloop.store import Store
from closeloop.tasks.sealed_tasks import require_unsealed


class CheckSubject(Record):
    """What is checked, and whose work it is where that is known."""

    wanted: ChangeQuery
    attempt: str | None = None
    task: Task | None = None


@contextmanager
def open_attempt_change(name: str, store: Store, base: str | None = None) -> Iterator[CheckSubject]:
    """An attempt's change, on the commit that it began from; what is held out stays sealed."""
    attempt = store.load_attempt(name)
    task = store.load_task(attempt.task_digest) if attempt.task_digest else None
    require_unsealed(task)
    change = store.load_exact_change(attempt.id)
    if change is None or not change.patch.strip():
        raise NoChange(f"Attempt {attempt.id} changed nothing: there is nothing to check.")
    with TemporaryDirectory(prefix="closeloop-") as folder:
        patch = Path(folder) / f"attempt-{attempt.id}"
        patch.write_bytes(change.patch.encode("utf-8", "replace"))
        wanted = ChangeQuery(patch=patch, base=base or change.base)
        yield CheckSubject(wanted=wanted, attempt=attempt.id, task=task)


def save_report(
    report: ChangeReport, store: Store, repo: str | None, attempt: str | None = None
) -> int:
    """Without secrets, and without the patch, which git or the attempt has. Its number."""
    bare = replace(report, change=replace(report.change, patch=""))
    at = report.at or datetime.now(UTC)
    number = store.reports.save_report(redact_record(bare)[0], at, repo=repo, attempt=attempt)
    delivery = store.pulls.load_delivery(attempt) if attempt and report.risk else None
    if delivery is not None and delivery.risk is None and report.risk is not None:
        store.pulls.save_delivery(replace(delivery, risk=report.risk.level))
    return number
