"""What checks said of changes is kept as it was, and found by attempt, repository and number."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace

from closeloop.records.attempt import Attempt
from closeloop.records.errors import BadInput
from closeloop.records.experiment_plan import AttemptResult
from closeloop.store import open_store
from report_example import BAD, CLEAN

AT = datetime(2026, 3, 1, tzinfo=UTC)


def test_reports_come_back_whole_the_newest_first(store_url: str) -> None:
    with open_store(store_url) as store:
        store.save_attempt(
            AttemptResult(
                attempt=Attempt(
                    id="one", origin="experiment", exit="finished", task_digest="sealed"
                )
            )
        )
        odd = replace(CLEAN, title="a\0b\udcff" + "x" * 100_000)
        numbers = [
            store.reports.save_report(BAD, AT, repo="ann/tally", attempt="one"),
            store.reports.save_report(odd, AT + timedelta(days=1), repo="ann/other"),
        ]
        newest, oldest = store.reports.list_reports(10)
        assert [newest.number, oldest.number] == numbers[::-1]
        assert (oldest.at, oldest.level, oldest.verdict, oldest.findings) == (
            AT,
            "high",
            "block",
            3,
        )
        assert store.reports.load_report(oldest.number) == (oldest, BAD)
        assert store.reports.list_reports(10, attempt="one") == [oldest]
        assert store.reports.list_reports(10, repo="ann/other") == [newest]
        assert store.reports.list_reports(10, without=["sealed"]) == [newest]
        assert store.reports.list_reports(1) == [newest]
        assert store.reports.load_report(999) is None


def test_a_report_about_no_attempt_of_ours_is_refused(store_url: str) -> None:
    with open_store(store_url) as store:
        with pytest.raises(BadInput, match="No attempt 'nobody'"):
            store.reports.save_report(BAD, AT, attempt="nobody")
        assert store.reports.list_reports(10) == []
