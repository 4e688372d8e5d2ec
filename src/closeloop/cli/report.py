"""`closeloop report`: all numbers on a page, to hand on."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from closeloop.records.plural import count_with_noun

if TYPE_CHECKING:
    from closeloop.metrics.reports.report_content import ReportContent


def report(
    *files: Path, by: str = "week;variant", compare: str = "", html: Path | None = None
) -> None:
    """Write all metrics, with plots, definitions and queries. The same store gives the same bytes.

    Parameters
    ----------
    files
        What to write, by the end of its name: `.md`, `.html`, `.csv` or `.parquet`.
        Markdown on standard output when none is named.
    by
        The sides to show besides the whole.
        With commas those that are taken together, with semicolons one after the other.
    compare
        Names to hold against each other, with commas, as `closeloop compare` takes them.
    html
        A folder for the whole dashboard as files: open its index.html, no server is needed.
    """
    from closeloop.cli.argument_files import write_named_file
    from closeloop.cli.console import print_line, print_warning
    from closeloop.cli.flag_checks import split_list_flag
    from closeloop.cli.metrics_store import open_metrics_store, print_measuring_progress
    from closeloop.metrics.attempt_table import load_attempt_table
    from closeloop.metrics.reports.report_content import build_report_content
    from closeloop.metrics.variant_comparison import compare_by_name

    if html is not None:
        write_dashboard_pages(html)
        if not files:
            return
    writers = [find_report_writer(file.suffix) for file in files or [Path("report.md")]]
    sides = [split_list_flag(side) for side in split_list_flag(by, ";")]
    names = split_list_flag(compare)
    with open_metrics_store() as (store, book):
        work = load_attempt_table(store, book, tell=print_measuring_progress)
        versus = compare_by_name(store, book, names) if names else None
    if not len(work):
        print_warning("No attempts yet: `closeloop run` and `closeloop import` bring them.")
    report_content = build_report_content(work, sides, versus)
    if not files:
        sys.stdout.write(writers[0](report_content).decode())
    for file, make in zip(files, writers, strict=False):
        write_named_file(file, make(report_content))
        print_line(f"{file} is written.")


def write_dashboard_pages(folder: Path) -> None:
    """The dashboard as it is now."""
    from closeloop import flow
    from closeloop.cli.config import load_project
    from closeloop.cli.console import open_console, print_line
    from closeloop.web.page_context import PageContext
    from closeloop.web.static_export import export_pages

    project = load_project(Path.cwd())
    with (
        flow.open_existing_store(project.settings, project.root) as store,
        open_console(stderr=True).status("writing pages") as status,
    ):
        desk = PageContext(store, project.settings, project.root)
        written = export_pages(
            desk, folder, lambda done, of: status.update(f"page {done:,} of {of:,}")
        )
    print_line(
        f"{folder / 'index.html'} is written, with {count_with_noun(written - 1, 'page')}"
        " beside it."
    )


def find_report_writer(suffix: str) -> Callable[[ReportContent], bytes]:
    """What makes the content of a file that is called so."""
    from closeloop.metrics.reports.figure_tables import as_csv, as_parquet
    from closeloop.metrics.reports.metrics_html import as_html
    from closeloop.metrics.reports.metrics_markdown import as_markdown
    from closeloop.records.errors import unknown_name_error

    makers = {".md": as_markdown, ".html": as_html, ".csv": as_csv, ".parquet": as_parquet}
    if suffix not in makers:
        raise unknown_name_error("kind of report", suffix, makers)
    return makers[suffix]
