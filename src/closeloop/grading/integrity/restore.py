"""Find and restore the parts of a change that must not decide its own verdict.

These are tests, what steers them, scripts that the test command calls, installed packages, and
files that would be imported in place of the standard library or the test runner. Their content
comes from the base, or from the reference if that changes them; never from the agent.
"""

from __future__ import annotations

import configparser
import json
import os
import re
import stat
import sys
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path, PurePosixPath
from typing import Any

import anyio.to_thread
import msgspec

from closeloop.grading.integrity.data_readers import (
    BaseSources,
    folders_above,
    list_added_sources,
    make_data_finder,
    read_base_sources,
)
from closeloop.grading.tool_outcomes import (
    changed_paths,
    list_patch_paths,
    list_test_files,
    parse_change,
    path_in_test_id,
)
from closeloop.records.attempt import TestRun
from closeloop.records.change import Change
from closeloop.records.record import Record
from closeloop.records.task import Acceptance, Task
from closeloop.sandbox.workspaces import Workspace
from closeloop.text.wording import compile_lazily, escape_glob, matches_globs

# Follow a test command into the files it calls: Makefiles, scripts, and what those call.


MAX_FILES = 200
MAX_BYTES = 256 << 10
"""Maximum size in bytes of a script; a larger file was not written by hand."""
BY_PROGRAM = {
    "make": ("GNUmakefile", "makefile", "Makefile"),
    "gmake": ("GNUmakefile", "makefile", "Makefile"),
    "just": ("justfile", "Justfile", ".justfile"),
    "task": ("Taskfile.yml", "Taskfile.yaml"),
    "tox": ("tox.ini",),
    "nox": ("noxfile.py",),
    "invoke": ("tasks.py",),
    "inv": ("tasks.py",),
    "rake": ("Rakefile",),
    "mvn": ("pom.xml",),
    "gradle": ("build.gradle", "build.gradle.kts", "settings.gradle", "settings.gradle.kts"),
    "gradlew": ("build.gradle", "build.gradle.kts", "settings.gradle", "settings.gradle.kts"),
    "cmake": ("CMakeLists.txt",),
    "ctest": ("CMakeLists.txt",),
    "hatch": ("hatch.toml",),
    "cargo": ("build.rs",),
    "vitest": tuple(f"vite.config.{suffix}" for suffix in ("js", "mjs", "cjs", "ts", "mts", "cts")),
    "ava": ("ava.config.js", "ava.config.mjs", "ava.config.cjs"),
    "tap": (".taprc",),
    "nyc": (".nycrc", ".nycrc.json", ".nycrc.yml", "nyc.config.js"),
    "playwright": ("playwright.config.ts", "playwright.config.js"),
    "bun": ("bunfig.toml",),
    "deno": ("deno.json", "deno.jsonc"),
    "turbo": ("turbo.json",),
    "nx": ("nx.json",),
    "pipenv": ("Pipfile",),
    "poetry": ("poetry.toml",),
    "pdm": ("pdm.toml",),
    "uv": ("uv.toml",),
    "pixi": ("pixi.toml",),
    "mise": ("mise.toml", ".mise.toml"),
    "mage": ("magefile.go",),
    "phpunit": ("phpunit.xml", "phpunit.xml.dist"),
    "rspec": (".rspec",),
    "ruff": ("ruff.toml", ".ruff.toml"),
    "mypy": ("mypy.ini", ".mypy.ini"),
    "flake8": (".flake8",),
    "pylint": ("pylintrc", ".pylintrc"),
    "pyright": ("pyrightconfig.json",),
    "eslint": (".eslintrc", ".eslintignore"),
    "golangci-lint": (".golangci.yml", ".golangci.yaml", ".golangci.toml"),
}
"""Files that each program reads by default."""
NODE_SCRIPTS = frozenset({"npm", "pnpm", "yarn", "bun"})
SCRIPT_FOLDERS = frozenset({"scripts", "script", "tools", "tool", "ci", ".ci", ".github", "hack"})
SCRIPT_NAMES = compile_lazily(
    r"(?:run|do|self)?[-_]?(?:tests?|checks?|verify|validate|lint|ci)\b.*", re.I
)
SCRIPT_ENDINGS = (".sh", ".bash", ".zsh", ".mk", ".ps1", ".bat")
_WORD = compile_lazily(r"[\w@%+.,:/~-]+")
_INCLUDED = compile_lazily(r"^[ \t]*[-s]?include[ \t]+([^#\n]+)", re.MULTILINE)
"""Includes of a Makefile; with a dash, the file may be missing."""
_SOURCED = compile_lazily(
    r"(?:^|[;&|{(]|\b(?:then|do|else))[ \t]*(?:\.|source)[ \t]+([\w./-]+)", re.M
)
_ENTERED = compile_lazily(
    r"(?:\b(?:cd|pushd)|\s(?:-C|--directory|--prefix|--cwd|--dir))[ \t=]+([\w./-]+)"
)
"""Folders in which a command goes on."""
_GIVEN_SETTINGS = compile_lazily(
    r"\b(?:pytest|py\.test|jest|vitest|mocha|ava|tap|tox|nox|coverage|nyc|c8|--test)\b[^\n;&|]*?\s"
    r"(?:-c|-r|--config(?:-file)?|--rcfile|--require|--import|--loader)[ \t=]+([\w./-]+)"
    r"|\s(?:-r|--require|--import|--loader)[ \t=]+([\w./-]+)[^\n;&|]*\s--test\b"
)
"""Files of settings and hooks that a runner is given."""
PROGRAMS = frozenset(
    {
        *("python", "python2", "python3", "pytest", "py.test", "tox", "nox", "uv", "poetry", "env"),
        *("node", "npm", "npx", "yarn", "pnpm", "bun", "jest", "vitest", "mocha", "tsx", "go"),
        *("cargo", "rustc", "make", "just", "sh", "bash", "git", "tar", "find", "cat", "tail"),
    }
)
"""Programs that a new file of that name, in a folder of `PATH`, would replace."""
_STARTED = compile_lazily(r"(?:^|\s)-m[ \t]+(\w[\w.]*)")


