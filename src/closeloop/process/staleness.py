"""Files that changed behind a lane's back: what it last knew of them, and how it met the change."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Literal

from closeloop.model.record import Record
from closeloop.model.steps import Reading, Step
from closeloop.model.trace import Command, Edit, Message
from closeloop.process.constraints import named_paths
from closeloop.process.edits import FORMATTERS, makes
from closeloop.process.git import git_verbs
from closeloop.process.once import once
from closeloop.process.words import mentions

How = Literal["read again", "failed edit", "overwrote"]

_BRINGS_OTHERS = frozenset(("pull", "merge", "rebase", "cherry-pick", "switch", "stash", "am"))
_MOVES_TREE = _BRINGS_OTHERS | {"checkout", "restore", "reset", "apply", "revert"}
_UNSTASHES = re.compile(r"\bstash\s+(?:pop|apply)\b")
_REWRITES = FORMATTERS | {"sed", "perl", "ruff", "patch"}
_DONE = (
    "changed", "edited", "updated", "modified", "fixed", "reverted", "renamed", "moved", "rewrote",
    "reformatted",
)  # fmt: skip
_CHANGED_BY_HAND = re.compile(
    rf"\b(?:I|we)(?:['’]ve| have)?(?: just| already| now)? (?:{'|'.join(_DONE)})\b", re.IGNORECASE
)
_NAMED = re.compile(r"[\w@.-]*[/\\][\w@./\\-]*\.\w{1,8}\b")
_MODIFIED = (
    "modified since", "changed since", "modified by", "changed on disk", "modified on disk",
    "modified externally", "has been modified", "has been changed",
)  # fmt: skip
_NOT_THERE = (
    "not found", "no match", "failed to match", "failed to find", "did not appear",
    "does not appear", "does not match", "does not exist", "no replacement", "not find", "n't find",
    "not exist", "hunk", "expected lines",
)  # fmt: skip
_OTHER_TROUBLE = (
    "multiple occurrences", " matches of the string", "not unique", "already exists",
    "must be different", "not been read",
)  # fmt: skip


def says(error: str | None, words: tuple[str, ...]) -> bool:
    """Whether an error message holds one of these words."""
    if not error:
        return False
    return mentions(error[:1000].lower(), words)


class Meeting(Record):
    """How a lane met a file that had changed behind its back."""

    step: Step
    path: str
    change: int
    """The event that changed it; the step itself where only the editing tool says so."""
    by: str
    how: How


class _Change(Record):
    number: int
    lane: str
    by: str
    foreign: bool
    """Somebody else's content: another lane's, the user's, another branch's."""


@once
def meetings(reading: Reading) -> Sequence[Meeting]:
    """Every time that a lane met such a change, in order."""
    told = _by_hand(reading)
    wanted = _wanted(reading, others=bool(told) or len(reading.lanes) > 1)
    if not wanted:
        return []
    changes: dict[str, _Change] = {}
    everything: _Change | None = None
    known: dict[tuple[str, str], int] = {}
    found: list[Meeting] = []
    failed: dict[tuple[str, str], int] = {}
    taken_up: dict[str, int] = {}
    for step in _steps(reading, wanted):
        lane, number = step.event.lane, step.number
        while told and told[0][0] < number:
            at, path = told.popleft()
            changes[path] = _Change(number=at, lane="user", by="the user", foreign=True)
        for path in step.written if isinstance(step.event, Edit) else ():
            seen = known.get((lane, path))
            change = _latest(changes.get(path), everything, seen)
            if seen is None or (change is None and taken_up.get(lane, 0) > seen):
                # What was put away and taken up again has only a new date.
                continue
            met = _met(step, path, change, lane)
            if met is not None and failed.get((lane, path)) != seen:
                found.append(met)
                failed[lane, path] = seen if met.how == "failed edit" else 0
        found += _read_again(step, changes, known)
        if _takes_up(step):
            taken_up[lane], everything = number, None
        elif step.changed:
            everything = _note(step, changes, known, everything, several=len(reading.lanes) > 1)
    return found


def _read_again(
    step: Step, changes: Mapping[str, _Change], known: dict[tuple[str, str], int]
) -> Iterator[Meeting]:
    lane = step.event.lane
    for path in step.read:
        change = changes.get(path)
        seen = known.get((lane, path))
        if change and seen is not None and seen < change.number and _is_foreign(change, lane):
            yield _meeting(step, path, change, "read again")
        known[lane, path] = step.number


def _meeting(step: Step, path: str, change: _Change, how: How) -> Meeting:
    return Meeting(step=step, path=path, change=change.number, by=change.by, how=how)


def _wanted(reading: Reading, *, others: bool) -> set[str]:
    """Files of which such a meeting can be told at all: the others need no look."""
    wanted: set[str] = set()
    for lane in reading.lanes.values():
        for step in lane.edits:
            event = step.event
            if others or step.failed or (isinstance(event, Edit) and event.action == "create"):
                wanted.update(step.written)
    return wanted


def _steps(reading: Reading, wanted: set[str]) -> Iterable[Step]:
    """Those that touch such a file, or may touch any."""
    steps = [
        step
        for lane in reading.lanes.values()
        for step in lane.steps
        if (step.read and not wanted.isdisjoint(step.read))
        or (step.written and not wanted.isdisjoint(step.written))
        or (step.changed and not step.written)
    ]
    return steps if len(reading.lanes) == 1 else sorted(steps, key=attrgetter("event.number"))


def _by_hand(reading: Reading) -> deque[tuple[int, str]]:
    """Files that the user says to have changed meanwhile."""
    root = next(iter(reading.lanes.values()), None)
    return deque(_said(root.users, root.messages[0]) if root and root.users else ())


def _said(messages: Iterable[Message], first: Message) -> Iterator[tuple[int, str]]:
    for message in messages:
        if message is not first:
            text = message.text[:2000]
            if mentions(text.lower(), _DONE) and _CHANGED_BY_HAND.search(text):
                for path in named_paths(text):
                    yield message.number, path


def _note(
    step: Step,
    changes: dict[str, _Change],
    known: dict[tuple[str, str], int],
    everything: _Change | None,
    *,
    several: bool,
) -> _Change | None:
    """What the step changed, and whether the lane knows the new content."""
    lane, event, verbs = step.event.lane, step.event, git_verbs(step)
    programs = step.doing.programs if step.doing else ()
    shows = isinstance(event, Edit) or makes(step)
    blind = not shows and not (_MOVES_TREE.isdisjoint(verbs) and _REWRITES.isdisjoint(programs))
    if shows or several or blind:
        foreign = not _BRINGS_OTHERS.isdisjoint(verbs)
        by = "another lane" if shows else f"`{_line(event)}`"
        made = _Change(number=step.number, lane=lane, by=by, foreign=foreign)
        for path in step.written:
            changes[path] = made
            if makes(step) or (shows and (lane, path) in known):
                known[lane, path] = step.number
        if not step.written and blind:
            return made
    return everything


def _takes_up(step: Step) -> bool:
    event = step.event
    if not isinstance(event, Command) or "stash" not in event.command:
        return False
    return "stash" in git_verbs(step) and _UNSTASHES.search(event.command) is not None


def _line(event: object) -> str:
    return event.command.split("\n", 1)[0][:60] if isinstance(event, Command) else ""


def _latest(one: _Change | None, other: _Change | None, seen: int | None) -> _Change | None:
    later = [change for change in (one, other) if change and (seen is None or change.number > seen)]
    return max(later, key=lambda change: change.number, default=None)


def _is_foreign(change: _Change, lane: str) -> bool:
    return change.foreign or change.lane != lane


def _met(step: Step, path: str, change: _Change | None, lane: str) -> Meeting | None:
    event = step.event
    if not isinstance(event, Edit):
        return None
    if event.ok is False:
        if _is_of_another(event):
            return None
        told = says(event.error, _MODIFIED)
        if not told and (change is None or not _is_not_there(event)):
            return None
        if change is None:
            change = _Change(number=step.number, lane="", by="somebody else", foreign=True)
        return _meeting(step, path, change, "failed edit")
    if change is None or event.action != "create" or not _is_foreign(change, lane):
        return None
    return _meeting(step, path, change, "overwrote")


def _is_of_another(event: Edit) -> bool:
    """One of several edits in a call: the error names the file of another one."""
    named = _NAMED.findall((event.error or "")[:400].partition("\n")[0])
    name = event.path.replace("\\", "/").rpartition("/")[2]
    return bool(named) and not any(name in one for one in named)


def _is_not_there(event: Edit) -> bool:
    """The text to replace is not in the file, as far as the tool says why it failed."""
    if event.error is None:
        return event.before is not None
    return says(event.error, _NOT_THERE) and not says(event.error, _OTHER_TROUBLE)
