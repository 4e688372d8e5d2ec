"""Trials of variants in production: assignment, results, and when to stop."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from math import isclose, isnan
from statistics import fmean

from msgspec.structs import replace

from closeloop.metrics.attempt_table import AttemptTable, MeasuringProgress, load_attempt_table
from closeloop.metrics.metric_definitions import METRICS, correctness_values
from closeloop.metrics.metric_trends import estimate_shift
from closeloop.metrics.score_columns import (
    ScoreCatalogue,
    attach_scores,
    build_catalogue,
    derived_definitions,
    find_metric,
    split_source,
)
from closeloop.process.rulebook import Rulebook
from closeloop.records.errors import BadInput, unknown_name_error
from closeloop.records.estimate import Estimate
from closeloop.records.experiment_plan import (
    OutcomeComparison,
    PromptEffect,
    Trial,
    TrialArm,
    TrialAssignment,
    TrialCall,
    TrialReport,
    TrialStanding,
)
from closeloop.records.settings import MemorySettings
from closeloop.statistics.rate_comparison import (
    DEFAULT_MARGIN,
    classify_difference,
    outcomes_needed,
)
from closeloop.statistics.sequences import check_sample_ratio, estimate_mean, monitor_difference
from closeloop.store import Store
from closeloop.store.metrics_section import AttemptSpan
from closeloop.text.wording import format_points

MEMORY_TRIAL = "memory"
"""Name of the trial of agent context: all work that may be given team rules is in it."""
DEFAULT_TRIAL_METRIC = "task completion rate"
MAX_PROJECTED = 20_000
"""Number of outcomes up to which a trial is projected."""
REPORTED_METRICS = ("merge rate", "failure rate", "revision cycles", "tokens in")
TrialOutcomes = Mapping[str, Mapping[str, float]]
"""By metric and key, the known values."""


def parse_shares(text: str) -> dict[str, float]:
    """Parse shares typed as `a=0.5,b=0.5`."""
    shares: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = (piece.strip() for piece in part.partition("="))
        try:
            share = float(value)
        except ValueError:
            share = 0.0
        if not name or name in shares or not 0 < share < 1:
            raise BadInput(f"{part!r} is not a share: write variants as a=0.5,b=0.5.")
        shares[name] = share
    if not isclose(sum(shares.values()), 1):
        raise BadInput("The shares must add up to 1: write variants as a=0.5,b=0.5.")
    return shares


def require_rate(name: str, catalogue: ScoreCatalogue) -> None:
    """Raise BadInput unless it is a rate: only a rate can decide, as its values are bounded."""
    rates = [metric.name for metric, _ in METRICS.values() if metric.kind == "rate"]
    rates += [
        derived_definition.name
        for derived_definition in derived_definitions().values()
        if derived_definition.kind == "rate"
    ]
    rates += [
        definition.name
        for definition in catalogue.definitions.values()
        if definition.kind == "rate"
    ]
    if split_source(name)[1] not in rates:
        raise unknown_name_error("rate", name, rates)


def assign_variant(store: Store, trial: Trial, key: str, now: datetime) -> TrialAssignment:
    """Assign work to a variant before it starts; the same key always gets the same variant."""
    if not key.strip():
        raise BadInput("Nothing to assign: give a task, a branch or an attempt.")
    assignment = TrialAssignment(
        trial=trial.name, key=key, variant=draw_variant(trial, key), at=now
    )
    return store.trials.save_assignment(assignment)


def draw_variant(trial: Trial, key: str) -> str:
    """Choose a variant by a hash of the key, which nobody can influence."""
    digest = hashlib.sha256(f"{trial.name}\0{key}".encode("utf-8", "replace")).digest()
    position, upper = int.from_bytes(digest[:8]) / 2**64, 0.0
    for variant, share in trial.shares.items():
        upper += share
        if position < upper:
            return variant
    return [*trial.shares][-1]


def memory_trial(store: Store, settings: MemorySettings, metric: str) -> Trial | None:
    """Return the control arm of memory as a trial; None if no work was given agent context."""
    offers = store.memory.list_context_records()
    if not offers:
        return None
    control = settings.control or 0.5
    return Trial(
        name=MEMORY_TRIAL,
        shares={"control": control, "memory": 1 - control},
        metric=metric,
        started=min(record.at for record in offers),
    )


def list_trials(
    store: Store, settings: MemorySettings, metric: str = DEFAULT_TRIAL_METRIC
) -> list[Trial]:
    """List all trials: those that were started, then memory's."""
    trials = (store.trials.load_trial(name) for name in store.trials.list_trial_names())
    return [
        trial for trial in (*trials, memory_trial(store, settings, metric)) if trial is not None
    ]


