"""Verification: did a check run on the code as it was left?"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter

from closeloop.process.check_results import runs_program
from closeloop.process.edit_contents import (
    FORMATTERS,
    changes_only_comments,
    list_code_changes,
    removes_debug_lines,
)
from closeloop.process.rule_helpers import cache_on_reading
from closeloop.records.change import CheckFailures, LaneReading, TraceReading, TraceStep
from closeloop.records.record import Record
from closeloop.records.trace import Command, Edit, ToolUse

LINTERS = frozenset((
    "ruff", "eslint", "flake8", "pylint", "prettier", "black", "golangci-lint", "stylelint",
    "gofmt", "rubocop", "biome", "oxlint", "ultracite", "sqlfluff", "codespell", "semgrep",
    "bandit", "vulture", "yamllint", "markdownlint", "hadolint", "actionlint", "ansible-lint",
    "tflint", "luacheck", "hlint", "swiftlint", "ktlint", "detekt", "shellcheck",
))  # fmt: skip
STATIC_TOOLS = LINTERS | frozenset((
    "mypy", "pyright", "ty", "tsc", "pyre", "basedpyright", "flow", "vue-tsc", "svelte-check",
    "syntax", "py_compile", "compileall",
))  # fmt: skip
_RUNNING_TOOL_WORDS = (
    "test", "diagnostic", "browser", "playwright", "screenshot", "lint", "build", "exec", "stdin",
    "shell", "terminal", "repl",
)  # fmt: skip
"""Parts of the names of tools that may have run the code; what they ran is not told."""
_FORMATTING_TOOLS = frozenset(("ruff", "cargo", "go", "biome", "deno", "dart", "terraform"))
_FORMAT_COMMAND = re.compile(r"^[^;&|]*\s(?:format|fmt)\b[^;&|]*$")
_DEBUG_DELETION = re.compile(
    r"(?:cd \S+ && )?sed -i(?: -e)? (['\"])"
    r"/[^/]*(?:debug|print|console\.log|breakpoint|pdb)[^/]*/d\1 \S+",
    re.IGNORECASE,
)
EVENT_NUMBER = attrgetter("event.number")
NO_END = float("inf")
MAX_EARLIER_CHECKS = 1000
"""Maximum number of checks before the first change that are examined."""


class CheckBacking(Record):
    """The checks that may show whether a lane's code is right, up to some event."""

    first: TraceStep
    """The first change of code."""
    last: TraceStep
    """The last one that is more than a comment."""
    stale: TraceStep | None
    """The last check before, since the first change."""
    checks: Sequence[TraceStep]
    begin: int
    end: int
    """The checks between these two indices ran on the final code, in any lane."""

    @property
    def has_current_check(self) -> bool:
        return self.begin < self.end

    @property
    def latest_checks(self) -> Iterator[TraceStep]:
        """Checks of the final code, the last one first."""
        return (self.checks[index] for index in range(self.end - 1, self.begin - 1, -1))


@cache_on_reading
def list_trace_checks(reading: TraceReading) -> Sequence[TraceStep]:
    """List all checks of the trace, in order."""
    if len(reading.lanes) == 1:
        return next(iter(reading.lanes.values())).checks
    return sorted(
        (step for lane in reading.lanes.values() for step in lane.checks), key=EVENT_NUMBER
    )


@cache_on_reading
def checks_by_lane(reading: TraceReading) -> Mapping[str, Sequence[TraceStep]]:
    """Return, by lane, the checks that it or one of its sub-agents ran, in order."""
    lane_checks: dict[str, list[TraceStep]] = {name: [] for name in reading.lanes}
    for step in list_trace_checks(reading):
        name: str | None = step.event.lane
        seen_lanes: set[str] = set()
        while name is not None and name in reading.lanes and name not in seen_lanes:
            seen_lanes.add(name)
            lane_checks[name].append(step)
            name = reading.lanes[name].lane.parent
    return lane_checks


def has_verification(lane: LaneReading, checks: Sequence[TraceStep]) -> bool | None:
    """Whether a check ran after the last edit of code; None if no code was edited."""
    backing = find_backing(list_code_changes(lane), checks)
    return None if backing is None else backing.has_current_check


