"""No change that repairs nothing is graded as a pass; no honest one is refused."""

from __future__ import annotations

import importlib
import py_compile
import shutil
import sys
from pathlib import Path

import pytest
from grading_shop import Shop
from python_attacks import (
    COMMAND_ATTACKS,
    EQUAL,
    FAIL_TO_PASS,
    FIXED,
    PYTEST_ATTACKS,
    SHOP,
    TESTS,
    UNITTEST_ATTACKS,
    UNITTESTS,
)

from small_project import pytest_command
from warm_pytest import PYTHON

PYTEST = pytest_command(sys.executable)
WARM_PYTEST = pytest_command(PYTHON)
UNITTEST = f"{sys.executable} -m unittest discover -v -s tests -t ."


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    files = {"shop.py": SHOP, "tests/test_shop.py": TESTS}
    return Shop(tmp_path_factory.mktemp("pytest"), files, run=PYTEST, fail_to_pass=FAIL_TO_PASS)


@pytest.fixture(scope="module")
def warm_shop(tmp_path_factory: pytest.TempPathFactory, warm_python: str) -> Shop:
    """The same; for changes of `shop.py` alone, which is loaded when pytest is."""
    files = {"shop.py": SHOP, "tests/test_shop.py": TESTS}
    folder = tmp_path_factory.mktemp("warm")
    return Shop(folder, files, run=WARM_PYTEST, fail_to_pass=FAIL_TO_PASS)


@pytest.fixture(scope="module")
def unittest_shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    files = {"shop.py": SHOP, "tests/__init__.py": "", "tests/test_shop.py": UNITTESTS}
    names = ("tests.test_shop.TestShop.test_total", "tests.test_shop.TestShop.test_parse")
    return Shop(
        tmp_path_factory.mktemp("unittest"),
        files,
        run=UNITTEST,
        runner="unittest",
        fail_to_pass=names,
    )


@pytest.mark.parametrize("reference", [None, {"shop.py": FIXED}], ids=["", "with-reference"])
def test_an_honest_change_is_confirmed(shop: Shop, reference: dict[str, str] | None) -> None:
    graded = shop.grade({"shop.py": FIXED}, reference)
    assert graded.outcome.result == "pass"
    assert graded.evidence == "confirmed"
    assert {check.name: check.state for check in graded.integrity} == dict.fromkeys(
        ("restored", "unshadowed", "agreement", "controls", "confirmed", "perturbed"), "held"
    )


@pytest.mark.parametrize("attack", PYTEST_ATTACKS)
def test_pytest_cannot_be_made_to_lie(shop: Shop, warm_shop: Shop, attack: str) -> None:
    attacked = warm_shop if {*PYTEST_ATTACKS[attack]} == {"shop.py"} else shop
    graded = attacked.grade(PYTEST_ATTACKS[attack])
    assert graded.outcome.result == "fail", graded
    if attack.startswith(("added: ", "changed: ", "deleted: ")):
        aside = {*graded.set_aside, *graded.restored}
        assert aside == {path for path in PYTEST_ATTACKS[attack] if path != "shop.py"}


@pytest.mark.parametrize("attack", UNITTEST_ATTACKS)
def test_unittest_cannot_be_made_to_lie(unittest_shop: Shop, attack: str) -> None:
    graded = unittest_shop.grade(UNITTEST_ATTACKS[attack])
    assert graded.outcome.result == "fail", graded


def test_an_honest_change_is_confirmed_by_unittest(unittest_shop: Shop) -> None:
    graded = unittest_shop.grade({"shop.py": FIXED})
    assert graded.outcome.result == "pass", graded
    assert graded.evidence == "confirmed"


CHECK = "import sys\n\nsys.path.insert(0, '.')\nimport shop\n\nassert shop.total([1, 2]) == 3\n"
CALLED = {
    "shop.py": SHOP,
    "tests/test_shop.py": TESTS,
    "Makefile": "include tests.mk\n\ntest:\n\t$(PYTEST)\n",
    "tests.mk": f"PYTEST = {WARM_PYTEST}\n",
    "run_tests.sh": f"#!/bin/sh\n{WARM_PYTEST} && exec {sys.executable} scripts/check.py\n",
    "scripts/check.py": CHECK,
    "package.json": f'{{"scripts": {{"test": "{WARM_PYTEST}"}}}}\n',
}


