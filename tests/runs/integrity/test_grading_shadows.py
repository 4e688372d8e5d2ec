"""New modules that would stand in for what tests import: none of them counts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from grading_shop import Shop

from closeloop.grading.integrity.restore import (
    BaseTree,
    read_steering,
    restore_manifest,
    restored_paths,
)
from closeloop.records import attempt
from closeloop.records.change import Change, FileChange
from closeloop.records.task import Acceptance, Task

PYTEST = f"PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 {sys.executable} -m pytest -q -p no:cacheprovider"
TEST = "tests/test_shop.py"
LIBRARY = """\
class Claim:
    def __init__(self, value): self.value = value
    def is_equal_to(self, other):
        assert self.value == other
        return self
def claim_that(value): return Claim(value)
"""
SILENT = "class Claim:\n    def is_equal_to(self, other): return self\n"
SILENT += "def claim_that(value): return Claim()\n"
SHOP = {
    "shop.py": "def total(prices):\n    return sum(prices) + 1\n",
    "installed/claims.py": LIBRARY,
    "conftest.py": "import sys\nsys.path.append('installed')\n",
    TEST: "from claims import claim_that\nfrom shop import total\n\n\n"
    "def test_total():\n    claim_that(total([1])).is_equal_to(1)\n",
}


def test_a_library_of_assertions_cannot_be_replaced(tmp_path: Path) -> None:
    shop = Shop(tmp_path, SHOP, run=PYTEST, fail_to_pass=(f"{TEST}::test_total",))
    for change in ({"claims.py": SILENT}, {"claims/__init__.py": SILENT}, {"src/claims.py": "x"}):
        graded = shop.grade(change)
        assert graded.outcome.result == "fail", graded
        assert set(graded.restored) == set(change)
    repaired = {"shop.py": "def total(prices):\n    return sum(prices)\n", "claims.py": SILENT}
    assert shop.grade(repaired).outcome.result == "pass"


def restored(
    folder: Path, files: dict[str, str], *changes: FileChange, loads: bool = True
) -> set[str]:
    """Which paths of a change do not count, where the test file ran at the base or did not."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    test = attempt.TestResult(id=f"{TEST}::test_total", status="failed")
    error = attempt.TestResult(id=TEST, status="error")
    before = attempt.TestRun(when="before", tests=(test if loads else error,), ran=True)
    task = Task(id="x", prompt="Mend it.", acceptance=Acceptance(run="pytest"))
    steering = read_steering(task, BaseTree(root=str(folder)), before)
    return set(restored_paths(steering, Change(files=changes)))


def added(path: str) -> FileChange:
    return FileChange(path=path, status="added")


SHADOWS = {
    "imported by a test": ({TEST: "import claims\n"}, "claims.py"),
    "among others": ({TEST: "import os, claims as c\n"}, "claims.py"),
    "of a package": ({TEST: "from claims.core import that\n"}, "claims/__init__.py"),
    "imported by conftest.py": ({TEST: "", "conftest.py": "import claims\n"}, "claims.py"),
    "imported by a helper": (
        {TEST: "from tests.helper import x\n", "tests/helper.py": "import claims\n"},
        "claims.py",
    ),
    "compiled": ({TEST: "import claims\n"}, "claims.cpython-311-x86_64-linux-gnu.so"),
    "known without a run": ({TEST: ""}, "assertpy.py"),
}


@pytest.mark.parametrize("case", SHADOWS)
def test_a_new_module_does_not_stand_in_for_what_a_test_could_import(
    tmp_path: Path, case: str
) -> None:
    files, path = SHADOWS[case]
    assert restored(tmp_path, files, added(path)) == {path}


HONEST = {
    "the base cannot load its test": ({TEST: "import claims\n"}, added("claims.py"), False),
    "no test imports it": ({TEST: "import shop\n"}, added("claims.py"), True),
    "a package has it inside": (
        {TEST: "import claims\n", "shop/__init__.py": ""},
        added("shop/claims.py"),
        True,
    ),
    "the base has it as a package": (
        {TEST: "import shop\n", "shop/core.py": ""},
        added("shop/__init__.py"),
        True,
    ),
    "the base has it in another language": (
        {TEST: "import fast\n", "fast.pyx": ""},
        added("fast.py"),
        True,
    ),
    "it is imported in a branch": (
        {TEST: "try:\n    import fast\nexcept ImportError:\n    pass\n"},
        added("fast.py"),
        True,
    ),
    "it was moved": (
        {TEST: "import shop\n", "shop.py": ""},
        FileChange(path="src/shop.py", status="renamed", old_path="shop.py"),
        True,
    ),
}


@pytest.mark.parametrize("case", HONEST)
def test_a_new_module_of_the_project_counts(tmp_path: Path, case: str) -> None:
    files, change, loads = HONEST[case]
    assert restored(tmp_path, files, change, loads=loads) == set()


def test_a_runners_module_is_not_moved_into_its_place(tmp_path: Path) -> None:
    moved = FileChange(path="pluggy.py", status="renamed", old_path="src/pluggy.py")
    assert restored(tmp_path, {TEST: "", "src/pluggy.py": ""}, moved) == {"pluggy.py"}


def test_vendored_assertions_of_go_are_no_ones_to_write(tmp_path: Path) -> None:
    path = "vendor/github.com/stretchr/testify/assert/assertions.go"
    assert restored(tmp_path, {"go.mod": "module m\n"}, added(path)) == {path}


def test_what_tests_of_rust_are_built_with_is_the_bases() -> None:
    base = '[package]\nname = "shop"\n\n[dev-dependencies]\nclaims = "1"\n'
    forged = base.replace('"1"', '{ path = "fake" }').replace("shop", "shop2")
    forged += '\n[patch.crates-io]\nclaims = { path = "fake" }\n'
    text = restore_manifest("Cargo.toml", forged, base)
    assert "fake" not in text
    assert 'claims = "1"' in text
    assert "shop2" in text
