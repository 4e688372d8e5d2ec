"""`closeloop mcp`: agents ask closeloop about their own work, over the Model Context Protocol."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from closeloop.model.evaluation import Evaluation, Evaluations, Issue, Submission
from closeloop.model.finding import Severity
from closeloop.model.measurement import Category
from closeloop.model.record import Record
from closeloop.model.report import Level, ToolState, Verdict

if TYPE_CHECKING:
    from mcp.server import Server

    from closeloop.measuring.attempts import Measured
    from closeloop.model.finding import Finding
    from closeloop.model.report import Report

LONGEST_FAULT = 1_000
MOST_FINDINGS = 30
"""What is told goes into an agent's context."""


class Told(Record):
    """Something that a rule or a check found."""

    rule: str
    severity: Severity
    message: str
    events: tuple[int, ...] = ()
    places: tuple[str, ...] = ()


class ChangeWish(Record):
    """Which change to look at."""

    change: str | None = None
    """A range such as main..feature, a branch or a commit; the working tree when not given."""
    base: str | None = None
    staged: bool = False
    tiers: tuple[Literal["tools", "quality", "risk"], ...] = ("tools", "quality", "risk")


class ToolTold(Record):
    """One of the repository's own tools."""

    name: str
    state: ToolState
    broke: tuple[str, ...] = ()


class ChangeTold(Record):
    """Whether the change is safe to merge."""

    verdict: Verdict
    reasons: tuple[str, ...]
    tools: tuple[ToolTold, ...] = ()
    findings: tuple[Told, ...]
    risk: Level | None = None
    not_looked_at: tuple[str, ...] = ()


class TraceWish(Record):
    """Which trace to measure."""

    trace: str
    """A file or folder of recorded sessions, or the id of an attempt."""


class TraceTold(Record):
    """How an agent worked."""

    attempt: str
    iterations: int
    converged: bool | None = None
    category: Category | None = None
    findings: tuple[Told, ...]


class TracesTold(Record):
    """How agents worked."""

    traces: tuple[TraceTold, ...]


class TaskTold(Record):
    """One task's output, as it was judged."""

    task: str
    evaluation: str
    passed: bool | None
    """None: the judge abstains."""
    score: float | None = None
    abstained: str | None = None
    issues: tuple[Issue, ...]


class PlanTold(Record):
    """How good the outputs of a plan are."""

    passed: bool | None
    summary: str
    blocks: tuple[str, ...]
    """Why the work must not go on: facts, or a judge that people found reliable."""
    tasks: tuple[TaskTold, ...]


class Tool(Record):
    """What agents may call."""

    about: str
    wish: type[Record]
    answer: type[Record]
    do: Callable[[Any], Awaitable[Record]]
    reads_only: bool


def mcp() -> None:
    """Serve the tools evaluate, check_change and measure_trace to an agent, over stdio."""
    import anyio

    from closeloop.model.errors import BadInput

    try:
        from mcp.server.stdio import stdio_server

        server = made_server()
    except ImportError:
        raise BadInput("Install the extra: pip install 'closeloop[mcp]'.") from None

    async def go() -> None:
        async with stdio_server() as (reading, writing):
            await server.run(reading, writing, server.create_initialization_options())

    anyio.run(go)


