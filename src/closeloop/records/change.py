"""A change between two states of a repository, and the report of a check."""

from __future__ import annotations

from typing import Literal

from closeloop.records.attempt import Outcome
from closeloop.records.finding import Finding, Unmeasured
from closeloop.records.record import Record, Time


class Hunk(Record):
    """Lines replaced at one place."""

    old_start: int
    old_lines: int
    new_start: int
    new_lines: int


class FileChange(Record):
    """One file of a change."""

    path: str
    status: Literal["added", "changed", "deleted", "renamed"]
    old_path: str | None = None
    """Where it was, when it was renamed."""
    added: int = 0
    removed: int = 0
    binary: bool = False
    hunks: tuple[Hunk, ...] = ()
    old_mode: str | None = None
    mode: str | None = None
    """As git writes them: 100644, 100755 for a program, 120000 a link, 160000 a submodule."""
    note: str | None = None
    """Why its content is not all told: too large, a pointer of Git LFS, …"""


class Change(Record):
    """A patch and what it touches."""

    base: str | None = None
    head: str | None = None
    files: tuple[FileChange, ...] = ()
    patch: str = ""


# A report: what is certain about a change, in three tiers, and how risky it is.

RiskLevel = Literal["low", "medium", "high", "critical"]
RISK_LEVELS: tuple[RiskLevel, ...] = ("low", "medium", "high", "critical")
GatePolicy = Literal["strict", "regression_only", "informational"]
ReportVerdict = Literal["pass", "unverified", "warn", "block"]
"""Unverified: nothing blocks, but no test was run that could have said so."""
CheckTier = Literal["tools", "quality", "risk"]
ToolState = Literal["passed", "failed", "timed out", "inert", "not set up", "machine trouble"]
"""Inert: the command is missing, or it ran no test. Not set up: a setup command failed before it.
Trouble: no space, killed."""
ToolOutcome = Literal["no worse", "broken", "unknown"]
"""What a tool says against a change. Unknown: it is red, and it cannot be told whether it was so
before; or the machine kept it from saying anything."""


class ToolRun(Record):
    """One of the repository's own tools, run at the base and after the change."""

    name: str
    """What it is for: test, lint, types, build, secrets, …"""
    command: str
    before: ToolState | None = None
    """None where it was not run at the base."""
    after: ToolState
    outcome: ToolOutcome | None = None
    """None in reports that were kept before outcomes were."""
    broke: tuple[str, ...] = ()
    """What fails now and did not before: test ids, or places with their message; then `lost`."""
    lost: tuple[str, ...] = ()
    """Tests that passed before and do not run now, although the change did not remove them."""
    removed: tuple[str, ...] = ()
    """Tests that passed before and that the change removed."""
    already: tuple[str, ...] = ()
    """What failed before and still does."""
    mended: tuple[str, ...] = ()
    """What failed before and passes now; what did not run now is not mended."""
    output: str = ""
    """What matters of the output after the change."""
    seconds: float | None = None
    ran: int | None = None
    """How many tests ran after the change, where the runner names them."""
    selected: str | None = None
    """How the tests were chosen, where not all of them ran."""
    note: str | None = None


class MendingResult(Record):
    """What an agent made of what broke; the change itself stays as it is."""

    tries: int
    left: tuple[ToolRun, ...] = ()
    """Those that the mended change still does not pass, as they are then."""
    findings: tuple[Finding, ...] = ()
    """What blocks the mended change of what the checks of quality find."""
    patch: str | None = None
    """The file with what to add to the change; None where it was not mended."""
    note: str | None = None
    """Why the agent stopped before its time."""


class RiskFactor(Record):
    """One dimension of risk."""

    name: str
    axis: Literal["likelihood", "impact"]
    text: str
    """What was found, in words."""
    weight: float
    """How much it counts towards the level; the reasons are told in its order."""
    value: float | None = None
    places: tuple[str, ...] = ()
    """As `path` or `path:line`, the first few."""


class RevertChance(Record):
    """How likely it is that the change will have to be reverted or repaired."""

    value: float
    low: float
    high: float
    of: int
    """How many past changes it was learned from."""
    method: str
    usual: float | None = None
    """The share of all those that went wrong."""


class Risk(Record):
    """How much may go wrong, and why."""

    level: RiskLevel
    reasons: tuple[str, ...]
    """Most telling first."""
    factors: tuple[RiskFactor, ...] = ()
    likelihood: float | None = None
    """Rank of the change among the repository's past ones, 0 to 1."""
    chance: RevertChance | None = None
    note: str | None = None
    """Where the level speaks of impact and not of likelihood, that it does, and why."""
    unmeasured: tuple[Unmeasured, ...] = ()
    """Dimensions that could not be looked at, and why."""


class ChangeReport(Record):
    """All of it."""

    change: Change
    title: str
    """What was looked at: `main..feature`, `working tree`, `#12`."""
    verdict: ReportVerdict
    reasons: tuple[str, ...] = ()
    """Why it is not a plain pass."""
    held: bool = False
    """Whether its risk alone is enough to wait for a person: `check.hold_at`."""
    gate: GatePolicy = "regression_only"
    tiers: tuple[CheckTier, ...] = ("tools", "quality", "risk")
    """Those that were asked for."""
    tools: tuple[ToolRun, ...] = ()
    mending: MendingResult | None = None
    findings: tuple[Finding, ...] = ()
    risk: Risk | None = None
    grade: Outcome | None = None
    """Of an attempt's change: what its task's own acceptance said of it."""
    unmeasured: tuple[Unmeasured, ...] = ()
    """What could not be looked at, and why."""
    version: int = 1
    at: Time | None = None
    seconds: float | None = None


class ReportRow(Record):
    """A report that was kept, in a line."""

    number: int
    at: Time
    repo: str | None = None
    title: str
    base: str | None = None
    head: str | None = None
    attempt: str | None = None
    """Whose change it is, where one is known."""
    level: RiskLevel | None = None
    why: str | None = None
    """The most telling reasons for the level, shortened."""
    verdict: ReportVerdict
    findings: int
    """Those that are not silenced."""
