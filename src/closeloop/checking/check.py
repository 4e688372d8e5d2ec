"""Validate a change in three tiers: the repository's tools, code quality, risk. One report.

    sides ──► inspection ──► tier 2: checks of quality, names, scope ──┐
      │                 └──► tier 3: risk, by the repository's past ───┼──► verdict ──► Report
      └──► workspaces ─────► tier 1: tools before and after ───────────┘

A tier that cannot look says why, and hides none of the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from closeloop import plugins
from closeloop.changes.index import open_index
from closeloop.changes.inspect import inspect
from closeloop.changes.risk import assess
from closeloop.changes.risk.coverage import Coverage, find_coverage, read_coverage
from closeloop.changes.risk.fit import fit
from closeloop.changes.risk.history import read_history
from closeloop.changes.sources import Sides, Wanted, open_sides
from closeloop.checking.absent import absent
from closeloop.checking.bench import Bench, needs_setup
from closeloop.checking.comparing import ToolComparison, has_broken, run_tools
from closeloop.checking.computing import compute
from closeloop.checking.fixing import Fixer, Mended, mend
from closeloop.checking.measured import measure
from closeloop.checking.prepared import prepare
from closeloop.checking.reviewing import review
from closeloop.checking.selection import select
from closeloop.checking.tools import Tool
from closeloop.checking.verdict import SEVERITIES, judge
from closeloop.model.errors import BadInput, Fault, MachineFailed
from closeloop.model.finding import Finding, Unmeasured
from closeloop.model.globs import matches
from closeloop.model.inspection import Inspection
from closeloop.model.patch_redaction import redact_change
from closeloop.model.protocols import Check, Model
from closeloop.model.record import Record, digest
from closeloop.model.report import Mending, Report, Risk, Tier, ToolRun
from closeloop.model.settings import CheckSettings, Commands, Silence
from closeloop.model.task import Task
from closeloop.runs.workspaces import Unreadable, Workspaces
from closeloop.traces.redact import redact

TIERS: tuple[Tier, ...] = ("tools", "quality", "risk")


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
    coverage: bool = False
    """Whether the tests are run once more to see which lines they reach."""
    tell: Callable[[str], None] = lambda text: None


class Tools(Record):
    """What came of the first tier."""

    runs: tuple[ToolRun, ...] = ()
    mending: Mending | None = None
    unmeasured: tuple[Unmeasured, ...] = ()
    failed: bool = False
    """Whether there are tools, and none of them could be run."""


async def check(
    order: Order,
    workspaces: Workspaces,
    fixer: Fixer | None = None,
    reviewer: Model | Unmeasured | None = None,
) -> Report:
    """All tiers that are asked for; BadInput only where there is no change to look at."""
    began = time.monotonic()
    with open_sides(order.root, order.wanted) as sides:
        order.tell("reading the change")
        inspection = await compute(_inspect, order, sides)
        found: list[Finding] = []
        unmeasured: list[Unmeasured] = []
        risk, tools = None, Tools()
        if "quality" in order.tiers:
            for said in await _quality(order, inspection, reviewer):
                found.append(said) if isinstance(said, Finding) else unmeasured.append(said)
        bench = await _bench(order, sides, workspaces)
        if "risk" in order.tiers:
            order.tell("risk")
            coverage = await _coverage(order, bench)
            judged = await compute(_judge, order, inspection, coverage)
            if isinstance(judged, Risk):
                risk = judged
            else:
                unmeasured.append(judged)
        if "tools" in order.tiers:
            tools = await _tools(order, inspection, bench, fixer)
        findings = sorted((_silenced(one, order) for one in found), key=_place)
        judged_tools = None if tools.failed else tools.runs
        judgement = judge(order.settings, judged_tools, findings, risk)
        report = Report(
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
            unmeasured=(*unmeasured, *tools.unmeasured),
            at=datetime.now(UTC),
            seconds=round(time.monotonic() - began, 3),
        )
        return redact(report)[0]


def _inspect(order: Order, sides: Sides) -> Inspection:
    index = open_index(sides, order.cache, order.settings)
    return inspect(sides, index, task=order.task, request=order.request, settings=order.settings)


async def _quality(
    order: Order, inspection: Inspection, reviewer: Model | Unmeasured | None
) -> list[Finding | Unmeasured]:
    order.tell("code quality")
    said = await compute(look, inspection)
    if reviewer is None:
        return said
    order.tell("a model reviews the change")
    return [*said, *await review(inspection, said, reviewer, order.settings.timeout)]


def look(inspection: Inspection) -> list[Finding | Unmeasured]:
    """What every check says; one that raises is told as not having looked."""
    said: list[Finding | Unmeasured] = []
    for name in sorted(plugins.known("checks")):
        try:
            one: Check = plugins.find("checks", name)
            said += one.check(inspection)
        except Exception as error:  # a plug-in may raise anything; the others still look
            reason = f"it raised {type(error).__name__}: {error}"
            said.append(Unmeasured(rule=name, reason=reason[:300]))
    return [*said, *_unparsed(inspection)]


def _unparsed(inspection: Inspection) -> Iterator[Unmeasured]:
    """Changed files of which the checks saw only a part."""
    places = []
    for file in inspection.files:
        module = inspection.modules.get(("after", file.path))
        if module is not None and module.broken_lines:
            places.append(f"{file.path}:{module.broken_lines[0]}")
        elif module is not None and module.note:
            places.append(f"{file.path} ({module.note})")
    if places:
        more = f" and {len(places) - 3} more" if len(places) > 3 else ""
        told = f"{', '.join(places[:3])}{more} cannot be parsed, so only the rest was looked at"
        yield Unmeasured(rule="syntax", reason=told)


def _judge(
    order: Order, inspection: Inspection, coverage: Coverage | Unmeasured | None
) -> Risk | Unmeasured:
    sides: Sides = inspection.sides
    try:
        history = read_history(sides.root, sides.base, order.cache)
        if coverage is None and (path := find_coverage(sides.root)) is not None:
            coverage = _read_coverage(path, sides.root)
        return assess(inspection, history=history, model=fit(history).model, coverage=coverage)
    except (Fault, OSError) as fault:
        return Unmeasured(rule="risk", reason=str(fault))


def _read_coverage(path: Path, root: Path) -> Coverage | Unmeasured:
    """Coverage data that lies about; a file that cannot be read hides no risk."""
    try:
        return read_coverage(path, root)
    except BadInput as fault:
        return Unmeasured(rule="coverage", reason=str(fault))


async def _bench(
    order: Order, sides: Sides, workspaces: Workspaces
) -> Bench | Unmeasured | MachineFailed | None:
    """Where tools can be run, if any are to be; or why they cannot."""
    tools = "tools" in order.tiers and tools_of(order.commands, order.settings.commands)
    if not tools and not order.coverage:
        return None
    if sides.base is None:
        return Unmeasured(rule="tools", reason="there is no commit before the change")
    setup, unready = order.commands.setup, ""
    try:
        order.tell("preparing the base")
        try:
            before = after = await prepare(workspaces, sides, "before", setup, order.cache)
        except BadInput as fault:  # of the base: with the change, it may be set up all the same
            unready = str(fault)
            before = after = await workspaces.base(str(sides.root), sides.base)
        if setup and sides.head and needs_setup(file.path for file in sides.change.files):
            order.tell("preparing the change")
            with suppress(BadInput):  # then every tool says so, with what setup prints
                after = await prepare(workspaces, sides, "after", setup, order.cache)
    except BadInput as fault:
        return Unmeasured(rule="tools", reason=_sentence(fault))
    except (Fault, OSError) as fault:
        return MachineFailed(_sentence(fault))
    return Bench(
        workspaces=workspaces,
        bases={"before": before, "after": after},
        sides=sides,
        setup=setup,
        unready={"before": unready} if unready else {},
        bare=frozenset({"after"} if unready and after is before else ()),
        timeout=order.settings.timeout,
        tell=order.tell,
    )


async def _coverage(
    order: Order, bench: Bench | Unmeasured | MachineFailed | None
) -> Coverage | Unmeasured | None:
    """Measured where that was asked for; None leaves it to data that lies about."""
    if not order.coverage:
        return None
    if not isinstance(bench, Bench):
        reason = bench.reason if isinstance(bench, Unmeasured) else str(bench or "no command")
        return Unmeasured(rule="coverage", reason=reason)
    return await measure(bench, order.commands.test)


async def _tools(
    order: Order,
    inspection: Inspection,
    bench: Bench | Unmeasured | MachineFailed | None,
    fixer: Fixer | None,
) -> Tools:
    tools = tools_of(order.commands, order.settings.commands)
    known = bench is not None
    if bench is None:
        reason = "no command is known: name some in [commands], or let `closeloop init` find them"
        bench = Unmeasured(rule="tools", reason=reason)
    if isinstance(bench, Unmeasured):
        return Tools(unmeasured=(bench,), failed=known)
    if isinstance(bench, MachineFailed):
        return _unexamined(tools, str(bench))
    lacking = tuple(Unmeasured(rule="tools", reason=reason) for reason in absent(bench.sides))
    try:
        tools, comparisons = await _run(bench, tools, inspection, order.settings.tests)
    except (Fault, OSError) as fault:
        return _unexamined(tools, _sentence(fault))
    runs = tuple(one.run for one in comparisons)
    if runs and all(run.before == run.after == "not set up" for run in runs):
        unrun = Unmeasured(rule="tools", reason=_sentence(BadInput(runs[0].output)))
        return Tools(unmeasured=(*lacking, unrun), failed=True)
    made = Tools(runs=runs, unmeasured=lacking)
    if fixer is None or not any(has_broken(run) for run in runs):
        return made
    try:
        mended = await mend(bench, tools, comparisons, fixer, order.settings.fix_cycles)
        return msgspec.structs.replace(made, mending=_kept(order, mended))
    except (Fault, OSError, Unreadable) as fault:
        unmended = Unmeasured(rule="mending", reason=_sentence(fault))
        return msgspec.structs.replace(made, unmeasured=(*lacking, unmended))


def _unexamined(tools: Sequence[Tool], reason: str) -> Tools:
    """Tools that the machine kept from saying anything: the gate stays closed."""
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
    return Tools(runs=tuple(runs), unmeasured=(Unmeasured(rule="tools", reason=reason),))


async def _run(
    bench: Bench, tools: list[Tool], inspection: Inspection, tests: str
) -> tuple[list[Tool], list[ToolComparison]]:
    """All tools; where the tests are too many for the time they have, those that matter.

    Tests that are too slow with the change alone are not narrowed: it made them slow.
    """
    if tests == "selected":
        tools = [await compute(_narrowed, tool, inspection) for tool in tools]
    comparisons = await run_tools(bench, tools)
    for place, (tool, one) in enumerate(zip(tools, comparisons, strict=True)):
        late = one.run.before == "timed out" and one.run.after != "passed"
        if tests == "auto" and tool.is_test and late and tool.selected is None:
            narrowed = await compute(_narrowed, tool, inspection)
            if narrowed.selected is not None:
                bench.tell(f"{tool.name}: {narrowed.selected}")
                tools[place] = narrowed
                (comparisons[place],) = await run_tools(bench, [narrowed])
    return tools, comparisons


def _narrowed(tool: Tool, inspection: Inspection) -> Tool:
    chosen = select(inspection, tool.command) if tool.is_test else None
    if chosen is None:
        return tool
    return msgspec.structs.replace(
        tool, command=chosen.command, command_before=chosen.command_before, selected=chosen.how
    )


def _kept(order: Order, mended: Mended) -> Mending:
    """What mends the change as a file: the repository itself is left as it is."""
    if not mended.patch or mended.mending.left:
        return mended.mending
    content = mended.patch.encode("utf-8", "surrogateescape")
    path = order.cache / "mended" / f"{digest(content)[:16]}.patch"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return msgspec.structs.replace(mended.mending, patch=str(path))


def _sentence(fault: Fault | OSError | Unreadable) -> str:
    """What went wrong, with the last thing that a program said of it."""
    first, *said = [line.strip() for line in str(fault).splitlines() if line.strip()] or [""]
    return f"{first} … {said[-1][:300]}" if said else first[:500]


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
