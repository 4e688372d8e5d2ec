"""What lists and overviews count, on both engines."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from closeloop.records.attempt import Attempt, Exit, Grade, Outcome
from closeloop.records.experiment_plan import AttemptResult
from closeloop.records.finding import Finding, Measurement
from closeloop.records.task import Experiment
from closeloop.store import Store, open_store, schema
from closeloop.store.sql_statements import select
from closeloop.text.patches import parse_patch

START = datetime(2026, 3, 1, tzinfo=UTC)
PATCH = "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1,1 +1,1 @@\n-1\n+2\n"


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    with open_store(store_url) as opened:
        yield opened


def add(
    store: Store,
    name: str,
    number: int = 1,
    *,
    retry: int = 0,
    how: Exit = "finished",
    result: str | None = "pass",
    changed: bool = True,
) -> None:
    graded = None
    if result is not None:
        outcome = Outcome(result=result)  # type: ignore[arg-type]
        graded = Grade(attempt=name, grading="g", version=1, outcome=outcome)
    store.save_attempt(
        AttemptResult(
            attempt=Attempt(
                id=name,
                origin="experiment",
                task="t",
                task_digest="d",
                variant="v",
                number=number,
                retry=retry,
                started=START + timedelta(hours=ord(name[0])),
                exit=how,
            ),
            change=parse_patch(PATCH) if changed else None,
            grade=graded,
        )
    )


def found(*rules: str) -> Measurement:
    return Measurement(
        rules="r",
        findings=tuple(
            Finding(rule=rule, version=1, severity="warning", message="m", events=(1,))
            for rule in rules
        ),
    )


def test_findings_are_those_that_the_rules_found_last(store: Store) -> None:
    for name in ("a", "b"):
        add(store, name)
    store.save_measurements([("a", "old", found("spiral", "drift")), ("b", "old", found("drift"))])
    store.save_measurements([("a", "new", found("spiral"))])
    store.save_attempt(AttemptResult(attempt=Attempt(id="s", origin="production", exit="finished")))
    store.save_measurements([("s", "new", found("spiral"))])
    expected = {("v", "spiral"): 1, ("v", "drift"): 1, (None, "spiral"): 1}
    assert store.counts.count_findings() == expected


def test_what_passed_and_changed_something_waits_oldest_first(store: Store) -> None:
    add(store, "b")
    add(store, "a")
    add(store, "c", result="fail")
    add(store, "d", result=None)
    add(store, "e", changed=False)
    assert store.counts.list_passed_attempts() == [("a", "d"), ("b", "d")]


def test_a_place_is_filled_once_and_not_by_what_the_machine_failed(store: Store) -> None:
    experiment = Experiment(id="e", tasks=("d",), variants=("v",), repeats=2)
    assert store.counts.count_filled_slots(experiment) == 0
    add(store, "a", 1, how="machine", result=None)
    assert store.counts.count_filled_slots(experiment) == 0
    add(store, "b", 1, retry=1)
    add(store, "c", 1, retry=2)
    add(store, "d", 3)
    assert store.counts.count_filled_slots(experiment) == 1


def test_a_list_may_be_longer_than_a_statement_takes_parameters(store: Store) -> None:
    for name in ("here", "há"):
        add(store, name, number=len(name))
    names = [*map(str, range(70_000)), "here"]
    table = schema.attempts.c
    with store._reader.begin() as on:
        among = on.execute(select(table.id).where(table.id.in_(names))).scalars().all()
        others = on.execute(select(table.id).where(table.id.not_in(names))).scalars().all()
        moments = [START + timedelta(hours=number) for number in range(70_000)]
        begun = on.execute(select(table.id).where(table.started.in_(moments))).scalars().all()
    assert (list(among), list(others)) == (["here"], ["há"])
    assert sorted(begun) == ["here", "há"]
