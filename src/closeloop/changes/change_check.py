"""Validate a change in three tiers: the repository's tools, code quality, risk. One report.

    sides ──► inspection ──► tier 2: checks of quality, names, scope ──┐
      │                 └──► tier 3: risk, by the repository's past ───┼──► verdict ──► Report
      └──► workspaces ─────► tier 1: tools before and after ───────────┘

A tier that cannot look says why, and hides none of the others.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from closeloop import plugins
from closeloop.changes.affected_tests import (
    RAN_STATUSES,
    Coverage,
    find_coverage,
    measure_coverage,
    read_coverage,
    select_test_files,
)
from closeloop.changes.change_sides import (
    ChangeQuery,
    ChangeSides,
    CheckContext,
    describe_missing_content,
    needs_setup,
    open_sides,
    prepare_base,
)
from closeloop.changes.check_verdict import (
    FixedChange,
    Fixer,
    FixSubject,
    decide_verdict,
    list_blocking_findings,
    review_with_model,
    run_fix_cycles,
)
from closeloop.changes.repository_index import inspect_change, open_index
from closeloop.changes.risk import assess_risk
from closeloop.changes.risk.change_history import read_history
from closeloop.changes.risk.risk_model import learn_risk_model
from closeloop.changes.tool_comparison import (
    CheckTool,
    ToolComparison,
    ToolResult,
    run_tool,
    run_tools,
    tool_ending,
)
from closeloop.concurrency import compute_in_thread
from closeloop.grading.suite_run import NO_TEST_RAN
from closeloop.grading.tool_outcomes import (
    NO_COMMAND_REASON,
    advise_on_setup,
    explain_unverified,
    find_missing_program,
)
from closeloop.records.attempt import Outcome
from closeloop.records.change import (
    ChangeReport,
    CheckTier,
    FixingResult,
    Inspection,
    Risk,
    ToolRun,
)
from closeloop.records.errors import BadInput, Fault, MachineFailed
from closeloop.records.finding import SEVERITIES, Finding, Unmeasured
from closeloop.records.protocols import ChangeCheck, Model
from closeloop.records.record import Record, content_digest
from closeloop.records.settings import (
    CheckSettings,
    CommandSettings,
    JudgeConfirmation,
    SilenceSettings,
)
from closeloop.records.task import Limits, Task
from closeloop.sandbox.workspaces import UnreadableChange, WorkspacePool
from closeloop.tasks.mining_environments import extract_error_line
from closeloop.text.redaction import redact_change, redact_record
from closeloop.text.wording import count_with_noun, matches_globs

TIERS: tuple[CheckTier, ...] = ("tools", "quality", "risk")
PreparedContext = CheckContext | Unmeasured | MachineFailed | None
"""The context to run tools in, or why there is none; None if no tool is to run."""


class CheckRequest(Record):
    """Which change to validate, and how."""

    root: Path
    wanted: ChangeQuery = ChangeQuery()
    cache: Path
    settings: CheckSettings = CheckSettings()
    confirm: JudgeConfirmation = "always"
    """When to ask a reviewing model a second time after it found nothing."""
    commands: CommandSettings = CommandSettings()
    silences: tuple[SilenceSettings, ...] = ()
    tiers: tuple[CheckTier, ...] = TIERS
    task: Task | None = None
    request: str | None = None
    grade: Outcome | None = None
    """Outcome of the attempt that made the change."""
    coverage: bool = False
    """Whether to run the tests once more to measure coverage."""
    rewritten_commands: tuple[str, ...] = ()
    """Settings through which the change itself alters its test commands."""
    report_progress: Callable[[str], None] = lambda text: None


class ToolTierResult(Record):
    """Result of the first tier."""

    runs: tuple[ToolRun, ...] = ()
    mending: FixingResult | None = None
    unmeasured: tuple[Unmeasured, ...] = ()
    unverified: str | None = None
    """Why no test gave a result, and what to do about it."""
    tools: Sequence[CheckTool] = ()
    comparisons: Sequence[ToolComparison] = ()
    """The tools that ran, with both sides; a fix cycle runs them again."""


class TierResults(Record):
    """Results of each requested tier."""

    quality: tuple[Finding | Unmeasured, ...] = ()
    risk: Risk | Unmeasured | None = None
    tools: ToolTierResult = ToolTierResult()


async def read_change(order: CheckRequest, sides: ChangeSides) -> Inspection:
    """Read what the change does to the code, together with the repository's index."""
    order.report_progress("reading the change")
    return await compute_in_thread(_inspect_sides, order, sides)


