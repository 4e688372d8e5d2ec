"""Build the wheel twice, in two folders, and keep it where both are the same bytes.

python release/build_wheel.py FOLDER
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("src", "pyproject.toml", "README.md", "LICENSE")
DEFAULT_EPOCH = "1767225600"
"""The time in the archive where nobody sets SOURCE_DATE_EPOCH: 2026-01-01."""


def build_wheel(folder: Path) -> Path:
    """Build in a copy of the sources, so that nothing of the checkout gets in."""
    source, out = folder / "source", folder / "out"
    source.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.pyc")
            )
        else:
            shutil.copy(ROOT / name, source / name)
    environment = {"SOURCE_DATE_EPOCH": DEFAULT_EPOCH, **os.environ, "PYTHONHASHSEED": "random"}
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "--no-deps", "--wheel-dir", str(out), str(source)], env=environment, check=True
    )
    (wheel,) = out.glob("*.whl")
    return wheel


def main(target: Path) -> int:
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        wheels = [build_wheel(Path(first)), build_wheel(Path(second))]
        digests = [hashlib.sha256(wheel.read_bytes()).hexdigest() for wheel in wheels]
        if digests[0] != digests[1]:
            print(f"Two builds differ: {digests[0]} and {digests[1]}.", file=sys.stderr)
            return 1
        target.mkdir(parents=True, exist_ok=True)
        shutil.copy(wheels[0], target / wheels[0].name)
        print(f"{digests[0]}  {target / wheels[0].name}")
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("Name the folder for the wheel: python release/build_wheel.py dist")
    sys.exit(main(Path(sys.argv[1])))
