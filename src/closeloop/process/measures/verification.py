"""Verification: did a check run on the code as it was left?"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter

from closeloop.model.record import Record
from closeloop.model.steps import LaneReading, Reading, Step
from closeloop.model.trace import Command, Edit, ToolUse
from closeloop.process.edits import FORMATTERS, code_changes, only_comments
from closeloop.process.once import once

_LOOKS = frozenset((
    "cd", "ls", "cat", "head", "tail", "sed", "nl", "grep", "rg", "ag", "find", "fd", "git",
    "echo", "pwd", "wc", "diff", "tree", "awk", "sort", "uniq", "rm", "mv", "cp", "mkdir",
    "touch", "which", "env", "export", "true", "false", "pip", "chmod", "stat", "file", "less",
    "more", "printf", "test", "xargs", "tee", "gh", "submit", "source", "set", "sleep", "date",
    "tar", "unzip", "apt", "apt-get", "brew", "cut", "tr", "kill", "ps",
))  # fmt: skip
LINTERS = frozenset((
    "ruff", "eslint", "flake8", "pylint", "prettier", "black", "golangci-lint", "stylelint",
    "gofmt", "rubocop", "biome", "oxlint", "ultracite", "sqlfluff", "codespell", "semgrep",
    "bandit", "vulture", "yamllint", "markdownlint", "hadolint", "actionlint", "ansible-lint",
    "tflint", "luacheck", "hlint", "swiftlint", "ktlint", "detekt", "shellcheck",
))  # fmt: skip
STATIC = LINTERS | frozenset((
    "mypy", "pyright", "ty", "tsc", "pyre", "basedpyright", "flow", "vue-tsc", "svelte-check",
    "syntax", "py_compile", "compileall",
))  # fmt: skip
_TRIES = (
    "test", "diagnostic", "browser", "playwright", "screenshot", "lint", "build", "exec", "stdin",
    "shell", "terminal", "repl",
)  # fmt: skip
"""Parts of the names of tools that may have run the code; what they ran is not told."""
_FORMAT_TOO = frozenset(("ruff", "cargo", "go", "biome", "deno", "dart", "terraform"))
_FORMATS = re.compile(r"^[^;&|]*\s(?:format|fmt)\b[^;&|]*$")
NUMBER = attrgetter("event.number")
END = float("inf")


class Backing(Record):
    """What was done to see whether a lane's code is right, up to some event."""

    first: Step
    """The first change of code."""
    last: Step
    """The last one that is more than a comment."""
    stale: Step | None
    """The last check before, since the first change."""
    checks: Sequence[Step]
    begin: int
    end: int
    """Of all checks those between these places ran on the code as it was left, in any lane."""

    @property
    def checked(self) -> bool:
        return self.begin < self.end

    @property
    def latest(self) -> Iterator[Step]:
        """Those checks, the last one first."""
        return (self.checks[place] for place in range(self.end - 1, self.begin - 1, -1))


@once
def checks_of(reading: Reading) -> Sequence[Step]:
    """All checks of the trace, in order."""
    if len(reading.lanes) == 1:
        return next(iter(reading.lanes.values())).checks
    return sorted((step for lane in reading.lanes.values() for step in lane.checks), key=NUMBER)


@once
def checks_below(reading: Reading) -> Mapping[str, Sequence[Step]]:
    """Lane → the checks that it ran itself, or one that works for it, in order."""
    below: dict[str, list[Step]] = {name: [] for name in reading.lanes}
    for step in checks_of(reading):
        name: str | None = step.event.lane
        seen: set[str] = set()
        while name is not None and name in reading.lanes and name not in seen:
            seen.add(name)
            below[name].append(step)
            name = reading.lanes[name].lane.parent
    return below


def verified(lane: LaneReading, checks: Sequence[Step]) -> bool | None:
    """A check ran after the last edit of code; None where none was edited."""
    backing = backing_of(code_changes(lane), checks)
    return None if backing is None else backing.checked


def backing_of(
    changes: Sequence[Step], checks: Sequence[Step], until: float = END
) -> Backing | None:
    """Where the code of those changes stands before that event; None where there is none.

    `checks` are those of the whole trace: a child's code may be checked by its parent.
    """
    at = len(changes) if until == END else bisect_left(changes, until, key=NUMBER)
    while at and _is_idle(changes[at - 1]):
        at -= 1
    if not at:
        return None
    first, last = changes[0], changes[at - 1]
    begin = bisect_left(checks, last.number, key=NUMBER)
    end = len(checks) if until == END else bisect_left(checks, until, key=NUMBER)
    before = checks[begin - 1] if begin else None
    return Backing(
        first=first,
        last=last,
        stale=before if before and before.number >= first.number else None,
        checks=checks,
        begin=begin,
        end=end,
    )


