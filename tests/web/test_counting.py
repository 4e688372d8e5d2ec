"""Numbers that take long: counted once, beside whoever asks."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from datetime import UTC, datetime

import pytest

from closeloop.metrics.attempt_table import AttemptTable
from closeloop.records.attempt import Attempt
from closeloop.records.errors import BadInput, MachineFailed
from closeloop.records.experiment_plan import AttemptResult
from closeloop.records.pull_request import Delivery
from closeloop.records.score import Score
from closeloop.store import open_store
from closeloop.store.packed_columns import PackedColumns
from closeloop.web.page import MetricCache, PageContext
from patience import PATIENCE, until


def worked() -> AttemptTable:
    return AttemptTable(attempts=[], columns=PackedColumns(), tasks={}, variants={})


def test_numbers_are_counted_once_until_something_is_added() -> None:
    mark, made = ["1"], []
    counting = MetricCache(lambda: mark[0], worked, patience=None)

    def make(work: AttemptTable) -> int:
        time.sleep(0.1)
        made.append(mark[0])
        return len(made)

    assert [counting.compute_from_work("it", make).value for _ in range(3)] == [1, 1, 1]
    mark[0] = "2"
    # Who has all the patience gets numbers of now, though the last took long to count.
    assert counting.compute_from_work("it", make).fresh
    assert (counting.compute_from_work("it", make).value, made) == (2, ["1", "2"])


def test_what_came_while_somebody_waited_is_counted_too() -> None:
    marks = iter(["1"])
    counting = MetricCache(lambda: next(marks, "2"), worked, patience=None)
    assert counting.compute_from_work("it", lambda work: 1).fresh


def test_a_page_does_not_wait_for_what_takes_long() -> None:
    go = threading.Event()
    counting = MetricCache(lambda: "1", worked, patience=0.01)

    def make(work: AttemptTable) -> str:
        go.wait(PATIENCE)
        return "done"

    first = counting.compute_from_work("it", make)
    assert (first.value, first.fresh) == (None, False)
    go.set()
    counting.patience = None
    assert counting.compute_from_work("it", make).value == "done"


def test_what_was_asked_wrongly_stays_wrong_and_what_failed_is_tried_again() -> None:
    counting = MetricCache(lambda: "1", worked, patience=None)
    tries: list[str] = []

    def wrong(work: AttemptTable) -> None:
        tries.append("wrong")
        raise BadInput("No.")

    def broken(work: AttemptTable) -> str:
        tries.append("broken")
        if tries.count("broken") == 1:
            raise MachineFailed("Once.")
        return "well"

    for _ in range(2):
        with pytest.raises(BadInput):
            counting.compute_from_work("wrong", wrong)
    with pytest.raises(MachineFailed):
        counting.compute_from_work("broken", broken)

    def value() -> str | None:
        with suppress(MachineFailed):
            return counting.compute_from_work("broken", broken).value
        return None

    assert until(value) == "well"
    assert tries == ["wrong", "broken", "broken"]


def test_the_mark_changes_with_an_attempt_and_what_became_of_it() -> None:
    with open_store(":memory:") as opened:
        before = opened.listing.change_marker()
        opened.save_attempt(
            AttemptResult(attempt=Attempt(id="a", origin="production", exit="finished"))
        )
        made = opened.listing.change_marker()
        assert made != before
        now = datetime.now(UTC)
        opened.pulls.save_delivery(Delivery(attempt="a", at=now, merged=True))
        delivered = opened.listing.change_marker()
        assert delivered != made
        score = Score(attempt="a", name="would-merge", value=1, source="person", by="ann", at=now)
        opened.scores.add_scores([score])
        assert opened.listing.change_marker() != delivered


def test_a_plan_that_is_taken_up_or_let_go_is_news_though_nothing_is_added() -> None:
    with open_store(":memory:") as opened:
        mark, before = PageContext(opened).store_mark(), PageContext(opened).news_mark()
        assert opened.claim_job("plan/0123", "elsewhere:1:7", 3600)
        assert PageContext(opened).store_mark() == mark
        assert PageContext(opened).news_mark() == f"{before} 0123"
        opened.release_jobs("elsewhere:1:7")
        assert PageContext(opened).news_mark() == before
