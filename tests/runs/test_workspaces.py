"""Bases and workspaces: made once, opened fresh, gone without a trace."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import anyio
import pytest
from git_trees import git

from closeloop.records.errors import BadInput, MachineFailed
from closeloop.records.settings import SandboxSettings
from closeloop.records.task import Limits
from closeloop.sandbox import sandbox_ladder
from closeloop.sandbox.workspaces import Workspace, WorkspaceBase, WorkspacePool, resolve_commit
from patience import until

SETTINGS = ["overlay", "copy", "none"]


@pytest.fixture(params=SETTINGS)
def workspaces(request: pytest.FixtureRequest, tmp_path: Path) -> WorkspacePool:
    cache = tmp_path / "cache"
    workspaces = WorkspacePool(cache, SandboxSettings(kind="none"))
    if request.param == "none":
        return workspaces
    for candidate in sandbox_ladder.list_candidates(workspaces.sandbox, "auto", cache):
        wanted = candidate.isolated and candidate.overlay == (request.param == "overlay")
        if wanted and sandbox_ladder.probe_sandbox(candidate, cache) is None:
            workspaces.sandbox = candidate
            return workspaces
    pytest.skip(f"NOT TESTED HERE: no cage by {request.param} works on this machine")


async def output(workspace: Workspace, command: str) -> str:
    return (await workspace.sandbox.run(command)).output


def test_a_workspace_has_the_files_of_the_commit_and_no_history(
    repo: Path, workspaces: WorkspacePool
) -> None:
    async def main() -> None:
        base = await workspaces.prepare_base(str(repo), git(repo, "rev-parse", "main"))
        async with workspaces.open(base, Limits()) as workspace:
            assert await output(workspace, "cat readme link; ./tool && ls -A") == (
                "two\ntwo\n.git\n.gitignore\nlink\nreadme\ntool\n"
            )
            assert await output(workspace, "git log --all --format='%an %s %P|'") == (
                "closeloop Start |\n"
            )
            assert await output(workspace, "git status --porcelain") == ""
            kinds = (
                "git cat-file --batch-all-objects --batch-check='%(objecttype)' | sort | uniq -c"
            )
            assert "1 commit" in await output(workspace, kinds)
            for trace in ("git remote", "git tag", "git reflog", "git stash list"):
                assert await output(workspace, trace) == ""
            future = git(repo, "rev-parse", "later")
            assert (await workspace.sandbox.run(f"git cat-file -e {future}")).exit_code != 0
            assert "future" not in await output(workspace, "git log --all -p; grep -r future .")

    anyio.run(main)
    workspaces.close()


def test_what_one_attempt_changes_no_other_sees(repo: Path, workspaces: WorkspacePool) -> None:
    async def main() -> None:
        base = await workspaces.prepare_base(str(repo), git(repo, "rev-parse", "main"))
        async with workspaces.open(base, Limits()) as one, workspaces.open(base, Limits()) as two:
            await output(one, 'rm -rf .git tool; echo changed > readme; echo mine > "$HOME/mine"')
            seen = await output(two, 'cat readme; ls -A "$HOME"; git status --short')
            assert seen == "two\n.closeloop\n"
            assert await output(one, "cat readme") == "changed\n"
        async with workspaces.open(base, Limits()) as three:
            assert await output(three, "cat readme; git status --short") == "two\n"

    anyio.run(main)
    workspaces.close()


@pytest.mark.parametrize("source", ["bare", "shallow", "address", "partial worktree"])
def test_every_kind_of_repository_makes_the_same_base(
    repo: Path, tmp_path: Path, source: str
) -> None:
    commit = git(repo, "rev-parse", "main")
    folder = str(tmp_path / "other")
    if source == "bare":
        git(tmp_path, "clone", "-q", "--bare", str(repo), "other")
    elif source == "shallow":
        git(tmp_path, "clone", "-q", "--depth=1", f"file://{repo}", "other")
    elif source == "partial worktree":
        git(repo, "worktree", "add", "-q", folder, "later")
    else:
        folder = f"file://{repo}"
    workspaces = WorkspacePool(tmp_path / "cache", SandboxSettings(kind="none"))

    async def main() -> str:
        base = await workspaces.prepare_base(folder, commit)
        async with workspaces.open(base, Limits()) as workspace:
            return await output(workspace, "git rev-parse HEAD^{tree}")

    assert anyio.run(main).strip() == git(repo, "rev-parse", "main^{tree}")
    workspaces.close()


def test_a_commit_that_no_branch_reaches_can_still_be_a_base(repo: Path, tmp_path: Path) -> None:
    commit = git(repo, "rev-parse", "later")
    git(repo, "branch", "-qD", "later")
    workspaces = WorkspacePool(tmp_path / "cache", SandboxSettings(kind="none"))
    base = anyio.run(workspaces.prepare_base, str(repo), commit)
    assert Path(base.folder, "root/workspace/answer").exists()
    workspaces.close()


def test_a_base_that_cannot_be_had_is_bad_input_and_leaves_nothing(
    repo: Path, tmp_path: Path
) -> None:
    workspaces = WorkspacePool(tmp_path / "cache", SandboxSettings(kind="none"))
    for folder, commit in ((str(repo), "f" * 40), (f"file://{tmp_path}/no", "f" * 40)):
        with pytest.raises(BadInput, match="cannot be fetched"):
            anyio.run(workspaces.prepare_base, folder, commit)
    with pytest.raises(BadInput, match="is not a git repository"):
        anyio.run(workspaces.prepare_base, str(tmp_path), "f" * 40)
    assert not list((tmp_path / "cache/bases").iterdir())
    workspaces.close()


def test_an_agent_that_locks_itself_out_is_let_in_again(
    repo: Path, workspaces: WorkspacePool
) -> None:
    async def main() -> None:
        base = await workspaces.prepare_base(str(repo), git(repo, "rev-parse", "main"))
        async with workspaces.open(base, Limits()) as workspace:
            await output(workspace, 'echo more >> readme; chmod 000 . "$HOME" "$TMPDIR"')
            assert "+more" in await workspace.read_diff()
            assert await output(workspace, "tail -n 1 readme") == "more\n"

    anyio.run(main)
    workspaces.close()


def test_setup_runs_once_and_what_it_makes_is_there_but_not_a_change(
    repo: Path, workspaces: WorkspacePool
) -> None:
    setup = [
        "test ! -e made.txt && mkdir -p 'env [1]' && echo 1 > 'env [1]/lib'",
        'echo generated > made.txt; echo lock >> readme; echo cached > "$HOME/cache"; pwd > where',
    ]

    async def main() -> None:
        commit = git(repo, "rev-parse", "main")
        base = await workspaces.prepare_base(str(repo), commit, setup)
        async with workspaces.open(base, Limits()) as workspace:
            assert await output(workspace, 'cat made.txt "env [1]/lib" readme "$HOME/cache"') == (
                "generated\n1\ntwo\nlock\ncached\n"
            )
            if workspace.sandbox.sandbox.isolated:
                assert await output(workspace, "cat where") == "/workspace\n"
            assert await output(workspace, "git status --porcelain") == ""
            assert await workspace.read_diff() == ""
            await output(workspace, "echo more >> readme; echo x > new; echo 2 > made.txt")
            patch = await workspace.read_diff()
            assert [line for line in patch.splitlines() if line[:5] == "diff "] == [
                "diff --git a/new b/new",
                "diff --git a/readme b/readme",
            ]
        assert await workspaces.prepare_base(str(repo), commit, setup) == base
        assert (await workspaces.prepare_base(str(repo), commit)).folder != base.folder

    anyio.run(main)
    workspaces.close()


def test_setup_that_fails_says_which_command_and_why(repo: Path, workspaces: WorkspacePool) -> None:
    setup = ["true", "echo because of this; exit 3"]
    with pytest.raises(BadInput, match=r"(?s)exit 3` .*exit code 3.*because of this"):
        anyio.run(workspaces.prepare_base, str(repo), git(repo, "rev-parse", "main"), setup)
    assert not list((workspaces._folders.cache / "bases").iterdir())
    workspaces.close()


def test_setup_may_use_the_network_and_the_agent_may_not(
    repo: Path, workspaces: WorkspacePool
) -> None:
    if workspaces.sandbox_limits.kind == "none":
        pytest.skip("nothing is enforced without a cage")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = f"import socket; socket.create_connection(('127.0.0.1', {port}), 2)"
        command = f'{sys.executable} -c "{code}"'

        async def main() -> int | None:
            commit = git(repo, "rev-parse", "main")
            base = await workspaces.prepare_base(str(repo), commit, [command])
            async with workspaces.open(base, Limits()) as workspace:
                return (await workspace.sandbox.run(command)).exit_code

        assert anyio.run(main) == 1
    workspaces.close()


def test_two_who_want_the_same_base_make_it_once(repo: Path, tmp_path: Path) -> None:
    count = tmp_path / "count"
    setup = [f"echo x >> '{count}'; sleep 0.3"]
    commit = git(repo, "rev-parse", "main")
    script = f"""
