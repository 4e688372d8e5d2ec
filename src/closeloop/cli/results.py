"""The table of a run: which variant did what, how, and where to look next."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from closeloop.cli.console import visible
from closeloop.tasks.seal import is_alias

if TYPE_CHECKING:
    from closeloop.model.attempt import AttemptRow
    from closeloop.model.plan import Results

MARKS = {"pass": ("✓", "green"), "fail": ("✗", "red"), "unscored": ("?", "yellow")}
MOST_POINTERS = 6
LONGEST_REASON = 110


def summary_tables(results: Results) -> list[RenderableType]:
    """The outcomes by task, what the variants have in common, and what to look at."""
    return [
        Text(),
        outcome_table(results),
        Text(),
        variant_table(results),
        Text(),
        *pointers(results),
    ]


def outcome_table(results: Results) -> Table:
    """A row a task, a column a variant, a mark an attempt."""
    table = Table(title="What each did", title_justify="left", title_style="bold", box=None)
    table.add_column("task", no_wrap=True)
    for variant in results.variants:
        table.add_column(visible(variant.name), overflow="fold")
    for task in (task for task in results.tasks if task.id not in results.skipped):
        cells = [
            outcome_cell([row for row in results.attempts if _in(row, task.digest, v.digest)])
            for v in results.variants
        ]
        table.add_row(Text(visible(task.id)), *cells)
    for name, why in results.skipped.items():
        table.add_row(Text(visible(name)), Text(f"not run: {visible(why)}", style="yellow"))
    return table


def outcome_cell(rows: Sequence[AttemptRow]) -> Text:
    """`✓✓✗ 1 of 2 tests still fails`: a mark for each repeat, and the first reason."""
    cell = Text()
    for row in rows:
        cell.append(*MARKS[row.outcome or "unscored"])
    if reason := next((why(row) for row in rows if row.outcome != "pass"), ""):
        short = reason if len(reason) <= LONGEST_REASON else reason[:LONGEST_REASON] + "…"
        cell.append(" " + short, style="dim")
    return cell if rows else Text("not finished", style="dim")


def why(row: AttemptRow) -> str:
    """Why it did not pass, in a line."""
    return visible(row.reason or row.outcome_cause or row.cause or "")


def variant_table(results: Results) -> Table:
    """What each variant did over all of its attempts. Counts, not rates: few tasks prove little."""
    table = Table(title="How they worked", title_justify="left", title_style="bold", box=None)
    table.add_column("")
    for variant in results.variants:
        table.add_column(visible(variant.name), justify="right")
    by_variant = [
        [row for row in results.attempts if row.variant == variant.digest]
        for variant in results.variants
    ]
    shows = functools.partial(_shows, results)
    unclear = {task.digest for task in results.tasks if task.ambiguous}
    for name, measure in (
        ("passed, of scored", passed),
        ("not scored", lambda rows: _count(rows, lambda row: row.outcome == "unscored")),
        ("asked, where the request was unclear", lambda rows: asked(rows, unclear)),
        ("spiralled", lambda rows: _count(rows, shows("spiral"))),
        ("left out of a brief what was needed", lambda rows: _count(rows, shows("dropped-brief"))),
        ("claimed what was not so", lambda rows: _count(rows, shows("false-claim"))),
        ("left the scope", lambda rows: _count(rows, lambda row: row.out_of_scope)),
        ("broke a test that had passed", lambda rows: _count(rows, lambda row: row.broken)),
        ("turns, median", lambda rows: _median([row.turns for row in rows])),
        ("tokens in, sum", lambda rows: _sum([row.input_tokens for row in rows])),
        ("tokens out, sum", lambda rows: _sum([row.output_tokens for row in rows])),
        ("cost", cost),
        ("seconds, median", lambda rows: _median([row.seconds for row in rows])),
    ):
        table.add_row(name, *(measure(rows) for rows in by_variant))
    return table


def pointers(results: Results) -> Iterable[RenderableType]:
    """Where to look next: the attempts that went wrong, one of each task and variant."""
    names = {variant.digest: variant.name for variant in results.variants}
    seen: set[tuple[str | None, str | None]] = set()
    told = [row for row in results.attempts if not is_alias(row.task)]
    wrong = [row for row in told if row.outcome != "pass"]
    for row in sorted(wrong, key=lambda row: -telling(row, results)):
        if (row.task, row.variant) in seen or len(seen) == MOST_POINTERS:
            continue
        seen.add((row.task, row.variant))
        about = f"{names.get(row.variant or '', '?')} on {row.task}"
        yield Text(f"closeloop show {row.id}   # {visible(about)}", style="cyan")
    if not wrong and told:
        yield Text(f"closeloop show {told[0].id}", style="cyan")


def telling(row: AttemptRow, results: Results) -> int:
    """How much there is to learn from it, roughly."""
    measurement = results.measurements.get(row.id)
    errors = [one for one in measurement.findings if one.severity == "error"] if measurement else []
    return (row.out_of_scope or 0) + (row.broken or 0) + 2 * len(errors)


def _shows(results: Results, rule: str) -> Callable[[AttemptRow], bool]:
    """Whether an attempt has a finding of that rule."""

    def shows(row: AttemptRow) -> bool:
        measurement = results.measurements.get(row.id)
        found = measurement.findings if measurement else ()
        return any(finding.rule == rule and finding.silenced is None for finding in found)

    return shows


def passed(rows: Sequence[AttemptRow]) -> str:
    scored = [row for row in rows if row.outcome in ("pass", "fail")]
    return f"{sum(row.outcome == 'pass' for row in scored)} of {len(scored)}"


def asked(rows: Sequence[AttemptRow], unclear: set[str]) -> str:
    known = [row for row in rows if row.task_digest in unclear and row.asked is not None]
    return f"{sum(bool(row.asked) for row in known)} of {len(known)}" if known else "–"


def cost(rows: Sequence[AttemptRow]) -> str:
    known = [row.cost for row in rows if row.cost is not None]
    missing = f" ({len(rows) - len(known)} unknown)" if known and len(known) < len(rows) else ""
    return f"${sum(known):.2f}{missing}" if known else "–"


def _count(rows: Sequence[AttemptRow], holds: Callable[[AttemptRow], object]) -> str:
    return str(sum(bool(holds(row)) for row in rows))


def _sum(values: Sequence[int | None]) -> str:
    known = [value for value in values if value is not None]
    missing = f" ({len(values) - len(known)} unknown)" if len(known) < len(values) else ""
    return f"{sum(known):,}{missing}" if known else "–"


def _median(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{median(known):.3g}" if known else "–"


def _in(row: AttemptRow, task: str, variant: str) -> bool:
    return row.task_digest == task and row.variant == variant
