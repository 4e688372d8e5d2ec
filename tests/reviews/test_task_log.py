"""Every task leaves one structured log: the same in `show`, JSON, export and the API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from starlette.testclient import TestClient
from team import AGENTS, REPO, day, note, pull_request

from closeloop.metrics.task_log import compare_with_reference, load_task_log
from closeloop.records.attempt import Attempt, Grade, Outcome
from closeloop.records.experiment_plan import AttemptResult, TaskLog
from closeloop.records.pull_request import Fact, PullCommit, PullDescription
from closeloop.records.score import Score
from closeloop.records.task import Task
from closeloop.records.team_rules import HumanReview
from closeloop.reviews.pull_lifecycle import save_facts
from closeloop.store import Store, open_store
from closeloop.text.patches import parse_patch
from closeloop.web.app import build_web_app
from command_line import typed

REFERENCE = """\
diff --git a/calc.py b/calc.py
--- a/calc.py
+++ b/calc.py
@@ -1,2 +1,4 @@
 def add(a, b):
-    return a - b
+    total = a + b
+    return total
+
diff --git a/units.py b/units.py
new file mode 100644
--- /dev/null
+++ b/units.py
@@ -0,0 +1 @@
+CENT = 1
diff --git a/tests/test_calc.py b/tests/test_calc.py
new file mode 100644
--- /dev/null
+++ b/tests/test_calc.py
@@ -0,0 +1 @@
+assert True
"""
CHANGE = """\
diff --git a/calc.py b/calc.py
--- a/calc.py
+++ b/calc.py
@@ -1,2 +1,3 @@
 def add(a, b):
