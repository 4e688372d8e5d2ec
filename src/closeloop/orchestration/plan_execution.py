"""How the subtasks of a plan are run and judged, and how the plan ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import fmean

from msgspec.structs import replace

from closeloop.agents.headless_agent import replace_surrogates, shorten_middle
from closeloop.attempts.attempt_execution import run_agent, with_refusals, with_trace
from closeloop.attempts.run_resources import RunResources
from closeloop.changes.change_check import CheckRequest, list_blocking_in_patch
from closeloop.concurrency import compute_in_thread
from closeloop.grading.variants import ResolvedVariant
from closeloop.judges.evaluator import cases_from_plan, evaluate_cases
from closeloop.judges.judge_cases import facts_from_findings
from closeloop.judges.judge_panel import JudgePanel
from closeloop.orchestration.subtask_loop import (
    AcceptedExecutions,
    SubtaskOrder,
    find_needed_tasks,
    order_by_plan,
)
from closeloop.process.rulebook import Rulebook
from closeloop.process.trace_measurement import measure_reading
from closeloop.process.trace_reading import build_reading
from closeloop.records.attempt import CommandResult, Usage, sum_usage
from closeloop.records.errors import BadInput, Fault, MachineFailed, PluginFailed
from closeloop.records.estimate import Rate, wilson_rate
from closeloop.records.evaluation import (
    CRITERIA,
    ComputedFact,
    EvaluationIssue,
    JudgeVersion,
    RepositoryState,
    RubricVerdict,
    TaskOutput,
)
from closeloop.records.experiment_plan import ScheduledAttempt
from closeloop.records.orchestration import (
    TOGETHER_CHECK,
    Orchestration,
    OrchestrationHistory,
    OrchestrationResult,
    SubtaskAssessment,
    SubtaskExecution,
    SubtaskResult,
    SubtaskSpec,
    SubtaskTry,
)
from closeloop.records.record import Record
from closeloop.records.score import Score
from closeloop.records.task import Task
from closeloop.records.trace import (
    AnyEvent,
    Command,
    Handoff,
    Intent,
    Lane,
    Message,
    Note,
    Trace,
    Turn,
)
from closeloop.sandbox.workspaces import Workspace, WorkspaceBase
from closeloop.sandbox.workspaces.workspace_patches import START_ENVIRONMENT
from closeloop.store.plan_section import pack_exchanges
from closeloop.text.redaction import redact_new_secrets, redact_patch, redact_record, redact_text
from closeloop.text.wording import matches_globs

# The outcome of a plan: its result, its rates, and one trace of all of it.
#
# How well a plan went: at first, after feedback, in the end, and the cost of retries.


class PlanRates(Record):
    """Three rates that are never mixed; None if there is nothing to count."""

    first_try: Rate | None
    """Tasks that passed at once, of those whose first try has a verdict."""
    after_feedback: Rate | None
    """Tasks that passed later, of those that failed first and were tried again."""
    final: Rate | None
    """Tasks that passed in the end, of those whose last try has a verdict."""
    ignored: int
    """Number of tries that fixed none of the issues."""
    usage: Usage
    """Usage of all work and judging, without planning."""
    retry_usage: Usage
    """Usage of tries after the first counted one; tries lost to machine faults are not first."""
    retry_seconds: float | None
    """None if some are unknown."""


def measure_plan_rates(history: OrchestrationHistory) -> PlanRates:
    """Compute the rates over the tasks of one plan."""
    tries_by_task = [
        tries for task in history.plan.tasks if (tries := _scored_tries(task.id, history.tries))
    ]
    verdicts = [[_try_result(subtask_try) for subtask_try in tries] for tries in tries_by_task]
    later_tries = [later_try for tries in tries_by_task for later_try in tries[1:]]
    return PlanRates(
        first_try=_pass_rate(verdict[0] for verdict in verdicts),
        after_feedback=_pass_rate(
            verdict[-1] for verdict in verdicts if verdict[0] is False and len(verdict) > 1
        ),
        final=_pass_rate(verdict[-1] for verdict in verdicts),
        ignored=sum(
            bool(subtask_try.assessment and subtask_try.assessment.ignored)
            for subtask_try in history.tries
        ),
        usage=sum_try_usage(history.tries),
        retry_usage=sum_try_usage(later_tries),
        retry_seconds=_sum_known([later_try.execution.seconds for later_try in later_tries]),
    )


def _scored_tries(task: str, tries: Sequence[SubtaskTry]) -> list[SubtaskTry]:
    """Return the tries at a task without those lost to machine faults."""
    return [
        subtask_try
        for subtask_try in tries
        if subtask_try.execution.task == task and subtask_try.execution.exit != "machine"
    ]


def _try_result(subtask_try: SubtaskTry) -> bool | None:
    return None if subtask_try.assessment is None else subtask_try.assessment.passed


def _pass_rate(verdicts: Iterable[bool | None]) -> Rate | None:
    """Compute the rate over the known verdicts."""
    known_verdicts = [passed for passed in verdicts if passed is not None]
    return wilson_rate(sum(known_verdicts), len(known_verdicts))


def _sum_known(values: Sequence[float | None]) -> float | None:
    known_values = [value for value in values if value is not None]
    return sum(known_values) if len(known_values) == len(values) else None


def sum_try_usage(tries: Iterable[SubtaskTry]) -> Usage:
    """Sum the usage of tries and of judging them."""
    return sum_usage(part for subtask_try in tries for part in _usage_parts(subtask_try))


def _usage_parts(subtask_try: SubtaskTry) -> Iterable[Usage]:
    yield subtask_try.execution.usage
    yield subtask_try.judged_before
    if subtask_try.assessment is not None and subtask_try.assessment.evaluation is not None:
        yield subtask_try.assessment.evaluation.usage


MAX_LINE_CHARS = 300


def build_plan_ending(
    history: OrchestrationHistory,
    stopped: Mapping[str, str],
    block_reason: str | None,
    checks: Sequence[CommandResult] = (),
    broken_by: Mapping[str, str] | None = None,
) -> OrchestrationResult:
    """Build the result: passed if every task and the whole did; the attempt is added later."""
    last_tries = index_last_tries(history)
    verdicts = [
        find_subtask_result(last_tries.get(task.id), task.id in stopped)
        if task.id in last_tries or not history.plan.handed_in
        else None  # its result may still arrive
        for task in history.plan.tasks
    ]
    failures = describe_failing_checks(checks, broken_by)
    verdicts += [False] * bool(failures)
    ended_at = find_last_time(history)
    planning = history.plan.planning
    planning_usage = [planning.usage] if planning else []
    return OrchestrationResult(
        plan=history.plan.id,
        at=ended_at,
        passed=False if False in verdicts else None if None in verdicts else True,
        summary="\n".join(
            [
                summarise_plan(history, stopped),
                *(f"All together: {failure}" for failure in failures),
            ]
        ),
        held=block_reason,
        checks=tuple(checks),
        broken_by=dict(broken_by or {}),
        not_begun={task: reason for task, reason in stopped.items() if task not in last_tries},
        usage=sum_usage([*planning_usage, sum_try_usage(history.tries)]),
        seconds=(ended_at - history.plan.at).total_seconds(),
    )


def scores_from_plan(history: OrchestrationHistory, ending: OrchestrationResult) -> list[Score]:
    """Return the judge's scores of a plan's attempt: the verdict on the whole, else means over
    tasks.

    Empty if a task has no verdict, or judges of several versions gave them.
    """
    last_tries = index_last_tries(history).values()
    assessed = [last_try.assessment for last_try in last_tries if last_try.assessment is not None]
    evaluations = [
        assessment.evaluation for assessment in assessed if assessment.evaluation is not None
    ]
    versions = {evaluation.judge for evaluation in evaluations}
    if len(evaluations) < len(history.plan.tasks) or len(versions) != 1 or ending.attempt is None:
        return []
    values: dict[str, list[float | None]] = {
        "judge-score": [assessment.score for assessment in assessed],
        **{
            name: [evaluation.criterion_score(name) for evaluation in evaluations]
            for name in CRITERIA
        },
    }
    means = {
        name: fmean(known_scores)
        for name, scores in values.items()
        if (known_scores := _all_known(scores))
    }
    verdict = {} if ending.passed is None else {"would-merge": float(ending.passed)}
    (version,) = versions
    return [
        Score(
            attempt=ending.attempt,
            name=name,
            value=value,
            source="judge",
            version=version,
            by=version,
            at=ending.at,
        )
        for name, value in {**verdict, **means}.items()
    ]


def _all_known(values: Sequence[float | None]) -> list[float]:
    known_values = [value for value in values if value is not None]
    return known_values if len(known_values) == len(values) else []


def describe_failing_checks(
    checks: Sequence[CommandResult], broken_by: Mapping[str, str] | None = None
) -> list[str]:
    """Describe the failing commands, and whose change breaks them."""
    return [
        f"`{check.command}` fails ({check.stopped or f'exit code {check.exit_code}'})"
        + (f", broken by the change of {breaker}" if breaker else "")
        + (f":\n{check.output}" if check.output.strip() else ", and prints nothing")
        for check in checks
        if check.exit_code != 0
        for breaker in [(broken_by or {}).get(check.command)]
    ]


def index_last_tries(history: OrchestrationHistory) -> dict[str, SubtaskTry]:
    """Return the last try by task."""
    return {subtask_try.execution.task: subtask_try for subtask_try in history.tries}


def find_subtask_result(last_try: SubtaskTry | None, stopped: bool) -> bool | None:
    """Return the result of a task; one that was not started or not continued has not passed."""
    if last_try is None or (
        stopped and (last_try.assessment is None or not last_try.assessment.passed)
    ):
        return False
    return last_try.assessment.passed if last_try.assessment else None


def find_last_time(history: OrchestrationHistory) -> datetime:
    """Return the time of the last stored event."""
    times = [history.plan.at, *(subtask_try.execution.ended for subtask_try in history.tries)]
    times += [
        subtask_try.assessment.at
        for subtask_try in history.tries
        if subtask_try.assessment is not None
    ]
    return max(times)


def is_finished(history: OrchestrationHistory) -> bool:
    """Whether nothing happened after its end."""
    return history.ending is not None and history.ending.at == find_last_time(history)


def summarise_plan(history: OrchestrationHistory, stopped: Mapping[str, str]) -> str:
    """Summarise: counts, then the issues of each task that did not pass."""
    last_tries = index_last_tries(history)
    counts = {"passed": 0, "failed": 0, "without a verdict": 0, "not begun": 0}
    lines = []
    for task in history.plan.tasks:
        last_try = last_tries.get(task.id)
        assessment = last_try.assessment if last_try else None
        if last_try is None:
            outcome, reason = "not begun", stopped.get(task.id, "")
        elif assessment is None or assessment.passed is None:
            outcome, reason = "without a verdict", (assessment.why if assessment else None) or ""
        elif assessment.passed:
            outcome, reason = "passed", ""
        else:
            outcome, reason = "failed", assessment.issues[0].text if assessment.issues else ""
        counts[outcome] += 1
        if outcome != "passed":
            lines.append(f"{task.id} {outcome}: {reason}".rstrip(": ")[:MAX_LINE_CHARS])
    counts_text = ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count)
    task_count = len(history.plan.tasks)
    return "\n".join(
        [f"{task_count} {'task' if task_count == 1 else 'tasks'}: {counts_text}.", *lines[:20]]
    )


# One trace of a whole plan: the orchestrator's lane, and one for every try of a sub-agent.
#
# It is built only from stored data, so that the same tries always give the same trace.

ORCHESTRATOR, ORCHESTRATOR_VERSION = "orchestrator", 1
ROOT_LANE = "root"
TracesByTry = Mapping[tuple[str, int], Trace]
"""Traces by task and try."""
MAX_VERDICT_CHARS = 4_000


def merge_plan_traces(
    history: OrchestrationHistory, traces: TracesByTry, end: OrchestrationResult
) -> Trace:
    """Join the traces: handoffs in order, each with its agent's events and its result."""
    planning = history.plan.planning
    turns = [Turn(usage=planning.usage, model=planning.model)] if planning else []
    events: list[AnyEvent] = [*opening_events(history, turns)]
    lanes: list[Lane] = []
    skipped: Counter[str] = Counter()
    for subtask_try in history.tries:
        execution = subtask_try.execution
        name = f"{execution.task}.{execution.number}"
        trace = traces.get((execution.task, execution.number)) or Trace(
            reader=ORCHESTRATOR, reader_version=ORCHESTRATOR_VERSION
        )
        lanes += child_lanes(trace, name, execution)
        skipped.update(trace.skipped)
        events += [build_handoff(execution, name), *move_events_to_lane(trace, name)]
        if subtask_try.assessment is not None and subtask_try.assessment.evaluation is not None:
            turns.append(
                Turn(usage=subtask_try.assessment.evaluation.usage, at=subtask_try.assessment.at)
            )
        events += [
            *check_command_events(execution.checks),
            orchestrator_message(describe_verdict(subtask_try), turns),
        ]
    events += [*check_command_events(end.checks), orchestrator_message(end.summary, turns, "claim")]
    return Trace(
        reader=ORCHESTRATOR,
        reader_version=ORCHESTRATOR_VERSION,
        lanes=(Lane(id=ROOT_LANE, agent=ORCHESTRATOR, turns=tuple(turns)), *lanes),
        events=tuple(replace(event, number=number) for number, event in enumerate(events, 1)),
        skipped=dict(skipped),
    )


