"""What a delivery hands over: its runs as one attempt, a branch, a pull request, and the texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from anyio import to_thread
from msgspec.structs import replace

from closeloop.attempts.attempt_saving import FinishedAttempt, ended_events
from closeloop.changes.check_verdict import save_report
from closeloop.changes.host_credentials import (
    HostedRepository,
    find_hosted_repository,
    open_code_host,
)
from closeloop.changes.pull_opening import (
    HostConnection,
    PullDraft,
    open_pull,
    push_branch,
    require_delivery_access,
)
from closeloop.changes.reports.markdown_report import escape_prose, fence_output
from closeloop.changes.reports.report_text import report_headline
from closeloop.changes.tool_comparison import has_broken
from closeloop.git import try_git_text
from closeloop.orchestration.request_delivery import DeliveryRun
from closeloop.records.attempt import Attempt, sum_usage
from closeloop.records.change import ChangeReport, ToolRun
from closeloop.records.experiment_plan import AttemptResult
from closeloop.records.request_delivery import (
    CheckedChange,
    DeliveredPull,
    DeliveryBranch,
    DeliveryOrder,
    DeliveryResult,
    DeliveryState,
    SavedDelivery,
)
from closeloop.records.trace import AnyEvent, Handoff, Lane, Trace
from closeloop.reviews.authorship import ATTEMPT_TRAILER, parse_trailers
from closeloop.sandbox.workspaces import resolve_commit
from closeloop.sandbox.workspaces.source_repository import branch_name, make_branch
from closeloop.store.plan_section import unpack_exchanges
from closeloop.text.patches import parse_patch
from closeloop.text.redaction import redact_new_secrets, redact_text
from closeloop.text.untrusted import visible_line
from closeloop.text.wording import truncate_words

MAX_OUTPUT_CHARS = 2_000
PROMPT_ID_CHARS = 12


def delivery_branch_name(order: DeliveryOrder) -> str:
    """`closeloop/TASK/ATTEMPT`: by it the pull request is known as this work, and found again."""
    return branch_name(order.task.id, order.id)


async def require_host_access(run: DeliveryRun) -> None:
    """BadInput where the host would not take the pull request: before an agent is paid for it."""
    target = run.order.target
    if run.request.dry_run or target is None or run.load_step("worked", FinishedAttempt):
        return
    host, opening = find_delivery_host(run)
    if host is not None and opening is not None:
        await require_delivery_access(run.repo, opening, host, run.order.task.base or "", target)


def find_delivery_host(
    run: DeliveryRun,
) -> tuple[HostedRepository | None, HostConnection | None]:
    """Where the clone came from, and a connection where there are credentials for it."""
    environ = run.request.environ
    host = find_hosted_repository(Path(run.repo), environ)
    return host, open_code_host(host.kind, host.repo, environ) if host else None


# One attempt of all that the agent did


def build_delivered_attempt(
    order: DeliveryOrder, runs: Sequence[FinishedAttempt], checked: CheckedChange | None, repo: str
) -> AttemptResult:
    """The work and its fix cycles as one: what it took in all, and the change that is delivered."""
    first, last = runs[0].made.attempt, runs[-1].made.attempt
    attempt = Attempt(
        id=order.id,
        origin="production",
        task=order.task.id,
        variant=first.variant,
        number=order.number,
        started=order.at,
        ended=last.ended,
        exit=first.exit,
        cause=first.cause,
        usage=sum_usage(run.made.attempt.usage for run in runs),
        summary="\n\n".join(dict.fromkeys(filter(None, (run.made.attempt.summary for run in runs))))
        or None,
        sandbox=first.sandbox,
        branch=delivery_branch_name(order) if checked else None,
        repo=repo,
        user=order.user,
        links={"issue": order.issue.url} if order.issue and order.issue.url else {},
    )
    exchanges = [one for run in runs if run.exchanges for one in unpack_exchanges(run.exchanges)]
    traces = [run.made.trace for run in runs if run.made.trace is not None]
    made = AttemptResult(
        attempt=attempt,
        trace=join_traces(traces) if traces else None,
        change=parse_patch(checked.patch if checked else "", base=order.task.base),
        exchanges=[replace(one, number=number) for number, one in enumerate(exchanges, 1)],
        insights=tuple(
            replace(one, attempt=order.id, repo=repo) for run in runs for one in run.made.insights
        ),
    )
    return replace(made, events=ended_events(made, order.task))


def join_traces(traces: Sequence[Trace]) -> Trace:
    """Runs of one agent, one after the other: its main lane goes on, others stay their own."""
    joined = traces[0]
    for number, trace in enumerate(traces[1:], 1):
        joined = _append_trace(joined, trace, f"fix-{number}")
    return joined


def _append_trace(first: Trace, later: Trace, name: str) -> Trace:
    root = first.lanes[0] if first.lanes else Lane(id="root")
    main = later.lanes[0].id if later.lanes else root.id

    def renamed(lane: str | None) -> str | None:
        return root.id if lane == main else None if lane is None else f"{name}/{lane}"

    def moved(event: AnyEvent, number: int) -> AnyEvent:
        turn = event.turn + len(root.turns) if event.turn and event.lane == main else event.turn
        event = replace(event, lane=renamed(event.lane), number=number, turn=turn)
        if isinstance(event, Handoff) and event.child is not None:
            event = replace(event, child=renamed(event.child))
        return event

    turns = (*root.turns, *(later.lanes[0].turns if later.lanes else ()))
    lanes = [replace(root, turns=turns), *first.lanes[1:]]
    lanes += [
        replace(one, id=renamed(one.id) or "", parent=renamed(one.parent))
        for one in later.lanes[1:]
    ]
    start = len(first.events) + 1
    events = (moved(event, number) for number, event in enumerate(later.events, start))
    skipped = {
        why: first.skipped.get(why, 0) + later.skipped.get(why, 0)
        for why in {**first.skipped, **later.skipped}
    }
    return replace(first, lanes=tuple(lanes), events=(*first.events, *events), skipped=skipped)


# What people are told


def list_unresolved(checked: CheckedChange, attempt: Attempt) -> list[str]:
    """What is not well: what blocks it beside its risk, and how its agent ended."""
    report = checked.report
    # The last reason of what is held is the risk, which nobody can resolve but a person.
    reasons = [*report.reasons[: -1 if report.held else None]] if report.verdict == "block" else []
    if attempt.exit != "finished":
        reasons.append(
            f"the agent did not finish: {attempt.cause or attempt.exit.replace('_', ' ')}"
        )
    if checked.note and reasons:
        reasons.append(checked.note)
    return reasons


def build_commit_message(order: DeliveryOrder, prompt: str | None, summary: str | None) -> str:
    """A title, what the agent says, and trailers that lead back to the work."""
    text = redact_text(truncate_words(visible_line(summary or ""), 1_000), {})
    if parse_trailers(text):
        text = f"The agent says: {text}"  # it writes no trailers of ours
    return "\n\n".join(filter(None, [order.title, text, "\n".join(list_trailers(order, prompt))]))


def list_trailers(order: DeliveryOrder, prompt: str | None) -> Iterator[str]:
    yield f"Task-Id: {order.task.id}"
    if prompt:
        yield f"Prompt-Version: {prompt[:PROMPT_ID_CHARS]}"
    yield f"{ATTEMPT_TRAILER}: {order.id}"


def build_pull_body(
    order: DeliveryOrder, attempt: Attempt, checked: CheckedChange, prompt: str | None
) -> str:
    """What was asked, what came of it, and all that is not well; the report itself follows it."""
    report, unresolved = checked.report, list_unresolved(checked, attempt)
    parts = [f"<!-- closeloop:deliver {order.id} -->"]
    parts.append(f"**Asked for:** {escape_prose(order.request, 1_000)}")
    if attempt.summary:
        parts.append(f"**The agent says:** {escape_prose(attempt.summary, 1_500)}")
    cycles = f" Fix cycles: {checked.cycles}." if checked.cycles else ""
    parts.append(f"**Checks:** {escape_prose(report_headline(report))}{cycles}")
    if report.held:
        parts.append("**On hold:** a person must look at it before it is merged.")
    if unresolved:
        parts.append("### Not resolved")
        parts.append("\n".join(f"- {escape_prose(reason)}" for reason in unresolved))
        parts += [_describe_failure(run) for run in report.tools if has_broken(run) and run.output]
    if order.issue is not None and order.issue.closable:
        parts.append(f"Closes #{order.issue.number}")
    return "\n\n".join([*parts, "\n".join(list_trailers(order, prompt))])


# What is kept and handed over


def _describe_failure(run: ToolRun) -> str:
    title = escape_prose(f"`{run.command}` {run.after}")
    return f"{title}:\n\n{fence_output(run.output, MAX_OUTPUT_CHARS)}"


async def save_delivered_attempt(run: DeliveryRun, checked: CheckedChange | None) -> Attempt:
    """One attempt of all runs, with its report: from now on it is in every list."""

    async def save() -> SavedDelivery:
        made = build_delivered_attempt(run.order, run.list_runs(), checked, run.repo_name)

        def save_all() -> SavedDelivery:
            run.store.save_attempt(made)
            known = run.store.reports.list_reports(1, attempt=run.order.id)
            number = known[0].number if known else None
            if checked is not None and number is None:
                number = save_report(checked.report, run.store, run.repo_name, run.order.id)
            return SavedDelivery(attempt=run.order.id, report=number)

        return await to_thread.run_sync(save_all)

    await run.do_step("saved", SavedDelivery, save, lambda saved: {"report": saved.report})
    return run.store.load_attempt(run.order.id)


async def make_delivery_branch(
    run: DeliveryRun, attempt: Attempt, checked: CheckedChange | None
) -> DeliveryBranch | None:
    """The change as a commit on the base, in the user's repository; None where there is none."""
    if checked is None:
        return None
    order, name = run.order, delivery_branch_name(run.order)
    base = order.task.base or ""

    def make() -> DeliveryBranch:
        ours = f"\n{ATTEMPT_TRAILER}: {order.id}\n"
        # One that was made before the last stop may have been gone on with.
        if ours not in try_git_text(run.repo, "log", "-1", "--format=%B", f"refs/heads/{name}"):
            message = build_commit_message(order, run.crew.variant.prompt, attempt.summary)
            patch = redact_new_secrets(checked.patch)
            make_branch(run.repo, base, patch, name, message, at=attempt.ended)
        commit = resolve_commit(run.repo, f"refs/heads/{name}")
        return DeliveryBranch(name=name, commit=commit, base=base)

    return await run.do_step(
        "branched",
        DeliveryBranch,
        partial(to_thread.run_sync, make),
        lambda branch: {"branch": branch.name, "commit": branch.commit},
    )


