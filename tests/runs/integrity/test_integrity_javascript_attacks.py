"""Code under test that forces, forges or looks up its results is caught by a probe."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from javascript_attacks import TESTS, WRONG, Attack, group_attacks
from javascript_graded_attacks import GRADED_ATTACKS, SUPPORT, GradedAttack
from javascript_workspace import Outcome, describe, installed_packages, run_room, write_files

from closeloop.grading.integrity.confirm import ProbeRun, confirm_tests
from closeloop.grading.integrity.javascript import ROOMS
from closeloop.grading.integrity.probe import ProbeRequest
from closeloop.records.task import TestRunner

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="NO NODE: install it")

HONEST = "exports.add = (a, b) => a + b; exports.list = () => [1, 2]\n"
GROUPS = group_attacks()
TOKEN = "5eed"


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


def make_request(
    folder: Path,
    runner: TestRunner,
    command: str,
    files: dict[str, str],
    tests: tuple[str, ...],
    room: int,
    token: str = TOKEN,
) -> ProbeRequest:
    return ProbeRequest(
        command=command,
        runner=runner,
        fail_to_pass=tests,
        sources=files,
        folder="",
        root=str(folder / f"room{room}"),
        pipe="",
        token=token,
        room=room,
    )


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
    deciding = {name: ids(attack, name) for name, attack in named.items()}
    outcome = Outcome()
    # An attack that is found in one room need not be looked for in the other.
    for room in range(ROOMS):
        left = tuple(test for tests in deciding.values() for test in tests)
        if left:
            request = make_request(tmp_path, runner, command, files, left, room)
            outcome = outcome.merge(run_room(request, packages))
        wrong = {test.original for test in outcome.violations}
        deciding = {name: tests for name, tests in deciding.items() if not wrong & {*tests}}
    assert not deciding, f"{[named[name].name for name in deciding]}: {describe(outcome)}"


@pytest.mark.parametrize("attack", GRADED_ATTACKS.values(), ids=GRADED_ATTACKS)
def test_attacks_are_found_without_a_reference(
    attack: GradedAttack, tmp_path: Path, packages: Path
) -> None:
    test = "test/shop.test.js > adds"
    files = {"package.json": "{}", "test/shop.test.js": attack.test, "test/support.js": SUPPORT}

    @functools.cache
    def run(patch: str | None, token: str, room: int) -> ProbeRun:
        folder = tmp_path / hashlib.sha256((patch or "").encode()).hexdigest()[:8]
        sources = {**files, "src/shop.js": patch or WRONG}
        request = make_request(folder, attack.runner, attack.command, sources, (test,), room, token)
        outcome = run_room(request, packages)
        return ProbeRun(
            tests=tuple(outcome.tests),
            results=outcome.results,
            exit_code=outcome.exit_codes[0],
            rooms=ROOMS,
        )

    async def probe(patch: str | None, token: str, room: int) -> ProbeRun:
        return run(patch, token, room)

    def check_states(patch: str) -> dict[str, str]:
        checks = asyncio.run(confirm_tests(probe, patch, None, [test]))
        return {check.name: check.state for check in checks}

    assert "violated" in check_states(attack.source).values()
    if attack.runner == "node":
        assert {*check_states(HONEST).values()} == {"held"}
