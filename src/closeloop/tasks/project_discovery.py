"""Discover the commands that set up, test, lint, type-check and build a repository."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from msgspec.structs import replace

from closeloop.git import try_git_text
from closeloop.records.record import Record
from closeloop.records.settings import CommandSettings
from closeloop.tasks import other_projects
from closeloop.tasks.other_projects import (
    DetectedProject,
    ManifestFolder,
    ProjectCommand,
    nested_table,
)

# Python: which test runner, and which checkers.
#
# Python: the tool that creates the environment, and what must be installed into it.

REQUIREMENTS_FILES = (
    "requirements.txt",
    "requirements-dev.txt",
    "requirements-test.txt",
    "requirements-tests.txt",
    "requirements_dev.txt",
    "dev-requirements.txt",
    "test-requirements.txt",
    "requirements/dev.txt",
    "requirements/test.txt",
    "requirements/tests.txt",
    "tests/requirements.txt",
    "test/requirements.txt",
)
_TEST_GROUPS = frozenset({"test", "tests", "testing", "dev"})
_VENV_BIN = ".venv/bin/"
_TOOL_VENV = "~/.tools"
"""In the sandbox's home folder, which is saved together with the setup's results."""
_UV_OPTIONS = "--python .venv/bin/python --no-cache"
_TOOL_FILES = {
    "uv": ("uv.lock",),
    "poetry": ("poetry.lock",),
    "pdm": ("pdm.lock",),
    "pipenv": ("Pipfile",),
    "hatch": ("hatch.toml",),
}


class PythonEnvironment(Record):
    """How the project's Python environment is created and called."""

    prefix: str = ""
    """Prefix of a program's name."""
    setup: tuple[ProjectCommand, ...] = ()
    build: ProjectCommand | None = None


def find_python_environment(folder: ManifestFolder, programs: Iterable[str]) -> PythonEnvironment:
    """Return the environment in which those programs and the project itself can run."""
    programs = set(programs)
    missing = sorted(programs - declared_packages(folder))
    tool, source = _find_environment_tool(folder)
    if source is None:
        return PythonEnvironment()
    build = _build_command(folder, tool)
    requirements = [*missing, *(_build_requirements(folder) if build else ())]
    if tool is None:
        lines, prefix = _pip_commands(folder, programs, requirements), _VENV_BIN
    elif tool == "uv":
        lines, prefix = _uv_commands(folder, programs, requirements), _VENV_BIN
    else:
        # The tool is installed too: the machine may not have it.
        lines = [f"python3 -m venv {_TOOL_VENV}", f"{_TOOL_VENV}/bin/pip install {tool}"]
        lines.append(f"{_TOOL_VENV}/bin/{_install_command(tool, folder, programs)}")
        prefix = f"{_TOOL_VENV}/bin/{tool} run "
        lines += [f"{prefix}pip install {' '.join(requirements)}"] if requirements else []
    return PythonEnvironment(
        prefix=prefix,
        setup=tuple(ProjectCommand(line=line, source=source) for line in lines),
        build=build,
    )


def command_in_environment(
    environment: PythonEnvironment, command: ProjectCommand | None
) -> ProjectCommand | None:
    """Return a command as it is called in the environment."""
    if command is None:
        return None
    if environment.prefix:
        line = environment.prefix + re.sub(r"^python3 ", "python ", command.line)
    else:
        line = re.sub(r"^pytest\b", "python3 -m pytest", command.line)
    return ProjectCommand(line=line, source=command.source)


def declared_packages(folder: ManifestFolder) -> frozenset[str]:
    """Return the names of the packages that the project declares, for work and for tests."""
    project = nested_table(folder.pyproject, "project")
    lists = [project.get("dependencies"), *nested_table(project, "optional-dependencies").values()]
    lists += nested_table(folder.pyproject, "dependency-groups").values()
    lists.append(nested_table(folder.pyproject, "tool", "uv").get("dev-dependencies"))
    lists += [folder.read_text(file).splitlines() for file in REQUIREMENTS_FILES]
    poetry = nested_table(folder.pyproject, "tool", "poetry")
    tables = [nested_table(poetry, "dependencies"), nested_table(poetry, "dev-dependencies")]
    tables += [
        nested_table(group, "dependencies") for group in nested_table(poetry, "group").values()
    ]
    tables += [
        nested_table(folder.read_toml("Pipfile"), name) for name in ("packages", "dev-packages")
    ]
    return frozenset().union(*(_package_names(items) for items in (*lists, *tables)))


