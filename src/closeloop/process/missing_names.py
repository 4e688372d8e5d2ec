"""Names that a failing result says do not exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Literal

from ahocorasick_rs import AhoCorasick

from closeloop.model.record import Record
from closeloop.process.phrases import automaton, holds

Sort = Literal["attribute", "import", "module", "keyword", "name", "option"]

LOOKED_AT = 4000
"""So much of an output is searched, from its end."""
SHORTEST = 4
"""Shorter names are in every text: nothing can be said of them."""

# The words that tell of a missing name, and how to read it from what stands around them.
_SAYINGS: tuple[tuple[str, Sort, str], ...] = (
    ("has no attribute", "attribute", r"has no attribute ['\"](\w+)['\"]"),
    ("not have the attribute", "attribute", r"not have the attribute ['\"](\w+)['\"]"),
    ("does not exist on type", "attribute", r"Property '(\w+)' does not exist on type"),
    (" is not a function", "attribute", r"(\w+) is not a function\b"),
    ("has no field or method", "attribute", r"has no field or method (\w+)"),
    ("undefined: ", "attribute", r"undefined: \w+\.(\w+)"),
    (" named `", "attribute", r"no (?:method|field|[a-z ]{0,30}associated item) named `(\w+)`"),
    ("cannot import name", "import", r"cannot import name ['\"](\w+)['\"]"),
    ("no exported member", "import", r"has no exported member (?:named )?['\"](\w+)['\"]"),
    ("unresolved import", "import", r"unresolved import `[\w:]*?(\w+)`"),
    # A package that is not installed is named without a dot: that is the machine's fault.
    ("No module named", "module", r"No module named ['\"](\w+(?:\.\w+)+)['\"]"),
    ("unexpected keyword", "keyword", r"unexpected keyword argument ['\"](\w+)['\"]"),
    ("NameError: name", "name", r"NameError: name ['\"](\w+)['\"] is not defined"),
    ("ReferenceError: ", "name", r"ReferenceError: (\w+) is not defined"),
    ("Cannot find name", "name", r"Cannot find name '(\w+)'"),
    ("undefined: ", "name", r"undefined: (\w+)(?![\w.])"),
    ("cannot find ", "name", r"cannot find [a-z][a-z, /]{0,60} `(\w+)` in"),
    ("nrecognized argument", "option", r"\w?nrecognized arguments?: (--[\w-]+)"),
    ("nrecognized option", "option", r"\w?nrecognized options?[: ]+[`'\"‘]?(--[\w-]+)"),
    ("nknown option", "option", r"\w?nknown options?[: ]+[`'\"‘]?(--[\w-]+)"),
    ("nknown flag", "option", r"\w?nknown flag: [`'\"‘]?(--[\w-]+)"),
    ("nknown argument", "option", r"\w?nknown arguments?[: ]+[`'\"‘]?(--[\w-]+)"),
    ("o such option", "option", r"\w?o such option[: ]+[`'\"‘]?(--[\w-]+)"),
    ("unexpected argument", "option", r"unexpected argument [`'\"‘]?(--[\w-]+)"),
)
_AROUND = 200
_MOST = 50
# Options that exist once a plug-in is installed: without it the machine is at fault.
_PLUGGED_IN = (
    "--asyncio", "--benchmark", "--black", "--cov", "--dist", "--ds", "--flake8", "--forked",
    "--html", "--json-report", "--mypy", "--no-cov", "--numprocesses", "--picked", "--randomly",
    "--reruns", "--snapshot", "--testmon", "--timeout", "--xvfb",
)  # fmt: skip
# Who tries one of these wants to see the error.
_MADE_UP = re.compile(r"bogus|no[nt]?-?(?:exist|such)|-(?:invalid|unknown|nope|fake|dummy|foo)\b")


class Missing(Record):
    """A name that does not exist, and the words that say so."""

    sort: Sort
    name: str
    words: str


@lru_cache(maxsize=1)
def _signs() -> tuple[AhoCorasick, list[list[tuple[Sort, re.Pattern[str]]]]]:
    patterns: dict[str, list[tuple[Sort, re.Pattern[str]]]] = {}
    for sign, sort, pattern in _SAYINGS:
        patterns.setdefault(sign, []).append((sort, re.compile(pattern)))
    return automaton(list(patterns)), list(patterns.values())


def missing_names(output: str) -> Iterator[Missing]:
    """Each name once, in the order of the text."""
    tail = output[-LOOKED_AT:]
    search, patterns = _signs()
    if not holds(search, tail):
        return
    seen = set()
    for index, start, end in search.find_matches_as_indexes(tail)[:_MOST]:
        around = tail[max(0, start - _AROUND) : end + _AROUND]
        for sort, pattern in patterns[index]:
            found = pattern.search(around)
            if found and found[1] not in seen and not _is_exempt(sort, found[1]):
                seen.add(found[1])
                yield Missing(sort=sort, name=found[1], words=" ".join(found[0].split()))


def _is_exempt(sort: Sort, name: str) -> bool:
    if sort == "option":
        plugged_in = name.startswith(_PLUGGED_IN)
        return len(name) < SHORTEST + 2 or plugged_in or _MADE_UP.search(name) is not None
    return len(name) < SHORTEST or name.startswith("__")
