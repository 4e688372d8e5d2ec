"""What of a change does not decide its own verdict: everything that the acceptance runs through.

Tests, what steers them, scripts that the test command calls, installed packages, and files that
would be imported in place of the standard library or the test runner. These are the base's, or
the reference's where that changes them; never the agent's.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

import msgspec

from closeloop.grading.integrity.base_sources import BaseSources, read_base_sources
from closeloop.grading.integrity.data_readers import make_data_finder
from closeloop.grading.integrity.run_through import SCRIPT_NAMES, BaseTree, run_through
from closeloop.grading.touched_paths import (
    changed_paths,
    list_patch_paths,
    list_test_files,
    parse_change,
    path_in_test_id,
)
from closeloop.records.attempt import TestRun
from closeloop.records.change import Change
from closeloop.records.globs import escape_glob, matches_globs
from closeloop.records.record import Record
from closeloop.records.task import Task

STEERING = (
    *("**/conftest.py", "**/pytest.ini", "**/.pytest.ini", "**/pytest.toml", "**/.pytest.toml"),
    *("**/tox.ini", "**/toxfile.py", "**/noxfile.py", "**/.coveragerc", "**/*.pth"),
    *("**/sitecustomize.py", "**/usercustomize.py"),
    *("**/jest.config.*", "**/jest.setup.*", "**/setupTests.*", "**/vitest.config.*"),
    *("**/vitest.setup.*", "**/vitest.workspace.*", "**/.mocharc.*", "**/mocha.opts"),
    *("**/.npmrc", "**/.yarnrc", "**/.yarnrc.yml", "**/.pnpmfile.cjs", "**/.babelrc*"),
    *("**/babel.config.*", "**/go.work", "**/.cargo/config", "**/.cargo/config.toml"),
    *("**/rust-toolchain", "**/rust-toolchain.toml"),
)
"""How tests are found and run."""
MANIFESTS = ("**/pyproject.toml", "**/setup.cfg", "**/package.json", "**/Cargo.toml", "**/go.mod")
"""Steer tests in some of their sections only."""
INSTALLED = (
    *("**/*.pyc", "**/*.pyo", "**/__pycache__/**", "**/site-packages/**", "**/node_modules/**"),
    *("**/.git/**", "**/.pnp.cjs", "**/.pnp.loader.mjs", "**/*.egg-info/**", "**/*.dist-info/**"),
)
"""Compiled code and installed packages: nobody writes these by hand."""
TEST_FILES = (
    *("**/test_*.py", "**/*_test.py", "**/tests.py", "**/*.test.*", "**/*.spec.*"),
    *("**/*_test.go", "**/*Test.java", "**/*Tests.java", "**/*Test.kt", "**/*_spec.rb"),
    *("**/__snapshots__/**", "**/__tests__/**"),
)
PLAIN_TEST_FOLDERS = frozenset({"tests", "__tests__", "specs", "unittests", "unit_tests", "e2e"})
TEST_FOLDERS = PLAIN_TEST_FOLDERS | {
    *("test", "spec", "testing", "testsuite", "test_suite"),
    *("integration_tests", "functional_tests"),
}
"""A package may be called `testing` and have its tests in `testing/tests`."""
RUNNER_MODULES = frozenset(
    {
        *("pytest", "_pytest", "py", "pluggy", "iniconfig", "packaging", "exceptiongroup", "tomli"),
        *("pygments", "attr", "attrs", "colorama", "typing_extensions", "xdist", "execnet", "nose"),
        *("anyio", "faker", "typeguard", "syrupy", "respx", "time_machine", "inline_snapshot"),
        *("coverage", "hypothesis", "_hypothesis_pytestplugin", "sortedcontainers", "asyncio"),
    }
)
SOURCE_FOLDERS = frozenset({"src", "lib", "python"})
ROOT_MARKS = ("pyproject.toml", "setup.py", "setup.cfg", "conftest.py", "pytest.ini", "tox.ini")
"""Beside which modules are imported from."""
CONFIGURATION = ("pyproject.toml", "pytest.ini", "setup.cfg", "tox.ini")
_TEST_CODE = re.compile(r"def test|class Test|TestCase|\b(?:it|test|describe)\(|func Test")
"""Code under test may have tests of its own inside: then it is no file of tests."""
_PYTHON_TEST_CODE = re.compile(
    r"^\s*(?:async\s+)?def\s+test|^class\s+\w*Test|\bpytest\b|\bunittest\b|\bdoctest\b",
    re.MULTILINE,
)
_MODULE = re.compile(r"(?P<name>\w+)(?:\.[\w-]+)*\.(?:py|pyd|so)")


SHADOWS = "would be imported instead of"
TEST_DATA = "data that only tests read"
ADDED_TEST, CHANGED_TEST = "a test file that the agent added", "a test file"


class Steering(Record):
    """What decides which files of a change count; made once for a task at its base."""

    base: BaseTree | None
    declared: tuple[str, ...]
    """Globs of what the task itself protects: its list, its tests' files, its hidden tests."""
    references: frozenset[str]
    """Paths that the reference change touches."""
    subject: frozenset[str]
    """Of these, the ones that are the agent's to change, because the task is about them."""
    owned: frozenset[str]
    """Paths that the acceptance names and only the agent can make."""
    test_folders: frozenset[str]
    called: Mapping[str, str]
    """Files that the acceptance runs through, and by what."""
    mentioned: frozenset[str]
    """Words of the commands and of the base's test configuration: folders may be among them."""
    prompt: str
    find_data_reader: Callable[[str], str | None]
    """From a path to a test, where only tests read it as data; reads the base when first asked."""
    checked: bool
    """Whether anything is run at all."""
    added_tests_count: bool
    """Exit codes alone, and no reference: the task may be to write tests."""


