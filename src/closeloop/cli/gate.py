"""`closeloop gate`: fail a build when agents work worse than they did, beyond the noise."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from closeloop.cli.console import visible

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from closeloop.model.baseline import GateReport

COLOURS = {"worse": "red", "better": "green"}


def gate(
    *,
    baseline: str = "main",
    experiment: str | None = None,
    save: Annotated[bool, Parameter(negative=())] = False,
    reason: str | None = None,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Hold an experiment against a kept baseline: exit code 1 when a metric is clearly worse.

    Parameters
    ----------
    baseline
        The name under which a baseline is kept.
    experiment
        The experiment to look at; the newest when none is named.
    save
        Keep this experiment as the baseline instead.
    reason
        Why it is kept, for those who find it later.
    json
        Print one JSON document instead of a table.
    """
    from closeloop import flow
    from closeloop.cli.config import load
    from closeloop.cli.console import say, say_json, show, warn
    from closeloop.measuring.attempts import attempts_of, book_of, experiment_of, measured
    from closeloop.measuring.gate import COVERAGE_FLOOR, compare
    from closeloop.model.baseline import Baseline
    from closeloop.model.errors import BadInput

    found = load(Path.cwd())
    with flow.open_named_store(found.settings, found.root) as store:
        chosen = experiment_of(store, experiment)
        rows = attempts_of(store, chosen)
        if save:
            kept = Baseline(
                name=baseline,
                experiment=chosen.id,
                attempts=tuple(row.id for row in rows),
                at=datetime.now(UTC),
                reason=reason,
            )
            store.save_baseline(kept)
            say_json(kept) if json else say(
                f"{len(rows)} attempts of experiment {chosen.id} are now the baseline {baseline!r}."
            )
            return 0
        against = store.baseline(baseline)
        if against is None:
            raise BadInput(
                f"There is no baseline {baseline!r}: run what you trust, then "
                f"`closeloop gate --save{'' if baseline == 'main' else f' --baseline {baseline}'}`."
            )
        book = book_of(found.settings)
        ids = set(against.attempts)
        then = [row for row in store.attempts() if row.id in ids]
        report = compare(
            against,
            list(measured(store, then, book)),
            list(measured(store, rows, book)),
            chosen.id,
            frozenset(one.detector.rule.name for one in book.chosen if one.detector.rule.gates),
        )
    say_json(report) if json else show(*told(report))
    if report.coverage is not None and report.coverage < COVERAGE_FLOOR:
        warn(
            f"only {report.coverage:.0%} of the attempts could be scored, too few to say anything: "
            "run `closeloop run` again to retry the others."
        )
        return 4
    return 0 if report.passed else 1


def told(report: GateReport) -> Iterator[RenderableType]:
    """A row a metric, the worse ones in red."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None)
    for name in ("variant", "metric"):
        table.add_column(name, no_wrap=True)
    for name in ("baseline", "now", "difference", "tasks"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("")
    for one in report.differences:
        numbers = ("–", "–", "–")
        if one.before is not None and one.now is not None:
            bounds = f"{one.now - one.before:+.2f} ({one.low:+.2f} … {one.high:+.2f})"
            numbers = (f"{one.before:.2f}", f"{one.now:.2f}", bounds)
        table.add_row(
            Text(visible(one.variant)),
            one.metric,
            *numbers,
            str(one.tasks),
            Text(one.verdict, style=COLOURS.get(one.verdict, "dim")),
        )
    yield table
    for line in report.left_out:
        yield Text(f"not compared: {visible(line)}", style="yellow")
    name, when = report.baseline.name, report.baseline.at
    verdict = "Not worse than" if report.passed else "Worse than"
    yield Text(
        f"{verdict} the baseline {visible(name)!r} of {when:%Y-%m-%d}, on exactly these tasks.",
        style="bold green" if report.passed else "bold red",
    )
