"""`closeloop gate`: fail a build when agents work worse than they did, beyond the noise."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from closeloop.cli.console import JsonFlag, make_visible
from closeloop.text.wording import count_with_noun, format_percent

if TYPE_CHECKING:
    from rich.console import RenderableType

    from closeloop.process.rulebook import Rulebook
    from closeloop.records.estimate import Metric
    from closeloop.records.experiment_plan import (
        Baseline,
        GateDemands,
        GateReport,
        MetricDifference,
    )
    from closeloop.records.settings import Settings
    from closeloop.records.task import Experiment
    from closeloop.store import Store


GATE_COLOURS = {"worse": "red", "better": "green"}


def gate(  # noqa: PLR0913 - one parameter for each flag
    *,
    baseline: str = "main",
    experiment: str | None = None,
    save: bool = False,
    reason: str | None = None,
    score: list[str] | None = None,
    least: list[str] | None = None,
    margin: float | None = None,
    junit: Path | None = None,
    json: JsonFlag = False,
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
    score
        What must not be worse besides: any that `closeloop scores` lists; may be given again.
    least
        A threshold, such as `passed=0.9`, `each task=0.5` or `would-merge=0.8`; may be given
        again. Of a score of which less is better, it is the most.
        With one, a baseline need not be there.
    margin
        Pass only when it is shown that the pass rate is worse by no more than this.
    junit
        Write the result as JUnit XML to this file, too.
    """
    from closeloop.cli.config import load_project
    from closeloop.cli.console import require_margin
    from closeloop.metrics.attempt_measuring import find_experiment, project_rulebook
    from closeloop.store.store_opening import open_existing_store

    require_margin(margin)
    project = load_project(Path.cwd())
    with open_existing_store(project.settings, project.root) as store:
        chosen_experiment = find_experiment(store, experiment)
        if save:
            save_baseline(chosen_experiment, store, name=baseline, reason=reason, json=json)
            return 0
        book = project_rulebook(project.settings)
        demands = read_demands(project.settings, store, book, score, least, margin)
        saved_baseline = find_baseline(store, baseline, needed=not demands.least)
        report = run_gate(chosen_experiment, saved_baseline, demands, store, book)
        if not store.is_read_only:
            store.course.save_gate_report(report, datetime.now(UTC))
    return report_gate_result(report, junit, json=json)


def read_demands(
    settings: Settings,
    store: Store,
    book: Rulebook,
    score: list[str] | None,
    least: list[str] | None,
    margin: float | None,
) -> GateDemands:
    """What is asked for, and the scores that it is asked of."""
    from closeloop.metrics.attempt_table import load_attempt_table
    from closeloop.metrics.baseline_gate import parse_thresholds, threshold_names
    from closeloop.metrics.score_columns import attach_scores, load_attempt_scores, project_scores
    from closeloop.metrics.variant_comparison import require_deciding
    from closeloop.records.experiment_plan import GateDemands

    names = list(dict.fromkeys([*(score or ()), *threshold_names(least or ())]))
    metrics: dict[str, Metric] = {}
    by_attempt: dict[str, dict[str, float]] = {}
    if names:
        work = load_attempt_table(store, book)
        work = attach_scores(work, store, project_scores(settings), names)
        metrics, by_attempt = load_attempt_scores(work, names)
        for metric in metrics.values():
            require_deciding(metric)
    thresholds = parse_thresholds(least or (), metrics)
    return GateDemands(least=thresholds, margin=margin, scores=metrics, values=by_attempt)


def run_gate(
    experiment: Experiment,
    against: Baseline | None,
    demands: GateDemands,
    store: Store,
    book: Rulebook,
) -> GateReport:
    """The attempts of one experiment, against what was kept and what is demanded."""
    from closeloop.metrics.attempt_measuring import list_experiment_attempts, measure_attempts
    from closeloop.metrics.baseline_gate import compare_with_baseline
    from closeloop.process.rulebook import list_gating_rules
    from closeloop.records.errors import BadInput
    from closeloop.tasks.sealed_tasks import hide_attempt

    sealed = store.held_out.list_sealed_digests()
    # A look may be gated by itself; where there are dev tasks, they decide alone.
    is_look = sealed.issuperset(experiment.tasks)
    ids = set(against.attempts) if against else set()
    baseline_rows = [row for row in store.list_attempts() if row.id in ids] if ids else []
    baseline_results, current_results = (
        list(
            measure_attempts(
                store,
                [
                    hide_attempt(row, sealed)
                    for row in part
                    if row.replay_of is None and (is_look or row.task_digest not in sealed)
                ],
                book,
            )
        )
        for part in (baseline_rows, list_experiment_attempts(store, experiment))
    )
    if not current_results:
        raise BadInput(
            f"Experiment {experiment.id} has no attempt that counts, as a replay has none: name "
            "another one with --experiment."
        )
    return compare_with_baseline(
        against,
        baseline_results,
        current_results,
        experiment.id,
        list_gating_rules(book),
        demands,
    )


