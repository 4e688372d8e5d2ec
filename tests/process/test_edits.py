"""What an edit adds and takes away, and what kind of file it touches."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from story import story

from closeloop.process.edit_contents import (
    changes_only_comments,
    diff_edit,
    find_created_files,
    is_source_path,
    is_test_source,
    list_code_changes,
    list_trace_changes,
)
from closeloop.process.trace_reading import build_reading
from closeloop.records.trace import Edit


def change(**given: str) -> Edit:
    return Edit(number=1, lane="root", path="a.py", **given)  # type: ignore[arg-type]


def test_lines_are_added_and_removed_and_moved_ones_are_neither() -> None:
    lines = diff_edit(change(before="a\nb\nc", after="  c\nb\nd"))
    assert lines is not None
    assert (lines.added, lines.removed) == (("d",), ("a",))


def test_a_patch_is_read_as_well() -> None:
    lines = diff_edit(change(patch="--- a.py\n+++ a.py\n@@ -1 +1 @@\n-old\n+new\n same"))
    assert lines is not None
    assert (lines.added, lines.removed) == (("new",), ("old",))


def test_of_a_created_file_every_line_is_added() -> None:
    lines = diff_edit(change(action="create", after="a\na"))
    assert lines is not None
    assert lines.added == ("a", "a")


def test_nothing_is_said_of_a_file_that_was_overwritten_or_of_an_edit_without_text() -> None:
    assert diff_edit(change(after="a")) is None
    assert diff_edit(change()) is None


@given(st.text(), st.text())
def test_what_is_added_one_way_is_removed_the_other(one: str, other: str) -> None:
    there, back = (
        diff_edit(change(before=one, after=other)),
        diff_edit(change(before=other, after=one)),
    )
    assert there is not None
    assert back is not None
    assert there.added == back.removed


@pytest.mark.parametrize(
    "path",
    [
        "tests/test_cart.py", "test_cart.py", "cart_test.go", "src/cart.test.ts", "cart.spec.jsx",
        "src/test/java/CartTest.java", "spec/cart_spec.rb", "src/__tests__/cart.js", "conftest.py",
    ],
)  # fmt: skip
def test_these_are_tests(path: str) -> None:
    assert is_test_source(path)


@pytest.mark.parametrize("path", ["cart.py", "latest.py", "src/attest.go", "tests/README.md", ""])
def test_these_are_not(path: str) -> None:
    assert not is_test_source(path)


def test_documents_and_settings_are_no_program_text() -> None:
    assert is_source_path("a/b.py")
    assert not any(
        map(is_source_path, ["README.md", "notes.txt", "pyproject.toml", "Makefile", "py"])
    )


def test_comments_alone_are_told_from_code() -> None:
    assert changes_only_comments(change(before="# one\nx = 1", after="# two\nx = 1"))
    assert not changes_only_comments(change(before="x = 1", after="x = 2"))
    assert not changes_only_comments(change(before="--colour", after="--color"))
    assert not changes_only_comments(change(before="x", after="x"))


F = 'def f(x):\n    """{}"""\n    return {}\n'


@pytest.mark.parametrize(
    ("before", "after", "only"),
    [
        (F.format("Old.", "x"), F.format("New.\n\n    In two parts.\n    ", "x"), True),
        ("def f(x):\n    return x", F.format("New.", "x").rstrip(), True),
        ('"""Old module."""\nimport a', '"""New module."""\nimport a', True),
        ("    >>> f(1)\n    2", "    >>> f(2)\n    3", False),
        ("x\n    >>> f(1)\n", "x\n    >>> f(2)\n", True),
        (F.format("Old.", "x"), F.format("New.", "y"), False),
        ('x = """a"""', 'x = """b"""', False),
        ('    """\n    return x', '    """\n    return y', False),
        ('"""\na()\n\ndef f():\n    """Do', '"""\nb()\n\ndef f():\n    """Do', False),
        ("if x:\n    go()", "if x:\n        go()", False),
    ],
)
def test_docstrings_of_python_are_told_where_they_begin_and_end(
    before: str, after: str, only: bool
) -> None:
    assert changes_only_comments(change(before=before, after=after)) is only


def test_the_removal_of_own_files_is_no_change_of_code() -> None:
    events = [
        {"edit": {"path": "src/cart.py", "before": "a", "after": "b"}},
        {"edit": {"path": "app/models.py", "action": "create", "after": "x = 1"}},
        {"edit": {"path": "edge_cases.py", "action": "create", "after": "import cart"}},
        {"run": {"command": "python edge_cases.py", "exit": 0, "output": "1"}},
        {"edit": {"path": "edge_cases.py", "before": "cart", "after": "cart as c"}},
        {"edit": {"path": "src/new.py", "action": "create", "after": "x = 1"}},
        {"run": {"command": "python src/new.py", "exit": 0, "output": "1"}},
        {
            "run": {
                "command": "rm gone.py; rm -rf app",
                "exit": 0,
                "output": "rm: cannot remove 'gone.py': No such file or directory",
            }
        },
    ]
    (lane,) = build_reading(story(events)).lanes.values()
    assert [step.number for step in list_code_changes(lane)] == [1, 6]


def test_scratch_files_documents_and_layout_are_no_changes_of_code() -> None:
    events = [
        {"edit": {"path": "helper.py", "action": "create", "after": "x = 1"}},
        {"edit": {"path": "README.md", "before": "a", "after": "b"}},
        {"edit": {"path": "/tmp/look.py", "action": "create", "after": "x"}},
        {"edit": {"path": "reproduce.py", "action": "create", "after": "x"}},
        {"edit": {"path": "cart.py", "before": "a", "after": "b"}},
        {"run": {"command": "rm helper.py", "exit": 0}},
        {"run": {"command": "black cart.py", "exit": 0}},
        {"edit": {"path": "cart.py", "before": "a", "after": "b", "ok": False}},
    ]
    (lane,) = build_reading(story(events)).lanes.values()
    assert [step.number for step in list_code_changes(lane)] == [5]
    assert find_created_files(lane.changes)["helper.py"] == 1


def test_a_change_of_a_child_is_told_once() -> None:
    events = [{"edit": "a.py"}, {"lane": "child", "edit": "b.py"}, {"edit": "c.py"}]
    reading = build_reading(story(events, {"child": "root"}))
    assert [step.number for step in list_trace_changes(reading)] == [1, 2, 3]
