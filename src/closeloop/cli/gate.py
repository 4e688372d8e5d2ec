"""`closeloop gate`: fail a build when agents work worse than they did, beyond the noise."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from closeloop.cli.console import visible
from closeloop.model.plural import plural

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from closeloop.model.baseline import Baseline, Demands, GateReport
    from closeloop.model.variant import Experiment
    from closeloop.process.rulebook import Rulebook
    from closeloop.store import Store

COLOURS = {"worse": "red", "better": "green"}


def gate(  # noqa: PLR0913 - one parameter for each flag
    *,
    baseline: str = "main",
    experiment: str | None = None,
    save: bool = False,
    reason: str | None = None,
    least: list[str] | None = None,
    margin: float | None = None,
    junit: Path | None = None,
    json: bool = False,
) -> int:
    """Hold an experiment against a kept baseline: exit code 1 when something is clearly worse.

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
    least
        A threshold, such as `passed=0.9` or `each task=0.5`; may be given again.
        With one, a baseline need not be there.
    margin
        Pass only when it is shown that the pass rate is worse by no more than this.
    junit
        Write the result as JUnit XML to this file, too.
    json
        Print one JSON document instead of a table.
    """
    from closeloop import flow
    from closeloop.cli.config import load
    from closeloop.cli.typed import demand_margin
    from closeloop.measuring.attempts import book_of, experiment_of
    from closeloop.measuring.demands import least_of
    from closeloop.model.baseline import Demands

    demand_margin(margin)
    demands = Demands(least=least_of(least or ()), margin=margin)
    found = load(Path.cwd())
    with flow.open_kept_store(found.settings, found.root) as store:
        chosen = experiment_of(store, experiment)
        if save:
            keep(chosen, store, name=baseline, reason=reason, json=json)
            return 0
        against = kept_as(store, baseline, needed=not demands.least)
        report = held(chosen, against, demands, store, book_of(found.settings))
    return answer(report, junit, json=json)


def held(
    experiment: Experiment,
    against: Baseline | None,
    demands: Demands,
    store: Store,
    book: Rulebook,
) -> GateReport:
    """The attempts of one experiment, against what was kept and what is demanded."""
    from closeloop.measuring.attempts import attempts_of, measured
    from closeloop.measuring.gate import compare
    from closeloop.tasks.seal import hide_row

    sealed = store.held_out.sealed()
    ids = set(against.attempts) if against else set()
    then = [row for row in store.attempts() if row.id in ids] if ids else []
    before, now = (
        list(measured(store, [hide_row(row, sealed) for row in part], book))
        for part in (then, attempts_of(store, experiment))
    )
    gating = frozenset(one.detector.rule.name for one in book.chosen if one.detector.rule.gates)
    return compare(against, before, now, experiment.id, gating, demands)


def answer(report: GateReport, junit: Path | None, *, json: bool) -> int:
    """Tell it where it is wanted; the exit code."""
    from closeloop.cli.console import say_json, show, warn

    refusal = refused(report)
    if junit is not None:
        write_junit(junit, report, refusal)
    say_json(report) if json else show(*told(report))
    if refusal:
        warn(refusal)
        return 4
    return 0 if report.passed else 1


def keep(chosen: Experiment, store: Store, *, name: str, reason: str | None, json: bool) -> None:
    """What later experiments are held against."""
    from closeloop.cli.console import say, say_json
    from closeloop.measuring.attempts import attempts_of
    from closeloop.model.baseline import Baseline

    ids = tuple(row.id for row in attempts_of(store, chosen))
    kept = Baseline(
        name=name, experiment=chosen.id, attempts=ids, at=datetime.now(UTC), reason=reason
    )
    store.save_baseline(kept)
    say_json(kept) if json else say(
        f"{plural(len(ids), 'attempt')} of experiment {chosen.id} kept as the baseline {name!r}."
    )


def kept_as(store: Store, name: str, *, needed: bool) -> Baseline | None:
    """The baseline of that name; thresholds alone need none."""
    from closeloop.model.errors import BadInput

    found = store.baseline(name)
    if found is None and needed:
        raise BadInput(
            f"There is no baseline {name!r}: run what you trust, then "
            f"`closeloop gate --save{'' if name == 'main' else f' --baseline {name}'}`."
        )
    return found


def refused(report: GateReport) -> str | None:
    """Why the gate has no say, where it has none."""
    from closeloop.measuring.gate import COVERAGE_FLOOR

    if report.coverage is None or report.coverage >= COVERAGE_FLOOR:
        return None
    return (
        f"only {report.coverage:.0%} of the attempts could be scored, too few to say anything: "
        "run `closeloop run` again to retry the others."
    )


def write_junit(file: Path, report: GateReport, refusal: str | None) -> None:
    from closeloop.cli.files import write
    from closeloop.measuring.junit import junit

    write(file, junit(report, refusal).encode())


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
    for line in report.reasons:
        yield Text(visible(line), style="red")
    yield Text(
        f"{'Not worse than' if report.passed else 'Worse than'} {asked(report)}.",
        style="bold green" if report.passed else "bold red",
    )


def asked(report: GateReport) -> str:
    """What it was held against."""
    if report.baseline is None:
        return "what was asked for, by thresholds alone"
    name, when = report.baseline.name, report.baseline.at
    more = " and what was asked for" if report.thresholds or report.margin is not None else ""
    return f"the baseline {visible(name)!r} of {when:%Y-%m-%d}{more}, on exactly these tasks"
