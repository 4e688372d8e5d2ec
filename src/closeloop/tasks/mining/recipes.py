"""How to make the environment of an old commit: by its own metadata, as of its own time."""

from __future__ import annotations

import re
import shlex
import sys
from datetime import datetime, timedelta
from typing import Any

from closeloop.model.record import Record
from closeloop.model.settings import Commands
from closeloop.tasks.discover import project_of
from closeloop.tasks.projects.folder import Folder, table

REQUIREMENTS = r"requirements[^/]*(/[^/]+)?\.txt"
_PROGRAM = ".venv/bin/"
_UV = ("python3 -m venv .venv", f"{_PROGRAM}pip install uv")
_TESTS = ("test", "tests", "testing")
_DEVELOPMENT = ("dev", "develop", "development")
_VERSIONED = re.compile(r"setuptools[-_]scm|hatch-vcs|use_scm_version|pdm-backend|\bpbr\b")
_VERSION = re.compile(r"(?:^|[^\d.])(\d+(?:\.\d+)+)")
_EXTRA = re.compile(r"""["'](tests?|testing|dev)["']\s*\]?\s*[:=]""")
_PINNED = re.compile(r"\s*([A-Za-z0-9][\w.-]*(?:\[[\w,. -]+\])?)\s*(?:[=<>!~;@#].*)?")
_QUARTER = timedelta(days=92)
_BARE = "nothing but the project and its test runner"
"""Where plug-ins are too old for the runner, it cannot even begin."""


class Recipe(Record):
    """Commands that make a commit's tests run."""

    setup: tuple[str, ...]
    test: str
    how: str
    """In a few words, for people."""
    last: bool = False
    """Only where nothing else works."""


class Wants(Record):
    """What a Python project's tests need, as the project says."""

    extras: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    installable: bool = True

    @property
    def anything(self) -> bool:
        return self.installable or bool(self.files or self.packages)


class Configured(Record):
    """The commands of closeloop.toml."""

    commands: Commands
    edited: bool
    """They are not just what was found: somebody knows better."""


def configured(commands: Commands, head: Folder) -> Configured:
    """What is configured, held against what would be found at the newest commit."""
    found = project_of(head).test
    return Configured(commands=commands, edited=commands.test != (found.line if found else None))


def recipes(
    folder: Folder, known: Configured, at: datetime, tag: str | None = None
) -> list[Recipe]:
    """Ways to try, the likeliest first. What people configured comes before what we think."""
    found = project_of(folder)
    made = []
    if found.test and found.kind == "Python":
        made = _python(folder, found.test.line, at, tag)
    if found.test and (found.kind != "Python" or not wants(folder).anything):
        setup = tuple(command.line for command in found.setup)
        told = Recipe(setup=setup, test=found.test.line, how=f"as {found.test.source} says")
        # Where nothing but a runner is to be had, its age does not matter.
        made = [told, *made[:1], *_by_npm(found.test.line)]
    if known.commands.test:
        own = Recipe(setup=known.commands.setup, test=known.commands.test, how="as configured")
        made = [own, *made] if known.edited else [*made, own]
    unique = {(recipe.setup, recipe.test): recipe for recipe in reversed(made)}
    return list(reversed(unique.values()))


def until(at: datetime, minor: int = sys.version_info[1]) -> str:
    """The day to resolve packages at: the end of the quarter, so that neighbours share it.

    Not before packages knew our own Python, half a year after its release: each October since 3.9.
    """
    later = at + _QUARTER
    quarter = f"{later.year}-{(later.month - 1) // 3 * 3 + 1:02}-01"
    return max(quarter, f"{2012 + minor}-04-01")


def wants(folder: Folder) -> Wants:
    """Test requirements by their usual names; development ones only where there are no others."""
    extras = {**table(folder.pyproject, "project", "optional-dependencies")}
    extras |= dict.fromkeys(folder.options("setup.cfg", "options.extras_require"))
    extras |= dict.fromkeys(_EXTRA.findall(folder.text("setup.py")))
    groups = table(folder.pyproject, "dependency-groups")
    files = [name for name in folder.files if re.search(rf"{REQUIREMENTS}$", name)]
    by_name: dict[str, list[str]] = {
        kind: [name for name in files if _mentions(name, names)]
        for kind, names in (("tests", _TESTS), ("dev", _DEVELOPMENT))
    }
    chosen = [*_chosen(extras, _TESTS), *_chosen(groups, _TESTS), *by_name["tests"]]
    names = _TESTS if chosen else _DEVELOPMENT
    plain = [name for name in ("requirements.txt",) if name in folder]
    poetry = table(folder.pyproject, "tool", "poetry")
    return Wants(
        extras=_chosen(extras, names),
        groups=_chosen(groups, names),
        files=(*plain, *(by_name["tests"] or ([] if chosen else by_name["dev"]))),
        packages=tuple(dict.fromkeys([*_tox(folder), *_poetry(poetry)])),
        installable=bool({"project", "build-system"} & folder.pyproject.keys())
        or "setup.py" in folder,
    )


