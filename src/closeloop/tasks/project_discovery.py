"""Look at a repository: which commands set it up, test, lint, type-check and build it."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from msgspec.structs import replace

from closeloop.git import try_git_text
from closeloop.records.record import Record
from closeloop.records.settings import CommandSettings
from closeloop.tasks.projects import (
    compiled_projects,
    javascript_project,
    makefile_project,
    python_project,
)
from closeloop.tasks.projects.manifest_folder import DetectedProject, ManifestFolder, ProjectCommand

MAX_FILES = 200_000
_SKIPPED_FOLDERS = {"node_modules", "target", "dist", "build", "venv", "__pycache__", "vendor"}
_MANIFEST_LANGUAGES = {
    "pyproject.toml": "Python",
    "setup.py": "Python",
    "package.json": "JavaScript",
    "go.mod": "Go",
    "Cargo.toml": "Rust",
    "pom.xml": "Java",
    "build.gradle": "Java",
    "build.gradle.kts": "Java",
}
_LANGUAGE_SUFFIXES = {
    "Python": (".py", ".pyi"),
    "JavaScript": (".js", ".jsx", ".mjs", ".cjs", ".ts", ".tsx", ".mts", ".vue", ".svelte"),
    "Go": (".go",),
    "Rust": (".rs",),
    "Java": (".java", ".kt", ".scala", ".groovy"),
}
_PROJECT_PROBES: tuple[Callable[[ManifestFolder], DetectedProject | None], ...] = (
    python_project.probe_python_project,
    javascript_project.probe_javascript_project,
    compiled_projects.probe_go_project,
    compiled_projects.probe_rust_project,
    compiled_projects.probe_java_project,
)
_COMMAND_KINDS = ("test", "lint", "types", "build")


class Discovery(Record):
    """The commands of a repository, and where it says so."""

    commands: CommandSettings
    sources: dict[str, str] = {}
    """Which file told us: `test` → `pyproject.toml`."""
    seen: tuple[str, ...] = ()
    """Other projects in the repository, for people to look at."""


def discover_commands(repo: Path) -> Discovery:
    """The root first, and there the language with most files; Make fills the gaps.

    Another language's commands do not: its linter would pass for that of the whole project.
    """
    files = _list_files(repo)
    place = "" if _rank_projects(_open_folder(repo, files, "")) else _nearest_project_folder(files)
    folder = _open_folder(repo, files, place)
    languages = _rank_projects(folder)
    makefile = makefile_project.probe_makefile(folder)
    project = languages[0] if languages else makefile or DetectedProject(kind="unknown")
    commands_by_kind: dict[str, ProjectCommand] = {}
    for kind in _COMMAND_KINDS:
        command = getattr(project, kind) or (getattr(makefile, kind) if makefile else None)
        if command:
            commands_by_kind[kind] = command
    sources = {
        kind: _source_from_root(place, command.source) for kind, command in commands_by_kind.items()
    }
    if project.setup:
        sources["setup"] = _source_from_root(place, project.setup[0].source)
    setup = tuple(_command_from_root(place, command) for command in project.setup)
    command_lines = {
        kind: _command_from_root(place, command) for kind, command in commands_by_kind.items()
    }
    return Discovery(
        commands=replace(CommandSettings(setup=setup), **command_lines),
        sources=sources,
        seen=tuple(f"{_source_from_root(place, '')} ({one.kind})" for one in languages[1:])
        + _list_other_projects(files, place),
    )


def detect_project(folder: ManifestFolder) -> DetectedProject:
    """The project of one folder: its language with tests, or with most files."""
    languages = _rank_projects(folder)
    return (
        languages[0]
        if languages
        else makefile_project.probe_makefile(folder) or DetectedProject(kind="unknown")
    )


def _rank_projects(folder: ManifestFolder) -> list[DetectedProject]:
    """The languages of a folder: those with tests first, then by the number of their files."""
    counts = Counter(PurePosixPath(name).suffix for name in folder.files)

    def weight(project: DetectedProject) -> tuple[bool, int]:
        return project.test is not None, sum(
            counts[end] for end in _LANGUAGE_SUFFIXES[project.kind]
        )

    projects = [project for look in _PROJECT_PROBES if (project := look(folder))]
    return sorted(projects, key=weight, reverse=True)


def _nearest_project_folder(files: tuple[str, ...]) -> str:
    """Of the folders with a manifest, the one nearest to the root, then the largest."""
    places = {str(PurePosixPath(name).parent) for name in files if _is_manifest(name)}
    sizes = {place: sum(name.startswith(f"{place}/") for name in files) for place in places}
    return min(sizes, key=lambda place: (place.count("/"), -sizes[place], place), default="")


def _list_other_projects(files: tuple[str, ...], place: str) -> tuple[str, ...]:
    """Projects in other folders, nearest first."""
    folder_depths = {
        f"{folder} ({_MANIFEST_LANGUAGES[PurePosixPath(name).name]})": folder.count("/")
        for name in files
        if _is_manifest(name) and (folder := str(PurePosixPath(name).parent)) not in (".", place)
    }
    return tuple(sorted(folder_depths, key=lambda name: (folder_depths[name], name)))


def _is_manifest(name: str) -> bool:
    return PurePosixPath(name).name in _MANIFEST_LANGUAGES


def _open_folder(repo: Path, files: tuple[str, ...], place: str) -> ManifestFolder:
    if not place:
        return ManifestFolder(repo, files)
    below = tuple(name[len(place) + 1 :] for name in files if name.startswith(f"{place}/"))
    return ManifestFolder(repo / place, below)


def _command_from_root(place: str, command: ProjectCommand) -> str:
    return f"cd {shlex.quote(place)} && {command.line}" if place else command.line


def _source_from_root(place: str, source: str) -> str:
    return str(PurePosixPath(place, source)) if place or source else "the root"


def _list_files(repo: Path) -> tuple[str, ...]:
    """The files git knows or would know; without git, those that do not look generated."""
    git_listing = try_git_text(repo, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    if git_listing:
        return tuple(name for name in git_listing.split("\0")[:MAX_FILES] if name)
    paths: list[str] = []
    for top, folders, names in os.walk(repo):
        folders[:] = sorted(
            name for name in folders if name not in _SKIPPED_FOLDERS and name[0] != "."
        )
        paths += (Path(top, name).relative_to(repo).as_posix() for name in names)
        if len(paths) > MAX_FILES:
            break
    return tuple(paths)
