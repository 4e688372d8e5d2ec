"""Experiments, trials, prompts and held-out tasks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from msgspec.structs import asdict

from closeloop.records.attempt import Insight
from closeloop.records.experiment_plan import (
    GateReport,
    GateRun,
    HeldOutRun,
    Trial,
    TrialAssignment,
)
from closeloop.records.record import Record, Time
from closeloop.records.task import (
    Experiment,
    PromptRollout,
    PromptVersion,
    Variant,
    find_replayed_attempt,
)
from closeloop.store import fact_rows, schema
from closeloop.store.attempt_rows import column_text
from closeloop.store.engine import Connection
from closeloop.store.fact_rows import StoreSection, append_fact, insert_new_rows
from closeloop.store.record_bodies import pack_record, unpack_record
from closeloop.store.schema import (
    assignments,
    attempt_prompts,
    attempts,
    looks,
    prompt_rollouts,
    prompts,
    tasks,
    trials,
    variants,
)
from closeloop.store.sql_expressions import SqlExpression, func, or_
from closeloop.store.sql_statements import Select, insert, select


class AttemptAverages(Record):
    """Mean duration and cost of attempts; None if unknown."""

    seconds: float | None = None
    cost: float | None = None


class SessionSetup(Record):
    """An agent with its model, and when they first appeared in a session."""

    agent: str | None
    model: str | None
    first: Time


class ExperimentSection(StoreSection):
    """The store's section for experiments."""

    def set_paused(self, experiment: str, *, paused: bool) -> None:
        """Pause or resume an experiment: while paused, no process starts an attempt of it."""
        columns = {"experiment": experiment, "paused": paused}
        self._write(
            lambda connection: fact_rows.append_fact(
                connection, schema.pauses, ("experiment",), columns
            )
        )

    def is_paused(self, experiment: str) -> bool:
        table = schema.pauses
        query = select(table.c.paused).where(table.c.experiment == experiment)
        query = query.order_by(table.c.number.desc()).limit(1)
        return bool(self._read(lambda connection: connection.execute(query).scalar()))

    def total_cost(self, experiment: Experiment) -> float | None:
        """Return the known cost of the attempts that were made for it.

        Attempts shared with another experiment were paid for there.
        """
        return self._sum_costs(experiment, schema.attempts.c.experiment == experiment.id)

    def shared_cost(self, experiment: Experiment) -> float | None:
        """Return the cost of its slots' attempts made for another experiment; None if none."""
        made_for = schema.attempts.c.experiment
        return self._sum_costs(experiment, made_for.is_(None) | (made_for != experiment.id))

    def _sum_costs(self, experiment: Experiment, condition: SqlExpression) -> float | None:
        table = schema.attempts
        query = select(func.sum(table.c.cost)).where(
            table.c.task_digest.in_(experiment.tasks),
            table.c.variant.in_(experiment.variants),
            table.c.number <= experiment.repeats,
            condition,
        )
        cost_sum: float | None = self._read(lambda connection: connection.execute(query).scalar())
        return cost_sum

    def first_start_time(self, experiment: str) -> datetime | None:
        """Return when the first attempt that was made for it started."""
        table = schema.attempts
        query = select(func.min(table.c.started)).where(table.c.experiment == experiment)
        started: datetime | None = self._read(lambda connection: connection.execute(query).scalar())
        return started

    def last_start_time(self, experiment: Experiment) -> datetime | None:
        """Return when the last attempt in its slots started, whichever experiment made it."""
        table = schema.attempts
        query = select(func.max(table.c.started)).where(
            table.c.task_digest.in_(experiment.tasks),
            table.c.variant.in_(experiment.variants),
            table.c.number <= experiment.repeats,
        )
        started: datetime | None = self._read(lambda connection: connection.execute(query).scalar())
        return started

    def list_session_setups(self, since: datetime) -> list[SessionSetup]:
        """List agents with their models whose first session started after `since`."""
        session_table, attempt_table = schema.sessions, schema.attempts
        first = func.min(attempt_table.c.started)
        query = (
            select(session_table.c.agent, session_table.c.model, first)
            .join(attempt_table, attempt_table.c.id == session_table.c.attempt)
            .group_by(session_table.c.agent, session_table.c.model)
            .having(first > since)
            .order_by(session_table.c.agent, session_table.c.model)
        )
        rows = self._read(lambda connection: connection.execute(query).all())
        return [
            SessionSetup(agent=agent, model=model, first=first_start)
            for agent, model, first_start in rows
        ]

    def count_flaky_tests(self, gradings: Collection[str]) -> dict[str, int]:
        """Count, by grading, tests whose result differed between repeats of its newest proof."""
        table = schema.proofs
        newest = select(func.max(table.c.number)).where(table.c.grading.in_(gradings))
        query = select(table.c.grading, table.c.before, table.c.reference).where(
            table.c.number.in_(newest.group_by(table.c.grading))
        )

        def work(connection: Connection) -> dict[str, int]:
            counts = {}
            for grading, *blobs in connection.execute(query).all():
                runs = [fact_rows.load_test_run(connection, blob) for blob in blobs]
                counts[grading] = len({name for run in runs if run for name in run.flaky})
            return counts

        return self._read(work)

    def list_claimed_jobs(self) -> list[str]:
        """List the keys of jobs that are being worked on."""
        return self._read(fact_rows.list_claimed_jobs)

    def average_attempt(self, variant: Variant) -> AttemptAverages:
        """Return averages of the variant's attempts, or if it is new of its agent and model."""
        attempt_table, variant_table = schema.attempts, schema.variants
        means = select(func.avg(attempt_table.c.seconds), func.avg(attempt_table.c.cost))
        means = means.where(
            attempt_table.c.exit != "machine", attempt_table.c.origin == "experiment"
        )
        similar_variants = select(variant_table.c.digest).where(
            variant_table.c.agent == variant.agent, variant_table.c.model == variant.model
        )
        for condition in (
            attempt_table.c.variant == variant.digest,
            attempt_table.c.variant.in_(similar_variants),
        ):
            query = means.where(condition)
            seconds, cost = self._read(partial(_fetch_one, query))
            if seconds is not None:
                return AttemptAverages(seconds=seconds, cost=cost)
        return AttemptAverages()

    def save_gate_report(self, report: GateReport, created_at: datetime) -> None:
        """Save a gate's report."""
        columns = {
            "at": created_at,
            "experiment": report.experiment,
            "passed": report.passed,
            "body": pack_record(report),
        }
        self._write(
            lambda connection: connection.execute(insert(schema.gate_reports), columns) and None
        )

    def list_gate_reports(self, limit: int) -> list[GateRun]:
        """List gate reports, latest first."""
        table = schema.gate_reports
        query = select(table.c.number, table.c.at, table.c.body).order_by(table.c.number.desc())
        rows = self._read(lambda connection: connection.execute(query.limit(limit)).all())
        return [
            GateRun(number=number, at=created_at, report=unpack_record(body, GateReport))
            for number, created_at, body in rows
        ]

    def list_insights(
        self, *, attempt: str | None = None, repo: str | None = None
    ) -> list[Insight]:
        """List insights of an attempt or a repository, or all; latest first."""
        table, query = schema.insights, _select_insights()
        if attempt is not None:
            query = query.where(table.c.attempt == attempt)
        if repo is not None:
            query = query.where(table.c.repo == repo)
        rows = self._read(lambda connection: connection.execute(query).mappings().all())
        return [Insight(**row) for row in rows]

    def list_attempt_insights(self, ids: Sequence[str]) -> list[Insight]:
        """List insights of several attempts, in the order of `ids`; the latest of each first."""
        column, query = schema.insights.c.attempt, _select_insights()

        def work(connection: Connection) -> list[Any]:
            parts = (query.where(column.in_(part)) for part in fact_rows.split_values(ids))
            return [row for part in parts for row in connection.execute(part).mappings()]

        insights_by_attempt: dict[str, list[Insight]] = {}
        for row in self._read(work):
            insights_by_attempt.setdefault(row["attempt"], []).append(Insight(**row))
        return [insight for name in ids for insight in insights_by_attempt.get(name, ())]


