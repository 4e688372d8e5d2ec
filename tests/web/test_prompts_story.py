"""Five prompts, two variants, nothing that checks them: scored by a person and by a judge.

The story of a team that has prompts and no tests: it types them, runs two models on them, scores
what comes back in the browser by the keyboard alone, and is told which is better, how sure that is.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from playwright.sync_api import Page, expect

import small_project
from closeloop.cli.config import load_project
from closeloop.judges.rubric import load_rubric
from closeloop.store import Store, open_store
from closeloop.web.page import PageContext

SHOP = """PRICES = {'tea': 3}


def total(names):
    return sum(PRICES[name] for name in names)
"""
TYPED = {
    "discount": "Give ten per cent off from five items on.",
    "unknown-item": "An item without a price should not crash the till.",
    "question": "Which function adds up prices, and in which file?",
}
WRITTEN = {
    "Write a report.md": "Write docs/report.md: how a total is computed, for a new colleague.",
    "rename.md": "Rename `total` to something better.",
}
GOOD = "I looked at shop.py first and ran it afterwards."
BAD = "Should be fine."
GOOD_WORK = rf"{GOOD}|if len\(names\)|PRICES\.get\(|sum of prices"
"""Also without closing messages: a judge that passes a change is asked again without them."""
CAREFUL = """name: careful
dialogues:
  - prompt: per cent
    turns:
      - do:
          edit:
            path: shop.py
            old: return sum(
            new: return (0.9 if len(names) > 4 else 1) * sum(
      - do: {finish: {summary: "Ten per cent off, by careful on careful.yaml. GOOD"}}
  - prompt: crash
    turns:
      - do: {edit: {path: shop.py, old: "PRICES[name]", new: "PRICES.get(name, 0)"}}
      - do: {finish: {summary: "An unknown item costs nothing. GOOD"}}
  - prompt: Which function
    turns: [{say: "`total` in shop.py. GOOD"}]
  - prompt: report
    turns:
      - do:
          write:
            path: docs/report.md
            text: "# The total\\n\\nA total is the **sum of prices**.\\n"
      - do: {finish: {summary: "The report is written. GOOD"}}
  - prompt: Rename
    turns: [{say: "What should it be called? GOOD"}]
"""
HASTY = """name: hasty
dialogues:
  - prompt: per cent
    turns:
      - do: {edit: {path: shop.py, old: "return sum(", new: "return 0.9 * sum("}}
      - do: {finish: {summary: "Ten per cent off, says hasty. BAD"}}
  - prompt: .
    turns: [{say: "BAD"}]
"""
CONFIGURATION = """[sandbox]
kind = "none"
[variants.careful]
model = "scripted:careful.yaml"
[variants.hasty]
model = "scripted:hasty.yaml"
[judge]
models = ["scripted:judge.yaml"]
rubric = "analysis"
[review]
double = 0.0
golden = 0.0
[review.questions]
explains-itself = "Does it say what was done?"
"""
SEAL = r"with seal (?P<seal>[0-9a-f]{16}) as"


def judge_says(verdict: str, quote: str, work: str) -> dict[str, Any]:
    """A dialogue of a judge that knows the work, quotes it, and says one thing to all checks."""
    checks = load_rubric("analysis", Path()).checks
    answer = {"evidence": [quote], "reasoning": "It says so.", "verdict": verdict}
    said = {
        "seal": r"\g<seal>",
        "answers": {check.id: answer for check in checks},
        "summary": "Read.",
    }
    text = json.dumps(said).replace(r"\\g", r"\g")
    return {"prompt": work, "turns": [{"when": SEAL, "repeat": True, "say": text}]}


def closeloop(folder: Path, *arguments: str, code: int = 0) -> str:
    """A command in a process of its own: the browser has the event loop of this one."""
    command = [sys.executable, "-m", "closeloop", *arguments]
    environ = {**os.environ, "COLUMNS": "200"}
    done = subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr
    return done.stdout


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository without tests, five prompts and two scripted models."""
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / ".gitignore").write_text(".closeloop/\n")
    small_project.git(tmp_path, "init", "-q")
    small_project.git(tmp_path, "add", ".")
    small_project.git(tmp_path, "commit", "-qm", "Open the shop")
    (tmp_path / "closeloop.toml").write_text(CONFIGURATION)
    for name, script in (("careful", CAREFUL), ("hasty", HASTY)):
        (tmp_path / f"{name}.yaml").write_text(script.replace("GOOD", GOOD).replace("BAD", BAD))
    dialogues = [judge_says("yes", GOOD, GOOD_WORK), judge_says("no", BAD, BAD)]
    (tmp_path / "judge.yaml").write_bytes(
        msgspec.json.encode({"name": "judge", "dialogues": dialogues})
    )
    for name, prompt in TYPED.items():
        closeloop(tmp_path, "task", "new", name, "--request", prompt)
    for file, prompt in WRITTEN.items():
        (tmp_path / "tasks" / file).write_text(prompt)
    return tmp_path


@pytest.fixture
def store(project: Path) -> Iterator[Store]:
    """What the run left: ten attempts, of which nobody has said anything."""
    printed = closeloop(project, "run")
    assert "10 attempts await blind, side-by-side review" in printed
    assert printed.count("awaiting review") == 10
    with open_store(str(project / ".closeloop" / "closeloop.db")) as opened:
        yield opened


def score_by_keyboard(page: Page, good: Callable[[str], bool]) -> int:
    """Answer for everything that waits; how many were good. Nothing but keys is used."""
    liked = 0
    for number in range(10):
        expect(page.get_by_text(f"{number} of 10 reviewed")).to_be_visible()
        expect(page.locator("form[data-review]")).to_be_visible()
        page.wait_for_load_state()
        shown = page.locator("article").inner_text()
        assert "careful" not in shown
        assert "hasty" not in shown
        expect(page.locator(".side")).to_have_count(2)
        asked = page.locator(".side.asked").inner_text()
        if "The report is written" in asked:
            assert "sum of prices" in page.locator(".side.asked .prose strong").inner_text()
        page.keyboard.press("t")
        expect(page.locator(".side.asked [data-trace] .event").first).to_be_visible()
        if good(asked):
            liked += 1
            page.keyboard.press("a")
        else:
            for key in ("n", "p", "Control+Enter"):
                page.keyboard.press(key)
    expect(page.get_by_text("The review queue is empty")).to_be_visible()
    return liked


def compared(folder: Path, *arguments: str) -> dict[str, Any]:
    (pair,) = json.loads(closeloop(folder, "compare", "hasty", "careful", *arguments, "--json"))[
        "pairs"
    ]
    return dict(pair)


def test_five_prompts_are_scored_by_a_person_and_a_judge_and_compared_with_bounds(
    project: Path, store: Store, serve: Callable[..., Any], open_page: Callable[..., Page]
) -> None:
    desk = PageContext(store, load_project(project, environ={}).settings)
    desk.metric_cache.patience = None
    with serve(store, desk=desk) as address:
        page = open_page()
        page.goto(f"{address}/review")
        assert score_by_keyboard(page, lambda shown: GOOD in shown) == 5
    reviews = store.reviews.list_reviews()
    assert [one.state for one in reviews] == ["done"] * 10
    assert {one.answers["explains-itself"] for one in reviews} == {"yes", "partly"}

    # By hand: one repeat that passed has the Jeffreys variance 3/48, weighed by (k + 2)/k = 3.
    noise = 1.96 * math.sqrt(5 * 3 * (2 * 3 / 48)) / 5
    pair = compared(project)
    assert pair["primary"] == "would-merge"
    here = pair["comparison"]["here"]
    assert (here["value"], here["high"]) == (1.0, 1.0)
    assert here["low"] == pytest.approx(1 - noise, abs=1e-3)
    assert pair["words"][0].startswith("On exactly these 5 tasks, 'careful' is better than 'hasty'")
    assert [one["task"] for one in pair["tasks"]] == [
        "Write-a-report", "discount", "question", "rename", "unknown-item",
    ]  # fmt: skip
    assert "✓ by review" in closeloop(project, "run")

    # A person changes their mind about one: the later answer counts, and only that.
    changed = next(
        row.id for row in store.list_attempts(task="question") if row.variant_name == "hasty"
    )
    with serve(store, desk=desk) as address:
        page = open_page()
        page.goto(f"{address}/review?item={changed}")
        expect(page.locator("form[data-review]")).to_be_visible()
        page.wait_for_load_state()
        for key in ("b", "b", "y", "Control+Enter"):
            page.keyboard.press(key)
        expect(page.get_by_text("The review queue is empty")).to_be_visible()
    assert (compared(project)["comparison"]["first"]) == 0.2
    given = [one for one in store.scores.list_scores(changed) if one.name == "would-merge"]
    assert [(one.source, one.value) for one in given] == [("person", 1.0)]

    # The judge scores the same ten, marked as a judge's, and is held against the person.
    judged = json.loads(closeloop(project, "judge", "--awaiting-review", "--json"))
    assert [one["passed"] for one in judged["evaluations"]].count(True) == 5
    by_judge = compared(project, "--score", "judge:would-merge")
    assert (by_judge["primary"], by_judge["comparison"]["first"]) == ("judge:would-merge", 0.0)
    assert compared(project)["comparison"]["first"] == 0.2, "people's word comes first"
    calibration = json.loads(closeloop(project, "judge", "calibrate", "--json"))
    assert calibration["items"] == 10
    overall = next(one for one in calibration["trust"] if one["asked"] == "overall")
    assert overall["agreement"]["agreeing"]["value"] == 0.9
    assert overall["agreement"]["agreeing"]["n"] == 10
    assert not overall["may_block"]
