"""The same numbers, slowly and in another way: row by row, from what the store lists."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from statistics import fmean, median

import pytest
from scripted_work import BOOK, START, add_attempt, add_task, add_variant

from closeloop.metrics.attempt_table import AttemptTable, load_attempt_table
from closeloop.metrics.metric_definitions import METRICS
from closeloop.metrics.metric_figures import compute_metrics
from closeloop.metrics.metric_trends import WEEK_SECONDS, MetricTimeline
from closeloop.records.attempt import AttemptRow
from closeloop.records.pull_request import Delivery
from closeloop.store import Store, open_store

Row = tuple[AttemptRow, Delivery | None]


@pytest.fixture(scope="module")
def held() -> Iterator[tuple[AttemptTable, list[Row]]]:
    """Tasks, sessions, second tries, what the machine failed, deliveries told twice."""
    with open_store(":memory:") as store:
        told = _filled(store, random.Random(5))
        rows: dict[object, AttemptRow] = {}
        for row in sorted(store.list_attempts(), key=lambda row: row.retry):
            rows[(row.task_digest, row.variant, row.number) if row.task else row.id] = row
        yield load_attempt_table(store, BOOK), [(row, told.get(row.id)) for row in rows.values()]


def _filled(store: Store, chance: random.Random) -> dict[str, Delivery]:
    tags = [(), ("slow",), ("slow", "api")]
    tasks = [add_task(store, f"t{n}", repo=f"r{n % 2}", tags=tags[n % 3]) for n in range(9)]
    variants = [add_variant(store, name, model=f"m-{name}", prompt=f"p{name}") for name in "ab"]
    for n in range(400):
        passed = chance.choice([True, True, False, None])
        add_attempt(store, chance.choice(tasks), chance.choice(variants), passed,
                    number=chance.randrange(1, 30), retry=n,
                    started=START + timedelta(hours=chance.randrange(1500)),
                    cost=chance.choice([None, chance.random()]),
                    user=chance.choice([None, "ann", "bob"]))  # fmt: skip
    told: dict[str, Delivery] = {}
    for _ in range(120):
        at = START + timedelta(hours=chance.randrange(1500))
        made = add_attempt(store, None, None, None, started=at, cost=chance.random())
        for _ in range(chance.randrange(3)):
            told[made.id] = Delivery(
                attempt=made.id,
                at=at,
                merged=chance.choice([None, True, False]),
                passed=chance.choice([None, True, False]),
                corrected=chance.choice([None, True, False]),
                cycles=chance.choice([None, 0, 1, 5]),
                reviewed=chance.choice([None, True, False]),
            )
            store.pulls.save_delivery(told[made.id])
    return told


def _passed(row: AttemptRow, delivery: Delivery | None) -> float | None:
    return {"pass": 1.0, "fail": 0.0}.get(row.outcome or "")


def _completed(row: AttemptRow, delivery: Delivery | None) -> float | None:
    graded = _passed(row, delivery)
    if delivery is None or delivery.merged is None:
        return graded if row.origin == "experiment" else None
    right = delivery.passed if graded is None else bool(graded)
    sent_back = None if delivery.cycles is None else delivery.cycles > 0
    if False in (right, delivery.merged) or delivery.corrected:
        return 0.0
    if right is None:
        return None
    if sent_back:
        return 0.0
    is_known = delivery.corrected is False and sent_back is False and delivery.reviewed
    return 1.0 if is_known else None


def _cycles(row: AttemptRow, delivery: Delivery | None) -> float | None:
    return None if delivery is None else delivery.cycles


def _cost(row: AttemptRow, delivery: Delivery | None) -> float | None:
    return row.cost


def _time(row: AttemptRow, delivery: Delivery | None) -> float | None:
    return row.seconds


Value = Callable[[AttemptRow, Delivery | None], float | None]
CHECKED: dict[str, tuple[Value, Callable[[Sequence[float]], float]]] = {
    "pass rate": (_passed, fmean),
    "task completion rate": (_completed, fmean),
    "review loop count": (_cycles, fmean),
    "cost": (_cost, fmean),
    "time": (_time, median),
}


def _labels(row: AttemptRow, by: str) -> Sequence[str | None]:
    number = int((row.task or "t0")[1:])
    match by:
        case "repo":
            return [f"r{number % 2}" if row.task else None]
        case "tag":
            several: list[list[str | None]] = [[None], ["slow"], ["slow", "api"]]
            return several[number % 3] if row.task else [None]
        case "week":
            assert row.started is not None
            return [row.started.strftime("%G-W%V")]
        case "prompt":
            return [f"p{row.variant_name}" if row.variant else None]
        case "variant":
            return [row.variant_name]
        case _:
            return [getattr(row, by)]


@pytest.mark.parametrize(
    "by", ["repo", "user", "agent", "model", "prompt", "variant", "tag", "task", "week"]
)
def test_every_grouping_gives_what_rows_give_one_by_one(
    held: tuple[AttemptTable, list[Row]], by: str
) -> None:
    work, rows = held
    figures = {(one.metric, one.group[by]): one for one in compute_metrics(work, (by,)).figures}
    groups = {label or "–" for row, _ in rows for label in _labels(row, by)}
    assert {group for _, group in figures} == groups
    for name, (value, middle) in CHECKED.items():
        for group in groups:
            tasks = defaultdict(list)
            for row, delivery in rows:
                seen = value(row, delivery)
                if seen is not None and group in [each or "–" for each in _labels(row, by)]:
                    tasks[row.task or row.id].append(seen)
            figure = figures[name, group]
            assert figure.n == len(tasks)
            assert figure.attempts == sum(map(len, tasks.values()))
            if tasks:
                assert figure.value == pytest.approx(
                    middle([*map(fmean, tasks.values())]), abs=1e-9
                )


@pytest.mark.parametrize("name", CHECKED)
def test_items_over_time_are_a_task_in_a_week_or_a_session(
    held: tuple[AttemptTable, list[Row]], name: str
) -> None:
    work, rows = held
    by_place: dict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
    for row, delivery in rows:
        seen = CHECKED[name][0](row, delivery)
        if seen is not None:
            assert row.started is not None
            at = row.started.timestamp()
            by_place[row.task or row.id, int(at // WEEK_SECONDS)].append((at, seen))
    weeks = defaultdict(set)
    for unit, week in by_place:
        weeks[unit].add(week)
    wanted = [
        (
            week * WEEK_SECONDS if len(weeks[unit]) > 1 else min(at for at, _ in each),
            fmean(seen for _, seen in each),
            len(each),
        )
        for (unit, week), each in by_place.items()
    ]
    ((group, items),) = MetricTimeline(work, ()).group_items(METRICS[name][1](work.columns))
    found = zip(items.at.tolist(), items.values.tolist(), items.repeats.tolist(), strict=True)
    assert group == ()
    assert items.at.tolist() == sorted(items.at.tolist())
    for one, other in zip(sorted(found), sorted(wanted), strict=True):
        assert one == pytest.approx(other, abs=1e-6)
