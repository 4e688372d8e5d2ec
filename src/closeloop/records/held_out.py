"""Held-out tasks: the ledger of looks, and what they show beside dev."""

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
    digest: str
    """Of this version of the variant."""
    dev: Estimate
    held_out: Estimate
    gap: Estimate
    """Dev less held-out, on tasks like these."""


class GapChange(Record):
    """How the gap of a variant changed from the first of its versions to the last.

    A gap may be there because one set is harder than the other. That it widens has one cause:
    what was changed helped the tasks that people looked at, and no others.
    """

    variant: str
    since: Time
    """The first look at one of its versions."""
    until: Time
    """The first look at the last of them."""
    dev: Estimate
    held_out: Estimate
    """How much more of the same tasks the last version passes than the first."""
    change: Estimate
    """Of the gap; its bounds hold for all such changes that the ledger has shown so far."""
    overfitted: bool
    """Whether the gap has widened for certain."""
    says: str
    """The same in a sentence."""


class HeldOutReport(Record):
    """What may be said of held-out tasks: under a heading of its own, with the ledger's entry."""

    looks: int
    last_look: HeldOutRun
    gaps: tuple[HeldOutGap, ...] = ()
    """By variant."""
    changes: tuple[GapChange, ...] = ()
    """Of variants with several versions that were tried on both sets."""
