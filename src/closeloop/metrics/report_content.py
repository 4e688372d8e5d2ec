"""The content of a metrics report, and its output as Markdown, HTML, CSV and Parquet."""

from __future__ import annotations

import csv
import io
import shlex
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from html import escape
from itertools import groupby
from math import floor, log10
from typing import Any

import msgspec

from closeloop.metrics.attempt_groups import UNKNOWN_LABEL
from closeloop.metrics.attempt_table import AttemptTable
from closeloop.metrics.metric_definitions import PRIMARY_METRIC
from closeloop.metrics.metric_figures import (
    add_plan_figures,
    compute_metrics,
    format_bounds,
    format_metric_value,
    metrics_command,
)
from closeloop.metrics.variant_pairs import format_ratio_bounds, format_secondary, is_ratio_bounded
from closeloop.records.errors import BadInput
from closeloop.records.estimate import (
    SHARE_KINDS,
    CompareReport,
    Metric,
    MetricsReport,
    MetricValue,
    TaskPair,
    VariantComparison,
)
from closeloop.records.orchestration import PlanTotals
from closeloop.records.record import Record
from closeloop.text.untrusted import make_visible
from closeloop.text.wording import count_with_noun, format_percent, without_formula

# The content of a report, before it is a page or a table.

HEADLINE_METRICS = (
    "pass rate", "task completion rate", "regression introduction rate", "review loop count",
    "first-review merge rate", "feedback", "convergence", "without findings", "cost", "time",
)  # fmt: skip
"""Metrics that are plotted; the tables have all."""


class ReportContent(Record):
    """The content of one report."""

    attempts: int
    tasks: int
    first: datetime | None
    last: datetime | None
    """When the first and the last attempt started."""
    whole: MetricsReport
    sides: tuple[MetricsReport, ...]
    """The metrics by each requested grouping."""
    comparison: CompareReport | None = None


class ReportFigure(Record):
    """One figure with all its details, as a row of a table."""

    metric: str
    family: str
    by: str
    group: str
    value: float | None
    low: float | None
    high: float | None
    n: int
    attempts: int
    coverage: float | None
    unit: str
    method: str | None
    more: str
    definition: str
    query: str


def build_report_content(
    work: AttemptTable,
    sides: Sequence[Sequence[str]],
    comparison: CompareReport | None = None,
    plans: PlanTotals | None = None,
) -> ReportContent:
    """Compute all figures of all attempts, by each grouping, and of plans."""
    started = work.columns["started"]
    known_starts = started[started == started]  # noqa: PLR0124
    times = (
        [
            datetime.fromtimestamp(microseconds / 1e6, UTC)
            for microseconds in (known_starts.min(), known_starts.max())
        ]
        if len(known_starts)
        else [None, None]
    )
    return ReportContent(
        attempts=len(work),
        tasks=len({*work.columns["task_digest"].tolist()} - {None}),
        first=times[0],
        last=times[1],
        whole=add_plan_figures(compute_metrics(work, ()), plans or PlanTotals()),
        sides=tuple(compute_metrics(work, grouping) for grouping in sides),
        comparison=comparison,
    )


def list_figure_rows(content: ReportContent) -> list[ReportFigure]:
    """List every known figure, and for all attempts together also the unknown ones."""
    rows = [build_figure_row(figure, metric) for figure, metric in pair_with_metrics(content.whole)]
    for side in content.sides:
        pairs = pair_with_metrics(side)
        rows += [
            build_figure_row(figure, metric) for figure, metric in pairs if figure.value is not None
        ]
    return rows


def pair_with_metrics(report: MetricsReport) -> list[tuple[MetricValue, Metric]]:
    by_name = {metric.name: metric for metric in report.definitions}
    return [(figure, by_name[figure.metric]) for figure in report.figures]


def build_figure_row(figure: MetricValue, metric: Metric) -> ReportFigure:
    return ReportFigure(
        metric=metric.name,
        family=metric.family,
        by=", ".join(figure.group),
        group=", ".join(figure.group.values()),
        value=figure.value,
        low=figure.low,
        high=figure.high,
        n=figure.n,
        attempts=figure.attempts,
        coverage=figure.coverage,
        unit=metric.unit,
        method=figure.method,
        more=", ".join(f"{name} {value:g}" for name, value in figure.more.items()),
        definition=metric.says,
        query=metrics_command(metric.name, tuple(figure.group)),
    )


