"""unsafe-code and leaked-secret: in added lines only, and only what is certain."""

from __future__ import annotations

from pathlib import Path

import pytest
from inspected import inspected, said

from closeloop.changes.quality import leaked_secret, unsafe_code
from closeloop.records.finding import Unmeasured

START = {"a.py": "import subprocess\n", "a.js": "let x\n", "a.go": "package a\n"}
TOKEN = "ghp_" + "16C7e42F292c6912E7710c838347Ae178B4a"
KEY = "sk_live_" + "4eC39HqLyjWDarjtT1zdp7dc"


@pytest.mark.parametrize(
    ("path", "code", "line", "words"),
    [
        ("a.py", "import subprocess\n\nsubprocess.run(x, shell=True)\n", 3, "shell"),
        ("a.py", "import yaml\n\nyaml.load(x)\n", 3, "S506"),
        ("a.py", "import requests\n\nrequests.get(x, verify=False, timeout=3)\n", 3, "S501"),
        ("a.js", "let x\neval(x)\n", 2, "runs any code it is given"),
        ("a.js", "import { exec } from 'child_process'\nexec(`rm ${x}`)\n", 2, "use `execFile`"),
        ("a.ts", "const agent = new Agent({ rejectUnauthorized: false })\n", 1, "not verified"),
        ("a.go", "package a\n\nvar c = tls.Config{InsecureSkipVerify: true}\n", 3, "not verified"),
    ],
)
def test_a_door_that_is_opened_is_told(
    tmp_path: Path, path: str, code: str, line: int, words: str
) -> None:
    (one,) = said(unsafe_code, tmp_path, START, {path: code})
    assert (one.severity, one.places) == ("warning", (f"{path}:{line}",))
    assert words in one.message


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("a.py", "import subprocess\n\nsubprocess.run(['ls'])\nassert x\n"),
        ("a.py", "import yaml\n\nyaml.safe_load(x)\n"),
        ("a.py", "import yaml\n\nyaml.load(x)  # noqa: S506\n"),
        ("tests/test_a.py", "import subprocess\n\nsubprocess.run(x, shell=True)\n"),
        ("a.js", "const found = /x/.exec(`a${x}`)\n// eval(x)\nretrieval(x)\n"),
        ("a.py", "def broken(:\n"),
    ],
)
def test_what_is_safe_or_a_test_is_fine(tmp_path: Path, path: str, code: str) -> None:
    assert said(unsafe_code, tmp_path, START, {path: code}) == []


def test_what_the_file_did_before_is_not_told_again(tmp_path: Path) -> None:
    before = {"a.py": "import subprocess\n\nsubprocess.run(x, shell=True)\n"}
    after = {"a.py": before["a.py"].replace("x,", "y,") + "z = 1\n"}
    assert said(unsafe_code, tmp_path, before, after) == []


def test_without_ruff_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with inspected(tmp_path, START, {"a.py": "y = 1\n"}) as inspection:
        inspection.sides.read("after", "a.py")  # git is found before it cannot be
        monkeypatch.setenv("PATH", "/nowhere")
        monkeypatch.setattr("sysconfig.get_path", lambda name: "/nowhere")
        (one,) = unsafe_code.check(inspection)
    assert isinstance(one, Unmeasured)
    assert one.reason == ("ruff is not installed: install it with pip install 'closeloop[check]'")


@pytest.mark.parametrize(
    ("path", "severity"),
    [
        ("settings.py", "error"),
        (".env.production", "error"),
        ("deploy.yml", "error"),
        ("tests/test_a.py", "warning"),
        ("docs/setup.md", "warning"),
    ],
)
def test_a_token_is_told_and_never_shown(tmp_path: Path, path: str, severity: str) -> None:
    (one,) = said(leaked_secret, tmp_path, START, {path: f"first = 1\ntoken = '{TOKEN}'\n"})
    assert (one.severity, one.places) == (severity, (f"{path}:2",))
    assert "github-token" in one.message
    assert TOKEN not in one.message


def test_a_password_by_its_name_is_a_warning(tmp_path: Path) -> None:
    (one,) = said(leaked_secret, tmp_path, START, {"a.py": "password = 'tr0ub4dor&3'\n"})
    assert one.severity == "warning"


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("a.py", "key = 'AKIAIOSFODNN7EXAMPLE'"),
        ("a.py", "token = os.environ['TOKEN']"),
        ("a.py", "password = 'changeme'"),
        ("tests/test_a.py", "password = 'tr0ub4dor&3'"),
        ("docs/a.md", "postgres://ann:tr0ub4dor@localhost/shop"),
    ],
)
def test_examples_and_what_only_speaks_of_secrets_is_fine(
    tmp_path: Path, path: str, line: str
) -> None:
    assert said(leaked_secret, tmp_path, START, {path: line + "\n"}) == []


def test_a_secret_that_was_there_before_and_only_moved_is_not_told(tmp_path: Path) -> None:
    before = {"a.py": f"KEY = '{KEY}'\n"}
    after = {"a.py": "", "b.py": f"class Settings:\n    key = '{KEY}'\n"}
    assert said(leaked_secret, tmp_path, before, after) == []
