"""Look at a repository: which commands set it up, test, lint, type-check and build it."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from msgspec.structs import replace

from closeloop.git import try_text
from closeloop.model.record import Record
from closeloop.model.settings import Commands
from closeloop.tasks.projects import compiled, javascript, make, python
from closeloop.tasks.projects.folder import Command, Folder, Project

MOST_FILES = 200_000
_SKIPPED = {"node_modules", "target", "dist", "build", "venv", "__pycache__", "vendor"}
_MANIFESTS = {
    "pyproject.toml": "Python",
    "setup.py": "Python",
    "package.json": "JavaScript",
    "go.mod": "Go",
    "Cargo.toml": "Rust",
    "pom.xml": "Java",
    "build.gradle": "Java",
    "build.gradle.kts": "Java",
}
_ENDINGS = {
    "Python": (".py", ".pyi"),
    "JavaScript": (".js", ".jsx", ".mjs", ".cjs", ".ts", ".tsx", ".mts", ".vue", ".svelte"),
    "Go": (".go",),
    "Rust": (".rs",),
    "Java": (".java", ".kt", ".scala", ".groovy"),
}
_LOOKS: tuple[Callable[[Folder], Project | None], ...] = (
    python.look,
    javascript.look,
    compiled.look_go,
    compiled.look_rust,
    compiled.look_java,
)
_KINDS = ("test", "lint", "types", "build")


class Discovery(Record):
    """The commands of a repository, and where it says so."""

    commands: Commands
    sources: dict[str, str] = {}
    """Which file told us: `test` → `pyproject.toml`."""
    seen: tuple[str, ...] = ()
    """Other projects in the repository, for people to look at."""


def discover(repo: Path) -> Discovery:
    """The root first, and there the language with most files; Make fills the gaps.

    Another language's commands do not: its linter would pass for that of the whole project.
    """
    files = _files(repo)
    place = "" if _languages(_folder(repo, files, "")) else _largest_below(files)
    folder = _folder(repo, files, place)
    languages = _languages(folder)
    makefile = make.look(folder)
    project = languages[0] if languages else makefile or Project(kind="unknown")
    found: dict[str, Command] = {}
    for kind in _KINDS:
        command = getattr(project, kind) or (getattr(makefile, kind) if makefile else None)
        if command:
            found[kind] = command
    sources = {kind: _below(place, command.source) for kind, command in found.items()}
    if project.setup:
        sources["setup"] = _below(place, project.setup[0].source)
    setup = tuple(_from_root(place, command) for command in project.setup)
    named = {kind: _from_root(place, command) for kind, command in found.items()}
    return Discovery(
        commands=replace(Commands(setup=setup), **named),
        sources=sources,
        seen=tuple(f"{_below(place, '')} ({one.kind})" for one in languages[1:])
        + _others(files, place),
    )


def project_of(folder: Folder) -> Project:
    """The project of one folder: its language with tests, or with most files."""
    languages = _languages(folder)
    return languages[0] if languages else make.look(folder) or Project(kind="unknown")


def _languages(folder: Folder) -> list[Project]:
    """The languages of a folder: those with tests first, then by the number of their files."""
    counts = Counter(PurePosixPath(name).suffix for name in folder.files)

    def weight(project: Project) -> tuple[bool, int]:
        return project.test is not None, sum(counts[end] for end in _ENDINGS[project.kind])

    projects = [project for look in _LOOKS if (project := look(folder))]
    return sorted(projects, key=weight, reverse=True)


def _largest_below(files: tuple[str, ...]) -> str:
    """Of the folders with a manifest, the one nearest to the root, then the largest."""
    places = {str(PurePosixPath(name).parent) for name in files if _manifest(name)}
    sizes = {place: sum(name.startswith(f"{place}/") for name in files) for place in places}
    return min(sizes, key=lambda place: (place.count("/"), -sizes[place], place), default="")


def _others(files: tuple[str, ...], place: str) -> tuple[str, ...]:
    """Projects in other folders, nearest first."""
    found = {
        f"{folder} ({_MANIFESTS[PurePosixPath(name).name]})": folder.count("/")
        for name in files
        if _manifest(name) and (folder := str(PurePosixPath(name).parent)) not in (".", place)
    }
    return tuple(sorted(found, key=lambda name: (found[name], name)))


def _manifest(name: str) -> bool:
    return PurePosixPath(name).name in _MANIFESTS


def _folder(repo: Path, files: tuple[str, ...], place: str) -> Folder:
    if not place:
        return Folder(repo, files)
    below = tuple(name[len(place) + 1 :] for name in files if name.startswith(f"{place}/"))
    return Folder(repo / place, below)


def _from_root(place: str, command: Command) -> str:
    return f"cd {shlex.quote(place)} && {command.line}" if place else command.line


def _below(place: str, source: str) -> str:
    return str(PurePosixPath(place, source)) if place or source else "the root"


def _files(repo: Path) -> tuple[str, ...]:
    """The files git knows or would know; without git, those that do not look generated."""
    listed = try_text(repo, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    if listed:
        return tuple(name for name in listed.split("\0")[:MOST_FILES] if name)
    found: list[str] = []
    for top, folders, names in os.walk(repo):
        folders[:] = sorted(name for name in folders if name not in _SKIPPED and name[0] != ".")
        found += (Path(top, name).relative_to(repo).as_posix() for name in names)
        if len(found) > MOST_FILES:
            break
    return tuple(found)
