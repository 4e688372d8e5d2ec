"""Read a trace for the rules: what each action did, what was checked, and the iterations."""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

from msgspec.structs import replace

from closeloop.process.check_commands import shorten_target
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
    Iteration,
    LaneReading,
    ShellEdit,
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
"""Longer files are not updated by edits."""


class WrittenScripts:
    """Scripts and patches that a trace wrote, by file name: running one changes what it names."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def remember(self, path: str, text: str | None) -> None:
        """Save the latest text of a script."""
        if text is not None and len(text) < MAX_SCRIPT_CHARS and path.endswith(SCRIPT_ENDINGS):
            self._texts[path.rpartition("/")[2]] = text

    def follow_runs(self, effect: CommandEffect) -> CommandEffect:
        """Return a command's effect, with the effects of the scripts that it runs."""
        for edit in effect.edits:
            if edit.action == "create":
                self.remember(edit.path, edit.after)
        if not effect.runs or not self._texts or effect.checks:
            return effect
        edits = [edit for name in effect.runs for edit in self._script_edits(name)]
        if not edits:
            return effect
        paths = dict.fromkeys((*effect.written, *(edit.path for edit in edits)))
        return replace(
            effect, writes=True, written=tuple(paths), edits=(*effect.edits, *edits[:MAX_EDITS])
        )

    def _script_edits(self, name: str) -> Iterator[ShellEdit]:
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
        self,
        event: Command,
        effect: CommandEffect,
        written_paths: tuple[str, ...],
        failed: bool | None,
    ) -> tuple[Edit, ...]:
        """Return the edits of a command, with its event number."""
        paths = dict(zip(effect.written, written_paths, strict=True))
        ok = None if failed is None else not failed
        edits = []
        for file_edit in effect.edits:
            for path in self._expand_path(file_edit, paths.get(file_edit.path)):
                action, before = file_edit.action, file_edit.before
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
                        after=file_edit.after,
                        patch=file_edit.patch,
                        ok=ok,
                    )
                )
        return tuple(edits)

    def _expand_path(self, edit: ShellEdit, path: str | None) -> list[str]:
        if path is not None:
            return [path]
        if edit.action != "delete" or "*" not in edit.path:
            return []
        return [known_path for known_path in self._texts if fnmatchcase(known_path, edit.path)][
            :MAX_EDITS
        ]

    def note_step(self, step: TraceStep) -> None:
        """Record the files that the step showed or changed."""
        for path in step.read:
            self._texts.setdefault(path, None)
        if not step.changed:
            return
        texts = {path: self._texts.get(path) for path in step.written} if step.edits else {}
        for path in step.written:
            self._texts[path] = None
        paths = step.written if isinstance(step.event, Edit) else ()
        for edit in step.edits:
            path = paths[0] if paths else edit.path
            if edit.action == "delete":
                self._texts.pop(path, None)
            else:
                texts[path] = self._texts[path] = _text_after(edit, texts.get(path))


def _text_after(edit: Edit, text: str | None) -> str | None:
    """Return a file's text after an edit; None if unknown.

    An edit without the replaced text has the whole file.
    """
    if edit.before is None or edit.before == text:
        return edit.after
    if text is None or edit.after is None or len(text) > _MAX_KNOWN_CHARS:
        return None
    if not edit.before:
        return text + edit.after
    return text.replace(edit.before, edit.after, 1) if edit.before in text else None


# One name per file: agents refer to the same file by relative and by absolute paths.

_UNTIDY_PART = re.compile(r"/\.{0,2}(?:/|$)|^\.{1,2}(?:/|$)")
"""Parts of a path that are normalised: `a//b`, `./a`, `a/../b`, `a/`."""


class ProjectPaths:
    """Finds the project's root from the paths that a trace names."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._tidy = {path: _tidy_path(path) for path in paths if path}
        self.root = _find_root(self._tidy)
        self._plain: dict[str, str] = {} if self.root else self._tidy

    def normalise_path(self, path: str) -> str:
        """Return the path relative to the project's root; unchanged if it is elsewhere."""
        normalised_path = self._plain.get(path)
        if normalised_path is None:
            normalised_path = self._plain[path] = self._relative_path(path)
        return normalised_path

    def _relative_path(self, path: str) -> str:
        tidy_path = self._tidy.get(path) or _tidy_path(path)
        if self.root and tidy_path.startswith(self.root + "/"):
            return tidy_path[len(self.root) + 1 :]
        return tidy_path


def _tidy_path(path: str) -> str:
    if "\\" in path:
        path = path.replace("\\", "/")
    if path[:1] == "." or path[-1:] == "/" or "//" in path or "/." in path:
        return posixpath.normpath(path) if _UNTIDY_PART.search(path) else path
    return path


