"""repo-rule: what a repository writes down about its own code holds for added lines."""

from __future__ import annotations

from pathlib import Path

import pytest
from inspected import inspected, said, told

from closeloop.changes.quality import repo_rule
from closeloop.records.finding import Unmeasured
from closeloop.records.settings import CheckSettings, RepoRule
from patience import takes


def settings(**fields: object) -> CheckSettings:
    rule = {"name": "no-print", "message": "Say it through `console`", **fields}
    return CheckSettings(rules=(RepoRule(**rule),))


def test_a_pattern_of_code_is_found_in_added_lines_only(tmp_path: Path) -> None:
    before = {"a.py": "print('old')\n"}
    after = {"a.py": "print('old')\nx = [\n    print(\n        'new'\n    ),\n]\n# print(1)\n"}
    found = said(repo_rule, tmp_path, before, after, settings(pattern="print($$$)"))
    assert {place for _, place in told(found)} == {"a.py:3"}
    assert found[0].message == "Say it through `console` (no-print)."


def test_a_text_is_found_in_any_file_and_its_severity_is_the_rules(tmp_path: Path) -> None:
    after = {"notes.md": "fine\n    see http://intranet/\n"}
    found = said(repo_rule, tmp_path, {}, after, settings(text="^see .*intranet", severity="error"))
    assert told(found) == [("error", "notes.md:2")]


def test_paths_and_language_narrow_a_rule(tmp_path: Path) -> None:
    after = {"src/a.py": "print(1)\n", "scripts/b.py": "print(1)\n", "src/c.js": "print(1)\n"}
    chosen = settings(pattern="print($$$)", paths=("src/**",), language="python")
    assert told(said(repo_rule, tmp_path, {}, after, chosen)) == [("warning", "src/a.py:1")]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, "give it either a `pattern` or a `text`"),
        ({"pattern": "f()", "text": "f"}, "give it either a `pattern` or a `text`"),
        ({"text": "(unclosed"}, "cannot be read: unclosed group"),
        ({"pattern": ""}, "cannot be read: No AST root is detected"),
        ({"pattern": "a; b\nc"}, "cannot be read: Multiple AST nodes are detected"),
        ({"pattern": "f()", "language": "klingon"}, "the language 'klingon' is not supported"),
    ],
)
def test_a_rule_that_cannot_be_used_is_named_and_hides_no_other(
    tmp_path: Path, fields: dict[str, str], reason: str
) -> None:
    bad = RepoRule(name="bad", message="Bad", **fields)
    good = RepoRule(name="good", message="Good", text="print")
    with inspected(
        tmp_path, {}, {"a.py": "print(1)\n"}, CheckSettings(rules=(bad, good))
    ) as change:
        unmeasured, found = repo_rule.check(change)
    assert isinstance(unmeasured, Unmeasured)
    assert unmeasured.reason.startswith("bad: ")
    assert reason in unmeasured.reason
    assert found.message == "Good (good)."


def test_no_expression_takes_for_ever(tmp_path: Path) -> None:
    after = {"a.txt": "a" * 30_000 + "\n"}
    with inspected(tmp_path, {}, after, settings(text="(a+)+(a*)*.*.*.*b$")) as change:
        assert list(repo_rule.check(change)) == []
        assert takes(lambda _: list(repo_rule.check(change)), 2) < 2