def headline_figures(side: MetricsReport) -> list[tuple[Metric, list[MetricValue]]]:
    """Return the headline metrics with more than one known group."""
    headlines = []
    for metric in side.definitions:
        figures = [
            figure
            for figure in side.figures
            if figure.metric == metric.name
            and figure.value is not None
            and set(figure.group.values()) != {UNKNOWN_LABEL}
        ]
        if metric.name in HEADLINE_METRICS and len(figures) > 1:
            headlines.append((metric, figures))
    return headlines


# A report as Markdown: tables, with definitions and queries below them.


def as_markdown(content: ReportContent) -> bytes:
    return ("\n".join(_render_page(content)) + "\n").encode("utf-8", "replace")


def _render_page(content: ReportContent) -> Iterator[str]:
    yield "# Metrics of agents' work"
    yield ""
    yield describe_scope(content)
    for note in content.whole.notes:
        yield f"\n> {escape_cell(note)}"
    if content.comparison:
        yield from _render_comparison(content.comparison)
    yield from _render_families(content.whole)
    for side in content.sides:
        yield from _render_grouping(side)
    yield from _render_definitions(content.whole)


def describe_scope(content: ReportContent) -> str:
    """Describe in one sentence what the report covers."""
    time = f", from {content.first:%Y-%m-%d} to {content.last:%Y-%m-%d}" if content.first else ""
    tasks = f", at {count_with_noun(content.tasks, 'task')}" if content.tasks else ""
    return f"{count_with_noun(content.attempts, 'attempt')}{tasks}{time}."


TASKS_HEAD = "tasks and sessions"
"""A recorded session counts like a task."""


def _render_families(report: MetricsReport) -> Iterator[str]:
    for family, pairs in groupby(pair_with_metrics(report), key=lambda pair: pair[1].family):
        yield f"\n## {family.capitalize()}\n"
        yield from _render_table(
            ("metric", "value", "95 % interval", TASKS_HEAD, "attempts", "coverage"),
            [(metric.name, *_figure_cells(figure, metric)) for figure, metric in pairs],
        )


def _render_grouping(report: MetricsReport) -> Iterator[str]:
    yield f"\n## By {', '.join(report.by)}"
    for name, pairs in groupby(pair_with_metrics(report), key=lambda pair: pair[1].name):
        known_pairs = [pair for pair in pairs if pair[0].value is not None]
        if known_pairs:
            yield f"\n### {name}\n"
            yield from _render_table(
                (*report.by, "value", "95 % interval", TASKS_HEAD, "attempts", "coverage"),
                [
                    (*figure.group.values(), *_figure_cells(figure, metric))
                    for figure, metric in known_pairs
                ],
            )
            yield f"\n`{metrics_command(name, report.by)}`"


def _render_definitions(report: MetricsReport) -> Iterator[str]:
    yield "\n## Definitions and queries\n"
    yield from _render_table(
        ("metric", "definition", "query"),
        [
            (definition.name, definition.says, f"`{metrics_command(definition.name)}`")
            for definition in report.definitions
        ],
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
    yield f"\n`{escape_cell(compare_command(report))}`"


def compare_command(report: CompareReport) -> str:
    """Return the command that computes the verdict again, by the score that decided it."""
    names = [side.name for side in report.sides]
    primary = report.pairs[0].primary if report.pairs else PRIMARY_METRIC
    score_flags = ["--score", primary] if primary != PRIMARY_METRIC else []
    return shlex.join(["closeloop", "compare", *names, *score_flags])


def _task_rows(pair: VariantComparison) -> list[tuple[str, str, str]]:
    return [(task.task, draw_repeats(task.first), draw_repeats(task.second)) for task in pair.tasks]


def draw_repeats(repeats: Sequence[float]) -> str:
    """Draw a dot per repeat, a count if there are more than 10, or the values if not 0 and 1."""
    if not {*repeats} <= {0, 1}:
        return " ".join(f"{value:.3g}" for value in repeats)
    if len(repeats) > 10:
        return f"{sum(repeats)} of {len(repeats)}"
    return "".join("●" if value else "○" for value in repeats)


def _figure_cells(figure: MetricValue, metric: Metric) -> tuple[str, ...]:
    return (
        format_metric_value(figure, metric),
        format_bounds(figure, metric),
        f"{figure.n:,}",
        f"{figure.attempts:,}",
        "–" if figure.coverage is None else format_percent(figure.coverage),
    )


def _render_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(map(escape_cell, head))} |"
    yield f"|{' --- |' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(map(escape_cell, row))} |"


