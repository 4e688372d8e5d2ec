"""Python: which test runner, and which checkers."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from typing import Any

from closeloop.records.record import Record
from closeloop.tasks.projects.manifest_folder import (
    DetectedProject,
    ManifestFolder,
    ProjectCommand,
    nested_table,
)

# Python: who makes the environment, and what must be installed into it.

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
)
_TEST_GROUPS = frozenset({"test", "tests", "testing", "dev"})
_VENV_BIN = ".venv/bin/"
_TOOL_VENV = "~/.tools"
"""In the home folder of the sandbox, which is kept with what setup made."""
_UV_OPTIONS = "--python .venv/bin/python --no-cache"
_TOOL_FILES = {
    "uv": ("uv.lock",),
    "poetry": ("poetry.lock",),
    "pdm": ("pdm.lock",),
    "pipenv": ("Pipfile",),
    "hatch": ("hatch.toml",),
}


class PythonEnvironment(Record):
    """How the project's Python is made and spoken to."""

    prefix: str = ""
    """Before the name of a program."""
    setup: tuple[ProjectCommand, ...] = ()
    build: ProjectCommand | None = None


def find_python_environment(folder: ManifestFolder, programs: Iterable[str]) -> PythonEnvironment:
    """The environment in which those programs, and the project itself, can be run."""
    programs = set(programs)
    missing = sorted(programs - declared_packages(folder))
    tool, source = _find_environment_tool(folder)
    if source is None:
        return PythonEnvironment()
    build = _build_command(folder, tool)
    needed = [*missing, *(_build_requirements(folder) if build else ())]
    if tool is None:
        lines, prefix = _pip_commands(folder, programs, needed), _VENV_BIN
    elif tool == "uv":
        lines, prefix = _uv_commands(folder, programs, needed), _VENV_BIN
    else:
        # The tool comes along: the machine on which this is run need not have it.
        lines = [f"python3 -m venv {_TOOL_VENV}", f"{_TOOL_VENV}/bin/pip install {tool}"]
        lines.append(f"{_TOOL_VENV}/bin/{_install_command(tool, folder, programs)}")
        prefix = f"{_TOOL_VENV}/bin/{tool} run "
        lines += [f"{prefix}pip install {' '.join(needed)}"] if needed else []
    return PythonEnvironment(
        prefix=prefix,
        setup=tuple(ProjectCommand(line=line, source=source) for line in lines),
        build=build,
    )


def command_in_environment(
    environment: PythonEnvironment, command: ProjectCommand | None
) -> ProjectCommand | None:
    """A command as it is called in the environment."""
    if command is None:
        return None
    if environment.prefix:
        line = environment.prefix + re.sub(r"^python3 ", "python ", command.line)
    else:
        line = re.sub(r"^pytest\b", "python3 -m pytest", command.line)
    return ProjectCommand(line=line, source=command.source)


def declared_packages(folder: ManifestFolder) -> frozenset[str]:
    """Names of the packages that the project says it needs, for work and for tests."""
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
    """Which tool makes the environment, pip when none is named, and the file that says so."""
    configured = nested_table(folder.pyproject, "tool")
    for name, files in _TOOL_FILES.items():
        if file := folder.find_first(*files):
            return name, file
        # A table for hatch is often only there to build the package.
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
            # Inexact, or it would remove itself from the environment that it stands in.
            options = ["--frozen"] if "uv.lock" in folder else []
            options += [f"--inexact {_UV_OPTIONS}"]
            options += [f"--group {name}" for name in groups if name != "dev"]
            options += [f"--extra {name}" for name in extras]
            return " ".join(["uv sync", *options])
        case "poetry":
            written = nested_table(folder.pyproject, "tool", "poetry", "group")
            groups = _choose_test_groups(
                {
                    name: nested_table(group, "dependencies")
                    for name, group in written.items()
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
"""A new environment may have one of years ago, which satisfies most manifests and builds few."""


def _needs_newer_builder(needed: Sequence[str]) -> bool:
    return _OLD_PACKAGE in _package_names([shlex.split(name)[0] for name in needed])


def _uv_commands(folder: ManifestFolder, programs: set[str], needed: Sequence[str]) -> list[str]:
    """uv is installed beside the project: what it installed runs without it, and offline."""
    sync = f"{_VENV_BIN}{_install_command('uv', folder, programs)}"
    lines = ["python3 -m venv .venv", f"{_VENV_BIN}pip install uv", sync]
    if needed:
        newest = [f"-P {_OLD_PACKAGE}"] if _needs_newer_builder(needed) else []
        lines.append(f"{_VENV_BIN}uv pip install {' '.join([_UV_OPTIONS, *newest, *needed])}")
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
    """The groups that are for tests, and the first that holds each program still wanting."""
    chosen = [name for name in groups if name in _TEST_GROUPS]
    wanting = programs.difference(*(_package_names(groups[name]) for name in chosen))
    for name, items in groups.items():
        if wanting & _package_names(items):
            wanting -= _package_names(items)
            chosen.append(name)
    return chosen


def _build_command(folder: ManifestFolder, tool: str | None) -> ProjectCommand | None:
    source = _installable_manifest(folder)
    if source is None or tool not in (None, "uv"):
        return None
    # Its own environment has what builds it: one that is made for the build needs the network.
    line = f"{_VENV_BIN}pip wheel --no-deps --no-build-isolation --wheel-dir dist ."
    return ProjectCommand(line=line, source=source)


def _build_requirements(folder: ManifestFolder) -> list[str]:
    """What builds the project, as its manifest says; older setuptools need wheel for that."""
    requires = nested_table(folder.pyproject, "build-system").get("requires")
    requires = requires if isinstance(requires, list) else ["setuptools"]
    wheel = ["wheel"] if "setuptools" in _package_names(requires) else []
    names = [name for name in requires if isinstance(name, str)]
    return [shlex.quote(name) for name in dict.fromkeys([*names, *wheel])]


def _installable_manifest(folder: ManifestFolder) -> str | None:
    if {"project", "build-system"} & folder.pyproject.keys():
        return "pyproject.toml"
    return folder.find_first("setup.py")


def _package_names(requirements: Any) -> frozenset[str]:
    """The packages that a list of requirements, or a table of them, names."""
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
    """In setup.cfg or tox.ini."""


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
    """A Python project, when there is a manifest, or at least Python tests."""
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
        # Its hooks are installed with the network open; without an environment nobody has it.
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
        place = next((name for name in _TEST_FOLDERS if tests[0].startswith(name)), None)
        start = f" -s {place.rstrip('/')}" if place else ""
        top = " -t ." if place and f"{place}__init__.py" in folder else ""
        return ProjectCommand(line=f"python3 -m unittest discover{start}{top}", source=tests[0])
    if "noxfile.py" in folder:
        return ProjectCommand(line="nox", source="noxfile.py")
    return ProjectCommand(line="tox", source="tox.ini") if "tox.ini" in folder else None


def _pytest_source(
    folder: ManifestFolder, declared: frozenset[str], tests: Sequence[str]
) -> str | None:
    """Where it says that this project tests with pytest."""
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
    """The first tool that is configured, else the first that is a dependency."""
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
    """mypy wants to be told what to check, unless its configuration says it."""
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
