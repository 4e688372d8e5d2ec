"""Mend a recipe by what its first try said: add what tests lack, leave out what cannot be had."""

from __future__ import annotations

import ast
import re
import shlex
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from closeloop.tasks.mining.setup_recipes import REQUIREMENTS_PATTERN, Recipe
from closeloop.tasks.projects.manifest_folder import ManifestFolder, nested_table

# What a Python project's tests turn out to lack, of what the project itself names somewhere.

MAX_MODULES = 20
_MISSING_MODULE = re.compile(r"No module named '([A-Za-z]\w*)")
_MANIFEST_PATH = re.compile(
    rf"pyproject\.toml|setup\.(?:py|cfg)|tox\.ini|noxfile\.py|Pipfile|.*{REQUIREMENTS_PATTERN}"
)
_PACKAGE_WORD = re.compile(r"[A-Za-z][\w.-]*\w")
_INSTALL_COMMAND = "uv pip install"
_OPTIONAL_MODULE = re.compile(
    r"(?m)^[ +][ \t]+(?:import|from) ([A-Za-z]\w*)|importorskip\([\"']([A-Za-z]\w*)"
    r"|skipif\([\s+]{0,99}(?:(?:[a-z]\w{0,40}\.){0,3}([A-Za-z]\w*) is None"
    r"|not HA(?:S|VE)_([A-Z]\w*))"
)


def find_named_packages(folder: ManifestFolder) -> frozenset[str]:
    """What could be a package: words of the files that say what is needed, but for its own."""
    texts = (folder.read_text(name) for name in folder.files if _MANIFEST_PATH.fullmatch(name))
    words = {_normalise_package(word) for text in texts for word in _PACKAGE_WORD.findall(text)}
    return frozenset(words - {_normalise_package(part) for part in _own_names(folder)})


def add_missing_packages(
    recipe: Recipe, output: str, packages: frozenset[str], wanted: Sequence[str] = ()
) -> Recipe | None:
    """The recipe with what its run lacked besides; None where the project names none of that.

    `wanted`: what is known to be lacking by its package.
    """
    *before, install = recipe.setup or ("",)
    if _INSTALL_COMMAND not in install:
        return None
    # Packages named like modules of Python are what it once lacked, and break what it has.
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
        for name in dict.fromkeys((*matched_packages, *wanted))
        if name and name not in shlex.split(install)
    ]
    if not added_packages:
        return None
    setup = (*before, f"{install} {shlex.join(added_packages)}")
    return Recipe(
        setup=setup, test=recipe.test, how=f"{recipe.how}, and {', '.join(added_packages)}"
    )


def describe_optional_modules(tests: str) -> str:
    """What tests skip themselves without, by their patch, said as Python says it."""
    modules = dict.fromkeys(next(filter(None, found)) for found in _OPTIONAL_MODULE.findall(tests))
    return "\n".join(f"No module named '{name}'" for name in modules)


_LACKING = re.compile(
    r"(?i)\b(?:requir|need|install|import|depend|no\b|not\b|without|missing|lack|unavailable)"
)
_OTHER_EXTRA = re.compile(
    r"(?i)tests?|testing|dev\w*|docs?|lint\w*|typing|types|mypy|build|release"
)


def find_extra_packages(folder: ManifestFolder) -> dict[str, tuple[str, ...]]:
    """Extras that users of the project may want → their packages."""
    listed: dict[str, Any] = {**nested_table(folder.pyproject, "tool", "poetry", "extras")}
    listed |= nested_table(folder.pyproject, "project", "optional-dependencies")
    listed |= _read_setup_extras(folder.read_text("setup.py"))
    for name, text in folder.read_section("setup.cfg", "options.extras_require").items():
        listed[name] = text.split("\n")
    own = {_normalise_package(part) for part in _own_names(folder)}
    extras = {
        name: tuple(_requirement_name(one) for one in requirements if isinstance(one, str))
        for name, requirements in listed.items()
        if isinstance(requirements, list) and not _OTHER_EXTRA.fullmatch(name)
    }
    return {
        _normalise_package(name): tuple(
            one for one in packages if one not in own and _PACKAGE_WORD.fullmatch(one)
        )
        for name, packages in extras.items()
    }


