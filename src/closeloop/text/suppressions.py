"""Errors that code swallows or silences: one analysis for trace rules and change checks."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from closeloop.text.code_patterns import BLANKET_SUPPRESSION, SUPPRESSION_MARKS

MAX_TRY_LINES = 12
"""So far above a handler the start of what it guards is looked for."""
_WORD_COMMENT = r"(?: *+# *+\w*+)?+"
_SWALLOWING_HANDLER = re.compile(
    rf"^except(?: \(?(?:Base)?Exception\)?(?: as \w+)?)?:{_WORD_COMMENT}(?:\n| )"
    rf"(?:pass|continue|return(?: None)?|\.\.\.){_WORD_COMMENT}$"
    rf"|catch ?(?:\([^)\n]{{0,60}}\))? ?\{{\s*+(?:// *+\w*+\s*+)?+\}}"
    r"|\.catch\(\(\w*\) => (?:\{\s*\}|null|undefined)\)",
    re.MULTILINE,
)
"""A comment of more than a word says why: that is a decision, right or wrong."""
_TRY_START = re.compile(r"^(?:\} )?try(?::|\s*\{)|^try$")
_IMPORT_LINE = re.compile(r"^(?:import |from \S+ import |const \w+ = (?:await import|require)\()")
_CLEANUP_CALL = re.compile(
    r"\b(?:unlink|remove|rm|rmtree|rmdir|rmSync|unlinkSync|close|kill|terminate|shutdown|destroy"
    r"|cleanup|disconnect|abort|quit|stop|release|cancel|dispose|teardown|end)\w*\("
)
_WHOLE_FILE = re.compile(r"ruff: noqa|ignore-errors|/\* eslint-disable \*/|@ts-nocheck|#!\[allow")
_MARK_CODES = re.compile(r"^(?:-[a-z]++)*+[:=]?+\s*+[\[(]?+(?:[\w@/.:-]++(?:,\s*+)?+)*+[\])]*+")
_MARK_REASON = re.compile(r"[A-Za-z]{4,}")


def find_swallowed_errors(text: str) -> Iterator[re.Match[str]]:
    """Handlers that do nothing about any error, in lines without their indentation.

    An optional import and the closing of something that may be closed already are left alone.
    """
    for match in _SWALLOWING_HANDLER.finditer(text):
        guarded = _guarded_lines(text, match.start())
        is_import = bool(guarded) and all(map(_IMPORT_LINE.match, guarded))
        if not is_import and not any(map(_CLEANUP_CALL.search, guarded)):
            yield match


def _guarded_lines(text: str, handler: int) -> list[str]:
    """What stands between `try` and the handler; of `f().catch(…)` the line itself."""
    start = text.rfind("\n", 0, handler) + 1
    if ".catch" in text[handler : handler + 7]:
        return [text[start:handler]]
    lines: list[str] = []
    for line in reversed(text[max(0, start - 2000) : start].splitlines()):
        if _TRY_START.match(line) or len(lines) >= MAX_TRY_LINES:
            break
        if line and line != "}":
            lines.append(line)
    inline = re.match(r"try \{(.*)\}?\s*$", text[start:handler])
    return [inline[1]] if inline else lines


def find_new_mark(line: str, removed: Collection[str], *, complained: bool) -> str | None:
    """The mark by which a line silences a tool, unless it names a rule and says why.

    Without a complaint before, only one that silences all of a file, or all of a line that stood
    there without it.
    """
    blanket = BLANKET_SUPPRESSION.search(line)
    if blanket and (_WHOLE_FILE.search(line) or line[: blanket.start()].rstrip() in removed):
        return blanket[0]
    if not complained:
        return None
    for mark in SUPPRESSION_MARKS:
        _, found, reason = line.partition(mark)
        if found and not _MARK_REASON.search(_MARK_CODES.sub("", reason)):
            return mark
    return None
