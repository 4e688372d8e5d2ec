"""What came of a plan, told from its tries alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from closeloop.model.attempt import CommandResult
from closeloop.model.orchestration import Ending, PlanStory, Try
from closeloop.model.usage import total
from closeloop.runs.orchestrate.rates import used

LONGEST_LINE = 300


def ending(
    story: PlanStory,
    stopped: Mapping[str, str],
    held: str | None,
    checks: Sequence[CommandResult] = (),
) -> Ending:
    """Passed when every task did and the whole does; without the attempt, made from this."""
    last = last_tries(story)
    verdicts = [passed_of(last.get(task.id), task.id in stopped) for task in story.plan.tasks]
    wrong = failing(checks)
    verdicts += [False] * bool(wrong)
    at = last_moment(story)
    planning = story.plan.planning
    spent = [planning.usage] if planning else []
    return Ending(
        plan=story.plan.id,
        at=at,
        passed=False if False in verdicts else None if None in verdicts else True,
        summary="\n".join([summary(story, stopped), *(f"All together: {one}" for one in wrong)]),
        held=held,
        checks=tuple(checks),
        not_begun={task: why for task, why in stopped.items() if task not in last},
        usage=total([*spent, used(story.tries)]),
        seconds=(at - story.plan.at).total_seconds(),
    )


def failing(checks: Sequence[CommandResult]) -> list[str]:
    """What those commands say that did not succeed."""
    return [
        f"`{one.command}` fails ({one.stopped or f'exit code {one.exit_code}'}):\n{one.output}"
        for one in checks
        if one.exit_code != 0
    ]


def last_tries(story: PlanStory) -> dict[str, Try]:
    """By task."""
    return {one.execution.task: one for one in story.tries}


def passed_of(last: Try | None, stopped: bool) -> bool | None:
    """A task that was not begun or not gone on with has not passed."""
    if last is None or (stopped and (last.assessment is None or not last.assessment.passed)):
        return False
    return last.assessment.passed if last.assessment else None


def last_moment(story: PlanStory) -> datetime:
    """When the last thing happened that is kept."""
    moments = [story.plan.at, *(one.execution.ended for one in story.tries)]
    moments += [one.assessment.at for one in story.tries if one.assessment is not None]
    return max(moments)


def summary(story: PlanStory, stopped: Mapping[str, str]) -> str:
    """How many of what, then what is wrong with each task that did not pass."""
    last = last_tries(story)
    counts = {"passed": 0, "failed": 0, "without a verdict": 0, "not begun": 0}
    lines = []
    for task in story.plan.tasks:
        one = last.get(task.id)
        assessment = one.assessment if one else None
        if one is None:
            word, why = "not begun", stopped.get(task.id, "")
        elif assessment is None or assessment.passed is None:
            word, why = "without a verdict", (assessment.why if assessment else None) or ""
        elif assessment.passed:
            word, why = "passed", ""
        else:
            word, why = "failed", assessment.issues[0].text if assessment.issues else ""
        counts[word] += 1
        if word != "passed":
            lines.append(f"{task.id} {word}: {why}".rstrip(": ")[:LONGEST_LINE])
    told = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    many = len(story.plan.tasks)
    return "\n".join([f"{many} {'task' if many == 1 else 'tasks'}: {told}.", *lines[:20]])