import anyio
from pathlib import Path
from closeloop.records.settings import SandboxSettings
from closeloop.sandbox.workspaces import WorkspacePool
workspaces = WorkspacePool(Path({str(tmp_path / "cache")!r}), SandboxSettings(kind="none"))
print(anyio.run(workspaces.prepare_base, {str(repo)!r}, {commit!r}, {setup!r}).folder)
"""
    both = [
        subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) for _ in range(2)
    ]
    folders = {process.communicate()[0] for process in both}
    assert len(folders) == 1
    assert [process.returncode for process in both] == [0, 0]
    assert count.read_text() == "x\n"


def test_a_base_half_made_by_a_killed_process_is_made_anew(repo: Path, tmp_path: Path) -> None:
    cache, started = tmp_path / "cache", tmp_path / "started"
    commit = git(repo, "rev-parse", "main")
    setup = [f"echo half > half; if [ ! -e '{started}' ]; then touch '{started}'; sleep 30; fi"]
    script = f"""
import anyio
from pathlib import Path
from closeloop.records.settings import SandboxSettings
from closeloop.sandbox.workspaces import WorkspacePool
workspaces = WorkspacePool(Path({str(cache)!r}), SandboxSettings(kind="none"))
anyio.run(workspaces.prepare_base, {str(repo)!r}, {commit!r}, {setup!r})
"""
    killed = subprocess.Popen([sys.executable, "-c", script], start_new_session=True)
    while not started.exists():
        assert killed.poll() is None
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert not list((cache / "bases").iterdir())
    workspaces = WorkspacePool(cache, SandboxSettings(kind="none"))
    base = anyio.run(workspaces.prepare_base, str(repo), commit, setup)
    assert Path(base.folder, "root/workspace/half").exists()
    assert len(list((cache / "runs").iterdir())) == 1
    workspaces.close()
    assert not list((cache / "runs").iterdir())
    assert until(lambda: not list((cache / "trash").iterdir()))


def test_a_living_process_keeps_its_workspaces(tmp_path: Path) -> None:
    async def main() -> None:
        first = WorkspacePool(tmp_path, SandboxSettings(kind="none"))
        async with first.open(None, Limits()) as workspace:
            await workspace.sandbox.write("a", b"b")
            WorkspacePool(tmp_path, SandboxSettings(kind="none")).close()
            assert await workspace.sandbox.read("a") == b"b"
        first.close()

    anyio.run(main)


def test_a_closed_workspace_goes_away_even_when_it_was_locked_up(tmp_path: Path) -> None:
    workspaces = WorkspacePool(tmp_path, SandboxSettings(kind="none"))

    async def main() -> str:
        async with workspaces.open(None, Limits()) as workspace:
            await workspace.sandbox.run("mkdir -p a/b/c; echo x > a/b/c/d; chmod -R 000 a")
            return workspace.sandbox.root

    root = anyio.run(main)
    assert not Path(root).exists()
    workspaces.close()
    assert until(lambda: not list((tmp_path / "trash").iterdir()))


def test_an_empty_workspace_opens_and_closes_in_no_time(tmp_path: Path) -> None:
    workspaces = WorkspacePool(tmp_path, SandboxSettings(kind="none"))

    async def main() -> float:
        best = 1.0
        for _ in range(100):
            start = time.perf_counter()
            async with workspaces.open(None, Limits()):
                pass
            best = min(best, time.perf_counter() - start)
        return best

    assert anyio.run(main) < 0.001
    workspaces.close()


def test_a_cache_with_signs_in_its_name_works(repo: Path, tmp_path: Path) -> None:
    strange = tmp_path / "a,b:c d\\e'f"
    try:
        workspaces = WorkspacePool(strange, SandboxSettings())
    except MachineFailed as failed:
        pytest.skip(f"NOT TESTED HERE: {failed}")

    async def main() -> str:
        base = await workspaces.prepare_base(str(repo), git(repo, "rev-parse", "main"))
        async with workspaces.open(base, Limits()) as workspace:
            await workspace.sandbox.run("echo x >> readme")
            return await workspace.read_diff()

    assert "+x" in anyio.run(main)
    workspaces.close()


def test_a_repository_of_a_hook_in_the_environment_is_not_mistaken_for_ours(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "index"))
    commit = resolve_commit(repo, "main")
    workspaces = WorkspacePool(tmp_path / "cache", SandboxSettings(kind="none"))
    base: WorkspaceBase = anyio.run(workspaces.prepare_base, str(repo), commit)
    assert Path(base.folder, "root/workspace/readme").read_text() == "two\n"
    assert not (tmp_path / "index").exists()
    workspaces.close()


def test_hooks_and_templates_of_the_user_do_not_run(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = tmp_path / "template" / "hooks" / "post-checkout"
    hook.parent.mkdir(parents=True)
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    hook.chmod(0o755)
    config = tmp_path / "config"
    config.write_text(f"[init]\ntemplateDir={tmp_path}/template\n[core]\nhooksPath={hook.parent}\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    workspaces = WorkspacePool(tmp_path / "cache", SandboxSettings(kind="none"))
    base = anyio.run(workspaces.prepare_base, str(repo), resolve_commit(repo, "main"))
    assert not (tmp_path / "ran").exists()
    assert not Path(base.folder, "root/workspace/.git/hooks").exists()
    workspaces.close()


def test_setup_is_told_how_to_reach_packages_and_agents_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    repo = tmp_path / "repo"
    repo.mkdir()
    env = {"GIT_CONFIG_GLOBAL": "/dev/null", "PATH": os.environ["PATH"]}
    for arguments in (
        ["init", "-q"],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "x"],
    ):
        subprocess.run(["git", *arguments], cwd=repo, env=env, check=True)

    async def go() -> tuple[str, str]:
        settings = SandboxSettings(kind="none")
        async with WorkspacePool(tmp_path / "cache", settings) as workspaces:
            setup = ["echo $PIP_INDEX_URL > index"]
            base = await workspaces.prepare_base(str(repo), resolve_commit(repo, "HEAD"), setup)
            async with workspaces.open(base, Limits()) as workspace:
                kept = (await workspace.sandbox.read("index")).decode()
                return kept, (await workspace.sandbox.run("echo $PIP_INDEX_URL")).output

    assert anyio.run(go) == ("http://127.0.0.1:9/simple\n", "\n")


# What setup leaves in caches serves every workspace, and none of them can change it for others.

FORGERY = """
    chmod -R u+w ~/.cache ~/go
    echo forged > ~/.cache/build/object
    rm ~/go/module; ln -s /etc/passwd ~/go/module
    echo forged > ~/.cache/build/new
