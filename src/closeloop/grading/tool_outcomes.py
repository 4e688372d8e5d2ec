"""What a tool says against a change, by how it ended before the change and after it.

One table for tests, linters, type checkers, builds and the project's own commands. A tool is let
through only where it is shown to be no worse than before.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, get_args

import msgspec

from closeloop.grading.suite_run import detect_runner
from closeloop.records.attempt import TestRun
from closeloop.records.change import Change, GatePolicy, ToolOutcome, ToolRun
from closeloop.records.errors import BadInput
from closeloop.records.task import Task, TestRunner
from closeloop.text.patches import parse_patch
from closeloop.text.wording import escape_glob

# The paths that changes, patches and test ids name.


def changed_paths(change: Change) -> list[str]:
    """Every path a change touches, the old one of a renamed file too."""
    paths = (path for file in change.files for path in (file.path, file.old_path))
    return list(dict.fromkeys(path for path in paths if path is not None))


def parse_change(patch: str | None) -> Change | None:
    """What a patch changes; None for what is no patch."""
    try:
        return parse_patch(patch or "")
    except BadInput:
        return None


def list_patch_paths(patch: str | None) -> list[str]:
    """Every path a patch touches; none for what is no patch."""
    change = parse_change(patch)
    return changed_paths(change) if change else []


def with_failing_tests(task: Task, before: TestRun) -> Task:
    """The task with the files protected whose tests must be made to pass, where it names none."""
    if task.acceptance.names_tests:
        return task
    failing_ids = (test.id for test in before.tests if test.status in ("failed", "error"))
    files = list_test_files(failing_ids, task.acceptance.runner)
    return msgspec.structs.replace(task, protected=tuple(dict.fromkeys((*task.protected, *files))))


def path_in_test_id(test: str) -> str:
    """The part of a test's id before its name: a path, where the runner writes one there."""
    return re.split("::| > ", test, maxsplit=1)[0]


def list_test_files(tests: Iterable[str], runner: TestRunner | None) -> Iterator[str]:
    """The files that test ids name: `path.py::test`, `path.ts > suite > test`, `module.Class.test`.

    `billing::tests::rounds` of cargo and `billing.py::billing.total`, a doctest, are in the code
    itself: that is no file of tests.
    """
    for test in tests:
        file = path_in_test_id(test)
        if re.search(r"\.py::\w+(?:\.\w+)+$", test):
            continue
        if runner == "junit":
            yield f"**/{escape_glob(file.partition('$')[0]).replace('.', '/')}.*"
        elif re.search(r"\.\w+$" if file != test else r"\.(py|[cm]?[jt]sx?)$", file):
            yield escape_glob(file)
        elif dotted := re.fullmatch(r"(\w+(?:\.\w+)*)\.\w+\.\w+", test):
            yield f"**/{dotted[1].replace('.', '/')}.py"


ToolEnding = Literal[
    "passed", "failed", "no results", "inert", "timed out", "not set up", "machine trouble"
]
"""A tool's state. A failed one has results when it named what fails, or which tests ran."""
EndingComparison = Literal["by name", "no worse", "same", "broken", "unknown"]
"""By name: failures and tests are compared one by one. Same: as red as without the change."""

# fmt: off
_COMPARISONS: dict[ToolEnding, tuple[EndingComparison, ...]] = {
    # by the ending before the change; in a row, by the one after it:
    #    passed      failed     no results  inert      timed out  not set up  machine
    "passed": (
        "by name",  "by name", "broken",   "broken",  "broken",  "broken",   "unknown"),
    "failed": (
        "by name",  "by name", "broken",   "broken",  "broken",  "broken",   "unknown"),
    "no results": (
        "no worse", "unknown", "same",     "unknown", "broken",  "broken",   "unknown"),
    "inert": (
        "no worse", "unknown", "unknown",  "same",    "broken",  "broken",   "unknown"),
    "timed out": (
        "no worse", "unknown", "unknown",  "unknown", "same",    "broken",   "unknown"),
    "not set up": (
        "no worse", "unknown", "unknown",  "unknown", "broken",  "same",     "unknown"),
    "machine trouble": (
        "no worse", "unknown", "unknown",  "unknown", "unknown", "unknown",  "unknown"),
}
# fmt: on


