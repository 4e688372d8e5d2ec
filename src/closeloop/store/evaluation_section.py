"""Evaluations by judges, scores and labels by people, and reports of change checks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from math import fsum
from typing import Any, get_args

from msgspec.structs import asdict

from closeloop.records.change import ChangeReport, ReportRow
from closeloop.records.errors import BadInput
from closeloop.records.evaluation import (
    Analysis,
    Calibration,
    Evaluation,
    Evaluations,
    HumanLabel,
    JudgeVersion,
    OutputPreference,
    TraceAnswer,
)
from closeloop.records.finding import FailureMode
from closeloop.records.record import Record, Time
from closeloop.records.score import SCORE_SOURCES, Score, ScoreSource
from closeloop.records.team_rules import HumanReview
from closeloop.store import fact_rows, schema
from closeloop.store.attempt_rows import column_number, column_text, join_modes, short_column_text
from closeloop.store.engine import Connection
from closeloop.store.fact_rows import StoreSection
from closeloop.store.metrics_section import AttemptSpan, load_columns, select_within
from closeloop.store.packed_columns import AttemptColumns
from closeloop.store.record_bodies import pack_record, unpack_record
from closeloop.store.schema import attempts, pulls, reports, scores
from closeloop.store.sql_expressions import func, or_
from closeloop.store.sql_statements import exists, insert, select
from closeloop.text.wording import name_score

# The ledger of scores of attempts: append-only.


COMPARED_FIELDS = ("value", "label", "version", "note")
DEGREE_VALUES = {"yes": 1.0, "partly": 0.5, "no": 0.0}


class ScoreCount(Record):
    """How many attempts have a score of one name from one source."""

    name: str
    source: ScoreSource
    attempts: int
    last: Time


class ScoreSection(StoreSection):
    """The store's section for scores."""

    def add_scores(self, new_scores: Sequence[Score]) -> int:
        """Add all scores, or none if an attempt is unknown; return how many were new."""

        def work(connection: Connection) -> int:
            require_attempts(connection, {score.attempt for score in new_scores})
            return insert_scores(connection, new_scores)

        return self._write(work)

    def list_scores(self, attempt: str) -> list[Score]:
        """List the scores of one attempt that count: the last of each name, source and person."""

        def work(connection: Connection) -> list[Score]:
            owner = fact_rows.resolve_attempt_id(connection, attempt)
            return [*_newest_scores(connection, [owner]).values()]

        newest_scores: list[Score] = self._read(work)
        return sorted(newest_scores, key=order_scores)

    def list_sources(self) -> dict[str, list[ScoreSource]]:
        """Return the sources of each score name, in order of precedence."""
        return self._read(_list_sources)

    def count_scores(self, attempt_ids: Collection[str]) -> list[ScoreCount]:
        """Count the given attempts with a score, by name and source, with the time of the last."""

        def work(connection: Connection) -> list[ScoreCount]:
            excluded_ids = sorted(
                {*connection.execute(select(attempts.c.id)).scalars()} - {*attempt_ids}
            )
            counts = (
                _count_source(connection, name, source, excluded_ids)
                for name, sources in _list_sources(connection).items()
                for source in sorted(sources)
            )
            return [count for count in counts if count.attempts]

        return self._read(work)

    def load_merging_shares(self, span: AttemptSpan) -> dict[str, float]:
        """Return, by attempt, the share of people who would merge it, by their last score."""
        columns = self.load_score_columns(span, "would-merge", "person")
        people_and_values = (columns.columns["who"].tolist(), columns.columns["value"].tolist())
        votes: dict[str, dict[str, float]] = {}
        for attempt, person, value in zip(columns.attempts, *people_and_values, strict=True):
            if 0 <= value <= 1:
                votes.setdefault(attempt, {})[person] = value
        return {attempt: fsum(values.values()) / len(values) for attempt, values in votes.items()}

    def load_score_columns(
        self,
        span: AttemptSpan,
        name: str,
        source: ScoreSource,
        *,
        labels: bool = False,
        version: str | None = None,
    ) -> AttemptColumns:
        """Load the values, or labels, of one name and source; the newest of an attempt is last.

        `version` limits them to one version of the scorer.
        """
        fields = (
            "label" if labels else "value",
            "who",
            *(("version",) if source == "judge" else ()),
        )
        query = select_within(span, scores, fields)
        query = query.where(scores.c.name == name, scores.c.source == source)
        if version is not None:
            query = query.where(scores.c.version == version)
        # In the order of the index, so that nothing is sorted; only the newest evaluation counts.
        order = (scores.c.number,) if source == "judge" else (scores.c.attempt, scores.c.number)
        return self._read(lambda connection: load_columns(connection, query.order_by(*order)))

    def list_attempts_scores(self, ids: Collection[str]) -> list[Score]:
        """List the scores of these attempts that count, in the order they were added."""
        return self._read(lambda connection: [*_newest_scores(connection, sorted(ids)).values()])

    def list_scored_attempts(self, name: str, version: str) -> set[str]:
        """Return the attempts that this version of a scorer has scored."""
        query = select(scores.c.attempt).where(
            scores.c.name == name, scores.c.source == "code", scores.c.version == version
        )
        return set(self._read(lambda connection: connection.execute(query).scalars().all()))


