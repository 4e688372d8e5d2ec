"""Wrong changes, made from a right one: tests that cannot tell them apart prove nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from closeloop.records.record import Record

MAX_LINE_CHARS = 2_000
_HUNK = re.compile(r"@@ -\d{1,9}(?:,(\d{1,9}))? \+\d{1,9}(?:,(\d{1,9}))? @@")
_COMMENT_START = re.compile(r"\s*(?:#|//|/?\*|\"\"\"|''')")
_INVERSES = {
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
_TEXT_QUOTES = re.compile(r"\"{3}|'{3}")
_DECLARATION = re.compile(
    r"\s*(?:(?:#|//|/?\*|\"{3}|'{3}|@).*"
    r"|(?:(?:export|public|private|static|async|default|pub) )*"
    r"(?:def|class|func|function|fn|interface|type|import|from|package|use|module|struct|enum) .*"
    r"|(?:\} ?)?(?:else|try|finally|pass|begin|end|do)\W*|[^\w\"'`]*)"
)


class Mutant(Record):
    """A wrong change."""

    patch: str
    how: str
    """What was done to the right one."""


def make_mutants(patch: str) -> list[Mutant]:
    """The change with its conditions turned round, its values changed, its statements left out.

    The last is but a shell of it. Those that would be no different are not made.
    """
    candidates = (
        Mutant(
            patch=_change_added_lines(patch, _invert_condition), how="its conditions turned round"
        ),
        Mutant(patch=_change_added_lines(patch, _alter_values), how="its values changed"),
        Mutant(patch=_change_added_lines(patch, _drop_statement), how="its statements left out"),
    )
    return [mutant for mutant in candidates if mutant.patch != patch]


def has_unchanged_code(patch: str, mutants: Sequence[Mutant]) -> bool:
    """Whether a change has code that no mutant touches: it may be what the tests are for.

    What only declares or documents something is no such code.
    """
    in_text = False
    changed = [mutant.patch.split("\n") for mutant in mutants]
    for number, line in enumerate(patch.split("\n")):
        if not line.startswith("+") or line.startswith("+++"):
            continue
        is_text, in_text = in_text, in_text != bool(len(_TEXT_QUOTES.findall(line)) % 2)
        touched = any(lines[number] != line for lines in changed)
        if not (is_text or in_text or touched or _DECLARATION.fullmatch(line[1:])):
            return True
    return False


def _change_added_lines(patch: str, change: Callable[[str, str], str]) -> str:
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
            if len(line) <= MAX_LINE_CHARS and not _COMMENT_START.match(line[1:]):
                lines[number] = "+" + change(line[1:], path)
        elif line.startswith("-"):
            old -= 1
        elif not line.startswith("\\"):
            old, new = old - 1, new - 1
    return "\n".join(lines)


def _invert_condition(line: str, path: str) -> str:
    inverted = _LOGIC.sub(lambda found: _INVERSES[found[0]], line)
    return _CONDITION.sub(r"\1not (\2)\3", line) if inverted == line else inverted


def _alter_values(line: str, path: str) -> str:
    def change_value(found: re.Match[str]) -> str:
        return str(int(found[0]) + 1) if found[0].isdigit() else chr(ord(found[0]) ^ 1)

    return _VALUE.sub(change_value, line)


def _drop_statement(line: str, path: str) -> str:
    """Only statements of one line: a part of one would not even be read."""
    is_balanced = all(line.count(one) == line.count(other) for one, other in ("()", "[]", "{}"))
    statement = _STATEMENT.match(line)
    if not is_balanced or statement is None or line.rstrip().endswith((",", "\\", '"""')):
        return line
    return f"{statement[1]}pass" if path.endswith(".py") else ""
