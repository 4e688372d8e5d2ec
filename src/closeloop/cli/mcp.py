"""`closeloop mcp`: agents query closeloop about their own work, over the Model Context Protocol."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote, unquote

import msgspec

from closeloop.records.change import ReportVerdict, RiskLevel, ToolState
from closeloop.records.evaluation import Evaluation, EvaluationIssue, Evaluations, Submission
from closeloop.records.finding import EndingCategory, Severity
from closeloop.records.record import Record

if TYPE_CHECKING:
    from mcp.server import Server

    from closeloop.metrics.attempt_measuring import MeasuredAttempt
    from closeloop.records.change import ChangeReport
    from closeloop.records.finding import Finding


MAX_FAULT_CHARS = 1_000
MAX_FINDINGS = 30
"""Findings returned at most: they go into an agent's context."""


class FindingAnswer(Record):
    """A finding of a rule or check."""

    rule: str
    severity: Severity
    message: str
    events: tuple[int, ...] = ()
    places: tuple[str, ...] = ()


class ChangeArguments(Record):
    """Which change to check."""

    change: str | None = None
    """main..feature, HEAD~3 (everything since then), a branch or a commit; by default the working
    tree."""
    base: str | None = None
    staged: bool = False
    tiers: tuple[Literal["tools", "quality", "risk"], ...] = ("tools", "quality", "risk")


class ToolResultAnswer(Record):
    """The result of one of the repository's own tools."""

    name: str
    state: ToolState
    broke: tuple[str, ...] = ()


class ChangeAnswer(Record):
    """Whether the change is safe to merge."""

    verdict: ReportVerdict
    reasons: tuple[str, ...]
    tools: tuple[ToolResultAnswer, ...] = ()
    findings: tuple[FindingAnswer, ...]
    risk: RiskLevel | None = None
    not_checked: tuple[str, ...] = ()


class TraceArguments(Record):
    """Which trace to measure."""

    trace: str
    """A file or folder of recorded sessions, or the id of an attempt."""


class TraceMeasurementAnswer(Record):
    """How an agent worked."""

    attempt: str
    iterations: int
    converged: bool | None = None
    category: EndingCategory | None = None
    findings: tuple[FindingAnswer, ...]


class TracesAnswer(Record):
    """How agents worked."""

    traces: tuple[TraceMeasurementAnswer, ...]


class SubtaskAnswer(Record):
    """The evaluation of one task's output."""

    task: str
    evaluation: str
    passed: bool | None
    """None: the judge abstains."""
    score: float | None = None
    abstained: str | None = None
    issues: tuple[EvaluationIssue, ...]


class PlanAnswer(Record):
    """The evaluation of a plan's outputs."""

    plan: str | None
    """Id of the stored plan: pass it as `continues` when tasks are tried again."""
    passed: bool | None
    summary: str
    blocks: tuple[str, ...]
    """Why the work must stop: facts, or a judge that people found reliable."""
    tasks: tuple[SubtaskAnswer, ...]


class McpTool(Record):
    """A tool that agents can call."""

    about: str
    arguments: type[Record]
    answer: type[Record]
    do: Callable[[Any], Awaitable[Record]]
    reads_only: bool


def mcp() -> None:
    """Serve the tools evaluate, check_change and measure_trace to an agent, over stdio."""
    import anyio

    from closeloop.records.errors import BadInput

    try:
        from mcp.server.stdio import stdio_server

        server = build_server()
    except ImportError:
        raise BadInput("The MCP server needs an extra: pip install 'closeloop[mcp]'.") from None

    async def serve_stdio() -> None:
        async with stdio_server() as (reading, writing):
            await server.run(reading, writing, server.create_initialization_options())

    anyio.run(serve_stdio)


def build_server() -> Server[Any]:
    """Build the protocol's server; errors are returned to the agent, which may fix them."""
    from mcp import types
    from mcp.server import Server

    from closeloop import __version__
    from closeloop.records.errors import Fault, unknown_name_error
    from closeloop.text.untrusted import read_record

    async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(
            tools=[
                types.Tool(
                    name=name,
                    description=tool.about,
                    input_schema=record_schema(tool.arguments),
                    output_schema=record_schema(tool.answer),
                    annotations=types.ToolAnnotations(
                        read_only_hint=tool.reads_only, destructive_hint=False
                    ),
                )
                for name, tool in MCP_TOOLS.items()
            ]
        )

    async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        try:
            if params.name not in MCP_TOOLS:
                raise unknown_name_error("tool", params.name, MCP_TOOLS)
            tool = MCP_TOOLS[params.name]
            answer = await tool.do(read_record(params.arguments or {}, tool.arguments, params.name))
        except Fault as fault:
            fault_text = types.TextContent(type="text", text=str(fault)[:MAX_FAULT_CHARS])
            return types.CallToolResult(content=[fault_text], is_error=True)
        text = msgspec.json.encode(answer).decode()
        return types.CallToolResult(
            content=[types.TextContent(type="text", text=text)],
            structured_content=msgspec.json.decode(text),
        )

    return Server(
        "closeloop",
        version=__version__,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        **resource_handlers(),
    )


