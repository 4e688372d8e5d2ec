"""`closeloop compare`: which is better, how certain that is, and where they differ."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from closeloop.cli.console import JsonFlag, make_visible
from closeloop.text.wording import count_with_noun, format_percent, format_points

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

    from closeloop.metrics.attempt_groups import AttemptPair, ComparedFile
    from closeloop.process.rulebook import Rulebook
    from closeloop.records.attempt import AttemptRow
    from closeloop.records.estimate import (
        CompareReport,
        Metric,
        SecondaryMetric,
        TwoEstimates,
        VariantComparison,
    )
    from closeloop.records.experiment_plan import (
        Baseline,
        GateDemands,
        GateReport,
        MetricDifference,
    )
    from closeloop.records.settings import Settings
    from closeloop.records.task import Experiment
    from closeloop.store import Store


# `closeloop gate`: fail a build if agents became worse, beyond the noise.


GATE_COLOURS = {"worse": "red", "better": "green"}


def gate(  # noqa: PLR0913 - one parameter for each flag
    *,
    baseline: str = "main",
    experiment: str | None = None,
    save: bool = False,
    reason: str | None = None,
    score: list[str] | None = None,
    threshold: list[str] | None = None,
    margin: float | None = None,
    junit: Path | None = None,
    json: JsonFlag = False,
) -> int:
    """Compare an experiment with a saved baseline: exit code 1 when it is clearly worse.

    Parameters
    ----------
    baseline
        The name of the baseline.
    experiment
        The experiment to compare; the newest by default.
    save
        Save this experiment as the baseline instead.
    reason
        Why it is saved.
    score
        Another score that must not be worse, see `closeloop score list`; repeatable.
    threshold
        A minimum, such as `passed=0.9`, `each task=0.5` or `would-merge=0.8`; repeatable. For a
        score where lower is better, a maximum. No baseline is needed then.
    margin
        Pass only if the pass rate is shown to be worse by no more than this.
    junit
        Also write the result as JUnit XML to this file.
    """
    from closeloop.cli.config import load_project
    from closeloop.cli.console import require_margin
    from closeloop.metrics.attempt_measuring import find_experiment, project_rulebook
    from closeloop.store.store import open_existing_store

    require_margin(margin)
    project = load_project(Path.cwd())
    with open_existing_store(project.settings, project.root) as store:
        chosen_experiment = find_experiment(store, experiment)
        if save:
            save_baseline(chosen_experiment, store, name=baseline, reason=reason, json=json)
            return 0
        rulebook = project_rulebook(project.settings)
        demands = read_demands(project.settings, store, rulebook, score, threshold, margin)
        saved_baseline = find_baseline(store, baseline, needed=not demands.least)
        report = run_gate(chosen_experiment, saved_baseline, demands, store, rulebook)
        if not store.is_read_only:
            store.experiments.save_gate_report(report, datetime.now(UTC))
    return report_gate_result(report, junit, json=json)


def read_demands(
    settings: Settings,
    store: Store,
    rulebook: Rulebook,
    score: list[str] | None,
    least: list[str] | None,
    margin: float | None,
) -> GateDemands:
    """Parse the demands of a gate, and load the scores that they use."""
    from closeloop.metrics.attempt_table import load_attempt_table
    from closeloop.metrics.score_columns import attach_scores, load_attempt_scores, project_scores
    from closeloop.metrics.variant_comparison import (
        parse_thresholds,
        require_deciding,
        threshold_names,
    )
    from closeloop.records.experiment_plan import GateDemands

    names = list(dict.fromkeys([*(score or ()), *threshold_names(least or ())]))
    metrics: dict[str, Metric] = {}
    by_attempt: dict[str, dict[str, float]] = {}
    if names:
        work = load_attempt_table(store, rulebook)
        work = attach_scores(work, store, project_scores(settings), names)
        metrics, by_attempt = load_attempt_scores(work, names)
        for metric in metrics.values():
            require_deciding(metric)
    thresholds = parse_thresholds(least or (), metrics)
    return GateDemands(least=thresholds, margin=margin, scores=metrics, values=by_attempt)


def run_gate(
    experiment: Experiment,
    baseline: Baseline | None,
    demands: GateDemands,
    store: Store,
    rulebook: Rulebook,
) -> GateReport:
    """Compare an experiment's attempts with the baseline and the demands."""
    from msgspec.structs import replace

    from closeloop.metrics.attempt_measuring import list_experiment_attempts, measure_attempts
    from closeloop.metrics.variant_comparison import compare_with_baseline
    from closeloop.process.rulebook import list_gating_rules
    from closeloop.records.errors import BadInput
    from closeloop.tasks.task_sets import hide_attempt

    sealed = store.held_out.list_sealed_digests()
    # A held-out run may be gated by itself; if there are dev tasks, only they decide.
    is_look = sealed.issuperset(experiment.tasks)
    ids = set(baseline.attempts) if baseline else set()
    baseline_rows = [row for row in store.list_attempts() if row.id in ids] if ids else []
    current_rows = list_experiment_attempts(store, experiment)
    baseline_results, current_results = (
        list(
            measure_attempts(
                store,
                [
                    hide_attempt(row, sealed)
                    for row in part
                    if row.replay_of is None
                    and not row.is_control
                    and (is_look or row.task_digest not in sealed)
                ],
                rulebook,
            )
        )
        for part in (baseline_rows, current_rows)
    )
    if not current_results:
        raise BadInput(
            f"Experiment {experiment.id} has no attempts that count, as replays and controls do "
            "not: choose another one with --experiment."
        )
    report = compare_with_baseline(
        baseline,
        baseline_results,
        current_results,
        experiment.id,
        list_gating_rules(rulebook),
        demands,
    )
    control_lines = list_controls([*baseline_rows, *current_rows])
    return replace(report, left_out=(*report.left_out, *control_lines))