def _is_absolute(path: str) -> bool:
    return path[:1] == "/" or path[1:3] == ":/"


def _find_root(names: Mapping[str, str]) -> str:
    """Return the folder that turns most relative paths into absolute paths of the trace."""
    paths_by_name: dict[str, list[str]] = {}
    relative_paths = []
    for path in names.values():
        if _is_absolute(path):
            paths_by_name.setdefault(path.rpartition("/")[2], []).append(path)
        elif path not in (".", "..") and not path.startswith("../"):
            relative_paths.append(path)
    votes: Counter[str] = Counter()
    for relative_path in relative_paths if paths_by_name else ():
        for full_path in paths_by_name.get(relative_path.rpartition("/")[2], ())[:50]:
            if full_path.endswith("/" + relative_path):
                votes[full_path[: -len(relative_path) - 1]] += 1
    if votes:
        # Ties go to the shortest, then to the first by name: the same on every machine.
        return min(votes, key=lambda root: (-votes[root], len(root), root))
    return ""


UNCAUGHT_ERROR = "Traceback (most recent call last)"
_OTHER_ACTIONS = (Edit, Read, ToolUse, Handoff)


def build_reading(trace: Trace, own_checks: tuple[str, ...] = ()) -> TraceReading:
    """Read all lanes of a trace; `own_checks` are the project's own check commands."""
    builders = {lane.id: _LaneBuilder(lane) for lane in trace.lanes}
    for builder in builders.values():
        builder.above = (
            tuple(_parent_builders(builder.lane, builders))
            if builder.lane.parent is not None
            else ()
        )
    effects, named_paths = _analyse_commands(trace, own_checks)
    project_paths, files, next_effect = ProjectPaths(named_paths), KnownFiles(), iter(effects)
    handoffs: list[Handoff] = []
    for event in trace.events:
        if type(event) is Thought:
            continue
        builder = builders.get(event.lane) or builders.setdefault(
            event.lane, _LaneBuilder(Lane(id=event.lane))
        )
        if type(event) is Message:
            builder.add_message(event)
        elif type(event) is Command:
            builder.add_command(event, next(next_effect), project_paths, files)
        elif isinstance(event, _OTHER_ACTIONS):
            builder.add_action(event, project_paths, files)
            if type(event) is Handoff:
                handoffs.append(event)
                if builders.get(event.child or "", builder) is not builder:
                    builders[event.child or ""].handoff = event
        elif type(event) is Note and event.about == "compaction":
            builder.compactions.append(event.number)
    return TraceReading(
        trace=trace,
        lanes={name: builder.build_lane() for name, builder in builders.items()},
        handoffs=handoffs,
        gaps=tuple(_list_gaps(trace, builders)),
    )


def _analyse_commands(
    trace: Trace, own_checks: tuple[str, ...]
) -> tuple[list[CommandEffect], dict[str, None]]:
    """Return the effect of each command, and all paths that the trace names."""
    effects: list[CommandEffect] = []
    named_paths: dict[str, None] = {}
    scripts = WrittenScripts()
    for event in trace.events:
        if type(event) is Command:
            effect = analyse_command(event.command, own_checks)
            if effect.runs or effect.edits:
                effect = scripts.follow_runs(effect)
            effects.append(effect)
            for path in effect.read:
                named_paths[path] = None
            for path in effect.written:
                named_paths[path] = None
        elif type(event) is Edit:
            named_paths[event.path] = None
            scripts.remember(event.path, event.after if event.action == "create" else None)
        elif type(event) is Read:
            named_paths[event.path] = None
    return _add_checks_by_use(trace, effects), named_paths


def _add_checks_by_use(trace: Trace, effects: list[CommandEffect]) -> list[CommandEffect]:
    """Take programs that end with an uncaught error for checks if they are run again: whether the
    error is gone is what the agent wants to know.
    """
    commands = [event for event in trace.events if type(event) is Command]
    failing_lines = {
        event.command
        for event, effect in zip(commands, effects, strict=True)
        if event.exit_code not in (0, None)
        and event.output
        and UNCAUGHT_ERROR in event.output
        and _runs_code_only(effect)
    }
    if not failing_lines:
        return effects
    counts = Counter(event.command for event in commands)
    again = {line for line in failing_lines if counts[line] > 1}
    return [
        replace(effect, checks=("script",), target=shorten_target(" ".join(event.command.split())))
        if event.command in again
        else effect
        for event, effect in zip(commands, effects, strict=True)
    ]