class BaseTree(Record):
    """The files of a base on disk; links out of it are not followed."""

    root: str

    def has(self, path: str) -> bool:
        """Return whether there is a file or a folder at that path."""
        return self._real(path) is not None

    def read(self, path: str) -> str | None:
        """Return a file's text; None if it is missing, too large or not a regular file."""
        real = self._real(path)
        if real is None:
            return None
        try:
            status = real.lstat()
            if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_BYTES:
                return None
            return real.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None

    def read_bytes(self, path: str) -> bytes | None:
        """Return a file's content, however large; None if it is missing or not a regular file."""
        real = self._real(path)
        try:
            is_file = real is not None and stat.S_ISREG(real.lstat().st_mode)
            return real.read_bytes() if real is not None and is_file else None
        except OSError:
            return None

    def _real(self, path: str) -> Path | None:
        if not path or "\0" in path or len(path) > 4_000:
            return None
        full = Path(os.path.realpath(self.root), os.path.normpath(path))
        try:
            is_inside = full.parent.resolve().is_relative_to(os.path.realpath(self.root))
            return full if is_inside and os.path.lexists(full) else None
        except (OSError, ValueError):
            return None


def run_through(commands: Iterable[str], base: BaseTree) -> dict[str, str]:
    """Return the base files that commands call, directly or indirectly, each with its caller."""
    caller_by_path: dict[str, str] = {}
    pending = [(command, f"`{command}`") for command in commands]
    while pending and len(caller_by_path) < MAX_FILES:
        text, caller = pending.pop(0)
        folder = caller.rpartition("/")[0] if caller in caller_by_path else ""
        for path in _named_files(text, folder, base):
            if path in caller_by_path:
                continue
            caller_by_path[path] = caller
            content = base.read(path)
            if content is not None:
                pending.append((content, path))
    return caller_by_path


def is_script(path: str, content: str | None) -> bool:
    """Return whether a file that a command names is a checking tool, rather than code to check."""
    folders, name = path.split("/")[:-1], path.rpartition("/")[2]
    if name == "__main__.py" and folders:
        name = folders[-1]
    script_names = {file for files in BY_PROGRAM.values() for file in files}
    script_names |= {"package.json", "manage.py"}
    if name in script_names or name.endswith(SCRIPT_ENDINGS) or SCRIPT_NAMES.fullmatch(name):
        return True
    if SCRIPT_FOLDERS & set(folders):
        return True
    shell = content is not None and re.match(r"#!.*\b(?:ba|da|z|k)?sh\b", content)
    return bool(shell) and "bin" not in folders


def _named_files(text: str, folder: str, base: BaseTree) -> list[str]:
    """Return scripts that a text names, and files that its programs read by default.

    The latter may be missing.
    """
    places = list(dict.fromkeys(["", folder, *_list_entered(text, folder)]))
    read_by_default = dict.fromkeys(_list_included(text))
    mentioned = dict.fromkeys(_list_modules(text, folder))
    for word in _WORD.findall(text):
        program = word.rpartition("/")[2]
        by_default = BY_PROGRAM.get(program, ())
        read_by_default.update(dict.fromkeys(_in_places(by_default, places)))
        if program in NODE_SCRIPTS:
            mentioned.update(dict.fromkeys(_in_places(["package.json"], places)))
        if not word.startswith("/") and ("/" in word or "." in word):
            mentioned.update(dict.fromkeys(_in_places([word.partition("::")[0]], places)))
    given = [first or second for first, second in _GIVEN_SETTINGS.findall(text)]
    settings = (path for path in _in_places(given, places) if base.read(path) is not None)
    scripts = (
        path
        for path in mentioned
        if (content := base.read(path)) is not None and is_script(path, content)
    )
    return [*read_by_default, *settings, *scripts]


def _list_entered(text: str, folder: str) -> Iterator[str]:
    for entered in _ENTERED.findall(text):
        yield from _in_places([entered], ["", folder])


