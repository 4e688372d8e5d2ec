"""How well a plan went: at first, after feedback, in the end, and what trying again cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from closeloop.records.attempt import Usage
from closeloop.records.orchestration import OrchestrationHistory, SubtaskTry
from closeloop.records.rates import Rate, wilson_rate
from closeloop.records.record import Record
from closeloop.records.usage_totals import sum_usage


class PlanRates(Record):
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


def measure_plan_rates(story: OrchestrationHistory) -> PlanRates:
    """Over the tasks of one plan."""
    tries_by_task = [
        tries for task in story.plan.tasks if (tries := _scored_tries(task.id, story.tries))
    ]
    verdicts = [[_try_result(one) for one in tries] for tries in tries_by_task]
    later_tries = [one for tries in tries_by_task for one in tries[1:]]
    return PlanRates(
        first_try=_pass_rate(each[0] for each in verdicts),
        after_feedback=_pass_rate(
            each[-1] for each in verdicts if each[0] is False and len(each) > 1
        ),
        final=_pass_rate(each[-1] for each in verdicts),
        ignored=sum(bool(one.assessment and one.assessment.ignored) for one in story.tries),
        usage=sum_try_usage(story.tries),
        retry_usage=sum_try_usage(later_tries),
        retry_seconds=sum(one.execution.seconds for one in later_tries),
    )


def _scored_tries(task: str, tries: Sequence[SubtaskTry]) -> list[SubtaskTry]:
    """The tries at a task, without those that the machine lost."""
    return [one for one in tries if one.execution.task == task and one.execution.exit != "machine"]


def _try_result(one: SubtaskTry) -> bool | None:
    return None if one.assessment is None else one.assessment.passed


def _pass_rate(verdicts: Iterable[bool | None]) -> Rate | None:
    """Of those that are some."""
    known = [passed for passed in verdicts if passed is not None]
    return wilson_rate(sum(known), len(known))


def sum_try_usage(tries: Iterable[SubtaskTry]) -> Usage:
    """What some tries and the judging of them took."""
    return sum_usage(part for one in tries for part in _usage_parts(one))


def _usage_parts(one: SubtaskTry) -> Iterable[Usage]:
    yield one.execution.usage
    yield one.judged_before
    if one.assessment is not None and one.assessment.evaluation is not None:
        yield one.assessment.evaluation.usage
