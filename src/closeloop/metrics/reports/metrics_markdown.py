"""A report as Markdown: tables, with definitions and queries below them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from closeloop.metrics.figure_wording import format_bounds, format_metric_value, metrics_command
from closeloop.metrics.reports.report_content import ReportContent, pair_with_metrics
from closeloop.records.comparison_report import CompareReport, VariantComparison
from closeloop.records.metric_values import Metric, MetricsReport, MetricValue
from closeloop.records.plural import count_with_noun
from closeloop.records.visible_text import make_visible


def as_markdown(held: ReportContent) -> bytes:
    return ("\n".join(_render_page(held)) + "\n").encode("utf-8", "replace")


def _render_page(held: ReportContent) -> Iterator[str]:
    yield "# How the agents work, in numbers"
    yield ""
    yield describe_scope(held)
    for note in held.whole.notes:
        yield f"\n> {escape_cell(note)}"
    if held.comparison:
        yield from _render_comparison(held.comparison)
    yield from _render_families(held.whole)
    for side in held.sides:
        yield from _render_grouping(side)
    yield from _render_definitions(held.whole)


def describe_scope(held: ReportContent) -> str:
    """One sentence of what this is about."""
    time = f", from {held.first:%Y-%m-%d} to {held.last:%Y-%m-%d}" if held.first else ""
    return (
        f"{count_with_noun(held.attempts, 'attempt')}, at"
        f" {count_with_noun(held.tasks, 'task')}{time}."
    )


def _render_families(found: MetricsReport) -> Iterator[str]:
    for family, pairs in groupby(pair_with_metrics(found), key=lambda pair: pair[1].family):
        yield f"\n## {family.capitalize()}\n"
        yield from _render_table(
            ("metric", "value", "95 % interval", "tasks", "attempts", "coverage"),
            [(metric.name, *_figure_cells(figure, metric)) for figure, metric in pairs],
        )


def _render_grouping(found: MetricsReport) -> Iterator[str]:
    yield f"\n## By {', '.join(found.by)}"
    for name, pairs in groupby(pair_with_metrics(found), key=lambda pair: pair[1].name):
        known = [pair for pair in pairs if pair[0].value is not None]
        if known:
            yield f"\n### {name}\n"
            yield from _render_table(
                (*found.by, "value", "95 % interval", "tasks", "attempts", "coverage"),
                [
                    (*figure.group.values(), *_figure_cells(figure, metric))
                    for figure, metric in known
                ],
            )
            yield f"\n`{metrics_command(name, found.by)}`"


def _render_definitions(found: MetricsReport) -> Iterator[str]:
    yield "\n## Definitions and queries\n"
    yield from _render_table(
        ("metric", "definition", "query"),
        [(one.name, one.says, f"`{metrics_command(one.name)}`") for one in found.definitions],
    )


def _render_comparison(report: CompareReport) -> Iterator[str]:
    yield f"\n## {escape_cell(' against '.join(side.name for side in reversed(report.sides)))}\n"
    if report.refusal:
        yield escape_cell(report.refusal)
    for pair in report.pairs:
        yield from (f"- {escape_cell(line)}" for line in pair.words)
        yield ""
        yield from _render_table(("task", pair.first, pair.second), _task_rows(pair))
    yield from (f"\n> {escape_cell(line)}" for line in (*report.left_out, *report.notes))
    names = " ".join(side.name for side in report.sides)
    yield f"\n`closeloop compare {escape_cell(names)}`"


def _task_rows(pair: VariantComparison) -> list[tuple[str, str, str]]:
    return [(one.task, draw_repeats(one.first), draw_repeats(one.second)) for one in pair.tasks]


def draw_repeats(repeats: Sequence[int]) -> str:
    """A dot a repeat; a count where they would be too many."""
    if len(repeats) > 10:
        return f"{sum(repeats)} of {len(repeats)}"
    return "".join("●" if value else "○" for value in repeats)


def _figure_cells(figure: MetricValue, metric: Metric) -> tuple[str, ...]:
    return (
        format_metric_value(figure.value, metric),
        format_bounds(figure, metric),
        f"{figure.n:,}",
        f"{figure.attempts:,}",
        "–" if figure.coverage is None else f"{figure.coverage:.0%}",
    )


def _render_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(map(escape_cell, head))} |"
    yield f"|{' --- |' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(map(escape_cell, row))} |"


def escape_cell(text: str) -> str:
    """Text that is not ours ends no cell, opens no tag and makes no link."""
    plain = make_visible(text).replace("\n", " ").replace("|", "\\|")
    return plain.replace("<", "&lt;").replace("[", "\\[").replace("](", "] (")