def report_gate_result(report: GateReport, junit: Path | None, *, json: bool) -> int:
    """Tell it where it is wanted; the exit code."""
    from closeloop.cli.console import print_json, print_parts, print_warning
    from closeloop.metrics.baseline_gate import gate_refusal

    refusal = gate_refusal(report)
    if junit is not None:
        write_gate_junit(junit, report, refusal)
    print_json(report) if json else print_parts(*render_gate_report(report))
    if refusal:
        print_warning(refusal)
        return 4
    return 0 if report.passed else 1


def save_baseline(
    chosen: Experiment, store: Store, *, name: str, reason: str | None, json: bool
) -> None:
    """What later experiments are held against."""
    from closeloop.cli.console import print_json, print_line
    from closeloop.metrics.attempt_measuring import list_experiment_attempts
    from closeloop.records.experiment_plan import Baseline

    ids = tuple(row.id for row in list_experiment_attempts(store, chosen))
    baseline = Baseline(
        name=name, experiment=chosen.id, attempts=ids, at=datetime.now(UTC), reason=reason
    )
    store.save_baseline(baseline)
    (
        print_json(baseline)
        if json
        else print_line(
            f"{count_with_noun(len(ids), 'attempt')} of experiment {chosen.id} kept as the baseline"
            f" {name!r}."
        )
    )


def find_baseline(store: Store, name: str, *, needed: bool) -> Baseline | None:
    """The baseline of that name; thresholds alone need none."""
    from closeloop.records.errors import BadInput

    baseline = store.load_baseline(name)
    if baseline is None and needed:
        raise BadInput(
            f"There is no baseline {name!r}: run what you trust, then "
            f"`closeloop gate --save{'' if name == 'main' else f' --baseline {name}'}`."
        )
    return baseline


def write_gate_junit(file: Path, report: GateReport, refusal: str | None) -> None:
    from closeloop.cli.console import write_named_file
    from closeloop.metrics.baseline_gate import gate_to_junit

    write_named_file(file, gate_to_junit(report, refusal).encode())


def render_gate_report(report: GateReport) -> Iterator[RenderableType]:
    """A row a metric, the worse ones in red."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None)
    for name in ("variant", "metric"):
        table.add_column(name, no_wrap=True)
    for name in ("baseline", "now", "difference", "tasks"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("")
    for difference in report.differences:
        numbers = ("–", "–", "–")
        if difference.before is not None and difference.now is not None:
            numbers = format_gate_numbers(difference, difference.before, difference.now)
        table.add_row(
            Text(make_visible(difference.variant)),
            difference.metric,
            *numbers,
            str(difference.tasks),
            Text(difference.verdict, style=GATE_COLOURS.get(difference.verdict, "dim")),
        )
    if report.differences:
        yield table
    counted = f"those of {', '.join(report.rules)}" if report.rules else "none, no rule gates"
    yield Text(f"findings that count: {counted} (`closeloop rules` says why)", style="dim")
    for line in report.left_out:
        yield Text(f"not compared: {make_visible(line)}", style="yellow")
    for line in report.reasons:
        yield Text(make_visible(line), style="red")
    yield Text(
        f"{'Not worse than' if report.passed else 'Worse than'} {describe_gate_baseline(report)}.",
        style="bold green" if report.passed else "bold red",
    )


def format_gate_numbers(
    difference: MetricDifference, before: float, now: float
) -> tuple[str, str, str]:
    """Before, now and the difference: a rate in percent and points, else as it is."""
    from closeloop.metrics.baseline_gate import is_mean_difference
    from closeloop.metrics.variant_pairs import format_difference

    low, high = difference.low, difference.high
    bounds = (low, high) if low is not None and high is not None else None
    is_rate = not is_mean_difference(difference)
    first, second = (format_percent(one) if is_rate else f"{one:.3g}" for one in (before, now))
    return first, second, format_difference(now - before, bounds, "", is_rate=is_rate)


def describe_gate_baseline(report: GateReport) -> str:
    """What it was held against."""
    if report.baseline is None:
        return "what was asked for, by thresholds alone"
    name, when = report.baseline.name, report.baseline.at
    more = " and what was asked for" if report.thresholds or report.margin is not None else ""
    return f"the baseline {make_visible(name)!r} of {when:%Y-%m-%d}{more}, on exactly these tasks"
