"""Compiling tests beforehand: pytest must take what it finds, or the work was for nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from compile_tests import compile_test


def test_pytest_takes_what_was_compiled_for_it(tmp_path: Path) -> None:
    path = tmp_path / "test_one.py"
    path.write_text("def test_one():\n    one = 1\n    assert one == 2\n")
    compile_test(path)
    (compiled,) = (tmp_path / "__pycache__").iterdir()
    made = compiled.stat()
    writing = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", path],
        cwd=tmp_path,
        env={**writing, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "assert 1 == 2" in ran.stdout, ran.stdout
    assert [*(tmp_path / "__pycache__").iterdir()] == [compiled]
    found = compiled.stat()
    assert (found.st_ino, found.st_mtime_ns) == (made.st_ino, made.st_mtime_ns)
