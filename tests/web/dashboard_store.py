"""A store with something of everything that the dashboard shows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from msgspec.structs import replace

from closeloop.records.attempt import (
    Attempt,
    CommandResult,
    Grade,
    Insight,
    Outcome,
    Proof,
    TestResult,
    TestRun,
    Usage,
)
from closeloop.records.change import (
    Change,
    ChangeReport,
    FileChange,
    RevertChance,
    Risk,
    RiskFactor,
    ToolRun,
)
from closeloop.records.evaluation import (
    CriterionScore,
    Evaluation,
    EvaluationIssue,
    Evaluations,
    JudgeVersion,
    RubricAnswer,
)
from closeloop.records.experiment_plan import AttemptResult, HeldOutRun
from closeloop.records.finding import Finding, Unmeasured
from closeloop.records.score import Score
from closeloop.records.task import Acceptance, Task, Variant
from closeloop.records.team_rules import HumanReview
from closeloop.records.trace import (
    AnyEvent,
    Command,
    Edit,
    Handoff,
    Lane,
    Message,
    Note,
    Read,
    Thought,
    ToolUse,
    Trace,
    Turn,
)
from closeloop.store import Store
from closeloop.text.patches import parse_patch

START = datetime(2026, 3, 1, 9, tzinfo=UTC)
SPIRAL, HANDOFF, LONG, SEALED, PASSED, BARE = (
    f"{name}0000000" for name in ("spira", "hando", "longx", "seale", "passe", "barex")
)
"""Ids of attempts."""
FACT = "Never charge customers who are on hold"
LONG_EVENTS = 1250
SECRET_NAME = "the-held-out-secret"
HOSTILE = (
    "<script>window.pwned = 1</script><img src=x onerror=window.pwned=1>"
    "\"'><svg onload=window.pwned=1></svg><a href='javascript:window.pwned=1'>x</a>"
    "</pre></code></title></textarea></template>{{ 7 * 7 }}{% raw %}&lt;b&gt;\u202ereversed\x1b[2J"
    "\n![x](javascript:alert(1)) [x](data:text/html,<script>) -->"
)


def fill(store: Store, said: str = "plain words") -> None:
    """All of it; `said` stands wherever an agent, a task or a person writes what they like."""
    for task in (_task("missing-cent", said), _task("reminders", said), _sealed(said)):
        store.save_task(task)
    store.save_proof(
        Proof(task="missing-cent", grading="gmissing-cent", state="unproved", reasons=(said,))
    )
    for name in ("closer", "spiraller"):
        store.save_variant(
            Variant(
                digest=f"v{name}",
                name=name if said == "plain words" else f"{name} {said}",
                agent="builtin",
                agent_version=said,
                model=said,
                prompt="p" * 8,
            )
        )
    _keep(store, SPIRAL, "missing-cent", "spiraller", 0, _spiral(said), said, "fail")
    _keep(store, PASSED, "missing-cent", "closer", 1, _short(said), said, "pass")
    _keep(store, HANDOFF, "reminders", "spiraller", 2, _handoff(said), said, "fail")
    _keep(store, LONG, "reminders", "closer", 3, _long(), said, "unscored")
    _keep(store, SEALED, SECRET_NAME, "closer", 4, _short(said), said, "fail")
    store.save_attempt(
        AttemptResult(
            attempt=Attempt(
                id=BARE, origin="production", exit="crashed", cause=said, user=said, summary=said
            )
        )
    )
    store.held_out.add_unsealing(
        HeldOutRun(
            at=START,
            who=said,
            reason=said,
            tasks="t" * 12,
            change="c" * 12,
            experiment="e",
            variants=(said,),
            count=1,
        )
    )
    store.reports.save_report(_report(said), START, repo=said, attempt=SPIRAL)
    store.reports.save_report(_report(SECRET_NAME), START, repo=SECRET_NAME, attempt=SEALED)
    store.judged.save_evaluations(_judged(said))
    store.reviews.save_review(
        HumanReview(
            item=SPIRAL, reviewer=said, at=START, contained=True, outside="none", notes=said
        )
    )
    store.scores.add_scores(
        [
            Score(
                attempt=SPIRAL,
                name=name,
                value=value,
                label=label,
                source="person",
                by=said,
                at=START,
                note=said,
            )
            for name, value, label in (("would-merge", 0.0, None), (said, None, said))
        ]
    )


def _task(name: str, said: str) -> Task:
    return Task(
        id=name,
        prompt=f"Mend it. {FACT}. {said}",
        repo=said,
        base="a" * 40,
        scope=(said,),
        protected=(said,),
        tags=("bug",),
        acceptance=Acceptance(run=f"pytest {said}", fail_to_pass=("tests/test_x.py::test_a",)),
        facts=(FACT,) if name == "reminders" else (),
        digest=f"d{name}",
        grading=f"g{name}",
        origin=said,
    )


def _sealed(said: str) -> Task:
    return Task(
        id=SECRET_NAME,
        prompt=f"{SECRET_NAME} {said}",
        split="held-out",
        digest="dsealed",
        grading="gsealed",
    )


def _keep(
    store: Store, name: str, task: str, variant: str, hour: int, trace: Trace, said: str, how: str
) -> None:
    began = START + timedelta(hours=hour)
    made = Attempt(
        id=name,
        origin="experiment",
        task=task,
        task_digest="dsealed" if task == SECRET_NAME else f"d{task}",
        variant=f"v{variant}",
        started=began,
        ended=began + timedelta(seconds=61),
        exit="finished",
        cause=said,
        usage=Usage(input_tokens=1200, output_tokens=30, cost=0.02),
        summary=said,
        sandbox=said,
        branch=said,
        user=said,
    )
    store.save_attempt(
        AttemptResult(
            attempt=made,
            trace=trace,
            change=parse_patch(_patch(said)),
            grade=_grade(name, task, said, how),
            insights=(
                Insight(attempt=name, repo=None, type="agent_self_feedback", text=said, at=began),
            ),
        )
    )


def _patch(said: str) -> str:
    lines = [line or " " for line in said.splitlines()] or [" "]
    added = "\n".join(f"+{line}" for line in lines)
    return (
        "diff --git a/src/x.py b/src/x.py\n--- a/src/x.py\n+++ b/src/x.py\n"
        f"@@ -1,1 +1,{len(lines) + 1} @@\n one = 1\n{added}\n"
    )


def _grade(name: str, task: str, said: str, how: str) -> Grade:
    result = {"pass": "pass", "fail": "fail", "unscored": "unscored"}[how]
    after = TestRun(
        when="after",
        tests=(
            TestResult(id=f"tests/test_x.py::test_a {said}", status="failed", message=said),
            TestResult(id="tests/test_x.py::test_b", status="passed"),
        ),
        commands=(CommandResult(command=said, exit_code=1, seconds=1.5, output=said),),
        ran=True,
        flaky=(said,),
        notes=(said,),
    )
    before = TestRun(
        when="before", tests=(TestResult(id="tests/test_x.py::test_b", status="failed"),), ran=True
    )
    return Grade(
        attempt=name,
        grading="gsealed" if task == SECRET_NAME else f"g{task}",
        version=1,
        outcome=Outcome(result=result, reasons=(said,) if how == "fail" else (), cause=said),  # type: ignore[arg-type]
        before=before,
        after=after,
        fail_to_pass=(0, 1),
        pass_to_pass=(1, 1),
        out_of_scope=("src/x.py", said),
        restored=(said,),
        files_precision=0.5,
        files_recall=1.0,
    )


def _lane(said: str = "root") -> Lane:
    return Lane(id="root", agent=said, turns=(Turn(), Turn()))


def _short(said: str) -> Trace:
    events: list[AnyEvent] = [
        Message(number=1, lane="root", role="user", text=f"Mend it. {said}", intent="request"),
        Thought(number=2, lane="root", text=said),
        Read(number=3, lane="root", path=said, text=said, ok=True),
        ToolUse(number=4, lane="root", name=said, arguments={said: said}, output=said, ok=False),
        Note(number=5, lane="root", text=said, about=said),
        Edit(number=6, lane="root", path=said, before=said, after=said, ok=False, error=said),
        Command(number=7, lane="root", command=said, output=said, exit_code=1, stopped=said),
        Message(number=8, lane="root", role="agent", text=f"All is done. {said}", intent="claim"),
    ]
    return _trace([_lane(said)], events, {said: 2})


def _spiral(said: str) -> Trace:
    """Five changes, each followed by the same failure, and then a claim."""
    failing = (
        "FAILED tests/test_x.py::test_a - assert 1 == 2\n"
        "FAILED tests/test_x.py::test_b - assert 3 == 4\n2 failed, 1 passed in 0.10s\n"
    )
    events: list[AnyEvent] = [
        Message(number=1, lane="root", role="user", text="Make the tests pass.", intent="request")
    ]
    for turn in range(1, 6):
        number = 2 * turn
        events.append(
            Edit(
                number=number,
                lane="root",
                turn=turn,
                path="src/x.py",
                before=f"x = {turn}",
                after=f"x = {turn + 1}",
                ok=True,
            )
        )
        events.append(
            Command(
                number=number + 1,
                lane="root",
                turn=turn,
                command="pytest -q tests/test_x.py",
                output=failing,
                exit_code=1,
                at=START + timedelta(seconds=turn),
            )
        )
    events.append(
        Message(
            number=12, lane="root", role="agent", text=f"All tests pass. {said}", intent="claim"
        )
    )
    return _trace([_lane()], events, {})


def _handoff(said: str) -> Trace:
    """The brief leaves out what the user asked for, and the child does not know."""
    events: list[AnyEvent] = [
        Message(
            number=1,
            lane="root",
            role="user",
            text=f"Write src/remind.py. {FACT}. {said}",
            intent="request",
        ),
        Handoff(
            number=2, lane="root", brief=f"Write src/remind.py. {said}", child="c1", report=said
        ),
        Edit(number=3, lane="c1", path="src/remind.py", action="create", after=said, ok=True),
        Message(number=4, lane="c1", role="agent", text=f"src/remind.py is written. {said}"),
        Message(number=5, lane="root", role="agent", text=f"Done. {said}", intent="claim"),
    ]
    child = Lane(id="c1", parent="root", agent=said, turns=(Turn(),))
    return _trace([_lane(said), child], events, {})


def _long() -> Trace:
    events: list[AnyEvent] = [
        Message(number=1, lane="root", role="user", text="Look at everything.", intent="request")
    ]
    for number in range(2, LONG_EVENTS + 1):
        text = "a needle in the hay" if number == LONG_EVENTS - 7 else f"line {number}"
        events.append(
            Command(number=number, lane="root", command=f"echo {number}", output=text, exit_code=0)
        )
    return _trace([_lane()], events, {})


def _trace(lanes: list[Lane], events: list[AnyEvent], skipped: dict[str, int]) -> Trace:
    return Trace(
        reader="builtin",
        reader_version=1,
        lanes=tuple(lanes),
        events=tuple(events),
        skipped=skipped,
    )


def _report(said: str) -> ChangeReport:
    broken = ToolRun(
        name=f"test {said}",
        command=said,
        before="passed",
        after="failed",
        broke=(said,),
        already=(said,),
        output=said,
        seconds=1.5,
        selected=said,
        note=said,
    )
    found = Finding(rule="copied-code", version=1, severity="warning", message=said, source="check")
    places = ("src/x.py:9", "src/x.py:2", f"src/{said}.py:3", said)
    return ChangeReport(
        change=Change(base="a" * 40, files=(FileChange(path=said, status="changed", added=2),)),
        title=said,
        verdict="block",
        reasons=(said,),
        tools=(broken,),
        findings=(found, *(replace(found, places=(place,)) for place in places)),
        risk=Risk(
            level="high",
            reasons=(said,),
            factors=(RiskFactor(name=said, axis="impact", text=said, weight=0.9, places=(said,)),),
            chance=RevertChance(value=0.12, low=0.08, high=0.17, of=900, method="logistic"),
            unmeasured=(Unmeasured(rule=said, reason=said),),
        ),
    )


def _judged(said: str) -> Evaluations:
    judge = JudgeVersion(
        id="j1",
        judge="checks",
        rubric=said,
        rubric_digest="r",
        prompt="p",
        model=said,
        temperature=0.1,
    )
    one = Evaluation(
        id="ev1",
        task="missing-cent",
        attempt=SPIRAL,
        judge="j1",
        answers=(
            RubricAnswer(
                check=said,
                criterion="quality",
                verdict="no",
                evidence=(said,),
                reasoning=said,
                void=said,
            ),
        ),
        criteria=(CriterionScore(name="quality", score=0.4),),
        score=0.4,
        passed=False,
        issues=(EvaluationIssue(check=said, criterion="quality", text=said, evidence=(said,)),),
        summary=said,
        same_family=True,
        at=START,
    )
    return Evaluations(judges=(judge,), evaluations=(one,), passed=False, summary=said)
