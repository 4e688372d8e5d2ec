"""What makes a task another task, for the agent and for the grader."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from closeloop.records.task import Acceptance, Task
from closeloop.tasks.task_files import with_digests

TASK = with_digests(
    Task(
        id="t",
        prompt="Do it.",
        repo="/here/repo",
        base="a" * 40,
        setup=("make",),
        answers={"a": "1", "b": "2"},
        acceptance=Acceptance(run="pytest", fail_to_pass=("x",)),
    )
)


def differs(**changes: Any) -> tuple[bool, bool]:
    other = with_digests(msgspec.structs.replace(TASK, **changes))
    return other.digest != TASK.digest, other.grading != TASK.grading


@pytest.mark.parametrize(
    "changes",
    [
        {"prompt": "Do it!"},
        {"answers": {"a": "1"}},
        {"answers": {"a": "1", "b": "3"}},
        {"answers": {"b": "2", "a": "1"}},
    ],
)
def test_what_the_agent_is_told_changes_only_the_task(changes: dict[str, Any]) -> None:
    assert differs(**changes) == (True, False)


@pytest.mark.parametrize(
    "changes",
    [
        {"acceptance": Acceptance(run="pytest -q", fail_to_pass=("x",))},
        {"acceptance": Acceptance(run="pytest", fail_to_pass=("y",))},
        {"acceptance": Acceptance(run="pytest", fail_to_pass=("x",), pass_to_pass=())},
        {"acceptance": Acceptance(run="pytest", fail_to_pass=("x",), patch="p")},
        {"acceptance": Acceptance(run="pytest", fail_to_pass=("x",), timeout=1)},
        {"protected": ("x",)},
        {"reference": "patch"},
        {"scope": ("src",)},
        {"facts": ("a",)},
        {"ambiguous": True},
    ],
)
def test_how_it_is_graded_changes_only_the_grading(changes: dict[str, Any]) -> None:
    assert differs(**changes) == (False, True)


@pytest.mark.parametrize("changes", [{"base": "b" * 40}, {"setup": ("make", "x")}, {"base": None}])
def test_where_it_starts_changes_both(changes: dict[str, Any]) -> None:
    assert differs(**changes) == (True, True)


@pytest.mark.parametrize(
    "changes",
    [
        {"id": "u"},
        {"repo": "/elsewhere/clone"},
        {"tags": ("a",)},
        {"split": "held-out"},
        {"origin": "mined"},
        {"version": 2},
        {"rubric": "r"},
        {"digest": "x", "grading": "y"},
    ],
)
def test_labels_and_places_change_neither(changes: dict[str, Any]) -> None:
    assert differs(**changes) == (False, False)


def test_text_cannot_move_from_one_field_to_the_next() -> None:
    assert differs(setup=("ma", "ke"))[0]
    scope, facts = (
        with_digests(msgspec.structs.replace(TASK, **{name: ("a",)})) for name in ("scope", "facts")
    )
    assert scope.grading != facts.grading


def test_the_digest_is_the_same_on_every_machine_and_in_every_release() -> None:
    assert TASK.digest[:12] == "a40276653ddc"
    assert TASK.grading[:12] == "db03ce040a66"
