"""Every page of the dashboard over a large store: the first answer, those after, many readers."""

from __future__ import annotations

import gzip
import os
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
from pathlib import Path
from typing import Any

import metrics
from harness import REFERENCE, ROOT, Bench, NotMeasured
from page_content import SHORT, TRACED
from table import Row, build_row

POSTGRES_ATTEMPTS = 20_000
LONG = 100_000
READERS, ASKED = 50, 4
HERE = "http://127.0.0.1:4318"
PIECES = {"events", "search", "measured", "tail"}
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
PAINTED = """() => new Promise(told => new PerformanceObserver(list => {
    const seen = list.getEntriesByName("first-contentful-paint");
    if (seen.length) told(seen[0].startTime);
}).observe({type: "paint", buffered: true}))"""


def measure(bench: Bench) -> Iterator[Row]:
    """On both engines; PostgreSQL, to which it takes long to write so much, with fewer attempts."""
    file, attempts = metrics.make_store(bench)
    engine = f"SQLite, {attempts:,} attempts"
    yield from measure_store(bench, str(file), engine)
    yield from measure_paint(bench, str(file), engine)
    name = f"PostgreSQL, {POSTGRES_ATTEMPTS:,} attempts"
    try:
        bench.require_full("PostgreSQL")
        with run_postgres() as store:
            bench.call("metrics", "make", store, POSTGRES_ATTEMPTS)
            _vacuum(store)
            yield from measure_store(bench, store, name)
    except NotMeasured as reason:
        yield Row(f"pages, {name}", note=f"not measured: {reason}")


def measure_store(bench: Bench, store: str, engine: str) -> Iterator[Row]:
    bench.call("page_content", "make", store, bench.size(LONG, 300), bench.size(1000, 5))
    first = bench.repeat(lambda: bench.call("dashboard", "cold", store))
    yield build_row(
        f"first answers, 95th percentile, {engine}", first["p95"], "ms",
        floor=first["reference"], against=REFERENCE, budget=300,
    )  # fmt: skip
    later = bench.repeat(
        lambda: bench.call("dashboard", "pages", store, bench.size(3, 1)), warm_up=lambda: None
    )
    yield build_row(
        f"later answers, the slowest page, CPU, {engine}", later["warm"], "ms",
        floor=later["reference"], against=REFERENCE, budget=100,
    )  # fmt: skip
    yield build_row(f"the largest page, packed, {engine}", later["bytes"], "KB", budget=150)
    readers = bench.size(READERS, 2)
    crowd = bench.repeat(
        lambda: bench.call("dashboard", "crowd", store, readers), warm_up=lambda: None
    )
    yield build_row(
        f"a page for {readers} readers beside a writer, {engine}", crowd["each"], "ms",
        floor=crowd["reference"], against=REFERENCE, budget=100,
    )  # fmt: skip


def measure_paint(bench: Bench, store: str, engine: str) -> Iterator[Row]:
    """On one engine only: most of it is the browser's."""
    name = f"first contentful paint, the slowest page, {engine}"
    try:
        bench.require_full("the browser")
        painted = bench.repeat(lambda: {"slowest": paint(store)}, warm_up=lambda: None)
        yield build_row(
            name, painted["slowest"], "ms", floor=painted["reference"], against=REFERENCE,
            budget=1000,
        )  # fmt: skip
    except NotMeasured as reason:
        yield Row(name, note=f"not measured: {reason}")


@contextmanager
def run_postgres() -> Iterator[str]:
    """The address of an empty database, whose server ends with us."""
    sys.path.insert(0, str(ROOT / "tests"))
    try:
        import postgres_server
    except ImportError as error:
        raise NotMeasured(f"{error.name} is not installed") from error
    binaries = postgres_server.system_binaries() or postgres_server.wheel_binaries()
    if binaries is None:
        raise NotMeasured("there is no PostgreSQL")
    with postgres_server.running(binaries) as place:
        yield postgres_server.address(place)


