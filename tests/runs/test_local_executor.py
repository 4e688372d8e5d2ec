"""Many at once, some of them slower: who runs beside whom."""

from __future__ import annotations

from collections import Counter

import anyio
import pytest

from closeloop.concurrency import WorkPlace, run_event_loop, run_in_places, run_limited


def run(items: list[str], *, jobs: int, room: dict[str, int]) -> tuple[list[str], Counter[str]]:
    """The order in which items began, and how many of each kind ran at once at the most."""
    begun: list[str] = []
    now: Counter[str] = Counter()
    most: Counter[str] = Counter()

    async def work(item: str, place: WorkPlace) -> None:
        begun.append(item)
        for kind in (item[0], "all"):
            now[kind] += 1
            most[kind] = max(most[kind], now[kind])
        await anyio.wait_all_tasks_blocked()
        for kind in (item[0], "all"):
            now[kind] -= 1

    async def go() -> None:
        await run_in_places(items, work, jobs=jobs, lane=lambda item: item[0], limits_by_lane=room)

    anyio.run(go)
    assert sorted(begun) == sorted(items)
    return begun, most


def test_no_more_run_at_once_than_there_are_jobs():
    _, most = run([f"a{n}" for n in range(12)], jobs=3, room={})
    assert most["all"] == 3


def test_a_full_lane_is_overtaken_and_keeps_its_own_order():
    items = [f"a{n}" for n in range(6)] + [f"b{n}" for n in range(6)]
    begun, most = run(items, jobs=4, room={"a": 1})
    assert most["a"] == 1
    assert most["all"] == 4
    assert begun[:4] == ["a0", "b0", "b1", "b2"]
    assert [item for item in begun if item[0] == "a"] == items[:6]


def test_a_lane_may_have_more_room_than_there_are_jobs():
    _, most = run([f"a{n}" for n in range(5)], jobs=2, room={"a": 50})
    assert most["all"] == 2


def test_an_item_that_is_not_ready_is_overtaken_and_begins_when_it_is():
    begun = []

    async def go() -> None:
        slow = anyio.Event()

        async def work(item: str, place: WorkPlace) -> None:
            begun.append(item)
            if item == "b1":
                slow.set()

        await run_in_places(
            ["a0", "a1", "b0", "b1", "b2"],
            work,
            jobs=1,
            lane=lambda item: "one",
            ready=lambda item: slow if item[0] == "a" else None,
        )

    anyio.run(go)
    assert begun == ["b0", "b1", "a0", "a1", "b2"]


def run_with_finishes(items: list[str], *, jobs: int, room: dict[str, int]) -> list[str]:
    """What began and ended, in order."""
    story: list[str] = []

    async def work(item: str, place: WorkPlace) -> None:
        story.append(item)
        await anyio.wait_all_tasks_blocked()
        await place.give_back()
        await place.give_back()  # a second time changes nothing
        await anyio.wait_all_tasks_blocked()
        story.append(f"{item} ended")

    async def go() -> None:
        await run_in_places(items, work, jobs=jobs, lane=lambda item: item[0], limits_by_lane=room)

    anyio.run(go)
    assert sorted(story) == sorted([*items, *(f"{item} ended" for item in items)])
    return story


def test_the_next_item_begins_while_one_without_a_place_finishes():
    assert run_with_finishes(["a0", "a1"], jobs=1, room={}) == ["a0", "a1", "a0 ended", "a1 ended"]
    story = run_with_finishes(["a0", "a1", "b0"], jobs=2, room={"a": 1})
    assert story.index("a1") < story.index("a0 ended")


def test_no_more_items_finish_than_there_are_jobs():
    now = most = 0

    async def work(item: int, place: WorkPlace) -> None:
        nonlocal now, most
        await place.give_back()
        now += 1
        most = max(most, now)
        await anyio.wait_all_tasks_blocked()
        now -= 1

    async def go() -> None:
        await run_in_places(range(12), work, jobs=3)

    anyio.run(go)
    assert most == 3


def test_the_first_error_stops_the_rest_and_comes_out_plainly():
    begun = []

    async def work(item: int) -> None:
        begun.append(item)
        if item == 2:
            raise KeyError(item)
        await anyio.sleep(0.01)

    async def go() -> None:
        await run_limited(range(100), work, jobs=2)

    with pytest.raises(KeyError):
        anyio.run(go)
    assert len(begun) < 10


def test_a_large_result_of_an_event_loop_is_never_written_out_as_text() -> None:
    class Report:
        def __repr__(self) -> str:
            raise AssertionError("written out")

    async def make_report() -> Report:
        return Report()

    assert isinstance(run_event_loop(make_report), Report)
