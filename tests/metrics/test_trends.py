"""Trends: a real turn is found and told once, noise and a harder week are not."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest
from scripted_work import BOOK, START, add_attempt, add_task, add_variant

from closeloop.cli.metrics import format_shift, send_regression_alerts
from closeloop.metrics.attempt_table import load_attempt_table
from closeloop.metrics.metric_trends import (
    compute_trends,
    list_standing_regressions,
    select_new_regressions,
)
from closeloop.records.errors import BadInput, MachineFailed
from closeloop.records.estimate import (
    Estimate,
    MetricRegression,
    MetricSeries,
    PeriodShift,
    TrendReport,
    TurningPoint,
)
from closeloop.records.pull_request import Delivery
from closeloop.store import Store, open_store

BROKE = START + timedelta(days=42)
NOW = START + timedelta(days=84)


@pytest.fixture
def store() -> Iterator[Store]:
    with open_store(":memory:") as opened:
        yield opened


def deliveries(store: Store, rates: list[float], seed: int = 1) -> TrendReport:
    """Two sessions a day; merged at first review at the rate of that day."""
    chance = random.Random(seed)
    for half, rate in enumerate(rates):
        for part in range(2):
            at = START + timedelta(days=half, hours=part * 5)
            made = add_attempt(store, None, None, None, started=at)
            first = chance.random() < rate
            store.pulls.save_delivery(Delivery(attempt=made.id, at=at, first_review=first))
    return compute_trends(load_attempt_table(store, BOOK), (), ["first-review merge rate"])


def test_a_turn_for_the_worse_is_found_near_the_day_it_came(store: Store) -> None:
    found = deliveries(store, [0.9] * 42 + [0.4] * 42)
    (one,) = found.regressions
    assert abs(one.turn.at - BROKE) < timedelta(days=6)
    assert one.turn.before.value > 0.75 > 0.55 > one.turn.after.value
    assert "Observational" in found.notes[0]
    (course,) = found.courses
    assert course.since is not None
    assert course.since.high < 0
    assert course.week is not None
    assert course.week.low < 0 < course.week.high
    assert len(course.stretches) == 12


def test_getting_better_is_no_regression(store: Store) -> None:
    found = deliveries(store, [0.4] * 42 + [0.9] * 42)
    assert found.regressions == ()
    assert found.courses[0].turns


def test_noise_alone_is_seldom_called() -> None:
    called = 0
    for seed in range(8):
        with open_store(":memory:") as store:
            called += bool(deliveries(store, [0.7] * 30, seed).regressions)
    assert called <= 2


def test_weeks_with_harder_tasks_and_a_week_just_begun_are_no_change(store: Store) -> None:
    """Tasks of every ease, always run in one order, many repeats; of the last week but one."""
    chance = random.Random(3)
    variant = add_variant(store, "a")
    tasks = [add_task(store, f"t{n}") for n in range(20)]
    number = 0
    for week in range(8):
        for place, task in enumerate(tasks):
            for _ in range(1 if week == 7 else 12):
                number += 1
                at = START + timedelta(weeks=week, hours=place)
                passed = chance.random() < 0.3 + place / 30
                add_attempt(store, task, variant, passed, number=number, started=at)
    found = compute_trends(load_attempt_table(store, BOOK), (), ["pass rate"])
    assert found.courses[0].turns == ()


def test_what_was_first_seen_before_a_turn_is_named(store: Store) -> None:
    task_count, chance = 12, random.Random(4)
    tasks = [add_task(store, f"t{n}") for n in range(task_count)]
    for week in range(10):
        worse = week >= 5
        variant = add_variant(store, "a", digest="new" if worse else "old", prompt=f"p{worse}")
        for task in tasks:
            at = START + timedelta(weeks=week)
            add_attempt(store, task, variant, chance.random() < (0.3 if worse else 0.95),
                        number=week + 1, started=at)  # fmt: skip
    found = compute_trends(load_attempt_table(store, BOOK), (), ["pass rate"])
    assert [mark.what for mark in found.marks] == ["prompt pTrue", "variant a new"]
    assert found.regressions[0].metric == "pass rate"
    assert "variant a new" in found.regressions[0].turn.near


def test_repeats_are_not_followed_over_time(store: Store) -> None:
    with pytest.raises(BadInput, match="use 'pass rate'"):
        compute_trends(load_attempt_table(store, BOOK), (), ["pass^k"])


def test_nothing_to_follow_is_no_fault(store: Store) -> None:
    assert compute_trends(load_attempt_table(store, BOOK)).courses == ()


def test_an_alert_is_sure_recent_and_told_once(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = deliveries(store, [0.95] * 42 + [0.2] * 42)
    assert select_new_regressions(found, {}, now=NOW + timedelta(weeks=52)) == []
    assert len(select_new_regressions(found, {}, now=BROKE + timedelta(weeks=2))) == 1
    (tmp_path / "closeloop.toml").write_text("")
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        send_regression_alerts(found, "alerts.jsonl", BROKE + timedelta(weeks=2))
    (line,) = Path("alerts.jsonl").read_text().splitlines()
    assert json.loads(line)["metric"] == "first-review merge rate"


def test_an_address_gets_one_document_and_a_dead_one_is_told_again(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = deliveries(store, [0.95] * 42 + [0.2] * 42)
    (tmp_path / "closeloop.toml").write_text("")
    monkeypatch.chdir(tmp_path)
    got: list[bytes] = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Hook)
    address = f"http://127.0.0.1:{server.server_port}/hook"
    Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        for _ in range(2):
            send_regression_alerts(found, address, BROKE + timedelta(weeks=2))
    finally:
        server.shutdown()
        server.server_close()
    assert [len(json.loads(body)["regressions"]) for body in got] == [1]
    with pytest.raises(MachineFailed, match="could not be sent"):
        send_regression_alerts(found, "http://127.0.0.1:9/hook", datetime(2026, 12, 25, tzinfo=UTC))


def test_a_shift_and_its_bounds_have_the_same_decimals() -> None:
    def shift(after: float, low: float, high: float) -> str:
        means = [
            Estimate(value=value, low=0, high=1, n=2, method="given") for value in (0.0, after)
        ]
        return format_shift(PeriodShift(before=means[0], after=means[1], low=low, high=high))

    assert shift(1 / 12, -0.5, 0.6) == "+0.08 (-0.50 … +0.60)"
    assert shift(0.004, -0.001, 0.009) == "+0.0040 (-0.0010 … +0.0090)"
    assert shift(120.4, 80, 161) == "+120 (+80 … +161)"
    assert shift(0, 0, 0) == "+0.00 (+0.00 … +0.00)"


def test_a_regression_that_was_undone_is_not_standing() -> None:
    def turn(day: int, before: float, after: float) -> TurningPoint:
        means = (Estimate(value=mean, low=0, high=1, n=9, method="t") for mean in (before, after))
        at = datetime(2026, 3, day, tzinfo=UTC)
        return TurningPoint(at=at, before=next(means), after=next(means), p=0.01)

    def report(*turns: TurningPoint) -> TrendReport:
        worse = MetricRegression(metric="pass rate", turn=turns[0], adjusted=0.01)
        series = MetricSeries(metric="pass rate", stretches=(), turns=turns)
        return TrendReport(weeks=4, courses=(series,), marks=(), regressions=(worse,), notes=())

    worse = turn(1, 0.9, 0.4)
    assert len(list_standing_regressions(report(worse))) == 1
    assert len(list_standing_regressions(report(worse, turn(20, 0.4, 0.6)))) == 1
    assert list_standing_regressions(report(worse, turn(20, 0.4, 0.9))) == []
