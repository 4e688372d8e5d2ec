"""Validate a change in three tiers: the repository's tools, code quality, risk. One report.

    sides ──► inspection ──► tier 2: checks of quality, names, scope ──┐
      │                 └──► tier 3: risk, by the repository's past ───┼──► verdict ──► Report
      └──► workspaces ─────► tier 1: tools before and after ───────────┘

A tier that cannot look says why, and hides none of the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import anyio.to_thread
import msgspec

from closeloop import plugins
from closeloop.changes.index import open_index
from closeloop.changes.inspect import inspect
from closeloop.changes.risk import assess
from closeloop.changes.risk.coverage import find_coverage, read_coverage
from closeloop.changes.risk.fit import fit
from closeloop.changes.risk.history import read_history
from closeloop.changes.sources import Sides, Wanted, open_sides
from closeloop.checking.fixing import Fixer, Mended, mend
from closeloop.checking.selection import select
from closeloop.checking.tools import Bench, Tool, has_broken, run_tools
from closeloop.model.errors import Fault
from closeloop.model.finding import Finding, Unmeasured
from closeloop.model.globs import matches
from closeloop.model.inspection import Inspection
from closeloop.model.record import Record
from closeloop.model.report import Report, Risk, ToolRun, Verdict
from closeloop.model.settings import CheckSettings, Commands, Silence
from closeloop.model.task import Task
from closeloop.runs.workspaces import Workspaces

Tier = Literal["tools", "quality", "risk"]
TIERS: tuple[Tier, ...] = ("tools", "quality", "risk")
SEVERITIES = ("error", "warning", "info")
LEVELS = ("low", "medium", "high", "critical")


class Order(Record):
    """What is to be validated, and how."""

    root: Path
    wanted: Wanted = Wanted()
    cache: Path
    settings: CheckSettings = CheckSettings()
    commands: Commands = Commands()
    silences: tuple[Silence, ...] = ()
    tiers: tuple[Tier, ...] = TIERS
    task: Task | None = None
    request: str | None = None
    tell: Callable[[str], None] = lambda text: None


async def check(order: Order, workspaces: Workspaces, fixer: Fixer | None = None) -> Report:
    """All tiers that are asked for; BadInput only where there is no change to look at."""
    began = time.monotonic()
    with open_sides(order.root, order.wanted) as sides:
        order.tell("reading the change")
        inspection = await anyio.to_thread.run_sync(_inspect, order, sides)
        said: list[Finding | Unmeasured | Risk | ToolRun] = []
        if "quality" in order.tiers:
            order.tell("code quality")
            said += await anyio.to_thread.run_sync(look, inspection)
        if "risk" in order.tiers:
            order.tell("risk")
            said.append(await anyio.to_thread.run_sync(_judge, order, inspection))
        if "tools" in order.tiers:
            said += await _tools(order, inspection, workspaces, fixer)
        found = [_silenced(one, order) for one in said if isinstance(one, Finding)]
        counted = sorted(found, key=_place)
        risk = next((one for one in said if isinstance(one, Risk)), None)
        tools = [one for one in said if isinstance(one, ToolRun)]
        unmeasured = [one for one in said if isinstance(one, Unmeasured)]
        verdict, reasons = judge(order.settings, tools, counted, risk)
        return Report(
            change=sides.change,
            title=sides.title,
            verdict=verdict,
            reasons=reasons,
            gate=order.settings.gate,
            tools=tuple(tools),
            findings=tuple(counted),
            risk=risk,
            unmeasured=tuple(unmeasured),
            at=datetime.now(UTC),
            seconds=round(time.monotonic() - began, 3),
        )


def _inspect(order: Order, sides: Sides) -> Inspection:
    index = open_index(sides, order.cache, order.settings)
    return inspect(sides, index, task=order.task, request=order.request, settings=order.settings)


def look(inspection: Inspection) -> list[Finding | Unmeasured]:
    """What every check says; one that raises is told as not having looked."""
    said: list[Finding | Unmeasured] = []
    for name, entry in sorted(plugins.known("checks").items()):
        try:
            said += plugins.find("checks", entry.name).check(inspection)
        except Exception as error:  # a plug-in may raise anything; the others still look
            reason = f"it raised {type(error).__name__}: {error}"
            said.append(Unmeasured(rule=name, reason=reason[:300]))
    return said


def _judge(order: Order, inspection: Inspection) -> Risk | Unmeasured:
    sides: Sides = inspection.sides
    try:
        history = read_history(sides.root, sides.base, order.cache)
        path = find_coverage(sides.root)
        coverage = read_coverage(path, sides.root) if path else None
        return assess(inspection, history=history, model=fit(history).model, coverage=coverage)
    except (Fault, OSError) as fault:
        return Unmeasured(rule="risk", reason=str(fault))


async def _tools(
    order: Order, inspection: Inspection, workspaces: Workspaces, fixer: Fixer | None
) -> Sequence[ToolRun | Unmeasured]:
    sides: Sides = inspection.sides
    tools = tools_of(order.commands, order.settings.commands)
    if not tools:
        reason = "no command is known: name some in [commands], or let `closeloop init` find them"
        return [Unmeasured(rule="tools", reason=reason)]
    if sides.base is None:
        return [Unmeasured(rule="tools", reason="there is no commit before the change")]
    try:
        order.tell("preparing the base")
        base = await workspaces.base(str(sides.root), sides.base, order.commands.setup)
        bench = Bench(
            workspaces=workspaces,
            base=base,
            sides=sides,
            setup=order.commands.setup,
            timeout=order.settings.timeout,
            tell=order.tell,
        )
        runs = await _run(bench, tools, inspection, order.settings.tests)
        if fixer is not None and any(has_broken(run) for run in runs):
            mended = await mend(bench, tools, runs, fixer, order.settings.fix_cycles)
            _keep(order, mended)
            return mended.runs
    except (Fault, OSError) as fault:
        return [Unmeasured(rule="tools", reason=str(fault)[:2000])]
    return runs


async def _run(
    bench: Bench, tools: Sequence[Tool], inspection: Inspection, tests: str
) -> list[ToolRun]:
    """All tools; where the tests are too many for the time they have, those that matter."""
    if tests == "selected":
        tools = [_narrowed(tool, inspection) for tool in tools]
    runs = await run_tools(bench, tools)
    for place, (tool, run) in enumerate(zip(tools, runs, strict=True)):
        late = "timed out" in (run.before, run.after)
        if tests == "auto" and tool.is_test and late and tool.selected is None:
            narrowed = _narrowed(tool, inspection)
            if narrowed.selected is not None:
                bench.tell(f"{tool.name}: {narrowed.selected}")
                runs[place] = (await run_tools(bench, [narrowed]))[0]
    return runs


def _narrowed(tool: Tool, inspection: Inspection) -> Tool:
    chosen = select(inspection, tool.command) if tool.is_test else None
    if chosen is None:
        return tool
    return msgspec.structs.replace(tool, command=chosen.command, selected=chosen.how)


def _keep(order: Order, mended: Mended) -> None:
    """The mended change as a file: the repository itself is left as it is."""
    if mended.patch and all(not has_broken(run) for run in mended.runs):
        order.cache.mkdir(parents=True, exist_ok=True)
        path = order.cache / "mended.patch"
        path.write_text(mended.patch, encoding="utf-8", errors="surrogateescape")
        order.tell(f"mended: {path}")


def tools_of(commands: Commands, more: Mapping[str, str]) -> list[Tool]:
    """The commands that the project has, the fast ones first."""
    named = {
        "build": commands.build,
        "lint": commands.lint,
        "types": commands.types,
        **more,
        "test": commands.test,
    }
    return [
        Tool(name=name, command=command, is_test=name == "test")
        for name, command in named.items()
        if command
    ]


def judge(
    settings: CheckSettings,
    tools: Sequence[ToolRun],
    findings: Sequence[Finding],
    risk: Risk | None,
) -> tuple[Verdict, tuple[str, ...]]:
    """Block, warn or pass, and why: what the settings say counts."""
    blocking = list(_blocking(settings, tools, findings, risk))
    if blocking:
        return "block", tuple(blocking)
    warning = [
        *(f"{run.name} {run.after}" for run in tools if run.after != "passed"),
        *_counts(findings, SEVERITIES[:2]),
    ]
    if risk is not None and risk.level in ("high", "critical"):
        warning.append(f"the risk is {risk.level}")
    return ("warn", tuple(warning)) if warning else ("pass", ())


def _blocking(
    settings: CheckSettings,
    tools: Sequence[ToolRun],
    findings: Sequence[Finding],
    risk: Risk | None,
) -> Iterator[str]:
    for run in tools:
        if settings.gate == "strict" and run.after != "passed":
            yield f"{run.name} {run.after}"
        elif settings.gate == "regression_only" and has_broken(run):
            broke = f": {len(run.broke)} newly fail" if run.broke else ""
            yield f"{run.name} {run.after}{broke}"
    if settings.gate == "informational":
        return
    if settings.block_at != "never":
        yield from _counts(findings, SEVERITIES[: SEVERITIES.index(settings.block_at) + 1])
    held = LEVELS[LEVELS.index(settings.hold_at) :] if settings.hold_at != "never" else ()
    if risk is not None and risk.level in held:
        yield f"the risk is {risk.level}"


def _counts(findings: Sequence[Finding], severities: Sequence[str]) -> Iterator[str]:
    for severity in severities:
        counted = [one for one in findings if one.severity == severity and one.silenced is None]
        if counted:
            yield f"{len(counted)} {severity}{'s' if len(counted) > 1 else ''}"


def _silenced(finding: Finding, order: Order) -> Finding:
    task = order.task
    for silence in order.silences:
        paths = [place.rsplit(":", 1)[0] for place in finding.places]
        meant = silence.rule == finding.rule
        meant &= silence.task is None or matches(task.id if task else "", [silence.task])
        meant &= silence.path is None or any(matches(path, [silence.path]) for path in paths)
        if meant:
            return msgspec.structs.replace(finding, silenced=silence.reason)
    return finding


def _place(finding: Finding) -> tuple[int, str, int, str]:
    path, _, line = (finding.places[0] if finding.places else "").rpartition(":")
    number = int(line) if line.isdigit() else 0
    return SEVERITIES.index(finding.severity), path, number, finding.rule
