"""What a glob means in `scope` and `protected`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeloop.text.wording import matches_globs


@pytest.mark.parametrize(
    ("glob", "yes", "no"),
    [
        ("src", ["src", "src/a.py", "src/a/b.py"], ["srcs", "lib/src/a.py"]),
        ("src/", ["src/a.py"], ["a.py"]),
        ("./src", ["src/a.py", "./src/a.py"], ["a.py"]),
        ("src/*", ["src/a.py", "src/.env"], ["src/a/b.py", "src"]),
        ("src/*.py", ["src/a.py"], ["src/a/b.py", "src/a.pyc", "src/a_py"]),
        ("src/**", ["src/a.py", "src/a/b.py"], ["src", "srcs/a"]),
        ("**/conftest.py", ["conftest.py", "a/conftest.py", "a/b/conftest.py"], ["aconftest.py"]),
        ("conftest.py", ["conftest.py"], ["a/conftest.py"]),
        ("a/**/b", ["a/b", "a/x/b", "a/x/y/b", "a/b/below"], ["ab", "a/xb"]),
        ("packages/*/tests", ["packages/core/tests/x.ts"], ["packages/core/lib/x.ts"]),
        ("**", ["a", "a/b"], []),
        (".", ["a", "a/b"], []),
        ("./", ["a", "a/b"], []),
        ("**/*.ts", ["a.ts", "x/a.ts"], ["a.tsx"]),
        ("a?.py", ["ab.py"], ["a/.py", "a.py"]),
        ("a[0-9].py", ["a1.py"], ["ax.py", "a/.py"]),
        ("a[!0-9].py", ["ax.py"], ["a1.py", "a/.py"]),
        ("a[*].py", ["a*.py"], ["ab.py"]),
        ("a[z-a]", [], ["az", "a[z-a]"]),
        ("a[]]", ["a]"], ["a[]]"]),
        ("a[b", ["a[b"], ["ab"]),
        ("a.b", ["a.b"], ["axb"]),
        ("", [], ["a", ""]),
    ],
)
def test_a_glob_means(glob: str, yes: list[str], no: list[str]) -> None:
    assert [path for path in yes if not matches_globs(path, [glob])] == []
    assert [path for path in no if matches_globs(path, [glob])] == []


def test_one_of_several_globs_is_enough_and_none_match_nothing() -> None:
    assert matches_globs("b/x", ["a", "b"])
    assert not matches_globs("c/x", ["a", "b"])
    assert not matches_globs("c/x", [])


def test_an_alternative_does_not_leak_into_its_neighbour() -> None:
    assert not matches_globs("a.py.bak", ["*.py", "x"])
    assert not matches_globs("xa.py", ["x", "a.py"])


@given(st.text(max_size=20), st.text(st.sampled_from("ab*[]!-&~/"), max_size=12))
def test_any_glob_can_be_asked(path: str, glob: str) -> None:
    assert matches_globs(path, [glob]) in (True, False)


@given(
    st.lists(
        st.text("abc.", min_size=1, max_size=4).filter(lambda t: t.strip(".")),
        min_size=1,
        max_size=4,
    )
)
def test_a_path_is_meant_by_itself_and_by_each_folder_above_it(parts: list[str]) -> None:
    path = "/".join(parts)
    assert all(matches_globs(path, ["/".join(parts[:n])]) for n in range(1, len(parts) + 1))
