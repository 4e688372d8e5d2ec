"""Setup recipes for old commits, and how to repair a recipe after its first try."""

from __future__ import annotations

import ast
import re
import shlex
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import PurePosixPath
from typing import Any

from msgspec.structs import replace

from closeloop.grading.suite_run import detect_runner
from closeloop.records.record import Record
from closeloop.records.settings import CommandSettings
from closeloop.tasks.change_parts import (
    find_collection_rules,
    is_collected_test,
    read_pytest_options,
    split_option_words,
)
from closeloop.tasks.other_projects import (
    LOCK_FILES,
    MANIFEST_FILE,
    NPM_INSTALL,
    ManifestFolder,
    call_with_npm,
    nested_table,
)
from closeloop.tasks.project_discovery import detect_project
from closeloop.text.wording import compile_lazily

# Recreate the environment of an old commit: by its own metadata, as of its own time.


REQUIREMENTS_PATTERN = r"requirements[^/]*(/[^/]+)?\.txt"
_VENV_BIN = ".venv/bin/"
_UV_SETUP = ("python3 -m venv .venv", f"{_VENV_BIN}pip install uv")
_TEST_GROUPS = ("test", "tests", "testing")
_DEV_GROUPS = ("dev", "develop", "development")
_VERSION_FROM_TAGS = compile_lazily(
    r"setuptools[-_]scm|hatch-vcs|use_scm_version|pdm-backend|\bpbr\b"
)
_VERSION_NUMBER = compile_lazily(r"(?:^|[^\d.])(\d+(?:\.\d+)+)")
_TEST_EXTRA = compile_lazily(r"""["'](tests?|testing|dev)["']\s*\]?\s*[:=]""")
_PINNED_REQUIREMENT = compile_lazily(
    r"\s*([A-Za-z0-9][\w.-]*(?:\[[\w,. -]+\])?)\s*(?:[=<>!~;@#].*)?"
)
_QUARTER_LENGTH = timedelta(days=92)
_BARE_INSTALL = "nothing but the project and its test runner"
"""If plug-ins are too old for the runner, it does not even start."""


class Recipe(Record):
    """Commands that make a commit's tests run."""

    setup: tuple[str, ...]
    test: str
    how: str
    """Short description for people."""
    last: bool = False
    """Use only if nothing else works."""
    left_out: tuple[str, ...] = ()
    """Requirements that cannot be installed here."""


class PythonRequirements(Record):
    """What a Python project's tests need, as the project declares."""

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
    """Whether they differ from what was detected: somebody edited them."""


def detect_edited_commands(commands: CommandSettings, head: ManifestFolder) -> ConfiguredCommands:
    """Compare the configured commands with those detected at the newest commit."""
    test_command = detect_project(head).test
    return ConfiguredCommands(
        commands=commands, edited=commands.test != (test_command.line if test_command else None)
    )


def list_recipes(
    folder: ManifestFolder, configured: ConfiguredCommands, date: datetime, tag: str | None = None
) -> list[Recipe]:
    """Return recipes to try, likeliest first; configured commands precede detected ones."""
    project = detect_project(folder)
    found_recipes = []
    if project.kind == "Python" and (project.test or _has_python_tests(folder)):
        found_recipes = _python_recipes(
            folder, project.test.line if project.test else "pytest", date, tag
        )
    if project.test and (project.kind != "Python" or not find_python_requirements(folder).has_any):
        setup = tuple(command.line for command in project.setup)
        documented_recipe = Recipe(
            setup=setup, test=project.test.line, how=f"as {project.test.source} says"
        )
        # If only a runner can be installed, its age does not matter.
        found_recipes = [documented_recipe, *found_recipes[:1], *_npm_recipes(project.test.line)]
        if project.kind == "JavaScript":
            found_recipes += _runner_recipes(folder, found_recipes[-1])
    if configured.commands.test:
        configured_recipe = Recipe(
            setup=configured.commands.setup, test=configured.commands.test, how="as configured"
        )
        found_recipes = (
            [configured_recipe, *found_recipes]
            if configured.edited
            else [*found_recipes, configured_recipe]
        )
    unique: dict[tuple[tuple[str, ...], str], Recipe] = {}
    for recipe in _name_root_tests(folder, found_recipes):
        unique.setdefault((recipe.setup, recipe.test), recipe)
    return list(unique.values())


