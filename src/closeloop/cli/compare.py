"""`closeloop compare` and `closeloop gate`: which variant is better, and whether work got worse."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from closeloop.cli.console import JsonFlag, make_visible
from closeloop.text.wording import count_with_noun

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from closeloop.process.rulebook import Rulebook
    from closeloop.records.estimate import CompareReport, Metric, TwoEstimates, VariantComparison
    from closeloop.records.experiment_plan import Baseline, GateDemands, GateReport
    from closeloop.records.settings import Settings
    from closeloop.records.task import Experiment
    from closeloop.store import Store


MAX_TASKS = 30
MAX_DOTS = 10
VERDICT_COLOURS = {"worse": "red", "better": "green"}


def compare(
    *names: str,
    score: list[str] | None = None,
    margin: float = 0.05,
    json: JsonFlag = False,
) -> int:
    """Hold variants against the first one on the same tasks. Exits with 4 where none can be judged.

    Parameters
    ----------
    names
        Variants by name or digest; or `agent:X`, `model:X`, `prompt:ID`.
        Or times, such as `2026-11-01..2026-11-08`.
    score
        What decides: any that `closeloop scores` lists; may be given again, for exploration.
        `resolved`, or `would-merge` where no task has a check, when not given.
    margin
        Differences up to this are none: in a rate, else as a share of the scale or the mean.
    """
    from closeloop.cli.config import (
        load_project_scores,
        open_metrics_store,
        print_measuring_progress,
    )
    from closeloop.cli.console import print_json, print_parts, record_to_map, require_margin
    from closeloop.cli.sets import render_held_out
    from closeloop.metrics.held_out_runs import report_held_out
    from closeloop.metrics.variant_comparison import compare_by_name

    require_margin(margin)
    with open_metrics_store() as (store, book):
        report = compare_by_name(
            store,
            book,
            names,
            margin=margin,
            scores=score or (),
            catalogue=load_project_scores(),
            tell=print_measuring_progress,
        )
        digests = {digest for side in report.sides for digest in side.variants}
        held_out = report_held_out(store, variants=digests)
    if json:
        print_json(record_to_map(report) | {"held_out": held_out})
    else:
        print_parts(*render_comparison(report), *(render_held_out(held_out) if held_out else ()))
    return 0 if report.refusal is None else 4


def render_comparison(report: CompareReport) -> Iterator[RenderableType]:
    """Who is compared; then for each pair the verdict, the tasks, the rest."""
    from rich.text import Text

    yield compared_sides_table(report)
    for pair in report.pairs:
        yield Text()
        yield from render_pair(pair)
    for line in report.left_out[:MAX_TASKS]:
        yield Text(f"not compared: {make_visible(line)}", style="yellow")
    if (more := len(report.left_out) - MAX_TASKS) > 0:
        yield Text(f"… and {more} more that are not compared: --json has all", style="yellow")
    for note in report.notes:
        yield Text(make_visible(note), style="yellow")
    if report.refusal:
        yield Text(make_visible(report.refusal), style="bold yellow")


def compared_sides_table(report: CompareReport) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None)
    table.add_column("", no_wrap=True)
    for name in ("tasks", "attempts", "scored"):
        table.add_column(name, justify="right")
    for side in report.sides:
        scored = "–" if side.coverage is None else f"{side.coverage:.0%}"
        table.add_row(
            Text(make_visible(side.name)), f"{side.tasks:,}", f"{side.attempts:,}", scored
        )
    return table


def render_pair(pair: VariantComparison) -> Iterator[RenderableType]:
    """The verdict first."""
    from rich.text import Text

    comparison = pair.comparison
    for line, word in zip(pair.words, (comparison.here_word, comparison.alike_word), strict=False):
        yield Text(make_visible(line), style=f"bold {VERDICT_COLOURS.get(word, 'default')}")
    for line in pair.words[2:]:
        yield Text(make_visible(line))
    yield Text()
    yield compared_tasks_table(pair)
    if table := pair.table:
        yield Text(
            f"both right {table.both}, only {make_visible(pair.first)} {table.only_first}, only "
            f"{make_visible(pair.second)} {table.only_second}, both wrong {table.neither}; "
            "right is more than half of the repeats",
            style="dim",
        )
    yield Text()
    yield cost_ratio_table(pair)
    if pair.secondary:
        yield Text()
        yield secondary_rates_table(pair)


def compared_tasks_table(pair: VariantComparison) -> RenderableType:
    """A row a task, a dot a repeat; those that differ first."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None)
    table.add_column("task", no_wrap=True)
    for name in (pair.first, pair.second):
        table.add_column(make_visible(name), no_wrap=True)
    for task in pair.tasks[:MAX_TASKS]:
        table.add_row(
            Text(make_visible(task.task)), repeat_dots(task.first), repeat_dots(task.second)
        )
    if len(pair.tasks) > MAX_TASKS:
        table.caption = f"… and {len(pair.tasks) - MAX_TASKS} that differ less: --json has all"
    return table


