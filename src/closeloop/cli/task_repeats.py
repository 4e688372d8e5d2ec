"""`closeloop show --task`: one task over its repeats, a row each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from closeloop.cli.console import make_visible
from closeloop.text.wording import count_with_noun, format_percent_range

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from closeloop.metrics.task_repeats import TaskRepeats
    from closeloop.records.estimate import Rate

COLUMNS_EXPLAINED = (
    "iterations: rounds of changes and a check; converged after: so many until nothing failed for"
    " good; output used: of the failing checks, those that were acted on; failure fixed: whether"
    " the failure that the task starts from is gone."
)
FIXED_WORDS = {True: "yes", False: "no", None: "–"}


def render_task_repeats(found: TaskRepeats) -> Iterator[RenderableType]:
    """A row a repeat, then a row a variant over all of its repeats."""
    from rich.table import Table
    from rich.text import Text

    from closeloop.cli.run_output import OUTCOME_MARKS

    if not found.repeats:
        yield Text(make_visible(f"Nobody has tried {found.task}: `closeloop run {found.task}`."))
        return
    many = count_with_noun(len(found.repeats), "attempt")
    yield Text(make_visible(f"{found.task}: {many}"), style="bold")
    table = Table(box=None)
    for name in (
        *("variant", "no.", "", "iterations", "converged after", "output used"),
        *("failure fixed", "attempt"),
    ):
        table.add_column(name, no_wrap=True, justify="left" if name == "variant" else "right")
    for one in found.repeats:
        mark, colour = OUTCOME_MARKS[one.outcome]
        table.add_row(
            Text(make_visible(one.variant)),
            str(one.number),
            Text(mark, style=colour),
            _format_count(one.iterations),
            _format_count(one.converged_after),
            _format_rate(one.output_used),
            FIXED_WORDS[one.fixed],
            one.attempt + (" (replay)" if one.replay_of else ""),
        )
    yield table
    yield Text()
    for variant in found.variants:
        mean = "–" if variant.iterations is None else f"{variant.iterations:.1f}"
        yield Text(
            make_visible(
                f"{variant.variant}: iterations {mean} on average, converged"
                f" {_format_rate(variant.converged, bounds=True)}, output used"
                f" {_format_rate(variant.output_used, bounds=True)}, original failure fixed"
                f" {_format_rate(variant.fixed, bounds=True)}"
            )
        )
    yield Text(COLUMNS_EXPLAINED, style="dim")


def _format_count(number: int | None) -> str:
    return "–" if number is None else str(number)


def _format_rate(rate: Rate | None, *, bounds: bool = False) -> str:
    if rate is None:
        return "–"
    limits = f" ({format_percent_range(rate.low, rate.high)})" if bounds else ""
    return f"{rate.hits:g} of {rate.of}{limits}"