def _has_python_tests(folder: ManifestFolder) -> bool:
    """Return whether pytest could run tests, even if nothing in the project names a runner."""
    pattern = r"(?:^|/)(?:test_[^/]*|[^/]*_test)\.py$|^tests?\.py$"
    return any(re.search(pattern, name) for name in folder.files)


def _name_root_tests(folder: ManifestFolder, recipes: Sequence[Recipe]) -> list[Recipe]:
    """Name `test.py` or `tests.py` at the root to pytest, where it would find no tests."""
    rules = find_collection_rules(folder, "pytest")
    root_tests = [name for name in ("test.py", "tests.py") if name in folder.files]
    if not root_tests or any(is_collected_test(name, rules) for name in folder.files):
        return [*recipes]
    folders = {str(parent) for name in folder.files for parent in PurePosixPath(name).parents}
    project_paths = {*folder.files, *folders}
    return [
        replace(recipe, test=f"{recipe.test} {root_tests[0]}")
        if detect_runner(recipe.test) == "pytest"
        and not project_paths.intersection(word.strip("/") for word in recipe.test.split())
        else recipe
        for recipe in recipes
    ]


def package_cutoff_day(date: datetime, minor: int = sys.version_info[1]) -> str:
    """Return the day at which to resolve packages: the end of the quarter, shared by neighbours.

    Not before packages supported our Python, half a year after its release: each October since
    3.9.
    """
    later = date + _QUARTER_LENGTH
    quarter = f"{later.year}-{(later.month - 1) // 3 * 3 + 1:02}-01"
    return max(quarter, f"{2012 + minor}-04-01")


def find_python_requirements(folder: ManifestFolder) -> PythonRequirements:
    """Return test requirements by their usual names; development ones only without others."""
    extras = {**nested_table(folder.pyproject, "project", "optional-dependencies")}
    extras |= dict.fromkeys(folder.read_section("setup.cfg", "options.extras_require"))
    extras |= dict.fromkeys(_TEST_EXTRA.findall(folder.read_text("setup.py")))
    groups = nested_table(folder.pyproject, "dependency-groups")
    files = [name for name in folder.files if re.search(rf"{REQUIREMENTS_PATTERN}$", name)]
    files_by_kind: dict[str, list[str]] = {
        kind: [name for name in files if _path_mentions(name, names)]
        for kind, names in (("tests", _TEST_GROUPS), ("dev", _DEV_GROUPS))
    }
    test_requirements = [
        *_choose_groups(extras, _TEST_GROUPS),
        *_choose_groups(groups, _TEST_GROUPS),
        *files_by_kind["tests"],
    ]
    names = _TEST_GROUPS if test_requirements else _DEV_GROUPS
    plain_files = [name for name in ("requirements.txt",) if name in folder]
    poetry = nested_table(folder.pyproject, "tool", "poetry")
    return PythonRequirements(
        extras=_choose_groups(extras, names),
        groups=_choose_groups(groups, names),
        files=(
            *plain_files,
            *(files_by_kind["tests"] or ([] if test_requirements else files_by_kind["dev"])),
        ),
        packages=tuple(
            dict.fromkeys(
                [*_tox_packages(folder), *_poetry_packages(poetry), *find_addopts_plugins(folder)]
            )
        ),
        installable=bool({"project", "build-system"} & folder.pyproject.keys())
        or "setup.py" in folder,
    )


