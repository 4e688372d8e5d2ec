"""`closeloop orchestrate`: split a request into subtasks, run sub-agents, judge, and retry."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from closeloop.cli.console import JsonFlag, make_visible
from closeloop.records.evaluation import CRITERIA
from closeloop.records.record import Record
from closeloop.records.settings import OrchestrateSettings, Settings
from closeloop.text.wording import (
    count_with_noun,
    format_dollars,
    format_percent_range,
    truncate_at_word,
)

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from closeloop.records.attempt import Usage
    from closeloop.records.estimate import Rate
    from closeloop.records.orchestration import (
        Orchestration,
        OrchestrationHistory,
        OrchestrationPlan,
        OrchestrationProgress,
        OrchestrationRow,
        PlanGrade,
        PlanTrend,
        SubtaskTry,
    )
    from closeloop.store import Store


# Plans of orchestrated requests: `closeloop list plans` and `closeloop show PLAN`.


GRADE_LETTERS = "ABCF"
MAX_REASON_CHARS = 300
MAX_PROBLEM_CHARS = 120
MAX_OUTPUT_LINES = 6
PASSED_WORDS = {True: "pass", False: "fail", None: "no verdict"}
PASSED_COLOURS = {True: "green", False: "red", None: "yellow"}


def plans(*, limit: int = 20, over_time: bool = False, json: JsonFlag = False) -> None:
    """List plans of orchestrated requests, newest first. `closeloop show PLAN` shows one.

    Parameters
    ----------
    limit
        Maximum number of plans; with --over-time, of days.
    over_time
        Print grades of plans and judges' scores by day instead.
    """
    from closeloop.cli.config import load_project
    from closeloop.cli.console import print_json, print_line, print_parts, require_positive_flags
    from closeloop.store.store import open_existing_store

    require_positive_flags(limit=limit)
    project = load_project(Path.cwd())
    with open_existing_store(project.settings, project.root) as store:
        if over_time:
            plan_trend = store.plans.load_trend(limit)
            print_json(plan_trend) if json else print_parts(*render_plan_trend(plan_trend))
            return
        rows = store.plans.list_plans(limit)
        count = store.plans.count_plans()
        running = store.plans.running_plan_ids()
    if json:
        print_json(rows, count)
        return
    print_parts(plans_table(rows, running))
    if count > len(rows):
        print_line(f"{len(rows)} of {count:,} shown: --limit shows more.")


def show_plan(name: str, store: Store, *, diff: bool, json: bool) -> int:
    """Print one plan with its subtasks, tries and rates, or only its merged change."""
    from closeloop.cli.console import print_error, print_json, print_parts
    from closeloop.text.redaction import redact_new_secrets, redact_patch

    history = store.plans.load_story(name)
    grade = store.plans.load_grade(history.plan.id) if history.ending else None
    attempt = history.ending.attempt if history.ending else None
    change = store.load_exact_change(attempt) if attempt else None
    merged_patch = change.patch if change else ""
    if diff and (refusal := refuse_patch(history, merged_patch)) is not None:
        print_error(refusal)
        return 1
    if diff:
        print(redact_new_secrets(merged_patch), end="")  # noqa: T201 - to be applied
    elif json:
        print_json(plan_to_map(history, grade) | {"patch": redact_patch(merged_patch)})
    else:
        print_parts(*render_plan(history, grade))
    return 0


def refuse_patch(history: OrchestrationHistory, merged_patch: str) -> str | None:
    """Return why a plan has no change to apply; None if it has one."""
    ending, name = history.ending, history.plan.id
    if ending is None:
        return (
            f"Plan {name} has not finished: `closeloop orchestrate --resume {name}` continues it."
        )
    if ending.passed is False:
        reason = truncate_at_word(ending.summary, MAX_REASON_CHARS).rstrip(".")
        return f"Plan {name} failed, so there is no change to apply: {reason}."
    if ending.attempt is None or (history.plan.handed_in and not merged_patch):
        return f"Plan {name} has no change here: the tool that ran the plan has it."
    return None


def plan_to_map(history: OrchestrationHistory, grade: PlanGrade | None) -> dict[str, Any]:
    """Convert a plan to a map for JSON output."""
    from closeloop.cli.console import record_to_map
    from closeloop.orchestration.plan_execution import measure_plan_rates

    return {
        **record_to_map(history),
        "rates": record_to_map(measure_plan_rates(history)),
        "grade": None if grade is None else record_to_map(grade),
    }


def plans_table(rows: list[OrchestrationRow], under_way: Collection[str]) -> RenderableType:
    """Build a table with one row per plan."""
    from rich.table import Table
    from rich.text import Text

    if not rows:
        return Text("No plans yet: `closeloop orchestrate` creates one.")
    table = Table(box=None)
    for name in ("plan", "started", "", "grade", "score", "subtasks", "tries", "cost", "request"):
        table.add_column(name, no_wrap=name != "request")
    for row in rows:
        state, passed = PASSED_WORDS[row.passed] if row.ended else "unfinished", row.passed
        if row.id in under_way:
            state, passed = "running", None
        table.add_row(
            row.id,
            f"{row.at:%Y-%m-%d %H:%M}",
            Text(state, style=PASSED_COLOURS[passed]),
            (row.grade and row.grade.letter) or "–",
            format_score(row.grade.score if row.grade else None),
            str(row.tasks),
            str(row.tries),
            format_plan_cost(row.cost),
            Text(truncate_at_word(make_visible(row.request), 80)),
        )
    return table


def render_plan(history: OrchestrationHistory, grade: PlanGrade | None) -> Iterator[RenderableType]:
    """Render one plan: its verdict and grade, its tries, its rates, its cost."""
    from rich.text import Text

    from closeloop.orchestration.plan_execution import measure_plan_rates

    ending = history.ending
    title = Text(f"plan {history.plan.id}  ", style="bold")
    passed = ending.passed if ending else None
    title.append(PASSED_WORDS[passed] if ending else "unfinished", style=PASSED_COLOURS[passed])
    if grade is not None and grade.letter is not None:
        scores = f", mean score {format_score(grade.score)}, weakest {format_score(grade.weakest)}"
        title.append(f"  grade {grade.letter}{scores if grade.weakest is not None else ''}")
    yield title
    yield Text(f"  {truncate_at_word(make_visible(history.plan.request), 200)}", style="dim")
    yield plan_tries_table(history)
    for task, reason in (ending.not_begun if ending else {}).items():
        yield Text(f"{task} was not started: {make_visible(reason)}", style="yellow")
    yield from render_whole_failures(history)
    if ending and ending.held:
        yield Text(f"stopped: {make_visible(ending.held)}", style="yellow")
    plan_rates = measure_plan_rates(history)
    yield Text(
        f"first try {format_share(plan_rates.first_try)} · after feedback "
        f"{format_share(plan_rates.after_feedback)} · in the end "
        f"{format_share(plan_rates.final)}"
    )
    retry_text = (
        f"; retries {format_plan_usage(plan_rates.retry_usage)}, "
        f"{plan_rates.retry_seconds or 0:.1f} s"
    )
    yield Text(
        "work and judging"
        f" {format_plan_usage(plan_rates.usage)}{retry_text if plan_rates.retry_seconds else ''}",
        style="dim",
    )
    planning = history.plan.planning
    if planning is not None:
        yield Text(
            f"planned by {make_visible(planning.model)}: {format_plan_usage(planning.usage)}",
            style="dim",
        )
    if ending is None and not history.plan.handed_in:
        yield Text(f"closeloop orchestrate --resume {history.plan.id}   # continues it")
    elif ending is not None and ending.attempt:
        if ending.passed is not False:
            command = f"closeloop show {history.plan.id} --diff   # the merged change"
            yield Text(command, style="dim")
        follow_up = (
            ("show", "as an attempt")
            if history.plan.handed_in
            else ("measure", "how it was handed on")
        )
        yield Text(f"closeloop {follow_up[0]} {ending.attempt}   # {follow_up[1]}", style="dim")


def render_whole_failures(history: OrchestrationHistory) -> Iterator[RenderableType]:
    """Render why all changes together fail although tasks passed."""
    from rich.text import Text

    from closeloop.orchestration.plan_execution import describe_failing_checks

    if history.ending is None:
        return
    for failure in describe_failing_checks(history.ending.checks, history.ending.broken_by):
        first, *output = make_visible(failure).splitlines()
        yield Text(f"merged result: {first}", style="red")
        yield from (Text(f"  {line}", style="dim") for line in output[-MAX_OUTPUT_LINES:])


def plan_tries_table(history: OrchestrationHistory) -> Table:
    """Build a table with one row per try, by task."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None)
    for name in ("subtask", "try", "", "score", "variant", "seconds", "cost", "issues"):
        table.add_column(name, no_wrap=name != "issues")
    for task in history.plan.tasks:
        for subtask_try in (
            subtask_try for subtask_try in history.tries if subtask_try.execution.task == task.id
        ):
            passed = subtask_try.assessment.passed if subtask_try.assessment else None
            score = subtask_try.assessment.score if subtask_try.assessment else None
            table.add_row(
                subtask_try.execution.task,
                str(subtask_try.execution.number),
                Text(PASSED_WORDS[passed], style=PASSED_COLOURS[passed]),
                format_score(score),
                Text(make_visible(subtask_try.execution.variant)),
                "–"
                if subtask_try.execution.seconds is None
                else f"{subtask_try.execution.seconds:.1f}",
                format_plan_cost(subtask_try.execution.usage.cost),
                Text(describe_problem(subtask_try), style="dim"),
            )
    return table


