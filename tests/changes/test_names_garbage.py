"""hallucinated-name: whatever a change contains, and whatever is missing here, it ends well."""

from __future__ import annotations

import fcntl
import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inspected import Files, inspected, write

from closeloop.changes import names
from closeloop.changes.names import type_diagnostics
from closeloop.changes.names.suspect_names import find_nearest_name, find_slips, is_other_word
from closeloop.records.finding import Finding, Unmeasured
from closeloop.records.record import content_digest
from patience import PATIENCE, takes
from rerun import PLUGINS

BEFORE: Files = {
    "a.py": "def squeeze(text):\n    return text\n",
    "b.py": "import a\n\na.squeeze('')\n",
}
SLIP = "import a\n\na.squeeze('')\na.squezee('')\n"


def said(folder: Path, after: Files, before: Files = BEFORE) -> Sequence[Finding | Unmeasured]:
    with inspected(folder, before, after) as inspection:
        return names.check(inspection)


def messages(said: Sequence[Finding | Unmeasured]) -> list[str]:
    return [one.message for one in said if isinstance(one, Finding)]


GARBAGE: dict[str, dict[str, str | bytes]] = {
    "syntax errors": {"c.py": "def (:\n  ]] import\nclass\n"},
    "not UTF-8": {"c.py": b"\xff\xfe\x00caf\xe9 = '\xe9'\nprint(caf\xe9)\n"},
    "nul bytes": {"c.py": b"import a\x00\na.\x00squeeze\n", "d.ts": b"\x00\x01let a = b\x00\n"},
    "only brackets": {"c.ts": "(" * 50_000, "d.go": "{" * 50_000, "e.py": "[" * 50_000},
    "names like patterns": {"c.py": "x = 1\nx.__class__\n", "$a(.*)+[b.ts": "let $$ = $._$\n"},
    "an odd path": {"-rf.py": "import a\n", "c\td e.py": "import a\n", "..py/x.py": "import a\n"},
    "no settings": {"pyproject.toml": "[tool\n= =\n--x", "setup.cfg": "\x00", "package.json": "[["},
    "a link": {"go.mod": "module", "c.go": 'package c\nimport "/../.."\nimport . "x"\nvar a = ..b'},
}


def test_words_on_a_line_that_cannot_be_parsed_are_no_names(tmp_path: Path) -> None:
    code = "package c\n\nfunc run() int {\n\tgot := 1\n\treturn got\n}\n"
    broken = code.replace("func run", "this is not go\n\nfunc run")
    assert messages(said(tmp_path, {"c.go": broken}, {"c.go": code})) == []


@pytest.mark.parametrize("files", GARBAGE.values(), ids=GARBAGE)
def test_garbage_is_no_finding_and_hides_none(
    tmp_path: Path, files: dict[str, str | bytes]
) -> None:
    told = messages(said(tmp_path, {**files, "b.py": SLIP}))
    assert [one for one in told if "`squezee`" in one] == told


@pytest.mark.parametrize("ending", ["py", "ts", "go", "java", "rs", "toml", "sh"])
def test_a_line_of_five_megabytes_takes_no_time(tmp_path: Path, ending: str) -> None:
    line = "a.b(" + "c.d " * 1_000_000 + "--e=" + "f" * 900_000 + ")\n"
    with inspected(tmp_path, BEFORE, {f"long.{ending}": line}) as inspection:
        assert takes(lambda _: names.check(inspection), 5) < 5


def test_thousands_of_names_that_nobody_has_take_little_time(tmp_path: Path) -> None:
    lines = "".join(f"  thing.unheard_{number}_of()\n" for number in range(1000))
    content = f"export function all(thing) {{\n{lines}}}\n"
    with inspected(tmp_path, BEFORE, {"many.js": content}) as inspection:
        told: list[Sequence[Finding | Unmeasured]] = []
        assert takes(lambda _: told.append(names.check(inspection)), 20) < 20
        ((one,), *_) = told
        assert isinstance(one, Unmeasured)


def test_a_flood_of_complaints_is_one_finding_for_a_name(tmp_path: Path) -> None:
    (one,) = said(tmp_path, {"b.py": SLIP + "a.squezee('')\n" * 500})
    assert isinstance(one, Finding)
    assert len(one.places) == names.MAX_PLACES


def program(folder: Path, text: str) -> str:
    path = folder / "ty"
    path.write_text(f"#!{sys.executable}\n{text}\n")
    path.chmod(0o755)
    return str(path)