def _python_recipes(
    folder: ManifestFolder, test: str, date: datetime, tag: str | None
) -> list[Recipe]:
    """Return recipes with a virtual environment: uv resolves as of a date, then the newest."""
    requirements = find_python_requirements(folder)
    runner = "pytest" if "pytest" in test else ""
    line = f"{_VENV_BIN}python -m unittest discover" if not runner else f"{_VENV_BIN}pytest"
    if not runner and (start := re.search(r"discover(.*)", test)):
        line += start[1]
    version = _version_variables(folder, tag)
    installations = [
        (f"packages as of {day}", f" --exclude-newer {day}", requirements, False)
        for day in (package_cutoff_day(date), package_cutoff_day(date - _QUARTER_LENGTH))
    ]
    installations.append(("the newest packages", "", requirements, False))
    installations.append(
        ("the newest packages, without the project's pins", "", requirements, True)
    )
    bare = PythonRequirements(
        installable=requirements.installable, packages=find_addopts_plugins(folder)
    )
    if requirements != bare:
        installations.append((_BARE_INSTALL, "", bare, False))
    python_recipes = []
    for how, options, needs, loose in installations:
        install = f"{_VENV_BIN}uv pip install --python {_VENV_BIN}python --no-cache"
        install += (
            f" --compile-bytecode{options} {_install_arguments(folder, needs, runner, loose)}"
        )
        setup = (*_UV_SETUP, f"{version}{install}")
        python_recipes.append(
            Recipe(setup=setup, test=line, how=how, last=needs == bare != requirements)
        )
    if "uv.lock" in folder:
        # Second: a lock file changes weekly, and each version would need its own environment.
        locked = (*_UV_SETUP, f"{version}{_uv_sync_command(requirements)}")
        python_recipes.insert(1, Recipe(setup=locked, test=line, how="as uv.lock says"))
    return python_recipes


def _npm_recipes(test: str) -> list[Recipe]:
    """Return recipes with npm, since the project's package manager may not be installed."""
    line = call_with_npm(test)
    return [] if line == test else [Recipe(setup=(NPM_INSTALL,), test=line, how="with npm")]


def _runner_recipes(folder: ManifestFolder, recipe: Recipe) -> list[Recipe]:
    """Return the runners a project depends on, if its script hides which one it calls."""
    package = folder.read_json("package.json")
    tools = nested_table(package, "devDependencies") | nested_table(package, "dependencies")
    if detect_runner(recipe.test) is not None:
        return []
    lines = {"vitest": "npx vitest run", "jest": "npx jest", "mocha": "npx mocha"}
    return [
        Recipe(setup=recipe.setup, test=line, how=f"by {name} itself")
        for name, line in lines.items()
        if name in tools
    ]


def _uv_sync_command(requirements: PythonRequirements) -> str:
    options = [f"--extra {shlex.quote(name)}" for name in requirements.extras]
    options += [f"--group {shlex.quote(name)}" for name in requirements.groups]
    install = f"{_VENV_BIN}uv sync --frozen --inexact --python {_VENV_BIN}python --no-cache"
    return " ".join([install, "--compile-bytecode", *options])


def _install_arguments(
    folder: ManifestFolder, requirements: PythonRequirements, runner: str, loose: bool
) -> str:
    parts = []
    if requirements.installable:
        extras = f"[{','.join(requirements.extras)}]" if requirements.extras else ""
        parts += ["-e", shlex.quote(f".{extras}")]
    parts += [f"--group {shlex.quote(name)}" for name in requirements.groups]
    if loose:
        lines = [
            line for name in requirements.files for line in folder.read_text(name).splitlines()
        ]
        package_names = (
            match[1] for line in lines if (match := _PINNED_REQUIREMENT.fullmatch(line))
        )
        parts += map(shlex.quote, dict.fromkeys(package_names))
    else:
        parts += [f"-r {shlex.quote(name)}" for name in requirements.files]
    parts += map(shlex.quote, requirements.packages)
    return " ".join([*parts, *([runner] if runner else [])]) or "pip"


def _choose_groups(names: Any, group_names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in names if name.lower() in group_names)


def _path_mentions(path: str, names: tuple[str, ...]) -> bool:
    return bool({*re.split(r"[/._-]", path.lower())} & {*names})


def _tox_packages(folder: ManifestFolder) -> list[str]:
    """Return what tox installs for the tests, except what depends on the environment's name."""
    packages = []
    for line in folder.read_section("tox.ini", "testenv").get("deps", "").splitlines():
        requirement = line.strip()
        if re.fullmatch(r"[A-Za-z0-9][\w.-]*(\[[\w,-]+\])?([<>=!~][\w.,<>=!~*]*)?", requirement):
            packages.append(requirement)
    return packages


def _poetry_packages(poetry: dict[str, Any]) -> list[str]:
    """Return packages in Poetry's own development tables, which no other tool reads."""
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
"""Options that pytest knows only through a plug-in → its package."""


