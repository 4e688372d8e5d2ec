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
from closeloop.records.team_rules import ContextRecord
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
    offers,
    prompt_rollouts,
    prompts,
    pulls,
    sessions,
    tasks,
    trials,
    variants,
)
from closeloop.store.session_rows import list_addresses
from closeloop.store.sql_expressions import SqlExpression, case, func, or_
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

    def list_arms(self) -> tuple[str, ...]:
        """List the arms that work was assigned to."""
        return self._read(list_arms)

    def list_assignments(self, trial: str) -> list[TrialAssignment]:
        """List the assignments of a trial, in the order they were made."""
        fields = [assignments.c[name] for name in TrialAssignment.__struct_fields__]
        query = select(*fields).where(assignments.c.trial == trial)
        query = query.order_by(assignments.c.number)
        rows = self._read(lambda connection: connection.execute(query).mappings().all())
        return [TrialAssignment(**row) for row in rows]


MAX_LISTED_ATTEMPTS = 2_000
"""Attempts of a prompt or arm up to which a list starts from them, not from its order."""


def name_arm(trial: str, variant: str) -> str:
    """Return the name of a trial's arm, which attempts are grouped and filtered by."""
    return f"{trial}: {variant}"


def list_arms(connection: Connection) -> tuple[str, ...]:
    """List the arms that work was assigned to."""
    pairs = select(assignments.c.trial, assignments.c.variant).distinct()
    pairs = pairs.order_by(assignments.c.trial, assignments.c.variant)
    arms = [name_arm(trial, variant) for trial, variant in connection.execute(pairs)]
    of_memory = select(offers.c.arm).distinct().order_by(offers.c.arm)
    return (*connection.execute(of_memory).scalars(), *arms)


def arm_condition(connection: Connection, arm: str) -> SqlExpression:
    """Return the condition that an attempt is in an arm: `memory`, `control` or `TRIAL: VARIANT`.

    Work is found by the attempt's id, its branch or its task, as `load_arm_column` does.
    """
    names = [*connection.execute(select(trials.c.name)).scalars()]
    conditions = [
        _assigned_condition(connection, name, arm) for name in names if arm.startswith(f"{name}: ")
    ]
    return or_(*conditions, *_offered_conditions(connection, arm))


def _assigned_condition(connection: Connection, trial: str, arm: str) -> SqlExpression:
    table = assignments.c
    of_arm = (table.trial == trial, table.variant == arm.removeprefix(f"{trial}: "))
    names = (attempts.c.id, sessions.c.branch, attempts.c.task)
    keys = select(table.key).where(*of_arm)
    by_key = [
        select(column).where(name.in_(keys)).limit(MAX_LISTED_ATTEMPTS + 1)
        for column, name in zip(
            (attempts.c.id, sessions.c.attempt, attempts.c.id), names, strict=True
        )
    ]
    candidates = {key for query in by_key for key in connection.execute(query).scalars()}
    # Of many attempts, a set of keys excludes most faster than the index of assignments.
    is_candidate = or_(*(name.in_(keys) for name in names))
    if len(candidates) <= MAX_LISTED_ATTEMPTS:
        is_candidate = attempts.c.id.in_(sorted(candidates))
    assigned_before = or_(
        *(
            select(table.number)
            .where(*of_arm, table.key == name, table.at <= attempts.c.started)
            .exists()
            for name in names
        )
    )
    return is_candidate & assigned_before


def _offered_conditions(connection: Connection, arm: str) -> list[SqlExpression]:
    """Return conditions one of which holds if an agent was given context, or as a control none."""
    last = select(func.max(offers.c.number)).group_by(offers.c.repo, offers.c.key)
    query = select(offers.c.repo, offers.c.key, offers.c.arm).where(offers.c.number.in_(last))
    rows = connection.execute(query).all()
    if arm not in {row.arm for row in rows}:
        return []
    keys_by_repo: dict[str, list[str]] = {}
    for row in rows:
        if row.arm == arm:
            keys_by_repo.setdefault(row.repo, []).append(row.key)
    addresses = list_addresses(connection)
    by_branch = [
        sessions.c.repo.in_(addresses[repo]) & sessions.c.branch.in_(keys)
        for repo, keys in keys_by_repo.items()
        if repo in addresses
    ]
    by_id = attempts.c.id.in_([key for keys in keys_by_repo.values() for key in keys])
    is_named = attempts.c.id.in_([row.key for row in rows])
    return [by_id, *(~is_named & condition for condition in by_branch)]


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
        rows = self._read(
            lambda connection: connection.execute(_select_rollouts()).mappings().all()
        )
        return [PromptRollout(**row) for row in rows]


MIN_PROMPT_ID_CHARS = 8
"""Minimum characters of a prompt's id in a trailer."""
MAX_PROMPT_CHOICES = 50
MAX_TITLE_CHARS = 60


def list_prompt_titles(connection: Connection) -> dict[str, str]:
    """Return the name or first line of the prompts that attempts were seen with, by id.

    The most used come first; rare ones are left out.
    """
    seen = attempt_prompts.c.prompt
    used = select(seen).group_by(seen).order_by(func.count().desc(), seen)
    ids = [*connection.execute(used.limit(MAX_PROMPT_CHOICES)).scalars()]
    versions = _load_prompts(connection, ids)
    return {key: _prompt_title(versions[key]) for key in ids if key in versions}


def _prompt_title(version: PromptVersion) -> str:
    opening = next(iter(version.text.strip().splitlines()), "").lstrip("# ")
    return (version.name or opening[:MAX_TITLE_CHARS] or "without text") + f" ({version.id[:12]})"


