"""Compare groups of attempts with the first one, and with a baseline: is one better?

On tasks that both tried, task by task; if they share none, as independent groups, which shows a
difference and no cause.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import inf, nan
from statistics import fmean
from typing import TYPE_CHECKING, Any
from xml.etree.ElementTree import Element, SubElement

from msgspec.structs import replace

from closeloop.changes.report_formats import serialise_xml, set_case_counts, to_xml_text
from closeloop.metrics.attempt_groups import (
    AttemptSelection,
    covering_span,
    select_attempts,
    selection_mask,
)
from closeloop.metrics.attempt_measuring import MeasuredAttempt
from closeloop.metrics.attempt_table import AttemptTable, MeasuringProgress, load_attempt_table
from closeloop.metrics.metric_definitions import (
    PASS_KINDS,
    PRIMARY_METRIC,
    count_passes,
    describe_passes,
    is_pass_by,
)
from closeloop.metrics.metric_figures import REPEAT_KINDS, number_tasks
from closeloop.metrics.score_columns import (
    ScoreCatalogue,
    attach_scores,
    build_catalogue,
    find_metric,
)
from closeloop.metrics.variant_pairs import (
    ComparedSide,
    collect_task_values,
    collect_unit_values,
    compare_independent_sides,
    compare_with_first,
)
from closeloop.process.rulebook import Rulebook
from closeloop.records.errors import BadInput, unknown_name_error
from closeloop.records.estimate import CompareReport, Metric, VariantSide
from closeloop.records.experiment_plan import (
    Baseline,
    BaselineVerdict,
    GateDemands,
    GateReport,
    MetricDifference,
    MetricThreshold,
    TaskDifference,
)
from closeloop.records.finding import ProcessScore
from closeloop.statistics.mean_comparison import compare_means
from closeloop.statistics.rate_comparison import DEFAULT_MARGIN, DifferenceInterval, rate_difference
from closeloop.statistics.rate_estimate import TaskValues
from closeloop.store import Store
from closeloop.text.wording import count_with_noun, format_percent

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]


# Are results worse than a saved baseline, beyond noise?


# What a gate checks: each metric, each task, and every threshold that is set.

GATE_METRICS = ("passed", "without gating findings", *ProcessScore.__struct_fields__)
"""For all of them, more is better."""
EACH_TASK = "each task"
MEANS_METHOD = "difference of task means, noise of repeats pooled"
NO_SCORES: Mapping[str, Mapping[str, float]] = {}

MeasuredSides = Mapping[str, Sequence[MeasuredAttempt]]


def group_by_variant(side: Iterable[MeasuredAttempt]) -> dict[str, list[MeasuredAttempt]]:
    """Group by the variant's name, which stays the same when an agent changes."""
    variants: dict[str, list[MeasuredAttempt]] = {}
    for attempt in side:
        variants.setdefault(attempt.row.variant_name or attempt.row.agent or "?", []).append(
            attempt
        )
    return variants


def collect_gate_values(
    side: Iterable[MeasuredAttempt],
    metric: str,
    gating: frozenset[str],
    scores: Mapping[str, Mapping[str, float]] = NO_SCORES,
) -> TaskValues:
    """Return, by task, the values of a metric or score in its attempts."""
    values: dict[str, list[float]] = {}
    for attempt in side:
        value = (
            _gate_value(attempt, metric, gating)
            if metric in GATE_METRICS
            else scores.get(attempt.row.id, {}).get(metric)
        )
        if value is not None:
            values.setdefault(attempt.row.task_digest or "", []).append(value)
    return values


def _gate_value(attempt: MeasuredAttempt, metric: str, gating: frozenset[str]) -> float | None:
    if metric == "passed":
        return {"pass": 1.0, "fail": 0.0}.get(attempt.row.outcome or "")
    if metric == "without gating findings":
        if not gating:
            return None  # not examined, and no control group
        unsilenced = (
            finding for finding in attempt.measurement.findings if finding.silenced is None
        )
        return float(not any(f.rule in gating and f.severity != "info" for f in unsilenced))
    rate = getattr(attempt.measurement.score, metric)
    return rate.value if rate is not None else None


