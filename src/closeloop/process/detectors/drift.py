"""Late work has little to do with what was asked, or steps of the plan were silently dropped.

## What it looks for

**The curve.** A lane's actions are cut into windows of 20. The likeness of a window is the share
of its actions whose path, command, text or output holds a telling word of what the user asked; a
file that such an action opens counts as part of the goal from then on, and a new request widens
the goal. Checks and waiting are left out. A long lane is looked at in 25 windows, evenly spread.
The slope is the change of likeness from the first window to the last, by the line through all of
them. Both are measures of every lane of 40 actions and more. Reported is a lane of at least 100
actions whose last two windows are at 0.1 or less, with a slope of −0.5 or steeper.

**The plan.** The agent's own list, as it stood last (TodoWrite, update_plan, TaskCreate and their
like, with steps that vanished from it while they were open); without one, three or more numbered
steps that the agent announced (`Plan:`, `I will …`) before its first change. Lists of the user or
of an issue are no plan. Reported are steps that are open when the agent says that it is done,
before the user speaks again, and that neither its later words nor its later actions mention; or
five and more edits at the end that have nothing to do with request and plan, in folders that it
had not been in before, while steps are open. Of steps in a message only those are judged that
leave a mark: not `explore`, `check`, `run the tests`.

## Why it matters

An agent that reads the goal differently at the end than at the start does much work, and not the
one that was asked for.

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

When a lane has 100 actions and a request, or has a plan, however short it is.

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

from collections.abc import Mapping, Sequence

from closeloop.process.agent_plans import LanePlan, find_dropped_steps, list_plans
from closeloop.process.measures.convergence import WINDOW_STEPS, drift_curve, drift_slope
from closeloop.process.rule_helpers import truncate_line
from closeloop.records.finding import Finding, Rule, Unmeasured, make_finding
from closeloop.records.inspection import (
    LaneReading,
    TraceReading,
)

rule = Rule(
    name="drift",
    version=3,
    about="Late work has little to do with the goal, or steps of the plan are silently dropped.",
    severity="info",
    mode="instruction drift",
    thresholds={"windows": 5, "likeness": 0.1, "slope": 0.5},
)


def detect(reading: TraceReading, limits: Mapping[str, float]) -> list[Finding] | Unmeasured:
    """At most one finding of each kind for a lane."""
    findings = []
    judged = False
    for name, lane in reading.lanes.items():
        plans = list_plans(lane)
        curve = drift_curve(lane) if len(lane.steps) >= limits["windows"] * WINDOW_STEPS else ()
        judged = judged or bool(plans) or bool(curve)
        if not plans and not curve:
            continue
        descriptions = (
            _describe_dropped_steps(reading, lane, plans),
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
        return f"{count} were dropped without a word: “{first}”", cited
    return (
        f"The last {len(dropped.strayed)} edits have nothing to do with the plan, {count} of which"
        f" are open: “{first}”",
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
    late = lane.steps[-2 * WINDOW_STEPS :]
    return (
        f"The last {len(late)} actions have little to do with the request: likeness fell to "
        f"{curve[-1]:.2f} from {max(curve[:2]):.2f}.",
        [late[0].number, late[-1].number],
    )