def list_assigned(store: Store, trial: Trial) -> list[TrialAssignment]:
    """List the assignment of each piece of work, in order."""
    if trial.name != MEMORY_TRIAL:
        return store.trials.list_assignments(trial.name)
    first: dict[str, TrialAssignment] = {}
    for record in sorted(store.memory.list_context_records(), key=lambda offered: offered.at):
        assignment = TrialAssignment(
            trial=trial.name, key=record.key, variant=record.arm, at=record.at
        )
        first.setdefault(record.key, assignment)
    return [*first.values()]


def report_trial(
    store: Store,
    rulebook: Rulebook,
    trial: Trial,
    report_progress: MeasuringProgress = lambda done, of: None,
    catalogue: ScoreCatalogue | None = None,
) -> TrialReport:
    """Report how the variants do, and whether the trial may stop."""
    span = AttemptSpan(since=trial.started)
    work = load_attempt_table(store, rulebook, span, report_progress)
    work = attach_scores(
        work, store, catalogue or build_catalogue({}), (trial.metric,), span, report_progress
    )
    return report_on_work(work, trial, list_assigned(store, trial))


def report_on_work(
    work: AttemptTable, trial: Trial, assigned: Sequence[TrialAssignment]
) -> TrialReport:
    """Report on attempts that are loaded with the deciding score."""
    is_memory = trial.name == MEMORY_TRIAL
    outcomes = join_outcomes(work, assigned, trial)
    drawn, drawn_outcomes = (
        _merge_tasks(work, assigned, outcomes) if is_memory else (assigned, outcomes)
    )
    less_is_better = find_metric(work, trial.metric)[0].better == "less"
    counts = Counter(assignment.variant for assignment in drawn)
    ratio = check_sample_ratio(counts, trial.shares)
    refusal = None
    if is_memory and "control" not in counts:
        refusal = "There is no control group: set memory.control to its share of the work."
    elif ratio is not None and not ratio.holds:
        refusal = (
            f"Sample ratio mismatch: {_describe_shares(counts, trial)} (p {ratio.p:.1g}). "
            "Find out which work is missing before comparing."
        )
    arms = tuple(_summarise_arm(trial, name, drawn, drawn_outcomes) for name in trial.shares)
    other_variants = [*trial.shares][1:]
    return TrialReport(
        trial=trial,
        ratio=ratio,
        arms=arms,
        standings=()
        if refusal
        else tuple(
            _compare_arm(trial, name, drawn, drawn_outcomes[trial.metric], less_is_better)
            for name in other_variants
        ),
        refusal=refusal,
    )


def _describe_shares(counts: Mapping[str, int], trial: Trial) -> str:
    """Describe what was assigned to each variant, and what was planned."""
    total = sum(counts.values())
    return ", ".join(
        f"{name} has {counts.get(name, 0):,} of {total:,} instead of {share:.0%}".replace("%", " %")
        for name, share in trial.shares.items()
    )


def _merge_tasks(
    work: AttemptTable, assigned: Sequence[TrialAssignment], outcomes: TrialOutcomes
) -> tuple[list[TrialAssignment], dict[str, dict[str, float]]]:
    """Merge to one outcome per task: all attempts at a task are in the same arm.

    Its repeats and variants are not further random assignments, so their mean counts once.
    """
    tasks = dict(zip(work.attempts, work.columns["task_digest"].tolist(), strict=True))
    merged: dict[str, TrialAssignment] = {}
    values: dict[str, dict[str, list[float]]] = {name: {} for name in outcomes}
    for assignment in assigned:
        key = f"task {task}" if (task := tasks.get(assignment.key)) else assignment.key
        merged.setdefault(key, replace(assignment, key=key))
        for name, metric_outcomes in outcomes.items():
            if assignment.key in metric_outcomes:
                values[name].setdefault(key, []).append(metric_outcomes[assignment.key])
    means = {
        name: {key: fmean(key_values) for key, key_values in by_key.items()}
        for name, by_key in values.items()
    }
    return [*merged.values()], means