def _find_environment_tool(folder: ManifestFolder) -> tuple[str | None, str | None]:
    """Return the tool that creates the environment (pip by default) and the file that names it."""
    configured = nested_table(folder.pyproject, "tool")
    for name, files in _TOOL_FILES.items():
        if file := folder.find_first(*files):
            return name, file
        # A hatch table often only configures the build.
        signs = nested_table(configured, "hatch", "envs") if name == "hatch" else name in configured
        if signs:
            return name, "pyproject.toml"
    return None, _installable_manifest(folder) or folder.find_first(*REQUIREMENTS_FILES)


def _install_command(tool: str, folder: ManifestFolder, programs: set[str]) -> str:
    groups = _choose_test_groups(nested_table(folder.pyproject, "dependency-groups"), programs)
    extras = _choose_test_groups(
        nested_table(folder.pyproject, "project", "optional-dependencies"), programs
    )
    match tool:
        case "uv":
            # Inexact: otherwise it would uninstall itself from its own environment.
            options = ["--frozen"] if "uv.lock" in folder else []
            options += [f"--inexact {_UV_OPTIONS}"]
            options += [f"--group {name}" for name in groups if name != "dev"]
            options += [f"--extra {name}" for name in extras]
            return " ".join(["uv sync", *options])
        case "poetry":
            poetry_groups = nested_table(folder.pyproject, "tool", "poetry", "group")
            groups = _choose_test_groups(
                {
                    name: nested_table(group, "dependencies")
                    for name, group in poetry_groups.items()
                    if nested_table(group).get("optional")
                },
                programs,
            )
            options = [f"--with {','.join(groups)}"] if groups else []
            return " ".join(["poetry install", *options, *(f"--extras {name}" for name in extras)])
        case "pdm" | "pipenv":
            return f"{tool} install --dev"
        case _:
            return "hatch env create"


_OLD_PACKAGE = "setuptools"
"""A new environment may have a years-old version, which satisfies most manifests but builds few."""


def _needs_newer_builder(requirements: Sequence[str]) -> bool:
    return _OLD_PACKAGE in _package_names([shlex.split(name)[0] for name in requirements])


def _uv_commands(
    folder: ManifestFolder, programs: set[str], requirements: Sequence[str]
) -> list[str]:
    """Return uv commands; uv is installed beside the project, which then runs without it,
    offline."""
    sync = f"{_VENV_BIN}{_install_command('uv', folder, programs)}"
    lines = ["python3 -m venv .venv", f"{_VENV_BIN}pip install uv", sync]
    if requirements:
        newest = [f"-P {_OLD_PACKAGE}"] if _needs_newer_builder(requirements) else []
        lines.append(f"{_VENV_BIN}uv pip install {' '.join([_UV_OPTIONS, *newest, *requirements])}")
    return lines


def _pip_commands(folder: ManifestFolder, programs: set[str], missing: Sequence[str]) -> list[str]:
    groups = _choose_test_groups(nested_table(folder.pyproject, "dependency-groups"), programs)
    extras = _choose_test_groups(
        nested_table(folder.pyproject, "project", "optional-dependencies"), programs
    )
    arguments = []
    if _installable_manifest(folder):
        arguments.append(f"-e '.[{','.join(extras)}]'" if extras else "-e .")
    arguments += [f"--group {name}" for name in groups]
    arguments += [f"-r {name}" for name in REQUIREMENTS_FILES if name in folder]
    # The venv's own pip may be older than --group.
    upgrade = [".venv/bin/pip install --upgrade pip"] if groups else []
    arguments = ["--upgrade", *arguments] if _needs_newer_builder(missing) else arguments
    install = f".venv/bin/pip install {' '.join([*arguments, *missing])}"
    return ["python3 -m venv .venv", *upgrade, install]


def _choose_test_groups(groups: dict[str, Any], programs: set[str]) -> list[str]:
    """Return the groups for tests, and the first one with each program still missing."""
    chosen_groups = [name for name in groups if name in _TEST_GROUPS]
    missing_programs = programs.difference(
        *(_package_names(groups[name]) for name in chosen_groups)
    )
    for name, items in groups.items():
        if missing_programs & _package_names(items):
            missing_programs -= _package_names(items)
            chosen_groups.append(name)
    return chosen_groups