def _select_insights() -> Select:
    table = schema.insights
    fields = [table.c[name] for name in Insight.__struct_fields__]
    return select(*fields).order_by(table.c.at.desc(), table.c.number)


def _fetch_one(query: Select, connection: Connection) -> Any:
    return connection.execute(query).one()


def add_insights(connection: Connection, insights: Sequence[Insight]) -> None:
    """Add insights of one attempt; existing ones stay unchanged."""
    rows = [{**asdict(insight), "text": column_text(insight.text)} for insight in insights]
    fact_rows.insert_new_rows(connection, schema.insights, rows)


# Trials and which work was assigned to which variant: written once, before the work starts.


class TrialSection(StoreSection):
    """The store's section for trials."""

    def start_trial(self, trial: Trial) -> Trial:
        """Start a trial; return it, or the one already started under that name."""

        def work(connection: Connection) -> Any:
            columns = {"name": trial.name, "body": pack_record(trial)}
            insert_new_rows(connection, trials, [columns])
            query = select(trials.c.body).where(trials.c.name == trial.name)
            return connection.execute(query).scalar_one()

        return unpack_record(self._write(work), Trial)

    def load_trial(self, name: str) -> Trial | None:
        query = select(trials.c.body).where(trials.c.name == name)
        return self._load_record(query, Trial)

    def list_trial_names(self) -> list[str]:
        query = select(trials.c.name).order_by(trials.c.number)
        return self._read(lambda connection: list(connection.execute(query).scalars()))

    def save_assignment(self, assignment: TrialAssignment) -> TrialAssignment:
        """Save an assignment; return it, or the one already saved for that key."""
        fields = TrialAssignment.__struct_fields__

        def work(connection: Connection) -> Any:
            columns = {name: getattr(assignment, name) for name in fields}
            insert_new_rows(connection, assignments, [columns])
            query = select(*(assignments.c[name] for name in fields)).where(
                assignments.c.trial == assignment.trial, assignments.c.key == assignment.key
            )
            return connection.execute(query).mappings().one()

        return TrialAssignment(**self._write(work))

    def list_assignments(self, trial: str) -> list[TrialAssignment]:
        """List the assignments of a trial, in the order they were made."""
        fields = [assignments.c[name] for name in TrialAssignment.__struct_fields__]
        query = select(*fields).where(assignments.c.trial == trial)
        query = query.order_by(assignments.c.number)
        rows = self._read(lambda connection: connection.execute(query).mappings().all())
        return [TrialAssignment(**row) for row in rows]


