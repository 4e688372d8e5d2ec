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

from closeloop.git import Failed, run
from closeloop.model.record import digest
from closeloop.runs.workspaces.repository import git_folder, is_address

LARGEST_MANIFEST = 1 << 20
_MANIFESTS = re.compile(
    r"(?:^|/)(?:pyproject\.toml|setup\.py|setup\.cfg|Pipfile(?:\.lock)?|package\.json"
    r"|(?:uv|poetry|pdm|yarn|Cargo)\.lock|package-lock\.json|npm-shrinkwrap\.json"
    r"|pnpm-lock\.yaml|pnpm-workspace\.yaml|\.npmrc|\.yarnrc(?:\.yml)?|go\.(?:mod|sum|work)"
    r"|Cargo\.toml|pom\.xml|MANIFEST\.in|\.python-version|[^/]*requirements[^/]*\.(?:txt|in)"
    r"|requirements/[^/]+\.(?:txt|in))$"
)
_COMPILED = (".c", ".cc", ".cpp", ".cxx", ".h", ".hpp", ".pyx", ".pxd", ".f90", ".rs")
_ASSIGNED = re.compile(r"[A-Z_]+=[\w.+-]*")
_INSTALLS = re.compile(
    r"(?:\S*python[\d.]* -m venv .*|(?:\S*python[\d.]* -m |\S*uv )?\S*pip3? install .*"
    r"|\S*uv (?:sync|venv)\b.*|(?:poetry|pdm|pipenv) install\b.*"
    r"|(?:npm|pnpm|yarn) (?:ci|install)\b.*|yarn|go mod download|cargo fetch"
    r"|\S*mvnw? -B dependency:go-offline)"
)
_LOCKED = re.compile(r"\buv (?:sync|run|export)\b")
"""What of uv reads its lock; `uv pip` does not."""
_ITSELF = re.compile(r"\.{1,2}(?:/.*)?(?:\[.*\])?")
_TOOLS = frozenset(
    {"setuptools", "hatch", "poetry", "pdm", "uv", "flit", "maturin", "scikit-build"}
)
_SCRIPTS = ("preinstall", "install", "postinstall", "prepare", "prepublish")


def kinship(repo: str, commit: str, setup: Sequence[str], root: str) -> str | None:
    """Commits with the same one need the same environment; None: setup must run at each."""
    if is_address(repo) or not all(_only_installs(command) for command in setup):
        return None
    folder, facts = git_folder(repo), []
    python = any("pip" in command or "venv" in command for command in setup)
    for mode, blob, path in _files(folder, commit):
        if PurePosixPath(path).name == "uv.lock" and not _LOCKED.search("\n".join(setup)):
            continue
        if mode == "160000" or (python and path.endswith(_COMPILED)):
            facts.append((path, blob))
        elif _MANIFESTS.search(path):
            said = _said(folder, blob, PurePosixPath(path).name)
            if said is None:
                return None
            facts.append((path, said))
    return digest("kin 1", repo, list(setup), root, facts)[:32]


def lend(lender: Path, names: Sequence[str], folder: Path) -> None:
    """Link what setup made in one base, and its home, into another: bases are only read."""
    workspace = (folder / "root/workspace").resolve()
    for name in names:
        source, target = lender / "root/workspace" / name, workspace / name
        # Python takes compiled files by time and size, which are alike at all commits.
        inside = target.parent.resolve().is_relative_to(workspace)
        if source.name != "__pycache__" and inside and not os.path.lexists(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            _link(source, target)
    for source in (lender / "root/home").iterdir():
        if not os.path.lexists(folder / "root/home" / source.name):
            _link(source, folder / "root/home" / source.name)


def _link(source: Path, target: Path) -> None:
    command = ["cp", "-al", "--", str(source), str(target)]
    subprocess.run(command, check=True, capture_output=True)


def _only_installs(line: str) -> bool:
    """Whether a command only gets packages, and the project itself only as a link to its source."""
    if re.search(r"[;|<>`$()\n]|&(?!&)", line.replace("&&", "")):
        return False
    return all(map(_installs, line.split("&&")))


def _installs(line: str) -> bool:
    try:
        words = shlex.split(line)
    except ValueError:
        return False
    while words and _ASSIGNED.fullmatch(words[0]):
        words.pop(0)
    if words[:1] == ["cd"]:
        return True
    linked = ("-e", "--editable")
    copied = any(
        _ITSELF.fullmatch(word) and words[at - 1] not in (*linked, "-r", "-c", "--python")
        for at, word in enumerate(words)
        if at and "install" in words[:at]
    )
    return _INSTALLS.fullmatch(" ".join(words)) is not None and not copied


def _files(folder: str, commit: str) -> Iterator[tuple[str, str, str]]:
    listed = _git(folder, "ls-tree", "-r", "-z", commit)
    for entry in listed.decode("utf-8", "surrogateescape").split("\0"):
        about, _, path = entry.partition("\t")
        if path:
            mode, _, blob = about.split()[:3]
            yield mode, blob, path


def _said(folder: str, blob: str, name: str) -> Any:
    """What a manifest says of the environment; None where one must look at each commit."""
    if name not in ("pyproject.toml", "package.json") and "requirements" not in name:
        return blob
    content = _git(folder, "cat-file", "blob", blob)[:LARGEST_MANIFEST]
    try:
        if name == "pyproject.toml":
            return _pyproject(tomllib.loads(content.decode()))
        if name == "package.json":
            return _package(msgspec.json.decode(content))
    except (ValueError, RecursionError, msgspec.MsgspecError, TypeError, AttributeError):
        return blob
    own = re.search(rb"^\s*\.{1,2}(/|\[|\s|$)", content, re.MULTILINE)
    return None if own else blob


def _pyproject(said: dict[str, Any]) -> Any:
    """Without the version, and without the settings of tools that install nothing."""
    project = {key: value for key, value in said.get("project", {}).items() if key != "version"}
    tools = {key: value for key, value in said.get("tool", {}).items() if key in _TOOLS}
    parts = (project, tools, said.get("build-system"), said.get("dependency-groups"))
    return msgspec.json.encode(parts, order="deterministic").decode()


def _package(said: dict[str, Any]) -> Any:
    scripts = said.get("scripts") or {}
    if any("husky" not in scripts[name] for name in _SCRIPTS if name in scripts):
        return None
    kept = {key: said.get(key) for key in said if "ependenc" in key or key in ("engines", "type")}
    kept["workspaces"] = said.get("workspaces")
    return msgspec.json.encode(kept, order="deterministic").decode()


def _git(folder: str, *arguments: str) -> bytes:
    try:
        return run("/", *arguments, env={"GIT_DIR": folder})
    except Failed:
        return b""
