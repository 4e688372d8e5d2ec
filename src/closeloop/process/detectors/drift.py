"""Late work is unrelated to the goal, or steps of the plan are silently dropped.

## What it looks for

**The curve.** A lane's actions are divided into windows of 20. The similarity of a window is the
share of its actions whose path, command, text or output contains a significant word of the request.
A file that such an action opens becomes part of the goal, and a new request extends the goal.
Checks and waiting are excluded. A long lane is sampled in 25 windows, evenly spaced. The slope is
the change of similarity from the first window to the last, by linear regression. Both are measures
of every lane with at least 40 actions. A lane is reported if it has at least 100 actions, its last
two windows are at 0.1 or less, and the slope is −0.5 or steeper.

**The plan.** The last state of the agent's own list (TodoWrite, update_plan, TaskCreate and similar
tools, including open steps that disappeared from it); without one, three or more numbered steps
that the agent announced (`Plan:`, `I will …`) before its first change. Lists of the user or of an
issue are not plans. Two cases are reported: steps that are still open when the agent says that it
is done, before the user's next message, and that neither its later messages nor its later actions
mention; and five or more final edits that are unrelated to request and plan, in folders that the
agent had not used before, while steps are open. Of announced steps, only those with a visible
result count: not `explore`, `check`, `run the tests`.

## Why it matters

An agent that loses the goal does a lot of work, but not the requested work.

## Bad

```text
#1    user   Fix the rounding in billing/invoice.py.
#2…   edit   billing/invoice.py …
#62…  edit   web/theme1.css, web/theme2.css, … (sixty times)
```

```text
#2    agent  Plan: 1. Order model … 6. Rate limiting … 8. German translations … 12. Changelog
#3…   edit   shop/models.py, shop/views.py, web/theme.css
#9    agent  "Orders are added. All is done."
```

## Good

```text
#1    user   Fix the rounding in billing/invoice.py.
#2…   edit   billing/invoice.py …
#40   agent  "Rounded. The plan's last step, the glossary, I left out: it has no such word."
```

## When it can be measured

If a lane has 100 actions and a request, or a plan of any length.

## Thresholds and silencing

`windows` (5): the minimum number of windows. `likeness` (0.1): the highest similarity that counts
as low. `slope` (0.5): the minimum fall.

```toml
[rules.drift]
likeness = 0.05

[[silence]]
rule = "drift"
task = "explore-*"
reason = "these tasks have no fixed goal"
```

## How sure it is

It is advisory (severity info): words are a poor measure of a goal, and legitimate work wanders.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from closeloop.process.agent_claims import ClosingMessage, list_closings, parse_claim
from closeloop.process.feedback_use import WINDOW_STEPS, drift_curve, drift_slope
from closeloop.process.handoff_briefs import short_names, step_input
from closeloop.process.rule_helpers import truncate_line
from closeloop.process.text_facts import (
    find_sentence_targets,
    mentions_any,
    normalise_words,
    word_stems,
)
from closeloop.records.change import LaneReading, TraceReading, TraceStep
from closeloop.records.finding import Finding, Rule, Unmeasured, make_finding
from closeloop.records.record import Record
from closeloop.records.trace import Message, Thought, ToolUse
from closeloop.text.wording import compile_lazily

# Plans of an agent: its to-do list, the steps that it announced, and the lost ones.
#
# Lists in a tool record themselves what is open. For steps in a message only later actions and
# messages show it: a step is lost when nothing of it turns up again. Lists of the user are not
# plans: most describe how to reproduce a fault, or how to answer.


MIN_STEPS = 3
"""A list with fewer items is not a plan."""
MIN_STRAY_EDITS = 5
"""This many consecutive edits that touch neither request nor plan have left them."""
MAX_STEPS = 200
MAX_INPUT_CHARS = 4000
MAX_MESSAGES = 100
_PLAN_TOOLS = frozenset(
    ("manage_todo_list", "plan", "set_plan", "task_tracker", "todo", "todo_list", "todo_write",
     "todowrite", "update_plan", "update_todo_list", "updatetodolist", "write_todos")
)  # fmt: skip
_LIST_FIELDS = ("todos", "plan", "task_list", "todoList", "todo_list", "items", "tasks", "steps")
_TEXT_FIELDS = ("content", "step", "title", "text", "task", "description")
_OPEN_STATES = ("pending", "todo", "not_started", "not-started")
_OPEN_ITEM = compile_lazily(r"^\s*(?:[-*]|\d+[.)])?\s*\[ \]\s*(.+)$", re.MULTILINE)
_ANY_ITEM = compile_lazily(r"^\s*(?:[-*]|\d+[.)])?\s*\[[ xX~-]\]\s*.+$", re.MULTILINE)
_TASK_ID = compile_lazily(r"#(\d+)")
_NUMBERED_LINE = compile_lazily(
    r"^ {0,3}(?:\*\*)?(?:step )?(\d{1,2})[.):]\s+(.{4,300})$", re.M | re.I
)
_THIRD_ITEMS = ("\n3.", "\n3)", "\n3:", "\n 3.", "\n  3.", "\n   3.", "\n**3", "tep 3")
"""Without one of these a message has no such list."""
_PLAN_WORD = compile_lazily(
    r"\b(?:plan|(?:my|the|next|following) steps|todo|i(?:'ll| will)|going to|approach|i need to"
    r"|let's|let me)\b",
    re.IGNORECASE,
)
_REPRODUCTION = compile_lazily(r"\breproduc\w*\b", re.IGNORECASE)
_THINKING = compile_lazily(
    r"^\W*(?:first,? |then,? |finally,? |next,? )?(?:it|this|that|there|they"
    r"|explore|understand|analy[sz]e|think|consider|review|identify|verify|ensure|make sure"
    r"|confirm|check|look|read|find|locate|plan|run|re-?run"
    r"|(?:create|write) a (?:\w+ ){0,2}script|test|investigate|study|decide|reproduce"
    r"|submit|finish|commit|report|summari[sz]e|ask|wait|repeat"
    r"|if|optional\w*|maybe|as a first|gather|search|inspect|examine|note|use|debug|validate)\b",
    re.IGNORECASE,
)
"""Steps that leave no trace, are done only if needed, or only describe."""
_VAGUE_STEMS = word_stems(
    " add change create implement update fix make remove test run new code file function refactor"
    " extend support handle step task need source sourcecode repo repository issue resolve problem"
    " bug script error solution work project codebase reproduce "
)


class LanePlan(Record):
    """The last state of one of a lane's plans."""

    number: int
    """Number of the event that states it."""
    steps: int
    pending: tuple[str, ...]
    """Steps that are open or unknown."""
    tracked: bool = True
    """Whether the list itself says what is open; otherwise only the work shows it."""