def prompt_condition(connection: Connection, prompt: str) -> SqlExpression:
    """Return the condition that an attempt ran under a prompt, by the evidence of `PromptIndex`."""
    seen, attempt = attempt_prompts.c, attempts.c.id
    seen_with_it = select(seen.attempt).where(seen.prompt == prompt)
    few = seen_with_it.limit(MAX_LISTED_ATTEMPTS + 1).subquery()
    count = connection.execute(select(func.count()).select_from(few)).scalar() or 0
    condition: SqlExpression = attempt.in_(seen_with_it)
    if count > MAX_LISTED_ATTEMPTS:
        condition = seen_with_it.where(seen.attempt == attempt).exists()
    if evidence := _list_unseen_evidence(connection, prompt):
        is_seen = select(seen.attempt).where(seen.attempt == attempt).exists()
        return condition | (~is_seen & (case(*evidence, else_=0) == 1))
    if count:
        return condition
    # A prompt with context for one agent has an id of its own; its attempt names it without.
    query = fact_rows.select_newest(offers, "repo", "key")
    records = (unpack_record(body, ContextRecord) for body in connection.execute(query).scalars())
    return attempt.in_([record.key for record in records if record.prompt == prompt])


def _list_unseen_evidence(connection: Connection, prompt: str) -> list[tuple[SqlExpression, int]]:
    """List what else tells the prompt of an attempt, the best first, and 1 where it is this one.

    Empty if nothing else names this prompt.
    """
    named = select(pulls.c.prompt).where(pulls.c.agent.is_not(None), pulls.c.prompt.is_not(None))
    names = [*connection.execute(named.distinct()).scalars()]
    own_names = [name for name in names if _is_name_of(connection, name, prompt)]
    bodies = connection.execute(select(variants.c.body).order_by(variants.c.number)).scalars()
    variant_by_digest = {
        variant.digest: variant for variant in (unpack_record(body, Variant) for body in bodies)
    }
    prompt_by_digest = {key: variant.prompt for key, variant in variant_by_digest.items()}
    rollouts = [PromptRollout(**row) for row in connection.execute(_select_rollouts()).mappings()]
    if not own_names and prompt not in {
        *prompt_by_digest.values(),
        *(rollout.prompt for rollout in rollouts),
    }:
        return []
    of_pull, of_variant = _pull_value(pulls.c.prompt), attempts.c.variant
    evidence = [(of_pull.in_(own_names), 1), (of_pull.is_not(None), 0)] if names else []
    stored = _load_prompts(connection, {*prompt_by_digest.values()})
    with_text = {name for name, one in stored.items() if one.text.strip() or one.tools}
    own = [key for key, name in prompt_by_digest.items() if name == prompt]
    if prompt in with_text:
        evidence.append((of_variant.in_(own), 1))
    others = [key for key, name in prompt_by_digest.items() if name in with_text - {prompt}]
    evidence.append((of_variant.in_(others), 0))
    addresses = list_addresses(connection) if rollouts else {}
    for rollout in reversed(rollouts):
        digests = [key for key, one in variant_by_digest.items() if one.agent == rollout.agent]
        matches = (
            of_variant.in_(digests) | (of_variant.is_(None) & (_session_agent() == rollout.agent))
        ) & (attempts.c.started >= rollout.since)
        if rollout.repo is not None:
            repo = rollout.repo.lower()
            same = [each for name in addresses if name.lower() == repo for each in addresses[name]]
            in_repo = func.coalesce(_pull_value(pulls.c.repo), sessions.c.repo)
            matches = matches & in_repo.in_([*same, rollout.repo])
        evidence.append((matches, int(rollout.prompt == prompt)))
    if prompt not in stored:
        evidence.append((of_variant.in_(own), 1))
    return evidence


def _is_name_of(connection: Connection, name: str, prompt: str) -> bool:
    """Whether a pull request's trailer or label refers to this prompt."""
    if name == prompt:
        return True
    if len(name) >= MIN_PROMPT_ID_CHARS and prompt.startswith(name):
        ids = select(prompts.c.id).where(prompts.c.id.startswith(name, autoescape=True))
        return len(connection.execute(ids.distinct().limit(2)).all()) == 1
    version = _load_prompts(connection, {prompt}).get(prompt)
    return version is not None and version.name == name


def _load_prompts(connection: Connection, ids: Collection[str | None]) -> dict[str, PromptVersion]:
    query = select(prompts.c.body).where(prompts.c.id.in_(ids)).order_by(prompts.c.number)
    bodies = connection.execute(query).scalars()
    return {one.id: one for one in (unpack_record(body, PromptVersion) for body in bodies)}


def _pull_value(column: SqlExpression) -> SqlExpression:
    """Return that column of an agent's pull request with the attempt's work."""
    query = select(column).where(pulls.c.attempt == attempts.c.id, pulls.c.agent.is_not(None))
    order = (pulls.c.opened.asc(), pulls.c.repo.desc(), pulls.c.pull.asc())
    return query.order_by(*order).limit(1).scalar_subquery()


def _session_agent() -> SqlExpression:
    """Return the agent of work without a variant: if unrecorded, that of its pull request."""
    of_pull = _pull_value(pulls.c.agent)
    recorded = (attempts.c.events.is_not(None), func.coalesce(sessions.c.agent, of_pull))
    return case(recorded, else_=func.coalesce(of_pull, sessions.c.agent))


def _select_rollouts() -> Select:
    """Select rollouts by start time; of equal start times, the latest recorded is last."""
    fields = [prompt_rollouts.c[name] for name in PromptRollout.__struct_fields__]
    return select(*fields).order_by(prompt_rollouts.c.since, prompt_rollouts.c.number)
