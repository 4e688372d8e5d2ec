"""List attempts page by page, from columns alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any

from closeloop.records.attempt import (
    AWAITING_REVIEW,
    AttemptFilter,
    AttemptMarks,
    AttemptRow,
    AttemptSort,
    FilterChoices,
    PageCursor,
    TimeRange,
)
from closeloop.records.estimate import wilson_rate
from closeloop.records.finding import Measurement
from closeloop.records.record import Record
from closeloop.records.task import CONTROL_AGENTS, Experiment, Task
from closeloop.store import schema
from closeloop.store.attempt_rows import (
    add_variant_names,
    exclude_tasks,
    outcome_condition,
    recorded_condition,
    select_counted_attempts,
)
from closeloop.store.engine import Connection
from closeloop.store.experiment_section import (
    arm_condition,
    list_arms,
    list_prompt_titles,
    prompt_condition,
)
from closeloop.store.fact_rows import StoreSection
from closeloop.store.record_bodies import unpack_record
from closeloop.store.schema import (
    attempts,
    deliveries,
    events,
    experiments,
    grades,
    measurements,
    pauses,
    proofs,
    scores,
    sessions,
    tasks,
    variants,
)
from closeloop.store.session_rows import list_addresses, search_conditions
from closeloop.store.sql_expressions import SqlExpression, false, func, or_
from closeloop.store.sql_statements import Select, select
from closeloop.text.search_text import parse_search
from closeloop.text.wording import repository_name

MAX_CHOICES = 500


class UncheckedAttempt(Record):
    """An attempt without an automatic check, which people and judges score."""

    attempt: str
    task_digest: str | None
    number: int


class MatchTotals(Record):
    """Totals of the attempts of a list."""

    attempts: int
    cost: float | None
    """Known cost in US dollars; None if none is known."""
    priced: int
    """Number of attempts with a known cost."""


class ListingSection(StoreSection):
    """The store's section for lists of attempts."""

    def list_page(
        self,
        filters: AttemptFilter,
        limit: int,
        after: PageCursor | None = None,
        *,
        without: Collection[str] = (),
        sort: AttemptSort = "newest",
    ) -> list[AttemptRow]:
        """List attempts in that order, with the grade that counts; none at the tasks `without`.

        A pull request without a recording is no session, and is not listed.
        """

        def work(connection: Connection) -> list[AttemptRow]:
            query = select_counted_attempts().where(
                recorded_condition(),
                *_filter_conditions(connection, filters),
                *exclude_tasks(without),
            )
            page_rows: list[AttemptRow] = []
            for part in _page_parts(query, sort, after):
                if len(page_rows) < limit:
                    page_query = part.limit(limit - len(page_rows))
                    page_rows += add_variant_names(
                        connection, connection.execute(page_query).mappings()
                    )
            return page_rows

        return self._read(work)

    def count_matches(
        self, filters: AttemptFilter, limit: int | None = None, *, without: Collection[str] = ()
    ) -> int:
        """Count the matching attempts; with a limit, counting stops there."""
        return self.total_matches(filters, limit, without=without).attempts

    def total_matches(
        self, filters: AttemptFilter, limit: int | None = None, *, without: Collection[str] = ()
    ) -> MatchTotals:
        """Count the matching attempts and sum their cost; a limit stops counting there."""

        def work(connection: Connection) -> MatchTotals:
            query = select_counted_attempts().where(
                recorded_condition(),
                *_filter_conditions(connection, filters),
                *exclude_tasks(without),
            )
            columns = query.with_only_columns(
                attempts.c.id, attempts.c.cost, maintain_column_froms=True
            )
            matches = columns.order_by(None).limit(limit).subquery()
            sums = select(func.count(), func.sum(matches.c.cost), func.count(matches.c.cost))
            count, cost, priced = connection.execute(sums.select_from(matches)).one()
            return MatchTotals(attempts=count, cost=cost, priced=priced)

        return self._read(work)

    def list_matches(self, filters: AttemptFilter, ids: Collection[str]) -> set[str]:
        """Return those of the attempts that match, also pull requests without a recording."""

        def work(connection: Connection) -> set[str]:
            query = select_counted_attempts().where(
                attempts.c.id.in_(ids), *_filter_conditions(connection, filters)
            )
            columns = query.with_only_columns(attempts.c.id, maintain_column_froms=True)
            return set(connection.execute(columns.order_by(None)).scalars())

        return self._read(work)

    def load_row(self, attempt: str) -> AttemptRow | None:
        """Load one attempt by its full id, also a version of a session that no longer counts."""

        def work(connection: Connection) -> AttemptRow | None:
            query = select_counted_attempts(include_superseded=True).where(attempts.c.id == attempt)
            return next(
                iter(add_variant_names(connection, connection.execute(query).mappings())), None
            )

        return self._read(work)

    def find_newer_version(self, attempt: str) -> str | None:
        """Return the attempt with the session's newest version; None if it is this one."""
        own_session, newest_session, ended = sessions.alias(), sessions.alias(), attempts.c.ended
        query = (
            select(newest_session.c.attempt)
            .join(own_session, own_session.c.key == newest_session.c.key)
            .join(attempts, attempts.c.id == newest_session.c.attempt)
            .where(own_session.c.attempt == attempt)
            .order_by(func.coalesce(ended, 0).desc(), newest_session.c.number.desc())
            .limit(1)
        )
        newest_attempt: str | None = self._read(
            lambda connection: connection.execute(query).scalar()
        )
        return None if newest_attempt == attempt else newest_attempt

    def load_marks(
        self, ids: Iterable[str], bases: Mapping[str, str] | None = None
    ) -> dict[str, AttemptMarks]:
        """Return rule results by attempt, on the given basis if there are any, else the latest."""
        table = measurements.c
        loop = (table.iterations, table.converged_after, table.feedback_hits, table.feedback_of)
        fields = (table.findings, table.found, table.category, *loop)
        query = select(table.attempt, table.basis, *fields).order_by(table.number)
        query = query.where(table.attempt.in_(list(ids)))
        marks_by_attempt: dict[str, AttemptMarks] = {}
        for row in self._read(lambda connection: connection.execute(query).all()):
            outdated = bases is not None and bases[row.attempt] != row.basis
            if (
                outdated
                and row.attempt in marks_by_attempt
                and not marks_by_attempt[row.attempt].outdated
            ):
                continue
            marks_by_attempt[row.attempt] = AttemptMarks(
                findings=row.findings,
                rules=tuple(row.found.split()),
                category=row.category,
                iterations=row.iterations,
                converged_after=row.converged_after,
                feedback=wilson_rate(row.feedback_hits or 0.0, row.feedback_of or 0),
                outdated=outdated,
            )
        return marks_by_attempt

    def find_rule_messages(self, ids: Iterable[str], rule: str) -> dict[str, str]:
        """Return, by attempt, the first finding of a rule, as it was measured last."""
        table = measurements.c
        query = select(table.attempt, table.body).where(table.attempt.in_(list(ids)))
        rows = self._read(lambda connection: connection.execute(query.order_by(table.number)).all())
        last_bodies = {row.attempt: row.body for row in rows}
        return {
            attempt: finding.message
            for attempt, body in last_bodies.items()
            for finding in reversed(unpack_record(body, Measurement).findings)
            if finding.rule == rule and finding.silenced is None
        }

    def list_choices(self, sealed: Collection[str] = ()) -> FilterChoices:
        """List the values to filter by, sorted; never the name of a sealed task."""
        is_visible = attempts.c.task_digest.not_in(sealed)
        columns = {
            "variants": variants.c.name,
            "users": attempts.c.user,
            "categories": measurements.c.category,
        }

        def work(connection: Connection) -> FilterChoices:
            values_by_name = {
                name: _list_distinct(connection, column) for name, column in columns.items()
            }
            agents = {
                *_list_distinct(connection, variants.c.agent),
                *_list_distinct(connection, sessions.c.agent),
            }
            models = {
                *_list_distinct(connection, variants.c.model),
                *_list_distinct(connection, sessions.c.model),
            }
            tasks = _list_distinct(connection, attempts.c.task, is_visible)
            return FilterChoices(
                tasks=tasks,
                agents=tuple(sorted(agents)),
                models=tuple(sorted(models)),
                repos=tuple(sorted(list_addresses(connection))[:MAX_CHOICES]),
                prompts=list_prompt_titles(connection),
                arms=list_arms(connection),
                **values_by_name,
            )

        return self._read(work)

    def proof_states(self) -> dict[str, str]:
        """Return, by grading, the latest proof state of the task."""
        table = proofs
        query = select(table.c.grading, table.c.state).order_by(table.c.number)
        return dict(
            self._read(lambda connection: [tuple(row) for row in connection.execute(query)])
        )

    def count_passes(self) -> dict[str, tuple[int, int]]:
        """Return, by task digest, how many attempts passed and how many were scored.

        Replays and controls are excluded.
        """
        task, outcome = attempts.c.task_digest, grades.c.outcome
        query = (
            select_counted_attempts()
            .with_only_columns(task, outcome, func.count(), maintain_column_froms=True)
            .where(task.is_not(None), outcome.in_(("pass", "fail")))
            .where(_is_agent_work())
            .group_by(task, outcome)
            .order_by(None)
        )
        tallies: dict[str, tuple[int, int]] = {}
        for digest, result, number in self._read(
            lambda connection: connection.execute(query).all()
        ):
            passed, scored = tallies.get(digest, (0, 0))
            tallies[digest] = (passed + number * (result == "pass"), scored + number)
        return tallies

    def count_records(self) -> dict[str, int]:
        """Count the stored records by table."""
        tables = {
            "attempts": attempts,
            "grades": grades,
            "measurements": measurements,
            "sessions": sessions,
            "tasks": tasks,
            "variants": variants,
        }
        subqueries = [
            select(func.count()).select_from(table).scalar_subquery() for table in tables.values()
        ]
        row = self._read(lambda connection: connection.execute(select(*subqueries)).one())
        return dict(zip(tables, row, strict=True))

    def change_marker(self) -> str:
        """Return a marker that changes when anything is added that lists, metrics or plans show."""
        newest = [select(func.max(table.c.number)).scalar_subquery() for table in _NUMBERED_TABLES]
        count = select(func.count()).select_from(attempts).scalar_subquery()
        row = self._read(lambda connection: connection.execute(select(count, *newest)).one())
        return "-".join(str(number or 0) for number in row)


