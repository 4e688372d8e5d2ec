"""Read a trace for the rules: what each action did, what was checked, and the iterations."""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

from msgspec.structs import replace

from closeloop.process.check_results import check_from_command
from closeloop.process.command_analysis import analyse_command
from closeloop.process.edit_recovery import (
    MAX_EDITS,
    SCRIPT_ENDINGS,
    recover_code_edits,
    split_patch,
)
from closeloop.records.change import (
    CheckFailures,
    CommandEffect,
    FileEdit,
    Iteration,
    LaneReading,
    TraceCheck,
    TraceReading,
    TraceStep,
)
from closeloop.records.trace import (
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
from closeloop.text.wording import count_with_noun

# What a trace itself wrote into files, to recognise edits and scripts in commands.


MAX_SCRIPT_CHARS = 100_000
_MAX_KNOWN_CHARS = 50_000
"""The content of longer files is not kept in step with edits."""


class WrittenScripts:
    """Scripts and patches that a trace wrote, by file name: running one changes what it names."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def remember(self, path: str, text: str | None) -> None:
        """Keep a script's text, as it was last written."""
        if text is not None and len(text) < MAX_SCRIPT_CHARS and path.endswith(SCRIPT_ENDINGS):
            self._texts[path.rpartition("/")[2]] = text

    def follow_runs(self, doing: CommandEffect) -> CommandEffect:
        """What a command does, with what the scripts do that it runs."""
        for edit in doing.edits:
            if edit.action == "create":
                self.remember(edit.path, edit.after)
        if not doing.runs or not self._texts or doing.checks:
            return doing
        edits = [edit for name in doing.runs for edit in self._script_edits(name)]
        if not edits:
            return doing
        paths = dict.fromkeys((*doing.written, *(edit.path for edit in edits)))
        return replace(
            doing, writes=True, written=tuple(paths), edits=(*doing.edits, *edits[:MAX_EDITS])
        )

    def _script_edits(self, name: str) -> Iterator[FileEdit]:
        text = self._texts.get(name.rpartition("/")[2])
        if text is None:
            return
        if name.endswith(".py"):
            edits = recover_code_edits(text, only_rewrites=True)
        elif name.endswith(".sh"):
            edits = list(analyse_command(text).edits)
        else:
            edits = list(split_patch(text))
        yield from edits


class KnownFiles:
    """Files that a trace has seen so far, and their text where it is known."""

    def __init__(self) -> None:
        self._texts: dict[str, str | None] = {}

    def build_edits(
        self, event: Command, doing: CommandEffect, written: tuple[str, ...], failed: bool | None
    ) -> tuple[Edit, ...]:
        """A command's edits, numbered as it is."""
        paths = dict(zip(doing.written, written, strict=True))
        ok = None if failed is None else not failed
        edits = []
        for told in doing.edits:
            for path in self._expand_path(told, paths.get(told.path)):
                action, before = told.action, told.before
                if action == "create" and path in self._texts:
                    action, before = "change", self._texts[path]
                edits.append(
                    Edit(
                        number=event.number,
                        lane=event.lane,
                        turn=event.turn,
                        at=event.at,
                        path=path,
                        action=action,
                        before=before,
                        after=told.after,
                        patch=told.patch,
                        ok=ok,
                    )
                )
        return tuple(edits)

    def _expand_path(self, told: FileEdit, path: str | None) -> list[str]:
        if path is not None:
            return [path]
        if told.action != "delete" or "*" not in told.path:
            return []
        return [known for known in self._texts if fnmatchcase(known, told.path)][:MAX_EDITS]

    def note_step(self, step: TraceStep) -> None:
        """What the step showed or changed is known from now on."""
        for path in step.read:
            self._texts.setdefault(path, None)
        if not step.changed:
            return
        known = {path: self._texts.get(path) for path in step.written} if step.edits else {}
        for path in step.written:
            self._texts[path] = None
        paths = step.written if isinstance(step.event, Edit) else ()
        for edit in step.edits:
            path = paths[0] if paths else edit.path
            if edit.action == "delete":
                self._texts.pop(path, None)
            else:
                known[path] = self._texts[path] = _text_after(edit, known.get(path))


def _text_after(edit: Edit, text: str | None) -> str | None:
    """A file's whole text after an edit; without what it replaces, the new text is the file."""
    if edit.before is None or edit.before == text:
        return edit.after
    if text is None or edit.after is None or len(text) > _MAX_KNOWN_CHARS:
        return None
    if not edit.before:
        return text + edit.after
    return text.replace(edit.before, edit.after, 1) if edit.before in text else None


# One name per file: agents refer to the same file by relative and by absolute paths.

_UNTIDY_PART = re.compile(r"/\.{0,2}(?:/|$)|^\.{1,2}(?:/|$)")
"""What is to be made plain in a path: `a//b`, `./a`, `a/../b`, `a/`."""


class ProjectPaths:
    """Knows where the project lies, from the paths that a trace names."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._tidy = {path: _tidy_path(path) for path in paths if path}
        self.root = _find_root(self._tidy)
        self._plain: dict[str, str] = {} if self.root else self._tidy

    def normalise_path(self, path: str) -> str:
        """The path below the project's root, or as it is when it lies elsewhere."""
        normalised_path = self._plain.get(path)
        if normalised_path is None:
            normalised_path = self._plain[path] = self._relative_path(path)
        return normalised_path

    def _relative_path(self, path: str) -> str:
        tidy = self._tidy.get(path) or _tidy_path(path)
        if self.root and tidy.startswith(self.root + "/"):
            return tidy[len(self.root) + 1 :]
        return tidy


def _tidy_path(path: str) -> str:
    if "\\" in path:
        path = path.replace("\\", "/")
    if path[:1] == "." or path[-1:] == "/" or "//" in path or "/." in path:
        return posixpath.normpath(path) if _UNTIDY_PART.search(path) else path
    return path


def _is_absolute(tidy: str) -> bool:
    return tidy[:1] == "/" or tidy[1:3] == ":/"


def _find_root(names: Mapping[str, str]) -> str:
    """The folder that makes most relative paths the absolute ones that the trace also names."""
    ends: dict[str, list[str]] = {}
    relative = []
    for tidy in names.values():
        if _is_absolute(tidy):
            ends.setdefault(tidy.rpartition("/")[2], []).append(tidy)
        elif tidy not in (".", "..") and not tidy.startswith("../"):
            relative.append(tidy)
    votes: Counter[str] = Counter()
    for tidy in relative if ends else ():
        for full in ends.get(tidy.rpartition("/")[2], ())[:50]:
            if full.endswith("/" + tidy):
                votes[full[: -len(tidy) - 1]] += 1
    if votes:
        # Ties go to the shortest, then to the first by name: the same on every machine.
        return min(votes, key=lambda root: (-votes[root], len(root), root))
    return ""


_OTHER_ACTIONS = (Edit, Read, ToolUse, Handoff)


def build_reading(trace: Trace, own_checks: tuple[str, ...] = ()) -> TraceReading:
    """All lanes of a trace. `own_checks` are the project's own commands that check the work."""
    tracks = {lane.id: _LaneBuilder(lane) for lane in trace.lanes}
    for track in tracks.values():
        track.above = (
            tuple(_parent_builders(track.lane, tracks)) if track.lane.parent is not None else ()
        )
    effects, named_paths = _analyse_commands(trace, own_checks)
    places, files, next_effect = ProjectPaths(named_paths), KnownFiles(), iter(effects)
    handoffs: list[Handoff] = []
    for event in trace.events:
        if type(event) is Thought:
            continue
        track = tracks.get(event.lane) or tracks.setdefault(
            event.lane, _LaneBuilder(Lane(id=event.lane))
        )
        if type(event) is Message:
            track.add_message(event)
        elif type(event) is Command:
            track.add_command(event, next(next_effect), places, files)
        elif isinstance(event, _OTHER_ACTIONS):
            track.add_action(event, places, files)
            if type(event) is Handoff:
                handoffs.append(event)
                if tracks.get(event.child or "", track) is not track:
                    tracks[event.child or ""].handoff = event
        elif type(event) is Note and event.about == "compaction":
            track.compactions.append(event.number)
    return TraceReading(
        trace=trace,
        lanes={name: track.build_lane() for name, track in tracks.items()},
        handoffs=handoffs,
        gaps=tuple(_list_gaps(trace, tracks)),
    )


def _analyse_commands(
    trace: Trace, own_checks: tuple[str, ...]
) -> tuple[list[CommandEffect], dict[str, None]]:
    """What each command does, and all paths that the trace names."""
    effects: list[CommandEffect] = []
    named_paths: dict[str, None] = {}
    scripts = WrittenScripts()
    for event in trace.events:
        if type(event) is Command:
            doing = analyse_command(event.command, own_checks)
            if doing.runs or doing.edits:
                doing = scripts.follow_runs(doing)
            effects.append(doing)
            for path in doing.read:
                named_paths[path] = None
            for path in doing.written:
                named_paths[path] = None
        elif type(event) is Edit:
            named_paths[event.path] = None
            scripts.remember(event.path, event.after if event.action == "create" else None)
        elif type(event) is Read:
            named_paths[event.path] = None
    return effects, named_paths


class _LaneBuilder:
    """A lane while it is read."""

    __slots__ = (
        "above", "begun", "changes", "checks", "commands", "compactions", "edits", "failing",
        "handoff", "iterations", "lane", "messages", "reads", "state", "steps", "tools", "turn",
        "users",
    )  # fmt: skip

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.above: tuple[_LaneBuilder, ...] = ()
        self.state = 0
        self.steps: list[TraceStep] = []
        self.commands: list[TraceStep] = []
        self.edits: list[TraceStep] = []
        self.tools: list[TraceStep] = []
        self.reads: list[TraceStep] = []
        self.failing: list[TraceStep] = []
        self.messages: list[Message] = []
        self.users: list[Message] = []
        self.checks: list[TraceStep] = []
        self.changes: list[TraceStep] = []
        self.iterations: list[Iteration] = []
        self.compactions: list[int] = []
        self.handoff: Handoff | None = None
        self.begun = 0
        """How many of the changes belong to iterations that are told, or to the open one."""
        self.turn: tuple[Sequence[TraceStep], dict[str, TraceStep]] | None = None
        """The open iteration: its changes, and the last run of each target."""

    def add_message(self, message: Message) -> None:
        self.messages.append(message)
        if message.role == "user":
            self.users.append(message)

    def add_command(
        self, event: Command, doing: CommandEffect, places: ProjectPaths, files: KnownFiles
    ) -> None:
        step = _build_command_step(event, doing, places, len(self.steps), self.state)
        if doing.edits:
            edits = files.build_edits(event, doing, step.written, step.failed)
            step = replace(step, edits=edits)
        self.commands.append(step)
        files.note_step(step)
        self.add_step(step)

    def add_action(
        self, event: Edit | Read | ToolUse | Handoff, places: ProjectPaths, files: KnownFiles
    ) -> None:
        index, state, failed = len(self.steps), self.state, _negate_known(event.ok)
        if isinstance(event, Edit):
            step = TraceStep(
                event=event,
                index=index,
                state=state,
                changed=event.ok is not False,
                failed=failed,
                written=(places.normalise_path(event.path),),
                edits=(event,),
            )
            self.edits.append(step)
        elif isinstance(event, Read) and event.ok is not False:
            shown = (places.normalise_path(event.path),)
            step = TraceStep(event=event, index=index, state=state, failed=failed, read=shown)
        else:
            step = TraceStep(event=event, index=index, state=state, failed=failed)
            if isinstance(event, ToolUse):
                self.tools.append(step)
        files.note_step(step)
        self.add_step(step)

    def add_step(self, step: TraceStep) -> None:
        self.steps.append(step)
        if step.read:
            self.reads.append(step)
        if step.failed:
            self.failing.append(step)
        if step.changed:
            self.add_change(step)
            for track in self.above:
                track.add_change(step)
        if step.check is not None:
            self.add_check(step, step.check)

    def add_change(self, step: TraceStep) -> None:
        self.state += 1
        self.changes.append(step)
        if self.turn is not None:
            self.close_iteration()

    def add_check(self, step: TraceStep, check: TraceCheck) -> None:
        if self.turn is None and self.begun < len(self.changes):
            self.turn = self.changes[self.begun :], {}
            self.begun = len(self.changes)
        if self.turn is not None:
            self.turn[1].pop(check.target, None)
            self.turn[1][check.target] = step
        self.checks.append(step)

    def close_iteration(self) -> None:
        if self.turn is not None:
            changes, runs = self.turn
            self.iterations.append(_build_iteration(changes, list(runs.values())))
            self.turn = None

    def build_lane(self) -> LaneReading:
        self.close_iteration()
        return LaneReading(
            lane=self.lane,
            request=self.handoff.brief if self.handoff else _first_request(self.users),
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


def _build_command_step(
    event: Command, doing: CommandEffect, places: ProjectPaths, index: int, state: int
) -> TraceStep:
    check = check_from_command(event, doing)
    if check is not None and (check.folder or event.directory):
        folder = posixpath.join(event.directory or "", check.folder)
        check = replace(check, folder=places.normalise_path(folder))
    failed = _is_failure(event, doing, check)
    return TraceStep(
        event=event,
        index=index,
        state=state,
        # What was written before a check failed stays written.
        changed=doing.writes and (check is not None or failed is not True),
        failed=failed,
        doing=doing,
        check=check,
        read=tuple(map(places.normalise_path, doing.read)) if doing.read and not failed else (),
        written=tuple(map(places.normalise_path, doing.written)) if doing.written else (),
    )


def _build_iteration(changes: Sequence[TraceStep], checks: Sequence[TraceStep]) -> Iteration:
    results = [step.check for step in checks if step.check is not None]
    failing = [check.failures for check in results if check.failures is not None]
    if any(check.passed is False for check in results):
        passed: bool | None = False
    else:
        passed = None if any(check.passed is None for check in results) else True
    return Iteration(
        changes=tuple(changes),
        checks=tuple(checks),
        passed=passed,
        failures=_merge_failures(failing),
    )


def _merge_failures(failing: Sequence[CheckFailures]) -> CheckFailures | None:
    if len(failing) < 2:
        return failing[0] if failing else None
    errors: dict[str, str] = {}
    for one in failing:
        errors.update(one.errors)
    return CheckFailures(
        errors=errors,
        parser=failing[0].parser,
        paths=tuple(dict.fromkeys(path for one in failing for path in one.paths)),
        symbols=tuple(dict.fromkeys(name for one in failing for name in one.symbols)),
    )


def _is_failure(event: Command, doing: CommandEffect, check: TraceCheck | None) -> bool | None:
    if check is not None and check.passed is not None:
        return not check.passed
    if event.stopped is not None:
        return True
    if event.exit_code is None:
        return None
    return event.exit_code > 1 if doing.searches else event.exit_code != 0


def _negate_known(ok: bool | None) -> bool | None:
    return None if ok is None else not ok


def _first_request(said: Sequence[Message]) -> str | None:
    for message in said:
        if message.intent == "request":
            return message.text
    return said[0].text if said else None


def _parent_builders(lane: Lane, tracks: dict[str, _LaneBuilder]) -> Iterable[_LaneBuilder]:
    """Parents, nearest first; a circle ends where it closes."""
    seen = {lane.id}
    while lane.parent is not None and lane.parent in tracks and lane.parent not in seen:
        seen.add(lane.parent)
        track = tracks[lane.parent]
        yield track
        lane = track.lane


def _list_gaps(trace: Trace, tracks: Mapping[str, _LaneBuilder]) -> Iterable[str]:
    lost = sum(trace.skipped.values())
    if not trace.events:
        yield "the trace is empty"
    if lost > len(trace.events):
        were = count_with_noun(lost, "record was", "records were")
        yield f"{were} skipped, more than the {len(trace.events)} that were read"
    for track in tracks.values():
        if track.lane.parent is not None and track.lane.parent not in tracks:
            yield f"lane {track.lane.id!r} comes from {track.lane.parent!r}, which is not there"
