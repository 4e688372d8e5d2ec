"""gave-up-early and kept-going-after-done: too soon, and too long."""

from __future__ import annotations

import pytest
from rules import edit, found, pytest_run

from closeloop.records.attempt import Attempt, Exit
from closeloop.records.finding import Unmeasured

ASK = {"user": "Make tests/test_cart.py pass."}
RED = pytest_run("tests/test_cart.py::test_total")
STOP = {"say": "I was unable to make test_total pass."}
DONE = {"say": "The fix is complete: all tests pass."}


def ended(exit: Exit) -> Attempt:  # noqa: A002
    return Attempt(id="a", origin="experiment", exit=exit)


def gave_up(*events: dict, **known: object) -> bool:
    return bool(found("gave-up-early", events, **known))


def went_on(*events: dict, **known: object) -> bool:
    return bool(found("kept-going-after-done", events, **known))


def test_one_try_and_a_sigh_is_too_early() -> None:
    assert gave_up(ASK, RED, edit(), RED, STOP)
    assert gave_up(ASK, RED, STOP)
    assert gave_up(ASK, RED, {"say": "I looked at it."}, attempt=ended("gave_up"))


def test_two_tries_are_not_and_the_limit_can_be_set() -> None:
    tries = [ASK, edit(), RED, edit(after="b"), RED, STOP]
    assert not gave_up(*tries)
    assert gave_up(*tries, limits={"iterations": 3})


def test_who_was_stopped_did_not_give_up() -> None:
    assert not gave_up(ASK, RED, STOP, attempt=ended("out_of_budget"))


def test_a_question_or_a_lack_that_is_not_its_own_is_a_good_reason() -> None:
    assert not gave_up(ASK, RED, {"ask": "Should shipping be part of the total?"})
    assert not gave_up(ASK, RED, {"say": "I could not fix it. Should shipping be part of it?"})
    assert not gave_up(ASK, RED, {"say": "I was unable to go on: the API key is missing."})
    assert not gave_up(ASK, RED, {"user": "Stop"}, {"say": "I was unable to finish."})


def test_success_and_other_ends_are_not_giving_up() -> None:
    assert not gave_up(ASK, RED, edit(), pytest_run(), {"say": "All tests pass."})
    assert not gave_up(ASK, RED, {"say": "The total lacks shipping: see cart.py."})
    assert not gave_up(ASK, STOP)


def test_three_changes_after_the_end_are_too_many() -> None:
    more = [edit(after=name) for name in "bcd"]
    assert went_on(ASK, edit(), pytest_run(), DONE, *more)
    assert not went_on(ASK, edit(), pytest_run(), DONE, *more[:2])
    assert went_on(ASK, edit(), pytest_run(), DONE, *more[:2], limits={"edits": 2})


def test_a_new_wish_or_a_new_failure_is_a_reason_to_go_on() -> None:
    more = [edit(after=name) for name in "bcd"]
    assert not went_on(ASK, edit(), pytest_run(), DONE, {"user": "And now the docs."}, *more)
    assert not went_on(ASK, edit(), pytest_run(), DONE, RED, *more)


def test_so_is_a_step_that_is_not_the_last() -> None:
    more = [edit(after=name) for name in "bcd"]
    step = {"say": "The model is done and all tests pass. Next I'll add the report."}
    assert not went_on(ASK, edit(), pytest_run(), step, *more)
    assert not went_on(ASK, edit(), RED, {"say": "The work is complete."}, *more)


def test_the_same_pass_three_times_more_is_enough() -> None:
    assert went_on(ASK, edit(), *[pytest_run()] * 4)
    assert not went_on(ASK, edit(), *[pytest_run()] * 3)
    assert not went_on(ASK, edit(), *[pytest_run(command=f"pytest -q {name}") for name in "abcd"])


def test_repeating_is_fine_when_it_was_asked_for_or_something_changed() -> None:
    flaky = {"user": "test_total is flaky: run it 10 times."}
    assert not went_on(flaky, edit(), *[pytest_run()] * 5)
    assert not went_on(
        ASK, *[event for name in "abcde" for event in (edit(after=name), pytest_run())]
    )


@pytest.mark.parametrize("rule", ["gave-up-early", "kept-going-after-done"])
def test_bad_input_raises_nothing(rule: str) -> None:
    assert isinstance(found(rule, []), Unmeasured)
    assert isinstance(found(rule, [{"run": "pytest"}]), Unmeasured)
    assert found(rule, [STOP]) == []
    assert (
        found(rule, [{"lane": "lost", **RED}, {"lane": "lost", **STOP}], lanes={"a": "gone"}) == []
    )
