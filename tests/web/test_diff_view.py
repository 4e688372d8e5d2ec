"""A diff with its line numbers, and findings on the lines that they are about."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from closeloop.records.change import Change, FileChange
from closeloop.records.finding import Finding
from closeloop.records.trace import Edit, Trace
from closeloop.text.patches import parse_patch
from closeloop.web.diff_view import MAX_LINES, build_diff_files, locate_findings
from closeloop.web.pages.iterations import mark_text_parts

PATCH = """\
diff --git a/a.py b/a.py
--- a/a.py
+++ b/a.py
@@ -3,3 +3,4 @@ def f():
 three
-four
+FOUR
+more
 five
diff --git a/b.bin b/b.bin
new file mode 100644
Binary files /dev/null and b/b.bin differ
diff --git a/c.py b/c.py
new file mode 100644
--- /dev/null
+++ b/c.py
@@ -0,0 +1 @@
+--- a/not/a/header
"""


def finding(*, places: tuple[str, ...] = (), events: tuple[int, ...] = ()) -> Finding:
    return Finding(
        rule="r", version=1, severity="error", message="It is so.", places=places, events=events
    )


def test_lines_are_numbered_as_they_were_and_as_they_are() -> None:
    first, binary, new = build_diff_files(parse_patch(PATCH), (), [("a.py", "outside the scope")])
    assert [(line.old, line.new, line.text) for line in first.lines[1:]] == [
        (3, 3, "three"),
        (4, None, "four"),
        (None, 4, "FOUR"),
        (None, 5, "more"),
        (5, 6, "five"),
    ]
    assert first.marks == ("outside the scope",)
    assert binary.binary
    assert binary.lines == ()
    assert [line.text for line in new.lines] == ["@@ -0,0 +1 @@", "--- a/not/a/header"]


def test_a_finding_stands_on_its_line_or_above_its_file() -> None:
    findings = [finding(places=("a.py:5",)), finding(places=("a.py:99", "c.py"))]
    first, _, new = build_diff_files(parse_patch(PATCH), findings, ())
    assert [line.text for line in first.lines if line.findings] == ["more"]
    assert first.findings == (1,)
    assert new.findings == (1,)


def test_a_finding_that_cites_an_edit_stands_where_the_edit_wrote() -> None:
    edit = Edit(number=7, lane="r", path="/home/ann/repo/a.py", before="four", after="FOUR\nmore")
    gone = Edit(number=8, lane="r", path="c.py", before="x", after="nothing left of it")
    away = Edit(number=9, lane="r", path="z.py", after="FOUR")
    trace = Trace(reader="x", reader_version=1, events=(edit, gone, away))
    files = build_diff_files(parse_patch(PATCH), (), ())
    cited = [finding(events=(7,)), finding(events=(8, 1)), finding(events=(9,)), finding()]
    assert [one.places for one in locate_findings(cited, trace, files)] == [("a.py:4",), ("c.py",)]


@settings(deadline=None)
@given(st.text(alphabet="@+- \\\ndif-git ab/01,x", max_size=400))
def test_no_patch_is_too_odd_to_be_shown(patch: str) -> None:
    change = Change(files=(FileChange(path="x", status="changed"),) * 2, patch=patch)
    assert len(build_diff_files(change, [finding(places=("x:1", "x:y:2", ":", ""))], ())) == 2


def test_a_long_diff_is_cut_and_says_so() -> None:
    lines = MAX_LINES + 500
    added = "".join(f"+{number}\n" for number in range(lines))
    patch = f"diff --git a/x b/x\n--- /dev/null\n+++ b/x\n@@ -0,0 +1,{lines} @@\n{added}"
    (file,) = build_diff_files(parse_patch(patch), (), ())
    assert len(file.lines) == MAX_LINES
    assert file.left_out == 501


@settings(deadline=None)
@given(st.text(max_size=80), st.lists(st.text(min_size=1, max_size=5), max_size=5))
def test_marking_a_text_changes_nothing_of_it(text: str, parts: list[str]) -> None:
    pieces = mark_text_parts(text, [(part, "kept") for part in parts])
    assert "".join(piece.text for piece in pieces) == text
    for piece in pieces:
        assert piece.mark is None or piece.text in parts