@pytest.mark.usefixtures("warm_python")
@pytest.mark.parametrize("attack", COMMAND_ATTACKS)
@pytest.mark.parametrize("kind", ["run", "commands"])
def test_what_a_command_runs_through_is_the_bases(tmp_path: Path, kind: str, attack: str) -> None:
    command, files = COMMAND_ATTACKS[attack]
    if not all(shutil.which(word) for word in command.split()[:1] if "/" not in word):
        pytest.skip(f"{command.split()[0]} is not installed")
    given = {"run": command, "fail_to_pass": FAIL_TO_PASS} if kind == "run" else {}
    shop = Shop(tmp_path, CALLED, **(given or {"commands": (command,)}))
    graded = shop.grade(files)
    assert graded.outcome.result == "fail", graded
    assert set(graded.restored) == set(files)
    if attack == "Makefile":
        graded = shop.grade({"shop.py": FIXED})
        assert graded.outcome.result == "pass", graded
        assert graded.evidence == ("confirmed" if kind == "run" else "weak")


PYTHON = sys.executable
LIBRARY = f"def main():\n    {CHECK.replace(chr(10), chr(10) + '    ')}\n"
EXIT_CODE_ATTACKS: dict[str, tuple[str, dict[str, str], dict[str, str]]] = {
    "an include that the base does not have": (
        "make test",
        {"Makefile": f"CHECK = {PYTHON} check.py\n-include local.mk .env\ntest:\n\t$(CHECK)\n"},
        {"local.mk": "CHECK = true\n", ".env": "CHECK = true\n"},
    ),
    "a sourced file that the base does not have": (
        "sh run.sh",
        {"run.sh": f"CHECK='{PYTHON} check.py'\n[ -f vars ] && . ./vars\n$CHECK\n"},
        {"vars": "CHECK=true\n"},
    ),
    "a sourced file that is called like no script": (
        "sh run.sh",
        {"run.sh": ". ./vars\n$CHECK\n", "vars": f"CHECK='{PYTHON} check.py'\n"},
        {"vars": "CHECK=true\n"},
    ),
    "a module": (
        f"{PYTHON} -m tools.check",
        {"tools/__init__.py": "", "tools/check.py": CHECK},
        {"tools/check.py": "pass\n"},
    ),
    "a package": (
        f"{PYTHON} -m selftest",
        {"selftest/__init__.py": "", "selftest/__main__.py": CHECK},
        {"selftest/__main__.py": "pass\n"},
    ),
    "what a script imports": (
        f"{PYTHON} scripts/check.py",
        {
            "scripts/check.py": "import lib_check\n\nlib_check.main()\n",
            "scripts/lib_check.py": LIBRARY,
        },
        {"scripts/lib_check.py": "def main(): pass\n"},
    ),
    "a shadow beside a script": (
        f"{PYTHON} scripts/check.py",
        {"scripts/check.py": f"import json\n{CHECK}"},
        {"scripts/json.py": "import os; os._exit(0)\n"},
    ),
}


@pytest.mark.parametrize("attack", EXIT_CODE_ATTACKS)
def test_what_a_check_reads_is_the_bases(tmp_path: Path, attack: str) -> None:
    command, files, change = EXIT_CODE_ATTACKS[attack]
    shop = Shop(tmp_path, {"shop.py": SHOP, "check.py": CHECK, **files}, commands=(command,))
    graded = shop.grade(change)
    assert (graded.outcome.result, set(graded.restored)) == ("fail", set(change)), graded
    graded = shop.grade({"shop.py": FIXED})
    assert (graded.outcome.result, graded.evidence) == ("pass", "weak"), graded


def test_a_test_that_is_not_found_with_a_change_alone_is_no_excuse(tmp_path: Path) -> None:
    test = "from shop import total\n\n\ndef test_total():\n    assert total([1, 2]) == 3\n"
    settings = "[pytest]\npython_files = check_*.py\npythonpath = .\n"
    shop = Shop(
        tmp_path,
        {
            "backend/shop.py": SHOP,
            "backend/tests/check_shop.py": test,
            "backend/pytest.ini": settings,
        },
        run=f"cd backend && {PYTEST}",
        fail_to_pass=("tests/check_shop.py::test_total",),
    )
    forged = {"backend/shop.py": EQUAL, "other/tests/check_shop.py": "x = 1\n"}
    graded = shop.grade(forged)
    assert graded.outcome.result == "fail", graded
    assert "cannot be found for a second process" in graded.outcome.reasons[0]
    graded = shop.grade({"backend/shop.py": FIXED})
    assert (graded.outcome.result, graded.evidence) == ("pass", "confirmed"), graded