def describe_problem(subtask_try: SubtaskTry) -> str:
    """Return the problem of a try, truncated."""
    if subtask_try.assessment is None:
        return "not judged yet"
    texts = [issue.text for issue in subtask_try.assessment.issues] or [
        subtask_try.assessment.why or ""
    ]
    first = truncate_at_word(make_visible(texts[0]), MAX_PROBLEM_CHARS)
    more_text = f" (and {len(texts) - 1} more)" if len(texts) > 1 else ""
    ignored = " · feedback ignored" if subtask_try.assessment.ignored else ""
    return first + more_text + ignored


def render_plan_trend(trend: PlanTrend) -> Iterator[RenderableType]:
    """Render by day the plans that ended by grade, then the tries by version of the judge."""
    from rich.table import Table
    from rich.text import Text

    if not trend.quality:
        yield Text(
            "No plan was judged yet: `closeloop orchestrate` and `closeloop judge -` judge plans."
        )
        return
    totals = trend.totals
    yield Text(
        f"plans passed {format_rate(totals.passed)} · subtasks: first try "
        f"{format_rate(totals.first_try)} · after feedback "
        f"{format_rate(totals.after_feedback)} · in the end {format_rate(totals.final)}"
    )
    yield Text()
    grades = Table(box=None)
    for name in ("plans ended", "", "pass", *GRADE_LETTERS):
        grades.add_column(name, no_wrap=True)
    for day in trend.grades:
        counts = [str(day.grades.get(letter, 0)) for letter in GRADE_LETTERS]
        grades.add_row(f"{day.day:%Y-%m-%d}", str(day.plans), format_rate(day.passed), *counts)
    yield grades
    quality = Table(box=None)
    for name in ("tries judged", "", "pass", "first tries", "score", *CRITERIA, "judge"):
        quality.add_column(name, no_wrap=True)
    for quality_row in trend.quality:
        quality.add_row(
            f"{quality_row.day:%Y-%m-%d}",
            str(quality_row.judged),
            format_rate(quality_row.passed),
            format_rate(quality_row.first_try),
            *map(
                format_score,
                (
                    quality_row.score,
                    quality_row.completeness,
                    quality_row.quality,
                    quality_row.relevance,
                ),
            ),
            quality_row.judge or "–",
        )
    yield Text()
    yield quality
    yield Text(
        "Each row shows one version of the judge: scores of different versions are not comparable.",
        "dim",
    )


