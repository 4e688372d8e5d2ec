"""One trace of a whole plan: the orchestrator's lane, and one for every try of a sub-agent.

It is made from what is kept alone, so that the same tries always give the same trace.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from closeloop.records.attempt import CommandResult
from closeloop.records.orchestration import (
    OrchestrationHistory,
    OrchestrationResult,
    SubtaskExecution,
    SubtaskTry,
)
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
