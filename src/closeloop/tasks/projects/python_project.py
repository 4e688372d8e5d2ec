"""Python: which test runner, and which checkers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from closeloop.records.record import Record
from closeloop.tasks.projects.manifest_folder import (
    DetectedProject,
    ManifestFolder,
    ProjectCommand,
    nested_table,
)
from closeloop.tasks.projects.python_environment import (
    REQUIREMENTS_FILES,
    command_in_environment,
    declared_packages,
    find_python_environment,
)

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
    PythonTool(name="flake8", line="flake8", table="flake8", files=(".flake8",), section="flake8"),
    PythonTool(
        name="pylint",
        line="pylint --recursive=y .",
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
    return DetectedProject(
        kind="Python",
        setup=environment.setup,
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
    return (
        ProjectCommand(line="pre-commit run --all-files", source=name) if name in folder else None
    )


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