def opening_events(history: OrchestrationHistory, turns: Sequence[Turn]) -> Iterator[AnyEvent]:
    """Yield the request, the description of the repository, and the plan."""
    plan = history.plan
    yield Message(
        number=0, lane=ROOT_LANE, role="user", text=plan.request, intent="request", at=plan.at
    )
    if plan.about:
        yield Note(number=0, lane=ROOT_LANE, about="discovery", text=plan.about)
    yield orchestrator_message(describe_plan(history), turns)


def orchestrator_message(text: str, turns: Sequence[Turn], intent: Intent | None = None) -> Message:
    turn = len(turns) or None
    return Message(number=0, lane=ROOT_LANE, role="agent", text=text, intent=intent, turn=turn)


def check_command_events(checks: Sequence[CommandResult]) -> Iterator[Command]:
    """Yield the commands that the orchestrator ran itself."""
    for check in checks:
        yield Command(
            number=0,
            lane=ROOT_LANE,
            command=check.command,
            output=check.output,
            exit_code=check.exit_code,
            exit_from=None if check.exit_code is None else "stated",
            stopped=check.stopped,
            seconds=check.seconds,
        )


def build_handoff(execution: SubtaskExecution, name: str) -> Handoff:
    return Handoff(
        number=0,
        lane=ROOT_LANE,
        brief=execution.brief,
        child=name,
        report=execution.report or None,
        ok=execution.exit == "finished",
        at=execution.started,
        seconds=execution.seconds,
    )