def _in_places(paths: Iterable[str], places: Iterable[str]) -> Iterator[str]:
    """Yield paths from each of some folders, without those that leave the workspace."""
    paths = list(paths)
    for place in places:
        for path in paths:
            plain = os.path.normpath(f"{place}/{path}" if place else path)
            if not plain.startswith(("/", "..")):
                yield plain


def _list_included(text: str) -> Iterator[str]:
    """Yield files that a Makefile includes or a shell script sources, whatever their name."""
    words = [word for line in _INCLUDED.findall(text) for word in line.split()]
    for word in (*words, *_SOURCED.findall(text)):
        plain = os.path.normpath(word)
        if not plain.startswith(("/", "..")) and "$" not in plain:
            yield plain


def _list_modules(text: str, folder: str) -> Iterator[str]:
    """Yield files of modules that a command starts, or that a script imports from its own
    folder."""
    for module in _STARTED.findall(text):
        path = module.replace(".", "/")
        yield from (f"{path}.py", f"{path}/__main__.py", f"{path}/__init__.py")
    if not SCRIPT_FOLDERS.intersection(folder.split("/")):
        return
    for match in _IMPORT.finditer(text):
        for module in (match[1] or match[2]).split(","):
            path = f"{folder}/{module.split()[0].replace('.', '/')}" if module.split() else folder
            yield from (f"{path}.py", f"{path}/__init__.py")


# Modules that tests import and that the base has, in its own files or in installed packages.
#
# A test file that ran at the base found everything it imports. A new module of such a name would
# only shadow what was there: for example, a library of assertions among the installed
# packages.


_IMPORT = compile_lazily(r"^(?:from[ \t]+(\w[\w.]*)|import[ \t]+(\w[\w., \t]*))", re.MULTILINE)
"""Imports at the top level of a file; one in a branch or a function may never have run."""


def list_loaded_modules(
    acceptance: Acceptance, base: BaseTree | None, before: TestRun | None
) -> frozenset[str]:
    """Return top-level modules imported by test files that ran at the base, and by their
    helpers."""
    if base is None or before is None:
        return frozenset()
    hidden = parse_change(acceptance.patch)
    added = {source.path: source.text for source in list_added_sources(hidden)} if hidden else {}
    ran_tests = (test.id for test in before.tests if test.status in ("passed", "failed"))
    pending = [path.removeprefix("**/") for path in list_test_files(ran_tests, acceptance.runner)]
    visited, names = set[str](), set[str]()
    while pending:
        path = pending.pop()
        if path in visited or not path.endswith(".py"):
            continue
        visited.add(path)
        modules = set(_list_imports(path, base, added))
        names |= {module.partition(".")[0] for module in modules}
        pending += _list_helpers(path, modules)
    return frozenset(names)


def _list_imports(path: str, base: BaseTree, added: Mapping[str, str]) -> Iterator[str]:
    text = f"{base.read(path) or ''}\n{added.get(path, '')}"
    for match in _IMPORT.finditer(text):
        for module in (match[1] or match[2]).split(","):
            yield module.split()[0] if module.split() else ""


def _list_helpers(path: str, modules: set[str]) -> Iterator[str]:
    """Yield files that a test may import from its folder or the root, and its `conftest.py`
    files."""
    folders = [*folders_above(path), ""]
    for folder in folders:
        yield f"{folder}/conftest.py".lstrip("/")
    for module in modules:
        for folder in (folders[0], ""):
            yield f"{folder}/{module.replace('.', '/')}.py".lstrip("/")


