"""What the columns of attempts say of production and of failure modes, attempt by attempt.

A pull request is judged by what people did with it; an attempt of an experiment by its grade and,
where somebody reviewed it, by that review.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, get_args

from closeloop.records.finding import FailureMode, ModeSource

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]
    Columns = Mapping[str, Any]


def pass_values(columns: Columns) -> Array:
    """1 and 0 for pass and fail; else not known."""
    values: Array = columns["outcome"].each({"pass": 1.0, "fail": 0.0}.get)
    return values


def correctness_values(columns: Columns) -> Array:
    """Whether the suite passes and it builds: by the grade, or by what CI said."""
    import numpy as np

    graded = pass_values(columns)
    return np.where(np.isnan(graded), columns["passed"], graded)


def is_delivered(columns: Columns) -> Array:
    """Pull requests that were merged or closed."""
    import numpy as np

    ended: Array = ~np.isnan(columns["merged"])
    return ended


def is_trial_run(columns: Columns) -> Array:
    """Attempts of experiments that no pull request came of, or none that has ended."""
    mask: Array = columns["origin"].are(("experiment",)) & ~is_delivered(columns)
    return mask


def sent_back_values(columns: Columns) -> Array:
    """Whether a reviewer sent the work back: in a round of review, or by refusing to merge it."""
    import numpy as np

    refused = 1 - columns["would_merge"]
    rounds = columns["cycles"]
    told = np.where(np.isnan(rounds), np.where(is_trial_run(columns), refused, np.nan), rounds > 0)
    return np.where(refused == 1, 1.0, told)


def completion_values(columns: Columns) -> Array:
    """1 for right, merged and never corrected; 0 where one of these is denied; else not known."""
    import numpy as np

    passes, would_merge = correctness_values(columns), columns["would_merge"]
    merged, corrected = columns["merged"], columns["corrected"]
    sent_back = sent_back_values(columns)
    reviewed = (columns["reviewed"] == 1) | (would_merge == 1) | columns["unreviewed_completes"]
    is_denied = (passes == 0) | (merged == 0) | (corrected == 1) | (sent_back == 1)
    is_shown = (passes == 1) & (merged == 1) & (corrected == 0) & (sent_back == 0) & reviewed
    delivered = np.where(is_denied, 0.0, np.where(is_shown, 1.0, np.nan))
    # Where there is nothing to test, the reviewer's word is all there is.
    tested = np.where(np.isnan(passes), would_merge, np.where(would_merge == 0, 0.0, passes))
    tried = np.where(is_trial_run(columns), tested, np.nan)
    return np.where(is_delivered(columns), delivered, tried)


def is_tests_only(columns: Columns) -> Array:
    """Attempts that count as completed or not by their tests alone: nobody reviewed them."""
    import numpy as np

    known = ~np.isnan(completion_values(columns))
    mask: Array = known & is_trial_run(columns) & np.isnan(columns["would_merge"])
    return mask


def is_expected(columns: Columns) -> Array:
    """What ought to have an outcome: pull requests, sessions of production, tries at tasks."""
    mask: Array = (
        is_delivered(columns)
        | columns["origin"].are(("production",))
        | columns["task_digest"].known()
    )
    return mask


def regression_values(columns: Columns) -> Array:
    """Of what did its task: whether it broke something else."""
    import numpy as np

    broke = np.where(columns["broken"] > 0, 1.0, columns["regressed"])
    # Whoever reviews what nothing tests cannot tell what it broke.
    is_tested = is_trial_run(columns) & ~np.isnan(pass_values(columns))
    broke = np.where(is_tested & np.isnan(broke), 0.0, broke)
    did_task = np.where(completion_values(columns) == 1, broke, np.nan)
    # The task's own tests pass, and the suite does not: no completion, and still a regression.
    is_silent = columns["modes"].each(lambda text: "silent regression (grade)" in (text or ""))
    return np.where(is_trial_run(columns) & (is_silent == 1), 1.0, did_task)


def is_regression_expected(columns: Columns) -> Array:
    """What did its task."""
    import numpy as np

    mask: Array = (completion_values(columns) == 1) | ~np.isnan(regression_values(columns))
    return mask


def cycle_values(columns: Columns) -> Array:
    """Rounds of human correction; of a reviewed attempt, one where its review refused it."""
    import numpy as np

    refused = np.where(is_trial_run(columns), 1 - columns["would_merge"], np.nan)
    return np.where(np.isnan(columns["cycles"]), refused, columns["cycles"])


def is_failed(columns: Columns) -> Array:
    """Tests fail, people closed or refused it, or it was taken back or repaired after its merge."""
    mask: Array = (is_delivered(columns) | is_trial_run(columns)) & (
        (correctness_values(columns) == 0)
        | (columns["merged"] == 0)
        | (columns["would_merge"] == 0)
        | (columns["regressed"] == 1)
    )
    return mask


def touched_values(name: str, columns: Columns) -> Array:
    """Files, modules or dependents of a change: as the pull request says, else as it was saved."""
    import numpy as np

    touched: Array = columns[name]
    saved = {"files": "files_changed", "modules": "own_modules"}.get(name)
    return np.where(np.isnan(touched), columns[saved], touched) if saved else touched


def total_cost_values(columns: Columns) -> Array:
    """What an attempt cost, with the tries before it that were begun again."""
    import numpy as np

    cost, retried = columns["cost"], columns["retried_cost"]
    total: Array = np.where(np.isnan(cost), retried, cost + np.nan_to_num(retried))
    return total


def is_recorded(columns: Columns) -> Array:
    """All but pull requests of which nobody recorded the work: an agent's name, and no event."""
    import numpy as np

    is_bare = np.isnan(columns["events"]) & columns["agent"].known()
    recorded: Array = ~is_bare | columns["task_digest"].known()
    return recorded