def repeat_dots(repeats: Sequence[float]) -> Text:
    """`●●○` for two passes of three; a count where dots would be too many, else the values."""
    from rich.text import Text

    text = Text()
    if not {*repeats} <= {0, 1}:
        shown = " ".join(f"{value:.3g}" for value in repeats[:MAX_DOTS])
        return text.append(f"{shown} …" if len(repeats) > MAX_DOTS else shown)
    if len(repeats) > MAX_DOTS:
        return text.append(f"{sum(repeats)} of {len(repeats)}")
    for value in repeats:
        text.append("●" if value else "○", style="green" if value else "red")
    return text


def cost_ratio_table(pair: VariantComparison) -> RenderableType:
    """What the second takes for each unit that the first does."""
    from rich.table import Table

    table = Table(box=None)
    table.add_column(f"{make_visible(pair.second)} takes", no_wrap=True, min_width=26)
    for name in ("times as much", "on these tasks", "on tasks like these"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, estimates in pair.ratios.items():
        value, here, alike = format_ratio_cells(estimates)
        table.add_row(name, value, here, alike)
    return table


def format_ratio_cells(held: TwoEstimates) -> tuple[str, str, str]:
    estimate = held.here or held.alike
    bounds = [f"{one.low:.2f}–{one.high:.2f}" if one else "–" for one in (held.here, held.alike)]
    return (f"{estimate.value:.2f} ×" if estimate else "not known"), bounds[0], bounds[1]


def secondary_rates_table(pair: VariantComparison) -> RenderableType:
    """Every other rate, those that differ most surely first."""
    from rich.table import Table
    from rich.text import Text

    from closeloop.metrics.variant_pairs import format_secondary

    title = "Exploratory: one of many rates may differ by chance, so p is adjusted for their number"
    table = Table(title=title, title_justify="left", title_style="dim", box=None)
    table.add_column("", no_wrap=True, min_width=26)
    for name in (make_visible(pair.first), make_visible(pair.second), "difference", "p adjusted"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("")
    for rate in sorted(pair.secondary, key=lambda one: (one.adjusted is None, one.adjusted or 0)):
        table.add_row(
            rate.metric,
            *format_secondary(rate),
            "–" if rate.adjusted is None else f"{rate.adjusted:.3f}",
            Text(rate.word, style=VERDICT_COLOURS.get(rate.word, "dim")),
        )
    return table


# `closeloop gate`: fail a build when agents work worse than they did, beyond the noise.

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


def gate_refusal(report: GateReport) -> str | None:
    """Why the gate has no say, where it has none."""
    from closeloop.metrics.baseline_gate import MIN_COVERAGE

    if report.coverage is None or report.coverage >= MIN_COVERAGE:
        return None
    return (
        f"only {report.coverage:.0%} of the attempts could be scored, too few to say anything: "
        "run `closeloop run` again to retry the others."
    )


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
            change = difference.now - difference.before
            bounds = (
                f"{change:+.2f} ({difference.low:+.2f} … {difference.high:+.2f})"
                if difference.low is not None
                else f"{change:+.2f}"
            )
            numbers = (f"{difference.before:.2f}", f"{difference.now:.2f}", bounds)
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


def describe_gate_baseline(report: GateReport) -> str:
    """What it was held against."""
    if report.baseline is None:
        return "what was asked for, by thresholds alone"
    name, when = report.baseline.name, report.baseline.at
    more = " and what was asked for" if report.thresholds or report.margin is not None else ""
    return f"the baseline {make_visible(name)!r} of {when:%Y-%m-%d}{more}, on exactly these tasks"