STEERING = (
    *("**/conftest.py", "**/pytest.ini", "**/.pytest.ini", "**/pytest.toml", "**/.pytest.toml"),
    *("**/tox.ini", "**/toxfile.py", "**/noxfile.py", "**/.coveragerc", "**/*.pth"),
    *("**/sitecustomize.py", "**/usercustomize.py"),
    *("**/jest.config.*", "**/jest.setup.*", "**/setupTests.*", "**/vitest.config.*"),
    *("**/vitest.setup.*", "**/vitest.workspace.*", "**/.mocharc.*", "**/mocha.opts"),
    *("**/.npmrc", "**/.yarnrc", "**/.yarnrc.yml", "**/.pnpmfile.cjs", "**/.babelrc*"),
    *("**/babel.config.*", "**/go.work", "**/.cargo/config", "**/.cargo/config.toml"),
    *("**/rust-toolchain", "**/rust-toolchain.toml", "**/.config/nextest.toml"),
    *("**/CTestTestfile.cmake", "**/CTestCustom.cmake", "**/CTestConfig.cmake"),
)
"""Files that decide how tests are found and run."""
MANIFESTS = ("**/pyproject.toml", "**/setup.cfg", "**/package.json", "**/Cargo.toml", "**/go.mod")
"""Files that steer tests in some of their sections only."""
INSTALLED = (
    *("**/*.pyc", "**/*.pyo", "**/__pycache__/**", "**/site-packages/**", "**/node_modules/**"),
    *("**/.git/**", "**/.pnp.cjs", "**/.pnp.loader.mjs", "**/*.egg-info/**", "**/*.dist-info/**"),
    *("**/vendor/github.com/stretchr/testify/**", "**/vendor/github.com/onsi/g*/**"),
    *("**/vendor/github.com/google/go-cmp/**", "**/vendor/gotest.tools/**"),
    *("**/vendor/github.com/frankban/quicktest/**", "**/vendor/github.com/matryer/is/**"),
)
"""Compiled code and installed packages, which nobody writes by hand."""
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
"""Names of test folders.

A package may be called `testing` and have its tests in `testing/tests`.
"""
RUNNER_MODULES = frozenset(
    {
        *("pytest", "_pytest", "py", "pluggy", "iniconfig", "packaging", "exceptiongroup", "tomli"),
        *("pygments", "attr", "attrs", "colorama", "typing_extensions", "xdist", "execnet", "nose"),
        *("anyio", "faker", "typeguard", "syrupy", "respx", "time_machine", "inline_snapshot"),
        *("coverage", "hypothesis", "_hypothesis_pytestplugin", "sortedcontainers", "asyncio"),
        *("setuptools", "_distutils_hack", "pkg_resources", "argcomplete", "importlib_metadata"),
        *("assertpy", "hamcrest", "expects", "sure", "grappa", "ward", "testfixtures", "mock"),
        *("dirty_equals", "deepdiff", "approvaltests", "snapshottest", "parameterized", "ddt"),
    }
)
OWN_ENDINGS = ("", ".py", ".pyx", ".pyi", ".c", ".cpp")
SOURCE_FOLDERS = frozenset({"src", "lib", "python"})
ROOT_MARKS = ("pyproject.toml", "setup.py", "setup.cfg", "conftest.py", "pytest.ini", "tox.ini")
"""Files that mark a folder from which modules are imported."""
CONFIGURATION = ("pyproject.toml", "pytest.ini", "setup.cfg", "tox.ini")
_TEST_CODE = compile_lazily(r"def test|class Test|TestCase|\b(?:it|test|describe)\(|func Test")
"""Code of tests; a file of the product with tests inside is not a test file."""
_PYTHON_TEST_CODE = compile_lazily(
    r"^\s*(?:async\s+)?def\s+test|^class\s+\w*Test|\bpytest\b|\bunittest\b|\bdoctest\b",
    re.MULTILINE,
)
_MODULE = compile_lazily(r"(?P<name>\w+)(?:\.[\w-]+)*\.(?:py|pyd|so)")


SHADOWS = "would be imported instead of"
TEST_DATA = "data that only tests read"
ADDED_TEST, CHANGED_TEST = "a test file that the agent added", "a test file"


class Steering(Record):
    """What decides which files of a change count; built once for a task at its base."""

    base: BaseTree | None
    declared: tuple[str, ...]
    """Globs of what the task itself protects: its list, its tests' files, its hidden tests."""
    references: frozenset[str]
    """Paths that the reference change touches."""
    subject: frozenset[str]
    """The referenced paths that the agent may change, because the task is about them."""
    owned: frozenset[str]
    """Paths that the acceptance names and only the agent can create."""
    test_folders: frozenset[str]
    collected: frozenset[str]
    """Globs of the file names that the base's configuration of pytest declares as tests."""
    called: Mapping[str, str]
    """Files that the acceptance calls, each with its caller."""
    mentioned: frozenset[str]
    """Words of the commands and of the base's test configuration, which may name folders."""
    prompt: str
    list_loaded_modules: Callable[[], frozenset[str]]
    """Return the modules imported by tests that ran at the base; computed on first use."""
    find_data_reader: Callable[[str], str | None]
    """Return the test that reads a path as data, if only tests do; the base is read on first use.
    """
    checked: bool
    """Whether the acceptance runs anything."""
    added_tests_count: bool
    """Whether added tests count.

    With exit codes alone and no reference, the task may be to write tests.
    """


def read_steering(task: Task, base: BaseTree | None, before: TestRun | None = None) -> Steering:
    """Find out which files a task's acceptance depends on."""
    acceptance = task.acceptance
    listed_tests = (*acceptance.fail_to_pass, *(acceptance.pass_to_pass or ()))
    ran_tests = [test.id for test in before.tests] if before else []
    hidden = list_patch_paths(acceptance.patch)
    test_globs = [
        *list_test_files((*listed_tests, *ran_tests), acceptance.runner),
        *map(escape_glob, hidden),
    ]
    declared = (
        *task.protected,
        *list_test_files(listed_tests, acceptance.runner),
        *map(escape_glob, hidden),
    )
    commands = [command for command in (acceptance.run, *acceptance.commands) if command]
    steering = Steering(
        base=base,
        declared=declared,
        references=frozenset(list_patch_paths(task.reference)),
        subject=frozenset(),
        owned=frozenset(_list_owned_paths(task, commands, base, hidden)),
        test_folders=frozenset(filter(None, map(find_test_folder, test_globs))),
        collected=frozenset(_list_collected_names(base)),
        called=run_through(commands, base) if base else {},
        mentioned=frozenset(_split_words((*commands, *_read_configuration(base)))),
        prompt=task.prompt,
        list_loaded_modules=cache(partial(list_loaded_modules, acceptance, base, before)),
        find_data_reader=lambda _: None,
        checked=bool(acceptance.run or acceptance.commands),
        added_tests_count=not acceptance.run and task.reference is None,
    )
    finder = make_data_finder(
        partial(_read_sources, steering, task, frozenset(test_globs)),
        steering.references,
        task.prompt,
    )
    return _with_subject(msgspec.structs.replace(steering, find_data_reader=finder), task)


