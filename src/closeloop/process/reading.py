"""Read a trace for the rules: what each action did, what was checked, and the iterations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from closeloop.model.plural import plural
from closeloop.model.steps import (
    Check,
    Doing,
    Failures,
    Iteration,
    LaneReading,
    Reading,
    Step,
)
from closeloop.model.trace import (
    Command,
    Edit,
    Handoff,
    Lane,
    Message,
    Note,
    Read,
    Thought,
    ToolUse,
    Trace,
)
from closeloop.process.checks import check_of
from closeloop.process.commands import doing_of
from closeloop.process.paths import Places

_OTHERS = (Edit, Read, ToolUse, Handoff)


def read(trace: Trace, own_checks: tuple[str, ...] = ()) -> Reading:
    """All lanes of a trace. `own_checks` are the project's own commands that check the work."""
    tracks = {lane.id: _Track(lane) for lane in trace.lanes}
    for track in tracks.values():
        track.above = tuple(_above(track.lane, tracks)) if track.lane.parent is not None else ()
    doings, named = _looked_over(trace, own_checks)
    places, doing = Places(named), iter(doings)
    handoffs: list[Handoff] = []
    for event in trace.events:
        if type(event) is Thought:
            continue
        track = tracks.get(event.lane) or tracks.setdefault(event.lane, _Track(Lane(id=event.lane)))
        if type(event) is Message:
            track.heard(event)
        elif type(event) is Command:
            track.ran(event, next(doing), places)
        elif isinstance(event, _OTHERS):
            track.did(event, places)
            if type(event) is Handoff:
                handoffs.append(event)
                if tracks.get(event.child or "", track) is not track:
                    tracks[event.child or ""].handoff = event
        elif type(event) is Note and event.about == "compaction":
            track.compactions.append(event.number)
    return Reading(
        trace=trace,
        lanes={name: track.told() for name, track in tracks.items()},
        handoffs=handoffs,
        gaps=tuple(_gaps(trace, tracks)),
    )


def _looked_over(trace: Trace, own_checks: tuple[str, ...]) -> tuple[list[Doing], dict[str, None]]:
    """What each command does, and all paths that the trace names."""
    doings: list[Doing] = []
    named: dict[str, None] = {}
    for event in trace.events:
        if type(event) is Command:
            doing = doing_of(event.command, own_checks)
            doings.append(doing)
            for path in doing.read:
                named[path] = None
            for path in doing.written:
                named[path] = None
        elif type(event) is Edit or type(event) is Read:
            named[event.path] = None
    return doings, named


class _Track:
    """A lane while it is read."""

    __slots__ = (
        "above", "begun", "changes", "checks", "commands", "compactions", "edits", "failing",
        "handoff", "iterations", "lane", "messages", "reads", "state", "steps", "tools", "turn",
        "users",
    )  # fmt: skip

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.above: tuple[_Track, ...] = ()
        self.state = 0
        self.steps: list[Step] = []
        self.commands: list[Step] = []
        self.edits: list[Step] = []
        self.tools: list[Step] = []
        self.reads: list[Step] = []
        self.failing: list[Step] = []
        self.messages: list[Message] = []
        self.users: list[Message] = []
        self.checks: list[Step] = []
        self.changes: list[Step] = []
        self.iterations: list[Iteration] = []
        self.compactions: list[int] = []
        self.handoff: Handoff | None = None
        self.begun = 0
        """How many of the changes belong to iterations that are told, or to the open one."""
        self.turn: tuple[Sequence[Step], dict[str, Step]] | None = None
        """The open iteration: its changes, and the last run of each target."""

    def heard(self, message: Message) -> None:
        self.messages.append(message)
        if message.role == "user":
            self.users.append(message)

    def ran(self, event: Command, doing: Doing, places: Places) -> None:
        step = _ran(event, doing, places, len(self.steps), self.state)
        self.commands.append(step)
        self.add(step)

    def did(self, event: Edit | Read | ToolUse | Handoff, places: Places) -> None:
        index, state, failed = len(self.steps), self.state, _not(event.ok)
        if isinstance(event, Edit):
            step = Step(
                event=event,
                index=index,
                state=state,
                changed=event.ok is not False,
                failed=failed,
                written=(places.plain(event.path),),
            )
            self.edits.append(step)
        elif isinstance(event, Read) and event.ok is not False:
            shown = (places.plain(event.path),)
            step = Step(event=event, index=index, state=state, failed=failed, read=shown)
        else:
            step = Step(event=event, index=index, state=state, failed=failed)
            if isinstance(event, ToolUse):
                self.tools.append(step)
        self.add(step)

    def add(self, step: Step) -> None:
        self.steps.append(step)
        if step.read:
            self.reads.append(step)
        if step.failed:
            self.failing.append(step)
        if step.changed:
            self.change(step)
            for track in self.above:
                track.change(step)
        if step.check is not None:
            self.checked(step, step.check)

    def change(self, step: Step) -> None:
        self.state += 1
        self.changes.append(step)
        if self.turn is not None:
            self.close()

    def checked(self, step: Step, check: Check) -> None:
        if self.turn is None and self.begun < len(self.changes):
            self.turn = self.changes[self.begun :], {}
            self.begun = len(self.changes)
        if self.turn is not None:
            self.turn[1].pop(check.target, None)
            self.turn[1][check.target] = step
        self.checks.append(step)

    def close(self) -> None:
        if self.turn is not None:
            changes, runs = self.turn
            self.iterations.append(_iteration(changes, list(runs.values())))
            self.turn = None

    def told(self) -> LaneReading:
        self.close()
        return LaneReading(
            lane=self.lane,
            request=self.handoff.brief if self.handoff else _request(self.users),
            steps=self.steps,
            commands=self.commands,
            edits=self.edits,
            tools=self.tools,
            reads=self.reads,
            failing=self.failing,
            messages=self.messages,
            users=self.users,
            checks=self.checks,
            changes=self.changes,
            iterations=self.iterations,
            compactions=tuple(self.compactions),
            handoff=self.handoff,
        )


