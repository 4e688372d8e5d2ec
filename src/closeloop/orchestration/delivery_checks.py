"""The change of a delivery in tiers 1 to 3, and what they find given back to the agent."""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

from anyio import to_thread
from msgspec.structs import replace

from closeloop.attempts.attempt_saving import FinishedAttempt
from closeloop.attempts.task_preparation import prepare_task_base
from closeloop.changes.change_check import CheckRequest
from closeloop.changes.change_sides import ChangeQuery
from closeloop.changes.check_context import CheckContext
from closeloop.changes.check_verdict import Fixer, FixOrder, FixResult, list_blocking_findings
from closeloop.changes.tool_comparison import has_broken
from closeloop.judges.change_review import open_reviewer
from closeloop.orchestration.request_delivery import (
    DeliveryRun,
    describe_run,
    run_agent_once,
    sum_spent_cost,
)
from closeloop.records.change import ChangeReport, MendingResult
from closeloop.records.finding import Unmeasured
from closeloop.records.protocols import Model
from closeloop.records.request_delivery import CheckedChange
from closeloop.records.session import EventDetails
from closeloop.reviews.rule_editing import with_learned_rules
from closeloop.sandbox.workspaces import WorkspacePool


class ChangeChecker(Protocol):
    """The story of checking a change, as `flow.check_change` tells it."""

    def __call__(
        self,
        order: CheckRequest,
        workspaces: WorkspacePool,
        fixer: Fixer | None = None,
        reviewer: Model | Unmeasured | None = None,
    ) -> Awaitable[ChangeReport]: ...


class DeliveryFixer:
    """Has the agent that did the work mend it, where it worked; each cycle is kept."""

    def __init__(self, run: DeliveryRun, patch: str) -> None:
        self._run, self._patch = run, patch
        self.mended = ""
        """What the last cycle left, as a patch on top of the change."""

    async def mend(self, bench: CheckContext, order: FixOrder) -> FixResult:
        """One cycle; it is begun only while there is money for it."""
        run, budget = self._run, self._run.request.budget
        name = f"fixed-{order.number}"
        spent, is_known = sum_spent_cost(run), run.load_step(name, FinishedAttempt) is not None
        if budget is not None and spent >= budget and not is_known:
            note = f"${spent:.2f} of the budget of ${budget:.2f} are spent"
            return FixResult(patch=order.mended, note=note)
        task = replace(run.order.task, prompt=order.prompt)
        make = partial(
            run_agent_once,
            run,
            task,
            number=order.number + 1,
            beneath=self._patch,
            draft=order.mended,
        )
        cycle = await run.do_step("fixed", FinishedAttempt, make, describe_run, name)
        attempt, change = cycle.made.attempt, cycle.made.change
        self.mended = change.patch if change else ""
        ended_early = attempt.cause or attempt.exit.replace("_", " ")
        return FixResult(
            patch=self.mended, note=None if attempt.exit == "finished" else ended_early
        )


async def check_and_mend(
    run: DeliveryRun, work: FinishedAttempt, check: ChangeChecker
) -> CheckedChange | None:
    """Tiers 1 to 3; what blocks goes back to the agent. None where nothing was changed."""
    patch = work.made.change.patch if work.made.change else ""
    if not patch.strip():
        return None

    async def check_first() -> CheckedChange:
        fixer = DeliveryFixer(run, patch)
        report = await _check_patch(run, patch, check, fixer)
        mending = report.mending
        bare = replace(report, mending=None)
        if mending is None or not mending.tries:
            return CheckedChange(patch=patch, report=bare)
        better = fixer.mended.strip() and _count_left(mending) < _count_failures(run, report)
        note = mending.note and f"mending stopped early: {mending.note}"
        if not better:
            note = note or "what the fix cycles made was no better, and is left out"
            return CheckedChange(patch=patch, report=bare, cycles=mending.tries, note=note)
        whole = await _join_patches(run, patch, fixer.mended)
        return CheckedChange(patch=whole, report=bare, cycles=mending.tries, note=note)

    return await run.do_step("checked", CheckedChange, check_first, _describe_check)


async def check_mended(
    run: DeliveryRun, work: FinishedAttempt, checked: CheckedChange | None, check: ChangeChecker
) -> CheckedChange | None:
    """All tiers once more, of what the fix cycles made: the report is about what is delivered."""
    if checked is None or (work.made.change and checked.patch == work.made.change.patch):
        return checked

    async def check_last() -> CheckedChange:
        report = await _check_patch(run, checked.patch, check)
        return replace(checked, report=report)

    return await run.do_step("checked", CheckedChange, check_last, _describe_check, "rechecked")


async def _check_patch(
    run: DeliveryRun, patch: str, check: ChangeChecker, fixer: Fixer | None = None
) -> ChangeReport:
    tools, order = run.context.tools, run.order
    settings = tools.settings
    checks = replace(settings.check, hold_at=settings.check.hold_at or "critical")

    def tell(text: str) -> None:
        run.tell_progress("checked", done=False, text=text)

    reviewer = None
    if checks.model:
        reviewer = await open_reviewer(run.opened, tools.gateway, checks.model, settings)
    with TemporaryDirectory(prefix="closeloop-") as folder:
        path = Path(folder, order.id)
        await to_thread.run_sync(path.write_bytes, patch.encode("utf-8", "surrogateescape"))
        request = CheckRequest(
            root=Path(run.repo),
            wanted=ChangeQuery(patch=path, base=order.task.base),
            cache=tools.root / (settings.cache or ".closeloop/cache"),
            settings=with_learned_rules(checks, run.store, run.repo_name),
            commands=settings.commands,
            confirm=settings.judge.confirm,
            silences=settings.silence,
            request=order.request,
            tell=tell,
        )
        report = await check(request, tools.workspaces, fixer, reviewer)
    return replace(report, title=order.title)


async def _join_patches(run: DeliveryRun, *patches: str) -> str:
    """Patches on top of each other as one, from the base on."""
    tools = run.context.tools
    base = await prepare_task_base(run.order.task, tools.workspaces)
    async with tools.workspaces.open(base, run.crew.variant.limits) as workspace:
        await workspace.apply_patch("".join(patches))
        return await workspace.read_diff()


def _count_left(mending: MendingResult) -> int:
    """What the mended change still has against it."""
    return sum(max(1, len(one.broke)) for one in mending.left) + len(mending.findings)


def _count_failures(run: DeliveryRun, report: ChangeReport) -> int:
    """What the change has against it as the agent first left it."""
    tools = sum(max(1, len(one.broke)) for one in report.tools if has_broken(one))
    return tools + len(list_blocking_findings(run.context.tools.settings.check, report.findings))


def _describe_check(checked: CheckedChange) -> EventDetails:
    report = checked.report
    return {
        "verdict": report.verdict,
        "risk": report.risk.level if report.risk else None,
        "held": report.held,
        "cycles": checked.cycles,
        "reasons": "; ".join(report.reasons),
    }
