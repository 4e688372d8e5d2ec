"""Cases for a judge: from an attempt with what is known of it, a patch, or what others hand in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from closeloop.changes.tool_outcomes import outcome_of
from closeloop.model.attempt import Grade
from closeloop.model.change import Change
from closeloop.model.errors import BadInput
from closeloop.model.evaluation import Case, Fact, Output, PlanTask, Site, Submission, Verdict
from closeloop.model.finding import Finding
from closeloop.model.patch_redaction import redact_new_secrets
from closeloop.model.plan import Story
from closeloop.model.reading import read_json, read_record
from closeloop.model.report import Report, ToolRun
from closeloop.model.task import Task
from closeloop.model.trace import Message

LARGEST = 64 << 20
MOST_FINDINGS = 20
MOST_TASKS = 1_000


def case_of(story: Story, exact: Change | None = None) -> Case:
    """An attempt, with its grade and the findings of the rules as facts.

    A judge that looks at files sees the exact change without the secrets that it brings in.
    """
    task, attempt = story.task, story.attempt
    request = task.prompt if task else first_request(story)
    if not request:
        raise BadInput(f"Attempt {attempt.id} has no request on record: it cannot be judged.")
    planned = PlanTask(
        id=task.id if task else attempt.id, prompt=request, wanted=task.rubric if task else None
    )
    session = story.session
    heard = session.model if session else None
    output = Output(
        task=planned.id,
        text=attempt.summary or "",
        change=story.change.patch if story.change else None,
        reference=task.reference if task else None,
        author=story.variant.model if story.variant else heard,
    )
    return Case(
        request=request,
        plan=(planned,),
        task=planned,
        output=output,
        facts=tuple(facts_of(story)),
        site=site_of(task, exact),
    )


def site_of(task: Task | None, exact: Change | None) -> Site | None:
    if task is None or task.repo is None or task.base is None:
        return None
    change = None if exact is None else redact_new_secrets(exact.patch)
    return Site(repo=task.repo, commit=task.base, setup=task.setup, change=change)


def first_request(story: Story) -> str:
    """What the user said first, of work that was not ours to ask."""
    events = story.trace.events if story.trace else ()
    said = (one for one in events if isinstance(one, Message) and one.role == "user")
    return next((one.text for one in said if one.text.strip()), "")


def facts_of(story: Story) -> Iterator[Fact]:
    """What grading and the rules found."""
    if story.grade is not None:
        yield from graded(story.grade, story.task)
    yield from found(story.measurement.findings)


def found(findings: Sequence[Finding]) -> Iterator[Fact]:
    """What rules found is told, and decides nothing."""
    counted = [one for one in findings if one.silenced is None]
    for finding in counted[:MOST_FINDINGS]:
        place = f" ({finding.places[0]})" if finding.places else ""
        yield Fact(name=f"finding {finding.rule}", text=f"{finding.message}{place}")


def graded(grade: Grade, task: Task | None) -> Iterator[Fact]:
    """What the tests say stands, whatever a judge would say."""
    outcome = grade.outcome
    if outcome.result != "unscored":
        passed = outcome.result == "pass"
        text = "All that must hold, holds." if passed else "; ".join(outcome.reasons[:5])
        yield Fact(name="acceptance", verdict=_word(passed), text=text or "It fails.", blocks=True)
    if grade.pass_to_pass is not None:
        names = ", ".join(grade.broken[:5])
        text = f"Tests that passed before fail now: {names}" if names else "No test broke."
        # That no test broke does not show that nothing is wrong.
        yield Fact(name="tests", verdict="no" if names else None, text=text)
    if task is not None and task.scope:
        outside = ", ".join(grade.out_of_scope[:5])
        text = f"Changed outside the scope: {outside}" if outside else "All within the scope."
        yield Fact(name="scope", verdict=_word(not outside), text=text)
    if grade.files_precision is not None and grade.files_recall is not None:
        yield right_files(grade.files_precision, grade.files_recall)
    if task is not None and task.ambiguous and grade.asked is not None:
        text = "A question came before the first edit." if grade.asked else "No question was asked."
        yield Fact(name="asked", verdict=_word(grade.asked), text=text)


def _word(holds: bool) -> Verdict:
    return "yes" if holds else "no"


def right_files(precision: float, recall: float) -> Fact:
    """Only the extremes decide: another way to do it may touch other files."""
    verdict: Verdict | None = "yes" if precision == recall == 1 else "no" if recall == 0 else None
    text = (
        f"Of the changed files {precision:.0%} are in the reference, "
        f"of the reference's files {recall:.0%} are changed."
    )
    return Fact(name="right-files", verdict=verdict, text=text)


def case_of_patch(
    patch: str, request: str, site: Site | None = None, report: Report | None = None
) -> Case:
    """A change by itself, with what its validation says as facts."""
    task = PlanTask(id="change", prompt=request)
    return Case(
        request=request,
        plan=(task,),
        task=task,
        output=Output(task=task.id, change=patch),
        facts=tuple(validated(report)) if report else (),
        site=site,
    )


def validated(report: Report) -> Iterator[Fact]:
    """What the tiers say: a change that must not be merged fails, whatever a judge would say."""
    reasons = "; ".join(report.reasons[:5])
    if report.verdict == "block":
        yield Fact(
            name="check", verdict="no", text=f"It must not be merged: {reasons}", blocks=True
        )
    else:
        yield Fact(name="check", text=reasons or "Validation finds nothing that speaks against it.")
    for run in report.tools:
        name = "tests" if run.name == "test" else f"tool {run.name}"
        yield Fact(name=name, verdict=tool_verdict(run), text=told_tool(run))
    yield from found(report.findings)
    if report.risk is not None:
        why = "; ".join(report.risk.reasons[:3])
        yield Fact(name="risk", text=f"{report.risk.level}: {why}")


def tool_verdict(run: ToolRun) -> Verdict | None:
    """Only what the change broke decides: red before is not its doing, and green proves little."""
    return "no" if outcome_of(run) == "broken" else None


def told_tool(run: ToolRun) -> str:
    names = ", ".join(run.broke[:5])
    before = f" (before the change: {run.before})" if run.before else ""
    return f"`{run.command}`: {run.after}{before}{f'; broken: {names}' if names else ''}"


def read_submission(content: bytes, name: str) -> Submission:
    """What others hand in, as JSON; a fault names the field."""
    if len(content) > LARGEST:
        raise BadInput(f"{name} is over {LARGEST >> 20} MB: hand in less.")
    return whole(read_record(read_json(content, name), Submission, name), name)


def whole(submission: Submission, name: str) -> Submission:
    """With a plan; BadInput for one that cannot be judged."""
    if not submission.request.strip():
        raise BadInput(f"{name} has no request: say what was asked for.")
    if not submission.results:
        raise BadInput(f"{name} has no results to evaluate: add some.")
    if max(len(submission.results), len(submission.plan)) > MOST_TASKS:
        raise BadInput(f"{name} has more than {MOST_TASKS:,} tasks: hand in fewer at a time.")
    names = [one.task for one in submission.results]
    twice = next((task for task in names if names.count(task) > 1), None)
    if twice is not None:
        raise BadInput(f"{name} has two results for task {twice!r}: hand in one.")
    if submission.plan:
        return submission
    plan = tuple(PlanTask(id=task, prompt=submission.request) for task in names)
    return msgspec.structs.replace(submission, plan=plan)