def move_events_to_lane(trace: Trace, name: str) -> Iterator[AnyEvent]:
    """Yield one agent's events, in its own lanes of the plan's trace."""
    for event in trace.events:
        moved_event = replace(event, lane=name_child_lane(event.lane, trace, name))
        if isinstance(moved_event, Handoff) and moved_event.child is not None:
            moved_event = replace(
                moved_event, child=name_child_lane(moved_event.child, trace, name)
            )
        yield moved_event


def describe_plan(history: OrchestrationHistory) -> str:
    tasks = [
        f"- {task.id}" + (f", after {', '.join(task.depends_on)}" if task.depends_on else "")
        for task in history.plan.tasks
    ]
    return "\n".join(["The plan:", *tasks])


def describe_verdict(subtask_try: SubtaskTry) -> str:
    """Describe the orchestrator's verdict on a try."""
    execution, assessment = subtask_try.execution, subtask_try.assessment
    files = ", ".join(execution.files[:20])
    lines = [f"{execution.task} came back from try {execution.number}."]
    if assessment is None or assessment.passed is None:
        lines.append(f"There is no verdict: {assessment.why if assessment else 'not judged'}.")
    elif assessment.passed:
        lines.append(f"It is accepted, and its change is merged: {files or 'no files'}.")
    else:
        lines.append(f"It is not accepted; it changed {files or 'no files'}.")
    lines += [f"- {issue.text}" for issue in assessment.issues] if assessment else []
    return "\n".join(lines)[:MAX_VERDICT_CHARS]