def _inspect_sides(order: CheckRequest, sides: ChangeSides) -> Inspection:
    index = open_index(sides, order.cache, order.settings)
    return inspect_change(
        sides, index, task=order.task, request=order.request, settings=order.settings
    )


def report_risk_alone(order: CheckRequest) -> ChangeReport:
    """Report only the risk of a change; runs no command."""
    started = time.monotonic()
    with open_sides(order.root, order.wanted) as sides:
        not_run = Unmeasured(rule="coverage", reason="no command was run")
        inspection = _inspect_sides(order, sides)
        with inspection.index:
            risk = _assess_risk(order, inspection, not_run)
        order = msgspec.structs.replace(order, tiers=("risk",))
        return build_report(order, sides, TierResults(risk=risk), time.monotonic() - started)


def build_report(
    order: CheckRequest, sides: ChangeSides, results: TierResults, seconds: float
) -> ChangeReport:
    """Build the report with its verdict from the tiers' results; secrets are redacted."""
    risk = results.risk if isinstance(results.risk, Risk) else None
    tools = results.tools
    findings = sorted(
        (
            apply_silences(result, order)
            for result in results.quality
            if isinstance(result, Finding)
        ),
        key=_finding_order,
    )
    unmeasured = [result for result in results.quality if not isinstance(result, Finding)]
    if isinstance(results.risk, Unmeasured):
        unmeasured.append(results.risk)
    judgement = decide_verdict(
        order.settings, tools.runs, findings, risk, unverified=tools.unverified, grade=order.grade
    )
    report = ChangeReport(
        change=redact_change(sides.change),
        title=sides.title,
        verdict=judgement.verdict,
        reasons=judgement.reasons,
        held=judgement.held,
        gate=order.settings.gate,
        tiers=order.tiers,
        tools=tools.runs,
        mending=tools.mending,
        findings=tuple(findings),
        risk=risk,
        grade=order.grade,
        unmeasured=(*unmeasured, *tools.unmeasured),
        at=datetime.now(UTC),
        seconds=round(seconds, 3),
    )
    return redact_record(report)[0]


def add_installed_packages(inspection: Inspection, context: PreparedContext) -> Inspection:
    """Return the inspection with the folder in which setup installed the project's packages."""
    if not isinstance(context, CheckContext) or not context.setup:
        return inspection
    workspace = Path(context.bases["after"].folder, "root", "workspace")
    return msgspec.structs.replace(inspection, installed=(*inspection.installed, workspace))


async def check_quality(
    order: CheckRequest, inspection: Inspection, reviewer: Model | Unmeasured | None
) -> tuple[Finding | Unmeasured, ...]:
    """Run the quality tier: every check of the code, and a model review if one is configured."""
    if "quality" not in order.tiers:
        return ()
    order.report_progress("code quality")
    results = await compute_in_thread(run_checks, inspection)
    if reviewer is None:
        return tuple(results)
    order.report_progress("model review of the change")
    remarks = await review_with_model(
        inspection, results, reviewer, order.settings.timeout, order.confirm
    )
    return (*results, *remarks)


