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


OWN = {
    **SHOP,
    "shop/cache.py": (
        "def cache(function):\n    def call(*args):\n        return function(*args)\n"
        "    return call\n"
    ),
    "shop/prices.py": (
        "from shop.cache import cache\n\n\n"
        "@cache\ndef price_of(name, count=1):\n    return len(name) * count\n"
    ),
    "shop/crate.py": (
        "class Crate:\n    def __init__(self, stock):\n        self.stock = stock\n\n"
        "    def weigh(self):\n        return 1\n\n"
        "    def unpack(self):\n        return 2\n\n"
        "    def __getattr__(self, name):\n        return getattr(self.stock, name)\n"
    ),
    "shop/use.py": (
        "from shop.crate import Crate\nfrom shop.prices import price_of\n\n\n"
        "def empty(crate):\n    crate.weigh()\n    crate.unpack()\n"
    ),
}


@pytest.mark.parametrize(
    ("path", "line", "told"),
    [
        ("shop/use.py", "    price_of('x', count_mode=2)", "has no parameter `count_mode`"),
        ("shop/use.py", "    crate.unpack_all()", "`unpack_all` does not exist in `Crate`"),
        (
            "shop/crate.py",
            "\n    def twice(self):\n        return self.weigh_all()",
            "`weigh_all` does not exist in `Crate`",
        ),
    ],
    ids=["function behind a decorator", "value without a type", "class with __getattr__"],
)
def test_what_the_type_checker_cannot_see_is_looked_up_in_the_repository(
    tmp_path: Path, path: str, line: str, told: str
) -> None:
    """As in dacite, cssselect and isodate."""
    (finding,) = found(tmp_path, f"{line}\n", OWN, path)
    assert told in finding.message
    real = line.replace("_all", "").replace("_mode", "")
    assert found(tmp_path / "real", f"{real}\n", OWN, path) == []
    assert found(tmp_path / "ignored", f"{line}  # type: ignore\n", OWN, path) == []


def test_a_class_that_gives_only_stored_names_lacks_others(tmp_path: Path) -> None:
    """As in environs, whatever its file imports."""
    stored = "try:\n            return self.parsers[name]\n        except KeyError:\n"
    stored += "            raise AttributeError(name) from None\n"
    text = "import boto3\n\n\n" + OWN["shop/crate.py"].replace(
        "return getattr(self.stock, name)\n", stored
    )
    line = "\n    def twice(self):\n        return self.weigh{}()\n"
    before = {**OWN, "shop/crate.py": text}
    assert found(tmp_path, line.format(""), before, "shop/crate.py") == []
    (finding,) = found(tmp_path / "other", line.format("_all"), before, "shop/crate.py")
    assert "`weigh_all` does not exist in `Crate`" in finding.message


def test_what_another_package_may_add_is_left_alone(tmp_path: Path) -> None:
    foreign = {
        path: text.replace("from shop.cache import", "from click import")
        for path, text in OWN.items()
    }
    foreign["shop/crate.py"] = "import boto3\n\n\n" + OWN["shop/crate.py"]
    foreign["shop/use.py"] += "    price_of('x')\n"
    assert (
        found(tmp_path, "    price_of('x', prog_name='y')\n    crate.unpack_all()\n", foreign) == []
    )


def test_names_exist_also_where_types_are_not_checked(tmp_path: Path) -> None:
    """As in cssselect: the decorator says that types do not fit, not that names are missing."""
    before = {**SHOP, "shop/use.py": SHOP["shop/use.py"] + "import typing\nimport warnings\n"}
    unchecked = "\n\n@typing.no_type_check\ndef old(value):\n    warnings.warn('x', {}=2)\n"
    assert found(tmp_path, unchecked.format("stacklevel"), before) == []
    (finding,) = found(tmp_path / "other", unchecked.format("use_stacklevel"), before)
    assert "`use_stacklevel`" in finding.message


def test_a_test_case_of_a_backport_has_the_standard_members(tmp_path: Path) -> None:
    """As in xmltodict and croniter; `assertEquals` was removed in Python 3.12."""
    suite = "class Uses({}.TestCase):\n    def test_one(self):\n        self.assertEqual(1, 1)\n"
    head = "try:\n    import unittest2 as unittest\nexcept ImportError:\n    import unittest\n\n\n"
    before = {"tests/test_use.py": head + suite.format("unittest")}
    path = "tests/test_use.py"
    assert found(tmp_path, "        self.assertEquals(1, 1)\n", before, path) == []
    (finding,) = found(tmp_path / "other", "        self.assertEqual_safe(1)\n", before, path)
    assert "`assertEqual_safe`" in finding.message
    other = {path: "from twisted.trial import unittest\n\n\n" + suite.format("unittest")}
    assert found(tmp_path / "twisted", "        self.assertEqual_safe(1)\n", other, path) == []