# Held-out tasks, and the ledger of unsealings.


class HeldOutSection(StoreSection):
    """The store's section for held-out tasks."""

    def list_tried_models(self) -> frozenset[str]:
        """Return the models of attempts at tasks; replays are excluded."""
        tried_variants = select(attempts.c.variant).where(attempts.c.task_digest.is_not(None))
        model = variants.c.model
        query = (
            select(model)
            .where(variants.c.digest.in_(tried_variants), model.is_not(None))
            .distinct()
        )
        models = self._read(lambda connection: connection.execute(query).scalars().all())
        return frozenset(model for model in models if find_replayed_attempt(model) is None)

    def list_sealed_digests(self) -> frozenset[str]:
        """Return the digests of held-out tasks, by their latest definition."""
        newest = select(func.max(tasks.c.number)).group_by(tasks.c.digest)
        query = select(tasks.c.digest).where(
            tasks.c.number.in_(newest), tasks.c.split == "held-out"
        )
        return frozenset(self._read(lambda connection: connection.execute(query).scalars().all()))

    def count_attempts_outside(
        self, run_times: Mapping[str, datetime], digests: Collection[str]
    ) -> dict[str, int]:
        """Count, by task, attempts outside these runs: of another experiment, or before its run."""
        experiment, started = attempts.c.experiment, attempts.c.started
        earlier = [
            (experiment == name) & (started < run_time) for name, run_time in run_times.items()
        ]
        query = (
            select(attempts.c.task_digest, func.count())
            .where(attempts.c.task_digest.in_(digests))
            .where(or_(experiment.is_(None), experiment.not_in(run_times), *earlier))
            .group_by(attempts.c.task_digest)
        )
        return dict(
            self._read(lambda connection: [tuple(row) for row in connection.execute(query)])
        )

    def add_unsealing(self, held_out_run: HeldOutRun) -> None:
        columns = {
            "at": held_out_run.at,
            "tasks": held_out_run.tasks,
            "change": held_out_run.change,
            "body": pack_record(held_out_run),
        }
        self._write(lambda connection: connection.execute(insert(looks), columns))

    def list_unsealings(self) -> list[HeldOutRun]:
        """List all runs of held-out tasks, latest first."""
        query = select(looks.c.body).order_by(looks.c.number.desc())
        return self._load_records(query, HeldOutRun)


# Which prompts exist, and which attempts ran under them.


class PromptSection(StoreSection):
    """The store's section for prompts."""

    def list_prompts(self) -> list[PromptVersion]:
        """List prompts in the order they were first saved."""
        query = select(prompts.c.body).order_by(prompts.c.number)
        return list(
            {record.id: record for record in self._load_records(query, PromptVersion)}.values()
        )

    def list_attempt_prompts(self) -> dict[str, str]:
        """Return, by attempt, the prompt that it was seen to run with."""
        table = attempt_prompts.c
        rows = self._read(
            lambda connection: connection.execute(select(table.attempt, table.prompt)).all()
        )
        return {row[0]: row[1] for row in rows}

    def add_rollout(self, rollout: PromptRollout) -> None:
        """Record which prompt an agent uses from some time on."""
        self._write(
            lambda connection: append_fact(
                connection, prompt_rollouts, ("agent", "repo", "since"), asdict(rollout)
            )
        )

    def list_rollouts(self) -> list[PromptRollout]:
        """List rollouts by start time; of equal start times, the latest recorded is last."""
        fields = [prompt_rollouts.c[name] for name in PromptRollout.__struct_fields__]
        query = select(*fields).order_by(prompt_rollouts.c.since, prompt_rollouts.c.number)
        rows = self._read(lambda connection: connection.execute(query).mappings().all())
        return [PromptRollout(**row) for row in rows]
