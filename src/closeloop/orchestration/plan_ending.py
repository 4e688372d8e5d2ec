"""What came of a plan, told from its tries alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from closeloop.orchestration.plan_rates import sum_try_usage
from closeloop.records.attempt import CommandResult
from closeloop.records.orchestration import OrchestrationHistory, OrchestrationResult, SubtaskTry
from closeloop.records.usage_totals import sum_usage

MAX_LINE_CHARS = 300


def build_plan_ending(
    story: OrchestrationHistory,
    stopped: Mapping[str, str],
    held: str | None,
    checks: Sequence[CommandResult] = (),
) -> OrchestrationResult:
    """Passed when every task did and the whole does; without the attempt, made from this."""
    last = index_last_tries(story)
    verdicts = [
        find_subtask_result(last.get(task.id), task.id in stopped) for task in story.plan.tasks
    ]
    failures = describe_failing_checks(checks)
    verdicts += [False] * bool(failures)
    at = find_last_time(story)
    planning = story.plan.planning
    planning_usage = [planning.usage] if planning else []
    return OrchestrationResult(
        plan=story.plan.id,
        at=at,
        passed=False if False in verdicts else None if None in verdicts else True,
        summary="\n".join(
            [summarise_plan(story, stopped), *(f"All together: {one}" for one in failures)]
        ),
        held=held,
        checks=tuple(checks),
        not_begun={task: why for task, why in stopped.items() if task not in last},
        usage=sum_usage([*planning_usage, sum_try_usage(story.tries)]),
        seconds=(at - story.plan.at).total_seconds(),
    )


def describe_failing_checks(checks: Sequence[CommandResult]) -> list[str]:
    """What those commands say that did not succeed."""
    return [
        f"`{one.command}` fails ({one.stopped or f'exit code {one.exit_code}'}):\n{one.output}"
        for one in checks
        if one.exit_code != 0
    ]


def index_last_tries(story: OrchestrationHistory) -> dict[str, SubtaskTry]:
    """By task."""
    return {one.execution.task: one for one in story.tries}


def find_subtask_result(last: SubtaskTry | None, stopped: bool) -> bool | None:
    """A task that was not begun or not gone on with has not passed."""
    if last is None or (stopped and (last.assessment is None or not last.assessment.passed)):
        return False
    return last.assessment.passed if last.assessment else None


def find_last_time(story: OrchestrationHistory) -> datetime:
    """When the last thing happened that is kept."""
    moments = [story.plan.at, *(one.execution.ended for one in story.tries)]
    moments += [one.assessment.at for one in story.tries if one.assessment is not None]
    return max(moments)


def summarise_plan(story: OrchestrationHistory, stopped: Mapping[str, str]) -> str:
    """How many of what, then what is wrong with each task that did not pass."""
    last = index_last_tries(story)
    counts = {"passed": 0, "failed": 0, "without a verdict": 0, "not begun": 0}
    lines = []
    for task in story.plan.tasks:
        last_try = last.get(task.id)
        assessment = last_try.assessment if last_try else None
        if last_try is None:
            word, why = "not begun", stopped.get(task.id, "")
        elif assessment is None or assessment.passed is None:
            word, why = "without a verdict", (assessment.why if assessment else None) or ""
        elif assessment.passed:
            word, why = "passed", ""
        else:
            word, why = "failed", assessment.issues[0].text if assessment.issues else ""
        counts[word] += 1
        if word != "passed":
            lines.append(f"{task.id} {word}: {why}".rstrip(": ")[:MAX_LINE_CHARS])
    counts_text = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    task_count = len(story.plan.tasks)
    return "\n".join(
        [f"{task_count} {'task' if task_count == 1 else 'tasks'}: {counts_text}.", *lines[:20]]
    )
