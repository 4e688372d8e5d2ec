"""The result of an attempt: its change, test results, checks and evaluations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal
from urllib.parse import quote

from msgspec.structs import replace

from closeloop.metrics.attempt_groups import ComparedFile, compare_changes
from closeloop.metrics.task_log import load_task_log, outcome_with_review, parse_reference
from closeloop.process.edit_contents import recover_change
from closeloop.records.attempt import (
    Attempt,
    AttemptMarks,
    AttemptRow,
    CommandResult,
    Grade,
    IntegrityCheck,
    lacks_sandbox,
)
from closeloop.records.change import Change, RecoveredFile
from closeloop.records.evaluation import Evaluation, JudgeTrust, JudgeVersion
from closeloop.records.experiment_plan import TaskLog
from closeloop.records.finding import Finding, Measurement, Unmeasured
from closeloop.records.pull_request import Delivery
from closeloop.records.record import Record
from closeloop.records.task import Task
from closeloop.records.trace import Session
from closeloop.reviews.authorship import merge_known_agents
from closeloop.reviews.review_queue import load_open_task
from closeloop.store import Store
from closeloop.store.metrics_section import AttemptSpan
from closeloop.traces.session_import import explain_unknown_cost
from closeloop.web.diff_view import (
    DiffFile,
    ReportView,
    build_diff_files,
    build_recovered_files,
    locate_findings,
)
from closeloop.web.page import Page, PageContext, find_or_404
from closeloop.web.pages.pulls import newest_attempt_report
from closeloop.web.render import attempt_result

# The head of every page of one attempt: variant, task, result and links.


class AttemptIdQuery(Record):
    attempt: str
    """Id or a prefix of it."""


class Tab(Record):
    address: str
    label: str
    count: int | None = None


class HeadLink(Record):
    """A link to what an attempt belongs to: a pull request, a task, an experiment."""

    kind: str
    text: str
    address: str


class AttemptHead(Record):
    """A summary of one attempt."""

    row: AttemptRow
    result: str
    """Pass, fail, unscored or session; the result by people if no check decides."""
    attempt: Attempt
    marks: AttemptMarks
    title: str
    """Title of the task or session; without one, `Session in` and the repository's name."""
    tabs: tuple[Tab, ...]
    newer: str | None = None
    """Id of the attempt with the session's current version, if the session went on since."""
    links: tuple[HeadLink, ...] = ()
    commit: str | None = None
    """Commit at which a session began, or the last one that it made."""
    commands: tuple[str, ...] = ()
    """Commands for it in the terminal."""
    unknown_cost: str | None = None
    """Why a session's cost is unknown."""
    merge_share: float | None = None
    """Share of the people asked who would merge it."""


def load_attempt_head(page_context: PageContext, name: str) -> tuple[AttemptHead, Task | None]:
    """Load the head of an attempt and its task; sealed tasks stay sealed."""
    attempt = find_or_404(page_context.store.load_attempt, name)
    task = load_open_task(page_context.store, attempt)
    row = page_context.store.listing.load_row(attempt.id)
    assert row is not None, "an attempt has a row"
    marks = page_context.load_attempt_marks([row]).get(attempt.id, AttemptMarks())
    session = (
        page_context.store.load_session(attempt.id) if attempt.origin == "production" else None
    )
    head = AttemptHead(
        row=row,
        result=list_results(page_context.store, [row])[row.id],
        attempt=attempt,
        marks=marks,
        title=row.title or _session_title(attempt, session),
        tabs=_attempt_tabs(row, marks),
        newer=page_context.store.listing.find_newer_version(attempt.id) if session else None,
        links=tuple(_head_links(page_context.store, row)),
        commit=session.commit if session else None,
        commands=tuple(_attempt_commands(row, judges=bool(page_context.settings.judge.models))),
        unknown_cost=_explain_cost(page_context, row, attempt),
        merge_share=page_context.store.scores.load_merging_shares(
            AttemptSpan(attempts=(row.id,))
        ).get(row.id),
    )
    return head, task


def _explain_cost(page_context: PageContext, row: AttemptRow, attempt: Attempt) -> str | None:
    if row.cost is not None or row.origin != "production" or not row.events:
        return None
    return explain_unknown_cost(page_context.load_trace(row.id), row.model, attempt.usage)