def parse_thresholds(thresholds: Iterable[str], scores: Mapping[str, Metric]) -> dict[str, float]:
    """Parse thresholds such as `passed=0.9`, `each task=0.5` and `would-merge=0.8`."""
    thresholds_by_name = {}
    for threshold in thresholds:
        name, equals, value = (part.strip() for part in threshold.rpartition("="))
        if not equals:
            raise BadInput(f"{threshold!r} is not a threshold: add a value, as in passed=0.9.")
        if name not in (*GATE_METRICS, EACH_TASK, *scores):
            raise unknown_name_error(
                "metric of the gate", name, (*GATE_METRICS, EACH_TASK, *scores)
            )
        try:
            number = float(value)
        except ValueError:
            number = nan
        high = scores[name].high if name in scores and scores[name].kind != "rate" else 1.0
        if not 0 <= number <= (inf if high is None else high):
            raise BadInput(
                f"{threshold!r} is not a threshold: give a rate between 0 and 1, as in passed=0.9."
            )
        thresholds_by_name[name] = number
    return thresholds_by_name


def threshold_names(thresholds: Iterable[str]) -> list[str]:
    """Return the scores named in thresholds, without the gate's own metrics."""
    names = (threshold.rpartition("=")[0].strip() for threshold in thresholds)
    return [name for name in names if name and name not in (*GATE_METRICS, EACH_TASK)]


def task_differences(before: MeasuredSides, current: MeasuredSides) -> Iterator[TaskDifference]:
    """Yield the difference of each task, with bounds that hold for all of them at once."""
    pairs = []
    for name in (name for name in current if name in before):
        values_before, values = (
            collect_gate_values(side[name], "passed", frozenset()) for side in (before, current)
        )
        pairs += [
            (name, task, values_before.get(task, ()), repeats) for task, repeats in values.items()
        ]
    names = {
        attempt.row.task_digest: attempt.row.task for side in current.values() for attempt in side
    }
    comparable = max(1, sum(len(earlier) > 0 for _, _, earlier, _ in pairs))
    for name, task, earlier_repeats, repeats in pairs:
        yield TaskDifference(
            variant=name,
            task=names.get(task) or task,
            verdict=classify_interval(
                rate_difference({task: earlier_repeats}, {task: repeats}, comparisons=comparable)
            ),
            before=fmean(earlier_repeats) if earlier_repeats else None,
            now=fmean(repeats),
            repeats=len(repeats),
        )


def classify_interval(interval: DifferenceInterval | None) -> BaselineVerdict:
    """Return the verdict that the bounds of a difference allow."""
    if interval is None:
        return "not enough data"
    if interval.high < 0:
        return "worse"
    return "better" if interval.low > 0 else "no clear difference"


def check_thresholds(
    current: MeasuredSides, demands: GateDemands, gating: frozenset[str]
) -> Iterator[MetricThreshold]:
    """Yield whether each threshold holds; unscored values do not."""
    for variant, side in current.items():
        for metric, threshold in demands.least.items():
            better = demands.scores[metric].better if metric in demands.scores else "more"
            name = "passed" if metric == EACH_TASK else metric
            values = collect_gate_values(side, name, gating, demands.values)
            means = [fmean(repeats) for repeats in values.values()]
            value = (min if metric == EACH_TASK else fmean)(means) if means else None
            yield MetricThreshold(
                variant=variant,
                metric=metric,
                least=threshold,
                value=value,
                holds=value is not None
                and (value <= threshold if better == "less" else value >= threshold),
                better=better,
            )


def list_gate_reasons(report: GateReport) -> Iterator[str]:
    """Yield the reasons why the gate fails, one line each."""
    for difference in report.differences:
        if difference.verdict == "worse":
            change = describe_rate_change(difference)
            yield f"{difference.variant}: {difference.metric} is worse, {change}"
        elif _is_inconclusive(difference, report.margin):
            yield (
                f"{difference.variant}: it is not shown that {difference.metric} is worse by "
                f"no more than {report.margin:g}: run more repeats or tasks"
            )
    for task in report.tasks:
        if task.verdict == "worse":
            yield f"{task.variant}: task {task.task} is worse, {describe_rate_change(task)}"
    for demand in report.thresholds:
        if not demand.holds:
            yield (
                f"{demand.variant}: {demand.metric} must be {describe_threshold(demand)}, "
                f"and {describe_threshold_value(demand)}"
            )


