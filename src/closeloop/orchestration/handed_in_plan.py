"""Plans that others carry out: what they hand in is kept as tries and verdicts, like our own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

from msgspec.structs import asdict, replace

from closeloop.agents.trace_recorder import replace_surrogates, shorten_middle
from closeloop.orchestration.plan_ending import (
    build_plan_ending,
    index_last_tries,
    scores_from_plan,
)
from closeloop.orchestration.subtask_execution import MAX_REPORT_CHARACTERS
from closeloop.orchestration.subtask_loop import ignores_feedback
from closeloop.records.attempt import Attempt
from closeloop.records.change import Change
from closeloop.records.errors import BadInput
from closeloop.records.evaluation import (
    ComputedFact,
    Evaluation,
    Evaluations,
    Submission,
    Subtask,
    TaskOutput,
)
from closeloop.records.experiment_plan import AttemptResult
from closeloop.records.orchestration import (
    Orchestration,
    OrchestrationHistory,
    OrchestrationResult,
    SubtaskAssessment,
    SubtaskExecution,
    SubtaskResult,
    SubtaskSpec,
    SubtaskTry,
)
from closeloop.records.record import content_digest
from closeloop.records.task import Variant
from closeloop.store import Store
from closeloop.text.patches import parse_patch
from closeloop.text.redaction import redact_patch, redact_text

UNKNOWN_NAME = "unknown"
OTHERS = "(handed in)"
"""Who works on a plan that closeloop does not carry out."""


def open_handed_in_plan(
    submission: Submission, judges: Sequence[str], at: datetime, store: Store
) -> Orchestration:
    """The plan that results belong to: a new one, or the one that they go on with."""
    if submission.continues is None:
        return Orchestration(
            id=content_digest(submission, at)[:12],
            at=at,
            request=redact_text(submission.request, {}),
            tasks=tuple(_spec_from_subtask(task) for task in submission.plan),
            worker=OTHERS,
            handed_in=True,
            judges=tuple(judges),
        )
    plan = store.plans.load_story(submission.continues).plan
    if not plan.handed_in:
        raise BadInput(
            f"Plan {plan.id} is carried out by closeloop:"
            f" `closeloop orchestrate --resume {plan.id}` goes on with it."
        )
    return plan


def submission_of_plan(submission: Submission, plan: Orchestration) -> Submission:
    """What is handed in, with the request and the tasks of the plan that it belongs to."""
    if submission.continues is None:
        return submission
    return replace(submission, request=plan.request, plan=plan.tasks)


def save_handed_in_plan(
    plan: Orchestration, submission: Submission, made: Evaluations, at: datetime, store: Store
) -> Evaluations:
    """Keep results and verdicts as the next tries of their tasks, and what the plan comes to."""
    if submission.continues is None:
        store.plans.save_plan(plan)
    outputs = {one.task: one for one in submission.results}
    earlier: dict[str, list[SubtaskTry]] = {}
    for one in store.plans.load_story(plan.id).tries:
        earlier.setdefault(one.execution.task, []).append(one)
    tried, assessed = [], []
    for evaluation in made.evaluations:
        before = earlier.get(evaluation.task, [])
        execution = _execution_from_output(plan, outputs[evaluation.task], len(before) + 1, at)
        execution = replace(execution, facts=_list_facts(submission.facts, evaluation.task))
        tried.append(SubtaskResult(execution=execution))
        assessed.append(_assessment_from_evaluation(execution, evaluation, before))
    store.plans.save(tried, assessed)
    story = store.plans.load_story(plan.id)
    ending = build_plan_ending(story, {}, None)
    if ending.passed is not None:
        ending = replace(ending, attempt=_save_plan_attempt(story, ending, store))
        store.scores.add_scores(scores_from_plan(story, ending))
    store.plans.save_ending(plan, ending)
    return replace(made, plan=plan.id, passed=ending.passed, summary=ending.summary)


def _save_plan_attempt(
    story: OrchestrationHistory, ending: OrchestrationResult, store: Store
) -> str:
    """The plan as one attempt, without a trace: nobody knows what its agents did."""
    last = [one.execution for one in index_last_tries(story).values()]
    agents, models = (_name_all(one.agent for one in last), _name_all(one.model for one in last))
    variant = Variant(
        name=agents or OTHERS,
        agent=agents or UNKNOWN_NAME,
        model=models,
        digest=content_digest("handed in", agents, models),
    )
    attempt = Attempt(
        id=content_digest("plan", story.plan.id, len(story.tries), ending.summary)[:12],
        origin="production",
        task=f"plan-{story.plan.id}",
        variant=variant.digest,
        started=story.plan.at,
        ended=ending.at,
        exit="finished",
        usage=ending.usage,
        summary=ending.summary,
        links={"plan": story.plan.id},
    )
    store.save_variant(variant)
    store.save_attempt(AttemptResult(attempt=attempt, change=_join_changes(last)))
    return attempt.id


def _name_all(names: Iterable[str | None]) -> str | None:
    """Those that are known, each once."""
    return ", ".join(dict.fromkeys(one for one in names if one not in (None, UNKNOWN_NAME))) or None


def _join_changes(last: Sequence[SubtaskExecution]) -> Change | None:
    """All changes as one; None where one cannot be read, or two change the same file."""
    try:
        change = parse_patch("".join(one.patch for one in last))
    except BadInput:
        return None
    paths = [file.path for file in change.files]
    return change if paths and len(paths) == len({*paths}) else None


def _spec_from_subtask(task: Subtask) -> SubtaskSpec:
    wanted = None if task.wanted is None else redact_text(task.wanted, {})
    fields = asdict(task) | {"prompt": redact_text(task.prompt, {}), "wanted": wanted}
    return SubtaskSpec(**fields)


def _execution_from_output(
    plan: Orchestration, output: TaskOutput, number: int, at: datetime
) -> SubtaskExecution:
    patch = redact_patch(output.change or "")
    try:
        files = tuple(file.path for file in parse_patch(patch).files)
    except BadInput:
        files = ()  # a judge reads it all the same
    report = replace_surrogates(redact_text(output.text, {}))
    return SubtaskExecution(
        plan=plan.id,
        task=output.task,
        number=number,
        variant=output.author or output.agent or UNKNOWN_NAME,
        agent=output.agent or UNKNOWN_NAME,
        model=output.author,
        brief="",
        exit="finished",
        report=shorten_middle(report, MAX_REPORT_CHARACTERS),
        patch=patch,
        files=files,
        usage=output.usage,
        started=at,
        ended=at,
        handed_in=True,
        told_seconds=output.seconds,
    )


def _list_facts(
    facts: Mapping[str, tuple[ComputedFact, ...]], task: str
) -> tuple[ComputedFact, ...]:
    return tuple(replace(one, text=redact_text(one.text, {})) for one in facts.get(task, ()))


def _assessment_from_evaluation(
    execution: SubtaskExecution, evaluation: Evaluation, before: Sequence[SubtaskTry]
) -> SubtaskAssessment:
    assessment = SubtaskAssessment(
        plan=execution.plan,
        task=execution.task,
        number=execution.number,
        passed=evaluation.passed,
        score=evaluation.score,
        issues=evaluation.issues,
        why=evaluation.abstained,
        evaluation=evaluation,
        at=datetime.now(UTC),
    )
    last = before[-1].assessment if before else None
    ignored = last is not None and ignores_feedback(assessment, last)
    return replace(assessment, ignored=ignored)
