"""Patches as git really writes them, and what people and agents send instead."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from closeloop.records.change import Change
from closeloop.records.errors import BadInput
from closeloop.text.patches import parse_patch
from patience import takes


def git(repo: Path, *arguments: str) -> str:
    settings = ("-c", "user.name=T", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", *settings, *arguments], cwd=repo, check=True, capture_output=True)
    return done.stdout.decode()


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q")
    (tmp_path / "kept.txt").write_text("".join(f"line {n}\n" for n in range(40)))
    (tmp_path / "gone.txt").write_text("bye\n")
    (tmp_path / "old name.txt").write_text("".join(f"text {n}\n" for n in range(20)))
    (tmp_path / "run.sh").write_text("#!/bin/sh\n")
    (tmp_path / "picture.bin").write_bytes(bytes(range(256)))
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "base")
    return tmp_path


def changed(repo: Path, *options: str) -> Change:
    git(repo, "add", "-A")
    return parse_patch(git(repo, "diff", "--cached", "--binary", "-M", *options, "HEAD"), base="b")


def test_every_kind_of_change_is_told_apart(repo: Path) -> None:
    text = (repo / "kept.txt").read_text().replace("line 3\n", "three\n").replace("line 30\n", "")
    (repo / "kept.txt").write_text(text)
    (repo / "gone.txt").unlink()
    (repo / "old name.txt").rename(repo / "new name.txt")
    (repo / "run.sh").chmod(0o755)
    (repo / "picture.bin").write_bytes(bytes(range(255, -1, -1)))
    (repo / "empty").write_text("")
    (repo / "fresh.txt").write_text("a\nb")
    change = changed(repo)
    found = {file.path: file for file in change.files}
    assert {path: file.status for path, file in found.items()} == {
        "empty": "added",
        "fresh.txt": "added",
        "gone.txt": "deleted",
        "kept.txt": "changed",
        "new name.txt": "renamed",
        "picture.bin": "changed",
        "run.sh": "changed",
    }
    assert (found["kept.txt"].added, found["kept.txt"].removed) == (1, 2)
    assert [(hunk.old_start, hunk.old_lines) for hunk in found["kept.txt"].hunks] == [
        (1, 7),
        (28, 7),
    ]
    assert found["new name.txt"].old_path == "old name.txt"
    assert found["picture.bin"].binary
    assert (found["fresh.txt"].added, found["gone.txt"].removed) == (2, 1)
    assert found["run.sh"].hunks == ()
    assert change.base == "b"


@pytest.mark.parametrize("options", [(), ("--no-prefix",), ("--src-prefix=i/", "--dst-prefix=w/")])
@pytest.mark.parametrize(
    "name", ["with space.txt", "ümläut.txt", 'quo"te\\.txt', "tab\there", "a/b", "b b/b b", "x b/x"]
)
def test_names_survive_quoting_and_prefixes(
    repo: Path, name: str, options: tuple[str, ...]
) -> None:
    path = repo / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("one\n")
    assert [file.path for file in changed(repo, *options).files] == [name]
    git(repo, "commit", "-qm", "name")
    path.chmod(0o755)
    assert [file.path for file in changed(repo, *options).files] == [name]
    git(repo, "commit", "-qm", "mode")
    path.write_text("two\n")
    assert [file.path for file in changed(repo, *options).files] == [name]


def test_renames_with_changes_keep_both_names(repo: Path) -> None:
    (repo / "sub").mkdir()
    text = (repo / "old name.txt").read_text().replace("text 5\n", "five\n")
    (repo / "old name.txt").unlink()
    (repo / "sub" / "näw.txt").write_text(text)
    (file,) = changed(repo).files
    assert (file.old_path, file.path, file.added) == ("old name.txt", "sub/näw.txt", 1)


def test_lines_that_look_like_headers_are_only_lines(repo: Path) -> None:
    (repo / "gone.txt").write_text("-- a/x\n++ b/x\n@@ -1 +1 @@\ndiff --git a/y b/y\n")
    git(repo, "commit", "-qam", "headers")
    (repo / "gone.txt").write_text("++ b/z\n")
    (file,) = changed(repo).files
    assert (file.path, file.added, file.removed) == ("gone.txt", 1, 4)


def test_windows_line_ends_are_read_in_files_and_in_the_patch_itself(repo: Path) -> None:
    (repo / "gone.txt").write_bytes(b"bye\r\nagain\r\n\r\n")
    change = changed(repo)
    assert (change.files[0].added, change.files[0].removed) == (3, 1)
    assert parse_patch(change.patch.replace("\n", "\r\n")).files == change.files


def test_plain_diffs_without_git_headers_are_read() -> None:
    patch = "--- a/x.py\t2020-01-01 00:00\n+++ b/x.py\t2020-01-02\n@@ -1 +1,2 @@\n-a\n+b\n+c\n"
    (file,) = parse_patch("Some words first.\n\n" + patch).files
    assert (file.path, file.status, file.added, file.removed) == ("x.py", "changed", 2, 1)
    (file,) = parse_patch("--- /dev/null\n+++ new.py\n@@ -0,0 +1 @@\n+b\n").files
    assert (file.path, file.status) == ("new.py", "added")


def test_mail_from_format_patch_is_read(repo: Path) -> None:
    (repo / "gone.txt").write_text("hello\n")
    git(repo, "commit", "-qam", "subject\n\n--- not a header\nbody")
    (file,) = parse_patch(git(repo, "format-patch", "-1", "--stdout")).files
    assert (file.path, file.added, file.removed) == ("gone.txt", 1, 1)


def test_nothing_changed_is_a_change_without_files() -> None:
    assert parse_patch("").files == parse_patch("\n").files == ()


@pytest.mark.parametrize(
    ("patch", "why"),
    [
        ("hello\nworld\n", "not a patch"),
        ("--- a/x\n+++ b/x\n@@ -1,3 +1,3 @@\n a\n", "promises"),
        ("--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n a\n*b\n", "line 5"),
        ("@@ -1 +1 @@\n-a\n+b\n", "no file"),
        ("diff --git a/x b/x\n@@ -1 +1 @@\n-a\n+b\n", "no file names"),
        ("diff --git garbage\n", "no name"),
        ("diff --git a/x b/y\n", "no name"),
        ("diff --cc x\nindex 1,2..3\n", "merge"),
        ("--- a/../../etc/passwd\n+++ b/../../etc/passwd\n@@ -1 +1 @@\n-a\n+b\n", "points outside"),
        ("--- /etc/passwd\n+++ /etc/passwd\n@@ -1 +1 @@\n-a\n+b\n", "points outside"),
        ("--- /dev/null\n+++ /dev/null\n@@ -0,0 +1 @@\n+b\n", "name"),
    ],
)
def test_garbage_is_refused_with_its_reason(patch: str, why: str) -> None:
    with pytest.raises(BadInput, match=why):
        parse_patch(patch)


def test_ten_thousand_files_are_read_quickly() -> None:
    body = "".join(f" context {n}\n" for n in range(20))
    patch = "".join(
        f"diff --git a/f{n} b/f{n}\nindex 1..2 100644\n--- a/f{n}\n+++ b/f{n}\n"
        f"@@ -1,20 +1,21 @@\n{body}+new\n"
        for n in range(10_000)
    )
    assert len(parse_patch(patch).files) == 10_000
    assert takes(lambda _: parse_patch(patch), 5) < 5


@given(st.text(st.sampled_from('+- @\\\n\r"abd/x0,1\t\0'), max_size=200))
@settings(max_examples=300)
def test_any_text_is_read_or_refused(text: str) -> None:
    for patch in (text, f"diff --git {text}", f"--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n{text}"):
        with contextlib.suppress(BadInput):
            parse_patch(patch)


@given(
    st.lists(
        st.text(st.characters(codec="utf-8", exclude_characters="\n\0"), max_size=8), max_size=8
    ),
    st.lists(
        st.text(st.characters(codec="utf-8", exclude_characters="\n\0"), max_size=8), max_size=8
    ),
)
@settings(max_examples=25, deadline=None)
def test_counts_agree_with_git(
    tmp_path_factory: pytest.TempPathFactory, old: list[str], new: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("two")
    for name, lines in (("old", old), ("new", new)):
        (folder / name).write_bytes("\n".join(lines).encode())
    command = ["git", "diff", "--no-index", "--text", "old", "new"]
    numbers = subprocess.run([*command, "--numstat"], cwd=folder, capture_output=True, check=False)
    patch = subprocess.run(command, cwd=folder, capture_output=True, check=False).stdout.decode()
    files = parse_patch(patch).files
    if numbers.stdout:
        added, removed = numbers.stdout.split()[:2]
        assert (files[0].added, files[0].removed) == (int(added), int(removed))
    else:
        assert files == ()
