"""The columns of an attempt: lists and pages read these and never decode a body."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from typing import Any, TypedDict

from closeloop.records.attempt import Attempt, AttemptRow, Grade, is_failure_fixed
from closeloop.records.change import Change
from closeloop.records.task import find_replayed_attempt
from closeloop.records.trace import Trace
from closeloop.store.engine import Connection
from closeloop.store.schema import attempts, grades, sessions, variants
from closeloop.store.sql_expressions import SqlExpression, func
from closeloop.store.sql_statements import Select, select
from closeloop.text.patches import sum_line_counts
from closeloop.text.search_text import describe_attempt

OWN_KEY_CHARACTERS = 32
"""Length of the part of a session's key that all its copies share."""
COPY_MARKS = {None: "", "exported": "x", "printed": "y"}
"""Mark of a copy in its key, after the shared part: after all digits, the better copy first."""
_MAX_CHARACTERS = 500
_SMALLEST, _BIGGEST = -(2**63), 2**63 - 1


_JOINED_FIELDS = set(AttemptRow.__struct_fields__) - set(attempts.c.keys())
_GRADE_FIELDS = _JOINED_FIELDS & set(grades.c.keys())


def attempt_columns(
    attempt: Attempt, trace: Trace | None, change: Change | None, title: str | None = None
) -> dict[str, Any]:
    """Return an attempt's row for `attempts`; pass a title if it does not follow from the rest."""
    usage = attempt.usage
    started, ended = attempt.started, attempt.ended
    lines_added, lines_removed = sum_line_counts(change.files) if change else (None, None)
    title, detail = describe_attempt(attempt, trace, title)
    return {
        "id": attempt.id,
        "origin": attempt.origin,
        "title": short_column_text(title),
        "detail": short_column_text(detail),
        "task": attempt.task,
        "task_digest": attempt.task_digest,
        "variant": attempt.variant,
        "experiment": attempt.experiment,
        "number": attempt.number,
        "retry": attempt.retry,
        "parent": attempt.parent,
        "exit": attempt.exit,
        "cause": short_column_text(attempt.cause),
        "started": started,
        "ended": ended,
        # A single recorded time is no duration.
        "seconds": (ended - started).total_seconds() or None if started and ended else None,
        "input_tokens": column_integer(usage.input_tokens),
        "output_tokens": column_integer(usage.output_tokens),
        "cache_read_tokens": column_integer(usage.cache_read_tokens),
        "cache_write_tokens": column_integer(usage.cache_write_tokens),
        "cost": column_number(usage.cost),
        "lanes": len(trace.lanes) if trace else None,
        "turns": sum(len(lane.turns) for lane in trace.lanes) if trace else None,
        "events": len(trace.events) if trace else None,
        "files_changed": len(change.files) if change else None,
        "lines_added": column_integer(lines_added),
        "lines_removed": column_integer(lines_removed),
        "user": short_column_text(attempt.user),
    }


def grade_columns(grade: Grade) -> dict[str, Any]:
    """Return a grade's columns in `grades`."""
    outcome = grade.outcome
    return {
        "grading": grade.grading,
        "version": grade.version,
        "outcome": outcome.result,
        "outcome_cause": short_column_text(outcome.cause),
        "reason": short_column_text(outcome.reasons[0]) if outcome.reasons else None,
        "broken": len(grade.broken),
        "out_of_scope": len(grade.out_of_scope),
        "asked": grade.asked,
        "fixed": is_failure_fixed(grade),
        "evidence": grade.evidence,
    }


def grade_score_columns(grade: Grade) -> dict[str, float | None]:
    """Return columns that only metrics use: how the change compares with the reference."""
    return {
        "files_precision": grade.files_precision,
        "files_recall": grade.files_recall,
        "similarity": grade.similarity,
    }


def make_attempt_row(
    attempt: Attempt, trace: Trace | None, change: Change | None, grade: Grade | None
) -> AttemptRow:
    """Build the row that the store will list for this attempt, without the variant's name."""
    return row_from_columns(
        attempt_columns(attempt, trace, change), grade_columns(grade) if grade else None
    )


