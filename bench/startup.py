"""How long closeloop takes to start, beside Python itself."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from harness import Bench, NotMeasured, time_command
from table import Row, build_row

COMMANDS = {
    "`closeloop --help`, CPU": ("-m", "closeloop", "--help"),
    "`import closeloop`, CPU": ("-c", "import closeloop"),
    "`import closeloop.cli`, CPU": ("-c", "import closeloop.cli"),
}
LIST_ATTEMPTS = """
import os, sys
from closeloop.cli import main
from closeloop.store import make_store
os.makedirs(sys.argv[1], exist_ok=True)
os.chdir(sys.argv[1])
make_store(".closeloop/closeloop.db").close()
main(["list", "attempts"])
"""
BUDGETS_MS = {"`closeloop --help`, CPU": 250.0, "`closeloop list attempts`, CPU": 250.0}
RUNS = 5


def measure(bench: Bench) -> Iterator[Row]:
    runs = bench.size(RUNS, 1)
    folder = str(bench.folder / "startup")
    commands = COMMANDS | {"`closeloop list attempts`, CPU": ("-c", LIST_ATTEMPTS, folder)}

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
            budget=BUDGETS_MS.get(name),
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