_NUMBERED_TABLES = (
    grades, measurements, sessions, deliveries, events, tasks, variants, experiments, pauses,
    scores, schema.plans, schema.plan_tasks, schema.executions, schema.assignments, schema.offers,
)  # fmt: skip


def _list_distinct(connection: Connection, column: Any, *which: SqlExpression) -> tuple[str, ...]:
    query = select(column).where(column.is_not(None), *which).distinct().order_by(column)
    return tuple(connection.execute(query.limit(MAX_CHOICES)).scalars())


_SORT_COLUMNS: dict[AttemptSort, SqlExpression] = {
    "newest": attempts.c.started,
    "oldest": attempts.c.started,
    "cost": attempts.c.cost,
    "turns": attempts.c.turns,
    "time": attempts.c.seconds,
}


def _page_parts(query: Select, sort: AttemptSort, after: PageCursor | None) -> list[Select]:
    """Select what follows a row: rows with a value, then those without; each an index range."""
    attempt_id = attempts.c.id
    key: SqlExpression = attempt_id
    value: SqlExpression
    query = query.order_by(None)
    if sort == "findings":
        newest, later = measurements.alias(), measurements.alias()
        superseded = select(later.c.number).where(
            later.c.attempt == newest.c.attempt, later.c.number > newest.c.number
        )
        measured = query.join(newest, newest.c.attempt == attempt_id).where(~superseded.exists())
        value, key = newest.c.findings, newest.c.attempt
        is_measured = (
            select(measurements.c.number).where(measurements.c.attempt == attempt_id).exists()
        )
        with_value, without_value = measured, query.where(~is_measured)
    else:
        value = _SORT_COLUMNS[sort]
        with_value, without_value = query.where(value.is_not(None)), query.where(value.is_(None))
    order = (value.asc(), key.desc()) if sort == "oldest" else (value.desc(), key)
    last = None if after is None else after.started if value is attempts.c.started else after.value
    if after is not None and last is None:
        return [without_value.where(attempt_id > after.id).order_by(attempt_id)]
    if after is not None:
        follows_id = key < after.id if sort == "oldest" else key > after.id
        beyond = value > last if sort == "oldest" else value < last
        at_or_beyond = value >= last if sort == "oldest" else value <= last
        with_value = with_value.where(at_or_beyond, or_(beyond, follows_id))
    return [with_value.order_by(*order), without_value.order_by(attempt_id)]


