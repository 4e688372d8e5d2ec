"""Attempts page by page: every one once, narrowed down by whatever is known of them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from closeloop.metrics.attempt_measuring import project_rulebook
from closeloop.metrics.attempt_table import load_attempt_table
from closeloop.records.attempt import (
    Attempt,
    AttemptFilter,
    AttemptMarks,
    Grade,
    Outcome,
    PageCursor,
)
from closeloop.records.experiment_plan import AttemptResult, Trial, TrialAssignment
from closeloop.records.finding import AttemptEnding, Finding, Measurement
from closeloop.records.settings import Settings
from closeloop.records.task import Experiment, Task, Variant
from closeloop.records.team_rules import ContextRecord
from closeloop.records.trace import Message, Session, Trace
from closeloop.store import Store, open_store
from closeloop.store.attempt_rows import attempt_columns
from closeloop.store.metrics_section import AttemptSpan
from closeloop.store.record_bodies import pack_record
from closeloop.store.session_rows import build_packed_session

START = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    with open_store(store_url) as opened:
        for name in ("a", "b"):
            opened.save_variant(Variant(digest=f"v{name}", name=name, agent=f"agent-{name}"))
        for number in range(12):
            _add(opened, number)
        yield opened


def _add(store: Store, number: int) -> None:
    result = ("pass", "fail", "unscored")[number % 3]
    made = Attempt(
        id=f"{number:012}",
        origin="experiment",
        task=f"task-{number % 2}",
        task_digest=f"d{number % 2}",
        variant="va" if number % 2 else "vb",
        exit="finished" if number % 4 else "gave_up",
        started=START + timedelta(hours=number // 2) if number % 5 else None,
        user="ann" if number < 6 else None,
    )
    grade = Grade(attempt=made.id, grading="g", version=1, outcome=Outcome(result=result))  # type: ignore[arg-type]
    events = (Message(number=1, lane="r", role="user", text="Do it."),)
    trace = Trace(reader="x", reader_version=1, events=events)
    store.save_attempt(
        AttemptResult(attempt=made, trace=trace, grade=grade if number < 9 else None)
    )


def _add_session(store: Store, name: str, address: str, started: datetime) -> None:
    trace = Trace(reader="x", reader_version=1)
    session = Session(id=name, agent="x", branch="fix", trace=trace)
    attempt = Attempt(id=name, origin="production", exit="finished", started=started, repo=address)
    packed = build_packed_session(attempt, session, f"key of {name}", pack_record(trace))
    store.save_sessions([packed], [])


def test_work_on_a_repository_is_listed_by_its_name_whatever_its_address(store: Store) -> None:
    for number, address in enumerate(
        ("git@github.com:ann/tally.git", "https://github.com/ann/tally")
    ):
        _add_session(store, f"s{number}", address, START)
    store.save_task(Task(id="task-1", prompt="x", repo="ann/tally", digest="d1", grading="g"))
    at_task = {f"{number:012}" for number in range(1, 12, 2)}
    for name in ("ann/tally", "https://github.com/ann/tally"):
        assert set(names(store, AttemptFilter(repo=name))) == {"s0", "s1", *at_task}
    assert store.listing.list_choices().repos == ("ann/tally",)


def test_attempts_are_listed_by_the_arm_that_they_are_counted_in(store: Store) -> None:
    """By their id, their branch or their task; not what began before the assignment."""
    trial = Trial(name="a: b", shares={"x": 0.5, "y": 0.5}, metric="merge rate", started=START)
    store.trials.start_trial(trial)
    later = START + timedelta(hours=2)
    for key, variant, at in (
        ("task-1", "x", later), (f"{4:012}", "y", START), ("fix", "y", START),
    ):  # fmt: skip
        store.trials.save_assignment(
            TrialAssignment(trial=trial.name, key=key, variant=variant, at=at)
        )
    _add_session(store, "s0", "git@github.com:ann/tally.git", later)
    _add_session(store, "s1", "https://github.com/ann/other", later)
    for key, arm in (("fix", "memory"), (f"{6:012}", "control")):
        record = ContextRecord(key=key, repo="ann/tally", arm=arm, at=START)  # type: ignore[arg-type]
        store.memory.save_context_record(record)
    everything = AttemptSpan(attempts=tuple(names(store, AttemptFilter())))
    work = load_attempt_table(store, project_rulebook(Settings()), everything)
    counted: dict[str, set[str]] = {}
    for name, arms in zip(work.attempts, work.columns["arm"].tolist(), strict=True):
        for arm in arms or ():
            counted.setdefault(arm, set()).add(name)
    assert counted == {
        "a: b: x": {f"{number:012}" for number in (7, 9, 11)},
        "a: b: y": {f"{4:012}", "s0", "s1"},
        "memory": {"s0"},
        "control": {f"{6:012}"},
    }
    assert store.trials.list_arms() == ("control", "memory", "a: b: x", "a: b: y")
    for arm in store.trials.list_arms():
        assert set(names(store, AttemptFilter(arm=arm))) == counted.get(arm, set())
    assert names(store, AttemptFilter(arm="a: b: z")) == []


def names(store: Store, wanted: AttemptFilter, limit: int = 100) -> list[str]:
    return [row.id for row in store.listing.list_page(wanted, limit)]


def test_a_list_is_walked_in_pages_of_any_size(store: Store) -> None:
    everything = [row.id for row in store.list_attempts()]
    for size in (1, 4, 5, 12, 50):
        seen: list[str] = []
        after = None
        while rows := store.listing.list_page(AttemptFilter(), size, after):
            seen += [row.id for row in rows]
            after = PageCursor(started=rows[-1].started, id=rows[-1].id)
        assert seen == everything


@pytest.mark.parametrize(
    ("wanted", "numbers"),
    [
        (AttemptFilter(task="task-1"), {1, 3, 5, 7, 9, 11}),
        (AttemptFilter(variant="b"), {0, 2, 4, 6, 8, 10}),
        (AttemptFilter(agent="agent-a"), {1, 3, 5, 7, 9, 11}),
        (AttemptFilter(outcome="pass"), {0, 3, 6}),
        (AttemptFilter(outcome="unscored"), {2, 5, 8, 9, 10, 11}),
        (AttemptFilter(exit="gave_up", user="ann"), {0, 4}),
        (AttemptFilter(origin="production"), set()),
        (AttemptFilter(repo="nowhere"), set()),
        (AttemptFilter(experiment="nothing"), set()),
    ],
)
def test_a_list_is_narrowed_down(store: Store, wanted: AttemptFilter, numbers: set[int]) -> None:
    assert set(names(store, wanted)) == {f"{number:012}" for number in numbers}


def found(*rules: str) -> tuple[Finding, ...]:
    return tuple(
        Finding(rule=rule, version=1, severity="error", message="It is so.") for rule in rules
    )


def test_only_what_the_rules_said_last_counts(store: Store) -> None:
    first, second = f"{1:012}", f"{2:012}"
    before = Measurement(rules="old", findings=found("spiral", "drift"))
    ending = AttemptEnding(category="timeout", reason="It took too long.")
    store.save_measurements([(first, "b1", before), (second, "b1", before)])
    now = Measurement(rules="new", findings=found("drift"), ending=ending)
    store.save_measurements([(first, "b2", now)])
    assert names(store, AttemptFilter(rule="spiral")) == [second]
    assert set(names(store, AttemptFilter(rule="drift"))) == {first, second}
    assert names(store, AttemptFilter(rule="dri")) == []
    assert names(store, AttemptFilter(rule="%")) == []
    assert names(store, AttemptFilter(category="timeout")) == [first]
    marks = store.listing.load_marks([first, second, "nobody"])
    assert marks[first] == AttemptMarks(findings=1, rules=("drift",), category="timeout")
    assert marks[second].rules == ("drift", "spiral")
    assert store.listing.list_choices().categories == ("timeout",)


def test_what_was_said_on_another_basis_is_outdated_and_only_second_choice(store: Store) -> None:
    first, second = f"{1:012}", f"{2:012}"
    now = Measurement(rules="now", findings=found("drift"))
    before = Measurement(rules="before", findings=found("spiral"))
    store.save_measurements([(first, "now", now)])
    store.save_measurements([(first, "before", before), (second, "before", before)])
    marks = store.listing.load_marks([first, second], {first: "now", second: "now"})
    assert marks[first] == AttemptMarks(findings=1, rules=("drift",))
    assert marks[second] == AttemptMarks(findings=1, rules=("spiral",), outdated=True)


def test_there_is_something_to_choose_but_nothing_that_is_sealed(store: Store) -> None:
    choices = store.listing.list_choices({"d0"})
    assert choices.tasks == ("task-1",)
    assert choices.variants == ("a", "b")
    assert choices.agents == ("agent-a", "agent-b")
    assert choices.users == ("ann",)


def test_what_passed_is_counted_by_task(store: Store) -> None:
    assert store.listing.count_passes() == {"d0": (2, 3), "d1": (1, 3)}


def test_the_mark_is_another_when_something_was_added(store: Store) -> None:
    before = store.listing.change_marker()
    assert store.listing.change_marker() == before
    _add(store, 12)
    after = store.listing.change_marker()
    assert after != before
    store.save_measurements([(f"{1:012}", "b", Measurement(rules="r"))])
    assert store.listing.change_marker() != after


def test_the_mark_is_another_when_an_experiment_or_a_task_is_put_otherwise(store: Store) -> None:
    marks = [store.listing.change_marker()]
    experiment = Experiment(id="e", tasks=("d0",), variants=("a",), repeats=1)
    task = Task(id="task-0", prompt="Do it.", digest="d0", split="held-out")
    for change in (
        lambda: store.save_experiment(experiment),
        lambda: store.experiments.set_paused("e", paused=True),
        lambda: store.experiments.set_paused("e", paused=False),
        lambda: store.save_task(task),
    ):
        change()
        marks.append(store.listing.change_marker())
    assert len({*marks}) == 5


def test_one_row_is_found_and_the_things_are_counted(store: Store) -> None:
    row = store.listing.load_row(f"{3:012}")
    assert row is not None
    assert (row.variant_name, row.outcome) == ("a", "pass")
    assert store.listing.load_row("nobody") is None
    assert store.listing.find_newer_version(f"{3:012}") is None
    assert store.listing.count_records()["attempts"] == 12


def test_a_single_recorded_time_is_no_duration() -> None:
    def stored_seconds(ended: datetime) -> float | None:
        attempt = Attempt(id="a", origin="production", exit="finished", started=START, ended=ended)
        return attempt_columns(attempt, None, None)["seconds"]

    assert stored_seconds(START) is None
    assert stored_seconds(START + timedelta(seconds=5)) == 5
