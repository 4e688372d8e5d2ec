"""Late work has little to do with what was asked, or steps of the plan were silently dropped.

## What it looks for

**The curve.** A lane's actions are cut into windows of 20. The likeness of a window is the share
of its actions whose path, command, text or output holds a telling word of what the user asked; a
file that such an action opens counts as part of the goal from then on, and a new request widens
the goal. Checks and waiting are left out. A long lane is looked at in 25 windows, evenly spread.
The slope is the change of likeness from the first window to the last, by the line through all of
them. Both are measures of every lane of 40 actions and more. Reported is a lane of at least 100
actions whose last two windows are at 0.1 or less, with a slope of −0.5 or steeper.

**The plan.** The last state of the agent's own list (TodoWrite, update_plan and their like):
steps still pending when the agent says that it is done, and that neither its later words nor its
later actions mention.

## Why it matters

An agent that reads the goal differently at the end than at the start does much work, and not the
one that was asked for.

## Bad

```text
#1    user   Fix the rounding in billing/invoice.py.
#2…   edit   billing/invoice.py …
#62…  edit   web/theme1.css, web/theme2.css, … (sixty times)
```

## Good

```text
#1    user   Fix the rounding in billing/invoice.py.
#2…   edit   billing/invoice.py …
#40   agent  "Rounded. The plan's last step, the glossary, I left out: it has no such word."
```

## When it can be measured

When a lane has 100 actions and a request, or keeps a plan.

## Thresholds and silencing

`windows` (5): the fewest windows. `likeness` (0.1): what counts as low. `slope` (0.5): the least
fall.

```toml
[rules.drift]
likeness = 0.05

[[silence]]
rule = "drift"
task = "explore-*"
reason = "these tasks have no fixed goal"
```

## How sure it is

It advises (severity info): words are a poor measure of a goal, and legitimate work wanders.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from closeloop.process.agent_claims import list_closings, parse_claim
from closeloop.process.measures.convergence import WINDOW_STEPS, drift_curve, drift_slope
from closeloop.process.rule_helpers import truncate_line
from closeloop.process.text_words import normalise_words, word_stems
from closeloop.records.finding import Finding, Rule, Unmeasured, make_finding
from closeloop.records.inspection import (
    LaneReading,
    TraceReading,
    TraceStep,
)
from closeloop.records.record import Record
from closeloop.records.trace import (
    Command,
    ToolUse,
)

rule = Rule(
    name="drift",
    version=1,
    about="Late work has little to do with the goal, or steps of the plan are silently dropped.",
    severity="info",
    mode="instruction drift",
    thresholds={"windows": 5, "likeness": 0.1, "slope": 0.5},
)
_PLAN_TOOLS = frozenset(
    ("manage_todo_list", "plan", "set_plan", "task_tracker", "todo", "todo_list", "todo_write",
     "todowrite", "update_plan", "update_todo_list", "updatetodolist", "write_todos")
)  # fmt: skip
_LIST_FIELDS = ("todos", "plan", "task_list", "todoList", "todo_list", "items", "tasks", "steps")
_TEXT_FIELDS = ("content", "step", "title", "text", "task", "description")
_OPEN_ITEM = re.compile(r"^\s*(?:[-*]|\d+[.)])?\s*\[ \]\s*(.+)$", re.MULTILINE)
_ANY_ITEM = re.compile(r"^\s*(?:[-*]|\d+[.)])?\s*\[[ xX~-]\]\s*.+$", re.MULTILINE)


class LanePlan(Record):
    """The last state of a lane's plan."""

    number: int
    steps: int
    pending: tuple[str, ...]


