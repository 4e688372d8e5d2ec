"""A sample as files for readers elsewhere, people or models, and their answers taken back."""

from __future__ import annotations

import csv
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
from reading_evidence import describe_rule, list_rules, render_finding, render_session
from reading_records import NO_RULE, FindingVerdict, ReaderKind, SessionNotes, Word
from reading_sample import (
    MeasuredSession,
    SampledFinding,
    SessionSet,
    compare_failures,
    load_session_trace,
)

from closeloop.records.errors import BadInput
from closeloop.records.record import Record

ITEMS = "items.jsonl"
ANSWERS = "answers.csv"
WORDS: Mapping[str, Word] = {"r": "right", "w": "wrong", "u": "unsure"}
FINDING_TASK = """\
Is each finding right, judged from the evidence alone?
right   what it says happened there, and it is a case of what the rule looks for
wrong   it did not happen, or it is no case of it, or what the agent did was reasonable
unsure  the evidence does not show it either way

Where an excerpt is too short, the whole session is in sessions/SESSION.txt.
Write the answer into answers.csv: a row a finding, `verdict` is right, wrong or unsure. A `note`
is for yourself: it is not taken over.
"""
SESSION_TASK = """\
Read each session in sessions/ from its beginning to its end, and note every clear process failure:
something the agent did that a careful engineer would call a mistake of method, whatever came of it.

Write into answers.csv a row a failure: the session, the rule that it is a case of (`other` where
none of these is about it), and the numbers of the events that show it, such as 12 15 18. A session
without one has one row with the word none as its rule. A session with no row filled in counts as
not read.

"""


class ExportedFinding(Record):
    """A line of items.jsonl: what is read, in figures and in words."""

    item: str
    source: str
    session: str
    rule: str
    version: int
    events: tuple[int, ...]
    looks_for: str
    evidence: str


class ReaderName(Record):
    """Who answers, and on which day."""

    reader: str
    by: ReaderKind
    date: str


def require_outside_git(folder: Path) -> None:
    """Refuse a folder in a repository: what is exported holds the text of recordings."""
    place = folder.resolve()
    for parent in (place, *place.parents):
        if (parent / ".git").exists():
            raise BadInput(
                f"{folder} is inside the repository {parent}, and a sample holds the text of "
                "recordings, which is never committed: choose a folder elsewhere."
            )


def export_findings(sample: Sequence[SampledFinding], known: SessionSet, folder: Path) -> None:
    """A text file a rule, all items as JSON lines, whole sessions, and a sheet for the answers."""
    require_outside_git(folder)
    (folder / "sessions").mkdir(parents=True, exist_ok=True)
    by_rule: dict[str, list[str]] = {}
    with (folder / ITEMS).open("wb") as items:
        for sampled in sample:
            trace = load_session_trace(known, sampled.session)
            evidence = render_finding(sampled, trace)
            rule = sampled.finding.rule
            by_rule.setdefault(rule, []).append(evidence)
            exported = ExportedFinding(
                item=sampled.item,
                source=sampled.source,
                session=sampled.session,
                rule=rule,
                version=sampled.finding.version,
                events=sampled.finding.events,
                looks_for=describe_rule(rule),
                evidence=evidence,
            )
            items.write(msgspec.json.encode(exported) + b"\n")
            _write_text(folder / "sessions" / f"{sampled.session}.txt", render_session(trace))
    line = "\n\n" + "=" * 100 + "\n\n"
    for rule, texts in by_rule.items():
        head = f"{FINDING_TASK}\nRULE {rule}\n{textwrap.indent(describe_rule(rule), '    ')}"
        _write_text(folder / f"{rule}.txt", line.join([head, *texts]))
    rows = [(one.finding.rule, one.item, "", "") for one in sample]
    _write_sheet(folder / ANSWERS, ("rule", "item", "verdict", "note"), rows)


def export_sessions(sessions: Sequence[MeasuredSession], known: SessionSet, folder: Path) -> None:
    """Whole sessions without what the rules found, and a sheet for the failures."""
    require_outside_git(folder)
    (folder / "sessions").mkdir(parents=True, exist_ok=True)
    for session in sessions:
        text = render_session(load_session_trace(known, session.id))
        _write_text(folder / "sessions" / f"{session.id}.txt", text)
    _write_text(folder / "README.txt", SESSION_TASK + list_rules())
    rows = [(session.id, "", "", "") for session in sessions]
    _write_sheet(folder / ANSWERS, ("session", "rule", "events", "note"), rows)