def list_controls(rows: Iterable[AttemptRow]) -> list[str]:
    """Return a line for each variant that is not compared because it is a control."""
    names = {row.variant_name for row in rows if row.is_control}
    return [f"variant {name!r} is a control" for name in sorted(filter(None, names))]


def report_gate_result(report: GateReport, junit: Path | None, *, json: bool) -> int:
    """Print or write the report as requested; return the exit code."""
    from closeloop.cli.console import print_json, print_parts, print_warning
    from closeloop.metrics.variant_comparison import gate_refusal

    refusal = gate_refusal(report)
    if junit is not None:
        write_gate_junit(junit, report, refusal)
    print_json(report) if json else print_parts(*render_gate_report(report))
    if refusal:
        print_warning(refusal)
        return 4
    return 0 if report.passed else 1


def save_baseline(
    experiment: Experiment, store: Store, *, name: str, reason: str | None, json: bool
) -> None:
    """Save an experiment as the baseline for later ones."""
    from closeloop.cli.console import print_json, print_line
    from closeloop.metrics.attempt_measuring import list_experiment_attempts
    from closeloop.records.errors import BadInput
    from closeloop.records.experiment_plan import Baseline

    ids = tuple(row.id for row in list_experiment_attempts(store, experiment))
    if not ids:
        raise BadInput(
            f"Experiment {experiment.id} has no attempts yet: run it again to continue, or choose "
            "another one with --experiment."
        )
    baseline = Baseline(
        name=name, experiment=experiment.id, attempts=ids, at=datetime.now(UTC), reason=reason
    )
    store.save_baseline(baseline)
    (
        print_json(baseline)
        if json
        else print_line(
            f"Saved {count_with_noun(len(ids), 'attempt')} of experiment {experiment.id} "
            f"as the baseline {name!r}."
        )
    )


def find_baseline(store: Store, name: str, *, needed: bool) -> Baseline | None:
    """Return the baseline of that name; thresholds alone need none."""
    from closeloop.records.errors import BadInput

    baseline = store.load_baseline(name)
    if baseline is None and needed:
        raise BadInput(
            f"There is no baseline {name!r}: save a trusted experiment with `closeloop "
            f"gate --save{'' if name == 'main' else f' --baseline {name}'}`."
        )
    return baseline


def write_gate_junit(file: Path, report: GateReport, refusal: str | None) -> None:
    from closeloop.cli.console import write_named_file
    from closeloop.metrics.variant_comparison import gate_to_junit

    write_named_file(file, gate_to_junit(report, refusal).encode())


