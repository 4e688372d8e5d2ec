"""What judges and people said of outputs, and what checks said of changes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import Any

from msgspec.structs import asdict
from sqlalchemy import Connection, func, insert, or_, select

from closeloop.records.calibration import Analysis, Calibration, HumanLabel, TraceAnswer
from closeloop.records.change import ChangeReport, ReportRow
from closeloop.records.errors import BadInput
from closeloop.records.evaluation import Evaluation, Evaluations, JudgeVersion, OutputPreference
from closeloop.records.finding import FailureMode
from closeloop.store import fact_rows
from closeloop.store import review_tables as tables
from closeloop.store.attempt_rows import column_text, join_modes, short_column_text
from closeloop.store.fact_rows import StoreSection
from closeloop.store.record_bodies import pack_record, unpack_record
from closeloop.store.schema import attempts, reports
from closeloop.store.score_section import add_evaluation_scores


class EvaluationSection(StoreSection):
    """The part of an open store that is about judges."""

    def save_evaluations(self, made: Evaluations) -> None:
        """All of a plan in one transaction; what is known already stays as it is."""
        judges = [_judge_columns(one) for one in made.judges]
        rows = [_evaluation_columns(one) for one in made.evaluations]

        def work(on: Connection) -> None:
            fact_rows.append_facts(on, tables.judges, ("id",), judges)
            fact_rows.insert_new_rows(on, tables.evaluations, rows)
            add_evaluation_scores(on, made.evaluations)

        self._write(work)

    def list_evaluations(
        self, *, attempt: str | None = None, judge: str | None = None
    ) -> list[Evaluation]:
        """Of an attempt, of a judge's version, or all; the newest first."""
        table = tables.evaluations
        query = select(table.c.body).order_by(table.c.number.desc())
        if judge is not None:
            query = query.where(table.c.judge == judge)

        def work(on: Connection) -> list[bytes]:
            chosen = query
            if attempt is not None:
                chosen = query.where(table.c.attempt == fact_rows.resolve_attempt_id(on, attempt))
            return list(on.execute(chosen).scalars())

        return [unpack_record(body, Evaluation) for body in self._read(work)]

    def load_evaluation(self, name: str) -> Evaluation | None:
        """One, by its id."""
        table = tables.evaluations
        return self._load_record(
            select(table.c.body).where(table.c.id == column_text(name)), Evaluation
        )

    def newest_verdicts(self, judge: str) -> list[tuple[str, Evaluation]]:
        """What one version said, by item: the attempt where there is one, else the evaluation."""
        newest: dict[str, Evaluation] = {}
        for evaluation in self.list_evaluations(judge=judge):
            newest.setdefault(evaluation.attempt or evaluation.id, evaluation)
        return list(newest.items())

    def save_preferences(self, made: Sequence[OutputPreference]) -> None:
        rows = [
            {
                "judge": one.judge,
                "task": column_text(one.task),
                "winner": one.winner,
                "flipped": one.flipped,
                "body": pack_record(one),
            }
            for one in made
        ]
        if rows:
            self._write(lambda on: on.execute(insert(tables.preferences), rows) and None)

    def list_preferences(self, judge: str) -> list[OutputPreference]:
        """Of a judge's version, the newest first."""
        table = tables.preferences
        query = select(table.c.body).where(table.c.judge == judge).order_by(table.c.number.desc())
        return self._load_records(query, OutputPreference)

    def list_judge_versions(self) -> list[JudgeVersion]:
        """All that ever judged, the newest first."""
        table = tables.judges
        query = select(table.c.body).order_by(table.c.number.desc())
        return list({one.id: one for one in self._load_records(query, JudgeVersion)}.values())

    def save_labels(self, labels: Sequence[HumanLabel]) -> None:
        """Add what people say; of one person and item the newest counts."""
        text_fields = ("item", "rubric", "person")
        rows = [
            {**asdict(label), **{name: column_text(getattr(label, name)) for name in text_fields}}
            for label in labels
        ]
        key = ("item", "rubric", "asked", "person", "golden")
        self._write(lambda on: fact_rows.append_facts(on, tables.labels, key, rows))

    def list_labels(self, rubric: str) -> list[HumanLabel]:
        """Those that count, of one rubric."""
        table = tables.labels
        key = (table.c.item, table.c.asked, table.c.person, table.c.golden)
        newest = select(func.max(table.c.number)).where(table.c.rubric == rubric).group_by(*key)
        query = select(*(table.c[name] for name in HumanLabel.__struct_fields__))
        query = query.where(table.c.number.in_(newest)).order_by(table.c.number)
        rows = self._read(lambda on: on.execute(query).mappings().all())
        return [HumanLabel(**row) for row in rows]

    def save_calibration(self, made: Calibration) -> None:
        columns = {
            "judge": made.judge.id,
            "rubric": made.judge.rubric,
            "at": made.at,
            "body": pack_record(made),
        }
        self._write(lambda on: on.execute(insert(tables.calibrations), columns) and None)

    def load_calibration(self, judge: str) -> Calibration | None:
        """The newest of a judge's version."""
        table = tables.calibrations
        query = select(table.c.body).where(table.c.judge == judge)
        return self._load_record(query.order_by(table.c.number.desc()).limit(1), Calibration)

    # Questions to traces

    def save_analysis(self, made: Analysis) -> None:
        """Add a question under its name; it replaces, from now on, an older one."""
        columns = {"name": column_text(made.name), "body": pack_record(made)}
        self._write(lambda on: fact_rows.append_fact(on, tables.analyses, ("name",), columns))

    def load_analyses(self) -> dict[str, Analysis]:
        """By name, those that count."""
        table = tables.analyses
        query = select(table.c.body).order_by(table.c.number)
        return {one.name: one for one in self._load_records(query, Analysis)}

    def save_answers(self, judge: str, made: Sequence[TraceAnswer]) -> None:
        """What one judge says of traces; the first answer stays."""
        rows = [
            {
                "judge": judge,
                "attempt": one.attempt,
                "verdict": one.verdict,
                "body": pack_record(one),
            }
            for one in made
        ]
        self._write(lambda on: fact_rows.insert_new_rows(on, tables.answers, rows))

    def positive_answers(self, attempt: str | None = None) -> dict[str, list[TraceAnswer]]:
        """Every yes of any judge, by attempt; of one, or of all."""
        table = tables.answers
        query = select(table.c.body).where(table.c.verdict == "yes").order_by(table.c.number)
        if attempt is not None:
            query = query.where(table.c.attempt == attempt)
        answers_by_attempt: dict[str, list[TraceAnswer]] = {}
        for answer in self._load_records(query, TraceAnswer):
            answers_by_attempt.setdefault(answer.attempt, []).append(answer)
        return answers_by_attempt

    def load_answers(self, judge: str) -> dict[str, TraceAnswer]:
        """By attempt."""
        table = tables.answers
        query = select(table.c.body).where(table.c.judge == judge)
        return {one.attempt: one for one in self._load_records(query, TraceAnswer)}


