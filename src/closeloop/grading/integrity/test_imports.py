"""Modules that tests import and that the base has, in its own files or among installed packages.

A test file that ran at the base found all that it imports. A new module of such a name would only
stand in for what was there: a library of assertions, say, that lies among installed packages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from closeloop.grading.integrity.base_sources import folders_above, list_added_sources
from closeloop.grading.integrity.run_through import BaseTree
from closeloop.grading.touched_paths import list_test_files, parse_change
from closeloop.records.attempt import TestRun
from closeloop.records.task import Acceptance

_IMPORT = re.compile(r"^(?:from[ \t]+(\w[\w.]*)|import[ \t]+(\w[\w., \t]*))", re.MULTILINE)
"""Imports of a whole file: one in a branch or a function may never have run."""


def list_loaded_modules(
    acceptance: Acceptance, base: BaseTree | None, before: TestRun | None
) -> frozenset[str]:
    """The top-level modules that test files import which ran at the base, and their helpers."""
    if base is None or before is None:
        return frozenset()
    hidden = parse_change(acceptance.patch)
    added = {source.path: source.text for source in list_added_sources(hidden)} if hidden else {}
    ran = (test.id for test in before.tests if test.status in ("passed", "failed"))
    waiting = [path.removeprefix("**/") for path in list_test_files(ran, acceptance.runner)]
    seen, names = set[str](), set[str]()
    while waiting:
        path = waiting.pop()
        if path in seen or not path.endswith(".py"):
            continue
        seen.add(path)
        modules = set(_list_imports(path, base, added))
        names |= {module.partition(".")[0] for module in modules}
        waiting += _list_helpers(path, modules)
    return frozenset(names)


def _list_imports(path: str, base: BaseTree, added: Mapping[str, str]) -> Iterator[str]:
    text = f"{base.read(path) or ''}\n{added.get(path, '')}"
    for match in _IMPORT.finditer(text):
        for module in (match[1] or match[2]).split(","):
            yield module.split()[0] if module.split() else ""


def _list_helpers(path: str, modules: set[str]) -> Iterator[str]:
    """Files that a test may import from its folder or the root, and what pytest loads with it."""
    folders = [*folders_above(path), ""]
    for folder in folders:
        yield f"{folder}/conftest.py".lstrip("/")
    for module in modules:
        for folder in (folders[0], ""):
            yield f"{folder}/{module.replace('.', '/')}.py".lstrip("/")