def _read_setup_extras(script: str) -> dict[str, Any]:
    """What a `setup.py` gives as `extras_require`, by its syntax."""
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
    """The entries of a dictionary that are plain lists; others, such as sums, are left out."""
    lists = {}
    for key, value in (
        zip(node.keys, node.values, strict=True) if isinstance(node, ast.Dict) else ()
    ):
        if isinstance(key, ast.Constant) and isinstance(value, ast.List | ast.Tuple):
            items = [one.value for one in value.elts if isinstance(one, ast.Constant)]
            lists[str(key.value)] = items
    return lists


def find_lacking_extras(complaints: Iterable[str], extras: dict[str, tuple[str, ...]]) -> list[str]:
    """Packages of extras that tests say they lack, by the extra's name or the package's own."""
    lines = (line for text in complaints for line in text.splitlines() if _LACKING.search(line))
    words = {_normalise_package(word) for line in lines for word in _PACKAGE_WORD.findall(line)}
    found = (
        package
        for name, packages in extras.items()
        for package in packages
        if words & {name, package}
    )
    return list(dict.fromkeys(found))[:MAX_MODULES]


def _own_names(folder: ManifestFolder) -> set[str]:
    """Names of folders and modules in the project: to install those would hide its own code."""
    names = {part for path in folder.files for part in path.split("/")}
    return names | {name.removesuffix(".py") for name in names}


def _normalise_package(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name.lower())


# What cannot be installed: the rest is tried without it.

MAX_LEFT_OUT = 4
_PACKAGE = r"([A-Za-z][\w.-]*)"
_UNINSTALLABLE = (
    re.compile(rf"Failed to (?:build|download|fetch|prepare)[^`\n]{{0,40}}`{_PACKAGE}(?:==|`)"),
    re.compile(rf"Because (?:only )?(?:there (?:is|are) no versions? of )?{_PACKAGE}"),
    re.compile(rf"(?:you require|requirement|distribution found for) {_PACKAGE}"),
)
"""How uv and pip name what they cannot install."""


def leave_out_requirement(recipe: Recipe, output: str, folder: ManifestFolder) -> Recipe | None:
    """The recipe without what its installation says cannot be had; None where that is not known.

    Only what tests need besides is left out: what the project itself depends on stays.
    """
    *before, install = recipe.setup or ("",)
    if _INSTALL_COMMAND not in install or len(recipe.left_out) >= MAX_LEFT_OUT:
        return None
    names = {_normalise_package(name) for sign in _UNINSTALLABLE for name in sign.findall(output)}
    head, _, arguments = install.partition(_INSTALL_COMMAND)
    words = _expand_requirements(shlex.split(arguments), folder)
    kept = [word for word in words if _requirement_name(word) not in names]
    dropped = tuple(dict.fromkeys(_requirement_name(word) for word in words if word not in kept))
    if not dropped or "pytest" in dropped:
        return None
    left_out = (*recipe.left_out, *dropped)
    return replace(
        recipe,
        setup=(*before, f"{head}{_INSTALL_COMMAND} {shlex.join(kept)}"),
        how=f"{recipe.how.partition(', without ')[0]}, without {', '.join(left_out)}",
        left_out=left_out,
    )


def _expand_requirements(words: list[str], folder: ManifestFolder) -> list[str]:
    """The arguments with requirement files, groups and extras written out, where they can be."""
    extras = nested_table(folder.pyproject, "project", "optional-dependencies")
    groups = nested_table(folder.pyproject, "dependency-groups")
    expanded: list[str] = []
    for last, word in zip(["", *words], words, strict=False):
        if word in ("-r", "--group"):
            continue
        extra = re.fullmatch(r"\.\[([^\]]+)\]", word) if last == "-e" else None
        if last == "-r":
            expanded += _read_requirements(folder.read_text(word)) or ["-r", word]
        elif last == "--group":
            listed = groups.get(word)
            known = listed if isinstance(listed, list) else [None]
            is_plain = all(isinstance(one, str) for one in known)
            expanded += map(str, known) if is_plain else ["--group", word]
        elif extra and all(isinstance(extras.get(name), list) for name in extra[1].split(",")):
            expanded += [".", *(one for name in extra[1].split(",") for one in extras[name])]
        else:
            expanded.append(word)
    return expanded


def _read_requirements(text: str) -> list[str]:
    """The plain lines of a requirement file; [] where it leads to other files."""
    lines = [line.partition(" #")[0].strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    return [] if any(line.startswith("-") for line in lines) else lines


def _requirement_name(word: str) -> str:
    found = re.match(r"[A-Za-z0-9][\w.-]*", word)
    return _normalise_package(found[0]) if found else word
