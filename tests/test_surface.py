"""What others may build on: the names that `closeloop` exports."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import closeloop


def test_the_public_names_are_these_and_sorted():
    assert closeloop.__all__ == sorted(closeloop.__all__)
    assert all(getattr(closeloop, name).__name__ == name for name in closeloop.__all__)


def test_another_name_is_not_there():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = closeloop.nothing


def test_importing_closeloop_imports_nothing_heavy():
    code = "import sys, closeloop; print(*sorted(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"msgspec", "sqlite3", "httpx", "rich", "anyio"} & set(loaded)


def test_type_checkers_know_the_same_names():
    text = Path(closeloop.__file__).with_suffix(".pyi").read_text(encoding="utf-8")
    assert sorted(re.findall(r"(\w+) as \1\b", text)) == sorted([*closeloop.__all__, "open"])
    assert {*closeloop.__all__, "open", "__version__"} <= {*dir(closeloop)}
