"""What an attempt left: its change, what the tests say of it, and what else is known."""

from __future__ import annotations

from typing import Literal

from closeloop.model.attempt import CommandResult, Grade, IntegrityCheck
from closeloop.model.change import Change
from closeloop.model.delivery import Delivery
from closeloop.model.evaluation import Evaluation, JudgeVersion
from closeloop.model.finding import Finding, Unmeasured
from closeloop.model.record import Record
from closeloop.web.desk import Desk
from closeloop.web.page import Page
from closeloop.web.pages.heads import AttemptAsked, AttemptHead, counted, open_attempt
from closeloop.web.pages.reports import newest
from closeloop.web.views.diff import DiffFile, diff_files, located
from closeloop.web.views.tiers import ReportShown

MOST_TESTS = 500
MOST_NAME = 500
MOST_MESSAGE = 10_000
"""Characters of what a test is called and says."""


class DiffView(Record):
    """The change of an attempt, with findings on its lines."""

    head: AttemptHead
    files: tuple[DiffFile, ...]
    findings: tuple[Finding, ...]
    base: str | None
    branch: str | None


class TestLine(Record):
    """One test, before and after the change."""

    id: str
    before: str
    after: str
    message: str | None
    change: Literal["broken", "mended", "failing", "new", "same"]


class TestsView(Record):
    """Tests before and after; those whose result changed or that fail come first."""

    head: AttemptHead
    graded: bool
    reasons: tuple[str, ...]
    fail_to_pass: tuple[int, int] | None
    pass_to_pass: tuple[int, int] | None
    tests: tuple[TestLine, ...]
    more: int
    passing: int
    """Tests that passed before and still do."""
    commands: tuple[CommandResult, ...]
    flaky: tuple[str, ...]
    notes: tuple[str, ...]
    integrity: tuple[IntegrityCheck, ...] = ()
    evidence: str | None = None
    """How a pass is known: `confirmed`, `reported` or `weak`."""


class ChecksView(Record):
    """What is certain about the change besides its tests."""

    head: AttemptHead
    graded: bool
    out_of_scope: tuple[str, ...]
    restored: tuple[str, ...]
    files_precision: float | None
    files_recall: float | None
    findings: tuple[Finding, ...]
    """Those that are about places in files."""
    unmeasured: tuple[Unmeasured, ...]
    delivery: Delivery | None
    report: ReportShown | None
    """What `closeloop check` last said of it."""
    sandbox: str | None


class EvaluationsView(Record):
    """What judges said of the attempt's output."""

    head: AttemptHead
    evaluations: tuple[Evaluation, ...]
    judges: dict[str, JudgeVersion]


def diff(desk: Desk, asked: AttemptAsked) -> DiffView:
    head, _ = open_attempt(desk, asked.attempt)
    change = desk.store.change(head.row.id) or Change()
    grade = desk.store.grade(head.row.id)
    marks = [(path, "outside the scope") for path in grade.out_of_scope] if grade else []
    marks += [(path, "restored before grading") for path in grade.restored] if grade else []
    said = counted(desk.measurement(head.row, make=False))
    findings = located(said, desk.trace(head.row.id), diff_files(change, (), ()))
    return DiffView(
        head=head,
        files=diff_files(change, findings, marks),
        findings=findings,
        base=change.base,
        branch=head.attempt.branch,
    )


def tests(desk: Desk, asked: AttemptAsked) -> TestsView:
    head, _ = open_attempt(desk, asked.attempt)
    grade = desk.store.grade(head.row.id)
    lines = _test_lines(grade) if grade else []
    told = [line for line in lines if line.change != "same"]
    after = grade.after if grade else None
    return TestsView(
        head=head,
        graded=grade is not None,
        reasons=grade.outcome.reasons if grade else (),
        fail_to_pass=grade.fail_to_pass if grade else None,
        pass_to_pass=grade.pass_to_pass if grade else None,
        tests=tuple(told[:MOST_TESTS]),
        more=max(0, len(told) - MOST_TESTS),
        passing=len(lines) - len(told),
        commands=after.commands if after else (),
        flaky=after.flaky if after else (),
        notes=(*after.notes, *filter(None, (after.trouble,))) if after else (),
        integrity=grade.integrity if grade else (),
        evidence=grade.evidence if grade else None,
    )


def checks(desk: Desk, asked: AttemptAsked) -> ChecksView:
    head, _ = open_attempt(desk, asked.attempt)
    grade = desk.store.grade(head.row.id)
    measurement = desk.measurement(head.row, make=False)
    return ChecksView(
        head=head,
        graded=grade is not None,
        out_of_scope=grade.out_of_scope if grade else (),
        restored=grade.restored if grade else (),
        files_precision=grade.files_precision if grade else None,
        files_recall=grade.files_recall if grade else None,
        findings=tuple(one for one in counted(measurement) if one.places),
        unmeasured=measurement.unmeasured if measurement else (),
        delivery=desk.store.pulls.delivery(head.row.id),
        report=newest(desk, head.row.id),
        sandbox=head.attempt.sandbox,
    )


def evaluations(desk: Desk, asked: AttemptAsked) -> EvaluationsView:
    head, _ = open_attempt(desk, asked.attempt)
    found = tuple(desk.store.judged.evaluations(attempt=head.row.id))
    wanted = {one.judge for one in found}
    judges = desk.store.judged.versions() if found else []
    return EvaluationsView(
        head=head,
        evaluations=found,
        judges={one.id: one for one in judges if one.id in wanted},
    )


def _test_lines(grade: Grade) -> list[TestLine]:
    before = {test.id: test.status for test in grade.before.tests} if grade.before else {}
    lines = [
        TestLine(
            id=_cut(test.id, MOST_NAME),
            before=before.get(test.id, "absent"),
            after=test.status,
            message=_cut(test.message, MOST_MESSAGE) if test.message else None,
            change=_change(before.get(test.id), test.status),
        )
        for test in (grade.after.tests if grade.after else ())
    ]
    order = ("broken", "failing", "mended", "new", "same")
    return sorted(lines, key=lambda line: (order.index(line.change), line.id))


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[:most] + " …"


def _change(
    before: str | None, after: str
) -> Literal["broken", "mended", "failing", "new", "same"]:
    fails = after in ("failed", "error")
    if before is None:
        return "failing" if fails else "new"
    if fails:
        return "broken" if before == "passed" else "failing"
    return "mended" if before in ("failed", "error") and after == "passed" else "same"


_PLACE = "/attempts/{attempt}"
PAGES = (
    Page(
        path=f"{_PLACE}/diff",
        show=diff,
        template="diff.html",
        about="What an attempt changed, with findings on the lines.",
        section="Attempts",
    ),
    Page(
        path=f"{_PLACE}/tests",
        show=tests,
        template="tests.html",
        about="Tests before and after an attempt's change.",
        section="Attempts",
    ),
    Page(
        path=f"{_PLACE}/checks",
        show=checks,
        template="checks.html",
        about="What checks say of an attempt's change, and how risky it is.",
        section="Attempts",
    ),
    Page(
        path=f"{_PLACE}/evaluations",
        show=evaluations,
        template="evaluations.html",
        about="What judges said of an attempt.",
        section="Attempts",
    ),
)