def _attempt_commands(row: AttemptRow, *, judges: bool) -> Iterator[str]:
    """Yield commands for an attempt; `judges` says whether closeloop.toml names a judge model."""
    yield f"closeloop show {row.id}"
    if row.files_changed:
        yield f"closeloop check attempt:{row.id}"
        yield f"closeloop show {row.id} --branch"
    if judges:
        yield f"closeloop judge {row.id}"
    if row.events:
        yield f"closeloop measure {row.id}"
    yield f"closeloop score {row.id} would-merge=yes"


def _head_links(store: Store, row: AttemptRow) -> Iterator[HeadLink]:
    for pull in store.pulls.list_pulls(attempt=row.id, limit=5):
        address = f"/pulls/{quote(pull.repo)}/{pull.pull}"
        yield HeadLink(kind="Pull request", text=f"{pull.repo}#{pull.pull}", address=address)
    if row.task and row.task_digest:
        yield HeadLink(kind="Task", text=row.task, address=f"/tasks/{quote(row.task, safe='')}")
    if row.experiment:
        address = f"/experiments/{quote(row.experiment, safe='')}"
        yield HeadLink(kind="Experiment", text=row.experiment, address=address)


def list_results(store: Store, rows: Sequence[AttemptRow]) -> dict[str, str]:
    """Return the result by attempt; if no check decides, whether most reviewers would merge it."""
    unchecked = tuple(row.id for row in rows if row.is_for_review)
    merges = store.scores.load_merging_shares(AttemptSpan(attempts=unchecked)) if unchecked else {}
    return {
        row.id: outcome_with_review(row, merges) if row.is_for_review else attempt_result(row)
        for row in rows
    }


def with_marks(head: AttemptHead, measurement: Measurement | None) -> AttemptHead:
    """Return the head with the marks of a measurement made just now."""
    findings = unsilenced_rule_findings(measurement)
    if measurement is None:
        return head
    marks = AttemptMarks(
        findings=len(findings),
        rules=tuple(sorted({finding.rule for finding in findings})),
        category=measurement.ending.category if measurement.ending else None,
        iterations=measurement.whole.iterations,
        converged_after=measurement.whole.converged_after,
        feedback=measurement.score.feedback,
    )
    return replace(head, marks=marks, tabs=_attempt_tabs(head.row, marks))


def unsilenced_rule_findings(measurement: Measurement | None) -> tuple[Finding, ...]:
    """Return findings of rules that nobody silenced; none if not measured yet."""
    findings = measurement.findings if measurement else ()
    return tuple(finding for finding in findings if finding.silenced is None)


def _session_title(attempt: Attempt, session: Session | None) -> str:
    location = attempt.repo or (session and session.directory) or ""
    name = location.rstrip("/").removesuffix(".git").rpartition("/")[2]
    return f"Session in {name}" if name else "Session"


def _attempt_tabs(row: AttemptRow, marks: AttemptMarks) -> tuple[Tab, ...]:
    address = f"/attempts/{row.id}"
    return (
        Tab(address=address, label="Trace", count=row.events),
        Tab(address=f"{address}/iterations", label="Iterations", count=marks.iterations or None),
        Tab(
            address=f"{address}/handoffs",
            label="Handoffs",
            count=row.lanes - 1 if row.lanes and row.lanes > 1 else None,
        ),
        Tab(address=f"{address}/diff", label="Diff", count=row.files_changed),
        Tab(address=f"{address}/tests", label="Tests"),
        Tab(address=f"{address}/checks", label="Checks and risk"),
        Tab(address=f"{address}/evaluations", label="Evaluation"),
        Tab(address=f"{address}/reviews", label="Reviews"),
        Tab(address=f"{address}/scores", label="Scores"),
        Tab(address=f"{address}/log", label="Log"),
        Tab(address=f"{address}/raw", label="Raw"),
    )


MAX_TESTS = 500
MAX_NAME_CHARS = 500
MAX_MESSAGE_CHARS = 10_000
"""Characters of a test's name and message."""


class DiffQuery(AttemptIdQuery):
    show: Literal["fit", "split", "unified"] = "fit"
    """Two columns or one; `fit` uses two on a wide screen."""
    against: Literal["base", "reference"] = "base"


class DiffView(Record):
    """The change of an attempt, with findings on its lines."""

    asked: DiffQuery
    head: AttemptHead
    has_reference: bool
    compared: tuple[ComparedFile, ...]
    """Comparison with the reference, if requested."""
    files: tuple[DiffFile, ...]
    findings: tuple[Finding, ...]
    base: str | None
    branch: str | None
    recovered: bool = False
    """Whether the files were recovered from the recording's edits because no diff was stored."""


