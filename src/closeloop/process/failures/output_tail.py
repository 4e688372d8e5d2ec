"""Where no tool is recognised: the last lines, as far as they are the same in every run."""

from __future__ import annotations

import re

from closeloop.process.failures.failure_collector import (
    MAX_NAMES,
    find_quoted_names,
    is_foreign_path,
)
from closeloop.process.output_normalisation import normalise_output
from closeloop.records.trace_steps import CheckFailures

MAX_LINES = 8
MAX_LINE_CHARS = 300

# Each begins with fixed letters: that makes looking for them fast.
_PLACE, _LINE = re.compile(r":(?<=\w:)\d+(?::\d+)?"), re.compile(r"line (?<=\bline )\d+")
_FILE_PATH = re.compile(
    r"(?<![\w/.-])(/?(?:[\w@.-]{1,80}/){0,20}[\w@.-]{1,80}\.(?:pyi?|[cm]?[jt]sx?|go|rs|java|kt|rb|php"
    r"|c|cc|cpp|h|hpp|cs|swift|scala|sh|toml|ya?ml|json|cfg|ini|html|css|vue|sql|md))\b"
)


def failures_from_tail(text: str) -> CheckFailures:
    """One error whose id is the text itself: it is the same failure only when it says the same."""
    lines = [line[:MAX_LINE_CHARS] for line in text[-8000:].split("\n") if line.strip()][
        -MAX_LINES:
    ]
    tail = _LINE.sub("", _PLACE.sub("", normalise_output("\n".join(lines))))
    words = " ".join([word for word in tail.split() if "." in word])
    paths = [path for path in _FILE_PATH.findall(words) if not is_foreign_path(path)]
    return CheckFailures(
        errors={tail or "no output": ""},
        parser="tail",
        paths=tuple(dict.fromkeys(paths))[:MAX_NAMES],
        symbols=find_quoted_names(tail)[:MAX_NAMES],
    )
