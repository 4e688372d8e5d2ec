"""Limits that attempts share."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from gateway_client import ENVIRON, Talk, client, until, upstream

from closeloop.gateway import Gateway
from closeloop.gateway.live_source import RateLimiter
from closeloop.records.settings import ModelSettings
from closeloop.records.task import Limits
from patience import PATIENCE


def settings(**limits: Any) -> ModelSettings:
    return ModelSettings(provider="openai", model="m", **limits)


async def ask(
    pace: RateLimiter, door: str, order: list[str], release: anyio.Event | None = None
) -> None:
    async with pace.hold_permit(door):
        order.append(door)
        if release is not None:
            await release.wait()


def test_without_limits_nobody_waits() -> None:
    async def go() -> None:
        pace, order, release = RateLimiter(settings()), [], anyio.Event()
        async with anyio.create_task_group() as group:
            for number in range(50):
                group.start_soon(ask, pace, str(number), order, release)
            await anyio.wait_all_tasks_blocked()
            assert len(order) == 50
            release.set()

    anyio.run(go)


def test_a_door_whom_others_wait_for_does_not_wait_behind_them() -> None:
    async def go() -> None:
        pace, release = RateLimiter(settings(concurrency=1)), anyio.Event()
        order: list[str] = []

        async def judge() -> None:
            async with pace.hold_permit("judge", first=True):
                order.append("judge")

        async with anyio.create_task_group() as group:
            group.start_soon(ask, pace, "held", order, release)
            await anyio.wait_all_tasks_blocked()
            for name in ("one", "two", "three"):
                group.start_soon(ask, pace, name, order)
            await anyio.wait_all_tasks_blocked()
            group.start_soon(judge)
            await anyio.wait_all_tasks_blocked()
            release.set()
        assert order == ["held", "judge", "one", "two", "three"]

    anyio.run(go)


def test_doors_take_turns_however_much_one_of_them_asks() -> None:
    async def go() -> None:
        pace, release = RateLimiter(settings(concurrency=1)), anyio.Event()
        order: list[str] = []
        async with anyio.create_task_group() as group:
            group.start_soon(ask, pace, "greedy", order, release)
            await anyio.wait_all_tasks_blocked()
            for _ in range(5):
                group.start_soon(ask, pace, "greedy", order)
            await anyio.wait_all_tasks_blocked()
            for modest in ("one", "two"):
                group.start_soon(ask, pace, modest, order)
            await anyio.wait_all_tasks_blocked()
            release.set()
        assert sorted(order[2:4]) == ["one", "two"]
        assert Counter(order) == {"greedy": 6, "one": 1, "two": 1}

    anyio.run(go)


@pytest.mark.parametrize("allowed", [1, 3])
def test_no_more_are_under_way_than_the_settings_allow(allowed: int) -> None:
    async def go() -> None:
        pace = RateLimiter(settings(concurrency=allowed))
        now = most = 0

        async def one(door: int) -> None:
            nonlocal now, most
            async with pace.hold_permit(door):
                now += 1
                most = max(most, now)
                await anyio.lowlevel.checkpoint()
                now -= 1

        async with anyio.create_task_group() as group:
            for number in range(20):
                group.start_soon(one, number % 4)
        assert most == allowed

    anyio.run(go)


class Clock:
    """Time that passes when it is told to."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


async def started(pace: RateLimiter, count: int) -> int:
    """How many of so many may begin without waiting."""
    order: list[str] = []
    async with anyio.create_task_group() as group:
        for _ in range(count):
            group.start_soon(ask, pace, "a", order)
        for _ in range(5):
            await asyncio.sleep(0)
        group.cancel_scope.cancel()
    return len(order)


def test_requests_of_a_minute_are_spread_over_it() -> None:
    async def go() -> None:
        clock = Clock()
        pace = RateLimiter(settings(requests_per_minute=60), clock)
        assert await started(pace, 20) == 6
        clock.now += 2.0
        assert await started(pace, 20) == 2
        clock.now += 3600
        assert await started(pace, 20) == 6

    anyio.run(go)