class TestLine(Record):
    """One test, before and after the change."""

    id: str
    before: str
    after: str
    message: str | None
    change: Literal["broken", "mended", "failing", "new", "same"]


class TestsView(Record):
    """Tests before and after; those that fail or whose result changed come first."""

    head: AttemptHead
    graded: bool
    reasons: tuple[str, ...]
    fail_to_pass: tuple[int, int] | None
    pass_to_pass: tuple[int, int] | None
    tests: tuple[TestLine, ...]
    more: int
    passing: int
    """Number of tests that passed before and still pass."""
    commands: tuple[CommandResult, ...]
    flaky: tuple[str, ...]
    notes: tuple[str, ...]
    integrity: tuple[IntegrityCheck, ...] = ()
    evidence: str | None = None
    """How a pass is known: `confirmed`, `reported`, `unconfined`, `weak` or `by answer`."""


class ChecksView(Record):
    """Deterministic findings about the change besides its tests."""

    head: AttemptHead
    graded: bool
    out_of_scope: tuple[str, ...]
    restored: tuple[str, ...]
    files_precision: float | None
    files_recall: float | None
    findings: tuple[Finding, ...]
    """Findings with a place in a file."""
    unmeasured: tuple[Unmeasured, ...]
    delivery: Delivery | None
    report: ReportView | None
    """The latest report of `closeloop check` about it."""
    sandbox: str | None


class EvaluationsView(Record):
    """Evaluations of the attempt's output by judges."""

    head: AttemptHead
    evaluations: tuple[Evaluation, ...]
    judges: dict[str, JudgeVersion]
    agreements: dict[str, JudgeTrust]
    """By judge, its agreement with people overall; only judges that were calibrated."""


class LogView(Record):
    """The structured log of a task, with what the reference changes and the attempt does not."""

    head: AttemptHead
    log: TaskLog


def diff(page_context: PageContext, query: DiffQuery) -> DiffView:
    head, task = load_attempt_head(page_context, query.attempt)
    stored = page_context.store.load_change(head.row.id)
    change = stored or Change()
    recovered: tuple[RecoveredFile, ...] = ()
    if stored is None and head.row.events:
        recovered = tuple(recover_change(page_context.load_trace_reading(head.row.id)))
    reference = parse_reference(task) if task is not None and task.reference else None
    is_compared = query.against == "reference" and reference is not None
    grade = page_context.store.load_grade(head.row.id)
    marks = [(path, "outside the scope") for path in grade.out_of_scope] if grade else []
    marks += [(path, "restored before grading") for path in grade.restored] if grade else []
    trace_findings = unsilenced_rule_findings(page_context.load_measurement(head.row, make=False))
    plain_files = build_recovered_files(recovered) or build_diff_files(change, (), ())
    findings = locate_findings(trace_findings, page_context.load_trace(head.row.id), plain_files)
    files = build_recovered_files(recovered, findings) or build_diff_files(change, findings, marks)
    return DiffView(
        asked=query,
        head=head,
        has_reference=reference is not None,
        compared=compare_changes(change, reference) if is_compared and reference else (),
        files=() if is_compared else files,
        findings=findings,
        base=change.base,
        branch=head.attempt.branch,
        recovered=bool(recovered),
    )


def tests(page_context: PageContext, query: AttemptIdQuery) -> TestsView:
    head, _ = load_attempt_head(page_context, query.attempt)
    grade = page_context.store.load_grade(head.row.id)
    lines = _build_test_lines(grade) if grade else []
    changed_lines = [line for line in lines if line.change != "same"]
    after = grade.after if grade else None
    return TestsView(
        head=head,
        graded=grade is not None,
        reasons=grade.outcome.reasons if grade else (),
        fail_to_pass=grade.fail_to_pass if grade else None,
        pass_to_pass=grade.pass_to_pass if grade else None,
        tests=tuple(changed_lines[:MAX_TESTS]),
        more=max(0, len(changed_lines) - MAX_TESTS),
        passing=len(lines) - len(changed_lines),
        commands=after.commands if after else (),
        flaky=after.flaky if after else (),
        notes=(*after.notes, *filter(None, (after.trouble,))) if after else (),
        integrity=grade.integrity if grade else (),
        evidence=_describe_evidence(grade) if grade else None,
    )


