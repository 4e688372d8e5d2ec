"""Grades of plans and how they went over time, read from the views that people query too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby, islice
from typing import Any

from sqlalchemy import Connection, bindparam, text

from closeloop.records.estimate import wilson_rate
from closeloop.records.orchestration import (
    PlanGrade,
    PlanGradeDay,
    PlanQualityDay,
    PlanTotals,
    PlanTrend,
)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_GRADES = text(
    "SELECT plan, grade, score, weakest, judged, passed FROM plan_grades WHERE plan IN :plans"
).bindparams(bindparam("plans", expanding=True))
_GRADE_TREND = text(
    "SELECT day, grade, overall_pass, plans FROM plan_grade_trend ORDER BY day DESC, grade"
)
_QUALITY_TREND = text("SELECT * FROM plan_quality_trend ORDER BY day DESC, judge")
# A task's verdicts count when its plan has ended, each of its tries once.
_TASK_TOTALS = text(
    """
    SELECT
        COUNT(f.pass) AS first_verdicts,
        SUM(CASE WHEN f.pass THEN 1 ELSE 0 END) AS first_passes,
        COUNT(l.pass) AS last_verdicts,
        SUM(CASE WHEN l.pass THEN 1 ELSE 0 END) AS last_passes,
        COUNT(CASE WHEN NOT f.pass AND l.tried_before > 0 THEN l.pass END) AS later_verdicts,
        SUM(CASE WHEN NOT f.pass AND l.tried_before > 0 AND l.pass THEN 1 ELSE 0 END)
            AS later_passes
    FROM plan_task_finals l
    LEFT JOIN plan_task_verdicts f
        ON f.plan = l.plan AND f.task = l.task AND f.tried_before = 0
    WHERE l.plan IN (SELECT id FROM orchestrator_plans WHERE state = 'ended')
    """
)


def load_grades(connection: Connection, plans: Collection[str]) -> dict[str, PlanGrade]:
    """Of some plans, by their ids."""
    rows = connection.execute(_GRADES, {"plans": list(plans)}).mappings() if plans else ()
    return {
        row["plan"]: PlanGrade(
            letter=row["grade"],
            score=row["score"],
            weakest=row["weakest"],
            judged=row["judged"],
            passed=row["passed"],
        )
        for row in rows
    }


def load_trend(connection: Connection, days: int) -> PlanTrend:
    """The last days on which plans ended and tries were judged, the newest first."""
    graded = connection.execute(_GRADE_TREND).mappings().all()
    judged = connection.execute(_QUALITY_TREND).mappings().all()
    return PlanTrend(
        totals=_build_totals(graded, connection),
        grades=tuple(
            PlanGradeDay(day=_EPOCH + timedelta(days=day), **_sum_grades(rows))
            for day, rows in _rows_by_day(graded, days)
        ),
        quality=tuple(_quality_day(row) for _, rows in _rows_by_day(judged, days) for row in rows),
    )


def load_totals(connection: Connection) -> PlanTotals:
    """All plans that ended."""
    return _build_totals(connection.execute(_GRADE_TREND).mappings().all(), connection)


def _build_totals(graded: Sequence[Any], connection: Connection) -> PlanTotals:
    tasks = connection.execute(_TASK_TOTALS).mappings().one()
    return PlanTotals(
        **_sum_grades(graded),
        first_try=wilson_rate(tasks["first_passes"] or 0, tasks["first_verdicts"]),
        after_feedback=wilson_rate(tasks["later_passes"] or 0, tasks["later_verdicts"]),
        final=wilson_rate(tasks["last_passes"] or 0, tasks["last_verdicts"]),
    )


def _sum_grades(rows: Sequence[Any]) -> dict[str, Any]:
    """How many plans, how many of them passed, and how many have each letter."""
    letters: Counter[str] = Counter()
    for row in rows:
        letters[row["grade"] or ""] += row["plans"]
    return {
        "plans": letters.total(),
        "passed": wilson_rate(
            sum(row["plans"] for row in rows if row["overall_pass"]),
            sum(row["plans"] for row in rows if row["overall_pass"] is not None),
        ),
        "grades": {letter: count for letter, count in sorted(letters.items()) if letter},
    }


def _rows_by_day(rows: Iterable[Any], days: int) -> list[tuple[int, list[Any]]]:
    grouped = groupby(rows, key=lambda row: row["day"])
    return [(day, list(each)) for day, each in islice(grouped, days)]


def _quality_day(row: Mapping[str, Any]) -> PlanQualityDay:
    return PlanQualityDay(
        day=_EPOCH + timedelta(days=row["day"]),
        judge=row["judge"],
        judged=row["judged"],
        passed=wilson_rate(row["passes"], row["verdicts"]),
        first_try=wilson_rate(row["first_passes"], row["first_verdicts"]),
        **{name: row[name] for name in ("score", "completeness", "quality", "relevance")},
    )