def _filter_conditions(connection: Connection, filters: AttemptFilter) -> list[SqlExpression]:
    columns = attempts.c
    conditions = [
        columns[name] == value
        for name in ("task", "origin", "exit", "experiment", "user")
        if (value := getattr(filters, name)) is not None
    ]
    conditions += _period_conditions(filters)
    build_condition: dict[str, Callable[[Any], SqlExpression]] = {
        "min_cost": lambda dollars: columns.cost >= dollars,
        "repo": partial(_repository_condition, connection),
        "variant": lambda name: _has_variant(variants.c.name == name),
        "agent": lambda name: or_(_has_variant(variants.c.agent == name), sessions.c.agent == name),
        "model": lambda name: or_(_has_variant(variants.c.model == name), sessions.c.model == name),
        "outcome": outcome_condition,
        "rule": _has_finding,
        "category": lambda name: _last_measurement_matches(measurements.c.category == name),
    }
    for name, build in build_condition.items():
        if (value := getattr(filters, name)) is not None:
            conditions.append(build(value))
    if filters.prompt is not None:
        conditions.append(prompt_condition(connection, filters.prompt))
    if filters.arm is not None:
        conditions.append(arm_condition(connection, filters.arm))
    if filters.q is not None:
        phrases = parse_search(filters.q)
        conditions += search_conditions(connection, phrases) if phrases else [false()]
    return conditions


