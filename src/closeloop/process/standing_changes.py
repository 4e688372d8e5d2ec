"""Which changes stand at the end: what the agent took back itself did no harm."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from closeloop.process.edit_contents import creates_file, deletes_path, list_trace_changes
from closeloop.process.rule_helpers import cache_on_reading, list_git_verbs
from closeloop.process.submitted_change import list_submitted_edits
from closeloop.process.text_facts import is_same_path
from closeloop.records.inspection import TraceReading, TraceStep
from closeloop.records.record import Record
from closeloop.records.trace import Command, Edit

_UNDO_VERBS = frozenset(("checkout", "restore", "clean"))
_UNDO_ALL = re.compile(r"\bgit\s+(?:reset\s+--hard|checkout\s+(?:-f\s+)?(?:--\s+)?\.(?:\s|$))")
_NEW_BRANCH = re.compile(r"\bgit\s+checkout\s+-[bB]\b")


class StandingChanges(Record):
    """Files by what became of them."""

    changed: Mapping[str, tuple[TraceStep, ...]]
    """Path → the steps that changed it, where the change stands."""
    made: Mapping[str, int]
    """Files that the agent made itself, with the event that made each."""
    handed_in: Mapping[str, TraceStep] = {}
    """Other files of the submitted change, with the command that may have changed each."""


@cache_on_reading
def find_standing_changes(reading: TraceReading) -> StandingChanges:
    """What the whole trace leaves behind; of the final change, where that is known."""
    changed: dict[str, list[TraceStep]] = {}
    creation_numbers: dict[str, int] = {}
    seen: set[str] = set()
    reads = iter(_list_reads(reading))
    read = next(reads, None)
    for step in list_trace_changes(reading):
        while read is not None and read.number < step.number:
            seen.update(read.read)
            read = next(reads, None)
        if _undoes_everything(step):
            changed.clear()
        elif not step.written and _undoes_changes(step):
            # `git checkout NAME` may mean a branch or a file.
            for word in _command_words(step):
                changed.pop(word, None)
        for path in step.written:
            if path not in changed and path not in seen and creates_file(step):
                creation_numbers.setdefault(path, step.number)
            seen.add(path)
            if _undoes_changes(step) or (path in creation_numbers and deletes_path(step, path)):
                changed.pop(path, None)
            else:
                changed.setdefault(path, []).append(step)
    standing = StandingChanges(
        changed={path: tuple(steps) for path, steps in changed.items()}, made=creation_numbers
    )
    submitted = list_submitted_edits(reading)
    return standing if submitted is None else _compare_submission(standing, submitted, reading)


def _compare_submission(
    standing: StandingChanges, submitted: Sequence[Edit], reading: TraceReading
) -> StandingChanges:
    """The submitted change is the final state: what it does not hold does not stand."""
    by_name: dict[str, list[Edit]] = {}
    for edit in submitted:
        by_name.setdefault(edit.path.rpartition("/")[2], []).append(edit)
    changed, explained = {}, set()
    for path, steps in standing.changed.items():
        for edit in by_name.get(path.rpartition("/")[2], ()):
            if is_same_path(path, edit.path):
                changed[path] = steps
                explained.add(edit.path)
    unexplained = [
        edit.path for edit in submitted if edit.action != "create" and edit.path not in explained
    ]
    return StandingChanges(
        changed=changed,
        made=standing.made,
        handed_in=_find_naming_changes(unexplained, reading) if unexplained else {},
    )


def _find_naming_changes(paths: Sequence[str], reading: TraceReading) -> Mapping[str, TraceStep]:
    """The last command that writes and names the file; what none names was so from the start."""
    naming_steps: dict[str, TraceStep] = {}
    for step in list_trace_changes(reading):
        if isinstance(step.event, Command):
            for path in paths:
                if path.rpartition("/")[2] in step.event.command:
                    naming_steps[path] = step
    return naming_steps


def _list_reads(reading: TraceReading) -> list[TraceStep]:
    steps = [step for lane in reading.lanes.values() for step in lane.steps if step.read]
    return steps if len(reading.lanes) == 1 else sorted(steps, key=lambda step: step.number)


def _undoes_changes(step: TraceStep) -> bool:
    event = step.event
    return not _UNDO_VERBS.isdisjoint(list_git_verbs(step)) and not (
        isinstance(event, Command) and _NEW_BRANCH.search(event.command)
    )


def _command_words(step: TraceStep) -> list[str]:
    return step.event.command[:4000].split() if isinstance(step.event, Command) else []


def _undoes_everything(step: TraceStep) -> bool:
    event = step.event
    return (
        isinstance(event, Command)
        and "git" in event.command
        and bool(_UNDO_ALL.search(event.command))
    )
