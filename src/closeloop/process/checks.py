"""Whether a check passed, and what fails."""

from __future__ import annotations

import re

from closeloop.model.steps import Check, Doing, Failures
from closeloop.model.trace import Command
from closeloop.process.failures import tail
from closeloop.process.failures.tools import NAMED, failures_in, failures_of, parser_of, recognised
from closeloop.process.normalise import plain

WINDOW = 200_000
"""Characters of an output that are looked at: a quarter from its beginning, the rest its end."""
NO_TESTS = 5
"""The exit code of pytest and unittest when no test ran: neither a pass nor a failure."""

_SAID_EXIT = re.compile(
    r"(?:^|\n)(?:[^\n\d]{0,30}(?:exit|code|status|rc)[^\n\d]{0,12})?(\d{1,3})\s*\Z", re.IGNORECASE
)


def check_of(event: Command, doing: Doing) -> Check | None:
    """None where the command checks nothing."""
    if not doing.checks:
        return None
    code = _exit_code(event, doing)
    if code == 0 and event.stopped is None:
        return Check(tool=doing.checks[0], target=doing.target, passed=True)
    text = _window(event.output or "")
    parsers = [parser_of(tool) for tool in doing.checks]
    names = list(dict.fromkeys(filter(None, parsers)))
    failures: Failures | None = None
    if event.stopped is not None:
        failures = failures_in(text, names, warnings=False)
        passed = False if failures else None
    elif code is None:
        passed, failures = _by_output(text, names, recognised(text) if None in parsers else [])
    elif code == NO_TESTS and ("pytest" in names or "unittest" in names):
        passed = None
    else:
        passed = False
        failures = failures_in(text, names) or tail.failures_of(text)
    return Check(tool=doing.checks[0], target=doing.target, passed=passed, failures=failures)


def _by_output(
    text: str, names: list[str], others: list[str]
) -> tuple[bool | None, Failures | None]:
    """Where no exit code tells, a tool's own last words do, then what its output lists."""
    said = {name: NAMED[name].verdict(text) for name in (*names, *others)}
    if False in said.values():
        return False, failures_in(text, names) or tail.failures_of(text)
    if True in said.values():
        # One tool passed; of the others that the command runs, none may list a failure.
        silent = [name for name in names if said[name] is None]
        failures = failures_of(text, silent, warnings=False)
        return failures is None, failures
    failures = failures_in(text, names, warnings=False)
    return (False if failures else None), failures


def _exit_code(event: Command, doing: Doing) -> int | None:
    if not doing.masked:
        return event.exit_code
    if "PIPESTATUS" in event.command or ("$?" in event.command and "|" not in event.command):
        # `pytest; echo "exit: $?"` prints what the mask hides.
        said = _SAID_EXIT.search((event.output or "")[-200:])
        return int(said[1]) if said else None
    return None


def _window(output: str) -> str:
    if len(output) > WINDOW:
        output = f"{output[: WINDOW // 4]}\n{output[-WINDOW * 3 // 4 :]}"
    return plain(output)