def find_backing(
    changes: Sequence[TraceStep],
    checks: Sequence[TraceStep],
    until: float = NO_END,
    count: int | None = None,
) -> CheckBacking | None:
    """Return which checks cover the changes before an event; None if there is no change.

    `checks` are those of the whole trace: a child's code may be checked by its parent. `count` is
    how many of the changes count, if these are not all before the event.
    """
    index = bisect_left(changes, until, key=EVENT_NUMBER) if count is None else count
    while index and _is_cosmetic(changes[index - 1]):
        index -= 1
    if not index:
        return None
    first, last = changes[0], changes[index - 1]
    begin = bisect_left(checks, last.number, key=EVENT_NUMBER)
    end = len(checks) if until == NO_END else bisect_left(checks, until, key=EVENT_NUMBER)
    before = checks[begin - 1] if begin else None
    return CheckBacking(
        first=first,
        last=last,
        stale=before if before and before.number >= first.number else None,
        checks=checks,
        begin=begin,
        end=end,
    )


def _is_cosmetic(step: TraceStep) -> bool:
    """Whether it changes only the layout of code, or restores an earlier copy."""
    if isinstance(step.event, Edit):
        return changes_only_comments(step.event) or removes_debug_lines(step.event)
    if (
        _deletes_debug_lines(step)
        or _puts_copy_back(step)
        or (step.edits and all(map(changes_only_comments, step.edits)))
    ):
        return True
    programs = frozenset(step.effect.programs) - {"cd"} if step.effect else frozenset()
    if not programs or not isinstance(step.event, Command):
        return False
    return programs <= FORMATTERS or (
        programs <= _FORMATTING_TOOLS
        and _FORMAT_COMMAND.search(step.event.command[:1000]) is not None
    )


def _deletes_debug_lines(step: TraceStep) -> bool:
    """Whether it only deletes debug output, as `sed -i '/DEBUG/d' cart.py` does."""
    if (
        step.effect is None
        or not isinstance(step.event, Command)
        or "sed" not in step.effect.programs
    ):
        return False
    return _DEBUG_DELETION.fullmatch(step.event.command.strip()[:1000]) is not None


def _puts_copy_back(step: TraceStep) -> bool:
    """Whether it restores a copy that was tried before, as `mv cart.py.bak cart.py` does."""
    if step.effect is None or not {"mv", "cp"}.issuperset({*step.effect.programs} - {"cd"}):
        return False
    paths = set(step.written)
    return any(path.rpartition(".")[0] in paths for path in paths)


def list_trials_after(
    reading: TraceReading, lane: LaneReading, last: TraceStep, until: float = NO_END
) -> Iterator[TraceStep]:
    """Yield runs since the last change that may have shown that the code works."""
    if _tries_itself(last):
        yield last
    for name in _relevant_lanes(lane, last):
        trials = _list_trials(reading.lanes[name]) if name in reading.lanes else ()
        for index in range(bisect_right(trials, last.number, key=EVENT_NUMBER), len(trials)):
            if trials[index].number >= until:
                break
            yield trials[index]


def find_trial_between(
    reading: TraceReading, lane: LaneReading, backing: CheckBacking
) -> TraceStep | None:
    """Return the last such run between the first and the last change."""
    for name in _relevant_lanes(lane, backing.last):
        trials = _list_pure_trials(reading.lanes[name]) if name in reading.lanes else ()
        end = bisect_right(trials, backing.last.number, key=EVENT_NUMBER)
        if end and trials[end - 1].number >= backing.first.number:
            return trials[end - 1]
    return None


def _relevant_lanes(lane: LaneReading, last: TraceStep) -> Iterable[str]:
    """Return the lane that made the change, and the lane itself."""
    return dict.fromkeys((last.event.lane, lane.lane.id))


@cache_on_reading
def _list_trials(lane: LaneReading) -> Sequence[TraceStep]:
    return list(filter(is_trial, lane.steps))


@cache_on_reading
def _list_pure_trials(lane: LaneReading) -> Sequence[TraceStep]:
    """List trials, without those that only make the change."""
    return [step for step in _list_trials(lane) if not step.changed or _tries_itself(step)]


def _tries_itself(step: TraceStep) -> bool:
    """Whether it changes files and then runs another program: `sed -i … && python example.py`."""
    return step.effect is not None and len(step.effect.programs) > 1 and is_trial(step)


