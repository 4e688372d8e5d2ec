"""The ledger of scores: what is said of attempts, added and never changed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from statistics import fmean
from typing import Any, get_args

from sqlalchemy import Connection, exists, func, insert, select

from closeloop.records.errors import BadInput
from closeloop.records.evaluation import Evaluation
from closeloop.records.finding import FailureMode
from closeloop.records.record import Record, Time
from closeloop.records.score import SCORE_SOURCES, Score, ScoreSource
from closeloop.records.team_rules import HumanReview
from closeloop.store import fact_rows
from closeloop.store.attempt_rows import column_number, column_text, short_column_text
from closeloop.store.fact_rows import StoreSection
from closeloop.store.metrics_section import AttemptColumns, AttemptSpan, load_columns, select_within
from closeloop.store.review_tables import pulls
from closeloop.store.schema import attempts, scores
from closeloop.text.wording import name_score

COMPARED_FIELDS = ("value", "label", "version", "note")
DEGREE_VALUES = {"yes": 1.0, "partly": 0.5, "no": 0.0}


class ScoreCount(Record):
    """How much the ledger holds under one name, from one source."""

    name: str
    source: ScoreSource
    attempts: int
    last: Time


class ScoreSection(StoreSection):
    """The part of an open store that is the ledger of scores."""

    def add_scores(self, given: Sequence[Score]) -> int:
        """All of them or, where an attempt is not known, none; how many say something new."""

        def work(on: Connection) -> int:
            require_attempts(on, {one.attempt for one in given})
            return insert_scores(on, given)

        added: int = self._write(work)
        return added

    def list_scores(self, attempt: str) -> list[Score]:
        """The scores of one attempt that count: the last of each name, source and person."""

        def work(on: Connection) -> list[Score]:
            owner = fact_rows.resolve_attempt_id(on, attempt)
            return [*_newest_scores(on, [owner]).values()]

        found: list[Score] = self._read(work)
        return sorted(found, key=order_scores)

    def list_sources(self) -> dict[str, list[ScoreSource]]:
        """By name, who gave it, those first whose word is taken first."""
        found: dict[str, list[ScoreSource]] = self._read(_list_sources)
        return found

    def count_scores(self, counted: Collection[str]) -> list[ScoreCount]:
        """By name and source, how many of these attempts have a score; when the last one came."""

        def work(on: Connection) -> list[ScoreCount]:
            others = sorted({*on.execute(select(attempts.c.id)).scalars()} - {*counted})
            found = (
                _count_source(on, name, source, others)
                for name, sources in _list_sources(on).items()
                for source in sorted(sources)
            )
            return [one for one in found if one.attempts]

        summary: list[ScoreCount] = self._read(work)
        return summary

    def load_merging_shares(self, span: AttemptSpan) -> dict[str, float]:
        """By attempt that people scored: the share who would merge it, by their last word."""
        given = self.load_score_columns(span, "would-merge", "person")
        held = (given.held["who"].tolist(), given.held["value"].tolist())
        votes: dict[str, dict[str, float]] = {}
        for attempt, who, value in zip(given.attempts, *held, strict=True):
            votes.setdefault(attempt, {})[who] = value
        return {attempt: fmean(said.values()) for attempt, said in votes.items()}

    def load_score_columns(
        self,
        span: AttemptSpan,
        name: str,
        source: ScoreSource,
        *,
        labels: bool = False,
        version: str | None = None,
    ) -> AttemptColumns:
        """All of one name and source, the newest of an attempt last: values, or labels.

        Of one version of what computes it, where that is named.
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
        # As the index has them, so that nothing is sorted; of judges the newest of all counts.
        order = (scores.c.number,) if source == "judge" else (scores.c.attempt, scores.c.number)
        columns: AttemptColumns = self._read(lambda on: load_columns(on, query.order_by(*order)))
        return columns

    def list_attempts_scores(self, ids: Collection[str]) -> list[Score]:
        """The scores of these attempts that count, in the order they were given."""
        found: list[Score] = self._read(lambda on: [*_newest_scores(on, sorted(ids)).values()])
        return found

    def list_scored_attempts(self, name: str, version: str) -> set[str]:
        """The attempts of which this version of a scorer has said what it has to say."""
        query = select(scores.c.attempt).where(
            scores.c.name == name, scores.c.source == "code", scores.c.version == version
        )
        return set(self._read(lambda on: on.execute(query).scalars().all()))


def _list_sources(on: Connection) -> dict[str, list[ScoreSource]]:
    """By steps through the index, from each name to the next, whatever it holds of them."""
    table = scores.c
    names = select(func.min(table.name).label("name")).cte(recursive=True)
    following = select(func.min(table.name)).where(table.name > names.c.name).scalar_subquery()
    names = names.union_all(select(following).where(names.c.name.is_not(None)))
    is_given = (
        exists().where(table.name == names.c.name, table.source == one) for one in SCORE_SOURCES
    )
    query = select(names.c.name, *is_given).where(names.c.name.is_not(None))
    return {
        name: [one for one, given in zip(SCORE_SOURCES, by_source, strict=True) if given]
        for name, *by_source in on.execute(query)
    }


