"""A change of a repository, the report of a check, and the input of rules and checks.

`TraceReading` is a trace as rules receive it (`process/trace_reading.py` builds it), `Inspection`
is a change as checks receive it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from closeloop.records.attempt import Attempt, Grade, Outcome
from closeloop.records.finding import Finding, Unmeasured
from closeloop.records.record import Record, Time
from closeloop.records.task import Task
from closeloop.records.trace import Command, Edit, Handoff, Lane, Message, Read, ToolUse, Trace


class Hunk(Record):
    """Replaced lines at one position."""

    old_start: int
    old_lines: int
    new_start: int
    new_lines: int


class FileChange(Record):
    """One file of a change."""

    path: str
    status: Literal["added", "changed", "deleted", "renamed"]
    old_path: str | None = None
    """The previous path of a renamed file."""
    added: int = 0
    removed: int = 0
    binary: bool = False
    hunks: tuple[Hunk, ...] = ()
    old_mode: str | None = None
    mode: str | None = None
    """As git writes it: 100644, 100755 for an executable, 120000 for a link, 160000 for a
    submodule."""
    note: str | None = None
    """Why its content is incomplete: too large, a Git LFS pointer, …"""


class Change(Record):
    """A diff with its base."""

    base: str | None = None
    head: str | None = None
    files: tuple[FileChange, ...] = ()
    patch: str = ""


class RecoveredHunk(Record):
    """Lines that one or more edits of a recording replaced at one position."""

    event: int
    """The last event that changed them."""
    lines: tuple[str, ...]
    """With their sign: `+`, `-` or a space. Their line numbers are not known."""


class RecoveredFile(Record):
    """A file as changed by the edits of a recording that has no stored diff."""

    path: str
    status: Literal["added", "changed", "deleted"]
    hunks: tuple[RecoveredHunk, ...] = ()
    is_complete: bool = True
    """False if the recording lacks the lines of an edit to it."""

    @property
    def added(self) -> int | None:
        """Number of added lines; None if not all are known."""
        return self._count_lines("+") if self.is_complete else None

    @property
    def removed(self) -> int | None:
        """Number of removed lines; None if not all are known."""
        return self._count_lines("-") if self.is_complete else None

    def _count_lines(self, sign: str) -> int:
        return sum(line[:1] == sign for hunk in self.hunks for line in hunk.lines)


# A report: what is certain about a change, in three tiers, and how risky it is.

RiskLevel = Literal["low", "medium", "high", "critical"]
SizeBand = Literal["small", "medium", "large", "huge"]
"""Size of a change compared with others of its repository."""
RISK_LEVELS: tuple[RiskLevel, ...] = ("low", "medium", "high", "critical")
GatePolicy = Literal["strict", "regression_only", "informational"]
ReportVerdict = Literal["pass", "unverified", "warn", "block"]
"""Unverified: nothing blocks, but no test ran that could have found a fault."""
CheckTier = Literal["tools", "quality", "risk"]
ToolState = Literal["passed", "failed", "timed out", "inert", "not set up", "machine trouble"]
"""Inert: the command is missing, or it ran no test. Not set up: a setup command failed before it.
Machine trouble: no disk space, killed."""
ToolOutcome = Literal["no worse", "broken", "unknown"]
"""Effect of a change on a tool. Unknown: the tool fails, and whether it failed before is not known;
or the machine prevented a result."""


class ToolRun(Record):
    """One of the repository's own tools, run at the base and after the change."""

    name: str
    """Its purpose: test, lint, types, build, secrets, …"""
    command: str
    before: ToolState | None = None
    """None if it was not run at the base."""
    after: ToolState
    outcome: ToolOutcome | None = None
    """None in reports stored before outcomes existed."""
    broke: tuple[str, ...] = ()
    """New failures: test ids, or locations with their message; then `lost`."""
    lost: tuple[str, ...] = ()
    """Tests that passed before and do not run now, although the change did not remove them."""
    removed: tuple[str, ...] = ()
    """Tests that passed before and that the change removed."""
    already: tuple[str, ...] = ()
    """Failures that existed before and remain."""
    mended: tuple[str, ...] = ()
    """Failures that are fixed. A test that no longer runs is not fixed."""
    output: str = ""
    """The relevant part of the output after the change."""
    seconds: float | None = None
    ran: int | None = None
    """Number of tests that ran after the change, if the runner names them."""
    selected: str | None = None
    """How tests were selected, if not all ran."""
    note: str | None = None


