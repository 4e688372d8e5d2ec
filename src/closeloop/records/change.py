"""A change of a repository, the report of a check, and what rules and checks are given.

`TraceReading` is a trace as rules get it (`process/trace_reading.py` builds it), `Inspection` a
change as checks get it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol

from closeloop.records.attempt import Attempt, Grade, Outcome
from closeloop.records.finding import Finding, Unmeasured
from closeloop.records.record import Record, Time
from closeloop.records.task import Task
from closeloop.records.trace import Command, Edit, Handoff, Lane, Message, Read, ToolUse, Trace


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
    """A diff with its base."""

    base: str | None = None
    head: str | None = None
    files: tuple[FileChange, ...] = ()
    patch: str = ""


class RecoveredHunk(Record):
    """Lines that one or more edits of a recording replaced at one place."""

    event: int
    """The last event that changed them."""
    lines: tuple[str, ...]
    """With their sign: `+`, `-` or a space. Their numbers in the file are not known."""


class RecoveredFile(Record):
    """One file as the edits of a recording changed it, where no diff was stored."""

    path: str
    status: Literal["added", "changed", "deleted"]
    hunks: tuple[RecoveredHunk, ...] = ()
    is_complete: bool = True
    """False where an edit changed it whose lines the recording does not hold."""

    @property
    def added(self) -> int | None:
        """Lines; None where not all of them are known."""
        return self._count_lines("+") if self.is_complete else None

    @property
    def removed(self) -> int | None:
        """Lines; None where not all of them are known."""
        return self._count_lines("-") if self.is_complete else None

    def _count_lines(self, sign: str) -> int:
        return sum(line[:1] == sign for hunk in self.hunks for line in hunk.lines)


# A report: what is certain about a change, in three tiers, and how risky it is.

RiskLevel = Literal["low", "medium", "high", "critical"]
SizeBand = Literal["small", "medium", "large", "huge"]
"""How large a change is beside those of its repository."""
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
    """The result of a check: verdict, reasons, tool runs, findings and risk."""

    change: Change
    title: str
    """What was checked: `main..feature`, `working tree`, `#12`."""
    verdict: ReportVerdict
    reasons: tuple[str, ...] = ()
    """Why the verdict is not a pass."""
    held: bool = False
    """Whether the risk alone requires a person: `check.hold_at`."""
    gate: GatePolicy = "regression_only"
    tiers: tuple[CheckTier, ...] = ("tools", "quality", "risk")
    """The tiers that were requested."""
    tools: tuple[ToolRun, ...] = ()
    mending: MendingResult | None = None
    findings: tuple[Finding, ...] = ()
    risk: Risk | None = None
    grade: Outcome | None = None
    """Of an attempt's change: the outcome by its task's acceptance."""
    unmeasured: tuple[Unmeasured, ...] = ()
    """What could not be checked, and why."""
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


# What rules and checks are given: a trace as steps, and a change laid open.
#
# TraceReading ── one per trace └── LaneReading ── one per lane ├── TraceStep ── one per action:
# what it read, wrote, checked, and whether it failed └── Iteration ── changes of the workspace,
# then checks
#
# Inspection ── one per change: content at both ends, syntax, and the repository around it


ActionEvent = Command | Edit | Read | ToolUse | Handoff

# `gc=False`: none of these can be part of a circle, and of some there are very many.


class FileEdit(Record, gc=False):
    """A change of one file that a command's text tells. As in `Edit`, None is not told."""

    path: str
    action: Literal["create", "change", "delete"] = "change"
    before: str | None = None
    after: str | None = None
    patch: str | None = None