def child_lanes(trace: Trace, name: str, execution: SubtaskExecution) -> Iterator[Lane]:
    """Yield the lanes of one try, below the orchestrator's."""
    for lane in trace.lanes or (Lane(id=ROOT_LANE, agent=execution.agent),):
        parent = ROOT_LANE if lane.parent is None else name_child_lane(lane.parent, trace, name)
        yield replace(lane, id=name_child_lane(lane.id, trace, name), parent=parent)


def name_child_lane(lane: str, trace: Trace, name: str) -> str:
    """Name a lane of a try in the plan's trace; its first lane has the try's name."""
    first = trace.lanes[0].id if trace.lanes else lane
    return name if lane == first else f"{name}/{lane}"


# One try of a sub-agent at a subtask, and the merge of several changes.


MAX_REPORT_CHARACTERS = 100_000
MAX_OUTPUT_CHARACTERS = 1_500
COMMIT_COMMAND = (
    "git -c core.hooksPath=/dev/null -c commit.gpgSign=false commit -q --allow-empty -m 'Done'"
)


async def attempt_subtask(
    order: SubtaskOrder,
    resolved: ResolvedVariant,
    base: WorkspaceBase | None,
    tools: RunResources,
    context: str = "",
) -> SubtaskResult:
    """Run one try, without storing it."""
    started, checks = datetime.now(UTC), list[CommandResult]()

    async def prepare(workspace: Workspace) -> None:
        await apply_earlier_changes(workspace, order)

    async def check(workspace: Workspace) -> None:
        checks.extend(
            [await run_acceptance_command(workspace, command) for command in order.task.commands]
        )

    slot = ScheduledAttempt(
        task=task_from_order(order),
        variant=resolved.variant,
        number=order.number,
        experiment=order.plan.id,
        context=context,
    )
    agent_run = await run_agent(slot, base, tools, before=prepare, after=check)
    work, _ = redact_record(with_refusals(with_trace(agent_run), agent_run.refused))
    execution = SubtaskExecution(
        plan=order.plan.id,
        task=order.task.id,
        number=order.number,
        variant=resolved.variant.name,
        agent=resolved.variant.agent,
        model=resolved.variant.model,
        brief=redact_text(order.brief, {}),
        built_on=tuple(execution.task for execution in order.beneath),
        exit=work.exit,
        cause=work.cause,
        report=shorten_middle(replace_surrogates(work.summary or ""), MAX_REPORT_CHARACTERS),
        patch=agent_run.change.patch,
        files=tuple(file.path for file in agent_run.change.files),
        checks=tuple(checks),
        usage=work.usage,
        started=started,
        ended=datetime.now(UTC),
    )
    facts = tuple(
        redact_record(fact)[0] for fact in with_certain_facts(execution, order.task).facts
    )
    return SubtaskResult(
        execution=replace(execution, facts=facts),
        trace=work.trace,
        exchanges=pack_exchanges(agent_run.exchanges),
    )


