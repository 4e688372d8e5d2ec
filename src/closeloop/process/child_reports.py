"""What a child reports, and whether its parent uses it: files, the state of checks, caveats."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from functools import cache
from itertools import islice
from typing import Literal

from closeloop.process.agent_claims import parse_claim
from closeloop.process.edit_contents import diff_edit, is_scratch_path
from closeloop.process.handoff_briefs import (
    HandoffContext,
    child_makes_changes,
    is_reading_brief,
    short_names,
    step_input,
)
from closeloop.process.report_gaps import find_gaps, fold_case, matching_sentences, mentions_gap
from closeloop.process.rule_helpers import list_git_verbs
from closeloop.process.text_facts import find_sentence_targets, find_targets
from closeloop.process.text_words import (
    build_automaton,
    mentions_any,
    normalise_words,
    split_sentences,
    word_stems,
)
from closeloop.records.inspection import (
    TraceStep,
)
from closeloop.records.record import Record
from closeloop.records.trace import (
    Command,
    Edit,
    Read,
    ToolUse,
)

MAX_FILES = 20
MAX_CHANGES = 500
LineRange = tuple[float, float]
"""From the first to the last."""
MAX_EDITS_PER_FILE = 50
"""So many edits of the child are kept for each file."""

_CHECK_STATUS = re.compile(
    r"\b(?:tests?|suite|checks?|build|lint\w*|mypy|pytest|types?)\b[^.\n]{0,60}?\b"
    r"(?:pass\w*|fail\w*|green|red|broken|error\w*|succe\w*)\b|\b\d+ (?:passed|failed|failing)\b"
)
_outcome_automaton = cache(
    lambda: build_automaton(("pass", "fail", "green", "red", "broken", "error", "succe"))
)
_FAILING_STATUS = re.compile(
    r"\b(?:fail\w*|red|broken|errors?)\b(?<!0 failed)(?<!no errors)(?<!0 errors)(?<!0 failures)"
    r"(?<!no failures)"
)
_UNWRITTEN = re.compile(
    r"\b(?:writt?en?|add(?:ed)?|implement\w*|creat\w+|document\w+|told|assum\w+)\b"
)
"""What no run of a check makes good."""
_SUCCESS = re.compile(
    r"\b(?:done|complete[ds]?|pass(?:es|ed|ing)?|success\w*|finished|works?|ready|fixed|ported)\b"
)
_RESERVATION = re.compile(
    r"\b(?:no|not|yet|but|however|except|assum\w+|default\w*|missing|lacks?|later|follow-?up|still"
    r"|only|remain\w*|open|todo|need\w*|please|confirm)\b|n't\b"
)
_VAGUE_STEMS = frozenset(("change", "add", "implement", "told", "run", "work", "left"))
_CHECK_STEMS = frozenset(
    ("test", "suit", "check", "lint", "build", "pytest", "mypy", "fail", "run")
)
_CHANGE_STEMS = (
    "creat", "chang", "modif", "writ", "wrote", "updat", "add", "fix", "implement", "edit",
    "refactor", "remov", "delet", "renam",
)  # fmt: skip
_CHANGE_WORD = re.compile(rf"\b(?:{'|'.join(_CHANGE_STEMS)})")
_change_automaton = cache(lambda: build_automaton(_CHANGE_STEMS))
_GIT_RESTORE = re.compile(r"\bgit\s+(?:checkout|restore)\b")


class ReportFact(Record):
    """A fact of a report."""

    kind: Literal["file", "status", "caveat"]
    text: str


class RedoneEdit(Record):
    """Work of the child that the parent did again, or took back."""

    path: str
    child: int
    parent: int
    """The events."""
    undone: bool = False


def list_report_facts(one: HandoffContext) -> list[ReportFact]:
    """Files changed, what checks said, and what is not as it should be."""
    if one.child and one.child.steps and not _child_did_work(one):
        return []
    if not (one.child and one.child.steps) and is_reading_brief(one.event.brief):
        return [ReportFact(kind="caveat", text=line) for line in list_caveats(one)]
    report = one.event.report or ""
    facts = [ReportFact(kind="file", text=path) for path in _list_reported_files(one, report)]
    states = (
        line
        for line, plain in matching_sentences(_outcome_automaton(), report)
        if _CHECK_STATUS.search(plain)
    )
    facts += [ReportFact(kind="status", text=line) for line in islice(states, 1)]
    return facts + [ReportFact(kind="caveat", text=line) for line in list_caveats(one)]


def list_caveats(one: HandoffContext) -> Sequence[str]:
    """Sentences that say what failed, could not be done or was left; not what the code does."""
    if one.child and one.child.steps:
        return find_gaps(one.event.report or "", acts=True) if _child_did_work(one) else ()
    return find_gaps(one.event.report or "", acts=child_makes_changes(one))


def parent_uses_fact(fact: ReportFact, one: HandoffContext) -> bool:
    """Whether the parent opens, checks, tells, passes on or builds on what it was told."""
    checked = any(step.check for step in one.after)
    if fact.kind == "caveat":
        return _takes_up_gap(fact.text, one, checked=checked)
    if checked:
        return True
    if fact.kind == "file":
        names = short_names((fact.text,))
        return any(mentions_any(text, names) for text in _later_texts(one)) or _builds_on(one)
    # Who says that all is well after a report of failures contradicts the child.
    fails = _FAILING_STATUS.search(fold_case(fact.text)) is not None
    told = [
        _FAILING_STATUS.search(status[0]) is not None
        for message in one.said
        for status in _CHECK_STATUS.finditer(fold_case(message.text))
    ]
    return fails in told or (not fails and _builds_on(one))


def _builds_on(one: HandoffContext) -> bool:
    """The parent ends the work, or keeps it, on the strength of the report."""
    return any(parse_claim(message) for message in one.said) or any(
        list_git_verbs(step) & {"commit", "push"} for step in one.after
    )


def _takes_up_gap(gap: str, one: HandoffContext, *, checked: bool) -> bool:
    """Whether the parent acts on a gap, or passes it on."""
    stems = word_stems(normalise_words(gap))
    is_unwritten = _UNWRITTEN.search(fold_case(gap)) is not None
    if checked and not is_unwritten and stems & _CHECK_STEMS:
        return True
    targets = short_names(find_targets(gap))
    child_paths = {path for step in one.work if step.changed for path in step.written}
    for step in one.after:
        if step.changed and (
            any("test" in path for path in step.written)
            if stems & {"test", "spec"}
            else not child_paths.isdisjoint(step.written)
        ):
            return True
        if mentions_any(step_input(step), targets) or _shares_stems(step_input(step), stems, 2):
            return True
    return any(
        mentions_any(sentence, targets) or _passes_on(sentence, stems)
        for message in one.said
        for sentence in split_sentences(message.text)
    )


def _passes_on(sentence: str, stems: Set[str]) -> bool:
    """A sentence about the same thing that does not praise it, or that says what is wrong."""
    plain = fold_case(sentence)
    if mentions_gap(plain) or _RESERVATION.search(plain):
        return _shares_stems(sentence, stems, 1)
    return not _SUCCESS.search(plain) and _shares_stems(sentence, stems, 2)


def _shares_stems(text: str, stems: Set[str], count: int) -> bool:
    telling = stems - _VAGUE_STEMS
    return len(telling & word_stems(normalise_words(text))) >= max(1, min(count, len(telling)))


def find_redone_edits(one: HandoffContext, *, alike: float = 0.9) -> list[RedoneEdit]:
    """Edits of the parent that repeat or take back an edit of the child."""
    child_edits: dict[str, list[TraceStep]] = {}
    for step in one.work:
        if step.changed and isinstance(step.event, Edit):
            child_edits.setdefault(step.written[0], []).append(step)
    if not child_edits:
        return []
    return [
        again
        for step in one.after
        if step.changed and (again := _match_redone_edit(step, child_edits, alike))
    ]


def find_repeated_lookups(
    one: HandoffContext, changed: Set[str]
) -> list[tuple[TraceStep, TraceStep]]:
    """Reads and searches of the child that the parent repeats; not of files that change.

    Who opens a file in the middle looks at what the report pointed to.
    """
    first: dict[str, tuple[TraceStep, LineRange]] = {}
    for step in one.work:
        for key in _lookup_keys(step, changed):
            then, (start, end) = first.get(key, (step, _line_range(step)))
            more = _line_range(step)
            first[key] = then, (min(start, more[0]), max(end, more[1]))
    pairs: dict[str, tuple[TraceStep, TraceStep]] = {}
    for step in one.after if first else ():
        for key in _lookup_keys(step, changed):
            if key in first and key not in pairs:
                then, (start, end) = first[key]
                lines = _line_range(step)
                if then.number < step.number and start == lines[0] and lines[1] <= end:
                    pairs[key] = then, step
    return list(pairs.values())


def count_lookups(one: HandoffContext, changed: Set[str]) -> int:
    """How many different things the child looked up."""
    return len({key for step in one.work for key in _lookup_keys(step, changed)})


def _child_did_work(one: HandoffContext) -> bool:
    """The child changed or checked something: what its report says of the work is its own."""
    return bool(one.child and (one.child.changes or one.child.checks))


def _list_reported_files(one: HandoffContext, report: str) -> list[str]:
    """Files that the report names and the child changed, or says that it did."""
    if one.child is not None and one.child.steps:
        written = dict.fromkeys(
            path for step in one.child.changes[-MAX_CHANGES:] for path in step.written
        )
        return [
            path
            for path in written
            if not is_scratch_path(path) and any(name in report for name in short_names((path,)))
        ][:MAX_FILES]
    named = (
        name
        for line, plain in matching_sentences(_change_automaton(), report)
        if ("/" in line or "." in line) and _CHANGE_WORD.search(plain)
        for name in find_sentence_targets(line)
        if "/" in name or "." in name
    )
    return list(dict.fromkeys(named))[:MAX_FILES]


def _later_texts(one: HandoffContext) -> Iterator[str]:
    yield from (message.text for message in one.said)
    yield from (step_input(step) for step in one.after)


def _match_redone_edit(
    step: TraceStep, mine: Mapping[str, list[TraceStep]], alike: float
) -> RedoneEdit | None:
    event = step.event
    if isinstance(event, Command):
        return _match_restore(step, mine) if _GIT_RESTORE.search(event.command) else None
    if not isinstance(event, Edit) or step.written[0] not in mine:
        return None
    path, lines = step.written[0], diff_edit(event)
    for edit in reversed(mine[path][-MAX_EDITS_PER_FILE:]):
        assert isinstance(edit.event, Edit), edit
        first = diff_edit(edit.event)
        if edit.number > step.number or lines is None or first is None:
            continue
        if _are_lines_alike(first.added, lines.added, alike):
            return RedoneEdit(path=path, child=edit.number, parent=step.number)
        if _are_lines_alike(first.added, lines.removed, alike) and (
            first.removed == lines.added or _are_lines_alike(first.removed, lines.added, alike)
        ):
            return RedoneEdit(path=path, child=edit.number, parent=step.number, undone=True)
    return None


def _match_restore(step: TraceStep, mine: Mapping[str, list[TraceStep]]) -> RedoneEdit | None:
    for path in step.written:
        edits = mine.get(path, ())
        if edits and edits[0].number < step.number:
            return RedoneEdit(path=path, child=edits[0].number, parent=step.number, undone=True)
    return None


def _are_lines_alike(one: tuple[str, ...], other: tuple[str, ...], alike: float) -> bool:
    """Nearly the same lines, and enough of them to be no accident."""
    first, second = ({line for line in lines if len(line) > 3} for lines in (one, other))
    if sum(map(len, first)) < 20 and first:
        return False
    return bool(first and second) and len(first & second) >= alike * len(first | second)


def _line_range(step: TraceStep) -> LineRange:
    """Which lines a step shows; of a command all, as far as anyone knows."""
    event = step.event
    if not isinstance(event, Read):
        return 1, float("inf")
    return event.first_line or 1, event.last_line or float("inf")


def _lookup_keys(step: TraceStep, changed: Set[str]) -> Iterator[str]:
    """What a step looks up; files that somebody changes are read for good reason."""
    event = step.event
    if isinstance(event, ToolUse):
        if event.ok is not False and re.search(r"(?i)grep|search|glob|find", event.name):
            yield f"{event.name} {event.arguments}"
    elif step.doing and step.doing.searches:
        yield " ".join(step_input(step).split())
    else:
        for path in step.read:
            if path not in changed:
                yield path
