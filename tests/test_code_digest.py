"""The digest of code: what changes it, and what does not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SOURCES = {
    "rules/__init__.py": "",
    "rules/spiral.py": (
        '"""Finds spirals."""\n'
        "import rules.rounds\n"
        "from rules import words\n"
        "from .limits import MOST\n"
        "def detect(trace):\n"
        '    """What it finds."""\n'
        "    from rules.later import last\n"
        "    return last(rules.rounds.count(trace)) > MOST\n"
    ),
    "rules/rounds.py": "def count(trace):\n    return len(trace)\n",
    "rules/words.py": "WORDS = ('again',)\n",
    "rules/limits.py": "from rules.units import SECOND\nMOST = 3\n",
    "rules/units.py": "SECOND = 1\n",
    "rules/later.py": "def last(number):\n    return number\n",
    "rules/unused.py": "raise RuntimeError('nobody imports this')\n",
    "others.py": "NUMBER = 1\n",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in SOURCES.items():
        path = tmp_path / "sources" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "sources"


def digest_in(folder: Path, *modules: str) -> str:
    """As a new process computes it."""
    program = (
        "import sys; from closeloop.code_digest import digest_code as d; print(d(*sys.argv[1:]))"
    )
    environ = os.environ | {
        "PYTHONPATH": str(folder),
        "XDG_CACHE_HOME": str(folder.parent / "cache"),
    }
    run = subprocess.run(
        [sys.executable, "-c", program, *modules],
        env=environ,
        check=False,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("rules/spiral.py", "> MOST", ">= MOST"),
        ("rules/rounds.py", "len(trace)", "len(trace) + 1"),
        ("rules/words.py", "'again'", "'anew'"),
        ("rules/limits.py", "MOST = 3", "MOST = 4"),
        ("rules/units.py", "1", "2"),
        ("rules/later.py", "return number", "return -number"),
    ],
    ids=["its own", "import", "from package", "relative", "of an import", "in a function"],
)
def test_a_changed_module_that_is_reached_changes_the_digest(
    folder: Path, name: str, before: str, after: str
) -> None:
    old = digest_in(folder, "rules.spiral")
    path = folder / name
    path.write_text(path.read_text().replace(before, after))
    assert digest_in(folder, "rules.spiral") != old


def test_comments_docstrings_layout_and_modules_not_reached_change_nothing(folder: Path) -> None:
    old = digest_in(folder, "rules.spiral")
    (folder / "rules/spiral.py").write_text(
        "# A comment.\n"
        + SOURCES["rules/spiral.py"]
        .replace("Finds spirals.", "Finds loops.")
        .replace("What it finds.", "Findings.")
        .replace(" > MOST", (" >  MOST  # more"))
    )
    (folder / "rules/limits.py").write_text(
        SOURCES["rules/limits.py"] + '"""So many rounds are a spiral."""\n'
    )
    (folder / "rules/unused.py").write_text("raise RuntimeError('nobody imports this at all')\n")
    (folder / "others.py").write_text("NUMBER = 2\n")
    assert digest_in(folder, "rules.spiral") == old


def test_modules_of_other_packages_are_not_followed(folder: Path) -> None:
    with (folder / "rules/words.py").open("a") as file:
        file.write("import others\n")
    old = digest_in(folder, "rules.spiral")
    (folder / "others.py").write_text("NUMBER = 2\n")
    assert digest_in(folder, "rules.spiral") == old


def test_a_star_stands_for_every_module_of_a_package(folder: Path) -> None:
    one, old = digest_in(folder, "rules.spiral"), digest_in(folder, "rules.*")
    (folder / "rules/unused.py").write_text("USED = 'by a name that is computed'\n")
    assert digest_in(folder, "rules.spiral") == one
    assert digest_in(folder, "rules.*") != old


def test_what_cannot_be_parsed_counts_as_it_is_written(folder: Path) -> None:
    (folder / "rules/words.py").write_text("print 'again'\n")
    old = digest_in(folder, "rules.spiral")
    (folder / "rules/words.py").write_text("print 'anew'\n")
    assert digest_in(folder, "rules.spiral") != old


def test_a_kept_digest_is_used_again_and_a_damaged_one_is_not(folder: Path) -> None:
    old = digest_in(folder, "rules.spiral")
    kept = [*(folder.parent / "cache" / "closeloop").iterdir()]
    assert len(kept) == 2  # of modules, and of all together
    made = [file.stat().st_mtime_ns for file in kept]
    assert digest_in(folder, "rules.spiral") == old
    assert [file.stat().st_mtime_ns for file in kept] == made
    for file in kept:
        file.write_bytes(file.read_bytes()[:100])
    assert digest_in(folder, "rules.spiral") == old


def test_without_a_folder_to_keep_it_in_the_digest_is_the_same(folder: Path) -> None:
    old = digest_in(folder, "rules.spiral")
    (folder.parent / "cache").rename(folder.parent / "moved")
    (folder.parent / "cache").write_text("a file, no folder")
    assert digest_in(folder, "rules.spiral") == old


def test_a_module_of_closeloop_that_is_gone_is_an_error() -> None:
    from closeloop.code_digest import digest_code

    with pytest.raises(ModuleNotFoundError, match=r"closeloop\.process\.nowhere"):
        digest_code("closeloop.process.nowhere")
