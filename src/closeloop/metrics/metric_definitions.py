"""The definitions of all metrics, and how each is computed from columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, get_args

from closeloop.records.attempt import AttemptRow, PassEvidence
from closeloop.records.change import RiskLevel
from closeloop.records.estimate import (
    BetterDirection,
    Metric,
    MetricFamily,
    MetricKind,
    MetricSource,
)
from closeloop.records.finding import EndingCategory, FailureMode, ModeSource
from closeloop.text.wording import name_score

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]
    Columns = Mapping[str, Any]
    Values = Callable[[Columns], Array]


# Columns of attempts on production and failure modes, attempt by attempt.
#
# A pull request is judged by what people did with it; an attempt of an experiment by its grade and,
# if a person reviewed it, by that review.


def pass_values(columns: Columns) -> Array:
    """Return 1 for pass and 0 for fail; else NaN."""
    values: Array = columns["outcome"].each({"pass": 1.0, "fail": 0.0}.get)
    return values


UNKNOWN_EVIDENCE = "unknown evidence"
PASS_KINDS = (*get_args(PassEvidence), UNKNOWN_EVIDENCE)
"""How passes are known: the evidence of a grade, unknown if an older version graded it."""


def is_pass_by(kind: str, columns: Columns) -> Array:
    """Return a mask of the passes that are known by one kind of evidence."""
    evidence = columns["evidence"]
    is_kind = ~evidence.known() if kind == UNKNOWN_EVIDENCE else evidence.are((kind,))
    mask: Array = columns["outcome"].are(("pass",)) & is_kind
    return mask


def count_passes(rows: Iterable[AttemptRow]) -> dict[str, int]:
    """Count the passes among some attempts by how they are known; no kinds without a pass."""
    counts = Counter(row.evidence or UNKNOWN_EVIDENCE for row in rows if row.outcome == "pass")
    return {kind: counts[kind] for kind in PASS_KINDS if counts[kind]}


def describe_passes(passes: Mapping[str, int]) -> str:
    """Describe how passes are known: `14 confirmed, 1 weak`; `` without any."""
    return ", ".join(f"{count:,} {kind}" for kind, count in passes.items() if count)


def correctness_values(columns: Columns) -> Array:
    """Return whether the suite passes and it builds: by the grade, else by CI."""
    import numpy as np

    graded = pass_values(columns)
    return np.where(np.isnan(graded), columns["passed"], graded)


def is_delivered(columns: Columns) -> Array:
    """Return a mask of pull requests that were merged or closed."""
    import numpy as np

    has_ended: Array = ~np.isnan(columns["merged"])
    return has_ended


def is_trial_run(columns: Columns) -> Array:
    """Return a mask of experiments' attempts without a pull request that has ended."""
    mask: Array = columns["origin"].are(("experiment",)) & ~is_delivered(columns)
    return mask


def sent_back_values(columns: Columns) -> Array:
    """Return whether a reviewer sent the work back: in a review round, or by refusing to merge."""
    import numpy as np

    refused = 1 - columns["would_merge"]
    rounds = columns["cycles"]
    reported = np.where(
        np.isnan(rounds), np.where(is_trial_run(columns), refused, np.nan), rounds > 0
    )
    return np.where(refused == 1, 1.0, reported)


def completion_values(columns: Columns) -> Array:
    """Return 1 if correct, merged and never corrected; 0 if one of these is false; else NaN."""
    import numpy as np

    passes, would_merge = correctness_values(columns), columns["would_merge"]
    merged, corrected = columns["merged"], columns["corrected"]
    sent_back = sent_back_values(columns)
    reviewed = (columns["reviewed"] == 1) | (would_merge == 1) | columns["unreviewed_completes"]
    is_denied = (passes == 0) | (merged == 0) | (corrected == 1) | (sent_back == 1)
    is_shown = (passes == 1) & (merged == 1) & (corrected == 0) & (sent_back == 0) & reviewed
    delivered = np.where(is_denied, 0.0, np.where(is_shown, 1.0, np.nan))
    # Without tests, the review is the only evidence.
    tested = np.where(np.isnan(passes), would_merge, np.where(would_merge == 0, 0.0, passes))
    trial = np.where(is_trial_run(columns), tested, np.nan)
    return np.where(is_delivered(columns), delivered, trial)