def _is_idle(step: Step) -> bool:
    """It changes how the code looks, and not what it does."""
    if isinstance(step.event, Edit):
        return only_comments(step.event)
    programs = frozenset(step.doing.programs) - {"cd"} if step.doing else frozenset()
    if not programs or not isinstance(step.event, Command):
        return False
    return programs <= FORMATTERS or (
        programs <= _FORMAT_TOO and _FORMATS.search(step.event.command[:1000]) is not None
    )


def trials_after(
    reading: Reading, lane: LaneReading, last: Step, until: float = END
) -> Iterator[Step]:
    """Runs of anything that may have shown the code to work, since it was last changed."""
    if _tries_itself(last):
        yield last
    for name in _lanes_of(lane, last):
        trials = _trials(reading.lanes[name]) if name in reading.lanes else ()
        for index in range(bisect_right(trials, last.number, key=NUMBER), len(trials)):
            if trials[index].number >= until:
                break
            yield trials[index]


def tried_between(reading: Reading, lane: LaneReading, backing: Backing) -> Step | None:
    """Such a run before the last change, and since the first."""
    for name in _lanes_of(lane, backing.last):
        trials = _pure_trials(reading.lanes[name]) if name in reading.lanes else ()
        end = bisect_right(trials, backing.last.number, key=NUMBER)
        if end and trials[end - 1].number >= backing.first.number:
            return trials[end - 1]
    return None


def _lanes_of(lane: LaneReading, last: Step) -> Iterable[str]:
    """The one that made the change, and the lane itself."""
    return dict.fromkeys((last.event.lane, lane.lane.id))


@once
def _trials(lane: LaneReading) -> Sequence[Step]:
    return list(filter(is_trial, lane.steps))


@once
def _pure_trials(lane: LaneReading) -> Sequence[Step]:
    """Those that do not only make the change that they would have to try."""
    return [step for step in _trials(lane) if not step.changed or _tries_itself(step)]


def _tries_itself(step: Step) -> bool:
    """It changes files and runs something else: `sed -i … && python example.py`."""
    return step.doing is not None and len(step.doing.programs) > 1 and is_trial(step)


def is_trial(step: Step) -> bool:
    """It runs something that is not only there to look at files, and is no check."""
    event = step.event
    if step.check is not None:
        return False
    if isinstance(event, ToolUse):
        # `str_replace` is no `repl`.
        name = event.name.lower().replace("replac", "")
        return any(word in name for word in _TRIES)
    if not isinstance(event, Command) or step.doing is None:
        return False
    return any(name.partition(" ")[0] not in _LOOKS for name in step.doing.programs)


def is_static(step: Step) -> bool:
    """It reads the code and does not run it: that its tests pass is not among what it says."""
    return step.doing is not None and all(
        tool.partition(" ")[0] in STATIC for tool in step.doing.checks
    )


def is_linter(step: Step) -> bool:
    """It speaks of style."""
    return step.doing is not None and all(
        tool.partition(" ")[0] in LINTERS for tool in step.doing.checks
    )


def broken(step: Step) -> bool:
    """The machine has not the version that the check needs: nothing in the code changes that."""
    event = step.event
    output = event.output if isinstance(event, Command) and event.output else ""
    return any(words in output[:2000] for words in _BROKEN)


def could_not_run(step: Step) -> bool:
    """The check itself was not there to be run: that says nothing of the code."""
    event = step.event
    if not isinstance(event, Command) or step.check is None or step.check.passed:
        return False
    if event.exit_code in (126, 127) or event.stopped is not None:
        return True
    failures = step.check.failures
    if broken(step):
        return True
    if failures and failures.parser == "launch":
        return all(key.endswith(": not found") for key in failures.errors)
    said = (event.output or "")[-2000:] if failures is None or failures.parser == "tail" else ""
    return any(words in said for words in _MISSING)


_MISSING = (
    "command not found",
    "No module named pytest",
    "no tests ran",
    "collected 0 items",
    "Missing script",
    "No such file or directory",
    "Permission denied",
    "Could not resolve",
    "Connection refused",
    "unrecognized subcommand",
    "ESLint couldn't find",
)
_BROKEN = ("Unsupported environment (bad ", "Unsupported engine", "Cannot find module 'node:")