def _count_source(
    on: Connection, name: str, source: ScoreSource, others: Sequence[str]
) -> ScoreCount:
    """The attempts of one name and source, but for those of no number: they are few, as a rule."""
    table = scores.c
    own = (table.name == name, table.source == source)
    # In the index's own order: nothing is sorted, and nothing gathered.
    newest = select(func.max(table.number).label("last")).where(*own).group_by(table.attempt)
    last = newest.subquery().c.last
    count, number = on.execute(select(func.count(), func.max(last))).one()
    at = on.execute(select(table.at).where(table.number == number)).scalar_one()
    for part in fact_rows.split_values(others):
        other = select(func.count(table.attempt.distinct())).where(*own, table.attempt.in_(part))
        count -= on.execute(other).scalar_one()
    if source == "code":  # whose last word may be that it has no say
        silent = select(table.attempt).where(table.number.in_(select(last)))
        silent = silent.where(table.value.is_(None), table.label.is_(None))
        count -= len({*on.execute(silent).scalars()} - {*others})
    return ScoreCount(name=name, source=source, attempts=count, last=at)


def order_scores(one: Score) -> tuple[str, str, str]:
    """By name, source and person."""
    return one.name, one.source, one.by


def _find_stored(on: Connection, ids: Collection[str]) -> set[str]:
    """Those of some attempts that are stored."""
    known: set[str] = set()
    for part in fact_rows.split_values(sorted(ids)):
        known.update(on.execute(select(attempts.c.id).where(attempts.c.id.in_(part))).scalars())
    return known


def require_attempts(on: Connection, ids: Collection[str]) -> None:
    """BadInput where one of them is not stored."""
    if missing := sorted({*ids} - _find_stored(on, ids)):
        raise BadInput(
            f"There is no attempt {missing[0]!r}: `closeloop attempts` lists them. Nothing was "
            "written."
        )


def insert_scores(on: Connection, given: Iterable[Score]) -> int:
    """Add scores; who says the same again adds nothing."""
    columns = [_score_columns(one) for one in given]
    known = {
        key: tuple(getattr(one, name) for name in COMPARED_FIELDS)
        for key, one in _newest_scores(on, sorted({row["attempt"] for row in columns})).items()
    }
    rows = []
    for row in columns:
        key = (row["attempt"], row["name"], row["source"], row["who"])
        said = tuple(row[name] for name in COMPARED_FIELDS)
        if known.get(key) != said:
            known[key] = said
            rows.append(row)
    if rows:
        on.execute(insert(scores), rows)
    return len(rows)


def _newest_scores(on: Connection, ids: Sequence[str]) -> dict[tuple[str, ...], Score]:
    newest: dict[tuple[str, ...], Score] = {}
    for part in fact_rows.split_values(ids):
        query = select(scores).where(scores.c.attempt.in_(part)).order_by(scores.c.number)
        for row in on.execute(query).mappings():
            key = (row["attempt"], row["name"], row["source"], row["who"])
            fields = {name: row[name] for name in Score.__struct_fields__ if name != "by"}
            newest[key] = Score(**fields, by=row["who"])
    return newest


def _score_columns(one: Score) -> dict[str, Any]:
    return {
        "attempt": one.attempt,
        "name": one.name,
        "value": column_number(one.value),
        "label": short_column_text(one.label),
        "source": one.source,
        "version": one.version,
        "who": short_column_text(one.by),
        "at": one.at,
        "note": column_text(one.note),
    }


# What a review and an evaluation say, as scores.


def add_review_scores(on: Connection, review: HumanReview) -> None:
    """The answers of a finished review; those about a pull request count for its attempt."""
    if review.state != "done":
        return
    attempt = _find_reviewed_attempt(on, review.item)
    if attempt is not None:
        insert_scores(on, _scores_from_review(review, attempt))


def _find_reviewed_attempt(on: Connection, item: str) -> str | None:
    repo, mark, number = item.rpartition("#")
    query = select(attempts.c.id).where(attempts.c.id == item)
    if mark and number.isdecimal():
        query = select(pulls.c.attempt).where(pulls.c.repo == repo, pulls.c.pull == int(number))
    found: str | None = on.execute(query).scalar()
    return found


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


def add_evaluation_scores(on: Connection, made: Sequence[Evaluation]) -> None:
    """Each criterion, the score and the verdict; what the judge abstained from is no score."""
    stored = _find_stored(on, {one.attempt for one in made if one.attempt is not None})
    insert_scores(
        on,
        [score for one in made if one.attempt in stored for score in _scores_from_evaluation(one)],
    )


def _scores_from_evaluation(evaluation: Evaluation) -> Iterator[Score]:
    values: dict[str, float | None] = {
        "would-merge": None if evaluation.passed is None else float(evaluation.passed),
        "judge-score": evaluation.score,
        **{one.name: one.score for one in evaluation.criteria},
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
    """Failure modes that its checks ask after, as far as the worst answer shows each."""
    shown: dict[str, float] = {}
    for answer in evaluation.answers:
        if answer.mode is not None and answer.verdict is not None:
            name = name_score(answer.mode)
            shown[name] = max(shown.get(name, 0.0), 1 - DEGREE_VALUES[answer.verdict])
    return shown
