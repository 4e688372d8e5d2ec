"""What a tool says against a change, by how it ended before the change and after it.

One table for tests, linters, type checkers, builds and the project's own commands. A tool is let
through only where it is shown to be no worse than before.
"""

from __future__ import annotations

from typing import Literal, get_args

from closeloop.records.change import GatePolicy, ToolOutcome, ToolRun

ToolEnding = Literal[
    "passed", "failed", "no results", "inert", "timed out", "not set up", "machine trouble"
]
"""A tool's state. A failed one has results when it named what fails, or which tests ran."""
EndingComparison = Literal["by name", "no worse", "same", "broken", "unknown"]
"""By name: failures and tests are compared one by one. Same: as red as without the change."""

# fmt: off
_COMPARISONS: dict[ToolEnding, tuple[EndingComparison, ...]] = {
    # by the ending before the change; in a row, by the one after it:
    #    passed      failed     no results  inert      timed out  not set up  machine
    "passed": (
        "by name",  "by name", "broken",   "broken",  "broken",  "broken",   "unknown"),
    "failed": (
        "by name",  "by name", "broken",   "broken",  "broken",  "broken",   "unknown"),
    "no results": (
        "no worse", "unknown", "same",     "unknown", "broken",  "broken",   "unknown"),
    "inert": (
        "no worse", "unknown", "unknown",  "same",    "broken",  "broken",   "unknown"),
    "timed out": (
        "no worse", "unknown", "unknown",  "unknown", "same",    "broken",   "unknown"),
    "not set up": (
        "no worse", "unknown", "unknown",  "unknown", "broken",  "same",     "unknown"),
    "machine trouble": (
        "no worse", "unknown", "unknown",  "unknown", "unknown", "unknown",  "unknown"),
}
# fmt: on


def compare_endings(before: ToolEnding, after: ToolEnding) -> EndingComparison:
    """The table's cell for a tool that ended so before the change and so after it."""
    return _COMPARISONS[before][get_args(ToolEnding).index(after)]


def tool_outcome(run: ToolRun) -> ToolOutcome:
    """A run's outcome; of a report that was kept without one, as far as its states tell."""
    if run.outcome is not None:
        return run.outcome
    if run.broke:
        return "broken"
    if run.after in ("passed", run.before):
        return "no worse"
    return "unknown" if run.before is None else "broken"


def is_blocked_by(run: ToolRun, gate: GatePolicy) -> bool:
    """Whether a tool closes the gate: what is red, what is not shown to be no worse, or nothing."""
    if gate == "informational":
        return False
    return tool_outcome(run) != "no worse" or (gate == "strict" and run.after != "passed")