class DroppedSteps(Record):
    """Steps that were open when the agent claimed to be done, or turned to something else."""

    plan: LanePlan
    steps: tuple[str, ...]
    claim: Message | None = None
    strayed: Sequence[TraceStep] = ()
    """Edits at the end that are unrelated to the request and the plan."""


def find_dropped_steps(
    reading: TraceReading, lane: LaneReading, plans: Sequence[LanePlan]
) -> DroppedSteps | None:
    """Return plan steps that neither the lane's later messages nor its later work mention."""
    for plan in plans:
        if not plan.pending:
            continue
        claim = _claim_on_plan(lane, plan)
        stray_edits = _list_stray_edits(lane, plan) if claim is None else ()
        if (claim or stray_edits) and (lost_steps := tuple(_list_lost_steps(reading, lane, plan))):
            return DroppedSteps(plan=plan, steps=lost_steps, claim=claim, strayed=stray_edits)
    return None


def list_plans(lane: LaneReading) -> Sequence[LanePlan]:
    """Return the lane's to-do list, or its announced steps, each in its last state."""
    plans = [find_last_plan(lane), _find_task_plan(lane)] if lane.tools else []
    if not any(plans):
        plans.append(_find_written_plan(lane))
    return [plan for plan in plans if plan is not None]


def find_last_plan(lane: LaneReading) -> LanePlan | None:
    """Return the last state of the lane's to-do list, including items that vanished from it."""
    last_plan: LanePlan | None = None
    vanished: dict[str, None] = {}
    last_request = lane.users[-1].number if lane.users else 0
    for step in reversed(lane.tools):
        event = step.event
        if not isinstance(event, ToolUse) or not _is_plan_tool(event.name):
            continue
        items = list(_parse_plan_items(event.arguments or {}))
        if items and last_plan is None:
            pending = tuple(text for text, is_open in items if is_open)
            last_plan = LanePlan(number=event.number, steps=len(items), pending=pending)
            last_stems = _telling_stems(" ".join(text for text, _ in items))
        elif items and event.number > last_request:
            vanished |= {
                text: None
                for text, is_open in items
                if is_open and _share(_telling_stems(text), last_stems) < 0.5
            }
        if event.number <= last_request:
            break
    if last_plan is None or not vanished:
        return last_plan
    return LanePlan(
        number=last_plan.number,
        steps=last_plan.steps + len(vanished),
        pending=(*last_plan.pending, *vanished),
    )


@lru_cache(1024)
def _is_plan_tool(name: str) -> bool:
    return name.lower().rpartition("/")[2] in _PLAN_TOOLS