def describe_rate_change(difference: MetricDifference | TaskDifference) -> str:
    """Describe the values before and now."""
    if difference.before is None or difference.now is None:
        return "not enough data"
    if isinstance(difference, MetricDifference) and is_mean_difference(difference):
        return f"{difference.before:.3g} before, {difference.now:.3g} now"
    return f"{format_percent(difference.before)} before, {format_percent(difference.now)} now"


def is_mean_difference(difference: MetricDifference) -> bool:
    """Whether it is of a score that is not a rate."""
    return difference.method == MEANS_METHOD


def describe_threshold(demand: MetricThreshold) -> str:
    """Describe the threshold: `0.9 or more`, or `or less` if less is better."""
    return f"{demand.least:g} or {'less' if demand.better == 'less' else 'more'}"


def describe_threshold_value(demand: MetricThreshold) -> str:
    return "nothing was scored" if demand.value is None else f"is {demand.value:.2f}"


def _is_inconclusive(difference: MetricDifference, margin: float | None) -> bool:
    """Whether it is not shown to be within the margin."""
    if margin is None or difference.metric != "passed":
        return False
    return difference.low is None or difference.low < -margin


MIN_COVERAGE = 0.9
"""Share of attempts that must be scored for a verdict."""
NO_DEMANDS = GateDemands()


def compare_with_baseline(
    baseline: Baseline | None,
    before: Sequence[MeasuredAttempt],
    current: Sequence[MeasuredAttempt],
    experiment: str,
    gating: frozenset[str],
    demands: GateDemands = NO_DEMANDS,
) -> GateReport:
    """Compare every metric of every variant on both sides; passes if nothing speaks against it."""
    sides = group_by_variant(before), group_by_variant(current)
    common_variants = [name for name in sides[1] if name in sides[0]]
    pairs = {
        (name, metric): (
            collect_gate_values(sides[0][name], metric, gating, demands.values),
            collect_gate_values(sides[1][name], metric, gating, demands.values),
        )
        for name in common_variants
        for metric in (*GATE_METRICS, *demands.scores)
    }
    measurable = sum(any(task in second for task in first) for first, second in pairs.values())
    differences = tuple(
        _metric_difference(name, metric, (first, second), measurable, demands.scores.get(metric))
        for (name, metric), (first, second) in pairs.items()
    )
    report = GateReport(
        baseline=baseline,
        experiment=experiment,
        passed=True,
        differences=differences,
        tasks=tuple(task_differences(*sides)) if baseline else (),
        thresholds=tuple(check_thresholds(sides[1], demands, gating)),
        margin=demands.margin,
        coverage=scored_share(current),
        left_out=(
            *(_list_unmatched_tasks(*sides) if baseline else ()),
            *_list_unscored(sides[1], demands),
        ),
        rules=tuple(sorted(gating)),
        passes=count_passes(attempt.row for attempt in current),
    )
    reasons = tuple(list_gate_reasons(report))
    return replace(report, passed=not reasons, reasons=reasons)


def scored_share(side: Sequence[MeasuredAttempt]) -> float | None:
    """Return the share of scored attempts, among those at tasks with a check."""
    task_rows = [
        attempt.row
        for attempt in side
        if attempt.row.task is not None and not attempt.row.is_for_review
    ]
    return (
        sum(row.outcome in ("pass", "fail") for row in task_rows) / len(task_rows)
        if task_rows
        else None
    )


def gate_refusal(report: GateReport) -> str | None:
    """Return why the gate gives no verdict; None if it does."""
    if report.coverage is None or report.coverage >= MIN_COVERAGE:
        return None
    return (
        f"only {format_percent(report.coverage)} of the attempts could be scored, too "
        "few for a verdict: run `closeloop run` again to retry the others."
    )


def _metric_difference(
    variant: str,
    metric: str,
    sides: tuple[TaskValues, TaskValues],
    comparisons: int,
    score: Metric | None,
) -> MetricDifference:
    """Compare a metric; scores that are not rates by their means, by the score's own direction."""
    if score is not None and score.kind != "rate":
        return _mean_difference(variant, score, sides, max(1, comparisons))
    interval = rate_difference(*sides, comparisons=max(1, comparisons))
    verdict = classify_interval(interval)
    if score is not None and score.better == "less":
        verdict = OPPOSITE_VERDICTS.get(verdict, verdict)
    if interval is None:
        return MetricDifference(variant=variant, metric=metric, verdict=verdict, tasks=0)
    return MetricDifference(
        variant=variant,
        metric=metric,
        verdict=verdict,
        tasks=interval.tasks,
        before=interval.first,
        now=interval.second,
        low=interval.low,
        high=interval.high,
    )


