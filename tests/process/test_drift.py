"""drift: the curve of likeness to the goal, and plans that were dropped."""

from __future__ import annotations

import pytest
from rules import edit, found
from story import story

from closeloop.process.feedback_use import drift_curve, drift_slope
from closeloop.process.trace_reading import build_reading
from closeloop.records.finding import Unmeasured

RULE = "drift"
REQUEST = {"user": "Fix the invoice rounding in billing/invoice.py"}
ON = [edit("billing/invoice.py", after=f"invoice {n}") for n in range(20)]
OFF = [edit(f"web/theme{n}.css", before="", after="color: red") for n in range(20)]


def _todo(*states: str) -> dict:
    names = ("Fix invoice rounding", "Write changelog entry", "Update German glossary")
    todos = [{"content": name, "status": s} for name, s in zip(names, states, strict=True)]
    return {"tool": {"name": "TodoWrite", "arguments": {"todos": todos}}}


def test_a_long_trace_that_ends_elsewhere() -> None:
    (finding,) = found(RULE, [REQUEST, *ON, *ON, *ON, *OFF, *OFF, *OFF])
    assert finding.events == (82, 121)
    assert finding.severity == "info"


@pytest.mark.parametrize(
    "events",
    [
        [*ON] * 6,
        [*OFF] * 6,
        [*ON, *OFF, *OFF, *ON, *ON, *ON],
        [*ON, *ON, {"user": "Now the theme colours in web/"}, *OFF, *OFF, *OFF, *OFF],
    ],
)
def test_what_is_no_drift(events: list[dict]) -> None:
    assert found(RULE, [REQUEST, *events]) == []


def test_a_planned_step_that_is_never_spoken_of_again() -> None:
    plan = _todo("completed", "pending", "pending")
    events = [REQUEST, plan, edit(), {"claim": "Done: the invoice rounding is fixed."}]
    (finding,) = found(RULE, events)
    assert finding.events == (4, 2)
    assert "2 of 3" in finding.message


@pytest.mark.parametrize(
    "events",
    [
        [_todo("completed", "completed", "completed"), {"claim": "Done."}],
        [_todo("completed", "completed", "in_progress"), {"claim": "Done."}],
        [_todo("completed", "pending", "pending")],
        [
            _todo("completed", "pending", "completed"),
            edit("changelog/entry.md"),
            {"claim": "Done."},
        ],
        [
            _todo("completed", "completed", "pending"),
            {"claim": "Fixed. I left the German glossary out."},
        ],
        [
            _todo("completed", "completed", "pending"),
            {"think": "The German glossary has no such word: nothing to do there."},
            {"claim": "Fixed."},
        ],
    ],
)
def test_a_plan_that_was_kept_or_given_up_aloud(events: list[dict]) -> None:
    assert found(RULE, [REQUEST, *events]) == []


def test_a_list_in_markdown_is_a_plan_too() -> None:
    todos = "- [x] Fix rounding\n- [ ] Update German glossary"
    plan = {"tool": {"name": "update_todo_list", "arguments": {"todos": todos}}}
    assert len(found(RULE, [REQUEST, plan, {"claim": "Done."}])) == 1


def test_a_short_trace_without_a_plan_says_nothing() -> None:
    assert isinstance(found(RULE, [REQUEST, edit()]), Unmeasured)
    assert isinstance(found(RULE, []), Unmeasured)


def test_the_curve_is_the_share_of_actions_on_the_goal() -> None:
    lane = build_reading(story([REQUEST, *ON, *OFF])).lanes["root"]
    assert drift_curve(lane) == (1.0, 0.0)
    assert drift_slope((1.0, 0.0)) == -1.0
    assert drift_slope((0.5, 0.5, 0.5)) == 0.0
    assert drift_slope((0.5,)) is None


def test_a_very_long_lane_has_a_bounded_curve() -> None:
    lane = build_reading(story([REQUEST, *(ON * 80)])).lanes["root"]
    assert len(drift_curve(lane)) == 25


def test_without_a_goal_there_is_no_curve() -> None:
    assert drift_curve(build_reading(story(ON * 3)).lanes["root"]) == ()


STEPS = (
    "Order model in shop/models.py", "Rate limiting of the endpoint", "German translations",
)  # fmt: skip
DONE = {"claim": "Orders are added. Done."}


def _numbered(*steps: str) -> str:
    return "Plan:\n" + "\n".join(f"{n}. Add {step}" for n, step in enumerate(steps, 1))


def _tasks(*steps: str) -> list[dict]:
    calls = [{"subject": step} for step in steps]
    return [
        {"tool": {"name": "TaskCreate", "arguments": call, "output": f"Task #{n} created"}}
        for n, call in enumerate(calls, 1)
    ]


def test_steps_that_were_announced_and_never_taken() -> None:
    events = [{"user": "Add orders"}, {"say": _numbered(*STEPS)}, edit("shop/models.py"), DONE]
    (finding,) = found(RULE, events)
    assert finding.events == (4, 2)
    assert "2 of 3" in finding.message


def test_a_list_of_the_user_is_no_plan_of_the_agent() -> None:
    steps = {"user": _numbered(*STEPS)}
    assert isinstance(found(RULE, [steps, edit("shop/models.py"), DONE]), Unmeasured)


def test_a_list_that_is_kept_task_by_task() -> None:
    update = {"tool": {"name": "TaskUpdate", "arguments": {"taskId": "1", "status": "completed"}}}
    events = [{"user": "Add orders"}, *_tasks(*STEPS), edit("shop/models.py"), update, DONE]
    (finding,) = found(RULE, events)
    assert "Rate limiting" in finding.message


def test_steps_that_vanish_from_the_list_while_they_are_open() -> None:
    less = {"todos": [{"content": "Fix invoice rounding", "status": "completed"}]}
    shorter = {"tool": {"name": "TodoWrite", "arguments": less}}
    (finding,) = found(RULE, [REQUEST, _todo("pending", "pending", "pending"), shorter, DONE])
    assert "2 of 3" in finding.message


def test_five_edits_that_touch_neither_request_nor_plan() -> None:
    start = [{"user": "Add orders"}, {"say": _numbered(*STEPS)}, edit("shop/models.py")]
    (finding,) = found(RULE, [*start, *OFF[:5]])
    assert finding.events == (4, 8, 2)
    assert found(RULE, [*start, *OFF[:4]]) == []
    been_there = {"read": {"path": "web/index.css", "text": "a {}"}}
    assert found(RULE, [*start[:2], been_there, start[2], *OFF[:5]]) == []


@pytest.mark.parametrize(
    "events",
    [
        [{"say": _numbered(*STEPS)}, edit("shop/models.py"), {"user": "Stop, do paging."}, DONE],
        [{"say": "Plan:\n1. Explore the shop\n2. Check the menus\n3. Run the suite"}, edit(), DONE],
        [{"say": _numbered(*STEPS[:2])}, edit("shop/models.py"), DONE],
        [{"say": "It has:\n1. red tiles\n2. blue tiles\n3. green tiles"}, edit(), DONE],
        [{"say": "Steps to reproduce:\n1. Open cart\n2. Add tile\n3. Pay late"}, edit(), DONE],
        [{"say": "I will look. In `save`:\n1. rows sort\n2. bills go\n3. tax"}, edit(), DONE],
    ],
)
def test_what_is_no_plan_or_holds_no_more(events: list[dict]) -> None:
    said = found(RULE, [{"user": "Add orders"}, *events])
    assert isinstance(said, Unmeasured) or said == []
