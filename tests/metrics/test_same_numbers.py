"""One experiment, one set of numbers: commands, pages, the HTML report and the export agree.

The export has the single scores, so from it every number is computed again, by hand.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean, median
from typing import Any

import msgspec
import pytest
from scripted_work import START, add_attempt, add_task, add_variant
from starlette.testclient import TestClient

from closeloop.cli.config import load_project
from closeloop.metrics.metric_figures import format_bounds, format_metric_value
from closeloop.metrics.variant_pairs import format_secondary
from closeloop.records.estimate import Metric, MetricValue, SecondaryMetric, VariantComparison
from closeloop.records.score import Score, ScoreSummary
from closeloop.store import Store, open_store
from closeloop.text.wording import format_percent
from closeloop.web.app import build_web_app
from closeloop.web.page import PageContext
from command_line import typed

PASSES = {"old": (1, 0, 0, 1, 0, 0), "new": (1, 1, 1, 1, 0, 1)}
"""By variant, the first repeat at each task; the second is one more pass of `new` alone."""
SCORES = ("--score", "would-merge", "--score", "nits", "--score", "minutes")
AGGREGATES = {"rate": fmean, "mean": fmean, "median": median, "sum": sum}
CONFIGURATION = """store = '{url}'
[scores.nits]
kind = "count"
better = "less"
[scores.minutes]
kind = "amount"
unit = "min"
better = "less"
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, shared_store_url: str) -> Path:
    """Six tasks, two variants, two repeats; two people score most of them, and not alike."""
    root = tmp_path_factory.mktemp("same")
    (root / "closeloop.toml").write_text(CONFIGURATION.format(url=shared_store_url))
    with open_store(shared_store_url) as store:
        for name, passes in PASSES.items():
            variant = add_variant(store, name)
            for place, passed in enumerate(passes):
                task = add_task(store, f"t{place}")
                for number in (1, 2):
                    result = bool(passed or (number == 2 and name == "new"))
                    given = {"number": number, "seconds": 10.0 * place + number, "cost": 0.25}
                    made = add_attempt(store, task, variant, result, **given)
                    score_attempt(store, made.id, place, number, result)
    return root


def score_attempt(store: Store, attempt: str, place: int, number: int, passed: bool) -> None:
    people = ("ann", "bob") if place % 2 else ("ann",) if number == 1 or place else ()
    for person in people:
        values = {
            "would-merge": float(passed and (person == "ann" or number == 1)),
            "nits": place + (number if person == "bob" else 0.0),
            "minutes": 3.5 * place + number,
        }
        store.scores.add_scores(
            [
                Score(attempt=attempt, name=name, value=value, source="person", by=person, at=START)
                for name, value in values.items()
            ]
        )