def _mean_difference(
    variant: str, score: Metric, sides: tuple[TaskValues, TaskValues], comparisons: int
) -> MetricDifference:
    compared = compare_means(*sides, margin=0.0, comparisons=comparisons)
    estimate = compared.here
    verdict: BaselineVerdict = "not enough data"
    if estimate is not None:
        verdict = (
            "better"
            if estimate.low > 0
            else "worse"
            if estimate.high < 0
            else "no clear difference"
        )
        if score.better == "less":
            verdict = OPPOSITE_VERDICTS.get(verdict, verdict)
    return MetricDifference(
        variant=variant,
        metric=score.name,
        verdict=verdict,
        tasks=compared.tasks,
        before=compared.first,
        now=compared.second,
        low=estimate.low if estimate else None,
        high=estimate.high if estimate else None,
        method=MEANS_METHOD,
    )


OPPOSITE_VERDICTS: dict[BaselineVerdict, BaselineVerdict] = {"better": "worse", "worse": "better"}


def _list_unscored(current: MeasuredSides, demands: GateDemands) -> Iterator[str]:
    """Yield variants with too few of the requested scores, so that a gate reports them."""
    for variant, side in current.items():
        for name in demands.scores:
            unscored = sum(name not in demands.values.get(attempt.row.id, {}) for attempt in side)
            if unscored > (1 - MIN_COVERAGE) * len(side):
                yield f"{unscored:,} of {len(side):,} attempts of {variant!r} have no {name}"


def _list_unmatched_tasks(
    before: Mapping[str, Sequence[MeasuredAttempt]],
    current: Mapping[str, Sequence[MeasuredAttempt]],
) -> Iterable[str]:
    for name in sorted(before.keys() - current.keys()):
        yield f"variant {name!r} is only in the baseline"
    for name in sorted(current.keys() - before.keys()):
        yield f"variant {name!r} is not in the baseline"
    old = {
        attempt.row.task: attempt.row.task_digest for side in before.values() for attempt in side
    }
    new = {
        attempt.row.task: attempt.row.task_digest for side in current.values() for attempt in side
    }
    for task in sorted(filter(None, old.keys() | new.keys())):
        if task not in new:
            yield f"task {task!r} is only in the baseline"
        elif task not in old:
            yield f"task {task!r} is not in the baseline"
        elif old[task] != new[task]:
            yield f"task {task!r} has another request than in the baseline"


# A gate's report as JUnit XML, which every build server displays.


def gate_to_junit(report: GateReport, refusal: str | None = None) -> str:
    """Return JUnit XML with a case per metric, task and threshold, failing as the gate does."""
    root = Element("testsuites", name="closeloop gate")
    suite = SubElement(root, "testsuite", name="metrics")
    for difference in report.differences:
        case = _add_case(
            suite,
            difference.metric,
            difference.variant,
            f"worse: {describe_rate_change(difference)}",
            difference.verdict == "worse",
        )
        if difference.verdict == "not enough data":
            SubElement(case, "skipped", message=difference.verdict)
    suite = SubElement(root, "testsuite", name="tasks")
    for task in report.tasks:
        _add_case(
            suite,
            task.task,
            task.variant,
            f"worse: {describe_rate_change(task)}",
            task.verdict == "worse",
        )
    suite = SubElement(root, "testsuite", name="thresholds")
    for demand in report.thresholds:
        name = f"{demand.metric} {describe_threshold(demand)}"
        _add_case(suite, name, demand.variant, describe_threshold_value(demand), not demand.holds)
    suite = SubElement(root, "testsuite", name="verdict")
    is_failed = not report.passed and not refusal
    verdict = _add_case(suite, "gate", "closeloop", "; ".join(report.reasons), is_failed)
    if refusal:
        SubElement(verdict, "error", message=to_xml_text(refusal), type="coverage")
    for element in (root, *root):
        set_case_counts(element)
    return serialise_xml(root)