def render_gate_report(report: GateReport) -> Iterator[RenderableType]:
    """Render a row for each metric, worse ones in red."""
    from rich.table import Table
    from rich.text import Text

    from closeloop.metrics.metric_definitions import describe_passes
    from closeloop.records.estimate import UNCLEAR_WORD

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
            Text(
                "" if difference.verdict == UNCLEAR_WORD else difference.verdict,
                style=GATE_COLOURS.get(difference.verdict, "dim"),
            ),
        )
    if report.differences:
        yield table
    rules_text = f"those of {', '.join(report.rules)}" if report.rules else "none, as no rule gates"
    yield Text(
        f"findings that count: {rules_text} (`closeloop measure --rules` explains why)", style="dim"
    )
    if report.passes:
        yield Text(f"passes: {describe_passes(report.passes)}", style="dim")
    for line in report.left_out:
        yield Text(f"not compared: {make_visible(line)}", style="yellow")
    for line in report.reasons:
        yield Text(make_visible(line), style="red")
    if report.baseline is not None and report.baseline.experiment == report.experiment:
        itself = (
            "This experiment is the baseline itself: run another one, or name it by --experiment."
        )
        yield Text(itself, style="yellow")
    yield Text(describe_gate_verdict(report), style="bold green" if report.passed else "bold red")


def describe_gate_verdict(report: GateReport) -> str:
    """Describe the result in a sentence, and the loss that a pass does not rule out."""
    baseline = describe_gate_baseline(report)
    if not report.passed:
        # With thresholds, the baseline may be met and they may not.
        has_limits = bool(report.thresholds) or report.margin is not None
        failed = "The gate fails, compared with" if has_limits else "Worse than"
        return f"{failed} {baseline}."
    lows = [row.low for row in report.differences if row.metric == "passed"]
    known_lows = [low for low in lows if low is not None]
    if len(known_lows) == len(lows) and min(known_lows, default=0) >= 0:
        return f"Not worse than {baseline}."
    verdict = f"Not shown to be worse than {baseline}"
    if not known_lows:
        return f"{verdict}."
    loss = format_points(-min(known_lows))
    limit = " (`--margin` sets the loss to rule out)" if report.margin is None else ""
    return f"{verdict}; the pass rate may have fallen by up to {loss}{limit}."


def format_gate_numbers(
    difference: MetricDifference, before: float, current: float
) -> tuple[str, str, str]:
    """Format before, now and the difference: rates in percent and points, other values as they
    are."""
    from closeloop.metrics.variant_comparison import is_mean_difference
    from closeloop.metrics.variant_pairs import format_difference

    low, high = difference.low, difference.high
    bounds = (low, high) if low is not None and high is not None else None
    is_rate = not is_mean_difference(difference)
    first, second = (
        format_percent(value) if is_rate else f"{value:.3g}" for value in (before, current)
    )
    return first, second, format_difference(current - before, bounds, "", is_rate=is_rate)


def describe_gate_baseline(report: GateReport) -> str:
    """Describe the baseline of the comparison."""
    if report.baseline is None:
        return "the thresholds only"
    name, when = report.baseline.name, report.baseline.at
    thresholds_text = (
        " and the thresholds" if report.thresholds or report.margin is not None else ""
    )
    baseline = f"the baseline {make_visible(name)!r} of {when:%Y-%m-%d}"
    return f"{baseline}{thresholds_text}, on exactly these tasks"


MAX_TASKS = 30
MAX_DOTS = 10
VERDICT_COLOURS = {"worse": "red", "better": "green"}


