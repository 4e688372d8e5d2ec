"""A try of a sub-agent judged: what the rules find in its trace, and what the judges say of it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from msgspec.structs import replace

from closeloop.attempts.run_resources import RunResources
from closeloop.judges.evaluator import cases_from_plan, evaluate_cases
from closeloop.judges.judge_cases import facts_from_findings
from closeloop.judges.judge_panel import JudgePanel
from closeloop.process.rulebook import Rulebook
from closeloop.process.trace_measurement import measure_reading
from closeloop.process.trace_reading import build_reading
from closeloop.records.errors import PluginFailed
from closeloop.records.evaluation import ComputedFact, JudgeVersion, RepositoryState, TaskOutput
from closeloop.records.orchestration import (
    Orchestration,
    SubtaskAssessment,
    SubtaskExecution,
    SubtaskResult,
)
from closeloop.text.redaction import redact_new_secrets, redact_patch


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
