"""The demo at ten repeats, really run: is the worse agent called worse?

python quality/demo.py [REPEATS]
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from closeloop.demo import build_demo
from closeloop.records.estimate import CompareReport


def compared(repeats: int, folder: Path) -> CompareReport:
    """Both agents on all nine tasks so many times, and the second held against the first."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    around = {**os.environ, "PATH": path}
    around.pop("CLOSELOOP_STORE", None)
    told = b""
    build_demo(folder)
    for command in (
        ["closeloop", "run", "--repeats", str(repeats)],
        ["closeloop", "compare", "careful", "looping", "--json"],
    ):
        told = subprocess.run(
            command, cwd=folder, env=around, stdout=subprocess.PIPE, check=True
        ).stdout
    return msgspec.json.decode(told, type=CompareReport)


def report(repeats: int = 10) -> None:
    """Print the verdict; fail where it is another."""
    with tempfile.TemporaryDirectory() as folder:
        (pair,) = compared(repeats, Path(folder)).pairs
    sys.stdout.write("\n".join(pair.words) + "\n")
    words = pair.comparison.here_word, pair.comparison.alike_word
    if words != ("worse", "worse"):
        sys.exit(f"looping is not called worse but {words}")


if __name__ == "__main__":
    report(*map(int, sys.argv[1:2]))
