"""A try of a sub-agent judged: what the rules find in its trace, and what the judges say of it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from msgspec.structs import replace

from closeloop.attempts.run_resources import RunResources
from closeloop.changes.change_check import CheckRequest
from closeloop.changes.change_mending import list_blocking_in_patch
from closeloop.concurrency import compute_in_thread
from closeloop.judges.evaluator import cases_from_plan, evaluate_cases
from closeloop.judges.judge_cases import facts_from_findings
from closeloop.judges.judge_panel import JudgePanel
from closeloop.orchestration.subtask_loop import SubtaskOrder
from closeloop.process.rulebook import Rulebook
from closeloop.process.trace_measurement import measure_reading
from closeloop.process.trace_reading import build_reading
from closeloop.records.errors import Fault, PluginFailed
from closeloop.records.evaluation import ComputedFact, JudgeVersion, RepositoryState, TaskOutput
from closeloop.records.orchestration import (
    Orchestration,
    SubtaskAssessment,
    SubtaskExecution,
    SubtaskResult,
)
from closeloop.text.redaction import redact_new_secrets, redact_patch

DEFAULT_CACHE = ".closeloop/cache"
MAX_ERRORS = 20
"""So many errors of a try's code are told to whoever tries again."""


def with_rule_findings(tried: SubtaskResult, rules: Rulebook) -> SubtaskResult:
    """With what the rules say of how it was worked on, among the facts for the judge."""
    if tried.trace is None:
        return tried
    try:
        facts = [
            *facts_from_findings(
                measure_reading(build_reading(tried.trace, rules.own_checks), rules).findings
            )
        ]
    except PluginFailed as fault:
        facts = [ComputedFact(name="rules", text=str(fault))]  # the try is paid for, and kept
    execution = replace(tried.execution, facts=(*tried.execution.facts, *facts))
    return replace(tried, execution=execution)


async def with_quality_errors(
    tried: SubtaskResult, order: SubtaskOrder, tools: RunResources
) -> SubtaskResult:
    """With the errors that checks of its code find: like a failing command, they send it back."""
    execution, plan = tried.execution, order.plan
    repository = Path(tools.root, plan.repo) if plan.repo else None
    if not (repository and repository.is_dir() and plan.base and execution.patch.strip()):
        return tried
    request = CheckRequest(
        root=repository,
        cache=tools.root / (tools.settings.cache or DEFAULT_CACHE),
        settings=tools.settings.check,
        silences=tools.settings.silence,
    )
    patch = "".join(one.patch for one in order.beneath) + execution.patch
    try:
        found = await compute_in_thread(list_blocking_in_patch, request, plan.base, patch)
    except (Fault, OSError):
        return tried  # whether the changes go together is told elsewhere
    errors = [
        f"{one.places[0]}: {one.message} ({one.rule})"
        for one in found
        if one.places[0].rpartition(":")[0] in execution.files
    ]
    if not errors:
        return tried
    text = redact_new_secrets("\n".join(errors[:MAX_ERRORS]))
    fact = ComputedFact(name="code-quality", verdict="no", text=text, blocks=True)
    return replace(tried, execution=replace(execution, facts=(*execution.facts, fact)))


async def judge_execution(
    plan: Orchestration,
    execution: SubtaskExecution,
    bench: JudgePanel,
    tools: RunResources,
    beneath: Sequence[str],
) -> tuple[SubtaskAssessment, tuple[JudgeVersion, ...]]:
    """What the judges say of one try, its facts first, and who they are."""
    name = execution.task
    patch = redact_patch(execution.patch)
    output = TaskOutput(
        task=name, text=execution.report, change=patch or None, author=execution.model
    )
    cases = cases_from_plan(plan.request, plan.tasks, {name: output}, {name: execution.facts})
    site = find_judge_site(plan, tools, [*map(redact_new_secrets, beneath)])
    if site is not None:
        site = replace(site, change=redact_new_secrets(execution.patch))
    evaluations = await evaluate_cases(bench, [replace(case, site=site) for case in cases])
    evaluation = evaluations.evaluations[0]
    return (
        SubtaskAssessment(
            plan=plan.id,
            task=name,
            number=execution.number,
            passed=evaluation.passed,
            score=evaluation.score,
            issues=evaluation.issues,
            why=evaluation.abstained,
            evaluation=evaluation,
            at=datetime.now(UTC),
        ),
        evaluations.judges,
    )


def find_judge_site(
    plan: Orchestration, tools: RunResources, beneath: Sequence[str]
) -> RepositoryState | None:
    """Where a judge that looks finds what a try was made on top of."""
    if plan.repo is None or plan.base is None:
        return None
    setup = tools.settings.commands.setup
    return RepositoryState(repo=plan.repo, commit=plan.base, setup=setup, beneath=tuple(beneath))
