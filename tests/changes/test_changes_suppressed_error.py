"""suppressed-error: a change may not silence what complains."""

from __future__ import annotations

from pathlib import Path

import pytest
from inspected import said

from closeloop.changes.quality import suppressed_error

START = {"a.py": "x = 1\n", "b.js": "let x\n", ".github/workflows/ci.yml": "jobs: {}\n"}


@pytest.mark.parametrize(
    ("path", "code", "line"),
    [
        ("a.py", "try:\n    f()\nexcept Exception:\n    pass\n", 3),
        ("a.py", "try:\n    f()\nexcept:\n    return None\n", 3),
        ("b.js", "try {\n  f()\n} catch (error) {\n}\n", 3),
        ("b.js", "load().catch(() => {})\n", 1),
        ("a.py", "import x  # type: ignore\n", 1),
        ("a.py", "import x  # noqa\n", 1),
        ("c.ts", "// @ts-nocheck\nlet x\n", 1),
        ("c.rs", "#![allow(warnings)]\n", 1),
        (".github/workflows/ci.yml", "jobs:\n  test:\n    - run: pytest -q || true\n", 3),
        (".github/workflows/ci.yml", "jobs:\n  test:\n    continue-on-error: true\n", 3),
    ],
)
def test_what_silences_is_told(tmp_path: Path, path: str, code: str, line: int) -> None:
    (one,) = said(suppressed_error, tmp_path, START, {path: code})
    assert (one.severity, one.places) == ("warning", (f"{path}:{line}",))


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("a.py", "try:\n    f()\nexcept KeyError:\n    pass\n"),
        ("a.py", "try:\n    f()\nexcept Exception:\n    log.exception('f failed')\n    raise\n"),
        ("a.py", "import x  # type: ignore[import-untyped]\n"),
        ("a.py", "import x  # noqa: F401\n"),
        ("b.js", "try {\n  f()\n} catch (error) {\n  report(error)\n}\n"),
        ("tests/test_a.py", "try:\n    f()\nexcept Exception:\n    pass\n"),
        (".github/workflows/ci.yml", "jobs:\n  clean:\n    - run: rm -r build || true\n"),
    ],
)
def test_what_names_the_error_or_hands_it_on_is_fine(tmp_path: Path, path: str, code: str) -> None:
    assert said(suppressed_error, tmp_path, START, {path: code}) == []


def test_a_file_that_does_so_already_is_not_told_again(tmp_path: Path) -> None:
    before = {"a.py": "import x  # type: ignore\n"}
    assert said(suppressed_error, tmp_path, before, {"a.py": before["a.py"] * 2}) == []
