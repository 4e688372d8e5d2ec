"""closeloop beside its floors and peers, measured in one run.

python bench/run.py [PART…]           prints the table of some parts, or of all
python bench/run.py --json            prints it as JSON
python bench/run.py --keep            writes it to bench/results/DATE-COMMIT.json as well
python bench/run.py --compare OLD NEW prints the lines that moved between two kept tables
python bench/run.py --smoke           smallest sizes, one repeat: only whether every part works

What cannot be had here is named as not measured. A part that crashes is named with its error, the
others go on, and the exit code is 1. So it is where a line got worse by more than 15 % since the
table that was kept last, unless bench/slower.toml names it with its reason.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from harness import ENVIRONMENT, Bench, NotMeasured
from table import (
    LEGEND,
    Row,
    compare_tables,
    describe_run,
    find_slower_lines,
    format_row,
    keep_table,
    load_newest_table,
    load_reasons,
)

PARTS = (
    "startup", "attempts", "crowd", "schedule", "cluster", "sandbox", "workspaces", "grading",
    "changes", "mining", "imports", "measure", "metrics", "scores", "dashboard", "gateway",
    "webhooks", "harbor",
)  # fmt: skip
"""Each is a module beside this one, whose `measure` yields rows."""


def measure_part(part: str, bench: Bench) -> Iterator[Row]:
    """The rows of a part; where it fails, a last one that says why."""
    try:
        for row in import_module(part).measure(bench):
            yield row._replace(part=part)
    except NotMeasured as reason:
        yield Row(part, note=f"not measured: {reason}", part=part)
    except Exception as error:
        text = " ".join(str(error).split())[:300]
        yield Row(part, note=f"CRASHED: {type(error).__name__}: {text}", part=part)


def main() -> int:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--compare", nargs=2, type=Path, metavar=("OLD", "NEW"))
    options = parser.parse_args()
    if options.compare:
        print("\n".join(compare_tables(*(json.loads(p.read_bytes()) for p in options.compare))))
        return 0
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    if options.keep and options.smoke:
        parser.error("a smoke run measures nothing worth keeping")

    os.environ.update(ENVIRONMENT)
    rows: list[Row] = []
    run = describe_run()
    chosen = [part for part in PARTS if part in (options.parts or PARTS)]
    with tempfile.TemporaryDirectory(prefix="closeloop-bench-") as folder:
        bench = Bench(Path(folder), is_smoke=options.smoke)
        for number, part in enumerate(chosen, 1):
            started = time.monotonic()
            print(f"[{number}/{len(chosen)}] {part} …", file=sys.stderr, flush=True)
            for row in measure_part(part, bench):
                rows.append(row)
                if not options.json:
                    print(format_row(row), flush=True)
            print(f"      {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    table = {**run, "rows": [row._asdict() for row in rows]}
    print(json.dumps(table, indent=1, ensure_ascii=False) if options.json else f"\n{LEGEND}")
    newest = None if options.smoke else load_newest_table()
    slower = find_slower_lines(newest, table, load_reasons()) if newest else []
    for line in slower:
        print(f"SLOWER: {line}", file=sys.stderr)
    if options.keep:
        print(f"Kept in {keep_table(table)}", file=sys.stderr)
    return 1 if slower or any(row.note.startswith("CRASHED") for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
