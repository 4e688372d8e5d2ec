"""Limits and requests in parallel: one reply may go over, not all that were under way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from gateway_client import Talk, client, opened
from hypothesis import given
from hypothesis import strategies as st

from closeloop.gateway.attempt_proxy import AttemptProxy
from closeloop.gateway.exchange_ledger import ExchangeEntry
from closeloop.records.attempt import Usage
from closeloop.records.errors import BadInput, OutOfBudget
from closeloop.records.settings import ModelSettings
from closeloop.records.task import Limits
from closeloop.records.trace import ModelReply, ModelRequest
from patience import PATIENCE


class Slow:
    """A model that takes some time, and the same for every reply."""

    name = "slow"

    def __init__(self, usage: Usage) -> None:
        self.usage = usage
        self.under_way = self.most = self.replies = 0

    async def reply(self, request: ModelRequest, entry: ExchangeEntry) -> ModelReply:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await anyio.sleep(0.001)
        self.under_way -= 1
        self.replies += 1
        entry.usage = self.usage
        return ModelReply(text="Yes.", usage=self.usage)

    async def answer(self, asked: Any, out: Any) -> None: ...
    async def count(self, asked: Any, out: Any) -> None: ...


class Nowhere:
    def socket(self, door: AttemptProxy) -> str:
        return ""

    def address(self, door: AttemptProxy) -> str:
        return ""


def asked(limits: Limits, usage: Usage, times: int) -> tuple[Slow, list[str]]:
    """So many requests at once: the model, and what those heard that were refused."""
    model, refused = Slow(usage), []

    async def go() -> None:
        door = AttemptProxy(model, limits, Nowhere())

        async def one() -> None:
            try:
                await door.reply(ModelRequest(messages=()))
            except (OutOfBudget, BadInput) as reason:
                refused.append(str(reason))

        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as group:
                for _ in range(times):
                    group.start_soon(one)

    anyio.run(go)
    return model, refused


@given(money=st.integers(1, 100), cost=st.integers(1, 40), times=st.integers(1, 12))
def test_of_requests_in_parallel_one_reply_at_the_most_passes_the_limit(
    money: int, cost: int, times: int
) -> None:
    usage = Usage(input_tokens=cost, output_tokens=0, cost=float(cost))
    for limits in (Limits(money=float(money)), Limits(tokens=money)):
        model, refused = asked(limits, usage, times)
        needed = -(-money // cost)
        assert model.replies == min(times, needed)
        assert len(refused) == times - model.replies


def test_requests_that_fit_go_in_parallel_once_it_is_known_what_one_costs() -> None:
    model, refused = asked(Limits(money=1000.0), Usage(cost=1.0), 12)
    assert (model.most, refused) == (11, [])
    model, refused = asked(Limits(), Usage(cost=1.0), 12)
    assert (model.most, refused) == (12, [])


def test_those_who_wait_hear_why_the_door_was_shut() -> None:
    model, refused = asked(Limits(money=1000.0), Usage(), 12)
    assert model.replies == 1
    assert len(refused) == 12
    assert all("needs the price of 'slow'" in one for one in refused)


@pytest.mark.parametrize("speaks", ["openai", "anthropic"])
def test_it_holds_over_http_too(speaks: str, tmp_path: Path) -> None:
    async def go() -> list[int]:
        settings = ModelSettings(
            provider="scripted", model="careful.yaml", input_price=1e6, output_price=1e6
        )
        statuses: list[int] = []

        async def one(http: Any) -> None:
            talk = Talk(speaks)
            talk.user("Hello")
            statuses.append((await talk.ask(http)).status_code)

        async with opened(tmp_path, settings, Limits(money=0.001)) as door, client(door) as http:
            async with anyio.create_task_group() as group:
                for _ in range(8):
                    group.start_soon(one, http)
            assert isinstance(await door.closed(), OutOfBudget)
        return statuses

    assert sorted(anyio.run(go)) == [200, *[400] * 7]