def find_addopts_plugins(folder: ManifestFolder) -> tuple[str, ...]:
    """Return plug-ins that pytest's configuration requires to start."""
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
    """Return variables with a version, for projects that take it from tags: the tree has none."""
    match = _VERSION_NUMBER.search(f" {tag}") if tag else None
    manifests = "".join(
        folder.read_text(name) for name in ("pyproject.toml", "setup.py", "setup.cfg")
    )
    if not _VERSION_FROM_TAGS.search(manifests):
        return ""
    version = match[1] if match else "1.0"
    return f"SETUPTOOLS_SCM_PRETEND_VERSION={version} PBR_VERSION={version} "


# Repair a recipe after its first try: add what tests lack, drop what cannot be installed.
#
# Packages that a Python project's tests lack and that the project names somewhere.

MAX_MODULES = 20
_MISSING_MODULE = compile_lazily(r"No module named '([A-Za-z]\w*)")
_MANIFEST_PATH = compile_lazily(
    rf"pyproject\.toml|setup\.(?:py|cfg)|tox\.ini|noxfile\.py|Pipfile|.*{REQUIREMENTS_PATTERN}"
)
_PACKAGE_WORD = compile_lazily(r"[A-Za-z][\w.-]*\w")
_INSTALL_COMMAND = "uv pip install"
_OPTIONAL_MODULE = compile_lazily(
    r"(?m)^[ +][ \t]+(?:import|from) ([A-Za-z]\w*)|importorskip\([\"']([A-Za-z]\w*)"
    r"|skipif\([\s+]{0,99}(?:(?:[a-z]\w{0,40}\.){0,3}([A-Za-z]\w*) is None"
    r"|not HA(?:S|VE)_([A-Z]\w*))"
)


def find_named_packages(folder: ManifestFolder) -> frozenset[str]:
    """Return possible packages: words of files that declare needs, without the project's own
    names."""
    texts = (folder.read_text(name) for name in folder.files if _MANIFEST_PATH.fullmatch(name))
    words = {_normalise_package(word) for text in texts for word in _PACKAGE_WORD.findall(text)}
    return frozenset(words - {_normalise_package(part) for part in _own_names(folder)})


def add_missing_packages(
    recipe: Recipe, output: str, packages: frozenset[str], extra_packages: Sequence[str] = ()
) -> Recipe | None:
    """Add what the run lacked to the recipe; None if the project names none of it.

    `extra_packages`: packages known to be missing.
    """
    *before, install = recipe.setup or ("",)
    if _INSTALL_COMMAND not in install:
        return None
    # Packages named like standard modules are old backports, and break the standard modules.
    missing = (
        name for name in _MISSING_MODULE.findall(output) if name not in sys.stdlib_module_names
    )
    modules = list(dict.fromkeys(missing))[:MAX_MODULES]
    possible_names = (
        (name, f"python-{name}", f"py{name}") for name in map(_normalise_package, modules)
    )
    matched_packages = [
        next((name for name in names if name in packages), None) for names in possible_names
    ]
    added_packages = [
        name
        for name in dict.fromkeys((*matched_packages, *extra_packages))
        if name and name not in shlex.split(install)
    ]
    if not added_packages:
        return None
    setup = (*before, f"{install} {shlex.join(added_packages)}")
    return Recipe(
        setup=setup, test=recipe.test, how=f"{recipe.how}, and {', '.join(added_packages)}"
    )


def describe_optional_modules(tests: str) -> str:
    """Return modules without which tests skip themselves, by their patch, phrased as Python
    does."""
    modules = dict.fromkeys(
        next(filter(None, groups)) for groups in _OPTIONAL_MODULE.findall(tests)
    )
    return "\n".join(f"No module named '{name}'" for name in modules)


_LACKING = compile_lazily(
    r"(?i)\b(?:requir|need|install|import|depend|no\b|not\b|without|missing|lack|unavailable)"
)
_OTHER_EXTRA = compile_lazily(
    r"(?i)tests?|testing|dev\w*|docs?|lint\w*|typing|types|mypy|build|release"
)


