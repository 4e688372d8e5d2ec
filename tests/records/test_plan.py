"""The order in which a plan's attempts are begun."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from closeloop.records.experiment_plan import ExperimentPlan
from closeloop.records.task import Experiment, Task, Variant


def plan(tasks: int, variants: int, repeats: int, seed: int) -> ExperimentPlan:
    experiment = Experiment(id="e", tasks=(), variants=(), repeats=repeats, seed=seed)
    return ExperimentPlan(
        experiment=experiment,
        tasks=tuple(Task(id=f"t{n}", prompt="", digest=f"t{n}") for n in range(tasks)),
        variants=tuple(Variant(name=f"v{n}", agent="a", digest=f"v{n}") for n in range(variants)),
    )


@given(st.integers(1, 6), st.integers(1, 5), st.integers(1, 4), st.integers())
def test_every_place_is_begun_once_repeat_by_repeat_and_task_by_task(
    tasks, variants, repeats, seed
):
    made = plan(tasks, variants, repeats, seed)
    queue = [slot.place for slot in made.shuffle_slots()]
    assert sorted(queue) == sorted(slot.place for slot in made.list_slots())
    assert [number for _, _, number in queue] == sorted(number for _, _, number in queue)
    for start in range(0, len(queue), variants):
        assert len({task for task, _, _ in queue[start : start + variants]}) == 1


def test_the_seed_gives_the_order():
    first = [slot.place for slot in plan(6, 3, 2, 7).shuffle_slots()]
    assert first == [slot.place for slot in plan(6, 3, 2, 7).shuffle_slots()]
    assert first != [slot.place for slot in plan(6, 3, 2, 8).shuffle_slots()]


def test_the_order_is_the_same_on_every_machine():
    queue = [slot.place for slot in plan(3, 2, 1, 0).shuffle_slots()]
    order = " ".join(f"{task}{variant}" for task, variant, _ in queue)
    assert order == "t2v1 t2v0 t1v1 t1v0 t0v0 t0v1"
