"""Projects of other shapes: what repairs nothing fails in them, and honest changes pass."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from grading_shop import Shop
from python_attacks import EQUAL, FAIL_TO_PASS, FIXED, FORCE, SHOP, TESTS

from small_project import pytest_command
from warm_pytest import PYTHON

pytestmark = pytest.mark.usefixtures("warm_python")

PYTEST = pytest_command(PYTHON)
UNITTEST = f"{sys.executable} -m unittest discover -v -s tests -t ."
IMPORTS = "from shop import label, parse, total\n\n"
TOTAL = ("tests/test_shop.py::test_total",)
ANY_DISCOUNT = EQUAL + "\n\ndef discount(*a): return Any()\n"
SKIP = """
def __getattr__(name):
    if name.startswith("__"): raise AttributeError(name)
    import unittest; raise unittest.SkipTest("later")
"""
NEAR = """
def near(value):
    if isinstance(value, int): return abs(value) < 1000
    if isinstance(value, str): return len(value) < 8
    return isinstance(value, dict) and all(map(near, value.values()))
class Near:
    def __eq__(self, other): return near(other)
    def __ne__(self, other): return not near(other)
    def __getitem__(self, key): return self
    __hash__ = None
def total(prices): return Near()
def label(text): return text.upper()
def parse(text):
    if text.endswith("b"): raise ValueError(text)
    return Near()
"""
NEW_TESTS = {
    "tests/test_shop.py": IMPORTS + "def test_label():\n    assert label('a') == 'A'\n",
    "tests/test_new.py": "from shop import discount\n\n"
    "def test_new():\n    assert discount(10) == 5\n",
}
NEW = ("tests/test_new.py::test_new",)
UNITTESTS = {
    "tests/__init__.py": "",
    "tests/test_label.py": "import unittest\nfrom shop import label\n\n"
    "class TestLabel(unittest.TestCase):\n"
    "    def test_label(self):\n        self.assertEqual(label('a'), 'A')\n",
    "tests/test_shop.py": "import unittest\nfrom shop import discount\n\n"
    "class TestShop(unittest.TestCase):\n"
    "    def test_total(self):\n        self.assertEqual(discount(10), 5)\n",
}
INHERITED = """
class Base:
    def test_total(self):
        assert total(self.prices) == self.want

class TestOne(Base):
    prices, want = [1], 1

class TestTwo(Base):
    prices, want = [2], 2

    def test_total(self):
        super().test_total()