def compare(
    *names: str, score: list[str] | None = None, margin: float = 0.05, json: JsonFlag = False
) -> int:
    """Compare variants, agents, models, prompts, experiments or periods. The first is the baseline.

    Only tasks that both have are compared; without any, the groups are, which is observational.
    Exit code 4 when there is too little data to compare.

    Parameters
    ----------
    names
        Variants by name or digest; by default those of the newest experiment. Or `agent:X`,
        `model:X`, `prompt:ID`, `repo:X`, `user:X`, `experiment:ID`, or a period such as
        `2026-11-01..2026-11-08`; commas combine conditions. Or two attempts, as `attempt:ID`.
    score
        The score that decides, see `closeloop score list`; further ones are only explored.
        By default the pass rate (`resolved`), or `would-merge` where no task has a check.
    margin
        The largest difference that counts as equal: in points of a rate, else as a share of the
        score's scale or mean.
    """
    from closeloop.cli.config import (
        load_project_scores,
        open_metrics_store,
        print_measuring_progress,
    )
    from closeloop.cli.console import print_json, print_parts, record_to_map, require_margin
    from closeloop.cli.task import render_held_out
    from closeloop.metrics.attempt_groups import compare_two_attempts
    from closeloop.metrics.held_out_runs import report_held_out
    from closeloop.metrics.variant_comparison import compare_by_name
    from closeloop.records.errors import BadInput

    require_margin(margin)
    with open_metrics_store() as (store, rulebook):
        catalogue = load_project_scores()
        if not names:
            names = newest_variant_names(store)
            if len(names) == 1:
                # Where an older variant has the same name, it is a digest.
                variant = store.numbers.load_variants().get(names[0])
                name, argument = (variant.name, names[0][:12]) if variant else (names[0], names[0])
                raise BadInput(
                    f"The newest experiment has only the variant {name!r}: name what to "
                    f"compare, as in `closeloop compare {argument} OTHER`."
                )
        attempts = [name.partition(":")[2] for name in names if name.startswith("attempt:")]
        if len(names) == len(attempts) == 2:
            pair = compare_two_attempts(store, rulebook, catalogue, attempts)
            print_json(pair) if json else print_parts(*render_attempt_pair(pair))
            return 0
        report = compare_by_name(
            store,
            rulebook,
            names,
            margin=margin,
            scores=score or (),
            catalogue=catalogue,
            report_progress=print_measuring_progress,
        )
        digests = {digest for side in report.sides for digest in side.variants}
        held_out = report_held_out(store, variants=digests)
    if json:
        print_json(record_to_map(report) | {"held_out": held_out})
    else:
        print_parts(*render_comparison(report), *(render_held_out(held_out) if held_out else ()))
    return 0 if report.refusal is None else 4


def newest_variant_names(store: Store) -> tuple[str, ...]:
    """Return the variants of the newest experiment by name, or by digest if two share a name."""
    from closeloop.metrics.attempt_measuring import find_experiment

    variants = store.numbers.load_variants()
    all_names = [variant.name for variant in variants.values()]
    return tuple(
        variants[digest].name if all_names.count(variants[digest].name) == 1 else digest
        for digest in find_experiment(store, None).variants
    )


def render_comparison(report: CompareReport) -> Iterator[RenderableType]:
    """Render the compared sides; then for each pair the verdict, the tasks and the rest."""
    from rich.text import Text

    yield compared_sides_table(report)
    for pair in report.pairs:
        yield Text()
        yield from render_pair(pair)
    for line in report.left_out[:MAX_TASKS]:
        yield Text(f"not compared: {make_visible(line)}", style="yellow")
    if (hidden_count := len(report.left_out) - MAX_TASKS) > 0:
        yield Text(
            f"… and {hidden_count} more that are not compared: --json lists all", style="yellow"
        )
    for note in report.notes:
        yield Text(make_visible(note), style="yellow")
    if report.refusal:
        yield Text(make_visible(report.refusal), style="bold yellow")


def compared_sides_table(report: CompareReport) -> Table:
    """Build a table of the sides: how much of each is scored or known, and what it reached."""
    from rich.table import Table
    from rich.text import Text

    from closeloop.metrics.metric_definitions import PRIMARY_METRIC, describe_passes

    primary = next((pair.primary for pair in report.pairs), PRIMARY_METRIC)
    means = _side_means(report.pairs)
    known_name = "known" if means else f"{primary} known"
    scored_name = "scored" if primary == PRIMARY_METRIC else known_name
    has_tasks = any(side.tasks for side in report.sides)
    table = Table(box=None)
    table.add_column("", no_wrap=True)
    headings = (*(("tasks",) if has_tasks else ()), "attempts", make_visible(scored_name))
    for name in (*headings, *((make_visible(primary),) if means else ())):
        table.add_column(name, justify="right")
    has_passes = primary == PRIMARY_METRIC and any(side.passes for side in report.sides)
    if has_passes:
        table.add_column("passes", justify="right")
    for side in report.sides:
        scored = "–" if side.coverage is None else format_percent(side.coverage)
        counts = (side.tasks, side.attempts) if has_tasks else (side.attempts,)
        passes = (describe_passes(side.passes) or "–",) if has_passes else ()
        mean = (means.get(side.name, "–"),) if means else ()
        cells = (*(f"{count:,}" for count in counts), scored, *mean, *passes)
        table.add_row(Text(make_visible(side.name)), *cells)
    return table


