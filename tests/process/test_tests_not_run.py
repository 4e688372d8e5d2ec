"""Only the agent's own scripts tried the change, although the project has tests."""

from __future__ import annotations

import pytest
from rules import edit, found
from story import Told

ASK = {"user": "The total is wrong. Please fix it."}
LISTING = {"run": {"command": "ls", "exit": 0, "output": "shop\ntests"}}
FIX = edit("shop/cart.py")
SCRIPT = {"edit": {"path": "reproduce.py", "action": "create", "after": "print(1)\n"}}
DONE = {"say": "The total is right now."}


def run(command: str = "python reproduce.py", output: str = "1") -> Told:
    return {"run": {"command": command, "exit": 0, "output": output}}


def test_the_last_change_the_last_run_and_the_end_are_cited() -> None:
    (finding,) = found("tests-not-run", [ASK, LISTING, SCRIPT, FIX, run(), DONE])
    assert finding.events == (4, 5, 6)
    assert "tests" in finding.message


@pytest.mark.parametrize(
    "other",
    [
        run("pytest -q", "8 passed in 0.1s"),
        run("python -m shop.cart", "12"),
        run("pytest -q", "ERROR: file or directory not found"),
        {"tool": {"name": "run_tests", "arguments": {}, "output": "ok"}},
    ],
)
def test_any_other_run_after_the_change_may_have_tried_more(other: Told) -> None:
    assert not found("tests-not-run", [ASK, LISTING, SCRIPT, FIX, run(), other, DONE])


def test_a_run_before_the_change_says_nothing_of_it() -> None:
    early = run("pytest -q", "8 passed in 0.1s")
    assert found("tests-not-run", [ASK, LISTING, SCRIPT, early, FIX, run(), DONE])


def test_without_a_run_after_the_last_change_another_rule_applies() -> None:
    assert not found("tests-not-run", [ASK, LISTING, SCRIPT, run(), FIX, DONE])


def test_a_recording_that_just_ends_shows_nothing() -> None:
    assert not found("tests-not-run", [ASK, LISTING, SCRIPT, FIX, run()])


def test_new_code_alone_has_no_tests_yet() -> None:
    new = {"edit": {"path": "shop/new.py", "action": "create", "after": "a = 1\n"}}
    assert not found("tests-not-run", [ASK, LISTING, SCRIPT, new, run(), DONE])


def test_a_waived_test_is_not_missed() -> None:
    waived = {"user": "The total is wrong. Please fix it, no need to run the tests."}
    assert not found("tests-not-run", [waived, LISTING, SCRIPT, FIX, run(), DONE])
