"""The diff of two diffs: which lines both changed, and which only one did."""

from __future__ import annotations

from closeloop.metrics.attempt_groups import compare_changes
from closeloop.records.change import Change
from closeloop.text.patches import parse_patch


def patch(path: str, *lines: str) -> str:
    removed = sum(line.startswith("-") for line in lines)
    added = sum(line.startswith("+") for line in lines)
    head = f"diff --git a/{path} b/{path}\n--- a/{path}\n+++ b/{path}\n"
    body = "\n".join(lines)
    return f"{head}@@ -1,{removed} +1,{added} @@\n{body}\n"


def test_lines_are_of_both_of_the_first_or_of_the_second() -> None:
    first = parse_patch(patch("a.py", "-old", "+new", "+mine") + patch("only.py", "+x"))
    second = parse_patch(patch("a.py", "-old", "+new", "+yours") + patch("same.py", "+y"))
    files = {file.path: file for file in compare_changes(first, second)}
    assert {path: file.state for path, file in files.items()} == {
        "a.py": "differs",
        "only.py": "only first",
        "same.py": "only second",
    }
    shown = [(line.by, line.sign, line.text) for line in files["a.py"].lines]
    assert shown == [
        ("both", "-", "old"),
        ("both", "+", "new"),
        ("first", "+", "mine"),
        ("second", "+", "yours"),
    ]
    assert (files["a.py"].both, files["a.py"].first, files["a.py"].second) == (2, 1, 1)


def test_equal_changes_are_the_same_and_come_last() -> None:
    one = parse_patch(patch("a.py", "+x") + patch("b.py", "+y"))
    other = parse_patch(patch("a.py", "+x") + patch("b.py", "+z"))
    assert [(file.path, file.state) for file in compare_changes(one, other)] == [
        ("b.py", "differs"),
        ("a.py", "same"),
    ]
    assert compare_changes(Change(), Change()) == ()