async def open_delivery_pull(
    run: DeliveryRun,
    attempt: Attempt,
    branch: DeliveryBranch | None,
    checked: CheckedChange | None,
) -> DeliveredPull | str | None:
    """The pull request, opened once; or why there is only a branch."""
    if branch is None or checked is None:
        return None
    if (known := run.load_step("opened", DeliveredPull)) is not None:
        return known
    if run.request.dry_run:
        return "It is a dry run: no pull request was opened."
    host, opening = find_delivery_host(run)
    target = run.order.target
    if host is None or opening is None:
        return (
            "No pull request was opened: there is neither a token nor an app for the host of"
            " `origin` (GITHUB_TOKEN, GITLAB_TOKEN, or a GitHub App)."
        )
    if target is None:
        return "No pull request was opened: the base is no branch. Name one with --base."
    wanted = PullDraft(
        title=run.order.title,
        body=build_pull_body(run.order, attempt, checked, run.crew.variant.prompt),
        target=target,
        branch=branch,
        held=checked.report.held,
    )
    return await run.do_step(
        "opened",
        DeliveredPull,
        partial(_push_and_open, run.repo, opening, host, wanted, checked.report),
        lambda pull: {"url": pull.url, "number": pull.number, "draft": pull.draft},
    )


async def _push_and_open(
    repo: str,
    opening: HostConnection,
    host: HostedRepository,
    wanted: PullDraft,
    report: ChangeReport,
) -> DeliveredPull:
    async with opening as hub:
        await push_branch(repo, hub, host, wanted.branch)
        return await open_pull(hub, host, wanted, report)