def _repository_condition(connection: Connection, repo: str) -> SqlExpression:
    """Whether it is work on a repository, by any of its addresses: a session, or at a task."""
    name = repository_name(repo)
    addresses = list_addresses(connection).get(name, [repo])
    bodies = connection.execute(select(tasks.c.body).order_by(tasks.c.number)).scalars()
    newest = {task.digest: task for task in (unpack_record(body, Task) for body in bodies)}
    at_tasks = [key for key, task in newest.items() if repository_name(task.repo or "") == name]
    if not at_tasks:
        return sessions.c.repo.in_(addresses)
    in_sessions = select(sessions.c.attempt).where(sessions.c.repo.in_(addresses))
    return attempts.c.id.in_(in_sessions) | attempts.c.task_digest.in_(at_tasks)


def _period_conditions(period: TimeRange) -> list[SqlExpression]:
    started = attempts.c.started
    conditions = [] if period.since is None else [started >= period.since]
    return conditions if period.until is None else [*conditions, started < period.until]


def _has_variant(condition: SqlExpression) -> SqlExpression:
    return attempts.c.variant.in_(_select_variant_digests(condition))


def _select_variant_digests(condition: SqlExpression) -> Select:
    return select(variants.c.digest).where(condition)


def _has_finding(rule: str) -> SqlExpression:
    """Whether an attempt's last measurement has it; a scalar subquery avoids a full join."""
    columns = measurements.c
    has_rule = (" " + columns.found + " ").contains(f" {rule} ", autoescape=True)
    last = (
        select(has_rule)
        .where(columns.attempt == attempts.c.id)
        .order_by(columns.number.desc())
        .limit(1)
    )
    return last.scalar_subquery()