def _describe_evidence(grade: Grade) -> str | None:
    return "unconfined" if lacks_sandbox(grade) else grade.evidence


def checks(page_context: PageContext, query: AttemptIdQuery) -> ChecksView:
    head, _ = load_attempt_head(page_context, query.attempt)
    grade = page_context.store.load_grade(head.row.id)
    measurement = page_context.load_measurement(head.row, make=False)
    return ChecksView(
        head=head,
        graded=grade is not None,
        out_of_scope=grade.out_of_scope if grade else (),
        restored=grade.restored if grade else (),
        files_precision=grade.files_precision if grade else None,
        files_recall=grade.files_recall if grade else None,
        findings=tuple(
            unsilenced_rule_finding
            for unsilenced_rule_finding in unsilenced_rule_findings(measurement)
            if unsilenced_rule_finding.places
        ),
        unmeasured=measurement.unmeasured if measurement else (),
        delivery=page_context.store.pulls.load_delivery(head.row.id),
        report=newest_attempt_report(page_context, head.row.id),
        sandbox=head.attempt.sandbox,
    )


def evaluations(page_context: PageContext, query: AttemptIdQuery) -> EvaluationsView:
    head, _ = load_attempt_head(page_context, query.attempt)
    attempt_evaluations = tuple(page_context.store.judged.list_evaluations(attempt=head.row.id))
    judge_ids = {attempt_evaluation.judge for attempt_evaluation in attempt_evaluations}
    judges = page_context.store.judged.list_judge_versions() if attempt_evaluations else []
    return EvaluationsView(
        head=head,
        evaluations=attempt_evaluations,
        judges={judge.id: judge for judge in judges if judge.id in judge_ids},
        agreements={
            judge: trust
            for judge in judge_ids
            if (calibration := page_context.store.judged.load_calibration(judge))
            for trust in calibration.trust
            if trust.asked == "overall"
        },
    )


def log(page_context: PageContext, query: AttemptIdQuery) -> LogView:
    head, _ = load_attempt_head(page_context, query.attempt)
    agents = merge_known_agents(page_context.settings.pulls.agents)
    return LogView(head=head, log=load_task_log(page_context.store, head.row.id, agents))


def _build_test_lines(grade: Grade) -> list[TestLine]:
    before = {test.id: test.status for test in grade.before.tests} if grade.before else {}
    lines = [
        TestLine(
            id=_truncate_text(test.id, MAX_NAME_CHARS),
            before=before.get(test.id, "absent"),
            after=test.status,
            message=_truncate_text(test.message, MAX_MESSAGE_CHARS) if test.message else None,
            change=_classify_test_change(before.get(test.id), test.status),
        )
        for test in (grade.after.tests if grade.after else ())
    ]
    order = ("broken", "failing", "mended", "new", "same")
    return sorted(lines, key=lambda line: (order.index(line.change), line.id))


def _truncate_text(text: str, max_chars: int) -> str:
    return text if len(text) <= max_chars else text[:max_chars] + " …"


def _classify_test_change(
    before: str | None, after: str
) -> Literal["broken", "mended", "failing", "new", "same"]:
    fails = after in ("failed", "error")
    if before is None:
        return "failing" if fails else "new"
    if fails:
        return "broken" if before == "passed" else "failing"
    return "mended" if before in ("failed", "error") and after == "passed" else "same"


_ATTEMPT_PATH = "/attempts/{attempt}"
PAGES = (
    Page(
        path=f"{_ATTEMPT_PATH}/diff",
        show=diff,
        template="diff.html",
        about="The change of an attempt, with findings on its lines.",
        section="Sessions",
    ),
    Page(
        path=f"{_ATTEMPT_PATH}/tests",
        show=tests,
        template="tests.html",
        about="Tests before and after an attempt's change.",
        section="Sessions",
    ),
    Page(
        path=f"{_ATTEMPT_PATH}/checks",
        show=checks,
        template="checks.html",
        about="Checks and risk of an attempt's change.",
        section="Sessions",
    ),
    Page(
        path=f"{_ATTEMPT_PATH}/evaluations",
        show=evaluations,
        template="evaluations.html",
        about="Judges' evaluations of an attempt.",
        section="Sessions",
    ),
    Page(
        path=f"{_ATTEMPT_PATH}/log",
        show=log,
        template="task_log.html",
        about="Request, change, tests, corrections and merge decision, compared with the "
        "reference.",
        section="Sessions",
    ),
)
