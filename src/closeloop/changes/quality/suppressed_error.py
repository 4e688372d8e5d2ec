"""suppressed-error: a change silences what complains, where it should be repaired."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from closeloop.changes.quality.changed import Changed, changed, finding, short, text_of
from closeloop.model.finding import Finding, Rule, Unmeasured
from closeloop.model.inspection import Inspection
from closeloop.model.suppression import BLANKET, CHECKS, MASKS, SWALLOWS

rules = (
    Rule(
        name="suppressed-error",
        version=1,
        about="An error is silenced, swallowed or masked where it should be repaired.",
        severity="warning",
    ),
)

_LET_FAIL = re.compile(r"^(?:- )?(?:continue-on-error|allow_failure): *true\b")


def check(inspection: Inspection) -> Sequence[Finding | Unmeasured]:
    """In added lines, unless the file did the same before."""
    return [one for file in changed(inspection) for one in _silenced(file, inspection)]


def _silenced(file: Changed, inspection: Inspection) -> Iterator[Finding]:
    is_code = file.kind == "source" and file.after is not None
    if not is_code and file.kind not in ("ci", "config", "manifest"):
        return
    old = [line.strip() for line in text_of(inspection.sides.read("before", file.old_path))]
    for first, lines in file.blocks():
        bare = [line.strip() for line in lines]
        looks = (_swallowed, _marked) if is_code else (_masked,)
        for at, message in (told for look in looks for told in look(bare, old)):
            yield finding(rules[0], message, f"{file.path}:{first + at}")


def _swallowed(lines: Sequence[str], old: Sequence[str]) -> Iterator[tuple[int, str]]:
    text = "\n".join(lines)
    if "except" not in text and "catch" not in text:
        return
    known = "\n".join(old)
    for match in SWALLOWS.finditer(text):
        if match[0] not in known:
            yield (
                text.count("\n", 0, match.start()),
                f"Every error is swallowed here: `{short(match[0])}`; name the one that is meant.",
            )


def _marked(lines: Sequence[str], old: Sequence[str]) -> Iterator[tuple[int, str]]:
    used = {match[0].strip() for line in old if (match := BLANKET.search(line))}
    for at, line in enumerate(lines):
        match = BLANKET.search(line)
        if match and match[0].strip() not in used:
            yield at, f"`{short(match[0])}` silences everything: name the rule that is meant."


def _masked(lines: Sequence[str], old: Sequence[str]) -> Iterator[tuple[int, str]]:
    known = set(old)
    for at, line in enumerate(lines):
        if line in known:
            continue
        masks = "||" in line and MASKS.search(line) and CHECKS.search(line)
        if masks or _LET_FAIL.search(line):
            yield at, f"`{short(line)}`: this check can no longer fail."
