"""Commands and pages over a store with twenty scores of every attempt."""

from __future__ import annotations

import random
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dashboard
import metrics
import page_content
from harness import REFERENCE, ROOT, Bench, run
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
COMMANDS = {
    "metrics": ("metrics",),
    "metrics --by": ("metrics", "--score", "would-merge", "--by", "variant"),
    "compare": ("compare", "v0", "v1", "--score", "would-merge", "--score", "nits"),
    "gate": ("gate", "--score", "would-merge", "--least", "would-merge=0.1"),
    "trends": ("trends", "--score", "would-merge", "--score", "nits"),
    "scores": ("scores",),
    "attempts": ("attempts", "--score", "would-merge", "--score", "nits"),
    "report": ("report", "report.html", "--compare", "v0,v1", "--score", "would-merge"),
}
SCORED_PAGES = (
    "/",
    "/attempts?" + "&".join(f"score={name}" for name in (*PERSON_RATES[:4], "nits", "minutes")),
    "/attempts?score=would-merge&sort=would-merge",
    "/experiments",
    f"/experiments/{3:012x}?score=would-merge&score=nits",
    "/compare?variants=v0&variants=v1&score=would-merge&score=nits",
    "/scores",
    f"/attempts/{page_content.SHORT}",
    "/metrics",
    "/trends?score=would-merge",
)


def measure(bench: Bench) -> Iterator[Row]:
    attempts = bench.size(ATTEMPTS, 400)
    folder = bench.input(
        "scored", lambda folder: bench.call("scores", "make", str(folder), attempts)
    )
    many = f"{attempts:,} attempts × 20 scores"
    for name, words in COMMANDS.items():
        times = bench.repeat(lambda: time_words(folder, words))  # noqa: B023
        yield build_row(
            f"{name}, {many}, CPU", times["cpu"], "s", floor=times["reference"], against=REFERENCE
        )
    first = bench.repeat(lambda: bench.call("scores", "first_answers", str(folder)))
    yield build_row(
        f"first answers, the slowest page, {many}", first["slowest"], "ms",
        floor=first["reference"], against=REFERENCE, budget=300,
    )  # fmt: skip


def make(folder: str, attempts: int) -> None:
    """A project whose store has the attempts of metrics.py, the other pages' rows, and scores."""
    from sqlalchemy import insert

    from closeloop.store import open_store, schema

    root = Path(folder)
    root.mkdir()
    (root / "closeloop.toml").write_text(f'store = "scored.db"\n{DECLARED}\n')
    file = str(root / "scored.db")
    metrics.make(file, attempts)
    page_content.make(file, 200, 1000)
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
    for name, most in (("approach", 5), ("review-seconds", 600)):
        value = float(chance.randrange(1, most))
        yield {**shared, "name": name, "value": value, "source": "person", "who": "ann"}
    judge = {"source": "judge", "who": "judge-1", "version": "judge-1"}
    for name in JUDGE_RATES:
        yield {**shared, **judge, "name": name, "value": round(chance.random(), 2)}
    for name in CODE_COUNTS:
        value = float(chance.randrange(9))
        yield {**shared, "name": name, "value": value, "source": "person", "who": "lint"}


def time_words(folder: Path, words: tuple[str, ...]) -> dict[str, float]:
    """CPU seconds of a command, from its start to its end."""
    import resource
    import sys

    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run([sys.executable, "-m", "closeloop", *words], folder)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {"cpu": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime}
