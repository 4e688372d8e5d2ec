"""Plans, tries and verdicts are kept as they were, together and once, on both engines."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec.structs import replace
from sqlalchemy import create_engine, text

from closeloop.attempts.attempt_saving import JudgedTry, ResultSaver, recover_batches
from closeloop.orchestration.plan_execution import measure_plan_rates
from closeloop.records.attempt import Attempt, Usage
from closeloop.records.errors import BadInput, MachineFailed
from closeloop.records.evaluation import (
    CriterionScore,
    Evaluation,
    EvaluationIssue,
    Evaluations,
    JudgeVersion,
)
from closeloop.records.experiment_plan import AttemptResult
from closeloop.records.orchestration import (
    Orchestration,
    OrchestrationResult,
    SubtaskAssessment,
    SubtaskExecution,
    SubtaskResult,
    SubtaskSpec,
)
from closeloop.records.trace import Exchange, Lane, Message, Trace
from closeloop.store import Store, open_store
from closeloop.store.plan_section import pack_exchanges

NOW = datetime(2026, 3, 4, 5, 6, 7, 89, tzinfo=UTC)
HOSTILE = "x\0\ud800 'quoted'; DROP TABLE plan_tasks; -- \u202e"
PLAN = Orchestration(
    id="abc123",
    at=NOW,
    request=HOSTILE,
    tasks=(SubtaskSpec(id="a", prompt="p"), SubtaskSpec(id="b", prompt="p", depends_on=("a",))),
    worker="w",
)
JUDGE = JudgeVersion(
    id="j1", judge="c", rubric="r", rubric_digest="d", prompt="p", model="m", temperature=0.1
)
VIEWS = (
    *("plan_task_tries", "plan_task_verdicts", "plan_task_finals"),
    *("plan_grades", "plan_quality_trend", "plan_tokens", "plan_durations", "plan_retries"),
)


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    with open_store(store_url) as opened:
        yield opened


def tried(task: str = "a", number: int = 1, **fields: Any) -> SubtaskResult:
    execution = SubtaskExecution(
        plan="abc123",
        task=task,
        number=number,
        variant="w",
        agent=HOSTILE,
        brief=HOSTILE,
        exit="finished",
        report=HOSTILE,
        usage=Usage(input_tokens=3, cache_read_tokens=4, output_tokens=5, cost=0.5),
        started=NOW,
        ended=NOW + timedelta(seconds=2),
    )
    event = Message(number=1, lane="root", role="agent", text="Done.")
    trace = Trace(reader="a", reader_version=1, lanes=(Lane(id="root"),), events=(event,))
    return SubtaskResult(execution=replace(execution, **fields), trace=trace)


def verdict(task: str = "a", number: int = 1, passed: bool | None = False) -> SubtaskAssessment:
    evaluation = Evaluation(
        id=f"e-{task}-{number}",
        task=task,
        judge="j1",
        criteria=(CriterionScore(name="quality", score=0.5),),
        score=0.25,
        passed=passed,
        usage=Usage(input_tokens=7, cost=0.1),
        at=NOW,
    )
    return SubtaskAssessment(
        plan="abc123",
        task=task,
        number=number,
        passed=passed,
        score=0.25,
        issues=(EvaluationIssue(check="c", criterion="quality", text=HOSTILE),),
        evaluation=evaluation,
        at=NOW,
    )


def storable(value: str) -> str:
    return value.encode("utf-8", "replace").decode()


def test_all_of_a_plan_comes_back_whatever_it_holds(store: Store) -> None:
    store.plans.save_plan(PLAN)
    exchange = Exchange(
        number=1, at=NOW, path="reply", request=b"q" * 9000, response=b"a", status=200, seconds=0.1
    )
    one = replace(tried(), exchanges=pack_exchanges([exchange, replace(exchange, number=2)]))
    store.plans.save([one], [verdict()])
    story = store.plans.load_story("abc")
    assert story.plan == replace(PLAN, request=storable(HOSTILE))
    (kept,) = story.tries
    assert kept.execution == replace(
        one.execution, agent=storable(HOSTILE), brief=storable(HOSTILE), report=storable(HOSTILE)
    )
    assert kept.assessment is not None
    assert kept.assessment.issues[0].text == storable(HOSTILE)
    assert story.ending is None
    assert store.plans.load_traces("abc123") == {("a", 1): one.trace}
    assert [one.request for one in store.plans.load_exchanges("abc123", "a", 1)] == [
        b"q" * 9000
    ] * 2
    assert store.plans.load_exchanges("abc123", "b", 1) == ()


def test_the_newest_verdict_and_the_newest_ending_count(store: Store) -> None:
    store.plans.save_plan(PLAN)
    unsaid, said = verdict(passed=None), verdict(passed=True)
    assert unsaid.evaluation is not None
    unsaid = replace(unsaid, evaluation=replace(unsaid.evaluation, id="first"))
    store.plans.save([tried()], [unsaid])
    store.plans.save([], [said])
    store.plans.save([], [said])  # as when we were killed right after it was recovered
    (kept,) = store.plans.load_story("abc123").tries
    assert kept.assessment is not None
    assert kept.assessment.passed is True
    assert kept.judged_before.cost == pytest.approx(0.1)
    assert measure_plan_rates(store.plans.load_story("abc123")).usage.cost == pytest.approx(
        0.5 + 2 * 0.1
    )
    store.save_attempt(
        AttemptResult(attempt=Attempt(id="t1", origin="production", exit="finished"))
    )
    early = OrchestrationResult(
        plan="abc123", at=NOW, passed=False, summary="No.", not_begun={"b": "why"}, attempt="t1"
    )
    late = replace(early, passed=True, summary="Yes.", not_begun={}, at=NOW + timedelta(1))
    for ending in (early, early, late):
        store.plans.save_ending(PLAN, ending)
    assert store.plans.load_story("abc123").ending == late
    (row,) = store.plans.list_plans(5)
    assert (row.passed, row.ended, row.summary, row.tasks, row.tries) == (True, True, "Yes.", 2, 1)


def test_what_was_not_begun_has_a_row_and_is_no_try(store: Store, store_url: str) -> None:
    store.plans.save_plan(PLAN)
    ending = OrchestrationResult(
        plan="abc123", at=NOW, passed=False, summary="", not_begun={"b": "why"}
    )
    store.plans.save_ending(PLAN, ending)
    assert query(store_url, "SELECT task, try, pass, issues FROM plan_tasks") == [
        ("b", 0, None, '["not begun: why"]')
    ]
    assert store.plans.load_story("abc123").tries == ()
    assert query(store_url, "SELECT COUNT(*) FROM plan_task_verdicts") == [(0,)]


def query(url: str, statement: str) -> list[tuple[Any, ...]]:
    address = url.replace("postgresql:", "postgresql+psycopg:")
    engine = create_engine(address if "://" in url else f"sqlite:///{url}")
    try:
        with engine.begin() as connection:
            return [tuple(row) for row in connection.execute(text(statement))]
    finally:
        engine.dispose()


def test_saving_a_try_twice_keeps_the_first_and_nothing_is_changed(
    store: Store, store_url: str
) -> None:
    store.plans.save_plan(PLAN)
    store.plans.save([tried()], [])
    store.plans.save([tried(report="other")], [])
    (kept,) = store.plans.load_story("abc123").tries
    assert kept.execution.report == storable(HOSTILE)
    for table in ("orchestrator_plans", "plan_tasks", "subagent_executions"):
        store.plans.save([], [verdict()])
        with pytest.raises(Exception, match="are facts"):
            query(store_url, f"DELETE FROM {table} RETURNING 1")
    assert len(store.plans.load_story("abc123").tries) == 1


def test_tokens_are_counted_as_orchestrators_do(store: Store, store_url: str) -> None:
    store.plans.save_plan(PLAN)
    store.plans.save([tried(), tried(number=2)], [verdict(), verdict(number=2, passed=True)])
    asked = "SELECT prompt_tokens, completion_tokens, cost, duration FROM subagent_executions"
    assert query(store_url, asked) == [(7, 5, 0.5, 2.0)] * 2
    again = "SELECT retries, retry_cost, retry_duration, passed_first, passed FROM plan_retries"
    assert query(store_url, again) == [(1, pytest.approx(0.6), 2.0, 0, 1)]
    for view in VIEWS:
        assert query(store_url, f"SELECT COUNT(*) FROM {view}")[0][0] >= 1


def test_what_the_machine_lost_is_neither_a_first_try_nor_a_retry(
    store: Store, store_url: str
) -> None:
    store.plans.save_plan(PLAN)
    lost = SubtaskAssessment(plan="abc123", task="a", number=1, passed=None, why="lost", at=NOW)
    again = replace(lost, number=3)
    store.plans.save(
        [tried(exit="machine"), tried(number=2), tried(number=3, exit="machine")],
        [lost, verdict(number=2, passed=True), again],
    )
    asked = "SELECT retries, retry_cost, retry_duration, passed_first, passed FROM plan_retries"
    assert query(store_url, asked) == [(0, 0.0, 0.0, 1, 1)]
    assert query(store_url, "SELECT try, pass FROM plan_task_finals") == [(2, True)]
    trend = "SELECT judged, first_try_rate FROM plan_quality_trend"
    assert [tuple(map(float, row)) for row in query(store_url, trend)] == [(1.0, 1.0)]


def test_what_a_retry_cost_is_not_told_where_it_is_not_known(store: Store, store_url: str) -> None:
    store.plans.save_plan(PLAN)
    store.plans.save(
        [tried(), tried(number=2, usage=Usage(input_tokens=1))], [verdict(), verdict(number=2)]
    )
    assert query(store_url, "SELECT retry_cost FROM plan_retries") == [(None,)]


def test_scores_of_different_judges_are_never_averaged(store: Store, store_url: str) -> None:
    store.plans.save_plan(PLAN)
    judged = [scored("a", "j1", 1.0), scored("b", "j2", 0.85)]
    store.plans.save([tried("a"), tried("b")], judged)
    said = tuple(one.evaluation for one in judged if one.evaluation is not None)
    judges = (JUDGE, replace(JUDGE, id="j2"))
    store.judged.save_evaluations(
        Evaluations(judges=judges, evaluations=said, passed=True, summary="")
    )
    ending = OrchestrationResult(plan="abc123", at=NOW, passed=True, summary="")
    store.plans.save_ending(PLAN, ending)
    assert query(store_url, "SELECT score, weakest, grade FROM plan_grades") == [(None, 0.85, "B")]
    trend = "SELECT judge, score FROM plan_quality_trend ORDER BY judge"
    assert query(store_url, trend) == [("j1", 1.0), ("j2", 0.85)]


def test_a_plan_that_a_panel_passed_has_no_grade(store: Store, store_url: str) -> None:
    store.plans.save_plan(PLAN)
    store.plans.save([tried()], [scored("a", "j1", None)])
    store.plans.save_ending(
        PLAN, OrchestrationResult(plan="abc123", at=NOW, passed=True, summary="")
    )
    assert query(store_url, "SELECT overall_pass, score, grade FROM plan_grades") == [
        (True, None, None)
    ]


def test_a_task_that_its_command_failed_leaves_no_mean_score(store: Store, store_url: str) -> None:
    """One task at 1.00 and one without a score: the mean over both is not 1.00."""
    store.plans.save_plan(PLAN)
    failed = replace(verdict("b", passed=False), score=None)
    store.plans.save([tried("a"), tried("b")], [scored("a", "j1", 1.0), failed])
    store.plans.save_ending(
        PLAN, OrchestrationResult(plan="abc123", at=NOW, passed=False, summary="")
    )
    graded = "SELECT judged, passed, score, weakest, grade FROM plan_grades"
    assert query(store_url, graded) == [(2, 1, None, None, "F")]


def scored(task: str, judge: str, score: float | None) -> SubtaskAssessment:
    made = verdict(task, passed=True)
    assert made.evaluation is not None
    evaluation = replace(made.evaluation, judge=judge, score=score, criteria=())
    return replace(made, score=score, evaluation=evaluation)


def test_a_plan_is_found_by_the_beginning_of_its_id(store: Store) -> None:
    store.plans.save_plan(PLAN)
    store.plans.save_plan(replace(PLAN, id="abd", request="other"))
    assert store.plans.load_story("abc").plan.id == "abc123"
    assert [row.id for row in store.plans.list_plans(10)] == ["abd", "abc123"]
    assert [row.id for row in store.plans.list_plans(1)] == ["abd"]
    assert store.plans.count_plans() == 2
    with pytest.raises(BadInput, match="is a prefix of several plans"):
        store.plans.load_story("ab")
    with pytest.raises(BadInput, match="No plan begins with"):
        store.plans.load_story("x")


def test_what_comes_together_is_saved_together(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.plans.save_plan(PLAN)
    sizes: list[int] = []
    save = store.plans.save

    def counted(*batch: Any) -> None:
        sizes.append(sum(map(len, batch)))
        save(*batch)

    monkeypatch.setattr(store.plans, "save", counted)

    async def go() -> None:
        safe = ResultSaver(store, tmp_path, "abc123")
        async with anyio.create_task_group() as group:
            for number in range(1, 201):
                group.start_soon(safe.save_result, tried(number=number))
                judged = JudgedTry(assessment=verdict(number=number), judges=(JUDGE,))
                group.start_soon(safe.save_result, judged)

    anyio.run(go)
    assert sum(sizes) == 400
    assert len(sizes) < 20
    assert len(store.plans.load_story("abc123").tries) == 200
    assert len(store.judged.list_evaluations()) == 200


def test_where_neither_database_nor_disk_takes_it_that_is_said(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*batch: Any) -> None:
        raise MachineFailed("The database cannot be reached.")

    monkeypatch.setattr(store.plans, "save", gone)
    (tmp_path / "unsaved").write_text("a file in the way")
    safe = ResultSaver(store, tmp_path / "unsaved", "abc123")
    told = "^The database cannot be reached, and .* cannot be written .*: free some space, then"
    with pytest.raises(MachineFailed, match=told):
        anyio.run(safe.save_result, tried())


def test_a_file_that_is_damaged_is_named(store: Store, tmp_path: Path) -> None:
    (tmp_path / "abc123-1.unsaved").write_bytes(b"")
    with pytest.raises(MachineFailed, match=r"abc123-1\.unsaved cannot be read: upgrade"):
        recover_batches(store, tmp_path, "abc123")


def test_what_no_database_takes_lies_in_a_file_until_one_does(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.plans.save_plan(PLAN)

    def gone(*batch: Any) -> None:
        raise MachineFailed("The database cannot be reached.")

    async def keep(safe: ResultSaver, one: SubtaskResult | JudgedTry) -> None:
        told = r"^[^;]*; finished attempts .*--resume abc123[^;]*$"
        with pytest.raises(MachineFailed, match=told):
            await safe.save_result(one)

    async def go() -> None:
        safe = ResultSaver(store, tmp_path / "unsaved", "abc123")
        async with anyio.create_task_group() as group:
            for number in range(1, 6):
                group.start_soon(keep, safe, tried(number=number))
        await keep(safe, JudgedTry(assessment=verdict(), judges=(JUDGE,)))

    with monkeypatch.context() as patch:
        patch.setattr(store.plans, "save", gone)
        anyio.run(go)
    assert store.plans.load_story("abc123").tries == ()
    assert recover_batches(store, tmp_path / "unsaved", "abc123") >= 1
    assert recover_batches(store, tmp_path / "unsaved", "abc123") == 0
    story = store.plans.load_story("abc123")
    assert len(story.tries) == 5
    assert story.tries[0].assessment is not None