def _list_sources(connection: Connection) -> dict[str, list[ScoreSource]]:
    """Return the sources by name, stepping through the index from each name to the next."""
    table = scores.c
    names = select(func.min(table.name).label("name")).cte(recursive=True)
    following = select(func.min(table.name)).where(table.name > names.c.name).scalar_subquery()
    names = names.union_all(select(following).where(names.c.name.is_not(None)))
    has_source = (
        exists().where(table.name == names.c.name, table.source == source)
        for source in SCORE_SOURCES
    )
    query = select(names.c.name, *has_source).where(names.c.name.is_not(None))
    return {
        name: [source for source, is_used in zip(SCORE_SOURCES, by_source, strict=True) if is_used]
        for name, *by_source in connection.execute(query)
    }


def _count_source(
    connection: Connection, name: str, source: ScoreSource, excluded_ids: Sequence[str]
) -> ScoreCount:
    """Count the attempts with a score of one name and source, without the few `excluded_ids`."""
    table = scores.c
    conditions = (table.name == name, table.source == source)
    # In the order of the index: nothing is sorted or collected.
    newest = select(func.max(table.number).label("last")).where(*conditions).group_by(table.attempt)
    last = newest.subquery().c.last
    count, number = connection.execute(select(func.count(), func.max(last))).one()
    last_time = connection.execute(select(table.at).where(table.number == number)).scalar_one()
    for part in fact_rows.split_values(excluded_ids):
        excluded_query = select(func.count(table.attempt.distinct())).where(
            *conditions, table.attempt.in_(part)
        )
        count -= connection.execute(excluded_query).scalar_one()
    if source == "code":  # whose latest score may be "no score"
        silent = select(table.attempt).where(table.number.in_(select(last)))
        silent = silent.where(table.value.is_(None), table.label.is_(None))
        count -= len({*connection.execute(silent).scalars()} - {*excluded_ids})
    return ScoreCount(name=name, source=source, attempts=count, last=last_time)


def order_scores(score: Score) -> tuple[str, str, str]:
    """Sort key: name, source and person."""
    return score.name, score.source, score.by


def _find_stored(connection: Connection, ids: Collection[str]) -> set[str]:
    """Return those of the given attempts that are stored."""
    stored_ids: set[str] = set()
    for part in fact_rows.split_values(sorted(ids)):
        stored_ids.update(
            connection.execute(select(attempts.c.id).where(attempts.c.id.in_(part))).scalars()
        )
    return stored_ids


