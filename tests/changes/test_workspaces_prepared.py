"""What tools find: setup that is run only where it must be, and what workspaces cannot hold."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import anyio
import pytest

from closeloop.changes.affected_tests import LineCoverage, add_coverage_options, relocate_coverage
from closeloop.changes.change_check import CheckRequest
from closeloop.changes.change_sides import (
    ChangeQuery,
    describe_missing_content,
    installs_only,
    open_sides,
    prepare_base,
)
from closeloop.flow import check_change
from closeloop.records.change import ChangeReport, ChangeSide
from closeloop.records.settings import CheckSettings, CommandSettings, SandboxSettings
from closeloop.sandbox.workspaces import WorkspacePool
from patience import PATIENCE

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:%064d\nsize 12\n" % 7


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=A", "-c", "user.email=a@b.c", "-c", "protocol.file.allow=always"]
    ran = subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True)
    return ran.stdout.decode().strip()


def commit(folder: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        (folder / name).write_text(text)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "Go on")
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    folder = tmp_path / "repo"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    commit(folder, {"a.py": "x = 1\n", "requirements.txt": "one\n"})
    return folder


def checked(
    repo: Path, wanted: ChangeQuery, commands: CommandSettings, **more: bool
) -> ChangeReport:
    async def go() -> ChangeReport:
        cache = repo.parent / "cache"
        order = CheckRequest(
            root=repo,
            wanted=wanted,
            cache=cache,
            commands=commands,
            settings=CheckSettings(timeout=PATIENCE),
            tiers=("tools", "risk"),
            **more,
        )
        async with WorkspacePool(cache / "workspaces", SandboxSettings(kind="none")) as workspaces:
            return await check_change(order, workspaces)

    return anyio.run(go)


def test_setup_is_run_again_only_where_it_would_differ(repo: Path, tmp_path: Path) -> None:
    """Its commands must be known to install: this one is called as pip is."""
    pip = tmp_path / "pip"
    pip.write_text(f"#!/bin/sh\necho run >> {tmp_path}/log\ncp requirements.txt installed\n")
    pip.chmod(0o755)
    commands = CommandSettings(
        setup=(f"{pip} install -r requirements.txt",),
        lint="diff requirements.txt installed && cat a.py",
    )

    def runs() -> int:
        return len((tmp_path / "log").read_text().split())

    second = commit(repo, {"a.py": "x = 2\n"})
    report = checked(repo, ChangeQuery(range=second), commands)
    assert (report.tools[0].after, runs()) == ("passed", 1)
    third = commit(repo, {"a.py": "x = 3\n"})
    report = checked(repo, ChangeQuery(range=third), commands)
    assert (report.tools[0].before, report.tools[0].after, runs()) == ("passed", "passed", 1)
    fourth = commit(repo, {"requirements.txt": "two\n"})
    report = checked(repo, ChangeQuery(range=fourth), commands)
    assert (report.tools[0].before, report.tools[0].after, runs()) == ("passed", "passed", 2)
    (repo / "requirements.txt").write_text("three\n")
    report = checked(repo, ChangeQuery(), commands)
    assert (report.tools[0].before, report.tools[0].after, runs()) == ("passed", "passed", 3)


def test_a_setup_that_fails_is_no_pass(repo: Path) -> None:
    (repo / "a.py").write_text("x = 2\n")
    commands = CommandSettings(setup=("echo a; echo no route; false",), lint="true")
    report = checked(repo, ChangeQuery(), commands)
    assert report.verdict == "unverified"
    assert report.reasons[0].endswith("(exit code 1): no route; correct commands.setup")
    (told,) = (one for one in report.unmeasured if one.rule == "tools")
    assert told.reason.endswith("(exit code 1): no route")
    assert "\n" not in told.reason


def test_a_change_that_cannot_be_set_up_fails(repo: Path) -> None:
    (repo / "requirements.txt").write_text("nothing like it\n")
    commands = CommandSettings(setup=("grep one requirements.txt",), lint="true")
    (tool,) = checked(repo, ChangeQuery(), commands).tools
    assert (tool.before, tool.after) == ("passed", "not set up")
    assert (tool.note, tool.outcome) == ("the project cannot be set up", "broken")


@pytest.mark.parametrize(
    ("line", "installs"),
    [
        ("python3 -m venv .venv", True),
        (".venv/bin/pip install -q -e . -r dev.txt 'pytest>=8'", True),
        ("cd web && npm ci", True),
        ("uv sync --frozen --group tests", True),
        ("go mod download", True),
        ("go vet ./... || true", True),
        ("go test -exec=true ./... || true", True),
        ("go test ./... || true", False),
        (".venv/bin/uv pip install --python .venv/bin/python --no-cache 'mypy>1'", True),
        ("~/.tools/bin/poetry install --with test", True),
        (".venv/bin/pip install .", False),
        ("pip install -e . | tee log", False),
        ("pip install $(cat names)", False),
        ("npm ci && npm run build", False),
        ("make", False),
    ],
)
def test_what_is_seen_to_install_only(line: str, installs: bool) -> None:
    assert installs_only(line) is installs


def test_what_is_set_up_with_the_change_serves_nobody_else(repo: Path, tmp_path: Path) -> None:
    """Its code may have run then, and could have left something in a cache."""
    notes = tmp_path / "cache" / "prepared"

    async def prepare(side: ChangeSide) -> int:
        async with WorkspacePool(tmp_path / "cache", SandboxSettings(kind="none")) as workspaces:
            with open_sides(repo, ChangeQuery(range="HEAD~1..HEAD")) as sides:
                await prepare_base(workspaces, sides, side, ("true",), tmp_path / "cache")
        return len(list(notes.iterdir())) if notes.is_dir() else 0

    commit(repo, {"a.py": "x = 2\n"})
    assert anyio.run(prepare, "after") == 0
    assert anyio.run(prepare, "before") == 1


def test_what_is_not_in_the_workspaces_is_told(repo: Path, tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    git(inner, "init", "-q", "-b", "main")
    commit(inner, {"a.txt": "x\n"})
    git(repo, "submodule", "add", "-q", str(inner), "sub")
    (repo / ".gitattributes").write_text("*.bin filter=lfs -text\n")
    (repo / "model.bin").write_bytes(LFS)
    (repo / "large.txt").write_bytes(b"x" * 6_000_000)
    with open_sides(repo, ChangeQuery()) as sides:
        modules, pointers, large = describe_missing_content(sides)
    assert "the submodule sub is empty in the workspaces" in modules
    assert "the file model.bin is stored in Git LFS" in pointers
    assert "large.txt is too large" in large
    report = checked(repo, ChangeQuery(), CommandSettings(lint="test ! -e sub/a.txt"))
    assert report.tools[0].after == "passed"
    assert [one.reason for one in report.unmeasured] == [modules, pointers, large]


# Coverage


@pytest.mark.parametrize(
    ("command", "run"),
    [
        (".venv/bin/pytest -q", ".venv/bin/coverage run --data-file=/w/r.data -m pytest -q"),
        ("cd a && uv run pytest", "cd a && uv run coverage run --data-file=/w/r.data -m pytest"),
        ("python -m pytest x", "python -m coverage run --data-file=/w/r.data -m pytest x"),
        ("go test ./...", "go test -coverprofile=/w/r -coverpkg=./... ./..."),
        ("npm test", None),
        ("make test", None),
    ],
)
def test_a_test_command_is_made_to_measure(command: str, run: str | None) -> None:
    found = add_coverage_options(command, "/w/r")
    assert (found.command if found else None) == run


def test_data_is_found_by_the_files_of_the_repository() -> None:
    lines = LineCoverage(covered=frozenset({1}))
    named = {"example.org/m/cmd/a.go": lines, "pkg/b.py": lines, "c.py": lines, "gone.py": lines}
    paths = ("cmd/a.go", "a.go", "pkg/b.py", "sub/c.py")
    assert relocate_coverage(named, paths).keys() == {"cmd/a.go", "pkg/b.py", "sub/c.py"}


def test_lines_that_no_test_reaches_are_measured(repo: Path, tmp_path: Path) -> None:
    """By a program that is called, and answers, as coverage.py does."""
    (repo / "a.py").write_text("def f(x):\n    if x:\n        return 1\n    return 2\n")
    program = tmp_path / "coverage"
    told = '{"files": {"a.py": {"executed_lines": [1, 2, 3], "missing_lines": [4]}}}'
    program.write_text(
        f'#!/bin/sh\nfor last; do :; done\n[ "$1" = run ] || echo \'{told}\' > "$last"\n'
    )
    program.chmod(0o755)
    report = checked(
        repo, ChangeQuery(), CommandSettings(test=f"{tmp_path}/pytest -q"), coverage=True
    )
    assert report.risk
    (found,) = (one for one in report.risk.factors if one.name == "coverage")
    assert (
        found.text == "no test covers 1 of 4 changed lines, so mistakes there go unnoticed: a.py:4"
    )


def test_why_nothing_was_measured_is_told(repo: Path) -> None:
    (repo / "a.py").write_text("x = 2\n")
    report = checked(repo, ChangeQuery(), CommandSettings(test="true"), coverage=True)
    assert report.risk
    (told,) = (one for one in report.risk.unmeasured if one.rule == "coverage")
    assert "does not run pytest or go" in told.reason


def test_bases_that_nobody_used_for_long_make_room(repo: Path) -> None:
    async def go() -> list[bool]:
        first, cache = git(repo, "rev-parse", "HEAD"), repo.parent / "cache"
        second = commit(repo, {"a.py": "x = 2\n"})
        async with WorkspacePool(cache, SandboxSettings(kind="none")) as workspaces:
            bases = [
                Path((await workspaces.prepare_base(str(repo), one)).folder)
                for one in (first, second)
            ]
            os.utime(bases[0] / "base.json", (1, 1))
            workspaces.trim_unused_bases(max_bytes=0)
            return [base.exists() for base in bases]

    assert anyio.run(go) == [False, True]
