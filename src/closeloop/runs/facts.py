"""What an attempt's change and trace say beside its tests: files, questions, handoffs."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

from closeloop.model.change import Change
from closeloop.model.globs import matches
from closeloop.model.record import Record
from closeloop.model.task import Task
from closeloop.model.trace import Command, Edit, Handoff, Message, Trace
from closeloop.runs.protected import changed_paths, paths_of, put_back

# Signs that change what is said are kept: 3 < 5, -5, 50 %, 1.2 against 1.2.3.
_TOKEN = re.compile(r"\w+(?:\.\d+)*|[<>]=?|!=|[%$€£]|(?<![\w)])-(?=\d)")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


class Precision(Record):
    """Files changed against the files of the reference."""

    precision: float | None = None
    recall: float | None = None


def out_of_scope(task: Task, change: Change) -> tuple[str, ...]:
    """Files changed outside the declared scope; where none is declared, nothing is."""
    if not task.scope:
        return ()
    return tuple(path for path in changed_paths(change) if not matches(path, task.scope))


def right_files(task: Task, change: Change) -> Precision:
    """How well the files changed are those of the reference; files put back count nowhere."""
    if task.reference is None:
        return Precision()
    aside = put_back(task)
    right = {path for path in paths_of(task.reference) if not matches(path, aside)}
    touched = {path for path in changed_paths(change) if not matches(path, aside)}
    hits = len(right & touched)
    return Precision(
        precision=hits / len(touched) if touched else None,
        recall=hits / len(right) if right else None,
    )


def asked(trace: Trace | None) -> bool | None:
    """Whether a question came before the first edit; None where nothing was recorded."""
    if trace is None or not trace.events:
        return None
    for event in trace.events:
        if isinstance(event, Message) and event.role == "agent" and event.intent == "question":
            return True
        if isinstance(event, Edit) and event.ok is not False:
            return False
    return False


def facts_kept(
    facts: Iterable[str], trace: Trace | None
) -> tuple[tuple[int, int] | None, tuple[str, ...]]:
    """Planted facts found in the briefs of all handoffs, of how many; and those that were not.

    Without a handoff nothing could be lost, so nothing is measured.
    """
    wanted = [(fact, words_of(fact)) for fact in facts]
    briefs = [event.brief for event in trace.events if isinstance(event, Handoff)] if trace else []
    if not wanted or not briefs:
        return None, ()
    missing = [
        fact for brief in map(words_of, briefs) for fact, words in wanted if words not in brief
    ]
    total = len(wanted) * len(briefs)
    return (total - len(missing), total), tuple(dict.fromkeys(missing))


def same_failure(trace: Trace | None) -> int | None:
    """The longest row of one command failing in the same way although files were edited between.

    Numbers are left out of the comparison: times differ always, line numbers after every edit.
    """
    if trace is None or not trace.events:
        return None
    rows: dict[tuple[str, str], tuple[str, int]] = {}
    longest, edited = 0, {lane.id: True for lane in trace.lanes}
    for event in trace.events:
        if isinstance(event, Edit) and event.ok is not False:
            edited[event.lane] = True
        elif isinstance(event, Command) and event.exit_code is not None:
            place = event.lane, event.command
            failure = _NUMBER.sub("#", event.output or "") if event.exit_code else ""
            before, count = rows.get(place, ("", 0))
            if not failure:
                rows.pop(place, None)
            elif failure != before:
                rows[place] = failure, 1
            elif edited.get(event.lane):
                rows[place] = failure, count + 1
            longest = max(longest, rows.get(place, ("", 0))[1])
            edited[event.lane] = False
    return longest


def words_of(text: str) -> str:
    """A text as its words alone, with a space on both sides, so that only whole words match."""
    plain = unicodedata.normalize("NFKC", text).casefold()
    return f" {' '.join(_TOKEN.findall(plain))} "