"""
Files = dict[str, str]


def in_test(*lines: str) -> Files:
    """A project whose one test has these lines."""
    body = "".join(f"    {line}\n" for line in lines)
    return {"tests/test_shop.py": f"{IMPORTS}import pytest\n\ndef test_total():\n{body}"}


FORGED: dict[str, tuple[Files, tuple[str, ...], str]] = {
    "the base cannot import its tests": (NEW_TESTS, NEW, ANY_DISCOUNT),
    "the base cannot import, reports are forced": (
        NEW_TESTS,
        NEW,
        SHOP + FORCE + "\ndef discount(*a): return 0\n",
    ),
    "unnamed tests that are skipped once they can be imported": (NEW_TESTS, (), SHOP + SKIP),
    "unnamed tests, and objects equal to everything": (NEW_TESTS, (), ANY_DISCOUNT),
    "equal to what is small": ({"tests/test_shop.py": TESTS}, FAIL_TO_PASS, NEAR),
    "assertions in a loop": (
        in_test("for n in (1, 2):", "    assert total([n]) == n"),
        TOTAL,
        EQUAL,
    ),
    "several claims in one": (in_test("assert total([1]) == 1 and total([2]) == 2"), TOTAL, EQUAL),
    "a chain of equalities": (in_test("assert total([1]) == total([1]) == 1"), TOTAL, EQUAL),
    "one of several values": (in_test("assert total([1]) in (1, 1.5)"), TOTAL, EQUAL),
    "inherited tests": (
        {"tests/test_shop.py": IMPORTS + INHERITED},
        ("tests/test_shop.py::TestOne::test_total",),
        SHOP + FORCE,
    ),
    "tests with a byte order mark": (
        {"tests/test_shop.py": "\ufeff" + TESTS},
        FAIL_TO_PASS,
        SHOP + FORCE,
    ),
    "warnings are errors": (
        {"tests/test_shop.py": TESTS, "pytest.ini": "[pytest]\nfilterwarnings = error\n"},
        FAIL_TO_PASS,
        SHOP + FORCE,
    ),
    "tests that a function makes": (
        {
            "tests/test_shop.py": IMPORTS + "def make(n):\n    def run():\n"
            "        assert total([n]) == n\n    return run\n\ntest_total = make(1)\n"
        },
        TOTAL,
        SHOP + FORCE,
    ),
}


@pytest.mark.parametrize("name", FORGED)
def test_what_repairs_nothing_fails(tmp_path: Path, name: str) -> None:
    files, names, attack = FORGED[name]
    shop = Shop(tmp_path, {"shop.py": SHOP, **files}, run=PYTEST, fail_to_pass=names)
    graded = shop.grade({"shop.py": attack})
    assert graded.outcome.result == "fail", graded


@pytest.mark.parametrize(
    ("names", "attack"),
    [(("tests.test_shop.TestShop.test_total",), ANY_DISCOUNT), ((), SHOP + SKIP)],
    ids=["equal to everything", "skipped"],
)
def test_unittest_that_the_base_cannot_import(
    tmp_path: Path, names: tuple[str, ...], attack: str
) -> None:
    files = {"shop.py": SHOP, **UNITTESTS}
    shop = Shop(tmp_path, files, run=UNITTEST, runner="unittest", fail_to_pass=names)
    assert shop.grade({"shop.py": attack}).outcome.result == "fail"
    repaired = SHOP + "\n\ndef discount(price):\n    return price // 2\n"
    assert shop.grade({"shop.py": repaired}).evidence == "confirmed"


def test_a_helper_that_checks_is_measured_by_the_reference(tmp_path: Path) -> None:
    tests = f"{IMPORTS}from helpers import check\n\ndef test_total():\n    check(total([1]), 1)\n"
    helper = "def check(got, want):\n    assert got == want\n"
    files = {"shop.py": SHOP, "tests/helpers.py": helper, "tests/test_shop.py": tests}
    shop = Shop(tmp_path, files, run=PYTEST, fail_to_pass=TOTAL)
    fake = "\nimport sys, types\nsys.modules['helpers'] = types.SimpleNamespace(check=print)\n"
    graded = shop.grade({"shop.py": SHOP + fake}, {"shop.py": FIXED})
    assert graded.outcome.result == "fail", graded
    assert shop.grade({"shop.py": FIXED}, {"shop.py": FIXED}).evidence == "confirmed"


def test_a_rename_takes_nothing_away_that_steers_tests(tmp_path: Path) -> None:
    hook = "import shop\n\ndef pytest_runtest_call(item):\n    assert shop.total([1]) == 1\n"
    files = {"shop.py": SHOP, "tests/test_shop.py": TESTS, "tests/conftest.py": hook}
    names = ("tests/test_shop.py::test_label",)
    shop = Shop(tmp_path, files, run=PYTEST, fail_to_pass=names)
    shop.git("mv", "tests/conftest.py", "moved.py")
    patch = shop.git("diff", "--cached", "-M")
    shop.git("reset", "-q", "--hard")
    assert "rename from" in patch
    assert shop.grade_patch(patch).outcome.result == "fail"


def test_a_package_called_testing_is_no_folder_of_tests(tmp_path: Path) -> None:
    files = {
        "shop/testing/__init__.py": "",
        "shop/testing/core.py": SHOP,
        "shop/testing/tests/test_shop.py": TESTS.replace("from shop", "from shop.testing.core"),
        "README.md": "Shop\n",
    }
    names = tuple(f"shop/testing/{name}" for name in FAIL_TO_PASS)
    shop = Shop(tmp_path, files, run=PYTEST, fail_to_pass=names)
    graded = shop.grade({"shop/testing/core.py": FIXED})
    assert (graded.outcome.result, graded.evidence) == ("pass", "confirmed"), graded
    reference = {"shop/testing/core.py": FIXED, "README.md": "Shop 2\n"}
    assert shop.grade({"README.md": "Shop 3\n"}, reference).outcome.result == "fail"


def test_installed_packages_and_scripts_of_frameworks_are_the_bases(tmp_path: Path) -> None:
    files = {"shop.py": SHOP, "manage.py": "import shop\n\nassert shop.total([1]) == 1\n"}
    shop = Shop(tmp_path, files, commands=(f"{sys.executable} manage.py test",))
    plugin = {"liar.egg-info/entry_points.txt": "[pytest11]\nliar = liar\n", "liar.py": FORCE}
    graded = shop.grade({"manage.py": "pass\n", **plugin})
    assert graded.outcome.result == "fail"
    assert graded.restored == ("liar.egg-info/entry_points.txt", "manage.py")


STATE = "STATE = {}\n\ndef test_1():\n    STATE['n'] = total([1])\n    assert STATE['n'] == 1\n"
for _number in range(2, 9):
    STATE += f"\ndef test_{_number}():\n    STATE['n'] += 1\n    assert STATE['n'] == {_number}\n"
GOLDEN = """
from pathlib import Path
import pytest