def compare_endings(before: ToolEnding, after: ToolEnding) -> EndingComparison:
    """The table's cell for a tool that ended so before the change and so after it."""
    return _COMPARISONS[before][get_args(ToolEnding).index(after)]


def tool_outcome(run: ToolRun) -> ToolOutcome:
    """A run's outcome; of a report that was kept without one, as far as its states tell."""
    if run.outcome is not None:
        return run.outcome
    if run.broke:
        return "broken"
    if run.after in ("passed", run.before):
        return "no worse"
    return "unknown" if run.before is None else "broken"


def is_blocked_by(run: ToolRun, gate: GatePolicy) -> bool:
    """Whether a tool closes the gate: what is red, what is not shown to be no worse, or nothing."""
    if gate == "informational":
        return False
    return tool_outcome(run) != "no worse" or (gate == "strict" and run.after != "passed")


# Whether any test said anything about the change: without that, nothing is verified.

NO_COMMAND_REASON = (
    "no test command is known; set one under [commands] in closeloop.toml, or let "
    "`closeloop init` find it"
)
MAX_CAUSE_CHARS = 160
_MISSING_PROGRAM = re.compile(
    r"(?m)(?:^|: )([\w./+-]{1,80}): (?:command )?not found$"
    r"|^g?make(?:\[\d+\])?: ([\w./+-]{1,80}): No such file or directory$"
)
_MISSING_MODULE = re.compile(r"No module named '?([\w.]{1,80})")


def explain_unverified(runs: Sequence[ToolRun], rewritten: Sequence[str] = ()) -> str | None:
    """Why no test was run that could have found something, and what to do; None where one was.

    Tests that the change itself chose prove little: `rewritten` are the commands it changed.
    """
    tests = [run for run in runs if is_test_run(run)]
    if not tests:
        return NO_COMMAND_REASON
    silent = [run for run in tests if is_silent_test(run)]
    if len(silent) == len(tests):
        return _explain_silence(silent[0])
    if rewritten:
        return (
            f"the change itself rewrites {' and '.join(rewritten)} in closeloop.toml; "
            "review that, or merge it separately first"
        )
    return None


def is_test_run(run: ToolRun) -> bool:
    """Whether a tool runs tests, under whatever name."""
    return run.name == "test" or detect_runner(run.command) is not None


def is_silent_test(run: ToolRun) -> bool:
    """Whether it runs tests, and none of them was run."""
    if not is_test_run(run) or run.after == "passed":
        return False
    return run.after != "failed" or not (run.ran or run.broke or run.already)


def find_missing_program(output: str) -> str | None:
    """The program that a shell, or make, did not find."""
    match = _MISSING_PROGRAM.search(output)
    return match[1] or match[2] if match else None


def advise_on_setup(output: str) -> str:
    """What to do about a setup that fails."""
    missing = find_missing_program(output)
    if missing is None:
        return "correct commands.setup"
    return f"install {missing} in commands.setup first, as `closeloop init` proposes it"


def _explain_silence(run: ToolRun) -> str:
    missing = find_missing_program(run.output)
    module = _MISSING_MODULE.search(run.output)
    lines = [line.strip() for line in run.output.splitlines() if line.strip()]
    cause = f" ({lines[-1][:MAX_CAUSE_CHARS]})" if lines else ""
    if run.after == "timed out":
        return f"{run.name} timed out; raise check.timeout, or select fewer tests"
    if run.after == "machine trouble":
        return f"{run.name} had a machine failure ({run.note or 'unknown'}); run the check again"
    if run.after == "not set up":
        return f"the project cannot be set up{cause}; {advise_on_setup(run.output)}"
    if missing:
        return (
            f"`{missing}` is not installed where the tools run; install it in "
            f"commands.setup, or use another command than `{run.command}`"
        )
    if module and run.after == "failed":
        return (
            f"`{run.command}` found no module {module[1]}; install it in "
            "commands.setup, or use the project's own Python"
        )
    if run.after == "failed":
        return (
            f"{run.name} failed before any test ran{cause}; correct commands.test or commands.setup"
        )
    return f"`{run.command}` ran no test{cause}; set the command that does as commands.test"
