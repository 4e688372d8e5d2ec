"""What an attempt's change and trace say beside its tests: files and questions."""

from __future__ import annotations

from closeloop.grading.integrity.restore import Steering, why_restored
from closeloop.grading.touched_paths import changed_paths
from closeloop.records.change import Change
from closeloop.records.record import Record
from closeloop.records.task import Task
from closeloop.records.trace import Edit, Message, Trace
from closeloop.text.wording import matches_globs


class FilePrecision(Record):
    """Files changed against the files of the reference."""

    precision: float | None = None
    recall: float | None = None


def files_out_of_scope(task: Task, change: Change) -> tuple[str, ...]:
    """Files changed outside the declared scope; where none is declared, nothing is."""
    if not task.scope:
        return ()
    return tuple(path for path in changed_paths(change) if not matches_globs(path, task.scope))


def measure_file_precision(task: Task, change: Change, steering: Steering) -> FilePrecision:
    """How well the files changed are those of the reference; files restored count nowhere."""
    if task.reference is None:
        return FilePrecision()
    reference_files = {path for path in steering.references if why_restored(steering, path) is None}
    changed_files = {path for path in changed_paths(change) if why_restored(steering, path) is None}
    hits = len(reference_files & changed_files)
    return FilePrecision(
        precision=hits / len(changed_files) if changed_files else None,
        recall=hits / len(reference_files) if reference_files else None,
    )


def asked_before_editing(trace: Trace | None) -> bool | None:
    """Whether a question came before the first edit; None where nothing was recorded."""
    if trace is None or not trace.events:
        return None
    for event in trace.events:
        if isinstance(event, Message) and event.role == "agent" and event.intent == "question":
            return True
        if isinstance(event, Edit) and event.ok is not False:
            return False
    return False