def join_outcomes(
    work: AttemptTable, assigned: Sequence[TrialAssignment], trial: Trial
) -> dict[str, dict[str, float]]:
    """Return each piece of work's outcome: of its last attempt started after the assignment."""
    columns = work.columns
    rows_by_key: dict[str, list[int]] = {}
    for keys in (work.attempts, columns["branch"].tolist(), columns["task"].tolist()):
        for row, key in enumerate(keys):
            if key is not None:
                rows_by_key.setdefault(key, []).append(row)
    started = columns["started"]
    values = {
        trial.metric: find_metric(work, trial.metric)[1](columns),
        "merge rate": columns["merged"],
        "failure rate": 1 - correctness_values(columns),
        "revision cycles": columns["cycles"],
        "tokens in": columns["input_tokens"],
    }
    outcomes: dict[str, dict[str, float]] = {name: {} for name in values}
    for assignment in assigned:
        assigned_at = assignment.at.timestamp() * 1e6
        later_rows = [
            later_row
            for later_row in rows_by_key.get(assignment.key, ())
            if started[later_row] >= assigned_at
        ]
        last = max(later_rows, key=lambda later_row: float(started[later_row]), default=None)
        for name, column in values.items():
            if last is not None and not isnan(column[last]):
                outcomes[name][assignment.key] = float(column[last])
    return outcomes


def _summarise_arm(
    trial: Trial, name: str, assigned: Sequence[TrialAssignment], outcomes: TrialOutcomes
) -> TrialArm:
    arm_keys = [assignment.key for assignment in assigned if assignment.variant == name]
    values_by_metric = {
        metric: [metric_outcomes[key] for key in arm_keys if key in metric_outcomes]
        for metric, metric_outcomes in outcomes.items()
    }
    return TrialArm(
        variant=name,
        share=trial.shares[name],
        assigned=len(arm_keys),
        outcomes=len(values_by_metric[trial.metric]),
        rates={
            metric: fmean(values) if values else None for metric, values in values_by_metric.items()
        },
    )


def _compare_arm(
    trial: Trial,
    name: str,
    assigned: Sequence[TrialAssignment],
    metric_outcomes: Mapping[str, float],
    less_is_better: bool,
) -> TrialStanding:
    """Compare an arm with the first: at any time by a confidence sequence, or once at a horizon."""
    first = next(iter(trial.shares))
    outcomes = [
        (
            assignment.variant == name,
            1 - metric_outcomes[assignment.key]
            if less_is_better
            else metric_outcomes[assignment.key],
        )
        for assignment in assigned
        if assignment.key in metric_outcomes and assignment.variant in (first, name)
    ]
    share = trial.shares[name] / (trial.shares[first] + trial.shares[name])
    if trial.horizon is not None and len(outcomes) < trial.horizon:
        reason = f"{len(outcomes):,} of the {trial.horizon:,} planned outcomes are known"
        open_comparison = OutcomeComparison(
            margin=trial.margin, needed=trial.horizon - len(outcomes)
        )
        return TrialStanding(variant=name, call="go on", why=reason, comparison=open_comparison)
    if trial.horizon is None:
        comparison = compare_any_time(outcomes, share, trial.margin)
    else:
        comparison = compare_once(*split_sides(outcomes[: trial.horizon]), trial.margin)
    if comparison.difference is None:
        reason = "no outcome is known for both arms yet"
        return TrialStanding(variant=name, call="go on", why=reason, comparison=comparison)
    call = _decide_call(comparison, trial)
    return TrialStanding(variant=name, call=call, why=CALL_REASONS[call], comparison=comparison)


def split_sides(outcomes: Sequence[tuple[bool, float]]) -> tuple[list[float], list[float]]:
    """Split outcomes into those of the first and those of the second."""
    first = [value for second, value in outcomes if not second]
    return first, [value for second, value in outcomes if second]


def compare_any_time(
    outcomes: Sequence[tuple[bool, float]], share: float, margin: float
) -> OutcomeComparison:
    """Compare with bounds valid at any time; each outcome says whether it is the second's."""
    first, second = split_sides(outcomes)
    difference = monitor_difference(outcomes, share) if first and second else None
    verdict = classify_difference(difference, margin)
    if difference is None:
        return OutcomeComparison(verdict=verdict, margin=margin)
    rates = fmean(first), fmean(second)
    # The value shown beside both rates is their difference; the bounds are those of the sequence.
    within = min(difference.high, max(difference.low, rates[1] - rates[0]))
    difference = replace(difference, value=within)
    if verdict != "not enough data":
        return OutcomeComparison(verdict=verdict, difference=difference, margin=margin)
    total = project_outcomes(*rates, share, margin, len(outcomes))
    return OutcomeComparison(
        verdict=verdict,
        difference=difference,
        margin=margin,
        effect=max(margin, abs(rates[1] - rates[0])),
        needed=None if total is None else total - len(outcomes),
    )