def read_answers(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file, or of JSON lines with the same names."""
    if path.suffix == ".csv":
        with path.open(encoding="utf-8-sig", newline="") as file:
            return [{key: (value or "").strip() for key, value in row.items() if key}
                    for row in csv.DictReader(file)]  # fmt: skip
    lines = path.read_text(encoding="utf-8").splitlines()
    rows = [msgspec.json.decode(line, type=dict[str, object]) for line in lines if line.strip()]
    return [
        {
            key: " ".join(map(str, value)) if isinstance(value, list) else str(value).strip()
            for key, value in row.items()
        }
        for row in rows
    ]


def verdicts_from_answers(
    rows: Sequence[Mapping[str, str]], items: Path, who: ReaderName
) -> Iterator[FindingVerdict]:
    """The verdicts of a filled sheet; rows without one were not read."""
    lines = items.read_bytes().splitlines()
    exported = [msgspec.json.decode(line, type=ExportedFinding) for line in lines]
    known = {one.item: one for one in exported}
    for row in rows:
        given = row.get("verdict", "").lower()
        if not given:
            continue
        word = WORDS.get(given[0])
        if word is None or not word.startswith(given):
            raise BadInput(f"A verdict is right, wrong or unsure, not {given!r}.")
        item = known.get(row.get("item", ""))
        if item is None:
            raise BadInput(f"{items} has no item {row.get('item')!r}.")
        yield FindingVerdict(
            source=item.source,
            session=item.session,
            rule=item.rule,
            version=item.version,
            events=item.events,
            verdict=word,
            reader=who.reader,
            by=who.by,
            date=who.date,
        )


def notes_from_answers(
    rows: Sequence[Mapping[str, str]], known: SessionSet, versions: dict[str, int], who: ReaderName
) -> Iterator[SessionNotes]:
    """The failures of a filled sheet, session by session, held against what the rules found."""
    by_session: dict[str, list[tuple[str, tuple[int, ...]]]] = {}
    for row in rows:
        rule, name = row.get("rule"), row.get("session", "")
        if not rule:
            continue
        session = known.sessions.get(name)
        if session is None:
            raise BadInput(f"The folders hold no session {name!r}.")
        noted = by_session.setdefault(name, [])
        if rule.lower() != "none":
            noted.append(parse_failure(rule, row.get("events", ""), versions, session))
    for name, failures in by_session.items():
        yield make_notes(known, known.sessions[name], failures, versions, who)


def make_notes(
    known: SessionSet,
    session: MeasuredSession,
    failures: Sequence[tuple[str, tuple[int, ...]]],
    versions: dict[str, int],
    who: ReaderName,
) -> SessionNotes:
    """What one reader noted in one session, compared with the findings there."""
    return SessionNotes(
        source=known.source,
        session=session.id,
        events=session.events,
        failures=compare_failures(failures, session.findings, versions),
        reader=who.reader,
        by=who.by,
        date=who.date,
    )


def parse_failure(
    rule: str, events: str, versions: Mapping[str, int], session: MeasuredSession
) -> tuple[str, tuple[int, ...]]:
    """`spiral`, `12, 15 #18` as a rule that exists and event numbers."""
    if rule not in versions and rule != NO_RULE:
        raise BadInput(f"There is no rule {rule!r}: choose one of those listed, or {NO_RULE!r}.")
    words = events.replace("#", " ").replace(",", " ").replace(";", " ").split()
    if not words or not all(word.isdecimal() for word in words):
        raise BadInput(f"Name the events of {rule!r} by their numbers, not as {events!r}.")
    numbers = tuple(int(word) for word in words)
    if max(numbers) > session.events:
        raise BadInput(f"Session {session.id} has {session.events} events, and no #{max(numbers)}.")
    return rule, numbers


def _write_text(path: Path, text: str) -> None:
    path.write_text(text + "\n", encoding="utf-8", errors="replace")


def _write_sheet(path: Path, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    if path.exists():
        raise BadInput(f"{path} exists, and may hold answers: choose another folder.")
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([head, *rows])