def run_checks(inspection: Inspection) -> list[Finding | Unmeasured]:
    """Run every check; one that raises is reported as unmeasured."""
    results: list[Finding | Unmeasured] = []
    for name in sorted(plugins.installed_plugins("checks")):
        try:
            plugin: ChangeCheck = plugins.load_plugin("checks", name)
            results += plugin.check(inspection)
        except Exception as error:  # a plug-in may raise anything; the other checks still run
            reason = f"it raised {type(error).__name__}: {error}"
            results.append(Unmeasured(rule=name, reason=reason[:300]))
    return [*results, *_report_unparsed_files(inspection)]


def _report_unparsed_files(inspection: Inspection) -> Iterator[Unmeasured]:
    """Yield an entry for each changed file that the checks could read only in part."""
    places = []
    for file in inspection.files:
        module = inspection.modules.get(("after", file.path))
        if module is not None and module.broken_lines:
            places.append(f"{file.path}:{module.broken_lines[0]}")
        elif module is not None and module.note:
            places.append(f"{file.path} ({module.note})")
    if places:
        more = f" and {len(places) - 3} more" if len(places) > 3 else ""
        reason = (
            f"{', '.join(places[:3])}{more} cannot be parsed, so the other checks may miss "
            f"faults in {'this file' if len(places) == 1 else 'these files'}"
        )
        yield Unmeasured(rule="syntax", reason=reason)


async def check_risk(
    order: CheckRequest, inspection: Inspection, context: PreparedContext
) -> Risk | Unmeasured | None:
    """Run the risk tier: how likely such a change goes wrong, by the repository's history."""
    if "risk" not in order.tiers:
        return None
    order.report_progress("risk from the repository's history")
    coverage = await _measure_coverage(order, context)
    return await compute_in_thread(_assess_risk, order, inspection, coverage)


def _assess_risk(
    order: CheckRequest, inspection: Inspection, coverage: Coverage | Unmeasured | None
) -> Risk | Unmeasured:
    sides: ChangeSides = inspection.sides
    try:
        history = read_history(sides.root, sides.base, order.cache)
        if coverage is None and (path := find_coverage(sides.root)) is not None:
            coverage = _read_coverage(path, sides.root)
        return assess_risk(
            inspection,
            history=history,
            model=learn_risk_model(history),
            coverage=coverage,
            cache=order.cache,
        )
    except (Fault, OSError) as fault:
        return Unmeasured(rule="risk", reason=str(fault))


def _read_coverage(path: Path, root: Path) -> Coverage | Unmeasured:
    """Read existing coverage data; an unreadable file does not stop the risk tier."""
    try:
        return read_coverage(path, root)
    except BadInput as fault:
        return Unmeasured(rule="coverage", reason=str(fault))


async def prepare_context(
    order: CheckRequest, sides: ChangeSides, workspaces: WorkspacePool, needed: bool = False
) -> PreparedContext:
    """Prepare a context if tools are to run or an agent needs one; or return why it failed."""
    tools = "tools" in order.tiers and list_check_tools(order.commands, order.settings.commands)
    if not tools and not order.coverage and not needed:
        return None
    if sides.base is None:
        return Unmeasured(rule="tools", reason="there is no commit before the change")
    setup, unready = order.commands.setup, ""
    try:
        order.report_progress("preparing the base")
        try:
            before = after = await prepare_base(
                workspaces, sides, "before", setup, order.cache, order.report_progress
            )
        except BadInput as fault:  # of the base: setup may still succeed with the change
            unready = str(fault)
            before = after = await workspaces.prepare_base(str(sides.root), sides.base)
        if setup and sides.head and needs_setup(file.path for file in sides.change.files):
            order.report_progress("preparing the change")
            with suppress(BadInput):  # then every tool says so, with what setup prints
                after = await prepare_base(
                    workspaces, sides, "after", setup, order.cache, order.report_progress
                )
    except BadInput as fault:
        return Unmeasured(rule="tools", reason=describe_fault(fault))
    except (Fault, OSError) as fault:
        return MachineFailed(describe_fault(fault))
    return CheckContext(
        workspaces=workspaces,
        bases={"before": before, "after": after},
        sides=sides,
        setup=setup,
        unready={"before": unready} if unready else {},
        bare=frozenset({"after"} if unready and after is before else ()),
        timeout=order.settings.timeout,
        report_progress=order.report_progress,
    )


