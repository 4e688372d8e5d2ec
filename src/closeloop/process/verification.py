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
"""So many checks before the first change are looked at."""


class CheckBacking(Record):
    """What was done to see whether a lane's code is right, up to some event."""

    first: TraceStep
    """The first change of code."""
    last: TraceStep
    """The last one that is more than a comment."""
    stale: TraceStep | None
    """The last check before, since the first change."""
    checks: Sequence[TraceStep]
    begin: int
    end: int
    """Of all checks those between these places ran on the code as it was left, in any lane."""

    @property
    def has_current_check(self) -> bool:
        return self.begin < self.end

    @property
    def latest_checks(self) -> Iterator[TraceStep]:
        """Those checks, the last one first."""
        return (self.checks[index] for index in range(self.end - 1, self.begin - 1, -1))


@cache_on_reading
def list_trace_checks(reading: TraceReading) -> Sequence[TraceStep]:
    """All checks of the trace, in order."""
    if len(reading.lanes) == 1:
        return next(iter(reading.lanes.values())).checks
    return sorted(
        (step for lane in reading.lanes.values() for step in lane.checks), key=EVENT_NUMBER
    )


@cache_on_reading
def checks_by_lane(reading: TraceReading) -> Mapping[str, Sequence[TraceStep]]:
    """Lane → the checks that it ran itself, or one that works for it, in order."""
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
    """A check ran after the last edit of code; None where none was edited."""
    backing = find_backing(list_code_changes(lane), checks)
    return None if backing is None else backing.has_current_check


def find_backing(
    changes: Sequence[TraceStep],
    checks: Sequence[TraceStep],
    until: float = NO_END,
    count: int | None = None,
) -> CheckBacking | None:
    """Where the code of those changes stands before that event; None where there is none.

    `checks` are those of the whole trace: a child's code may be checked by its parent. `count` is
    how many of the changes count, where these are not all before the event.
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
    """It changes how the code looks, and not what it does; or puts back a copy made before."""
    if isinstance(step.event, Edit):
        return changes_only_comments(step.event) or removes_debug_lines(step.event)
    if (
        _deletes_debug_lines(step)
        or _puts_copy_back(step)
        or (step.edits and all(map(changes_only_comments, step.edits)))
    ):
        return True
    programs = frozenset(step.doing.programs) - {"cd"} if step.doing else frozenset()
    if not programs or not isinstance(step.event, Command):
        return False
    return programs <= FORMATTERS or (
        programs <= _FORMATTING_TOOLS
        and _FORMAT_COMMAND.search(step.event.command[:1000]) is not None
    )


def _deletes_debug_lines(step: TraceStep) -> bool:
    """`sed -i '/DEBUG/d' cart.py`, and nothing else."""
    if (
        step.doing is None
        or not isinstance(step.event, Command)
        or "sed" not in step.doing.programs
    ):
        return False
    return _DEBUG_DELETION.fullmatch(step.event.command.strip()[:1000]) is not None


def _puts_copy_back(step: TraceStep) -> bool:
    """`mv cart.py.bak cart.py`: the code is as it was tried before."""
    if step.doing is None or not {"mv", "cp"}.issuperset({*step.doing.programs} - {"cd"}):
        return False
    paths = set(step.written)
    return any(path.rpartition(".")[0] in paths for path in paths)


def list_trials_after(
    reading: TraceReading, lane: LaneReading, last: TraceStep, until: float = NO_END
) -> Iterator[TraceStep]:
    """Runs of anything that may have shown the code to work, since it was last changed."""
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
    """Such a run before the last change, and since the first."""
    for name in _relevant_lanes(lane, backing.last):
        trials = _list_pure_trials(reading.lanes[name]) if name in reading.lanes else ()
        end = bisect_right(trials, backing.last.number, key=EVENT_NUMBER)
        if end and trials[end - 1].number >= backing.first.number:
            return trials[end - 1]
    return None


def _relevant_lanes(lane: LaneReading, last: TraceStep) -> Iterable[str]:
    """The one that made the change, and the lane itself."""
    return dict.fromkeys((last.event.lane, lane.lane.id))


@cache_on_reading
def _list_trials(lane: LaneReading) -> Sequence[TraceStep]:
    return list(filter(is_trial, lane.steps))


@cache_on_reading
def _list_pure_trials(lane: LaneReading) -> Sequence[TraceStep]:
    """Those that do not only make the change that they would have to try."""
    return [step for step in _list_trials(lane) if not step.changed or _tries_itself(step)]


def _tries_itself(step: TraceStep) -> bool:
    """It changes files and runs something else: `sed -i … && python example.py`."""
    return step.doing is not None and len(step.doing.programs) > 1 and is_trial(step)


def is_trial(step: TraceStep) -> bool:
    """It runs something that is not only there to look at files, and is no check."""
    event = step.event
    if step.check is not None:
        return False
    if isinstance(event, ToolUse):
        # `str_replace` is not a REPL.
        name = event.name.lower().replace("replac", "")
        return any(word in name for word in _RUNNING_TOOL_WORDS)
    if not isinstance(event, Command) or step.doing is None:
        return False
    return runs_program(step.doing)


def is_run(step: TraceStep) -> bool:
    """It runs code: a check that does more than read it, or another trial of it."""
    return is_trial(step) if step.check is None else not is_static_check(step)


def is_static_check(step: TraceStep) -> bool:
    """It reads the code and does not run it: that its tests pass is not among what it says."""
    return _uses_only(step, STATIC_TOOLS)


def is_linter_check(step: TraceStep) -> bool:
    """It speaks of style."""
    return _uses_only(step, LINTERS)


def is_unclaimed_style(step: TraceStep, claim: str) -> bool:
    """A linter that the claim does not name: style is no part of what is claimed."""
    lower_claim = claim.lower()
    names_style = "lint" in lower_claim or (
        step.check is not None and step.check.tool in lower_claim
    )
    return is_linter_check(step) and not names_style


def _uses_only(step: TraceStep, tools: frozenset[str]) -> bool:
    names = (step.doing.checks if step.doing else ()) or (step.check.tool if step.check else "",)
    return all(name.partition(" ")[0] in tools for name in names)


def could_not_run(step: TraceStep) -> bool:
    """The check was not there to be run, or was stopped: that says nothing of the code."""
    return step.check is not None and step.check.blocked is not None


def is_sure_failure(step: TraceStep) -> bool:
    """Tests or a compiler failed: that a script ends with an error may be what it is to show."""
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
    """What fails had failed before the agent changed anything."""
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
"""So many failing checks before an edit are asked."""
_SOURCE_PLACE = re.compile(r"[^\s:]+\.\w+: ")


class FailingChecks:
    """All failing checks of a trace, with the words of each."""

    def __init__(self, reading: TraceReading, *, of_tests: bool = False) -> None:
        """`of_tests`: only where a test ran and failed, not where code could not be built."""
        self.of_tests = of_tests
        self.checks = [
            step
            for step in list_trace_checks(reading)
            if step.check is not None and step.check.failures is not None
        ]
        self.numbers = [step.event.number for step in self.checks]
        self.words: dict[int, str] = {}

    def last_check_naming(self, number: int, names: Iterable[str]) -> TraceStep | None:
        """The last failing check before that event that named one of them."""
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
