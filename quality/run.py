"""How good are the rules? `make quality` prints it; with `--write` it goes into docs and package.

    python quality/run.py [--write] [--rules] [--people FOLDER] [--traces FOLDER]
                          [--repositories FOLDER …] [--mine FOLDER …] [--demo]

With `--rules` only the tables of the rules on labelled and read traces, in seconds.

FOLDER of people: a copy of sola-st/llm-agents-study. FOLDER of traces: recordings with a
PROVENANCE.csv that tells their outcomes. Both are looked for in `shared` beside the checkout.
FOLDERS of repositories: git folders, bare or not, whose changes and releases are checked; their
tables are only printed. FOLDERS to mine: as quality/mining.py does; a made-up one always is. How
often bounds of 95 % hold the truth is simulated last: minutes.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import api
import checks
import coverage
import demo
import levels
import memory
import names
import page
import reverts
from outcomes import odds
from own import scores
from people import runs
from reading_records import count_readings, load_readings, summarise_readings
from repetition import agreements, marks

import mining
from closeloop import plugins

ROOT = Path(__file__).resolve().parents[1]
MINED = 20
"""Commits of a repository that are looked at."""
SHARED = ROOT.parent / "shared" / "traces"


def main() -> None:
    """Print every table for which there is data."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--write", action="store_true", help="write docs and quality.json")
    options.add_argument("--rules", action="store_true", help="only labelled and read traces")
    options.add_argument("--people", type=Path, default=os.environ.get("CLOSELOOP_LABELLED"))
    options.add_argument("--traces", type=Path, default=SHARED)
    options.add_argument("--repositories", type=Path, nargs="+", default=[])
    options.add_argument("--mine", type=Path, nargs="+", default=[])
    options.add_argument("--demo", action="store_true", help="run the demo at ten repeats")
    given = options.parse_args()
    own = scores()
    readings = load_readings()
    versions = {one.rule.name: one.rule.version for one in plugins.load_plugins("detectors")}
    read = count_readings(readings, versions)
    summary = summarise_readings(readings, versions)
    tables = {
        "rules": page.rules(own, read),
        "reading": page.reading(summary),
        "cases": page.cases(own),
    }
    if given.rules:
        sys.stdout.write("\n\n".join(tables.values()) + "\n")
        if given.write:
            page.write(tables)
            page.keep(own, read, summary)
        return
    people = Path(given.people or SHARED / "labelled_sola_st")
    if (people / "trajectories").is_dir():
        labelled = list(runs(people))
        tables["people"] = page.people(labelled, agreements(labelled), marks(labelled))
    if (given.traces / "PROVENANCE.csv").is_file():
        tables["outcomes"] = page.outcomes(odds(given.traces))
    sys.stdout.write("\n\n".join(tables.values()) + "\n")
    sys.stdout.write(f"\n{memory.table(memory.encoders())}\n")
    if given.repositories:
        changes = [one for folder in given.repositories for one in checks.told(folder)]
        breaks = list(api.scores(given.repositories))
        sys.stdout.write(f"\n{checks.table(changes)}\n\n{api.table(breaks)}\n")
        sys.stdout.write(f"\n{names.report(names.measured(given.repositories))}\n")
        assessed = [
            one for folder in given.repositories for one in levels.assess_repository(folder)
        ]
        recall = [reverts.measure_recall(folder) for folder in given.repositories]
        sys.stdout.write(f"\n{levels.render_level_tables(assessed)}\n")
        sys.stdout.write(f"\n{reverts.render_recall(recall)}\n")
    if given.write:
        if given.people is None:
            # What lies beside the checkout may be a part of the study only.
            tables.pop("people", None)
        page.write(tables)
        page.keep(own, read, summary)
    told = [mining.measured(folder.resolve(), MINED, sys.executable) for folder in given.mine]
    sys.stdout.write("\n" + "\n".join((mining.made_up(), *told)) + "\n\n")
    if given.demo:
        demo.report()
    coverage.report(keep=given.write)


if __name__ == "__main__":
    main()
