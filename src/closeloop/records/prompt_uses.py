"""Prompts as artefacts: which there are, and what ran under each."""

from __future__ import annotations

from closeloop.records.record import Record, Time


class PromptUse(Record):
    """A prompt's version and the work that was done under it."""

    id: str
    variants: tuple[str, ...] = ()
    """Names."""
    attempts: int = 0
    tasks: tuple[str, ...] = ()
    """Ids of the tasks that were tried under it, but for held-out ones."""
    pulls: tuple[str, ...] = ()
    """Pull requests whose commits name it, as `owner/name#12`."""
    first: Time | None = None
    last: Time | None = None
    """When the first and the last of the attempts began; None where none did."""
    opening: str = ""
    """Its first line."""


class PromptProposal(Record):
    """Runs that would tell whether a change of the prompt did any good."""

    old: str
    new: str
    tasks: tuple[str, ...] = ()
    """Tried under the old one, and not yet under the new."""
    commands: tuple[str, ...] = ()
    note: str = ""