def require_attempts(connection: Connection, ids: Collection[str]) -> None:
    """Raise BadInput if one of these attempts is not stored."""
    if missing := sorted({*ids} - _find_stored(connection, ids)):
        raise BadInput(
            f"No attempt {missing[0]!r}: `closeloop list attempts` lists them. Nothing was saved."
        )


def insert_scores(connection: Connection, new_scores: Iterable[Score]) -> int:
    """Add scores that differ from the last by the same source and person; return how many."""
    columns = [_score_columns(score) for score in new_scores]
    last_values = {
        key: tuple(getattr(score, name) for name in COMPARED_FIELDS)
        for key, score in _newest_scores(
            connection, sorted({row["attempt"] for row in columns})
        ).items()
    }
    rows = []
    for row in columns:
        key = (row["attempt"], row["name"], row["source"], row["who"])
        values = tuple(row[name] for name in COMPARED_FIELDS)
        if last_values.get(key) != values:
            last_values[key] = values
            rows.append(row)
    if rows:
        connection.execute(insert(scores), rows)
    return len(rows)


def _newest_scores(connection: Connection, ids: Sequence[str]) -> dict[tuple[str, ...], Score]:
    newest: dict[tuple[str, ...], Score] = {}
    for part in fact_rows.split_values(ids):
        query = select(scores).where(scores.c.attempt.in_(part)).order_by(scores.c.number)
        for row in connection.execute(query).mappings():
            key = (row["attempt"], row["name"], row["source"], row["who"])
            fields = {name: row[name] for name in Score.__struct_fields__ if name != "by"}
            newest[key] = Score(**fields, by=row["who"])
    return newest


def _score_columns(score: Score) -> dict[str, Any]:
    return {
        "attempt": score.attempt,
        "name": score.name,
        "value": column_number(score.value),
        "label": short_column_text(score.label),
        "source": score.source,
        "version": score.version,
        "who": short_column_text(score.by),
        "at": score.at,
        "note": column_text(score.note),
    }


# Reviews and evaluations as scores.


def add_review_scores(connection: Connection, review: HumanReview) -> None:
    """Add the answers of a finished review as scores; a pull request's go to its attempt."""
    if review.state != "done":
        return
    attempt = _find_reviewed_attempt(connection, review.item)
    if attempt is not None:
        insert_scores(connection, _scores_from_review(review, attempt))


def _find_reviewed_attempt(connection: Connection, item: str) -> str | None:
    repo, separator, number = item.rpartition("#")
    query = select(attempts.c.id).where(attempts.c.id == item)
    if separator and number.isdecimal():
        query = select(pulls.c.attempt).where(pulls.c.repo == repo, pulls.c.pull == int(number))
    attempt_id: str | None = connection.execute(query).scalar()
    return attempt_id


def _scores_from_review(review: HumanReview, attempt: str) -> Iterator[Score]:
    values: dict[str, float | bool | None] = {
        "would-merge": review.merge,
        "scope-contained": review.contained,
        "outside-scope-right": DEGREE_VALUES.get(review.outside or "none"),
        "approach": review.approach,
        **{name: DEGREE_VALUES[degree] for name, degree in review.dimensions.items()},
        **{name: DEGREE_VALUES[degree] for name, degree in review.answers.items()},
        **{
            name_score(mode): None if review.tags is None else mode in review.tags
            for mode in get_args(FailureMode)
        },
        "review-seconds": review.seconds,
    }
    for name, value in values.items():
        if value is not None:
            yield Score(
                attempt=attempt,
                name=name,
                value=float(value),
                source="person",
                by=review.reviewer,
                at=review.at,
                note=review.notes if name == "would-merge" else "",
            )


def add_evaluation_scores(connection: Connection, evaluations: Sequence[Evaluation]) -> None:
    """Add each criterion, the score and the verdict as scores; an abstention adds none."""
    stored_ids = _find_stored(
        connection,
        {evaluation.attempt for evaluation in evaluations if evaluation.attempt is not None},
    )
    insert_scores(
        connection,
        [
            score
            for evaluation in evaluations
            if evaluation.attempt in stored_ids
            for score in _scores_from_evaluation(evaluation)
        ],
    )


