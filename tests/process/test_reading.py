"""Reading findings one by one: what is drawn, what is kept of a verdict, what it comes to."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from closeloop.process.rulebook import (
    ReadingCounts,
    ReadingSummary,
    describe_readers,
    describe_readings,
)
from closeloop.records.errors import BadInput
from closeloop.records.finding import Finding

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "quality"))
from reading_records import (  # noqa: E402
    READINGS,
    FindingVerdict,
    NotedFailure,
    SessionNotes,
    check_facts,
    count_readers,
    count_readings,
    load_readings,
    save_reading,
    summarise_readings,
)
from reading_sample import (  # noqa: E402
    MeasuredSession,
    MetFailures,
    SessionSet,
    carry_verdicts,
    compare_failures,
    count_met_failures,
    list_absent_sessions,
    refresh_notes,
    sample_findings,
    sample_sessions,
)

SECRET = "the user's own words"
DATE = "2026-11-16"
VERSIONS = {"spiral": 2, "drift": 1}


def finding(rule: str = "spiral", *events: int, version: int = 2) -> Finding:
    return Finding(
        rule=rule, version=version, severity="error", message="m", events=events or (3, 5)
    )


def verdict(word: str = "right", **given: object) -> FindingVerdict:
    known = {"source": "s", "session": "a", "rule": "spiral", "version": 2, "events": (3, 5)}
    return FindingVerdict(**known | {"verdict": word, "reader": "ann", "date": DATE} | given)  # type: ignore[arg-type]


def notes(*failures: NotedFailure, **given: object) -> SessionNotes:
    known = {"source": "s", "session": "a", "events": 9, "reader": "ann", "date": DATE}
    return SessionNotes(**known | {"failures": failures} | given)  # type: ignore[arg-type]


def session_set(sessions: dict[str, list[Finding]], events: int = 9) -> SessionSet:
    return SessionSet(
        source="s",
        sessions={
            name: MeasuredSession(id=name, events=events, findings=tuple(found))
            for name, found in sessions.items()
        },
        store=None,  # type: ignore[arg-type]
    )


# What is drawn


def drawn(known: SessionSet, each: int = 9, per_session: int = 1, seed: int = 1) -> list[str]:
    sample = sample_findings(known, each=each, per_session=per_session, seed=seed)
    return [one.item for one in sample]


def test_one_session_does_not_dominate_the_sample() -> None:
    long = [finding("spiral", number, number + 1) for number in range(1, 40)]
    known = session_set({"long": long, "b": [finding()], "c": [finding()]})
    sample = sample_findings(known, each=9, per_session=1, seed=1)
    assert sorted(one.session for one in sample) == ["b", "c", "long"]
    assert len(drawn(known, per_session=2)) == 4
    assert drawn(known, per_session=2)[:3] == drawn(known)


def test_a_smaller_sample_is_the_beginning_of_a_larger_one_and_a_seed_draws_others() -> None:
    known = session_set({str(number): [finding()] for number in range(50)})
    assert drawn(known, each=6) == drawn(known, each=30)[:6]
    assert drawn(known, each=30) == drawn(known, each=30)
    assert drawn(known, each=30, seed=2) != drawn(known, each=30)
    names = [one.id for one in sample_sessions(known, 12, 1)]
    assert names == [one.id for one in sample_sessions(known, 30, 1)][:12]


def test_every_rule_has_its_own_share() -> None:
    known = session_set({str(n): [finding(), finding("drift", 2)] for n in range(9)})
    sample = sample_findings(known, each=4, per_session=1, seed=1)
    assert [one.finding.rule for one in sample] == ["drift"] * 4 + ["spiral"] * 4
    only = sample_findings(known, rules=["drift"], each=4, per_session=1, seed=1)
    assert only == sample[:4]


# What counts


def test_an_unsure_verdict_is_read_and_not_right() -> None:
    lines = [verdict("right"), verdict("unsure", session="b"), verdict("wrong", session="c")]
    assert count_readings(lines, VERSIONS) == {
        "spiral": ReadingCounts(version=2, right=1, wrong=1, unsure=1)
    }


def test_a_verdict_on_an_older_version_does_not_count() -> None:
    assert count_readings([verdict(version=1)], VERSIONS) == {}


def test_a_later_verdict_of_the_same_reader_replaces_the_earlier() -> None:
    counts = count_readings([verdict("wrong"), verdict("right")], VERSIONS)["spiral"]
    assert (counts.right, counts.wrong) == (1, 0)


@pytest.mark.parametrize(
    ("words", "counted"),
    [
        (["right", "right", "wrong"], "right"),
        (["right", "wrong"], "unsure"),
        (["wrong", "wrong"], "wrong"),
    ],
)
def test_of_several_readers_most_decide(words: list[str], counted: str) -> None:
    lines = [verdict(word, reader=f"r{place}") for place, word in enumerate(words)]
    counts = count_readings(lines, VERSIONS)["spiral"]
    assert getattr(counts, counted) == 1
    assert counts.right + counts.wrong + counts.unsure == 1


def test_agreement_is_of_items_that_two_readers_read() -> None:
    lines = [verdict("right", session=str(n)) for n in range(10)]
    lines += [verdict("right", session=str(n), reader="bob", by="model") for n in range(3)]
    lines += [verdict("wrong", session="3", reader="bob", by="model")]
    summary = summarise_readings(lines, VERSIONS)
    assert (summary.people, summary.models, summary.findings) == (1, 1, 10)
    assert summary.finding_agreement is not None
    assert summary.finding_agreement.agreeing.n == 4
    assert summary.finding_agreement.agreeing.value == 0.75
    # Gwet: chance = 2 · 7/8 · 1/8 = 0.21875; (0.75 − 0.21875) / (1 − 0.21875) = 0.68.
    assert summary.finding_agreement.ac1.value == pytest.approx(0.68)
    assert summary.finding_agreement.kappa is not None
    assert summary.finding_agreement.kappa.value == 0.0


def test_who_read_what_is_said_in_sentences() -> None:
    assert describe_readings(ReadingSummary()) == ["No finding on real sessions was read yet."]
    missed = NotedFailure(rule="spiral", events=(4,), version=2, others=("drift",))
    lines = [verdict(), verdict(reader="bob", by="model"), notes(missed)]
    assert describe_readings(summarise_readings(lines, VERSIONS)) == [
        "1 finding on real sessions read by 1 person and 1 model.",
        "1 whole session read, with 1 clear process failure: 0 found by the rule for it, "
        "1 only by another rule.",
        "Two readers agree on findings in 100 % of 1 cases: Cohen's kappa –, "
        "Gwet's AC1 1.00 (-0.69–1.00).",
    ]


def test_findings_that_only_models_read_say_so() -> None:
    summary = summarise_readings([verdict(reader="bob", by="model")], VERSIONS)
    assert describe_readings(summary) == [
        "1 finding on real sessions read by 1 model, by no person."
    ]


def test_each_reader_is_told_for_itself_whatever_the_version() -> None:
    lines = [verdict("right", version=1, session=str(n)) for n in range(3)]
    lines += [verdict("wrong", version=1, session="2", reader="bob")]
    lines += [verdict("right", session="1", reader="bob")]
    lines += [verdict("right", session="1", read_at=1)]
    readers = count_readers(lines)["spiral"]
    assert (readers.shared, readers.agreeing) == (2, 1)
    assert describe_readers(readers) == (
        "By reader: ann 3 of 3 right (version 1), bob 0 of 1 right (version 1), "
        "bob 1 of 1 right (version 2). Two readers agree on 1 of 2 findings."
    )
    alone = count_readers([verdict()])["spiral"]
    assert describe_readers(alone) == "By reader: ann 1 of 1 right (version 2)."


# Versions


def test_a_finding_that_a_new_version_still_makes_need_not_be_read_again() -> None:
    old = [verdict("right", version=1), verdict("wrong", version=1, session="gone")]
    known = session_set({"a": [finding()], "b": [finding()]})
    sample = sample_findings(known, each=9, per_session=1, seed=1)
    (carried,) = carry_verdicts(sample, old)
    assert (carried.version, carried.read_at, carried.session) == (2, 1, "a")
    assert carry_verdicts(sample, [*old, carried]) == []
    counts = count_readings([*old, carried], VERSIONS)["spiral"]
    assert (counts.right, counts.wrong) == (1, 0)


def test_other_evidence_of_a_new_version_has_to_be_read() -> None:
    known = session_set({"a": [finding("spiral", 3, 5, 8)]})
    sample = sample_findings(known, each=9, per_session=1, seed=1)
    assert carry_verdicts(sample, [verdict(version=1)]) == []


# Whole sessions


def test_a_noted_failure_is_caught_by_its_rule_at_these_events() -> None:
    found = [finding("spiral", 3, 9), finding("drift", 20)]
    noted = compare_failures(
        [("spiral", (5, 6)), ("spiral", (12,)), ("drift", (4,)), ("other", (20,))], found, VERSIONS
    )
    assert [one.caught for one in noted] == [True, False, False, False]
    assert [one.others for one in noted] == [(), (), ("spiral",), ("drift",)]
    lines = [notes(*noted), notes(session="b")]
    summary = summarise_readings(lines, VERSIONS)
    assert (summary.sessions, summary.failures) == (2, 4)
    assert (summary.caught, summary.caught_otherwise) == (1, 2)
    counts = count_readings(lines, VERSIONS)
    assert counts.keys() == {"spiral", "drift"}
    assert (counts["spiral"].caught, counts["spiral"].missed) == (1, 1)


def test_a_failure_that_two_readers_noted_counts_once() -> None:
    one = NotedFailure(rule="spiral", events=(3, 9), version=2, caught=True)
    same = NotedFailure(rule="spiral", events=(5,), version=2, caught=True)
    lines = [notes(one), notes(same, reader="bob"), notes(session="b"), notes(one, session="c")]
    lines += [notes(session="b", reader="bob"), notes(session="c", reader="bob")]
    summary = summarise_readings(lines, VERSIONS)
    assert (summary.sessions, summary.failures) == (3, 2)
    assert summary.session_agreement is not None
    assert summary.session_agreement.agreeing.value == pytest.approx(2 / 3)


def test_sessions_are_compared_anew_after_a_rule_changed() -> None:
    missed = NotedFailure(rule="spiral", events=(4,), version=1)
    known = session_set({"a": [finding("spiral", 3, 9)]})
    assert count_readings([notes(missed)], VERSIONS) == {}
    (fresh,) = refresh_notes([notes(missed)], known, VERSIONS)
    assert fresh.failures == (NotedFailure(rule="spiral", events=(4,), version=2, caught=True),)
    assert list(refresh_notes([fresh], known, VERSIONS)) == []


def test_notes_do_not_count_once_a_recording_is_read_as_other_events() -> None:
    missed = NotedFailure(rule="spiral", events=(4,), version=2)
    (outdated,) = refresh_notes([notes(missed)], session_set({"a": []}, events=12), VERSIONS)
    assert outdated.outdated
    assert summarise_readings([notes(missed), outdated], VERSIONS).sessions == 0


def test_sessions_that_the_folders_do_not_hold_are_named() -> None:
    lines = [notes(session="gone"), verdict(session="gone too"), notes(), notes(source="t")]
    known = session_set({"a": []})
    assert list_absent_sessions(lines, known) == ["gone", "gone too"]


def test_met_failures_are_told_beside_what_any_other_place_would_meet() -> None:
    # Nine events, findings at 3-5 and at 9. Of the eight places for two events, 2-3, 3-4, 4-5,
    # 5-6 and 8-9 meet one; of the nine places for one event, 3, 4, 5 and 9 do.
    found = [finding("spiral", 3, 5), finding("drift", 9)]
    noted = compare_failures(
        [("spiral", (4, 5)), ("other", (9,)), ("drift", (1,))], found, VERSIONS
    )
    lines = [notes(*noted), notes(*noted, reader="bob"), notes(*noted, session="absent")]
    met = count_met_failures(lines, session_set({"a": found}), VERSIONS, {"spiral"})
    assert met == MetFailures(
        failures=3,
        by_own_rule=1,
        by_any_rule=2,
        by_gating_rule=1,
        elsewhere=pytest.approx(5 / 8 + 4 / 9 + 4 / 9),
    )


# What is kept


def test_what_is_committed_holds_no_text() -> None:
    for line in load_readings(READINGS):
        check_facts(line)
    names = {"kind", "source", "session", "rule", "version", "events", "verdict", "reader", "by"}
    names |= {"date", "read_at", "failures", "outdated"}
    for path in READINGS.glob("*.jsonl"):
        for text in path.read_text(encoding="utf-8").splitlines():
            assert json.loads(text).keys() <= names


@pytest.mark.parametrize(
    "given", [{"source": "two words"}, {"session": SECRET}, {"rule": "x\ny"}, {"date": "today"}]
)
def test_words_are_refused_where_a_name_belongs(tmp_path: Path, given: dict[str, str]) -> None:
    with pytest.raises(BadInput):
        save_reading(verdict(**given), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_line_that_a_kill_cut_off_is_left_out_and_written_over(tmp_path: Path) -> None:
    save_reading(verdict(), tmp_path)
    path = tmp_path / "s.jsonl"
    path.write_bytes(path.read_bytes() + b'{"kind": "find')
    assert load_readings(tmp_path) == [verdict()]
    save_reading(verdict(session="b"), tmp_path)
    assert load_readings(tmp_path) == [verdict(), verdict(session="b")]
