"""Cases for a judge: from a stored attempt, a patch, or a submission."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from graphlib import CycleError, TopologicalSorter

import msgspec

from closeloop.grading.tool_outcomes import tool_outcome
from closeloop.records.attempt import Grade
from closeloop.records.change import Change, ChangeReport, ToolRun
from closeloop.records.errors import BadInput
from closeloop.records.evaluation import (
    ComputedFact,
    JudgeCase,
    RepositoryState,
    RubricVerdict,
    Submission,
    Subtask,
    TaskOutput,
)
from closeloop.records.experiment_plan import AttemptDetails
from closeloop.records.finding import Finding
from closeloop.records.task import Task
from closeloop.records.trace import AnyEvent, Message
from closeloop.text.redaction import redact_new_secrets
from closeloop.text.untrusted import parse_json, read_record

MAX_SUBMISSION_BYTES = 64 << 20
MAX_FINDINGS = 20
MAX_TASKS = 1_000


def case_from_story(details: AttemptDetails, exact: Change | None = None) -> JudgeCase:
    """Build a case from an attempt, with its grade and findings as facts.

    A judge that reads files sees the exact change without the secrets in it.
    """
    task, attempt = details.task, details.attempt
    events = details.trace.events if details.trace else ()
    request = task.prompt if task else first_user_message(events)
    if not request:
        raise BadInput(f"Attempt {attempt.id} has no recorded request, so it cannot be judged.")
    planned = Subtask(
        id=task.id if task else attempt.id, prompt=request, wanted=task.rubric if task else None
    )
    session = details.session
    session_model = session.model if session else None
    output = TaskOutput(
        task=planned.id,
        text=attempt.summary or "",
        change=details.change.patch if details.change else None,
        reference=task.reference if task else None,
        author=details.variant.model if details.variant else session_model,
    )
    return JudgeCase(
        request=request,
        plan=(planned,),
        task=planned,
        output=output,
        facts=tuple(facts_from_story(details)),
        site=site_from_task(task, exact),
        base_known=task is not None and attempt.origin == "experiment",
    )


def site_from_task(task: Task | None, exact: Change | None) -> RepositoryState | None:
    if task is None or task.repo is None or task.base is None:
        return None
    change = None if exact is None else redact_new_secrets(exact.patch)
    return RepositoryState(repo=task.repo, commit=task.base, setup=task.setup, change=change)


def first_user_message(events: Sequence[AnyEvent]) -> str:
    """Return the user's first message, for work without a task."""
    user_messages = (
        event for event in events if isinstance(event, Message) and event.role == "user"
    )
    return next(
        (user_message.text for user_message in user_messages if user_message.text.strip()), ""
    )


def facts_from_story(details: AttemptDetails) -> Iterator[ComputedFact]:
    """Yield the facts from grading and rules."""
    if details.grade is not None:
        yield from facts_from_grade(details.grade, details.task)
    yield from facts_from_findings(details.measurement.findings)


def facts_from_findings(findings: Sequence[Finding]) -> Iterator[ComputedFact]:
    """Yield findings of rules as facts that inform and decide nothing."""
    active_findings = [finding for finding in findings if finding.silenced is None]
    for finding in active_findings[:MAX_FINDINGS]:
        location = f" ({finding.places[0]})" if finding.places else ""
        yield ComputedFact(name=f"finding {finding.rule}", text=f"{finding.message}{location}")


def facts_from_grade(grade: Grade, task: Task | None) -> Iterator[ComputedFact]:
    """Yield the results of the tests as facts that no judge can overrule."""
    outcome = grade.outcome
    if outcome.result != "unscored":
        passed = outcome.result == "pass"
        text = "All that must hold, holds." if passed else "; ".join(outcome.reasons[:5])
        yield ComputedFact(
            name="acceptance", verdict=_verdict_word(passed), text=text or "It fails.", blocks=True
        )
    if grade.pass_to_pass is not None:
        names = ", ".join(grade.broken[:5])
        text = f"Tests that passed before fail now: {names}" if names else "No test broke."
        # No broken test does not prove that nothing is wrong.
        yield ComputedFact(name="tests", verdict="no" if names else None, text=text)
    if task is not None and task.scope:
        outside = ", ".join(grade.out_of_scope[:5])
        text = f"Changed outside the scope: {outside}" if outside else "All within the scope."
        yield ComputedFact(name="scope", verdict=_verdict_word(not outside), text=text)
    if grade.files_precision is not None and grade.files_recall is not None:
        yield right_files_fact(grade.files_precision, grade.files_recall)
    if task is not None and task.ambiguous and grade.asked is not None:
        text = "A question came before the first edit." if grade.asked else "No question was asked."
        yield ComputedFact(name="asked", verdict=_verdict_word(grade.asked), text=text)