def _build_command(folder: ManifestFolder, tool: str | None) -> ProjectCommand | None:
    source = _installable_manifest(folder)
    if source is None or tool not in (None, "uv"):
        return None
    # The environment contains the build tools: build isolation would need the network.
    line = f"{_VENV_BIN}pip wheel --no-deps --no-build-isolation --wheel-dir dist ."
    return ProjectCommand(line=line, source=source)


def _build_requirements(folder: ManifestFolder) -> list[str]:
    """Return the manifest's build requirements, with those of hatch's build hooks; older
    setuptools also need wheel."""
    requires = nested_table(folder.pyproject, "build-system").get("requires")
    requires = requires if isinstance(requires, list) else ["setuptools"]
    wheel = ["wheel"] if "setuptools" in _package_names(requires) else []
    names = [name for name in requires if isinstance(name, str)]
    hooks = nested_table(folder.pyproject, "tool", "hatch", "build", "hooks")
    for name in hooks:
        packages = nested_table(hooks, name).get("dependencies")
        if isinstance(packages, list):
            names += [package for package in packages if isinstance(package, str)]
    return [shlex.quote(name) for name in dict.fromkeys([*names, *wheel])]


def _installable_manifest(folder: ManifestFolder) -> str | None:
    if {"project", "build-system"} & folder.pyproject.keys():
        return "pyproject.toml"
    return folder.find_first("setup.py")


def _package_names(requirements: Any) -> frozenset[str]:
    """Return the package names in a list or table of requirements."""
    if not isinstance(requirements, list | dict):
        return frozenset()
    texts = (text for text in requirements if isinstance(text, str))
    matches = (re.match(r"\s*([A-Za-z0-9][\w.-]*)", text) for text in texts)
    return frozenset(name[1].lower().replace("_", "-") for name in matches if name)


_MANIFEST_FILES = (
    "pyproject.toml",
    "setup.py",
    "setup.cfg",
    "tox.ini",
    "noxfile.py",
    "requirements.txt",
)
_TEST_FOLDERS = ("tests/", "test/")
MAX_TEST_FILES = 200
_PRE_COMMIT_LINE = "pre-commit run --all-files"


class PythonTool(Record):
    """A checker, and the signs that a project uses it."""

    name: str
    line: str
    table: str
    files: tuple[str, ...] = ()
    section: str | None = None
    """Section in setup.cfg or tox.ini."""


_LINTERS = (
    PythonTool(name="ruff", line="ruff check .", table="ruff", files=("ruff.toml", ".ruff.toml")),
    PythonTool(
        name="flake8",
        line="flake8 --extend-exclude .venv",
        table="flake8",
        files=(".flake8",),
        section="flake8",
    ),
    PythonTool(
        name="pylint",
        line="pylint --recursive=y --ignore-paths '^\\.venv/' .",
        table="pylint",
        files=(".pylintrc", "pylintrc", ".pylintrc.toml"),
        section="pylint.main",
    ),
    PythonTool(name="black", line="black --check .", table="black"),
)
_CHECKERS = (
    PythonTool(
        name="mypy", line="mypy", table="mypy", files=("mypy.ini", ".mypy.ini"), section="mypy"
    ),
    PythonTool(name="pyright", line="pyright", table="pyright", files=("pyrightconfig.json",)),
    PythonTool(name="ty", line="ty check", table="ty", files=("ty.toml",)),
)


def probe_python_project(folder: ManifestFolder) -> DetectedProject | None:
    """Probe for a Python project: a manifest, or at least Python tests."""
    tests = _list_test_files(folder)
    if folder.find_first(*_MANIFEST_FILES, "Pipfile", "manage.py") is None and not tests:
        return None
    declared = declared_packages(folder)
    test = _test_command(folder, declared, tests)
    lint = _tool_command(_LINTERS, folder, declared) or _pre_commit_command(folder)
    types = _with_mypy_target(_tool_command(_CHECKERS, folder, declared), folder)
    programs = {command.line.split(maxsplit=1)[0] for command in (test, lint, types) if command}
    environment = find_python_environment(folder, programs - {"python3"})
    setup = environment.setup
    if lint is not None and lint.line == _PRE_COMMIT_LINE:
        # Hooks are installed while the network is open; without an environment the tool is missing.
        fill = f"{environment.prefix}pre-commit install-hooks || true"
        setup = (*setup, ProjectCommand(line=fill, source=lint.source)) if setup else ()
        lint = lint if setup else None
    return DetectedProject(
        kind="Python",
        setup=setup,
        test=command_in_environment(environment, test),
        lint=command_in_environment(environment, lint),
        types=command_in_environment(environment, types),
        build=environment.build,
    )


