"""Metrics of all work: `closeloop metrics`, `report`, `score` and `score list`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import groupby
from math import floor, log10
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from cyclopts import Parameter
from msgspec.structs import replace

from closeloop.cli.config import load_project
from closeloop.cli.console import JsonFlag, make_visible, print_warning, record_to_map
from closeloop.metrics.metric_trends import select_new_regressions
from closeloop.records.errors import BadInput, MachineFailed
from closeloop.text.wording import count_with_noun, format_percent

if TYPE_CHECKING:
    from rich.console import RenderableType

    from closeloop.metrics.attempt_table import AttemptTable
    from closeloop.metrics.report_content import ReportContent
    from closeloop.process.rulebook import Rulebook
    from closeloop.records.estimate import (
        Metric,
        MetricRegression,
        MetricSeries,
        MetricsReport,
        MetricValue,
        PeriodShift,
        TrendReport,
    )
    from closeloop.records.score import ScoreSummary
    from closeloop.store import Store


MAX_GROUPS = 60
PAGES_BETWEEN_LINES = 50
"""Pages between two progress lines when the dashboard is written as files."""


def metrics(  # noqa: PLR0913 - one parameter for each flag
    *,
    group_by: str = "",
    score: list[str] | None = None,
    cost: bool = False,
    definitions: bool = False,
    over_time: bool = False,
    weeks: int = 4,
    baseline_end: datetime | None = None,
    alert: str | None = None,
    json: JsonFlag = False,
) -> None:
    """Print every metric with its number of tasks, its interval and its coverage.

    Parameters
    ----------
    group_by
        Group by one or more of repo, user, agent, model, prompt, variant, tag, task, week, risk,
        arm, origin and context (the largest number of tokens in context), separated by commas.
    score
        Only this score, see `closeloop score list`; repeatable.
    cost
        Only costs: total, per merged pull request, per passed task, of failed and repeated work;
        each by week, agent, model and repository.
    definitions
        Print the definition of each metric instead of its value.
    over_time
        Print rolling windows, change points and regressions instead.
    weeks
        With --over-time: the width of the rolling windows.
    baseline_end
        With --over-time: the last day of the baseline; half of the time by default.
    alert
        With --over-time: a file to append new regressions to, or a URL to send them to. Each
        regression is reported once.
    """
    if over_time:
        if cost or definitions:
            raise BadInput("Give only one of --over-time, --cost and --definitions.")
        print_trends(group_by, score, weeks, baseline_end, alert, json=json)
        return
    if alert or baseline_end:
        raise BadInput("--alert and --baseline-end need --over-time.")
    from closeloop.cli.config import load_project_scores
    from closeloop.cli.console import print_json, print_parts, split_list_flag
    from closeloop.metrics.held_out_runs import report_held_out
    from closeloop.metrics.metric_figures import compute_metrics
    from closeloop.metrics.score_columns import define_metrics

    if cost:
        if group_by or score or definitions:
            raise BadInput("--cost has its own metrics and groups: remove the other options.")
        print_cost_report(json=json)
        return
    if definitions:
        chosen_metrics = define_metrics(load_project_scores(), score or ())
        print_json(chosen_metrics) if json else print_parts(*definitions_table(chosen_metrics))
        return
    with load_scored_work(score) as (work, store, _):
        result = compute_metrics(work, split_list_flag(group_by), score or ())
        held_out = report_held_out(store)
    if json:
        print_json(record_to_map(result) | {"held_out": held_out})
        return
    parts = [*render_metrics(result)]
    if held_out:
        from closeloop.cli.task import render_held_out

        parts += render_held_out(held_out)
    print_parts(*parts, optional=NARROW_COLUMNS, keys=len(result.by) or None)


NARROW_COLUMNS = ("attempts",)
"""Columns that a narrow terminal omits."""


def print_cost_report(*, json: bool) -> None:
    """Print what work cost, by several dimensions; a missing cost is not zero."""
    from rich.text import Text

    from closeloop.cli.console import print_json, print_parts
    from closeloop.metrics.work_summary import compute_cost_report

    with load_scored_work(()) as (work, _, _):
        report = compute_cost_report(work)
    if json:
        print_json(report)
        return
    sides = [part for side in report.sides for part in render_cost_side(side)]
    note = Text(COUNT_NOTE, style="dim")
    print_parts(*render_metrics(report.whole), *sides, *sides and [note], optional=NARROW_COLUMNS)


def render_cost_side(side: MetricsReport) -> Iterator[RenderableType]:
    """Render one table of groups, if anything is known about them; the others are unknown."""
    by_name = {metric.name: metric for metric in side.definitions}
    known_names = {figure.metric for figure in side.figures if figure.value is not None}
    figures = [figure for figure in side.figures if figure.metric in known_names]
    if figures:
        yield _grouped_family_table(f"cost by {side.by[0]}", figures, by_name)


@contextmanager
def load_scored_work(
    scores: Sequence[str] | None,
) -> Iterator[tuple[AttemptTable, Store, Rulebook]]:
    """Load all attempts that count, with these scores; None loads all given scores."""
    from closeloop.cli.config import (
        load_project_scores,
        open_metrics_store,
        print_measuring_progress,
    )
    from closeloop.metrics.attempt_table import load_attempt_table
    from closeloop.metrics.score_columns import attach_scores

    with open_metrics_store() as (store, rulebook):
        jobs = os.cpu_count() or 1
        work = load_attempt_table(
            store, rulebook, report_progress=print_measuring_progress, jobs=jobs
        )
        report_progress = print_measuring_progress
        yield (
            attach_scores(
                work, store, load_project_scores(), scores, report_progress=report_progress
            ),
            store,
            rulebook,
        )


def definitions_table(metrics: list[Metric]) -> Iterator[RenderableType]:
    """Render one line per metric."""
    from rich.table import Table

    table = Table(box=None, show_header=False)
    for name in ("metric", "definition"):
        table.add_column(name, no_wrap=name == "metric")
    for metric in metrics:
        table.add_row(metric.name, metric.says)
    yield table


SESSION_NOTE = "A recorded session counts as a task, and its time includes waits for the user."
COVERAGE_NOTE = f"Coverage is 100 % where it is not shown. {SESSION_NOTE}"
COUNT_NOTE = "n is the number of tasks and sessions."
GROUPED_NOTE = f"In brackets the 95 % interval; {COUNT_NOTE} {SESSION_NOTE}"


def render_metrics(report: MetricsReport) -> Iterator[RenderableType]:
    """Render one table per family; metrics without data are listed once, not shown as zero."""
    from rich.text import Text

    if not report.attempts:
        yield Text("No attempts to measure: `closeloop run` and `closeloop import` add some.")
        yield from (Text(note) for note in report.notes)
        return
    by_name = {metric.name: metric for metric in report.definitions}
    known_figures = [figure for figure in report.figures if figure.value is not None]
    missing_names = dict.fromkeys(
        figure.metric for figure in report.figures if figure.value is None
    ).keys() - {figure.metric for figure in known_figures}
    table = _grouped_family_table if report.by else _family_table
    for family, figures in groupby(known_figures, key=lambda figure: by_name[figure.metric].family):
        yield Text()
        yield table(family, list(figures), by_name)
    yield Text()
    if known_figures:
        yield Text(GROUPED_NOTE if report.by else COVERAGE_NOTE, style="dim")
    if missing_names:
        # Some names contain a comma.
        names = "; ".join(name for name in by_name if name in missing_names)
        yield Text(f"no data: {names}", style="dim")
    yield from render_scope_limits(report)
    for note in report.notes:
        yield Text(note, style="yellow")
    yield Text("closeloop metrics --definitions   # what each means", style="cyan")


def render_scope_limits(report: MetricsReport) -> Iterator[RenderableType]:
    """Render one line per suggested limit."""
    from rich.text import Text

    from closeloop.metrics.metric_figures import describe_scope_limit

    for limit in report.limits:
        yield Text(f"scope policy ({limit.aim}): {describe_scope_limit(limit)}")


def _family_table(
    family: str, figures: list[MetricValue], by_name: dict[str, Metric]
) -> RenderableType:
    from rich.table import Table

    from closeloop.metrics.metric_figures import format_bounds, format_metric_value

    is_covered = all(figure.coverage in (None, 1) for figure in figures)
    table = Table(box=None)
    table.add_column(family, no_wrap=True, min_width=30)
    for name in ("", "95 % interval", "tasks", "attempts", *(() if is_covered else ("coverage",))):
        table.add_column(name, justify="right", no_wrap=True)
    for figure in figures:
        metric = by_name[figure.metric]
        coverage = "–" if figure.coverage is None else format_percent(figure.coverage)
        table.add_row(
            figure.metric,
            format_metric_value(figure, metric) + _note_beside_sum(figure, metric),
            "" if metric.kind == "sum" else format_bounds(figure, metric),
            f"{figure.n:,}",
            f"{figure.attempts:,}",
            *(() if is_covered else (coverage,)),
        )
    return table


def _counts_nothing(figure: MetricValue) -> bool:
    """Whether all is known and nothing is to be counted: no work failed, none was repeated."""
    return not figure.attempts and figure.coverage == 1


def _note_beside_sum(figure: MetricValue, metric: Metric) -> str:
    """Say what is counted beside a sum, and of how many attempts it is known, if not of all."""
    if metric.kind != "sum":
        return ""
    notes = [f"{count:,.0f} {name}" for name, count in figure.more.items() if name != "unknown"]
    if unknown := int(figure.more.get("unknown", 0)):
        notes.append(f"known for {figure.attempts:,} of {figure.attempts + unknown:,}")
    return f" ({', '.join(notes)})" if notes else ""


def _grouped_family_table(
    family: str, figures: list[MetricValue], by_name: dict[str, Metric]
) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    from closeloop.metrics.attempt_groups import order_label
    from closeloop.metrics.metric_figures import (
        format_bounds,
        format_metric_value,
        is_shown_as_count,
    )

    names = list(dict.fromkeys(figure.metric for figure in figures))
    groups: dict[tuple[str, ...], dict[str, MetricValue]] = {}
    for figure in figures:
        groups.setdefault(tuple(figure.group.values()), {})[figure.metric] = figure
    table = Table(title=family, title_justify="left", title_style="bold", box=None)
    for name in figures[0].group:
        table.add_column(name, no_wrap=True)
    for name in names:
        table.add_column(name, justify="right")
    sorted_groups = sorted(groups, key=lambda group: [order_label(part) for part in group])
    for group in sorted_groups[-MAX_GROUPS:]:
        cells = []
        for name in names:
            group_figure = groups[group].get(name)
            text = Text(
                format_metric_value(group_figure, by_name[name])
                if group_figure and not _counts_nothing(group_figure)
                else "–",
                justify="right",
            )
            if group_figure and group_figure.low is not None:
                bounds = format_bounds(replace(group_figure, more={}), by_name[name])
                text.append(f" ({bounds})", style="dim")
            if group_figure and group_figure.value is not None:
                is_sum = by_name[name].kind == "sum"
                note = _note_beside_sum(group_figure, by_name[name])
                is_count = is_shown_as_count(group_figure, by_name[name])
                count = "" if is_count else f" n {group_figure.n:,}"
                text.append(note if is_sum else count, style="dim")
            cells.append(text)
        table.add_row(*(Text(make_visible(part)) for part in group), *cells)
    if len(sorted_groups) > MAX_GROUPS:
        table.caption = f"… and {len(sorted_groups) - MAX_GROUPS} earlier ones: --json lists all"
    return table


# `closeloop report`: all numbers on one page, to share.


def report(
    *files: Path,
    group_by: str = "week;variant",
    compare: str = "",
    score: list[str] | None = None,
    html: Path | None = None,
) -> None:
    """Write all metrics with plots, definitions and queries. The same store gives the same file.

    Parameters
    ----------
    files
        Files to write, in the format of their suffix: `.md`, `.html`, `.csv` or `.parquet`.
        Markdown on standard output by default.
    group_by
        Groupings to add: commas combine fields into one grouping, semicolons separate groupings.
    compare
        Compare these, separated by commas; names as for `closeloop compare`.
    score
        The score that decides the comparison, as for `closeloop compare --score`; repeatable.
    html
        Write the whole dashboard as HTML files to this folder; no server is needed.
    """
    from closeloop.cli.config import load_project_scores
    from closeloop.cli.console import print_line, split_list_flag, write_named_file
    from closeloop.metrics.report_content import build_report_content
    from closeloop.metrics.variant_comparison import compare_by_name

    names = split_list_flag(compare)
    if score and not names:
        raise BadInput("--score decides a comparison: name what is compared with --compare.")
    if html is not None:
        write_dashboard_pages(html)
        if not files:
            return
    writers = [find_report_writer(file.suffix) for file in files or [Path("report.md")]]
    sides = [split_list_flag(side) for side in split_list_flag(group_by, ";")]
    with load_scored_work(None) as (work, store, rulebook):
        versus = (
            compare_by_name(
                store, rulebook, names, scores=score or (), catalogue=load_project_scores()
            )
            if names
            else None
        )
        plans = store.plans.load_totals()
    if not len(work):
        print_warning("No attempts to measure: `closeloop run` and `closeloop import` add some.")
    report_content = build_report_content(work, sides, versus, plans)
    if not files:
        sys.stdout.write(writers[0](report_content).decode())
    for file, make in zip(files, writers, strict=False):
        write_named_file(file, make(report_content))
        print_line(f"Wrote {file}.")


def write_dashboard_pages(folder: Path) -> None:
    """Write the current dashboard as files, with progress lines."""
    from closeloop.cli.console import print_line, show_progress
    from closeloop.metrics.attempt_table import load_attempt_table
    from closeloop.store.store import open_existing_store
    from closeloop.web.page import PageContext
    from closeloop.web.static_export import export_pages

    project = load_project(Path.cwd())
    with (
        open_existing_store(project.settings, project.root) as store,
        show_progress("reading attempts") as report_stage,
    ):
        page_context = PageContext(store, project.settings, project.root)
        load_attempt_table(
            store,
            page_context.rulebook,
            report_progress=lambda done, total: report_stage(
                f"attempt {done:,} of {total:,} measured"
            ),
        )

        def tell_page(done: int, total: int) -> None:
            if done == 1 or done % PAGES_BETWEEN_LINES == 0:
                report_stage(f"page {done:,} of {total:,} written")

        exported = export_pages(page_context, folder, tell_page)
    pages = count_with_noun(exported.written - 1, "page")
    print_line(f"Wrote {folder / 'index.html'} and {pages} more.")
    if exported.left_out:
        print_line(
            "The limit is reached: at least "
            f"{count_with_noun(exported.left_out, 'more page')} left out; `closeloop "
            "serve` shows all."
        )


def find_report_writer(suffix: str) -> Callable[[ReportContent], bytes]:
    """Return the writer of a report by file extension."""
    from closeloop.metrics.report_content import as_csv, as_html, as_markdown, as_parquet
    from closeloop.records.errors import unknown_name_error

    makers = {".md": as_markdown, ".html": as_html, ".csv": as_csv, ".parquet": as_parquet}
    if suffix not in makers:
        raise unknown_name_error("kind of report", suffix, makers)
    return makers[suffix]


# `closeloop metrics --over-time`: how metrics changed, and which became worse.

BAR_LEVELS = "▁▂▃▄▅▆▇█"
MAX_REGRESSIONS = 20


def print_trends(
    group_by: str,
    score: list[str] | None,
    weeks: int,
    baseline_end: datetime | None,
    alert: str | None,
    *,
    json: bool,
) -> None:
    """Print how metrics changed over time, and report regressions that are new."""
    from closeloop.cli.console import print_json, print_parts, split_list_flag
    from closeloop.metrics.metric_trends import compute_trends

    if weeks < 1:
        raise BadInput("--weeks must be 1 or more.")
    end = baseline_end
    end = end if end is None or end.tzinfo else end.replace(tzinfo=UTC)
    with load_scored_work(score or ()) as (work, _, _):
        groups = split_list_flag(group_by)
        result = compute_trends(work, groups, score or (), weeks=weeks, baseline=end)
    print_json(result) if json else print_parts(*render_trends(result))
    if alert is not None:
        send_regression_alerts(result, alert, datetime.now(UTC))


def render_trends(report: TrendReport) -> Iterator[RenderableType]:
    """Render regressions first; then each series as a line of bars."""
    from rich.table import Table
    from rich.text import Text

    if not report.courses:
        yield Text(
            "No attempts with scores yet: `closeloop run` and `closeloop import` add attempts,"
            " and `closeloop score list` lists their scores."
        )
        return
    for regression_found in report.regressions[:MAX_REGRESSIONS]:
        yield render_regression(regression_found)
    if not report.regressions:
        yield Text("No metric became clearly worse.", style="bold green")
    yield Text()
    table = Table(box=None)
    for name in (
        "metric",
        f"{count_with_noun(report.weeks, 'week')}, rolling",
        "last week",
        "since the baseline",
    ):
        table.add_column(name, no_wrap=True)
    for series in report.courses[: 3 * MAX_REGRESSIONS]:
        name = " ".join((series.metric, *series.group.values()))
        table.add_row(
            Text(make_visible(name)),
            render_series_bars(series),
            format_shift(series.week),
            format_shift(series.since),
        )
    yield table
    for version_mark in report.marks[-MAX_REGRESSIONS:]:
        yield Text(
            f"{version_mark.at:%Y-%m-%d}  {make_visible(version_mark.what)} first seen", style="dim"
        )
    for note in report.notes:
        yield Text(note, style="yellow")


def render_regression(regression: MetricRegression) -> RenderableType:
    from rich.text import Text

    turn = regression.turn
    name = make_visible(" ".join((regression.metric, *regression.group.values())))
    text = Text(f"worse since {turn.at:%Y-%m-%d}: {name} ", style="bold red")
    text.append(
        f"{turn.before.value:.3g} → {turn.after.value:.3g}, p {format_p_value(regression.adjusted)}"
        " adjusted"
    )
    if turn.near:
        text.append(
            f"; first seen at about the same time: {make_visible(', '.join(turn.near))}", "dim"
        )
    return text


def format_p_value(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def render_series_bars(series: MetricSeries) -> RenderableType:
    """Render one bar per week, from 0 to the highest; weeks with few items are faint."""
    from rich.text import Text

    recent_stretches = series.stretches[-26:]
    highest = max(
        (recent_stretch.estimate.value for recent_stretch in recent_stretches), default=0.0
    )
    text = Text()
    for recent_stretch in recent_stretches:
        share = max(0.0, recent_stretch.estimate.value) / highest if highest > 0 else 0.0
        text.append(
            BAR_LEVELS[round(share * (len(BAR_LEVELS) - 1))],
            style="dim" if recent_stretch.faint else "cyan",
        )
    last = recent_stretches[-1].estimate if recent_stretches else None
    return text.append(f" {last.value:.3g} of {last.n:,}" if last else "–")


def format_shift(shift: PeriodShift | None) -> str:
    if shift is None:
        return "–"
    value = shift.after.value - shift.before.value
    # All three with as many decimals as show two digits of the largest.
    largest = max(abs(value), abs(shift.low), abs(shift.high))
    decimals = max(0, 1 - floor(log10(largest))) if largest > 0 else 2
    return f"{value:+.{decimals}f} ({shift.low:+.{decimals}f} … {shift.high:+.{decimals}f})"


# Alerts about regressions: to a file or a URL, each regression once.

ALERT_TIMEOUT_SECONDS = 15.0


def send_regression_alerts(report: TrendReport, target: str, now: datetime) -> None:
    """Send only certain and recent regressions; those already sent are recorded beside the
    store."""
    sent_file = load_project(Path.cwd()).root / ".closeloop" / "alerts.jsonl"
    sent_keys = read_sent_keys(sent_file, target)
    new_regressions = select_new_regressions(report, dict.fromkeys(sent_keys), now=now)
    if not new_regressions:
        return
    if target.startswith(("http://", "https://")):
        post_regressions(target, new_regressions)
    else:
        append_json_lines(
            Path(target),
            [
                record_to_map(new_regression) | {"key": new_regression.key}
                for new_regression in new_regressions
            ],
        )
    append_json_lines(
        sent_file,
        [
            {"key": new_regression.key, "where": target, "at": now}
            for new_regression in new_regressions
        ],
    )
    print_warning(f"{count_with_noun(len(new_regressions), 'regression')} reported to {target}.")


def read_sent_keys(memory: Path, target: str) -> set[str]:
    """Return the keys already sent to an address; skip unreadable lines."""
    keys = set()
    for line in memory.read_bytes().splitlines() if memory.exists() else ():
        try:
            entry = msgspec.json.decode(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(entry, dict) and entry.get("where") == target:
            keys.add(str(entry.get("key")))
    return keys


def post_regressions(address: str, new: list[MetricRegression]) -> None:
    """Post all regressions in one request, without following redirects."""
    import httpx

    body = {
        "regressions": [record_to_map(regression) | {"key": regression.key} for regression in new]
    }
    try:
        response = httpx.post(
            address,
            content=msgspec.json.encode(body),
            headers={"content-type": "application/json"},
            timeout=ALERT_TIMEOUT_SECONDS,
        )
        response.raise_for_status()
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise MachineFailed(
            f"The alert could not be sent ({type(error).__name__}): check the URL, and "
            "run the same command again to resend it."
        ) from error


def append_json_lines(file: Path, rows: list[dict[str, object]]) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("ab") as output:
            output.write(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    except OSError as error:
        raise BadInput(
            f"{file} cannot be written ({error.strerror}): choose another file."
        ) from error


# Scores.


def score(
    attempt: str | None = None,
    *values: str,
    note: str = "",
    reviewer: str | None = None,
    source: Literal["person", "judge", "code"] = "person",
    file: Annotated[Path | None, Parameter(allow_leading_hyphen=True)] = None,
    json: JsonFlag = False,
) -> None:
    """Score an attempt, or many attempts from a file; if one score is invalid, none is saved.

    Parameters
    ----------
    attempt
        The id of the attempt, or the beginning of it.
    values
        The scores, such as `would-merge=yes quality=0.8`.
    note
        A comment.
    reviewer
        Who gives the score; your user name by default. A later score replaces an earlier one.
    source
        `person`, `judge` or `code`.
    file
        A CSV or JSONL file, or - for JSONL from standard input, with the fields `attempt`, `name`
        and `value`, and `note` and `by` where they differ from line to line.
    """
    from closeloop.cli.config import current_user, load_project_scores
    from closeloop.cli.console import print_json, print_line
    from closeloop.metrics.score_columns import ScoreIntake, read_score_file, read_typed_scores
    from closeloop.store.store import open_existing_store

    if (file is None) == (attempt is None):
        raise BadInput("Give an attempt and its scores, or a file of scores with --file.")
    rows, lines = (
        read_score_file(file)
        if file is not None
        else (read_typed_scores(attempt or "", values, note), ())
    )
    project = load_project(Path.cwd())
    intake = ScoreIntake(
        catalogue=load_project_scores(),
        source=source,
        by=reviewer or current_user(),
        now=datetime.now(UTC),
    )
    with open_existing_store(project.settings, project.root) as store:
        scores = intake.read_rows(rows, store, lines)
        added = store.scores.add_scores(scores)
    if json:
        print_json(scores)
        return
    stored_text = f"; {len(scores) - added:,} already stored" if added < len(scores) else ""
    print_line(f"{count_with_noun(added, 'score')} saved{stored_text}.")


def scores(*, json: JsonFlag = False) -> None:
    """List every score: its meaning, its source, and how many attempts have it."""
    from closeloop.cli.config import load_project_scores
    from closeloop.cli.console import print_json, print_parts
    from closeloop.metrics.score_columns import summarise_scores

    with load_scored_work(()) as (work, store, _):
        summaries = summarise_scores(work, store, load_project_scores())
    print_json(summaries) if json else print_parts(*render_scores(summaries))


def render_scores(summaries: Sequence[ScoreSummary]) -> Iterator[RenderableType]:
    """Render one line per score and source; scores from people and judges first."""
    from rich.table import Table
    from rich.text import Text

    if not summaries:
        yield Text("No attempts yet: `closeloop run` and `closeloop import` add some.")
        return
    table = Table(box=None)
    for name in ("score", "source", "kind", "better"):
        table.add_column(name, no_wrap=True)
    for name in ("attempts", "coverage"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("meaning", ratio=1)
    for summary in sorted(summaries, key=lambda summary: summary.last is None):
        definition = summary.definition
        table.add_row(
            Text(make_visible(definition.name)),
            "outcome" if summary.source == "person" and summary.last is None else summary.source,
            f"{definition.kind}, {definition.unit}" if definition.unit else definition.kind,
            definition.better or "–",
            f"{summary.attempts:,}",
            "–" if summary.coverage is None else format_percent(summary.coverage),
            Text(make_visible(definition.says), style="dim"),
        )
    yield table
