"""Which findings and sessions are read: drawn from a folder of recordings, the same on any machine.

Findings are ordered by a digest of the seed and of what they are. So a smaller sample is the
beginning of a larger one, and a repaired rule keeps its place in the sample for each finding that
it still makes.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec.structs import replace
from reading_records import (
    FindingVerdict,
    NotedFailure,
    ReadingLine,
    SessionNotes,
    group_failures,
    spans_overlap,
)

from closeloop.cli.measure import import_into_memory
from closeloop.metrics.attempt_measuring import measure_attempts, project_rulebook
from closeloop.records.finding import Finding
from closeloop.records.record import Record, content_digest
from closeloop.records.settings import Settings
from closeloop.records.trace import Trace
from closeloop.store import Store


class MeasuredSession(Record):
    """A session of the folder, and what the rules found in it."""

    id: str
    events: int
    findings: tuple[Finding, ...]


class SessionSet(Record):
    """All sessions of some folders, under the name that readings give them."""

    source: str
    sessions: dict[str, MeasuredSession]
    store: Store


class SampledFinding(Record):
    """One finding to be read."""

    item: str
    """A short name for it, which answers cite."""
    source: str
    session: str
    finding: Finding

    @property
    def key(self) -> tuple[str, str, str, tuple[int, ...]]:
        return self.source, self.session, self.finding.rule, self.finding.events


@contextmanager
def open_sessions(folders: Sequence[Path], source: str) -> Iterator[SessionSet]:
    """Read and measure the recordings as `closeloop measure FOLDER` does, by default settings."""
    with import_into_memory(folders) as store:
        rows = store.list_attempts()
        sys.stderr.write(f"{len(rows)} sessions; applying the rules …\n")
        sessions = {
            one.row.id: MeasuredSession(
                id=one.row.id, events=one.row.events or 0, findings=one.measurement.findings
            )
            for one in measure_attempts(store, rows, project_rulebook(Settings()))
        }
        yield SessionSet(source=source, sessions=sessions, store=store)


def load_session_trace(known: SessionSet, session: str) -> Trace:
    """All events of one of the sessions."""
    trace = known.store.load_trace(session)
    assert trace is not None
    return trace


def sample_findings(
    known: SessionSet, *, rules: Collection[str] = (), each: int, per_session: int, seed: int
) -> list[SampledFinding]:
    """At most `each` findings of every rule, at most `per_session` of them from one session.

    A second one of a session comes after the first ones of all others.
    """
    by_rule: dict[str, list[tuple[int, str, SampledFinding]]] = {}
    for session in known.sessions.values():
        findings = {(one.rule, one.events): one for one in session.findings}
        ordered = sorted(
            (content_digest(seed, known.source, session.id, *key), key) for key in findings
        )
        taken: Counter[str] = Counter()
        for place, key in ordered:
            rule = key[0]
            if (not rules or rule in rules) and taken[rule] < per_session:
                sampled = SampledFinding(
                    item=content_digest(known.source, session.id, *key)[:10],
                    source=known.source,
                    session=session.id,
                    finding=findings[key],
                )
                by_rule.setdefault(rule, []).append((taken[rule], place, sampled))
                taken[rule] += 1
    return [
        sampled
        for _, candidates in sorted(by_rule.items())
        for _, _, sampled in sorted(candidates, key=lambda one: one[:2])[:each]
    ]


def sample_sessions(known: SessionSet, count: int, seed: int) -> list[MeasuredSession]:
    """Sessions to be read from beginning to end."""
    ordered = sorted(
        (one for one in known.sessions.values() if one.events),
        key=lambda one: content_digest(seed, known.source, one.id),
    )
    return ordered[:count]


def count_findings(known: SessionSet) -> Iterator[tuple[str, int, int]]:
    """Each rule with its findings and the sessions that have one."""
    findings = Counter(one.rule for each in known.sessions.values() for one in each.findings)
    sessions = Counter(
        rule for each in known.sessions.values() for rule in {one.rule for one in each.findings}
    )
    for rule in sorted(findings):
        yield rule, findings[rule], sessions[rule]


# What was read before, by a rule or a reader of an earlier version.


def carry_verdicts(
    sample: Iterable[SampledFinding], lines: Iterable[ReadingLine]
) -> list[FindingVerdict]:
    """What readers said of a finding that the rule's present version makes at the same events.

    Only findings that are in the present sample are taken over: old ones that happen to be left
    would be a choice of the easy ones.
    """
    verdicts = [line for line in lines if isinstance(line, FindingVerdict)]
    latest = {(line.finding, line.reader): line for line in verdicts}
    known = {(line.finding, line.reader, line.version) for line in verdicts}
    present = {sampled.key: sampled.finding.version for sampled in sample}
    return [
        replace(old, version=present[key], read_at=old.read_at or old.version)
        for (key, reader), old in latest.items()
        if key in present and (key, reader, present[key]) not in known
    ]


def compare_failures(
    failures: Iterable[tuple[str, tuple[int, ...]]],
    findings: Sequence[Finding],
    versions: dict[str, int],
) -> tuple[NotedFailure, ...]:
    """Failures that a reader noted, each with the rules that have a finding there."""
    noted = []
    for rule, events in failures:
        there = {one.rule for one in findings if spans_overlap(one.events, events)}
        noted.append(
            NotedFailure(
                rule=rule,
                events=events,
                version=versions.get(rule),
                caught=rule in there,
                others=tuple(sorted(there - {rule})),
            )
        )
    return tuple(noted)


def refresh_notes(
    notes: Iterable[SessionNotes], known: SessionSet, versions: dict[str, int]
) -> Iterator[SessionNotes]:
    """Compare whole sessions that were read with what the rules find now; what changed."""
    for old in notes:
        session = known.sessions.get(old.session)
        if old.source != known.source or session is None:
            continue
        noted = compare_failures(
            [(one.rule, one.events) for one in old.failures], session.findings, versions
        )
        outdated = session.events != old.events
        if outdated or noted != old.failures:
            yield replace(old, failures=noted, outdated=outdated)


def list_absent_sessions(lines: Iterable[ReadingLine], known: SessionSet) -> list[str]:
    """Sessions of this source that were read, and that its folders do not hold."""
    read = {line.session for line in lines if line.source == known.source}
    return sorted(read - known.sessions.keys())


class MetFailures(Record):
    """Of the clear failures that readers noted in a source, how many have findings there."""

    failures: int = 0
    by_own_rule: int = 0
    by_any_rule: int = 0
    by_gating_rule: int = 0
    elsewhere: float = 0.0
    """How many a finding would meet on average if each was at any other place of its session."""


def count_met_failures(
    lines: Sequence[ReadingLine],
    known: SessionSet,
    versions: Mapping[str, int],
    gating: Collection[str],
) -> MetFailures:
    """Hold what readers noted against findings at its events, and at any events as many."""
    failures = by_own_rule = by_any_rule = by_gating_rule = 0
    elsewhere = 0.0
    for (source, name), noted in group_failures(lines, versions).items():
        session = known.sessions.get(name)
        if source != known.source or session is None:
            continue
        failures += len(noted)
        for failure in noted:
            there = {failure.rule, *failure.others} if failure.caught else {*failure.others}
            by_own_rule += failure.caught
            by_any_rule += bool(there)
            by_gating_rule += not there.isdisjoint(gating)
            elsewhere += share_of_places_met(failure.events, session)
    return MetFailures(
        failures=failures,
        by_own_rule=by_own_rule,
        by_any_rule=by_any_rule,
        by_gating_rule=by_gating_rule,
        elsewhere=elsewhere,
    )


def share_of_places_met(events: Sequence[int], session: MeasuredSession) -> float:
    """Of all places in the session for as long a stretch, the share at which a finding is."""
    length = max(events) - min(events)
    places = [(first, first + length) for first in range(1, session.events - length + 1)]
    met = sum(any(spans_overlap(one.events, place) for one in session.findings) for place in places)
    return met / len(places)