def task_from_order(order: SubtaskOrder) -> Task:
    """Build the sub-agent's task."""
    plan = order.plan
    return Task(id=order.task.id, prompt=order.brief, repo=plan.repo, base=plan.base)


async def apply_earlier_changes(workspace: Workspace, order: SubtaskOrder) -> None:
    """Apply the changes it builds on as part of the base, then its own last change."""
    if (conflict := await apply_executions(workspace, order.beneath)) is not None:
        raise MachineFailed(f"What {order.task.id} builds on does not go together: {conflict}")
    if any(execution.patch for execution in order.beneath):
        await workspace.sandbox.run(f"git add -A && {COMMIT_COMMAND}", env=START_ENVIRONMENT)
        await workspace.settle_changes()
    if (
        order.last is not None
        and (conflict := await apply_executions(workspace, [order.last])) is not None
    ):
        raise MachineFailed(f"What {order.task.id} did before cannot be laid out again: {conflict}")


async def run_acceptance_command(workspace: Workspace, command: str) -> CommandResult:
    """Run one command that must succeed."""
    command_run = await workspace.sandbox.run(command)
    result = CommandResult(
        command=command,
        exit_code=command_run.exit_code,
        seconds=command_run.seconds,
        output=shorten_middle(
            replace_surrogates(command_run.output).strip(), MAX_OUTPUT_CHARACTERS
        ),
        stopped=command_run.stopped,
    )
    return redact_record(result)[0]