def is_tests_only(columns: Columns) -> Array:
    """Return a mask of attempts completed or not by tests alone: nobody reviewed them."""
    import numpy as np

    is_known = ~np.isnan(completion_values(columns))
    mask: Array = is_known & is_trial_run(columns) & np.isnan(columns["would_merge"])
    return mask


def is_expected(columns: Columns) -> Array:
    """Return a mask of work that should have an outcome: pull requests, production, tasks."""
    mask: Array = (
        is_delivered(columns)
        | columns["origin"].are(("production",))
        | columns["task_digest"].known()
    )
    return mask


def regression_values(columns: Columns) -> Array:
    """Return whether work that completed its task broke something else."""
    import numpy as np

    broke = np.where(columns["broken"] > 0, 1.0, columns["regressed"])
    # A review cannot show what a change broke if nothing tests it.
    is_tested = is_trial_run(columns) & ~np.isnan(pass_values(columns))
    broke = np.where(is_tested & np.isnan(broke), 0.0, broke)
    did_task = np.where(completion_values(columns) == 1, broke, np.nan)
    # The task's own tests pass, and the suite does not: no completion, and still a regression.
    is_silent = columns["modes"].matches(lambda text: "silent regression (grade)" in (text or ""))
    return np.where(is_trial_run(columns) & is_silent, 1.0, did_task)


def is_regression_expected(columns: Columns) -> Array:
    """Return a mask of work that completed its task."""
    import numpy as np

    mask: Array = (completion_values(columns) == 1) | ~np.isnan(regression_values(columns))
    return mask


def cycle_values(columns: Columns) -> Array:
    """Return the review rounds; for a reviewed attempt, 1 if its review refused it."""
    import numpy as np

    refused = np.where(is_trial_run(columns), 1 - columns["would_merge"], np.nan)
    return np.where(np.isnan(columns["cycles"]), refused, columns["cycles"])


def is_failed(columns: Columns) -> Array:
    """Return a mask of work that failed tests, was closed or refused, or was reverted or fixed."""
    mask: Array = (is_delivered(columns) | is_trial_run(columns)) & (
        (correctness_values(columns) == 0)
        | (columns["merged"] == 0)
        | (columns["would_merge"] == 0)
        | (columns["regressed"] == 1)
    )
    return mask


def touched_values(name: str, columns: Columns) -> Array:
    """Return files, modules or dependents of a change: by the pull request, else as saved."""
    import numpy as np

    touched_counts: Array = columns[name]
    saved = {"files": "files_changed", "modules": "own_modules"}.get(name)
    return (
        np.where(np.isnan(touched_counts), columns[saved], touched_counts)
        if saved
        else touched_counts
    )


def total_cost_values(columns: Columns) -> Array:
    """Return the cost of an attempt, including its earlier tries."""
    import numpy as np

    cost, retried = columns["cost"], columns["retried_cost"]
    total: Array = np.where(np.isnan(cost), retried, cost + np.nan_to_num(retried))
    return total


def is_recorded(columns: Columns) -> Array:
    """Return a mask of all but unrecorded pull requests, which have an agent and no events."""
    import numpy as np

    is_bare = np.isnan(columns["events"]) & columns["agent"].known()
    recorded: Array = ~is_bare | columns["task_digest"].known()
    return recorded


def count_unknown_costs(columns: Columns) -> Array:
    """Count recorded attempts and earlier tries with unknown cost.

    A pull request without a recording is not work that could have a cost.
    """
    import numpy as np

    unknown: Array = (is_recorded(columns) & np.isnan(columns["cost"])) + columns["retried_unknown"]
    return unknown


def merged_cost_values(columns: Columns) -> Array:
    """Return the cost of all recorded work behind a merged pull request."""
    import numpy as np

    return np.where(columns["merged"] == 1, columns["pull_cost"], np.nan)


def scored_cost_values(columns: Columns) -> Array:
    """Return the cost of attempts that passed or failed their tests, including earlier tries."""
    import numpy as np

    return np.where(np.isnan(pass_values(columns)), np.nan, total_cost_values(columns))


def is_scored(columns: Columns) -> Array:
    import numpy as np

    scored: Array = ~np.isnan(pass_values(columns))
    return scored


def failed_cost_values(columns: Columns) -> Array:
    """Return the cost of failed work: tests fail, it was closed, refused or reverted."""
    import numpy as np

    of_pull = np.where(is_delivered(columns), columns["pull_cost"], np.nan)
    cost = np.where(np.isnan(of_pull), total_cost_values(columns), of_pull)
    return np.where(is_failed(columns), cost, np.nan)