def detect(reading: TraceReading, limits: Mapping[str, float]) -> list[Finding] | Unmeasured:
    """At most one finding of each kind for a lane."""
    findings = []
    judged = False
    for name, lane in reading.lanes.items():
        plan = find_last_plan(lane) if lane.tools else None
        curve = drift_curve(lane) if len(lane.steps) >= limits["windows"] * WINDOW_STEPS else ()
        judged = judged or plan is not None or bool(curve)
        if plan is None and not curve:
            continue
        descriptions = (
            _describe_dropped_steps(lane, plan) if plan else None,
            _describe_drift(lane, curve, limits),
        )
        findings += [
            make_finding(rule, told, events, lane=name)
            for told, events in filter(None, descriptions)
        ]
    if not judged:
        return Unmeasured(
            rule=rule.name, reason="no lane is long enough for a curve, and none keeps a plan"
        )
    return sorted(findings, key=lambda finding: min(finding.events))


def find_last_plan(lane: LaneReading) -> LanePlan | None:
    """What the lane's own list of things to do said last."""
    for step in reversed(lane.tools):
        event = step.event
        if isinstance(event, ToolUse) and event.name.lower().rpartition("/")[2] in _PLAN_TOOLS:
            items = list(_parse_plan_items(event.arguments or {}))
            if items:
                pending = tuple(text for text, is_open in items if is_open)
                return LanePlan(number=event.number, steps=len(items), pending=pending)
    return None


def _parse_plan_items(given: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    plan_list = next((given[name] for name in _LIST_FIELDS if name in given), None)
    if isinstance(plan_list, str):
        waiting = {one.strip() for one in _OPEN_ITEM.findall(plan_list)}
        for line in _ANY_ITEM.findall(plan_list):
            text = line.partition("]")[2].strip()
            yield text, text in waiting
    elif isinstance(plan_list, list):
        for item in plan_list:
            if isinstance(item, Mapping):
                text = next(
                    (item[name] for name in _TEXT_FIELDS if isinstance(item.get(name), str)), None
                )
                status = item.get("status")
                if text and isinstance(status, str):
                    yield text, status.lower() in ("pending", "todo", "not_started", "not-started")


def _describe_dropped_steps(lane: LaneReading, plan: LanePlan) -> tuple[str, list[int]] | None:
    """Steps still waiting when the agent said that it was done, and never spoken of again."""
    if not plan.pending:
        return None
    later_words = (closing.message for closing in list_closings(lane))
    claim_message = next(
        (one for one in later_words if one.number > plan.number and parse_claim(one)), None
    )
    if claim_message is None:
        return None
    later_texts = [
        message.text[:6000] for message in lane.messages[-50:] if message.number > plan.number
    ]
    later_texts += [_step_text(step) for step in lane.steps[-200:] if step.number > plan.number]
    spoken_stems = word_stems(normalise_words("\n".join(later_texts)))
    unmentioned_steps = [text for text in plan.pending if not _is_mentioned_in(text, spoken_stems)]
    if not unmentioned_steps:
        return None
    dropped = f"{len(unmentioned_steps)} of {plan.steps} planned steps were dropped without a word"
    return f"{dropped}: “{truncate_line(unmentioned_steps[0])}”", [
        claim_message.number,
        plan.number,
    ]


def _step_text(step: TraceStep) -> str:
    """What an action did, in a few words."""
    event = step.event
    return event.command[:500] if isinstance(event, Command) else " ".join(step.written)


def _is_mentioned_in(text: str, said: frozenset[str]) -> bool:
    words = word_stems(normalise_words(text))
    return not words or len(words & said) >= 0.5 * len(words)


def _describe_drift(
    lane: LaneReading, curve: tuple[float, ...], limits: Mapping[str, float]
) -> tuple[str, list[int]] | None:
    slope = drift_slope(curve)
    if slope is None or len(curve) < limits["windows"]:
        return None
    if max(curve[-2:]) > limits["likeness"] or slope > -limits["slope"]:
        return None
    late = lane.steps[-2 * WINDOW_STEPS :]
    return (
        f"The last {len(late)} actions have little to do with the request: likeness fell to "
        f"{curve[-1]:.2f} from {max(curve[:2]):.2f}.",
        [late[0].number, late[-1].number],
    )