def test_a_lookup_that_may_fail_is_left_alone(tmp_path: Path) -> None:
    """As in dacite: `except AttributeError` handles a member that some versions lack."""
    lookup = "try:\n    left = stock.size_left\nexcept {}:\n    left = None\n"
    assert found(tmp_path, lookup.format("AttributeError")) == []
    (finding,) = found(tmp_path / "other", lookup.format("ValueError"))
    assert "`size_left`" in finding.message


def test_a_method_of_an_own_class_with_a_standard_name_has_its_keywords(tmp_path: Path) -> None:
    """As in wcmatch: `Path.__new__` makes a class that derives from the own `PurePath` too."""
    paths = (
        "import pathlib\n\n\nclass PurePath(pathlib.PurePath):\n"
        "    def match(self, pattern, *, flags=0):\n        return flags\n\n\n"
        "class Path(pathlib.Path):\n    pass\n"
    )
    before = {**SHOP, "shop/paths.py": paths, "shop/use.py": "from shop.paths import Path\n"}
    assert found(tmp_path, "Path('a').match('b', flags=1)\n", before) == []
    (finding,) = found(tmp_path / "other", "Path('a').match('b', flags_mode=1)\n", before)
    assert "`flags_mode`" in finding.message


def test_a_call_that_a_test_expects_to_fail_is_left_alone(tmp_path: Path) -> None:
    """As in invoke, whose test calls a method without the new argument."""
    before = {**SHOP, "shop/use.py": SHOP["shop/use.py"] + "from pytest import raises\n"}
    call = "with raises({}):\n    stock.size_left\n"
    assert found(tmp_path, call.format("AttributeError"), before) == []
    (finding,) = found(tmp_path / "other", call.format("ValueError"), before)
    assert "`size_left`" in finding.message


@pytest.mark.parametrize("supports", ["setup.py", "tox.ini", None])
def test_names_of_python_2_exist_in_a_project_for_it(tmp_path: Path, supports: str | None) -> None:
    """As in isodate, croniter and natsort."""
    texts = {
        "setup.py": "setup(classifiers=['Programming Language :: Python :: 2'])\n",
        "tox.ini": "[tox]\nenvlist = py27, py36\n",
    }
    before = {**SHOP, "shop/use.py": "import sys\n\ndef size(value):\n    return value\n"}
    if supports:
        before[supports] = texts[supports]
    added = "\n\nhighest = sys.maxint\nkinds = (int, long)\n"
    names_found = {one.message.split("`")[1] for one in found(tmp_path, added, before)}
    assert names_found == (set() if supports else {"maxint", "long"})


def test_a_module_that_newer_versions_of_python_lack_is_left_alone(tmp_path: Path) -> None:
    assert found(tmp_path, "from distutils.core import setup\n") == []
    (finding,) = found(tmp_path / "other", "from distutils.core_utils import setup\n")
    assert "`core_utils`" in finding.message


def test_an_undeclared_package_is_reported_where_it_is_named(tmp_path: Path) -> None:
    (finding,) = found(tmp_path, "from shophelpers import (\n    first,\n    second,\n)\n")
    assert finding.places == ("shop/use.py:6",)


@pytest.mark.parametrize(
    ("manifest", "text"),
    [
        ("setup.py", "setup(\n    name='shop', py_modules=['shop']\n)\n"),
        ("setup.cfg", "[options]\npy_modules = shop\n"),
    ],
)
def test_a_module_that_is_its_own_package_declares_what_it_imports(
    tmp_path: Path, manifest: str, text: str
) -> None:
    """As in xmltodict, semver and pyupgrade."""
    setup = "from setuptools import setup\n\nsetup(name='shop')\n"
    before = {"setup.py": setup, "shop.py": "import re\n", "tool.py": "import re\n"}
    before[manifest] = text
    (finding,) = found(tmp_path, "import inspecthelpers\n", before, "shop.py")
    assert "no manifest declares it" in finding.message
    assert found(tmp_path / "other", "import inspecthelpers\n", before, "tool.py") == []


def test_parameters_with_defaults_set_later_are_optional(tmp_path: Path) -> None:
    """As in pyupgrade."""
    spot = "import typing\n\n\nclass Spot(typing.NamedTuple):\n    row: int\n    column: int\n\n\n"
    defaults = "Spot.__new__.__defaults__ = (0, 0)\n"
    assert found(tmp_path, "spot = Spot()\n", {"shop/use.py": spot + defaults}) == []
    (finding,) = found(tmp_path / "other", "spot = Spot()\n", {"shop/use.py": spot})
    assert "No arguments provided" in finding.message


