"""Block, warn or pass: what the settings say counts, in words a reviewer needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec.structs import replace

from closeloop.changes.change_sides import ChangeQuery, NoChange
from closeloop.grading.tool_outcomes import is_blocked_by, tool_outcome
from closeloop.records.change import ChangeReport, ReportVerdict, Risk, ToolRun
from closeloop.records.finding import Finding
from closeloop.records.record import Record
from closeloop.records.settings import CheckSettings
from closeloop.records.task import Task
from closeloop.store import Store
from closeloop.tasks.sealed_tasks import require_unsealed
from closeloop.text.redaction import redact_record

SEVERITIES = ("error", "warning", "info")
RISK_LEVELS = ("low", "medium", "high", "critical")
_STATES = {
    "inert": "did not run",
    "not set up": "could not be set up",
    "machine trouble": "met machine trouble",
}


class Judgement(Record):
    """What to do with a change, and why."""

    verdict: ReportVerdict
    reasons: tuple[str, ...] = ()
    held: bool = False


def decide_verdict(
    settings: CheckSettings,
    tools: Sequence[ToolRun] | None,
    findings: Sequence[Finding],
    risk: Risk | None,
) -> Judgement:
    """Block where something counts that much, warn where it does not, else pass.

    No tools at all are fine; None are tools that could not be run, which nobody may take for it.
    """
    held = needs_person(settings, risk)
    unrun = ["the tools could not be run"] if tools is None else []
    tools = tools or ()
    blocking = [*(unrun if settings.gate == "strict" else ())]
    blocking += _blocking_reasons(settings, tools, findings)
    if blocking or held:
        waits = [f"its risk is {risk.level}, which waits for a person"] if held and risk else []
        return Judgement(verdict="block", reasons=(*blocking, *waits), held=held)
    warning = [
        *unrun,
        *(_describe_red_tool(run) for run in tools if run.after != "passed" or run.broke),
    ]
    warning += _severity_counts(findings, SEVERITIES[:2])
    if risk is not None and risk.level in ("high", "critical"):
        warning.append(f"its risk is {risk.level}")
    return Judgement(verdict="warn" if warning else "pass", reasons=tuple(warning))


def needs_person(settings: CheckSettings, risk: Risk | None) -> bool:
    """Whether the risk alone is enough to wait for a person."""
    if risk is None or settings.gate == "informational" or settings.hold_at == "never":
        return False
    return RISK_LEVELS.index(risk.level) >= RISK_LEVELS.index(settings.hold_at)


def _blocking_reasons(
    settings: CheckSettings, tools: Sequence[ToolRun], findings: Sequence[Finding]
) -> Iterator[str]:
    if settings.gate == "informational":
        return
    for run in tools:
        if is_blocked_by(run, settings.gate):
            yield _describe_red_tool(run)
    if settings.block_at != "never":
        # Nobody has calibrated a model that reviews: it advises, whatever blocks.
        sure = [finding for finding in findings if finding.source != "judge"]
        yield from _severity_counts(sure, SEVERITIES[: SEVERITIES.index(settings.block_at) + 1])


def _describe_red_tool(run: ToolRun) -> str:
    """What is the matter with a tool: `2 newly failing in test`, `lint failed, as without it`."""
    state = f"{run.name} {_STATES.get(run.after, run.after)}"
    failing, lost_count = len(run.broke) - len(run.lost), len(run.lost)
    if run.broke and tool_outcome(run) == "broken" and run.after in ("passed", "failed"):
        counts = [f"{failing} newly failing"] if failing else []
        counts += [f"{lost_count} no longer running"] if lost_count else []
        return f"{' and '.join(counts)} in {run.name}"
    if tool_outcome(run) == "unknown" and run.after != "machine trouble":
        return f"{state}, and it is not known what it says without this change"
    return f"{state}{', as without this change' if run.after == run.before else ''}"


def _severity_counts(findings: Sequence[Finding], severities: Sequence[str]) -> Iterator[str]:
    for severity in severities:
        counted = [one for one in findings if one.severity == severity and one.silenced is None]
        if counted:
            yield f"{len(counted)} {severity}{'s' if len(counted) > 1 else ''}"


# Reports that are kept, and the change of an attempt as something to check.


class CheckSubject(Record):
    """What is checked, and whose work it is where that is known."""

    wanted: ChangeQuery
    attempt: str | None = None
    task: Task | None = None


@contextmanager
def open_attempt_change(name: str, store: Store, base: str | None = None) -> Iterator[CheckSubject]:
    """An attempt's change, on the commit that it began from; what is held out stays sealed."""
    attempt = store.load_attempt(name)
    task = store.load_task(attempt.task_digest) if attempt.task_digest else None
    require_unsealed(task)
    change = store.load_exact_change(attempt.id)
    if change is None or not change.patch.strip():
        raise NoChange(f"Attempt {attempt.id} changed nothing: there is nothing to check.")
    with TemporaryDirectory(prefix="closeloop-") as folder:
        patch = Path(folder) / f"attempt-{attempt.id}"
        patch.write_bytes(change.patch.encode("utf-8", "replace"))
        wanted = ChangeQuery(patch=patch, base=base or change.base)
        yield CheckSubject(wanted=wanted, attempt=attempt.id, task=task)


def save_report(
    report: ChangeReport, store: Store, repo: str | None, attempt: str | None = None
) -> int:
    """Without secrets, and without the patch, which git or the attempt has. Its number."""
    bare = replace(report, change=replace(report.change, patch=""))
    at = report.at or datetime.now(UTC)
    number = store.reports.save_report(redact_record(bare)[0], at, repo=repo, attempt=attempt)
    delivery = store.pulls.load_delivery(attempt) if attempt and report.risk else None
    if delivery is not None and delivery.risk is None and report.risk is not None:
        store.pulls.save_delivery(replace(delivery, risk=report.risk.level))
    return number