def _test_command(
    folder: ManifestFolder, declared: frozenset[str], tests: Sequence[str]
) -> ProjectCommand | None:
    source = _pytest_source(folder, declared, tests)
    if source:
        return ProjectCommand(line="pytest", source=source)
    if "manage.py" in folder:
        return ProjectCommand(line="python3 manage.py test", source="manage.py")
    if tests:
        test_folder = next((name for name in _TEST_FOLDERS if tests[0].startswith(name)), None)
        start = f" -s {test_folder.rstrip('/')}" if test_folder else ""
        top = " -t ." if test_folder and f"{test_folder}__init__.py" in folder else ""
        return ProjectCommand(line=f"python3 -m unittest discover{start}{top}", source=tests[0])
    if "noxfile.py" in folder:
        return ProjectCommand(line="nox", source="noxfile.py")
    return ProjectCommand(line="tox", source="tox.ini") if "tox.ini" in folder else None


def _pytest_source(
    folder: ManifestFolder, declared: frozenset[str], tests: Sequence[str]
) -> str | None:
    """Return the file that shows that this project tests with pytest."""
    if "pytest" in nested_table(folder.pyproject, "tool"):
        return "pyproject.toml"
    if file := folder.find_first("pytest.ini", ".pytest.ini", "conftest.py", "tests/conftest.py"):
        return file
    for name, section in (("setup.cfg", "tool:pytest"), ("tox.ini", "pytest")):
        if section in folder.section_names(name):
            return name
    if "pytest" in declared:
        return folder.find_first("pyproject.toml", *REQUIREMENTS_FILES, "Pipfile")
    for name in ("tox.ini", "noxfile.py", "setup.py"):
        if re.search(r"\bpy\.?test\b", folder.read_text(name)):
            return name
    pattern = re.compile(r"^(?:import|from) pytest\b|^def test_", re.MULTILINE)
    return next((name for name in tests if pattern.search(folder.read_text(name))), None)


def _list_test_files(folder: ManifestFolder) -> list[str]:
    test_files = [
        name
        for name in folder.files
        if re.search(r"(?:^|/)(?:test_[^/]*|[^/]*_test)\.py$", name)
        and (name.startswith(_TEST_FOLDERS) or "/" not in name)
    ]
    return sorted(test_files)[:MAX_TEST_FILES]


def _tool_command(
    tools: Iterable[PythonTool], folder: ManifestFolder, declared: frozenset[str]
) -> ProjectCommand | None:
    """Return the first tool that is configured, else the first that is a dependency."""
    tools = tuple(tools)
    for tool in tools:
        source = folder.find_first(*tool.files)
        if tool.table in nested_table(folder.pyproject, "tool"):
            source = "pyproject.toml"
        for name in ("setup.cfg", "tox.ini"):
            if tool.section and tool.section in folder.section_names(name):
                source = source or name
        if source:
            return ProjectCommand(line=tool.line, source=source)
    for tool in tools:
        if tool.name in declared:
            return ProjectCommand(line=tool.line, source="the dependencies")
    return None


def _pre_commit_command(folder: ManifestFolder) -> ProjectCommand | None:
    name = ".pre-commit-config.yaml"
    return ProjectCommand(line=_PRE_COMMIT_LINE, source=name) if name in folder else None


def _with_mypy_target(
    command: ProjectCommand | None, folder: ManifestFolder
) -> ProjectCommand | None:
    """Add what mypy should check, unless its configuration says so."""
    if command is None or command.line != "mypy":
        return command
    settings = nested_table(folder.pyproject, "tool", "mypy")
    target_setting = re.compile(r"^(files|packages|modules)\s*=", re.MULTILINE)
    if command.source == "pyproject.toml":
        if settings.keys() & {"files", "packages", "modules"}:
            return command
    elif target_setting.search(folder.read_text(command.source)):
        return command
    target = "src" if any(name.startswith("src/") for name in folder.files) else "."
    return ProjectCommand(line=f"mypy {target}", source=command.source)


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
    probe_python_project,
    other_projects.probe_javascript_project,
    other_projects.probe_go_project,
    other_projects.probe_rust_project,
    other_projects.probe_java_project,
)
_COMMAND_KINDS = ("test", "lint", "types", "build")


