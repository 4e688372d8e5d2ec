"""What changed in a workspace comes out as a patch, and goes into another one exactly."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from git_trees import Tree, git, plant

from closeloop.records.errors import BadInput
from closeloop.records.settings import SandboxSettings
from closeloop.records.task import Limits
from closeloop.sandbox import sandbox_ladder
from closeloop.sandbox.workspaces import (
    UnreadableChange,
    WorkspaceBase,
    WorkspacePool,
    workspace_patches,
)


def commit_of(folder: Path, tree: Tree) -> str:
    """A repository with these files, and its commit."""
    folder.mkdir()
    git(folder, "init", "-q")
    plant(folder, tree)
    git(folder, "add", "-A", "-f")
    git(folder, "commit", "-q", "--allow-empty", "-m", "x")
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(params=["overlay", "copy", "none"])
def workspaces(request: pytest.FixtureRequest, cache: Path) -> Iterator[WorkspacePool]:
    workspaces = WorkspacePool(cache, SandboxSettings(kind="none"))
    if request.param != "none":
        for candidate in sandbox_ladder.list_candidates(workspaces.sandbox, "auto", cache):
            wanted = candidate.isolated and candidate.overlay == (request.param == "overlay")
            if wanted and sandbox_ladder.probe_sandbox(candidate, cache) is None:
                workspaces.sandbox = candidate
                break
        else:
            pytest.skip(f"NOT TESTED HERE: no cage by {request.param} works on this machine")
    yield workspaces
    workspaces.close()


@pytest.fixture
def uncaged(cache: Path) -> Iterator[WorkspacePool]:
    workspaces = WorkspacePool(cache, SandboxSettings(kind="none"))
    yield workspaces
    workspaces.close()


FILES: Tree = {
    "readme": ("file", b"one\ntwo\nthree\n"),
    "src/a.py": ("file", b"a = 1\n"),
    "src/deep/b.py": ("file", b"b = 1\n"),
    "tests/test_a.py": ("file", b"assert a\n"),
    "tool": ("program", b"#!/bin/sh\n"),
    "image": ("file", bytes(range(256))),
    "link": ("link", b"readme"),
}


def changed(
    workspaces: WorkspacePool, tmp_path: Path, command: str, files: Tree = FILES
) -> tuple[WorkspaceBase, str]:
    """The patch of what a command does to some files."""

    async def main() -> tuple[WorkspaceBase, str]:
        repo = tmp_path / "repo"
        base = await workspaces.prepare_base(str(repo), commit_of(repo, files))
        async with workspaces.open(base, Limits()) as workspace:
            ran = await workspace.sandbox.run(command)
            assert ran.exit_code == 0, ran.output
            return base, await workspace.read_diff()

    return anyio.run(main)


def after(
    workspaces: WorkspacePool, base: WorkspaceBase, patch: str, command: str, *exclude: str
) -> str:
    """What a command prints in a fresh workspace with a patch applied."""

    async def main() -> str:
        async with workspaces.open(base, Limits()) as workspace:
            await workspace.apply_patch(patch, exclude=exclude)
            return (await workspace.sandbox.run(command)).output

    return anyio.run(main)


def test_the_same_holds_in_every_cage(workspaces: WorkspacePool, tmp_path: Path) -> None:
    command = """
        echo four >> readme; rm -r src/deep; rm link; mkdir link; echo x > 'link/ö x'
        chmod -x tool; printf '\\0\\1' > image; ln -s gone dangling; : > empty
        printf 'caf\\351\\n' > latin; rm tests/test_a.py; rmdir tests; echo file > tests
        printf 'a\\r\\nb' > 'line
