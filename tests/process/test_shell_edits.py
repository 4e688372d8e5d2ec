"""Edits that are made in the shell: which files, and what text, as far as the command tells it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from story import story

from closeloop.process.command_analysis import analyse_command
from closeloop.process.edit_contents import diff_edit, list_code_changes
from closeloop.process.edit_recovery import parse_sed_script
from closeloop.process.trace_reading import build_reading
from closeloop.records.change import LaneReading, ShellEdit

PATCH = "--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-a\n+b"
ADDED = "--- /dev/null\n+++ b/new.py\n@@ -0,0 +1 @@\n+b"
GONE = "--- a/old.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-a"


def told(command: str) -> list[tuple[str, str, str | None, str | None]]:
    return [(e.path, e.action, e.before, e.after) for e in analyse_command(command).edits]


@pytest.mark.parametrize(
    ("command", "edits"),
    [
        ("cat > a.py <<'EOF'\nx = 1\nEOF", [("a.py", "create", None, "x = 1\n")]),
        ("cat <<EOF > a.py\nx = 1\nEOF", [("a.py", "create", None, "x = 1\n")]),
        ("cd src && cat >> a.py <<EOF\nx\nEOF", [("src/a.py", "change", "", "x\n")]),
        ("bash -lc \"cat > a.py <<'E'\nx\nE\"", [("a.py", "create", None, "x\n")]),
        ("cat <<E | tee -a a.txt\nx\nE", [("a.txt", "change", "", "x\n")]),
        ("tee a.txt <<< hello", [("a.txt", "create", None, "hello\n")]),
        ("echo -e 'a\\nb' > a.txt", [("a.txt", "create", None, "a\nb\n")]),
        ("echo a >> a.txt", [("a.txt", "change", "", "a\n")]),
        ("printf '%s = %d\\n' x 1 > a.py", [("a.py", "create", None, "x = 1\n")]),
        ("sed -i 's/== 7350/> 0/' t.py", [("t.py", "change", "== 7350", "> 0")]),
        ("sed -i '7s|a\\.b|c|g;9d' f", [("f", "change", "a.b", "c"), ("f", "change", None, None)]),
        ("sed -i -E 's/(a)b/\\1/' f", [("f", "change", None, None)]),
        ("sed -i '12a\\    x = 1' f.py", [("f.py", "change", "", "    x = 1\n")]),
        ("sed -i '' -e 's/a/b/' f g", [("f", "change", "a", "b"), ("g", "change", "a", "b")]),
        ("perl -pi -e 's/foo\\(/bar(/g' f.py", [("f.py", "change", "foo(", "bar(")]),
        (
            "awk -i inplace '{gsub(/a b/, \"c\")} 1' f.py g.py",
            [("f.py", "change", "a b", "c"), ("g.py", "change", "a b", "c")],
        ),
        ("gawk -v n=1 -i inplace '{print n, $0}' f.py", [("f.py", "change", None, None)]),
        ("ruby -pi -e 'gsub(/a/, \"b\")' f.rb", [("f.rb", "change", "a", "b")]),
        (
            "ed -s f.py <<'E'\n,s/a/b/g\n$a\nx = 1\n.\nw\nq\nE",
            [("f.py", "change", "a", "b"), ("f.py", "change", "", "x = 1\n")],
        ),
        ("printf '%s\\n' '1,$s/a/b/' wq | ed f.py", [("f.py", "change", "a", "b")]),
        ("ex -s -c '%s/a/b/|x' f.py", [("f.py", "change", "a", "b")]),
        ("vim -es -c '%s/a/b/' -c wq f.py", [("f.py", "change", "a", "b")]),
        ("dd of=f.py <<'E'\nx\nE", [("f.py", "create", None, "x\n")]),
        ("install -m 644 /dev/stdin f.py <<'E'\nx\nE", [("f.py", "create", None, "x\n")]),
        ("cat <<'E' | cp /dev/stdin f.py\nx\nE", [("f.py", "create", None, "x\n")]),
        ("rm -f a.py b.py", [("a.py", "delete", None, None), ("b.py", "delete", None, None)]),
        ("git rm a.py", [("a.py", "delete", None, None)]),
        ("python -c \"open('a.txt', 'w').write('hi')\"", [("a.txt", "create", None, "hi")]),
        (f"patch -p1 <<'E'\n{ADDED}\nE", [("new.py", "create", None, "b\n")]),
        ("sed -n '1,5p' f", []),
        ("awk '{sub(/a/, \"b\")} 1' f", []),
        ("ruby -rdigest -e 'sub(/a/, \"b\")' f", []),
        ("ed f <<'E'\n,p\nq\nE", []),
        ("cp a.py b.py", []),
        ("grep x f > out.txt", []),
        ("git apply --check <<'E'\n" + PATCH + "\nE", []),
    ],
)
def test_the_text_of_an_edit_is_told_where_the_command_holds_it(
    command: str, edits: list[tuple[str, str, str | None, str | None]]
) -> None:
    assert told(command) == edits


def test_a_patch_in_a_heredoc_is_told_file_by_file() -> None:
    (changed, gone) = analyse_command(f"git apply <<'E'\n{PATCH}\n{GONE}\nE").edits
    assert (changed.path, changed.patch) == ("x.py", PATCH + "\n")
    assert (gone.path, gone.action) == ("old.py", "delete")


@pytest.mark.parametrize(
    "code",
    [
        "p = Path('x.py')\ns = p.read_text()\np.write_text(s.replace('a', 'b'))",
        "s = open('x.py').read()\ns = s.replace('a', 'b')\nopen('x.py', 'w').write(s)",
        "n = 'x.py'\nwith open(n) as f:\n    s = f.read()\n"
        "old, = ['?']\nold = 'a'\nwith open(n, 'w') as f:\n    f.write(s.replace(old, 'b'))",
    ],
)
def test_replacements_in_python_are_told(code: str) -> None:
    assert told(f"python - <<'E'\n{code}\nE") == [("x.py", "change", "a", "b")]


@pytest.mark.parametrize(
    "loop",
    [
        "names = ['x.py', 'y.py']\nfor n in names:\n    with open(n) as f:\n        s = f.read()\n"
        "    s2 = s.replace('a', 'b')\n    with open(n, 'w') as f:\n        f.write(s2)",
        "for p in (Path('x.py'), Path('y.py')):\n    p.write_text(p.read_text().replace('a', 'b'))",
    ],
)
def test_a_loop_over_files_changes_each(loop: str) -> None:
    changes = [(name, "change", "a", "b") for name in ("x.py", "y.py")]
    assert told(f"python - <<'E'\n{loop}\nE") == changes


def test_lines_that_a_script_puts_between_others_are_added_ones() -> None:
    code = (
        "lines = open('x.py').readlines()\nnew = []\nfor line in lines:\n    if 'q' in line:\n"
        "        new.append('    x = 1\\n')\n    new.append(line)\n"
        "with open('x.py', 'w') as f:\n    f.writelines(new)"
    )
    (edit,) = analyse_command(f"python3 <<'E'\n{code}\nE").edits
    assert (edit.path, edit.patch) == ("x.py", "+    x = 1")


@given(st.text(), st.booleans())
def test_any_text_may_be_a_script_of_sed(script: str, extended: bool) -> None:
    list(parse_sed_script(script, extended=extended))


@given(st.text(alphabet="cat>ech<E'\n \"$rmsdi-/.;|&"))
def test_any_text_may_be_a_command(command: str) -> None:
    assert all(isinstance(edit, ShellEdit) for edit in analyse_command(command).edits)


def read(*events: dict[str, object]) -> LaneReading:
    (lane,) = build_reading(story(events)).lanes.values()
    return lane


def run(command: str, code: int = 0) -> dict[str, object]:
    return {"run": {"command": command, "exit": code}}


def test_a_step_holds_its_edits_with_its_number() -> None:
    lane = read({"edit": {"path": "a.py", "before": "a", "after": "b"}}, run("rm a.py b.py"))
    first, second = lane.steps
    assert first.edits == (first.event,)
    assert [(edit.number, edit.path) for edit in second.edits] == [(2, "a.py"), (2, "b.py")]


def test_a_file_that_was_seen_before_is_overwritten_and_not_created() -> None:
    lane = read(run("cat a.py"), run("cat > a.py <<E\nx\nE"), run("cat > a.py <<E\ny\nE"))
    (first,), (second,) = lane.steps[1].edits, lane.steps[2].edits
    assert (first.action, first.before) == ("change", None)
    assert diff_edit(first) is None
    assert (second.action, second.before, second.after) == ("change", "x\n", "y\n")


def test_a_script_that_was_written_before_changes_what_it_rewrites() -> None:
    script = (
        "cat > /tmp/fix.py <<'E'\ns = open('a.py').read()\n"
        "open('a.py', 'w').write(s.replace('a', 'b'))\nE"
    )
    lane = read(run(script), run("python /tmp/fix.py"))
    assert [step.number for step in lane.changes] == [2]
    assert lane.steps[1].written == ("a.py",)
    assert [(edit.before, edit.after) for edit in lane.steps[1].edits] == [("a", "b")]


def test_a_script_that_only_makes_its_output_changes_nothing() -> None:
    lane = read(
        run("cat > try_it.py <<E\nopen('out.txt', 'w').write('x')\nE"), run("python try_it.py")
    )
    assert [step.number for step in lane.changes] == [1]


def test_a_patch_that_was_written_before_is_applied() -> None:
    lane = read(run(f"cat > my.patch <<'E'\n{PATCH}\nE"), run("git apply my.patch"))
    assert lane.steps[1].written == ("x.py",)


@pytest.mark.parametrize(
    "command",
    [
        "rm probe.py",
        "rm prob*.py",
        "git checkout -- cart.py",
        "git checkout tests/test_cart.py",
        "git restore cart.py",
        "git stash",
        "git reset --hard",
    ],
)
def test_scratch_files_and_restored_files_are_no_changes_of_code(command: str) -> None:
    lane = read(
        run("cat > probe.py <<E\nx\nE"),
        {"edit": {"path": "cart.py", "before": "a", "after": "b"}},
        run(command),
    )
    assert 3 not in [step.number for step in list_code_changes(lane)]


def test_a_file_that_was_there_before_is_code_when_it_is_removed() -> None:
    lane = read(run("rm cart.py"), run("git checkout cart.py && sed -i 's/a/b/' cart.py shop.py"))
    assert [step.number for step in list_code_changes(lane)] == [1, 2]