async def _measure_coverage(
    order: CheckRequest, context: PreparedContext
) -> Coverage | Unmeasured | None:
    """Measure coverage if requested; None means existing data is used."""
    if not order.coverage:
        return None
    if not isinstance(context, CheckContext):
        reason = context.reason if isinstance(context, Unmeasured) else str(context or "no command")
        return Unmeasured(rule="coverage", reason=reason)
    return await measure_coverage(context, order.commands.test)


async def check_tools(
    order: CheckRequest, inspection: Inspection, context: PreparedContext
) -> ToolTierResult:
    """Run the tools tier: the repository's own commands before and after the change."""
    if "tools" not in order.tiers:
        return ToolTierResult()
    tools = list_check_tools(order.commands, order.settings.commands)
    if context is None or not tools:
        return ToolTierResult(unverified=NO_COMMAND_REASON)
    if isinstance(context, Unmeasured):
        return ToolTierResult(unmeasured=(context,), unverified=context.reason)
    if isinstance(context, MachineFailed):
        return _unexamined_tools(tools, str(context))
    missing_content = tuple(
        Unmeasured(rule="tools", reason=reason)
        for reason in describe_missing_content(context.sides)
    )
    try:
        tools, comparisons = await _compare_tools(context, tools, inspection, order.settings.tests)
    except (Fault, OSError) as fault:
        return _unexamined_tools(tools, describe_fault(fault))
    runs = tuple(comparison.run for comparison in comparisons)
    if runs and all(run.before == run.after == "not set up" for run in runs):
        reason = describe_fault(BadInput(runs[0].output))
        unrun = Unmeasured(rule="tools", reason=reason)
        unverified = f"{reason}; {advise_on_setup(runs[0].output)}"
        return ToolTierResult(unmeasured=(*missing_content, unrun), unverified=unverified)
    return ToolTierResult(
        runs=runs,
        unmeasured=missing_content,
        unverified=explain_unverified(runs, order.rewritten_commands),
        tools=tools,
        comparisons=comparisons,
    )


def _unexamined_tools(tools: Sequence[CheckTool], reason: str) -> ToolTierResult:
    """Return unknown results for tools that the machine could not run: the gate stays closed."""
    runs = (
        ToolRun(
            name=tool.name,
            command=tool.command,
            after="machine trouble",
            outcome="unknown",
            note=reason,
        )
        for tool in tools
    )
    return ToolTierResult(runs=tuple(runs), unmeasured=(Unmeasured(rule="tools", reason=reason),))


async def _compare_tools(
    context: CheckContext, tools: list[CheckTool], inspection: Inspection, tests: str
) -> tuple[list[CheckTool], list[ToolComparison]]:
    """Compare all tools; if the tests exceed their time, run only the affected tests.

    Tests that are too slow only with the change are not narrowed: the change made them slow.
    """
    if tests == "selected":
        tools = [await compute_in_thread(_narrow_tests, tool, inspection) for tool in tools]
    comparisons = await run_tools(context, tools)
    for index, (tool, comparison) in enumerate(zip(tools, comparisons, strict=True)):
        late = comparison.run.before == "timed out" and comparison.run.after != "passed"
        if tests == "auto" and tool.is_test and late and tool.selected is None:
            narrowed = await compute_in_thread(_narrow_tests, tool, inspection)
            if narrowed.selected is not None:
                context.report_progress(f"{tool.name}: {narrowed.selected}")
                tools[index] = narrowed
                (comparisons[index],) = await run_tools(context, [narrowed])
    return tools, comparisons


def _narrow_tests(tool: CheckTool, inspection: Inspection) -> CheckTool:
    selection = select_test_files(inspection, tool.command) if tool.is_test else None
    if selection is None:
        return tool
    return msgspec.structs.replace(
        tool,
        command=selection.command,
        command_before=selection.command_before,
        selected=selection.how,
    )