def _scores_from_evaluation(evaluation: Evaluation) -> Iterator[Score]:
    values: dict[str, float | None] = {
        "would-merge": None if evaluation.passed is None else float(evaluation.passed),
        "judge-score": evaluation.score,
        **{criterion.name: criterion.score for criterion in evaluation.criteria},
        **_modes_from_answers(evaluation),
    }
    for name, value in values.items():
        if value is not None:
            yield Score(
                attempt=evaluation.attempt or "",
                name=name,
                value=value,
                source="judge",
                version=evaluation.judge,
                by=evaluation.judge,
                at=evaluation.at or datetime.now(UTC),
            )


def _modes_from_answers(evaluation: Evaluation) -> dict[str, float]:
    """Return how far answers show each failure mode they ask about, 0 to 1; the worst counts."""
    degree_by_name: dict[str, float] = {}
    for answer in evaluation.answers:
        if answer.mode is not None and answer.verdict is not None:
            name = name_score(answer.mode)
            degree_by_name[name] = max(
                degree_by_name.get(name, 0.0), 1 - DEGREE_VALUES[answer.verdict]
            )
    return degree_by_name


class EvaluationSection(StoreSection):
    """The store's section for judges."""

    def save_evaluations(self, batch: Evaluations) -> None:
        """Save all of a plan's evaluations in one transaction; existing ones stay unchanged."""
        judges = [_judge_columns(judge) for judge in batch.judges]
        rows = [_evaluation_columns(evaluation) for evaluation in batch.evaluations]

        def work(connection: Connection) -> None:
            fact_rows.append_facts(connection, schema.judges, ("id",), judges)
            fact_rows.insert_new_rows(connection, schema.evaluations, rows)
            add_evaluation_scores(connection, batch.evaluations)

        self._write(work)

    def list_evaluations(
        self, *, attempt: str | None = None, judge: str | None = None
    ) -> list[Evaluation]:
        """List evaluations of an attempt, of a judge version, or all; newest first."""
        table = schema.evaluations
        query = select(table.c.body).order_by(table.c.number.desc())
        if judge is not None:
            query = query.where(table.c.judge == judge)

        def work(connection: Connection) -> list[bytes]:
            attempt_query = query
            if attempt is not None:
                attempt_query = query.where(
                    table.c.attempt == fact_rows.resolve_attempt_id(connection, attempt)
                )
            return list(connection.execute(attempt_query).scalars())

        return [unpack_record(body, Evaluation) for body in self._read(work)]

    def load_evaluation(self, name: str) -> Evaluation | None:
        """Load an evaluation by its id."""
        table = schema.evaluations
        return self._load_record(
            select(table.c.body).where(table.c.id == column_text(name)), Evaluation
        )

    def newest_verdicts(self, judge: str) -> list[tuple[str, Evaluation]]:
        """Return a judge version's newest evaluations, by attempt id, else by evaluation id."""
        newest: dict[str, Evaluation] = {}
        for evaluation in self.list_evaluations(judge=judge):
            newest.setdefault(evaluation.attempt or evaluation.id, evaluation)
        return list(newest.items())

    def save_preferences(self, preferences: Sequence[OutputPreference]) -> None:
        rows = [
            {
                "judge": preference.judge,
                "task": column_text(preference.task),
                "winner": preference.winner,
                "flipped": preference.flipped,
                "body": pack_record(preference),
            }
            for preference in preferences
        ]
        if rows:
            self._write(
                lambda connection: connection.execute(insert(schema.preferences), rows) and None
            )

    def list_preferences(self, judge: str) -> list[OutputPreference]:
        """List the preferences of a judge version, newest first."""
        table = schema.preferences
        query = select(table.c.body).where(table.c.judge == judge).order_by(table.c.number.desc())
        return self._load_records(query, OutputPreference)

    def list_judge_versions(self) -> list[JudgeVersion]:
        """List all judge versions, newest first."""
        table = schema.judges
        query = select(table.c.body).order_by(table.c.number.desc())
        return list(
            {record.id: record for record in self._load_records(query, JudgeVersion)}.values()
        )

    def save_labels(self, labels: Sequence[HumanLabel]) -> None:
        """Add labels by people; the newest of a person and item counts."""
        text_fields = ("item", "rubric", "person")
        rows = [
            {**asdict(label), **{name: column_text(getattr(label, name)) for name in text_fields}}
            for label in labels
        ]
        key = ("item", "rubric", "asked", "person", "golden")
        self._write(lambda connection: fact_rows.append_facts(connection, schema.labels, key, rows))

    def list_labels(self, rubric: str) -> list[HumanLabel]:
        """List the labels of one rubric that count."""
        table = schema.labels
        key = (table.c.item, table.c.asked, table.c.person, table.c.golden)
        newest = select(func.max(table.c.number)).where(table.c.rubric == rubric).group_by(*key)
        query = select(*(table.c[name] for name in HumanLabel.__struct_fields__))
        query = query.where(table.c.number.in_(newest)).order_by(table.c.number)
        rows = self._read(lambda connection: connection.execute(query).mappings().all())
        return [HumanLabel(**row) for row in rows]

    def save_calibration(self, calibration: Calibration) -> None:
        columns = {
            "judge": calibration.judge.id,
            "rubric": calibration.judge.rubric,
            "at": calibration.at,
            "body": pack_record(calibration),
        }
        self._write(
            lambda connection: connection.execute(insert(schema.calibrations), columns) and None
        )

    def load_calibration(self, judge: str) -> Calibration | None:
        """Load the newest calibration of a judge version."""
        table = schema.calibrations
        query = select(table.c.body).where(table.c.judge == judge)
        return self._load_record(query.order_by(table.c.number.desc()).limit(1), Calibration)

    # Questions about traces

    def save_analysis(self, analysis: Analysis) -> None:
        """Save a question under its name; it replaces an earlier one."""
        columns = {"name": column_text(analysis.name), "body": pack_record(analysis)}
        self._write(
            lambda connection: fact_rows.append_fact(
                connection, schema.analyses, ("name",), columns
            )
        )

    def load_analyses(self) -> dict[str, Analysis]:
        """Load the current questions, by name."""
        table = schema.analyses
        query = select(table.c.body).order_by(table.c.number)
        return {record.name: record for record in self._load_records(query, Analysis)}

    def save_answers(self, judge: str, answers: Sequence[TraceAnswer]) -> None:
        """Save one judge's answers about traces; the first answer about a trace stays."""
        rows = [
            {
                "judge": judge,
                "attempt": answer.attempt,
                "verdict": answer.verdict,
                "body": pack_record(answer),
            }
            for answer in answers
        ]
        self._write(lambda connection: fact_rows.insert_new_rows(connection, schema.answers, rows))

    def positive_answers(self, attempt: str | None = None) -> dict[str, list[TraceAnswer]]:
        """Return every "yes" of any judge, by attempt; for one attempt or all."""
        table = schema.answers
        query = select(table.c.body).where(table.c.verdict == "yes").order_by(table.c.number)
        if attempt is not None:
            query = query.where(table.c.attempt == attempt)
        answers_by_attempt: dict[str, list[TraceAnswer]] = {}
        for answer in self._load_records(query, TraceAnswer):
            answers_by_attempt.setdefault(answer.attempt, []).append(answer)
        return answers_by_attempt

    def load_answers(self, judge: str) -> dict[str, TraceAnswer]:
        """Load the answers of one judge, by attempt."""
        table = schema.answers
        query = select(table.c.body).where(table.c.judge == judge)
        return {record.attempt: record for record in self._load_records(query, TraceAnswer)}


