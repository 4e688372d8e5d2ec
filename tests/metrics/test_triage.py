"""Triage: what likely failed comes first, with reasons; chances only where enough is graded."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import timedelta
from statistics import median
from typing import Any

import pytest
from scripted_work import BOOK, START, add_task, add_variant

from closeloop.metrics.attempt_table import load_attempt_table
from closeloop.metrics.triage import (
    TriageQuery,
    _explain_effects,
    estimate_sessions,
    find_session_triage,
    list_likely_failures,
    load_triage_prior,
    triage_sessions,
)
from closeloop.records.attempt import Attempt, Grade, Outcome
from closeloop.records.errors import BadInput, TraceNotStored
from closeloop.records.experiment_plan import AttemptResult
from closeloop.records.pull_request import Delivery
from closeloop.records.task import Task, Variant
from closeloop.records.trace import AnyEvent, Command, Edit, Lane, Message, Trace
from closeloop.store import Store, open_store
from closeloop.store.engine import Connection
from closeloop.store.migrations import allow_changes
from closeloop.store.schema import attempt_bodies
from closeloop.store.sql_statements import delete


@pytest.fixture
def store() -> Iterator[Store]:
    with open_store(":memory:") as opened:
        yield opened


def work(actions: int, *, checked: bool) -> Trace:
    """A session that reads on and on, edits once, and checks its change or does not."""
    events: list[AnyEvent] = [
        Message(number=1, lane="root", role="user", intent="request", text="<tag>\nFix cart.py now")
    ]
    events += [
        Command(number=number, lane="root", command=f"cat f{number}.py", exit_code=0)
        for number in range(2, actions + 2)
    ]
    at = len(events) + 1
    events.append(Edit(number=at, lane="root", path="cart.py", before="a", after="b", ok=True))
    if checked:
        run = Command(
            number=at + 1, lane="root", command="pytest -q", exit_code=0, output="2 passed"
        )
        said = Message(number=at + 2, lane="root", role="agent", text="All done.")
        events += [run, said]
    return Trace(reader="made", reader_version=1, lanes=(Lane(id="root"),), events=tuple(events))


def add_session(
    store: Store,
    variant: Variant,
    number: int,
    trace: Trace,
    *,
    task: Task | None = None,
    passed: bool | None = None,
    **given: Any,
) -> Attempt:
    attempt = Attempt(
        **{
            "id": f"{variant.name}{number:010x}",
            "origin": "experiment" if task else "production",
            "task": task.id if task else None,
            "task_digest": task.digest if task else None,
            "variant": variant.digest,
            "number": number,
            "started": START,
            "exit": "finished",
            **given,
        }
    )
    grade = None
    if task is not None and passed is not None:
        outcome = Outcome(result="pass" if passed else "fail")
        grade = Grade(attempt=attempt.id, grading=task.grading, version=1, outcome=outcome)
    store.save_attempt(AttemptResult(attempt=attempt, trace=trace, grade=grade))
    return attempt


def deliver(store: Store, attempt: Attempt, **told: Any) -> None:
    store.pulls.save_delivery(Delivery(attempt=attempt.id, at=START, **told))


def test_an_empty_store_has_no_session_to_look_at(store: Store) -> None:
    report = triage_sessions(store, BOOK, TriageQuery())
    assert (report.sessions, report.total, report.quality) == ((), 0, None)
    assert report.prior["auc, held"] >= 0.68


def test_the_long_unchecked_session_comes_first_with_its_reasons(store: Store) -> None:
    variant = add_variant(store, "a", model="m")
    for number in range(14):
        add_session(store, variant, number, work(6, checked=True))
    worst = add_session(store, variant, 99, work(80, checked=False))
    report = triage_sessions(store, BOOK, TriageQuery(limit=2))
    assert report.total == 15
    first, second = report.sessions
    assert (first.attempt, first.place, first.chance) == (worst.id, 1, None)
    assert first.score < second.score
    assert (first.agent, first.model, first.title) == ("builtin", "m", "Fix cart.py now")
    assert 2 <= len(first.reasons) <= 3
    assert "it ends with an action, not a message" in [reason.text for reason in first.reasons]
    lowering = [reason for reason in first.reasons if reason.effect < 0]
    assert sum(reason.effect for reason in lowering) < -0.5


def test_reasons_for_failure_come_first_and_at_most_one_against_it_follows(store: Store) -> None:
    variant = add_variant(store, "a", model="m")
    for number, actions in enumerate((1, 3, 6, 12, 25, 80)):
        add_session(store, variant, number, work(actions, checked=actions % 2 == 0))
    sessions = triage_sessions(store, BOOK, TriageQuery()).sessions
    signs = [[reason.effect > 0 for reason in one.reasons] for one in sessions]
    assert all(one == sorted(one) and sum(one) <= 1 for one in signs)
    assert [False, False, True] in signs


def claim(text: str, *, weakened: bool = False) -> Trace:
    """A short session with a failing check before its claim, or with a test that it skips."""
    skip = "@pytest.mark.skip\ndef test_total():\n    assert total([1]) == 1\n"
    before = "def test_total():\n    assert total([1]) == 1\n"
    events: list[AnyEvent] = [
        Message(number=1, lane="root", role="user", intent="request", text="Fix cart.py"),
        Edit(number=2, lane="root", path="cart.py", before="a", after="b", ok=True),
        Edit(number=3, lane="root", path="test_cart.py", before=before, after=skip, ok=True)
        if weakened
        else Edit(number=3, lane="root", path="cart.py", before="b", after="c", ok=True),
        Command(
            number=4,
            lane="root",
            command="pytest -q",
            exit_code=0 if weakened else 1,
            output="2 passed" if weakened else "FAILED test_cart.py::test_total - assert 1 == 2",
        ),
        Message(number=5, lane="root", role="agent", intent="claim", text=text),
    ]
    return Trace(reader="made", reader_version=1, lanes=(Lane(id="root"),), events=tuple(events))


def test_work_that_is_not_what_the_agent_says_comes_first_and_the_reason_says_so(
    store: Store,
) -> None:
    """By its length and its ending, the first of them would be the likeliest failure."""
    variant = add_variant(store, "a", model="m")
    add_session(store, variant, 1, work(80, checked=False))
    false = add_session(store, variant, 2, claim("All tests pass now."))
    weakened = add_session(store, variant, 3, claim("Fixed the cart.", weakened=True))
    sessions = triage_sessions(store, BOOK, TriageQuery()).sessions
    assert {one.attempt for one in sessions[:2]} == {false.id, weakened.id}
    reasons = {one.attempt: one.reasons[0] for one in sessions}
    assert reasons[false.id].text.startswith("false-claim: The agent claimed ")
    assert reasons[weakened.id].text.startswith("weakened-test: ")
    assert all(reasons[one.attempt].effect < 0 for one in sessions)
    estimates = estimate_sessions(store, BOOK, load_triage_prior())
    for one in sessions:
        found = find_session_triage(estimates, one.attempt)
        assert found is not None
        assert found.place == one.place


def test_a_session_whose_trace_is_not_stored_is_counted_and_left_out(store: Store) -> None:
    variant = add_variant(store, "a", model="m")
    kept = add_session(store, variant, 1, work(6, checked=True))
    lost = add_session(store, variant, 2, work(6, checked=True))
    forget_body(store, lost)
    report = triage_sessions(store, BOOK, TriageQuery())
    assert [one.attempt for one in report.sessions] == [kept.id]
    assert report.notes == ("1 session is excluded, because the trace is not in the store.",)
    with pytest.raises(TraceNotStored, match="import its session again"):
        store.load_trace(lost.id)
    table = load_attempt_table(store, BOOK)
    assert (table.attempts, table.outdated) == ([kept.id, lost.id], 1)


def test_a_session_without_its_trace_keeps_what_was_measured_before(store: Store) -> None:
    variant = add_variant(store, "a", model="m")
    lost = add_session(store, variant, 1, work(6, checked=True))
    triage_sessions(store, BOOK, TriageQuery())
    forget_body(store, lost)
    assert triage_sessions(store, BOOK, TriageQuery()).total == 1


def forget_body(store: Store, attempt: Attempt) -> None:
    """As another program leaves it that writes rows of attempts only."""

    def erase(connection: Connection) -> None:
        with allow_changes(connection, ["attempt_bodies"]):
            connection.execute(delete(attempt_bodies).where(attempt_bodies.c.attempt == attempt.id))

    store._write(erase)


@pytest.mark.parametrize("delivered", [False, True])
def test_the_likely_failures_are_those_that_triage_lists_first(
    store: Store, delivered: bool
) -> None:
    for name in ("a", "b"):
        variant = add_variant(store, name, model=f"m{name}")
        for number, actions in enumerate((1, 3, 3, 6, 12, 25, 80, *range(4, 14))):
            add_session(store, variant, number, work(actions, checked=actions % 2 == 0))
    if delivered:
        deliver(store, store.load_attempt("a0000000003"), merged=True)
    listed = triage_sessions(store, BOOK, TriageQuery(limit=7)).sessions
    rows = store.list_attempts()
    found = list_likely_failures(store, BOOK, rows, 7, lambda total: nullcontext(lambda _: None))
    assert [one.attempt for one in found] == [one.attempt for one in listed]
    for one, other in zip(found, listed, strict=True):
        assert one.score == pytest.approx(other.score)
        assert [reason.text for reason in one.reasons] == [reason.text for reason in other.reasons]


def test_graded_and_delivered_sessions_are_labels_and_are_not_listed(store: Store) -> None:
    variant, task = add_variant(store, "a"), add_task(store, "t")
    trace = work(3, checked=True)
    expected = {
        add_session(store, variant, 1, trace, task=task, passed=True).id: 1,
        add_session(store, variant, 2, trace, task=task, passed=False).id: 0,
    }
    for number, (told, hit) in enumerate(
        (
            ({"merged": True}, 1),
            ({"merged": False}, 0),
            ({"merged": True, "regressed": True}, 0),
            ({"merged": True, "corrected": True}, 0),
            ({"cycles": 1}, None),
        ),
        10,
    ):
        attempt = add_session(store, variant, number, trace)
        deliver(store, attempt, **told)
        expected[attempt.id] = hit
    estimates = estimate_sessions(store, BOOK, load_triage_prior())
    hits = [None if hit != hit else int(hit) for hit in estimates.hits.tolist()]
    assert dict(zip([row.id for row in estimates.rows], hits, strict=True)) == expected
    report = triage_sessions(store, BOOK, TriageQuery())
    assert [one.attempt for one in report.sessions] == [
        name for name, hit in expected.items() if hit is None
    ]
    (agent,) = report.agents
    assert (agent.sessions, agent.graded, agent.succeeded) == (7, 6, 2)
    assert not agent.states_chances


def test_chances_are_stated_once_fifty_sessions_are_graded_and_keep_to_the_truth(
    store: Store,
) -> None:
    variant, chance = add_variant(store, "a"), random.Random(1)
    for number in range(200):
        checked = number % 2 == 0
        task = add_task(store, f"t{number}")
        passed = chance.random() < (0.8 if checked else 0.3)
        add_session(store, variant, number, work(5, checked=checked), task=task, passed=passed)
    good = add_session(store, variant, 1000, work(5, checked=True))
    bad = add_session(store, variant, 1001, work(5, checked=False))
    other = add_session(store, add_variant(store, "b", agent="codex"), 1002, work(5, checked=True))
    report = triage_sessions(store, BOOK, TriageQuery())
    chances = {one.attempt: one.chance for one in report.sessions}
    assert chances[other.id] is None
    assert report.sessions[0].attempt == bad.id
    assert chances[bad.id] == pytest.approx(0.3, abs=0.1)
    assert chances[good.id] == pytest.approx(0.8, abs=0.1)
    assert report.quality is not None
    assert report.quality.graded == 200
    assert report.quality.auc is not None
    assert report.quality.auc > 0.65
    assert report.quality.calibration_error is not None
    assert report.quality.calibration_error < 0.1


def test_sessions_are_chosen_by_time_agent_and_model(store: Store) -> None:
    one, other = add_variant(store, "a", model="m"), add_variant(store, "b", agent="codex")
    trace = work(3, checked=True)
    add_session(store, one, 1, trace)
    late = add_session(store, other, 2, trace, started=START + timedelta(days=3))
    add_session(store, one, 3, trace, started=None)
    report = triage_sessions(store, BOOK, TriageQuery(since=START + timedelta(days=1)))
    assert [each.attempt for each in report.sessions] == [late.id]
    assert report.notes == ("1 session without a time is excluded: `--since all` includes them.",)
    assert triage_sessions(store, BOOK, TriageQuery(agent="codex")).total == 1
    assert triage_sessions(store, BOOK, TriageQuery(model="m")).total == 2
    with pytest.raises(BadInput, match=r"No agent named 'codx'\. Did you mean 'codex'"):
        triage_sessions(store, BOOK, TriageQuery(agent="codx"))


def test_sessions_at_held_out_tasks_stay_sealed(store: Store) -> None:
    task = add_task(store, "secret", split="held-out")
    add_session(store, add_variant(store, "a"), 1, work(3, checked=True), task=task)
    assert triage_sessions(store, BOOK, TriageQuery()).total == 0


def test_words_that_were_not_said_are_no_reason() -> None:
    prior = load_triage_prior()
    effects = [-1.0 if name == "certainty" else -0.1 for name in prior.features]
    for share, is_named in ((0.0, False), (0.02, True)):
        features = dict.fromkeys(prior.features, share)
        reasons = [one.feature for one in _explain_effects(effects, features, (), (), prior)]
        assert len(reasons) == 3
        assert ("certainty" in reasons) is is_named


def test_a_value_that_reads_as_the_usual_one_is_no_reason() -> None:
    prior = load_triage_prior()
    usual = float(median(prior.features["runs"].quantiles))
    effects = [-1.0 if name == "runs" else 0.0 for name in prior.features]
    for value, is_named in ((usual, False), (usual + 0.2, False), (usual + 9, True)):
        features = {**dict.fromkeys(prior.features, 0.0), "runs": value}
        reasons = [*_explain_effects(effects, features, (), (), prior)]
        assert [one.feature for one in reasons] == ["runs"] * is_named
    assert reasons[0].text.endswith(f"(median of public runs: {usual:,.0f})")
