"""What a release consists of: the wheel, its list of packages, container and workflow files."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

import closeloop

ROOT = Path(__file__).parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
SESSIONS = ROOT / "tests" / "traces" / "fixtures" / "claude_stream"
NOT_LINUX = """
import os, sys
for name in ("pidfd_open", "sched_getaffinity", "O_PATH", "memfd_create", "unshare", "setns"):
    if hasattr(os, name):
        delattr(os, name)
os.environ["PATH"] = os.environ["PATH_WITHOUT_BUBBLEWRAP"]
from closeloop.cli import main
main(sys.argv[1:])
"""
"""The command line without what only Linux has."""


def run_script(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, capture_output=True, text=True, check=False
    )


def test_one_version_is_in_the_package_its_metadata_and_the_changes() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == closeloop.__version__
    changes = (ROOT / "CHANGELOG.md").read_text()
    assert re.findall(r"^## (\S+)$", changes, re.MULTILINE)[0] == project["version"]


def test_two_builds_of_the_wheel_are_the_same_bytes(tmp_path: Path) -> None:
    ran = run_script("release/build_wheel.py", str(tmp_path / "dist"))
    assert ran.returncode == 0, ran.stderr
    (wheel,) = (tmp_path / "dist").iterdir()
    assert wheel.name == f"closeloop-{closeloop.__version__}-py3-none-any.whl"


def test_the_list_of_packages_names_what_is_installed() -> None:
    ran = run_script("release/make_sbom.py")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == run_script("release/make_sbom.py").stdout
    sbom = json.loads(ran.stdout)
    assert (sbom["bomFormat"], sbom["specVersion"]) == ("CycloneDX", "1.5")
    components = {one["name"]: one for one in sbom["components"]}
    assert components["numpy"]["purl"] == f"pkg:pypi/numpy@{version('numpy')}"
    assert {"msgspec", "starlette", "rich"} <= components.keys()
    references = {one["ref"] for one in sbom["dependencies"]}
    assert {needed for one in sbom["dependencies"] for needed in one["dependsOn"]} <= references


def test_a_plain_install_has_neither_scipy_nor_the_tools_of_checks() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {re.split(r"[>=\[]", one)[0] for one in project["dependencies"]}
    assert not names & {"scipy", "ruff", "ty", "ast-grep-py", "pandas", "pyarrow"}
    assert {re.split(r"[>=]", one)[0] for one in project["optional-dependencies"]["check"]} == {
        "ast-grep-py",
        "ruff",
        "ty",
    }


def test_workflow_and_compose_files_satisfy_their_published_schemas() -> None:
    for schema, files in (
        ("vendor.github-workflows", WORKFLOWS),
        ("vendor.compose-spec", [ROOT / "compose.yaml"]),
    ):
        ran = run_script("-m", "check_jsonschema", "--builtin-schema", schema, *map(str, files))
        assert ran.returncode == 0, ran.stdout + ran.stderr


def test_kubernetes_objects_satisfy_the_published_schema() -> None:
    documents = (ROOT / "examples" / "cluster" / "kubernetes.yaml").read_text()
    kinds = []
    for document in yaml.safe_load_all(documents):
        kubernetes_validate.validate(document, "1.31", strict=True)
        kinds.append(document["kind"])
    assert kinds == ["Service", "StatefulSet", "Service", "Deployment"]


def test_containers_do_not_run_as_root_and_use_this_version() -> None:
    assert re.search(r"^USER 10001$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    for name in ("kubernetes.yaml", "raycluster.yaml"):
        images = re.findall(
            r"image: \S*/closeloop:(\S+)", (ROOT / "examples" / "cluster" / name).read_text()
        )
        assert set(images) == {closeloop.__version__}


@pytest.mark.parametrize(
    "command",
    [
        ("import", str(SESSIONS)),
        ("measure", str(SESSIONS)),
        ("export", "--table", "events"),
        ("check", "HEAD", "--tier", "quality"),
    ],
    ids=lambda command: command[0],
)
def test_what_starts_no_agent_works_without_what_only_linux_has(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("git", "sh", "bash"):
        found = subprocess.run(["which", name], capture_output=True, text=True, check=True)
        (programs / name).symlink_to(found.stdout.strip())
    monkeypatch.setenv("PATH_WITHOUT_BUBBLEWRAP", str(programs))
    project = tmp_path / "project"
    project.mkdir()
    (project / "names.py").write_text('NAME = "one"\n')
    git = ["git", "-C", str(project), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "Start"]):
        subprocess.run([*git, *arguments], check=True)
    if command[0] == "export":
        run_script("-c", NOT_LINUX, "import", str(SESSIONS), cwd=project)
    ran = run_script("-c", NOT_LINUX, *command, cwd=project)
    assert ran.returncode == 0, ran.stderr