def _add_case(suite: Element, name: str, group: str, reason: str, failed: bool) -> Element:
    case = SubElement(suite, "testcase", name=to_xml_text(name), classname=to_xml_text(group))
    if failed:
        SubElement(case, "failure", message=to_xml_text(reason), type="worse")
    return case


REVIEW_SCORE = "would-merge"
SESSION_SCORES = (PRIMARY_METRIC, "task completion rate", "without findings")
"""Scores for comparing sessions: the first that is known for all sides is used."""


def compare_by_name(  # noqa: PLR0913 - what the command takes
    store: Store,
    rulebook: Rulebook,
    names: Sequence[str],
    *,
    margin: float = DEFAULT_MARGIN,
    scores: Sequence[str] = (),
    catalogue: ScoreCatalogue | None = None,
    report_progress: MeasuringProgress = lambda done, of: None,
) -> CompareReport:
    """Compare variants, agents, models, prompts, repositories, experiments or periods by name.

    The first score decides, the others are exploratory.
    """
    if len(set(names)) < 2:
        given = f"Only {names[0]!r} is given" if names else "Nothing is given"
        raise BadInput(f"{given}: a comparison needs two or more different names.")
    variants = store.numbers.load_variants()
    choices = [select_attempts(name, variants, store) for name in names]
    span = covering_span(choices)
    work = load_attempt_table(store, rulebook, span, report_progress)
    names_at_hand = scores or default_scores(work, choices)
    work = attach_scores(
        work, store, catalogue or build_catalogue({}), names_at_hand, span, report_progress
    )
    return compare_variants(work, choices, margin=margin, scores=names_at_hand)


def default_scores(work: AttemptTable, choices: Sequence[AttemptSelection]) -> tuple[str, ...]:
    """Return the default score: whether tasks are resolved, by their checks.

    If no task has a check, whether people would merge; if a side has only sessions, the first
    session score that all sides have.
    """
    import numpy as np

    masks = [selection_mask(work, choice) for choice in choices]
    unchecked, at_task = work.columns["unchecked"], work.columns["task_digest"].known()
    is_at_tasks = [bool((mask & at_task).any()) for mask in masks]
    if not all(is_at_tasks) and any(mask.any() for mask in masks):
        for name in SESSION_SCORES:
            values = find_metric(work, name)[1](work.columns)
            if all(np.isfinite(values[mask]).any() for mask in masks):
                return (name,)
    is_all_unchecked = any(is_at_tasks) and all(unchecked[mask & at_task].all() for mask in masks)
    return (REVIEW_SCORE,) if is_all_unchecked else (PRIMARY_METRIC,)


def compare_variants(
    work: AttemptTable,
    choices: Sequence[AttemptSelection],
    *,
    margin: float = DEFAULT_MARGIN,
    scores: Sequence[str] = (PRIMARY_METRIC,),
) -> CompareReport:
    """Compare all with the first, by the first score."""
    primary, values_of = find_metric(work, scores[0])
    require_deciding(primary)
    values = values_of(work.columns)
    selected_masks = [selection_mask(work, choice) for choice in choices]
    _refuse_overlap(selected_masks, choices)
    masks = [mask & work.columns["task_digest"].known() for mask in selected_masks]
    left_out, dropped = _list_left_out_tasks(work, masks, choices)
    if primary.name == PRIMARY_METRIC:
        masks = [_drop_unchecked_tasks(work, mask, left_out) for mask in masks]
    if not _share_tasks(work, masks):
        return _compare_groups(
            work, selected_masks, choices, values, primary, (margin, scores, left_out)
        )
    compared_sides = [
        ComparedSide(
            side=_build_side(work, mask, choice, values),
            mask=mask,
            values=collect_task_values(work, mask, dropped, values),
        )
        for mask, choice in zip(masks, choices, strict=True)
    ]
    refusal = (
        next(_coverage_refusals(compared_sides), None) if primary.name == PRIMARY_METRIC else None
    )
    _refuse_incomparable(compared_sides, left_out if refusal is None else None, primary)
    notes = (*work.notes, *(choice.note for choice in choices if choice.note))
    if primary.name != PRIMARY_METRIC:
        notes += tuple(_coverage_notes(compared_sides, primary))
    notes += tuple(_evidence_notes(compared_sides, primary))
    if len({(choice.since, choice.until) for choice in choices}) > 1:
        notes += ("Observational: other things may have changed between the periods.",)
    return CompareReport(
        sides=tuple(compared_side.side for compared_side in compared_sides),
        pairs=()
        if refusal
        else compare_with_first(work, compared_sides, margin, primary, scores[1:]),
        refusal=refusal,
        left_out=tuple(left_out),
        notes=notes,
    )