class FixingResult(Record):
    """The result of asking an agent to fix what broke. The change itself is not modified."""

    tries: int
    left: tuple[ToolRun, ...] = ()
    """Tools that still fail after the fix."""
    findings: tuple[Finding, ...] = ()
    """Quality findings that block the fixed change."""
    patch: str | None = None
    """The file with the patch to add to the change; None if it was not fixed."""
    note: str | None = None
    """Why the agent stopped early."""


class RiskFactor(Record):
    """One dimension of risk."""

    name: str
    axis: Literal["likelihood", "impact"]
    text: str
    """Description of what was found."""
    weight: float
    """Weight towards the level; reasons are listed by it."""
    value: float | None = None
    places: tuple[str, ...] = ()
    """`path` or `path:line` of the first few."""


class RevertChance(Record):
    """Probability that the change will be reverted or fixed."""

    value: float
    low: float
    high: float
    of: int
    """Number of past changes it was learned from."""
    method: str
    usual: float | None = None
    """Share of all past changes that went wrong."""


class Risk(Record):
    """Risk level of a change, and its reasons."""

    level: RiskLevel
    reasons: tuple[str, ...]
    """Most important first."""
    factors: tuple[RiskFactor, ...] = ()
    likelihood: float | None = None
    """Rank of the change among past ones of the repository, from 0 to 1."""
    chance: RevertChance | None = None
    note: str | None = None
    """Says so if the level describes impact rather than likelihood, and why."""
    unmeasured: tuple[Unmeasured, ...] = ()
    """Dimensions that could not be examined, and why."""


class ChangeReport(Record):
    """The result of a check: verdict, reasons, tool runs, findings and risk."""

    change: Change
    title: str
    """What was checked: `main..feature`, `working tree`, `#12`."""
    verdict: ReportVerdict
    reasons: tuple[str, ...] = ()
    """Why the verdict is not a pass."""
    held: bool = False
    """Whether the risk alone requires a person (`check.hold_at`)."""
    gate: GatePolicy = "regression_only"
    tiers: tuple[CheckTier, ...] = ("tools", "quality", "risk")
    """The tiers that were requested."""
    tools: tuple[ToolRun, ...] = ()
    mending: FixingResult | None = None
    findings: tuple[Finding, ...] = ()
    risk: Risk | None = None
    grade: Outcome | None = None
    """For an attempt's change, the outcome of its task's acceptance."""
    unmeasured: tuple[Unmeasured, ...] = ()
    """What could not be checked, and why."""
    version: int = 1
    at: Time | None = None
    seconds: float | None = None

    def __repr__(self) -> str:
        level = f", risk {self.risk.level}" if self.risk else ""
        counts = f"{len(self.tools)} tools, {len(self.findings)} findings{level}"
        return f"<ChangeReport {self.title}: {self.verdict}, {counts}>"


class ReportRow(Record):
    """One row of the list of stored reports."""

    number: int
    at: Time
    repo: str | None = None
    title: str
    base: str | None = None
    head: str | None = None
    attempt: str | None = None
    """The attempt whose change it is, if known."""
    level: RiskLevel | None = None
    why: str | None = None
    """The most important reasons for the level, truncated."""
    verdict: ReportVerdict
    findings: int
    """Number of findings that are not silenced."""


# The input of rules and checks: a trace as steps, and a change opened for inspection.
#
# A TraceReading per trace has a LaneReading per lane, which has a TraceStep per action (what it
# read, wrote, checked, and whether it failed) and Iterations (changes of the workspace, then
# checks).
#
# An Inspection per change has the content at both ends, syntax, and the surrounding repository.


ActionEvent = Command | Edit | Read | ToolUse | Handoff

# `gc=False`: none of these can be part of a reference cycle, and some are very numerous.


class ShellEdit(Record, gc=False):
    """A file change described by a command's text. As in `Edit`, None is unknown."""

    path: str
    action: Literal["create", "change", "delete"] = "change"
    before: str | None = None
    after: str | None = None
    patch: str | None = None