def restored_paths(steering: Steering, change: Change) -> dict[str, str]:
    """Return the paths of a change that do not count, each with the reason."""
    reasons = {path: why_restored(steering, path) for path in changed_paths(change)}
    return {
        path: reason
        for path, reason in reasons.items()
        if reason is not None
        and not (reason.startswith(SHADOWS) and _is_moved(steering, path, change))
    }


def why_restored(steering: Steering, path: str) -> str | None:
    """Return why a changed file does not count; None if it does."""
    if matches_globs(path, steering.declared):
        return "protected by the task"
    if not steering.checked or path in steering.owned or path in steering.subject:
        return None
    expected = path in steering.references
    is_new = steering.base is not None and not steering.base.has(path)
    if matches_globs(path, INSTALLED) and not expected:
        return "compiled code or an installed package"
    if is_new and not expected and (name := _find_shadowed(steering, path)):
        return f"{SHADOWS} {name}"
    if is_test_path(steering, path) and not (is_new and steering.added_tests_count):
        return ADDED_TEST if is_new else CHANGED_TEST
    if matches_globs(path, STEERING):
        return "steers how tests run"
    if not expected and (caller := _find_caller(steering, path)):
        return f"run by {caller}"
    if matches_globs(path, MANIFESTS) and steering.references:
        return "steers how tests run, in part"
    if not (is_new and steering.added_tests_count) and (test := steering.find_data_reader(path)):
        return f"{TEST_DATA} ({test})"
    return None


def _find_shadowed(steering: Steering, path: str) -> str | None:
    """Return the module or program that a new file would replace."""
    if path.rpartition("/")[2] in PROGRAMS:
        return "the program of that name"
    return shadowed_module(steering, path)


def _find_caller(steering: Steering, path: str) -> str | None:
    """Return what calls a file that the request does not name.

    Makefiles may include others by patterns.
    """
    if path in steering.called or _is_named(steering, path) or not path.endswith(".mk"):
        return None if _is_named(steering, path) else steering.called.get(path)
    makefiles = [file for file in steering.called if file.rpartition("/")[2] in BY_PROGRAM["make"]]
    if any(_is_named(steering, file) for file in makefiles):
        return None
    return next((file for file in makefiles if steering.base and steering.base.has(file)), None)


def is_manifest(path: str) -> bool:
    """Return whether some sections of a file steer tests, and others do not."""
    return matches_globs(path, MANIFESTS)


def is_test_path(steering: Steering, path: str) -> bool:
    """Return whether a path is a test by its name, or is in a folder that holds tests."""
    folder = find_test_folder(path)
    if folder is not None and folder in steering.test_folders:
        return True
    if matches_globs(path, steering.collected):
        return not _holds_no_tests(steering, path)
    return matches_globs(path, TEST_FILES) and not _holds_no_tests(steering, path)


def _holds_no_tests(steering: Steering, path: str) -> bool:
    """Return whether a module of the base is only named like a test: `shop/test_client.py`."""
    text = steering.base.read(path) if steering.base and path.endswith(".py") else None
    return text is not None and not _PYTHON_TEST_CODE.search(text)


def shadowed_module(steering: Steering, path: str) -> str | None:
    """Return the module of the standard library, the runner or a test that a new file would shadow.

    Only for folders from which modules are imported: a file inside a package is imported by the
    package's name. A name that the base already has is the project's own.
    """
    folder, name = _module_of(path)
    if not name or steering.base is None or not _is_import_root(steering, folder):
        return None
    prefix = f"{folder}/" if folder else ""
    if any(steering.base.has(f"{prefix}{name}{ending}") for ending in OWN_ENDINGS):
        return None
    is_module = _is_runners(name) or name in steering.list_loaded_modules()
    return f"`{name}`" if is_module else None


def _module_of(path: str) -> tuple[str, str]:
    """Return the folder that a module is imported from, and its name; '' if it is not a module."""
    folder, _, file = path.rpartition("/")
    match = _MODULE.fullmatch(file)
    if match is None:
        return folder, ""
    if match["name"] != "__init__":
        return folder, match["name"]
    parent, _, name = folder.rpartition("/")
    return parent, name


def _is_moved(steering: Steering, path: str, change: Change) -> bool:
    """Return whether a new module replaces one of the project's own that the change removes."""
    removed_files = [
        file for file in change.files if file.status == "deleted" or file.old_path is not None
    ]
    old_modules = [_module_of(file.old_path or file.path) for file in removed_files]
    name = _module_of(path)[1]
    roots = [folder for folder, old_name in old_modules if old_name == name]
    return not _is_runners(name) and any(_is_import_root(steering, folder) for folder in roots)


def _is_runners(module: str) -> bool:
    return (
        module in sys.stdlib_module_names
        or module in RUNNER_MODULES
        or module.startswith("pytest_")
    )


