"""out-of-scope-change without a declared scope: by the request's own words, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
from inspected import Files, inspected
from msgspec.structs import replace

from closeloop.changes import scope
from closeloop.changes.scope import read_request
from closeloop.records.finding import Finding

SHOP: Files = {
    "shop/billing.py": "def write_bill(order):\n    return order.total\n",
    "shop/stock.py": "def count_items(shelf):\n    return len(shelf)\n",
    "shop/prices.py": "def find_discount(customer):\n    return 0\n",
    "tests/test_billing.py": "def test_bill():\n    assert True\n",
    ".github/workflows/ci.yml": "on: push\n",
    **{f"shop/part{n}.py": f"def do_{n}(x):\n    return x\n" for n in range(12)},
}
BILLING = "def write_bill(order):\n    return round(order.total, 2)\n"
STOCK = "def count_items(shelf):\n    return len(shelf) + 1\n"


def judge(folder: Path, request: str, after: Files) -> list[str] | None:
    """The files that are flagged; None where nothing can be told."""
    with inspected(folder, SHOP, after) as inspection:
        found = scope.check(replace(inspection, request=request))
    if not all(isinstance(one, Finding) for one in found):
        return None
    assert {one.severity for one in found if isinstance(one, Finding)} <= {"info"}
    return [one.places[0].rpartition(":")[0] for one in found if isinstance(one, Finding)]


@pytest.mark.parametrize(
    "request_",
    [
        "Round totals in billing to cents",
        "Fix the bill: an order's total has too many digits",
        "`write_bill` must round",
        "Round in shop/billing.py",
    ],
)
def test_plain_words_name_a_file_and_what_nobody_asked_for_is_told(
    tmp_path: Path, request_: str
) -> None:
    after = {"shop/billing.py": BILLING, "shop/stock.py": STOCK}
    assert judge(tmp_path, request_, after) == ["shop/stock.py"]


@pytest.mark.parametrize(
    "also",
    [
        pytest.param({"tests/test_billing.py": "def test_bill():\n    assert 1\n"}, id="its tests"),
        pytest.param({"docs/money.md": "Cents are rounded.\n"}, id="documents"),
        pytest.param({"changes/12.yaml": "fix: cents\n"}, id="a note"),
        pytest.param({"shop/__meta__.py": "NUMBER = (1, 3)\n"}, id="the next version"),
        pytest.param({"CHANGELOG.md": "- rounded\n"}, id="the changelog"),
        pytest.param(
            {"shop/prices.py": "def find_discount(bill):\n    return write_bill(bill)\n"},
            id="what shares a name with it",
        ),
    ],
)
def test_what_belongs_to_it_goes_with_it(tmp_path: Path, also: Files) -> None:
    after = {"shop/billing.py": BILLING, **also}
    assert judge(tmp_path, "Round totals in billing to cents", after) == []


def test_a_workflow_that_nobody_spoke_of_is_told(tmp_path: Path) -> None:
    after = {"shop/billing.py": BILLING, ".github/workflows/ci.yml": "on: [push, fork]\n"}
    assert judge(tmp_path, "Round totals in billing", after) == [".github/workflows/ci.yml"]


@pytest.mark.parametrize(
    "request_",
    [
        "Make it nicer",
        "Apply ruff's new rules",
        "Prepare the release",
        "Count the customers of the warehouse",
    ],
)
def test_a_request_that_names_nothing_of_the_change_says_nothing(
    tmp_path: Path, request_: str
) -> None:
    after = {"shop/billing.py": BILLING, "shop/part3.py": "def do_3(y):\n    return y\n"}
    assert judge(tmp_path, request_, after) is None


def test_words_lose_their_endings_and_trailers_are_nobodys_wish() -> None:
    request = read_request("Parse `Cart.total()` totals\n\nCo-authored-by: Wilma Stock <w@x.org>\n")
    assert "total" in request.symbols
    assert "Stock" not in request.spoken
