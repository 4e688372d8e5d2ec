"""suppressed-error: a change silences an error that should be fixed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from closeloop.changes.quality.changed_file import (
    ChangedFile,
    list_changed_files,
    make_check_finding,
    shorten_line,
    split_git_lines,
)
from closeloop.records.change import Inspection
from closeloop.records.finding import Finding, Rule, Unmeasured
from closeloop.text.code_patterns import (
    BLANKET_SUPPRESSION,
    CHECK_COMMAND,
    MASKED_EXIT,
    find_swallowed_errors,
)

rules = (
    Rule(
        name="suppressed-error",
        version=2,
        about="An error is silenced, swallowed or masked instead of fixed.",
        severity="warning",
    ),
)

_ALLOWED_FAILURE = re.compile(r"^(?:- )?(?:continue-on-error|allow_failure): *true\b")


def check(inspection: Inspection) -> Sequence[Finding | Unmeasured]:
    """Check added lines, unless the file did the same before."""
    return [
        suppression
        for file in list_changed_files(inspection)
        for suppression in _find_suppressions(file, inspection)
    ]


def _find_suppressions(file: ChangedFile, inspection: Inspection) -> Iterator[Finding]:
    is_code = file.kind == "source" and file.after is not None
    if not is_code and file.kind not in ("ci", "config", "manifest"):
        return
    old = [line.strip() for line in split_git_lines(inspection.sides.read("before", file.old_path))]
    if is_code:
        for number, message in _swallowed_errors(file, old):
            yield make_check_finding(rules[0], message, f"{file.path}:{number}")
    find_suppressions = _ignore_comments if is_code else _masked_checks
    for first, lines in file.added_blocks():
        for offset, message in find_suppressions([line.strip() for line in lines], old):
            yield make_check_finding(rules[0], message, f"{file.path}:{first + offset}")


def _swallowed_errors(file: ChangedFile, old: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yield handlers that the change added and that swallow errors, with what they guard."""
    text = "\n".join(line.strip() for line in file.lines)
    if "except" not in text and "catch" not in text:
        return
    old_text = "\n".join(old)
    for match in find_swallowed_errors(text):
        number = text.count("\n", 0, match.start()) + 1
        if number in file.added and match[0] not in old_text:
            yield (
                number,
                (
                    f"Every error is swallowed here: `{shorten_line(match[0])}`; catch "
                    "only the expected one."
                ),
            )


def _ignore_comments(lines: Sequence[str], old: Sequence[str]) -> Iterator[tuple[int, str]]:
    old_comments = {match[0].strip() for line in old if (match := BLANKET_SUPPRESSION.search(line))}
    for offset, line in enumerate(lines):
        match = BLANKET_SUPPRESSION.search(line)
        if match and match[0].strip() not in old_comments:
            yield (
                offset,
                f"`{shorten_line(match[0])}` silences every rule: name the intended one.",
            )


def _masked_checks(lines: Sequence[str], old: Sequence[str]) -> Iterator[tuple[int, str]]:
    old_lines = set(old)
    for offset, line in enumerate(lines):
        if line in old_lines:
            continue
        masks = "||" in line and MASKED_EXIT.search(line) and CHECK_COMMAND.search(line)
        if masks or _ALLOWED_FAILURE.search(line):
            yield offset, f"`{shorten_line(line)}`: this check can no longer fail."
