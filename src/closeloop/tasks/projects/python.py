"""Python: which test runner, and which checkers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from closeloop.model.record import Record
from closeloop.tasks.projects.folder import Command, Folder, Project, table
from closeloop.tasks.projects.python_environment import (
    REQUIREMENTS,
    declared_packages,
    environment_of,
    within,
)

_MANIFESTS = (
    "pyproject.toml",
    "setup.py",
    "setup.cfg",
    "tox.ini",
    "noxfile.py",
    "requirements.txt",
)
_TEST_FOLDERS = ("tests/", "test/")
MOST_TEST_FILES = 200


class Tool(Record):
    """A checker, and the signs that a project uses it."""

    name: str
    line: str
    table: str
    files: tuple[str, ...] = ()
    section: str | None = None
    """In setup.cfg or tox.ini."""


_LINTERS = (
    Tool(name="ruff", line="ruff check .", table="ruff", files=("ruff.toml", ".ruff.toml")),
    Tool(name="flake8", line="flake8", table="flake8", files=(".flake8",), section="flake8"),
    Tool(
        name="pylint",
        line="pylint --recursive=y .",
        table="pylint",
        files=(".pylintrc", "pylintrc", ".pylintrc.toml"),
        section="pylint.main",
    ),
    Tool(name="black", line="black --check .", table="black"),
)
_CHECKERS = (
    Tool(name="mypy", line="mypy", table="mypy", files=("mypy.ini", ".mypy.ini"), section="mypy"),
    Tool(name="pyright", line="pyright", table="pyright", files=("pyrightconfig.json",)),
    Tool(name="ty", line="ty check", table="ty", files=("ty.toml",)),
)


def look(folder: Folder) -> Project | None:
    """A Python project, when there is a manifest, or at least Python tests."""
    tests = _test_files(folder)
    if folder.first(*_MANIFESTS, "Pipfile", "manage.py") is None and not tests:
        return None
    declared = declared_packages(folder)
    test = _test(folder, declared, tests)
    lint = _tool(_LINTERS, folder, declared) or _pre_commit(folder)
    types = _mypy_target(_tool(_CHECKERS, folder, declared), folder)
    programs = {command.line.split(maxsplit=1)[0] for command in (test, lint, types) if command}
    environment = environment_of(folder, programs - {"python3"})
    return Project(
        kind="Python",
        setup=environment.setup,
        test=within(environment, test),
        lint=within(environment, lint),
        types=within(environment, types),
        build=environment.build,
    )


def _test(folder: Folder, declared: frozenset[str], tests: Sequence[str]) -> Command | None:
    source = _pytest_source(folder, declared, tests)
    if source:
        return Command(line="pytest", source=source)
    if "manage.py" in folder:
        return Command(line="python3 manage.py test", source="manage.py")
    if tests:
        place = next((name for name in _TEST_FOLDERS if tests[0].startswith(name)), None)
        start = f" -s {place.rstrip('/')}" if place else ""
        top = " -t ." if place and f"{place}__init__.py" in folder else ""
        return Command(line=f"python3 -m unittest discover{start}{top}", source=tests[0])
    if "noxfile.py" in folder:
        return Command(line="nox", source="noxfile.py")
    return Command(line="tox", source="tox.ini") if "tox.ini" in folder else None


def _pytest_source(folder: Folder, declared: frozenset[str], tests: Sequence[str]) -> str | None:
    """Where it says that this project tests with pytest."""
    if "pytest" in table(folder.pyproject, "tool"):
        return "pyproject.toml"
    if file := folder.first("pytest.ini", ".pytest.ini", "conftest.py", "tests/conftest.py"):
        return file
    for name, section in (("setup.cfg", "tool:pytest"), ("tox.ini", "pytest")):
        if section in folder.sections(name):
            return name
    if "pytest" in declared:
        return folder.first("pyproject.toml", *REQUIREMENTS, "Pipfile")
    for name in ("tox.ini", "noxfile.py", "setup.py"):
        if re.search(r"\bpy\.?test\b", folder.text(name)):
            return name
    pattern = re.compile(r"^(?:import|from) pytest\b|^def test_", re.MULTILINE)
    return next((name for name in tests if pattern.search(folder.text(name))), None)


def _test_files(folder: Folder) -> list[str]:
    found = [
        name
        for name in folder.files
        if re.search(r"(?:^|/)(?:test_[^/]*|[^/]*_test)\.py$", name)
        and (name.startswith(_TEST_FOLDERS) or "/" not in name)
    ]
    return sorted(found)[:MOST_TEST_FILES]


def _tool(tools: Iterable[Tool], folder: Folder, declared: frozenset[str]) -> Command | None:
    """The first tool that is configured, else the first that is a dependency."""
    tools = tuple(tools)
    for tool in tools:
        source = folder.first(*tool.files)
        if tool.table in table(folder.pyproject, "tool"):
            source = "pyproject.toml"
        for name in ("setup.cfg", "tox.ini"):
            if tool.section and tool.section in folder.sections(name):
                source = source or name
        if source:
            return Command(line=tool.line, source=source)
    for tool in tools:
        if tool.name in declared:
            return Command(line=tool.line, source="the dependencies")
    return None


def _pre_commit(folder: Folder) -> Command | None:
    name = ".pre-commit-config.yaml"
    return Command(line="pre-commit run --all-files", source=name) if name in folder else None


def _mypy_target(command: Command | None, folder: Folder) -> Command | None:
    """mypy wants to be told what to check, unless its configuration says it."""
    if command is None or command.line != "mypy":
        return command
    settings = table(folder.pyproject, "tool", "mypy")
    told = re.compile(r"^(files|packages|modules)\s*=", re.MULTILINE)
    if command.source == "pyproject.toml":
        if settings.keys() & {"files", "packages", "modules"}:
            return command
    elif told.search(folder.text(command.source)):
        return command
    target = "src" if any(name.startswith("src/") for name in folder.files) else "."
    return Command(line=f"mypy {target}", source=command.source)