def _last_measurement_matches(condition: SqlExpression) -> SqlExpression:
    """Whether an attempt's last measurement meets the condition."""
    measurement = measurements.alias()
    last = select(func.max(measurement.c.number)).where(
        measurement.c.attempt == measurements.c.attempt
    )
    query = select(measurements.c.number).where(
        measurements.c.attempt == attempts.c.id,
        measurements.c.number == last.scalar_subquery(),
        condition,
    )
    return query.exists()


# Counts for lists and overviews: findings by variant, waiting attempts, filled slots.


class CountsSection(StoreSection):
    """The store's section for counts."""

    def count_findings(
        self, without: Collection[str] = (), period: TimeRange | None = None
    ) -> Counter[tuple[str | None, str]]:
        """Count attempts by the digest of their variant (None for sessions) and by rule found.

        Only attempts that started in the period, and none at a task in `without`.
        """
        columns = measurements.c
        last = select(func.max(columns.number)).group_by(columns.attempt)
        query = (
            select(attempts.c.variant, columns.found, func.count())
            .join(attempts, attempts.c.id == columns.attempt)
            .where(columns.number.in_(last), columns.findings > 0, *exclude_tasks(without))
            .where(*_period_conditions(period or TimeRange()))
            .group_by(attempts.c.variant, columns.found)
        )
        finding_counts: Counter[tuple[str | None, str]] = Counter()
        for variant, rules, count in self._read(lambda connection: connection.execute(query).all()):
            for rule in rules.split():
                finding_counts[variant, rule] += count
        return finding_counts

    def list_passed_attempts(self) -> list[tuple[str, str | None]]:
        """List passing experiment attempts that changed files, with their tasks; oldest first."""
        table = attempts.c
        query = select_counted_attempts().with_only_columns(
            table.id, table.task_digest, maintain_column_froms=True
        )
        query = query.where(table.origin == "experiment", table.files_changed > 0)
        query = query.where(grades.c.outcome == "pass", _is_agent_work())
        query = query.order_by(None).order_by(table.started, table.id)
        return [
            tuple(row) for row in self._read(lambda connection: connection.execute(query).all())
        ]

    def list_unchecked_attempts(self) -> list[UncheckedAttempt]:
        """List attempts at tasks without an automatic check, oldest first."""
        table = attempts.c
        query = select_counted_attempts().with_only_columns(
            table.id.label("attempt"), table.task_digest, table.number, maintain_column_froms=True
        )
        query = query.where(table.origin == "experiment")
        query = query.where(grades.c.outcome_cause == AWAITING_REVIEW, _is_agent_work())
        query = query.order_by(None).order_by(table.started, table.id)
        rows = self._read(lambda connection: connection.execute(query).mappings().all())
        return [UncheckedAttempt(**row) for row in rows]

    def count_filled_slots(self, experiment: Experiment) -> int:
        """Count an experiment's slots with an attempt that was not a machine failure."""
        table = attempts.c
        slots = (
            select(table.task_digest, table.variant, table.number)
            .where(table.task_digest.in_(experiment.tasks), table.variant.in_(experiment.variants))
            .where(table.number <= experiment.repeats, table.exit != "machine")
            .distinct()
            .subquery()
        )
        query = select(func.count()).select_from(slots)
        return int(self._read(lambda connection: connection.execute(query).scalar()) or 0)


def _is_agent_work() -> SqlExpression:
    """Return the condition that excludes replays, which repeat recorded replies, and controls."""
    is_replay = variants.c.model.startswith("recorded:")
    others = _select_variant_digests(is_replay | variants.c.agent.in_(CONTROL_AGENTS))
    return attempts.c.variant.is_(None) | attempts.c.variant.not_in(others)