def _side_means(pairs: Sequence[VariantComparison]) -> dict[str, str]:
    """Return by side what the pairs compare, over the tasks that both sides of a pair have.

    Empty if that differs between pairs: a side then has no single value.
    """
    means: dict[str, set[str]] = {}
    for pair in pairs:
        levels = ((pair.first, pair.comparison.first), (pair.second, pair.comparison.second))
        for name, level in levels:
            if level is not None and pair.kind == "rate":
                means.setdefault(name, set()).add(format_percent(level))
            elif level is not None:
                means.setdefault(name, set()).add(f"{level:.3g} {pair.unit}".strip())
    if any(len(texts) > 1 for texts in means.values()):
        return {}
    return {name: texts.pop() for name, texts in means.items()}


def render_pair(pair: VariantComparison) -> Iterator[RenderableType]:
    """Render a pair, the verdict first."""
    from rich.text import Text

    comparison = pair.comparison
    verdicts = (comparison.here_word, comparison.alike_word)
    if pair.observational:
        verdicts = (comparison.alike_word, "not enough data")
    for line, verdict in zip(pair.words, verdicts, strict=False):
        yield Text(make_visible(line), style=f"bold {VERDICT_COLOURS.get(verdict, 'default')}")
    for line in pair.words[2:]:
        yield Text(make_visible(line))
    if pair.tasks:
        yield Text()
        yield compared_tasks_table(pair)
    if table := pair.table:
        yield Text(
            f"both pass {table.both}, only {make_visible(pair.first)} "
            f"{table.only_first}, only {make_visible(pair.second)} "
            f"{table.only_second}, both fail {table.neither}; a task passes when more "
            "than half of its repeats pass",
            style="dim",
        )
    yield Text()
    yield cost_ratio_table(pair)
    if differing_rates(pair):
        yield Text()
        yield secondary_rates_table(pair)
    same_names = [rate.metric for rate in pair.secondary if rate.first == rate.second]
    if same_names:
        yield Text(f"same on both sides: {'; '.join(same_names)}", style="dim")


def compared_tasks_table(pair: VariantComparison) -> RenderableType:
    """Build a table with a row for each task and a dot for each repeat; different ones first."""
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
        table.caption = f"… and {len(pair.tasks) - MAX_TASKS} that differ less: --json lists all"
    return table


def repeat_dots(repeats: Sequence[float]) -> Text:
    """Render repeats as `●●○ 2 of 3`; the count alone if there are too many dots, else the
    values."""
    from rich.text import Text

    text = Text()
    if not {*repeats} <= {0, 1}:
        values_text = " ".join(f"{value:.3g}" for value in repeats[:MAX_DOTS])
        return text.append(f"{values_text} …" if len(repeats) > MAX_DOTS else values_text)
    for value in repeats if len(repeats) <= MAX_DOTS else ():
        text.append("●" if value else "○", style="green" if value else "red")
    return text.append(f"{' ' if text else ''}{sum(repeats)} of {len(repeats)}", style="dim")


def cost_ratio_table(pair: VariantComparison) -> RenderableType:
    """Build a table of what the second uses for each unit that the first uses."""
    from rich.table import Table

    table = Table(box=None)
    table.add_column(f"{make_visible(pair.second)} uses", no_wrap=True, min_width=26)
    bounds: tuple[str, ...] = ("on different work",)
    if not pair.observational:
        bounds = ("on these tasks", "on similar tasks")
    for name in ("ratio", *bounds):
        table.add_column(name, justify="right", no_wrap=True)
    for name, estimates in pair.ratios.items():
        value, here_bounds, alike_bounds = format_ratio_cells(name, estimates)
        table.add_row(
            name, value, *((alike_bounds,) if pair.observational else (here_bounds, alike_bounds))
        )
    return table