def _vacuum(store: str) -> None:
    """As its own housekeeping does within a minute of so much being added."""
    import psycopg

    with psycopg.connect(store, autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE")


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
        if "{" not in path and not path.endswith(("/review/trace", "/round")):
            found.append(path)
    return [
        *found,
        f"/attempts/{TRACED}",
        "/attempts?show=grid",
        "/attempts?rule=spiral",
        "/compare?variants=v0&variants=v1",
        f"/compare?attempt={SHORT}&attempt={TRACED}",
        f"/review/trace?item={SHORT}",
    ]


def cold(file: str) -> dict[str, float]:
    """Of the first answers of all pages of a server just begun, the 95th percentile in seconds."""
    with _client(file) as client:
        taken = [_taken(client, address)[0] for address in addresses()]
    return {"p95": statistics.quantiles(taken, n=20)[-1]}


def pages(file: str, answers: int) -> dict[str, float]:
    """Of the slowest page the CPU of a later answer, and of the largest its packed size.

    In CPU: nothing else is done then, and other processes do not count.
    """
    warm, sizes = [], []
    with _client(file) as client:
        for address in addresses():
            client.get(address)
        _settled(client)
        for address in addresses():
            taken = [_taken(client, address) for _ in range(answers)]
            warm.append(statistics.median(cpu for _, cpu, _ in taken))
            sizes.append(_weight(taken[-1][2]))
    return {"warm": max(warm), "bytes": max(sizes)}


@contextmanager
def _client(file: str) -> Iterator[Any]:
    """Of a server as `closeloop serve` begins it."""
    from starlette.testclient import TestClient

    from closeloop.store import open_store
    from closeloop.web.app import build_web_app
    from closeloop.web.page import PageContext
    from closeloop.web.pages import warm_up_pages

    with open_store(file) as store:
        desk = PageContext(store)
        warm_up_pages(desk)
        with TestClient(build_web_app(store, token=None, page_context=desk), HERE) as client:
            client.headers["accept"] = "text/html"
            client.get("/health")
            yield client


def _weight(page: bytes) -> int:
    """Of a page and all that it loads but for what draws charts, packed."""
    from closeloop.web.render import load_assets

    drawn = ("vendor/d3.min.js", "vendor/plot.min.js", "charts.js")
    loaded = [
        asset.packed or asset.content
        for name, asset in load_assets().items()
        if asset.address.encode() in page and name not in drawn
    ]
    return len(gzip.compress(page)) + sum(map(len, loaded))


def _settled(client: Any) -> None:
    """Until nothing is left to be counted."""
    while not all(client.get(f"/api{path}").json()["fresh"] for path in ("/overview", "/prompts")):
        time.sleep(0.1)


def _taken(client: Any, address: str) -> tuple[float, float, bytes]:
    """Seconds, those of CPU, and the answer."""
    begun, used = time.perf_counter(), time.process_time()
    answer = client.get(address)
    taken = time.perf_counter() - begun, time.process_time() - used
    assert answer.status_code == 200, (address, answer.text[:300])
    return *taken, answer.content


def crowd(file: str, readers: int) -> dict[str, float]:
    """Readers ask at once while attempts are added."""
    from starlette.testclient import TestClient

    from closeloop.records.attempt import Attempt
    from closeloop.records.experiment_plan import AttemptResult
    from closeloop.store import open_store
    from closeloop.web.app import build_web_app

    every = ["/", "/attempts", "/experiments", "/pulls", "/plans", "/review"]
    taken: list[float] = []
    stopped = threading.Event()
    with open_store(file) as store, TestClient(build_web_app(store, token=None), HERE) as client:

        def write() -> None:
            number = 0
            while not stopped.is_set():
                name = f"w{time.time_ns():x}{number}"
                store.save_attempt(
                    AttemptResult(attempt=Attempt(id=name, origin="production", exit="finished"))
                )
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
        crowd = [threading.Thread(target=read, args=(n,)) for n in range(readers)]
        begun = time.perf_counter()
        for each in crowd:
            each.start()
        for each in crowd:
            each.join()
        spent = time.perf_counter() - begun
        stopped.set()
        writer.join()
    return {"each": spent / len(taken)}


def paint(file: str) -> float:
    """Seconds until the first contentful paint of the slowest page.

    The server has just begun and the browser has kept nothing: the first visitor of the day.
    """
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError as error:
        raise NotMeasured("playwright is not installed") from error
    if program is None:
        raise NotMeasured("there is no Chromium")
    taken = []
    with served(file) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        browser.new_page().goto("about:blank")
        for path in filter(_is_whole, addresses()):
            with browser.new_context() as context:
                page = context.new_page()
                page.goto(address + path)
                taken.append(page.evaluate(PAINTED) / 1000)
        browser.close()
    return max(taken)


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