class CommandEffect(Record, gc=False):
    """What a command line does, told from its text alone."""

    programs: tuple[str, ...] = ()
    """What it runs, in order, without paths and wrappers: `("cd", "pytest")`."""
    checks: tuple[str, ...] = ()
    """The tools among them that test, build, lint or type-check: `("pytest",)`."""
    target: str = ""
    """The checking part, without flags that change only how it is shown: what is checked."""
    writes: bool = False
    """It changes the workspace."""
    written: tuple[str, ...] = ()
    """The files that it changes, where its text names them."""
    restored: tuple[str, ...] = ()
    """Those among them that git brings back as they were."""
    edits: tuple[FileEdit, ...] = ()
    """What it does to files where its text tells that, also to temporary ones."""
    runs: tuple[str, ...] = ()
    """Scripts that it runs and patches that it applies."""
    read: tuple[str, ...] = ()
    """The files that it shows, where its text names them."""
    searches: bool = False
    """It looks for text or files: then exit code 1 means only that nothing was found."""
    waits: bool = False
    """It waits or polls: repeating it is no loop."""
    masked: bool = False
    """Its exit code is not that of the check: piped, or followed by `|| true`."""
    folder: str = ""
    """Where the check runs, as far as the line says: `sub` of `cd sub && pytest`."""


class CheckFailures(Record, gc=False):
    """What a failing check says: which tests or places fail, and what it points at."""

    errors: Mapping[str, str]
    """Failing test id or error signature → its message without volatile text, `""` where none."""
    parser: str
    """Which tool's output it was read as; `tail` where only the last lines could be compared."""
    paths: tuple[str, ...] = ()
    symbols: tuple[str, ...] = ()
    """What the output names, the most telling first; paths as they are written there."""

    @property
    def keys(self) -> frozenset[str]:
        """The failure set."""
        return frozenset(self.errors)


class TraceCheck(Record, gc=False):
    """A run of a tool that says whether the work is right."""

    tool: str
    target: str
    passed: bool | None
    """None where neither exit code nor output says, and where it could not run."""
    failures: CheckFailures | None = None
    """None unless it failed."""
    blocked: str | None = None
    """Why it could not run: then it says nothing of the code."""
    folder: str = ""
    """Where it ran, as far as that is known."""


class TraceStep(Record, gc=False):
    """One action of a lane."""

    event: ActionEvent
    index: int
    """Its place among the lane's steps."""
    state: int
    """How often the workspace had changed when it began."""
    changed: bool = False
    """It changed the workspace: an edit that did not fail, a command that writes."""
    failed: bool | None = None
    """None is unknown."""
    doing: CommandEffect | None = None
    """Of a command."""
    check: TraceCheck | None = None
    read: tuple[str, ...] = ()
    """Files whose content it showed."""
    written: tuple[str, ...] = ()
    """Files that it changed, or was to change. Paths are relative to the project where known."""
    edits: tuple[Edit, ...] = ()
    """The edit itself; of a command the edits that its text tells, with its number and with paths
    as in `written`."""

    @property
    def number(self) -> int:
        """What findings cite."""
        return self.event.number


class Iteration(Record, gc=False):
    """One or more changes of the workspace, then one or more checks of it."""

    changes: tuple[TraceStep, ...]
    checks: tuple[TraceStep, ...]
    """The last run of each target; a check run again unchanged adds nothing."""
    passed: bool | None
    """All of them; None where one is unknown and none failed."""
    failures: CheckFailures | None = None
    """Of all failing checks together."""


# `dict`: what rules work out of a reading is kept with it (`process/rule_helpers.py`); it is not
# compared.


class LaneReading(Record, dict=True):
    """One lane, read."""

    lane: Lane
    request: str | None
    """What the lane was asked: the user's first words, or the brief."""
    steps: Sequence[TraceStep]
    commands: Sequence[TraceStep]
    edits: Sequence[TraceStep]
    tools: Sequence[TraceStep]
    """Those of the steps that are commands, edits, and uses of other tools."""
    reads: Sequence[TraceStep]
    """Those that showed a file."""
    failing: Sequence[TraceStep]
    """Those that are known to have failed."""
    messages: Sequence[Message]
    """In order, from and to the user; of a child, also its own words."""
    users: Sequence[Message]
    """Those of the messages that the user wrote."""
    checks: Sequence[TraceStep]
    changes: Sequence[TraceStep]
    """Steps that changed the workspace, those of its children among them."""
    iterations: Sequence[Iteration]
    compactions: tuple[int, ...] = ()
    """Event numbers at which the lane's context was cut."""
    handoff: Handoff | None = None
    """The event that began the lane, where it is on record."""