def escape_cell(text: str) -> str:
    """Escape text so that it ends no cell, opens no tag and makes no link."""
    plain = make_visible(text).replace("\n", " ").replace("|", "\\|")
    return plain.replace("<", "&lt;").replace("[", "\\[").replace("](", "] (")


# Figures as a table for programs: CSV and Parquet, one row per figure.

FIGURE_COLUMNS = ReportFigure.__struct_fields__


def as_csv(content: ReportContent) -> bytes:
    """Return the figures as CSV in UTF-8, with one header."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(FIGURE_COLUMNS)
    for line in list_figure_rows(content):
        writer.writerow([_csv_cell(value) for value in msgspec.structs.astuple(line)])
    return text.getvalue().encode("utf-8", "replace")


def _csv_cell(value: Any) -> Any:
    if isinstance(value, str):
        return without_formula(value)
    return "" if value is None else value


def as_parquet(content: ReportContent) -> bytes:
    """Return one Parquet table with the columns of the CSV."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise BadInput("Parquet needs pyarrow: pip install 'closeloop[parquet]'.") from None
    numbers = {"value", "low", "high", "coverage"}
    kinds = dict.fromkeys(numbers, pyarrow.float64()) | dict.fromkeys(
        ("n", "attempts"), pyarrow.int64()
    )
    schema = pyarrow.schema([(name, kinds.get(name, pyarrow.string())) for name in FIGURE_COLUMNS])
    rows = [msgspec.structs.asdict(line) for line in list_figure_rows(content)]
    file = io.BytesIO()
    table = pyarrow.Table.from_pylist(rows, schema=schema)
    parquet.write_table(table, file, compression="zstd")
    return file.getvalue()


# A report as one self-contained HTML page: no script, no link, its plots as SVG.
#
# Plots as SVG, without a library: a series over time, and values side by side.

WIDTH, LEFT, RIGHT, TOP = 720, 56, 16, 14
HEIGHT, FOOT = 210, 30
ROW, NAMES, NUMBERS = 26, 190, 150
MAX_LABEL_CHARS = 26
MAX_TIME_LABELS = 6


class PlotPoint(Record):
    """One value to draw."""

    label: str
    value: float
    low: float | None = None
    high: float | None = None
    description: str = ""
    """Text for tooltips and screen readers."""
    faint: bool = False
    """Whether it rests on too few tasks."""