def retry_cost_values(columns: Columns) -> Array:
    """Return the cost of repeated tries, and of tries of subtasks that were sent back."""
    import numpy as np

    retry_costs = np.stack([columns["retried_cost"], columns["plan_retried_cost"]])
    return np.where(np.isnan(retry_costs).all(0), np.nan, np.nansum(retry_costs, 0))


def blast_radius_values(name: str, columns: Columns) -> Array:
    """Return files, modules or dependents of failed work only."""
    import numpy as np

    return np.where(is_failed(columns), touched_values(name, columns), np.nan)


# Correct at once, correct after feedback, correct once in several tries: three metrics.


def first_try_values(columns: Columns) -> Array:
    """Return whether work was right without any feedback.

    Passed grading, merged as it was opened, or a plan without a subtask that was sent back.
    """
    import numpy as np

    untouched = (sent_back_values(columns) == 0) & (columns["corrected"] == 0)
    is_denied = (columns["merged"] == 0) | (columns["corrected"] == 1)
    passes = correctness_values(columns)
    is_denied |= (passes == 0) | ((sent_back_values(columns) == 1) & ~np.isnan(passes))
    is_right = untouched & (columns["merged"] == 1) & (passes == 1)
    delivered = np.where(is_denied, 0.0, np.where(is_right, 1.0, np.nan))
    planned = np.where(columns["plan_retries"] > 0, 0.0, columns["plan_passed"])
    trial = np.where(np.isnan(planned), pass_values(columns), planned)
    return np.where(is_delivered(columns), delivered, trial)


def after_feedback_values(columns: Columns) -> Array:
    """Return whether work that was sent back (pull request or subtask) was right in the end."""
    import numpy as np

    was_sent_back = is_delivered(columns) & (columns["cycles"] > 0)
    is_denied = (columns["merged"] == 0) | (columns["corrected"] == 1)
    is_denied |= correctness_values(columns) == 0
    is_right = (columns["merged"] == 1) & (columns["corrected"] == 0)
    is_right &= correctness_values(columns) == 1
    value = np.where(is_denied, 0.0, np.where(is_right, 1.0, np.nan))
    planned = np.where(columns["plan_retries"] > 0, columns["plan_passed"], np.nan)
    return np.where(was_sent_back, value, np.where(is_delivered(columns), np.nan, planned))


# Review: whether there was any, and how much it took.


def unreviewed_values(columns: Columns) -> Array:
    """Return whether a merged change was reviewed by nobody but its author."""
    import numpy as np

    reviewed = np.where(np.isnan(columns["would_merge"]), columns["reviewed"], 1.0)
    return np.where(columns["merged"] == 1, 1 - reviewed, np.nan)


def is_merged(columns: Columns) -> Array:
    mask: Array = columns["merged"] == 1
    return mask


# Failure modes, by whatever checked for them; unmeasured if nothing did.

FAILURE_MODES: tuple[FailureMode, ...] = get_args(FailureMode)
MODE_SOURCES: tuple[ModeSource, ...] = get_args(ModeSource)
MODE_COLUMNS = (
    ("modes", "examined"),
    ("checked_modes", "checked_examined"),
    ("said_modes", "said_examined"),
)
"""Columns of shown and examined modes: by measurements, by change checks, by people."""


def mode_values(mode: FailureMode, columns: Columns) -> Array:
    """Return 1 if anything shows the mode, 0 if it was examined and nothing does, else NaN."""
    import numpy as np

    is_shown = np.any([source_values(mode, source, columns) for source in MODE_SOURCES], axis=0)
    is_examined = np.zeros(len(columns["regressed"]), np.bool_)
    for _, name in MODE_COLUMNS:
        is_examined |= columns[name].matches(partial(_names_mode, f"{mode} ("))
    if mode == "silent regression":
        is_examined |= ~np.isnan(columns["regressed"])
    return np.where(is_shown, 1.0, np.where(is_examined, 0.0, np.nan))


def source_values(mode: FailureMode, source: ModeSource, columns: Columns) -> Array:
    """Return a mask of the attempts of which this source shows the mode."""
    import numpy as np

    is_shown = np.zeros(len(columns["regressed"]), np.bool_)
    if source == "delivery" and mode == "silent regression":
        is_shown |= columns["regressed"] == 1
    for name, _ in MODE_COLUMNS:
        is_shown |= columns[name].matches(partial(_names_mode, f"{mode} ({source})"))
    return is_shown


