"""Metrics: strict definitions, what is not known is never zero, and every number has its n."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from scripted_work import BOOK, START, add_attempt, add_task, add_variant, fill

from closeloop.cli.metrics import render_cost_side
from closeloop.metrics import metric_figures
from closeloop.metrics.attempt_table import load_attempt_table
from closeloop.metrics.metric_definitions import METRICS
from closeloop.metrics.metric_figures import compute_metrics
from closeloop.metrics.variant_comparison import compare_by_name
from closeloop.records.attempt import Attempt
from closeloop.records.errors import BadInput
from closeloop.records.estimate import MetricValue
from closeloop.records.experiment_plan import AttemptResult
from closeloop.records.pull_request import Delivery
from closeloop.records.trace import Command, Lane, Trace
from closeloop.store import Store, open_store
from closeloop.store.metrics_section import MEASUREMENT_FIELDS, AttemptSpan
from closeloop.store.packed_columns import TextColumn

LATER = datetime(2026, 11, 12, tzinfo=UTC)
DONE: dict[str, Any] = {
    "passed": True,
    "merged": True,
    "corrected": False,
    "cycles": 0,
    "reviewed": True,
}


@pytest.fixture
def store() -> Iterator[Store]:
    with open_store(":memory:") as opened:
        yield opened


def figures(store: Store, *by: str, span: AttemptSpan | None = None) -> dict[Any, MetricValue]:
    found = compute_metrics(load_attempt_table(store, BOOK, span), by).figures
    if not by:
        return {figure.metric: figure for figure in found}
    return {(figure.metric, *figure.group.values()): figure for figure in found}


def deliver(store: Store, attempt: Attempt, **told: Any) -> None:
    store.pulls.save_delivery(Delivery(attempt=attempt.id, at=LATER, **told))


def session(store: Store, **given: Any) -> Attempt:
    return add_attempt(store, None, None, None, **given)


def test_tasks_weigh_equally_however_often_each_was_tried(store: Store) -> None:
    fill(store, {"a": {"easy": [1] * 8, "hard": [0, 0]}})
    rate = figures(store)["pass rate"]
    assert (rate.value, rate.n, rate.attempts) == (0.5, 2, 10)
    assert rate.low is not None
    assert rate.high is not None
    assert rate.low < 0.5 < rate.high


def test_one_or_all_of_the_repeats_that_every_task_has_are_asked_for(store: Store) -> None:
    # Of three repeats two are chosen in three ways; a task that was tried once tells nothing.
    # Attempts of different variants are no repeats.
    fill(store, {"a": {"t": [1, 0, 0], "u": [1, 1], "once": [1]}, "c": {"once": [0]}})
    found = figures(store)
    one, each = found["pass@k"], found["pass^k"]
    assert one.value == pytest.approx((2 / 3 + 1) / 2)
    assert each.value == pytest.approx((0 + 1) / 2)
    for figure in (one, each):
        assert (figure.n, figure.attempts, figure.more) == (2, 5, {"k": 2})
        assert figure.low is not None
        assert figure.high is not None
        assert figure.low <= figure.value <= figure.high
    fill(store, {"b": {"v": [1] * 9 + [0]}})
    many = figures(store, "variant")["pass^k", "b"]
    assert (many.more, many.value) == ({"k": 5}, pytest.approx(0.5))


def test_repeats_by_two_variants_are_of_one_task(store: Store) -> None:
    fill(store, {"a": {"t": [1, 1, 1]}, "b": {"t": [0, 0, 0]}})
    found = figures(store)
    for name in ("pass rate", "pass@k", "pass^k"):
        assert (found[name].value, found[name].n, found[name].attempts) == (0.5, 1, 6), name
    fill(store, {"a": {"u": [1, 1]}, "b": {"u": [0, 1]}})
    found = figures(store)
    for name in ("pass rate", "pass@k", "pass^k"):
        assert (found[name].n, found[name].attempts) == (2, 10), name
    by_variant = figures(store, "variant")
    assert [by_variant["pass@k", name].n for name in "ab"] == [2, 2]


def test_groups_without_a_known_cost_are_listed_as_unknown(store: Store) -> None:
    for agent, costs in (("codex", (7.41, None)), ("pi", (1.0,)), ("copilot", (None,))):
        variant = add_variant(store, agent, agent=agent)
        for cost in costs:
            add_attempt(store, None, variant, None, cost=cost)
    work = load_attempt_table(store, BOOK)
    (table,) = render_cost_side(compute_metrics(work, ["agent"], ["cost in all"]))
    agents, costs = ([str(cell) for cell in column.cells] for column in table.columns)
    assert dict(zip(agents, costs, strict=True)) == {
        "codex": "$7.41 (known for 1 of 2)",
        "copilot": "unknown",
        "pi": "$1.00",
    }


def test_what_a_recording_does_not_count_is_missing_from_its_coverage(store: Store) -> None:
    variant = add_variant(store, "codex", agent="codex")
    for tokens in (10, 30, None):
        add_attempt(store, None, variant, None, tokens=tokens)
    found = figures(store)["tokens in"]
    assert (found.value, found.attempts, found.coverage) == (20.0, 2, pytest.approx(2 / 3))


def test_without_repeats_nothing_is_said_of_them(store: Store) -> None:
    fill(store, {"a": {"t": [1], "u": [0]}})
    one = figures(store)["pass@k"]
    assert (one.value, one.low, one.n, one.attempts) == (None, None, 0, 0)


def test_what_the_machine_failed_is_coverage_and_no_failure(store: Store) -> None:
    fill(store, {"a": {"t": [1, 1, 1, None]}})
    rate = figures(store)["pass rate"]
    assert (rate.value, rate.attempts, rate.coverage) == (1.0, 3, 0.75)


def test_where_nothing_could_be_scored_that_is_said(store: Store) -> None:
    fill(store, {"a": {"t": [None, None]}})
    work = load_attempt_table(store, BOOK)
    rate = compute_metrics(work, ()).figures[0]
    assert (rate.value, rate.n, rate.coverage) == (None, 0, 0.0)
    assert work.notes[0].startswith("None of 2 attempts at tasks could be scored")


def test_only_the_last_try_of_a_repeat_counts(store: Store) -> None:
    task, variant = add_task(store, "t"), add_variant(store, "a")
    add_attempt(store, task, variant, None, retry=0)
    add_attempt(store, task, variant, True, retry=1)
    rate = figures(store)["pass rate"]
    assert (rate.value, rate.attempts, rate.coverage) == (1.0, 1, 1.0)


def test_what_nobody_recorded_is_not_known_and_never_zero(store: Store) -> None:
    fill(store, {"a": {"t": [1, 0]}})
    found = figures(store)
    for name in ("after-feedback rate", "review loop count", "repeated mistakes", "feedback"):
        assert found[name].value is None, name
        assert found[name].n == 0
    assert found["after-feedback rate"].coverage is None
    assert found["cost"].value is None


def test_what_is_measured_in_a_trace_is_not_known_without_one(store: Store) -> None:
    add_attempt(store, add_task(store, "t"), add_variant(store, "a"), True)
    columns = load_attempt_table(store, BOOK).columns
    names = (name for name in MEASUREMENT_FIELDS if name in columns)
    numbers = [name for name in names if not isinstance(columns[name], TextColumn)]
    assert {"findings", "context_tokens"} <= {*numbers}
    known = [name for name in numbers if not math.isnan(columns[name][0])]
    assert not known, "add them to TRACE_COLUMNS in metrics/attempt_table.py"


def test_an_empty_store_has_no_figures_and_no_fault(store: Store) -> None:
    assert compute_metrics(load_attempt_table(store, BOOK), ()).figures == ()
    assert compute_metrics(load_attempt_table(store, BOOK), ("week", "tag")).figures == ()


@pytest.mark.parametrize(
    ("told", "value"),
    [
        (DONE, 1.0),
        (DONE | {"corrected": True}, 0.0),
        (DONE | {"cycles": 1}, 0.0),
        ({"passed": True, "merged": False}, 0.0),
        ({"passed": False, "merged": True}, 0.0),
        (DONE | {"corrected": None}, None),
        (DONE | {"cycles": None}, None),
        (DONE | {"reviewed": False}, None),
        ({"passed": True}, None),
        (DONE | {"passed": None}, None),
        (DONE | {"passed": None, "cycles": 1}, 0.0),
    ],
)
def test_a_completion_passes_is_merged_and_nobody_corrected_it(
    store: Store, told: dict[str, Any], value: float | None
) -> None:
    deliver(store, session(store), **told)
    assert figures(store)["task completion rate"].value == value


def test_a_grade_says_whether_a_delivery_passes(store: Store) -> None:
    task, variant = add_task(store, "t"), add_variant(store, "a")
    attempt = add_attempt(store, task, variant, False)
    deliver(store, attempt, passed=True, merged=True, corrected=False)
    assert figures(store)["task completion rate"].value == 0


def test_regressions_are_counted_among_completed_tasks_alone(store: Store) -> None:
    for told in (
        DONE | {"regressed": True},
        *[DONE | {"regressed": False}] * 3,
        {"passed": False, "merged": True, "regressed": True},
        DONE,
    ):
        deliver(store, session(store), **told)
    rate = figures(store)["regression introduction rate"]
    assert (rate.value, rate.n) == (0.25, 4)


def test_the_blast_radius_is_that_of_failures(store: Store) -> None:
    for files in range(1, 12):
        deliver(store, session(store), passed=False, merged=True, files=files, dependents=0)
    deliver(store, session(store), passed=True, merged=True, corrected=False, files=1000)
    found = figures(store)
    radius = found["blast radius, files"]
    assert (radius.value, radius.n, radius.more) == (6.0, 11, {"p90": 10.0, "worst": 11.0})
    # Of 11 ordered values the second and the tenth hold the median with 98.8 %.
    assert (radius.low, radius.high) == (2.0, 10.0)
    assert found["blast radius, modules"].value is None
    assert found["blast radius, dependents"].value == 0


def test_the_newest_delivery_of_an_attempt_counts(store: Store) -> None:
    attempt = session(store)
    deliver(store, attempt, merged=False, cycles=1)
    deliver(store, attempt, merged=True, cycles=3, comments=4, repeated=1, repeated_unconfirmed=2)
    found = figures(store)
    assert found["review loop count"].value == found["revision cycles"].value == 3
    assert found["review comments"].value == 4
    mistakes = found["repeated mistakes"]
    assert (mistakes.value, mistakes.more) == (1, {"unconfirmed": 2})


def test_work_is_grouped_by_each_of_its_sides(store: Store) -> None:
    task = add_task(store, "t", tags=("api", "slow"), repo="billing")
    variant = add_variant(store, "a", model="m", prompt="p1")
    add_attempt(store, task, variant, True, user="ann")
    add_attempt(store, task, variant, False, number=2, started=START + timedelta(weeks=1))
    for by, groups in {
        "repo": {"billing": 0.5},
        "user": {"ann": 1, "–": 0},
        "agent": {"builtin": 0.5},
        "model": {"m": 0.5},
        "prompt": {"p1": 0.5},
        "variant": {"a": 0.5},
        "tag": {"api": 0.5, "slow": 0.5},
        "task": {"t": 0.5},
        "week": {"2026-W45": 1, "2026-W46": 0},
    }.items():
        found = figures(store, by)
        assert {key[1]: one.value for key, one in found.items() if key[0] == "pass rate"} == groups
    found = figures(store, "tag", "week")
    assert found["pass rate", "slow", "2026-W46"].value == 0
    with pytest.raises(BadInput, match="Known: agent, arm, context, model, origin"):
        figures(store, "moon")


def test_a_held_out_task_counts_nowhere_and_keeps_its_name_to_itself(store: Store) -> None:
    variant = add_variant(store, "a")
    task = add_task(store, "secret", split="held-out", tags=("secret",), repo="secret")
    add_attempt(store, task, variant, True)
    add_attempt(store, add_task(store, "open"), variant, False)
    for by in ("task", "tag", "repo"):
        found = figures(store, by)
        assert not any("secret" in key or "sealed" in str(key) for key in found)
        (rate,) = [one for key, one in found.items() if key[0] == "pass rate"]
        assert (rate.value, rate.attempts) == (0, 1)
    assert "1 held-out attempt was excluded" in load_attempt_table(store, BOOK).notes[0]


def test_a_replay_counts_nowhere(store: Store) -> None:
    """A replay gives the answers of the first attempt again: it would only repeat its outcome."""
    task, live = add_task(store, "t"), add_variant(store, "live", model="openai/x")
    first = add_attempt(store, task, live, False, cost=0.5)
    replay = add_variant(store, "again", model=f"recorded:{first.id}")
    add_attempt(store, task, replay, True, cost=0.0)
    found = figures(store)
    assert (found["pass rate"].value, found["pass rate"].attempts) == (0, 1)
    assert found["cost"].value == 0.5
    assert "1 replayed attempt was excluded" in load_attempt_table(store, BOOK).notes[0]
    with pytest.raises(BadInput, match="'again' matches no attempt and no session"):
        compare_by_name(store, BOOK, ("live", "again"))
    marks = {row.variant_name: row.replay_of for row in store.list_attempts()}
    assert marks == {"live": None, "again": first.id}


def test_numbers_of_different_graders_are_never_averaged(store: Store) -> None:
    task, variant = add_task(store, "t"), add_variant(store, "a")
    add_attempt(store, task, variant, False, version=1)
    add_attempt(store, task, variant, True, number=2, version=2)
    work = load_attempt_table(store, BOOK)
    rate = compute_metrics(work, ()).figures[0]
    assert (rate.value, rate.attempts, rate.coverage) == (1.0, 1, 0.5)
    assert "1 attempt was graded by an older version of the grader" in work.notes[0]


def test_an_attempt_that_ends_before_it_starts_took_no_known_time(store: Store) -> None:
    session(store, seconds=-5)
    session(store, seconds=60)
    work = load_attempt_table(store, BOOK)
    found = {figure.metric: figure for figure in compute_metrics(work, ()).figures}
    assert (found["time"].value, found["time"].n) == (60, 1)
    assert "1 attempt ends before it starts" in work.notes[0]


def test_a_new_attempt_is_measured_once_and_then_read(store: Store) -> None:
    trace = Trace(
        reader="test",
        reader_version=1,
        lanes=(Lane(id="root"),),
        events=(Command(number=1, lane="root", command="pytest", exit_code=0),),
    )
    store.save_attempt(
        AttemptResult(attempt=Attempt(id="a", origin="production", exit="finished"), trace=trace)
    )
    told: list[tuple[int, int]] = []
    for _ in range(2):
        work = load_attempt_table(
            store, BOOK, report_progress=lambda done, of: told.append((done, of))
        )
        clean = {figure.metric: figure for figure in compute_metrics(work, ()).figures}["clean"]
        assert (clean.attempts, clean.coverage) == (1, 1.0)
    assert told == [(1, 1)]


def test_every_metric_has_a_definition_and_a_constant_one_no_strange_bounds(store: Store) -> None:
    fill(store, {"a": {f"t{n}": [1, 1] for n in range(60)}}, cost=1.0)
    for metric, _ in METRICS.values():
        assert metric.says.endswith(".")
    for figure in figures(store).values():
        for number in (figure.value, figure.low, figure.high):
            assert number is None or number == number, figure
        if figure.low is not None and figure.high is not None and figure.value is not None:
            assert figure.low <= figure.value <= figure.high
    assert figures(store)["pass rate"].high == 1


def test_the_same_numbers_come_from_postgresql(store_url: str) -> None:
    with open_store(store_url) as opened:
        fill(opened, {"a": {"t": [1, 0], "u": [1, None]}}, cost=0.5)
        deliver(opened, session(opened), **DONE | {"risk": "low"})
        found = figures(opened)
        assert found["pass rate"].value == 0.75
        by_origin = figures(opened, "origin")
        assert by_origin["task completion rate", "production"].value == 1
        assert by_origin["task completion rate", "experiment"].value == 0.75
        assert found["low risk"].value == 1
        assert found["cost in all"].value == 2.0
        since = figures(opened, span=AttemptSpan(since=START, until=START + timedelta(days=1)))
        assert since["pass rate"] == found["pass rate"]
        with pytest.raises(Exception, match="facts"):
            opened._write(lambda on: on.execute_sql("DELETE FROM deliveries"))


def test_a_rate_of_few_tasks_is_shown_as_a_count() -> None:
    rate = METRICS["pass rate"][0]

    def shown(value: float, n: int, attempts: int) -> str:
        figure = MetricValue(metric=rate.name, value=value, n=n, attempts=attempts)
        return metric_figures.format_metric_value(figure, rate)

    assert [shown(1, 1, 1), shown(1 / 3, 3, 3)] == ["1 of 1", "1 of 3"]
    assert [shown(0.5, 1, 2), shown(0.4, 5, 5), shown(0.37, 2, 2)] == ["50 %", "40 %", "37 %"]


def test_one_of_something_is_not_called_by_its_plural() -> None:
    cycles, seconds = METRICS["review loop count"][0], METRICS["time"][0]
    figures = [MetricValue(metric=cycles.name, value=value) for value in (0, 1, 1.5)]
    assert [metric_figures.format_metric_value(figure, cycles) for figure in figures] == [
        "0 cycles",
        "1 cycle",
        "1.5 cycles",
    ]
    assert metric_figures.format_metric_value(figures[1], seconds) == "1 s"
    told = MetricValue(metric=cycles.name, value=1.2, low=1, high=2, n=3)
    assert metric_figures.format_bounds(told, cycles) == "1–2"