def _judge_columns(judge: JudgeVersion) -> dict[str, Any]:
    return {
        "id": judge.id,
        "rubric": column_text(judge.rubric),
        "model": column_text(judge.model),
        "body": pack_record(judge),
    }


def _evaluation_columns(evaluation: Evaluation) -> dict[str, Any]:
    return {
        "id": evaluation.id,
        "at": evaluation.at,
        "attempt": evaluation.attempt,
        "task": column_text(evaluation.task),
        "judge": evaluation.judge,
        "passed": evaluation.passed,
        "score": evaluation.score,
        "completeness": evaluation.criterion_score("completeness"),
        "quality": evaluation.criterion_score("quality"),
        "relevance": evaluation.criterion_score("relevance"),
        "same_family": evaluation.same_family,
        "issues": len(evaluation.issues),
        "seconds": evaluation.seconds,
        "input_tokens": evaluation.usage.input_tokens,
        "output_tokens": evaluation.usage.output_tokens,
        "cost": evaluation.usage.cost,
        "body": pack_record(evaluation),
    }


# The reports of `closeloop check` on changes, unmodified, newest first.

_ROW_COLUMNS = [reports.c[name] for name in ReportRow.__struct_fields__]
MAX_LISTED_REASONS = 3


def _join_risk_reasons(report: ChangeReport) -> str | None:
    """Join the first reasons for the risk level, for a list."""
    reasons = report.risk.reasons[:MAX_LISTED_REASONS] if report.risk else ()
    return short_column_text("; ".join(reasons)) or None