def _names_mode(token: str, text: str | None) -> bool:
    return text is not None and token in text


PRIMARY_METRIC = "pass rate"
PROCESS_RATES = {
    "handoff": "Share, at handoffs, of needed facts in the brief, briefs understood and reported "
    "facts used",
    "feedback": "Share of the failing checks whose output was used before the next check",
    "recovery": "Share of the unexpected states that the agent investigated, asked about or "
    "reported",
    "convergence": "Share of the episodes of failing checks that ended with all checks passing",
}


def column_values(name: str, columns: Columns) -> Array:
    """Return the values of a column."""
    values: Array = columns[name]
    return values


def _label_values(column: str, value: str, columns: Columns) -> Array:
    """Return whether a column contains the value; modes may have several."""
    values: Array = columns[column].each(
        lambda text: None if text is None else value in text.split(", ")
    )
    return values


def _ending_values(name: str, columns: Columns) -> Array:
    """Return whether the ending is this; unknown is NaN for `clean` and `reasoning error`."""
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
    "by the unbiased estimator, over tasks that a variant tried at least twice; each "
    "variant of a task counts. k is the smallest number of repeats, at most five. "
    "Bounds for exactly these tasks."
)
# fmt: off
MetricRow = tuple[str, MetricKind, str, BetterDirection, "Values", str]
"""Name, kind, unit, better direction, the values of attempts, the definition."""
OUTCOME_METRICS: tuple[MetricRow, ...] = (
    (PRIMARY_METRIC, "rate", "", "more", pass_values,
     "Attempts whose change passed grading ÷ scored attempts; the mean over tasks, "
         "each with equal weight. Only the last try of a repeat counts; machine failures "
         "are unscored."),
    ("pass@k", "one of k", "", "more", pass_values,
     f"The probability that at least one of k repeats of a task passes, {_REPEATS_NOTE}"),
    ("pass^k", "all of k", "", "more", pass_values,
     f"The probability that all of k repeats of a task pass, {_REPEATS_NOTE}"),
    ("original failure fixed", "rate", "", "more", partial(column_values, "fixed"),
     "Attempts after which everything that failed at the base passes ÷ scored "
         "attempts at tasks where something failed; other breakage does not count here."),
    ("right files, precision", "rate", "", "more", partial(column_values, "files_precision"),
     "Share of the changed files that the reference also changes, without tests."),
    ("right files, recall", "rate", "", "more", partial(column_values, "files_recall"),
     "Share of the files changed by the reference that the attempt also changes, without tests."),
    ("similarity to the reference", "rate", "", None, partial(column_values, "similarity"),
     "Twice the changed lines that change and reference share ÷ the changed lines of "
         "both, without whitespace and tests. Another solution can be equally correct, so "
         "it never decides."),
    ("asked when ambiguous", "rate", "", "more", partial(column_values, "asked"),
     "Share of the attempts at ambiguous tasks that asked a question before the first edit."),
)
PRODUCTION_METRICS: tuple[MetricRow, ...] = (
    ("task completion rate", "rate", "", "more", completion_values,
     "Tasks whose change passes the whole test suite, builds cleanly and was merged "
         "without human correction ÷ scored tasks. A change that people edited or sent "
         "back does not count; unreviewed changes, and those with unknown corrections, "
         "are excluded. Attempts of experiments count by grade and review; `tests-only` "
         "is the number that count by grade alone."),
    ("regression introduction rate", "rate", "", "less", regression_values,
     "Tasks that were completed but broke something else (a test that passed before, "
         "a later revert or fix) ÷ completed tasks, including those whose own tests pass "
         "while others broke."),
    ("review loop count", "mean", "cycles", "less", cycle_values,
     "Mean number of review rounds before the change could be merged; an attempt "
         "rejected in review counts as one. Healthy: 1."),
    *((f"blast radius, {name}", "median", name, "less", partial(blast_radius_values, name),
       f"Of tasks that failed or whose change was rejected or reverted: {name} "
           "changed; median and p90 over tasks, worst attempt.")
      for name in ("files", "modules", "dependents")),
    ("first-try rate", "rate", "", "more", first_try_values,
     "Tasks that were right without any feedback ÷ scored tasks: passed grading; or "
         "merged with passing CI, no review round and no edit by a person; or a plan "
         "without a retried subtask."),
    ("after-feedback rate", "rate", "", "more", after_feedback_values,
     "Of pull requests that were sent back: merged with passing CI and no edit by a "
         "person. Of plans with a subtask that was sent back with feedback: passed."),
    ("best-of-n rate", "any of n", "", "more", pass_values,
     "Tasks that at least one repeat of a variant passed ÷ tasks that it tried at "
         "least twice; `repeats` is the mean number of repeats."),
    ("merge rate", "rate", "", "more", partial(column_values, "merged"),
     "Merged changes ÷ changes that were merged or closed."),
    ("merged without review", "rate", "", "less", unreviewed_values,
     "Merged pull requests that nobody but their author reviewed ÷ merged pull requests."),
    ("reviewer time", "mean", "s", "less", partial(column_values, "reviewer_seconds"),
     "Mean seconds that reviewers spent on a change in the review queue, summed over reviewers."),
    ("time in review", "median", "s", "less", partial(column_values, "seconds_in_review"),
     "Median seconds from opening a pull request to its merge or closing."),
)
MEMORY_METRICS: tuple[MetricRow, ...] = (
    ("first-review merge rate", "rate", "", "more", partial(column_values, "first_review"),
     "Changes merged after their first review ÷ reviewed changes."),
    ("revision cycles", "mean", "cycles", "less", partial(column_values, "cycles"),
     "Mean number of revisions of a pull request."),
    ("CI pass rate on first push", "rate", "", "more", partial(column_values, "first_push"),
     "Changes whose first push passed CI ÷ changes with a CI result."),
    ("review comments", "mean", "comments", "less", partial(column_values, "comments"),
     "Mean number of review comments on a pull request; the text of a review counts "
         "as one, except that of an approval."),
    ("time to PR", "median", "s", "less", partial(column_values, "seconds_to_open"),
     "Median seconds from the task's start to the pull request."),
    ("repeated mistakes", "sum", "comments", "less", partial(column_values, "repeated"),
     "Confirmed review comments that repeat a rule stored before the pull request; "
         "unconfirmed ones are counted separately."),
)
PROCESS_METRICS: tuple[MetricRow, ...] = (
    *((name, "rate", "", "more", partial(column_values, name),
       f"{says}; the mean over the attempts of a task, each task with equal weight.")
      for name, says in PROCESS_RATES.items()),
    ("iterations to convergence", "mean", "iterations", "less",
     partial(column_values, "converged_after"),
     "Iterations until no check failed, for attempts that reached this state."),
    ("drift", "mean", "", "more", partial(column_values, "drift_slope"),
     "Mean change in the similarity of actions to the goal, from the first window of "
         "a session to the last: below 0, the work moved away from the goal."),
    ("findings", "mean", "findings", "less", partial(column_values, "findings"),
     "Mean number of findings in an attempt."),
    ("without findings", "rate", "", "more", _clean_values,
     "Attempts without findings ÷ measured attempts."),
    ("right files opened, precision", "rate", "", None, partial(column_values, "opened_precision"),
     "Share of the files opened or changed by the agent that the reference changes, "
         "without tests and new files. Exploring opens more files, so it never decides."),
    ("right files opened, recall", "rate", "", "more", partial(column_values, "opened_recall"),
     "Share of the files changed by the reference that the agent opened or changed, "
         "without tests and new files."),
)
ENDING_METRICS: tuple[MetricRow, ...] = tuple(
    (name, "rate", "", "more" if name == "clean" else "less",
     partial(_ending_values, name),
     f"Attempts whose first applicable category is {name} ÷ measured attempts"
     + (" with a known category." if name in ("clean", "reasoning error") else "."))
    for name in get_args(EndingCategory) if name != "unknown"
)
FAILURE_MODE_METRICS: tuple[MetricRow, ...] = tuple(
    (name, "rate", "", "less", partial(mode_values, name),
     f"Attempts that show {name} ÷ attempts examined for it by a rule, the tests, a "
         "check of the change, a judge, a person, or a later revert. Each source that "
         "shows it is counted; one attempt may show several modes.")
    for name in FAILURE_MODES
)
RISK_METRICS: tuple[MetricRow, ...] = tuple(
    (f"{name} risk", "rate", "", None, partial(_label_values, "risk", name),
     f"Changes with {name} risk ÷ delivered changes with a known risk level.")
    for name in get_args(RiskLevel)
)
COST_METRICS: tuple[MetricRow, ...] = (
    ("cost", "mean", "$", "less", partial(column_values, "cost"),
     "Mean cost of an attempt in US dollars, where known."),
    ("cost in all", "sum", "$", "less", total_cost_values,
     "Known cost of all work in US dollars, including retries; `unknown` is the "
         "number of attempts without a known cost, which the sum excludes."),
    ("cost per merged pull request", "mean", "$", "less", merged_cost_values,
     "Mean cost in US dollars of the recorded work behind a merged pull request: "
         "every session on its branch in its repository until it was merged. Pull "
         "requests without a recording, or with a session of unknown cost, are excluded, "
         "which lowers the coverage."),
    ("cost per passed task", "per pass", "$", "less", scored_cost_values,
     "Cost in US dollars of all scored attempts at tasks, including failed ones and "
         "retries ÷ attempts that passed. Attempts without a known cost are excluded."),
    ("cost of failed work", "sum", "$", "less", failed_cost_values,
     "Cost in US dollars of attempts that failed, and of pull requests that were "
         "closed, rejected, reverted or fixed later, with all recorded work on their "
         "branch."),
    ("cost of retries", "sum", "$", "less", retry_cost_values,
     "Cost in US dollars of tries that were repeated because they could not be "
         "scored, and of second and later tries at the subtasks of plans."),
    ("tokens in", "mean", "tokens", "less", partial(column_values, "input_tokens"),
     "Mean input tokens of an attempt that were neither read from a cache nor written to one."),
    ("tokens out", "mean", "tokens", "less", partial(column_values, "output_tokens"),
     "Mean output tokens of an attempt."),
    ("tokens read from cache", "mean", "tokens", None, partial(column_values, "cache_read_tokens"),
     "Mean input tokens of an attempt that the provider read from its cache."),
    ("tokens written to cache", "mean", "tokens", None,
     partial(column_values, "cache_write_tokens"),
     "Mean input tokens of an attempt that the provider wrote to its cache."),
    ("time", "median", "s", "less", partial(column_values, "seconds"),
     "Median seconds from an attempt's start to its end, in a recorded session with its "
         "waits for the user."),
    ("turns", "median", "turns", "less", partial(column_values, "turns"),
     "Median number of turns in all lanes of an attempt."),
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
    "first-review merge rate": "merged-at-first-review",
    "CI pass rate on first push": "passed-at-first-push",
    "iterations to convergence": "iterations",
    "cost in all": "cost",
    "cost per passed task": "cost",
    "time": "seconds",
    "time to PR": "seconds-to-pr",
    "first-try rate": "right-at-first-try",
    "after-feedback rate": "right-after-feedback",
    "best-of-n rate": "resolved",
    "reviewer time": "reviewer-seconds",
    "time in review": "seconds-in-review",
}
"""The score that a metric aggregates, if its name differs from the metric's."""

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
"""By name: the definition, and its value for each attempt, NaN if there is none."""

