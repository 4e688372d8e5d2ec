"""Context loss: what the agent once knew and lost, by the rules that see it."""

from __future__ import annotations

from collections.abc import Iterable

from closeloop.model.finding import Finding, Unmeasured

LOSSES = frozenset(("lost-constraint", "repeated-correction", "needless-reread"))


def context_losses(
    findings: Iterable[Finding], unmeasured: Iterable[Unmeasured] = ()
) -> int | None:
    """How often, silenced findings left out; None where none of the rules could look."""
    if {one.rule for one in unmeasured} >= LOSSES:
        return None
    return sum(finding.rule in LOSSES and finding.silenced is None for finding in findings)