def made_server() -> Server[Any]:
    """The protocol's side of it; what goes wrong is told to the agent, who may mend it."""
    from mcp import types
    from mcp.server import Server

    from closeloop import __version__
    from closeloop.cli.mcp_memory import resources
    from closeloop.model.errors import Fault, unknown
    from closeloop.model.reading import read_record

    async def listed(context: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(
            tools=[
                types.Tool(
                    name=name,
                    description=tool.about,
                    input_schema=schema_of(tool.wish),
                    output_schema=schema_of(tool.answer),
                    annotations=types.ToolAnnotations(
                        read_only_hint=tool.reads_only, destructive_hint=False
                    ),
                )
                for name, tool in TOOLS.items()
            ]
        )

    async def called(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        try:
            if params.name not in TOOLS:
                raise unknown("tool", params.name, TOOLS)
            tool = TOOLS[params.name]
            answer = await tool.do(read_record(params.arguments or {}, tool.wish, params.name))
        except Fault as fault:
            said = types.TextContent(type="text", text=str(fault)[:LONGEST_FAULT])
            return types.CallToolResult(content=[said], is_error=True)
        text = msgspec.json.encode(answer).decode()
        return types.CallToolResult(
            content=[types.TextContent(type="text", text=text)],
            structured_content=msgspec.json.decode(text),
        )

    return Server(
        "closeloop",
        version=__version__,
        on_list_tools=listed,
        on_call_tool=called,
        **resources(),
    )


@cache
def schema_of(kind: type[Record]) -> dict[str, Any]:
    """With an object at its root, as clients want it."""
    (root,), parts = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
    own = parts.pop(root["$ref"].rpartition("/")[2])
    return {**own, "$defs": parts} if parts else own


async def evaluate(wish: Submission) -> PlanTold:
    from closeloop import flow
    from closeloop.cli.config import load
    from closeloop.cli.judge import opened_bench
    from closeloop.judging.cases import whole
    from closeloop.judging.evaluate import cases_of_submission
    from closeloop.judging.keeping import evaluate_and_keep
    from closeloop.judging.trust import blocking

    found = load(Path.cwd())
    cases = cases_of_submission(whole(wish, "evaluate"))
    with flow.open_named_store(found.settings, found.root) as store:
        async with opened_bench(found, (), None, None) as bench:
            made, fault = await evaluate_and_keep(bench, cases, store)
        if fault is not None:
            return plan_told(made, [f"It could not be kept: {fault}"])
        return plan_told(made, blocking(made, store))


def plan_told(made: Evaluations, stops: list[str]) -> PlanTold:
    def told(one: Evaluation) -> TaskTold:
        return TaskTold(
            task=one.task,
            evaluation=one.id,
            passed=one.passed,
            score=one.score,
            abstained=one.abstained,
            issues=one.issues,
        )

    return PlanTold(
        passed=made.passed,
        summary=made.summary,
        blocks=tuple(stops),
        tasks=tuple(told(one) for one in made.evaluations),
    )


async def check_change(wish: ChangeWish) -> ChangeTold:
    from closeloop.changes.sources import Wanted
    from closeloop.cli.check import configuration_of, go, order_of
    from closeloop.model.errors import BadInput

    if not wish.tiers:
        raise BadInput("Name at least one tier: tools, quality or risk.")
    if wish.staged and wish.change is not None:
        raise BadInput("Give either a change or staged: each names a change.")
    wanted = Wanted(range=wish.change, base=wish.base, staged=wish.staged)
    found = configuration_of(wanted)
    report = await go(order_of(found, wanted, wish.tiers, None, coverage=False), found, None)
    return change_told(report)


def change_told(report: Report) -> ChangeTold:
    counted = [one for one in report.findings if one.silenced is None]
    return ChangeTold(
        verdict=report.verdict,
        reasons=report.reasons,
        tools=tuple(
            ToolTold(name=one.name, state=one.after, broke=one.broke[:10]) for one in report.tools
        ),
        findings=tuple(map(told, counted[:MOST_FINDINGS])),
        risk=report.risk.level if report.risk else None,
        not_looked_at=tuple(f"{one.rule}: {one.reason}" for one in report.unmeasured),
    )


async def measure_trace(wish: TraceWish) -> TracesTold:
    import anyio.to_thread

    measured = await anyio.to_thread.run_sync(measure, wish.trace)
    return TracesTold(traces=tuple(map(trace_told, measured)))


def measure(source: str) -> list[Measured]:
    """As the command of that name does."""
    from closeloop import flow
    from closeloop.cli.config import load
    from closeloop.cli.measure import chosen, read_files, unsealed
    from closeloop.measuring.attempts import book_of, measured

    found = load(Path.cwd())
    book = book_of(found.settings)
    if is_there(path := Path(source)):
        with read_files([path]) as store:
            return list(measured(store, store.attempts(), book))
    with flow.open_kept_store(found.settings, found.root) as store:
        rows = chosen(store, [source], experiment=None, every=False)
        return list(unsealed(list(measured(store, rows, book)), store.held_out.sealed()))


def is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # such as a name that is too long
        return False


def trace_told(one: Measured) -> TraceTold:
    made = one.measurement
    counted = [finding for finding in made.findings if finding.silenced is None]
    return TraceTold(
        attempt=one.row.id,
        iterations=made.whole.iterations,
        converged=made.whole.converged,
        category=made.ending.category if made.ending else None,
        findings=tuple(map(told, counted[:MOST_FINDINGS])),
    )


def told(one: Finding) -> Told:
    return Told(
        rule=one.rule,
        severity=one.severity,
        message=one.message,
        events=one.events[:6],
        places=one.places[:6],
    )


TOOLS = {
    "evaluate": Tool(
        about=(
            "Judge what came of one or more tasks before you hand it on: completeness, quality "
            "and relevance, each issue with its evidence. Mend what it names, then ask again."
        ),
        wish=Submission,
        answer=PlanTold,
        do=evaluate,
        reads_only=False,
    ),
    "check_change": Tool(
        about=(
            "Say whether the change in this repository is safe to merge: its own tests and tools "
            "before and after, code quality, risk. Call it before you say that you are done."
        ),
        wish=ChangeWish,
        answer=ChangeTold,
        do=check_change,
        reads_only=True,
    ),
    "measure_trace": Tool(
        about=(
            "Say how an agent worked, from its recorded session: iterations, loops without "
            "progress, claims without proof, each with the numbers of the events that show it."
        ),
        wish=TraceWish,
        answer=TracesTold,
        do=measure_trace,
        reads_only=True,
    ),
}
