"""Tools find the project's Python, and not the one that closeloop itself was installed with."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from closeloop.records.settings import SandboxSettings
from closeloop.sandbox.machine_view import inspect_machine, is_own_environment, put_last


def make_environment(folder: Path, *requested: str) -> Path:
    """A virtual environment, with what installers write down of what they were asked for."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (packages,) = folder.glob("lib/python3*/site-packages")
    for name in ("msgspec-0.19.dist-info", *requested):
        (packages / name).mkdir()
    for name in requested:
        (packages / name / "REQUESTED").touch()
    return folder


@pytest.mark.parametrize(
    ("requested", "own"),
    [
        (("closeloop-0.2.dist-info", "pip-25.0.dist-info"), True),
        (("closeloop-0.2.dist-info", "pytest-8.0.dist-info"), False),
        (("closeloop-0.2.dist-info", "shop-1.0.dist-info"), False),
        (("shop-1.0.dist-info",), False),
        ((), False),
    ],
)
def test_an_environment_is_ours_where_nobody_asked_for_more(
    tmp_path: Path, requested: tuple[str, ...], own: bool
) -> None:
    assert is_own_environment(make_environment(tmp_path / "env", *requested)) is own


def test_an_environment_with_pytest_is_not_only_ours(tmp_path: Path) -> None:
    environment = make_environment(tmp_path / "env", "closeloop-0.2.dist-info")
    (packages,) = environment.glob("lib/python3*/site-packages")
    (packages / "pytest").mkdir()
    (packages / "pytest" / "__init__.py").touch()
    assert not is_own_environment(environment), "the demo's extra asks for it, unmarked"


def test_a_folder_that_is_no_environment_is_not_ours(tmp_path: Path) -> None:
    assert not is_own_environment(tmp_path)


def test_the_projects_programs_come_first_when_ours_are_activated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = make_environment(tmp_path / "tool", "closeloop-0.2.dist-info")
    project = make_environment(tmp_path / "project", "pytest-8.0.dist-info")
    monkeypatch.setattr(sys, "prefix", str(own))
    monkeypatch.setenv("PATH", f"{own}/bin:{project}/bin:/usr/bin")
    search = inspect_machine(SandboxSettings()).env["PATH"].split(":")
    assert search.index(f"{project}/bin") < search.index(f"{own}/bin")
    assert search[-1] == f"{own}/bin"
    monkeypatch.setattr(sys, "prefix", str(project))
    monkeypatch.setenv("PATH", f"{project}/bin:/usr/bin")
    assert inspect_machine(SandboxSettings()).env["PATH"].startswith(f"{project}/bin:")


def test_a_folder_is_put_last_under_any_of_its_names(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    search = [str(tmp_path / "link"), "/usr/bin", str(tmp_path / "real")]
    assert put_last(search, tmp_path / "real") == ["/usr/bin", search[0], search[2]]
