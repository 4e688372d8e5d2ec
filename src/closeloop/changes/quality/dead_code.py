"""dead-code: code is added that nothing uses, that cannot be reached, or that is commented out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from closeloop.changes.quality.changed import changed, finding, is_aside, past
from closeloop.changes.quality.dead import commented, inside, unreachable, unused
from closeloop.model.finding import Finding, Rule, Unmeasured
from closeloop.model.inspection import Inspection

rules = (
    Rule(
        name="dead-code",
        version=1,
        about="Code is added that nothing uses or reaches.",
        severity="warning",
    ),
)


MOST = 10
"""Of one file, so many are told: with more, the file is unfinished."""


def check(inspection: Inspection) -> Sequence[Finding | Unmeasured]:
    """Only what cannot be used from outside either: no public names, hooks, or overrides."""
    found: list[Finding] = []
    words: Counter[str] | None = None
    before = past(inspection)
    for file in changed(inspection, "source"):
        if file.after is None or file.after.broken_lines or is_aside(file.path):
            continue
        if words is None:
            words = unused.words_added(inspection)
        said = [
            *unused.find(file, file.after, words, inspection),
            *inside.find(file, file.after, before),
            *unreachable.find(file),
        ]
        found += [
            finding(rules[0], message, f"{file.path}:{line}", confidence=0.9)
            for line, message in said[:MOST]
        ]
        found += [
            finding(rules[0], message, f"{file.path}:{line}", severity="info", confidence=0.7)
            for line, message in commented.find(file, file.after.language)
        ]
    return found
