"""Mining where the work is not Python: a tiny past for each tool, which is skipped without it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import anyio
import pytest
from msgspec.structs import replace

from closeloop.records.record import Record
from closeloop.records.settings import CommandSettings, SandboxSettings
from closeloop.sandbox.workspaces import WorkspacePool, resolve_commit
from closeloop.store import open_store
from closeloop.tasks.miner import MiningContext, MiningOptions, MiningResult, mine_tasks
from closeloop.tasks.task_files import load_tasks


class Past(Record):
    """A project before and after its one piece of work."""

    tool: str
    files: dict[str, str]
    source: str
    wrong: str
    right: str
    tests: str
    case: str
    """A test of the sum of two numbers."""
    proves: str
    test: str | None = None
    """What is not to be found out, for it would be slow, or ask the network."""


GO = Past(
    tool="go",
    files={"go.mod": "module shop\n\ngo 1.19\n"},
    source="shop.go",
    wrong="package shop\n\nfunc Sum(a, b int) int {\n\treturn a - b\n}\n",
    right="package shop\n\nfunc Sum(a, b int) int {\n\treturn a + b\n}\n",
    tests="shop_test.go",
    case='package shop\n\nimport "testing"\n\nfunc TestSum(t *testing.T) {{\n'
    "\tif Sum(2, {}) != {} {{\n\t\tt.Fail()\n\t}}\n}}\n",
    proves="shop/TestSum",
    test="GOCACHE={cache}/go go test ./...",
)
RUST = Past(
    tool="cargo",
    files={
        "Cargo.toml": '[package]\nname = "shop"\nversion = "0.1.0"\nedition = "2021"\n',
        "Cargo.lock": 'version = 3\n\n[[package]]\nname = "shop"\nversion = "0.1.0"\n',
    },
    source="src/lib.rs",
    wrong="pub fn sum(a: i32, b: i32) -> i32 {\n    a - b\n}\n",
    right="pub fn sum(a: i32, b: i32) -> i32 {\n    a + b\n}\n",
    tests="tests/sums.rs",
    case="#[test]\nfn adds() {{\n    assert_eq!(shop::sum(2, {}), {});\n}}\n",
    proves="sums::adds",
)
NODE = Past(
    tool="node",
    files={"package.json": '{"scripts": {"test": "node --test test/"}}'},
    test="node --test test/",
    source="lib/sum.js",
    wrong="module.exports = (a, b) => a - b;\n",
    right="module.exports = (a, b) => a + b;\n",
    tests="test/sum.js",
    case="const sum = require('../lib/sum');\n"
    "require('node:test')('adds', () => {{ if (sum(2, {}) !== {}) throw Error('no'); }});\n",
    proves="test/sum.js > adds",
)
MOCHA = Past(
    tool="mocha",
    files={"package.json": "{}"},
    test="mocha --reporter spec test/",
    source="lib/sum.js",
    wrong="module.exports = (a, b) => a - b;\n",
    right="module.exports = (a, b) => a + b;\n",
    tests="test/sum.js",
    case="const sum = require('../lib/sum');\n"
    "it('adds', () => {{ if (sum(2, {}) !== {}) throw Error('no'); }});\n",
    proves="test/sum.js > adds",
)

LACKING = replace(
    NODE,
    tool="npm",
    files={
        "package.json": '{"scripts": {"test": "node --test test/"}, '
        '"devDependencies": {"@far/Away": "git+file:///gone/far-away.git"}}'
    },
    test=None,
)
"""Its package for development cannot be fetched from anywhere."""


def build(past: Past, folder: Path) -> None:
    def commit(message: str, code: str, *numbers: int) -> None:
        files = past.files | {past.source: code, past.tests: past.case.format(*numbers)}
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        env = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null"}
        for arguments in (("init", "-q"), ("add", "-A"), ("commit", "-q", "-m", message)):
            subprocess.run(["git", "-C", str(folder), *who, *arguments], check=True, env=env)

    commit("Start", past.wrong, 0, 2)
    commit("Numbers that are not zero are added up too", past.right, 3, 5)


@pytest.mark.parametrize("past", [GO, RUST, NODE, MOCHA, LACKING], ids=lambda past: past.tool)
def test_work_in_other_languages_becomes_tasks(past: Past, tmp_path: Path) -> None:
    if shutil.which(past.tool) is None:
        pytest.skip(f"NOT TESTED HERE: {past.tool} is not installed")
    folder = tmp_path / "shop"
    build(past, folder)

    test = past.test and past.test.format(cache=tmp_path)
    open_ = SandboxSettings(kind="none")

    async def go() -> MiningResult:
        with open_store(":memory:") as store:
            async with WorkspacePool(tmp_path / "cache", open_) as workspaces:
                ground = MiningContext(
                    repo=folder,
                    tasks=tmp_path / "tasks",
                    ledger=tmp_path / "mined.jsonl",
                    commands=CommandSettings(test=test),
                    workspaces=workspaces,
                    store=store,
                )
                return await mine_tasks(ground, MiningOptions(repeats=1, jobs=1), lambda told: None)

    mined = anyio.run(go)
    assert mined.refused == {}
    (task,) = load_tasks(tmp_path / "tasks", None, resolve_commit)
    assert task.acceptance.fail_to_pass == (past.proves,)
    assert [tag for tag in task.tags if tag.startswith("without-")] == (
        ["without-far-away"] if past is LACKING else []
    )