def read_steering(task: Task, base: BaseTree | None, before: TestRun | None = None) -> Steering:
    """Find out what a task's acceptance runs through."""
    wanted = task.acceptance
    named = (*wanted.fail_to_pass, *(wanted.pass_to_pass or ()))
    ran = [test.id for test in before.tests] if before else []
    hidden = list_patch_paths(wanted.patch)
    known = [*list_test_files((*named, *ran), wanted.runner), *map(escape_glob, hidden)]
    declared = (*task.protected, *list_test_files(named, wanted.runner), *map(escape_glob, hidden))
    commands = [command for command in (wanted.run, *wanted.commands) if command]
    steering = Steering(
        base=base,
        declared=declared,
        references=frozenset(list_patch_paths(task.reference)),
        subject=frozenset(),
        owned=frozenset(_list_owned_paths(task, commands, base, hidden)),
        test_folders=frozenset(filter(None, map(find_test_folder, known))),
        called=run_through(commands, base) if base else {},
        mentioned=frozenset(_split_words((*commands, *_read_configuration(base)))),
        prompt=task.prompt,
        find_data_reader=lambda _: None,
        checked=bool(wanted.run or wanted.commands),
        added_tests_count=not wanted.run and task.reference is None,
    )
    finder = make_data_finder(
        partial(_read_sources, steering, task, frozenset(known)), steering.references, task.prompt
    )
    return _with_subject(msgspec.structs.replace(steering, find_data_reader=finder), task)


def restored_paths(steering: Steering, change: Change) -> dict[str, str]:
    """The paths of a change that do not count, each with why."""
    reasons = {path: why_restored(steering, path) for path in changed_paths(change)}
    return {path: why for path, why in reasons.items() if why is not None}


def why_restored(steering: Steering, path: str) -> str | None:
    """Why a changed file does not count; None for one that does."""
    if matches_globs(path, steering.declared):
        return "protected by the task"
    if not steering.checked or path in steering.owned or path in steering.subject:
        return None
    expected = path in steering.references
    fresh = steering.base is not None and not steering.base.has(path)
    if matches_globs(path, INSTALLED) and not expected:
        return "compiled code or an installed package"
    if fresh and not expected and (name := shadowed_module(steering, path)):
        return f"{SHADOWS} {name}"
    if is_test_path(steering, path) and not (fresh and steering.added_tests_count):
        return ADDED_TEST if fresh else CHANGED_TEST
    if matches_globs(path, STEERING):
        return "steers how tests run"
    if path in steering.called and not expected and not _is_named(steering, path):
        return f"run by {steering.called[path]}"
    if matches_globs(path, MANIFESTS) and steering.references:
        return "steers how tests run, in part"
    if not (fresh and steering.added_tests_count) and (test := steering.find_data_reader(path)):
        return f"{TEST_DATA} ({test})"
    return None


def is_manifest(path: str) -> bool:
    """Whether some sections of a file steer tests, and others do not."""
    return matches_globs(path, MANIFESTS)


def is_test_path(steering: Steering, path: str) -> bool:
    """Whether a path is a test by its name, or lies in a folder that holds tests."""
    folder = find_test_folder(path)
    if folder is not None and folder in steering.test_folders:
        return True
    return matches_globs(path, TEST_FILES) and not _holds_no_tests(steering, path)


