"""Looks, scripts and answers that bring nothing new."""

from __future__ import annotations

import pytest
from rules import found
from story import Told

ASK = {"user": "Implement what the issue says."}
GO_ON = {"system": "Please continue working on the task."}


def listing(output: str = "cart.py") -> Told:
    return {"run": {"command": "ls shop", "exit": 0, "output": output}}


def guess(number: int) -> Told:
    error = "The path does not exist."
    return {"read": {"path": f"migrations/000{number}.py", "ok": False, "error": error}}


@pytest.mark.parametrize(
    "between",
    [
        {"edit": {"path": "shop/cart.py", "before": "a", "after": "b"}},
        {"user": "Look again, please."},
        {"note": {"text": "", "about": "compaction"}},
    ],
)
def test_a_look_after_something_happened_is_no_standstill(between: Told) -> None:
    assert found("standstill", [ASK, listing(), listing(), listing()])
    assert not found("standstill", [ASK, listing(), listing(), between, listing()])


def test_a_look_that_shows_something_else_is_no_standstill() -> None:
    assert not found("standstill", [ASK, listing(), listing(), listing("cart.py rates.py")])


def test_names_that_differ_in_a_number_count_from_the_fifth() -> None:
    guesses = [guess(number) for number in range(1, 6)]
    assert not found("standstill", [ASK, *guesses[:4]])
    assert found("standstill", [ASK, *guesses])


def test_answers_count_only_where_nothing_was_done_between() -> None:
    answer = {"say": "The field should return the value, which is easy to do."}
    assert found("standstill", [ASK, answer, GO_ON, answer, GO_ON, answer])
    assert not found("standstill", [ASK, answer, GO_ON, answer, listing(), GO_ON, answer])


def looks(count: int) -> list[Told]:
    return [{"read": {"path": f"shop/a{n}.py", "text": f"a = f{n}()"}} for n in range(count)]


def test_looks_that_lead_to_no_change_count_from_the_fifteenth() -> None:
    wish = {"user": "Please fix the total of an empty cart."}
    assert not found("standstill", [wish, *looks(14)])
    assert found("standstill", [wish, *looks(15)])
    fix = {"edit": {"path": "shop/a1.py", "before": "a", "after": "b"}}
    assert not found("standstill", [wish, *looks(15), fix])
    assert not found("standstill", [{"user": "Explain what the shop does."}, *looks(15)])