def format_score(score: float | None) -> str:
    return "–" if score is None else f"{score:.2f}"


def format_rate(rate: Rate | None) -> str:
    return (
        "–"
        if rate is None
        else f"{format_share(rate)} ({format_percent_range(rate.low, rate.high)})"
    )


def format_share(rate: Rate | None) -> str:
    return "–" if rate is None else f"{rate.hits:g} of {rate.of}"


def format_plan_usage(usage: Usage) -> str:
    from closeloop.records.attempt import count_prompt_tokens

    sent = count_with_noun(count_prompt_tokens(usage) or 0, "token")
    return f"{sent} in, {usage.output_tokens or 0:,} out, {format_plan_cost(usage.cost)}"


def format_plan_cost(cost: float | None) -> str:
    return "–" if cost is None else format_dollars(cost)


AGENT_CONFIG_NAME = "agent_config.json"


class OrchestrateOptions(Record):
    """The options of the command, resolved."""

    settings: Settings
    """With the thresholds for plans applied."""
    root: Path
    orchestrate_settings: OrchestrateSettings
    repo: Path | None
    what: str | OrchestrationPlan | Orchestration
    json: bool


def orchestrate(  # noqa: PLR0913 - one parameter for each flag
    plan: Annotated[Path | None, Parameter(allow_leading_hyphen=True)] = None,
    /,
    *,
    request: str | None = None,
    agent: str | None = None,
    model: str | None = None,
    planner: str | None = None,
    judge: list[str] | None = None,
    resume: str | None = None,
    json: JsonFlag = False,
) -> int:
    """Run a plan with sub-agents; every output is judged, and failing subtasks are retried.

    Finished subtasks are saved: stop at any time, and continue with --resume.
    Exit code 0 when every subtask passed, else 1.

    Parameters
    ----------
    plan
        A JSON file with `request` and `plan`, a list of subtasks; `-` is standard input.
    request
        The request, instead of a plan: a model plans it.
    agent
        The agent for subtasks that name no variant; builtin by default when --model is given.
    model
        The model of the sub-agents.
        A name of closeloop.toml, openai/, anthropic/ or gemini/NAME, or scripted:FILE.
    planner
        The model that plans; by default that of the sub-agents.
    judge
        A model that judges; several form a panel. By default those of closeloop.toml.
    resume
        Continue a plan, given its id or the beginning of it.
    """
    from closeloop.cli.config import find_repository_root, load_project
    from closeloop.cli.console import refuse_option
    from closeloop.records.errors import BadInput

    refuse_option(str(plan or "-"), "orchestrate")
    if sum(option is not None for option in (plan, request, resume)) != 1:
        raise BadInput("Give one of these: a PLAN file, --request, or --resume.")
    if resume is not None and (agent or model):
        raise BadInput("A resumed plan keeps its agents: leave out --agent and --model.")
    project = load_project(Path.cwd())
    orchestrate_settings = load_orchestrate_settings(project.settings, project.root)
    settings, orchestrate_settings = choose_workers(
        project.settings, orchestrate_settings, agent, model
    )
    saved_plan = (
        load_saved_plan(resume, project.settings, project.root) if resume is not None else None
    )
    if saved_plan is not None:
        settings, orchestrate_settings = restore_workers_and_judges(
            saved_plan, settings, orchestrate_settings
        )
    orchestrate_settings = choose_planner_and_judges(settings, orchestrate_settings, planner, judge)
    options = OrchestrateOptions(
        settings=apply_thresholds(settings, orchestrate_settings),
        root=project.root,
        orchestrate_settings=orchestrate_settings,
        repo=find_repository_root(project.root),
        what=read_plan_or_request(plan, request, settings) if saved_plan is None else saved_plan,
        json=json,
    )
    return run_and_print_plan(options)


