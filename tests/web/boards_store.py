"""What `dashboard_store` does not have: experiments, plans, pull requests, memory, prompts."""

from __future__ import annotations

from datetime import datetime, timedelta

from dashboard_store import START, fill

from closeloop.records.attempt import Attempt, CommandResult, Grade, Outcome, Usage
from closeloop.records.evaluation import EvaluationIssue
from closeloop.records.experiment_plan import AttemptResult
from closeloop.records.orchestration import (
    Orchestration,
    OrchestrationResult,
    SubtaskAssessment,
    SubtaskExecution,
    SubtaskResult,
    SubtaskSpec,
)
from closeloop.records.pull_request import (
    Correction,
    Delivery,
    Fact,
    PullCommit,
    PullDescription,
    Push,
    Review,
    ReviewComment,
)
from closeloop.records.task import Experiment, PromptVersion, Task, Variant
from closeloop.records.team_rules import RepeatedRemark, RuleExample, TeamRule
from closeloop.records.trace import Command, Lane, Message, Trace
from closeloop.reviews.authorship import merge_known_agents
from closeloop.reviews.pull_lifecycle import save_facts
from closeloop.store import Store
from closeloop.text.patches import parse_patch

EXPERIMENT, PLAN, REPO, PULL = "e11111111111", "p11111111111", "acme/billing", 7
OLD, NEW = "a" * 64, "b" * 64
"""Versions of a prompt."""
TASKS = tuple(f"task-{number}" for number in range(8))
REPEATS = 2


def fill_boards(store: Store, said: str = "plain words") -> None:
    """All of it, on top of what the attempt pages need."""
    fill(store, said)
    for name, text in ((OLD, f"Be careful.\n{said}\n"), (NEW, f"Be quick.\n{said}\n")):
        store.save_prompt(PromptVersion(id=name, text=text, tools=said, settings=said))
    for name, prompt in (("steady", OLD), ("hasty", NEW)):
        shown = name if said == "plain words" else f"{name} {said}"
        store.save_variant(
            Variant(digest=f"v{name}", name=shown, agent="builtin", model=said, prompt=prompt)
        )
    for task in TASKS:
        store.save_task(
            Task(id=task, prompt=said, repo=REPO, digest=f"d{task}", grading=f"g{task}")
        )
    experiment(store, said)
    deliveries(store)
    plan(store, said)
    pull(store, said)
    memory(store, said)


