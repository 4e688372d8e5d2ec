"""Names that a failing result says do not exist, as languages and option parsers put it."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Literal

from ahocorasick_rs import AhoCorasick, Implementation

from closeloop.records.record import Record

MissingNameKind = Literal["attribute", "import", "module", "keyword", "name", "option"]

MAX_OUTPUT_CHARS = 4000
"""So much of an output is searched, from its end."""
MIN_NAME_CHARS = 4
"""Shorter names are in every text: nothing can be said of them."""

_NOT_A_VALUE = r"(?<!'float' object )(?<!'int' object )(?<!'bool' object )(?<!'NoneType' object )"
# The words that tell of a missing name, and how to read it from what stands around them.
_MISSING_NAME_MESSAGES: tuple[tuple[str, MissingNameKind, str], ...] = (
    ("has no attribute", "attribute", rf"{_NOT_A_VALUE}has no attribute ['\"](\w+)['\"]"),
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
_CONTEXT_CHARS, _MAX_MATCHES = 200, 50
# Options that exist once a plug-in is installed: without it the machine is at fault.
_PLUGIN_OPTIONS = (
    "--asyncio", "--benchmark", "--black", "--cov", "--dist", "--ds", "--flake8", "--forked",
    "--html", "--json-report", "--mypy", "--no-cov", "--numprocesses", "--picked", "--randomly",
    "--reruns", "--snapshot", "--testmon", "--timeout", "--xvfb",
)  # fmt: skip
# Who tries one of these wants to see the error.
_INVENTED_OPTION = re.compile(
    r"bogus|no[nt]?-?(?:exist|such)|-(?:invalid|unknown|nope|fake|dummy|foo)\b"
)


class MissingName(Record):
    """A name that does not exist, and the words that say so."""

    sort: MissingNameKind
    name: str
    words: str


@lru_cache(maxsize=1)
def _build_message_search() -> tuple[
    AhoCorasick, list[list[tuple[MissingNameKind, re.Pattern[str]]]]
]:
    patterns: dict[str, list[tuple[MissingNameKind, re.Pattern[str]]]] = {}
    for sign, sort, pattern in _MISSING_NAME_MESSAGES:
        patterns.setdefault(sign, []).append((sort, re.compile(pattern)))
    return AhoCorasick(list(patterns), implementation=Implementation.DFA), list(patterns.values())


def find_missing_names(output: str) -> Iterator[MissingName]:
    """Each name once, in the order of the text."""
    tail = output[-MAX_OUTPUT_CHARS:]
    search, patterns = _build_message_search()
    # Where they stand takes longer to find than whether there are any.
    if not search.find_matches_as_strings(tail):
        return
    seen = set()
    for index, start, end in search.find_matches_as_indexes(tail)[:_MAX_MATCHES]:
        around = tail[max(0, start - _CONTEXT_CHARS) : end + _CONTEXT_CHARS]
        for sort, pattern in patterns[index]:
            match = pattern.search(around)
            if match and match[1] not in seen and not _is_exempt(sort, match[1]):
                seen.add(match[1])
                yield MissingName(sort=sort, name=match[1], words=" ".join(match[0].split()))


def _is_exempt(sort: MissingNameKind, name: str) -> bool:
    if sort == "option":
        plugged_in = name.startswith(_PLUGIN_OPTIONS)
        return (
            len(name) < MIN_NAME_CHARS + 2
            or plugged_in
            or _INVENTED_OPTION.search(name) is not None
        )
    if sort == "attribute" and name in _COMMON_METHODS:
        return True
    return len(name) < MIN_NAME_CHARS or name.startswith("__")


_COMMON_METHODS = frozenset(
    name for kind in (str, bytes, list, dict, set, io.StringIO, io.BytesIO) for name in dir(kind)
)
"""Methods that exist, only not on the value at hand: nothing was invented."""
NAME_DEFINITION = (
    # def NAME, class NAME, func (s *Server) NAME, const NAME, …
    r"\b(?:def|class|function|fn|func|const|let|var|type|interface|struct|enum|trait|mod"
    r"|macro_rules!)\s+(?:\([^()]{0,80}\)\s*)?NAME\b"
    # NAME = 1, self.NAME: int = 1
    r"|(?:^|[\s.{,(])NAME\s*(?::\s*[\w\[\]., |]{1,80})?\s*=(?!=)"
    # A method of a JavaScript class.
    r"|(?:^|\s)NAME\s*\([^()]{0,200}\)\s*(?::[^{};]{0,60})?\{"
    # setattr(a, "NAME", 1), {"NAME": 1}
    r"|['\"]NAME['\"]\s*[,:)]"
)
"""Defines NAME, in most languages: a pattern for one name in the place of the word."""