def _share_tasks(work: AttemptTable, masks: Sequence[Array]) -> bool:
    """Whether each side tried a task that the first one tried."""
    tasks = work.columns["task_digest"]
    first, *other_sets = [{*tasks[mask].tolist()} for mask in masks]
    return all(first & other_tasks for other_tasks in other_sets)


def _compare_groups(
    work: AttemptTable,
    masks: Sequence[Array],
    choices: Sequence[AttemptSelection],
    values: Array,
    primary: Metric,
    options: tuple[float, Sequence[str], Sequence[str]],
) -> CompareReport:
    """Compare sides without a common task: each task or session has equal weight."""
    margin, scores, left_out = options
    units = number_tasks(work)
    sides = [
        ComparedSide(
            side=_build_side(work, mask, choice, values),
            mask=mask,
            values=collect_unit_values(units, mask, values),
        )
        for mask, choice in zip(masks, choices, strict=True)
    ]
    for side in sides:
        if not side.side.attempts:
            raise BadInput(
                f"{side.side.name!r} matches no attempt and no session: add some with "
                "`closeloop run` or `closeloop import`."
            )
        if not side.side.scored:
            raise BadInput(
                f"{primary.name} is unknown for {side.side.name!r}: choose another "
                "score of `closeloop score list` with --score."
            )
    notes = (
        *work.notes,
        *(choice.note for choice in choices if choice.note),
        *_coverage_notes(sides, primary),
        *_evidence_notes(sides, primary),
    )
    return CompareReport(
        sides=tuple(side.side for side in sides),
        pairs=compare_independent_sides(work, sides, margin, primary, scores[1:]),
        left_out=tuple(note for note in left_out if "was not tried by all" not in note),
        notes=notes,
    )


def require_deciding(metric: Metric) -> None:
    """Raise BadInput if a score cannot decide: over repeats, or without a better direction."""
    if metric.kind in (*REPEAT_KINDS, "sum", "per pass"):
        raise BadInput(
            f"{metric.name!r} is not a score of single attempts: use {metric.score!r} instead."
        )
    if metric.better is None:
        raise BadInput(
            f"It is not declared whether higher or lower values of {metric.name!r} are "
            "better, so it cannot decide: put it after another --score, or declare "
            "`better` in closeloop.toml."
        )


def _drop_unchecked_tasks(work: AttemptTable, mask: Array, left_out: list[str]) -> Array:
    """Return the attempts at tasks with a check; the others need reviews by people."""
    is_unchecked = mask & work.columns["unchecked"]
    for name in sorted({*work.columns["task"][is_unchecked].tolist()} - {None}):
        line = (
            f"task {name!r} has no automatic check: compare people's reviews with `--score "
            f"{REVIEW_SCORE}`"
        )
        left_out += [] if line in left_out else [line]
    checked_mask: Array = mask & ~is_unchecked
    return checked_mask


def _coverage_notes(sides: Sequence[ComparedSide], primary: Metric) -> Iterator[str]:
    """Yield how many attempts of each side have the score, if not all; the others do not count."""
    for side in (compared.side for compared in sides):
        if side.scored < side.attempts:
            yield (
                f"{primary.name} is known for {side.scored:,} of {side.attempts:,} "
                f"attempts of {side.name!r}"
                + (
                    ": score all attempts, or a random sample."
                    if primary.family == "scores"
                    else "."
                )
            )


def _evidence_notes(sides: Sequence[ComparedSide], primary: Metric) -> Iterator[str]:
    """Yield how many passes of each side are not confirmed, if any."""
    for side in (compared.side for compared in sides if primary.name == PRIMARY_METRIC):
        passes = sum(side.passes.values())
        if others := passes - side.passes.get("confirmed", 0):
            yield (
                f"{others:,} of {count_with_noun(passes, 'pass', 'passes')} of {side.name!r} "
                f"{'is' if others == 1 else 'are'} not confirmed: {describe_passes(side.passes)}."
            )