def find_extra_packages(folder: ManifestFolder) -> dict[str, tuple[str, ...]]:
    """Return optional extras of the project → their packages."""
    requirements_by_extra: dict[str, Any] = {
        **nested_table(folder.pyproject, "tool", "poetry", "extras")
    }
    requirements_by_extra |= nested_table(folder.pyproject, "project", "optional-dependencies")
    requirements_by_extra |= _read_setup_extras(folder.read_text("setup.py"))
    for name, text in folder.read_section("setup.cfg", "options.extras_require").items():
        requirements_by_extra[name] = text.split("\n")
    own_packages = {_normalise_package(part) for part in _own_names(folder)}
    extras = {
        name: tuple(
            _requirement_name(requirement)
            for requirement in requirements
            if isinstance(requirement, str)
        )
        for name, requirements in requirements_by_extra.items()
        if isinstance(requirements, list) and not _OTHER_EXTRA.fullmatch(name)
    }
    return {
        _normalise_package(name): tuple(
            package
            for package in packages
            if package not in own_packages and _PACKAGE_WORD.fullmatch(package)
        )
        for name, packages in extras.items()
    }


def _read_setup_extras(script: str) -> dict[str, Any]:
    """Return `extras_require` of a `setup.py`, by its syntax."""
    extras: dict[str, Any] = {}
    with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
        for node in ast.walk(ast.parse(script)):
            if isinstance(node, ast.keyword | ast.Assign) and _names_extras(node):
                extras |= _read_literal_lists(node.value)
    return extras


def _names_extras(node: ast.keyword | ast.Assign) -> bool:
    name = node.arg if isinstance(node, ast.keyword) else ast.unparse(node.targets[0])
    return "extra" in (name or "").lower()


def _read_literal_lists(node: ast.expr) -> dict[str, Any]:
    """Return the entries of a dictionary that are plain lists; others, such as sums, are
    skipped."""
    lists = {}
    for key, value in (
        zip(node.keys, node.values, strict=True) if isinstance(node, ast.Dict) else ()
    ):
        if isinstance(key, ast.Constant) and isinstance(value, ast.List | ast.Tuple):
            items = [elt.value for elt in value.elts if isinstance(elt, ast.Constant)]
            lists[str(key.value)] = items
    return lists


def find_lacking_extras(complaints: Iterable[str], extras: dict[str, tuple[str, ...]]) -> list[str]:
    """Return packages of extras that tests report missing, by the extra's or package's name."""
    lines = (line for text in complaints for line in text.splitlines() if _LACKING.search(line))
    words = {_normalise_package(word) for line in lines for word in _PACKAGE_WORD.findall(line)}
    lacking_packages = (
        package
        for name, packages in extras.items()
        for package in packages
        if words & {name, package}
    )
    return list(dict.fromkeys(lacking_packages))[:MAX_MODULES]


def _own_names(folder: ManifestFolder) -> set[str]:
    """Return the project's folders and modules: installing those would hide its own code."""
    names = {part for path in folder.files for part in path.split("/")}
    return names | {name.removesuffix(".py") for name in names}


def _normalise_package(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name.lower())


# Requirements that cannot be installed: the rest is tried without them.

MAX_LEFT_OUT = 4
_PACKAGE = r"([A-Za-z][\w.-]*)"
_NO_EDITABLE_BUILD = "has no attribute 'build_editable'"
"""What a build backend from before 2021 fails with."""
_UNINSTALLABLE = (
    compile_lazily(rf"Failed to (?:build|download|fetch|prepare)[^`\n]{{0,40}}`{_PACKAGE}(?:==|`)"),
    compile_lazily(rf"Because (?:only )?(?:there (?:is|are) no versions? of )?{_PACKAGE}"),
    compile_lazily(rf"(?:you require|requirement|distribution found for) {_PACKAGE}"),
)
"""Messages in which uv and pip name what they cannot install."""


FindWords = Callable[[Sequence[str]], Collection[str]]
"""Return which of the words occur in the code of the project."""


def leave_out_requirement(
    recipe: Recipe, output: str, folder: ManifestFolder, find_words: FindWords = frozenset
) -> Recipe | None:
    """Return the recipe without what could not be installed; None if that is unknown.

    Only extra test requirements are dropped: the project's own dependencies stay.
    """
    *before, install = recipe.setup or ("",)
    if len(recipe.left_out) >= MAX_LEFT_OUT:
        return None
    if _INSTALL_COMMAND not in install:
        return _leave_out_packages(recipe, output, folder, find_words)
    if _NO_EDITABLE_BUILD in output:
        return _install_dependencies_only(recipe, folder)
    names = {
        _normalise_package(name) for pattern in _UNINSTALLABLE for name in pattern.findall(output)
    }
    head, _, arguments = install.partition(_INSTALL_COMMAND)
    words = _expand_requirements(shlex.split(arguments), folder)
    kept_words = [word for word in words if _requirement_name(word) not in names]
    dropped_names = tuple(
        dict.fromkeys(_requirement_name(word) for word in words if word not in kept_words)
    )
    if not dropped_names or "pytest" in dropped_names:
        return None
    setup = (*before, f"{head}{_INSTALL_COMMAND} {shlex.join(kept_words)}")
    return _recipe_without(recipe, setup, dropped_names)


