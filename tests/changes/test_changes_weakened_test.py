"""weakened-test: tests that were there must go on testing."""

from __future__ import annotations

from pathlib import Path

import pytest
from inspected import said

from closeloop.changes.quality import weakened_test

PRODUCT = "def net(x):\n    return x\n\n\ndef gross(x):\n    return x * 2\n"
TESTS = """\
import pytest
from shop import gross, net


def test_net():
    assert net(1) == 1
    assert net(0) == 0


def test_gross():
    value = gross(2)
    assert value == 4
"""
SCRIPT = """\
describe('cart', () => {
  it('adds up', () => {
    expect(total([1, 2])).toBe(3)
  })
  it('is empty', () => {
    expect(total([])).toBe(0)
  })
})
"""
GO = """\
package shop

import "testing"

func TestNet(t *testing.T) {
\tif Net(1) != 1 {
\t\tt.Fatal("no")
\t}
}
"""
START = {
    "shop.py": PRODUCT,
    "tests/test_shop.py": TESTS,
    "cart.test.ts": SCRIPT,
    "shop_test.go": GO,
    "pyproject.toml": "[tool.coverage.report]\nfail_under = 90\n",
}


def changed(path: str, old: str, new: str) -> dict[str, str]:
    assert old in START[path]
    return {path: START[path].replace(old, new)}


@pytest.mark.parametrize(
    ("after", "place", "words"),
    [
        (
            changed("tests/test_shop.py", "def test_net", "@pytest.mark.skip()\ndef test_net"),
            "tests/test_shop.py:5",
            "`test_net` is disabled",
        ),
        (
            changed("tests/test_shop.py", "net():\n", "net():\n    pytest.skip('later')\n"),
            "tests/test_shop.py:6",
            "`test_net` is disabled",
        ),
        (changed("cart.test.ts", "it('adds up'", "it.skip('adds up'"), "cart.test.ts:2", "`adds"),
        (changed("cart.test.ts", "it('adds up'", "it.only('adds up'"), "cart.test.ts:2", "other"),
        (
            changed("shop_test.go", "T) {\n", 'T) {\n\tt.Skip("later")\n'),
            "shop_test.go:6",
            "`TestNet` is disabled",
        ),
        (
            changed("tests/test_shop.py", "assert value == 4", "assert True"),
            "tests/test_shop.py:12",
            "became `assert True`",
        ),
        (
            changed("tests/test_shop.py", "assert value == 4", "assert value is not None"),
            "tests/test_shop.py:12",
            "`assert value == 4` became `assert value is not None`, which checks less",
        ),
        (
            changed("cart.test.ts", "expect(total([])).toBe(0)", "expect(total([])).toBeDefined()"),
            "cart.test.ts:6",
            "checks less",
        ),
        (
            changed("tests/test_shop.py", "    assert value == 4\n", ""),
            "tests/test_shop.py:10",
            "`test_gross` lost 1 of 1 assertions",
        ),
        (
            changed("pyproject.toml", "90", "70"),
            "pyproject.toml:2",
            "fail_under is lowered from 90 to 70",
        ),
    ],
)  # fmt: skip
def test_what_makes_a_test_say_less_is_an_error(
    tmp_path: Path, after: dict[str, str], place: str, words: str
) -> None:
    (one,) = said(weakened_test, tmp_path, START, after)
    assert (one.severity, one.places) == ("error", (place,))
    assert words in one.message


def test_one_assertion_less_is_a_warning(tmp_path: Path) -> None:
    after = changed("tests/test_shop.py", "    assert net(0) == 0\n", "")
    (one,) = said(weakened_test, tmp_path, START, after)
    assert one.severity == "warning"
    assert one.message == "`test_net` lost 1 of 2 assertions: `assert net(0) == 0`."


def test_a_test_that_goes_while_its_subject_stays_is_a_warning(tmp_path: Path) -> None:
    after = {"tests/test_shop.py": TESTS.split("\n\n\ndef test_gross", maxsplit=1)[0] + "\n"}
    (one,) = said(weakened_test, tmp_path, START, after)
    assert (one.severity, one.rule) == ("warning", "weakened-test")
    assert "`test_gross` was removed" in one.message


def test_a_skip_that_is_only_laid_out_anew_is_fine(tmp_path: Path) -> None:
    before = {"tests/test_a.py": "@skip('slow')\ndef test_a():\n    assert f() == 1\n"}
    after = {"tests/test_a.py": before["tests/test_a.py"].replace("'slow'", "\n    'slow'\n")}
    assert said(weakened_test, tmp_path, before, after) == []


def test_a_test_may_be_known_by_its_mark_alone(tmp_path: Path) -> None:
    java = "class CartTest {\n  @Test\n  void addsUp() {\n    assertEquals(3, total());\n  }\n}\n"
    after = {"CartTest.java": java.replace("  @Test", '  @Disabled("later")\n  @Test')}
    (one,) = said(weakened_test, tmp_path, {"CartTest.java": java}, after)
    assert (one.severity, one.places) == ("error", ("CartTest.java:2",))


