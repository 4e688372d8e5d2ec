"""Assertions that say less than before: one analysis for trace rules and change checks."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

from closeloop.records.record import Record
from closeloop.text.code_patterns import COVERAGE_FLOOR

Strength = Literal[1, 2, 3]
"""Hardly fails, bounds the value, states it exactly."""

MAX_LINE_CHARS = 500
_METHOD = re.compile(
    r"^(?:await )?(?:self\.|t\.|np\.testing\.|Assert\.)?assert_?(\w+)(?:!?\((.*))?$", re.IGNORECASE
)
_FRAGMENT = re.compile(r"^(==|!=|>=|<=|>|<) *\S")
"""Half of a comparison: what `sed` replaces."""
_EXPECT = re.compile(r"^(?:await )?expect\((.*?)\)\.((?:not\.|resolves\.|rejects\.)*)(\w+)\(")
_PLAIN = re.compile(r"^assert (not )?(.+?)(?:, *f?['\"].*)?$")
_COMPARISON = re.compile(r" (==|!=|>=|<=|>|<|is not|is|not in|in) ")
_NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?:e-?\d+)?")
_TOLERANCE = re.compile(
    r"\b(?:rtol|atol|delta|abs|rel|tolerance|eps\w*)\s*=\s*$|\b(?:places)\s*=\s*$"
)
_STRENGTHS: dict[str, Strength] = {
    **dict.fromkeys(
        ("equal", "equals", "eq", "is", "listequal", "dictequal", "setequal", "tupleequal",
         "raises", "raisesregex", "raisesmessage", "tobe", "toequal", "tostrictequal", "tothrow",
         "htmlequal", "sequenceequal", "querysetequal", "numqueries", "jsonequal", "tomatchobject",
         "same", "tohavelength", "tobenull", "tobeundefined", "isnone", "that", "array_equal"), 3,
    ),
    **dict.fromkeys(
        ("in", "notin", "greater", "greaterequal", "less", "lessequal", "contains", "notcontains",
         "almostequal", "regex", "tocontain", "tomatch", "tobegreaterthan", "tobelessthan",
         "tobecloseto", "tobegreaterthanorequal", "tobelessthanorequal", "notequal", "allclose",
         "startswith"), 2,
    ),
    **dict.fromkeys(
        ("true", "false", "isnotnone", "isinstance", "tobedefined", "tobetruthy", "tobefalsy",
         "tobeinstanceof", "tohavebeencalled", "notnull", "ok"), 1,
    ),
}  # fmt: skip
_OPPOSITES = {
    "in": "notin", "true": "false", "isnone": "isnotnone", "equal": "notequal", "==": "!=",
    "contains": "notcontains", "is": "isnot", "null": "notnull", "eq": "ne",
}  # fmt: skip
_OPPOSITE = {**_OPPOSITES, **{other: one for one, other in _OPPOSITES.items()}}


class ParsedAssertion(Record):
    """What an assertion is about, and what it states of it."""

    line: str
    subject: str
    """What is asserted of, without what it should be."""
    arguments: str
    """All that stands in it, so that only the assertion itself may differ."""
    name: str
    negated: bool
    strength: Strength


def parse_assertion(line: str) -> ParsedAssertion | None:
    """One line as an assertion; None where it is none that is known."""
    line = line[:MAX_LINE_CHARS].strip()
    if (expect := _EXPECT.match(line)) is not None:
        name = expect[3].lower()
        negated = "not." in expect[2]
        strength: Strength = 2 if negated else _STRENGTHS.get(name, 2)
        rest = line[expect.end() :]
        return _make(line, expect[1], expect[1] + rest, name, strength, negated=negated)
    if (plain := _PLAIN.match(line)) is not None:
        return _parse_plain(line, plain[2].strip(), negated=plain[1] is not None)
    if (method := _METHOD.match(line)) is not None:
        name, arguments = method[1].lower(), (method[2] or "").rstrip(");")
        subject = arguments if name in ("in", "notin") else _first_argument(arguments)
        return _make(line, subject, arguments, name, _STRENGTHS.get(name, 2))
    if (part := _FRAGMENT.match(line)) is not None:
        return _make(line, "", "", part[1], 3 if part[1] == "==" else 2)
    return None


def _parse_plain(line: str, text: str, *, negated: bool) -> ParsedAssertion:
    comparison = _COMPARISON.search(text)
    if comparison is None:
        strength: Strength = 1 if "(" not in text or text.startswith("isinstance(") else 2
        subject = _first_argument(text[11:]) if text.startswith("isinstance(") else text
        return _make(line, subject, text, "true", strength, negated=negated)
    sign, subject = comparison[1], text[: comparison.start()].strip()
    value = text[comparison.end() :].strip()
    names = {"is": "is", "is not": "isnot", "in": "in", "not in": "notin"}
    strength = 3 if sign in ("==", "is") else 2
    if sign == "is not" and value == "None":
        strength = 1
    return _make(
        line, subject, f"{subject}, {value}", names.get(sign, sign), strength, negated=negated
    )


def _make(
    line: str, subject: str, arguments: str, name: str, strength: Strength, *, negated: bool = False
) -> ParsedAssertion:
    return ParsedAssertion(
        line=line,
        subject=subject.strip(),
        arguments=arguments.strip(),
        name=name,
        negated=negated,
        strength=strength,
    )


def _first_argument(text: str) -> str:
    depth = 0
    for place, sign in enumerate(text):
        if sign in "([{":
            depth += 1
        elif sign in ")]}":
            depth -= 1
        if depth < 0 or (sign == "," and depth == 0):
            return text[:place]
    return text


def find_loosened_assertion(removed: Iterable[str], added: Iterable[str]) -> tuple[str, str] | None:
    """An assertion and the one in its place that says less, or the opposite, of the same thing."""
    old = [parsed for line in removed if (parsed := parse_assertion(line))]
    new = [parsed for line in added if (parsed := parse_assertion(line))]
    # An assertion over several lines names its subject on another one.
    is_pair = len(old) == len(new) == 1
    kept = {after.line for after in new}
    for before in (one for one in old if one.line not in kept):
        same = [
            after for after in new if after.subject == before.subject and (after.subject or is_pair)
        ]
        for after in same:
            if is_inverted(before, after) or is_wider(before, after):
                return before.line, after.line
        if same and all(after.strength < before.strength for after in same):
            return before.line, same[0].line
    return None


def is_inverted(before: ParsedAssertion, after: ParsedAssertion) -> bool:
    """The same words are asserted, and the opposite of them."""
    if before.arguments != after.arguments:
        return False
    if before.name == after.name:
        return before.negated != after.negated
    return _OPPOSITE.get(before.name) == after.name and before.negated == after.negated


def is_wider(before: ParsedAssertion, after: ParsedAssertion) -> bool:
    """Only a tolerance differs, and it lets more pass."""
    one, other = _NUMBER.sub("0", before.line), _NUMBER.sub("0", after.line)
    if one != other or before.line == after.line:
        return False
    pairs = zip(_NUMBER.finditer(before.line), _NUMBER.finditer(after.line), strict=True)
    differing = [(a, b) for a, b in pairs if a[0] != b[0]]
    if len(differing) != 1:
        return False
    old, new = differing[0]
    name = _TOLERANCE.search(before.line, 0, old.start())
    if name is None:
        return False
    loosened = float(new[0]) > float(old[0])
    return loosened != name[0].startswith("places")


def find_lowered_floor(
    removed: Iterable[str], added: Iterable[str]
) -> tuple[str, str, str, str] | None:
    """The name of a coverage floor, its old and new value, and the line that lowers it."""
    before = {match[1]: match[2] for line in removed if (match := COVERAGE_FLOOR.search(line))}
    for line in added if before else ():
        match = COVERAGE_FLOOR.search(line)
        if match and float(match[2]) < float(before.get(match[1], "0")):
            return match[1], before[match[1]], match[2], line
    return None
