"""Tests, source and the rest are told apart by what the runner collects."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeloop.tasks.change_parts import (
    CollectionRules,
    find_collection_rules,
    is_collected_test,
    split_change_paths,
)
from closeloop.tasks.other_projects import ManifestFolder

KNOWN = ("src/latest.py", "src/app/test/client.py", "tests/test_app.py", "tests/data/one.json")


def folder(tmp_path: Path, **files: str) -> ManifestFolder:
    names = {name.replace("__", "."): text for name, text in files.items()}
    for name, text in names.items():
        (tmp_path / name).write_text(text)
    return ManifestFolder(tmp_path, tuple(names))


def test_a_name_with_test_in_it_is_no_test(tmp_path: Path) -> None:
    rules = find_collection_rules(folder(tmp_path), "pytest")
    paths = ("src/latest.py", "src/contest.py", "src/testing.py", "src/attestation/core.py")
    assert split_change_paths(paths, KNOWN, rules).source == paths


def test_what_lies_beside_tests_goes_with_them(tmp_path: Path) -> None:
    rules = find_collection_rules(folder(tmp_path), "pytest")
    paths = ("tests/test_new.py", "tests/data/two.json", "tests/helpers.py", "src/conftest.py")
    parts = split_change_paths(paths, KNOWN, rules)
    assert parts.tests == ("tests/test_new.py",)
    assert set(parts.support) == {"tests/data/two.json", "tests/helpers.py", "src/conftest.py"}


def test_a_folder_named_test_that_holds_no_tests_is_source(tmp_path: Path) -> None:
    rules = find_collection_rules(folder(tmp_path), "pytest")
    assert split_change_paths(["src/app/test/client.py"], KNOWN, rules).source == (
        "src/app/test/client.py",
    )


def test_a_program_named_like_a_change_log_is_source(tmp_path: Path) -> None:
    programs = ("src/history.py", "site/news/views.py", "web/changes.ts")
    notes = ("CHANGES", "HISTORY.rst", "docs/versionhistory.rst", "news/12.bugfix", "NEWS.md")
    notes += ("releasenotes/notes/rounding-12.yaml",)
    parts = split_change_paths(
        (*programs, *notes), KNOWN, find_collection_rules(folder(tmp_path), "pytest")
    )
    assert parts.source == programs
    assert parts.changelog == notes


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("pyproject__toml", '[tool.pytest.ini_options]\npython_files = "check_*.py"\n'),
        ("pyproject__toml", '[tool.pytest.ini_options]\npython_files = ["check_*.py"]\n'),
        ("setup__cfg", "[tool:pytest]\npython_files = check_*.py\n"),
        ("pytest__ini", "[pytest]\npython_files =\n    check_*.py\n"),
    ],
)
def test_the_projects_own_pattern_decides(tmp_path: Path, file: str, text: str) -> None:
    rules = find_collection_rules(folder(tmp_path, **{file: text}), "pytest")
    assert is_collected_test("tests/check_sum.py", rules)
    assert not is_collected_test("tests/test_sum.py", rules)


def test_only_the_folders_that_pytest_looks_in_hold_tests(tmp_path: Path) -> None:
    text = '[tool.pytest.ini_options]\ntestpaths = ["tests"]\n'
    rules = find_collection_rules(folder(tmp_path, pyproject__toml=text), "pytest")
    assert is_collected_test("tests/deep/test_a.py", rules)
    assert not is_collected_test("src/app/test_client.py", rules)


@pytest.mark.parametrize(
    ("runner", "tests", "source"),
    [
        ("go", "cmd/run_test.go", "cmd/latest.go"),
        ("jest", "src/sum.test.ts", "src/latest.ts"),
        ("vitest", "src/sum.spec.tsx", "src/spec.ts"),
        ("mocha", "test/sum.js", "lib/test.js"),
        ("node", "lib/sum.test.mjs", "lib/latest.mjs"),
        ("node", "core/test/sum.js", "core/tested/sum.js"),
        ("cargo", "tests/sum.rs", "src/tests.rs"),
        ("junit", "core/src/test/java/a/SumTest.java", "core/src/main/java/a/Contest.java"),
        ("unittest", "test_sum.py", "latest.py"),
    ],
)
def test_each_runner_has_its_own_tests(tmp_path: Path, runner, tests: str, source: str) -> None:
    parts = split_change_paths(
        [tests, source], [tests, source], find_collection_rules(folder(tmp_path), runner)
    )
    assert (parts.tests, parts.source) == ((tests,), (source,))


def test_node_and_mocha_look_where_their_script_says(tmp_path: Path) -> None:
    for runner, call in (("node", "node --test 'checks/**/*.js'"), ("mocha", "mocha checks/")):
        script = json.dumps({"scripts": {"test": f"xo lib && {call}"}})
        (tmp_path / "package.json").write_text(script)
        known = ManifestFolder(
            tmp_path, ("package.json", "lib/sum.js", "lib/a.test.js", "checks/sum.js")
        )
        rules = find_collection_rules(known, runner)
        assert [name for name in known.files if is_collected_test(name, rules)] == ["checks/sum.js"]


VITEST = """export default defineConfig({
  test: {
    coverage: { include: ['src/**'], thresholds: { lines: 90 } },
    include: ['test/**/*.{js,ts}', './src/**/*.unit-test.[jt]s?(x)'],
  },
});
"""
JEST = """module.exports = {
  testMatch: ["<rootDir>/test/**/*.ts", "**/*.unit-test.@(ts|tsx)"],
};
"""
JEST_TABLE = {"jest": {"roots": ["test"], "testRegex": r"\.(j|t)s$"}}


@pytest.mark.parametrize(
    ("runner", "file", "text", "tests"),
    [
        (
            "vitest",
            "vitest.config.ts",
            VITEST,
            ["test/deep/a.ts", "test/a.js", "src/b.unit-test.tsx"],
        ),
        ("jest", "jest.config.js", JEST, ["test/deep/a.ts", "src/b.unit-test.tsx"]),
        ("jest", "package.json", json.dumps(JEST_TABLE), ["test/deep/a.ts", "test/a.js"]),
        (
            "vitest",
            "vite.config.ts",
            "export default { test: { include: ['src/**'] } }",
            ["a.test.ts"],
        ),
    ],
    ids=["vitest", "jest", "jest by a regular expression", "sources are no tests"],
)
def test_vitest_and_jest_look_where_their_configuration_says(
    tmp_path: Path, runner: Literal["vitest", "jest"], file: str, text: str, tests: list[str]
) -> None:
    """As in yup, whose tests are called `test/string.ts`: none of its work could be mined."""
    (tmp_path / file).write_text(text)
    names = ("test/deep/a.ts", "test/a.js", "src/b.unit-test.tsx", "src/c.ts", "a.test.ts")
    rules = find_collection_rules(ManifestFolder(tmp_path, (file, *names)), runner)
    assert [name for name in names if is_collected_test(name, rules)] == tests


def test_documents_and_locks_are_no_part_of_a_task() -> None:
    paths = ("README.md", "docs/index.rst", "uv.lock", ".github/workflows/ci.yml")
    assert split_change_paths(paths, KNOWN, CollectionRules(names=("test_*.py",))).rest == paths


def test_the_change_log_is_known_as_such() -> None:
    paths = ("CHANGES.rst", "changelog.d/12.change.md", "newsfragments/3.bugfix", "HISTORY.md")
    assert (
        split_change_paths(paths, KNOWN, CollectionRules(names=("test_*.py",))).changelog == paths
    )


@given(st.lists(st.text(st.characters(exclude_characters="\0"), min_size=1), max_size=8))
def test_every_path_has_exactly_one_place(paths: list[str]) -> None:
    parts = split_change_paths(paths, paths, CollectionRules(names=("test_*.py",)))
    found = (*parts.tests, *parts.support, *parts.source, *parts.changelog, *parts.rest)
    assert sorted(found) == sorted(paths)


def test_a_package_that_the_runner_looks_for_tests_in_is_source(tmp_path: Path) -> None:
    ini = ManifestFolder(tmp_path, ("pytest.ini",))
    (tmp_path / "pytest.ini").write_text("[pytest]\ntestpaths = shop checks\n")
    rules = find_collection_rules(ini, "pytest")
    known = ["shop/a.py", "shop/b.py", "shop/tests/test_a.py", "shop/tests/data.json"]
    known += ["checks/test_b.py", "checks/data.json"]
    parts = split_change_paths(known, known, rules)
    assert parts.source == ("shop/a.py", "shop/b.py")
    assert parts.support == ("shop/tests/data.json", "checks/data.json")
