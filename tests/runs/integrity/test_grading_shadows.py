"""New modules that would stand in for what tests import: none of them counts."""

from __future__ import annotations

from pathlib import Path

import pytest
from grading_shop import Shop

from closeloop.grading.integrity.restore import (
    ADDED_TEST,
    BaseTree,
    Steering,
    read_steering,
    restore_manifest,
    restored_paths,
    why_restored,
)
from closeloop.records import attempt
from closeloop.records.change import Change, FileChange
from closeloop.records.task import Acceptance, Task
from small_project import pytest_command
from warm_pytest import PYTHON

pytestmark = pytest.mark.usefixtures("warm_python")

PYTEST = pytest_command(PYTHON)
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


MAKEFILE = {"backend/Makefile": "test:\n\tsh all.sh\n", "backend/all.sh": "true\n"}
RUN_THROUGH: dict[str, tuple[str, dict[str, str], str]] = {
    "a Makefile of a folder": ("cd backend && make test", MAKEFILE, "backend/Makefile"),
    "a Makefile given by -C": ("make -C backend test", MAKEFILE, "backend/Makefile"),
    "another Makefile": ("make --directory=backend test", MAKEFILE, "backend/GNUmakefile"),
    "a script that it calls": ("make -C backend test", MAKEFILE, "backend/all.sh"),
    "a script of a folder": ("cd web && sh run_tests.sh", {"web/run_tests.sh": ""}, ""),
    "a check of a folder": ("cd web && python check.py", {"web/check.py": ""}, ""),
    "a package of a folder": (
        "npm --prefix web test",
        {"web/package.json": '{"scripts": {"test": "sh t.sh"}}', "web/t.sh": ""},
        "web/t.sh",
    ),
    "a justfile of a folder": ("cd web && just test", {"web/justfile": "test:\n"}, "web/justfile"),
    "vitest": ("npx vitest run", {}, "vite.config.ts"),
    "vitest of a script": (
        "npm test",
        {"package.json": '{"scripts": {"test": "vitest"}}'},
        "vite.config.mts",
    ),
    "pipenv": ("pipenv run pytest", {}, "Pipfile"),
    "poetry": ("poetry run pytest", {}, "poetry.toml"),
    "uv": ("uv run pytest", {}, "uv.toml"),
    "bun": ("bun test", {}, "bunfig.toml"),
    "pixi": ("pixi run test", {}, "pixi.toml"),
    "deno": ("deno test", {}, "deno.json"),
    "turbo": ("npx turbo test", {}, "turbo.json"),
    "ava": ("npx ava", {}, "ava.config.js"),
    "nyc": ("npx nyc mocha", {}, ".nycrc"),
    "playwright": ("npx playwright test", {}, "playwright.config.ts"),
    "settings of pytest": ("pytest -c conf/unit.ini", {"conf/unit.ini": ""}, "conf/unit.ini"),
    "settings of jest": ("jest --config=conf/unit.json", {"conf/unit.json": ""}, "conf/unit.json"),
    "hooks of mocha": ("mocha -r ./hooks.js", {"hooks.js": ""}, "hooks.js"),
    "hooks of node": ("node --import ./hooks.mjs --test", {"hooks.mjs": ""}, "hooks.mjs"),
    "an include by pattern": (
        "make test",
        {"Makefile": "include $(wildcard mk/*.mk)\ntest:\n\t$(CHECK)\n"},
        "mk/zz.mk",
    ),
    "nextest": ("cargo nextest run", {}, ".config/nextest.toml"),
    "tests that ctest lists": ("ctest --test-dir build", {}, "build/CTestTestfile.cmake"),
    "mise": ("mise run test", {}, ".mise.toml"),
    "mage": ("mage test", {}, "magefile.go"),
    "phpunit": ("vendor/bin/phpunit", {}, "phpunit.xml"),
    "rspec": ("bundle exec rspec", {}, ".rspec"),
    "settings of a linter": ("ruff check . && mypy .", {}, "mypy.ini"),
    "settings of another linter": ("npx eslint .", {}, ".eslintignore"),
    "tests of a name that pytest is given": (
        "pytest",
        {
            "pytest.ini": "[pytest]\npython_files =\n    check_*.py\n    verify_*.py\n",
            "shop/verify_total.py": "def test_total():\n    assert True\n",
        },
        "",
    ),
    "a program in a folder of PATH": ("sh run.sh", {"run.sh": "PATH=$PWD/x:$PATH"}, "x/pytest"),
    "a module that Python imports at its start": (
        "PYTHONPATH=src pytest",
        {"src/shop/__init__.py": ""},
        "src/_distutils_hack/__init__.py",
    ),
    "a module of completions": (
        "PYTHONPATH=src pytest",
        {"src/shop/__init__.py": ""},
        "src/argcomplete/__init__.py",
    ),
}


def steer(folder: Path, command: str, files: dict[str, str], prompt: str = "Mend it.") -> Steering:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    task = Task(id="a", prompt=prompt, acceptance=Acceptance(commands=(command,)))
    return read_steering(task, BaseTree(root=str(folder)))


@pytest.mark.parametrize("what", RUN_THROUGH)
def test_what_a_command_reads_in_any_folder_is_restored(tmp_path: Path, what: str) -> None:
    command, files, path = RUN_THROUGH[what]
    assert why_restored(steer(tmp_path, command, files), path or [*files][-1])


OWN: dict[str, tuple[str, str]] = {
    "settings of the product": ("python -m shop --config conf/shop.json", "conf/shop.json"),
    "a list of packages": ("pip install -r requirements.txt && pytest", "requirements.txt"),
    "a source that is compiled": ("cc -c shop.c && ./check.sh", "shop.c"),
    "a module of a folder": ("cd web && pytest", "web/shop.py"),
    "vite without vitest": ("npm run build", "vite.config.ts"),
    "a tool of the product": ("make test", "bin/shop"),
    "settings of a linter that does not run": ("pytest", "ruff.toml"),
}


@pytest.mark.parametrize("what", OWN)
def test_what_a_product_owns_stays_the_agents(tmp_path: Path, what: str) -> None:
    command, path = OWN[what]
    assert why_restored(steer(tmp_path, command, {path: ""}), path) is None


@pytest.mark.parametrize("declared", ["*.py", "check_*.py"])
def test_only_files_that_pytest_collects_by_a_name_of_tests_are_set_aside(
    tmp_path: Path, declared: str
) -> None:
    (tmp_path / "pyproject.toml").write_text(
        f"[tool.pytest.ini_options]\npython_files = [\n  '{declared}',\n]\n"
    )
    task = Task(id="a", prompt="Mend it.", acceptance=Acceptance(run="pytest"))
    steering = read_steering(task, BaseTree(root=str(tmp_path)))
    assert why_restored(steering, "store.py") is None
    assert why_restored(steering, "test_shop.py") == ADDED_TEST
    assert (why_restored(steering, "check_shop.py") == ADDED_TEST) == (declared != "*.py")


def test_a_makefile_that_the_request_names_may_be_changed(tmp_path: Path) -> None:
    steering = steer(tmp_path, "make test", {"Makefile": "test:\n"}, "Split the Makefile.")
    assert why_restored(steering, "Makefile") is None
    assert why_restored(steering, "mk/test.mk") is None