def test_a_whole_file_of_tests_that_goes_is_told_once(tmp_path: Path) -> None:
    (one,) = said(weakened_test, tmp_path, START, {"tests/test_shop.py": None})
    assert "`test_net`, `test_gross` were removed" in one.message


@pytest.mark.parametrize(
    "after",
    [
        {**changed("shop.py", "\n\ndef gross(x):\n    return x * 2\n", ""),
         "tests/test_shop.py": TESTS.split("\n\n\ndef test_gross", maxsplit=1)[0] + "\n"},
        {"tests/test_shop.py": None, "tests/test_all.py": TESTS},
        changed("tests/test_shop.py", "def test_gross", "def test_gross_is_twice"),
        changed("tests/test_shop.py", "assert value == 4", "assert value == 5"),
        changed("tests/test_shop.py", "def test_net", "@pytest.mark.skipif(OLD)\ndef test_net"),
        changed("shop_test.go", "T) {\n", "T) {\n\tif testing.Short() {\n\t\tt.Skip()\n\t}\n"),
        changed("tests/test_shop.py", "def test_net",
                "@pytest.mark.xfail(\n    OLD,\n    reason='old')\ndef test_net"),
        {"tests/test_new.py": "@pytest.mark.skip\ndef test_new():\n    assert 1 == 1\n"},
        {"tests/test_shop.py": TESTS.replace("    assert net(0) == 0\n", "")
         + "\n\ndef test_net_of_nothing():\n    assert net(0) == 0\n"},
        changed("pyproject.toml", "90", "95"),
    ],
    ids=["with its subject", "moved", "renamed", "expects other", "condition",
         "condition in go", "condition below", "a new one", "split", "raised"],
)  # fmt: skip
def test_what_goes_with_the_code_or_stays_elsewhere_is_fine(
    tmp_path: Path, after: dict[str, str | None]
) -> None:
    assert said(weakened_test, tmp_path, START, after) == []


SINGLE = """\
def test_one():
    assert parse("1 day") == 1


def test_two():
    assert parse("2 days") == 2


def test_week():
    assert parse("1 week") == 7
"""
TABLE = """\
import pytest


@pytest.mark.parametrize(("text", "days"), [("1 day", 1), ("2 days", 2), ("1 week", 7)])
def test_parse(text, days):
    assert parse(text) == days
"""


def test_tests_that_became_cases_of_one_test_were_not_removed(tmp_path: Path) -> None:
    before = {"tests/test_days.py": SINGLE, "days.py": "def parse(text): ...\n"}
    assert said(weakened_test, tmp_path, before, {"tests/test_days.py": TABLE}) == []


def test_tests_whose_lines_stay_in_one_with_cases_were_not_removed(tmp_path: Path) -> None:
    """As where `LRUCache()` and `LRUCache(capacity=None)` are tested alike."""
    body = "    for at in range(100):\n        store[at] = at\n    assert len(store) == 100\n"
    two = (
        f"def test_unlimited():\n    store = Store()\n{body}\n\n"
        f"def test_unlimited_explicit():\n    store = Store(capacity=None)\n{body}"
    )
    one = (
        'import pytest\n\n\n@pytest.mark.parametrize("given", [{}, {"capacity": None}])\n'
        f"def test_without_limit(given):\n    store = Store(**given)\n{body}"
    )
    before = {"tests/test_store.py": two, "store.py": "class Store: ...\n"}
    assert said(weakened_test, tmp_path, before, {"tests/test_store.py": one}) == []


def test_a_test_that_is_not_among_the_cases_was_removed(tmp_path: Path) -> None:
    before = {"tests/test_days.py": SINGLE, "days.py": "def parse(text): ...\n"}
    after = {"tests/test_days.py": TABLE.replace(', ("1 week", 7)', "")}
    (one,) = said(weakened_test, tmp_path, before, after)
    assert "`test_week` was removed" in one.message


def test_a_test_that_goes_with_the_text_it_asked_for_was_not_removed(tmp_path: Path) -> None:
    """As in starlette, where a branch on `http.response.pathsend` went with its test."""
    product = (
        "def send(scope):\n    if 'response.pathsend' in scope:\n        return 1\n    return 2\n"
    )
    test = "def test_pathsend():\n    assert send({'response.pathsend': {}}) == 1\n"
    other = "def test_plain():\n    assert send({}) == 2\n"
    before = {"shop.py": product, "tests/test_shop.py": f"{test}\n\n{other}"}
    after = {"shop.py": "def send(scope):\n    return 2\n", "tests/test_shop.py": other}
    assert said(weakened_test, tmp_path, before, after) == []