class Discovery(Record):
    """The commands of a repository, and the files they were found in."""

    commands: CommandSettings
    sources: dict[str, str] = {}
    """Source file of each command: `test` → `pyproject.toml`."""
    seen: tuple[str, ...] = ()
    """Other projects in the repository, listed for people."""


def use_npm_instead(discovery: Discovery, missing: str | None) -> Discovery | None:
    """Return the same commands with npm, if the project's package manager is not installed."""
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
    """Discover commands: the root first, there the language with most files; Make fills gaps.

    Other languages' commands do not: their linter would count for the whole project.
    """
    files = _list_files(repo)
    project_folder = (
        "" if _rank_projects(_open_folder(repo, files, "")) else _nearest_project_folder(files)
    )
    folder = _open_folder(repo, files, project_folder)
    languages = _rank_projects(folder)
    makefile = other_projects.probe_makefile(folder)
    project = languages[0] if languages else makefile or DetectedProject(kind="unknown")
    commands_by_kind: dict[str, ProjectCommand] = {}
    for kind in _COMMAND_KINDS:
        command = getattr(project, kind) or (getattr(makefile, kind) if makefile else None)
        if command:
            commands_by_kind[kind] = command
    sources = {
        kind: _source_from_root(project_folder, command.source)
        for kind, command in commands_by_kind.items()
    }
    if project.setup:
        sources["setup"] = _source_from_root(project_folder, project.setup[0].source)
    setup = tuple(_command_from_root(project_folder, command) for command in project.setup)
    command_lines = {
        kind: _command_from_root(project_folder, command)
        for kind, command in commands_by_kind.items()
    }
    return Discovery(
        commands=replace(CommandSettings(setup=setup), **command_lines),
        sources=sources,
        seen=tuple(
            f"{_source_from_root(project_folder, '')} ({language.kind})"
            for language in languages[1:]
        )
        + _list_other_projects(files, project_folder),
    )


def detect_project(folder: ManifestFolder) -> DetectedProject:
    """Return the project of one folder: its language with tests, or with most files."""
    languages = _rank_projects(folder)
    return (
        languages[0]
        if languages
        else other_projects.probe_makefile(folder) or DetectedProject(kind="unknown")
    )


def _rank_projects(folder: ManifestFolder) -> list[DetectedProject]:
    """Return the languages of a folder: those with tests first, then by number of files."""
    counts = Counter(PurePosixPath(name).suffix for name in folder.files)

    def weight(project: DetectedProject) -> tuple[bool, int]:
        return project.test is not None, sum(
            counts[end] for end in _LANGUAGE_SUFFIXES[project.kind]
        )

    projects = [project for probe in _PROJECT_PROBES if (project := probe(folder))]
    return sorted(projects, key=weight, reverse=True)


def _nearest_project_folder(files: tuple[str, ...]) -> str:
    """Return the folder with a manifest that is nearest to the root, then the largest."""
    folders = {str(PurePosixPath(name).parent) for name in files if _is_manifest(name)}
    sizes = {folder: sum(name.startswith(f"{folder}/") for name in files) for folder in folders}
    return min(sizes, key=lambda folder: (folder.count("/"), -sizes[folder], folder), default="")


def _list_other_projects(files: tuple[str, ...], project_folder: str) -> tuple[str, ...]:
    """Return projects in other folders, nearest first."""
    folder_depths = {
        f"{folder} ({_MANIFEST_LANGUAGES[PurePosixPath(name).name]})": folder.count("/")
        for name in files
        if _is_manifest(name)
        and (folder := str(PurePosixPath(name).parent)) not in (".", project_folder)
    }
    return tuple(sorted(folder_depths, key=lambda name: (folder_depths[name], name)))


def _is_manifest(name: str) -> bool:
    return PurePosixPath(name).name in _MANIFEST_LANGUAGES


