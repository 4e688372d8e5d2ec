"""What shells, make and npm say when a check did not even start, or only that it failed."""

from __future__ import annotations

import re

from closeloop.process.failures.found import Found
from closeloop.process.normalise import normalised

marks = (
    "command not found", ": not found", "sh: ", "env: ", "No module named ", "*** ", "npm ERR!",
    "npm error", "can't open file", "syntax error near", "ELIFECYCLE", "unrecognized arguments",
    " ERROR task failed", 'error: script "', '" not found',
)  # fmt: skip

_MISSING = re.compile(
    r"^(?:[\w/]*sh|env): (?:line \d+: |\d+: |-c: line \d+: )?[‘'`]?([^\s:’']+)[’']?: "
    r"(?:command not found|not found|No such file or directory)$"
    r"|^(?:zsh|\(eval\)(?::\d+)?): command not found: (\S+)$"
    r'|\bCommand "(\S+)" not found$'
    r"|^\S+: No module named (\S+)$"
    r"|can't open file '([^'\n]+)'",
    re.MULTILINE,
)
_SAID = re.compile(
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
_LOOKED_AT = 300
_LINE = re.compile(r":\d+: |\bline \d+\b")


def verdict(text: str) -> bool | None:
    return False if _MISSING.search(text) or _SAID.search(text) else None


def gather(text: str, found: Found) -> None:
    for *names, file in _MISSING.findall(text):
        name = "".join(names)
        found.test(f"{name or file}: not found")
        found.symbol(name)
        found.path(file)
    said = _SAID.findall(text) if not found.errors else ()
    words = len(text.split()) if said else 0
    for line in said:
        if _NO_REASON.search(line[:_LOOKED_AT]) and words > len(line.split()):
            # That it failed says less than the lines before it.
            continue
        found.test(_LINE.sub(" ", normalised(line)))