def _judge_columns(one: JudgeVersion) -> dict[str, Any]:
    return {
        "id": one.id,
        "rubric": column_text(one.rubric),
        "model": column_text(one.model),
        "body": pack_record(one),
    }


def _evaluation_columns(one: Evaluation) -> dict[str, Any]:
    return {
        "id": one.id,
        "at": one.at,
        "attempt": one.attempt,
        "task": column_text(one.task),
        "judge": one.judge,
        "passed": one.passed,
        "score": one.score,
        "completeness": one.criterion_score("completeness"),
        "quality": one.criterion_score("quality"),
        "relevance": one.criterion_score("relevance"),
        "same_family": one.same_family,
        "issues": len(one.issues),
        "seconds": one.seconds,
        "input_tokens": one.usage.input_tokens,
        "output_tokens": one.usage.output_tokens,
        "cost": one.usage.cost,
        "body": pack_record(one),
    }


# What `closeloop check` said of changes: every report as it was, the newest first.

_ROW_COLUMNS = [reports.c[name] for name in ReportRow.__struct_fields__]
MAX_LISTED_REASONS = 3


def _join_risk_reasons(report: ChangeReport) -> str | None:
    """The first reasons for the level of risk, as a list shows them."""
    reasons = report.risk.reasons[:MAX_LISTED_REASONS] if report.risk else ()
    return short_column_text("; ".join(reasons)) or None


class ReportSection(StoreSection):
    """The part of an open store that is about checks of changes."""

    def save_report(
        self,
        report: ChangeReport,
        at: datetime,
        *,
        repo: str | None = None,
        attempt: str | None = None,
        examined: Iterable[FailureMode] = (),
    ) -> int:
        """The number that it is kept under; `examined` are the failure modes it looked for."""
        columns = {
            "at": at,
            "repo": short_column_text(repo),
            "title": short_column_text(report.title),
            "base": short_column_text(report.change.base),
            "head": short_column_text(report.change.head),
            "attempt": attempt,
            "level": report.risk.level if report.risk else None,
            "why": _join_risk_reasons(report),
            "verdict": report.verdict,
            "findings": sum(one.silenced is None for one in report.findings),
            "modes": join_modes(
                dict.fromkeys(
                    (one.mode, "judge" if one.source == "judge" else "check")
                    for one in report.findings
                    if one.mode is not None and one.silenced is None
                )
            ),
            "examined": join_modes((mode, "check") for mode in examined),
            "body": pack_record(report),
        }

        def work(on: Connection) -> int:
            if attempt is not None and not fact_rows.attempt_exists(on, attempt):
                raise BadInput(f"No attempt {attempt!r} that a report could be about.")
            inserted = on.execute(insert(reports).returning(reports.c.number), columns)
            return int(inserted.scalar_one())

        number: int = self._write(work)
        return number

    def list_reports(
        self,
        limit: int,
        *,
        repo: str | None = None,
        attempt: str | None = None,
        head: str | None = None,
        without: Collection[str] = (),
    ) -> list[ReportRow]:
        """The newest first; `without` those about attempts at tasks with these digests."""
        query = select(*_ROW_COLUMNS).order_by(reports.c.number.desc()).limit(limit)
        if repo is not None:
            query = query.where(reports.c.repo == short_column_text(repo))
        if attempt is not None:
            query = query.where(reports.c.attempt == attempt)
        if head is not None:
            query = query.where(reports.c.head == short_column_text(head))
        if without:
            query = query.outerjoin(attempts, attempts.c.id == reports.c.attempt)
            task_digest = attempts.c.task_digest
            query = query.where(or_(task_digest.is_(None), task_digest.not_in(list(without))))
        rows = self._read(lambda on: on.execute(query).mappings().all())
        return [ReportRow(**row) for row in rows]

    def load_report(self, number: int) -> tuple[ReportRow, ChangeReport] | None:
        """What was said then, and its line in the list."""
        query = select(*_ROW_COLUMNS, reports.c.body).where(reports.c.number == number)
        row = self._read(lambda on: on.execute(query).mappings().first())
        if row is None:
            return None
        columns = dict(row)
        body = columns.pop("body")
        return ReportRow(**columns), unpack_record(body, ChangeReport)