class ReportSection(StoreSection):
    """The store's section for reports of change checks."""

    def save_report(
        self,
        report: ChangeReport,
        saved_at: datetime,
        *,
        repo: str | None = None,
        attempt: str | None = None,
        examined: Iterable[FailureMode] = (),
    ) -> int:
        """Save a report and return its number; `examined` are the failure modes it looked for."""
        columns = {
            "at": saved_at,
            "repo": short_column_text(repo),
            "title": short_column_text(report.title),
            "base": short_column_text(report.change.base),
            "head": short_column_text(report.change.head),
            "attempt": attempt,
            "level": report.risk.level if report.risk else None,
            "why": _join_risk_reasons(report),
            "verdict": report.verdict,
            "findings": sum(finding.silenced is None for finding in report.findings),
            "modes": join_modes(
                dict.fromkeys(
                    (finding.mode, "judge" if finding.source == "judge" else "check")
                    for finding in report.findings
                    if finding.mode is not None and finding.silenced is None
                )
            ),
            "examined": join_modes((mode, "check") for mode in examined),
            "body": pack_record(report),
        }

        def work(connection: Connection) -> int:
            if attempt is not None and not fact_rows.attempt_exists(connection, attempt):
                raise BadInput(f"No attempt {attempt!r} for this report.")
            inserted = connection.execute(insert(reports).returning(reports.c.number), columns)
            return int(inserted.scalar_one())

        return self._write(work)

    def list_reports(
        self,
        limit: int,
        *,
        repo: str | None = None,
        attempt: str | None = None,
        head: str | None = None,
        without: Collection[str] = (),
    ) -> list[ReportRow]:
        """List reports, newest first; `without` excludes attempts at tasks with these digests."""
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
        rows = self._read(lambda connection: connection.execute(query).mappings().all())
        return [ReportRow(**row) for row in rows]

    def load_report(self, number: int) -> tuple[ReportRow, ChangeReport] | None:
        """Load a report and its row in the list; None if there is none."""
        query = select(*_ROW_COLUMNS, reports.c.body).where(reports.c.number == number)
        row = self._read(lambda connection: connection.execute(query).mappings().first())
        if row is None:
            return None
        columns = dict(row)
        body = columns.pop("body")
        return ReportRow(**columns), unpack_record(body, ChangeReport)
