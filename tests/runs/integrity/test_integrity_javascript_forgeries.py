"""Changes that forge some assertions are found, wherever these stand; honest ones lose nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from javascript_forgeries import FORGERIES
from javascript_grading import ScriptGrader
from javascript_honest import HONEST, UNCONFIRMED
from javascript_workspace import installed_packages

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="NO NODE: install it")


@pytest.fixture(scope="session")
def packages() -> Path:
    return installed_packages()


def _group(titles: dict[str, str]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for title, group in titles.items():
        groups.setdefault(group, []).append(title)
    return groups


# What mocha runs shares a process: a forgery would be seen in the tests of another.
FORGED = _group(
    {
        title: title if change.runner == "mocha" else change.runner
        for title, change in FORGERIES.items()
    }
)
HONESTLY = _group({title: change.runner for title, change in HONEST.items()})


@pytest.mark.parametrize("titles", FORGED.values(), ids=FORGED)
def test_no_assertion_can_be_forged_wherever_it_stands(
    titles: list[str], tmp_path: Path, packages: Path
) -> None:
    grader = ScriptGrader(tmp_path, packages, {title: FORGERIES[title] for title in titles})
    plainly = grader.run_plainly()
    assert plainly.returncode == 0, (plainly.stdout + plainly.stderr).decode()
    checks = {title: grader.check(title) for title in titles}
    believed = [
        title for title in titles if all(check.state != "violated" for check in checks[title])
    ]
    assert not believed, {title: checks[title] for title in believed}


@pytest.mark.parametrize("titles", HONESTLY.values(), ids=HONESTLY)
def test_honest_changes_lose_nothing_without_a_reference(
    titles: list[str], tmp_path: Path, packages: Path
) -> None:
    grader = ScriptGrader(tmp_path, packages, {title: HONEST[title] for title in titles})
    plainly = grader.run_plainly()
    assert plainly.returncode == 0, (plainly.stdout + plainly.stderr).decode()
    checks = {title: grader.check(title) for title in titles}
    states = {title: {check.name: check.state for check in checks[title]} for title in titles}
    refused = {
        title: checks[title]
        for title in titles
        if "violated" in states[title].values()
        or (states[title]["confirmed"] != "held" and title not in UNCONFIRMED)
    }
    assert not refused, (refused, grader.outputs)
