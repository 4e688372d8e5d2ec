"""Orchestrated plans: the plan, every try, every verdict, and the result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby, islice
from typing import Any

import msgspec
from msgspec.structs import replace

from closeloop.records.attempt import Usage, count_prompt_tokens, sum_usage
from closeloop.records.change import Change
from closeloop.records.errors import BadInput
from closeloop.records.estimate import wilson_rate
from closeloop.records.orchestration import (
    Orchestration,
    OrchestrationHistory,
    OrchestrationResult,
    OrchestrationRow,
    PlanGrade,
    PlanGradeDay,
    PlanQualityDay,
    PlanTotals,
    PlanTrend,
    SubtaskAssessment,
    SubtaskExecution,
    SubtaskResult,
    SubtaskTry,
)
from closeloop.records.record import Record
from closeloop.records.trace import Exchange, Trace
from closeloop.store import fact_rows, schema
from closeloop.store.attempt_rows import (
    column_integer,
    column_number,
    column_text,
    short_column_text,
)
from closeloop.store.engine import Connection
from closeloop.store.fact_rows import (
    LazyExchanges,
    PackedExchanges,
    StoreSection,
    exchanges_to_rows,
)
from closeloop.store.record_bodies import (
    compress_content,
    decompress_body,
    encode_record,
    pack_record,
    unpack_record,
)
from closeloop.store.schema import private_bodies
from closeloop.store.sql_expressions import bindparam, func, text
from closeloop.store.sql_statements import insert, select

# Grades of plans and their trends, read from the views that people query too.


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_GRADES = text(
    "SELECT plan, grade, score, weakest, judged, passed FROM plan_grades WHERE plan IN :plans"
).bindparams(bindparam("plans", expanding=True))
_GRADE_TREND = text(
    "SELECT day, grade, overall_pass, plans FROM plan_grade_trend ORDER BY day DESC, grade"
)
_QUALITY_TREND = text("SELECT * FROM plan_quality_trend ORDER BY day DESC, judge")
# Verdicts count once the plan has ended, one per try of a task.
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
    """Load the grades of plans, by plan id."""
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
    """Load the last days on which plans ended and tries were judged, newest first."""
    grade_rows = connection.execute(_GRADE_TREND).mappings().all()
    verdict_rows = connection.execute(_QUALITY_TREND).mappings().all()
    return PlanTrend(
        totals=_build_totals(grade_rows, connection),
        grades=tuple(
            PlanGradeDay(day=_EPOCH + timedelta(days=day), **_sum_grades(rows))
            for day, rows in _rows_by_day(grade_rows, days)
        ),
        quality=tuple(
            _quality_day(row) for _, rows in _rows_by_day(verdict_rows, days) for row in rows
        ),
    )


def load_totals(connection: Connection) -> PlanTotals:
    """Load the totals of all plans that ended."""
    return _build_totals(connection.execute(_GRADE_TREND).mappings().all(), connection)


def _build_totals(grade_rows: Sequence[Any], connection: Connection) -> PlanTotals:
    tasks = connection.execute(_TASK_TOTALS).mappings().one()
    return PlanTotals(
        **_sum_grades(grade_rows),
        first_try=wilson_rate(tasks["first_passes"] or 0, tasks["first_verdicts"]),
        after_feedback=wilson_rate(tasks["later_passes"] or 0, tasks["later_verdicts"]),
        final=wilson_rate(tasks["last_passes"] or 0, tasks["last_verdicts"]),
    )


def _sum_grades(rows: Sequence[Any]) -> dict[str, Any]:
    """Count the plans, those that passed, and those of each letter grade."""
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
    return [(day, list(day_rows)) for day, day_rows in islice(grouped, days)]


def _quality_day(row: Mapping[str, Any]) -> PlanQualityDay:
    return PlanQualityDay(
        day=_EPOCH + timedelta(days=row["day"]),
        judge=row["judge"],
        judged=row["judged"],
        passed=wilson_rate(row["passes"], row["verdicts"]),
        first_try=wilson_rate(row["first_passes"], row["first_verdicts"]),
        **{name: row[name] for name in ("score", "completeness", "quality", "relevance")},
    )


# The exact patches of attempts and tries: read to apply them again, never to show them.
#
# A row exists only if the displayed form differs from what the agent left.


class ExactPatch(Record):
    """The exact change of a sub-agent's try, byte for byte."""

    patch: str
    files: tuple[str, ...] = ()


def exact_change_row(attempt: str, change: Change | None) -> dict[str, Any]:
    """Return the row with the exact change of an attempt."""
    return {"owner": f"attempt/{attempt}", "body": pack_record(change or Change())}


def load_exact_change(connection: Connection, attempt: str) -> bytes | None:
    """Load the exact change of an attempt; None if the displayed one is exact."""
    return _load_body(connection, f"attempt/{attempt}")


