"""`closeloop report`: all numbers on a page, to hand on."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from closeloop.model.plural import plural

if TYPE_CHECKING:
    from closeloop.measuring.reports.content import Content


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
    from closeloop.cli.console import say, warn
    from closeloop.cli.files import write
    from closeloop.cli.numbers import opened, tell_measuring
    from closeloop.cli.typed import split
    from closeloop.measuring.compare import compare_named
    from closeloop.measuring.reports.content import content
    from closeloop.measuring.work import work_of

    if html is not None:
        write_pages(html)
        if not files:
            return
    makers = [writer(file.suffix) for file in files or [Path("report.md")]]
    sides = [split(side) for side in split(by, ";")]
    names = split(compare)
    with opened() as (store, book):
        work = work_of(store, book, tell=tell_measuring)
        versus = compare_named(store, book, names) if names else None
    if not len(work):
        warn("No attempts yet: `closeloop run` and `closeloop import` bring them.")
    held = content(work, sides, versus)
    if not files:
        sys.stdout.write(makers[0](held).decode())
    for file, make in zip(files, makers, strict=False):
        write(file, make(held))
        say(f"{file} is written.")


def write_pages(folder: Path) -> None:
    """The dashboard as it is now."""
    from closeloop import flow
    from closeloop.cli.config import load
    from closeloop.cli.console import console, say
    from closeloop.web.desk import Desk
    from closeloop.web.export import export

    found = load(Path.cwd())
    with (
        flow.open_kept_store(found.settings, found.root) as store,
        console(stderr=True).status("writing pages") as shown,
    ):
        desk = Desk(store, found.settings, found.root)
        written = export(desk, folder, lambda done, of: shown.update(f"page {done:,} of {of:,}"))
    say(f"{folder / 'index.html'} is written, with {plural(written - 1, 'page')} beside it.")


def writer(suffix: str) -> Callable[[Content], bytes]:
    """What makes the content of a file that is called so."""
    from closeloop.measuring.reports.html import as_html
    from closeloop.measuring.reports.markdown import as_markdown
    from closeloop.measuring.reports.tables import as_csv, as_parquet
    from closeloop.model.errors import unknown

    makers = {".md": as_markdown, ".html": as_html, ".csv": as_csv, ".parquet": as_parquet}
    if suffix not in makers:
        raise unknown("kind of report", suffix, makers)
    return makers[suffix]
