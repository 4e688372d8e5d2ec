"""Tampering: tests weakened, errors suppressed, answers looked up."""

from __future__ import annotations

from collections.abc import Iterable

from closeloop.model.finding import Finding, Unmeasured

RULES = frozenset(("weakened-test", "suppressed-error", "answer-from-history"))


def tampering(findings: Iterable[Finding], unmeasured: Iterable[Unmeasured] = ()) -> int | None:
    """How often, silenced findings left out; None where none of the rules could look."""
    if {one.rule for one in unmeasured} >= RULES:
        return None
    return sum(finding.rule in RULES and finding.silenced is None for finding in findings)