RECORDED_NUMBERS = (
    "tokens in", "tokens out", "tokens read from cache", "tokens written to cache", "time", "turns",
)  # fmt: skip
EXPECTED_VALUES: dict[str, Values] = {
    "task completion rate": is_expected,
    "regression introduction rate": is_regression_expected,
    "review loop count": is_expected,
    **{f"blast radius, {name}": is_failed for name in ("files", "modules", "dependents")},
    "first-try rate": is_expected,
    "merged without review": is_merged,
    "reviewer time": is_delivered,
    "time in review": is_delivered,
    "cost": is_recorded,
    "cost in all": is_recorded,
    "cost per merged pull request": is_merged,
    "cost per passed task": is_scored,
    **dict.fromkeys(RECORDED_NUMBERS, is_recorded),
}
"""Which attempts should have a value, if not decided by the metric's source alone."""
COUNTED_BESIDE: dict[str, dict[str, Values]] = {
    PRIMARY_METRIC: {kind: partial(is_pass_by, kind) for kind in PASS_KINDS},
    "task completion rate": {"tests-only": is_tests_only},
    "cost in all": {"unknown": count_unknown_costs},
    "repeated mistakes": {"unconfirmed": partial(column_values, "repeated_unconfirmed")},
    **{
        mode: {source: partial(source_values, mode, source) for source in MODE_SOURCES}
        for mode in FAILURE_MODES
    },
}
"""Counts of attempts reported beside a value if they are not 0."""
