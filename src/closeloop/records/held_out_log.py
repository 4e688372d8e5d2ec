"""A look at the held-out set: who took it, when, why, and at what."""

from __future__ import annotations

from closeloop.records.estimate import Estimate
from closeloop.records.record import Record, Time


class HeldOutRun(Record):
    """One run on held-out tasks, written down before it begins."""

    at: Time
    who: str
    reason: str
    tasks: str
    """Digest of the tasks that were looked at, together."""
    change: str
    """Digest of what was tried on them: the variants and the tasks."""
    experiment: str
    variants: tuple[str, ...]
    """Names."""
    models: tuple[str, ...] = ()
    count: int
    """Of tasks."""


class HeldOutGap(Record):
    """How much better a variant does on the dev tasks than on those held out."""

    variant: str
    dev: Estimate
    held_out: Estimate
    gap: Estimate
    """Dev less held-out: what is above 0 for certain was learned by heart."""