def _ran(event: Command, doing: Doing, places: Places, index: int, state: int) -> Step:
    check = check_of(event, doing) if doing.checks else None
    failed = _failed(event, doing, check)
    return Step(
        event=event,
        index=index,
        state=state,
        # What was written before a check failed stays written.
        changed=doing.writes and (check is not None or failed is not True),
        failed=failed,
        doing=doing,
        check=check,
        read=tuple(map(places.plain, doing.read)) if doing.read and not failed else (),
        written=tuple(map(places.plain, doing.written)) if doing.written else (),
    )


def _iteration(changes: Sequence[Step], checks: Sequence[Step]) -> Iteration:
    results = [step.check for step in checks if step.check is not None]
    failing = [check.failures for check in results if check.failures is not None]
    if any(check.passed is False for check in results):
        passed: bool | None = False
    else:
        passed = None if any(check.passed is None for check in results) else True
    return Iteration(
        changes=tuple(changes), checks=tuple(checks), passed=passed, failures=_together(failing)
    )


def _together(failing: Sequence[Failures]) -> Failures | None:
    if len(failing) < 2:
        return failing[0] if failing else None
    errors: dict[str, str] = {}
    for one in failing:
        errors.update(one.errors)
    return Failures(
        errors=errors,
        parser=failing[0].parser,
        paths=tuple(dict.fromkeys(path for one in failing for path in one.paths)),
        symbols=tuple(dict.fromkeys(name for one in failing for name in one.symbols)),
    )


def _failed(event: Command, doing: Doing, check: Check | None) -> bool | None:
    if check is not None and check.passed is not None:
        return not check.passed
    if event.stopped is not None:
        return True
    if event.exit_code is None:
        return None
    return event.exit_code > 1 if doing.searches else event.exit_code != 0


def _not(ok: bool | None) -> bool | None:
    return None if ok is None else not ok


def _request(said: Sequence[Message]) -> str | None:
    for message in said:
        if message.intent == "request":
            return message.text
    return said[0].text if said else None


def _above(lane: Lane, tracks: dict[str, _Track]) -> Iterable[_Track]:
    """Parents, nearest first; a circle ends where it closes."""
    seen = {lane.id}
    while lane.parent is not None and lane.parent in tracks and lane.parent not in seen:
        seen.add(lane.parent)
        track = tracks[lane.parent]
        yield track
        lane = track.lane


def _gaps(trace: Trace, tracks: Mapping[str, _Track]) -> Iterable[str]:
    lost = sum(trace.skipped.values())
    if not trace.events:
        yield "the trace is empty"
    if lost > len(trace.events):
        were = plural(lost, "record was", "records were")
        yield f"{were} skipped, more than the {len(trace.events)} that were read"
    for track in tracks.values():
        if track.lane.parent is not None and track.lane.parent not in tracks:
            yield f"lane {track.lane.id!r} comes from {track.lane.parent!r}, which is not there"
