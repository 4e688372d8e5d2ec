"""How to make the environment of an old commit: by its own metadata, as of its own time."""

from __future__ import annotations

import re
import shlex
import sys
from datetime import datetime, timedelta
from typing import Any

from closeloop.grading.testing.runner_instrumentation import detect_runner
from closeloop.records.record import Record
from closeloop.records.settings import CommandSettings
from closeloop.tasks.mining.change_parts import read_pytest_options, split_option_words
from closeloop.tasks.project_discovery import detect_project
from closeloop.tasks.projects.manifest_folder import ManifestFolder, nested_table
from closeloop.tasks.projects.other_projects import NPM_INSTALL, call_with_npm

REQUIREMENTS_PATTERN = r"requirements[^/]*(/[^/]+)?\.txt"
_VENV_BIN = ".venv/bin/"
_UV_SETUP = ("python3 -m venv .venv", f"{_VENV_BIN}pip install uv")
_TEST_GROUPS = ("test", "tests", "testing")
_DEV_GROUPS = ("dev", "develop", "development")
_VERSION_FROM_TAGS = re.compile(r"setuptools[-_]scm|hatch-vcs|use_scm_version|pdm-backend|\bpbr\b")
_VERSION_NUMBER = re.compile(r"(?:^|[^\d.])(\d+(?:\.\d+)+)")
_TEST_EXTRA = re.compile(r"""["'](tests?|testing|dev)["']\s*\]?\s*[:=]""")
_PINNED_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][\w.-]*(?:\[[\w,. -]+\])?)\s*(?:[=<>!~;@#].*)?")
_QUARTER_LENGTH = timedelta(days=92)
_BARE_INSTALL = "nothing but the project and its test runner"
"""Where plug-ins are too old for the runner, it cannot even begin."""


class Recipe(Record):
    """Commands that make a commit's tests run."""

    setup: tuple[str, ...]
    test: str
    how: str
    """In a few words, for people."""
    last: bool = False
    """Only where nothing else works."""
    left_out: tuple[str, ...] = ()
    """Requirements that cannot be installed here."""


class PythonRequirements(Record):
    """What a Python project's tests need, as the project says."""

    extras: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    installable: bool = True

    @property
    def has_any(self) -> bool:
        return self.installable or bool(self.files or self.packages)


class ConfiguredCommands(Record):
    """The commands of closeloop.toml."""

    commands: CommandSettings
    edited: bool
    """They are not just what was found: somebody knows better."""


def detect_edited_commands(commands: CommandSettings, head: ManifestFolder) -> ConfiguredCommands:
    """What is configured, held against what would be found at the newest commit."""
    test_command = detect_project(head).test
    return ConfiguredCommands(
        commands=commands, edited=commands.test != (test_command.line if test_command else None)
    )


def list_recipes(
    folder: ManifestFolder, known: ConfiguredCommands, at: datetime, tag: str | None = None
) -> list[Recipe]:
    """Ways to try, the likeliest first. What people configured comes before what we think."""
    project = detect_project(folder)
    found_recipes = []
    if project.kind == "Python" and (project.test or _has_python_tests(folder)):
        found_recipes = _python_recipes(
            folder, project.test.line if project.test else "pytest", at, tag
        )
    if project.test and (project.kind != "Python" or not find_python_requirements(folder).has_any):
        setup = tuple(command.line for command in project.setup)
        documented_recipe = Recipe(
            setup=setup, test=project.test.line, how=f"as {project.test.source} says"
        )
        # Where nothing but a runner is to be had, its age does not matter.
        found_recipes = [documented_recipe, *found_recipes[:1], *_npm_recipes(project.test.line)]
        if project.kind == "JavaScript":
            found_recipes += _runner_recipes(folder, found_recipes[-1])
    if known.commands.test:
        configured_recipe = Recipe(
            setup=known.commands.setup, test=known.commands.test, how="as configured"
        )
        found_recipes = (
            [configured_recipe, *found_recipes]
            if known.edited
            else [*found_recipes, configured_recipe]
        )
    unique = {(recipe.setup, recipe.test): recipe for recipe in reversed(found_recipes)}
    return list(reversed(unique.values()))


def _has_python_tests(folder: ManifestFolder) -> bool:
    """Whether pytest would find tests, also where nothing in the project names a runner."""
    return any(re.search(r"(?:^|/)(?:test_[^/]*|[^/]*_test)\.py$", name) for name in folder.files)


def package_cutoff_day(at: datetime, minor: int = sys.version_info[1]) -> str:
    """The day to resolve packages at: the end of the quarter, so that neighbours share it.

    Not before packages knew our own Python, half a year after its release: each October since 3.9.
    """
    later = at + _QUARTER_LENGTH
    quarter = f"{later.year}-{(later.month - 1) // 3 * 3 + 1:02}-01"
    return max(quarter, f"{2012 + minor}-04-01")


def find_python_requirements(folder: ManifestFolder) -> PythonRequirements:
    """Test requirements by their usual names; development ones only where there are no others."""
    extras = {**nested_table(folder.pyproject, "project", "optional-dependencies")}
    extras |= dict.fromkeys(folder.read_section("setup.cfg", "options.extras_require"))
    extras |= dict.fromkeys(_TEST_EXTRA.findall(folder.read_text("setup.py")))
    groups = nested_table(folder.pyproject, "dependency-groups")
    files = [name for name in folder.files if re.search(rf"{REQUIREMENTS_PATTERN}$", name)]
    by_name: dict[str, list[str]] = {
        kind: [name for name in files if _path_mentions(name, names)]
        for kind, names in (("tests", _TEST_GROUPS), ("dev", _DEV_GROUPS))
    }
    chosen = [
        *_choose_groups(extras, _TEST_GROUPS),
        *_choose_groups(groups, _TEST_GROUPS),
        *by_name["tests"],
    ]
    names = _TEST_GROUPS if chosen else _DEV_GROUPS
    plain_files = [name for name in ("requirements.txt",) if name in folder]
    poetry = nested_table(folder.pyproject, "tool", "poetry")
    return PythonRequirements(
        extras=_choose_groups(extras, names),
        groups=_choose_groups(groups, names),
        files=(*plain_files, *(by_name["tests"] or ([] if chosen else by_name["dev"]))),
        packages=tuple(
            dict.fromkeys(
                [
                    *_tox_packages(folder),
                    *_poetry_packages(poetry),
                    *find_addopts_plugins(folder),
                ]
            )
        ),
        installable=bool({"project", "build-system"} & folder.pyproject.keys())
        or "setup.py" in folder,
    )


def _python_recipes(
    folder: ManifestFolder, test: str, at: datetime, tag: str | None
) -> list[Recipe]:
    """A virtual environment; uv resolves as of a date, and the newest is tried where that fails."""
    requirements = find_python_requirements(folder)
    runner = "pytest" if "pytest" in test else ""
    line = f"{_VENV_BIN}python -m unittest discover" if not runner else f"{_VENV_BIN}pytest"
    if not runner and (start := re.search(r"discover(.*)", test)):
        line += start[1]
    version = _version_variables(folder, tag)
    ways = [
        (f"packages as of {day}", f" --exclude-newer {day}", requirements, False)
        for day in (package_cutoff_day(at), package_cutoff_day(at - _QUARTER_LENGTH))
    ]
    ways.append(("the newest packages", "", requirements, False))
    ways.append(("the newest packages, without the project's pins", "", requirements, True))
    bare = PythonRequirements(
        installable=requirements.installable, packages=find_addopts_plugins(folder)
    )
    if requirements != bare:
        ways.append((_BARE_INSTALL, "", bare, False))
    python_recipes = []
    for how, options, what, loose in ways:
        install = f"{_VENV_BIN}uv pip install --python {_VENV_BIN}python --no-cache"
        install += f" --compile-bytecode{options} {_install_arguments(folder, what, runner, loose)}"
        setup = (*_UV_SETUP, f"{version}{install}")
        python_recipes.append(
            Recipe(setup=setup, test=line, how=how, last=what == bare != requirements)
        )
    if "uv.lock" in folder:
        # Second: a lock changes with every week, and each would want an environment of its own.
        locked = (*_UV_SETUP, f"{version}{_uv_sync_command(requirements)}")
        python_recipes.insert(1, Recipe(setup=locked, test=line, how="as uv.lock says"))
    return python_recipes


def _npm_recipes(test: str) -> list[Recipe]:
    """Without the package manager that a project is made with, which may not be installed."""
    line = call_with_npm(test)
    return [] if line == test else [Recipe(setup=(NPM_INSTALL,), test=line, how="with npm")]


def _runner_recipes(folder: ManifestFolder, known: Recipe) -> list[Recipe]:
    """The runners that a project depends on, where its script hides which one it calls."""
    package = folder.read_json("package.json")
    tools = nested_table(package, "devDependencies") | nested_table(package, "dependencies")
    if detect_runner(known.test) is not None:
        return []
    lines = {"vitest": "npx vitest run", "jest": "npx jest", "mocha": "npx mocha"}
    return [
        Recipe(setup=known.setup, test=line, how=f"by {name} itself")
        for name, line in lines.items()
        if name in tools
    ]


def _uv_sync_command(wanted: PythonRequirements) -> str:
    chosen = [f"--extra {shlex.quote(name)}" for name in wanted.extras]
    chosen += [f"--group {shlex.quote(name)}" for name in wanted.groups]
    install = f"{_VENV_BIN}uv sync --frozen --inexact --python {_VENV_BIN}python --no-cache"
    return " ".join([install, "--compile-bytecode", *chosen])


def _install_arguments(
    folder: ManifestFolder, wanted: PythonRequirements, runner: str, loose: bool
) -> str:
    parts = []
    if wanted.installable:
        extras = f"[{','.join(wanted.extras)}]" if wanted.extras else ""
        parts += ["-e", shlex.quote(f".{extras}")]
    parts += [f"--group {shlex.quote(name)}" for name in wanted.groups]
    if loose:
        lines = [line for name in wanted.files for line in folder.read_text(name).splitlines()]
        named = (found[1] for line in lines if (found := _PINNED_REQUIREMENT.fullmatch(line)))
        parts += map(shlex.quote, dict.fromkeys(named))
    else:
        parts += [f"-r {shlex.quote(name)}" for name in wanted.files]
    parts += map(shlex.quote, wanted.packages)
    return " ".join([*parts, *([runner] if runner else [])]) or "pip"


def _choose_groups(names: Any, wanted: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in names if name.lower() in wanted)


def _path_mentions(path: str, names: tuple[str, ...]) -> bool:
    return bool({*re.split(r"[/._-]", path.lower())} & {*names})


def _tox_packages(folder: ManifestFolder) -> list[str]:
    """What tox installs for the tests, but for what depends on the environment's name."""
    packages = []
    for line in folder.read_section("tox.ini", "testenv").get("deps", "").splitlines():
        requirement = line.strip()
        if re.fullmatch(r"[A-Za-z0-9][\w.-]*(\[[\w,-]+\])?([<>=!~][\w.,<>=!~*]*)?", requirement):
            packages.append(requirement)
    return packages


def _poetry_packages(poetry: dict[str, Any]) -> list[str]:
    """Poetry's own tables of development packages, which nobody else reads."""
    groups = [nested_table(poetry, "dev-dependencies")]
    for name, group in nested_table(poetry, "group").items():
        if name.lower() in (*_TEST_GROUPS, *_DEV_GROUPS):
            groups.append(nested_table(group, "dependencies"))
    return [name for group in groups for name in group if re.fullmatch(r"[\w.-]+", name)]


_PLUGIN_OPTIONS = {
    r"--(?:no-)?cov\b|--cov-": "pytest-cov",
    r"-n[ =]?(?:\d|auto|logical)|--(?:dist|numprocesses|maxprocesses)\b": "pytest-xdist",
    r"--timeout": "pytest-timeout",
    r"--asyncio-mode": "pytest-asyncio",
    r"--benchmark-": "pytest-benchmark",
    r"--reruns": "pytest-rerunfailures",
    r"--random-order": "pytest-random-order",
    r"--randomly-|-p randomly": "pytest-randomly",
    r"--(?:self-contained-)?html\b": "pytest-html",
    r"--doctest-plus|--doctest-rst": "pytest-doctestplus",
    r"--snapshot-": "syrupy",
    r"--record-mode|--block-network": "pytest-recording",
    r"--(?:disable|allow)-(?:socket|hosts|unix-socket)": "pytest-socket",
    r"--forked": "pytest-forked",
    r"--xdoctest": "xdoctest",
    r"--(?:ds|dc|reuse-db|nomigrations|no-migrations|create-db)\b": "pytest-django",
    r"--mypy": "pytest-mypy",
    r"--flake8": "pytest-flake8",
    r"--black": "pytest-black",
    r"--isort": "pytest-isort",
    r"--pylint": "pytest-pylint",
    r"--ruff": "pytest-ruff",
    r"--mpl": "pytest-mpl",
    r"--codspeed": "pytest-codspeed",
    r"--json-report": "pytest-json-report",
    r"--spec\b": "pytest-spec",
    r"--picked": "pytest-picked",
    r"--testmon": "pytest-testmon",
    r"--sugar|-p sugar": "pytest-sugar",
    r"--strict-no-cover": "covdefaults",
}
"""Options that pytest knows by a plug-in only → its package."""


def find_addopts_plugins(folder: ManifestFolder) -> tuple[str, ...]:
    """The plug-ins without which pytest does not even begin: its own configuration names them."""
    options, required = "", ""
    for table in read_pytest_options(folder):
        options = options or " ".join(split_option_words(table.get("addopts")))
        required = required or " ".join(split_option_words(table.get("required_plugins")))
    plugins = [
        package
        for pattern, package in _PLUGIN_OPTIONS.items()
        if re.search(rf"(?:^|\s)(?:{pattern})", options)
    ]
    plugins += re.findall(r"(?:^|\s)([A-Za-z][\w.-]*)", required)
    return tuple(dict.fromkeys(plugins))


def _version_variables(folder: ManifestFolder, tag: str | None) -> str:
    """A version for projects that take it from tags: the prepared tree has none."""
    match = _VERSION_NUMBER.search(f" {tag}") if tag else None
    manifests = "".join(
        folder.read_text(name) for name in ("pyproject.toml", "setup.py", "setup.cfg")
    )
    if not _VERSION_FROM_TAGS.search(manifests):
        return ""
    version = match[1] if match else "1.0"
    return f"SETUPTOOLS_SCM_PRETEND_VERSION={version} PBR_VERSION={version} "
