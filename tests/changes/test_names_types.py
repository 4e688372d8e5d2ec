"""hallucinated-name by types: each repository apart, and everything that does not fit."""

from __future__ import annotations

from pathlib import Path

import pytest
from inspected import inspected

from closeloop.changes import names
from closeloop.records.finding import Finding

SHOP = {
    "pyproject.toml": '[project]\nname = "shop"\ndependencies = ["PyYAML>=6"]\n',
    "shop/__init__.py": "",
    "shop/stock.py": (
        "class Stock:\n"
        "    def __init__(self, size: int) -> None:\n        self.size = size\n\n"
        "    def take(self, count: int, *, gently: bool = True) -> int:\n"
        "        return self.size - count\n"
    ),
    "shop/use.py": "import subprocess\n\nfrom shop.stock import Stock\n\nstock = Stock(3)\n",
}


def found(
    folder: Path, added: str, before: dict[str, str] = SHOP, path: str = "shop/use.py"
) -> list[Finding]:
    folder.mkdir(exist_ok=True)
    with inspected(folder, before, {path: before[path] + added}) as inspection:
        return [one for one in names.check(inspection) if isinstance(one, Finding)]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("stock.take(1, force_mode=True)", "has no parameter `force_mode`"),
        ("subprocess.run(['ls'], max_seconds=3)", "has no parameter `max_seconds`"),
        ("stock.take_all()", "`take_all`"),
        ("from shop.stock_helpers import Stock", "`stock_helpers`"),
        ("from subprocess import run_all", "`run_all` does not exist in `subprocess`"),
    ],
    ids=["keyword", "keyword of an overload", "method", "module", "imported name"],
)
def test_an_invented_name_that_stands_nowhere_else_is_an_error(
    tmp_path: Path, line: str, told: str
) -> None:
    (finding,) = found(tmp_path, f"{line}\n")
    assert told in finding.message
    assert finding.severity == "error"


def test_an_attribute_of_the_class_itself_is_an_error(tmp_path: Path) -> None:
    added = "\n    def left(self) -> int:\n        return self.size_left\n"
    (finding,) = found(tmp_path, added, path="shop/stock.py")
    assert finding.severity == "error"
    assert "`size_left`" in finding.message
    assert "did you mean `size_left`" not in finding.message


@pytest.mark.parametrize(
    ("line", "is_told"),
    [
        ("stock.take_all()[1] = 2  # type: ignore[index]", True),
        ("stock.take(1, force_mode=True)  # noqa: SIM115", True),
        ("stock.take(1, force_mode=True) + 1  # type: ignore [operator]", True),
        ("stock.take_all()  # type: ignore[attr-defined]", False),
        ("stock.take_all()  # type: ignore", False),
        ("stock.take(1, force_mode=True)  # noqa", False),
        ("stock.take(1, force_mode=True)  # pyright: ignore[reportCallIssue]", False),
    ],
)
def test_a_comment_silences_only_what_it_names(tmp_path: Path, line: str, is_told: bool) -> None:
    assert bool(found(tmp_path, f"{line}\n")) is is_told


def test_an_attribute_beside_those_of_a_standard_class_is_an_error(tmp_path: Path) -> None:
    before = {
        "tests/test_use.py": (
            "import unittest\nfrom threading import Thread\n\n\n"
            "class Worker(Thread):\n    def run(self):\n        pass\n\n\n"
            "class Uses(unittest.TestCase):\n    def test_one(self):\n        self.assertTrue(1)\n"
        )
    }
    added = "        self.assertTrue_safe(1)\n"
    (finding,) = found(tmp_path, added, before, path="tests/test_use.py")
    assert (finding.severity, finding.places) == ("error", ("tests/test_use.py:13",))


def test_a_base_class_that_another_base_follows_may_take_arguments(tmp_path: Path) -> None:
    added = "\n\nclass Mixed:\n    def __init__(self, size):\n        super().__init__(size)\n"
    assert found(tmp_path, added) == []


def test_a_module_that_fills_itself_as_it_runs_has_the_names_that_stand_in_it(
    tmp_path: Path,
) -> None:
    filled = "for name in ('mode', 'mean'):\n    globals()[name] = name.upper\n"
    before = {**SHOP, "shop/sums.py": filled}
    assert found(tmp_path, "from shop.sums import mode\n", before) == []
    (finding,) = found(tmp_path / "other", "from shop.sums import median_all\n", before)
    assert "`median_all`" in finding.message


def test_arguments_that_do_not_fit_are_a_warning(tmp_path: Path) -> None:
    (finding,) = found(tmp_path, "stock.take(1, True, 3)\n")
    assert finding.severity == "warning"
    assert "Too many positional arguments" in finding.message


def test_a_package_that_nothing_declares_is_a_warning(tmp_path: Path) -> None:
    (finding,) = found(tmp_path, "import fastcontextlib\n")
    assert (finding.severity, finding.places) == ("warning", ("shop/use.py:6",))
    assert "no manifest declares it" in finding.message