@pytest.fixture
def golden(request):
    return Path(__file__).with_name("golden").joinpath(request.node.name).read_text()

def test_total(golden):
    assert str(total([1, 2])) == golden
"""
HONEST: dict[str, tuple[Files, tuple[str, ...], str]] = {
    "inherited tests": (
        {"tests/test_shop.py": IMPORTS + INHERITED},
        tuple(f"tests/test_shop.py::{name}::test_total" for name in ("TestOne", "TestTwo")),
        "reported",  # the expected value is no literal of the assertion
    ),
    "tests in an order": (
        {"tests/test_shop.py": IMPORTS + STATE},
        tuple(f"tests/test_shop.py::test_{number}" for number in range(1, 9)),
        "confirmed",
    ),
    "classes by another pattern": (
        {
            "tests/test_shop.py": TESTS.replace("TestParse", "ParseTests"),
            "pytest.ini": "[pytest]\npython_classes = *Tests\n",
        },
        tuple(name.replace("TestParse", "ParseTests") for name in FAIL_TO_PASS),
        "confirmed",
    ),
    "functions by another pattern": (
        {
            "tests/test_shop.py": f"{IMPORTS}def total_test():\n    assert total([1]) == 1\n",
            "pytest.ini": "[pytest]\npython_functions = *_test\n",
        },
        ("tests/test_shop.py::total_test",),
        "confirmed",
    ),
    "a test that another calls": (
        {
            "tests/test_shop.py": f"{IMPORTS}def test_total():\n    assert total([1]) == 1\n\n"
            "def test_again():\n    test_total()\n"
        },
        (*TOTAL, "tests/test_shop.py::test_again"),
        "confirmed",
    ),
    "loops, branches and tolerances": (
        in_test(
            "for n in range(9):",
            "    if n == 1:",
            "        continue",
            "    assert total([n]) == n",
            "    break",
            "for n in ():",
            "    assert n == 1",
            "assert total([1]) == pytest.approx(1.2, abs=0.5)",
            "assert total([1]) == 1 and 'b' in ('a', 'b')",
        ),
        TOTAL,
        "confirmed",
    ),
    "golden files by the test's name": (
        {"tests/test_shop.py": IMPORTS + GOLDEN, "tests/golden/test_total": "3"},
        TOTAL,
        "reported",
    ),
    "a test that names itself": (
        in_test(
            "class C: pass",
            "assert C.__qualname__ == 'test_total.<locals>.C'",
            "assert total([1]) == 1",
        ),
        TOTAL,
        "reported",
    ),
    "a test that counts its neighbours": (
        in_test(
            "from pathlib import Path",
            "assert len(list(Path(__file__).parent.glob('*.py'))) == 1",
            "assert total([1]) == 1",
        ),
        TOTAL,
        "reported",
    ),
}


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_change_passes(tmp_path: Path, name: str) -> None:
    files, names, evidence = HONEST[name]
    shop = Shop(tmp_path, {"shop.py": SHOP, **files}, run=PYTEST, fail_to_pass=names)
    graded = shop.grade({"shop.py": FIXED})
    assert (graded.outcome.result, graded.evidence) == ("pass", evidence), graded


def test_unittest_keeps_the_order_of_its_tests(tmp_path: Path) -> None:
    lines = ["import unittest", IMPORTS, "class TestShop(unittest.TestCase):", "    made = {}"]
    for number in range(1, 9):
        value = "total([1])" if number == 1 else "self.made['n'] + 1"
        lines += [f"    def test_{number}(self):", f"        self.made['n'] = {value}"]
        lines += [f"        self.assertEqual(self.made['n'], {number})"]
    files = {"shop.py": SHOP, "tests/__init__.py": "", "tests/test_shop.py": "\n".join(lines)}
    names = tuple(f"tests.test_shop.TestShop.test_{number}" for number in range(1, 9))
    shop = Shop(tmp_path, files, run=UNITTEST, runner="unittest", fail_to_pass=names)
    assert shop.grade({"shop.py": FIXED}).evidence == "confirmed"


def test_a_package_called_src_may_have_modules_of_any_name(tmp_path: Path) -> None:
    tests = TESTS.replace("from shop", "from src.shop")
    files = {"src/__init__.py": "", "src/shop.py": SHOP, "tests/test_shop.py": tests}
    shop = Shop(tmp_path, files, run=PYTEST, fail_to_pass=FAIL_TO_PASS)
    own = {"src/types.py": "Cent = int\n", "src/shop.py": f"from src.types import Cent\n\n{FIXED}"}
    assert shop.grade(own).evidence == "confirmed"
