"""The end of a long trace has little to do with the goal, or steps of the plan were dropped."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from closeloop.model.finding import Finding, Rule, Unmeasured, found
from closeloop.model.record import Record
from closeloop.model.steps import LaneReading, Reading, Step
from closeloop.model.trace import Command, ToolUse
from closeloop.process.claims import claim_of, closings
from closeloop.process.measures.drift import WINDOW, drift_curve, drift_slope
from closeloop.process.telling import short
from closeloop.process.words import stems, words_of

rule = Rule(
    name="drift",
    version=1,
    about="Late work has little to do with the goal, or steps of the plan are silently dropped.",
    severity="info",
    mode="instruction drift",
    thresholds={"windows": 5, "likeness": 0.1, "slope": 0.5},
)
_PLANS = frozenset(
    ("manage_todo_list", "plan", "set_plan", "task_tracker", "todo", "todo_list", "todo_write",
     "todowrite", "update_plan", "update_todo_list", "updatetodolist", "write_todos")
)  # fmt: skip
_LISTS = ("todos", "plan", "task_list", "todoList", "todo_list", "items", "tasks", "steps")
_NAMES = ("content", "step", "title", "text", "task", "description")
_OPEN = re.compile(r"^\s*(?:[-*]|\d+[.)])?\s*\[ \]\s*(.+)$", re.MULTILINE)
_ANY = re.compile(r"^\s*(?:[-*]|\d+[.)])?\s*\[[ xX~-]\]\s*.+$", re.MULTILINE)


class Plan(Record):
    """The last state of a lane's plan."""

    number: int
    steps: int
    pending: tuple[str, ...]


def detect(reading: Reading, limits: Mapping[str, float]) -> list[Finding] | Unmeasured:
    """At most one finding of each kind for a lane."""
    findings = []
    judged = False
    for name, lane in reading.lanes.items():
        plan = last_plan(lane) if lane.tools else None
        curve = drift_curve(lane) if len(lane.steps) >= limits["windows"] * WINDOW else ()
        judged = judged or plan is not None or bool(curve)
        if plan is None and not curve:
            continue
        made = (_dropped(lane, plan) if plan else None, _away(lane, curve, limits))
        findings += [found(rule, told, events, lane=name) for told, events in filter(None, made)]
    if not judged:
        return Unmeasured(
            rule=rule.name, reason="no lane is long enough for a curve, and none keeps a plan"
        )
    return sorted(findings, key=lambda finding: min(finding.events))


def last_plan(lane: LaneReading) -> Plan | None:
    """What the lane's own list of things to do said last."""
    for step in reversed(lane.tools):
        event = step.event
        if isinstance(event, ToolUse) and event.name.lower().rpartition("/")[2] in _PLANS:
            items = list(_items(event.arguments or {}))
            if items:
                pending = tuple(text for text, is_open in items if is_open)
                return Plan(number=event.number, steps=len(items), pending=pending)
    return None


def _items(given: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    listed = next((given[name] for name in _LISTS if name in given), None)
    if isinstance(listed, str):
        waiting = {one.strip() for one in _OPEN.findall(listed)}
        for line in _ANY.findall(listed):
            text = line.partition("]")[2].strip()
            yield text, text in waiting
    elif isinstance(listed, list):
        for item in listed:
            if isinstance(item, Mapping):
                text = next(
                    (item[name] for name in _NAMES if isinstance(item.get(name), str)), None
                )
                status = item.get("status")
                if text and isinstance(status, str):
                    yield text, status.lower() in ("pending", "todo", "not_started", "not-started")


def _dropped(lane: LaneReading, plan: Plan) -> tuple[str, list[int]] | None:
    """Steps still waiting when the agent said that it was done, and never spoken of again."""
    if not plan.pending:
        return None
    later_words = (closing.message for closing in closings(lane))
    done = next((one for one in later_words if one.number > plan.number and claim_of(one)), None)
    if done is None:
        return None
    told = [message.text[:6000] for message in lane.messages[-50:] if message.number > plan.number]
    told += [_told(step) for step in lane.steps[-200:] if step.number > plan.number]
    spoken = stems(words_of("\n".join(told)))
    silent = [text for text in plan.pending if not _is_spoken_of(text, spoken)]
    if not silent:
        return None
    dropped = f"{len(silent)} of {plan.steps} planned steps were dropped without a word"
    return f"{dropped}: “{short(silent[0])}”", [done.number, plan.number]


def _told(step: Step) -> str:
    """What an action did, in a few words."""
    event = step.event
    return event.command[:500] if isinstance(event, Command) else " ".join(step.written)


def _is_spoken_of(text: str, said: frozenset[str]) -> bool:
    words = stems(words_of(text))
    return not words or len(words & said) >= 0.5 * len(words)


def _away(
    lane: LaneReading, curve: tuple[float, ...], limits: Mapping[str, float]
) -> tuple[str, list[int]] | None:
    slope = drift_slope(curve)
    if slope is None or len(curve) < limits["windows"]:
        return None
    if max(curve[-2:]) > limits["likeness"] or slope > -limits["slope"]:
        return None
    late = lane.steps[-2 * WINDOW :]
    return (
        f"The last {len(late)} actions have little to do with the request: likeness fell to "
        f"{curve[-1]:.2f} from {max(curve[:2]):.2f}.",
        [late[0].number, late[-1].number],
    )