@pytest.mark.parametrize(
    ("manifest", "text"),
    [
        ("setup.py", "from setuptools import setup\n\nsetup(\n    name='shop',\n)\n"),
        ("pyproject.toml", '[project]\nname = "shop"\ndependencies = []\n'),
    ],
)
def test_a_package_without_dependencies_imports_nothing_from_elsewhere(
    tmp_path: Path, manifest: str, text: str
) -> None:
    """`import itertoolshelpers` in voluptuous, which needs no other package; its tests may."""
    plain = {path: content for path, content in SHOP.items() if path != "pyproject.toml"}
    before = {**plain, manifest: text, "tests/test_use.py": "import shop.use\n"}

    (finding,) = found(tmp_path, "import itertoolshelpers\n", before)
    assert (finding.severity, finding.places) == ("warning", ("shop/use.py:6",))
    assert found(tmp_path / "t", "import nosehelpers\n", before, "tests/test_use.py") == []
    dynamic = before | {"pyproject.toml": '[project]\ndynamic = ["dependencies"]\n'}
    dynamic.pop("setup.py", None)
    assert found(tmp_path / "d", "import itertoolshelpers\n", dynamic) == []


@pytest.mark.parametrize(
    "added",
    [
        "import yaml\n",
        "try:\n    import ujson\nexcept ImportError:\n    ujson = None\n",
        "import shop.stock\n",
    ],
    ids=["declared under another name", "optional", "own"],
)
def test_a_package_that_may_be_there_is_left_alone(tmp_path: Path, added: str) -> None:
    assert found(tmp_path, added) == []


def test_a_package_that_ci_installs_is_left_alone(tmp_path: Path) -> None:
    workflow = "jobs:\n  notes:\n    steps:\n    - run: |\n        pip install pypandoc\n"
    before = {**SHOP, ".github/workflows/notes.yml": workflow}
    assert found(tmp_path, "import pypandoc\n", before) == []


@pytest.mark.parametrize(
    ("named_in", "text"),
    [
        ("pyproject.toml", '[tool.setuptools_scm]\nwrite_to = "shop/_version.py"\n'),
        (".gitignore", "/shop/_version.py\n"),
    ],
)
def test_a_module_that_the_build_writes_is_left_alone(
    tmp_path: Path, named_in: str, text: str
) -> None:
    """As in tabulate, whose `_version.py` is written by setuptools_scm."""
    before = {**SHOP, named_in: SHOP.get(named_in, "") + text}
    assert found(tmp_path, "from ._version import version\n", before) == []
    (finding,) = found(tmp_path / "other", "from ._versions import version\n", before)
    assert "`_versions`" in finding.message


def test_a_keyword_added_to_a_call_that_was_there_is_an_error(tmp_path: Path) -> None:
    """As in natsort: only the line of the keyword is new."""
    call = "import warnings\n\nwarnings.warn(\n    'x',\n)\n"
    before = {**SHOP, "shop/use.py": call}
    after = {"shop/use.py": call.replace("    'x',\n", "    'x',\n    max_stacklevel=2,\n")}
    with inspected(tmp_path, before, after) as inspection:
        (finding,) = [one for one in names.check(inspection) if isinstance(one, Finding)]
    assert (finding.severity, finding.places) == ("error", ("shop/use.py:5",))
    assert "`max_stacklevel`" in finding.message


def test_a_branch_for_an_older_python_is_left_alone(tmp_path: Path) -> None:
    """As in natsort's `compat`, by a name of the project's own."""
    version = "PY_VERSION = READY = float(sys.version[:3])\n"
    before = {**SHOP, "shop/use.py": "import itertools\nimport sys\n\n" + version}
    branches = "if {} >= 3:\n    joined = zip\nelse:\n    joined = itertools.izip\n"

    assert found(tmp_path, branches.format("PY_VERSION"), before) == []
    (finding,) = found(tmp_path / "other", branches.format("READY"), before)
    assert "`izip`" in finding.message


def test_a_private_member_of_a_standard_class_is_left_alone(tmp_path: Path) -> None:
    """As in xmltodict: `XMLGenerator` has `_write`, and what describes its types does not."""
    before = {**SHOP, "shop/use.py": "from xml.sax.saxutils import XMLGenerator\n"}
    writer = "\n\nclass Writer({}):\n    def note(self, text):\n        self._write(text)\n"

    assert found(tmp_path, writer.format("XMLGenerator"), before) == []
    (finding,) = found(tmp_path / "other", writer.format("object"), before)
    assert "`_write`" in finding.message
    invented = writer.format("XMLGenerator").replace("_write(", "_write_all(")
    (finding,) = found(tmp_path / "invented", invented, before)
    assert "`_write_all`" in finding.message


def test_a_value_of_another_type_is_no_invented_name(tmp_path: Path) -> None:
    before = {**SHOP, "shop/use.py": "def plain(value: int | str) -> object:\n"}
    assert found(tmp_path, "    return dict(value)\n", before) == []


def test_a_verdict_does_not_depend_on_what_was_checked_before(tmp_path: Path) -> None:
    """A folder `attr` of one project must not stand for the installed package in the next."""
    cache = tmp_path / "cache"
    results = []
    for number, before in enumerate(({**SHOP, "attr/deep/__init__.py": "s = 1\n"}, SHOP)):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "cache").symlink_to(cache)
        cache.mkdir(exist_ok=True)
        added = "import attr\n\n\n@attr.s\nclass Crate:\n    pass\n"
        results.append([one.message for one in found(folder, added, before)])
    assert results[0] == ["`s` does not exist in `attr`."]
    assert results[1] == ["`attr` is imported, but no manifest declares it."]


def test_folders_that_became_empty_are_removed(tmp_path: Path) -> None:
    first = {**SHOP, "attr/deep/parts.py": "s = 1\n"}
    changed = {"attr/deep/parts.py": None, "shop/use.py": SHOP["shop/use.py"] + "stock.take(2)\n"}
    with inspected(tmp_path, first, changed) as inspection:
        names.check(inspection)
        (tree,) = (tmp_path / "cache" / "types").glob("*/tree")
    assert not (tree / "attr").exists()
