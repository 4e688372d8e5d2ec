"""What a child reports, and whether its parent uses it: files, the state of checks, caveats."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from functools import cache, lru_cache
from itertools import islice
from typing import Literal

from ahocorasick_rs import AhoCorasick

from closeloop.model.record import Record
from closeloop.model.steps import Step
from closeloop.model.trace import Command, Edit, Read, ToolUse
from closeloop.process.edits import is_scratch, lines_of
from closeloop.process.handing import Handed, input_of, names
from closeloop.process.needs import targets_in, targets_of
from closeloop.process.phrases import automaton, lines_with
from closeloop.process.words import mentions, sentences, stems, words_of

FILES = 20
CAVEATS = 10
CHANGES = 500
Lines = tuple[float, float]
"""From the first to the last."""
EDITS = 50
"""So many edits of the child are kept for each file."""

_STATUS = re.compile(
    r"\b(?:tests?|suite|checks?|build|lint\w*|mypy|pytest|types?)\b[^.\n]{0,60}?\b"
    r"(?:pass\w*|fail\w*|green|red|broken|error\w*|succe\w*)\b|\b\d+ (?:passed|failed|failing)\b"
)
_outcomes = cache(lambda: automaton(("pass", "fail", "green", "red", "broken", "error", "succe")))
_DO = r"(?:\w+ )?(?:run|test|verif|check|finish|complet|implement|fix|reproduc|resolv|migrat)"
_DONE = r"(?:done|finished|completed?|tested|verified|fixed)\b"
_CAVEAT = re.compile(
    r"(?:^|[:;,–—-]\s*|\b(?:i|we|but|however,?|and)\s+)(?:could(?: not|n't)"
    r"|(?:was |am |were )?unable to|(?:was|were) not able to"
    rf"|(?:did|have)(?: not|n't) {_DO}|not (?:yet )?(?:implemented|run|{_DONE}))"
    r"|\bcould not be (?:run|tested|verified|migrated|completed|finished|fixed|built|installed)\b"
    rf"|\b(?:is|are) (?:still )?not (?:yet )?{_DONE}"
    r"|\b(?:is|are) (?:still )?(?:untested|unfinished)\b"
    r"|\bstill (?:fails?|failing|broken|red)\b|\bremains? (?:broken|open|unfixed|to be done)\b"
    r"|\b[1-9]\d* (?:tests?|checks?|specs?) (?:still |now )?fail"
    r"|\b[1-9]\d* fail(?:ed|ures?|ing)(?=\s*(?:[,.;:)]|$|and \d|in \d))"
    r"|\btests? (?:still |now )?fails?\b|\b(?:todo|not done|open (?:issues?|points?))\s*:"
    r"|\bblocked (?:by|on)\b"
)
_lacking = cache(lambda: automaton((
    "not", "n't", "unable", "untested", "unfinished", "still", "remain", "fail", "todo", "open",
    "blocked",
)))  # fmt: skip
"""Without one of these there is no such sentence."""
_OVER = re.compile(
    r"\b(?:no (?:test|fail|error|issue|problem|check)\w*|none|zero|was failing|were failing|"
    r"previously|used to|had been|before|without|originally|if|when|would|should|expected|"
    r"as (?:asked|requested|instructed)|now (?:fixed|pass\w*)|(?:is|are) fixed|pass now|"
    r"fixed (?:it|this|that|them))\b"
)
_OWN = re.compile(r"\b(?:i|we)\b|^(?:could|unable|did|not)\b")
_CHECKING = frozenset(("test", "suit", "check", "lint", "build", "pytest", "mypy", "fail", "run"))
_CHANGES = (
    "creat", "chang", "modif", "writ", "wrote", "updat", "add", "fix", "implement", "edit",
    "refactor", "remov", "delet", "renam",
)  # fmt: skip
_CHANGED = re.compile(rf"\b(?:{'|'.join(_CHANGES)})")
_changing = cache(lambda: automaton(_CHANGES))
_RESTORES = re.compile(r"\bgit\s+(?:checkout|restore)\b")


class Told(Record):
    """A fact of a report."""

    kind: Literal["file", "status", "caveat"]
    text: str


class Redone(Record):
    """Work of the child that the parent did again, or took back."""

    path: str
    child: int
    parent: int
    """The events."""
    undone: bool = False


def told(one: Handed) -> list[Told]:
    """Files changed, what checks said, and what is not as it should be."""
    if one.child and one.child.steps and not _acts(one):
        return []
    report = one.event.report or ""
    facts = [Told(kind="file", text=path) for path in _files(one, report)]
    states = (line for line, plain in _lines_with(_outcomes(), report) if _STATUS.search(plain))
    facts += [Told(kind="status", text=line) for line in islice(states, 1)]
    return facts + [Told(kind="caveat", text=line) for line in caveats(one)]


def _lines_with(search: AhoCorasick, report: str) -> Iterator[tuple[str, str]]:
    """Sentences that hold a word, with the same in small letters."""
    lines = sentences(report)
    joined = _plain("\n".join(lines))
    plain = joined.split("\n")
    return ((lines[place], plain[place]) for place in lines_with(search, joined))


def caveats(one: Handed) -> Sequence[str]:
    """Sentences that say what failed, could not be done or was left; not what the code does."""
    if one.child and one.child.steps and not _acts(one):
        return []
    return _caveats_in(one.event.report or "", acts=one.child is not None and _acts(one))


@lru_cache(256)
def _caveats_in(report: str, *, acts: bool) -> Sequence[str]:
    found = (
        line
        for line, plain in _lines_with(_lacking(), report)
        if (acts or _OWN.search(plain)) and _CAVEAT.search(plain) and not _OVER.search(plain)
    )
    return list(islice(found, CAVEATS))


def uses(fact: Told, one: Handed) -> bool:
    """Whether the parent opens, checks, tells or passes on what it was told."""
    checked = any(step.check for step in one.after)
    if fact.kind == "file":
        return checked or any(mentions(text, names((fact.text,))) for text in _later(one))
    if fact.kind == "status":
        return checked or any(_STATUS.search(_plain(message.text)) for message in one.said)
    words = stems(words_of(fact.text))
    if checked and words & _CHECKING:
        return True
    sought = names(targets_of(fact.text))
    telling = sorted(words - _CHECKING)
    return any(mentions(text, sought) or _shares(text.casefold(), telling) for text in _later(one))


def redone(one: Handed, *, alike: float = 0.9) -> list[Redone]:
    """Edits of the parent that repeat or take back an edit of the child."""
    mine: dict[str, list[Step]] = {}
    for step in one.work:
        if step.changed and isinstance(step.event, Edit):
            mine.setdefault(step.written[0], []).append(step)
    if not mine:
        return []
    return [again for step in one.after if step.changed and (again := _again(step, mine, alike))]


def looked_up_again(one: Handed, changed: Set[str]) -> list[tuple[Step, Step]]:
    """Reads and searches of the child that the parent repeats; not of files that change."""
    first: dict[str, tuple[Step, Lines]] = {}
    for step in one.work:
        for key in _lookups(step, changed):
            then, (start, end) = first.get(key, (step, _lines(step)))
            more = _lines(step)
            first[key] = then, (min(start, more[0]), max(end, more[1]))
    pairs: dict[str, tuple[Step, Step]] = {}
    for step in one.after if first else ():
        for key in _lookups(step, changed):
            if key in first and key not in pairs:
                then, (start, end) = first[key]
                lines = _lines(step)
                if then.number < step.number and start <= lines[0] and lines[1] <= end:
                    pairs[key] = then, step
    return list(pairs.values())


def _shares(text: str, words: Sequence[str]) -> bool:
    """Two of the words, or the only one."""
    left = min(2, len(words)) or 1
    for word in words:
        if word in text:
            left -= 1
            if not left:
                return True
    return False


def _acts(one: Handed) -> bool:
    """The child changed or checked something: what its report says of the work is its own."""
    return bool(one.child and (one.child.changes or one.child.checks))


def _plain(text: str) -> str:
    return text.casefold().replace("’", "'")


def _files(one: Handed, report: str) -> list[str]:
    """Files that the report names and the child changed, or says that it did."""
    if one.child is not None and one.child.steps:
        written = dict.fromkeys(
            path for step in one.child.changes[-CHANGES:] for path in step.written
        )
        return [
            path
            for path in written
            if not is_scratch(path) and any(name in report for name in names((path,)))
        ][:FILES]
    named = (
        name
        for line, plain in _lines_with(_changing(), report)
        if ("/" in line or "." in line) and _CHANGED.search(plain)
        for name in targets_in(line)
        if "/" in name or "." in name
    )
    return list(dict.fromkeys(named))[:FILES]


def _later(one: Handed) -> Iterator[str]:
    yield from (message.text for message in one.said)
    yield from (input_of(step) for step in one.after)


def _again(step: Step, mine: Mapping[str, list[Step]], alike: float) -> Redone | None:
    event = step.event
    if isinstance(event, Command):
        return _restored(step, mine) if _RESTORES.search(event.command) else None
    if not isinstance(event, Edit) or step.written[0] not in mine:
        return None
    path, lines = step.written[0], lines_of(event)
    for edit in reversed(mine[path][-EDITS:]):
        assert isinstance(edit.event, Edit), edit
        first = lines_of(edit.event)
        if edit.number > step.number or lines is None or first is None:
            continue
        if _alike(first.added, lines.added, alike):
            return Redone(path=path, child=edit.number, parent=step.number)
        if _alike(first.added, lines.removed, alike) and (
            first.removed == lines.added or _alike(first.removed, lines.added, alike)
        ):
            return Redone(path=path, child=edit.number, parent=step.number, undone=True)
    return None


def _restored(step: Step, mine: Mapping[str, list[Step]]) -> Redone | None:
    for path in step.written:
        edits = mine.get(path, ())
        if edits and edits[0].number < step.number:
            return Redone(path=path, child=edits[0].number, parent=step.number, undone=True)
    return None


def _alike(one: tuple[str, ...], other: tuple[str, ...], alike: float) -> bool:
    """Nearly the same lines, and enough of them to be no accident."""
    first, second = ({line for line in lines if len(line) > 3} for lines in (one, other))
    if sum(map(len, first)) < 20 and first:
        return False
    return bool(first and second) and len(first & second) >= alike * len(first | second)


def _lines(step: Step) -> Lines:
    """Which lines a step shows; of a command all, as far as anyone knows."""
    event = step.event
    if not isinstance(event, Read):
        return 1, float("inf")
    return event.first_line or 1, event.last_line or float("inf")


def _lookups(step: Step, changed: Set[str]) -> Iterator[str]:
    """What a step looks up; files that somebody changes are read for good reason."""
    event = step.event
    if isinstance(event, ToolUse):
        if event.ok is not False and re.search(r"(?i)grep|search|glob|find", event.name):
            yield f"{event.name} {event.arguments}"
    elif step.doing and step.doing.searches:
        yield " ".join(input_of(step).split())
    else:
        for path in step.read:
            if path not in changed:
                yield path