def format_ratio_cells(name: str, estimates: TwoEstimates) -> tuple[str, str, str]:
    from closeloop.metrics.variant_pairs import format_ratio_bounds
    from closeloop.statistics.mean_comparison import ALL_ZERO_NOTE

    estimate = estimates.here or estimates.alike
    bounds = [
        format_ratio_bounds(bound_estimate) if bound_estimate else "–"
        for bound_estimate in (estimates.here, estimates.alike)
    ]
    value = f"{estimate.value:.2f} ×" if estimate else "unknown"
    if ALL_ZERO_NOTE in estimates.notes:
        value = "both $0.00" if name == "cost" else "both 0"
    return value, bounds[0], bounds[1]


EXPLORATORY_NOTES = {
    False: "Exploratory: tasks with a value on both sides; p adjusted",
    True: "Exploratory: one of many rates may differ by chance",
}


def differing_rates(pair: VariantComparison) -> list[SecondaryMetric]:
    """Return the other rates that are not the same on both sides."""
    return [rate for rate in pair.secondary if rate.first != rate.second]


def secondary_rates_table(pair: VariantComparison) -> RenderableType:
    """Build a table of the other rates, most certain differences first."""
    from rich.table import Table
    from rich.text import Text

    from closeloop.metrics.variant_pairs import format_secondary
    from closeloop.records.estimate import UNCLEAR_WORD

    title = EXPLORATORY_NOTES[pair.observational]
    table = Table(title=title, title_justify="left", title_style="dim", box=None)
    table.add_column("", no_wrap=True, min_width=26)
    for name in (make_visible(pair.first), make_visible(pair.second), "difference", "tasks", "p"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("")
    for rate in sorted(
        differing_rates(pair),
        key=lambda secondary_rate: (secondary_rate.adjusted is None, secondary_rate.adjusted or 0),
    ):
        table.add_row(
            rate.metric,
            *format_secondary(rate),
            str(rate.tasks),
            "" if rate.adjusted is None else f"{rate.adjusted:.3f}",
            Text(
                "" if rate.word == UNCLEAR_WORD else rate.word,
                style=VERDICT_COLOURS.get(rate.word, "dim"),
            ),
        )
    return table


def render_attempt_pair(pair: AttemptPair) -> Iterator[RenderableType]:
    """Render both results, their costs, the scores that differ, and the diff of their diffs."""
    from rich.table import Table
    from rich.text import Text

    yield Text(make_visible(pair.sentence), style="bold")
    yield Text("One attempt each shows how they differ, not which agent is better.")
    ratios = [f"{name} {ratio:.2f} ×" for name, ratio in pair.ratios.items() if ratio is not None]
    if ratios:
        yield Text(f"B relative to A: {', '.join(ratios)}")
    table = Table(box=None)
    table.add_column("score", no_wrap=True)
    for name in ("A", "B"):
        table.add_column(name, justify="right", no_wrap=True)
    differing = [score for score in pair.scores if score.differs]
    for pair_score in differing:
        score_values = (
            "–" if value is None else f"{value:.3g}"
            for value in (pair_score.first, pair_score.second)
        )
        table.add_row(Text(make_visible(pair_score.definition.name)), *score_values)
    if differing:
        yield Text()
        yield table
    yield Text()
    yield from render_compared_files(pair.files)


def render_compared_files(files: Sequence[ComparedFile]) -> Iterator[RenderableType]:
    """Render the lines of two changes, with `A` or `B` before those that only one has."""
    from rich.text import Text

    if not files:
        yield Text("No change is recorded for either attempt.", style="dim")
    for file in files:
        counts = f"{file.both} in both, {file.first} only A, {file.second} only B"
        yield Text(f"{make_visible(file.path)} ({file.state}: {counts})", style="bold")
        for line in file.lines if file.state != "same" else ():
            side = {"both": " ", "first": "A", "second": "B"}[line.by]
            style = {"both": "dim", "first": "cyan", "second": "yellow"}[line.by]
            yield Text(f"{side} {line.sign}{make_visible(line.text)}", style=style)
        if file.left_out:
            yield Text(f"… and {count_with_noun(file.left_out, 'more line')}", style="dim")