def with_certain_facts(execution: SubtaskExecution, task: SubtaskSpec) -> SubtaskExecution:
    """Add the certain facts of a try: its exit, its commands' results, the files it changed."""
    facts = []
    if execution.checks:
        failures = "\n\n".join(describe_failing_checks(execution.checks))
        text = failures or "All commands that must succeed do."
        # A failing command shows that the task is not done; a passing one does not show that it is.
        name = "acceptance" if failures else "commands"
        facts.append(
            ComputedFact(name=name, verdict=_verdict_word(not failures), text=text, blocks=True)
        )
    if execution.exit not in ("finished", "machine"):
        reason = execution.cause or execution.exit.replace("_", " ")
        text = f"The agent did not finish: {reason}."
        facts.append(ComputedFact(name="exit", verdict="no", text=text, blocks=True))
    if task.scope:
        paths_outside = [path for path in execution.files if not matches_globs(path, task.scope)]
        paths_text = ", ".join(paths_outside[:5])
        text = f"Changed outside the scope: {paths_text}" if paths_text else "All within the scope."
        facts.append(
            ComputedFact(
                name="scope", verdict=_verdict_word(not paths_text), text=text, blocks=True
            )
        )
    return replace(execution, facts=tuple(facts))


def _verdict_word(holds: bool) -> RubricVerdict:
    return "yes" if holds else "no"


async def merge_conflict(
    executions: Sequence[SubtaskExecution], base: WorkspaceBase | None, tools: RunResources
) -> str | None:
    """Return why changes conflict in this order; None if they do not."""
    if base is None:
        return None
    async with tools.workspaces.open(base, tools.settings.limits) as workspace:
        return await apply_executions(workspace, executions)


async def apply_executions(
    workspace: Workspace, executions: Sequence[SubtaskExecution]
) -> str | None:
    """Apply changes one after the other; return why they conflict, if they do."""
    try:
        await workspace.apply_patch("".join(execution.patch for execution in executions))
    except BadInput as fault:
        return str(fault)
    return None


# All changes together: the results of commands on them, and whose change breaks a command.


class WholeChange(Record):
    """All changes merged into one."""

    patch: str = ""
    checks: tuple[CommandResult, ...] = ()
    broken_by: dict[str, str] = {}
    """By failing command, the task whose change breaks it."""