def run_and_print_plan(options: OrchestrateOptions) -> int:
    """Run the plan and print the result; return the exit code."""
    import anyio

    from closeloop.cli.console import print_json, print_parts, print_warning

    begun_plans: list[str] = []
    try:
        history, grade = anyio.run(run_orchestration, options, begun_plans.append)
    except KeyboardInterrupt:
        resume_hint = (
            f"continue with `closeloop orchestrate --resume {begun_plans[0]}`"
            if begun_plans
            else "no subtask was started"
        )
        print_warning(f"stopped: {resume_hint}.")
        return 130
    print_json(plan_to_map(history, grade)) if options.json else print_parts(
        *render_plan(history, grade)
    )
    return 0 if history.ending is not None and history.ending.passed else 1


def read_plan_or_request(
    plan: Path | None, request: str | None, settings: Settings
) -> str | OrchestrationPlan:
    """Return the request to plan, or the plan."""
    from closeloop.cli.console import read_file_content, require_utf8_text
    from closeloop.orchestration.plan_request import MAX_BLUEPRINT_BYTES, read_blueprint
    from closeloop.records.errors import BadInput

    if plan is None:
        if not (request or "").strip():
            raise BadInput("--request is empty: describe what the agents should do.")
        require_utf8_text(request or "", "--request")
        return request or ""
    max_bytes = MAX_BLUEPRINT_BYTES + 1
    content = (
        sys.stdin.buffer.read(max_bytes) if str(plan) == "-" else read_file_content(plan, max_bytes)
    )
    return read_blueprint(content, str(plan), settings.variants)


