"""What a Python project's tests turn out to lack, of what the project itself names somewhere."""

from __future__ import annotations

import re
import shlex
import sys

from closeloop.tasks.mining.recipes import REQUIREMENTS, Recipe
from closeloop.tasks.projects.folder import Folder

MOST_MODULES = 20
_MISSING = re.compile(r"No module named '([A-Za-z]\w*)")
_MANIFEST = re.compile(
    rf"pyproject\.toml|setup\.(?:py|cfg)|tox\.ini|noxfile\.py|Pipfile|.*{REQUIREMENTS}"
)
_WORD = re.compile(r"[A-Za-z][\w.-]*\w")
_INSTALLS = "uv pip install"
_OPTIONAL = re.compile(
    r"(?m)^[ +][ \t]+(?:import|from) ([A-Za-z]\w*)|importorskip\([\"']([A-Za-z]\w*)"
    r"|skipif\([\s+]{0,99}(?:(?:[a-z]\w{0,40}\.){0,3}([A-Za-z]\w*) is None"
    r"|not HA(?:S|VE)_([A-Z]\w*))"
)


def packages_named(folder: Folder) -> frozenset[str]:
    """What could be a package: words of the files that say what is needed, but for its own."""
    texts = (folder.text(name) for name in folder.files if _MANIFEST.fullmatch(name))
    words = {_plain(word) for text in texts for word in _WORD.findall(text)}
    return frozenset(words - {_plain(part) for part in _parts(folder)})


def completed(recipe: Recipe, output: str, packages: frozenset[str]) -> Recipe | None:
    """The recipe with what its run lacked besides; None where the project names none of that."""
    *before, install = recipe.setup or ("",)
    if _INSTALLS not in install:
        return None
    # Packages named like modules of Python are what it once lacked, and break what it has.
    missing = (name for name in _MISSING.findall(output) if name not in sys.stdlib_module_names)
    modules = list(dict.fromkeys(missing))[:MOST_MODULES]
    called = ((name, f"python-{name}", f"py{name}") for name in map(_plain, modules))
    found = [next((name for name in names if name in packages), None) for names in called]
    more = [name for name in found if name and name not in shlex.split(install)]
    if not more:
        return None
    setup = (*before, f"{install} {shlex.join(more)}")
    return Recipe(setup=setup, test=recipe.test, how=f"{recipe.how}, and {', '.join(more)}")


def done_without(tests: str) -> str:
    """What tests skip themselves without, by their patch, said as Python says it."""
    modules = dict.fromkeys(next(filter(None, found)) for found in _OPTIONAL.findall(tests))
    return "\n".join(f"No module named '{name}'" for name in modules)


def _parts(folder: Folder) -> set[str]:
    """Names of folders and modules in the project: to install those would hide its own code."""
    names = {part for path in folder.files for part in path.split("/")}
    return names | {name.removesuffix(".py") for name in names}


def _plain(name: str) -> str:
    return name.lower().replace("_", "-")