break'; chmod +x src/a.py
    """
    base, patch = changed(workspaces, tmp_path, command)
    listing = (
        "find . -path ./.git -prune -o -not -type d -printf '%p %m %l\\n' -exec cksum {} + | sort"
    )
    wanted = anyio.run(_listed, workspaces, base, command, listing)
    assert after(workspaces, base, patch, listing) == wanted
    assert "café" not in patch
    assert "ö x" in patch or "\\303\\266 x" in patch


async def _listed(
    workspaces: WorkspacePool, base: WorkspaceBase, command: str, listing: str
) -> str:
    async with workspaces.open(base, Limits()) as workspace:
        await workspace.sandbox.run(command)
        return (await workspace.sandbox.run(listing)).output


@pytest.mark.parametrize(
    "trick",
    [
        "rm -rf .git",
        "rm -rf .git && ln -s / .git",
        "git config core.fsmonitor 'touch $HOME/ran; false'",
        "git config filter.x.clean 'touch $HOME/ran'; echo '* filter=x' > .git/info/attributes",
        "echo '*' > .git/info/exclude",
        "git update-index --assume-unchanged readme",
        "git update-index --skip-worktree readme",
        "git config core.worktree /elsewhere",
        "git config core.ignoreStat true; git config core.fileMode false",
        "git commit -qam hidden; git rm -rq --cached .",
        "touch .git/index.lock",
        "git config diff.external 'touch $HOME/ran'; git config core.pager 'touch $HOME/ran'",
    ],
)
def test_nothing_an_agent_does_to_its_git_folder_hides_a_change(
    workspaces: WorkspacePool, tmp_path: Path, trick: str
) -> None:
    async def main() -> tuple[str, str]:
        repo = tmp_path / "repo"
        base = await workspaces.prepare_base(str(repo), commit_of(repo, FILES))
        async with workspaces.open(base, Limits()) as workspace:
            await workspace.sandbox.run(f"echo changed >> readme; echo x > new; {trick}")
            patch = await workspace.read_diff()
            return patch, (await workspace.sandbox.run("ls $HOME")).output

    patch, home = anyio.run(main)
    assert "+changed" in patch
    assert "b/new" in patch
    assert "ran" not in home


def test_attributes_in_the_tree_run_nothing_and_change_no_byte(
    workspaces: WorkspacePool, tmp_path: Path
) -> None:
    attributes = "* text eol=crlf ident diff=x filter=lfs working-tree-encoding=UTF-16"
    command = f"echo '{attributes}' > .gitattributes; printf '$Id$\\na\\r\\nb\\n' > mixed"
    base, patch = changed(workspaces, tmp_path, command)
    assert after(workspaces, base, patch, "od -c mixed | head -1") == (
        "0000000   $   I   d   $  \\n   a  \\r  \\n   b  \\n\n"
    )


def test_files_in_repositories_that_the_agent_made_are_not_lost(
    workspaces: WorkspacePool, tmp_path: Path
) -> None:
    command = """
        git init -q sub && echo one > sub/one && echo log > sub/x.log && echo '*.log' > .gitignore
        git clone -q --no-hardlinks . copy && rm copy/readme
        mkdir -p 'a b' && cd 'a b' && git init -q c
        echo two > c/two; git -C c add two; git -C c commit -qm two
        cd .. && git -C src init -q && echo n > src/new.py
    """
    base, patch = changed(workspaces, tmp_path, command)
    listing = "cat sub/one 'a b/c/two' copy/src/a.py src/new.py; ls sub/x.log; ls -A sub"
    seen = after(workspaces, base, patch, listing)
    assert "one\ntwo\na = 1\nn\n" in seen
    assert "cannot access" in seen


def test_files_that_the_project_ignores_are_not_part_of_the_change(
    uncaged: WorkspacePool, tmp_path: Path
) -> None:
    files: Tree = {
        **FILES,
        ".gitignore": ("file", b"*.log\nbuild/\n"),
        "kept.log": ("file", b"x\n"),
    }
    command = "mkdir build __pycache__; touch build/x a.log __pycache__/a.pyc; echo y >> kept.log"
    _, patch = changed(uncaged, tmp_path, command, files)
    assert [line for line in patch.splitlines() if line.startswith("diff")] == [
        "diff --git a/kept.log b/kept.log"
    ]


def test_files_that_the_agent_closed_are_part_of_the_change(
    workspaces: WorkspacePool, tmp_path: Path
) -> None:
    command = "mkdir shut; echo x > shut/x; echo y > y; chmod 000 y shut/x shut readme"
    base, patch = changed(workspaces, tmp_path, command)
    assert after(workspaces, base, patch, "cat y shut/x") == "y\nx\n"


def test_a_change_of_the_same_size_in_the_same_second_shows(
    workspaces: WorkspacePool, tmp_path: Path
) -> None:
    _, patch = changed(workspaces, tmp_path, "printf 'ONE\\ntwo\\nthree\\n' > readme")
    assert "+ONE" in patch


def test_a_link_to_a_name_that_is_no_text_is_the_agents_doing(
    uncaged: WorkspacePool, tmp_path: Path
) -> None:
    with pytest.raises(UnreadableChange, match="not UTF-8"):
        changed(uncaged, tmp_path, "ln -s $(printf 'a\\351') odd")


def test_pipes_sockets_and_endless_names_do_no_harm(uncaged: WorkspacePool, tmp_path: Path) -> None:
    command = "mkfifo pipe; ln -s loop loop; echo x > $(printf 'n%.0s' $(seq 250))"
    _, patch = changed(uncaged, tmp_path, command)
    assert "b/loop" in patch
    assert "pipe" not in patch


def test_protected_files_are_left_as_they_are(workspaces: WorkspacePool, tmp_path: Path) -> None:
    command = "echo cheat > tests/test_a.py; echo x > 'tests/new [1].py'; echo fix > src/a.py; "
    command += "git mv src/deep/b.py moved.py"
    base, patch = changed(workspaces, tmp_path, command)
    listing = "cat tests/test_a.py src/a.py; ls tests src/deep moved.py 2>/dev/null"
    assert after(workspaces, base, patch, listing, "tests/**", "src/deep/*.py") == (
        "assert a\nfix\nmoved.py\n\nsrc/deep:\nb.py\n\ntests:\ntest_a.py\n"
    )
    assert "cheat" in after(workspaces, base, patch, "cat tests/*", "*.py")
    assert after(workspaces, base, patch, "git status --short", "**") == ""


@pytest.mark.parametrize(
    ("patch", "reason"),
    [
        ("diff --git a/no b/no\n--- a/no\n+++ b/no\n@@ -1 +1 @@\n-a\n+b\n", "No such file"),
        (
            "diff --git a/readme b/readme\n--- a/readme\n+++ b/readme\n@@ -1 +1 @@\n-a\n+b\n",
            "readme",
        ),
        ("this is not a patch\n", "[Nn]o valid patches"),
        ("--- a/../../x\n+++ b/../../x\n@@ -0,0 +1 @@\n+b\n", "invalid path"),
        ("--- /dev/null\n+++ b/.git/hooks/x\n@@ -0,0 +1 @@\n+b\n", "invalid path"),
        ("--- a/readme\n+++ b/readme\n@@ -1,3 +1,3 @@\n one\n", "corrupt patch"),
    ],
)
def test_a_patch_that_does_not_apply_says_why_and_changes_nothing(
    uncaged: WorkspacePool, tmp_path: Path, patch: str, reason: str
) -> None:
    base, _ = changed(uncaged, tmp_path, "true")

    async def main() -> str:
        async with uncaged.open(base, Limits()) as workspace:
            with pytest.raises(BadInput, match=f"The patch does not apply: .*{reason}"):
                await workspace.apply_patch(patch)
            return await workspace.read_diff()

    assert anyio.run(main) == ""


def test_what_is_written_in_an_empty_workspace_is_its_change(uncaged: WorkspacePool) -> None:
    async def main() -> tuple[str, str, str]:
        async with uncaged.open(None, Limits()) as workspace:
            await workspace.apply_patch("\n")
            nothing = await workspace.read_diff()
            await workspace.sandbox.write("a", b"b\n")
            written = await workspace.read_diff()
        async with uncaged.open(None, Limits()) as workspace:
            await workspace.apply_patch(written)
            return nothing, written, await workspace.read_diff()

    nothing, written, again = anyio.run(main)
    assert nothing == ""
    assert written.endswith("--- /dev/null\n+++ b/a\n@@ -0,0 +1 @@\n+b\n")
    assert again == written


def test_a_change_too_large_to_keep_is_the_agents_doing(
    uncaged: WorkspacePool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace_patches, "MAX_PATCH_BYTES", 1 << 20)
    with pytest.raises(UnreadableChange, match="larger than 1 MiB"):
        changed(uncaged, tmp_path, "head -c 3000000 /dev/urandom > big")


@pytest.mark.parametrize(
    "command",
    [
        "truncate -s 2G big",
        "truncate -s 2G readme",
        "git init -q sub; truncate -s 2G sub/big",
        "mkdir shut; truncate -s 2G shut/big; chmod 000 shut",
    ],
)
def test_a_file_too_large_to_be_read_is_the_agents_doing_however_sparse(
    workspaces: WorkspacePool, tmp_path: Path, command: str
) -> None:
    with pytest.raises(UnreadableChange, match=r"too large to be saved: .* files? of 2,048 MiB"):
        changed(workspaces, tmp_path, command)


def test_a_large_file_that_the_project_ignores_is_not_read(
    workspaces: WorkspacePool, tmp_path: Path
) -> None:
    files: Tree = {**FILES, ".gitignore": ("file", b"big\n")}
    _, patch = changed(workspaces, tmp_path, "truncate -s 2G big; echo x > new", files)
    assert "b/new" in patch
    assert "b/big" not in patch


def test_more_files_than_can_be_read_are_the_agents_doing(
    workspaces: WorkspacePool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace_patches, "MAX_CHANGED_FILES", 100)
    with pytest.raises(UnreadableChange, match="too large to be saved: 101 changed or new files"):
        changed(workspaces, tmp_path, "mkdir d; cd d; touch $(seq 101)")


def test_a_change_that_takes_too_long_to_read_is_the_agents_doing(
    uncaged: WorkspacePool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace_patches, "COPY_OUT_SECONDS", 0.0)
    with pytest.raises(UnreadableChange, match="could not be read within 0 seconds"):
        changed(uncaged, tmp_path, "echo x > new")


def test_submodules_become_ordinary_folders(uncaged: WorkspacePool, tmp_path: Path) -> None:
    inner, outer = tmp_path / "inner", tmp_path / "repo"
    commit_of(inner, {"x": ("file", b"x\n")})
    commit_of(outer, {"y": ("file", b"y\n")})
    git(outer, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(inner), "sub")
    git(outer, "commit", "-qm", "sub")

    async def main() -> str:
        base = await uncaged.prepare_base(str(outer), git(outer, "rev-parse", "HEAD"))
        async with uncaged.open(base, Limits()) as workspace:
            assert await workspace.read_diff() == ""
            await workspace.sandbox.write("sub/new", b"new\n")
            return await workspace.read_diff()

    assert "b/sub/new" in anyio.run(main)


def test_a_repository_with_sha256_works(uncaged: WorkspacePool, tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    repo.mkdir()
    git(repo, "init", "-q", "--object-format=sha256")
    (repo / "a").write_text("a\n")
    git(repo, "add", "a")
    git(repo, "commit", "-qm", "a")

    async def main() -> str:
        base = await uncaged.prepare_base(str(repo), git(repo, "rev-parse", "HEAD"))
        async with uncaged.open(base, Limits()) as workspace:
            await workspace.sandbox.write("a", b"b\n")
            return await workspace.read_diff()

    assert "-a\n+b\n" in anyio.run(main)


def test_line_ends_that_a_checkout_converts_survive(uncaged: WorkspacePool, tmp_path: Path) -> None:
    files: Tree = {".gitattributes": ("file", b"* text eol=crlf\n"), "a": ("file", b"a\nb\n")}
    base, patch = changed(uncaged, tmp_path, "printf 'c\\r\\n' >> a", files)
    assert patch.count("\n+") == 2
    assert (
        after(uncaged, base, patch, "od -An -c a") == "   a  \\r  \\n   b  \\r  \\n   c  \\r  \\n\n"
    )


@pytest.mark.parametrize(
    "files",
    [
        {"a.txt": "one\n"},
        {"a.txt": "one\ntwo", "b/c.py": "", "b-c": "x\r\n\r\n", "b/c/d": "é\u2028\n\x0c\n"},
        {"run.sh": "#!/bin/sh\n", "empty/a": "\n\n"},
    ],
)
def test_plain_files_of_an_empty_workspace_give_the_patch_that_git_writes(
    tmp_path: Path, files: dict[str, str]
) -> None:
    for name, text in files.items():
        path = tmp_path / name.replace("b/c/d", "b/d/d")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
        path.chmod(0o755 if name.endswith(".sh") else 0o644)
    (tmp_path / "hollow").mkdir()
    patch = workspace_patches.diff_plain_files(str(tmp_path))
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    options = ("--cached", "--binary", "--full-index", "--no-renames")
    written = git(tmp_path, "diff", *options, workspace_patches.EMPTY_TREE)
    assert patch is not None
    assert patch.replace("\r\n", "\n").strip() == written.strip()  # as `git` reads it


@pytest.mark.parametrize("name", [".gitignore", "with space", "é", '"q"', "-" * 300])
def test_git_is_asked_where_a_name_is_not_plain(tmp_path: Path, name: str) -> None:
    (tmp_path / "plain").write_text("x")
    assert workspace_patches.diff_plain_files(str(tmp_path)) is not None
    (tmp_path / name[:250]).write_text("x")
    assert workspace_patches.diff_plain_files(str(tmp_path)) is None


@pytest.mark.parametrize("content", [b"\0", b"\xff", b"x" * (2 << 20)])
def test_git_is_asked_where_a_file_is_no_short_text(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    assert workspace_patches.diff_plain_files(str(tmp_path)) is None


def test_links_and_pipes_in_an_empty_workspace_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("secret")
    for make in (
        lambda path: path.symlink_to(tmp_path / "outside"),
        lambda path: path.symlink_to(tmp_path),
        os.mkfifo,
    ):
        root = tmp_path / "root"
        root.mkdir()
        make(root / "entry")
        assert workspace_patches.diff_plain_files(str(root)) is None
        (root / "entry").unlink()
        root.rmdir()