class CommandEffect(Record, gc=False):
    """The effects of a command line, inferred from its text alone."""

    programs: tuple[str, ...] = ()
    """The programs it runs, in order, without paths and wrappers: `("cd", "pytest")`."""
    checks: tuple[str, ...] = ()
    """The tools among them that test, build, lint or type-check: `("pytest",)`."""
    target: str = ""
    """The check that it runs, without flags that only change the output."""
    writes: bool = False
    """Whether it changes the workspace."""
    written: tuple[str, ...] = ()
    """The files that it changes, if its text names them."""
    restored: tuple[str, ...] = ()
    """Those of them that git restores."""
    edits: tuple[ShellEdit, ...] = ()
    """Its edits as far as its text shows them, including those to temporary files."""
    runs: tuple[str, ...] = ()
    """Scripts that it runs and patches that it applies."""
    read: tuple[str, ...] = ()
    """The files that it prints, if its text names them."""
    searches: bool = False
    """Whether it searches for text or files; exit code 1 then only means no match."""
    waits: bool = False
    """Whether it waits or polls; repeating it is not a loop."""
    masked: bool = False
    """Whether its exit code is not that of the check: piped, or followed by `|| true`."""
    folder: str = ""
    """The folder the check runs in, if the line names it: `sub` in `cd sub && pytest`."""


class CheckFailures(Record, gc=False):
    """The content of a failing check: which tests or places fail, and the names it mentions."""

    errors: Mapping[str, str]
    """Failing test id or error signature → its message without volatile text, or `""`."""
    parser: str
    """The tool whose output format it is; `tail` if only the last lines could be compared."""
    paths: tuple[str, ...] = ()
    symbols: tuple[str, ...] = ()
    """Names in the output, most important first; paths as written there."""

    @property
    def keys(self) -> frozenset[str]:
        """The failure set."""
        return frozenset(self.errors)


class TraceCheck(Record, gc=False):
    """A run of a tool that checks the work."""

    tool: str
    target: str
    passed: bool | None
    """None if neither exit code nor output tells, and if it could not run."""
    failures: CheckFailures | None = None
    """None unless it failed."""
    blocked: str | None = None
    """Why it could not run; such a check says nothing about the code."""
    folder: str = ""
    """The folder it ran in, if known."""


class TraceStep(Record, gc=False):
    """One action of a lane."""

    event: ActionEvent
    index: int
    """Its position among the lane's steps."""
    state: int
    """How often the workspace had changed when the step began."""
    changed: bool = False
    """Whether it changed the workspace: an edit that did not fail, or a command that writes."""
    failed: bool | None = None
    """None if unknown."""
    effect: CommandEffect | None = None
    """For a command, its effects."""
    check: TraceCheck | None = None
    read: tuple[str, ...] = ()
    """Files whose content it printed."""
    written: tuple[str, ...] = ()
    """Files that it changed or tried to change, relative to the project where known."""
    edits: tuple[Edit, ...] = ()
    """The edit itself; for a command, the edits in its text, with its event number and with paths
    as in `written`."""

    @property
    def number(self) -> int:
        """The event number that findings cite."""
        return self.event.number


class Iteration(Record, gc=False):
    """One or more changes of the workspace, then one or more checks of it."""

    changes: tuple[TraceStep, ...]
    checks: tuple[TraceStep, ...]
    """The last run of each target. A check that is repeated without a change adds nothing."""
    passed: bool | None
    """Whether all passed; None if one is unknown and none failed."""
    failures: CheckFailures | None = None
    """Failures of all failing checks together."""


# `dict`: what rules compute from a reading is cached in it (`process/rule_helpers.py`), and is not
# compared.


class LaneReading(Record, dict=True):
    """One lane of a trace, prepared for rules."""

    lane: Lane
    request: str | None
    """The lane's request: the user's first message, or the brief."""
    steps: Sequence[TraceStep]
    commands: Sequence[TraceStep]
    edits: Sequence[TraceStep]
    tools: Sequence[TraceStep]
    """The steps that are commands, edits or other tool calls."""
    reads: Sequence[TraceStep]
    """The steps that printed a file."""
    failing: Sequence[TraceStep]
    """The steps that are known to have failed."""
    messages: Sequence[Message]
    """Messages from and to the user, in order; for a child, also its own."""
    users: Sequence[Message]
    """The messages that the user wrote."""
    checks: Sequence[TraceStep]
    changes: Sequence[TraceStep]
    """Steps that changed the workspace, including those of its children."""
    iterations: Sequence[Iteration]
    compactions: tuple[int, ...] = ()
    """Event numbers at which the lane's context was compacted."""
    handoff: Handoff | None = None
    """The event that started the lane, if recorded."""