def describe_fault(fault: Fault | OSError | UnreadableChange) -> str:
    """Return what went wrong, with the line of a program's output that states the cause."""
    first, _, output = str(fault).strip().partition("\n")
    return f"{first} {extract_error_line(output)}" if output.strip() else first[:500]


def list_check_tools(
    commands: CommandSettings, extra_commands: Mapping[str, str]
) -> list[CheckTool]:
    """Return the project's commands as tools, fast ones first."""
    commands_by_name = {
        "build": commands.build,
        "lint": commands.lint,
        "types": commands.types,
        **extra_commands,
        "test": commands.test,
    }
    return [
        CheckTool(name=name, command=command, is_test=name == "test")
        for name, command in commands_by_name.items()
        if command
    ]


def apply_silences(finding: Finding, order: CheckRequest) -> Finding:
    task = order.task
    for silence in order.silences:
        paths = [place.rsplit(":", 1)[0] for place in finding.places]
        applies = silence.rule == finding.rule
        applies &= silence.task is None or matches_globs(task.id if task else "", [silence.task])
        applies &= silence.path is None or any(
            matches_globs(path, [silence.path]) for path in paths
        )
        if applies:
            return msgspec.structs.replace(finding, silenced=silence.reason)
    return finding


def _finding_order(finding: Finding) -> tuple[int, str, int, str]:
    path, _, line = (finding.places[0] if finding.places else "").rpartition(":")
    number = int(line) if line.isdigit() else 0
    return SEVERITIES.index(finding.severity), path, number, finding.rule


# Let an agent fix a change: when it starts, and what is checked again afterwards.


async def fix_change(
    order: CheckRequest,
    inspection: Inspection,
    context: PreparedContext,
    results: TierResults,
    fixer: Fixer | None,
) -> TierResults:
    """Let an agent fix what the tools and quality checks report, if a fixer is configured."""
    if fixer is None or not isinstance(context, CheckContext):
        return results
    sides = context.sides

    async def recheck_quality(fix_patch: str) -> list[Finding]:
        patch = sides.change.patch + fix_patch
        return await compute_in_thread(
            list_blocking_in_patch, order, sides.base, patch, inspection.installed
        )

    quality = [
        apply_silences(result, order) for result in results.quality if isinstance(result, Finding)
    ]
    subject = FixSubject(
        tools=results.tools.tools,
        comparisons=results.tools.comparisons,
        findings=list_blocking_findings(order.settings, quality),
        recheck=recheck_quality,
    )
    if not subject.needs_fixing():
        return results
    try:
        fixed_change = await run_fix_cycles(context, subject, fixer, order.settings.fix_cycles)
        tools = msgspec.structs.replace(results.tools, mending=_save_fix(order, fixed_change))
    except (Fault, OSError, UnreadableChange) as fault:
        unmended = Unmeasured(rule="mending", reason=describe_fault(fault))
        unmeasured = (*results.tools.unmeasured, unmended)
        tools = msgspec.structs.replace(results.tools, unmeasured=unmeasured)
    return msgspec.structs.replace(results, tools=tools)


def list_blocking_in_patch(
    order: CheckRequest, base: str | None, patch: str, installed: Sequence[Path] = ()
) -> list[Finding]:
    """Return the blocking findings of the quality checks in a patch of a commit."""
    with TemporaryDirectory(prefix="closeloop-") as folder:
        path = Path(folder, "change")
        path.write_bytes(patch.encode("utf-8", "surrogateescape"))
        with (
            open_sides(order.root, ChangeQuery(patch=path, base=base)) as sides,
            open_index(sides, order.cache, order.settings) as index,
        ):
            inspection = inspect_change(
                sides,
                index,
                task=order.task,
                request=order.request,
                settings=order.settings,
                installed=installed,
            )
            results = run_checks(inspection)
    findings = [apply_silences(result, order) for result in results if isinstance(result, Finding)]
    return list_blocking_findings(order.settings, findings)