def read_json(project: Path, *words: str) -> Any:
    done = typed(project, *words, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def figures(project: Path, *words: str) -> dict[tuple[str, ...], tuple[Metric, MetricValue]]:
    """By metric and group, as `metrics --json` has them."""
    told = read_json(project, "metrics", *words)
    known = {one.name: one for one in msgspec.convert(told["definitions"], list[Metric])}
    values = msgspec.convert(told["figures"], list[MetricValue])
    return {(one.metric, *one.group.values()): (known[one.metric], one) for one in values}


def compute_by_hand(
    rows: list[Mapping[str, Any]], metric: Metric, variant: str | None
) -> float | None:
    """The mean of people, of the repeats of a task, then of tasks: as the definition says."""
    values: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        if row["name"] != metric.score or variant not in (None, row["variant"]):
            continue
        if (row["by"] != "") == (metric.family == "scores"):
            values.setdefault(row["task"], {}).setdefault(row["attempt"], []).append(row["value"])
    attempts = {task: [fmean(each) for each in by.values()] for task, by in values.items()}
    if metric.kind == "sum":
        return sum(sum(each) for each in attempts.values()) if attempts else None
    tasks = [fmean(each) for each in attempts.values()]
    return AGGREGATES[metric.kind](tasks) if tasks else None


def test_every_number_of_metrics_follows_from_the_export(project: Path) -> None:
    done = typed(project, "export", "--table", "scores")
    rows = [{"by": "", **json.loads(line)} for line in done.stdout.splitlines()]
    compared = 0
    for words in ((), ("--group-by", "variant")):
        for (_, *group), (metric, figure) in figures(project, *words).items():
            if metric.kind in AGGREGATES:
                expected = compute_by_hand(rows, metric, group[0] if group else None)
                assert figure.value == (None if expected is None else pytest.approx(expected)), (
                    metric.name,
                    group,
                )
                compared += figure.value is not None
    assert compared > 30


def read_report(project: Path) -> str:
    words = ("report", "report.html", "--compare", "old,new", *SCORES)
    done = typed(project, *words)
    assert done.returncode == 0, done.stderr
    return (project / "report.html").read_text(encoding="utf-8")


def read_rows(page: str) -> list[list[str]]:
    """The cells of every line of every table, as people read them; of details, what is shown."""
    return [
        [
            read_text((re.findall(r"<summary>(.*?)</summary>", cell) or [cell])[0])
            for cell in re.findall(r"<td[^>]*>(.*?)</td>", row, flags=re.DOTALL)
        ]
        for row in re.findall(r"<tr>(.*?)</tr>", page, flags=re.DOTALL)
    ]


def read_text(markup: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", markup)).split())


def test_the_html_report_says_what_metrics_says(project: Path) -> None:
    # What is explored comes first, under the same names.
    by_name = {row[0]: row for row in read_rows(read_report(project)) if row}
    told = {name: pair for (name,), pair in figures(project).items()}
    assert {"would-merge", "nits", "minutes", "pass rate", "time"} <= told.keys()
    for name, (metric, figure) in told.items():
        shown = (
            format_metric_value(figure, metric),
            format_bounds(figure, metric),
            f"{figure.n:,}",
            f"{figure.attempts:,}",
            "–" if figure.coverage is None else format_percent(figure.coverage),
        )
        assert tuple(by_name[name][1:]) == shown, name


def test_the_html_report_says_what_compare_says(project: Path) -> None:
    page = read_report(project)
    (pair,) = read_json(project, "compare", "old", "new", *SCORES)["pairs"]
    assert pair["primary"] == "would-merge"
    for sentence in pair["words"]:
        assert sentence in read_text(page)
    rows = read_rows(page)
    explored = msgspec.convert(pair["secondary"], list[SecondaryMetric])
    assert {"nits", "minutes", "pass rate"} <= {one.metric for one in explored}
    for one in explored:
        p = "–" if one.adjusted is None else f"{one.adjusted:.3f}"
        first, second, difference = format_secondary(one)
        assert [one.metric, first, second, difference, p, one.word] in rows, one.metric
    by_variant = figures(project, "--group-by", "variant")
    for side, name in (("first", "old"), ("second", "new")):
        figure = by_variant["would-merge", name][1]
        assert pair["comparison"][side] == pytest.approx(figure.value), "both on all scored tasks"


def read_page(project: Path, address: str) -> Any:
    """A page as its API has it, with all that it counts counted."""
    settings = load_project(project).settings
    with open_store(str(settings.store)) as store:
        desk = PageContext(store, settings, project)
        desk.metric_cache.patience = None
        app = build_web_app(store, token=None, page_context=desk)
        with TestClient(app, base_url="http://127.0.0.1:4318") as web:
            answer = web.get(f"/api{address}")
            assert answer.status_code == 200, answer.text
            return answer.json()


def test_pages_say_what_the_commands_say(project: Path) -> None:
    query = "&".join(f"score={name}" for name in SCORES[1::2])
    page = read_page(project, f"/compare?variants=old&variants=new&{query}")
    told = read_json(project, "compare", "old", "new", *SCORES)
    pairs = msgspec.convert(page["report"]["pairs"], list[VariantComparison])
    assert pairs == msgspec.convert(told["pairs"], list[VariantComparison])
    listed = msgspec.convert(read_json(project, "score", "list")["items"], list[ScoreSummary])
    on_page = msgspec.convert(read_page(project, "/scores")["scores"], list[ScoreSummary])
    assert on_page == listed
    assert len(listed) >= 10
    lines = read_page(project, f"/attempts?{query}")["lines"]
    cells = {one["row"]["id"]: [cell.get("value") for cell in one["scores"]] for one in lines}
    rows = read_json(project, "list", "attempts", *SCORES)["items"]
    assert cells == {row["id"]: [*row["scores"].values()] for row in rows}
    by_name = {name: figure for (name,), (_, figure) in figures(project).items()}
    numbers = read_page(project, "/overview")["numbers"]
    on_overview = {
        one["figure"]["metric"]: one["figure"].get("value") for one in numbers["production"]
    }
    assert on_overview == {name: by_name[name].value for name in on_overview}
    assert on_overview["task completion rate"] is not None
