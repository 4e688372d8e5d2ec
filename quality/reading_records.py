"""What readers said, as facts: ids, event numbers, words of a fixed set; no recording's text.

A line of `quality/readings/SOURCE.jsonl` is a verdict on one finding, or the failures that a reader
noted in one whole session. A later line of the same reader on the same thing replaces the earlier.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Literal

import msgspec

from closeloop.process.rulebook import (
    ReaderAgreement,
    ReaderCounts,
    ReadingCounts,
    ReadingSummary,
    RuleReaders,
)
from closeloop.records.errors import BadInput
from closeloop.records.record import Record
from closeloop.statistics.agreement import measure_agreement

ROOT = Path(__file__).resolve().parents[1]
READINGS = Path(__file__).resolve().parent / "readings"
NO_RULE = "other"
"""What readers write for a clear failure that no rule looks for."""
Word = Literal["right", "wrong", "unsure"]
ReaderKind = Literal["person", "model"]
_NAME = re.compile(r"[\w.+@-]{1,60}")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")


class FindingVerdict(Record, tag_field="kind", tag="finding"):
    """What one reader says of one finding."""

    source: str
    """The name of the set of sessions."""
    session: str
    """The id that `closeloop import` gives it."""
    rule: str
    version: int
    """Of the rule."""
    events: tuple[int, ...]
    verdict: Word
    reader: str
    by: ReaderKind = "person"
    date: str
    read_at: int | None = None
    """The rule's version when it was read, where this one makes the same finding."""

    @property
    def finding(self) -> tuple[str, str, str, tuple[int, ...]]:
        """What was read, whichever version of the rule found it."""
        return self.source, self.session, self.rule, self.events


class NotedFailure(Record):
    """A clear process failure that a reader saw, and whether the rules saw it."""

    rule: str
    """The rule that it is a case of, or `other`."""
    events: tuple[int, ...]
    version: int | None = None
    """Of that rule when both were compared."""
    caught: bool = False
    """Whether it has a finding there."""
    others: tuple[str, ...] = ()
    """Other rules that have one there."""


class SessionNotes(Record, tag_field="kind", tag="session"):
    """All clear process failures that one reader saw in one whole session."""

    source: str
    session: str
    events: int
    """How many events it had: with another number, those noted are others now."""
    failures: tuple[NotedFailure, ...] = ()
    reader: str
    by: ReaderKind = "person"
    date: str
    outdated: bool = False
    """The recording is read as other events now: it does not count until it is read again."""


ReadingLine = FindingVerdict | SessionNotes


def readings_path(source: str, folder: Path = READINGS) -> Path:
    """The file of a source; its name must be one word."""
    if not _NAME.fullmatch(source):
        raise BadInput(f"A source needs a name of letters, digits, . _ + @ or -, not {source!r}.")
    return folder / f"{source}.jsonl"


def load_readings(folder: Path = READINGS) -> list[ReadingLine]:
    """All lines of all sources; a last line that was cut off by a kill is left out."""
    lines: list[ReadingLine] = []
    for path in sorted(folder.glob("*.jsonl")):
        for text in path.read_bytes().splitlines(keepends=True):
            if not text.endswith(b"\n"):
                continue
            try:
                lines.append(msgspec.json.decode(text, type=ReadingLine))
            except msgspec.DecodeError as error:
                raise BadInput(f"{path.name} has a line that is no reading: {error}.") from error
    return lines


def save_reading(line: ReadingLine, folder: Path = READINGS) -> None:
    """Append it, and have it on disk before the next item is shown."""
    check_facts(line)
    path = readings_path(line.source, folder)
    folder.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        if file.tell() and path.read_bytes()[-1:] != b"\n":
            file.truncate(path.read_bytes().rfind(b"\n") + 1)
        file.write(msgspec.json.encode(line) + b"\n")
        file.flush()
        os.fsync(file.fileno())


def check_facts(line: ReadingLine) -> None:
    """Refuse what is no fact: only names, dates and numbers may be committed."""
    names = [line.source, line.session, line.reader]
    names += [line.rule] if isinstance(line, FindingVerdict) else []
    if isinstance(line, SessionNotes):
        names += [name for one in line.failures for name in (one.rule, *one.others)]
    for name in names:
        if not _NAME.fullmatch(name):
            raise BadInput(f"A reading holds names of one word only, not {name!r}.")
    if not _DATE.fullmatch(line.date):
        raise BadInput(f"A date is written as 2026-11-16, not {line.date!r}.")


# What is counted.


def latest_verdicts(lines: Iterable[ReadingLine]) -> list[FindingVerdict]:
    """The last verdict of each reader on each finding of each version."""
    return list(
        {
            (line.finding, line.version, line.reader): line
            for line in lines
            if isinstance(line, FindingVerdict)
        }.values()
    )


def latest_notes(lines: Iterable[ReadingLine]) -> list[SessionNotes]:
    """The last notes of each reader on each session, as far as they still hold."""
    latest = {
        (line.source, line.session, line.reader): line
        for line in lines
        if isinstance(line, SessionNotes)
    }
    return [line for line in latest.values() if not line.outdated]