"""


def test_a_cache_that_setup_filled_cannot_be_written_for_others(
    repo: Path, workspaces: WorkspacePool
) -> None:
    fill = "mkdir -p ~/.cache/build ~/go && echo good | tee ~/.cache/build/object > ~/go/module"
    show = "cat ~/.cache/build/object ~/go/module; ls ~/.cache/build"

    async def main() -> None:
        base = await workspaces.prepare_base(str(repo), git(repo, "rev-parse", "main"), [fill])
        async with workspaces.open(base, Limits()) as agent:
            assert await output(agent, show) == "good\ngood\nobject\n"
            await output(agent, FORGERY)
            assert "forged" in await output(agent, show)
            async with workspaces.open(base, Limits()) as beside:
                assert await output(beside, show) == "good\ngood\nobject\n"
        async with workspaces.open(base, Limits()) as grading:
            assert await output(grading, show) == "good\ngood\nobject\n"

    anyio.run(main)


def test_a_base_that_does_not_lend_serves_no_other_commit(
    repo: Path, workspaces: WorkspacePool, tmp_path: Path
) -> None:
    """What is installed with the code of a change could have been tampered with by it."""
    if not workspaces.sandbox.isolated:
        pytest.skip("environments are shared only where they lie at the same path")
    setup = ["python3 -m venv --without-pip .venv"]

    def count_lenders() -> int:
        return len(list(tmp_path.glob("cache/kin/*")))

    async def main() -> None:
        commits = git(repo, "rev-parse", "later", "main").split()
        await workspaces.prepare_base(str(repo), commits[0], setup, is_shareable=False)
        assert count_lenders() == 0
        await workspaces.prepare_base(str(repo), commits[1], setup)
        assert count_lenders() == 1

    anyio.run(main)


def test_setup_says_what_it_is_at(repo: Path, workspaces: WorkspacePool) -> None:
    said: list[str] = []

    async def main() -> None:
        commit = git(repo, "rev-parse", "main")
        await workspaces.prepare_base(str(repo), commit, ["true", "cd ."], report=said.append)

    anyio.run(main)
    assert said[1:] == ["setting up, 1 of 2: true", "setting up, 2 of 2: cd ."]
    assert said[0].startswith("copying commit ")