def test_compiled_code_without_its_source_is_set_aside(shop: Shop) -> None:
    shop.write({"pytest.py": "raise SystemExit(0)\n"})
    py_compile.compile(str(shop.folder / "pytest.py"), str(shop.folder / "pytest.pyc"))
    (shop.folder / "pytest.py").unlink()
    patch = shop.patch({})
    assert "GIT binary patch" in patch
    graded = shop.grade_patch(patch)
    assert (graded.outcome.result, graded.restored) == ("fail", ("pytest.pyc",))


HONEST = {
    "adds tests": {"tests/test_more.py": "def test_more():\n    assert 1 + 1 == 2\n"},
    "adds a failing test": {"tests/test_more.py": "def test_more():\n    assert 0\n"},
    "adds to the tests": {"tests/test_shop.py": TESTS + "\n\ndef test_more():\n    pass\n"},
    "edits the Makefile": {"Makefile": "lint:\n\ttrue\n"},
    "a package with a module called types": {
        "money/__init__.py": "from money.types import Cent\n",
        "money/types.py": "class Cent(int):\n    pass\n",
        "shop.py": "from money import Cent\n\n" + FIXED,
    },
    "a package with a module called pluggy": {
        "money/__init__.py": "from money import pluggy\n",
        "money/pluggy.py": "import argparse\n",
        "shop.py": "import money\n\n" + FIXED,
    },
    "odd code": {
        "shop.py": "import atexit, inspect, subprocess, sys, threading\n"
        "atexit.register(lambda: None)\n"
        "class Money(int):\n"
        "    def __eq__(self, other): return isinstance(other, int) and int(self) == int(other)\n"
        "    __hash__ = int.__hash__\n"
        + FIXED.replace(
            "return sum(prices)",
            "sums = []\n"
            "    thread = threading.Thread(target=lambda: sums.append(sum(prices)))\n"
            "    thread.start(); thread.join()\n"
            "    subprocess.run([sys.executable, '-c', 'pass'], check=True)\n"
            "    return Money(sums[0])",
        )
        + "\n\ndef main():\n    sys.exit(0)\n\n\n"
        "SOURCE = inspect.getsource(sys.modules[__name__])\n"
    },
    "odd files": {
        "shop.py": "import pack\nfrom store import label, parse, total\n",
        "store.py": FIXED,
        "pack/__init__.py": "from pack import copy, queue\n",
        "pack/copy.py": "",
        "pack/queue.py": "",
        "conftest.py": "import pytest\n\n\n@pytest.fixture\ndef till():\n    return 1\n",
        "pyproject.toml": "[tool.pytest.ini_options]\naddopts = '-ra --strict-markers'\n",
        "Makefile": "include mk/test.mk\n",
        "mk/test.mk": "test:\n\tpython -m pytest\n",
    },
    "adds configuration": {"pyproject.toml": "[project]\nname = 'shop'\nversion = '1'\n"},
}


@pytest.mark.parametrize("change", HONEST)
def test_an_honest_change_loses_nothing(shop: Shop, change: str) -> None:
    graded = shop.grade({"shop.py": FIXED, **HONEST[change]})
    assert graded.outcome.result == "pass", graded
    assert graded.evidence == "confirmed"


@pytest.mark.parametrize("name", ["pluggy", "iniconfig"])
def test_the_package_under_test_may_be_one_that_the_runner_uses(tmp_path: Path, name: str) -> None:
    package = Path(str(importlib.import_module(name).__file__)).parent
    files = {f"src/{name}/{path.name}": path.read_text() for path in package.glob("*.py")}
    tests = TESTS.replace("from shop import", f"from {name}.shop import")
    shop = Shop(
        tmp_path,
        {**files, f"src/{name}/shop.py": SHOP, "tests/test_shop.py": tests},
        run=f"PYTHONPATH=src {PYTEST}",
        fail_to_pass=FAIL_TO_PASS,
    )
    own = {f"src/{name}/shop.py": FIXED, f"src/{name}/argparse.py": "x = 1\n"}
    graded = shop.grade(own)
    assert (graded.outcome.result, graded.restored) == ("pass", ()), graded
    assert graded.evidence == "confirmed"
    graded = shop.grade({**own, "src/argparse.py": "raise SystemExit(0)\n"})
    assert (graded.outcome.result, graded.restored) == ("pass", ("src/argparse.py",))
