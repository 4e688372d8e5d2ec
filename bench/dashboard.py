"""The dashboard over a large store, in its own process: prints what it measured.

python bench/dashboard.py make FILE   adds to the store of `metrics.py make` what other pages show
python bench/dashboard.py cold FILE   every page of a server just begun: seconds
python bench/dashboard.py pages FILE  every page again: seconds, and packed bytes
python bench/dashboard.py crowd FILE  fifty readers beside a writer: seconds a page
python bench/dashboard.py paint FILE  every page in Chromium, on a server just started: seconds

FILE may be the address of a PostgreSQL database as well.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

LONG = 100_000
EXPERIMENTS, PLANS, PULLS, RULES, PROMPTS, REPORTS = 20, 100, 1000, 300, 50, 1000
AGAIN, READERS, ASKED = 12, 50, 4
START = datetime(2025, 10, 9, tzinfo=UTC)
TRACED, SHORT = "f" * 12, "e" * 12
HERE = "http://127.0.0.1:4318"
PIECES = {"events", "search", "measured", "tail"}
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
PAINTED = """() => new Promise(told => new PerformanceObserver(list => {
    const seen = list.getEntriesByName("first-contentful-paint");
    if (seen.length) told(seen[0].startTime);
}).observe({type: "paint", buffered: true}))"""


def make(file: str) -> dict[str, float]:
    from sqlalchemy import insert

    from closeloop.model.memory import LearnedRule
    from closeloop.model.variant import Experiment, PromptVersion, Variant
    from closeloop.store import open_store, pull_tables

    chance = random.Random(11)
    with open_store(file) as store:
        for number in range(PROMPTS):
            text = f"You are agent {number}.\n" + "Be careful.\n" * 200
            store.save_prompt(PromptVersion(id=f"{number:064x}", text=text))
            store.save_variant(
                Variant(
                    name=f"v{number}",
                    agent="builtin",
                    model=f"m{number}",
                    digest=f"v{number}",
                    prompt=f"{number:064x}",
                )
            )
        for number in range(EXPERIMENTS):
            store.save_experiment(
                Experiment(
                    id=f"{number:012x}",
                    tasks=tuple(f"d{task}" for task in range(100)),
                    variants=(f"v{2 * number}", f"v{2 * number + 1}"),
                    repeats=5,
                )
            )
        for number in range(RULES):
            at = START + timedelta(hours=number)
            rule = LearnedRule(id=f"r{number}", repo="billing", text=f"Rule {number}.", since=at)
            store.memory.save_rule(rule)
        with store._writer.begin() as connection:
            connection.execute(insert(pull_tables.pulls), [_pull(n, chance) for n in range(PULLS)])
        _attempts(store)
        _plans(store)
        _reports(store)
    return {}


def _attempts(store: Any) -> None:
    """Two with traces, one of them long."""
    from closeloop.model.attempt import Attempt, Grade, Outcome
    from closeloop.model.patches import parse
    from closeloop.model.plan import Made
    from closeloop.model.trace import Command, Lane, Trace

    patch = "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1,1 +1,1 @@\n-1\n+2\n"
    for name, size in ((TRACED, LONG), (SHORT, 200)):
        events = tuple(
            Command(number=number, lane="root", command=f"echo {number}", output="1", exit_code=0)
            for number in range(1, size + 1)
        )
        trace = Trace(reader="bench", reader_version=1, lanes=(Lane(id="root"),), events=events)
        attempt = Attempt(
            id=name,
            origin="experiment",
            task="t0",
            task_digest="d0",
            variant="v0",
            number=900 + size % 7,
            started=START,
            exit="finished",
        )
        grade = Grade(attempt=name, grading="g0", version=1, outcome=Outcome(result="pass"))
        store.keep(Made(attempt=attempt, trace=trace, change=parse(patch), grade=grade))


def _plans(store: Any) -> None:
    from closeloop.model.orchestration import Orchestration, Part

    parts = [
        Part(id=f"p{n}", prompt="Do it.", depends_on=(f"p{n - 1}",) if n else ()) for n in range(12)
    ]
    for number in range(PLANS):
        at = START + timedelta(hours=number)
        plan = Orchestration(
            id=f"{number:012x}", at=at, request="Build it.", tasks=tuple(parts), worker="v0"
        )
        store.plans.begin(plan)


def _reports(store: Any) -> None:
    from closeloop.model.change import Change
    from closeloop.model.finding import Finding
    from closeloop.model.report import Report

    found = Finding(rule="copied-code", version=1, severity="warning", message="As x.py:3.")
    report = Report(
        change=Change(base="a" * 40), title="main..feature", verdict="pass", findings=(found,) * 20
    )
    for number in range(REPORTS):
        store.reports.add(report, START + timedelta(hours=number), repo="billing")


def _pull(number: int, chance: random.Random) -> dict[str, Any]:
    at = START + timedelta(hours=number)
    return {
        "repo": "acme/billing",
        "pull": number + 1,
        "source": "github",
        "title": f"Change {number}",
        "agent": chance.choice((None, "codex")),
        "state": chance.choice(("merged", "closed")),
        "draft": False,
        "opened": at,
        "told": at,
        "rounds": chance.randrange(4),
        "comments": chance.randrange(9),
        "edits": 0,
        "pointers": 0,
        "reviewed": True,
        "version": 1,
    }


def addresses() -> list[str]:
    """Every page, with what it asks for filled in."""
    from closeloop.web.pages import PAGES

    names = {
        "{attempt}": SHORT,
        "{task}": "t0",
        "{number}": "1",
        "{experiment}": f"{3:012x}",
        "{plan}": f"{3:012x}",
        "{prompt}": f"{3:064x}",
    }
    found = []
    for page in PAGES:
        path = page.path
        for name, value in names.items():
            path = path.replace(name, value)
        if "{" not in path and path != "/compare/traces":
            found.append(path)
    return [
        *found,
        f"/attempts/{TRACED}",
        "/attempts?show=grid",
        "/attempts?rule=spiral",
        "/compare?variants=v0&variants=v1",
        f"/compare/traces?first={SHORT}&second={SHORT}",
    ]


def cold(file: str) -> dict[str, float]:
    """The first answer of each page."""
    with _client(file) as client:
        return {address: _taken(client, address)[0] for address in addresses()}


def pages(file: str) -> dict[str, Any]:
    """Of each page the 95th percentile of its later answers, and its packed size.

    In CPU: nothing else is done then, and other processes do not count.
    """
    found: dict[str, Any] = {}
    with _client(file) as client:
        for _ in range(2):
            for address in addresses():
                client.get(address)
        _settled(client)
        for address in addresses():
            client.get(address)
            answers = [_taken(client, address) for _ in range(AGAIN)]
            warm = statistics.quantiles([cpu for _, cpu, _ in answers], n=20)[-1]
            found[address] = {"warm": warm, "bytes": _weight(answers[-1][2])}
    return found


@contextmanager
def _client(file: str) -> Iterator[Any]:
    """Of a server as `closeloop serve` begins it."""
    from starlette.testclient import TestClient

    from closeloop.store import open_store
    from closeloop.web.app import application
    from closeloop.web.desk import Desk
    from closeloop.web.pages import prepare

    with open_store(file) as store:
        desk = Desk(store)
        prepare(desk)
        with TestClient(application(store, token=None, desk=desk), HERE) as client:
            client.headers["accept"] = "text/html"
            client.get("/health")
            yield client


def _weight(page: bytes) -> int:
    """Of a page and all that it loads but for what draws charts, packed."""
    from closeloop.web.assets import assets

    drawn = ("vendor/d3.min.js", "vendor/plot.min.js", "charts.js")
    loaded = [
        asset.packed or asset.content
        for name, asset in assets().items()
        if asset.address.encode() in page and name not in drawn
    ]
    return len(gzip.compress(page)) + sum(map(len, loaded))


def _settled(client: Any) -> None:
    """Until nothing is left to be counted."""
    time.sleep(2)
    while not all(client.get(f"/api{path}").json()["fresh"] for path in ("/overview", "/prompts")):
        time.sleep(0.5)
    time.sleep(2)


def _taken(client: Any, address: str) -> tuple[float, float, bytes]:
    """Seconds, those of CPU, and the answer."""
    begun, used = time.perf_counter(), time.process_time()
    answer = client.get(address)
    taken = time.perf_counter() - begun, time.process_time() - used
    assert answer.status_code == 200, (address, answer.text[:300])
    return *taken, answer.content


def crowd(file: str) -> dict[str, float]:
    """Readers ask at once while attempts are added."""
    from starlette.testclient import TestClient

    from closeloop.model.attempt import Attempt
    from closeloop.model.plan import Made
    from closeloop.store import open_store
    from closeloop.web.app import application

    every = ["/", "/attempts", "/experiments", "/changes", "/pulls", "/plans", "/review"]
    taken: list[float] = []
    stopped = threading.Event()
    with open_store(file) as store, TestClient(application(store, token=None), HERE) as client:

        def write() -> None:
            number = 0
            while not stopped.is_set():
                name = f"w{time.time_ns():x}{number}"
                store.keep(Made(attempt=Attempt(id=name, origin="production", exit="finished")))
                number += 1
                stopped.wait(0.02)

        def read(start: int) -> None:
            asked = [every[(start + turn) % len(every)] for turn in range(ASKED)]
            taken.extend(_taken(client, address)[0] for address in asked)

        for address in every:
            client.get(address)
        _settled(client)
        writer = threading.Thread(target=write)
        writer.start()
        readers = [threading.Thread(target=read, args=(n,)) for n in range(READERS)]
        begun = time.perf_counter()
        for each in readers:
            each.start()
        for each in readers:
            each.join()
        spent = time.perf_counter() - begun
        stopped.set()
        writer.join()
    return {"each": spent / len(taken), "p95": statistics.quantiles(taken, n=20)[-1]}


def paint(file: str) -> dict[str, float] | None:
    """Of each page the first contentful paint; none where there is no browser.

    The server has just begun and the browser has kept nothing: the first visitor of the day.
    """
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        return None
    from playwright.sync_api import sync_playwright

    found: dict[str, float] = {}
    with served(file) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        browser.new_page().goto("about:blank")
        for path in filter(_is_whole, addresses()):
            with browser.new_context() as context:
                page = context.new_page()
                page.goto(address + path)
                found[path] = page.evaluate(PAINTED) / 1000
        browser.close()
    return found


def _is_whole(path: str) -> bool:
    """Whether it is a page, not a piece of one."""
    return not PIECES & set(path.split("/"))


@contextmanager
def served(file: str) -> Iterator[str]:
    """The address of `closeloop serve` over the store."""
    command = [sys.executable, "-m", "closeloop", "serve", "--port", "0"]
    around = {**os.environ, "CLOSELOOP_STORE": file if "://" in file else str(Path(file).resolve())}
    with (
        tempfile.TemporaryDirectory() as empty,
        subprocess.Popen(
            command, cwd=empty, env=around, stdout=subprocess.PIPE, text=True
        ) as server,
    ):
        try:
            told = re.search(r"http://\S+", server.stdout.readline() if server.stdout else "")
            assert told is not None, "the server says where it listens"
            yield told[0].rstrip("/")
        finally:
            server.terminate()


if __name__ == "__main__":
    match sys.argv[1:]:
        case "make", file:
            print(json.dumps(make(file)))
        case "cold", file:
            print(json.dumps(cold(file)))
        case "pages", file:
            print(json.dumps(pages(file)))
        case "crowd", file:
            print(json.dumps(crowd(file)))
        case "paint", file:
            print(json.dumps(paint(file)))
        case _:
            sys.exit(__doc__)