def _install_dependencies_only(recipe: Recipe, folder: ManifestFolder) -> Recipe | None:
    """Return the recipe with a project's dependencies in place of the project itself, which pytest
    imports from the working folder; None if the manifest does not list them."""
    *before, install = recipe.setup
    head, _, arguments = install.partition(_INSTALL_COMMAND)
    words = shlex.split(arguments)
    poetry = nested_table(folder.pyproject, "tool", "poetry", "dependencies")
    packages = [
        name
        for name, spec in poetry.items()
        if name.lower() != "python" and not (isinstance(spec, dict) and spec.get("optional"))
    ]
    listed = nested_table(folder.pyproject, "project").get("dependencies")
    if isinstance(listed, list):
        packages += [package for package in listed if isinstance(package, str)]
    if "-e" not in words or not (poetry or isinstance(listed, list)):
        return None
    index = words.index("-e")
    words[index : index + 2] = packages
    return replace(
        recipe,
        setup=(*before, f"{head}{_INSTALL_COMMAND} {shlex.join(words)}"),
        test=recipe.test.replace(f"{_VENV_BIN}pytest", f"{_VENV_BIN}python -m pytest", 1),
        how=f"{recipe.how}, dependencies only",
    )


def _recipe_without(recipe: Recipe, setup: tuple[str, ...], names: Sequence[str]) -> Recipe:
    left_out = (*recipe.left_out, *names)
    how = f"{recipe.how.partition(', without ')[0]}, without {', '.join(left_out)}"
    return replace(recipe, setup=setup, how=how, left_out=left_out)


def _expand_requirements(words: list[str], folder: ManifestFolder) -> list[str]:
    """Expand requirement files, groups and extras in the arguments, if possible."""
    extras = nested_table(folder.pyproject, "project", "optional-dependencies")
    groups = nested_table(folder.pyproject, "dependency-groups")
    expanded: list[str] = []
    for previous, word in zip(["", *words], words, strict=False):
        if word in ("-r", "--group"):
            continue
        extra = re.fullmatch(r"\.\[([^\]]+)\]", word) if previous == "-e" else None
        if previous == "-r":
            expanded += _read_requirements(folder.read_text(word)) or ["-r", word]
        elif previous == "--group":
            group = groups.get(word)
            requirements = group if isinstance(group, list) else [None]
            is_plain = all(isinstance(requirement, str) for requirement in requirements)
            expanded += map(str, requirements) if is_plain else ["--group", word]
        elif extra and all(isinstance(extras.get(name), list) for name in extra[1].split(",")):
            expanded += [
                ".",
                *(requirement for name in extra[1].split(",") for requirement in extras[name]),
            ]
        else:
            expanded.append(word)
    return expanded