@cache
def record_schema(kind: type[Record]) -> dict[str, Any]:
    """Return a schema with an object at its root, as clients require."""
    (root,), parts = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
    root_schema = parts.pop(root["$ref"].rpartition("/")[2])
    return {**root_schema, "$defs": parts} if parts else root_schema


async def evaluate_submission(request: Submission) -> PlanAnswer:
    from closeloop.cli.config import load_project
    from closeloop.cli.judge import open_configured_panel
    from closeloop.flow import judge_submission
    from closeloop.judges.judge_calibration import list_blocking_reasons
    from closeloop.judges.judge_cases import complete_submission
    from closeloop.store.store import open_project_store

    project = load_project(Path.cwd())
    submission = complete_submission(request, "evaluate")
    with open_project_store(project.settings, project.root) as store:
        async with open_configured_panel(project, (), None, None) as panel:
            evaluations, fault = await judge_submission(panel, submission, store)
        if fault is not None:
            return answer_for_plan(evaluations, [f"It could not be saved: {fault}"])
        return answer_for_plan(evaluations, list_blocking_reasons(evaluations, store))


def answer_for_plan(evaluations: Evaluations, stops: list[str]) -> PlanAnswer:
    def answer_for_task(evaluation: Evaluation) -> SubtaskAnswer:
        return SubtaskAnswer(
            task=evaluation.task,
            evaluation=evaluation.id,
            passed=evaluation.passed,
            score=evaluation.score,
            abstained=evaluation.abstained,
            issues=evaluation.issues,
        )

    return PlanAnswer(
        plan=evaluations.plan,
        passed=evaluations.passed,
        summary=evaluations.summary,
        blocks=tuple(stops),
        tasks=tuple(answer_for_task(evaluation) for evaluation in evaluations.evaluations),
    )


async def check_wished_change(request: ChangeArguments) -> ChangeAnswer:
    from closeloop.changes.change_sides import ChangeQuery
    from closeloop.cli.check import build_check_order, load_check_configuration, run_check
    from closeloop.records.errors import BadInput

    if not request.tiers:
        raise BadInput("Give at least one tier: tools, quality or risk.")
    if request.staged and request.change is not None:
        raise BadInput("Give either change or staged, not both.")
    change_query = ChangeQuery(range=request.change, base=request.base, staged=request.staged)
    configuration = load_check_configuration(change_query)
    report = await run_check(
        build_check_order(configuration, change_query, request.tiers, None), configuration, None
    )
    return answer_for_change(report)


def answer_for_change(report: ChangeReport) -> ChangeAnswer:
    counted_findings = [finding for finding in report.findings if finding.silenced is None]
    return ChangeAnswer(
        verdict=report.verdict,
        reasons=report.reasons,
        tools=tuple(
            ToolResultAnswer(name=tool.name, state=tool.after, broke=tool.broke[:10])
            for tool in report.tools
        ),
        findings=tuple(map(answer_for_finding, counted_findings[:MAX_FINDINGS])),
        risk=report.risk.level if report.risk else None,
        not_checked=tuple(
            f"{unmeasured.rule}: {unmeasured.reason}" for unmeasured in report.unmeasured
        ),
    )


async def measure_trace(request: TraceArguments) -> TracesAnswer:
    import anyio.to_thread

    measured_attempts = await anyio.to_thread.run_sync(measure_source, request.trace)
    return TracesAnswer(traces=tuple(map(answer_for_trace, measured_attempts)))


def measure_source(source: str) -> list[MeasuredAttempt]:
    """Measure a source as `closeloop measure` does."""
    from closeloop.cli.config import load_project
    from closeloop.cli.measure import import_into_memory, select_measured_rows
    from closeloop.metrics.attempt_measuring import measure_attempts, project_rulebook
    from closeloop.store.store import open_existing_store

    project = load_project(Path.cwd())
    rulebook = project_rulebook(project.settings)
    if path_exists(path := Path(source)):
        with import_into_memory([path]) as store:
            return list(measure_attempts(store, store.list_attempts(), rulebook))
    with open_existing_store(project.settings, project.root) as store:
        rows = select_measured_rows(store, [source], experiment=None, every=False)
        return list(measure_attempts(store, rows, rulebook))


