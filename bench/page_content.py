"""What pages show besides attempts: prompts, experiments, rules, pull requests, plans, reports."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

EXPERIMENTS, PLANS, PULLS, RULES, PROMPTS, REPORTS = 20, 100, 1000, 300, 50, 1000
START = datetime(2025, 10, 9, tzinfo=UTC)
TRACED, SHORT = "f" * 12, "e" * 12


def make(file: str, events: int, most: int) -> None:
    """Add to the store of metrics.py what the other pages show, at most so many of each kind."""
    from closeloop.records.task import Experiment, PromptVersion, Variant
    from closeloop.records.team_rules import TeamRule
    from closeloop.store import open_store, schema
    from closeloop.store.sql_statements import insert

    chance = random.Random(11)
    with open_store(file) as store:
        for number in range(min(PROMPTS, most)):
            text = f"You are agent {number}.\n" + "Be careful.\n" * 200
            store.save_prompt(PromptVersion(id=f"{number:064x}", text=text))
            store.save_variant(
                Variant(
                    name=f"v{number}",
                    agent="builtin",
                    model=f"m{number}",
                    digest=f"v{number}",
                    prompt=f"{number:064x}",
                )
            )
        for number in range(min(EXPERIMENTS, most)):
            store.save_experiment(
                Experiment(
                    id=f"{number:012x}",
                    tasks=tuple(f"d{task}" for task in range(100)),
                    variants=(f"v{2 * number}", f"v{2 * number + 1}"),
                    repeats=5,
                )
            )
        for number in range(min(RULES, most)):
            at = START + timedelta(hours=number)
            rule = TeamRule(id=f"r{number}", repo="billing", text=f"Rule {number}.", since=at)
            store.memory.save_rule(rule)
        with store._writer.begin() as connection:
            pulls = [_pull(number, chance) for number in range(min(PULLS, most))]
            connection.execute(insert(schema.pulls), pulls)
        _attempts(store, events)
        _plans(store, most)
        _reports(store, most)


def _attempts(store: Any, long: int) -> None:
    """Two with traces, one of them long."""
    from closeloop.records.attempt import Attempt, Grade, Outcome
    from closeloop.records.experiment_plan import AttemptResult
    from closeloop.records.trace import Command, Lane, Trace
    from closeloop.text.patches import parse_patch

    patch = "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1,1 +1,1 @@\n-1\n+2\n"
    for name, size in ((TRACED, long), (SHORT, 200)):
        events = tuple(
            Command(number=number, lane="root", command=f"echo {number}", output="1", exit_code=0)
            for number in range(1, size + 1)
        )
        trace = Trace(reader="bench", reader_version=1, lanes=(Lane(id="root"),), events=events)
        attempt = Attempt(
            id=name,
            origin="experiment",
            task="t0",
            task_digest="d0",
            variant="v0",
            number=900 + size % 7,
            started=START,
            exit="finished",
        )
        grade = Grade(attempt=name, grading="g0", version=1, outcome=Outcome(result="pass"))
        store.save_attempt(
            AttemptResult(attempt=attempt, trace=trace, change=parse_patch(patch), grade=grade)
        )


def _plans(store: Any, most: int) -> None:
    from closeloop.records.orchestration import Orchestration, SubtaskSpec

    parts = [
        SubtaskSpec(id=f"p{n}", prompt="Do it.", depends_on=(f"p{n - 1}",) if n else ())
        for n in range(12)
    ]
    for number in range(min(PLANS, most)):
        at = START + timedelta(hours=number)
        plan = Orchestration(
            id=f"{number:012x}", at=at, request="Build it.", tasks=tuple(parts), worker="v0"
        )
        store.plans.save_plan(plan)


def _reports(store: Any, most: int) -> None:
    from closeloop.records.change import Change, ChangeReport
    from closeloop.records.finding import Finding

    found = Finding(rule="copied-code", version=1, severity="warning", message="As x.py:3.")
    report = ChangeReport(
        change=Change(base="a" * 40), title="main..feature", verdict="pass", findings=(found,) * 20
    )
    for number in range(min(REPORTS, most)):
        store.reports.save_report(report, START + timedelta(hours=number), repo="billing")


def _pull(number: int, chance: random.Random) -> dict[str, Any]:
    at = START + timedelta(hours=number)
    return {
        "repo": "acme/billing",
        "pull": number + 1,
        "source": "github",
        "title": f"Change {number}",
        "agent": chance.choice((None, "codex")),
        "state": chance.choice(("merged", "closed")),
        "draft": False,
        "opened": at,
        "told": at,
        "rounds": chance.randrange(4),
        "comments": chance.randrange(9),
        "edits": 0,
        "pointers": 0,
        "reviewed": True,
        "has_change": True,
        "version": 1,
    }