def _verdict_word(holds: bool) -> RubricVerdict:
    return "yes" if holds else "no"


def right_files_fact(precision: float, recall: float) -> ComputedFact:
    """Only the extremes decide: another solution may touch other files."""
    verdict: RubricVerdict | None = (
        "yes" if precision == recall == 1 else "no" if recall == 0 else None
    )
    text = (
        f"Of the changed files {precision:.0%} are in the reference, "
        f"of the reference's files {recall:.0%} are changed."
    )
    return ComputedFact(name="right-files", verdict=verdict, text=text)


def case_from_patch(
    patch: str,
    request: str,
    site: RepositoryState | None = None,
    report: ChangeReport | None = None,
) -> JudgeCase:
    """Build a case from a patch, with the results of its check as facts."""
    task = Subtask(id="change", prompt=request)
    return JudgeCase(
        request=request,
        plan=(task,),
        task=task,
        output=TaskOutput(task=task.id, change=patch),
        facts=tuple(facts_from_report(report)) if report else (),
        site=site,
    )


def facts_from_report(report: ChangeReport) -> Iterator[ComputedFact]:
    """Yield facts from the tiers: a change that must not be merged fails, whatever a judge says."""
    reasons = "; ".join(report.reasons[:5])
    if report.verdict == "block":
        yield ComputedFact(
            name="check", verdict="no", text=f"It must not be merged: {reasons}", blocks=True
        )
    else:
        yield ComputedFact(
            name="check", text=reasons or "Validation finds nothing that speaks against it."
        )
    for run in report.tools:
        name = "tests" if run.name == "test" else f"tool {run.name}"
        yield ComputedFact(name=name, verdict=tool_verdict(run), text=describe_tool_run(run))
    yield from facts_from_findings(report.findings)
    if report.risk is not None:
        risk_reasons = "; ".join(report.risk.reasons[:3])
        yield ComputedFact(name="risk", text=f"{report.risk.level}: {risk_reasons}")


def tool_verdict(run: ToolRun) -> RubricVerdict | None:
    """Only what the change broke decides: earlier failures are not its fault, and passes prove
    little."""
    return "no" if tool_outcome(run) == "broken" else None


def describe_tool_run(run: ToolRun) -> str:
    names = ", ".join(run.broke[:5])
    before = f" (before the change: {run.before})" if run.before else ""
    return f"`{run.command}`: {run.after}{before}{f'; broken: {names}' if names else ''}"


def read_submission(content: bytes, name: str) -> Submission:
    """Parse a submission from JSON; a fault names the field."""
    if len(content) > MAX_SUBMISSION_BYTES:
        raise BadInput(f"{name} is larger than {MAX_SUBMISSION_BYTES >> 20} MB: submit less.")
    return complete_submission(read_record(parse_json(content, name), Submission, name), name)


def complete_submission(submission: Submission, name: str) -> Submission:
    """Return the submission with a plan; BadInput if it cannot be judged."""
    if not submission.request.strip():
        raise BadInput(f"{name} has no request: add `request`.")
    if not submission.results:
        raise BadInput(f"{name} has no results to evaluate: add some.")
    if max(len(submission.results), len(submission.plan)) > MAX_TASKS:
        raise BadInput(f"{name} has more than {MAX_TASKS:,} subtasks: submit fewer at a time.")
    names = [result.task for result in submission.results]
    repeated_task = next((task for task in names if names.count(task) > 1), None)
    if repeated_task is not None:
        raise BadInput(f"{name} has two results for subtask {repeated_task!r}: submit one.")
    if submission.plan or submission.continues is not None:
        return submission
    plan = tuple(Subtask(id=task, prompt=submission.request) for task in names)
    return msgspec.structs.replace(submission, plan=plan)


# Order tasks by their dependencies.


def sort_by_dependencies(tasks: Sequence[Subtask]) -> list[Subtask]:
    """Sort tasks after their dependencies; BadInput if there is no such order."""
    counts = Counter(task.id for task in tasks)
    repeated_ids = [name for name, count in counts.items() if count > 1]
    if repeated_ids:
        raise BadInput(
            f"The plan has {counts[repeated_ids[0]]} subtasks {repeated_ids[0]!r}: "
            "give each its own id."
        )
    by_id = {task.id: task for task in tasks}
    for task in tasks:
        for name in task.depends_on:
            if name not in by_id:
                raise BadInput(
                    f"Subtask {task.id!r} depends on {name!r}, which is not in the plan: add it."
                )
    try:
        order = list(TopologicalSorter({task.id: task.depends_on for task in tasks}).static_order())
    except CycleError as error:
        circle = " → ".join(map(repr, error.args[1]))
        raise BadInput(
            f"The dependencies of the plan contain a cycle: {circle}. Remove one of them."
        ) from None
    return [by_id[name] for name in order]