def path_exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # for example, a name that is too long
        return False


def answer_for_trace(measured: MeasuredAttempt) -> TraceMeasurementAnswer:
    measurement = measured.measurement
    counted_findings = [finding for finding in measurement.findings if finding.silenced is None]
    return TraceMeasurementAnswer(
        attempt=measured.row.id,
        iterations=measurement.whole.iterations,
        converged=measurement.whole.converged,
        category=measurement.ending.category if measurement.ending else None,
        findings=tuple(map(answer_for_finding, counted_findings[:MAX_FINDINGS])),
    )


def answer_for_finding(finding: Finding) -> FindingAnswer:
    return FindingAnswer(
        rule=finding.rule,
        severity=finding.severity,
        message=finding.message,
        events=finding.events[:6],
        places=finding.places[:6],
    )


MCP_TOOLS = {
    "evaluate": McpTool(
        about=(
            "Judge the results of one or more tasks before you deliver them: completeness, quality "
            "and relevance, each issue with its evidence. Fix the issues, then ask again."
        ),
        arguments=Submission,
        answer=PlanAnswer,
        do=evaluate_submission,
        reads_only=False,
    ),
    "check_change": McpTool(
        about=(
            "Check whether the change in this repository is safe to merge: its own tests and tools "
            "before and after, code quality, risk. Call it before you report success."
        ),
        arguments=ChangeArguments,
        answer=ChangeAnswer,
        do=check_wished_change,
        reads_only=True,
    ),
    "measure_trace": McpTool(
        about=(
            "Measure how an agent worked, from its recorded session: iterations, loops without "
            "progress, claims without proof, each with the numbers of the events that show it."
        ),
        arguments=TraceArguments,
        answer=TracesAnswer,
        do=measure_trace,
        reads_only=True,
    ),
}


# Team rules as a resource of the Model Context Protocol.

RESOURCE_URI = "closeloop://context"
MAX_TASK_CHARS = 4_000
RESOURCE_DESCRIPTION = (
    "Team rules of this repository from its reviews, and information that agents lacked here, "
    "quoted and with their sources. Read it before you start; with the request at the end of the "
    "URI, the rules that apply to it come first."
)


def resource_handlers() -> dict[str, Any]:
    """Return the handlers that a server needs to offer the resource."""
    import anyio.to_thread
    from mcp import MCPError, types

    async def list_resources(context: Any, params: Any) -> types.ListResourcesResult:
        resource = types.Resource(
            name="context",
            uri=RESOURCE_URI,
            description=RESOURCE_DESCRIPTION,
            mime_type="text/markdown",
        )
        return types.ListResourcesResult(resources=[resource])

    async def list_templates(context: Any, params: Any) -> types.ListResourceTemplatesResult:
        template = types.ResourceTemplate(
            name="context for a task",
            uri_template=f"{RESOURCE_URI}/{{task}}",
            description=RESOURCE_DESCRIPTION,
            mime_type="text/markdown",
        )
        return types.ListResourceTemplatesResult(resource_templates=[template])

    async def read_resource(
        context: Any, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        from closeloop.records.errors import Fault

        address, _, task = params.uri.removeprefix(RESOURCE_URI).partition("/")
        if address or not params.uri.startswith(RESOURCE_URI):
            problem = f"There is no resource {quote(params.uri[:200])}: read {RESOURCE_URI}."
            raise MCPError(types.INVALID_PARAMS, problem)
        try:
            text = await anyio.to_thread.run_sync(
                render_context_for_task, unquote(task)[:MAX_TASK_CHARS]
            )
        except Fault as fault:
            raise MCPError(types.INTERNAL_ERROR, str(fault)) from None
        content = types.TextResourceContents(uri=params.uri, mime_type="text/markdown", text=text)
        return types.ReadResourceResult(contents=[content])

    return {
        "on_list_resources": list_resources,
        "on_list_resource_templates": list_templates,
        "on_read_resource": read_resource,
    }


def render_context_for_task(task: str) -> str:
    """Return the context that `closeloop learn context` prints."""
    from closeloop.cli.config import open_review_context
    from closeloop.reviews.agent_context import UpcomingWork, give_context

    with open_review_context(needed=False) as review_context:
        work = UpcomingWork(repo=review_context.repo, text=task, names=(str(review_context.root),))
        agent_context = give_context(
            review_context.rule_index, work, review_context.settings.memory, datetime.now(UTC)
        )
    return agent_context.text or "No rule is active here yet.\n"
