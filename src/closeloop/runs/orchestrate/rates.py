"""How well a plan went: at first, after feedback, in the end, and what trying again cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from closeloop.model.attempt import Usage
from closeloop.model.orchestration import PlanStory, Try
from closeloop.model.rates import Rate, rate
from closeloop.model.record import Record
from closeloop.model.usage import total


class Rates(Record):
    """Three rates that are never mixed; None where there is nothing to count."""

    first_try: Rate | None
    """Tasks that passed at once, of those whose first try has a verdict."""
    after_feedback: Rate | None
    """Tasks that passed later, of those that failed first and were tried again."""
    final: Rate | None
    """Tasks that passed in the end, of those whose last try has a verdict."""
    ignored: int
    """Tries that mended nothing of what was wrong."""
    usage: Usage
    """Of all work and all judging; planning is not in it."""
    retry_usage: Usage
    """Of that, what tries after the first that counts took; what the machine lost is no first."""
    retry_seconds: float


def rates(story: PlanStory) -> Rates:
    """Over the tasks of one plan."""
    scored = [tries for task in story.plan.tasks if (tries := _scored(task.id, story.tries))]
    verdicts = [[_passed(one) for one in tries] for tries in scored]
    later = [one for tries in scored for one in tries[1:]]
    return Rates(
        first_try=_share(each[0] for each in verdicts),
        after_feedback=_share(each[-1] for each in verdicts if each[0] is False and len(each) > 1),
        final=_share(each[-1] for each in verdicts),
        ignored=sum(bool(one.assessment and one.assessment.ignored) for one in story.tries),
        usage=used(story.tries),
        retry_usage=used(later),
        retry_seconds=sum(one.execution.seconds for one in later),
    )


def _scored(task: str, tries: Sequence[Try]) -> list[Try]:
    """The tries at a task, without those that the machine lost."""
    return [one for one in tries if one.execution.task == task and one.execution.exit != "machine"]


def _passed(one: Try) -> bool | None:
    return None if one.assessment is None else one.assessment.passed


def _share(verdicts: Iterable[bool | None]) -> Rate | None:
    """Of those that are some."""
    known = [passed for passed in verdicts if passed is not None]
    return rate(sum(known), len(known))


def used(tries: Iterable[Try]) -> Usage:
    """What some tries and the judging of them took."""
    return total(part for one in tries for part in _parts(one))


def _parts(one: Try) -> Iterable[Usage]:
    yield one.execution.usage
    yield one.judged_before
    if one.assessment is not None and one.assessment.evaluation is not None:
        yield one.assessment.evaluation.usage