def test_a_module_that_the_build_compiles_is_left_alone(tmp_path: Path) -> None:
    """As in yarl, with Cython."""
    before = {**SHOP, "shop/_fast.pyx": "def run():\n    pass\n"}
    assert found(tmp_path, "from ._fast import run\nfrom . import _fast\n", before) == []


def test_abstract_classes_that_moved_are_left_alone(tmp_path: Path) -> None:
    """As in cerberus: `collections` had `Sized` before Python 3.10."""
    assert found(tmp_path, "from collections import Sized\n") == []
    (finding,) = found(tmp_path / "other", "from collections import get_Sized\n")
    assert "`get_Sized`" in finding.message


def test_a_standard_base_may_be_passed_on_by_an_own_module(tmp_path: Path) -> None:
    """As in cerberus."""
    compat = (
        "try:\n    from collections.abc import Sized\nexcept OSError:\n    from {} import Sized\n"
    )
    crate = "from shop.compat import Sized\n\n\nclass Crate(Sized):\n    def __len__(self):\n"
    for place, told in (("collections", 1), ("zope", 0)):
        before = {**SHOP, "shop/compat.py": compat.format(place), "shop/use.py": crate}
        added = "        return self.size_or_none\n"
        assert len(found(tmp_path / place, added, before)) == told


@pytest.mark.parametrize(
    "attempt",
    [
        "    from shop._speedups import fast\n",
        "    from shop.stock import fast\n",
        "    from collections import fastdict\n",
        "    import boats\n    version = boats.version_info\n",
    ],
    ids=["module", "name", "standard name", "folder of another package"],
)
def test_an_import_that_may_fail_is_left_alone(tmp_path: Path, attempt: str) -> None:
    before = {**SHOP, "boats/trip/__init__.py": ""}
    added = f"try:\n{attempt}except ImportError:\n    pass\n"
    assert found(tmp_path / "handled", added, before) == []
    plain = "".join(line[4:] + "\n" for line in attempt.splitlines())
    assert found(tmp_path / "plain", plain, before)


def test_a_slip_in_an_import_that_may_fail_is_told(tmp_path: Path) -> None:
    added = "try:\n    from shop.stock import Stokc\nexcept ImportError:\n    pass\n"
    (finding,) = found(tmp_path, added)
    assert "did you mean `Stock`?" in finding.message


def test_what_a_declared_package_brings_is_left_alone(tmp_path: Path) -> None:
    before = {**SHOP, "docs/links.py": "", "tox.ini": "[testenv:docs]\ndeps = sphinx\n"}
    assert found(tmp_path, "from docutils import nodes\n", before, "docs/links.py") == []


def test_a_member_of_what_a_fixture_returns_is_looked_up_in_its_class(tmp_path: Path) -> None:
    fixture = "@pytest.fixture\ndef ware():\n    return Stock(1)\n"
    before = {
        **SHOP,
        "tests/conftest.py": f"import pytest\nfrom shop.stock import Stock\n\n{fixture}",
        "tests/test_ware.py": "",
    }
    added = "def test_it(ware):\n    ware.take_all(1)\n    ware.take(1)\n"
    (finding,) = found(tmp_path, added, before, "tests/test_ware.py")
    assert finding.message.startswith("`take_all` does not exist in `Stock`")


def test_what_another_type_of_a_union_has_is_left_alone(tmp_path: Path) -> None:
    before = {**SHOP, "shop/move.py": "from typing import NamedTuple\n"}
    added = (
        "class Event(NamedTuple):\n    size: bytes\n    path: bytes\n\n"
        "def move(event: Event | tuple[Event, Event]) -> bytes:\n"
        "    first, second = event\n    return first.{0} + second.{0}\n"
    )
    assert found(tmp_path / "one", added.format("path"), before, "shop/move.py") == []
    assert found(tmp_path / "none", added.format("path_all"), before, "shop/move.py")


def test_requirements_beside_the_tests_are_declared_packages(tmp_path: Path) -> None:
    """As in itemadapter, whose package needs nothing."""
    before = {path: text for path, text in SHOP.items() if path != "pyproject.toml"}
    before |= {"setup.py": "setup(name='shop')\n", "tests/test_use.py": "import shop\n"}
    path = "tests/test_use.py"
    assert found(tmp_path, "import fasttests\n", before, path) == []
    before["tests/requirements.txt"] = "pytest\nfasthelpers\n"
    assert found(tmp_path / "known", "import fasthelpers\n", before, path) == []
    (finding,) = found(tmp_path / "other", "import fasttests\n", before, path)
    assert finding.message == "`fasttests` is imported, but no manifest declares it."


