"""Read on a terminal: the evidence, one key, the next. What is answered is on disk at once."""

from __future__ import annotations

import csv
import os
import pydoc
import sys
from collections.abc import Sequence
from pathlib import Path

from reading_answers import WORDS, ReaderName, make_notes, parse_failure
from reading_evidence import describe_rule, list_rules, render_finding, render_session
from reading_records import (
    READINGS,
    FindingVerdict,
    latest_notes,
    latest_verdicts,
    load_readings,
    save_reading,
)
from reading_sample import MeasuredSession, SampledFinding, SessionSet, load_session_trace

from closeloop.records.errors import BadInput

KEYS = "[r]ight  [w]rong  [u]nsure  [n]ote  [s]ession  [b]ack  [q]uit "


def read_findings(
    sample: Sequence[SampledFinding], known: SessionSet, who: ReaderName, folder: Path = READINGS
) -> None:
    """Show each finding that this reader has not answered, and save each answer."""
    answered = {
        (line.finding, line.version)
        for line in latest_verdicts(load_readings(folder))
        if line.reader == who.reader
    }
    waiting = [one for one in sample if (one.key, one.finding.version) not in answered]
    _print(f"{len(sample)} findings, {len(sample) - len(waiting)} of them read.")
    place = 0
    while 0 <= place < len(waiting):
        sampled = waiting[place]
        rule = sampled.finding.rule
        if place == 0 or waiting[place - 1].finding.rule != rule:
            _print(f"\n{'=' * 100}\nRULE {rule}\n{describe_rule(rule)}")
        evidence = render_finding(sampled, load_session_trace(known, sampled.session))
        _print(f"\n{'=' * 100}\n{place + 1} of {len(waiting)}  {evidence}\n")
        key = _ask_verdict(sampled, known)
        if key == "q":
            return
        if key == "b":
            place = max(0, place - 1)
            continue
        save_reading(
            FindingVerdict(
                source=sampled.source,
                session=sampled.session,
                rule=rule,
                version=sampled.finding.version,
                events=sampled.finding.events,
                verdict=WORDS[key],
                reader=who.reader,
                by=who.by,
                date=who.date,
            ),
            folder,
        )
        place += 1


def _ask_verdict(sampled: SampledFinding, known: SessionSet) -> str:
    """A verdict's key, `b` or `q`; notes and whole sessions are dealt with on the way."""
    while True:
        key = read_key(KEYS)
        if key == "n":
            _save_note(sampled.item, input("note: "))
        elif key == "s":
            pydoc.pager(render_session(load_session_trace(known, sampled.session)))
        elif key in "rwubq":
            return key


def read_sessions(
    sessions: Sequence[MeasuredSession],
    known: SessionSet,
    versions: dict[str, int],
    who: ReaderName,
    folder: Path = READINGS,
) -> None:
    """Show each session whole, and take down the failures that the reader sees in it."""
    answered = {
        line.session
        for line in latest_notes(load_readings(folder))
        if line.reader == who.reader and line.source == known.source
    }
    waiting = [one for one in sessions if one.id not in answered]
    _print(f"{len(sessions)} sessions, {len(sessions) - len(waiting)} of them read.\n")
    _print(list_rules())
    for place, session in enumerate(waiting, 1):
        _print(f"\n{place} of {len(waiting)}: session {session.id}, {session.events} events")
        pydoc.pager(render_session(load_session_trace(known, session.id)))
        failures = _ask_failures(versions, session)
        if failures is None:
            return
        save_reading(make_notes(known, session, failures, versions, who), folder)


def _ask_failures(
    versions: dict[str, int], session: MeasuredSession
) -> list[tuple[str, tuple[int, ...]]] | None:
    """Failures a line until an empty one; None to stop here."""
    failures: list[tuple[str, tuple[int, ...]]] = []
    _print("A failure a line, as `spiral 12 15 18`; an empty line ends the session, q stops.")
    while line := input("> ").strip():
        if line == "q":
            return None
        rule, _, events = line.partition(" ")
        try:
            failures.append(parse_failure(rule, events, versions, session))
        except BadInput as error:
            _print(str(error))
    return failures


def read_key(prompt: str) -> str:
    """One key on a terminal, without Enter; elsewhere the first letter of a line."""
    sys.stdout.write(prompt)
    sys.stdout.flush()
    if not sys.stdin.isatty():
        line = sys.stdin.readline()
        return line.strip()[:1].lower() or ("q" if not line else " ")
    import termios
    import tty

    stream = sys.stdin.fileno()
    before = termios.tcgetattr(stream)
    try:
        tty.setcbreak(stream)
        key = os.read(stream, 1).decode(errors="replace").lower()
    finally:
        termios.tcsetattr(stream, termios.TCSADRAIN, before)
    _print(key)
    return key or "q"


def _save_note(item: str, note: str) -> None:
    """Beside the reader's other files and never in the checkout: a note may quote a recording."""
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    path = state / "closeloop" / "reading-notes.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8", newline="") as file:
        csv.writer(file).writerow((item, note))
    _print(f"kept in {path}")


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
