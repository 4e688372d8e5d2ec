"""What setup made at one commit serves the commits beside it: linked, not made again.

Only where every setup command merely installs what manifests name, and the manifests say the
same. Whatever builds from source runs at each commit.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from closeloop.git import GitFailed, run_git
from closeloop.records.record import content_digest
from closeloop.sandbox.workspaces.source_repository import git_folder, is_remote_address

MAX_MANIFEST_BYTES = 1 << 20
_MANIFESTS = re.compile(
    r"(?:^|/)(?:pyproject\.toml|setup\.py|setup\.cfg|Pipfile(?:\.lock)?|package\.json"
    r"|(?:uv|poetry|pdm|yarn|Cargo)\.lock|package-lock\.json|npm-shrinkwrap\.json"
    r"|pnpm-lock\.yaml|pnpm-workspace\.yaml|\.npmrc|\.yarnrc(?:\.yml)?|go\.(?:mod|sum|work)"
    r"|Cargo\.toml|pom\.xml|MANIFEST\.in|\.python-version|[^/]*requirements[^/]*\.(?:txt|in)"
    r"|requirements/[^/]+\.(?:txt|in))$"
)
_COMPILED_SUFFIXES = (".c", ".cc", ".cpp", ".cxx", ".h", ".hpp", ".pyx", ".pxd", ".f90", ".rs")
_ASSIGNMENT = re.compile(r"[A-Z_]+=[\w.+-]*")
_INSTALL_COMMAND = re.compile(
    r"(?:\S*python[\d.]* -m venv .*|(?:\S*python[\d.]* -m |\S*uv )?\S*pip3? install .*"
    r"|\S*uv (?:sync|venv)\b.*|(?:poetry|pdm|pipenv) install\b.*"
    r"|(?:npm|pnpm|yarn) (?:ci|install)\b.*|yarn|go mod download|cargo fetch"
    r"|\S*mvnw? -B dependency:go-offline)"
)
_LOCKED_COMMAND = re.compile(r"\buv (?:sync|run|export)\b")
"""What of uv reads its lock; `uv pip` does not."""
_PROJECT_ITSELF = re.compile(r"\.{1,2}(?:/.*)?(?:\[.*\])?")
_INSTALLING_TOOLS = frozenset(
    {"setuptools", "hatch", "poetry", "pdm", "uv", "flit", "maturin", "scikit-build"}
)
_INSTALL_SCRIPTS = ("preinstall", "install", "postinstall", "prepare", "prepublish")


def digest_environment(repo: str, commit: str, setup: Sequence[str], root: str) -> str | None:
    """Commits with the same one need the same environment; None: setup must run at each."""
    if is_remote_address(repo) or not all(_only_installs(command) for command in setup):
        return None
    folder, facts = git_folder(repo), []
    uses_python = any("pip" in command or "venv" in command for command in setup)
    for mode, blob, path in _list_tree_files(folder, commit):
        if PurePosixPath(path).name == "uv.lock" and not _LOCKED_COMMAND.search("\n".join(setup)):
            continue
        if mode == "160000" or (uses_python and path.endswith(_COMPILED_SUFFIXES)):
            facts.append((path, blob))
        elif _MANIFESTS.search(path):
            manifest_facts = _read_manifest_facts(folder, blob, PurePosixPath(path).name)
            if manifest_facts is None:
                return None
            facts.append((path, manifest_facts))
    return content_digest("kin 1", repo, list(setup), root, facts)[:32]


def link_environment(lender: Path, names: Sequence[str], folder: Path) -> None:
    """Link what setup made in one base, and its home, into another: bases are only read."""
    workspace = (folder / "root/workspace").resolve()
    for name in names:
        source, target = lender / "root/workspace" / name, workspace / name
        # Python takes compiled files by time and size, which are alike at all commits.
        inside = target.parent.resolve().is_relative_to(workspace)
        if source.name != "__pycache__" and inside and not os.path.lexists(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            _hard_link(source, target)
    for source in (lender / "root/home").iterdir():
        if not os.path.lexists(folder / "root/home" / source.name):
            _hard_link(source, folder / "root/home" / source.name)


def _hard_link(source: Path, target: Path) -> None:
    command = ["cp", "-al", "--", str(source), str(target)]
    subprocess.run(command, check=True, capture_output=True)


def _only_installs(line: str) -> bool:
    """Whether a command only gets packages, and the project itself only as a link to its source."""
    if re.search(r"[;|<>`$()\n]|&(?!&)", line.replace("&&", "")):
        return False
    return all(map(_is_install, line.split("&&")))


def _is_install(line: str) -> bool:
    try:
        words = shlex.split(line)
    except ValueError:
        return False
    while words and _ASSIGNMENT.fullmatch(words[0]):
        words.pop(0)
    if words[:1] == ["cd"]:
        return True
    editable_options = ("-e", "--editable")
    installs_copy = any(
        _PROJECT_ITSELF.fullmatch(word)
        and words[at - 1] not in (*editable_options, "-r", "-c", "--python")
        for at, word in enumerate(words)
        if at and "install" in words[:at]
    )
    return _INSTALL_COMMAND.fullmatch(" ".join(words)) is not None and not installs_copy


def _list_tree_files(folder: str, commit: str) -> Iterator[tuple[str, str, str]]:
    tree_listing = _read_git(folder, "ls-tree", "-r", "-z", commit)
    for entry in tree_listing.decode("utf-8", "surrogateescape").split("\0"):
        entry_fields, _, path = entry.partition("\t")
        if path:
            mode, _, blob = entry_fields.split()[:3]
            yield mode, blob, path


def _read_manifest_facts(folder: str, blob: str, name: str) -> Any:
    """What a manifest says of the environment; None where one must look at each commit."""
    if name not in ("pyproject.toml", "package.json") and "requirements" not in name:
        return blob
    content = _read_git(folder, "cat-file", "blob", blob)[:MAX_MANIFEST_BYTES]
    try:
        if name == "pyproject.toml":
            return _read_pyproject_facts(tomllib.loads(content.decode()))
        if name == "package.json":
            return _read_package_facts(msgspec.json.decode(content))
    except (ValueError, RecursionError, msgspec.MsgspecError, TypeError, AttributeError):
        return blob
    names_itself = re.search(rb"^\s*\.{1,2}(/|\[|\s|$)", content, re.MULTILINE)
    return None if names_itself else blob


def _read_pyproject_facts(said: dict[str, Any]) -> Any:
    """Without the version, and without the settings of tools that install nothing."""
    project = {key: value for key, value in said.get("project", {}).items() if key != "version"}
    tools = {key: value for key, value in said.get("tool", {}).items() if key in _INSTALLING_TOOLS}
    parts = (project, tools, said.get("build-system"), said.get("dependency-groups"))
    return msgspec.json.encode(parts, order="deterministic").decode()


def _read_package_facts(said: dict[str, Any]) -> Any:
    scripts = said.get("scripts") or {}
    if any("husky" not in scripts[name] for name in _INSTALL_SCRIPTS if name in scripts):
        return None
    environment_fields = {
        key: said.get(key) for key in said if "ependenc" in key or key in ("engines", "type")
    }
    environment_fields["workspaces"] = said.get("workspaces")
    return msgspec.json.encode(environment_fields, order="deterministic").decode()


def _read_git(folder: str, *arguments: str) -> bytes:
    try:
        return run_git("/", *arguments, env={"GIT_DIR": folder})
    except GitFailed:
        return b""