def _save_fix(order: CheckRequest, fixed_change: FixedChange) -> FixingResult:
    """Save the fix as a patch file; the repository itself is not changed."""
    if not fixed_change.patch or fixed_change.mending.left or fixed_change.mending.findings:
        return fixed_change.mending
    content = fixed_change.patch.encode("utf-8", "surrogateescape")
    path = order.cache / "mended" / f"{content_digest(content)[:16]}.patch"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return msgspec.structs.replace(fixed_change.mending, patch=str(path))


# Try a project's commands once, in the sandbox in which they will run, before anybody relies on
# them.


TRIAL_SECONDS = 600.0
_LOG_NOTICE = re.compile(r"(?m)^npm (?:error|ERR!) A complete log of this run .*$")


class CommandTrial(Record):
    """Result of trying a command."""

    works: bool
    """Whether it ran and reported something: tests may fail, linters may complain."""
    text: str
    """Short summary: `41 tests passed in 3.2 s`, `did not run: uv: command not found`."""
    fails: bool = False
    """Whether it works, and fails at this commit."""


async def try_commands(
    workspaces: WorkspacePool,
    repo: str,
    commit: str,
    commands: CommandSettings,
    report: Callable[[str], None] = lambda text: None,
) -> dict[str, CommandTrial]:
    """Run every command at a commit, each in a fresh workspace; if setup fails, nothing else."""
    trials: dict[str, CommandTrial] = {}
    try:
        base = await workspaces.prepare_base(repo, commit, commands.setup, report=report)
    except BadInput as fault:
        command, _, output = str(fault).partition("\n")
        text = f"{command} {extract_error_line(output)}" if output else command
        return {"setup": CommandTrial(works=False, text=text)}
    if commands.setup:
        trials["setup"] = CommandTrial(works=True, text="works")
    limits = Limits(command_seconds=TRIAL_SECONDS, idle_seconds=TRIAL_SECONDS)
    for tool in list_check_tools(commands, {}):
        report(f"trying {tool.name}: {tool.command}")
        async with workspaces.open(base, limits) as workspace:
            result = await run_tool(workspace.sandbox, tool, "after", TRIAL_SECONDS)
        trials[tool.name] = judge_trial(tool, result)
    return trials


def judge_trial(tool: CheckTool, result: ToolResult) -> CommandTrial:
    """Decide whether a command is usable from its result at an unchanged commit."""
    seconds = f"{result.seconds:.1f} s"
    test_count = sum(status in RAN_STATUSES for status in result.tests.values())
    test_text = f"{count_with_noun(test_count, 'test')} " if test_count else ""
    if result.state == "passed":
        return CommandTrial(works=True, text=f"{test_text}passed in {seconds}")
    if result.state == "timed out":
        text = f"took longer than {TRIAL_SECONDS:.0f} s"
        return CommandTrial(works=True, text=text)
    if missing := find_missing_program(result.output):
        return CommandTrial(works=False, text=f"did not run: {missing} is not installed")
    # A linter's complaints can be compared; a failing build has none.
    names_failures = tool_ending(result) == "failed" and result.note != NO_TEST_RAN
    if names_failures and tool.name != "build":
        failing = count_with_noun(len(result.failures), "test" if tool.is_test else "complaint")
        total = f" of {test_count:,}" if test_count else ""
        verb = "" if not tool.is_test else " fails" if len(result.failures) == 1 else " fail"
        text = f"runs; {failing}{total}{verb} at this commit, in {seconds}"
        if tool.is_test:
            hidden = "" if len(result.failures) == 1 else " and others"
            text += f": {min(result.failures, default='')}{hidden}"
        return CommandTrial(works=True, fails=True, text=text)
    verb = "failed" if result.state == "failed" else "did not run"
    output = _LOG_NOTICE.sub("", result.output)
    reason = extract_error_line(output) if output.strip() else result.note
    return CommandTrial(works=False, text=f"{verb}: {reason}")
