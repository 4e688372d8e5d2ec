"""Where no tool is recognised: the last lines, as far as they are the same in every run."""

from __future__ import annotations

import re

from closeloop.model.steps import Failures
from closeloop.process.failures.found import MOST_NAMES, is_foreign, names_in
from closeloop.process.normalise import normalised

LINES = 8
LONGEST_LINE = 300

# Each begins with fixed letters: that makes looking for them fast.
_PLACE, _LINE = re.compile(r":(?<=\w:)\d+(?::\d+)?"), re.compile(r"line (?<=\bline )\d+")
_PATH = re.compile(
    r"(?<![\w/.-])(/?(?:[\w@.-]{1,80}/){0,20}[\w@.-]{1,80}\.(?:pyi?|[cm]?[jt]sx?|go|rs|java|kt|rb|php"
    r"|c|cc|cpp|h|hpp|cs|swift|scala|sh|toml|ya?ml|json|cfg|ini|html|css|vue|sql|md))\b"
)


def failures_of(text: str) -> Failures:
    """One error whose id is the text itself: it is the same failure only when it says the same."""
    lines = [line[:LONGEST_LINE] for line in text[-8000:].split("\n") if line.strip()][-LINES:]
    tail = _LINE.sub("", _PLACE.sub("", normalised("\n".join(lines))))
    words = " ".join([word for word in tail.split() if "." in word])
    paths = [path for path in _PATH.findall(words) if not is_foreign(path)]
    return Failures(
        errors={tail or "no output": ""},
        parser="tail",
        paths=tuple(dict.fromkeys(paths))[:MOST_NAMES],
        symbols=names_in(tail)[:MOST_NAMES],
    )