def draw_time_plot(points: Sequence[PlotPoint], *, most: float | None = None, name: str) -> str:
    """Draw values over time, with their bounds as a band."""
    top = most or round_up_axis(max((point.high or point.value for point in points), default=1.0))
    inner = WIDTH - LEFT - RIGHT
    step = inner / max(1, len(points) - 1)
    positions = [(LEFT + step * number, point) for number, point in enumerate(points)]
    parts = [*_draw_grid(top), *_draw_band(positions, top)]
    line = " ".join(f"{x:.1f},{_y_position(point.value, top):.1f}" for x, point in positions)
    parts.append(f'<polyline class="line" points="{line}"/>')
    for x, point in positions:
        kind = "dot faint" if point.faint else "dot"
        y = _y_position(point.value, top)
        parts.append(
            f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="4">'
            f"<title>{escape_markup(f'{point.label}: {point.description}')}</title></circle>"
        )
    label_step = -(-len(points) // MAX_TIME_LABELS)
    for index, (x, point) in enumerate(positions):
        if index % label_step == 0:
            anchor = "start" if index == 0 else "end" if index == len(points) - 1 else "middle"
            parts.append(_draw_label(x, HEIGHT - 8, _shorten_label(point.label), anchor))
    return _wrap_svg(HEIGHT, parts, name)


def draw_range_plot(points: Sequence[PlotPoint], *, most: float | None = None, name: str) -> str:
    """Draw values one below the other, with their bounds as whiskers."""
    top = most or round_up_axis(max((point.high or point.value for point in points), default=1.0))
    inner = WIDTH - NAMES - NUMBERS - RIGHT
    height = TOP + ROW * len(points) + FOOT

    def across(value: float) -> float:
        return NAMES + inner * min(1.0, max(0.0, value / top))

    parts = []
    for share in (0, 0.5, 1):
        x, end = across(share * top), height - FOOT
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{end}"/>')
        parts.append(_draw_label(x, height - 10, f"{share * top:g}", "middle"))
    for index, point in enumerate(points):
        y = TOP + ROW * (index + 0.5)
        kind = " faint" if point.faint else ""
        parts.append(_draw_label(NAMES - 10, y + 4, _shorten_label(point.label), "end"))
        if point.low is not None and point.high is not None:
            first, last = across(point.low), across(point.high)
            parts.append(
                f'<line class="whisker{kind}" x1="{first:.1f}" x2="{last:.1f}" y1="{y:.1f}" '
                f'y2="{y:.1f}"/>'
            )
        parts.append(
            f'<circle class="dot{kind}" cx="{across(point.value):.1f}" cy="{y:.1f}" r="4.5">'
            f"<title>{escape_markup(f'{point.label}: {point.description}')}</title></circle>"
        )
        parts.append(_draw_label(WIDTH - RIGHT, y + 4, point.description, "end"))
    return _wrap_svg(height, parts, name)


def round_up_axis(value: float) -> float:
    """Return a round number that is not smaller."""
    if value <= 0:
        return 1.0
    size: float = 10.0 ** floor(log10(value))
    steps = (size * step for step in (1, 1.5, 2, 3, 4, 5, 8, 10))
    return next((step for step in steps if step >= value), value)


def _y_position(value: float, top: float) -> float:
    inner = HEIGHT - TOP - FOOT
    return TOP + inner * (1 - min(1.0, max(0.0, value / top)))


def _draw_grid(top: float) -> Iterator[str]:
    for share in (0, 0.25, 0.5, 0.75, 1):
        y = _y_position(share * top, top)
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        if share in (0, 0.5, 1):
            yield _draw_label(LEFT - 8, y + 4, f"{share * top:g}", "end")


def _draw_band(positions: Sequence[tuple[float, PlotPoint]], top: float) -> Iterator[str]:
    bounded = [
        (x, point.low, point.high)
        for x, point in positions
        if point.low is not None and point.high is not None
    ]
    if len(bounded) > 1:
        upper_edge = [f"{x:.1f},{_y_position(high, top):.1f}" for x, _, high in bounded]
        lower_edge = [f"{x:.1f},{_y_position(low, top):.1f}" for x, low, _ in reversed(bounded)]
        yield f'<polygon class="band" points="{" ".join(upper_edge + lower_edge)}"/>'


def _draw_label(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape_markup(text)}</text>'


def _wrap_svg(height: float, parts: Sequence[str], name: str) -> str:
    body = "\n".join(parts)
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{escape_markup(name)}">\n'
        f"{body}\n</svg>"
    )


def _shorten_label(label: str) -> str:
    return label if len(label) <= MAX_LABEL_CHARS else f"…{label[-MAX_LABEL_CHARS + 1 :]}"


def escape_markup(text: str) -> str:
    """Escape markup in a name or a note."""
    return escape(make_visible(text))


MIN_SOLID_TASKS = 5
"""Values from fewer tasks are drawn faint."""
MAX_PLOT_ROWS = 30
MAX_SHOWN_TASKS = 15
PAGE_STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --soft: #647082; --rule: #e3e7ec;
  --paper: #ffffff; --mark: #2463b4; --good: #1a7f4b; --bad: #b3261e; --card: #f6f8fa; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ee; --soft: #98a3b3; --rule: #2d3541;
  --paper: #12161c; --mark: #7db2ff; --good: #58c78b; --bad: #ff8a80; --card: #1a2029; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 60rem; margin: 2rem auto; padding: 0 1.25rem; }
