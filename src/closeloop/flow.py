"""The main jobs of the product on one page, each as calls of its features' public functions.

    run an experiment   plan, prepare every task; then for every task × variant × repeat without a
                        scored attempt: workspace ──► agent ──► trace and change ──► clean room
                        ──► grade ──► store; measure every trace
    import sessions     find recordings that are new or have changed, read them, save their sessions
    check a change      base and change ──► quality, risk from the repository's history, tools
                        before and after ──► verdict and report
    receive a pull      webhook deliveries ──► facts ──► current state of the pull request, linked
    request             to the attempt behind it ──► outcome of that attempt
    judge outputs       each on its own, computed facts first ──► evaluations, saved one by one;
                        for a submitted plan ──► attempts at its tasks and a result for the plan
    learn from review   corrections ──► one that restates a rule is a repeat, else propose a rule
    deliver a request   agent ──► checks, with fixes by the agent ──► one attempt with its report
                        ──► branch ──► pull request; each step is saved and sent as an event

Features do not import each other: this page passes records between them. The command line and the
web use it for these jobs. Each function imports what it needs, so that a command loads only the
features that it uses.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from closeloop.records.record import Record

if TYPE_CHECKING:
    from closeloop.attempts.run_resources import ProgressCallback
    from closeloop.changes.change_check import CheckRequest
    from closeloop.changes.check_verdict import Fixer
    from closeloop.judges.judge_panel import JudgePanel
    from closeloop.orchestration.request_delivery import DeliveryCallback, DeliveryRequest
    from closeloop.records.change import ChangeReport
    from closeloop.records.errors import Fault
    from closeloop.records.evaluation import Evaluations, JudgeCase, Submission
    from closeloop.records.experiment_plan import (
        ExperimentForecast,
        ExperimentPlan,
        ExperimentResults,
        RunMode,
    )
    from closeloop.records.finding import Unmeasured
    from closeloop.records.orchestration import DeliveryResult
    from closeloop.records.protocols import Model
    from closeloop.records.settings import ExperimentSettings, Settings
    from closeloop.records.task import Task
    from closeloop.records.trace import ImportSummary, SessionFilter
    from closeloop.reviews.authorship import AgentSignsByName
    from closeloop.reviews.rule_learning import LearningContext, LearningSummary
    from closeloop.sandbox.workspaces import WorkspacePool
    from closeloop.store import Store
    from closeloop.store.pull_section import UnreadArrival
    from closeloop.traces.session_import import TallyCallback

    StartRun = Callable[
        [ExperimentPlan, ExperimentForecast, Store], AbstractContextManager[ProgressCallback]
    ]
    """Receives the plan and its forecast, may refuse them by a Fault, opens the progress
    callback."""


class ExperimentRequest(Record):
    """Which variants attempt which tasks, and with which settings."""

    settings: Settings
    root: Path
    environ: Mapping[str, str]
    tasks: tuple[Task, ...]
    variants: tuple[str, ...]
    wanted: ExperimentSettings
    name: str | None = None
    """Name of the experiment in the configuration."""
    mode: RunMode = "fill"


async def run_experiment(
    request: ExperimentRequest,
    start: StartRun,
    note_sandbox: Callable[[WorkspacePool], None] = lambda workspaces: None,
) -> ExperimentResults:
    """Run every variant on every task, grade its changes, and measure its process."""
    from closeloop.attempts import experiment_run as experiment
    from closeloop.metrics.attempt_measuring import measure_attempts, project_rulebook
    from closeloop.reviews.agent_prompts import open_context_provider, provide_task_context

    settings, root, environ = request.settings, request.root, request.environ
    options, mode = request.wanted, request.mode
    async with experiment.open_run_context(settings, root, request.variants, environ) as context:
        store, rules = context.store, project_rulebook(settings)
        briefing = open_context_provider(store, settings, root, environ)
        note_sandbox(context.tools.workspaces)
        plan = experiment.plan_experiment(context, request.tasks, options, request.name)
        forecast = experiment.forecast_missing(plan, context, mode, options.jobs)
        with start(plan, forecast, store) as report_progress:
            brief = partial(provide_task_context, briefing)
            async with experiment.open_run(
                plan, context, report_progress, options.jobs, mode, brief
            ) as run:
                skipped = await experiment.run_attempts(run)
        attempts = experiment.list_plan_attempts(plan, store)
        measured_attempts = measure_attempts(store, attempts, rules)
        measurements = {attempt.row.id: attempt.measurement for attempt in measured_attempts}
        return experiment.collect_results(plan, context, attempts, measurements, skipped)


def import_sessions(
    places: Sequence[Path],
    store: Store,
    *,
    session_filter: SessionFilter,
    jobs: int,
    report_progress: TallyCallback,
) -> ImportSummary:
    """Read recordings that are new or have changed, and save their sessions."""
    from closeloop.traces.file_source import walk_files
    from closeloop.traces.session_import import ImportBuffer, find_changed_files, read_changed_files

    buffer = ImportBuffer(store, report_progress)
    recordings = find_changed_files(walk_files(places), buffer, session_filter)
    for outcome in read_changed_files(recordings, session_filter, jobs):
        buffer.add_outcome(outcome)
    return buffer.finish_import()


async def check_change(
    order: CheckRequest,
    workspaces: WorkspacePool,
    fixer: Fixer | None = None,
    reviewer: Model | Unmeasured | None = None,
) -> ChangeReport:
    """Check a change in the requested tiers; BadInput if there is no change."""
    from closeloop.changes import change_check as check
    from closeloop.changes.change_check import fix_change
    from closeloop.changes.change_sides import open_sides
    from closeloop.changes.names.compiled_names import add_compiled_names

    started = time.monotonic()
    with open_sides(order.root, order.wanted) as sides:
        inspection = await check.read_change(order, sides)
        with inspection.index:
            context = await check.prepare_context(order, sides, workspaces, fixer is not None)
            inspection = check.add_installed_packages(inspection, context)
            quality = await check.check_quality(order, inspection, reviewer)
            risk = await check.check_risk(order, inspection, context)
            tools = await check.check_tools(order, inspection, context)
            if {"quality", "tools"} <= set(order.tiers):
                quality = add_compiled_names(inspection, quality, tools.comparisons)
            results = check.TierResults(quality=quality, risk=risk, tools=tools)
            results = await fix_change(order, inspection, context, results, fixer)
        return check.build_report(order, sides, results, time.monotonic() - started)


def receive_pull_requests(store: Store, agents: AgentSignsByName) -> int:
    """Update pull requests from unread webhook deliveries; return how many were read."""
    from closeloop.reviews import webhook_delivery as delivery
    from closeloop.reviews.pull_lifecycle import add_facts, refresh_pull

    def update_pulls(arrivals: Sequence[UnreadArrival]) -> None:
        facts = [fact for arrival in arrivals for fact in delivery.facts_from_arrival(arrival)]
        for repo, number in add_facts(facts, store):
            refresh_pull(repo, number, store, agents)

    arrivals = delivery.list_unread_arrivals(store)
    delivery.fold_arrivals(arrivals, update_pulls)
    delivery.delete_arrivals(arrivals, store)
    return len(arrivals)


async def judge_outputs(
    panel: JudgePanel, cases: Sequence[JudgeCase], store: Store, attempts: Sequence[str] = ()
) -> tuple[Evaluations, Fault | None]:
    """Judge each output and save it as it finishes; return the fault if saving failed."""
    from anyio import to_thread

    from closeloop.judges import evaluator

    evaluator.require_rubrics(panel, cases)
    saver = evaluator.EvaluationSaver(store, attempts)
    judged_cases = await evaluator.judge_each(panel, cases, saver.save_one)
    evaluations = evaluator.combine_evaluations(judged_cases)
    return await to_thread.run_sync(saver.save_all, evaluations)


async def judge_submission(
    panel: JudgePanel, submission: Submission, store: Store
) -> tuple[Evaluations, Fault | None]:
    """Judge submitted outputs, and save them as attempts at the tasks of their plan."""
    from anyio import to_thread

    from closeloop.judges.evaluator import cases_from_submission
    from closeloop.orchestration import plan_request
    from closeloop.records.errors import Fault

    submitted_at = datetime.now(UTC)
    judges = [judge.model for judge in panel.judges]
    plan = plan_request.open_handed_in_plan(submission, judges, submitted_at, store)
    submission = plan_request.submission_of_plan(submission, plan)
    evaluations, fault = await judge_outputs(panel, cases_from_submission(submission), store)
    if fault is not None:
        return evaluations, fault
    save = partial(
        plan_request.save_handed_in_plan, plan, submission, evaluations, submitted_at, store
    )
    try:
        return await to_thread.run_sync(save), None
    except Fault as error:
        return evaluations, error


async def learn_from_reviews(context: LearningContext, repo: str | None = None) -> LearningSummary:
    """Learn rules from review comments on agents' work, and find comments that repeat a rule."""
    from closeloop.reviews import rule_learning as learning
    from closeloop.reviews.pull_lifecycle import load_pull
    from closeloop.reviews.review_corrections import list_corrections

    store, total = context.store, learning.LearningSummary()
    for changed in learning.list_changed_pulls(context, repo):
        if context.stopped():
            return total
        pull = load_pull(changed.row.repo, changed.row.pull, store, context.agents)
        corrections, context_record = (
            list_corrections(pull),
            learning.find_context_record(store, pull),
        )
        withdrawn = learning.withdraw_corrections(context, pull, corrections)
        learned = await learning.learn_from_corrections(
            context, corrections, pull.opened, context_record
        )
        repeated = await learning.learn_from_findings(context, pull, context_record)
        learning.update_delivery(store, pull, compared=learning.was_compared(context, pull))
        if not learned.postponed + repeated.postponed:
            learning.mark_pull_learned(context, changed)
        pull_summary = learning.LearningSummary(pulls=1)
        total = learning.add_summaries(total, withdrawn, learned, repeated, pull_summary)
    for note in learning.list_changed_notes(context, repo):
        learned = await learning.learn_from_corrections(
            context, [note.correction], note.began, None, relearn=True
        )
        if not learned.postponed:
            learning.mark_note_learned(context, note)
        total = learning.add_summaries(total, learned)
    return total


async def deliver_request(
    request: DeliveryRequest, report_progress: DeliveryCallback = lambda progress: None
) -> DeliveryResult:
    """Turn a request into a branch or pull request; continue where an earlier call stopped."""
    from closeloop.metrics.attempt_measuring import measure_attempts, project_rulebook
    from closeloop.orchestration import request_delivery as delivery

    async with delivery.open_delivery(request, report_progress) as run:
        await delivery.require_host_access(run)
        work = await delivery.work_on_request(run)
        checked = await delivery.check_and_fix(run, work, check_change)
        checked = await delivery.check_fixed_change(run, work, checked, check_change)
        attempt = await delivery.save_delivered_attempt(run, checked)
        rows = run.store.list_attempts(task=attempt.task)
        list(measure_attempts(run.store, rows, project_rulebook(request.settings)))
        branch = await delivery.make_delivery_branch(run, attempt, checked)
        pull = await delivery.open_delivery_pull(run, attempt, branch, checked)
        return await delivery.finish_delivery(run, attempt, branch, pull, checked)
