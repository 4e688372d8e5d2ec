"""same-fix-again: a fix that a check showed not to help is made a second time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Set

from closeloop.model.finding import Finding, Rule, Unmeasured, found
from closeloop.model.record import Record
from closeloop.model.steps import Failures, Iteration, LaneReading, Reading, Step
from closeloop.model.trace import Edit
from closeloop.process.convergence import same_failures
from closeloop.process.edits import is_scratch, lines_of
from closeloop.process.git import sets_aside
from closeloop.process.telling import short, unreadable_checks

rule = Rule(
    name="same-fix-again",
    version=2,
    about="A fix that a check showed not to help is made again.",
    severity="warning",
    gates=True,
    thresholds={"likeness": 0.9, "letters": 20},
)

REMEMBERED = 50
"""So many fixes of a file that did not help are compared with, the newest."""


def detect(reading: Reading, limits: Mapping[str, float]) -> list[Finding] | Unmeasured:
    """Edits whose added lines are those of an earlier edit after which the same still failed."""
    if reason := unreadable_checks(reading):
        return Unmeasured(rule=rule.name, reason=reason)
    return [finding for lane in reading.lanes.values() for finding in _in_lane(lane, limits)]


class _Fix(Record):
    """An edit, and what it adds."""

    path: str
    lines: frozenset[str]
    place: str | None
    """What it replaces."""
    number: int


class _Removed:
    """When lines of a file were last taken out."""

    def __init__(self) -> None:
        self._lines: dict[str, dict[str, int]] = {}
        self._all: dict[str, int] = {}

    def note(self, path: str, lines: Iterable[str], number: int) -> None:
        self._lines.setdefault(path, {}).update(dict.fromkeys(lines, number))

    def note_command(self, step: Step) -> None:
        """What does not name its files may have changed any; what is put away is not given up."""
        if not sets_aside(step):
            self._all.update(dict.fromkeys(step.written or ("",), step.number))

    def takes_back(self, fix: _Fix, *, tried: bool) -> bool:
        """Whether the fix has gone since it was made; work that was never one may just be lost."""
        if tried and max(self._all.get(fix.path, 0), self._all.get("", 0)) > fix.number:
            return True
        gone = self._lines.get(fix.path, {})
        return sum(gone.get(line, 0) > fix.number for line in fix.lines) * 2 >= len(fix.lines)


def _in_lane(lane: LaneReading, limits: Mapping[str, float]) -> Iterable[Finding]:
    if not any(iteration.failures for iteration in lane.iterations[:-1]):
        return
    told, twice = _told(lane)
    if not twice:
        return
    useless: dict[str, deque[tuple[_Fix, int, bool]]] = {}
    """By file: edits that did not help, each with the check's event, and whether it was a fix."""
    seen: set[tuple[str, str]] = set()
    """Every line of them, with its file: what has none of these needs no look at each."""
    removed, whole = _Removed(), dict[str, frozenset[str]]()
    for iteration, helped, tried in told:
        fixes = []
        for step in iteration.changes:
            fix = _fix(step, removed, whole, twice)
            if fix is None or sum(map(len, fix.lines)) < limits["letters"]:
                continue
            known = any((fix.path, line) in seen for line in fix.lines)
            for earlier, check, tries in useless[fix.path] if known else ():
                if _like(fix.lines, earlier.lines) >= limits["likeness"] and (
                    # The same lines elsewhere in the file are another fix.
                    (tries and fix.place and fix.place == earlier.place)
                    or removed.takes_back(earlier, tried=tries)
                ):
                    yield _finding(fix, earlier, check, lane)
                    break
            fixes.append(fix)
        if not helped:
            for fix in fixes:
                remembered = useless.setdefault(fix.path, deque(maxlen=REMEMBERED))
                remembered.append((fix, iteration.checks[-1].number, tried))
                seen.update((fix.path, line) for line in fix.lines)


def _told(lane: LaneReading) -> tuple[list[tuple[Iteration, bool, bool]], set[str]]:
    """Iterations: did they help, did something fail before? And files edited in vain, and again."""
    told = []
    vain: set[str] = set()
    twice: set[str] = set()
    before = _failing_at_first(lane)
    for iteration in lane.iterations:
        helped = not _useless(iteration, before)
        edited = [step.written[0] for step in iteration.changes if isinstance(step.event, Edit)]
        twice.update(vain.intersection(edited))
        if not helped:
            vain.update(edited)
        told.append((iteration, helped, before is not None))
        before = iteration.failures
    return told, twice


def _fix(
    step: Step, removed: _Removed, whole: dict[str, frozenset[str]], twice: Set[str]
) -> _Fix | None:
    edit = step.event
    if not isinstance(edit, Edit):
        removed.note_command(step)
        return None
    path = step.written[0]
    if path not in twice or is_scratch(path):
        return None
    told = lines_of(edit)
    added, gone = (_plain(told.added), _plain(told.removed)) if told else (frozenset(), frozenset())
    if edit.before is None and edit.patch is None:
        # A file written anew adds only what its last writing did not have.
        last, whole[path] = whole.get(path, frozenset()), added
        added, gone = added - last, last - added
    # Lines that only moved sideways are neither.
    added, gone = added - gone, gone - added
    removed.note(path, gone, step.number)
    return _Fix(path=path, lines=added, place=edit.before or edit.patch, number=step.number)


def _plain(lines: Iterable[str]) -> frozenset[str]:
    # Where nothing but single spaces divides the words, there is nothing to do.
    tidy = [
        line if line.isprintable() and "  " not in line else " ".join(line.split())
        for line in lines
    ]
    return frozenset(tidy) - {""}


def _finding(fix: _Fix, earlier: _Fix, check: int, lane: LaneReading) -> Finding:
    return found(
        rule,
        f"{short(fix.path)} gets a fix again that did not help before: "
        f"{short(min(fix.lines & earlier.lines))}",
        (fix.number, earlier.number, check),
        lane=lane.lane.id,
    )


def _like(one: frozenset[str], other: frozenset[str]) -> float:
    return len(one & other) / len(one | other)


def _failing_at_first(lane: LaneReading) -> Failures | None:
    """What the last check before the first change said."""
    first = lane.changes[0].number if lane.changes else 0
    checks = [step.check for step in lane.checks if step.number < first]
    return checks[-1].failures if checks and checks[-1] else None


def _useless(iteration: Iteration, before: Failures | None) -> bool:
    """It failed, and not in less than before."""
    if iteration.passed is not False or iteration.failures is None:
        return False
    return (
        before is None
        or iteration.failures.keys >= before.keys
        or same_failures(iteration.failures, before)
    )
