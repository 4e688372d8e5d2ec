"""What came of a plan: its result, its rates, and one trace of all of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from statistics import fmean

from msgspec.structs import replace

from closeloop.records.attempt import CommandResult, Usage, sum_usage
from closeloop.records.estimate import Rate, wilson_rate
from closeloop.records.evaluation import CRITERIA
from closeloop.records.orchestration import (
    OrchestrationHistory,
    OrchestrationResult,
    SubtaskExecution,
    SubtaskTry,
)
from closeloop.records.record import Record
from closeloop.records.score import Score
from closeloop.records.trace import (
    AnyEvent,
    Command,
    Handoff,
    Intent,
    Lane,
    Message,
    Note,
    Trace,
    Turn,
)

# How well a plan went: at first, after feedback, in the end, and what trying again cost.


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
    retry_seconds: float | None
    """None where that of some of them is not known."""


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
        retry_seconds=_sum_known([one.execution.seconds for one in later_tries]),
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


def _sum_known(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def sum_try_usage(tries: Iterable[SubtaskTry]) -> Usage:
    """What some tries and the judging of them took."""
    return sum_usage(part for one in tries for part in _usage_parts(one))


def _usage_parts(one: SubtaskTry) -> Iterable[Usage]:
    yield one.execution.usage
    yield one.judged_before
    if one.assessment is not None and one.assessment.evaluation is not None:
        yield one.assessment.evaluation.usage


MAX_LINE_CHARS = 300


def build_plan_ending(
    story: OrchestrationHistory,
    stopped: Mapping[str, str],
    held: str | None,
    checks: Sequence[CommandResult] = (),
    broken_by: Mapping[str, str] | None = None,
) -> OrchestrationResult:
    """Passed when every task did and the whole does; without the attempt, made from this."""
    last = index_last_tries(story)
    verdicts = [
        find_subtask_result(last.get(task.id), task.id in stopped)
        if task.id in last or not story.plan.handed_in
        else None  # its result may come yet
        for task in story.plan.tasks
    ]
    failures = describe_failing_checks(checks, broken_by)
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
        broken_by=dict(broken_by or {}),
        not_begun={task: why for task, why in stopped.items() if task not in last},
        usage=sum_usage([*planning_usage, sum_try_usage(story.tries)]),
        seconds=(at - story.plan.at).total_seconds(),
    )


def scores_from_plan(story: OrchestrationHistory, ending: OrchestrationResult) -> list[Score]:
    """What the judge says of a plan's attempt: the verdict on the whole, else means over tasks.

    None where a task has no verdict, or judges of several versions gave them.
    """
    last = index_last_tries(story).values()
    assessed = [one.assessment for one in last if one.assessment is not None]
    made = [one.evaluation for one in assessed if one.evaluation is not None]
    versions = {one.judge for one in made}
    if len(made) < len(story.plan.tasks) or len(versions) != 1 or ending.attempt is None:
        return []
    values: dict[str, list[float | None]] = {
        "judge-score": [one.score for one in assessed],
        **{name: [one.criterion_score(name) for one in made] for name in CRITERIA},
    }
    means = {name: fmean(known) for name, each in values.items() if (known := _all_known(each))}
    verdict = {} if ending.passed is None else {"would-merge": float(ending.passed)}
    (version,) = versions
    return [
        Score(
            attempt=ending.attempt,
            name=name,
            value=value,
            source="judge",
            version=version,
            by=version,
            at=ending.at,
        )
        for name, value in {**verdict, **means}.items()
    ]


def _all_known(values: Sequence[float | None]) -> list[float]:
    known = [value for value in values if value is not None]
    return known if len(known) == len(values) else []


def describe_failing_checks(
    checks: Sequence[CommandResult], broken_by: Mapping[str, str] | None = None
) -> list[str]:
    """What those commands say that did not succeed, and whose change breaks them."""
    return [
        f"`{one.command}` fails ({one.stopped or f'exit code {one.exit_code}'})"
        + (f", broken by the change of {breaker}" if breaker else "")
        + (f":\n{one.output}" if one.output.strip() else ", and prints nothing")
        for one in checks
        if one.exit_code != 0
        for breaker in [(broken_by or {}).get(one.command)]
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


def is_finished(story: OrchestrationHistory) -> bool:
    """Whether nothing has come since it ended."""
    return story.ending is not None and story.ending.at == find_last_time(story)


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


# One trace of a whole plan: the orchestrator's lane, and one for every try of a sub-agent.
#
# It is made from what is kept alone, so that the same tries always give the same trace.

ORCHESTRATOR, ORCHESTRATOR_VERSION = "orchestrator", 1
ROOT_LANE = "root"
TracesByTry = Mapping[tuple[str, int], Trace]
"""By task and try."""
MAX_VERDICT_CHARS = 4_000


def merge_plan_traces(
    story: OrchestrationHistory, traces: TracesByTry, end: OrchestrationResult
) -> Trace:
    """Handoffs in the order they were made, each with what its agent did and what became of it."""
    planning = story.plan.planning
    turns = [Turn(usage=planning.usage, model=planning.model)] if planning else []
    events: list[AnyEvent] = [*opening_events(story, turns)]
    lanes: list[Lane] = []
    skipped: Counter[str] = Counter()
    for subtask_try in story.tries:
        execution = subtask_try.execution
        name = f"{execution.task}.{execution.number}"
        trace = traces.get((execution.task, execution.number)) or Trace(
            reader=ORCHESTRATOR, reader_version=ORCHESTRATOR_VERSION
        )
        lanes += child_lanes(trace, name, execution)
        skipped.update(trace.skipped)
        events += [build_handoff(execution, name), *move_events_to_lane(trace, name)]
        if subtask_try.assessment is not None and subtask_try.assessment.evaluation is not None:
            turns.append(
                Turn(usage=subtask_try.assessment.evaluation.usage, at=subtask_try.assessment.at)
            )
        events += [
            *check_command_events(execution.checks),
            orchestrator_message(describe_verdict(subtask_try), turns),
        ]
    events += [*check_command_events(end.checks), orchestrator_message(end.summary, turns, "claim")]
    return Trace(
        reader=ORCHESTRATOR,
        reader_version=ORCHESTRATOR_VERSION,
        lanes=(Lane(id=ROOT_LANE, agent=ORCHESTRATOR, turns=tuple(turns)), *lanes),
        events=tuple(replace(event, number=place) for place, event in enumerate(events, 1)),
        skipped=dict(skipped),
    )


def opening_events(story: OrchestrationHistory, turns: Sequence[Turn]) -> Iterator[AnyEvent]:
    """What was asked, what was found out, and the plan."""
    plan = story.plan
    yield Message(
        number=0, lane=ROOT_LANE, role="user", text=plan.request, intent="request", at=plan.at
    )
    if plan.about:
        yield Note(number=0, lane=ROOT_LANE, about="discovery", text=plan.about)
    yield orchestrator_message(describe_plan(story), turns)


def orchestrator_message(text: str, turns: Sequence[Turn], intent: Intent | None = None) -> Message:
    turn = len(turns) or None
    return Message(number=0, lane=ROOT_LANE, role="agent", text=text, intent=intent, turn=turn)


def check_command_events(checks: Sequence[CommandResult]) -> Iterator[Command]:
    """Commands that the orchestrator ran itself."""
    for check in checks:
        yield Command(
            number=0,
            lane=ROOT_LANE,
            command=check.command,
            output=check.output,
            exit_code=check.exit_code,
            exit_from=None if check.exit_code is None else "stated",
            stopped=check.stopped,
            seconds=check.seconds,
        )


def build_handoff(made: SubtaskExecution, name: str) -> Handoff:
    return Handoff(
        number=0,
        lane=ROOT_LANE,
        brief=made.brief,
        child=name,
        report=made.report or None,
        ok=made.exit == "finished",
        at=made.started,
        seconds=made.seconds,
    )


def move_events_to_lane(trace: Trace, name: str) -> Iterator[AnyEvent]:
    """What one agent did, in lanes that are its own in the trace of the plan."""
    for event in trace.events:
        moved = replace(event, lane=name_child_lane(event.lane, trace, name))
        if isinstance(moved, Handoff) and moved.child is not None:
            moved = replace(moved, child=name_child_lane(moved.child, trace, name))
        yield moved


def describe_plan(story: OrchestrationHistory) -> str:
    tasks = [
        f"- {task.id}" + (f", after {', '.join(task.depends_on)}" if task.depends_on else "")
        for task in story.plan.tasks
    ]
    return "\n".join(["The plan:", *tasks])


def describe_verdict(one: SubtaskTry) -> str:
    """What the orchestrator made of what came back."""
    execution, assessment = one.execution, one.assessment
    files = ", ".join(execution.files[:20])
    lines = [f"{execution.task} came back from try {execution.number}."]
    if assessment is None or assessment.passed is None:
        lines.append(f"There is no verdict: {assessment.why if assessment else 'not judged'}.")
    elif assessment.passed:
        lines.append(f"It is accepted, and its change is merged: {files or 'no files'}.")
    else:
        lines.append(f"It is not accepted; it changed {files or 'no files'}.")
    lines += [f"- {issue.text}" for issue in assessment.issues] if assessment else []
    return "\n".join(lines)[:MAX_VERDICT_CHARS]


def child_lanes(trace: Trace, name: str, made: SubtaskExecution) -> Iterator[Lane]:
    """The lanes of one try, under the orchestrator's."""
    for lane in trace.lanes or (Lane(id=ROOT_LANE, agent=made.agent),):
        parent = ROOT_LANE if lane.parent is None else name_child_lane(lane.parent, trace, name)
        yield replace(lane, id=name_child_lane(lane.id, trace, name), parent=parent)


def name_child_lane(lane: str, trace: Trace, name: str) -> str:
    """What a lane of a try is called in the trace of the plan: its first has the try's name."""
    first = trace.lanes[0].id if trace.lanes else lane
    return name if lane == first else f"{name}/{lane}"
