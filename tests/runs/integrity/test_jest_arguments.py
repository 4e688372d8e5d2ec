"""Tests that read the arguments of their process find the project's own, and none of ours."""

from __future__ import annotations

import shutil
from pathlib import Path

import anyio
import pytest
from javascript_workspace import SHOP, installed_packages, run_probe

from closeloop.grading.suite_run import run_tests
from closeloop.records.settings import SandboxSettings
from closeloop.records.task import Acceptance, Limits
from closeloop.sandbox.workspaces import WorkspacePool

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="NO NODE: install it")

OURS = "/json|reporter|outputFile|coverage|forceExit|closeloop/"
UNSEEN = f"test('unseen', () => {{ expect(process.argv.slice(2).join()).not.toMatch({OURS}) }})\n"
OWN = "test('own', () => { expect(process.argv.join()).toContain('--silent') })\n"


@pytest.mark.parametrize(
    ("workers", "files"),
    [
        ("--runInBand", {"a.test.js": UNSEEN, "b.test.js": OWN}),
        ("--maxWorkers=2", {"a.test.js": UNSEEN, "b.test.js": UNSEEN}),
    ],
)
@pytest.mark.parametrize("hidden", [False, True])
def test_tests_of_jest_see_the_projects_arguments_only(tmp_path, workers, files, hidden) -> None:
    jest = f"{installed_packages()}/node_modules/.bin/jest {workers} --silent"
    script = f'{{"scripts": {{"test": "{jest}"}}}}'

    async def run():
        settings = SandboxSettings(kind="none", env=("PATH", "HOME"))
        async with (
            WorkspacePool(tmp_path / "cache", settings) as workspaces,
            workspaces.open(None, Limits()) as workspace,
        ):
            for name, text in {"package.json": script, **files}.items():
                await workspace.sandbox.write(name, text.encode())
            command = "npm test" if hidden else jest
            wanted = Acceptance(run=command, runner="jest", timeout=120.0)
            return await run_tests(workspace.sandbox, wanted, "after")

    result = anyio.run(run)
    assert [test.status for test in result.tests] == ["passed", "passed"], result.commands


def test_probes_of_jest_hide_their_own_too(tmp_path: Path) -> None:
    tests = "const { add } = require('../src/shop')\n"
    tests += "test('adds', () => {\n  expect(add(1, 2)).toBe(3)\n"
    tests += f"  expect(process.argv.join()).not.toMatch({OURS})\n}})\n"
    files = {"package.json": "{}", "src/shop.js": SHOP, "test/shop.test.js": tests}
    outcome = run_probe(
        tmp_path,
        files,
        "jest",
        "npx jest",
        fail_to_pass=("test/shop.test.js > adds",),
        packages=installed_packages(),
    )
    assert outcome.tests
    assert outcome.is_honest, outcome.output