async def check_whole_change(
    plan: Orchestration,
    accepted: AcceptedExecutions,
    base: WorkspaceBase | None,
    tools: RunResources,
) -> WholeChange:
    """Merge all changes, and run the commands of all tasks on the result."""
    if base is None:
        return WholeChange()
    owners: dict[str, str] = {}
    for task in plan.tasks:
        if task.id in accepted:
            owners |= {line: task.id for line in task.commands if line not in owners}

    async def run_together(names: set[str], commands: Sequence[str]) -> WholeChange:
        chosen_executions = {
            name: execution for name, execution in accepted.items() if name in names
        }
        return await merge_executions(order_by_plan(plan, chosen_executions), base, tools, commands)

    whole_change = await run_together({*accepted}, [*owners])
    if not {check.command for check in whole_change.checks} <= {*owners}:
        return whole_change  # the changes do not even apply
    checks = [
        check
        if check.exit_code == 0
        else await run_failing_again(check, partial(run_together, {*accepted}))
        for check in whole_change.checks
    ]
    broken_by: dict[str, str] = {}
    for command in [check.command for check in checks if check.exit_code != 0]:

        async def holds(names: set[str], command: str = command) -> bool:
            return not describe_failing_checks((await run_together(names, [command])).checks)

        broken_by[command] = await find_breaking_task(plan, accepted, owners[command], holds)
    return replace(whole_change, checks=tuple(checks), broken_by=broken_by)


async def run_failing_again(
    failing: CommandResult, run_commands: Callable[[Sequence[str]], Awaitable[WholeChange]]
) -> CommandResult:
    """Run a failed command once more; if it passes then, it is flaky and counts for nobody."""
    for second_run in (await run_commands([failing.command])).checks:
        if second_run.command == failing.command and second_run.exit_code == 0:
            note = f"It failed at first and passed when it was run again: flaky.\n{failing.output}"
            return replace(second_run, output=note)
    return failing


async def find_breaking_task(
    plan: Orchestration,
    accepted: AcceptedExecutions,
    owner: str,
    holds: Callable[[set[str]], Awaitable[bool]],
) -> str:
    """The task whose change makes a command of `owner` fail, which all changes together do.

    The owner's change is taken with what it was built on, and others are added in the order of
    the plan: by halves, so that a plan of many tasks takes few runs.
    """
    needed_tasks = find_needed_tasks(plan, accepted, [owner])
    other_tasks = [
        execution.task
        for execution in order_by_plan(plan, accepted)
        if execution.task not in needed_tasks
    ]
    if not other_tasks or not await holds(needed_tasks):
        return owner  # it fails without other changes
    holding, failing = 0, len(other_tasks)
    while failing - holding > 1:
        middle = (holding + failing) // 2
        if await holds(find_needed_tasks(plan, accepted, [owner, *other_tasks[:middle]])):
            holding = middle
        else:
            failing = middle
    return other_tasks[failing - 1]


def build_together_issues(whole_change: WholeChange) -> dict[str, EvaluationIssue]:
    """Build the feedback for each task whose change breaks a command of all changes together."""
    failures: dict[str, list[str]] = {}
    for check in whole_change.checks:
        if check.command in whole_change.broken_by:
            texts = failures.setdefault(whole_change.broken_by[check.command], [])
            texts += describe_failing_checks([check])
    return {
        task: EvaluationIssue(
            check=TOGETHER_CHECK,
            criterion=None,
            text="Together with the changes of the other tasks, this change makes commands fail"
            f" that must succeed: {'; '.join(texts)}",
            source="fact",
        )
        for task, texts in failures.items()
    }


async def merge_executions(
    executions: Sequence[SubtaskExecution],
    base: WorkspaceBase,
    tools: RunResources,
    commands: Sequence[str],
) -> WholeChange:
    """Merge changes, and run commands on the result."""
    async with tools.workspaces.open(base, tools.settings.limits) as workspace:
        if (conflict := await apply_executions(workspace, executions)) is not None:
            failed = CommandResult(command="git apply", exit_code=1, seconds=0.0, output=conflict)
            return WholeChange(checks=(failed,))
        patch = await workspace.read_diff()
        checks = [await run_acceptance_command(workspace, command) for command in commands]
        return WholeChange(patch=patch, checks=tuple(checks))


