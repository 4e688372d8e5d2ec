"""closeloop beside its floors and peers, measured in one run: prints ratios, never times.

python bench/run.py PEER_PYTHON HARBOR_PYTHON

The interpreters of two environments: one that has inspect-ai, one that has harbor.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import workspaces

import changes
import mining

HERE = Path(__file__).parent
ATTEMPTS = 2000
IMPORT_MEGABYTES, SHORT_MEGABYTES, READ_TRACES, READ_MEGABYTES = 200, 20, 200, 14
LEAST_EVENTS, LONG = 200_000, 300_000
KEPT, BEGUN = 100_000, 5
PEER_TRIVIAL, PEER_LOOPS = 300, 60
"""Fewer for the peer: what it needs per sample does not depend on how many there are."""

rows: list[tuple[str, str, float, float, bool]] = []


def line(what: str, against: str, ratio: float, aim: float, *, at_least: bool = False) -> None:
    """One measured ratio, and whether it is where it should be."""
    good = ratio >= aim if at_least else ratio <= aim
    rows.append((what, against, ratio, aim, good))
    sign = "≥" if at_least else "≤"
    mark = "ok" if good else "MISSED"
    print(f"{what:46} {ratio:8.2f} ×  {against:52} aim {sign} {aim:g}  {mark}", flush=True)


def cpu_of(*argv: str, times: int = 5) -> float:
    """CPU seconds of a command, the best of some runs: the rest is noise."""
    best = float("inf")
    for _ in range(times):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(argv, check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        best = min(best, used)
    return best


def printed(*argv: str, env: Mapping[str, str] = {}) -> str:
    around = {**os.environ, **env}
    result = subprocess.run(argv, check=True, capture_output=True, text=True, env=around)
    return result.stdout.strip().splitlines()[-1]


def start_up(peer: str | None) -> None:
    python = cpu_of(sys.executable, "-c", "pass")
    ours = cpu_of(sys.executable, "-m", "closeloop", "--help")
    line("start-up of `closeloop --help`", "a budget of 0.25 s of CPU", ours / 0.25, 1)
    line("  what we add to Python's own", "a budget of 0.15 s of CPU", (ours - python) / 0.15, 1)
    if peer:
        theirs = cpu_of(peer, "-m", "inspect_ai", "--help", times=2)
        line("  Inspect's start-up", "ours", theirs / ours, 1, at_least=True)


def attempts(peer: str | None) -> None:
    for kind, budget, samples in (("trivial", 0.002, PEER_TRIVIAL), ("loop", 0.008, PEER_LOOPS)):
        name = "a trivial attempt" if kind == "trivial" else "a ten-turn tool loop"
        ours = json.loads(printed(sys.executable, str(HERE / "attempts.py"), kind, str(ATTEMPTS)))
        used = ours["cpu"]
        line(
            f"{name}, {ATTEMPTS:,} of them",
            f"a budget of {budget * 1000:g} ms of CPU",
            used / budget,
            1,
        )
        line(
            "  memory at the end",
            "memory at a quarter of the way",
            ours["late"] / ours["early"],
            1.1,
        )
        if peer:
            theirs = float(printed(peer, str(HERE / "peer_inspect.py"), kind, str(samples)))
            line("  Inspect's CPU for the same work", "ours", theirs / used, 10, at_least=True)


def crowd() -> None:
    """A hundred attempts at once, busy and waiting; and what a cluster adds, where there is Ray."""
    script = str(HERE / "crowd.py")
    share = json.loads(printed(sys.executable, script, "busy"))["share"]
    line("our part of the CPU, 100 busy attempts", "a tenth of all", share / 0.1, 1)
    each = json.loads(printed(sys.executable, script, "waiting"))["memory"]
    line("memory of a waiting attempt", "2 MB", each / 2e6, 1)
    ray = HERE.parent / ".venv-ray" / "bin" / "python"
    if ray.exists():
        added = float(printed(str(ray), str(HERE / "cluster.py")))
        line("what Ray adds to an attempt", "20 ms", added / 0.020, 1)


def imports(peer: str | None, folder: Path) -> None:
    """A mixed folder of recordings: read once, again, by two, and its traces read back."""
    recorded, store = folder / "recorded", folder / "one.db"
    script = str(HERE / "imports.py")

    # As where it is installed: there, bytecode is written once. The short ones see to that here.
    kept = {"PYTHONPYCACHEPREFIX": str(folder / "bytecode"), "PYTHONDONTWRITEBYTECODE": ""}

    def measured(*arguments: str) -> dict[str, float]:
        return dict(json.loads(printed(sys.executable, script, *arguments, env=kept)))

    short = folder / "short"
    small = measured("make", "short", str(short), str(SHORT_MEGABYTES))
    short_floor = measured("decode", str(short))["cpu"]
    measured("import", str(short), str(folder / "before.db"), "1")
    brief = measured("import", str(short), str(folder / "short.db"), "1")
    made = measured("make", "long", str(recorded), str(IMPORT_MEGABYTES))
    print(f"{made['files']:,} recordings, {made['bytes'] / 1e6:.0f} MB, of every format")
    floor = min(measured("decode", str(recorded))["cpu"] for _ in range(2))
    first = measured("import", str(recorded), str(store), "1")
    again = measured("import", str(recorded), str(store), "1")
    both = measured("import", str(recorded), str(folder / "two.db"), "2")
    line(f"import of {IMPORT_MEGABYTES} MB, CPU", "decoding their JSON", first["cpu"] / floor, 3)
    for part, used in measured("parts", str(recorded)).items():
        print(f"    {part:42} {used / floor:8.2f} ×  of it", flush=True)
    size = small["bytes"] / small["files"] / 1000
    line(f"  of files of {size:.0f} KB", "decoding their JSON", brief["cpu"] / short_floor, 3)
    line("  a second import, CPU", "the first", again["cpu"] / first["cpu"], 0.05)
    line("  memory", "300 MB", max(first["memory"], both["memory"]) / 300e6, 1)
    line("  seconds on two cores", "on one", both["seconds"] / first["seconds"], 0.65)
    if peer:
        long = str(folder / "long.db")
        measured("lengthen", str(store), long, str(READ_TRACES), str(READ_MEGABYTES))
        read = measured("read", long, str(READ_TRACES))
        measured("export", long, str(READ_TRACES), str(folder / "traces.jsonl"))
        logs = str(HERE / "peer_logs.py")
        printed(peer, logs, "make", str(folder / "traces.jsonl"), str(folder / "log.eval"))
        theirs = float(printed(peer, logs, "read", str(folder / "log.eval")))
        line(
            f"Inspect's CPU for reading {READ_TRACES} traces",
            "ours",
            theirs / read["cpu"],
            8,
            at_least=True,
        )


def measures(recorded: Path) -> None:
    """What the rules take: of the recordings beside decoding them, of a trace beside its half."""
    script = str(HERE / "measure.py")

    def measured(*arguments: str) -> dict[str, float]:
        return dict(json.loads(printed(sys.executable, script, *arguments)))

    mixed = measured("mixed", str(recorded))
    decode, names = mixed["decode"], sorted(mixed, key=mixed.__getitem__, reverse=True)
    line("all rules, CPU", "decoding the traces", mixed["rules"] / decode, 2)
    line("  reading them before", "decoding the traces", mixed["read"] / decode, 3)
    line("  summing up after", "decoding the traces", mixed["sums"] / decode, 1)
    dearest = [name for name in names if name.startswith("rule ")][:5]
    print("  ", ", ".join(f"{name[5:]} {mixed[name] / decode:.2f} ×" for name in dearest))
    speed = mixed["events"] / (mixed["read"] + mixed["rules"] + mixed["sums"])
    line("  events a second", f"{LEAST_EVENTS:,}", speed / LEAST_EVENTS, 1, at_least=True)
    half, whole = (measured("long", str(events)) for events in (LONG // 2, LONG))
    what = f"a trace of {LONG // 2:,} events"
    line(f"  a trace of {LONG:,}, CPU", what, whole["cpu"] / half["cpu"], 2.2)
    line(f"  a trace of {LONG:,}, memory", what, whole["memory"] / half["memory"], 2.2)


def numbers(folder: Path) -> None:
    """All metrics of a large store from a cold start, and a comparison; each beside its half."""
    script = str(HERE / "metrics.py")

    def measured(*arguments: str) -> dict[str, float]:
        return dict(json.loads(printed(sys.executable, script, *arguments)))

    whole, half = str(folder / "whole.db"), str(folder / "half.db")
    measured("make", whole, str(KEPT))
    measured("make", half, str(KEPT // 2))
    for what, told in (("metrics", "all metrics"), ("trends", "all trends")):
        found, less = measured(what, whole), measured(what, half)
        line(f"{told} of {KEPT:,} attempts, cold", "2 s of CPU", found["whole"] / 2, 1)
        line("  without the start", f"of {KEPT // 2:,} attempts", found["cpu"] / less["cpu"], 2.2)
        line("  memory", "300 MB", found["memory"] / 300e6, 1)
    versus = measured("compare", whole)
    line("  a comparison in that store, CPU", "0.5 s", versus["cpu"] / 0.5, 1)
    twice = measured("again", str(folder / "again.db"))
    share = twice["again"] / twice["first"]
    line("metrics again, a twentieth of the attempts new", "the first time", share, 0.25)


def dashboard(store: str, engine: str) -> None:
    """Every page over the large store: the first answer, those after, its size; many readers."""

    def measured(what: str) -> Any:
        return json.loads(printed(sys.executable, str(HERE / "dashboard.py"), what, store))

    measured("make")
    first = [each for _ in range(BEGUN) for each in measured("cold").items()]
    share = statistics.quantiles([seconds for _, seconds in first], n=20)[-1]
    print(f"    the most: {max(first, key=lambda each: each[1])[0][:60]}")
    line(f"first answers of pages, 95th percentile, {engine}", "300 ms", share / 0.3, 1)
    pages = measured("pages")
    for what, unit, budget, aim in (
        ("warm", "100 ms of CPU", 0.1, "  the answers after, 95th percentile"),
        ("bytes", "150 KB", 150e3, "  packed bytes"),
    ):
        slowest = max(pages, key=lambda address: pages[address][what])
        print(f"    the most: {slowest[:60]}")
        line(f"{aim}, {engine}", unit, pages[slowest][what] / budget, 1)
    painted = measured("paint")
    if painted is None:
        print("What a browser paints is left out: there is no Chromium")
    else:
        slowest = max(painted, key=lambda address: painted[address])
        print(f"    the last: {slowest[:60]}")
        line(f"  first contentful paint, {engine}", "1 s", painted[slowest], 1)
    crowd = measured("crowd")
    line(f"a page for 50 readers beside a writer, {engine}", "100 ms", crowd["each"] / 0.1, 1)


def dashboards(folder: Path) -> None:
    """On both engines, with the same content."""
    dashboard(str(folder / "whole.db"), "SQLite")
    sys.path.insert(0, str(HERE.parent / "tests"))
    import psycopg

    import postgres_server

    binaries = postgres_server.system_binaries() or postgres_server.wheel_binaries()
    if binaries is None:
        print("PostgreSQL is left out: there is none")
        return
    with postgres_server.running(binaries) as place:
        store = postgres_server.address(place)
        printed(sys.executable, str(HERE / "metrics.py"), "make", store, str(KEPT))
        # As its own housekeeping does within a minute of so much being added.
        with psycopg.connect(store, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")
        dashboard(store, "PostgreSQL")


def gateway() -> None:
    """What a request of 20 kB through the gateway takes, and what it adds for the agent."""
    script = str(HERE / "gateway.py")
    # Passed on over HTTP, a second connection is served: most of that is the HTTP library's.
    for kind, what, budget in (("scripted", "answered here", 2), ("remote", "passed on", 4)):
        for stream, how in (("whole", ""), ("stream", ", streamed")):
            told = json.loads(printed(sys.executable, script, kind, stream))
            against = f"{budget} ms: {1000 // budget} a second on one core"
            line(f"gateway, {what}{how}, CPU", against, told["cpu"] * 1000 / budget, 1)
            if kind == "scripted":
                line("  added at the median", "3 ms", told["overhead"] / 0.003, 1)


def webhooks() -> None:
    """Deliveries over HTTP into SQLite, acknowledged when they are kept; reading goes on beside."""
    told = json.loads(printed(sys.executable, str(HERE / "webhooks.py")))
    against = "0.5 ms of CPU: 2,000 a second on one core"
    line(f"{told['taken']:,} webhooks kept and acknowledged", against, told["cpu"] / 0.0005, 1)


def converters(harbor: str | None) -> None:
    """Whether Harbor's converters find the same calls and results as our readers."""
    there = harbor and shutil.which(harbor)
    probe = [harbor, "-P", "-c", "import harbor"]
    if not there or subprocess.run(probe, check=False, capture_output=True).returncode:
        print("Harbor's converters are left out: they could not be installed")
        return
    script = [sys.executable, str(HERE / "harbor.py"), there]
    found = subprocess.run(script, check=False, capture_output=True, text=True)
    print(f"\n{found.stdout}{found.stderr}")
    line("other calls or results than Harbor's converter", "explained ones", found.returncode, 0)


def main() -> int:
    peer, harbor = (*sys.argv[1:3], None, None)[:2]
    start_up(peer)
    attempts(peer)
    crowd()
    folder = Path(tempfile.mkdtemp())
    try:
        for what, against, ratio, aim in workspaces.measure(folder):
            line(what, against, ratio, aim)
        for what, against, ratio, aim in changes.measure(folder, peer):
            line(what, against, ratio, aim)
        for what, against, ratio, aim in mining.measure(folder):
            line(what, against, ratio, aim)
        imports(peer, folder)
        measures(folder / "recorded")
        numbers(folder)
        dashboards(folder)
        gateway()
        webhooks()
        converters(harbor)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    missed = [row for row in rows if not row[-1]]
    print(f"\n{len(rows) - len(missed)} of {len(rows)} where they should be")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