def _runs_code_only(effect: CommandEffect) -> bool:
    return not (effect.checks or effect.writes or effect.waits or effect.searches or effect.masked)


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
        """Number of changes that belong to finished iterations or to the open one."""
        self.turn: tuple[Sequence[TraceStep], dict[str, TraceStep]] | None = None
        """The open iteration: its changes, and the last run of each target."""

    def add_message(self, message: Message) -> None:
        self.messages.append(message)
        if message.role == "user":
            self.users.append(message)

    def add_command(
        self, event: Command, effect: CommandEffect, project_paths: ProjectPaths, files: KnownFiles
    ) -> None:
        step = _build_command_step(event, effect, project_paths, len(self.steps), self.state)
        if effect.edits:
            edits = files.build_edits(event, effect, step.written, step.failed)
            step = replace(step, edits=edits)
        self.commands.append(step)
        files.note_step(step)
        self.add_step(step)

    def add_action(
        self, event: Edit | Read | ToolUse | Handoff, project_paths: ProjectPaths, files: KnownFiles
    ) -> None:
        index, state, failed = len(self.steps), self.state, _negate_known(event.ok)
        if isinstance(event, Edit):
            step = TraceStep(
                event=event,
                index=index,
                state=state,
                changed=event.ok is not False,
                failed=failed,
                written=(project_paths.normalise_path(event.path),),
                edits=(event,),
            )
            self.edits.append(step)
        elif isinstance(event, Read) and event.ok is not False:
            read_paths = (project_paths.normalise_path(event.path),)
            step = TraceStep(event=event, index=index, state=state, failed=failed, read=read_paths)
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
    event: Command, effect: CommandEffect, project_paths: ProjectPaths, index: int, state: int
) -> TraceStep:
    check = check_from_command(event, effect)
    if check is not None and (check.folder or event.directory):
        folder = posixpath.join(event.directory or "", check.folder)
        check = replace(check, folder=project_paths.normalise_path(folder))
    failed = _is_failure(event, effect, check)
    return TraceStep(
        event=event,
        index=index,
        state=state,
        # What was written before a check failed stays written.
        changed=effect.writes and (check is not None or failed is not True),
        failed=failed,
        effect=effect,
        check=check,
        read=tuple(map(project_paths.normalise_path, effect.read))
        if effect.read and not failed
        else (),
        written=tuple(map(project_paths.normalise_path, effect.written)) if effect.written else (),
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


def _merge_failures(failure_sets: Sequence[CheckFailures]) -> CheckFailures | None:
    if len(failure_sets) < 2:
        return failure_sets[0] if failure_sets else None
    errors: dict[str, str] = {}
    for failures in failure_sets:
        errors.update(failures.errors)
    return CheckFailures(
        errors=errors,
        parser=failure_sets[0].parser,
        paths=tuple(dict.fromkeys(path for failures in failure_sets for path in failures.paths)),
        symbols=tuple(
            dict.fromkeys(name for failures in failure_sets for name in failures.symbols)
        ),
    )


def _is_failure(event: Command, effect: CommandEffect, check: TraceCheck | None) -> bool | None:
    if check is not None and check.passed is not None:
        return not check.passed
    if event.stopped is not None:
        return True
    if event.exit_code is None:
        return None
    return event.exit_code > 1 if effect.searches else event.exit_code != 0


def _negate_known(ok: bool | None) -> bool | None:
    return None if ok is None else not ok


def _first_request(messages: Sequence[Message]) -> str | None:
    for message in messages:
        if message.intent == "request":
            return message.text
    return messages[0].text if messages else None


def _parent_builders(lane: Lane, builders: dict[str, _LaneBuilder]) -> Iterable[_LaneBuilder]:
    """Yield the builders of parents, nearest first; a cycle is followed once."""
    seen_ids = {lane.id}
    while lane.parent is not None and lane.parent in builders and lane.parent not in seen_ids:
        seen_ids.add(lane.parent)
        builder = builders[lane.parent]
        yield builder
        lane = builder.lane


def _list_gaps(trace: Trace, builders: Mapping[str, _LaneBuilder]) -> Iterable[str]:
    skipped_count = sum(trace.skipped.values())
    if not trace.events:
        yield "the trace is empty"
    if skipped_count > len(trace.events):
        skipped = count_with_noun(skipped_count, "record was", "records were")
        yield f"{skipped} skipped, more than the {len(trace.events)} that were read"
    for builder in builders.values():
        if builder.lane.parent is not None and builder.lane.parent not in builders:
            yield f"lane {builder.lane.id!r} comes from {builder.lane.parent!r}, which is not there"