async def finish_delivery(
    run: DeliveryRun,
    attempt: Attempt,
    branch: DeliveryBranch | None,
    pull: DeliveredPull | str | None,
    checked: CheckedChange | None,
) -> DeliveryResult:
    """What came of it, said once: with a pull request, or with a branch alone."""
    unresolved = list_unresolved(checked, attempt) if checked else []
    report = checked.report if checked else None
    feedback = [one.text for one in run.store.course.list_attempt_insights([attempt.id])]
    notes = [pull] if isinstance(pull, str) else [*pull.notes] if pull else []
    if checked is None:
        cause = attempt.cause or attempt.exit.replace("_", " ")
        unresolved = [f"the agent changed nothing ({cause})"]
    result = DeliveryResult(
        id=run.order.id,
        state=_decide_state(report, unresolved),
        title=run.order.title,
        attempt=attempt.id,
        variant=run.order.variant,
        reasons=(*unresolved, *(report.reasons[-1:] if report and report.held else ())),
        verdict=report.verdict if report else None,
        risk=report.risk.level if report and report.risk else None,
        cycles=checked.cycles if checked else 0,
        cost=attempt.usage.cost,
        feedback=feedback[0] if feedback else None,
        branch=branch,
        pull=pull if isinstance(pull, DeliveredPull) else None,
        notes=tuple(notes),
    )

    async def as_told() -> DeliveryResult:
        return result

    name = "ended-pull" if result.pull else "ended-branch"
    await run.do_step("ended", DeliveryResult, as_told, lambda one: {"state": one.state}, name)
    return replace(result, report=report)


def _decide_state(report: ChangeReport | None, unresolved: Sequence[str]) -> DeliveryState:
    if report is None:
        return "nothing"
    if report.held:
        return "held"
    return "unresolved" if unresolved else "delivered"