h1 { font-size: 1.6rem; margin: 0; } h2 { font-size: 1.2rem; margin: 2.5rem 0 .5rem; }
h3 { font-size: 1rem; margin: 1.5rem 0 .25rem; }
p, li { max-width: 46rem; } .soft, details, caption { color: var(--soft); }
.note { border-left: 3px solid var(--mark); padding: .1rem .8rem; color: var(--soft); }
.better { color: var(--good); font-weight: 600; } .worse { color: var(--bad); font-weight: 600; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
table.narrow { width: auto; } table.narrow td { padding-right: 2.5rem; }
th, td { text-align: right; padding: .3rem .6rem; border-bottom: 1px solid var(--rule);
  white-space: nowrap; }
th { color: var(--soft); font-weight: 500; font-size: .85rem; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
td.left, th.left { text-align: left; } td.unknown { color: var(--soft); }
td details { text-align: left; white-space: normal; max-width: 40rem; }
summary { cursor: pointer; } td summary { color: var(--ink); }
code { font: .82rem ui-monospace, monospace; overflow-wrap: anywhere; }
figure { background: var(--card); border-radius: 8px; padding: .8rem 1rem; margin: 1rem 0; }
figcaption { font-weight: 600; margin-bottom: .25rem; }
figure details { font-size: .85rem; margin-top: .25rem; }
svg { width: 100%; height: auto; } svg text { font: 11px system-ui, sans-serif; fill: var(--soft); }
.grid { stroke: var(--rule); } .band { fill: var(--mark); opacity: .14; }
.line { fill: none; stroke: var(--mark); stroke-width: 2; }
.dot { fill: var(--mark); } .whisker { stroke: var(--mark); stroke-width: 2; opacity: .55; }
.faint { opacity: .3; } .dots { letter-spacing: .1em; }
"""


def as_html(content: ReportContent) -> bytes:
    return ("\n".join(_render_html_page(content)) + "\n").encode("utf-8", "replace")


def _render_html_page(content: ReportContent) -> Iterator[str]:
    yield '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>Metrics of agents' work</title><style>{PAGE_STYLE}</style></head><body>"
    yield (
        "<h1>Metrics of agents' work</h1><p "
        f'class="soft">{escape_markup(describe_scope(content))}</p>'
    )
    yield from (f'<p class="note">{escape_markup(note)}</p>' for note in content.whole.notes)
    if content.comparison:
        yield from _render_html_comparison(content.comparison)
    for side in content.sides:
        yield from _render_plots(side)
    for family, pairs in groupby(pair_with_metrics(content.whole), key=lambda pair: pair[1].family):
        yield f"<h2>{escape_markup(family.capitalize())}</h2>"
        yield from _render_figure_table(list(pairs))
    yield "</body></html>"


def _render_figure_table(pairs: Sequence[tuple[MetricValue, Metric]]) -> Iterator[str]:
    """Render a table of figures; each expands to its definition and query."""
    head = ("metric", "value", "95 % interval", TASKS_HEAD, "attempts", "coverage")
    yield f'<div class="scroll"><table><tr>{"".join(f"<th>{name}</th>" for name in head)}</tr>'
    for figure, metric in pairs:
        kind = ' class="unknown"' if figure.value is None else ""
        covered = "–" if figure.coverage is None else format_percent(figure.coverage)
        yield (
            f"<tr><td>{_render_definition(metric, (), escape_markup(metric.name))}</td>"
            f"<td{kind}>{escape_markup(format_metric_value(figure, metric))}</td>"
            f"<td>{escape_markup(format_bounds(figure, metric))}</td><td>{figure.n:,}</td>"
            f"<td>{figure.attempts:,}</td><td>{covered}</td></tr>"
        )
    yield "</table></div>"


def _render_definition(metric: Metric, group_by: Sequence[str], title: str) -> str:
    return (
        f"<details><summary>{title}</summary>{escape_markup(metric.says)}<br>"
        f"<code>{escape_markup(metrics_command(metric.name, group_by))}</code></details>"
    )


def _render_plots(side: MetricsReport) -> Iterator[str]:
    plotted_metrics = headline_figures(side)
    if not plotted_metrics:
        return
    yield f"<h2>By {escape_markup(', '.join(side.by))}</h2>"
    if side.by == ("week",):
        yield (
            '<p class="soft">Observational: other things may have changed between '
            f"weeks. Weeks with fewer than {MIN_SOLID_TASKS} tasks are drawn "
            "faint.</p>"
        )
    for metric, figures in plotted_metrics:
        points = [_plot_point(figure, metric) for figure in figures]
        axis_top = 1.0 if metric.kind in SHARE_KINDS else None
        draw = draw_time_plot if side.by == ("week",) else draw_range_plot
        shown_points = points if draw is draw_time_plot else points[:MAX_PLOT_ROWS]
        hidden_count = len(points) - len(shown_points)
        yield f"<figure><figcaption>{escape_markup(metric.name)}</figcaption>"
        yield draw(shown_points, most=axis_top, name=f"{metric.name} by {', '.join(side.by)}")
        if hidden_count:
            yield f'<p class="soft">… and {hidden_count} more; the CSV contains all.</p>'
        yield f"{_render_definition(metric, side.by, 'definition and query')}</figure>"


def _plot_point(figure: MetricValue, metric: Metric) -> PlotPoint:
    bounds = format_bounds(figure, metric).split(", ")[0]
    return PlotPoint(
        label=", ".join(figure.group.values()),
        value=figure.value or 0.0,
        low=figure.low,
        high=figure.high,
        description=(
            f"{format_metric_value(figure, metric)}{f' ({bounds})' if bounds else ''}, n"
            f" {figure.n:,}"
        ),
        faint=figure.n < MIN_SOLID_TASKS,
    )


def _render_html_comparison(report: CompareReport) -> Iterator[str]:
    names = [side.name for side in report.sides]
    yield f"<h2>{escape_markup(' against '.join(reversed(names)))}</h2>"
    if report.refusal:
        yield f'<p class="note">{escape_markup(report.refusal)}</p>'
    for pair in report.pairs:
        yield from _render_pair(pair)
    for line in (*report.left_out, *report.notes):
        yield f'<p class="note">{escape_markup(line)}</p>'
    yield f"<p><code>{escape_markup(compare_command(report))}</code></p>"


def _render_pair(pair: VariantComparison) -> Iterator[str]:
    comparison, counts = pair.comparison, pair.table
    for line, verdict in zip(
        pair.words, (comparison.here_word, comparison.alike_word), strict=False
    ):
        kind = verdict if verdict in ("better", "worse") else "open"
        yield f'<p class="{kind}">{escape_markup(line)}</p>'
    yield from (f"<p>{escape_markup(line)}</p>" for line in pair.words[2:])
    if counts is not None:
        yield (
            f'<p class="soft">Both pass {counts.both}, only '
            f"{escape_markup(pair.first)} {counts.only_first}, only "
            f"{escape_markup(pair.second)} {counts.only_second}, both fail "
            f"{counts.neither}; a task passes when more than half of its repeats "
            "pass.</p>"
        )
    yield from _render_task_table(pair, pair.tasks[:MAX_SHOWN_TASKS])
    if other_tasks := pair.tasks[MAX_SHOWN_TASKS:]:
        summary = count_with_noun(len(other_tasks), "task that differs", "tasks that differ")
        yield f"<details><summary>{summary} less</summary>"
        yield from _render_task_table(pair, other_tasks)
        yield "</details>"
    yield from _render_ratio_plot(pair)
    yield from _render_other_rates(pair)


def _render_task_table(pair: VariantComparison, tasks: Sequence[TaskPair]) -> Iterator[str]:
    head = "".join(
        f'<th class="left">{escape_markup(name)}</th>' for name in (pair.first, pair.second)
    )
    yield f'<div class="scroll"><table class="narrow"><tr><th>task</th>{head}</tr>'
    for task in tasks:
        cells = (
            f'<td class="left dots">{draw_repeats(repeats)}</td>'
            for repeats in (task.first, task.second)
        )
        yield f"<tr><td>{escape_markup(task.task)}</td>{''.join(cells)}</tr>"
    yield "</table></div>"


def _render_ratio_plot(pair: VariantComparison) -> Iterator[str]:
    """Plot the ratios of the second to the first."""
    estimates = {name: ratio.here or ratio.alike for name, ratio in pair.ratios.items()}
    points = [
        PlotPoint(
            label=name,
            value=estimate.value,
            low=estimate.low if is_ratio_bounded(estimate) else None,
            high=estimate.high if is_ratio_bounded(estimate) else None,
            description=(
                f"{estimate.value:.2f} × ({format_ratio_bounds(estimate)}), n {estimate.n:,}"
            ),
        )
        for name, estimate in estimates.items()
        if estimate is not None
    ]
    if points:
        title = f"{pair.second} relative to {pair.first}"
        yield f"<figure><figcaption>{escape_markup(title)}</figcaption>"
        yield f"{draw_range_plot(points, name=title)}</figure>"


def _render_other_rates(pair: VariantComparison) -> Iterator[str]:
    yield "<details><summary>All other rates, exploratory</summary>"
    head = ("metric", pair.first, pair.second, "difference", "p adjusted", "")
    cells = "".join(f"<th>{escape_markup(title)}</th>" for title in head)
    yield f'<div class="scroll"><table><tr>{cells}</tr>'
    for rate in pair.secondary:
        first, second, difference = format_secondary(rate)
        p = "–" if rate.adjusted is None else f"{rate.adjusted:.3f}"
        yield (
            f"<tr><td>{escape_markup(rate.metric)}</td><td>{first}</td><td>{second}</td>"
            f"<td>{difference}</td><td>{p}</td>"
            f"<td>{escape_markup(rate.word)}</td></tr>"
        )
    yield "</table></div></details>"