def row_from_columns(columns: dict[str, Any], graded: dict[str, Any] | None) -> AttemptRow:
    """Build an attempt's row from its columns and those of its grade."""
    if graded is None:
        return AttemptRow(**columns)
    return AttemptRow(**columns, **{name: graded[name] for name in _GRADE_FIELDS})


class AttemptQuery(TypedDict, total=False):
    """Which attempts to list; None matches any. Only the newest version of a session counts."""

    origin: str | None
    task: str | None
    task_digests: Collection[str] | None
    variants: Collection[str] | None
    """Digests of variants."""
    variant_name: str | None
    experiment: str | None
    gradings: Collection[str] | None
    """Use only grades by these gradings; does not filter attempts."""
    without_tasks: Collection[str]
    """Digests of tasks whose attempts are excluded."""
    outcome: str | None
    """Result of the grade; an attempt without a grade counts as `unscored`."""
    recorded: bool
    """Exclude pull requests without a recording."""
    limit: int | None


def list_attempt_rows(connection: Connection, filters: AttemptQuery) -> list[AttemptRow]:
    """List attempts, latest start first, each with the grade that counts."""
    variants_by_digest = _load_variants(connection)
    query = select_counted_attempts(filters.get("gradings"))
    if (origin := filters.get("origin")) is not None:
        query = query.where(attempts.c.origin == origin)
    if (name := filters.get("variant_name")) is not None:
        query = query.where(
            attempts.c.variant.in_(
                [key for key in variants_by_digest if variants_by_digest[key].name == name]
            )
        )
    if (outcome := filters.get("outcome")) is not None:
        query = query.where(outcome_condition(outcome))
    if (task := filters.get("task")) is not None:
        query = query.where(attempts.c.task == task)
    if (experiment := filters.get("experiment")) is not None:
        query = query.where(attempts.c.experiment == experiment)
    if (digests := filters.get("task_digests")) is not None:
        query = query.where(attempts.c.task_digest.in_(digests))
    if (digests := filters.get("variants")) is not None:
        query = query.where(attempts.c.variant.in_(digests))
    if filters.get("recorded"):
        query = query.where(recorded_condition())
    query = query.where(*exclude_tasks(filters.get("without_tasks", ())))
    rows = connection.execute(query.limit(filters.get("limit"))).mappings()
    return [_attempt_row(row, variants_by_digest.get(row["variant"])) for row in rows]


def recorded_condition() -> SqlExpression:
    """Return the condition that an attempt does not just stand for an unrecorded pull request."""
    return attempts.c.events.is_not(None) | sessions.c.attempt.is_(None)


def exclude_tasks(digests: Collection[str]) -> list[SqlExpression]:
    """Return the condition that an attempt has none of these tasks; a session has no task."""
    task = attempts.c.task_digest
    return [task.is_(None) | task.not_in(digests)] if digests else []


def outcome_condition(outcome: str) -> SqlExpression:
    """Return the condition for an outcome; an attempt without a grade is unscored."""
    matches_outcome = grades.c.outcome == outcome
    return (
        matches_outcome | grades.c.outcome.is_(None) if outcome == "unscored" else matches_outcome
    )


def add_variant_names(connection: Connection, rows: Iterable[Any]) -> list[AttemptRow]:
    """Build rows from `select_counted_attempts`, with the names of their variants."""
    names = _load_variants(connection)
    return [_attempt_row(row, names.get(row["variant"])) for row in rows]


def _load_variants(connection: Connection) -> dict[str, Any]:
    query = select(variants.c.digest, variants.c.name, variants.c.agent, variants.c.model)
    return {row.digest: row for row in connection.execute(query.order_by(variants.c.number))}


def _attempt_row(row: Any, variant: Any) -> AttemptRow:
    if variant is None:
        return AttemptRow(**row)
    of_variant = {
        "agent": variant.agent,
        "model": variant.model,
        "variant_name": variant.name,
        "replay_of": find_replayed_attempt(variant.model),
    }
    return AttemptRow(**{**row, **of_variant})


def select_counted_attempts(
    gradings: Collection[str] | None = None, *, include_superseded: bool = False
) -> Select:
    """Select the attempts that count, or all, with their sessions and the grades that count."""
    return _select_counted_attempts(
        None if gradings is None else tuple(gradings), include_superseded
    )