def _is_import_root(steering: Steering, folder: str) -> bool:
    """Return whether a folder may be in Python's search path, judging by the base."""
    name = folder.rpartition("/")[2]
    if not folder or name in TEST_FOLDERS or folder in steering.mentioned:
        return True
    if any(path.endswith(".py") and path.rpartition("/")[0] == folder for path in steering.called):
        return True
    if name in SOURCE_FOLDERS:
        return steering.base is None or not steering.base.has(f"{folder}/__init__.py")
    return steering.base is not None and any(
        steering.base.has(f"{folder}/{marker}") for marker in ROOT_MARKS
    )


def _read_sources(
    steering: Steering, task: Task, known_tests: frozenset[str]
) -> BaseSources | None:
    """Read the base's code with the additions of hidden tests and the reference, tests
    separated."""
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
    """Let the agent change the reference's files if these are only tests and what steers them."""
    changed = parse_change(task.reference)
    restored = restored_paths(steering, changed) if changed else {}
    undeclared = {
        path for path in steering.references if not matches_globs(path, steering.declared)
    }
    subject = undeclared if undeclared and undeclared <= restored.keys() else frozenset[str]()
    return msgspec.structs.replace(steering, subject=frozenset(subject))


def _list_owned_paths(
    task: Task, commands: Sequence[str], base: BaseTree | None, hidden: Iterable[str]
) -> Iterator[str]:
    """Yield files that the acceptance names and that base, hidden tests and reference all lack."""
    tests = map(path_in_test_id, task.acceptance.fail_to_pass)
    patched_paths = {*hidden, *list_patch_paths(task.reference)}
    for path in (*_split_words(commands), *tests):
        if "." in path and base is not None and not base.has(path) and path not in patched_paths:
            yield path


