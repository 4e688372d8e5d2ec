"""The loop alone: who works when, what is tried again, what is not begun."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from random import Random

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from closeloop.orchestration.plan_execution import find_breaking_task
from closeloop.orchestration.subtask_loop import (
    SubtaskCallbacks,
    SubtaskOrder,
    ignores_feedback,
    run_subtasks,
)
from closeloop.records.errors import MachineFailed
from closeloop.records.evaluation import EvaluationIssue
from closeloop.records.orchestration import (
    Orchestration,
    OrchestrationProgress,
    SubtaskAssessment,
    SubtaskExecution,
    SubtaskSpec,
    SubtaskTry,
)
from closeloop.records.settings import OrchestrateSettings
from patience import PATIENCE

NOW = datetime(2026, 3, 4, tzinfo=UTC)
WRONG = EvaluationIssue(check="tested", criterion="quality", text="There is no test.")


def plan(*tasks: tuple[str, tuple[str, ...]]) -> Orchestration:
    parts = tuple(
        SubtaskSpec(id=name, prompt=f"Do {name}.", depends_on=needs) for name, needs in tasks
    )
    return Orchestration(id="p", at=NOW, request="All of it.", tasks=parts, worker="w")


def execution(task: str, number: int = 1, **fields: object) -> SubtaskExecution:
    known = {"plan": "p", "variant": "w", "agent": "a", "brief": "b", "exit": "finished"}
    return SubtaskExecution(
        **{**known, "task": task, "number": number, "started": NOW, "ended": NOW, **fields}  # type: ignore[arg-type]
    )


def assessment(one: SubtaskExecution, passed: bool | None, **fields: object) -> SubtaskAssessment:
    issues = (WRONG,) if passed is False else ()
    return SubtaskAssessment(
        plan="p",
        task=one.task,
        number=one.number,
        passed=passed,
        at=NOW,
        **{"issues": issues, **fields},  # type: ignore[arg-type]
    )


class World:
    """Hands that do nothing but remember."""

    def __init__(
        self,
        verdict: Callable[[SubtaskExecution], bool | None] = lambda one: True,
        exit_of: Callable[[SubtaskOrder], str] = lambda order: "finished",
    ) -> None:
        self.orders: list[SubtaskOrder] = []
        self.judged: list[str] = []
        self.kept: list[SubtaskAssessment] = []
        self.told: list[OrchestrationProgress] = []
        self.merged: list[list[str]] = []
        self.at_once = self.most = 0
        self.verdict = verdict
        self.exit_of = exit_of
        self.clash: Callable[[Sequence[SubtaskExecution]], str | None] = lambda made: None
        self.breaks: Callable[[list[str]], str | None] = lambda patches: None
        self.wholes: list[list[str]] = []
        self.hold: Callable[[], str | None] = lambda: None
        self.ready: Callable[[SubtaskOrder], bool] = lambda order: True

    async def work(self, order: SubtaskOrder) -> SubtaskExecution:
        self.orders.append(order)
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        await anyio.lowlevel.checkpoint()
        with anyio.fail_after(PATIENCE):
            while not self.ready(order):  # noqa: ASYNC110
                await anyio.sleep(0.005)
        self.at_once -= 1
        return execution(
            order.task.id,
            order.number,
            exit=self.exit_of(order),
            built_on=tuple(one.task for one in order.beneath),
            patch=f"{order.task.id} {order.number}",
        )

    async def judge(self, one: SubtaskExecution) -> SubtaskAssessment:
        self.judged.append(f"{one.task} {one.number}")
        return assessment(one, self.verdict(one))

    async def merge(self, made: Sequence[SubtaskExecution]) -> str | None:
        self.merged.append([one.task for one in made])
        return self.clash(made)

    async def check_whole(
        self, accepted: Mapping[str, SubtaskExecution]
    ) -> dict[str, EvaluationIssue]:
        self.wholes.append(sorted(one.patch for one in accepted.values()))
        breaker = self.breaks(self.wholes[-1])
        text = f"`make` fails with {breaker}."
        return {
            name: EvaluationIssue(check="together", criterion=None, text=text, source="fact")
            for name, one in accepted.items()
            if one.patch == breaker
        }

    async def keep(self, one: SubtaskAssessment) -> None:
        self.kept.append(one)

    def run(
        self, what: Orchestration, known: Sequence[SubtaskTry] = (), **terms: object
    ) -> dict[str, str]:
        hands = SubtaskCallbacks(
            work=self.work,
            judge=self.judge,
            merge=self.merge,
            check_whole=self.check_whole,
            keep=self.keep,
            find_block_reason=self.hold,
            report_progress=self.told.append,
        )
        wanted = OrchestrateSettings(**terms)  # type: ignore[arg-type]
        return anyio.run(run_subtasks, what, wanted, hands, known)

    @property
    def tries(self) -> list[str]:
        return [f"{order.task.id} {order.number}" for order in self.orders]


def test_each_task_begins_when_those_it_depends_on_are_accepted() -> None:
    world = World()
    assert world.run(plan(("c", ("a", "b")), ("a", ()), ("b", ("a",)))) == {}
    assert world.tries == ["a 1", "b 1", "c 1"]
    assert [one.task for one in world.orders[-1].beneath] == ["a", "b"]


@pytest.mark.parametrize("places", [1, 3])
def test_no_more_work_at_once_than_there_are_places(places: int) -> None:
    world = World()
    world.wait = lambda order: 0.01
    world.run(plan(*((f"t{number}", ()) for number in range(8))), concurrency=places)
    assert world.most == places


def test_only_what_fails_is_tried_again_and_is_told_what_was_wrong() -> None:
    world = World(verdict=lambda one: one.task != "b" or one.number > 1)
    assert world.run(plan(("a", ()), ("b", ()))) == {}
    assert sorted(world.tries) == ["a 1", "b 1", "b 2"]
    again = world.orders[-1]
    assert WRONG.text in again.brief
    assert all(WRONG.text not in order.brief for order in world.orders[:-1])
    assert again.last is not None
    assert again.last.patch == "b 1"


def test_tries_end_at_max_retries_and_what_depends_on_them_is_not_begun() -> None:
    world = World(verdict=lambda one: False)
    stopped = world.run(plan(("a", ()), ("b", ("a",)), ("c", ("b",))), max_retries=2)
    assert world.tries == ["a 1", "a 2", "a 3"]
    assert stopped == {
        "b": "it depends on a, which was not accepted",
        "c": "it depends on b, which was not accepted",
    }
    assert [one.passed for one in world.kept] == [False] * 3


def test_a_try_that_mends_nothing_is_flagged_and_may_be_the_last() -> None:
    world = World(verdict=lambda one: False)
    world.run(plan(("a", ())), max_retries=5)
    assert [one.ignored for one in world.kept] == [False, True, True, True, True, True]
    world = World(verdict=lambda one: False)
    world.run(plan(("a", ())), max_retries=5, stop_when_ignored=True)
    assert [one.ignored for one in world.kept] == [False, True]


def test_feedback_is_ignored_only_where_nothing_is_better() -> None:
    one = execution("a")
    other = EvaluationIssue(check="scope", criterion=None, text="Too much.", source="fact")
    before = assessment(one, False, score=0.3, issues=(WRONG, other))
    reworded = EvaluationIssue(check="tested", criterion="quality", text="Still not tested.")
    assert ignores_feedback(assessment(one, False, score=0.3, issues=(other, reworded)), before)
    assert not ignores_feedback(assessment(one, False, score=0.4, issues=(other, reworded)), before)
    assert not ignores_feedback(assessment(one, False, score=0.3, issues=(other,)), before)
    assert not ignores_feedback(assessment(one, True, score=0.3, issues=(WRONG, other)), before)
    changed = EvaluationIssue(check="scope", criterion=None, text="Less.", source="fact")
    assert not ignores_feedback(assessment(one, False, score=0.3, issues=(changed, WRONG)), before)


def test_what_the_machine_lost_is_begun_again_and_no_feedback() -> None:
    world = World(exit_of=lambda order: "machine" if order.number < 3 else "finished")
    assert world.run(plan(("a", ())), max_retries=0) == {}
    assert world.tries == ["a 1", "a 2", "a 3"]
    assert world.judged == ["a 3"]
    assert [one.passed for one in world.kept] == [None, None, True]


def test_a_machine_that_fails_every_time_is_given_up() -> None:
    world = World(exit_of=lambda order: "machine")
    stopped = world.run(plan(("a", ()), ("b", ("a",))))
    assert world.tries == ["a 1", "a 2", "a 3"]
    assert list(stopped) == ["b"]


def test_what_the_machine_lost_is_tried_again_when_the_plan_goes_on() -> None:
    lost = [execution("a", number, exit="machine") for number in (1, 2, 3)]
    known = [SubtaskTry(execution=one, assessment=assessment(one, None)) for one in lost]
    world = World()
    assert world.run(plan(("a", ())), known) == {}
    assert world.tries == ["a 4"]


def test_an_abstention_is_no_failure_and_work_goes_on() -> None:
    world = World(verdict=lambda one: None)
    assert world.run(plan(("a", ()), ("b", ("a",)))) == {}
    assert world.tries == ["a 1", "b 1"]


def test_judging_does_not_wait_for_a_place_to_work() -> None:
    world = World()
    world.ready = lambda order: order.task.id == "quick" or world.judged == ["quick 1"]
    assert world.run(plan(("quick", ()), ("slow", ())), concurrency=1) == {}


def test_a_change_that_does_not_go_together_with_others_is_made_again_on_top_of_them() -> None:
    world = World()
    world.ready = lambda order: order.task.id != "a" or any(one.task == "b" for one in world.kept)

    def clash(made: Sequence[SubtaskExecution]) -> str | None:
        first = [one.patch for one in made]
        return "calc.py does not apply." if "a 1" in first and "b 1" in first else None

    world.clash = clash
    assert world.run(plan(("a", ()), ("b", ()), ("c", ("a",)))) == {}
    assert sorted(world.tries) == ["a 1", "a 2", "b 1", "c 1"]
    failed = next(one for one in world.kept if one.passed is False)
    assert (failed.task, failed.issues[-1].check) == ("a", "merge")
    again = next(order for order in world.orders if order.number == 2)
    assert [one.task for one in again.beneath] == ["b"]
    assert "calc.py does not apply." in again.brief
    # What was built on b comes after it, and whoever needs a gets both.
    assert [one.task for one in world.orders[-1].beneath] == ["b", "a"]


def test_changes_are_tried_together_only_where_they_were_not_made_on_top() -> None:
    world = World()
    world.run(plan(("a", ()), ("b", ("a",)), ("c", ("b",))))
    assert world.merged == []
    world.run(plan(("a", ()), ("b", ())))
    assert sorted(world.merged[-1]) == ["a", "b"]


def test_whoever_breaks_the_whole_tries_again_on_top_of_all_others_and_is_told() -> None:
    world = World()
    world.breaks = lambda patches: "b 1" if "b 1" in patches else None
    assert world.run(plan(("a", ()), ("b", ()), ("c", ("b",)), ("d", ()))) == {}
    assert sorted(world.tries) == ["a 1", "b 1", "b 2", "c 1", "d 1"]
    assert world.wholes == [["a 1", "b 1", "c 1", "d 1"], ["a 1", "b 2", "c 1", "d 1"]]
    again = next(order for order in world.orders if order.number == 2)
    # c was made on top of b, so that it cannot be there before it.
    assert [one.task for one in again.beneath] == ["a", "d"]
    assert again.last is not None
    assert again.last.patch == "b 1"
    assert "`make` fails with b 1." in again.brief
    assert "What you changed then is in the working tree." in again.brief
    assert [(one.number, one.passed) for one in world.kept if one.task == "b"] == [
        (1, True),
        (1, False),
        (2, True),
    ]


def test_who_breaks_the_whole_begins_anew_where_its_change_does_not_apply_on_top() -> None:
    world = World()
    world.breaks = lambda patches: "a 1" if "a 1" in patches else None
    world.clash = lambda made: "No." if [one.patch for one in made] == ["b 1", "a 1"] else None
    assert world.run(plan(("a", ()), ("b", ()))) == {}
    again = next(order for order in world.orders if order.number == 2)
    assert (again.last, [one.task for one in again.beneath]) == (None, ["b"])
    assert "What you changed then" not in again.brief


def test_a_whole_that_stays_broken_ends_when_the_tries_of_its_breaker_do() -> None:
    world = World()
    world.breaks = lambda patches: next(one for one in patches if one.startswith("b"))
    world.run(plan(("a", ()), ("b", ())), max_retries=1)
    assert sorted(world.tries) == ["a 1", "b 1", "b 2"]
    assert world.kept[-1].passed is False
    world = World()
    world.breaks = lambda patches: "b 1"
    world.run(plan(("a", ()), ("b", ())), max_retries=0)
    assert sorted(world.tries) == ["a 1", "b 1"]


def test_the_whole_is_not_looked_at_where_a_task_failed_for_good() -> None:
    world = World(verdict=lambda one: one.task != "a")
    world.run(plan(("a", ()), ("b", ())), max_retries=0)
    assert world.wholes == []


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 9), st.data())
def test_a_broken_command_is_laid_to_the_first_change_that_breaks_it(
    many: int, data: st.DataObject
) -> None:
    names = [f"t{number}" for number in range(many)]
    what = plan(*((name, ()) for name in names))
    accepted = {name: execution(name) for name in names}
    owner, breaker = data.draw(st.sampled_from(names)), data.draw(st.sampled_from(names))
    runs: list[set[str]] = []

    async def holds(chosen: set[str]) -> bool:
        runs.append(chosen)
        return breaker not in chosen

    assert anyio.run(find_breaking_task, what, accepted, owner, holds) == breaker
    assert len(runs) <= 5
    assert all(owner in chosen for chosen in runs)


def test_nothing_is_begun_once_it_may_not() -> None:
    world = World()
    world.hold = lambda: "the budget is spent" if world.orders else None
    stopped = world.run(plan(("a", ()), ("b", ()), ("c", ("a",))), concurrency=1)
    assert world.tries == ["a 1"]
    assert stopped == {"b": "the budget is spent", "c": "the budget is spent"}


def test_a_plan_goes_on_from_what_is_known() -> None:
    done, unjudged = execution("a"), execution("b")
    failed = execution("c")
    known = [
        SubtaskTry(execution=done, assessment=assessment(done, True)),
        SubtaskTry(execution=unjudged),
        SubtaskTry(execution=failed, assessment=assessment(failed, False)),
    ]
    world = World()
    assert world.run(plan(("a", ()), ("b", ()), ("c", ()), ("d", ("a", "b", "c"))), known) == {}
    assert sorted(world.tries) == ["c 2", "d 1"]
    assert sorted(world.judged) == ["b 1", "c 2", "d 1"]


def test_a_fault_stops_the_plan_as_it_is() -> None:
    class Broken(World):
        async def keep(self, one: SubtaskAssessment) -> None:
            raise MachineFailed("The database is gone.")

    with pytest.raises(MachineFailed, match="The database is gone"):
        Broken().run(plan(("a", ()), ("b", ())))


@st.composite
def plans(draw: st.DrawFn) -> Orchestration:
    many = draw(st.integers(1, 7))
    names = [f"t{number}" for number in range(many)]
    tasks = [
        (name, tuple(draw(st.lists(st.sampled_from(names[:place]), unique=True)) if place else ()))
        for place, name in enumerate(names)
    ]
    return plan(*draw(st.permutations(tasks)))


@settings(max_examples=60, deadline=None)
@given(plans(), st.randoms(use_true_random=False), st.integers(0, 2), st.integers(1, 3))
def test_whatever_fails_every_task_is_settled_once_and_in_order(
    what: Orchestration, chance: Random, retries: int, places: int
) -> None:
    world = World(
        verdict=lambda one: chance.choice([True, True, False, None]),
        exit_of=lambda order: chance.choice(["finished"] * 4 + ["machine"]),
    )
    world.clash = lambda made: chance.choice([None, None, "It does not apply."])
    stopped = world.run(what, max_retries=retries, concurrency=places)
    assert world.most <= places
    tried = {task.id: [one for one in world.kept if one.task == task.id] for task in what.tasks}
    for task in what.tasks:
        assert (task.id in stopped) == (not tried[task.id])
        scored = [one for one in tried[task.id] if one.passed is not None]
        assert len(scored) <= retries + 1
        assert [one.number for one in tried[task.id]] == list(range(1, len(tried[task.id]) + 1))
    depends = {task.id: task.depends_on for task in what.tasks}
    for order in world.orders:
        under = [one.task for one in order.beneath]
        assert set(depends[order.task.id]) <= set(under)
        for place, name in enumerate(under):
            assert set(depends[name]) <= set(under[:place])