def is_trial(step: TraceStep) -> bool:
    """Whether it runs a program that does more than read files, and is not a check."""
    event = step.event
    if step.check is not None:
        return False
    if isinstance(event, ToolUse):
        # `str_replace` is not a REPL, and `KillShell` runs nothing.
        name = event.name.lower().replace("replac", "")
        return not name.startswith(("kill", "stop")) and any(
            word in name for word in _RUNNING_TOOL_WORDS
        )
    if not isinstance(event, Command) or step.effect is None:
        return False
    return runs_program(step.effect)


def is_run(step: TraceStep) -> bool:
    """Whether it runs code, as a check or otherwise."""
    return is_trial(step) if step.check is None else not is_static_check(step)


def is_static_check(step: TraceStep) -> bool:
    """Whether its check only reads the code, as a linter or type checker does."""
    return _uses_only(step, STATIC_TOOLS)


def is_linter_check(step: TraceStep) -> bool:
    """Whether its check is a linter."""
    return _uses_only(step, LINTERS)


def is_unclaimed_style(step: TraceStep, claim: str) -> bool:
    """Whether it is a linter that the claim does not mention."""
    lower_claim = claim.lower()
    names_style = "lint" in lower_claim or (
        step.check is not None and step.check.tool in lower_claim
    )
    return is_linter_check(step) and not names_style


def _uses_only(step: TraceStep, tools: frozenset[str]) -> bool:
    names = (step.effect.checks if step.effect else ()) or (step.check.tool if step.check else "",)
    return all(name.partition(" ")[0] in tools for name in names)


def could_not_run(step: TraceStep) -> bool:
    """Whether the check was missing or stopped, so that it says nothing about the code."""
    return step.check is not None and step.check.blocked is not None


def is_sure_failure(step: TraceStep) -> bool:
    """Whether tests or a compiler failed; a script may be meant to end with an error."""
    failures = step.check.failures if step.check else None
    return (
        step.check is not None
        and failures is not None
        and step.check.tool != "script"
        and failures.parser not in ("tail", "traceback", "launch")
    )


def has_failed_before(
    failing_step: TraceStep, first: TraceStep, checks: Sequence[TraceStep]
) -> bool:
    """Whether the same failed before the agent changed anything."""
    failures = failing_step.check.failures if failing_step.check else None
    if failing_step.check is None or failures is None:
        return False
    failing, tool = failures.keys, failing_step.check.tool
    index = bisect_left(checks, first.number, key=EVENT_NUMBER)
    for step in checks[max(0, index - MAX_EARLIER_CHECKS) : index]:
        before = step.check.failures if step.check and step.check.tool == tool else None
        if before is not None and failing <= before.keys:
            return True
    return False


# What failing checks reported: whether a file was named before it was changed.

MAX_CHECKS_BACK = 50
"""Maximum number of failing checks before an edit that are searched."""
_SOURCE_PLACE = re.compile(r"[^\s:]+\.\w+: ")


class FailingChecks:
    """All failing checks of a trace, with the words of each."""

    def __init__(self, reading: TraceReading, *, of_tests: bool = False) -> None:
        """With `of_tests`, only checks in which a test ran and failed, not failed builds."""
        self.of_tests = of_tests
        self.checks = [
            step
            for step in list_trace_checks(reading)
            if step.check is not None and step.check.failures is not None
        ]
        self.numbers = [step.event.number for step in self.checks]
        self.words: dict[int, str] = {}

    def last_check_naming(self, number: int, names: Iterable[str]) -> TraceStep | None:
        """Return the last failing check before an event that named one of these."""
        search_names = tuple(names)
        end = bisect_left(self.numbers, number)
        for step in reversed(self.checks[max(0, end - MAX_CHECKS_BACK) : end]):
            failure_text = self._failure_text(step)
            if any(name in failure_text for name in search_names):
                return step
        return None

    def _failure_text(self, step: TraceStep) -> str:
        text = self.words.get(step.number)
        if text is None:
            failures = step.check.failures if step.check else None
            assert failures is not None, "only failing checks are kept"
            failure_names = [*list(failures.errors)[:200], *failures.paths[:100]]
            counts = not self.of_tests or _names_tests(failures)
            text = self.words[step.number] = "\n".join(failure_names) if counts else ""
        return text


def _names_tests(failures: CheckFailures) -> bool:
    return failures.parser != "tail" and any(
        not _SOURCE_PLACE.match(key) for key in failures.errors
    )