def count_readings(
    lines: Sequence[ReadingLine], versions: Mapping[str, int]
) -> dict[str, ReadingCounts]:
    """By rule, of its present version only; rules of which nothing was read are left out."""
    words: dict[str, Counter[str]] = {}
    by_finding: dict[tuple[str, str, str, tuple[int, ...]], list[Word]] = {}
    for line in latest_verdicts(lines):
        if line.version == versions.get(line.rule):
            by_finding.setdefault(line.finding, []).append(line.verdict)
    for (_, _, rule, _), given in by_finding.items():
        words.setdefault(rule, Counter())[join_verdicts(given)] += 1
    for failure in list_failures(lines, versions):
        if failure.rule != NO_RULE:
            words.setdefault(failure.rule, Counter())["caught" if failure.caught else "missed"] += 1
    return {
        rule: ReadingCounts(version=versions[rule], **counts)
        for rule, counts in sorted(words.items())
    }


def join_verdicts(given: Sequence[Word]) -> Word:
    """What most readers say; where as many say otherwise, it is not sure."""
    (word, times), *rest = Counter(given).most_common()
    return "unsure" if rest and rest[0][1] == times else word  # type: ignore[return-value]


def count_readers(lines: Iterable[ReadingLine]) -> dict[str, RuleReaders]:
    """By rule: what each reader said of each version that it read itself, and agreement.

    A finding is the same whichever version made it, so agreement is not bound to the present one.
    """
    read = [line for line in latest_verdicts(lines) if line.read_at is None]
    words: dict[str, dict[tuple[int, str], Counter[str]]] = {}
    by_finding: dict[tuple[str, str, str, tuple[int, ...]], dict[str, Word]] = {}
    for line in read:
        counts = words.setdefault(line.rule, {})
        counts.setdefault((line.version, line.reader), Counter())[line.verdict] += 1
        by_finding.setdefault(line.finding, {})[line.reader] = line.verdict
    pairs: dict[str, list[bool]] = {}
    for (_, _, rule, _), given in by_finding.items():
        pairs.setdefault(rule, []).extend(
            one == other for one, other in combinations(given.values(), 2)
        )
    return {
        rule: RuleReaders(
            counts=tuple(
                ReaderCounts(reader=name, version=version, right=said["right"], read=said.total())
                for (version, name), said in sorted(counts.items())
            ),
            shared=len(pairs[rule]),
            agreeing=sum(pairs[rule]),
        )
        for rule, counts in sorted(words.items())
    }


def list_failures(lines: Iterable[ReadingLine], versions: Mapping[str, int]) -> list[NotedFailure]:
    """Each failure once, also where several readers noted it; none held against an old rule."""
    by_session = group_failures(lines, versions)
    return [failure for known in by_session.values() for failure in known]


def group_failures(
    lines: Iterable[ReadingLine], versions: Mapping[str, int]
) -> dict[tuple[str, str], list[NotedFailure]]:
    """By source and session, what `list_failures` lists."""
    by_session: dict[tuple[str, str], list[NotedFailure]] = {}
    for notes in latest_notes(lines):
        known = by_session.setdefault((notes.source, notes.session), [])
        known += [
            failure
            for failure in notes.failures
            if failure.version == versions.get(failure.rule)
            and not any(
                one.rule == failure.rule and spans_overlap(one.events, failure.events)
                for one in known
            )
        ]
    return by_session


def spans_overlap(some: Sequence[int], others: Sequence[int]) -> bool:
    """Whether two stretches of events, each from its first to its last, have one in common."""
    if not some or not others:
        return False
    return min(some) <= max(others) and min(others) <= max(some)


def summarise_readings(lines: Sequence[ReadingLine], versions: Mapping[str, int]) -> ReadingSummary:
    """Who read what, how many of the failures in whole sessions were found, and agreement."""
    verdicts = [line for line in latest_verdicts(lines) if line.version == versions.get(line.rule)]
    notes, failures = latest_notes(lines), list_failures(lines, versions)
    readers = {line.reader: line.by for line in (*verdicts, *notes)}
    return ReadingSummary(
        people=sum(by == "person" for by in readers.values()),
        models=sum(by == "model" for by in readers.values()),
        findings=len({line.finding for line in verdicts}),
        sessions=len({(line.source, line.session) for line in notes}),
        failures=len(failures),
        caught=sum(one.caught for one in failures),
        caught_otherwise=sum(bool(one.others) and not one.caught for one in failures),
        finding_agreement=compare_readers(
            [(line.finding, line.reader, line.verdict) for line in verdicts]
        ),
        session_agreement=compare_readers(
            [
                ((line.source, line.session), line.reader, "failure" if line.failures else "none")
                for line in notes
            ]
        ),
        readers=count_readers(lines),
    )


def compare_readers(labels: Iterable[tuple[object, str, str]]) -> ReaderAgreement | None:
    """Of labels as (item, reader, label), how far readers of the same items agree."""
    by_item: dict[object, dict[str, str]] = {}
    for item, reader, label in labels:
        by_item.setdefault(item, {})[reader] = label
    pairs = [
        pair
        for given in by_item.values()
        for pair in combinations([given[reader] for reader in sorted(given)], 2)
    ]
    agreement = measure_agreement(pairs)
    if agreement is None:
        return None
    return ReaderAgreement(agreeing=agreement.agreeing, kappa=agreement.kappa, ac1=agreement.ac1)
