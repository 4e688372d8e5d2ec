"""One trace of a whole plan: the orchestrator's lane, and one for every try of a sub-agent.

It is made from what is kept alone, so that the same tries always give the same trace.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from closeloop.model.attempt import CommandResult
from closeloop.model.orchestration import Ending, Execution, PlanStory, Try
from closeloop.model.trace import (
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

READER, VERSION = "orchestrator", 1
ROOT = "root"
Traces = Mapping[tuple[str, int], Trace]
"""By task and try."""
LONGEST = 4_000


def joined(story: PlanStory, traces: Traces, end: Ending) -> Trace:
    """Handoffs in the order they were made, each with what its agent did and what became of it."""
    planning = story.plan.planning
    turns = [Turn(usage=planning.usage, model=planning.model)] if planning else []
    told: list[AnyEvent] = [*beginning(story, turns)]
    lanes: list[Lane] = []
    skipped: Counter[str] = Counter()
    for one in story.tries:
        made = one.execution
        name = f"{made.task}.{made.number}"
        trace = traces.get((made.task, made.number)) or Trace(reader=READER, reader_version=VERSION)
        lanes += child_lanes(trace, name, made)
        skipped.update(trace.skipped)
        told += [handoff(made, name), *renamed(trace, name)]
        if one.assessment is not None and one.assessment.evaluation is not None:
            turns.append(Turn(usage=one.assessment.evaluation.usage, at=one.assessment.at))
        told += [*checked(made.checks), said(verdict_told(one), turns)]
    told += [*checked(end.checks), said(end.summary, turns, "claim")]
    return Trace(
        reader=READER,
        reader_version=VERSION,
        lanes=(Lane(id=ROOT, agent=READER, turns=tuple(turns)), *lanes),
        events=tuple(replace(event, number=place) for place, event in enumerate(told, 1)),
        skipped=dict(skipped),
    )


def beginning(story: PlanStory, turns: Sequence[Turn]) -> Iterator[AnyEvent]:
    """What was asked, what was found out, and the plan."""
    plan = story.plan
    yield Message(number=0, lane=ROOT, role="user", text=plan.request, intent="request", at=plan.at)
    if plan.about:
        yield Note(number=0, lane=ROOT, about="discovery", text=plan.about)
    yield said(plan_told(story), turns)


def said(text: str, turns: Sequence[Turn], intent: Intent | None = None) -> Message:
    turn = len(turns) or None
    return Message(number=0, lane=ROOT, role="agent", text=text, intent=intent, turn=turn)


def checked(checks: Sequence[CommandResult]) -> Iterator[Command]:
    """Commands that the orchestrator ran itself."""
    for one in checks:
        yield Command(
            number=0,
            lane=ROOT,
            command=one.command,
            output=one.output,
            exit_code=one.exit_code,
            exit_from=None if one.exit_code is None else "stated",
            stopped=one.stopped,
            seconds=one.seconds,
        )


def handoff(made: Execution, name: str) -> Handoff:
    return Handoff(
        number=0,
        lane=ROOT,
        brief=made.brief,
        child=name,
        report=made.report or None,
        ok=made.exit == "finished",
        at=made.started,
        seconds=made.seconds,
    )


def renamed(trace: Trace, name: str) -> Iterator[AnyEvent]:
    """What one agent did, in lanes that are its own in the trace of the plan."""
    for event in trace.events:
        moved = replace(event, lane=lane_of(event.lane, trace, name))
        if isinstance(moved, Handoff) and moved.child is not None:
            moved = replace(moved, child=lane_of(moved.child, trace, name))
        yield moved


def plan_told(story: PlanStory) -> str:
    tasks = [
        f"- {task.id}" + (f", after {', '.join(task.depends_on)}" if task.depends_on else "")
        for task in story.plan.tasks
    ]
    return "\n".join(["The plan:", *tasks])


def verdict_told(one: Try) -> str:
    """What the orchestrator made of what came back."""
    made, assessment = one.execution, one.assessment
    files = ", ".join(made.files[:20])
    lines = [f"{made.task} came back from try {made.number}."]
    if assessment is None or assessment.passed is None:
        lines.append(f"There is no verdict: {assessment.why if assessment else 'not judged'}.")
    elif assessment.passed:
        lines.append(f"It is accepted, and its change is merged: {files or 'no files'}.")
    else:
        lines.append(f"It is not accepted; it changed {files or 'no files'}.")
    lines += [f"- {issue.text}" for issue in assessment.issues] if assessment else []
    return "\n".join(lines)[:LONGEST]


def child_lanes(trace: Trace, name: str, made: Execution) -> Iterator[Lane]:
    """The lanes of one try, under the orchestrator's."""
    for lane in trace.lanes or (Lane(id=ROOT, agent=made.agent),):
        parent = ROOT if lane.parent is None else lane_of(lane.parent, trace, name)
        yield replace(lane, id=lane_of(lane.id, trace, name), parent=parent)


def lane_of(lane: str, trace: Trace, name: str) -> str:
    """What a lane of a try is called in the trace of the plan: its first has the try's name."""
    first = trace.lanes[0].id if trace.lanes else lane
    return name if lane == first else f"{name}/{lane}"