def _holds_no_tests(steering: Steering, path: str) -> bool:
    """Whether a module of the base is only called like tests: `shop/test_client.py`."""
    text = steering.base.read(path) if steering.base and path.endswith(".py") else None
    return text is not None and not _PYTHON_TEST_CODE.search(text)


def shadowed_module(steering: Steering, path: str) -> str | None:
    """Which module of the standard library or the runner a new file would stand in for.

    Only where modules are imported from: a file inside a package is imported by the package's
    name. What the base has under that name already is the project's own.
    """
    folder, _, file = path.rpartition("/")
    found = _MODULE.fullmatch(file)
    if found is None or steering.base is None:
        return None
    name = found["name"]
    if name == "__init__":
        folder, _, name = folder.rpartition("/")
    protected = name in sys.stdlib_module_names or name in RUNNER_MODULES
    if not protected and not name.startswith("pytest_"):
        return None
    inside = f"{folder}/" if folder else ""
    if steering.base.has(f"{inside}{name}.py") or steering.base.has(f"{inside}{name}"):
        return None
    return f"`{name}`" if _is_import_root(steering, folder) else None


def _is_import_root(steering: Steering, folder: str) -> bool:
    """Whether a folder may be in the search path of Python, as far as the base shows."""
    name = folder.rpartition("/")[2]
    if not folder or name in TEST_FOLDERS or folder in steering.mentioned:
        return True
    if name in SOURCE_FOLDERS:
        return steering.base is None or not steering.base.has(f"{folder}/__init__.py")
    return steering.base is not None and any(
        steering.base.has(f"{folder}/{mark}") for mark in ROOT_MARKS
    )


def _read_sources(
    steering: Steering, task: Task, known_tests: frozenset[str]
) -> BaseSources | None:
    """The base's code with what hidden tests and the reference add to it, tests told apart."""
    if steering.base is None:
        return None
    patches = filter(None, map(parse_change, (task.acceptance.patch, task.reference)))

    def is_test(path: str, text: str) -> bool:
        name, folders = path.rpartition("/")[2], path.split("/")[:-1]
        if is_test_path(steering, path) or PLAIN_TEST_FOLDERS.intersection(folders):
            return True
        if name == "conftest.py" or (path in steering.called and SCRIPT_NAMES.fullmatch(name)):
            return True
        return matches_globs(path, known_tests) and _TEST_CODE.search(text) is not None

    return read_base_sources(steering.base.root, patches, is_test)


def _with_subject(steering: Steering, task: Task) -> Steering:
    """Where a reference changes nothing but tests and what steers them, these are the task."""
    changed = parse_change(task.reference)
    aside = restored_paths(steering, changed) if changed else {}
    own = {path for path in steering.references if not matches_globs(path, steering.declared)}
    about = own if own and own <= aside.keys() else frozenset[str]()
    return msgspec.structs.replace(steering, subject=frozenset(about))


def _list_owned_paths(
    task: Task, commands: Sequence[str], base: BaseTree | None, hidden: Iterable[str]
) -> Iterator[str]:
    """Files that the acceptance names, and neither base, hidden tests nor reference have."""
    tests = map(path_in_test_id, task.acceptance.fail_to_pass)
    known = {*hidden, *list_patch_paths(task.reference)}
    for path in (*_split_words(commands), *tests):
        if "." in path and base is not None and not base.has(path) and path not in known:
            yield path


def _split_words(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        for word in re.split(r"[\s'\"=:;,|&()\[\]]+", text):
            yield word.removeprefix("./").rstrip("/")


def _read_configuration(base: BaseTree | None) -> Iterator[str]:
    """What the base says of the folders that its tests import from."""
    for name in CONFIGURATION:
        text = (base.read(name) if base else None) or ""
        yield from re.findall(r"^pythonpath\s*=\s*(\[[^\]]*\]|.*)", text, re.MULTILINE)


def find_test_folder(path: str) -> str | None:
    """The outermost folder above a path that is called as folders of tests are."""
    parts = path.removeprefix("**/").split("/")[:-1]
    for known in (PLAIN_TEST_FOLDERS, TEST_FOLDERS):
        for length, part in enumerate(parts, 1):
            if part in known:
                return "/".join(parts[:length])
    return None


def _is_named(steering: Steering, path: str) -> bool:
    """Whether the request speaks of this file: then it is the agent's to change."""
    return path.rpartition("/")[2].lower() in steering.prompt.lower()