class TraceReading(Record, dict=True):
    """One trace, prepared for rules, with what else is known about the attempt."""

    trace: Trace
    lanes: Mapping[str, LaneReading]
    """In order of their start; the first is the root."""
    handoffs: Sequence[Handoff] = ()
    """All of them, in order."""
    gaps: tuple[str, ...] = ()
    """Why parts cannot be measured: half of it was skipped, no exit code is known, …"""
    task: Task | None = None
    attempt: Attempt | None = None
    change: Change | None = None
    grade: Grade | None = None


Language = Literal["python", "javascript", "typescript", "tsx", "go", "java", "rust"]
ChangeSide = Literal["before", "after"]


class SourceFunction(Record):
    """A function or method in source code."""

    name: str
    qualified: str
    """With its classes: `Cart.total`."""
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
    """An imported name."""

    module: str
    """As written: `.text`, `react`, `fmt`."""
    name: str | None = None
    """None if the whole module is imported."""
    alias: str | None = None
    line: int


class SourceName(Record):
    """A name that is used or defined."""

    text: str
    line: int
    kind: Literal["call", "attribute", "keyword", "name", "definition"]
    receiver: str | None = None
    """The object it is looked up on, or for a keyword the called function; as written, if short."""


class SourceModule(Record):
    """The parsed content of one file."""

    language: Language
    functions: tuple[SourceFunction, ...] = ()
    types: tuple[SourceType, ...] = ()
    imports: tuple[SourceImport, ...] = ()
    names: tuple[SourceName, ...] = ()
    prints: tuple[int, ...] = ()
    """Fingerprints of its token windows, in order, used to find copies."""
    print_lines: tuple[int, ...] = ()
    """The first line of each fingerprint."""
    broken_lines: tuple[int, ...] = ()
    """Lines that cannot be parsed."""
    note: str | None = None
    """Why the file was not read, or only in part."""


class SourceIndex(Protocol):
    """Every source file of the repository after the change, parsed once per content."""

    def paths(self) -> Sequence[str]:
        """Source files of known languages, without generated and vendored ones."""
        ...

    def module(self, path: str) -> SourceModule | None: ...

    def imports(self) -> Mapping[str, Sequence[SourceImport]]:
        """Imports of all files, by path; line numbers are 0."""
        ...

    def defined(self, name: str) -> Sequence[tuple[str, int]]:
        """Path and line of each definition with that name."""
        ...

    def known(self, name: str) -> bool:
        """Whether the name occurs in the repository outside the lines that the change added."""
        ...

    def count_files(self, names: Iterable[str]) -> Mapping[str, int]:
        """Number of files in which each name occurs."""
        ...

    def copies(self, prints: Sequence[int]) -> Mapping[int, Sequence[tuple[str, int]]]:
        """Path and line of each occurrence of these fingerprints."""
        ...


class Inspection(Record):
    """The input of a change check."""

    change: Change
    sides: Any
    """`closeloop.changes.change_sides.ChangeSides`: file contents before and after the change."""
    index: Any
    """The repository's index: `RepositoryIndex`."""
    files: tuple[FileChange, ...] = ()
    """Hand-written files of the change: neither generated, vendored nor binary."""
    added: Mapping[str, frozenset[int]] = {}
    """Line numbers after the change that it added or altered, by path."""
    removed: Mapping[str, frozenset[int]] = {}
    """Line numbers before the change that it removed or altered, by old path."""
    modules: Mapping[tuple[ChangeSide, str], SourceModule] = {}
    """Syntax of the changed files, before and after."""
    task: Task | None = None
    request: str | None = None
    """The request, if known: the task's prompt or the pull request's text."""
    settings: Any = None
    """`closeloop.records.settings.CheckSettings`."""
    installed: tuple[Path, ...] = ()
    """Folders that may contain the project's packages: the repository, and where setup ran."""
