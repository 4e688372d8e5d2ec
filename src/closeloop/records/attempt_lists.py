"""Lists of attempts: which are wanted, and what a line of one shows besides the attempt."""

from __future__ import annotations

from typing import Literal

from closeloop.records.attempt import Exit, Origin
from closeloop.records.record import Record, Time


class AttemptFilter(Record):
    """Which attempts are wanted; None is any."""

    task: str | None = None
    variant: str | None = None
    """By name."""
    outcome: Literal["pass", "fail", "unscored"] | None = None
    origin: Origin | None = None
    exit: Exit | None = None
    experiment: str | None = None
    agent: str | None = None
    repo: str | None = None
    user: str | None = None
    rule: str | None = None
    """With a finding of this rule."""
    category: str | None = None


class PageCursor(Record):
    """The last line of one page of a list: the next page begins after it."""

    started: Time | None
    id: str


class AttemptMarks(Record):
    """What the rules last said of an attempt, in short."""

    findings: int = 0
    rules: tuple[str, ...] = ()
    category: str | None = None
    iterations: int = 0
    outdated: bool = False
    """Measured before the rules, their code or settings, or the grade changed."""


class FilterChoices(Record):
    """What a list can be narrowed to."""

    tasks: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()
    agents: tuple[str, ...] = ()
    repos: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
