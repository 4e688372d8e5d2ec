"""Reports: the same bytes from the same store, nothing from outside, every figure explained."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_work import BOOK, add_attempt, add_task, add_variant, fill

from closeloop.cli import main
from closeloop.metrics.attempt_table import load_attempt_table
from closeloop.metrics.metric_definitions import METRICS
from closeloop.metrics.report_content import (
    PlotPoint,
    ReportContent,
    as_csv,
    as_html,
    as_markdown,
    as_parquet,
    build_report_content,
    draw_range_plot,
    draw_time_plot,
    round_up_axis,
)
from closeloop.metrics.variant_comparison import compare_by_name
from closeloop.store import open_store

HOSTILE = "<script>alert(1)</script>|[x](http://evil)\x1b[2J"


def held(*, hostile: bool = False) -> ReportContent:
    with open_store(":memory:") as store:
        fill(store, {"a": {f"t{n}": [1, 1] for n in range(7)}})
        fill(store, {"b": {f"t{n}": [0, 1] for n in range(7)}}, cost=0.5)
        if hostile:
            task = add_task(store, HOSTILE, repo="=cmd()", tags=(HOSTILE,))
            for name in ("a", "b"):
                add_attempt(store, task, add_variant(store, name), True, user="=1+1")
        versus = compare_by_name(store, BOOK, ["a", "b"])
        sides = [("week",), ("variant",), ("task",), ("user",)]
        return build_report_content(load_attempt_table(store, BOOK), sides, versus)


def test_two_people_get_the_same_bytes_from_the_same_store(tmp_path: Path) -> None:
    file = tmp_path / "store.db"
    with open_store(str(file)) as store:
        fill(store, {"a": {"t": [1, 0], "u": [1, 1]}, "b": {"t": [1, 1], "u": [0, 1]}})
    made = []
    for _ in range(2):
        with open_store(str(file)) as store:
            one = build_report_content(load_attempt_table(store, BOOK), [("variant",)], None)
        made.append([make(one) for make in (as_markdown, as_html, as_csv, as_parquet)])
    assert made[0] == made[1]


def test_the_page_needs_nothing_from_elsewhere_and_runs_nothing() -> None:
    page = as_html(held()).decode()
    assert "<svg" in page
    assert not re.search(r"<script|<link|<img|<iframe|https?:|src=|@import|url\(|\son\w+=", page)


def test_every_metric_is_defined_and_can_be_asked_for_again() -> None:
    one = held()
    page, text = as_html(one).decode(), as_markdown(one).decode()
    for metric, _ in METRICS.values():
        command = f'closeloop metrics --score "{metric.name}" --json'
        assert command in text
        assert command.replace('"', "&quot;") in page
        assert metric.says in text


def test_what_people_and_agents_named_is_text_and_no_markup() -> None:
    one = held(hostile=True)
    page, text, table = (make(one).decode() for make in (as_html, as_markdown, as_csv))
    assert "<script>" not in page
    assert "<script>" not in text
    assert "\x1b" not in page + text
    assert "](http" not in text
    for line in text.splitlines():
        if line.startswith("| &lt;script"):
            assert re.sub(r"\\\|", "", line).count("|") in (4, 7)
    cells = [cell for row in csv.reader(io.StringIO(table)) for cell in row]
    assert not any(cell.startswith("=") for cell in cells)


def test_the_table_has_a_row_a_figure_and_empty_cells_where_nothing_is_known() -> None:
    from pyarrow import parquet  # type: ignore[import-untyped]

    one = held()
    rows = list(csv.DictReader(io.StringIO(as_csv(one).decode())))
    first = next(row for row in rows if row["metric"] == "pass rate" and row["group"] == "b")
    assert (first["by"], first["value"], first["n"]) == ("variant", "0.5", "7")
    assert next(row for row in rows if row["metric"] == "time to PR")["value"] == ""
    table = parquet.read_table(io.BytesIO(as_parquet(one)))
    assert table.num_rows == len(rows)
    assert table.column_names == list(rows[0])


def test_an_empty_store_still_makes_a_page() -> None:
    with open_store(":memory:") as store:
        one = build_report_content(load_attempt_table(store, BOOK), [("week",)])
    for make in (as_markdown, as_html, as_csv, as_parquet):
        assert make(one)
    assert "0 attempts" in as_markdown(one).decode()


@given(
    st.lists(
        st.builds(
            PlotPoint,
            label=st.text(st.characters(exclude_characters="n"), max_size=60),
            value=st.floats(0, 1e12),
            low=st.none() | st.floats(0, 1e12),
            high=st.none() | st.floats(0, 1e12),
            faint=st.booleans(),
        ),
        max_size=15,
    )
)
def test_whatever_is_drawn_is_well_formed(points: list[PlotPoint]) -> None:
    for draw in (draw_time_plot, draw_range_plot):
        drawn = draw(points, name="x")
        clean = re.sub("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "", drawn)
        ElementTree.fromstring(clean)
        assert "nan" not in drawn


def test_axes_end_at_round_numbers() -> None:
    assert [round_up_axis(value) for value in (0, 0.07, 1, 1.2, 37, 900)] == [
        1,
        0.08,
        1,
        1.5,
        40,
        1000,
    ]


def test_the_command_writes_what_the_names_of_files_ask_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "closeloop.toml").write_text('store = "s.db"\n')
    with open_store(str(tmp_path / "s.db")) as store:
        fill(store, {"a": {"t": [1]}, "b": {"t": [0]}})
    monkeypatch.chdir(tmp_path)
    assert run("report", "r.html", "r.csv", "--compare", "a,b") == 0
    assert (tmp_path / "r.html").read_bytes().startswith(b"<!doctype html>")
    assert (tmp_path / "r.csv").read_bytes().startswith(b"metric,family")
    assert run("report", "r.pdf") == 2
    assert run("report", "nowhere/r.md") == 2
    capsys.readouterr()
    assert run("report") == 0
    page = capsys.readouterr().out
    assert page.startswith("# Metrics of agents' work")
    assert "| tasks and sessions |" in page
    assert run("metrics", "--group-by", "variant") == 0
    metrics_text = capsys.readouterr().out
    assert "pass rate" in metrics_text
    assert re.search(r"0 of 1 \(.*%\) +1 of 1|1 of 1 \(.*%\)", metrics_text)
    assert "blast radius, files; blast radius, modules" in metrics_text
    assert run("compare", "a", "b") == 0
    assert "1 task cannot decide" in capsys.readouterr().out


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    return int(left.value.code or 0)
