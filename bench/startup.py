"""How long closeloop takes to start, beside Python itself."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path

from harness import Bench, NotMeasured, time_command
from table import Row, build_row

COMMANDS = {
    "`closeloop --help`, CPU": ("-m", "closeloop", "--help"),
    "`import closeloop`, CPU": ("-c", "import closeloop"),
    "`import closeloop.cli`, CPU": ("-c", "import closeloop.cli"),
}
IN_FOLDER = """
import os, shutil, sys
os.chdir(sys.argv[1])
if sys.argv[2] == "import":
    shutil.rmtree(".closeloop", ignore_errors=True)
from closeloop.cli import main
del sys.argv[1]
main()
"""
SESSION = """\
{"type": "session", "version": 3, "id": "s1", "timestamp": "2026-11-15T05:46:00Z", "cwd": "/a"}
{"type": "message", "id": "m1", "parentId": null, "timestamp": "2026-11-15T05:46:00Z", "message": \
{"role": "user", "content": [{"type": "text", "text": "Fix the rounding in billing.py."}]}}
{"type": "message", "id": "m2", "parentId": "m1", "timestamp": "2026-11-15T05:46:05Z", "message": \
{"role": "assistant", "content": [{"type": "text", "text": "Done: it rounds half up."}]}}
"""
BUDGET_MS = 250.0
BUDGETS = ("--help", "list attempts", "show", "closeloop import")
RUNS = 5


def write_projects(folder: Path) -> dict[str, tuple[str, ...]]:
    """Commands in a project with one session, and the import of one into an empty project."""
    for name in ("shown", "imported"):
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "session.jsonl").write_text(SESSION)
    shown, imported = str(folder / "shown"), str(folder / "imported")
    run_in_folder = ("-c", IN_FOLDER)
    time_command(sys.executable, *run_in_folder, shown, "import", "session.jsonl")
    with sqlite3.connect(folder / "shown/.closeloop/closeloop.db") as base:
        ((attempt,),) = base.execute("SELECT id FROM attempts").fetchall()
    return {
        "`closeloop list attempts`, CPU": (*run_in_folder, shown, "list", "attempts"),
        "`closeloop show` of a measured session, CPU": (*run_in_folder, shown, "show", attempt),
        "`closeloop metrics` of one session, CPU": (*run_in_folder, shown, "metrics"),
        "`closeloop import` of one session, CPU": (
            *run_in_folder, imported, "import", "session.jsonl",
        ),
    }  # fmt: skip


def measure(bench: Bench) -> Iterator[Row]:
    runs = bench.size(RUNS, 1)
    commands = COMMANDS | write_projects(bench.folder / "startup")

    def start_all() -> dict[str, float]:
        spent = {
            name: sum(time_command(sys.executable, *arguments) for _ in range(runs)) / runs
            for name, arguments in commands.items()
        }
        return spent | {
            "python": sum(time_command(sys.executable, "-c", "pass") for _ in range(runs)) / runs
        }

    times = bench.repeat(start_all)
    for name in commands:
        yield build_row(
            name, times[name], "ms", floor=times["python"], against="python -c pass",
            budget=BUDGET_MS if any(word in name for word in BUDGETS) else None,
        )  # fmt: skip
    name = "`closeloop --help` beside Inspect, CPU"
    try:
        peer = bench.peer_python(".venv-peer", "inspect_ai")
    except NotMeasured as reason:
        yield Row(name, note=f"not measured: {reason}")
        return
    theirs = bench.repeat(
        lambda: {
            "ours": time_command(sys.executable, "-m", "closeloop", "--help"),
            "theirs": time_command(peer, "-m", "inspect_ai", "--help"),
        }
    )
    yield build_row(
        name, theirs["ours"], "ms", floor=theirs["theirs"],
        against="inspect --help", aim=1,
    )  # fmt: skip
