"""Any change of any repository can be opened, and opening it leaves no trace."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from closeloop.changes.change_sides import ChangeQuery, ChangeSides, open_sides
from closeloop.records.change import FileChange
from closeloop.records.errors import BadInput
from closeloop.text.patches import parse_patch

AUTHOR = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1", "LC_ALL": "C"} | {
    f"GIT_{who}_{what}": "someone@example.org"
    for who in ("AUTHOR", "COMMITTER")
    for what in ("NAME", "EMAIL")
}


def git(folder: Path, *arguments: str, stdin: bytes = b"") -> str:
    ran = subprocess.run(
        ["git", "-c", "protocol.file.allow=always", *arguments],
        cwd=folder,
        env={**os.environ, **AUTHOR},
        input=stdin,
        capture_output=True,
        check=True,
    )
    return ran.stdout.decode("utf-8", "replace").strip()


def write(folder: Path, **contents: str | bytes) -> None:
    for name, content in contents.items():
        path = folder / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def commit(folder: Path, message: str = "More") -> str:
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "--allow-empty", "-m", message)
    return git(folder, "rev-parse", "HEAD")


def lines(count: int, word: str = "line") -> str:
    return "".join(f"{word} {number}\n" for number in range(count))


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    folder = tmp_path / "repo"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    write(folder, a_dot_py=lines(20), b_dot_py=lines(30, "other"), docs__x_dot_md="x\n")
    commit(folder, "Start")
    return folder


def opened(
    root: Path, span: str | None = None, base: str | None = None, patch: Path | None = None
) -> AbstractContextManager[ChangeSides]:
    return open_sides(root, ChangeQuery(range=span, base=base, patch=patch))


def files(root: Path, span: str | None = None, base: str | None = None) -> dict[str, FileChange]:
    with opened(root, span, base) as sides:
        return {file.path: file for file in sides.change.files}


def refusal(root: Path, **wanted: str | Path) -> str:
    with pytest.raises(BadInput) as caught, opened(root, **wanted):  # type: ignore[arg-type]
        pass
    return str(caught.value)


def state(folder: Path) -> dict[str, tuple[object, ...]]:
    """Everything about a folder that opening a change could have touched."""
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted(folder.rglob("*")):
        about = path.lstat()
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        digest = hashlib.sha256(content).hexdigest()
        found[str(path)] = (about.st_mode, about.st_mtime_ns, about.st_size, digest)
    return found


class TestWorkingTree:
    def test_changed_new_and_deleted_files_are_told_and_ignored_ones_are_not(
        self, repo: Path
    ) -> None:
        write(repo, a_dot_py=lines(20) + "more\n", new_dot_py="n\n", _dot_gitignore="*.log\n")
        write(repo, out_dot_log="noise")
        (repo / "b.py").unlink()
        with opened(repo) as sides:
            found = {file.path: file.status for file in sides.change.files}
            expected = {".gitignore": "added", "a.py": "changed", "b.py": "deleted"}
            assert found == expected | {"new.py": "added"}
            assert (sides.title, sides.head) == ("working tree", None)
            assert sides.base == git(repo, "rev-parse", "HEAD")
            assert sides.read("before", "a.py") == lines(20).encode()
            assert sides.read("after", "a.py") == lines(20).encode() + b"more\n"
            assert sides.read("after", "b.py") is None
            assert sides.read("before", "new.py") is None
            assert sides.read("after", "docs/x.md") == b"x\n"
            assert sides.read("after", "nowhere") is None
            assert parse_patch(sides.change.patch).files[1].hunks == sides.change.files[1].hunks

    def test_what_is_staged_counts_as_it_lies_in_the_files(self, repo: Path) -> None:
        write(repo, a_dot_py="staged\n", new_dot_py="staged\n")
        git(repo, "add", "-A")
        write(repo, a_dot_py="later\n")
        with opened(repo) as sides:
            assert sides.read("after", "a.py") == b"later\n"
            assert sides.read("after", "new.py") == b"staged\n"

    def test_both_trees_are_those_that_git_would_commit(self, repo: Path) -> None:
        write(repo, a_dot_py="other\n", sub__new_dot_py="n\n")
        (repo / "docs" / "x.md").unlink()
        with opened(repo) as sides:
            before, after = dict(sides.tree("before")), dict(sides.tree("after"))
            contents = {path: sides.read_blob(blob) for path, blob in after.items()}
        assert before == tree(repo)
        commit(repo)
        assert after == tree(repo)
        assert contents == {path: (repo / path).read_bytes() for path in after}

    def test_a_renamed_and_edited_file_keeps_its_past(self, repo: Path) -> None:
        (repo / "b.py").rename(repo / "c.py")
        write(repo, c_dot_py=lines(30, "other") + "one more\n")
        with opened(repo) as sides:
            (file,) = sides.change.files
            assert (file.path, file.old_path, file.status) == ("c.py", "b.py", "renamed")
            assert (file.added, file.removed) == (1, 0)
            assert sides.read("before", "b.py") == lines(30, "other").encode()
            assert sides.read("before", "c.py") is None

    def test_a_new_mode_alone_is_a_change(self, repo: Path) -> None:
        (repo / "a.py").chmod(0o755)
        file = files(repo)["a.py"]
        assert (file.old_mode, file.mode, file.hunks) == ("100644", "100755", ())

    def test_binary_files_are_known_by_content_whatever_attributes_say(self, repo: Path) -> None:
        write(repo, image_dot_png=b"\x89PNG\0\0", _dot_gitattributes="*.py binary\n")
        write(repo, a_dot_py="hidden\n")
        found = files(repo)
        assert found["image.png"].binary
        assert (found["a.py"].added, found["a.py"].binary) == (1, False)

    def test_another_base_counts_from_where_the_branch_left_it(self, repo: Path) -> None:
        git(repo, "checkout", "-q", "-b", "feature")
        write(repo, feature_dot_py="f\n")
        commit(repo)
        git(repo, "checkout", "-q", "main")
        write(repo, main_dot_py="m\n")
        commit(repo)
        git(repo, "checkout", "-q", "feature")
        write(repo, loose_dot_py="l\n")
        assert set(files(repo, base="main")) == {"feature.py", "loose.py"}

    def test_a_touched_file_with_the_same_content_is_no_change(self, repo: Path) -> None:
        os.utime(repo / "a.py", (1, 1))
        assert refusal(repo).startswith("No change in working tree")

    def test_a_change_right_after_the_index_was_written_is_seen(self, repo: Path) -> None:
        git(repo, "config", "core.trustctime", "false")
        git(repo, "config", "core.checkStat", "minimal")
        long_ago = (1_000_000_000, 1_000_000_000)
        os.utime(repo / "a.py", long_ago)
        git(repo, "update-index", "--refresh")
        write(repo, a_dot_py=lines(20).replace("line 3", "line 4"))
        os.utime(repo / "a.py", long_ago)
        os.utime(repo / ".git" / "index", long_ago)
        assert set(files(repo)) == {"a.py"}

    def test_it_is_found_from_a_folder_inside(self, repo: Path) -> None:
        write(repo, a_dot_py="other\n")
        with opened(repo / "docs") as sides:
            assert sides.root == repo
            assert [file.path for file in sides.change.files] == ["a.py"]

    def test_a_linked_worktree_has_its_own_change(self, repo: Path, tmp_path: Path) -> None:
        git(repo, "worktree", "add", "-q", "-b", "side", str(tmp_path / "side"))
        write(repo, a_dot_py="here\n")
        write(tmp_path / "side", b_dot_py="there\n")
        assert set(files(tmp_path / "side")) == {"b.py"}

    def test_what_a_sparse_checkout_leaves_out_is_not_deleted(self, repo: Path) -> None:
        write(repo, far__away__x_dot_py="x\n")
        commit(repo)
        git(repo, "sparse-checkout", "set", "--cone", "--sparse-index", "docs")
        write(repo, docs__x_dot_md="other\n", docs__new_dot_md="n\n")
        with opened(repo) as sides:
            found = {file.path: file.status for file in sides.change.files}
            assert found == {"docs/x.md": "changed", "docs/new.md": "added"}
            assert sides.read("after", "far/away/x.py") == b"x\n"

    def test_sha256_repositories_work_alike(self, tmp_path: Path) -> None:
        git(tmp_path, "init", "-q", "--object-format=sha256")
        write(tmp_path, a_dot_txt="a\n")
        commit(tmp_path)
        write(tmp_path, a_dot_txt="b\n", n_dot_txt="n\n")
        with opened(tmp_path) as sides:
            assert sides.read("before", "a.txt") == b"a\n"
            assert sides.read("after", "a.txt") == b"b\n"
            assert len(sides.tree("after")["n.txt"]) == 64

    def test_files_that_git_was_told_of_but_not_given_are_read(self, repo: Path) -> None:
        write(repo, soon_dot_py="soon\n")
        git(repo, "add", "-N", "soon.py")
        assert files(repo)["soon.py"].added == 1


def tree(repo: Path) -> dict[str, str]:
    listed = git(repo, "ls-tree", "-r", "-z", "HEAD").split("\0")[:-1]
    return {line.split("\t")[1]: line.split("\t")[0].split(" ")[2] for line in listed}


class TestOddFiles:
    @pytest.mark.parametrize(
        "name",
        [
            b"new\nline.py",
            b'quo"ted.py',
            b"back\\slash.py",
            b"tab\t.py",
            b"caf\xe9.py",
            "日本.py".encode(),
            b" lead and trail ",
            b"-dash.py",
            b"a b/c d.py",
            b":(glob)x.py",
            b"x\r",
        ],
    )
    def test_any_file_name_can_be_told_and_read(self, repo: Path, name: bytes) -> None:
        path = repo / os.fsdecode(name)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"one\n")
        with opened(repo) as sides:
            (file,) = sides.change.files
            assert file.path == name.decode("utf-8", "backslashreplace")
            assert sides.read("after", file.path) == b"one\n"
            assert sides.tree("after")[file.path]
        commit(repo)
        path.write_bytes(b"two\n")
        with opened(repo) as sides:
            (file,) = sides.change.files
            assert (file.status, file.added, file.removed) == ("changed", 1, 1)
            assert sides.read("before", file.path) == b"one\n"
            assert sides.read("after", file.path) == b"two\n"

    def test_bytes_that_are_not_utf8_are_handed_on_as_they_are(self, repo: Path) -> None:
        write(repo, latin_dot_py="# café\n".encode("latin-1"))
        with opened(repo) as sides:
            assert sides.read("after", "latin.py") == b"# caf\xe9\n"
            assert sides.change.files[0].added == 1
            sides.change.patch.encode()

    def test_line_ends_are_normalised_as_git_would(self, repo: Path) -> None:
        write(repo, kept_dot_txt="kept\r\nas it is\r\n")
        commit(repo)
        git(repo, "config", "core.autocrlf", "true")
        write(repo, a_dot_py=lines(20).replace("\n", "\r\n"))
        write(repo, kept_dot_txt="kept\r\nas it was\r\n", new_dot_txt="new\r\n")
        with opened(repo) as sides:
            found = {file.path: (file.added, file.removed) for file in sides.change.files}
            assert found == {"kept.txt": (1, 1), "new.txt": (1, 0)}
            after = dict(sides.tree("after"))
        commit(repo)
        assert after == tree(repo)

    def test_links_are_never_followed(self, repo: Path, tmp_path: Path) -> None:
        secret = tmp_path / "outside"
        secret.mkdir()
        (secret / "x.md").write_text("secret\n")
        (repo / "link.py").symlink_to(secret / "x.md")
        (repo / "docs" / "x.md").unlink()
        (repo / "docs").rmdir()
        (repo / "docs").symlink_to(secret)
        with opened(repo) as sides:
            found = {file.path: (file.status, file.mode) for file in sides.change.files}
            assert found["link.py"] == ("added", "120000")
            assert found["docs"] == ("added", "120000")
            assert found["docs/x.md"] == ("deleted", None)
            assert sides.read("after", "link.py") is None
            assert sides.read("after", "docs/x.md") is None
            assert "link.py" not in sides.tree("after")
            entry = sides.list_entries("after")["link.py"]
            assert sides.read_blob(entry.id) == os.fsencode(secret / "x.md")
            assert "secret\n" not in sides.change.patch

    def test_a_file_that_becomes_a_link_is_one_change(self, repo: Path) -> None:
        (repo / "a.py").unlink()
        (repo / "a.py").symlink_to("b.py")
        (file,) = files(repo).values()
        assert (file.status, file.old_mode, file.mode) == ("changed", "100644", "120000")
        assert (file.added, file.removed) == (1, 20)

    def test_a_file_may_become_a_folder_and_a_folder_a_file(self, repo: Path) -> None:
        (repo / "a.py").unlink()
        write(repo, a_dot_py__inner="i\n")
        (repo / "docs" / "x.md").unlink()
        (repo / "docs").rmdir()
        write(repo, docs="d\n")
        with opened(repo) as sides:
            found = {file.path: file.status for file in sides.change.files}
            after = dict(sides.tree("after"))
        assert found["a.py/inner"] == "added"
        assert found["a.py"] == "deleted"
        commit(repo)
        assert after == tree(repo)

    def test_what_is_no_file_is_left_out(self, repo: Path) -> None:
        (repo / "a.py").unlink()
        os.mkfifo(repo / "a.py")
        assert {path: file.status for path, file in files(repo).items()} == {"a.py": "deleted"}

    def test_large_files_are_told_and_not_read(self, repo: Path) -> None:
        write(repo, large_dot_txt=lines(600_000), b_dot_py=lines(600_000))
        with opened(repo) as sides:
            for file in sides.change.files:
                assert file.binary
                assert re.fullmatch(r"not read: it is too large \([\d,]+ bytes\)", file.note or "")
                assert sides.read("after", file.path) is None
                assert not sides.tree("after")[file.path].strip("0")
            assert sides.read("before", "b.py") == lines(30, "other").encode()
            assert sides.read("after", "a.py") == lines(20).encode()
        last = commit(repo)
        with opened(repo, span=last) as sides:
            assert all("too large" in (file.note or "") for file in sides.change.files)
            assert sides.read("after", "large.txt") is None
            assert sides.read("after", "a.py") == lines(20).encode()

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
    def test_a_file_that_may_not_be_read_does_not_hide_the_others(self, repo: Path) -> None:
        write(repo, closed_dot_py="c\n", a_dot_py="open\n")
        (repo / "closed.py").chmod(0)
        assert files(repo)["closed.py"].note == "not read: its permissions forbid it"
        assert files(repo)["a.py"].added == 1

    def test_a_patch_that_is_too_large_is_cut_file_by_file(self, repo: Path) -> None:
        for number in range(5):
            write(repo, **{f"data{number}_dot_txt": lines(350_000)})
        write(repo, small_dot_py="s\n")
        with opened(repo) as sides:
            assert len(sides.change.patch) < 20_000_000
            assert sum(file.added for file in sides.change.files) == 5 * 350_000 + 1
            cut = [file.path for file in sides.change.files if file.note]
            assert cut == ["data4.txt"]
            assert [file.path for file in parse_patch(sides.change.patch).files][-1] == "small.py"
            assert "+s\n" in sides.change.patch


class TestSubmodulesAndPointers:
    @pytest.fixture
    def outer(self, repo: Path, tmp_path: Path) -> Path:
        outer = tmp_path / "outer"
        outer.mkdir()
        git(outer, "init", "-q", "-b", "main")
        git(outer, "submodule", "add", "-q", str(repo), "inner")
        commit(outer)
        return outer

    def test_a_submodule_is_told_by_its_commit_only(self, outer: Path) -> None:
        write(outer / "inner", a_dot_py="moved\n")
        commit(outer / "inner")
        with opened(outer) as sides:
            (file,) = sides.change.files
            assert (file.path, file.status, file.mode) == ("inner", "changed", "160000")
            assert file.note == "a submodule: only its commit is shown"
            assert sides.read("after", "inner") is None
            assert sides.read("after", "inner/a.py") is None
            assert "inner" not in sides.tree("after")
            assert sides.list_entries("after")["inner"].mode == "160000"

    def test_work_inside_a_submodule_is_the_submodules(self, outer: Path) -> None:
        write(outer / "inner", a_dot_py="dirty\n", new_dot_py="n\n")
        assert "No change" in refusal(outer)
        assert set(files(outer / "inner")) == {"a.py", "new.py"}

    def test_a_repository_inside_that_is_not_tracked_is_told_not_read(self, repo: Path) -> None:
        inner = repo / "inner"
        inner.mkdir()
        git(inner, "init", "-q")
        write(inner, x_dot_py="x\n")
        (file,) = files(repo).values()
        assert (file.path, file.mode) == ("inner", "160000")
        assert file.note == "not read: it is a separate repository"

    def test_a_pointer_of_git_lfs_is_not_taken_for_the_file(self, repo: Path) -> None:
        first, second = (pointer(content) for content in (b"first", b"second"))
        write(repo, big_dot_bin=first, _dot_gitattributes="*.bin filter=lfs diff=lfs -text\n")
        commit(repo)
        write(repo, big_dot_bin=second)
        commit(repo)
        file = files(repo, span="HEAD")["big.bin"]
        assert file.binary
        assert file.note == "a Git LFS pointer: its content is not downloaded"

    def test_a_file_under_git_lfs_counts_by_the_pointer_that_git_keeps(self, repo: Path) -> None:
        write(repo, big_dot_bin=pointer(b"first"), _dot_gitattributes="*.bin filter=lfs -text\n")
        commit(repo)
        write(repo, big_dot_bin=b"first")
        assert "No change" in refusal(repo)
        write(repo, big_dot_bin=b"second")
        with opened(repo) as sides:
            assert sides.read("after", "big.bin") == pointer(b"second")
            assert sides.change.files[0].note == "a Git LFS pointer: its content is not downloaded"


def pointer(content: bytes) -> bytes:
    oid = hashlib.sha256(content).hexdigest()
    text = f"version https://git-lfs.github.com/spec/v1\noid sha256:{oid}\nsize {len(content)}\n"
    return text.encode()


class TestRanges:
    @pytest.fixture
    def branches(self, repo: Path) -> Path:
        """Two branches that left `main` at its first commit, and `main` that went on."""
        git(repo, "checkout", "-q", "-b", "feature")
        write(repo, one_dot_py="1\n")
        commit(repo, "One")
        write(repo, two_dot_py="2\n")
        commit(repo, "Two")
        git(repo, "checkout", "-q", "main")
        write(repo, trunk_dot_py="t\n")
        commit(repo, "Trunk")
        git(repo, "checkout", "-q", "feature")
        return repo

    @pytest.mark.parametrize(
        ("span", "paths", "title"),
        [
            ("main..feature", {"one.py", "two.py"}, "main..feature"),
            ("main...feature", {"one.py", "two.py"}, "main..feature"),
            ("main..", {"one.py", "two.py"}, "main..HEAD"),
            ("..main", {"trunk.py"}, "HEAD..main"),
            ("HEAD~1", {"two.py"}, "HEAD~1..HEAD"),
            ("HEAD^^", {"one.py", "two.py"}, "HEAD^^..HEAD"),
            ("feature", {"one.py", "two.py"}, "main..feature"),
            ("HEAD", {"two.py"}, "commit …"),
            ("feature~1..feature", {"two.py"}, "feature~1..feature"),
            ("feature~1", {"one.py"}, "commit …"),
            ("feature~2", {"a.py", "b.py", "docs/x.md"}, "commit …"),
        ],
    )
    def test_a_range_is_what_a_reviewer_means_by_it(
        self, branches: Path, span: str, paths: set[str], title: str
    ) -> None:
        write(branches, loose_dot_py="not in any commit\n")
        with opened(branches, span=span) as sides:
            assert {file.path for file in sides.change.files} == paths
            assert re.sub(r"[0-9a-f]{10}", "…", sides.title) == title
            for path in paths:
                assert sides.read("before", path) is None
                assert sides.read("after", path)
            assert "loose.py" not in sides.tree("after")

    def test_the_first_commit_has_nothing_before_it(self, branches: Path) -> None:
        with opened(branches, span="feature~2") as sides:
            assert sides.base is None
            assert sides.tree("before") == {}

    def test_a_merge_is_told_against_what_it_was_merged_into(self, branches: Path) -> None:
        git(branches, "checkout", "-q", "main")
        git(branches, "merge", "-q", "--no-ff", "-m", "Merge", "feature")
        assert set(files(branches, span=git(branches, "rev-parse", "HEAD"))) == {"one.py", "two.py"}

    def test_a_branch_that_was_pushed_is_compared_with_where_it_goes(
        self, branches: Path, tmp_path: Path
    ) -> None:
        clone = tmp_path / "clone"
        git(branches, "checkout", "-q", "main")
        git(tmp_path, "clone", "-q", str(branches), str(clone))
        git(clone, "checkout", "-q", "feature")
        write(clone, three_dot_py="3\n")
        commit(clone, "Three")
        with opened(clone, span="feature") as sides:
            assert sides.title == "origin/main..feature"
            assert len(sides.change.files) == 3
        git(clone, "checkout", "-q", "main")
        write(clone, four_dot_py="4\n")
        commit(clone, "Four")
        assert set(files(clone, span="main")) == {"four.py"}

    def test_a_bare_repository_has_ranges_and_no_working_tree(
        self, branches: Path, tmp_path: Path
    ) -> None:
        git(tmp_path, "clone", "-q", "--bare", str(branches), "bare.git")
        assert set(files(tmp_path / "bare.git", span="main..feature")) == {"one.py", "two.py"}
        assert "is bare and has no working tree" in refusal(tmp_path / "bare.git")

    def test_a_conflict_in_the_index_does_not_disturb_a_range(self, branches: Path) -> None:
        conflict(branches)
        assert set(files(branches, span="main..HEAD")) == {"a.py", "one.py", "two.py"}


def conflict(repo: Path) -> None:
    git(repo, "checkout", "-q", "-b", "theirs")
    write(repo, a_dot_py="theirs\n")
    commit(repo)
    git(repo, "checkout", "-q", "-")
    write(repo, a_dot_py="ours\n")
    commit(repo)
    with pytest.raises(subprocess.CalledProcessError):
        git(repo, "merge", "theirs")


class TestPatches:
    def test_a_patch_is_seen_applied_to_the_current_commit(self, repo: Path) -> None:
        patch = made_patch(repo)
        with opened(repo, patch=patch) as sides:
            assert sides.title == "made.patch"
            assert sides.base == git(repo, "rev-parse", "HEAD")
            assert sides.read("after", "a.py") == b"line 0\npatched\n"
            assert sides.read("after", "n.py") == b"n\n"
            assert sides.read("after", "b.py") == lines(30, "other").encode()
            assert len(sides.tree("after")) == 4
        assert (repo / "a.py").read_text() == lines(20)

    def test_a_patch_may_name_the_commit_it_was_made_from(self, repo: Path) -> None:
        patch = made_patch(repo)
        write(repo, a_dot_py="quite different\n")
        commit(repo)
        said = refusal(repo, patch=patch)
        assert said.startswith("made.patch does not apply")
        assert "give the commit it was made from" in said
        with opened(repo, patch=patch, base="HEAD~1") as sides:
            assert sides.title == "made.patch on HEAD~1"

    def test_a_plain_diff_without_prefixes_is_a_patch_too(self, repo: Path) -> None:
        patch = repo.parent / "plain.patch"
        patch.write_text("--- docs/x.md\n+++ docs/x.md\n@@ -1 +1 @@\n-x\n+y\n")
        with opened(repo, patch=patch) as sides:
            assert sides.read("after", "docs/x.md") == b"y\n"

    def test_without_a_repository_new_files_can_be_read(self, repo: Path, tmp_path: Path) -> None:
        empty = tmp_path / "empty"
        empty.mkdir()
        with opened(empty, patch=made_patch(repo)) as sides:
            assert {file.path: file.status for file in sides.change.files} == {
                "a.py": "changed",
                "n.py": "added",
            }
            assert sides.base is None
            assert sides.read("after", "n.py") == b"n\n"
            assert sides.read("before", "a.py") is None
            assert sides.read("after", "a.py") is None

    def test_a_binary_file_whose_content_is_not_in_the_patch_is_told(self, repo: Path) -> None:
        write(repo, image_dot_png=b"\0\1")
        commit(repo)
        write(repo, image_dot_png=b"\0\2", a_dot_py="a\n")
        patch = repo.parent / "binary.patch"
        patch.write_text(git(repo, "diff") + "\n")
        git(repo, "checkout", "-q", ".")
        found = {}
        with opened(repo, patch=patch) as sides:
            found = {file.path: file.note for file in sides.change.files}
        expected = "binary: the patch does not contain its content"
        assert found == {"a.py": None, "image.png": expected}

    def test_several_commits_in_one_mailbox_are_one_change(self, repo: Path) -> None:
        write(repo, a_dot_py="first\n")
        commit(repo)
        write(repo, a_dot_py="second\n")
        commit(repo)
        patch = repo.parent / "series.patch"
        patch.write_text(git(repo, "format-patch", "--stdout", "HEAD~2") + "\n")
        with opened(repo, patch=patch, base="HEAD~2") as sides:
            assert sides.read("after", "a.py") == b"second\n"

    @pytest.mark.parametrize(
        ("content", "said"),
        [
            ("just words\n", "This is not a patch"),
            ("--- a/x\n+++ b/x\n@@ -1,9 +1 @@\n", "does not have the lines"),
            (
                "--- a/../../x\n+++ b/../../x\n@@ -1 +1 @@\n-x\n+y\n",
                "points outside the repository",
            ),
            ("", "No change in odd.patch"),
        ],
    )
    def test_what_is_no_patch_is_refused(self, repo: Path, content: str, said: str) -> None:
        patch = repo.parent / "odd.patch"
        patch.write_text(content)
        assert said in refusal(repo, patch=patch)

    def test_a_missing_patch_is_refused(self, repo: Path) -> None:
        assert "No such file" in refusal(repo, patch=repo / "missing.patch")


def made_patch(repo: Path) -> Path:
    write(repo, a_dot_py="line 0\npatched\n", n_dot_py="n\n")
    git(repo, "add", "-A")
    patch = repo.parent / "made.patch"
    patch.write_text(git(repo, "diff", "--cached") + "\n")
    git(repo, "reset", "-q", "--hard")
    return patch


class TestBadInput:
    def test_a_folder_without_a_repository(self, tmp_path: Path) -> None:
        said = refusal(tmp_path)
        assert "is not a git repository: run this in one, or give a patch with --patch." in said

    def test_a_folder_that_does_not_exist(self, tmp_path: Path) -> None:
        assert "is not a folder" in refusal(tmp_path / "nowhere")

    def test_a_repository_without_commits(self, tmp_path: Path) -> None:
        git(tmp_path, "init", "-q")
        assert "has no commits yet" in refusal(tmp_path)
        assert "has no commits yet" in refusal(tmp_path, span="main")

    def test_an_unknown_name_brings_the_nearest_one(self, repo: Path) -> None:
        git(repo, "branch", "feature")
        said = refusal(repo, span="featrue")
        assert said.endswith("'featrue' here: did you mean 'feature'?")
        assert "fetch it" in refusal(repo, span="deadbeef99")
        assert "There is no branch" in refusal(repo, base="--output=x")

    def test_histories_that_share_nothing(self, repo: Path) -> None:
        git(repo, "checkout", "-q", "--orphan", "lone")
        commit(repo)
        assert "'main' has no history in common" in refusal(repo, span="main..lone")

    def test_conflicts_are_named(self, repo: Path) -> None:
        conflict(repo)
        assert refusal(repo).startswith("Merge conflicts in a.py: resolve them")

    def test_no_change_is_said(self, repo: Path) -> None:
        assert refusal(repo).startswith("No change in working tree")
        assert refusal(repo, span="main..HEAD").startswith("No change in main..HEAD")

    def test_a_branch_that_nothing_is_known_to_precede(self, repo: Path) -> None:
        assert "give both ends, as in A..main" in refusal(repo, span="main")

    def test_two_bases_or_two_changes(self, repo: Path) -> None:
        assert "already has a base" in refusal(repo, span="main..HEAD", base="main")
        assert "Give only one of" in refusal(repo, span="main", patch=repo / "a.py")

    def test_a_shallow_clone_says_how_to_deepen_it(self, repo: Path, tmp_path: Path) -> None:
        git(repo, "checkout", "-q", "-b", "feature")
        for number in range(3):
            write(repo, a_dot_py=f"{number}\n")
            commit(repo)
        git(repo, "checkout", "-q", "main")
        write(repo, b_dot_py="b\n")
        commit(repo)
        clone = tmp_path / "clone"
        git(tmp_path, "clone", "-q", "--depth=1", "--no-single-branch", repo.as_uri(), str(clone))
        for span in ("HEAD~1", "HEAD", "origin/main..origin/feature"):
            assert "git fetch --unshallow" in refusal(clone, span=span)
        git(clone, "fetch", "-q", "--unshallow")
        assert set(files(clone, span="origin/main..origin/feature")) == {"a.py"}

    def test_a_shallow_clone_does_not_believe_a_merge_base_beyond_a_gap(
        self, repo: Path, tmp_path: Path
    ) -> None:
        git(repo, "checkout", "-q", "-b", "feature")
        write(repo, one_dot_py="1\n")
        commit(repo)
        git(repo, "checkout", "-q", "main")
        write(repo, two_dot_py="2\n")
        commit(repo)
        # Feature takes over main, then both go on; a cut hides the way by which it did.
        git(repo, "checkout", "-q", "feature")
        git(repo, "merge", "-q", "-m", "Merge", "main")
        write(repo, three_dot_py="3\n")
        commit(repo)
        clone = tmp_path / "clone"
        git(tmp_path, "clone", "-q", "--no-local", str(repo), str(clone))
        cut = git(clone, "rev-parse", "origin/feature~1")
        (clone / ".git" / "shallow").write_text(f"{cut}\n")
        assert "git fetch --unshallow" in refusal(clone, span="origin/main..origin/feature")

    def test_a_partial_clone_is_not_filled_behind_the_users_back(
        self, repo: Path, tmp_path: Path
    ) -> None:
        write(repo, a_dot_py="second\n")
        commit(repo)
        git(repo, "config", "uploadpack.allowFilter", "true")
        clone = tmp_path / "clone"
        git(tmp_path, "clone", "-q", "--filter=blob:none", repo.as_uri(), str(clone))
        before = state(clone)
        assert "lacks content of the change" in refusal(clone, span="HEAD")
        assert state(clone) == before

    def test_an_odd_setting_is_reported_not_obeyed(self, repo: Path) -> None:
        git(repo, "config", "core.autocrlf", "perhaps")
        write(repo, a_dot_py="a\n")
        with pytest.raises(Exception, match=r"core\.autocrlf"), opened(repo):
            pass


class TestNothingIsTouched:
    def test_a_hostile_repository_runs_nothing(self, repo: Path, tmp_path: Path) -> None:
        script, trace = tmp_path / "evil", tmp_path / "ran"
        script.write_text(f"#!/bin/sh\necho $0 $@ >> '{trace}'\ncat\n")
        script.chmod(0o755)
        attributes = "*.py diff=evil filter=evil merge=evil\n"
        write(repo, _dot_gitattributes=attributes, a_dot_py=lines(20) + "more\n", n_dot_py="n\n")
        commit(repo)
        write(repo, a_dot_py="again\n", m_dot_py="m\n")
        evil = str(script)
        for name in ("fsmonitor", "pager", "sshCommand", "editor", "askPass", "gitProxy"):
            git(repo, "config", f"core.{name}", evil)
        for name in ("diff.external", "diff.evil.command", "diff.evil.textconv"):
            git(repo, "config", name, evil)
        for name in ("filter.evil.clean", "filter.evil.smudge", "filter.evil.process"):
            git(repo, "config", name, evil)
        hooks = tmp_path / "hooks"
        hooks.mkdir()
        for name in ("post-index-change", "reference-transaction", "fsmonitor-watchman"):
            (hooks / name).symlink_to(script)
        git(repo, "config", "core.hooksPath", str(hooks))
        git(repo, "config", "filter.evil.required", "true")
        git(repo, "config", "core.worktree", str(tmp_path))
        before = state(repo)
        assert files(repo)["a.py"].removed == 21
        assert files(repo, span="HEAD")["a.py"].added == 1
        assert not trace.exists()
        assert state(repo) == before

    def test_the_callers_environment_does_not_lead_elsewhere(
        self, repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        other = tmp_path / "other"
        other.mkdir()
        git(other, "init", "-q")
        write(repo, a_dot_py="a\n")
        monkeypatch.setenv("GIT_DIR", str(other / ".git"))
        monkeypatch.setenv("GIT_WORK_TREE", str(other))
        monkeypatch.setenv("GIT_INDEX_FILE", str(other / ".git" / "index"))
        monkeypatch.setenv("GIT_EXTERNAL_DIFF", "false")
        monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
        monkeypatch.setenv("GIT_CONFIG_KEY_0", "core.bare")
        monkeypatch.setenv("GIT_CONFIG_VALUE_0", "true")
        before = state(other)
        assert set(files(repo)) == {"a.py"}
        assert state(other) == before

    def test_not_even_the_date_of_an_object_changes(self, repo: Path) -> None:
        patch = made_patch(repo)
        write(repo, a_dot_py="once\n", kept_dot_txt="k\r\n")
        commit(repo)
        git(repo, "apply", str(patch), "--exclude=a.py")
        commit(repo)
        write(repo, a_dot_py=lines(20), b_dot_py="once\n", kept_dot_txt="k\r\nk\r\n")
        for path in (repo / ".git").rglob("*"):
            if path.is_file():
                os.utime(path, (1_000_000_000, 1_000_000_000))
        before = state(repo)
        with opened(repo) as sides:
            for side in ("before", "after"):
                for blob in sides.tree(side).values():
                    sides.read_blob(blob)
        with opened(repo, patch=patch, base="HEAD~2"):
            pass
        with opened(repo, span="HEAD~2"):
            pass
        assert state(repo) == before

    def test_killed_at_any_moment_the_repository_is_as_it_was(
        self, repo: Path, tmp_path: Path
    ) -> None:
        for number in range(200):
            write(repo, **{f"many__{number}_dot_py": lines(50, str(number))})
        before = state(repo)
        script = (
            "import sys, pathlib\n"
            "from closeloop.changes.change_sides import ChangeQuery, open_sides\n"
            "print('ready', flush=True)\n"
            "while True:\n"
            "    with open_sides(pathlib.Path(sys.argv[1]), ChangeQuery()) as sides:\n"
            "        sides.read('after', 'many/1.py')\n"
        )
        for pause in (0.0, 0.01, 0.02, 0.035, 0.05, 0.08):
            child = subprocess.Popen(
                [sys.executable, "-c", script, str(repo)],
                env={**os.environ, "TMPDIR": str(tmp_path)},
                stdout=subprocess.PIPE,
            )
            assert child.stdout
            child.stdout.readline()
            time.sleep(pause)
            child.send_signal(signal.SIGKILL)
            child.communicate()
        assert state(repo) == before

    def test_nothing_is_left_in_the_temporary_folder(
        self, repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        own = tmp_path / "temporary"
        own.mkdir()
        monkeypatch.setattr("tempfile.tempdir", str(own))
        write(repo, a_dot_py="a\n")
        assert set(files(repo)) == {"a.py"}
        assert list(own.iterdir()) == []

    def test_a_temporary_folder_inside_the_repository_is_no_part_of_the_change(
        self, repo: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tempfile.tempdir", str(repo))
        write(repo, a_dot_py="a\n")
        assert set(files(repo)) == {"a.py"}


NAMES = some.lists(
    some.binary(min_size=1, max_size=6).map(lambda name: re.sub(rb"[/\0]", b"_", name)),
    min_size=1,
    max_size=2,
).map(b"/".join)
CONTENTS = some.one_of(
    some.binary(max_size=60),
    some.lists(
        some.sampled_from([b"a", b"b", b"+++ b/x", b"--- a/x", b"diff --git a/x b/x", b""])
    ).map(b"\n".join),
)
TREES = some.dictionaries(NAMES, CONTENTS, max_size=5)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scratch")
    git(folder, "init", "-q", "-b", "main")
    return folder


@given(old=TREES, new=TREES)
@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_any_two_states_are_told_exactly(
    scratch: Path, old: dict[bytes, bytes], new: dict[bytes, bytes]
) -> None:
    before = fill(scratch, old)
    first = commit(scratch)
    after = fill(scratch, new)
    differing = {name for name in before | after if before.get(name) != after.get(name)}
    if not differing:
        return
    with opened(scratch) as sides:
        check(sides, before, after, differing)
        patch = sides.change.patch
    last = commit(scratch)
    with opened(scratch, span=f"{first}..{last}") as sides:
        check(sides, before, after, differing)
        assert sides.change.patch == patch
        counted = git(scratch, "diff-tree", "-r", "-M", "--numstat", first, last).splitlines()
        added = sum(int(line.split("\t")[0]) for line in counted if line[0] != "-")
        assert sum(file.added for file in sides.change.files) == added


def check(
    sides: ChangeSides, before: dict[bytes, bytes], after: dict[bytes, bytes], differing: set[bytes]
) -> None:
    told = {path for file in sides.change.files for path in (file.path, file.old_path) if path}
    assert told == {text(name) for name in differing}
    for name in before | after:
        assert sides.read("before", text(name)) == before.get(name)
        assert sides.read("after", text(name)) == after.get(name)


def text(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")


def fill(folder: Path, tree: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """Make the folder hold those files and no others; names that cannot be are left out."""
    for path in folder.iterdir():
        if path.name != ".git":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    written = {}
    for name, content in tree.items():
        if b"git" in name.lower() or {b".", b".."} & set(name.split(b"/")):
            continue
        path = folder / os.fsdecode(name)
        try:
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)
        except OSError:
            continue
        written[name] = content
    return written