class TraceReading(Record, dict=True):
    """One trace, read; with what else is known of the attempt."""

    trace: Trace
    lanes: Mapping[str, LaneReading]
    """In the order in which they began; the first is the root."""
    handoffs: Sequence[Handoff] = ()
    """All of them, in order."""
    gaps: tuple[str, ...] = ()
    """Why some of it cannot be measured: half of it was skipped, no exit code is known, …"""
    task: Task | None = None
    attempt: Attempt | None = None
    change: Change | None = None
    grade: Grade | None = None


Language = Literal["python", "javascript", "typescript", "tsx", "go", "java", "rust"]
ChangeSide = Literal["before", "after"]


class SourceFunction(Record):
    """A function or method as it is written."""

    name: str
    qualified: str
    """With the classes around it: `Cart.total`."""
    first_line: int
    last_line: int
    parameters: tuple[str, ...] = ()
    """As written, with defaults and types."""
    complexity: int = 1
    """Cyclomatic: decisions plus one."""
    cognitive: int = 0
    statements: int = 0
    public: bool = True
    decorators: tuple[str, ...] = ()


class SourceType(Record):
    """A class, interface, struct, enum or trait."""

    name: str
    qualified: str
    first_line: int
    last_line: int
    bases: tuple[str, ...] = ()
    methods: int = 0
    public: bool = True


class SourceImport(Record):
    """A name brought in from elsewhere."""

    module: str
    """As written: `.text`, `react`, `fmt`."""
    name: str | None = None
    """None where the whole module is meant."""
    alias: str | None = None
    line: int


class SourceName(Record):
    """A name that is used or defined."""

    text: str
    line: int
    kind: Literal["call", "attribute", "keyword", "name", "definition"]
    receiver: str | None = None
    """What it is looked up on, or for a keyword what is called; as written, where that is short."""


class SourceModule(Record):
    """What one file's text says, by its syntax."""

    language: Language
    functions: tuple[SourceFunction, ...] = ()
    types: tuple[SourceType, ...] = ()
    imports: tuple[SourceImport, ...] = ()
    names: tuple[SourceName, ...] = ()
    prints: tuple[int, ...] = ()
    """Fingerprints of its windows of tokens, by which copies are found, in order."""
    print_lines: tuple[int, ...] = ()
    """The line on which each of them begins."""
    broken_lines: tuple[int, ...] = ()
    """Where it cannot be parsed."""
    note: str | None = None
    """Why it was not read, or not all of it."""


class SourceIndex(Protocol):
    """Every source file of the repository after the change, parsed once per content."""

    def paths(self) -> Sequence[str]:
        """Source files of known languages, without generated and vendored ones."""
        ...

    def module(self, path: str) -> SourceModule | None: ...

    def imports(self) -> Mapping[str, Sequence[SourceImport]]:
        """By path, what each file imports, in one look; on which line is not told (0)."""
        ...

    def defined(self, name: str) -> Sequence[tuple[str, int]]:
        """Where something of that name is defined: path and line."""
        ...

    def known(self, name: str) -> bool:
        """Whether the name occurs anywhere in the repository, the change's added lines left out."""
        ...

    def count_files(self, names: Iterable[str]) -> Mapping[str, int]:
        """In how many files each of these names occurs."""
        ...

    def copies(self, prints: Sequence[int]) -> Mapping[int, Sequence[tuple[str, int]]]:
        """Where each of these fingerprints occurs: path and line."""
        ...


class Inspection(Record):
    """What a check of a change is given."""

    change: Change
    sides: Any
    """`closeloop.changes.change_sides.ChangeSides`: bytes of any path at either end."""
    index: Any
    """A repository's index: `RepositoryIndex`."""
    files: tuple[FileChange, ...] = ()
    """Files of the change that people write: neither generated, vendored nor binary."""
    added: Mapping[str, frozenset[int]] = {}
    """By path, the numbers of the lines that the change added or altered, after it."""
    removed: Mapping[str, frozenset[int]] = {}
    """By path before the change, the numbers of the lines that it took away or altered."""
    modules: Mapping[tuple[ChangeSide, str], SourceModule] = {}
    """Syntax of the changed files, at each end where the file is there."""
    task: Task | None = None
    request: str | None = None
    """What was asked for, in words, where it is known: the task's prompt, the pull request."""
    settings: Any = None
    """`closeloop.records.settings.CheckSettings`."""
