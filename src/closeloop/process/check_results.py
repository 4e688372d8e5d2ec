"""Whether a check passed, and what fails."""

from __future__ import annotations

import re

from closeloop.process.failures import output_tail
from closeloop.process.failures.output_parsers import (
    PARSERS_BY_NAME,
    find_failures,
    find_parser_name,
    recognise_parsers,
    run_parsers,
)
from closeloop.process.output_normalisation import strip_terminal_codes
from closeloop.records.trace import Command
from closeloop.records.trace_steps import CheckFailures, CommandEffect, TraceCheck

MAX_OUTPUT_CHARS = 200_000
"""Characters of an output that are looked at: a quarter from its beginning, the rest its end."""
NO_TESTS_EXIT_CODE = 5
"""The exit code of pytest and unittest when no test ran: neither a pass nor a failure."""

_PRINTED_EXIT_CODE = re.compile(
    r"(?:^|\n)(?:[^\n\d]{0,30}(?:exit|code|status|rc)[^\n\d]{0,12})?(\d{1,3})\s*\Z", re.IGNORECASE
)


def check_from_command(event: Command, doing: CommandEffect) -> TraceCheck | None:
    """None where the command checks nothing."""
    if not doing.checks:
        return None
    code = _known_exit_code(event, doing)
    if code == 0 and event.stopped is None:
        return TraceCheck(tool=doing.checks[0], target=doing.target, passed=True)
    text = _cut_output(event.output or "")
    parsers = [find_parser_name(tool) for tool in doing.checks]
    names = list(dict.fromkeys(filter(None, parsers)))
    failures: CheckFailures | None = None
    if event.stopped is not None:
        failures = find_failures(text, names, warnings=False)
        passed = False if failures else None
    elif code is None:
        passed, failures = _judge_output(
            text, names, recognise_parsers(text) if None in parsers else []
        )
    elif code == NO_TESTS_EXIT_CODE and ("pytest" in names or "unittest" in names):
        passed = None
    else:
        passed = False
        failures = find_failures(text, names) or output_tail.failures_from_tail(text)
    return TraceCheck(tool=doing.checks[0], target=doing.target, passed=passed, failures=failures)


def _judge_output(
    text: str, names: list[str], others: list[str]
) -> tuple[bool | None, CheckFailures | None]:
    """Where no exit code tells, a tool's own last words do, then what its output lists."""
    verdicts = {name: PARSERS_BY_NAME[name].read_verdict(text) for name in (*names, *others)}
    if False in verdicts.values():
        return False, find_failures(text, names) or output_tail.failures_from_tail(text)
    if True in verdicts.values():
        # One tool passed; of the others that the command runs, none may list a failure.
        silent = [name for name in names if verdicts[name] is None]
        failures = run_parsers(text, silent, warnings=False)
        return failures is None, failures
    failures = find_failures(text, names, warnings=False)
    return (False if failures else None), failures


def _known_exit_code(event: Command, doing: CommandEffect) -> int | None:
    if not doing.masked:
        return event.exit_code
    if "PIPESTATUS" in event.command or ("$?" in event.command and "|" not in event.command):
        # `pytest; echo "exit: $?"` prints what the mask hides.
        match = _PRINTED_EXIT_CODE.search((event.output or "")[-200:])
        return int(match[1]) if match else None
    return None


def _cut_output(output: str) -> str:
    if len(output) > MAX_OUTPUT_CHARS:
        output = f"{output[: MAX_OUTPUT_CHARS // 4]}\n{output[-MAX_OUTPUT_CHARS * 3 // 4 :]}"
    return strip_terminal_codes(output)
