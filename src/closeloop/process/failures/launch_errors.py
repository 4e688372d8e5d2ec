"""What shells, make and npm say when a check did not even start, or only that it failed."""

from __future__ import annotations

import re

from closeloop.process.failures.failure_collector import FailureCollector
from closeloop.process.output_normalisation import normalise_output

marks = (
    "command not found", ": not found", "sh: ", "env: ", "No module named ", "*** ", "npm ERR!",
    "npm error", "can't open file", "syntax error near", "ELIFECYCLE", "unrecognized arguments",
    " ERROR task failed", 'error: script "', '" not found',
)  # fmt: skip

_MISSING_COMMAND = re.compile(
    r"^(?:[\w/]*sh|env): (?:line \d+: |\d+: |-c: line \d+: )?[‘'`]?([^\s:’']+)[’']?: "
    r"(?:command not found|not found|No such file or directory)$"
    r"|^(?:zsh|\(eval\)(?::\d+)?): command not found: (\S+)$"
    r'|\bCommand "(\S+)" not found$'
    r"|^\S+: No module named (\S+)$"
    r"|can't open file '([^'\n]+)'",
    re.MULTILINE,
)
_FAILURE_LINE = re.compile(
    r"^(?:(?:g?make|mingw32-make)(?:\[\d+\])?: \*\*\* .+"
    r"|npm (?:ERR!|error) (?:Missing script: .+|Lifecycle .+ failed.*|Test failed.*|command failed)"
    r"|\[[\w:.-]{1,40}\] ERROR task failed|error: script \"[^\"\n]{1,80}\" exited with code \d+"
    r"|.*ELIFECYCLE.*|.*: syntax error near .+|.*error: unrecognized arguments: .+)$",
    re.MULTILINE,
)
_NO_REASON = re.compile(
    r"ELIFECYCLE|ERROR task failed|error: script|Lifecycle .* failed|Test failed|command failed"
    r"|\*\*\* \[.*\] Error \d"
)
_MAX_LINE_CHARS = 300
_LINE_NUMBER = re.compile(r":\d+: |\bline \d+\b")


def read_verdict(text: str) -> bool | None:
    return False if _MISSING_COMMAND.search(text) or _FAILURE_LINE.search(text) else None


def collect_failures(text: str, found: FailureCollector) -> None:
    for *names, file in _MISSING_COMMAND.findall(text):
        name = "".join(names)
        found.add_test(f"{name or file}: not found")
        found.add_symbol(name)
        found.add_path(file)
    failure_lines = _FAILURE_LINE.findall(text) if not found.errors else ()
    words = len(text.split()) if failure_lines else 0
    for line in failure_lines:
        if _NO_REASON.search(line[:_MAX_LINE_CHARS]) and words > len(line.split()):
            # That it failed says less than the lines before it.
            continue
        found.add_test(_LINE_NUMBER.sub(" ", normalise_output(line)))