def load_orchestrate_settings(settings: Settings, root: Path) -> OrchestrateSettings:
    """Load `[orchestrate]`, with the overrides of `agent_config.json` beside it."""
    from closeloop.cli.config import MAX_CONFIG_BYTES
    from closeloop.cli.console import read_file_content
    from closeloop.records.errors import BadInput
    from closeloop.text.untrusted import parse_json, read_changed_record

    orchestrate_settings, file = settings.orchestrate, root / AGENT_CONFIG_NAME
    if file.is_file():
        overrides = parse_json(read_file_content(file, MAX_CONFIG_BYTES), str(file))
        if not isinstance(overrides, dict):
            raise BadInput(f"{file} must be an object with the keys of [orchestrate].")
        orchestrate_settings = read_changed_record(orchestrate_settings, overrides, str(file), "")
    require_sensible_settings(orchestrate_settings)
    return orchestrate_settings


def require_sensible_settings(orchestrate_settings: OrchestrateSettings) -> None:
    from closeloop.records.errors import BadInput

    if orchestrate_settings.max_retries < 0 or orchestrate_settings.concurrency < 1:
        raise BadInput("orchestrate: max_retries must not be negative, concurrency at least 1.")
    for name in ("seconds", "budget"):
        value = getattr(orchestrate_settings, name)
        if value is not None and not value > 0:
            raise BadInput(f"orchestrate: {name} must be more than 0.")


def choose_workers(
    settings: Settings,
    orchestrate_settings: OrchestrateSettings,
    agent: str | None,
    model: str | None,
) -> tuple[Settings, OrchestrateSettings]:
    """Choose the workers: by flags, by the settings, else the first variant."""
    from msgspec.structs import replace

    from closeloop.cli.run import apply_run_flags
    from closeloop.records.errors import unknown_name_error

    if agent or model:
        new_variants = apply_run_flags(
            settings, agents=[agent] if agent else None, models=[model] if model else None
        ).variants
        settings = replace(settings, variants=settings.variants | new_variants)
        return settings, replace(orchestrate_settings, workers=tuple(new_variants))
    workers = orchestrate_settings.workers or tuple(settings.variants)[:1]
    for name in workers:
        if name not in settings.variants:
            raise unknown_name_error("variant", name, settings.variants)
    return settings, replace(orchestrate_settings, workers=workers)


def load_saved_plan(name: str, settings: Settings, root: Path) -> Orchestration:
    from closeloop.records.errors import BadInput
    from closeloop.store.store import open_project_store

    with open_project_store(settings, root) as store:
        plan = store.plans.load_story(name).plan
    if plan.handed_in:
        raise BadInput(
            f"Plan {plan.id} was submitted from outside: its tool must submit the next "
            f'results with "continues": "{plan.id}".'
        )
    return plan


def restore_workers_and_judges(
    plan: Orchestration, settings: Settings, orchestrate_settings: OrchestrateSettings
) -> tuple[Settings, OrchestrateSettings]:
    """Return the settings with the workers and judges with which the plan started."""
    from msgspec.structs import replace

    if plan.written is not None and plan.worker not in settings.variants:
        settings = replace(settings, variants=settings.variants | {plan.worker: plan.written})
    return settings, replace(orchestrate_settings, workers=(plan.worker,), judges=plan.judges)


def choose_planner_and_judges(
    settings: Settings,
    orchestrate_settings: OrchestrateSettings,
    planner: str | None,
    judges: list[str] | None,
) -> OrchestrateSettings:
    """Set the planner and the judges, if given."""
    from msgspec.structs import replace

    from closeloop.records.errors import BadInput

    if not orchestrate_settings.workers:
        raise BadInput(
            "There is no agent to run: choose a model with --model openai/NAME, or "
            "add a [variants.NAME] section to closeloop.toml."
        )
    worker_model = settings.variants[orchestrate_settings.workers[0]].model
    judge_variant = settings.variants.get(settings.judge.variant or "")
    fallback_judge = judge_variant.model if judge_variant and judge_variant.model else worker_model
    judge_models = tuple(judges or ()) or orchestrate_settings.judges or settings.judge.models
    return replace(
        orchestrate_settings,
        planner=planner or orchestrate_settings.planner or worker_model,
        judges=judge_models or ((fallback_judge,) if fallback_judge else ()),
    )


def apply_thresholds(settings: Settings, orchestrate_settings: OrchestrateSettings) -> Settings:
    """Return the settings with the thresholds for plans."""
    from msgspec.structs import replace

    from closeloop.judges.judge_panel import merge_thresholds

    judge_settings = settings.judge
    return replace(
        settings,
        judge=replace(judge_settings, **merge_thresholds(judge_settings, orchestrate_settings)),
    )


