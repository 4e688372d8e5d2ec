"""A small project to run agents on: a repository, three tasks, two scripted variants."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from textwrap import indent

import pytest


def write_patch(path: str, text: str) -> str:
    """A patch that adds a file."""
    head = f"diff --git a/{path} b/{path}\nnew file mode 100644\n--- /dev/null\n+++ b/{path}\n"
    lines = text.splitlines()
    return f"{head}@@ -0,0 +1,{len(lines)} @@\n" + "".join(f"+{line}\n" for line in lines)


def pytest_command(python: str) -> str:
    """How a project runs pytest: without what takes most of the time of a short run.

    That is the plug-ins of whoever runs these tests, and looking for garbage twice at the end.
    """
    options = "-q -p no:cacheprovider -p no:unraisableexception"
    return f"PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 {python} -m pytest {options}"


PYTEST = pytest_command("python")
CALCULATOR = """def add(a, b):
    return a - b


def double(a):
    return a + a
"""
# With four assertions or more, a test that a pass hangs on is probed in two rooms, not in six.
TESTS = """from calculator import add, double


def test_add():
    assert add(2, 3) == 5
    assert add(0, 1) == 1
    assert add(4, 5) == 9
    assert add(-1, 3) == 2


def test_double():
    assert double(2) == 4
"""
FIX = f"""---
acceptance:
  run: {PYTEST}
  fail_to_pass: [test_calculator.py::test_add]
scope: [calculator.py]
reference: fix.patch
---
`add` subtracts: make test_add pass.
"""
QUICK_FIX = """---
acceptance: {commands: ["grep -q 'a + b' calculator.py"]}
scope: [calculator.py]
---
`add` subtracts: make test_add pass.
"""
"""The same task graded without a run of the tests, which takes most of an attempt's time."""
FIX_PATCH = (
    "diff --git a/calculator.py b/calculator.py\n"
    "--- a/calculator.py\n"
    "+++ b/calculator.py\n"
    "@@ -1,5 +1,5 @@\n"
    " def add(a, b):\n"
    "-    return a - b\n"
    "+    return a + b\n"
    " \n"
    " \n"
    " def double(a):\n"
)
TRIPLE = f"""---
acceptance:
  run: {PYTEST}
  fail_to_pass: [test_triple.py::test_triple]
  pass_to_pass: [test_calculator.py::test_double]
  patch: triple-tests.patch
---
Add `triple` to the calculator.
"""
TRIPLE_TESTS = """from calculator import triple


def test_triple():
    assert triple(2) == 6
    assert triple(0) == 0
    assert triple(1) == 3
    assert triple(-3) == -9
"""
TRIPLE_TESTS_PATCH = write_patch("test_triple.py", TRIPLE_TESTS)
QUESTION = """---
repo: none
acceptance: {answer: '\\b42\\b'}
---
What is the answer?
"""
CLOSER = """name: closer
dialogues:
  - prompt: subtracts
    turns:
      - do: {run: PYTEST test_calculator.py}
      - when: test_add
        do: {edit: {path: calculator.py, old: return a - b, new: return a + b}}
      - do: {run: PYTEST}
      - when: 2 passed
        do: {finish: {summary: add adds now; both tests pass.}}
  - prompt: triple
    turns:
      - do: {read: calculator.py}
      - do:
          edit:
            path: calculator.py
            old: "def double"
            new: "triple = lambda a: 3 * a\\n\\n\\ndef double"
      - do: {finish: Added triple.}
  - prompt: answer
    turns: [{say: It is 42.}]
""".replace("PYTEST", PYTEST)
SPIRALLER = """name: spiraller
dialogues:
  - prompt: subtracts
    turns:
      - do: {edit: {path: calculator.py, old: return a + a, new: return a * 3}}
      - do: {finish: All tests pass.}
  - prompt: triple
    turns:
      - say: I would rather not.
  - prompt: answer
    turns: [{say: It is 7.}]
"""
CONFIGURATION = """[sandbox]
kind = "{sandbox}"
[limits]
seconds = 600
[variants.closer]
model = "scripted:closer.yaml"
[variants.spiraller]
model = "scripted:spiraller.yaml"
"""
IDENTITY = {
    "GIT_AUTHOR_NAME": "A",
    "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_COMMITTER_NAME": "A",
    "GIT_COMMITTER_EMAIL": "a@example.org",
    "GIT_AUTHOR_DATE": "2024-05-01T12:00:00Z",
    "GIT_COMMITTER_DATE": "2024-05-01T12:00:00Z",
    "GIT_CONFIG_GLOBAL": "/dev/null",
}


def git(folder: Path, *arguments: str) -> str:
    result = subprocess.run(
        ["git", "-C", str(folder), *arguments],
        env={**os.environ, **IDENTITY},
        check=True,
        capture_output=True,
        text=True,
    )
    return result.stdout


def build(folder: Path, sandbox: str = "auto", runner: str = "pytest") -> Path:
    """Write the project into an empty folder and commit it.

    With unittest as its runner, its tests start in a fifth of the time.
    """
    files = {
        "calculator.py": CALCULATOR,
        "test_calculator.py": TESTS,
        "tasks/fix.md": FIX,
        "tasks/fix.patch": FIX_PATCH,
        "tasks/triple.md": TRIPLE,
        "tasks/triple-tests.patch": TRIPLE_TESTS_PATCH,
        "tasks/question.md": QUESTION,
        "closer.yaml": CLOSER,
        "spiraller.yaml": SPIRALLER,
        "closeloop.toml": CONFIGURATION.format(sandbox=sandbox),
        ".gitignore": ".closeloop/\n__pycache__/\n",
    }
    if runner == "unittest":
        files = {name: _use_unittest(text) for name, text in files.items()}
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git(folder, "init", "-q")
    git(folder, "add", "calculator.py", "test_calculator.py", ".gitignore")
    git(folder, "commit", "-qm", "Start the calculator")
    return folder


def _use_unittest(text: str) -> str:
    """The same tests as methods of a class, and what calls them."""
    if text == TRIPLE_TESTS_PATCH:
        return write_patch("test_triple.py", _use_unittest(TRIPLE_TESTS))
    if text in (TESTS, TRIPLE_TESTS):
        imports, _, functions = text.partition("\n\n\n")
        functions = re.sub(r"assert (.*) == (.*)", r"self.assertEqual(\1, \2)", functions)
        methods = indent(functions.replace("():", "(self):"), "    ")
        return f"import unittest\n\n{imports}\n\n\nclass Test(unittest.TestCase):\n{methods}"
    text = text.replace(PYTEST, "python -m unittest")
    return text.replace(".py::", ".Test.").replace("2 passed", "OK")


def make_once(folders: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """A folder that one worker process makes while the others wait: to be read, or copied."""
    place = folders.getbasetemp()
    place = place.parent if "PYTEST_XDIST_WORKER" in os.environ else place
    folder = place / name
    with (place / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            make(place / f"making-{name}")
            (place / f"making-{name}").rename(folder)
    return folder