-    return a - b
+    total   = a + b
+    return a + b
diff --git a/notes.md b/notes.md
new file mode 100644
--- /dev/null
+++ b/notes.md
@@ -0,0 +1 @@
+Adds.
"""
TASK = Task(id="add", prompt="Make add add.", digest="d1", grading="g1", reference=REFERENCE)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(str(tmp_path / "store.db")) as opened:
        yield opened


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def logs_by_place(project: Path) -> dict[tuple[str, str], dict[str, Any]]:
    done = typed(project, "export", "--log")
    assert done.returncode == 0, done.stderr
    return {(one["task"], one["variant"]): one for one in lines(done.stdout)}


def test_show_json_export_and_api_have_the_same_log(tried_project: Path) -> None:
    exported = logs_by_place(tried_project)
    assert len(exported) == 6
    fixed = exported["fix", "closer"]
    assert fixed["description"] == "`add` subtracts: make test_add pass."
    assert [(file["path"], file["added"], file["removed"]) for file in fixed["files"]] == [
        ("calculator.py", 1, 1)
    ]
    assert (fixed["files"][0]["in_scope"], fixed["files"][0]["in_reference"]) == (True, True)
    before, after = fixed["tests_before"], fixed["tests_after"]
    assert (before["passed"], before["failed"]) == (1, 1)
    assert (after["passed"], after["failed"]) == (2, 0)
    assert fixed["mended"] == ["test_calculator.py::test_add"]
    assert (fixed["review_cycles"], fixed["merge_decision"]) == (None, None)
    assert fixed["reference"]["similarity"] == 1
    assert fixed["outcome"] == "pass"
    failed = exported["fix", "spiraller"]
    assert failed["broken"] == ["test_calculator.py::test_double"]
    (file,) = failed["reference"]["files"]
    assert (file["both"], file["only_reference"]) == (0, ["-return a - b", "+return a + b"])
    assert file["only_attempt"] == ["-return a + a", "+return a * 3"]

    shown = json.loads(typed(tried_project, "show", failed["attempt"], "--json").stdout)
    assert shown["log"] == failed
    with open_store(str(tried_project / ".closeloop/closeloop.db")) as opened:
        client = TestClient(build_web_app(opened, token=None), base_url="http://127.0.0.1")
        served = client.get(f"/api/attempts/{failed['attempt']}/log").json()
        assert msgspec.convert(served["log"], TaskLog) == msgspec.convert(failed, TaskLog)
        page = client.get(f"/attempts/{failed['attempt']}/log").text
        diff = client.get(f"/attempts/{failed['attempt']}/diff?against=reference").text
    assert "1 passed, 1 failed" in page
    assert f"/attempts/{failed['attempt']}/diff?against=reference" in page
    assert "return a * 3" in diff
    terminal = typed(tried_project, "show", failed["attempt"]).stdout
    assert "before → after: 1 passed, 1 failed → 0 passed, 2 failed" in terminal
    assert "files changed: calculator.py +1 −1" in terminal
    assert "merge decision: none yet" in terminal
    assert "Compared with the reference, similarity 0 %" in terminal
    assert "reference  +return a + b" in terminal


def test_what_differs_from_the_reference_is_told_line_by_line_layout_and_tests_aside() -> None:
    grade = Grade(
        attempt="a", grading="g1", version=1, outcome=Outcome(result="pass"), similarity=0.5
    )
    found = compare_with_reference(TASK, parse_patch(CHANGE), grade)
    assert found is not None
    assert (found.files_in_both, found.only_attempt, found.only_reference) == (
        ("calc.py",),
        ("notes.md",),
        ("units.py",),
    )
    assert found.similarity == 0.5
    calc, notes, units = found.files
    # The same but for its spaces is the same.
    assert (calc.both, calc.only_attempt, calc.only_reference) == (
        2,
        ("+return a + b",),
        ("+return total",),
    )
    assert (notes.only_attempt, units.only_reference) == (("+Adds.",), ("+CENT = 1",))
    assert [file.path for file in found.change.files] == [
        "calc.py",
        "units.py",
        "tests/test_calc.py",
    ]
    assert compare_with_reference(None, parse_patch(CHANGE), None) is None


def save_attempt(store: Store, name: str = "abc123", **fields: Any) -> None:
    store.save_task(TASK)
    known = {"origin": "experiment", "task": "add", "task_digest": "d1", "exit": "finished"}
    attempt = Attempt(id=name, **{**known, **fields})  # type: ignore[arg-type]
    store.save_attempt(AttemptResult(attempt=attempt, change=parse_patch(CHANGE)))


def review(merge: bool | None, reviewer: str = "ann", **fields: Any) -> HumanReview:
    return HumanReview(item="abc123", reviewer=reviewer, at=day(1), merge=merge, **fields)


def test_a_verdict_that_is_given_as_a_score_decides_as_a_review_does(store: Store) -> None:
    save_attempt(store)
    said = {"attempt": "abc123", "name": "would-merge", "at": day(1)}
    judged = Score(**said, value=0, source="judge", by="j")  # type: ignore[arg-type]
    store.scores.add_scores([judged])
    log = load_task_log(store, "abc", AGENTS)
    assert (log.review_cycles, log.merge_decision) == (None, None), "a judge is no person"
    store.scores.add_scores([Score(**said, value=0, source="person", by="ann")])  # type: ignore[arg-type]
    log = load_task_log(store, "abc", AGENTS)
    assert (log.review_cycles, log.merge_decision) == (1, "would not merge")


@pytest.mark.parametrize(
    ("reviews", "cycles", "decision"),
    [
        ([], None, None),
        ([review(None, tags=("scope creep",))], None, None),
        ([review(True)], 0, "would merge"),
        ([review(False, notes="Too much.")], 1, "would not merge"),
        ([review(False), review(True, "bob")], 1, "split"),
        ([review(False, state="draft")], None, None),
    ],
)
def test_reviews_in_the_queue_are_cycles_and_a_decision(
    store: Store, reviews: list[HumanReview], cycles: int | None, decision: str | None
) -> None:
    save_attempt(store)
    for one in reviews:
        store.reviews.save_review(one)
    log = load_task_log(store, "abc", AGENTS)
    assert (log.review_cycles, log.merge_decision) == (cycles, decision)
    notes = [one.notes for one in reviews if one.notes and one.state == "done"]
    assert [one.text for one in log.corrections if one.text] == notes


def test_a_pull_request_tells_rounds_corrections_and_whether_it_was_merged(store: Store) -> None:
    save_attempt(store, branch="agent/7", started=day(0) - timedelta(hours=1))
    opened = PullDescription(title="Add", author="robot", branch="agent/7", opened=day(0))
    message = "Add.\n\nTask-Id: add\nAttempt: abc123"
    first = PullCommit(sha="a" * 40, at=day(0), message=message, author="robot", bot=True)
    linked = [
        Fact(source="github", repo=REPO, pull=7, at=day(0), key=f"7-{key}", what=what)
        for key, what in (("d", opened), ("c", first))
    ]
    save_facts(linked, store, AGENTS)
    pull_request(store, 8, day(0), "Another one.")
    row = store.pulls.load_pull(REPO, 7)
    assert row is not None
    attempt = row.attempt or ""
    log = load_task_log(store, attempt, AGENTS)
    assert (log.pull, log.merge_decision, log.review_cycles) == (f"{REPO}#7", "open", 0)
    answer = PullCommit(sha="b" * 40, at=day(3), message="Again.", author="robot", bot=True)
    merged = PullDescription(
        title="Add", author="robot", branch="agent/7", opened=day(0), state="merged",
        closed=day(4), merged=day(4),
    )  # fmt: skip
    later = [
        Fact(source="github", repo=REPO, pull=7, at=day(3), key="7-c2", what=answer),
        Fact(source="github", repo=REPO, pull=7, at=day(4), key="7-m", what=merged),
    ]
    save_facts([note(7, day(2), "Use the helper that we have."), *later], store, AGENTS)
    log = load_task_log(store, attempt, AGENTS)
    assert (log.merge_decision, log.review_cycles) == ("merged", 1)
    assert [(one.kind, one.by, one.text) for one in log.corrections] == [
        ("note", "bob", "Use the helper that we have.")
    ]


def test_a_log_is_a_format_of_its_own_and_goes_to_a_file(tried_project: Path) -> None:
    refused = typed(tried_project, "export", "--log", "--table", "events")
    assert (refused.returncode, "Choose one: " in refused.stderr) == (2, True)
    done = typed(tried_project, "export", "--log", "--out", "log.jsonl")
    assert (done.returncode, len(lines((tried_project / "log.jsonl").read_text()))) == (0, 6)
