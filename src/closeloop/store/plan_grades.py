"""Grades of plans and how they went over time, read from the views that people query too."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby, islice
from typing import Any

from sqlalchemy import Connection, bindparam, text

from closeloop.records.estimate import wilson_rate
from closeloop.records.orchestration import PlanGrade, PlanGradeDay, PlanQualityDay, PlanTrend

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_GRADES = text(
    "SELECT plan, grade, score, weakest, judged, passed FROM plan_grades WHERE plan IN :plans"
).bindparams(bindparam("plans", expanding=True))
_GRADE_TREND = text(
    "SELECT day, grade, overall_pass, plans FROM plan_grade_trend ORDER BY day DESC, grade"
)
_QUALITY_TREND = text("SELECT * FROM plan_quality_trend ORDER BY day DESC, judge")


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
    grades, quality = (
        _rows_by_day(connection.execute(query).mappings(), days)
        for query in (_GRADE_TREND, _QUALITY_TREND)
    )
    return PlanTrend(
        grades=tuple(_grade_day(day, rows) for day, rows in grades),
        quality=tuple(_quality_day(row) for _, rows in quality for row in rows),
    )


def _rows_by_day(rows: Iterable[Any], days: int) -> list[tuple[int, list[Any]]]:
    grouped = groupby(rows, key=lambda row: row["day"])
    return [(day, list(each)) for day, each in islice(grouped, days)]


def _grade_day(day: int, rows: Sequence[Mapping[str, Any]]) -> PlanGradeDay:
    passed = sum(row["plans"] for row in rows if row["overall_pass"])
    known = sum(row["plans"] for row in rows if row["overall_pass"] is not None)
    return PlanGradeDay(
        day=_EPOCH + timedelta(days=day),
        plans=sum(row["plans"] for row in rows),
        passed=wilson_rate(passed, known),
        grades={row["grade"]: row["plans"] for row in rows if row["grade"] is not None},
    )


def _quality_day(row: Mapping[str, Any]) -> PlanQualityDay:
    return PlanQualityDay(
        day=_EPOCH + timedelta(days=row["day"]),
        judge=row["judge"],
        judged=row["judged"],
        passed=wilson_rate(row["passes"], row["verdicts"]),
        first_try=wilson_rate(row["first_passes"], row["first_verdicts"]),
        **{name: row[name] for name in ("score", "completeness", "quality", "relevance")},
    )
