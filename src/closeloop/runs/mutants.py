"""Wrong changes, made from a right one: tests that cannot tell them apart prove nothing."""

from __future__ import annotations

import re
from collections.abc import Callable

from closeloop.model.record import Record

LARGEST_LINE = 2_000
_HUNK = re.compile(r"@@ -\d{1,9}(?:,(\d{1,9}))? \+\d{1,9}(?:,(\d{1,9}))? @@")
_REMARK = re.compile(r"\s*(?:#|//|/?\*|\"\"\"|''')")
_TURNED = {
    "==": "!=",
    "!=": "==",
    ">=": "<",
    "<=": ">",
    " < ": " >= ",
    " > ": " <= ",
    " is not ": " is ",
    " not in ": " in ",
    "True": "False",
    "False": "True",
    "true": "false",
    "false": "true",
    " and ": " or ",
    " or ": " and ",
    " + ": " - ",
    " - ": " + ",
    " * ": " + ",
    "&&": "||",
    "||": "&&",
    "if not ": "if ",
    "if !": "if ",
}
_LOGIC = re.compile(
    r"(?<![=!<>])(?:[!=]=(?!=)|[<>]=)| [<>] | is not | not in |\b(?:True|False|true|false)\b"
    r"| (?:and|or|[-+*]) |&&|\|\||\bif not |\bif !"
)
_CONDITION = re.compile(r"^(\s*(?:el)?if )([^:]+)(:\s*)$")
_VALUE = re.compile(r"(?<![\w.])\d{1,9}(?![\w.])|(?<=[\"'])[A-Za-z](?=[^\"'\n]*[\"'])")
_STATEMENT = re.compile(
    r"^(\s*)(?:(?:return|raise|yield|del)\b|(?:await )?[\w.]+\(.*\);?$"
    r"|[\w.\[\], '\"]+ [-+*/|&:]?= ?\S)"
)


class Mutant(Record):
    """A wrong change."""

    patch: str
    how: str
    """What was done to the right one."""


def mutants(patch: str) -> list[Mutant]:
    """The change with its conditions turned round, its values changed, its statements left out.

    The last is but a shell of it. Those that would be no different are not made.
    """
    made = (
        Mutant(patch=_changed(patch, _turn), how="its conditions turned round"),
        Mutant(patch=_changed(patch, _alter), how="its values changed"),
        Mutant(patch=_changed(patch, _gut), how="its statements left out"),
    )
    return [mutant for mutant in made if mutant.patch != patch]


def _changed(patch: str, change: Callable[[str, str], str]) -> str:
    """A patch with its added lines changed one by one, by what its file is called."""
    lines, old, new, path = patch.split("\n"), 0, 0, ""
    for number, line in enumerate(lines):
        if old <= 0 and new <= 0:
            if header := _HUNK.match(line):
                old, new = (1 if count is None else int(count) for count in header.groups())
            elif line.startswith("+++ "):
                path = line.rstrip()
            continue
        if line.startswith("+"):
            new -= 1
            if len(line) <= LARGEST_LINE and not _REMARK.match(line[1:]):
                lines[number] = "+" + change(line[1:], path)
        elif line.startswith("-"):
            old -= 1
        elif not line.startswith("\\"):
            old, new = old - 1, new - 1
    return "\n".join(lines)


def _turn(line: str, path: str) -> str:
    turned = _LOGIC.sub(lambda found: _TURNED[found[0]], line)
    return _CONDITION.sub(r"\1not (\2)\3", line) if turned == line else turned


def _alter(line: str, path: str) -> str:
    def other(found: re.Match[str]) -> str:
        return str(int(found[0]) + 1) if found[0].isdigit() else chr(ord(found[0]) ^ 1)

    return _VALUE.sub(other, line)


def _gut(line: str, path: str) -> str:
    """Only statements of one line: a part of one would not even be read."""
    whole = all(line.count(one) == line.count(other) for one, other in ("()", "[]", "{}"))
    found = _STATEMENT.match(line)
    if not whole or found is None or line.rstrip().endswith((",", "\\", '"""')):
        return line
    return f"{found[1]}pass" if path.endswith(".py") else ""