def split_execution(execution: SubtaskExecution) -> tuple[SubtaskExecution, dict[str, Any] | None]:
    """Return the redacted try, and the row with its exact patch, None if that is the same."""
    from closeloop.text.redaction import redact_patch, redact_path

    patch, files = redact_patch(execution.patch), tuple(map(redact_path, execution.files))
    redacted = replace(execution, patch=patch, files=files)
    if redacted == execution:
        return execution, None
    exact = ExactPatch(patch=execution.patch, files=execution.files)
    return redacted, {"owner": _try_owner(execution), "body": pack_record(exact)}


def load_exact_patch(connection: Connection, execution: SubtaskExecution) -> ExactPatch | None:
    """Load the exact patch of a try; None if the displayed one is exact."""
    body = _load_body(connection, _try_owner(execution))
    return None if body is None else unpack_record(body, ExactPatch)


def insert_exact_patches(connection: Connection, rows: Sequence[dict[str, Any]]) -> None:
    """Save exact patches; existing ones stay unchanged."""
    fact_rows.insert_new_rows(connection, private_bodies, rows)


def _load_body(connection: Connection, owner: str) -> bytes | None:
    query = select(private_bodies.c.body).where(private_bodies.c.owner == owner)
    body: bytes | None = connection.execute(query).scalar()
    return body


def _try_owner(execution: SubtaskExecution) -> str:
    return f"try/{execution.plan}/{execution.task}/{execution.number}"


