"""What a Python project's tests turn out to lack, of what the project itself names somewhere."""

from __future__ import annotations

import re
import shlex
import sys

from closeloop.tasks.mining.setup_recipes import REQUIREMENTS_PATTERN, Recipe
from closeloop.tasks.projects.manifest_folder import ManifestFolder

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


def add_missing_packages(recipe: Recipe, output: str, packages: frozenset[str]) -> Recipe | None:
    """The recipe with what its run lacked besides; None where the project names none of that."""
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
        name for name in matched_packages if name and name not in shlex.split(install)
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


def _own_names(folder: ManifestFolder) -> set[str]:
    """Names of folders and modules in the project: to install those would hide its own code."""
    names = {part for path in folder.files for part in path.split("/")}
    return names | {name.removesuffix(".py") for name in names}


def _normalise_package(name: str) -> str:
    return name.lower().replace("_", "-")
