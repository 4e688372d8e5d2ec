"""Cases for a judge: from an attempt with what is known of it, a patch, or what others hand in."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from closeloop.model.attempt import Grade
from closeloop.model.errors import BadInput
from closeloop.model.evaluation import Case, Fact, Output, PlanTask, Submission, Verdict
from closeloop.model.plan import Story
from closeloop.model.reading import read_record
from closeloop.model.task import Task
from closeloop.model.trace import Message

LARGEST = 64 << 20
MOST_FINDINGS = 20


def case_of(story: Story) -> Case:
    """An attempt, with its grade and the findings of the rules as facts."""
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
    )


def first_request(story: Story) -> str:
    """What the user said first, of work that was not ours to ask."""
    events = story.trace.events if story.trace else ()
    said = (one for one in events if isinstance(one, Message) and one.role == "user")
    return next((one.text for one in said if one.text.strip()), "")


def facts_of(story: Story) -> Iterator[Fact]:
    """What grading and the rules found."""
    if story.grade is not None:
        yield from graded(story.grade, story.task)
    told = [one for one in story.measurement.findings if one.silenced is None]
    for finding in told[:MOST_FINDINGS]:
        yield Fact(name=f"finding {finding.rule}", text=finding.message)


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
        yield Fact(name="tests", verdict=_word(not names), text=text)
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


def case_of_patch(patch: str, request: str) -> Case:
    """A change by itself."""
    task = PlanTask(id="change", prompt=request)
    output = Output(task=task.id, change=patch)
    return Case(request=request, plan=(task,), task=task, output=output)


def read_submission(content: bytes, name: str) -> Submission:
    """What others hand in, as JSON; a fault names the field."""
    if len(content) > LARGEST:
        raise BadInput(f"{name} is over {LARGEST >> 20} MB: hand in less.")
    try:
        written = msgspec.json.decode(content)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadInput(f"{name} is not JSON: {error}.") from None
    submission = read_record(written, Submission, name)
    if not submission.results:
        raise BadInput(f"{name} has no results to evaluate: add some.")
    names = [one.task for one in submission.results]
    twice = next((task for task in names if names.count(task) > 1), None)
    if twice is not None:
        raise BadInput(f"{name} has two results for task {twice!r}: hand in one.")
    if submission.plan:
        return submission
    plan = tuple(PlanTask(id=task, prompt=submission.request) for task in names)
    return msgspec.structs.replace(submission, plan=plan)
