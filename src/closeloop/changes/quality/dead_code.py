"""dead-code: code is added that nothing uses, that cannot be reached, or that is commented out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from closeloop.changes.quality.changed_file import (
    index_old_functions,
    is_example_file,
    list_changed_files,
    make_check_finding,
)
from closeloop.changes.quality.dead import (
    commented_code,
    unreachable_code,
    unused_definitions,
    unused_locals,
)
from closeloop.records.finding import Finding, Rule, Unmeasured
from closeloop.records.inspection import Inspection

rules = (
    Rule(
        name="dead-code",
        version=1,
        about="Code is added that nothing uses or reaches.",
        severity="warning",
    ),
)


MAX_FINDINGS = 10
"""Of one file, so many are told: with more, the file is unfinished."""


def check(inspection: Inspection) -> Sequence[Finding | Unmeasured]:
    """Only what cannot be used from outside either: no public names, hooks, or overrides."""
    findings: list[Finding] = []
    words: Counter[str] | None = None
    before = index_old_functions(inspection)
    for file in list_changed_files(inspection, "source"):
        if file.after is None or file.after.broken_lines or is_example_file(file.path):
            continue
        if words is None:
            words = unused_definitions.count_added_words(inspection)
        messages = [
            *unused_definitions.find_unused_definitions(file, file.after, words, inspection),
            *unused_locals.find_unused_locals(file, file.after, before),
            *unreachable_code.find_unreachable_code(file),
        ]
        findings += [
            make_check_finding(rules[0], message, f"{file.path}:{line}", confidence=0.9)
            for line, message in messages[:MAX_FINDINGS]
        ]
        findings += [
            make_check_finding(
                rules[0], message, f"{file.path}:{line}", severity="info", confidence=0.7
            )
            for line, message in commented_code.find_commented_code(file, file.after.language)
        ]
    return findings
