"""Context loss: what the agent once knew and lost, by the rules that see it."""

from __future__ import annotations

from collections.abc import Iterable

from closeloop.records.finding import Finding, Unmeasured

LOSS_RULES = frozenset(("lost-constraint", "repeated-correction", "needless-reread"))


def count_context_losses(
    findings: Iterable[Finding], unmeasured: Iterable[Unmeasured] = ()
) -> int | None:
    """How often, silenced findings left out; None where none of the rules could look."""
    if LOSS_RULES.issubset([one.rule for one in unmeasured]):
        return None
    return len([1 for one in findings if one.rule in LOSS_RULES and one.silenced is None])
