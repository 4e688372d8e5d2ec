"""Code under test that forces, forges or looks up its results is caught by a probe."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from javascript_attacks import ATTACKS, TESTS, Attack, group_attacks
from javascript_workspace import describe, installed_packages, run_probe, write_files

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="NO NODE: install it")

HONEST = {
    "vitest": "export const add = (a, b) => a + b; export const list = () => [1, 2]\n",
    "other": "exports.add = (a, b) => a + b; exports.list = () => [1, 2]\n",
}
BY_RUNNER = {attack.runner: attack for attack in reversed(ATTACKS)}
GROUPS = group_attacks()


@pytest.fixture(scope="session")
def packages() -> Path:
    return installed_packages()


def project(attack: Attack, source: str, name: str = "shop") -> dict[str, str]:
    texts = {f"src/{name}.js": source, f"test/{name}.test.js": TESTS[attack.test]}
    renamed = {path: text.replace("/shop", f"/{name}") for path, text in texts.items()}
    return {"package.json": "{}", **renamed}


def ids(attack: Attack, name: str = "shop") -> tuple[str, ...]:
    separator = " " if attack.runner == "mocha" else " > "
    return tuple(f"test/{name}.test.js > shop{separator}{title}" for title in ("adds", "lists"))


@pytest.mark.parametrize(
    "attacks", GROUPS, ids=lambda attacks: f"{attacks[0].runner}: {attacks[0].name}"
)
def test_attacks_fool_their_runner_and_not_the_probe(
    attacks: list[Attack], tmp_path: Path, packages: Path
) -> None:
    command, runner = attacks[0].command, attacks[0].runner
    named = {f"shop{number}": attack for number, attack in enumerate(attacks)}
    files: dict[str, str] = {}
    for name, attack in named.items():
        files |= project(attack, attack.source, name)
    write_files(tmp_path, files)
    (tmp_path / "node_modules").symlink_to(packages / "node_modules")
    alone = subprocess.run(
        ["sh", "-c", command],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{packages}/node_modules/.bin:{os.environ['PATH']}"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    fooled = all(attack.fools for attack in attacks)
    assert (alone.returncode == 0) == fooled, alone.stdout.decode() + alone.stderr.decode()
    deciding = tuple(test for name, attack in named.items() for test in ids(attack, name))
    outcome = run_probe(tmp_path, files, runner, command, fail_to_pass=deciding, packages=packages)
    wrong = {test.original for test in outcome.violations}
    for name, attack in named.items():
        assert wrong & {*ids(attack, name)}, f"{attack.name}: {describe(outcome)}"


@pytest.mark.parametrize("attack", BY_RUNNER.values(), ids=BY_RUNNER)
def test_an_honest_change_passes_the_same_probe(
    attack: Attack, tmp_path: Path, packages: Path
) -> None:
    files = project(attack, HONEST["vitest" if attack.runner == "vitest" else "other"])
    outcome = run_probe(
        tmp_path, files, attack.runner, attack.command, fail_to_pass=ids(attack), packages=packages
    )
    assert outcome.is_honest, describe(outcome)
