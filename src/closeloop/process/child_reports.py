"""What a child reports, and whether its parent uses it: files, the state of checks, caveats."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from functools import cache, lru_cache
from itertools import islice
from typing import Literal

from ahocorasick_rs import AhoCorasick

from closeloop.process.edit_contents import diff_edit, is_scratch_path
from closeloop.process.handoff_briefs import HandoffContext, short_names, step_input
from closeloop.process.text_facts import find_sentence_targets, find_targets
from closeloop.process.text_words import (
    build_automaton,
    find_matching_lines,
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
MAX_CAVEATS = 10
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
_WORK_VERB = (
    r"(?:\w+ )?(?:run|test|verif|check|finish|complet|implement|fix|reproduc|resolv|migrat)"
)
_DONE_WORD = r"(?:done|finished|completed?|tested|verified|fixed)\b"
_CAVEAT = re.compile(
    r"(?:^|[:;,–—-]\s*|\b(?:i|we|but|however,?|and)\s+)(?:could(?: not|n't)"
    r"|(?:was |am |were )?unable to|(?:was|were) not able to"
    rf"|(?:did|have)(?: not|n't) {_WORK_VERB}|not (?:yet )?(?:implemented|run|{_DONE_WORD}))"
    r"|\bcould not be (?:run|tested|verified|migrated|completed|finished|fixed|built|installed)\b"
    rf"|\b(?:is|are) (?:still )?not (?:yet )?{_DONE_WORD}"
    r"|\b(?:is|are) (?:still )?(?:untested|unfinished)\b"
    r"|\bstill (?:fails?|failing|broken|red)\b|\bremains? (?:broken|open|unfixed|to be done)\b"
    r"|\b[1-9]\d* (?:tests?|checks?|specs?) (?:still |now )?fail"
    r"|\b[1-9]\d* fail(?:ed|ures?|ing)(?=\s*(?:[,.;:)]|$|and \d|in \d))"
    r"|\btests? (?:still |now )?fails?\b|\b(?:todo|not done|open (?:issues?|points?))\s*:"
    r"|\bblocked (?:by|on)\b"
)
_caveat_automaton = cache(lambda: build_automaton((
    "not", "n't", "unable", "untested", "unfinished", "still", "remain", "fail", "todo", "open",
    "blocked",
)))  # fmt: skip
"""Without one of these there is no such sentence."""
_RESOLVED_CAVEAT = re.compile(
    r"\b(?:no (?:test|fail|error|issue|problem|check)\w*|none|zero|was failing|were failing|"
    r"previously|used to|had been|before|without|originally|if|when|would|should|expected|"
    r"as (?:asked|requested|instructed)|now (?:fixed|pass\w*)|(?:is|are) fixed|pass now|"
    r"fixed (?:it|this|that|them))\b"
)
_FIRST_PERSON = re.compile(r"\b(?:i|we)\b|^(?:could|unable|did|not)\b")
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
    report = one.event.report or ""
    facts = [ReportFact(kind="file", text=path) for path in _list_reported_files(one, report)]
    states = (
        line
        for line, plain in _matching_sentences(_outcome_automaton(), report)
        if _CHECK_STATUS.search(plain)
    )
    facts += [ReportFact(kind="status", text=line) for line in islice(states, 1)]
    return facts + [ReportFact(kind="caveat", text=line) for line in list_caveats(one)]


def _matching_sentences(search: AhoCorasick, report: str) -> Iterator[tuple[str, str]]:
    """Sentences that hold a word, with the same in small letters."""
    lines = split_sentences(report)
    joined = _fold_case("\n".join(lines))
    plain = joined.split("\n")
    return ((lines[place], plain[place]) for place in find_matching_lines(search, joined))


def list_caveats(one: HandoffContext) -> Sequence[str]:
    """Sentences that say what failed, could not be done or was left; not what the code does."""
    if one.child and one.child.steps and not _child_did_work(one):
        return []
    return _find_caveats(
        one.event.report or "", acts=one.child is not None and _child_did_work(one)
    )


@lru_cache(256)
def _find_caveats(report: str, *, acts: bool) -> Sequence[str]:
    caveat_lines = (
        line
        for line, plain in _matching_sentences(_caveat_automaton(), report)
        if (acts or _FIRST_PERSON.search(plain))
        and _CAVEAT.search(plain)
        and not _RESOLVED_CAVEAT.search(plain)
    )
    return list(islice(caveat_lines, MAX_CAVEATS))


def parent_uses_fact(fact: ReportFact, one: HandoffContext) -> bool:
    """Whether the parent opens, checks, tells or passes on what it was told."""
    checked = any(step.check for step in one.after)
    if fact.kind == "file":
        return checked or any(
            mentions_any(text, short_names((fact.text,))) for text in _later_texts(one)
        )
    if fact.kind == "status":
        return checked or any(
            _CHECK_STATUS.search(_fold_case(message.text)) for message in one.said
        )
    words = word_stems(normalise_words(fact.text))
    if checked and words & _CHECK_STEMS:
        return True
    sought = short_names(find_targets(fact.text))
    telling_words = sorted(words - _CHECK_STEMS)
    return any(
        mentions_any(text, sought) or _shares_words(text.casefold(), telling_words)
        for text in _later_texts(one)
    )


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
    """Reads and searches of the child that the parent repeats; not of files that change."""
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
                if then.number < step.number and start <= lines[0] and lines[1] <= end:
                    pairs[key] = then, step
    return list(pairs.values())


def _shares_words(text: str, words: Sequence[str]) -> bool:
    """Two of the words, or the only one."""
    missing_count = min(2, len(words)) or 1
    for word in words:
        if word in text:
            missing_count -= 1
            if not missing_count:
                return True
    return False


def _child_did_work(one: HandoffContext) -> bool:
    """The child changed or checked something: what its report says of the work is its own."""
    return bool(one.child and (one.child.changes or one.child.checks))


def _fold_case(text: str) -> str:
    return text.casefold().replace("’", "'")


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
        for line, plain in _matching_sentences(_change_automaton(), report)
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
