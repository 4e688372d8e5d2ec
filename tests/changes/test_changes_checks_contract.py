"""Every check is found by its entry point, is documented, and survives whatever it is given."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from inspected import inspected, said

from closeloop import plugins
from closeloop.changes.quality import dead_code
from closeloop.contracts import check_check
from closeloop.records.change import Inspection
from closeloop.records.finding import Finding, Unmeasured
from closeloop.records.settings import CheckSettings, RepoRule

PAGE = (Path(__file__).parents[2] / "docs" / "checks.md").read_text(encoding="utf-8")
CHECKS = sorted(plugins.installed_plugins("checks"))
RULES = CheckSettings(
    rules=(
        RepoRule(name="t", message="m", text="x"),
        RepoRule(name="p", message="m", pattern="f($$$)"),
    )
)


def nested(depth: int) -> str:
    return (
        "".join("  " * level + f"if x > {level}:\n" for level in range(depth))
        + "  " * depth
        + "x\n"
    )


HOSTILE: dict[str, tuple[str | bytes | None, str | bytes | None]] = {
    "broken.py": ("def f(:\n  pass\n", "def f((((:\n  retur\n\tx\n"),
    "latin.py": (b"# caf\xe9\n", b"x = '\xff\xfe'\ntry:\n    f()\nexcept:\n    pass\n"),
    "crlf.py": (b"a = 1\r\n", b"import os\r\ndef _f():\r\n    return 1\r\n    x = 2\r\n"),
    "empty.py": ("x = 1\n", ""),
    "new_empty.ts": (None, ""),
    "one_line.js": ("let x\n", "f(" * 3000 + ")" * 3000 + "\n"),
    "long_line.py": ("x = 1\n", "x = '" + "a" * 200_000 + "'\n"),
    "deep.py": ("x = 1\n", "def f(x):\n" + nested(300).replace("\n", "\n ")),
    "no_end.go": ("package a\n", "package a\nfunc F() { return 1"),
    "nul.java": ("class A {}\n", b"class A {\0 void f() {} }\n"),
    "odd name [x].rs": ("fn f() {}\n", "fn f() { let r#type = 1; }\n"),
    "tests/test_gone.py": ("def test_a():\n    assert f() == 1\n", None),
    "conflict.py": ("x = 1\n", "<<<<<<< ours\nx = 1\n=======\nx = 2\n>>>>>>> theirs\n"),
    "data.bin": (b"\0\1\2", b"\0\1\3"),
    "unicode.py": ("x = 1\n", "def größe(naïve):\n    été = 1\n    return naïve\n"),
    "text.md": ("a\n", "|| true\n" * 50),
}  # fmt: skip


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory):
    before = {name: old for name, (old, _) in HOSTILE.items() if old is not None}
    after = {name: new for name, (_, new) in HOSTILE.items()}
    with inspected(tmp_path_factory.mktemp("hostile"), before, after, RULES) as inspection:
        yield inspection


@pytest.mark.parametrize("name", CHECKS)
def test_no_check_raises_whatever_the_change_holds(name: str, hostile: Inspection) -> None:
    for one in plugins.load_plugin("checks", name).check(hostile):
        if isinstance(one, Finding):
            path, _, line = one.places[0].rpartition(":")
            assert path in HOSTILE
            assert int(line) >= 1
            assert one.source == "check"
            assert len(one.message) < 1000
        else:
            assert isinstance(one, Unmeasured)


@pytest.mark.parametrize("name", CHECKS)
def test_every_check_keeps_the_contract_that_authors_check_theirs_by(name: str) -> None:
    silenced = "def f():\n    try:\n        g()\n    except Exception:\n        pass\n"
    found = check_check(
        plugins.load_plugin("checks", name), {"a.py": "x = 1\n"}, {"a.py": silenced}
    )
    assert name != "suppressed-error" or found


@pytest.mark.parametrize("name", CHECKS)
def test_a_check_says_the_same_again(name: str, hostile: Inspection) -> None:
    check = plugins.load_plugin("checks", name)
    assert check.check(hostile) == check.check(hostile)


@pytest.mark.parametrize("name", CHECKS)
def test_a_change_of_documents_alone_has_no_finding(name: str, tmp_path: Path) -> None:
    with inspected(tmp_path, {"docs/a.md": "a\n"}, {"docs/a.md": "b\n"}) as inspection:
        said = plugins.load_plugin("checks", name).check(inspection)
    assert [one for one in said if isinstance(one, Finding)] == []


def test_every_rule_is_on_the_page_and_none_is_invented() -> None:
    rules = [rule for name in CHECKS for rule in plugins.load_plugin("checks", name).rules]
    assert sorted(re.findall(r"^### `([\w-]+)`$", PAGE, re.MULTILINE)) == sorted(
        rule.name for rule in rules
    )


def test_the_page_tells_each_rules_severity_and_thresholds() -> None:
    sections = dict(re.findall(r"^### `([\w-]+)`\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL))
    for name in CHECKS:
        for rule in plugins.load_plugin("checks", name).rules:
            text = sections[rule.name]
            assert rule.severity in text, rule.name
            for threshold, value in rule.thresholds.items():
                assert f"{value:g}" in text, (rule.name, threshold)


def test_a_thousand_files_take_no_time_to_speak_of(tmp_path: Path) -> None:
    after = {f"m{n // 50}/f{n}.py": f"def f{n}(x):\n    return x + {n}\n" for n in range(300)}
    assert said(dead_code, tmp_path, {}, after) == []