PROGRAMS = {
    "hangs": ("import time; time.sleep(600)", "ty took more than 1 seconds"),
    "crashes": ("import os; os.abort()", "ty failed: -6"),
    "complains": ("raise SystemExit('no such option')", "ty failed: no such option"),
    "babbles": ("print('{\"a\": [')", "ty failed: 0"),
    "says something else": ("print('[{\"check_name\": 3}]')", "ty failed: 0"),
    "floods": ("print('[' + ' ' * 60_000_000 + ']')", "the output of ty is too large"),
}


@pytest.mark.parametrize(("text", "why"), PROGRAMS.values(), ids=PROGRAMS)
def test_without_a_type_checker_that_works_the_rest_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, why: str
) -> None:
    place = program(tmp_path, text)
    monkeypatch.setattr(type_diagnostics, "_find_ty", lambda: place)
    monkeypatch.setattr(type_diagnostics, "TY_SECONDS", 1.0 if "sleep" in text else PATIENCE)
    told = said(tmp_path, {"b.py": SLIP})
    assert [one.reason for one in told if isinstance(one, Unmeasured)] == [f"Python's types: {why}"]
    assert [one for one in messages(told) if "did you mean `squeeze`?" in one]


def test_a_type_checker_that_is_not_installed_is_told(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; sys.modules['ty'] = None\n"
        "from test_names_garbage import said, messages, SLIP\n"
        f"told = said(pathlib.Path({str(tmp_path)!r}), {{'b.py': SLIP}})\n"
        "print(told[-1].reason, messages(told))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parent,
        env={**os.environ, "PYTHONPATH": f"{Path(__file__).parents[1]}:{PLUGINS}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Python's types: ty is not installed" in ran.stdout
    assert "did you mean `squeeze`?" in ran.stdout


def test_another_check_that_does_not_end_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type_diagnostics, "TY_SECONDS", 0.2)
    root = content_digest(str((tmp_path / "repository").resolve()))[:16]
    (tmp_path / "cache" / "types" / root).mkdir(parents=True)
    with (tmp_path / "cache" / "types" / root / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        told = said(tmp_path, {"b.py": SLIP})
    (why,) = [one.reason for one in told if isinstance(one, Unmeasured)]
    assert why == "Python's types: another check does not finish"


def test_what_the_type_checker_said_is_kept_while_nothing_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with inspected(tmp_path, BEFORE, {"b.py": SLIP}) as inspection:
        first = names.check(inspection)
        monkeypatch.setattr(type_diagnostics, "_find_ty", lambda: "/there/is/none")
        assert names.check(inspection) == first


def test_a_file_that_becomes_a_folder_and_back_is_laid_out_anew(tmp_path: Path) -> None:
    cart = "class Cart:\n    entries = 1\n"
    use = "from shop import Cart\n\nprint(Cart.entries)\n"
    slip = use + "print(Cart.entreis)\n"
    for number, (old, new) in enumerate((("shop.py", "shop/__init__.py"),) * 2):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "cache").symlink_to(tmp_path / "kept")
        (tmp_path / "kept").mkdir(exist_ok=True)
        told = said(
            tmp_path / str(number), {old: None, new: cart, "u.py": slip}, {old: cart, "u.py": use}
        )
        assert [one for one in messages(told) if "did you mean `entries`?" in one]


@pytest.mark.parametrize("place", ["repository/.venv", "activated"])
def test_packages_installed_for_the_project_are_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    environment = {
        "pyvenv.cfg": f"home = {sys.base_prefix}/bin\nversion = 3.11\n",
        "lib/python3.11/site-packages/paint/__init__.py": "def whiten(): ...\n",
    }
    before: dict[str, str] = {**BEFORE, ".gitignore": ".venv\n"}
    if place == "activated":
        write(tmp_path / place, environment)
        monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / place))
    else:
        before |= {f".venv/{path}": text for path, text in environment.items()}
    after = {"b.py": "import paint\n\npaint.whiten()\npaint.whitne()\n"}
    (told,) = messages(said(tmp_path, after, before))
    assert told == "`whitne` does not exist in `paint`; did you mean `whiten`?"


@given(st.text(max_size=60), st.sets(st.text(max_size=60), max_size=20))
def test_the_nearest_name_is_another_one_of_those_given(name: str, others: set[str]) -> None:
    near = find_nearest_name(name, others)
    assert near is None or (near in others and near != name)
    assert all(other in others for other in find_slips(name, others.__contains__))
    if near is not None:
        assert isinstance(is_other_word(name, near), bool)


def test_hostile_names_are_searched_in_bounded_time() -> None:
    began = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    for name in ("a" * 100_000, "a_" * 30_000, "aA" * 30_000, "_" * 50_000):
        find_nearest_name(name, {"squeeze", "a" * 99_999})
    assert resource.getrusage(resource.RUSAGE_SELF).ru_utime - began < 5
