"""All metrics, trends and a comparison over a large store."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import REFERENCE, Bench, peak_memory_bytes
from table import Row, build_row

if TYPE_CHECKING:
    from closeloop.store.engine import Connection

ATTEMPTS = 100_000
MANY_ATTEMPTS = 1_000_000
TITLE_WORDS = {1001: "currency", 101: "rounding", 11: "layout"}
WEEK = 7 * 24 * 3600 * 1_000_000
BEGAN = 1_760_000_000_000_000
TASKS, VARIANTS = 100, 50
BATCH_ATTEMPTS = 1000
FIRST, NEW, EVENTS = 2000, 100, 60


def measure(bench: Bench) -> Iterator[Row]:
    file, attempts = make_store(bench)
    whole = str(file)
    half = str(
        bench.input("half.db", lambda file: bench.call("metrics", "make", str(file), attempts // 2))
    )
    for what in ("metrics", "trends"):
        times = bench.repeat(
            lambda: {
                **bench.call("metrics", "timed", whole, what),  # noqa: B023
                "half": bench.call("metrics", "timed", half, what)["cpu"],  # noqa: B023
            },
            warm_up=lambda: bench.call("metrics", "timed", half, what),  # noqa: B023
        )
        yield build_row(
            f"all {what} of {attempts:,} attempts, cold, CPU", times["whole"], "s",
            floor=times["reference"], against=REFERENCE, budget=2,
        )  # fmt: skip
        yield build_row(
            f"all {what}, without the start, CPU", times["cpu"], "s", floor=times["half"],
            against=f"of {attempts // 2:,} attempts", aim=2.2,
        )  # fmt: skip
        yield build_row(f"all {what}: memory", times["memory"], "MB", budget=300)
    yield from _measure_many(bench)
    versus = bench.repeat(lambda: bench.call("metrics", "timed", whole, "compare"))
    yield build_row(
        "a comparison of two variants, CPU", versus["cpu"], "s", floor=versus["reference"],
        against=REFERENCE, budget=0.5,
    )  # fmt: skip
    first, new = bench.size(FIRST, 20), bench.size(NEW, 1)
    again = bench.repeat(lambda: _measure_again(bench, first, new), warm_up=lambda: None)
    yield build_row(
        f"metrics with {new} new of {first:,} attempts, CPU", again["again"], "s",
        floor=again["first"], against="metrics when all are new", aim=0.25,
    )  # fmt: skip


def _measure_many(bench: Bench) -> Iterator[Row]:
    """The same of many more attempts, which nobody looks for by words."""
    attempts = bench.size(MANY_ATTEMPTS, 800)
    many = str(
        bench.input(
            "many.db", lambda file: bench.call("metrics", "make", str(file), attempts, False)
        )
    )
    first = bench.call("metrics", "timed", many, "metrics")
    yield build_row(
        f"all metrics of {attempts:,} attempts for the first time, CPU", [first["cpu"]], "s",
        floor=[bench.call("metrics", "scan", many)["cpu"]],
        against="a bare SQL scan of their columns",
    )  # fmt: skip
    for what in ("metrics", "trends"):
        times = bench.repeat(
            lambda: {
                **bench.call("metrics", "timed", many, what),  # noqa: B023
                "scan": bench.call("metrics", "scan", many)["cpu"],
            },
            warm_up=lambda: None,
        )
        yield build_row(
            f"all {what} of {attempts:,} attempts, CPU", times["cpu"], "s", floor=times["scan"],
            against="a bare SQL scan of their columns", budget=5,
        )  # fmt: skip
        yield build_row(f"all {what} of {attempts:,}: memory", times["memory"], "MB", budget=300)


def scan(file: str) -> dict[str, float]:
    """CPU seconds that the columns of a store take to become Python values."""
    import sqlite3

    from closeloop.store import metrics_section as columns

    shares = [f"{name}_hits / nullif({name}_of, 0)" for name in columns.RATE_NAMES]
    tables = {
        "attempts": ("id", *columns.ATTEMPT_FIELDS),
        "grades": ("attempt", *columns.GRADE_FIELDS),
        "sessions": ("attempt", *columns.SESSION_FIELDS),
        "measurements": ("attempt", *columns.MEASUREMENT_FIELDS, *shares),
        "deliveries": ("attempt", *columns.DELIVERY_FIELDS),
    }
    connection = sqlite3.connect(file)
    begun = time.process_time()
    for table, names in tables.items():
        cursor = connection.execute(f"SELECT {', '.join(names)} FROM {table} NOT INDEXED")
        while cursor.fetchmany(columns.FETCH_ROWS):
            pass
    used = time.process_time() - begun
    connection.close()
    return {"cpu": used}


def make_store(bench: Bench) -> tuple[Path, int]:
    """The large store that this part and the dashboard share, and its attempts."""
    attempts = bench.size(ATTEMPTS, 400)
    return bench.input(
        "whole.db", lambda file: bench.call("metrics", "make", str(file), attempts)
    ), attempts


def _measure_again(bench: Bench, first: int, new: int) -> dict[str, float]:
    file = bench.folder / "again.db"
    file.unlink(missing_ok=True)
    return dict(bench.call("metrics", "again", str(file), first, new))


def make(file: str, attempts: int, has_words: bool = True) -> dict[str, float]:
    """Rows as the store writes them, but for bodies, which metrics must not read."""
    from closeloop.metrics.attempt_measuring import basis_from_grade, project_rulebook
    from closeloop.records.settings import Settings
    from closeloop.records.task import Acceptance, Task, Variant
    from closeloop.store import open_store, schema
    from closeloop.store.sql_statements import insert

    book = project_rulebook(Settings())
    chance = random.Random(7)
    with open_store(file) as store:
        for number in range(TASKS):
            store.save_task(
                Task(
                    id=f"t{number}",
                    prompt="",
                    repo="billing",
                    digest=f"d{number}",
                    grading=f"g{number}",
                    acceptance=Acceptance(commands=("make test",)),
                    tags=("slow",) if number % 3 else ("slow", "api"),
                )
            )
        for number in range(VARIANTS):
            store.save_variant(
                Variant(name=f"v{number}", agent="builtin", model=f"m{number}", digest=f"v{number}")
            )
        basis: dict[tuple[str | None, str | None], str] = {
            (f"g{task}", outcome): basis_from_grade((f"g{task}", 1, outcome), book)
            for task in range(TASKS)
            for outcome in ("pass", "fail", "unscored")
        }
        basis[None, None] = basis_from_grade((None, None, None), book)
        for first in range(0, attempts, BATCH_ATTEMPTS):
            numbers = range(first, min(first + BATCH_ATTEMPTS, attempts))
            rows = [_rows(number, attempts, chance, basis) for number in numbers]
            with store._writer.begin() as connection:
                for table in ("attempts", "grades", "measurements", "sessions", "deliveries"):
                    table_rows = [row[table] for row in rows if table in row]
                    connection.execute(insert(schema.metadata.tables[table]), table_rows)
                if has_words:
                    _index_words(connection, first, [row["attempts"] for row in rows])
    return {}


def _index_words(connection: Connection, first: int, rows: list[dict[str, Any]]) -> None:
    """What attempts can be found by: a word of all, of one in ten, in a hundred, in a thousand."""
    from closeloop.store.session_rows import insert_work_texts

    texts = {
        row["id"]: f"{row['title']}\nmake test src/app/module{number % 97}.py "
        + " ".join(f"word{number * step % 5003}" for step in range(1, 40))
        for number, row in enumerate(rows, first)
    }
    insert_work_texts(connection, texts)


def _title(number: int) -> str:
    rare = next((word for step, word in TITLE_WORDS.items() if number % step == 0), "logging")
    return f"Fix the {rare} of invoice {number}"


def _rows(number: int, of: int, chance: random.Random, basis: Any) -> dict[str, dict[str, Any]]:
    mine = number % 2 == 0
    place = number // 2
    name = f"{number:012x}"
    task = place % TASKS if mine else None
    outcome = None
    rows: dict[str, dict[str, Any]] = {}
    if task is not None:
        ease = 0.5 + task / TASKS / 2
        outcome = "unscored" if chance.random() < 0.02 else _word(chance.random() < ease)
        rows["grades"] = {
            "attempt": name,
            "grading": f"g{task}",
            "version": 1,
            "outcome": outcome,
            "broken": 0,
            "out_of_scope": 0,
            "body": b"",
        }
    else:
        rows["sessions"] = {
            "attempt": name,
            "key": f"{number:032x}",
            "agent": "claude-code",
            "model": f"m{number % 3}",
            "repo": f"/home/r{number % 7}",
            "body": b"",
        }
        rows["deliveries"] = _delivery(name, chance)
    rows["attempts"] = {
        "id": name,
        "title": f"t{task}" if mine else _title(number),
        "detail": "Totals lose a cent when the tax is rounded twice.",
        "origin": "experiment" if mine else "production",
        "task": f"t{task}" if mine else None,
        "task_digest": f"d{task}" if mine else None,
        "variant": f"v{place // TASKS % VARIANTS}" if mine else None,
        "number": place // TASKS // VARIANTS + 1,
        "retry": 0,
        "exit": "finished",
        "started": _moment(BEGAN + WEEK * 26 * number // of),
        "seconds": chance.lognormvariate(5, 1),
        "input_tokens": int(chance.lognormvariate(10, 1)),
        "output_tokens": int(chance.lognormvariate(8, 1)),
        "cost": chance.lognormvariate(-1, 1),
        "turns": 9,
        "events": 30,
        "files_changed": 1 if mine else None,
        "user": f"ann{number % 11}",
    }
    rows["measurements"] = _measured(
        name, basis[(f"g{task}", outcome) if mine else (None, None)], chance
    )
    return rows


@cache
def _measurement_body() -> bytes:
    """What commands that read findings find: none."""
    from closeloop.records.finding import Measurement
    from closeloop.store.record_bodies import pack_record

    return pack_record(Measurement(rules="bench"))


def _measured(name: str, basis: str, chance: random.Random) -> dict[str, Any]:
    return {
        "attempt": name,
        "basis": basis,
        "findings": int(chance.random() < 0.3),
        "found": "spiral" if chance.random() < 0.3 else "",
        "category": chance.choice(("clean", "clean", "reasoning error", "timeout")),
        "modes": chance.choice(("", "", "", "scope creep", "scope creep, instruction drift")),
        "iterations": chance.randrange(6),
        "converged_after": chance.choice((None, 1, 2, 3)),
        "feedback_hits": float(chance.randrange(4)),
        "feedback_of": 3,
        "recovery_hits": 1.0,
        "recovery_of": 2,
        "body": _measurement_body(),
    }


def _delivery(name: str, chance: random.Random) -> dict[str, Any]:
    merged = chance.random() < 0.8
    return {
        "attempt": name,
        "at": _moment(BEGAN),
        "passed": chance.random() < 0.9,
        "merged": merged,
        "corrected": chance.random() < 0.3,
        "cycles": chance.randrange(4),
        "regressed": chance.random() < 0.05,
        "files": chance.randrange(1, 20),
        "modules": chance.randrange(1, 5),
        "dependents": chance.randrange(50),
        "risk": chance.choice(("low", "medium", "high", "critical")),
        "first_review": merged and chance.random() < 0.5,
        "comments": chance.randrange(9),
    }


def _moment(at: int) -> Any:
    from datetime import UTC, datetime, timedelta

    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=at)


def _word(passed: bool) -> str:
    return "pass" if passed else "fail"


def timed(file: str, what: str) -> dict[str, float]:
    """CPU seconds of the whole process, of that what comes after the imports, and memory."""
    from closeloop.metrics import metric_figures, metric_trends, variant_comparison
    from closeloop.metrics.attempt_measuring import project_rulebook
    from closeloop.metrics.attempt_table import load_attempt_table
    from closeloop.records.settings import Settings
    from closeloop.store import open_store

    book = project_rulebook(Settings())
    with open_store(file) as store:
        # As the command does.
        gc.disable()
        begun = time.process_time()
        if what == "metrics":
            assert (
                len(metric_figures.compute_metrics(load_attempt_table(store, book), ()).figures)
                > 30
            )
        elif what == "trends":
            assert len(metric_trends.compute_trends(load_attempt_table(store, book)).courses) > 5
        else:
            assert variant_comparison.compare_by_name(store, book, ("v0", "v1")).pairs
        used = time.process_time() - begun
    memory = peak_memory_bytes()
    return {"cpu": used, "whole": time.process_time(), "memory": memory}


def again(file: str, first: int, new: int) -> dict[str, float]:
    """CPU seconds of metrics when every trace is new, and when few are."""
    from closeloop.metrics.attempt_measuring import project_rulebook
    from closeloop.metrics.attempt_table import load_attempt_table
    from closeloop.metrics.metric_figures import compute_metrics
    from closeloop.records.attempt import Attempt
    from closeloop.records.experiment_plan import AttemptResult
    from closeloop.records.settings import Settings
    from closeloop.records.trace import Command, Lane, Trace
    from closeloop.store import open_store

    book, taken = project_rulebook(Settings()), []
    events = tuple(
        Command(number=number, lane="root", command=f"pytest tests/{number}.py", exit_code=0)
        for number in range(1, EVENTS + 1)
    )
    trace = Trace(reader="bench", reader_version=1, lanes=(Lane(id="root"),), events=events)
    with open_store(file) as store:
        for count, since in ((first, 0), (new, first)):
            for number in range(since, since + count):
                attempt = Attempt(id=f"{number:012x}", origin="production", exit="finished")
                store.save_attempt(AttemptResult(attempt=attempt, trace=trace))
            begun = time.process_time()
            assert compute_metrics(load_attempt_table(store, book), ()).attempts == since + count
            taken.append(time.process_time() - begun)
    return {"first": taken[0], "again": taken[1]}