class PlanSection(StoreSection):
    """The store's section for orchestrated plans."""

    def save_plan(self, plan: Orchestration) -> None:
        columns = {
            "id": plan.id,
            "at": plan.at,
            "state": "begun",
            "request": short_column_text(plan.request),
            "tasks": len(plan.tasks),
            "body": pack_record(plan),
        }
        self._write(
            lambda connection: fact_rows.append_fact(connection, schema.plans, ("id",), columns)
        )

    def save(
        self, results: Sequence[SubtaskResult], assessments: Sequence[SubtaskAssessment]
    ) -> None:
        """Save tries and verdicts in one transaction; an existing try stays unchanged."""
        split_executions = [split_execution(result.execution) for result in results]
        executions = [
            _execution_columns(replace(result, execution=redacted))
            for result, (redacted, _) in zip(results, split_executions, strict=True)
        ]
        exact_patches = [row for _, row in split_executions if row is not None]
        verdicts = [_task_columns(assessment) for assessment in assessments]

        def work(connection: Connection) -> None:
            fact_rows.insert_new_rows(connection, schema.executions, executions)
            insert_exact_patches(connection, exact_patches)
            if verdicts:
                connection.execute(insert(schema.plan_tasks), verdicts)

        self._write(work)

    def save_ending(self, plan: Orchestration, ending: OrchestrationResult) -> None:
        """Save a plan's result, and a row for every task that was not tried."""
        columns = {
            "id": plan.id,
            "at": ending.at,
            "state": "ended",
            "request": short_column_text(plan.request),
            "tasks": len(plan.tasks),
            "overall_pass": ending.passed,
            "summary": column_text(ending.summary),
            "attempt": ending.attempt,
            **_usage_columns(ending.usage),
            "duration": ending.seconds,
            "body": pack_record(ending),
        }
        untried = [
            _untried_columns(ending, task, reason) for task, reason in ending.not_begun.items()
        ]

        def work(connection: Connection) -> None:
            fact_rows.append_fact(connection, schema.plans, ("id",), columns)
            fact_rows.append_facts(connection, schema.plan_tasks, ("plan", "task"), untried)

        self._write(work)

    def list_plans(
        self, limit: int, among: Collection[str] | None = None
    ) -> list[OrchestrationRow]:
        """List plans, newest first, all or those in `among`."""
        table, tries = schema.plans, schema.executions
        start_query = select(table).where(table.c.state == "begun").order_by(table.c.number.desc())
        if among is not None:
            start_query = start_query.where(table.c.id.in_(among))
        names = [name for name in table.c.keys() if name != "body"]  # noqa: SIM118 - not a mapping

        def work(connection: Connection) -> tuple[Any, Any, Any, Any]:
            started = connection.execute(
                start_query.with_only_columns(table.c.id, *_shown_columns()).limit(limit)
            )
            rows = started.mappings().all()
            ids = [row["id"] for row in rows]
            end_rows = select(*(table.c[name] for name in names)).where(
                table.c.state == "ended", table.c.id.in_(ids)
            )
            counts = select(tries.c.plan, func.count().label("tries"), func.sum(tries.c.cost))
            counts = counts.where(tries.c.plan.in_(ids)).group_by(tries.c.plan)
            ended_rows = connection.execute(end_rows.order_by(table.c.number)).mappings().all()
            grades = load_grades(connection, {row["id"] for row in ended_rows})
            return rows, ended_rows, connection.execute(counts).all(), grades

        rows, end_rows, counts, grades = self._read(work)
        end_row_by_plan = {row["id"]: row for row in end_rows}
        try_totals = {plan: (tries, cost) for plan, tries, cost in counts}
        return [
            replace(
                _plan_row(
                    row, end_row_by_plan.get(row["id"]), try_totals.get(row["id"], (0, None))
                ),
                grade=grades.get(row["id"]),
            )
            for row in rows
        ]

    def count_plans(self) -> int:
        """Count all plans, ended or not."""
        query = select(func.count()).where(schema.plans.c.state == "begun")
        count: int = self._read(lambda connection: connection.execute(query).scalar()) or 0
        return count

    def load_grade(self, plan: str) -> PlanGrade | None:
        """Load the grade of a plan that has ended; None otherwise."""
        grades: dict[str, PlanGrade] = self._read(
            lambda connection: load_grades(connection, [plan])
        )
        return grades.get(plan)

    def load_trend(self, days: int) -> PlanTrend:
        """Load grades of plans and judges' verdicts on tries, by day."""
        return self._read(lambda connection: load_trend(connection, days))

    def load_totals(self) -> PlanTotals:
        """Load the totals of all plans that ended."""
        return self._read(load_totals)

    def running_plan_ids(self) -> frozenset[str]:
        """Return the ids of plans that are being carried out."""
        keys = [key.split("/") for key in self._read(fact_rows.list_claimed_jobs)]
        return frozenset(key[1] for key in keys if key[0] == "plan")

    def resolve_plan_id(self, start: str) -> str:
        """Return the id that equals, or is the only one to begin with, what a person typed."""
        table = schema.plans
        query = select(table.c.id).where(table.c.id >= start, table.c.id < start + "\U0010ffff")
        ids = self._read(
            lambda connection: list(connection.execute(query.distinct().limit(3)).scalars())
        )
        if not ids:
            raise BadInput(f"No plan begins with {start!r}: `closeloop list plans` lists them.")
        if len(ids) > 1 and start not in ids:
            raise BadInput(
                f"{start!r} is a prefix of several plans, {', '.join(ids)}: give more characters."
            )
        return start if start in ids else str(ids[0])

    def load_exact_story(self, plan: str) -> OrchestrationHistory:
        """Load a plan's history with exact patches: to continue it, never to display it."""
        history = self.load_story(plan)

        def with_exact_patch(subtask_try: SubtaskTry, connection: Connection) -> SubtaskTry:
            stored_patch = load_exact_patch(connection, subtask_try.execution)
            if stored_patch is None:
                return subtask_try
            execution = replace(
                subtask_try.execution, patch=stored_patch.patch, files=stored_patch.files
            )
            return replace(subtask_try, execution=execution)

        tries = self._read(
            lambda connection: tuple(
                with_exact_patch(subtask_try, connection) for subtask_try in history.tries
            )
        )
        return replace(history, tries=tries)

    def load_story(self, plan: str) -> OrchestrationHistory:
        """Load everything stored about a plan except traces, without secrets."""
        name = self.resolve_plan_id(plan)
        starts, ends = schema.plans.c, schema.plans.alias().c
        tries, verdicts = schema.executions.c, schema.plan_tasks.c
        queries = (
            select(starts.body).where(starts.id == name, starts.state == "begun"),
            select(ends.body)
            .where(ends.id == name, ends.state == "ended")
            .order_by(ends.number.desc())
            .limit(1),
            select(tries.body).where(tries.plan == name).order_by(tries.started, tries.number),
            select(verdicts.body)
            .where(verdicts.plan == name, verdicts["try"] > 0)
            .order_by(verdicts.number),
        )

        def work(connection: Connection) -> list[list[bytes]]:
            return [list(connection.execute(query).scalars()) for query in queries]

        start_bodies, end_bodies, execution_bodies, verdict_bodies = self._read(work)
        verdicts_by_try: dict[tuple[str, int], list[SubtaskAssessment]] = {}
        for verdict in (unpack_record(body, SubtaskAssessment) for body in verdict_bodies):
            verdicts_by_try.setdefault((verdict.task, verdict.number), []).append(verdict)
        executions = [unpack_record(body, SubtaskExecution) for body in execution_bodies]
        return OrchestrationHistory(
            plan=unpack_record(start_bodies[-1], Orchestration),
            tries=tuple(
                _make_try(execution, verdicts_by_try.get((execution.task, execution.number), []))
                for execution in executions
            ),
            ending=unpack_record(end_bodies[0], OrchestrationResult) if end_bodies else None,
        )

    def load_traces(self, plan: str) -> dict[tuple[str, int], Trace]:
        """Load the traces of a plan, by task and try."""
        table = schema.executions.c
        query = select(table.task, table["try"], table.trace).where(table.plan == plan)
        rows = self._read(lambda connection: connection.execute(query).all())
        return {(task, number): unpack_record(body, Trace) for task, number, body in rows if body}

    def load_exchanges(self, plan: str, task: str, number: int) -> Sequence[Exchange]:
        """Load the exchanges between a sub-agent and its model."""
        table = schema.executions.c
        query = select(table.exchanges).where(
            table.plan == plan, table.task == task, table["try"] == number
        )
        body = self._read(lambda connection: connection.execute(query).scalar())
        return () if body is None else unpack_exchanges(body)