def experiment(store: Store, said: str) -> None:
    """Sixteen places for each of two variants; the last one is still being worked on."""
    digests = tuple(f"d{task}" for task in TASKS)
    made = Experiment(
        id=EXPERIMENT,
        tasks=digests,
        variants=("vsteady", "vhasty"),
        repeats=REPEATS,
        name=said,
        budget=5.0,
    )
    store.save_experiment(made)
    places = [
        (task, variant, number)
        for task in TASKS
        for variant in ("steady", "hasty")
        for number in range(1, REPEATS + 1)
    ]
    for place, (task, variant, number) in enumerate(places[:-1]):
        good = variant == "steady" or (place // 4) % 4 == 0
        attempt(store, f"x{place:011d}", (task, variant, number), said, good=good)
    task, variant, number = places[-1]
    store.claim_job(f"d{task}/v{variant}/{number}/0", "somebody", 3600)


def attempt(store: Store, name: str, place: tuple[str, str, int], said: str, *, good: bool) -> None:
    task, variant, number = place
    began = START + timedelta(days=int(name[-3:]))
    trace = Trace(
        reader="builtin",
        reader_version=1,
        lanes=(Lane(id="root"),),
        events=(
            Message(number=1, lane="root", role="user", text=said, intent="request"),
            Command(number=2, lane="root", command="pytest", output=said, exit_code=int(not good)),
        ),
    )
    store.save_attempt(
        AttemptResult(
            attempt=Attempt(
                id=name,
                origin="experiment",
                task=task,
                task_digest=f"d{task}",
                variant=f"v{variant}",
                experiment=EXPERIMENT,
                number=number,
                started=began,
                ended=began + timedelta(seconds=30 + 60 * (variant == "hasty")),
                exit="finished",
                usage=Usage(input_tokens=100, output_tokens=10, cost=0.01),
                user="ann",
            ),
            trace=trace,
            change=parse_patch(patch(task)),
            grade=Grade(
                attempt=name,
                grading=f"g{task}",
                version=1,
                outcome=Outcome(
                    result="pass" if good else "fail",
                    reasons=() if good else (f"a test fails {said}",),
                ),
                fail_to_pass=(int(good), 1),
                evidence=("weak" if task == TASKS[0] else "confirmed") if good else None,
            ),
        )
    )


def patch(task: str) -> str:
    name = f"src/{task}.py"
    return (
        f"diff --git a/{name} b/{name}\n--- a/{name}\n+++ b/{name}\n"
        "@@ -1,2 +1,2 @@\n def total():\n-    return 1\n+    return 2\n"
    )


def deliveries(store: Store) -> None:
    for number in range(12):
        store.pulls.save_delivery(
            Delivery(
                attempt=f"x{number:011d}",
                at=START + timedelta(days=number),
                passed=True,
                merged=number % 4 != 3,
                corrected=number % 5 == 4,
                cycles=number % 3,
                regressed=number % 6 == 5,
                files=number + 1,
                risk=("low", "medium", "high", "critical")[number % 4],  # type: ignore[arg-type]
                first_review=number % 2 == 0,
                comments=number,
                repeated=0,
            )
        )


def plan(store: Store, said: str) -> None:
    """Four tasks: one passed at once, one at its second try, one failed, one was never begun."""
    parts = (
        SubtaskSpec(id="schema", prompt=said, scope=(said,)),
        SubtaskSpec(id="api", prompt=said, depends_on=("schema",)),
        SubtaskSpec(id="pages", prompt=said, depends_on=("schema",)),
        SubtaskSpec(id="release", prompt=said, depends_on=("api", "pages")),
    )
    made = Orchestration(
        id=PLAN, at=START, request=f"Build it. {said}", tasks=parts, worker=said, judges=(said,)
    )
    store.plans.save_plan(made)
    tries = [("schema", 1, True), ("api", 1, False), ("api", 2, True), ("pages", 1, False)]
    store.plans.save(
        [SubtaskResult(execution=execution(task, number, said)) for task, number, _ in tries],
        [assessment(task, number, said, good=good) for task, number, good in tries],
    )
    ending = OrchestrationResult(
        plan=PLAN,
        at=START + timedelta(minutes=9),
        passed=False,
        summary=f"Three of four. {said}",
        held=said,
        not_begun={"release": said},
        seconds=540.0,
        usage=Usage(cost=0.4),
    )
    store.plans.save_ending(made, ending)


def execution(task: str, number: int, said: str) -> SubtaskExecution:
    began = START + timedelta(minutes=number)
    return SubtaskExecution(
        plan=PLAN,
        task=task,
        number=number,
        variant="steady",
        agent="builtin",
        model=said,
        brief=said,
        exit="finished",
        report=said,
        files=(said,),
        checks=(CommandResult(command=said, exit_code=1, seconds=1.0, output=said),),
        usage=Usage(cost=0.1),
        started=began,
        ended=began + timedelta(seconds=50),
    )


def assessment(task: str, number: int, said: str, *, good: bool) -> SubtaskAssessment:
    issues = (
        ()
        if good
        else (EvaluationIssue(check="whole", criterion="quality", text=f"It is not whole. {said}"),)
    )
    return SubtaskAssessment(
        plan=PLAN,
        task=task,
        number=number,
        passed=good,
        score=0.9 if good else 0.4,
        issues=issues,
        ignored=not good,
        at=START + timedelta(minutes=number + 1),
    )


def pull(store: Store, said: str) -> None:
    """An agent's pull request: one round of review, then merged."""
    began = START

    def told(key: str, what: object, minutes: int) -> Fact:
        at = began + timedelta(minutes=minutes)
        return Fact(source="github", repo=REPO, pull=PULL, at=at, key=key, what=what)  # type: ignore[arg-type]

    def at(minutes: int) -> datetime:
        return began + timedelta(minutes=minutes)

    described = PullDescription(
        title=f"Round to cents. {said}",
        body=said,
        author="claude[bot]",
        bot=True,
        branch="claude/cents",
        base="main",
        labels=("risk:high", said),
        opened=began,
        state="merged",
        merged=at(60),
        closed=at(60),
        head="c" * 40,
        files=2,
    )
    first = PullCommit(sha="d" * 40, at=at(1), message=said, author="claude[bot]", bot=True)
    asked = Review(id="r1", by="ann", state="changes_requested", body=said, sha="d" * 40, at=at(10))
    remark = ReviewComment(
        id="c1", by="ann", body=said, at=at(10), path="src/x.py", line=3, review="r1"
    )
    second = PullCommit(sha="c" * 40, at=at(20), message=said, author="claude[bot]", bot=True)
    pushed = Push(after="c" * 40, before="d" * 40, at=at(20), by="claude[bot]", commits=("c" * 40,))
    save_facts(
        [
            told("1", described, 61),
            told("2", first, 1),
            told("3", asked, 10),
            told("4", remark, 10),
            told("5", second, 20),
            told("6", pushed, 20),
        ],
        store,
        merge_known_agents({}),
    )


def memory(store: Store, said: str) -> None:
    example = RuleExample(
        key="c1", source="comment", text=said, repo=REPO, pull=PULL, by=said, at=START
    )
    for number, state in enumerate(("proposed", "active", "retired")):
        store.memory.save_rule(
            TeamRule(
                id=f"rule{number}",
                repo=REPO,
                text=f"Use decimals for money. {said}",
                paths=(said,),
                state=state,  # type: ignore[arg-type]
                since=START,
                activated=START,
                by=said,
                examples=(example,),
            )
        )
    for key, state in (("c1", "confirmed"), ("c2", "candidate"), ("c3", "denied")):
        store.memory.save_repeats(
            [
                RepeatedRemark(
                    key=key,
                    rule="rule1",
                    repo=REPO,
                    pull=PULL,
                    text=said,
                    at=START,
                    likeness=0.9,
                    encoder="ngrams",
                    state=state,  # type: ignore[arg-type]
                    rule_age=60.0,
                )
            ]
        )
    store.memory.save_corrections(
        [
            Correction(
                id="k1",
                repo=REPO,
                pull=PULL,
                kind="comment",
                text=said,
                path=said,
                at=START,
                suggested=("scope creep",),
            )
        ]
    )
