"""Commands and pages over a store with twenty scores of every attempt."""

from __future__ import annotations

import random
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import metrics
import page_content
from harness import REFERENCE, Bench, run
from table import Row, build_row

ATTEMPTS = 100_000
PERSON_RATES = (
    "would-merge", "scope-contained", "completeness", "quality", "relevance",
    "context-blindness", "instruction-drift", "silent-regression", "scope-creep",
    "hallucinated-api",
)  # fmt: skip
JUDGE_RATES = ("would-merge", "judge-score", "completeness", "quality", "relevance")
CODE_COUNTS = ("nits", "minutes", "readability")
DECLARED = "\n".join(f'[scores.{name}]\nkind = "count"\nbetter = "less"' for name in CODE_COUNTS)
TWO_SCORES = ("--score", "would-merge", "--score", "nits")
COMMANDS = {
    "metrics": (),
    "compare": ("v0", "v1", *TWO_SCORES),
    "gate": ("--experiment", f"{0:012x}", "--threshold", "would-merge=0.1"),
    "metrics --over-time": TWO_SCORES,
    "score list": (),
    "list attempts": TWO_SCORES,
    "report": ("report.html", "--compare", "v0,v1", "--score", "would-merge"),
}
COMMAND_SECONDS = 5
SCORED_PAGES = (
    "/",
    "/attempts?" + "&".join(f"score={name}" for name in (*PERSON_RATES[:4], "nits", "minutes")),
    "/attempts?score=would-merge",
    "/experiments",
    f"/experiments/{3:012x}?score=would-merge&score=nits",
    "/compare?variants=v0&variants=v1&score=would-merge&score=nits",
    "/scores",
    f"/attempts/{page_content.SHORT}/scores",
)


def measure(bench: Bench) -> Iterator[Row]:
    attempts, rows = bench.size(ATTEMPTS, 400), bench.size(1000, 5)
    folder = bench.input(
        "scored", lambda folder: bench.call("scores", "make", str(folder), attempts, rows)
    )
    many = f"{attempts:,} attempts × 20 scores"
    for name, options in COMMANDS.items():
        words = (*name.split(), *options)
        times = bench.repeat(lambda: time_words(folder, words))  # noqa: B023
        yield build_row(
            f"{name}, {many}, CPU", times["cpu"], "s", floor=times["reference"], against=REFERENCE,
            budget=COMMAND_SECONDS,
        )  # fmt: skip
    pages = bench.repeat(lambda: bench.call("scores", "pages", str(folder)), warm_up=lambda: None)
    yield build_row(
        f"first answers, the slowest page, {many}", pages["first"], "ms",
        floor=pages["reference"], against=REFERENCE, budget=300,
    )  # fmt: skip
    yield build_row(
        f"later answers, the slowest page, CPU, {many}", pages["later"], "ms",
        floor=pages["reference"], against=REFERENCE, budget=100,
    )  # fmt: skip


def make(folder: str, attempts: int, other_rows: int) -> None:
    """A project whose store has the attempts of metrics.py, the other pages' rows, and scores."""
    from closeloop.store import open_store, schema
    from closeloop.store.sql_statements import insert

    root = Path(folder)
    root.mkdir()
    (root / "closeloop.toml").write_text(f'store = "scored.db"\n{DECLARED}\n')
    file = str(root / "scored.db")
    metrics.make(file, attempts)
    page_content.make(file, 200, other_rows)
    chance = random.Random(13)
    with open_store(file) as store, store._writer.begin() as connection:
        for first in range(0, attempts, 1000):
            numbers = range(first, min(first + 1000, attempts))
            rows = [row for number in numbers for row in _score_rows(number, chance)]
            connection.execute(insert(schema.scores), rows)


def _score_rows(number: int, chance: random.Random) -> Iterator[dict[str, Any]]:
    shared = {
        "attempt": f"{number:012x}",
        "at": page_content.START,
        "label": None,
        "note": "",
        "version": "",
    }
    for name in PERSON_RATES:
        value = float(chance.random() < 0.6)
        yield {**shared, "name": name, "value": value, "source": "person", "who": "ann"}
    for name, values in (("approach", range(2)), ("review-seconds", range(1, 600))):
        value = float(chance.choice(values))
        yield {**shared, "name": name, "value": value, "source": "person", "who": "ann"}
    judge = {"source": "judge", "who": "judge-1", "version": "judge-1"}
    for name in JUDGE_RATES:
        yield {**shared, **judge, "name": name, "value": round(chance.random(), 2)}
    for name in CODE_COUNTS:
        value = float(chance.randrange(9))
        yield {**shared, "name": name, "value": value, "source": "person", "who": "lint"}


def time_words(folder: Path, words: tuple[str, ...]) -> dict[str, float]:
    """CPU seconds of a command, from its start to its end."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run([sys.executable, "-m", "closeloop", *words], folder)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {"cpu": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime}


def pages(folder: str) -> dict[str, float]:
    """Of the slowest page the seconds until a server just begun answers, and the CPU of a later
    answer, once all is counted.
    """
    first, later = zip(*(time_page(Path(folder), path) for path in SCORED_PAGES), strict=True)
    return {"first": max(first), "later": max(later)}


def time_page(folder: Path, path: str) -> tuple[float, float]:
    """Seconds of the first answer, and CPU seconds of one when all is counted."""
    from starlette.testclient import TestClient

    from closeloop.cli.config import load_project
    from closeloop.store import open_store
    from closeloop.web.app import build_web_app
    from closeloop.web.page import PageContext
    from closeloop.web.pages import warm_up_pages

    settings = load_project(folder).settings
    with open_store(str(folder / "scored.db")) as store:
        desk = PageContext(store, settings, folder)
        warm_up_pages(desk)
        app = build_web_app(store, token=None, page_context=desk)
        with TestClient(app, "http://127.0.0.1:4318") as client:
            client.headers["accept"] = "text/html"
            client.get("/health")
            begun = time.perf_counter()
            answer = client.get(path)
            first = time.perf_counter() - begun
            assert answer.status_code == 200, (path, answer.text[:300])
            while not client.get("/api/scores").json()["fresh"]:
                time.sleep(0.1)
            client.get(path)
            used = time.process_time()
            client.get(path)
            return first, time.process_time() - used