def test_a_package_that_only_types_need_is_looked_up(tmp_path: Path) -> None:
    added = "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    import fasttyping\n"
    (finding,) = found(tmp_path, added)
    assert finding.message == "`fasttyping` is imported, but no manifest declares it."


LOOKUP = """def squeeze(text):
    return text


_OLD_NAMES = ["clean"]


class Text:
    def __init__(self):
        setattr(self, "made", True)


def __getattr__(name):
    if name in _OLD_NAMES:
        return globals()[f"_old_{name}"]
    raise AttributeError(name)
"""


@pytest.mark.parametrize(
    ("lookup", "names_found"),
    [
        (LOOKUP, ["get_squeeze"]),
        (LOOKUP.replace("    raise", "    if name.isupper():\n        return 1\n    raise"), []),
        (LOOKUP.replace('globals()[f"_old_{name}"]', "getattr(str, name)"), []),
        (LOOKUP.replace("    raise AttributeError(name)\n", "    return None\n"), []),
        (LOOKUP + "\n\nglobals()['made_' + 'here'] = 1\n", []),
        (LOOKUP + "\n\nglobals().update(made=1)\n", []),
    ],
    ids=["closed", "computed", "passed on", "open", "filled", "updated"],
)
def test_a_module_that_looks_names_up_has_only_those_that_it_names(
    tmp_path: Path, lookup: str, names_found: list[str]
) -> None:
    """As `responses`, which still gives three deprecated names."""
    before = {"shop/__init__.py": lookup, "use.py": "from shop import squeeze, clean\n"}
    told = found(tmp_path, "from shop import get_squeeze\n", before, "use.py")
    messages = " ".join(finding.message for finding in told)
    assert [name for name in ("get_squeeze",) if f"`{name}`" in messages] == names_found


def test_a_module_that_a_package_imports_comes_with_everything_from_it(tmp_path: Path) -> None:
    """As `core` of wtforms.widgets."""
    package = {"shop/__init__.py": "from shop.core import *\n", "shop/core.py": "TAX = 1\n"}
    before = {**package, "use.py": "from shop import *\n"}
    assert found(tmp_path / "a", "print(core.TAX)\n", before, "use.py") == []
    (finding,) = found(tmp_path / "b", "print(kore.TAX)\n", before, "use.py")
    assert "`kore`" in finding.message


@pytest.mark.parametrize("stub", ["shop/stock.pyi", "shop-stubs/stock.pyi"])
def test_a_name_that_a_stub_leaves_out_exists_in_its_module(tmp_path: Path, stub: str) -> None:
    """As `_truncate_constraint_name` of peewee."""
    before = {**SHOP, stub: "class Stock: ...\n"}
    before["shop/stock.py"] += "\n\ndef _shorten(name):\n    return name[:64]\n"
    if stub.startswith("shop-stubs"):
        before["shop-stubs/__init__.pyi"] = ""
    assert found(tmp_path, "from shop.stock import _shorten\n", before) == []
    (finding,) = found(tmp_path / "other", "from shop.stock import _lengthen_all\n", before)
    assert "`_lengthen_all`" in finding.message


def test_a_member_of_an_unknown_value_is_no_slip_of_an_imported_name(tmp_path: Path) -> None:
    """As `axis.plot` beside `import matplotlib.pyplot as plt`."""
    before = {**SHOP, "shop/draw.py": "import yaml as plt\n\nfig, axis = plt.subplots()\n"}
    assert found(tmp_path, "axis.plot([1, 2])\n", before, "shop/draw.py") == []


def test_a_fixture_that_returns_a_function_takes_what_that_takes(tmp_path: Path) -> None:
    """As `make_one(interpreter="3.12")` of nox."""
    text = (
        "import pytest\n\nfrom shop.stock import Stock\n\n\n"
        "@pytest.fixture\ndef make_stock():\n"
        "    def make(**kwargs):\n        return Stock(**kwargs)\n\n    return make\n\n\n"
        "def test_stock(make_stock):\n    assert make_stock(size=3)\n"
    )
    fixed = {"pyvenv.cfg": "", "lib/python3.11/site-packages/pytest/__init__.py": "fixture = 1\n"}
    before = {**SHOP, "tests/test_stock.py": text, ".gitignore": ".venv\n"}
    before |= {f".venv/{path}": content for path, content in fixed.items()}
    added = "    assert make_stock(quantity=4)\n"
    assert found(tmp_path, added, before, "tests/test_stock.py") == []