async def run_orchestration(
    options: OrchestrateOptions, on_begin: Callable[[str], None]
) -> tuple[OrchestrationHistory, PlanGrade | None]:
    """Open resources, plan, and run the plan; `on_begin` gets the plan's id early."""
    from closeloop.attempts.experiment_run import open_run_context
    from closeloop.attempts.run_resources import require_prices
    from closeloop.cli.console import print_warning
    from closeloop.cli.run import warn_of_sandbox_gaps
    from closeloop.judges.agent_judge import JudgeResources, with_judge_agents
    from closeloop.judges.judge_panel import open_judge_panel
    from closeloop.metrics.attempt_measuring import project_rulebook
    from closeloop.orchestration import orchestration_run
    from closeloop.records.orchestration import Orchestration
    from closeloop.reviews.agent_prompts import open_context_provider

    names = list_needed_variants(options)
    async with open_run_context(options.settings, options.root, names, os.environ) as run_context:
        run_resources, store = run_context.tools, run_context.store
        rules = project_rulebook(options.settings)
        briefing = open_context_provider(store, options.settings, options.root, os.environ)
        warn_of_sandbox_gaps(run_resources.workspaces)
        require_prices(options.orchestrate_settings.budget, run_resources.resolved_variants)
        panel = open_judge_panel(
            options.settings,
            run_resources.gateway,
            options.root,
            models=options.orchestrate_settings.judges,
        )
        looking_resources = JudgeResources(
            gateway=run_resources.gateway, workspaces=run_resources.workspaces, root=options.root
        )
        orchestration_context = orchestration_run.OrchestrationContext(
            store=store,
            tools=run_resources,
            judge_panel=with_judge_agents(panel, options.settings, looking_resources),
            rules=rules,
            orchestrate_settings=options.orchestrate_settings,
            owner=run_context.owner,
            briefing=briefing,
            report_progress=(lambda progress: None) if options.json else print_plan_step,
        )
        plan = options.what
        if not isinstance(plan, Orchestration):
            warn_of_uncommitted_files(options.repo)
            plan = await orchestration_run.begin_plan(plan, orchestration_context, options.repo)
        on_begin(plan.id)
        task_count = len(plan.tasks)
        print_warning(
            f"plan {plan.id}: {task_count} "
            f"{'subtask' if task_count == 1 else 'subtasks'}. To continue after a "
            f"stop: `closeloop orchestrate --resume {plan.id}`."
        )
        history = await orchestration_run.continue_plan(plan, orchestration_context)
        return history, store.plans.load_grade(plan.id)


def warn_of_uncommitted_files(repo: Path | None) -> None:
    """Warn of uncommitted files: agents start from the last commit."""
    from closeloop.cli.console import print_warning
    from closeloop.sandbox.workspaces.workspace_patches import count_uncommitted_files

    file_count = count_uncommitted_files(repo) if repo else 0
    if file_count:
        files_text = "1 file is" if file_count == 1 else f"{file_count} files are"
        print_warning(
            f"{files_text} changed or new but not committed: the agents do not see these changes."
        )


def list_needed_variants(options: OrchestrateOptions) -> Sequence[str]:
    """Return the variants that must be ready: those that may be chosen, and those that tasks
    name."""
    from closeloop.records.orchestration import Orchestration, OrchestrationPlan

    plan_or_request = options.what
    tasks = (
        plan_or_request.tasks
        if isinstance(plan_or_request, Orchestration)
        else plan_or_request.plan
        if isinstance(plan_or_request, OrchestrationPlan)
        else ()
    )
    task_variants = [task.variant for task in tasks if task.variant is not None]
    return list(dict.fromkeys([*options.orchestrate_settings.workers, *task_variants]))


def print_plan_step(progress: OrchestrationProgress) -> None:
    """Print one line per step."""
    from closeloop.cli.console import print_warning

    step_name = f"{progress.task}, try {progress.number}" if progress.number else progress.task
    assessment = progress.assessment
    if progress.stage == "judged" and assessment is not None:
        score = "" if assessment.score is None else f" {assessment.score:.2f}"
        reason = assessment.issues[0].text if assessment.issues else assessment.why
        line = f"{PASSED_WORDS[assessment.passed]}{score}" + (f": {reason}" if reason else "")
        if assessment.ignored:
            line += " (feedback ignored)"
    else:
        line = progress.stage + (f": {progress.why}" if progress.why else "")
    print_warning(f"{step_name}  {line.splitlines()[0][:200]}")