def _read_requirements(text: str) -> list[str]:
    """Return the plain lines of a requirement file; [] if it refers to other files."""
    lines = [line.partition(" #")[0].strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    return [] if any(line.startswith("-") for line in lines) else lines


def _requirement_name(requirement: str) -> str:
    match = re.match(r"[A-Za-z0-9][\w.-]*", requirement)
    return _normalise_package(match[0]) if match else requirement


# The same for npm, pnpm and yarn, which have no option for it: the package is missing from
# `package.json` while they install.

_OPTIONAL_TABLES = ("devDependencies", "optionalDependencies")
_NODE_INSTALL = compile_lazily(
    r"(?P<manager>npm|pnpm|yarn)(?: ci| install)?(?P<options>(?: --[\w=-]+)*)"
)
_FROZEN_OPTION = compile_lazily(r" --(?:frozen-lockfile|immutable)\b")
_NODE_NAME = r"((?:@[\w.-]+(?:/|%2[fF]))?[\w.-]+)"
_NODE_UNINSTALLABLE = (
    compile_lazily(rf"'{_NODE_NAME}@[^'\n]*' (?:is not in|could not be found)"),
    compile_lazily(rf"No matching version found for {_NODE_NAME}@"),
    compile_lazily(rf"https?://[^\s\"]+?/{_NODE_NAME}(?:/-/[^/\s\"]+)?: Not [fF]ound"),
    compile_lazily(rf"Couldn't find (?:package|any versions for) \"{_NODE_NAME}\""),
    compile_lazily(rf"(?m)/node_modules/{_NODE_NAME}(?::|$)"),
)
"""Messages in which npm, pnpm and yarn name what they cannot install."""
_RUNNER_PART = compile_lazily(
    r"^@types/|^typescript$|jest|vitest|vite\b|mocha|chai|babel|swc|esbuild|ts-node|tsx"
)
_HOST_PREFIX = compile_lazily(r"(?:git\+)?\w+://[^/]*/|git@[^:]+:|(?:github|gitlab|bitbucket):")


def _leave_out_packages(
    recipe: Recipe, output: str, folder: ManifestFolder, find_words: FindWords
) -> Recipe | None:
    """Return the recipe without packages that only development needs: those that cannot be
    installed, else, if they need something else that cannot, all that the tests do not use."""
    specs = {
        (table, name): str(spec)
        for table in _OPTIONAL_TABLES
        for name, spec in nested_table(folder.read_json(MANIFEST_FILE), table).items()
    }
    names = {
        re.sub("%2[fF]", "/", name)
        for pattern in _NODE_UNINSTALLABLE
        for name in pattern.findall(output)
    }
    candidates = [name for _, name in specs if name not in recipe.left_out]
    dropped_names = [
        name
        for (_, name), spec in specs.items()
        if name in candidates and (name in names or _is_source_named(spec, output))
    ] or _find_unused_packages(candidates, recipe.test, folder, find_words)
    installs = [
        (index, match)
        for index, line in enumerate(recipe.setup)
        if (match := _NODE_INSTALL.fullmatch(line))
    ]
    if not installs or not dropped_names or {*dropped_names} & {*recipe.test.split()}:
        return None
    index, match = installs[0]
    manager = match["manager"]
    install = f"{manager} install{_FROZEN_OPTION.sub('', match['options'])}"
    if manager == "pnpm" and "--no-frozen-lockfile" not in install:
        install += " --no-frozen-lockfile"
    absent = {*recipe.left_out, *dropped_names}
    removed = [f"{table}[{name}]" for table, name in specs if name in absent]
    files = [name for name in (MANIFEST_FILE, *LOCK_FILES) if name in folder]
    prepare = [
        *(f"cp {name} {name}.whole" for name in files),
        f"npm pkg delete {shlex.join(removed)}",
    ]
    restore = [f"mv {name}.whole {name}" for name in files]
    around = 1 if recipe.left_out else 0
    setup = (
        *recipe.setup[: index - around],
        " && ".join(prepare),
        install,
        " && ".join(restore),
        *recipe.setup[index + 1 + around :],
    )
    return _recipe_without(recipe, setup, dropped_names)


def _find_unused_packages(
    names: Sequence[str], test: str, folder: ManifestFolder, find_words: FindWords
) -> list[str]:
    """Return packages that neither code nor scripts of the tests name, and that are no part of a
    runner."""
    scripts = nested_table(folder.read_json(MANIFEST_FILE), "scripts")
    called = " ".join([test, *map(str, scripts.values())]) if "npm " in test else test
    unknown = [
        name
        for name in names
        if not _RUNNER_PART.search(name)
        and not re.search(rf"(?<![\w-]){re.escape(name)}\b", called)
    ]
    used = find_words(unknown) if unknown else ()
    return [name for name in unknown if name not in used]


def _is_source_named(spec: str, output: str) -> bool:
    """Return whether the output names where a package comes from, if that is no registry."""
    scheme = spec.partition(":")[0]
    if scheme in ("workspace", "catalog"):
        return f'"{scheme}:": {spec}' in output
    source = re.match(
        r"([\w.-]+/[\w.-]+?)(?:\.git)?(?:[#/]|$)", _HOST_PREFIX.sub("", spec, count=1)
    )
    is_address = source is not None and scheme not in ("npm", "file", "link", "portal")
    pattern = rf"[/:]{re.escape(source[1])}(?![\w-])" if source is not None else ""
    return is_address and re.search(pattern, output) is not None
