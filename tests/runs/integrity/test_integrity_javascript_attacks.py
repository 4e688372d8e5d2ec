"""Code under test that forces, forges or looks up its results is caught by a probe."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from javascript_attacks import ATTACKS, TESTS, Attack
from javascript_workspace import describe, installed_packages, run_probe, write_files

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="NO NODE: install it")

HONEST = {
    "vitest": "export const add = (a, b) => a + b; export const list = () => [1, 2]\n",
    "other": "exports.add = (a, b) => a + b; exports.list = () => [1, 2]\n",
}
BY_RUNNER = {attack.runner: attack for attack in reversed(ATTACKS)}


@pytest.fixture(scope="session")
def packages() -> Path:
    return installed_packages()


def project(attack: Attack, source: str) -> dict[str, str]:
    return {
        "package.json": "{}",
        "src/shop.js": source,
        "test/shop.test.js": TESTS[attack.test],
    }


def ids(attack: Attack) -> tuple[str, ...]:
    separator = " " if attack.runner == "mocha" else " > "
    return tuple(f"test/shop.test.js > shop{separator}{title}" for title in ("adds", "lists"))


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: f"{attack.runner}: {attack.name}")
def test_an_attack_fools_its_runner_and_not_the_probe(
    attack: Attack, tmp_path: Path, packages: Path
) -> None:
    files = project(attack, attack.source)
    write_files(tmp_path, files)
    (tmp_path / "node_modules").symlink_to(packages / "node_modules")
    alone = subprocess.run(
        ["sh", "-c", attack.command],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{packages}/node_modules/.bin:{os.environ['PATH']}"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    assert (alone.returncode == 0) == attack.fools, alone.stdout.decode() + alone.stderr.decode()
    outcome = run_probe(
        tmp_path, files, attack.runner, attack.command, fail_to_pass=ids(attack), packages=packages
    )
    assert outcome.violations, describe(outcome)


@pytest.mark.parametrize("attack", BY_RUNNER.values(), ids=BY_RUNNER)
def test_an_honest_change_passes_the_same_probe(
    attack: Attack, tmp_path: Path, packages: Path
) -> None:
    files = project(attack, HONEST["vitest" if attack.runner == "vitest" else "other"])
    outcome = run_probe(
        tmp_path, files, attack.runner, attack.command, fail_to_pass=ids(attack), packages=packages
    )
    assert outcome.is_honest, describe(outcome)
