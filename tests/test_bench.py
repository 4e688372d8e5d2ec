"""The bench works in its smallest form, and its tables can be kept and compared."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parent.parent / "bench"


def run_bench(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(BENCH / "run.py"), *arguments],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, **env},
    )


@pytest.fixture
def bench_module(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import a module of the bench by its name."""
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module


def make_table(*rows: dict[str, Any], cores: int = 2) -> dict[str, Any]:
    empty = {"unit": "s", "against": "", "ratio": None, "aim": "", "is_met": None, "note": ""}
    filled = [{**empty, "value": 1.0, "spread": 0.05, "part": "p", **row} for row in rows]
    return {"commit": "c0ffee0", "date": "2026-01-05", "machine": {"cores": cores}, "rows": filled}


@pytest.mark.slow
def test_every_part_of_the_bench_runs_in_its_smallest_form() -> None:
    ran = run_bench("--smoke", "--json")
    rows = json.loads(ran.stdout)["rows"]
    assert [row["note"] for row in rows if row["note"].startswith("CRASHED")] == []
    assert ran.returncode == 0
    names = [(row["part"], row["name"]) for row in rows]
    assert len(names) == len(set(names)), "two lines of a part have the same name"
    measured = {row["part"] for row in rows if row["value"] is not None}
    everywhere = {"startup", "attempts", "sandbox", "changes", "imports", "measure", "metrics"}
    assert everywhere | {"dashboard", "gateway", "webhooks"} <= measured


def test_a_part_that_crashes_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    ran = run_bench("--smoke", "startup", "changes", PATH=str(tmp_path))
    assert ran.returncode == 1
    assert "import closeloop" in ran.stdout
    crashed = [line for line in ran.stdout.splitlines() if "CRASHED" in line]
    assert [line.split()[0] for line in crashed] == ["changes"]
    assert "git" in crashed[0]
    assert "Traceback" not in ran.stderr


def test_an_unknown_part_is_refused_with_the_names_of_those_there_are() -> None:
    ran = run_bench("--smoke", "nonsense")
    assert ran.returncode == 2
    assert "nonsense" in ran.stderr
    assert "startup" in ran.stderr


def test_only_lines_that_moved_by_more_than_both_spreads_are_printed(tmp_path: Path) -> None:
    old = make_table({"name": "steady", "ratio": 2.0}, {"name": "slower", "ratio": 2.0})
    new = make_table({"name": "steady", "ratio": 2.15}, {"name": "slower", "ratio": 3.0})
    for name, table in (("old", old), ("new", new)):
        (tmp_path / name).write_text(json.dumps(table))
    lines = run_bench("--compare", str(tmp_path / "old"), str(tmp_path / "new")).stdout.splitlines()
    assert len(lines) == 2
    assert "slower" in lines[0]
    assert "1.50 of before, WORSE" in lines[0]
    assert lines[1] == "1 of 2 lines moved by more than their spread."


def test_a_line_that_got_much_worse_fails_unless_it_is_named_with_its_reason(
    bench_module: Any,
) -> None:
    find_slower = bench_module("table").find_slower_lines
    names = ("steady", "slower", "unsteady", "better")
    old = make_table(*({"name": name, "ratio": 2.0} for name in names))
    new = make_table(
        {"name": "steady", "ratio": 2.2},
        {"name": "slower", "ratio": 2.6},
        {"name": "unsteady", "ratio": 2.6, "spread": 0.3},
        {"name": "better", "ratio": 1.0},
        {"name": "new", "ratio": 9.0},
    )
    (line,) = find_slower(old, new, {})
    assert line.split() == ["p", "slower", "2", "→", "2.6", "×"]
    assert find_slower(old, new, {"p": {"slower": "It checks twice."}}) == []


def test_values_are_compared_only_on_the_same_machine(bench_module: Any) -> None:
    compare = bench_module("table").compare_tables
    old, new = make_table({"name": "x"}), make_table({"name": "x", "value": 2.0})
    assert any("2.00 of before" in line for line in compare(old, new))
    elsewhere = list(compare(old, make_table({"name": "x", "value": 2.0}, cores=64)))
    assert "different machines" in elsewhere[0]
    assert elsewhere[-1].startswith("0 of 0")


def test_a_line_that_is_measured_no_more_is_printed(bench_module: Any) -> None:
    new = make_table({"name": "x", "value": None, "note": "not measured: no git"})
    lines = list(bench_module("table").compare_tables(make_table({"name": "x"}), new))
    assert "measured → not measured: no git" in lines[0]


def test_a_kept_table_keeps_the_parts_that_were_not_run_again(
    tmp_path: Path, bench_module: Any
) -> None:
    keep = bench_module("table").keep_table
    keep(make_table({"name": "a", "part": "one"}, {"name": "b", "part": "two"}), tmp_path)
    file = keep(make_table({"name": "c", "part": "two"}), tmp_path)
    assert file.name == "2026-01-05-c0ffee0.json"
    assert [row["name"] for row in json.loads(file.read_bytes())["rows"]] == ["a", "c"]


def test_a_ratio_is_the_median_of_repeats_each_beside_its_own_floor(bench_module: Any) -> None:
    row = bench_module("table").build_row(
        "x", [2.0, 8.0, 3.0], "ms", floor=[1.0, 4.0, 1.0], against="floor", aim=2
    )
    assert (row.value, row.ratio, row.spread) == (3000.0, 2.0, 0.25)
    assert (row.aim, row.is_met) == ("≤ 2 ×", True)


def test_generated_modules_are_the_same_on_every_machine(bench_module: Any) -> None:
    write = bench_module("source_tree").SourceWriter(seed=5).write_module
    text = "".join(write("product.core", is_test=bool(number % 2)) for number in range(20))
    compile(text, "generated.py", "exec")
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "c7446d1428e28927"
