"""Look at a repository: which commands set it up, test, lint, type-check and build it."""

from __future__ import annotations

import json
import os
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from pathlib import Path, PurePosixPath

from msgspec.structs import replace

from closeloop.git import try_git_text
from closeloop.records.record import Record
from closeloop.records.settings import CommandSettings
from closeloop.tasks.projects import other_projects, python_project
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
    other_projects.probe_javascript_project,
    other_projects.probe_go_project,
    other_projects.probe_rust_project,
    other_projects.probe_java_project,
)
_COMMAND_KINDS = ("test", "lint", "types", "build")


class Discovery(Record):
    """The commands of a repository, and where it says so."""

    commands: CommandSettings
    sources: dict[str, str] = {}
    """Which file told us: `test` → `pyproject.toml`."""
    seen: tuple[str, ...] = ()
    """Other projects in the repository, for people to look at."""


def use_npm_instead(discovery: Discovery, missing: str | None) -> Discovery | None:
    """The same commands by npm, where the package manager of the project is not installed."""
    if missing not in ("pnpm", "yarn", "bun"):
        return None
    commands = discovery.commands
    lines = {kind: getattr(commands, kind) for kind in ("test", "lint", "types", "build")}
    by_npm = {
        kind: line and other_projects.call_with_npm(line.replace(f"{missing} test", "npm test"))
        for kind, line in lines.items()
    }
    setup = (other_projects.NPM_INSTALL,)
    source = f"{discovery.sources.get('setup', 'package.json')}, by npm: {missing} is not installed"
    return replace(
        discovery,
        commands=replace(commands, setup=setup, **by_npm),
        sources={**discovery.sources, "setup": source},
    )


def discover_commands(repo: Path) -> Discovery:
    """The root first, and there the language with most files; Make fills the gaps.

    Another language's commands do not: its linter would pass for that of the whole project.
    """
    files = _list_files(repo)
    place = "" if _rank_projects(_open_folder(repo, files, "")) else _nearest_project_folder(files)
    folder = _open_folder(repo, files, place)
    languages = _rank_projects(folder)
    makefile = other_projects.probe_makefile(folder)
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
        else other_projects.probe_makefile(folder) or DetectedProject(kind="unknown")
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


# The text of a new `closeloop.toml`: what was found, and what can be said besides.

MAX_LISTED_PROJECTS = 8

_HEADER_TEXT = """\
# closeloop: which agents to try on this repository, and how.
# A line that begins with '#' is an example, or shows what holds when nothing is said.

# tasks = "tasks"                    # the folder of the task files
# store = ".closeloop/closeloop.db"  # or "postgresql://user@host/name"
# cache = ".closeloop/cache"         # prepared copies of the repository
# retries = 2                        # how often an attempt that the machine failed is begun again
"""

_COMMAND_DESCRIPTIONS = {
    "setup": "prepare a fresh checkout, once; these may use the network",
    "test": "run all tests",
    "lint": "find bad style",
    "types": "check types",
    "build": "build the project",
}

_COMMAND_EXAMPLES = {
    "setup": '["make setup"]',
    "test": '"make test"',
    "lint": '"make lint"',
    "types": '"make types"',
    "build": '"make build"',
}

_SECTIONS_TEXT = """\
# Models. Keys stay where they are: in the environment (OPENAI_API_KEY, ANTHROPIC_API_KEY, or the
# variable that key_env names) or in a file (key_file).
#
# [models.large]
# provider = "anthropic"             # "openai" for every server that speaks its format; "scripted"
# model = "the provider's name of it"
# base_url = "http://localhost:8000/v1"
# key_env = "MY_KEY"
# input_price = 3.0                  # US dollars per million tokens, to know what work costs
# output_price = 15.0

# Variants: what is compared. `closeloop run` runs all of them.
#
# [variants.large]
# agent = "builtin"
# model = "large"                    # a name from above, "openai/NAME", "anthropic/NAME"
# prompt = "prompts/careful.md"      # a system prompt of your own

# What one attempt may use before it is stopped.
#
# [limits]
# seconds = 28800
# idle_seconds = 1800
# command_seconds = 600
# turns = 200
# tokens = 2000000
# money = 5.0                        # US dollars

# How agents are caged.
#
# [sandbox]
# kind = "auto"                      # "bwrap", "landlock", or "none": no cage at all
# read = ["~/.cargo"]                # more paths that commands may read
# env = ["LANG"]                     # environment variables handed on to commands
"""


def render_config(
    found: Discovery, trials: Mapping[str, str] = {}, useless: Collection[str] = ()
) -> str:
    """A file to start from: it says what was found and where, and explains every section.

    Beside a command stands how its trial ended; those that are of no use are only mentioned.
    """
    lines = ["# The project's own commands, run from the root of the repository.", "[commands]"]
    for name, about in _COMMAND_DESCRIPTIONS.items():
        value = getattr(found.commands, name)
        source = found.sources.get(name)
        lines.append(f"# {about}" + (f" (found in {_printable_line(source)})" if source else ""))
        setting = f"{name} = {_toml_value(value) if value else _COMMAND_EXAMPLES[name]}"
        mark = "# " if not value or name in useless else ""
        trial = f"  # tried: {_printable_line(trials[name])}" if name in trials else ""
        lines.append(f"{mark}{setting}{trial}")
    if found.seen:
        more = len(found.seen) - MAX_LISTED_PROJECTS
        project_names = ", ".join(
            _printable_line(name) for name in found.seen[:MAX_LISTED_PROJECTS]
        )
        lines.append(
            f"# Also seen here: {project_names}" + (f" and {more} more." if more > 0 else ".")
        )
    return "\n".join([_HEADER_TEXT, *lines, "", _SECTIONS_TEXT])


def _toml_value(value: str | tuple[str, ...]) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(_toml_value(item) for item in value)}]"
    # JSON text is TOML text, but for this one character.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _printable_line(text: str) -> str:
    return "".join(sign if sign.isprintable() else "?" for sign in text)