def test_tokens_are_charged_when_they_are_known() -> None:
    async def go() -> None:
        clock = Clock()
        pace = RateLimiter(settings(tokens_per_minute=600), clock)
        assert await started(pace, 1) == 1
        pace.record_tokens(700)
        assert await started(pace, 1) == 0
        clock.now += 9.0
        assert await started(pace, 1) == 0
        clock.now += 1.5
        assert await started(pace, 1) == 1

    anyio.run(go)


def test_waiting_ends_by_itself_when_the_time_has_come() -> None:
    async def go() -> None:
        pace = RateLimiter(settings(requests_per_minute=1200))
        order: list[str] = []
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as group:
                for number in range(130):
                    group.start_soon(ask, pace, str(number % 3), order)
        assert len(order) == 130

    anyio.run(go)


def test_who_gives_up_waiting_takes_nobodys_turn() -> None:
    async def go() -> None:
        pace, release = RateLimiter(settings(concurrency=1)), anyio.Event()
        order: list[str] = []
        async with anyio.create_task_group() as group:
            group.start_soon(ask, pace, "first", order, release)
            await anyio.wait_all_tasks_blocked()
            with anyio.move_on_after(0.01):
                await ask(pace, "impatient", order)
            group.start_soon(ask, pace, "last", order)
            release.set()
        assert order == ["first", "last"]
        assert await started(pace, 1) == 1

    anyio.run(go)


def test_after_a_refusal_all_wait_and_fewer_ask_at_once() -> None:
    async def go() -> None:
        clock = Clock()
        pace, release = RateLimiter(settings(), clock), anyio.Event()
        async with anyio.create_task_group() as group:
            for number in range(8):
                group.start_soon(ask, pace, str(number), [], release)
            await anyio.wait_all_tasks_blocked()
            pace.back_off(5.0)
            release.set()
        assert await started(pace, 1) == 0
        clock.now += 5.0
        order: list[str] = []
        async with anyio.create_task_group() as group:
            for number in range(8):
                group.start_soon(ask, pace, str(number), order, anyio.Event())
            for _ in range(5):
                await asyncio.sleep(0)
            assert len(order) == 4
            group.cancel_scope.cancel()
        for _ in range(20):
            pace.record_tokens(1)
        assert await started(pace, 8) == 8

    anyio.run(go)


def test_a_429_pauses_the_other_attempts_too(
    provider: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times: list[float] = []
    held: list[float] = []
    hold = RateLimiter.back_off

    def noted(pace: RateLimiter, seconds: float) -> None:
        hold(pace, seconds)
        held.append(seconds)

    monkeypatch.setattr(RateLimiter, "back_off", noted)

    def note(send: Any) -> Any:
        def step(handler: Any) -> None:
            times.append(time.monotonic())
            send(handler)

        return step

    good = b'{"content": [], "usage": {"input_tokens": 1, "output_tokens": 1}}'
    provider.says(
        note(lambda handler: handler.send(429, b"{}", retry_after="0.5")),
        note(lambda handler: handler.send(200, good)),
    )

    async def go() -> None:
        model = upstream("anthropic", provider.address)
        async with (
            Gateway(ENVIRON, tmp_path) as gateway,
            gateway.open_proxy("mine", model, Limits()) as one,
            gateway.open_proxy("mine", model, Limits()) as two,
            client(one) as first,
            client(two) as second,
        ):
            talk = Talk("anthropic")
            talk.user("Hello")
            async with anyio.create_task_group() as group:
                group.start_soon(talk.turn, first)
                await until(lambda: held)
                group.start_soon(talk.turn, second)

    anyio.run(go)
    assert len(times) == 3
    assert all(later - times[0] >= 0.5 for later in times[1:])