def project_outcomes(
    first: float, second: float, share: float, margin: float, known_count: int
) -> int | None:
    """Return how many outcomes give a verdict at these rates; None if too many."""

    def is_decided(count: int) -> bool:
        path = _even_outcomes(first, second, share, count)
        return classify_difference(monitor_difference(path, share), margin) != "not enough data"

    low, high = known_count, max(known_count, 8)
    while not is_decided(high):
        low, high = high, 2 * high
        if low >= MAX_PROJECTED:
            return None
    while high - low > max(1, high // 20):
        middle = (low + high) // 2
        low, high = (low, middle) if is_decided(middle) else (middle, high)
    return high


def _even_outcomes(
    first: float, second: float, share: float, count: int
) -> list[tuple[bool, float]]:
    """Return outcomes at these rates, spread evenly."""
    path, seen_counts = [], [0, 0]
    for index in range(count):
        is_second = int((index + 1) * share) > int(index * share)
        rate, number = (first, second)[is_second], seen_counts[is_second]
        path.append((is_second, float(int((number + 1) * rate) - int(number * rate))))
        seen_counts[is_second] += 1
    return path


def compare_once(
    first: Sequence[float], second: Sequence[float], margin: float = DEFAULT_MARGIN
) -> OutcomeComparison:
    """Compare two groups of independent outcomes from 0 to 1, evaluated once."""
    shift = estimate_shift(first, second)
    if shift is None:
        return OutcomeComparison(margin=margin)
    value, total = shift.after.value - shift.before.value, len(first) + len(second)
    difference = Estimate(
        value=value,
        low=shift.low,
        high=shift.high,
        n=total,
        method="difference of two Wilson intervals",
    )
    verdict = classify_difference(difference, margin)
    effect = max(margin, abs(value))
    needed = outcomes_needed(first, second, effect) if verdict == "not enough data" else None
    return OutcomeComparison(
        verdict=verdict,
        difference=difference,
        margin=margin,
        effect=effect if verdict == "not enough data" else None,
        needed=None if needed is None else max(1, needed - total),
    )


def _decide_call(comparison: OutcomeComparison, trial: Trial) -> TrialCall:
    if comparison.verdict in ("better", "worse"):
        return "better" if comparison.verdict == "better" else "worse"
    return (
        "go on" if comparison.verdict == "not enough data" and trial.horizon is None else "hopeless"
    )


CALL_REASONS: dict[TrialCall, str] = {
    "better": "stop: the difference is clear",
    "worse": "stop: the difference is clear",
    "hopeless": "stop: no relevant difference",
    "go on": "continue: it may be better or worse",
}


def describe_needed(comparison: OutcomeComparison) -> str:
    """Describe how many more outcomes are needed; empty if it is decided."""
    if comparison.verdict != "not enough data" or comparison.effect is None:
        return ""
    size = f"a difference of {format_points(comparison.effect)}"
    if comparison.needed is None:
        return f"no feasible number of outcomes would detect {size}"
    return f"about {comparison.needed:,} more outcomes are needed to detect {size}"


# Did results improve after a version of a prompt?


def measure_prompt_effect(
    work: AttemptTable,
    old: str,
    new: str,
    metric: str = "merge rate",
    margin: float = DEFAULT_MARGIN,
) -> PromptEffect:
    """Compare work with one prompt with work with another; times and tasks differ as well."""
    definition, values_of = find_metric(work, metric)
    if definition.kind != "rate":
        raise BadInput(f"{metric!r} is not a rate: choose a rate, such as 'merge rate'.")
    values, prompts = values_of(work.columns), work.columns["prompt"]
    sides = []
    for prompt in (old, new):
        prompt_values = values[prompts.are({prompt})].tolist()
        sides.append([value for value in prompt_values if not isnan(value)])
    is_less = definition.better == "less"
    before, after = ([1 - value for value in side] if is_less else side for side in sides)
    notes = ["Observational: work with two versions may differ in more than the prompt."]
    if not all(sides):
        lacking = " and ".join(
            name[:12] for name, side in zip((old, new), sides, strict=True) if not side
        )
        notes.append(f"No {metric} is known for work with {lacking}.")
    return PromptEffect(
        metric=metric,
        old=old,
        new=new,
        before=estimate_mean(sides[0]),
        after=estimate_mean(sides[1]),
        comparison=compare_once(before, after, margin),
        notes=tuple(notes),
    )