def _parse_plan_items(arguments: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    plan_list = next((arguments[name] for name in _LIST_FIELDS if name in arguments), None)
    if isinstance(plan_list, str):
        open_items = {item_text.strip() for item_text in _OPEN_ITEM.findall(plan_list)}
        for line in _ANY_ITEM.findall(plan_list):
            text = line.partition("]")[2].strip()
            yield text, text in open_items
    elif isinstance(plan_list, list):
        for item in plan_list:
            if isinstance(item, Mapping):
                text = next(
                    (item[name] for name in _TEXT_FIELDS if isinstance(item.get(name), str)), None
                )
                status = item.get("status")
                if text and isinstance(status, str):
                    yield text, status.lower() in _OPEN_STATES


def _find_task_plan(lane: LaneReading) -> LanePlan | None:
    """Return a list that is kept task by task: `TaskCreate`, `TaskUpdate`."""
    tasks: dict[str, tuple[str, str]] = {}
    number = 0
    for step in lane.tools:
        event = step.event
        if not isinstance(event, ToolUse) or event.name not in ("TaskCreate", "TaskUpdate"):
            continue
        arguments = event.arguments or {}
        if event.name == "TaskCreate":
            id_match = _TASK_ID.search(event.output or "")
            subject = arguments.get("subject")
            if id_match and isinstance(subject, str):
                tasks[id_match[1]] = subject, "pending"
        elif (task_id := str(arguments.get("taskId"))) in tasks and isinstance(
            arguments.get("status"), str
        ):
            tasks[task_id] = tasks[task_id][0], arguments["status"]
        number = event.number
    if len(tasks) < MIN_STEPS:
        return None
    pending = tuple(subject for subject, status in tasks.values() if status in _OPEN_STATES)
    return LanePlan(number=number, steps=len(tasks), pending=pending)


def _find_written_plan(lane: LaneReading) -> LanePlan | None:
    """Return numbered steps in the agent's messages before its first change, since the user
    spoke."""
    first_change = lane.changes[0].number if lane.changes else 0
    for message in reversed(lane.messages[:MAX_MESSAGES]):
        if message.number > first_change or message.intent == "claim":
            continue
        if message.role == "user":
            return None
        text = message.text[:8000]
        steps = _announced_steps(text) if mentions_any(text, _THIRD_ITEMS) else []
        if len(steps) >= MIN_STEPS:
            checkable = tuple(filter(_leaves_mark, steps))
            return LanePlan(
                number=message.number, steps=len(steps), pending=checkable, tracked=False
            )
    return None


@lru_cache(1024)
def _leaves_mark(step: str) -> bool:
    return not _THINKING.match(step) and bool(_telling_stems(step) or find_sentence_targets(step))


def _announced_steps(text: str) -> list[str]:
    """Return the longest list numbered 1, 2, 3, … below words that announce work."""
    steps: list[str] = []
    longest: list[str] = []
    is_announced = False
    for item in _NUMBERED_LINE.finditer(text):
        number, line = item.groups()
        if int(number) == 1:
            steps, is_announced = [], _announces_plan(text[: item.start()])
        if is_announced and int(number) == len(steps) + 1:
            steps.append(line.strip(" *"))
        if len(steps) > len(longest):
            longest = steps
    return longest


def _announces_plan(before: str) -> bool:
    """Whether the line above a list announces work, and does not explain how a fault arises."""
    line_above = before.rstrip().rpartition("\n")[2]
    return bool(_PLAN_WORD.search(line_above)) and not _REPRODUCTION.search(line_above)


def _claim_on_plan(lane: LaneReading, plan: LanePlan) -> Message | None:
    """Return the first claim after it, if the user had not spoken in between."""
    closings = (closing for closing in list_closings(lane) if _covers(closing, plan))
    return next((closing.message for closing in closings if parse_claim(closing.message)), None)


def _covers(closing: ClosingMessage, plan: LanePlan) -> bool:
    return closing.since <= plan.number < closing.message.number


def _list_stray_edits(lane: LaneReading, plan: LanePlan) -> Sequence[TraceStep]:
    """Return the lane's last edits, if enough in a row are about something else."""
    edits = lane.edits[-MIN_STRAY_EDITS:]
    if len(edits) < MIN_STRAY_EDITS or edits[0].number <= plan.number:
        return ()
    if lane.users and lane.users[-1].number > plan.number:
        return ()
    goal = _telling_stems("\n".join([*plan.pending, *(user.text[:6000] for user in lane.users)]))
    strayed: list[TraceStep] = []
    for step in reversed(lane.edits):
        if step.number <= plan.number or goal & _telling_stems(step_input(step)):
            break
        strayed.append(step)
    if len(strayed) < MIN_STRAY_EDITS or _works_where_it_did(lane, strayed):
        return ()
    return strayed[::-1]


def _works_where_it_did(lane: LaneReading, strayed: Sequence[TraceStep]) -> bool:
    """Whether they are in folders that it had read or changed before, so that it is still working.

    A recording that ends there drops nothing.
    """
    first = min(step.number for step in strayed)
    earlier = {_folder(path) for step in lane.steps if step.number < first for path in _paths(step)}
    return not earlier.isdisjoint(_folder(path) for step in strayed for path in _paths(step))


def _paths(step: TraceStep) -> Iterator[str]:
    yield from step.written
    yield from step.read


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


def _list_lost_steps(reading: TraceReading, lane: LaneReading, plan: LanePlan) -> Iterator[str]:
    first = plan.number
    texts = [
        event.text[:6000]
        for event in reading.trace.events
        if (isinstance(event, Thought) or (isinstance(event, Message) and event.role == "agent"))
        and event.number > first
        and event.lane == lane.lane.id
    ][-MAX_MESSAGES:]
    texts += [
        step_input(step)[:MAX_INPUT_CHARS]
        for step in lane.steps[-MAX_STEPS:]
        if step.number > first
    ]
    texts += [path for step in lane.changes[-MAX_STEPS:] for path in step.written]
    later_text = "\n".join(texts)
    stems = _telling_stems(later_text)
    for text in plan.pending:
        step_stems = _telling_stems(text)
        share = _share(step_stems, stems)
        if plan.tracked:
            if share < 0.5:
                yield text
        elif targets := short_names(find_sentence_targets(text)):
            if share < 0.5 and not mentions_any(later_text, targets):
                yield text
        elif step_stems and not share:
            yield text


def _telling_stems(text: str) -> frozenset[str]:
    words = normalise_words(text)
    # It has the stem of `change`.
    kept_words = {"changelog"} if "changelog" in words else set()
    return (word_stems(words) - _VAGUE_STEMS) | kept_words


def _share(words: frozenset[str], found_words: frozenset[str]) -> float:
    return len(words & found_words) / len(words) if words else 1.0


rule = Rule(
    name="drift",
    version=3,
    about="Late work is unrelated to the goal, or steps of the plan are silently dropped.",
    severity="info",
    mode="instruction drift",
    thresholds={"windows": 5, "likeness": 0.1, "slope": 0.5},
)


def detect(reading: TraceReading, limits: Mapping[str, float]) -> list[Finding] | Unmeasured:
    """Report at most one finding of each kind per lane."""
    findings = []
    is_measurable = False
    for name, lane in reading.lanes.items():
        plans = list_plans(lane)
        curve = drift_curve(lane) if len(lane.steps) >= limits["windows"] * WINDOW_STEPS else ()
        is_measurable = is_measurable or bool(plans) or bool(curve)
        if not plans and not curve:
            continue
        descriptions = (
            _describe_dropped_steps(reading, lane, plans),
            _describe_drift(lane, curve, limits),
        )
        findings += [
            make_finding(rule, message, events, lane=name)
            for message, events in filter(None, descriptions)
        ]
    if not is_measurable:
        return Unmeasured(
            rule=rule.name, reason="the session is too short to show a drift, and it has no plan"
        )
    return sorted(findings, key=lambda finding: min(finding.events))


def _describe_dropped_steps(
    reading: TraceReading, lane: LaneReading, plans: Sequence[LanePlan]
) -> tuple[str, list[int]] | None:
    dropped = find_dropped_steps(reading, lane, plans)
    if dropped is None:
        return None
    first = truncate_line(dropped.steps[0])
    count = f"{len(dropped.steps)} of {dropped.plan.steps} planned steps"
    if dropped.claim is not None:
        cited = [dropped.claim.number, dropped.plan.number]
        return f"{count} were silently dropped: “{first}”", cited
    return (
        f"The last {len(dropped.strayed)} edits are unrelated to the plan, {count} of "
        f"which are open: “{first}”",
        [dropped.strayed[0].number, dropped.strayed[-1].number, dropped.plan.number],
    )


def _describe_drift(
    lane: LaneReading, curve: tuple[float, ...], limits: Mapping[str, float]
) -> tuple[str, list[int]] | None:
    slope = drift_slope(curve)
    if slope is None or len(curve) < limits["windows"]:
        return None
    if max(curve[-2:]) > limits["likeness"] or slope > -limits["slope"]:
        return None
    last_steps = lane.steps[-2 * WINDOW_STEPS :]
    return (
        f"The last {len(last_steps)} actions are unrelated to the request: similarity fell "
        f"from {max(curve[:2]):.2f} to {curve[-1]:.2f}.",
        [last_steps[0].number, last_steps[-1].number],
    )