def _python(folder: Folder, test: str, at: datetime, tag: str | None) -> list[Recipe]:
    """A virtual environment; uv resolves as of a date, and the newest is tried where that fails."""
    wanted = wants(folder)
    runner = "pytest" if "pytest" in test else ""
    line = f"{_PROGRAM}python -m unittest discover" if not runner else f"{_PROGRAM}pytest"
    if not runner and (start := re.search(r"discover(.*)", test)):
        line += start[1]
    version = _version(folder, tag)
    ways = [
        (f"packages as of {day}", f" --exclude-newer {day}", wanted, False)
        for day in (until(at), until(at - _QUARTER))
    ]
    ways.append(("the newest packages", "", wanted, False))
    ways.append(("the newest packages, without the project's pins", "", wanted, True))
    bare = Wants(installable=wanted.installable)
    if wanted != bare:
        ways.append((_BARE, "", bare, False))
    made = []
    for how, options, what, loose in ways:
        install = f"{_PROGRAM}uv pip install --python {_PROGRAM}python --no-cache"
        install += f" --compile-bytecode{options} {_arguments(folder, what, runner, loose)}"
        setup = (*_UV, f"{version}{install}")
        made.append(Recipe(setup=setup, test=line, how=how, last=what == bare != wanted))
    if "uv.lock" in folder:
        # Second: a lock changes with every week, and each would want an environment of its own.
        locked = (*_UV, f"{version}{_locked(wanted)}")
        made.insert(1, Recipe(setup=locked, test=line, how="as uv.lock says"))
    return made


def _by_npm(test: str) -> list[Recipe]:
    """Without the package manager that a project is made with, which may not be installed."""
    line = re.sub(r"\b(?:pnpm exec|bunx|yarn(?! run\b)) ", "npx ", test, count=1)
    line = re.sub(r"\b(?:pnpm|yarn|bun) run ", "npm run ", line, count=1)
    setup = ("npm install --no-audit --no-fund --no-package-lock --legacy-peer-deps",)
    return [] if line == test else [Recipe(setup=setup, test=line, how="with npm")]


def _locked(wanted: Wants) -> str:
    chosen = [f"--extra {shlex.quote(name)}" for name in wanted.extras]
    chosen += [f"--group {shlex.quote(name)}" for name in wanted.groups]
    install = f"{_PROGRAM}uv sync --frozen --inexact --python {_PROGRAM}python --no-cache"
    return " ".join([install, "--compile-bytecode", *chosen])


def _arguments(folder: Folder, wanted: Wants, runner: str, loose: bool) -> str:
    parts = []
    if wanted.installable:
        extras = f"[{','.join(wanted.extras)}]" if wanted.extras else ""
        parts += ["-e", shlex.quote(f".{extras}")]
    parts += [f"--group {shlex.quote(name)}" for name in wanted.groups]
    if loose:
        lines = [line for name in wanted.files for line in folder.text(name).splitlines()]
        named = (found[1] for line in lines if (found := _PINNED.fullmatch(line)))
        parts += map(shlex.quote, dict.fromkeys(named))
    else:
        parts += [f"-r {shlex.quote(name)}" for name in wanted.files]
    parts += map(shlex.quote, wanted.packages)
    return " ".join([*parts, *([runner] if runner else [])]) or "pip"


def _chosen(names: Any, wanted: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in names if name.lower() in wanted)


def _mentions(path: str, names: tuple[str, ...]) -> bool:
    return bool({*re.split(r"[/._-]", path.lower())} & {*names})


def _tox(folder: Folder) -> list[str]:
    """What tox installs for the tests, but for what depends on the environment's name."""
    found = []
    for line in folder.options("tox.ini", "testenv").get("deps", "").splitlines():
        plain = line.strip()
        if re.fullmatch(r"[A-Za-z0-9][\w.-]*(\[[\w,-]+\])?([<>=!~][\w.,<>=!~*]*)?", plain):
            found.append(plain)
    return found


def _poetry(poetry: dict[str, Any]) -> list[str]:
    """Poetry's own tables of development packages, which nobody else reads."""
    groups = [table(poetry, "dev-dependencies")]
    for name, group in table(poetry, "group").items():
        if name.lower() in (*_TESTS, *_DEVELOPMENT):
            groups.append(table(group, "dependencies"))
    return [name for group in groups for name in group if re.fullmatch(r"[\w.-]+", name)]


def _version(folder: Folder, tag: str | None) -> str:
    """A version for projects that take it from tags: the prepared tree has none."""
    found = _VERSION.search(f" {tag}") if tag else None
    manifests = "".join(folder.text(name) for name in ("pyproject.toml", "setup.py", "setup.cfg"))
    if not _VERSIONED.search(manifests):
        return ""
    version = found[1] if found else "1.0"
    return f"SETUPTOOLS_SCM_PRETEND_VERSION={version} PBR_VERSION={version} "