# The evaluation of a sub-agent's try: the rules' findings in its trace, and the judges' verdicts.


DEFAULT_CACHE = ".closeloop/cache"
MAX_ERRORS = 20
"""Maximum number of code errors reported to the next try."""


def with_rule_findings(result: SubtaskResult, rules: Rulebook) -> SubtaskResult:
    """Add the findings of rules on its process to the facts for the judge."""
    if result.trace is None:
        return result
    try:
        facts = [
            *facts_from_findings(
                measure_reading(build_reading(result.trace, rules.own_checks), rules).findings
            )
        ]
    except PluginFailed as fault:
        facts = [ComputedFact(name="rules", text=str(fault))]  # the try is paid for, and saved
    execution = replace(result.execution, facts=(*result.execution.facts, *facts))
    return replace(result, execution=execution)


async def with_quality_errors(
    result: SubtaskResult, order: SubtaskOrder, tools: RunResources
) -> SubtaskResult:
    """Add errors found by code checks; like a failing command, they cause another try."""
    execution, plan = result.execution, order.plan
    repository = Path(tools.root, plan.repo) if plan.repo else None
    if not (repository and repository.is_dir() and plan.base and execution.patch.strip()):
        return result
    request = CheckRequest(
        root=repository,
        cache=tools.root / (tools.settings.cache or DEFAULT_CACHE),
        settings=tools.settings.check,
        silences=tools.settings.silence,
    )
    patch = "".join(earlier.patch for earlier in order.beneath) + execution.patch
    try:
        quality_errors = await compute_in_thread(list_blocking_in_patch, request, plan.base, patch)
    except (Fault, OSError):
        return result  # conflicts between changes are reported elsewhere
    errors = [
        f"{quality_error.places[0]}: {quality_error.message} ({quality_error.rule})"
        for quality_error in quality_errors
        if quality_error.places[0].rpartition(":")[0] in execution.files
    ]
    if not errors:
        return result
    text = redact_new_secrets("\n".join(errors[:MAX_ERRORS]))
    fact = ComputedFact(name="code-quality", verdict="no", text=text, blocks=True)
    return replace(result, execution=replace(execution, facts=(*execution.facts, fact)))


async def judge_execution(
    plan: Orchestration,
    execution: SubtaskExecution,
    panel: JudgePanel,
    tools: RunResources,
    base_patches: Sequence[str],
) -> tuple[SubtaskAssessment, tuple[JudgeVersion, ...]]:
    """Judge one try, its facts first; return the evaluation and the judges' version."""
    name = execution.task
    patch = redact_patch(execution.patch)
    output = TaskOutput(
        task=name, text=execution.report, change=patch or None, author=execution.model
    )
    cases = cases_from_plan(plan.request, plan.tasks, {name: output}, {name: execution.facts})
    site = find_judge_site(plan, tools, [*map(redact_new_secrets, base_patches)])
    if site is not None:
        site = replace(site, change=redact_new_secrets(execution.patch))
    evaluations = await evaluate_cases(panel, [replace(case, site=site) for case in cases])
    evaluation = evaluations.evaluations[0]
    return (
        SubtaskAssessment(
            plan=plan.id,
            task=name,
            number=execution.number,
            passed=evaluation.passed,
            score=evaluation.score,
            issues=evaluation.issues,
            why=evaluation.abstained,
            evaluation=evaluation,
            at=datetime.now(UTC),
        ),
        evaluations.judges,
    )


def find_judge_site(
    plan: Orchestration, tools: RunResources, base_patches: Sequence[str]
) -> RepositoryState | None:
    """Return the repository state for a judge that reads files."""
    if plan.repo is None or plan.base is None:
        return None
    setup = tools.settings.commands.setup
    return RepositoryState(
        repo=plan.repo, commit=plan.base, setup=setup, beneath=tuple(base_patches)
    )
