"""What is measured, in words and by column: the table that every figure refers to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, get_args

from closeloop.records.change import RiskLevel
from closeloop.records.estimate import (
    BetterDirection,
    Metric,
    MetricFamily,
    MetricKind,
    MetricSource,
)
from closeloop.records.finding import EndingCategory, FailureMode
from closeloop.text.wording import name_score

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]
    Columns = Mapping[str, Any]
    Values = Callable[[Columns], Array]

PRIMARY_METRIC = "pass rate"
PROCESS_RATES = {
    "handoff": "Of the facts at handoffs, those that arrived and were used",
    "feedback": "Of the failing checks, those whose output was acted on before the next check",
    "recovery": "Of the surprising states, those met by looking again, asking or saying so",
    "convergence": "Of the episodes of failure, those that ended with everything passing",
}


def column_values(name: str, columns: Columns) -> Array:
    """What a column holds."""
    values: Array = columns[name]
    return values


def _pass_values(columns: Columns) -> Array:
    """1 and 0 for pass and fail; else not known."""
    values: Array = columns["outcome"].each({"pass": 1.0, "fail": 0.0}.get)
    return values


def correctness_values(columns: Columns) -> Array:
    """Whether the suite passes and it builds: by the grade, or by what CI said."""
    import numpy as np

    graded = _pass_values(columns)
    return np.where(np.isnan(graded), columns["passed"], graded)


def _completion_values(columns: Columns) -> Array:
    import numpy as np

    passes, merged, corrected = correctness_values(columns), columns["merged"], columns["corrected"]
    # What failed or was not merged is no completion, whatever else is not known.
    is_incomplete = (passes == 0) | (merged == 0) | (corrected == 1)
    value = np.where(is_incomplete, 0.0, passes * merged * (1 - corrected))
    return np.where(np.isnan(merged), np.nan, value)


def _regression_values(columns: Columns) -> Array:
    import numpy as np

    has_regression = np.where(columns["broken"] > 0, 1.0, columns["regressed"])
    return np.where(_completion_values(columns) == 1, has_regression, np.nan)


def _blast_radius_values(name: str, columns: Columns) -> Array:
    """Of failed or reverted deliveries alone."""
    import numpy as np

    delivered = ~np.isnan(columns["merged"])
    is_failed = delivered & ((correctness_values(columns) == 0) | (columns["regressed"] == 1))
    touched = columns[name]
    if name == "files":
        touched = np.where(np.isnan(touched), columns["files_changed"], touched)
    return np.where(is_failed, touched, np.nan)


def _label_values(column: str, value: str, columns: Columns) -> Array:
    """Whether that is said; of modes, several may be."""
    values: Array = columns[column].each(
        lambda text: None if text is None else value in text.split(", ")
    )
    return values


def _ending_values(name: str, columns: Columns) -> Array:
    """Whether it ended so; where the ending is unknown, it was neither clean nor an error."""
    unknown = None if name in ("clean", "reasoning error") else False
    values: Array = columns["category"].each(
        lambda text: unknown if text == "unknown" else None if text is None else text == name
    )
    return values


def _clean_values(columns: Columns) -> Array:
    import numpy as np

    finding_counts = columns["findings"]
    return np.where(np.isnan(finding_counts), np.nan, finding_counts == 0)


_REPEATS_NOTE = (
    "by the unbiased estimator, over tasks that a variant tried twice or more; each of its "
    "variants counts. k is the fewest repeats there, five at most. Bounds on exactly these tasks."
)
# fmt: off
MetricRow = tuple[str, MetricKind, str, BetterDirection, "Values", str]
"""Name, kind, unit, what is better, the values of attempts, the definition."""
OUTCOME_METRICS: tuple[MetricRow, ...] = (
    (PRIMARY_METRIC, "rate", "", "more", _pass_values,
     "Attempts whose change passed grading ÷ scored attempts, by task, tasks weighing equally. "
     "Only the last try of a repeat counts; what the machine failed is unscored."),
    ("pass@k", "one of k", "", "more", _pass_values,
     f"The chance that at least one of k repeats of a task passes, {_REPEATS_NOTE}"),
    ("pass^k", "all of k", "", "more", _pass_values,
     f"The chance that each of k repeats of a task passes, {_REPEATS_NOTE}"),
    ("original failure fixed", "rate", "", "more", partial(column_values, "fixed"),
     "Attempts after which all that failed at the base passes ÷ scored attempts at tasks where "
     "something failed; what else the change broke does not matter here."),
    ("right files, precision", "rate", "", "more", partial(column_values, "files_precision"),
     "Of the files changed, the share that the reference changes too; tests left out."),
    ("right files, recall", "rate", "", "more", partial(column_values, "files_recall"),
     "Of the files that the reference changes, the share changed; tests left out."),
    ("similarity to the reference", "rate", "", None, partial(column_values, "similarity"),
     "Twice the changed lines that change and reference share ÷ the changed lines of both, layout "
     "and tests left out. Another way can be as right, so it never decides."),
    ("asked when ambiguous", "rate", "", "more", partial(column_values, "asked"),
     "Of the attempts at tasks that lack a decision, those with a question before the first edit."),
)
PRODUCTION_METRICS: tuple[MetricRow, ...] = (
    ("task completion rate", "rate", "", "more", _completion_values,
     "Tasks whose diff passes the whole suite, builds cleanly and was merged with no human "
     "correction ÷ scored tasks. An edited diff is no completion."),
    ("regression introduction rate", "rate", "", "less", _regression_values,
     "Completed tasks whose change broke something outside its scope: a test that passed before, "
     "a later revert or fix ÷ completed tasks."),
    ("review loop count", "mean", "cycles", "less", partial(column_values, "cycles"),
     "Mean rounds of human correction before the change could be merged. Healthy: 1."),
    *((f"blast radius, {name}", "median", name, "less", partial(_blast_radius_values, name),
       f"Of failed or reverted tasks: {name} touched; median, p90 and worst.")
      for name in ("files", "modules", "dependents")),
)
MEMORY_METRICS: tuple[MetricRow, ...] = (
    ("first-review merge rate", "rate", "", "more", partial(column_values, "first_review"),
     "Changes merged after their first review ÷ reviewed changes."),
    ("revision cycles", "mean", "cycles", "less", partial(column_values, "cycles"),
     "Mean rounds of revision of a pull request."),
    ("CI pass rate on first push", "rate", "", "more", partial(column_values, "first_push"),
     "Changes whose first push passed CI ÷ changes that CI looked at."),
    ("review comments", "mean", "comments", "less", partial(column_values, "comments"),
     "Mean comments of reviewers on a pull request."),
    ("time to PR", "median", "s", "less", partial(column_values, "seconds_to_open"),
     "Seconds from the task's start to the pull request: the median."),
    ("repeated mistakes", "sum", "comments", "less", partial(column_values, "repeated"),
     "Review comments that restate a rule stored before the pull request, confirmed; those that "
     "nobody confirmed stand beside it."),
)
PROCESS_METRICS: tuple[MetricRow, ...] = (
    *((name, "rate", "", "more", partial(column_values, name),
       f"{says}; the mean of the attempts of a task, tasks weighing equally.")
      for name, says in PROCESS_RATES.items()),
    ("iterations to convergence", "mean", "iterations", "less",
     partial(column_values, "converged_after"),
     "Rounds of changes and a check until nothing failed for good, where that came."),
    ("without findings", "rate", "", "more", _clean_values,
     "Attempts in which no rule found anything ÷ measured attempts."),
)
ENDING_METRICS: tuple[MetricRow, ...] = tuple(
    (name, "rate", "", "more" if name == "clean" else "less",
     partial(_ending_values, name),
     f"Attempts that ended as {name}, the first category that applies ÷ measured attempts"
     + (" whose ending is known." if name in ("clean", "reasoning error") else "."))
    for name in get_args(EndingCategory) if name != "unknown"
)
FAILURE_MODE_METRICS: tuple[MetricRow, ...] = tuple(
    (name, "rate", "", "less", partial(_label_values, "modes", name),
     f"Attempts that show {name} ÷ measured attempts; one may show several modes.")
    for name in get_args(FailureMode)
)
RISK_METRICS: tuple[MetricRow, ...] = tuple(
    (f"{name} risk", "rate", "", None, partial(_label_values, "risk", name),
     f"Changes of {name} risk ÷ delivered changes whose level is known.")
    for name in get_args(RiskLevel)
)
COST_METRICS: tuple[MetricRow, ...] = (
    ("cost", "mean", "$", "less", partial(column_values, "cost"),
     "Mean US dollars of an attempt, where they are known."),
    ("cost in all", "sum", "$", "less", partial(column_values, "cost"),
     "US dollars of all attempts that count, as far as they are known."),
    ("tokens in", "mean", "tokens", "less", partial(column_values, "input_tokens"),
     "Mean fresh input tokens of an attempt."),
    ("tokens out", "mean", "tokens", "less", partial(column_values, "output_tokens"),
     "Mean output tokens of an attempt."),
    ("time", "median", "s", "less", partial(column_values, "seconds"),
     "Seconds from an attempt's start to its end: the median."),
    ("turns", "median", "turns", "less", partial(column_values, "turns"),
     "Turns of all lanes of an attempt: the median."),
)
METRIC_FAMILIES: tuple[tuple[MetricFamily, MetricSource, tuple[MetricRow, ...]], ...] = (
    ("outcome", "grade", OUTCOME_METRICS),
    ("production", "people", PRODUCTION_METRICS),
    ("memory", "people", MEMORY_METRICS),
    ("process", "rules", PROCESS_METRICS),
    ("endings", "rules", ENDING_METRICS),
    ("failure modes", "rules", FAILURE_MODE_METRICS),
    ("risk", "people", RISK_METRICS),
    ("cost", "attempt", COST_METRICS),
)
# fmt: on

SCORE_NAMES = {
    PRIMARY_METRIC: "resolved",
    "pass@k": "resolved",
    "pass^k": "resolved",
    "asked when ambiguous": "asked",
    "similarity to the reference": "similarity",
    "task completion rate": "completed",
    "regression introduction rate": "regressed",
    "review loop count": "review-loops",
    "revision cycles": "review-loops",
    "first-review merge rate": "merged-at-first-review",
    "CI pass rate on first push": "passed-at-first-push",
    "iterations to convergence": "iterations",
    "cost in all": "cost",
    "time": "seconds",
    "time to PR": "seconds-to-pr",
}
"""What metrics are aggregates of, where the score goes by another name than the metric."""

METRICS: dict[str, tuple[Metric, Values]] = {
    name: (
        Metric(
            name=name,
            score=SCORE_NAMES.get(name) or name_score(name),
            family=family,
            kind=kind,
            source=source,
            unit=unit,
            better=better,
            says=says,
        ),
        values,
    )
    for family, source, rows in METRIC_FAMILIES
    for name, kind, unit, better, values, says in rows
}
"""By name: what it means, and its value for each attempt, NaN where there is none."""
