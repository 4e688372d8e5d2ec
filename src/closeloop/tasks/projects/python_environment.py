"""Python: who makes the environment, and what must be installed into it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from closeloop.model.record import Record
from closeloop.tasks.projects.folder import Command, Folder, table

REQUIREMENTS = (
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
_TOOLS = {
    "uv": ("uv.lock",),
    "poetry": ("poetry.lock",),
    "pdm": ("pdm.lock",),
    "pipenv": ("Pipfile",),
    "hatch": ("hatch.toml",),
}


class Environment(Record):
    """How the project's Python is made and spoken to."""

    prefix: str = ""
    """Before the name of a program."""
    setup: tuple[Command, ...] = ()
    build: Command | None = None


def environment_of(folder: Folder, programs: Iterable[str]) -> Environment:
    """The environment in which those programs, and the project itself, can be run."""
    programs = set(programs)
    missing = sorted(programs - declared_packages(folder))
    tool, source = _tool(folder)
    if source is None:
        return Environment()
    if tool is None:
        lines, prefix = _pip_lines(folder, programs, missing), ".venv/bin/"
    else:
        lines, prefix = [_install_line(tool, folder, programs)], f"{tool} run "
        if tool == "uv":
            # What the setup installed is what runs, also without a network.
            prefix = "uv run --no-sync "
        if missing:
            pip = "uv pip" if tool == "uv" else f"{tool} run pip"
            lines.append(f"{pip} install {' '.join(missing)}")
    return Environment(
        prefix=prefix,
        setup=tuple(Command(line=line, source=source) for line in lines),
        build=_build(folder, tool),
    )


def within(environment: Environment, command: Command | None) -> Command | None:
    """A command as it is called in the environment."""
    if command is None:
        return None
    if environment.prefix:
        line = environment.prefix + re.sub(r"^python3 ", "python ", command.line)
    else:
        line = re.sub(r"^pytest\b", "python3 -m pytest", command.line)
    return Command(line=line, source=command.source)


def declared_packages(folder: Folder) -> frozenset[str]:
    """Names of the packages that the project says it needs, for work and for tests."""
    project = table(folder.pyproject, "project")
    lists = [project.get("dependencies"), *table(project, "optional-dependencies").values()]
    lists += table(folder.pyproject, "dependency-groups").values()
    lists.append(table(folder.pyproject, "tool", "uv").get("dev-dependencies"))
    lists += [folder.text(file).splitlines() for file in REQUIREMENTS]
    poetry = table(folder.pyproject, "tool", "poetry")
    tables = [table(poetry, "dependencies"), table(poetry, "dev-dependencies")]
    tables += [table(group, "dependencies") for group in table(poetry, "group").values()]
    tables += [table(folder.toml("Pipfile"), name) for name in ("packages", "dev-packages")]
    return frozenset().union(*(_names(items) for items in (*lists, *tables)))


def _tool(folder: Folder) -> tuple[str | None, str | None]:
    """Which tool makes the environment, pip when none is named, and the file that says so."""
    configured = table(folder.pyproject, "tool")
    for name, files in _TOOLS.items():
        if file := folder.first(*files):
            return name, file
        # A table for hatch is often only there to build the package.
        signs = table(configured, "hatch", "envs") if name == "hatch" else name in configured
        if signs:
            return name, "pyproject.toml"
    return None, _installable(folder) or folder.first(*REQUIREMENTS)


def _install_line(tool: str, folder: Folder, programs: set[str]) -> str:
    groups = _chosen(table(folder.pyproject, "dependency-groups"), programs)
    extras = _chosen(table(folder.pyproject, "project", "optional-dependencies"), programs)
    match tool:
        case "uv":
            options = [f"--group {name}" for name in groups if name != "dev"]
            options += [f"--extra {name}" for name in extras]
            return " ".join(["uv sync", *(["--frozen"] if "uv.lock" in folder else []), *options])
        case "poetry":
            written = table(folder.pyproject, "tool", "poetry", "group")
            groups = _chosen(
                {
                    name: table(group, "dependencies")
                    for name, group in written.items()
                    if table(group).get("optional")
                },
                programs,
            )
            options = [f"--with {','.join(groups)}"] if groups else []
            return " ".join(["poetry install", *options, *(f"--extras {name}" for name in extras)])
        case "pdm" | "pipenv":
            return f"{tool} install --dev"
        case _:
            return "hatch env create"


def _pip_lines(folder: Folder, programs: set[str], missing: Iterable[str]) -> list[str]:
    groups = _chosen(table(folder.pyproject, "dependency-groups"), programs)
    extras = _chosen(table(folder.pyproject, "project", "optional-dependencies"), programs)
    wanted = []
    if _installable(folder):
        wanted.append(f"-e '.[{','.join(extras)}]'" if extras else "-e .")
    wanted += [f"--group {name}" for name in groups]
    wanted += [f"-r {name}" for name in REQUIREMENTS if name in folder]
    # The venv's own pip may be older than --group.
    upgrade = [".venv/bin/pip install --upgrade pip"] if groups else []
    install = f".venv/bin/pip install {' '.join([*wanted, *missing])}"
    return ["python3 -m venv .venv", *upgrade, install]


def _chosen(groups: dict[str, Any], programs: set[str]) -> list[str]:
    """The groups that are for tests, and the first that holds each program still wanting."""
    chosen = [name for name in groups if name in _TEST_GROUPS]
    wanting = programs.difference(*(_names(groups[name]) for name in chosen))
    for name, items in groups.items():
        if wanting & _names(items):
            wanting -= _names(items)
            chosen.append(name)
    return chosen


def _build(folder: Folder, tool: str | None) -> Command | None:
    source = _installable(folder)
    if source is None or tool == "pipenv":
        return None
    line = f"{tool} build" if tool else ".venv/bin/pip wheel --no-deps --wheel-dir dist ."
    return Command(line=line, source=source)


def _installable(folder: Folder) -> str | None:
    if {"project", "build-system"} & folder.pyproject.keys():
        return "pyproject.toml"
    return folder.first("setup.py")


def _names(requirements: Any) -> frozenset[str]:
    """The packages that a list of requirements, or a table of them, names."""
    if not isinstance(requirements, list | dict):
        return frozenset()
    texts = (text for text in requirements if isinstance(text, str))
    found = (re.match(r"\s*([A-Za-z0-9][\w.-]*)", text) for text in texts)
    return frozenset(name[1].lower().replace("_", "-") for name in found if name)
