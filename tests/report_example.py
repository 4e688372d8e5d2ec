"""A report with something of everything, and one with nothing to say."""

from __future__ import annotations

from closeloop.records.change import (
    Change,
    ChangeReport,
    FileChange,
    RevertChance,
    Risk,
    RiskFactor,
    ToolRun,
)
from closeloop.records.finding import Finding, Rule, Severity, Unmeasured

BASE, HEAD = "a" * 40, "b" * 40
BLOBS = f"https://github.com/ann/tally/blob/{HEAD}"
RULES = (
    Rule(
        name="hallucinated-api",
        version=2,
        about="A name is used that does not exist.",
        severity="error",
        mode="hallucinated API",
        gates=True,
    ),
    Rule(name="needless-copy", version=1, about="Code is there twice.", severity="warning"),
)
CHANGE = Change(
    base=BASE,
    head=HEAD,
    files=(
        FileChange(path="tally/days.py", status="changed", added=20, removed=4),
        FileChange(path="tests/test_days.py", status="changed", added=2, removed=9),
    ),
)


def finding(
    message: str,
    place: str | None = "tally/days.py:12",
    *,
    rule: str = "hallucinated-api",
    severity: Severity = "error",
    silenced: str | None = None,
) -> Finding:
    return Finding(
        rule=rule,
        version=1,
        severity=severity,
        message=message,
        places=(place,) if place else (),
        source="check",
        silenced=silenced,
    )


BAD = ChangeReport(
    change=CHANGE,
    title="main..feature",
    verdict="block",
    reasons=("1 newly failing in test", "1 error", "1 warning"),
    tools=(
        ToolRun(
            name="test",
            command="pytest -q",
            before="passed",
            after="failed",
            broke=("tests/test_days.py::test_leap_year",),
            output="E   assert 28 == 29\n1 failed, 41 passed in 0.3s\n",
            seconds=12.2,
        ),
        ToolRun(
            name="lint",
            command="ruff check .",
            before="failed",
            after="failed",
            already=("tally/cli.py:3 F401",),
            seconds=0.3,
        ),
    ),
    findings=(
        finding(
            "`leap` is a copy of `is_leap` in tally/calendar.py:40.",
            "tally/days.py:30",
            rule="needless-copy",
            severity="warning",
        ),
        finding("`parse_day` does not exist in tally.days; did you mean `parse_date`?"),
        finding("`DoIt` is not named like the rest.", rule="odd-name", severity="info"),
        finding("Known.", "tally/days.py:40", silenced="we mean it"),
    ),
    risk=Risk(
        level="high",
        reasons=("Removes the public function `parse_date`.", "Larger than 83 % of changes."),
        factors=(
            RiskFactor(name="surface", axis="likelihood", text="35 lines", weight=0.2),
            RiskFactor(
                name="public API",
                axis="impact",
                text="1 function removed",
                weight=0.9,
                places=("tally/days.py:12",),
            ),
        ),
        chance=RevertChance(value=0.12, low=0.08, high=0.17, of=900, method="logistic"),
        unmeasured=(Unmeasured(rule="coverage", reason="there is no coverage data"),),
    ),
    unmeasured=(Unmeasured(rule="unknown-name", reason="tally/odd.py cannot be parsed"),),
)
CLEAN = ChangeReport(
    change=CHANGE,
    title="main..feature",
    verdict="pass",
    tools=BAD.tools[1:],
    risk=Risk(level="low", reasons=("Small.",)),
)
