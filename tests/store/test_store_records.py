"""What is saved comes back the same, on both engines, whatever it holds."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError

from closeloop.records import attempt as model
from closeloop.records.attempt import Attempt, Grade, Outcome, Proof, Usage
from closeloop.records.change import Change, FileChange
from closeloop.records.errors import BadInput, MachineFailed
from closeloop.records.experiment_plan import AttemptResult
from closeloop.records.task import Experiment, PromptVersion, Task, Variant
from closeloop.records.trace import Lane, Message, ToolUse, Trace, Turn
from closeloop.store import Store, make_attempt_row, open_store
from example_counts import scale_examples
from record_strategies import names, records

anything_goes = settings(
    max_examples=scale_examples(12),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
_count = itertools.count()


def fresh() -> str:
    """An id that no other example used: one database serves them all."""
    return f"{next(_count):08d}x"


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    with open_store(store_url) as opened:
        yield opened


def driver_url(url: str) -> str:
    if url.startswith("postgresql:"):
        return url.replace("postgresql:", "postgresql+psycopg:")
    return f"sqlite:///{url}"


@anything_goes
@given(data=st.data())
def test_tasks_prompts_variants_and_experiments_come_back(store: Store, data: Any) -> None:
    key = fresh()
    given_id = st.just(key)
    column = names | st.none()
    task = data.draw(records(Task, digest=given_id, grading=names, id=names))
    prompt = data.draw(records(PromptVersion, id=given_id))
    variant = data.draw(records(Variant, digest=given_id, name=names, agent=names, model=column))
    experiment = data.draw(records(Experiment, id=given_id))
    for _ in range(2):
        store.save_task(task)
        store.save_prompt(prompt)
        store.save_variant(variant)
        store.save_experiment(experiment)
    assert store.load_task(key) == task
    assert store.load_prompt(key) == prompt
    assert store.load_variant(key) == variant
    assert store.load_experiment(key) == experiment
    assert store.list_experiments()[0] == experiment


ids = dict.fromkeys(("task", "task_digest", "variant", "experiment", "parent"), names)


@anything_goes
@given(data=st.data())
def test_an_attempt_comes_back_with_all_that_belongs_to_it(store: Store, data: Any) -> None:
    key = fresh()
    attempt = data.draw(records(Attempt, id=st.just(key), **ids))
    trace = data.draw(st.none() | records(Trace))
    change = data.draw(st.none() | records(Change))
    grade = data.draw(st.none() | records(Grade, attempt=st.just(key), grading=names))
    for _ in range(2):
        assert store.save_attempt(
            AttemptResult(attempt=attempt, trace=trace, change=change, grade=grade), key
        )
    assert store.load_attempt(key) == attempt
    assert store.load_trace(key) == trace
    assert store.load_change(key) == change
    assert store.load_attempt_parts(key) == (attempt, trace, change)
    assert store.load_grade(key) == grade
    assert not store.claim_job(key, "anybody", 60)


@anything_goes
@given(data=st.data())
def test_a_row_agrees_with_the_records_it_was_made_from(store: Store, data: Any) -> None:
    key = fresh()
    attempt = data.draw(records(Attempt, id=st.just(key), **ids))
    trace = data.draw(st.none() | records(Trace))
    change = data.draw(st.none() | records(Change))
    grade = data.draw(st.none() | records(Grade, attempt=st.just(key), grading=names))
    store.save_variant(Variant(name=f"named {key}", agent="a", digest=attempt.variant))
    store.save_attempt(AttemptResult(attempt=attempt, trace=trace, change=change, grade=grade))
    (row,) = [row for row in store.list_attempts(experiment=attempt.experiment) if row.id == key]
    same = ("origin", "number", "retry", "exit", "started", "ended", *ids)
    assert all(getattr(row, name) == getattr(attempt, name) for name in same)
    assert row.variant_name == f"named {key}"
    assert row.agent == "a"
    bare = msgspec.structs.replace(row, variant_name=None, agent=None)
    assert bare == make_attempt_row(attempt, trace, change, grade)
    assert (row.input_tokens, row.output_tokens, row.cost) == (
        attempt.usage.input_tokens,
        attempt.usage.output_tokens,
        attempt.usage.cost,
    )
    assert row.events == (None if trace is None else len(trace.events))
    assert row.turns == (None if trace is None else sum(len(lane.turns) for lane in trace.lanes))
    assert row.files_changed == (None if change is None else len(change.files))
    assert row.outcome == (None if grade is None else grade.outcome.result)
    assert row.grading == (None if grade is None else grade.grading)
    assert row.out_of_scope == (None if grade is None else len(grade.out_of_scope))
    assert row.asked == (None if grade is None else grade.asked)


@anything_goes
@given(data=st.data())
def test_the_newest_proof_counts(store: Store, data: Any) -> None:
    key = fresh()
    proofs = data.draw(
        st.lists(records(Proof, grading=st.just(key), task=names), min_size=1, max_size=4)
    )
    for proof in proofs:
        store.save_proof(proof)
        assert store.load_proof(key) == proof


@anything_goes
@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 3), st.integers(0, 2)), max_size=8))
def test_the_newest_grade_of_the_highest_version_counts(
    store: Store, saved: list[tuple[str, int, int]]
) -> None:
    key = fresh()
    store.save_attempt(
        AttemptResult(attempt=Attempt(id=key, origin="experiment", exit="finished", experiment=key))
    )
    counts: dict[str | None, Grade] = {}
    for grading, version, passing in saved:
        grade = graded(key, grading=grading, version=version, fail_to_pass=(passing, 2))
        store.save_grade(grade)
        for name in (grading, None):
            if name not in counts or counts[name].version <= version:
                counts[name] = grade
    for name in ("a", "b", None):
        assert store.load_grade(key, name) == counts.get(name)
        (row,) = store.list_attempts(experiment=key, gradings=None if name is None else [name])
        expected = counts.get(name)
        assert (row.grading, row.version) == (
            (expected.grading, expected.version) if expected else (None, None)
        )


def graded(attempt: str, *, grading: str = "g", version: int = 1, **rest: Any) -> Grade:
    outcome = Outcome(result="pass")
    return Grade(attempt=attempt, grading=grading, version=version, outcome=outcome, **rest)


def finished(name: str, **rest: Any) -> Attempt:
    return Attempt(id=name, origin="experiment", exit="finished", **rest)


def test_an_attempt_is_never_overwritten(store: Store) -> None:
    kept, trace = finished("one"), Trace(reader="r", reader_version=1)
    store.save_attempt(AttemptResult(attempt=kept, trace=trace))
    others = [
        (finished("one", summary="other"), trace),
        (kept, Trace(reader="r", reader_version=2)),
        (kept, None),
    ]
    for attempt, other in others:
        with pytest.raises(BadInput, match="never overwritten"):
            store.save_attempt(
                AttemptResult(attempt=attempt, trace=other, grade=graded("one")), "job"
            )
    assert store.load_attempt("one") == kept
    assert store.load_trace("one") == trace
    assert store.load_grade("one") is None
    assert store.claim_job("job", "me", 60)


def test_another_grade_is_another_row(store: Store, store_url: str) -> None:
    store.save_attempt(AttemptResult(attempt=finished("one"), grade=graded("one")))
    store.save_grade(graded("one"))
    store.save_grade(graded("one", broken=("test_a",)))
    with create_engine(driver_url(store_url)).connect() as connection:
        assert connection.execute(text("SELECT broken FROM grades ORDER BY number")).all() == [
            (0,),
            (1,),
        ]


def test_an_edit_that_is_taken_back_counts_no_more(store: Store) -> None:
    first, edit = Task(id="t", prompt="p", digest="d"), Task(id="t", prompt="q", digest="e")
    variant, other = (Variant(name="v", agent="a", digest=key) for key in ("v1", "v2"))
    for _ in range(2):
        store.save_task(first)
        store.save_variant(variant)
    store.save_task(edit)
    store.save_variant(other)
    assert [*store.numbers.load_tasks().values()][-1] == edit
    assert [*store.numbers.load_variants().values()][-1] == other
    for _ in range(2):
        mark = store.listing.change_marker()
        store.save_task(first)
        store.save_variant(variant)
        assert [*store.numbers.load_tasks().values()][-1] == first
        assert [*store.numbers.load_variants().values()][-1] == variant
    assert store.listing.change_marker() == mark


def test_a_task_that_has_its_old_name_again_is_found_by_it(store: Store) -> None:
    for name in ("old", "new", "old"):
        task = Task(id=name, prompt="p", digest="same")
        store.save_task(task)
        assert store.load_task("same") == task


def test_the_database_itself_refuses_to_change_a_fact(store: Store, store_url: str) -> None:
    run = model.TestRun(when="before")
    store.save_task(Task(id="t", prompt="p", digest="d"))
    store.save_prompt(PromptVersion(id="p", text="x"))
    store.save_variant(Variant(name="v", agent="a", digest="v"))
    store.save_experiment(Experiment(id="e", tasks=(), variants=()))
    store.save_proof(Proof(task="t", grading="g", state="proved", before=run))
    store.save_attempt(AttemptResult(attempt=finished("one"), grade=graded("one", before=run)), "j")
    engine = create_engine(driver_url(store_url))
    keys = {
        "blobs": "digest",
        "tasks": "id",
        "prompts": "id",
        "variants": "name",
        "experiments": "id",
        "proofs": "task",
        "attempts": "task",
        "attempt_bodies": "attempt",
        "grades": "reason",
        "closeloop_migrations": "number",
    }
    for table, column in keys.items():
        for change in (f"UPDATE {table} SET {column} = {column}", f"DELETE FROM {table}"):
            with pytest.raises(DBAPIError, match="added, never changed"), engine.begin() as on:
                on.execute(text(change))
    with engine.begin() as on:
        assert on.execute(text("UPDATE jobs SET owner = owner")).rowcount == 1


def test_a_test_run_that_many_records_hold_is_kept_once(store: Store, store_url: str) -> None:
    run = model.TestRun(when="before", tests=(model.TestResult(id="a", status="passed"),), ran=True)
    store.save_proof(Proof(task="t", grading="g", state="proved", before=run, reference=run))
    for name in ("one", "two"):
        store.save_attempt(AttemptResult(attempt=finished(name), grade=graded(name, before=run)))
    assert store.load_proof("g") == Proof(
        task="t", grading="g", state="proved", before=run, reference=run
    )
    assert store.load_grade("two") == graded("two", before=run)
    with create_engine(driver_url(store_url)).connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM blobs")).scalar() == 1


def test_attempts_are_listed_latest_first_and_filtered(store: Store) -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    for number in range(6):
        attempt = finished(
            f"a{number}",
            task="odd" if number % 2 else "even",
            task_digest=f"t{number % 2}",
            variant=f"v{number % 3}",
            experiment="e" if number < 4 else None,
            started=start + timedelta(hours=number) if number else None,
        )
        store.save_attempt(AttemptResult(attempt=attempt))

    def listed(**wanted: Any) -> list[str]:
        return [row.id for row in store.list_attempts(**wanted)]

    assert listed() == ["a5", "a4", "a3", "a2", "a1", "a0"]
    assert listed(limit=2) == ["a5", "a4"]
    assert listed(task_digests=["t1"]) == ["a5", "a3", "a1"]
    assert listed(variants={"v0", "v1"}, limit=3) == ["a4", "a3", "a1"]
    assert listed(experiment="e", variants=["v0"]) == ["a3", "a0"]
    assert listed(task_digests=[]) == []
    assert listed(experiment="none") == []
    assert listed(task="odd") == ["a5", "a3", "a1"]
    store.save_variant(Variant(name="old", agent="a", digest="v0"))
    store.save_variant(Variant(name="new", agent="a", digest="v0"))
    assert listed(variant_name="new") == ["a3", "a0"]
    assert listed(variant_name="old") == []
    store.save_grade(graded("a4"))
    assert listed(outcome="pass") == ["a4"]
    assert listed(outcome="unscored", limit=2) == ["a5", "a3"]
    assert listed(outcome="fail") == []
    assert listed(outcome="pass", gradings=["another"]) == []
    assert listed(task=None, outcome=None, limit=1) == ["a5"]


def test_a_unique_beginning_names_an_attempt(store: Store) -> None:
    for name in ("abc", "abcd", "abX", "b%c", "é1"):
        store.save_attempt(AttemptResult(attempt=finished(name)))
    assert store.load_attempt("abX").id == "abX"
    assert store.load_attempt("abc").id == "abc"
    assert store.load_attempt("abcd").id == "abcd"
    assert store.load_attempt("b").id == "b%c"
    assert store.load_attempt("é").id == "é1"
    with pytest.raises(
        BadInput, match="'ab' is a prefix of several attempts, abX, abc, abcd: give more"
    ):
        store.load_attempt("ab")
    for name in ("abce", "%", "_", "B", "'"):
        with pytest.raises(BadInput, match="No attempt begins with"):
            store.load_attempt(name)
    for look in (store.load_trace, store.load_change, store.load_grade):
        assert look("abX") is None
        with pytest.raises(BadInput, match="No attempt begins with"):
            look("zzz")


def test_what_is_not_there_is_none(store: Store) -> None:
    assert store.load_task("x") is None
    assert store.load_variant("x") is None
    assert store.load_prompt("x") is None
    assert store.load_experiment("x") is None
    assert store.load_proof("x") is None
    assert store.list_attempts() == []
    assert store.list_experiments() == []
    with pytest.raises(BadInput, match="No attempt 'x' to grade"):
        store.save_grade(graded("x"))


def test_hostile_content_is_kept_as_far_as_any_format_can(store: Store) -> None:
    attempt = finished(
        "one",
        cause="no\0thing " + "x" * 10_000,
        summary="half a \ud83d pair",
        usage=Usage(input_tokens=2**63, output_tokens=2**70, cost=float("nan")),
        started=datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=9))),
        ended=datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-9))),
    )
    trace = Trace(
        reader="r",
        reader_version=1,
        lanes=(Lane(id="root", turns=(Turn(),)),),
        events=(
            Message(number=1, lane="root", role="agent", text="\udcff\0"),
            ToolUse(number=2, lane="root", name="t", arguments={"\ud800": [2**80, True, None]}),
        ),
    )
    change = Change(patch="\0", files=(FileChange(path="a\0\ud800", status="added"),))
    assert store.save_attempt(AttemptResult(attempt=attempt, trace=trace, change=change))
    assert store.save_attempt(AttemptResult(attempt=attempt, trace=trace, change=change))
    kept = store.load_attempt("one")
    assert kept.cause == attempt.cause
    assert kept.summary == "half a ? pair"
    assert kept.usage.output_tokens == 2**64 - 1
    (row,) = store.list_attempts()
    assert row.cause == "no�thing " + "x" * 491
    assert row.input_tokens == row.output_tokens == 2**63 - 1
    assert row.cost is None
    assert row.started == datetime.min.replace(tzinfo=UTC)
    assert row.ended == datetime.max.replace(tzinfo=UTC)
    event = store.load_trace("one").events[1]
    assert event.arguments == {"?": [2**64 - 1, True, None]}


def test_a_name_that_no_column_can_hold_is_bad_input(store: Store) -> None:
    for attempt in (finished("\ud800"), finished("a", number=2**64)):
        with pytest.raises(BadInput, match="cannot store this"):
            store.save_attempt(AttemptResult(attempt=attempt))
    assert store.list_attempts() == []


def test_a_body_from_the_future_asks_for_an_upgrade(store: Store, store_url: str) -> None:
    store.save_attempt(AttemptResult(attempt=finished("one")))
    body = zstandard.compress(msgspec.msgpack.encode({"id": "two", "exit": "abducted"}))
    with create_engine(driver_url(store_url)).begin() as on:
        row = "('two', 'experiment', 1, 0, 'abducted')"
        on.execute(text(f"INSERT INTO attempts (id, origin, number, retry, exit) VALUES {row}"))
        on.execute(
            text("INSERT INTO attempt_bodies (attempt, body) VALUES ('two', :body)"), {"body": body}
        )
    with pytest.raises(MachineFailed, match="Upgrade closeloop"):
        store.load_attempt("two")
    assert store.load_attempt("one").id == "one"


@pytest.mark.parametrize("url", ["memory", "file"])
def test_threads_share_a_store(url: str, tmp_path: Any) -> None:
    with open_store(":memory:" if url == "memory" else str(tmp_path / "a.db")) as store:
        troubles: list[BaseException] = []

        def save(thread: int) -> None:
            try:
                for number in range(30):
                    name = f"{thread}-{number}"
                    trace = Trace(reader="r" * 500, reader_version=thread)
                    store.save_attempt(
                        AttemptResult(attempt=finished(name), trace=trace, grade=graded(name)), name
                    )
                    assert store.load_trace(name) == trace
                    assert store.list_attempts(limit=1)
            except BaseException as error:
                troubles.append(error)

        threads = [threading.Thread(target=save, args=(each,)) for each in range(8)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert troubles == []
        assert len(store.list_attempts()) == 240


@pytest.mark.parametrize("how", ["unprepared", "prepared"])
def test_threads_that_read_a_type_for_the_first_time_do_not_end_the_process(how: str) -> None:
    script = Path(__file__).with_name("reading_threads.py")
    ended = subprocess.run([sys.executable, script, how], capture_output=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, b"")