def pack_exchanges(exchanges: Sequence[Exchange]) -> bytes | None:
    """Pack exchanges with each piece once: an agent resends most of the conversation each time."""
    return compress_content(encode_record(exchanges_to_rows("", exchanges))) if exchanges else None


def unpack_exchanges(body: bytes) -> Sequence[Exchange]:
    return LazyExchanges(msgspec.msgpack.decode(decompress_body(body), type=PackedExchanges))


def _make_try(execution: SubtaskExecution, verdicts: Sequence[SubtaskAssessment]) -> SubtaskTry:
    """Build a try with its newest verdict; the usage of earlier verdicts is added up."""
    if not verdicts:
        return SubtaskTry(execution=execution)
    usage_by_evaluation = {
        verdict.evaluation.id: verdict.evaluation.usage
        for verdict in verdicts
        if verdict.evaluation
    }
    last = verdicts[-1].evaluation
    before = sum_usage(
        usage for name, usage in usage_by_evaluation.items() if last is None or name != last.id
    )
    return SubtaskTry(execution=execution, assessment=verdicts[-1], judged_before=before)


def _shown_columns() -> Iterator[Any]:
    return (schema.plans.c[name] for name in ("at", "request", "tasks"))


def _plan_row(
    start_row: Any, end_row: Any, try_totals: tuple[int, float | None]
) -> OrchestrationRow:
    tries, cost = try_totals
    ending_values = {} if end_row is None else end_row
    return OrchestrationRow(
        id=start_row["id"],
        at=start_row["at"],
        request=start_row["request"],
        tasks=start_row["tasks"],
        ended=end_row is not None,
        passed=ending_values.get("overall_pass"),
        summary=ending_values.get("summary"),
        seconds=ending_values.get("duration"),
        tries=tries,
        cost=ending_values.get("cost") if end_row is not None else cost,
    )


def _execution_columns(result: SubtaskResult) -> dict[str, Any]:
    execution = result.execution
    return {
        "plan": execution.plan,
        "task": column_text(execution.task),
        "try": execution.number,
        "agent": short_column_text(execution.agent),
        "model": short_column_text(execution.model),
        "exit": execution.exit,
        "started": execution.started,
        "duration": column_number(execution.seconds),
        **_usage_columns(execution.usage),
        "body": pack_record(execution),
        "trace": None if result.trace is None else pack_record(result.trace),
        "exchanges": result.exchanges,
    }


def _task_columns(assessment: SubtaskAssessment) -> dict[str, Any]:
    evaluation = assessment.evaluation
    texts = [issue.text for issue in assessment.issues] or (
        [assessment.why] if assessment.why else []
    )
    return {
        "plan": assessment.plan,
        "task": column_text(assessment.task),
        "try": assessment.number,
        "at": assessment.at,
        "pass": assessment.passed,
        "score": assessment.score,
        "completeness": evaluation and evaluation.criterion_score("completeness"),
        "quality": evaluation and evaluation.criterion_score("quality"),
        "relevance": evaluation and evaluation.criterion_score("relevance"),
        "issues": _encode_texts(texts),
        "ignored_feedback": assessment.ignored,
        "evaluation": evaluation and evaluation.id,
        **_usage_columns(evaluation.usage if evaluation else Usage()),
        "duration": evaluation and evaluation.seconds,
        "body": pack_record(assessment),
    }


def _untried_columns(ending: OrchestrationResult, task: str, reason: str) -> dict[str, Any]:
    assessment = SubtaskAssessment(
        plan=ending.plan, task=task, number=0, passed=None, why=f"not begun: {reason}", at=ending.at
    )
    return _task_columns(assessment)


def _usage_columns(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": column_integer(count_prompt_tokens(usage)),
        "completion_tokens": column_integer(usage.output_tokens),
        "cost": column_number(usage.cost),
    }


def _encode_texts(texts: Sequence[str]) -> str:
    """Encode texts as JSON for a column."""
    return msgspec.json.encode([column_text(text) for text in texts]).decode()