def count_unknown_costs(columns: Columns) -> Array:
    """Recorded attempts and earlier tries of which nobody can say what they cost.

    A pull request without a recording is no work that could have a cost.
    """
    import numpy as np

    unknown: Array = (is_recorded(columns) & np.isnan(columns["cost"])) + columns["retried_unknown"]
    return unknown


def merged_cost_values(columns: Columns) -> Array:
    """What all recorded work behind a merged pull request cost."""
    import numpy as np

    return np.where(columns["merged"] == 1, columns["pull_cost"], np.nan)


def scored_cost_values(columns: Columns) -> Array:
    """What attempts that passed or failed their tests cost, earlier tries included."""
    import numpy as np

    return np.where(np.isnan(pass_values(columns)), np.nan, total_cost_values(columns))


def is_scored(columns: Columns) -> Array:
    import numpy as np

    scored: Array = ~np.isnan(pass_values(columns))
    return scored


def failed_cost_values(columns: Columns) -> Array:
    """What came to nothing cost: tests fail, people closed or refused it, or it was reverted."""
    import numpy as np

    of_pull = np.where(is_delivered(columns), columns["pull_cost"], np.nan)
    cost = np.where(np.isnan(of_pull), total_cost_values(columns), of_pull)
    return np.where(is_failed(columns), cost, np.nan)


def retry_cost_values(columns: Columns) -> Array:
    """What was made again cost: tries that were begun again, and tries of subtasks sent back."""
    import numpy as np

    again = np.stack([columns["retried_cost"], columns["plan_retried_cost"]])
    return np.where(np.isnan(again).all(0), np.nan, np.nansum(again, 0))


def blast_radius_values(name: str, columns: Columns) -> Array:
    """Of what failed, alone."""
    import numpy as np

    return np.where(is_failed(columns), touched_values(name, columns), np.nan)


# Right at once, right after feedback, right once in several tries: three numbers.


def first_try_values(columns: Columns) -> Array:
    """Right before anybody said a word: graded so, merged as it was opened, or a plan without
    a task that was sent back.
    """
    import numpy as np

    untouched = (sent_back_values(columns) == 0) & (columns["corrected"] == 0)
    is_denied = (columns["merged"] == 0) | (columns["corrected"] == 1)
    passes = correctness_values(columns)
    is_denied |= (passes == 0) | ((sent_back_values(columns) == 1) & ~np.isnan(passes))
    is_right = untouched & (columns["merged"] == 1) & (passes == 1)
    delivered = np.where(is_denied, 0.0, np.where(is_right, 1.0, np.nan))
    planned = np.where(columns["plan_retries"] > 0, 0.0, columns["plan_passed"])
    tried = np.where(np.isnan(planned), pass_values(columns), planned)
    return np.where(is_delivered(columns), delivered, tried)


def after_feedback_values(columns: Columns) -> Array:
    """Of pull requests that were sent back, and of plans of which a task was: right in the end."""
    import numpy as np

    was_sent_back = is_delivered(columns) & (columns["cycles"] > 0)
    is_denied = (columns["merged"] == 0) | (columns["corrected"] == 1)
    is_denied |= correctness_values(columns) == 0
    is_right = (columns["merged"] == 1) & (columns["corrected"] == 0)
    is_right &= correctness_values(columns) == 1
    value = np.where(is_denied, 0.0, np.where(is_right, 1.0, np.nan))
    planned = np.where(columns["plan_retries"] > 0, columns["plan_passed"], np.nan)
    return np.where(was_sent_back, value, np.where(is_delivered(columns), np.nan, planned))


# Review itself: whether there was any, and what it took.


def unreviewed_values(columns: Columns) -> Array:
    """Of what was merged: whether nobody but its author had looked."""
    import numpy as np

    seen = np.where(np.isnan(columns["would_merge"]), columns["reviewed"], 1.0)
    return np.where(columns["merged"] == 1, 1 - seen, np.nan)


def is_merged(columns: Columns) -> Array:
    mask: Array = columns["merged"] == 1
    return mask


# Failure modes, by whatever looked for them. What nothing looked for is unmeasured.

FAILURE_MODES: tuple[FailureMode, ...] = get_args(FailureMode)
MODE_SOURCES: tuple[ModeSource, ...] = get_args(ModeSource)
MODE_COLUMNS = (
    ("modes", "examined"),
    ("checked_modes", "checked_examined"),
    ("said_modes", "said_examined"),
)
"""What shows a mode and what was looked for: by measurements, by checks of changes, by people."""


def mode_values(mode: FailureMode, columns: Columns) -> Array:
    """1 where anything shows the mode, 0 where something looked and nothing does."""
    import numpy as np

    shown = np.any([source_values(mode, source, columns) for source in MODE_SOURCES], axis=0)
    examined = np.zeros(len(columns["regressed"]), np.bool_)
    for _, name in MODE_COLUMNS:
        examined |= columns[name].each(partial(_names_mode, f"{mode} (")) == 1
    if mode == "silent regression":
        examined |= ~np.isnan(columns["regressed"])
    return np.where(shown, 1.0, np.where(examined, 0.0, np.nan))


def source_values(mode: FailureMode, source: ModeSource, columns: Columns) -> Array:
    """1 where this source shows the mode, else 0."""
    import numpy as np

    shown = np.zeros(len(columns["regressed"]), np.bool_)
    if source == "delivery":
        shown |= (columns["regressed"] == 1) & (mode == "silent regression")
    for name, _ in MODE_COLUMNS:
        shown |= columns[name].each(partial(_names_mode, f"{mode} ({source})")) == 1
    return shown.astype(np.float64)


def _names_mode(token: str, text: str | None) -> bool:
    return text is not None and token in text