def _open_folder(repo: Path, files: tuple[str, ...], project_folder: str) -> ManifestFolder:
    if not project_folder:
        return ManifestFolder(repo, files)
    project_files = tuple(
        name[len(project_folder) + 1 :] for name in files if name.startswith(f"{project_folder}/")
    )
    return ManifestFolder(repo / project_folder, project_files)


def _command_from_root(project_folder: str, command: ProjectCommand) -> str:
    return f"cd {shlex.quote(project_folder)} && {command.line}" if project_folder else command.line


def _source_from_root(project_folder: str, source: str) -> str:
    return str(PurePosixPath(project_folder, source)) if project_folder or source else "the root"


def _list_files(repo: Path) -> tuple[str, ...]:
    """Return files that git tracks or would track; without git, those that are not generated."""
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


# The text of a new `closeloop.toml`: what was found, and further settings.

MAX_LISTED_PROJECTS = 8

_HEADER_TEXT = """\
# closeloop: which agents to try on this repository, and how.
# A line that begins with '#' is an example, or shows a default.

# tasks = "tasks"                    # the folder of the task files
# store = ".closeloop/closeloop.db"  # or "postgresql://user@host/name"
# cache = ".closeloop/cache"         # prepared copies of the repository
# retries = 2                        # retries of an attempt after a machine failure
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
# Models. Keys are not stored here: they are read from the environment (OPENAI_API_KEY,
# ANTHROPIC_API_KEY, or the variable set as key_env) or from a file (key_file).
#
# [models.large]
# provider = "anthropic"             # "openai" for every server with the same API; "scripted"
# model = "the provider's name of the model"
# base_url = "http://localhost:8000/v1"
# key_env = "MY_KEY"
# input_price = 3.0                  # US dollars per million tokens, to compute costs
# output_price = 15.0

# Variants: what is compared. `closeloop run` runs all of them.
#
# [variants.large]
# agent = "builtin"
# model = "large"                    # a name from above, "openai/NAME", "anthropic/NAME"
# prompt = "prompts/careful.md"      # your own system prompt
#
# Without a key: "noop" changes nothing, "reference" applies the task's known good change.
#
# [variants.floor]
# agent = "noop"

# What one attempt may use before it is stopped.
#
# [limits]
# seconds = 28800
# idle_seconds = 1800
# command_seconds = 600
# turns = 200
# tokens = 2000000
# money = 5.0                        # US dollars

# The sandbox of agents.
#
# [sandbox]
# kind = "auto"                      # "bwrap", "landlock", or "none": no sandbox
# read = ["~/.cargo"]                # more paths that commands may read
# env = ["LANG"]                     # environment variables passed to commands
"""


def render_config(
    discovery: Discovery, trials: Mapping[str, str] = {}, useless: Collection[str] = ()
) -> str:
    """Render an initial configuration: what was found and where, with every section explained.

    Each command has the result of its trial; unusable ones are only mentioned.
    """
    lines = ["# The project's own commands, run from the root of the repository.", "[commands]"]
    for name, description in _COMMAND_DESCRIPTIONS.items():
        value = getattr(discovery.commands, name)
        source = discovery.sources.get(name)
        lines.append(
            f"# {description}" + (f" (found in {_printable_line(source)})" if source else "")
        )
        setting = f"{name} = {_toml_value(value) if value else _COMMAND_EXAMPLES[name]}"
        comment_mark = "# " if not value or name in useless else ""
        trial = f"  # tried: {_printable_line(trials[name])}" if name in trials else ""
        lines.append(f"{comment_mark}{setting}{trial}")
    if discovery.seen:
        hidden_count = len(discovery.seen) - MAX_LISTED_PROJECTS
        project_names = ", ".join(
            _printable_line(name) for name in discovery.seen[:MAX_LISTED_PROJECTS]
        )
        lines.append(
            f"# Also found here: {project_names}"
            + (f" and {hidden_count} more." if hidden_count > 0 else ".")
        )
    return "\n".join([_HEADER_TEXT, *lines, "", _SECTIONS_TEXT])


def _toml_value(value: str | tuple[str, ...]) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(_toml_value(item) for item in value)}]"
    # A JSON string is a TOML string, except for this character.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _printable_line(text: str) -> str:
    return "".join(sign if sign.isprintable() else "?" for sign in text)