def _split_words(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        for word in re.split(r"[\s'\"=:;,|&()\[\]]+", text):
            yield word.removeprefix("./").rstrip("/")


def _read_configuration(base: BaseTree | None) -> Iterator[str]:
    """Yield the `pythonpath` settings of the base's test configuration."""
    for name in CONFIGURATION:
        text = (base.read(name) if base else None) or ""
        yield from re.findall(r"^pythonpath\s*=\s*(\[[^\]]*\]|.*)", text, re.MULTILINE)


def _list_collected_names(base: BaseTree | None) -> Iterator[str]:
    """Yield the globs of `python_files` in the base's test configuration.

    Not those of all files: they declare code of the product with tests inside.
    """
    for name in CONFIGURATION:
        text = (base.read(name) if base else None) or ""
        for declared in _COLLECTED.findall(text):
            for glob in re.findall(r"[\w.*?-]+", declared):
                if glob.endswith(".py") and re.search(r"[a-z]", glob[:-3], re.IGNORECASE):
                    yield f"**/{glob}"


_COLLECTED = compile_lazily(
    r"^python_files[ \t]*=[ \t]*(\[[^\]]*\]|[^\n]*(?:\n[ \t]+[^\n]+)*)", re.MULTILINE
)


def find_test_folder(path: str) -> str | None:
    """Return the outermost folder above a path that is named like a test folder."""
    parts = path.removeprefix("**/").split("/")[:-1]
    for folder_names in (PLAIN_TEST_FOLDERS, TEST_FOLDERS):
        for length, part in enumerate(parts, 1):
            if part in folder_names:
                return "/".join(parts[:length])
    return None


def _is_named(steering: Steering, path: str) -> bool:
    """Return whether the request names this file: then the agent may change it."""
    return path.rpartition("/")[2].lower() in steering.prompt.lower()


# Package manifests: keep the agent's changes, except those that steer the tests.
#
# The sections that decide how tests are found and run come from the base, everything else from
# the agent. Texts are split into sections, and the result is parsed again: if it is not as
# intended, the whole text of the base is used.


LARGEST_STATEMENT_LINES = 1_000
_PACKAGE_KEYS = ("scripts", "jest", "mocha", "vitest", "ava", "tap", "nyc", "c8", "babel")
_PYPROJECT_TABLES = compile_lazily(
    r"tool\.(?:pytest|coverage|tox|nox|hatch\.envs|(?:pdm|rye)\.scripts|pixi\.tasks|poe|taskipy)(?:\.|$)"
)
_CARGO_TABLES = compile_lazily(
    r"(?:test|bench|profile\.(?:test|bench)|(?:target\.[^.]+\.)?dev-dependencies|patch|replace)"
    r"(?:\.|$)"
)
"""Tables that steer tests, including test dependencies such as a library of assertions."""
_CARGO_KEYS = {
    "lib": ("test", "harness", "doctest", "bench"),
    "package": ("build", "autotests", "autobenches"),
}
_SETUP_SECTIONS = compile_lazily(
    r"tool:pytest|pytest|aliases|test|unittest|tox(?::.*)?|coverage:.*"
)
_TOML_HEADER = compile_lazily(r"\s*\[")
_INI_HEADER = compile_lazily(r"\[([^]]*)\]")

Tables = dict[str, Any]


class TomlStatement(Record):
    """A header or one `key = value` of a TOML file, with the comments above it."""

    table: str
    """Name of the table that contains it, or that it begins: `tool.pytest.ini_options`."""
    key: str | None
    """None for a header."""
    text: str


def restore_manifest(path: str, agent_text: str, base_text: str) -> str:
    """Return the agent's manifest with everything that steers tests as in the base.

    Return the base's text if the agent's cannot be read, or if the result is not as intended.
    """
    restore = _RESTORERS.get(PurePosixPath(path).name)
    if restore is None:
        return base_text
    try:
        return restore(agent_text, base_text)
    except (ValueError, TypeError, AttributeError, RecursionError, configparser.Error):
        return base_text


def _restore_package(agent_text: str, base_text: str) -> str:
    agent, base = json.loads(agent_text), json.loads(base_text)
    if _chosen(agent, _PACKAGE_KEYS) == _chosen(base, _PACKAGE_KEYS):
        return agent_text
    restored = {
        key: base[key] if key in _PACKAGE_KEYS else value
        for key, value in agent.items()
        if key not in _PACKAGE_KEYS or key in base
    }
    restored |= _chosen(base, _PACKAGE_KEYS)
    indent = re.search(r"\n([ \t]+)\"", agent_text)
    text = json.dumps(restored, indent=indent[1] if indent else None, ensure_ascii=False)
    return text + "\n" * agent_text.endswith("\n")


def _chosen(tables: Tables, keys: tuple[str, ...]) -> Tables:
    return {key: tables[key] for key in keys if key in tables}


def _restore_pyproject(agent_text: str, base_text: str) -> str:
    return _restore_toml(agent_text, base_text, _PYPROJECT_TABLES, {})


def _restore_cargo(agent_text: str, base_text: str) -> str:
    restored = _restore_toml(agent_text, base_text, _CARGO_TABLES, _CARGO_KEYS)
    return restored if _targets(restored) == _targets(base_text) else base_text


def _targets(text: str) -> dict[str, Tables]:
    """Return which binaries and examples of a crate are tested, and by their own harness."""
    tables = tomllib.loads(text)
    kinds_and_tables = [
        (kind, table) for kind in ("bin", "example") for table in tables.get(kind, ())
    ]
    keys_by_target = {
        f"{kind} {table.get('name')}": _chosen(table, ("test", "harness"))
        for kind, table in kinds_and_tables
    }
    return {name: keys for name, keys in keys_by_target.items() if keys}


def _restore_toml(
    agent_text: str, base_text: str, tables: re.Pattern[str], keys: dict[str, tuple[str, ...]]
) -> str:
    agent, base = tomllib.loads(agent_text), tomllib.loads(base_text)
    if _split(agent, tables, keys)[0] == _split(base, tables, keys)[0]:
        return agent_text
    kept_texts: list[str] = []
    base_statements = list(_read_statements(base_text))
    for statement in _read_statements(agent_text):
        if tables.match(statement.table) or statement.key in keys.get(statement.table, ()):
            continue
        kept_texts.append(statement.text)
        if statement.key is None:
            kept_texts += [
                base_statement.text
                for base_statement in base_statements
                if base_statement.table == statement.table
                and base_statement.key in keys.get(base_statement.table, ())
            ]
    steering = [
        base_statement.text
        for base_statement in base_statements
        if tables.match(base_statement.table)
    ]
    text = "".join((*(_ended(part) for part in kept_texts), *(_ended(part) for part in steering)))
    steers, remainder = _split(tomllib.loads(text), tables, keys)
    is_right = (
        steers == _split(base, tables, keys)[0] and remainder == _split(agent, tables, keys)[1]
    )
    return text if is_right else base_text


def _ended(text: str) -> str:
    return text if text.endswith("\n") else f"{text}\n"


def _read_statements(text: str) -> Iterator[TomlStatement]:
    """Yield the statements of a valid TOML file, in order."""
    table, pending = "", list[str]()
    for line in text.splitlines(keepends=True):
        pending.append(line)
        if len(pending) > LARGEST_STATEMENT_LINES:
            raise ValueError("a statement of too many lines")
        try:
            value = tomllib.loads("".join(pending))
        except tomllib.TOMLDecodeError:
            continue
        if not value:
            continue
        key = None if _TOML_HEADER.match(_first_code_line(pending)) else next(iter(value))
        table = _path_of(value) if key is None else table
        yield TomlStatement(table=table, key=key, text="".join(pending))
        pending = []
    if pending:
        yield TomlStatement(table=table, key="", text="".join(pending))


def _first_code_line(lines: list[str]) -> str:
    return next(line for line in lines if line.strip() and not line.lstrip().startswith("#"))


def _path_of(value: Any) -> str:
    """Return the dotted name of the table that a header begins."""
    names = []
    while value:
        if isinstance(value, list):
            value = value[0]
        elif isinstance(value, dict):
            name, value = next(iter(value.items()))
            names.append(name)
        else:
            break
    return ".".join(names)


def _split(
    tables: Tables, pattern: re.Pattern[str], keys: dict[str, tuple[str, ...]]
) -> tuple[Tables, Tables]:
    """Return what steers tests, by dotted name, and everything else."""
    steering: Tables = {}

    def strip(value: Tables, parent: str) -> Tables:
        remainder: Tables = {}
        for name, part in value.items():
            path = f"{parent}.{name}" if parent else name
            if pattern.match(path) or name in keys.get(parent, ()):
                steering[path] = part
            elif isinstance(part, dict):
                if inner := strip(part, path):
                    remainder[name] = inner
            else:
                remainder[name] = part
        return remainder

    remainder = strip(tables, "")
    return steering, remainder


def _restore_setup(agent_text: str, base_text: str) -> str:
    agent, base = _read_setup(agent_text), _read_setup(base_text)
    if _steering(agent) == _steering(base):
        return agent_text
    parts = [
        text for name, text in _cut_setup(agent_text) if not _SETUP_SECTIONS.fullmatch(name.strip())
    ]
    parts += [
        text for name, text in _cut_setup(base_text) if _SETUP_SECTIONS.fullmatch(name.strip())
    ]
    text = "".join(map(_ended, parts))
    restored = _read_setup(text)
    other_sections = {
        name: part for name, part in agent.items() if not _SETUP_SECTIONS.fullmatch(name.strip())
    }
    is_right = restored == {**other_sections, **_steering(base)}
    return text if is_right else base_text


def _read_setup(text: str) -> Tables:
    parser = configparser.ConfigParser(interpolation=None, default_section="\0")
    parser.read_string(text)
    return {name: dict(parser[name]) for name in parser.sections()}


def _steering(sections: Tables) -> Tables:
    return {
        name: part for name, part in sections.items() if _SETUP_SECTIONS.fullmatch(name.strip())
    }


def _cut_setup(text: str) -> Iterator[tuple[str, str]]:
    name, lines = "", list[str]()
    for line in text.splitlines(keepends=True):
        if header := _INI_HEADER.match(line):
            yield name, "".join(lines)
            name, lines = header[1], []
        lines.append(line)
    yield name, "".join(lines)


_RESTORERS: dict[str, Callable[[str, str], str]] = {
    "package.json": _restore_package,
    "pyproject.toml": _restore_pyproject,
    "setup.cfg": _restore_setup,
    "Cargo.toml": _restore_cargo,
}


# Apply an agent's change to the base, without the parts that must not decide its verdict.


INLINE_TESTS = ("#[cfg(test)]", "#[test]")


async def apply_change(workspace: Workspace, task: Task, patch: str, steering: Steering) -> None:
    """Apply a change; tests and what steers them are taken from the reference if it changes them.
    Raises BadInput if the patch does not apply."""
    change = parse_change(patch)
    restored = restored_paths(steering, change) if change else {}
    if patch:
        await workspace.apply_patch(patch, exclude=[escape_glob(path) for path in restored])
    if change is not None:
        await _restore_renamed(workspace, change, steering, restored)
        await _restore_parts(workspace, change, steering)
    hidden = set(list_patch_paths(task.acceptance.patch))
    excluded = [
        path
        for path in list_patch_paths(task.reference)
        if path in hidden or why_restored(steering, path) is None
    ]
    if task.reference is not None and len(excluded) < len(steering.references):
        await workspace.apply_patch(
            task.reference, exclude=[escape_glob(path) for path in excluded]
        )


async def _restore_renamed(
    workspace: Workspace, change: Change, steering: Steering, aside: Collection[str]
) -> None:
    """Restore files that a rename removed: git excludes a renamed file only by its new name."""
    for file in change.files:
        old = file.old_path
        if old is None or old not in aside or file.path in aside or steering.base is None:
            continue
        content = await anyio.to_thread.run_sync(steering.base.read_bytes, old)
        if content is not None:
            await workspace.sandbox.write(old, content)


async def _restore_parts(workspace: Workspace, change: Change, steering: Steering) -> None:
    """Restore the parts of files that steer tests, or are tests; the rest is the agent's."""
    for path, base_text in _files_with_parts(change, steering):
        try:
            text = (await workspace.sandbox.read(path)).decode()
        except (OSError, UnicodeDecodeError):
            continue
        restored = await anyio.to_thread.run_sync(_restored_text, path, text, base_text)
        if restored != text:
            await workspace.sandbox.write(path, restored.encode())


def _files_with_parts(change: Change, steering: Steering) -> Iterator[tuple[str, str]]:
    """Yield changed files of which a part does not count, with their text at the base."""
    for file in change.files:
        path = file.path
        if file.status == "deleted" or steering.base is None or path in steering.subject:
            continue
        base_text = steering.base.read(path)
        if is_manifest(path) and path not in steering.references:
            yield path, base_text or ("{}" if path.endswith(".json") else "")
        elif (
            path.endswith(".rs")
            and base_text
            and any(marker in base_text for marker in INLINE_TESTS)
        ):
            yield path, base_text


def _restored_text(path: str, text: str, base_text: str) -> str:
    from closeloop.grading.integrity.rust import restore_inline_tests

    if path.endswith(".rs"):
        return restore_inline_tests(text, base_text) or text
    return restore_manifest(path, text, base_text)