def _build_side(
    work: AttemptTable, mask: Array, choice: AttemptSelection, values: Array
) -> VariantSide:
    import numpy as np

    columns = work.columns
    scored = np.isfinite(values[mask])
    count = int(mask.sum())
    return VariantSide(
        name=choice.name,
        variants=tuple(sorted({*columns["variant"][mask].tolist()} - {None})),
        tasks=len({*columns["task_digest"][mask].tolist()} - {None}),
        attempts=count,
        scored=int(scored.sum()),
        coverage=float(scored.mean()) if count else None,
        passes={
            kind: passes
            for kind in PASS_KINDS
            if (passes := int((mask & columns.compute(partial(is_pass_by, kind))).sum()))
        },
    )


def _refuse_overlap(masks: Sequence[Array], choices: Sequence[AttemptSelection]) -> None:
    for index, first in enumerate(masks):
        for other_index in range(index + 1, len(masks)):
            if shared := int((first & masks[other_index]).sum()):
                names = f"{choices[index].name!r} and {choices[other_index].name!r}"
                shared_count = count_with_noun(shared, "attempt")
                raise BadInput(
                    f"{names} have {shared_count} in common: give groups that do not overlap."
                )


def _refuse_incomparable(
    sides: Sequence[ComparedSide], left_out: Sequence[str] | None, primary: Metric
) -> None:
    """Raise BadInput for sides without an attempt, or without a common task to compare."""
    for side in sides:
        if not side.side.attempts:
            task = "a task with a check" if primary.score == "resolved" else "a task"
            raise BadInput(
                f"{side.side.name!r} has no attempt at {task}: run some with `closeloop run`."
            )
    first = sides[0]
    for other in sides[1:] if left_out is not None else ():
        if not first.values.keys() & other.values.keys():
            unscored = [
                candidate.side.name for candidate in (first, other) if not candidate.side.scored
            ]
            if primary.family == "scores" and unscored:
                names = " and ".join(map(repr, unscored))
                raise BadInput(
                    f"{primary.name} is unknown for {names}: add it with `closeloop review` or "
                    "`closeloop score`."
                )
            reason = f" ({left_out[0]})" if left_out else ""
            raise BadInput(
                f"{first.side.name!r} and {other.side.name!r} have no task in common{reason}: "
                "run both on the same tasks."
            )


def _coverage_refusals(sides: Sequence[ComparedSide]) -> Iterator[str]:
    for side in (compared.side for compared in sides):
        if side.coverage is not None and side.coverage < MIN_COVERAGE:
            yield (
                f"Only {format_percent(side.coverage)} of the attempts of "
                f"{side.name!r} could be scored; below {format_percent(MIN_COVERAGE)} "
                "there is no verdict: `closeloop run --again unscored` runs the "
                "others again."
            )


def _list_left_out_tasks(
    work: AttemptTable, masks: Sequence[Array], choices: Sequence[AttemptSelection]
) -> tuple[list[str], set[str]]:
    """Return notes on tasks that differ between sides, and the tasks graded in two ways."""
    columns = work.columns
    digests_by_task: dict[str, dict[str, set[str]]] = {}
    gradings_by_digest: dict[str, set[str]] = {}
    for mask, choice in zip(masks, choices, strict=True):
        for task, digest, grading in zip(
            columns["task"][mask].tolist(),
            columns["task_digest"][mask].tolist(),
            columns["grading"][mask].tolist(),
            strict=True,
        ):
            digests_by_task.setdefault(task or digest, {}).setdefault(choice.name, set()).add(
                digest
            )
            if grading is not None:
                gradings_by_digest.setdefault(digest, set()).add(grading)
    lines = []
    for task, by_side in sorted(digests_by_task.items()):
        if len(by_side) < len(choices):
            lines.append(f"task {task!r} was not tried by all variants")
        elif len({frozenset(digests) for digests in by_side.values()}) > 1:
            lines.append(f"task {task!r} had another request")
    dropped = {digest for digest, gradings in gradings_by_digest.items() if len(gradings) > 1}
    names = {
        key: task
        for task, sides in digests_by_task.items()
        for side in sides.values()
        for key in side
    }
    lines += [
        f"task {names[digest]!r} was graded by two versions of the grader: `closeloop "
        "run --again grades` grades all attempts the same way"
        for digest in sorted(dropped)
    ]
    return lines, dropped
