"""Which changes stand at the end: what the agent took back itself did no harm."""

from __future__ import annotations

import re
from collections.abc import Mapping

from closeloop.model.record import Record
from closeloop.model.steps import Reading, Step
from closeloop.model.trace import Command
from closeloop.process.edits import deletes, makes, own_changes
from closeloop.process.git import git_verbs
from closeloop.process.needs import same_path
from closeloop.process.once import once

_TAKES_BACK = frozenset(("checkout", "restore", "clean"))
_ALL_BACK = re.compile(r"\bgit\s+(?:reset\s+--hard|checkout\s+(?:-f\s+)?(?:--\s+)?\.(?:\s|$))")
_NEW_BRANCH = re.compile(r"\bgit\s+checkout\s+-[bB]\b")


class Standing(Record):
    """Files by what became of them."""

    changed: Mapping[str, tuple[Step, ...]]
    """Path → the steps that changed it, where the change stands."""
    made: Mapping[str, int]
    """Files that the agent made itself, with the event that made each."""


@once
def standing(reading: Reading) -> Standing:
    """What the whole trace leaves behind; of the final change, where that is known."""
    changed: dict[str, list[Step]] = {}
    made: dict[str, int] = {}
    seen: set[str] = set()
    reads = iter(_reads(reading))
    read = next(reads, None)
    for step in own_changes(reading):
        while read is not None and read.number < step.number:
            seen.update(read.read)
            read = next(reads, None)
        if _takes_all_back(step):
            changed.clear()
        elif not step.written and _takes_back(step):
            # `git checkout NAME` may mean a branch or a file.
            for word in _words(step):
                changed.pop(word, None)
        for path in step.written:
            if path not in changed and path not in seen and makes(step):
                made.setdefault(path, step.number)
            seen.add(path)
            if _takes_back(step) or (deletes(step) and path in made):
                changed.pop(path, None)
            else:
                changed.setdefault(path, []).append(step)
    if reading.change is not None:
        final = [file.path for file in reading.change.files]
        ends = {path.rpartition("/")[2] for path in final}
        changed = {
            path: steps
            for path, steps in changed.items()
            if path.rpartition("/")[2] in ends and any(same_path(path, one) for one in final)
        }
    return Standing(changed={path: tuple(steps) for path, steps in changed.items()}, made=made)


def _reads(reading: Reading) -> list[Step]:
    steps = [step for lane in reading.lanes.values() for step in lane.steps if step.read]
    return steps if len(reading.lanes) == 1 else sorted(steps, key=lambda step: step.number)


def _takes_back(step: Step) -> bool:
    event = step.event
    return not _TAKES_BACK.isdisjoint(git_verbs(step)) and not (
        isinstance(event, Command) and _NEW_BRANCH.search(event.command)
    )


def _words(step: Step) -> list[str]:
    return step.event.command[:4000].split() if isinstance(step.event, Command) else []


def _takes_all_back(step: Step) -> bool:
    event = step.event
    return (
        isinstance(event, Command)
        and "git" in event.command
        and bool(_ALL_BACK.search(event.command))
    )
