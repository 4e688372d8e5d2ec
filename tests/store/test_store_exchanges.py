from __future__ import annotations

import json
import random
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from closeloop.providers.provider_streams import split_into_pieces
from closeloop.records.attempt import Attempt, Usage
from closeloop.records.experiment_plan import AttemptResult
from closeloop.records.trace import Exchange
from closeloop.store import Store, open_store, schema
from closeloop.store.fact_rows import LazyExchanges, PackedExchanges, exchanges_to_rows
from closeloop.store.sql_expressions import func
from closeloop.store.sql_statements import select
from record_strategies import records

AT = datetime(2026, 11, 15, tzinfo=UTC)


def attempt(name: str = "a1") -> Attempt:
    return Attempt(id=name, origin="experiment", exit="finished")


def talk(turns: int, seed: int = 0) -> list[Exchange]:
    """A conversation as an agent sends it: whole, every time."""
    chance = random.Random(seed)
    said: list[dict[str, str]] = []
    found = []
    for number in range(1, turns + 1):
        said.append({"role": "user", "content": chance.randbytes(1500).hex()})
        payload = {"model": "m", "system": "s" * 9000, "messages": said, "tools": ["t" * 9000]}
        answer = chance.randbytes(200).hex()
        found.append(
            Exchange(
                number=number,
                at=AT,
                path="/v1/messages",
                request=json.dumps(payload).encode(),
                response=answer.encode(),
                status=200,
                seconds=1.5,
                usage=Usage(input_tokens=number, output_tokens=2, cost=0.5),
            )
        )
        said.append({"role": "assistant", "content": answer})
    return found


def size(store: Store) -> int:
    query = select(func.sum(func.length(schema.blobs.c.body)))
    total: int = store._read(lambda on: on.execute(query).scalar())
    return total


def test_exchanges_travel_in_little_room_and_come_out_whole() -> None:
    made = talk(20)
    sent = msgspec.msgpack.encode(exchanges_to_rows("a1", made))
    assert len(sent) < sum(len(one.request) for one in made) / 5
    there = LazyExchanges(msgspec.msgpack.decode(sent, type=PackedExchanges))
    assert list(there) == made
    assert there[1:] == made[1:]
    assert exchanges_to_rows("a1", there) == exchanges_to_rows("a1", made)


def test_exchanges_come_back_byte_for_byte_and_in_order(tmp_path: Path) -> None:
    made = talk(5)
    with open_store(str(tmp_path / "s.db")) as store:
        store.save_attempt(AttemptResult(attempt=attempt(), exchanges=made[::-1]))
        store.save_attempt(AttemptResult(attempt=attempt("b2")))
        assert list(store.load_exchanges("a1")) == made
        assert list(store.load_exchanges("a")) == made
        assert list(store.load_exchanges("b2")) == []


def test_saving_an_attempt_again_adds_nothing(tmp_path: Path) -> None:
    made = AttemptResult(attempt=attempt(), exchanges=talk(3))
    with open_store(str(tmp_path / "s.db")) as store:
        assert store.save_attempt(made)
        before = size(store)
        assert store.save_attempt(made)
        assert size(store) == before
        assert len(list(store.load_exchanges("a1"))) == 3


def test_twice_the_turns_need_twice_the_room(tmp_path: Path) -> None:
    sizes = []
    for turns in (40, 80, 160):
        with open_store(str(tmp_path / f"{turns}.db")) as store:
            made = talk(turns)
            store.save_attempt(AttemptResult(attempt=attempt(), exchanges=made))
            assert list(store.load_exchanges("a1")) == made
            sizes.append(size(store))
    assert sizes[1] < 2.2 * sizes[0]
    assert sizes[2] < 2.2 * sizes[1]
    assert sizes[2] < sum(len(one.request) for one in made) / 20


def test_attempts_with_the_same_prompt_and_tools_share_them(tmp_path: Path) -> None:
    with open_store(str(tmp_path / "s.db")) as store:
        for name in ("a1", "b2"):
            store.save_attempt(
                AttemptResult(attempt=attempt(name), exchanges=talk(1, seed=ord(name[0])))
            )
        count = select(func.count()).select_from(schema.blobs)
        blobs = store._read(lambda on: on.execute(count).scalar())
    own = len(split_into_pieces(talk(1)[0].request)) + 1
    assert blobs < 2 * own


def test_what_was_used_can_be_added_up_by_the_database(tmp_path: Path) -> None:
    with open_store(str(tmp_path / "s.db")) as store:
        store.save_attempt(AttemptResult(attempt=attempt(), exchanges=talk(3)))
        table = schema.exchanges.c
        query = select(func.sum(table.cost), func.sum(table.input_tokens), func.max(table.status))
        assert store._read(lambda on: on.execute(query).one()) == (1.5, 6, 200)


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(made=st.lists(records(Exchange), max_size=3, unique_by=lambda one: one.number))
@pytest.mark.parametrize("url", [":memory:"])
def test_any_exchange_can_be_kept(made: list[Exchange], url: str) -> None:
    with open_store(url) as store:
        store.save_attempt(AttemptResult(attempt=attempt(), exchanges=made))
        found = list(store.load_exchanges("a1"))
        wanted = sorted(made, key=lambda one: one.number)
        assert [(one.request, one.response) for one in found] == [
            (one.request, one.response) for one in wanted
        ]
