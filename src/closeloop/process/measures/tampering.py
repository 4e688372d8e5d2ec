"""Tampering: tests weakened, errors suppressed, answers looked up."""

from __future__ import annotations

from collections.abc import Iterable

from closeloop.records.finding import Finding, Unmeasured

TAMPERING_RULES = frozenset(("weakened-test", "suppressed-error", "answer-from-history"))


def count_tampering(
    findings: Iterable[Finding], unmeasured: Iterable[Unmeasured] = ()
) -> int | None:
    """How often, silenced findings left out; None where none of the rules could look."""
    if TAMPERING_RULES.issubset([one.rule for one in unmeasured]):
        return None
    return len([1 for one in findings if one.rule in TAMPERING_RULES and one.silenced is None])
