"""broken-layer, bypassed-repository: the direction that packages keep, declared or learned."""

from __future__ import annotations

from pathlib import Path

import pytest
from inspected import Files, said, told

from closeloop.changes import broken_layer
from closeloop.records.settings import CheckSettings

PACKAGES = {f"shop/{name}/__init__.py": "" for name in ("", "web", "store", "tools")}
VIEWS = {f"shop/web/view{n}.py": f"from shop.store import table{n}\n" for n in range(6)}
TABLES = {f"shop/store/table{n}.py": f"TABLE = {n}\n" for n in range(6)}
SHOP: Files = {"shop/__init__.py": "", **PACKAGES, **VIEWS, **TABLES}


def test_an_import_against_the_learned_direction_is_told(tmp_path: Path) -> None:
    after = {"shop/store/table0.py": "from shop.web import view1\n\nTABLE = view1\n"}
    (one,) = said(broken_layer, tmp_path, SHOP, after)
    assert (one.rule, one.severity) == ("broken-layer", "warning")
    assert one.message == (
        "shop/store/ imports shop/web/ for the first time, while 6 files of shop/web/ import"
        " shop/store/: keep the direction."
    )


def test_an_import_against_a_chain_of_packages_is_told(tmp_path: Path) -> None:
    through = {f"shop/tools/tool{n}.py": f"from shop.store import table{n}\n" for n in range(6)} | {
        f"shop/web/view{n}.py": f"from shop.tools import tool{n}\n" for n in range(6)
    }
    after = {"shop/store/table0.py": "from shop.web import view1\n\nTABLE = view1\n"}
    (one,) = said(broken_layer, tmp_path, SHOP | through, after)
    assert one.message == (
        "shop/store/ imports shop/web/ for the first time, while 6 files of shop/web/ import"
        " shop/tools/, whose files import shop/store/: keep the direction."
    )
    (tmp_path / "back").mkdir()
    back = {"shop/tools/back.py": "from shop.web import view0\n"}
    assert not said(broken_layer, tmp_path / "back", SHOP | through | back, after)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param({}, {"shop/web/view9.py": "from shop.store import table0\n"}, id="along"),
        pytest.param(
            {"shop/store/back.py": "from shop.web import view0\n"},
            {"shop/store/table0.py": "from shop.web import view1\n"},
            id="others do so too",
        ),
        pytest.param(
            {}, {"shop/tools/run.py": "from shop.web import view1\n"}, id="no direction yet"
        ),
        pytest.param(
            {},
            {"shop/store/table0.py": "def late():\n    from shop.web import view1\n"},
            id="deferred on purpose",
        ),
        pytest.param({}, {"tests/test_a.py": "from shop.web import view1\n"}, id="tests"),
        pytest.param(
            {"shop/store/table7.py": "from shop.web import view1\nA = 1\n"},
            {"shop/store/table7.py": "from shop.web import view1\nA = 2\n"},
            id="as before",
        ),
    ],
)
def test_other_imports_are_fine(tmp_path: Path, before: Files, after: Files) -> None:
    assert not said(broken_layer, tmp_path, {**SHOP, **before}, after)


def test_a_declared_layer_may_not_import_one_above_it(tmp_path: Path) -> None:
    settings = CheckSettings(layers=("shop/web/**", "shop/tools/**", "shop/store/**"))
    after = {
        "shop/tools/run.py": "from shop.store import table0\nfrom shop.web import view1\n",
        "shop/web/view9.py": "from shop.store import table0\n",
    }
    found = said(broken_layer, tmp_path, SHOP, after, settings)
    assert told(found) == [("error", "shop/tools/run.py:2")]
    assert "`check.layers`" in found[0].message


REPOSITORIES: Files = {
    "shop/__init__.py": "",
    "shop/repositories/__init__.py": "",
    "shop/services/__init__.py": "",
    **{f"shop/repositories/{name}.py": "import boto3\n" for name in ("orders", "bills")},
    **{
        f"shop/services/{name}.py": "from shop.repositories import orders\n"
        for name in ("buying", "billing", "sending")
    },
}


def test_a_service_that_bypasses_the_repositories_is_told(tmp_path: Path) -> None:
    after = {"shop/services/users.py": "import boto3\n\nTABLE = boto3.resource('dynamodb')\n"}
    (one,) = said(broken_layer, tmp_path, REPOSITORIES, after)
    assert (one.rule, one.severity) == ("bypassed-repository", "warning")
    assert "uses `boto3` directly; 3 files such as shop/services/billing.py use" in one.message


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param({}, {"shop/repositories/users.py": "import boto3\n"}, id="a repository"),
        pytest.param(
            {"shop/services/jobs.py": "import boto3\n"},
            {"shop/services/users.py": "import boto3\n"},
            id="no pattern",
        ),
        pytest.param(
            {}, {"shop/services/users.py": "from boto3.exceptions import Boto3Error\n"}, id="errors"
        ),
        pytest.param({}, {"shop/services/users.py": "import json\n"}, id="something else"),
    ],
)
def test_what_no_pattern_forbids_is_fine(tmp_path: Path, before: Files, after: Files) -> None:
    assert not said(broken_layer, tmp_path, {**REPOSITORIES, **before}, after)