@lru_cache(maxsize=8)  # cached: building it takes longer than most queries
def _select_counted_attempts(gradings: tuple[str, ...] | None, include_superseded: bool) -> Select:
    grade = grades.alias()
    newest = select(grade.c.number).where(grade.c.attempt == attempts.c.id)
    if gradings is not None:
        newest = newest.where(grade.c.grading.in_(gradings))
    newest = newest.order_by(grade.c.version.desc(), grade.c.number.desc()).limit(1)
    joined_columns = [
        column for column in (*grades.c, *sessions.c) if column.name in _JOINED_FIELDS
    ]
    later, is_copy, has_original = _superseding_sessions()
    # A single sum, so that PostgreSQL searches for better versions of copies only, not of all rows.
    conditions = () if include_superseded else (~later, ~(is_copy & has_original))
    return (
        select(attempts, *joined_columns)
        .outerjoin_from(attempts, grades, grades.c.number == newest.scalar_subquery())
        .outerjoin(sessions, sessions.c.attempt == attempts.c.id)
        .where(*conditions)
        .order_by(attempts.c.started.desc().nulls_last(), attempts.c.id)
    )


def _superseding_sessions() -> tuple[SqlExpression, SqlExpression, SqlExpression]:
    """Return whether a later version of a session is stored, whether it is a copy, and of what."""
    # The longest version of a session counts; among equally long ones, the last stored.
    later_attempt, later_session = attempts.alias(), sessions.alias()
    later_end, end = func.coalesce(later_attempt.c.ended, 0), func.coalesce(attempts.c.ended, 0)
    last_stored = (later_end == end) & (later_session.c.number > sessions.c.number)
    later = (
        select(later_session.c.number)
        .join(later_attempt, later_attempt.c.id == later_session.c.attempt)
        .where(
            later_session.c.key == sessions.c.key,
            later_session.c.number != sessions.c.number,
            (later_end > end) | last_stored,
        )
    )
    # A copy counts only if no better version of the session is stored.
    original = sessions.alias()
    own_key, marked_key = (
        func.substr(sessions.c.key, 1, length)
        for length in (OWN_KEY_CHARACTERS, OWN_KEY_CHARACTERS + 1)
    )
    is_copy = func.substr(marked_key, OWN_KEY_CHARACTERS + 1) >= COPY_MARKS["exported"]
    originals = select(original.c.number).where(
        original.c.key >= own_key, original.c.key < marked_key
    )
    return later.exists(), is_copy, originals.exists()


def select_superseded_attempts(conditions: Sequence[SqlExpression]) -> Select:
    """Select the ids of those attempts that do not count, under conditions on attempts."""
    later, is_copy, has_original = _superseding_sessions()
    if not conditions:
        # Few sessions are stored twice, and an index lists them.
        key = sessions.alias().c.key
        repeated = select(key).group_by(key).having(func.count() > 1)
        conditions = [sessions.c.key.in_(repeated) | is_copy]
    return (
        select(sessions.c.attempt)
        .join_from(sessions, attempts, attempts.c.id == sessions.c.attempt)
        .where(*conditions, later | (is_copy & has_original))
    )


def join_modes(pairs: Iterable[tuple[str, str]]) -> str:
    """Join modes with their sources: `scope creep (grade), hallucinated API (rule)`."""
    return ", ".join(f"{mode} ({source})" for mode, source in pairs)


def short_column_text(text: str | None) -> str | None:
    """Truncate text to 500 characters and make it storable in any engine."""
    if text is None:
        return None
    return column_text(text[:_MAX_CHARACTERS])


def column_text(text: str) -> str:
    """Replace NUL and lone surrogates, which a column cannot hold."""
    if text.isascii() and "\0" not in text:
        return text
    return text.replace("\0", "�").encode("utf-8", "replace").decode()


def column_integer(number: int | None) -> int | None:
    """Clamp a number to 64 bits; bodies hold the original."""
    return None if number is None else max(_SMALLEST, min(number, _BIGGEST))


def column_number(number: float | None) -> float | None:
    """Return the number; None if it is NaN."""
    return None if number is None or math.isnan(number) else number
