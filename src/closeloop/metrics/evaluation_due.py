"""When to run evaluations again: stale tasks, changed setups, a new quarter."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from statistics import fmean

from closeloop.git import try_git_text
from closeloop.grading.variants import resolve_variant
from closeloop.metrics.held_out_runs import collect_split_values, list_held_out_reminders
from closeloop.records.errors import Fault
from closeloop.records.experiment_plan import DueReport, LastRun, SetupChange, StaleTask
from closeloop.records.settings import DueSettings, Settings
from closeloop.records.task import Experiment, Task, Variant
from closeloop.store import Store
from closeloop.store.experiment_section import SessionSetup
from closeloop.tasks.task_sets import list_local_repos
from closeloop.text.wording import count_with_noun

MIN_SCORED = 6
"""Scored attempts of two variants or more, before a task can count as not telling them apart."""
MAX_BASES = 500
"""Commits that git is queried for, in one repository."""
MAX_EXPERIMENTS = 100
"""Number of newest experiments in which the last comparison is searched."""
MAX_NAMES = 3
_COMMIT = re.compile(r"[0-9a-f]{40}")


def report_due(
    store: Store, tasks: Sequence[Task], settings: Settings, root: Path, now: datetime
) -> DueReport:
    """Report what is due now, for these tasks and settings."""
    dev = [task for task in tasks if task.split == "dev"]
    variants = store.numbers.load_variants()
    comparisons = list(_list_comparisons(store, variants, now))
    digests = {task.digest for task in dev}
    last = comparisons[0] if comparisons else None
    full = next(
        (comparison for comparison in comparisons if _covers_half(comparison[0], digests)), None
    )
    stale = find_stale_tasks(store, dev, settings.due)
    changes: list[SetupChange] = []
    if last is not None:
        compared = [variants[key] for key in last[0].variants if key in variants]
        current = _resolve_variants(settings, root)
        sessions = store.experiments.list_session_setups(last[1].at)
        changes = list_setup_changes(current, compared, sessions)
    held_out_runs = store.held_out.list_unsealings()
    models = store.held_out.list_tried_models()
    sentences = (
        *_due_sentences(last and last[1], full and full[1], settings.due),
        *_change_sentences(changes, last and last[1]),
        *_stale_sentences(stale, len(dev)),
        *list_held_out_reminders(held_out_runs, models, None, now, settings.due.days),
    )
    return DueReport(
        says=sentences,
        tasks=len(dev),
        stale=tuple(stale),
        changes=tuple(changes),
        last_comparison=last and last[1],
        last_full_run=full and full[1],
        last_look=held_out_runs[0] if held_out_runs else None,
    )


def find_stale_tasks(store: Store, tasks: Sequence[Task], limits: DueSettings) -> list[StaleTask]:
    """Find tasks far behind the code, on which variants never differ, or with flaky tests."""
    commits_behind = count_commits_behind(tasks)
    outcomes: dict[str, list[list[float]]] = {}
    for sides in collect_split_values(store, tasks).values():
        for digest, values in sides.get("dev", {}).items():
            outcomes.setdefault(digest, []).append(values)
    flaky = store.experiments.count_flaky_tests([task.grading for task in tasks])
    described = [
        _describe_task(
            task,
            commits_behind.get((task.repo, task.base)),
            tells_variants_apart(outcomes.get(task.digest, ())),
            flaky.get(task.grading, 0),
            limits,
        )
        for task in tasks
    ]
    return sorted(
        (stale for stale in described if stale.reasons),
        key=lambda stale: (-len(stale.reasons), stale.task),
    )


def count_commits_behind(tasks: Sequence[Task]) -> dict[tuple[str | None, str | None], int]:
    """Return, by repository and base, how many commits the base is behind HEAD."""
    counts: dict[tuple[str | None, str | None], int] = {}
    for repo in list_local_repos(tasks):
        bases = sorted({task.base for task in tasks if task.repo == repo and task.base})
        for base in [base for base in bases if _COMMIT.fullmatch(base)][:MAX_BASES]:
            count = try_git_text(repo, "rev-list", "--count", f"{base}..HEAD").strip()
            if count.isdecimal():
                counts[repo, base] = int(count)
    return counts


def tells_variants_apart(outcomes: Sequence[Sequence[float]]) -> bool | None:
    """Whether pass rates differ between variants; None if too few attempts are scored."""
    if len(outcomes) < 2 or sum(map(len, outcomes)) < MIN_SCORED:
        return None
    return len({fmean(values) for values in outcomes}) > 1


def _describe_task(
    task: Task, behind: int | None, told_apart: bool | None, flaky: int, limits: DueSettings
) -> StaleTask:
    reasons = []
    if behind is not None and behind >= limits.commits:
        reasons.append(f"its base is {behind:,} commits behind")
    if told_apart is False:
        reasons.append("all variants have the same result on it")
    if flaky:
        reasons.append(f"{count_with_noun(flaky, 'test is', 'tests are')} flaky")
    return StaleTask(
        task=task.id,
        reasons=tuple(reasons),
        commits_behind=behind,
        told_apart=told_apart,
        flaky=flaky,
    )


def list_setup_changes(
    current: Mapping[str, Variant], compared: Sequence[Variant], sessions: Sequence[SessionSetup]
) -> list[SetupChange]:
    """List variants whose setup changed, and agents and models first seen in sessions since."""
    digests = {variant.digest for variant in compared}
    before = {variant.name: variant for variant in compared}
    changes = [
        SetupChange(name=name, says=_describe_change(before.get(name), variant))
        for name, variant in current.items()
        if variant.digest not in digests and variant.replay_of is None and not variant.is_control
    ]
    models = {(variant.model or "").rpartition("/")[2] for variant in compared}
    for session in sessions:
        if (session.model or "").rpartition("/")[2] not in models:
            name = " with ".join(filter(None, (session.agent, session.model)))
            changes.append(
                SetupChange(name=name, says=f"first seen in sessions on {session.first:%Y-%m-%d}")
            )
    return changes


def _describe_change(before: Variant | None, current: Variant) -> str:
    if before is None:
        return "never compared"
    changes = [
        f"{label} {old or 'unknown'} → {new or 'unknown'}"
        for label, old, new in (
            ("agent", before.agent, current.agent),
            ("version", before.agent_version, current.agent_version),
            ("model", before.model, current.model),
        )
        if old != new
    ]
    if before.model == current.model and before.model_digest != current.model_digest:
        changes.append("its model name now refers to another model")
    if before.prompt != current.prompt:
        changes.append("another prompt or other tools")
    if before.settings != current.settings or before.limits != current.limits:
        changes.append("other settings or limits")
    return ", ".join(changes)


def _resolve_variants(settings: Settings, root: Path) -> dict[str, Variant]:
    """Resolve the configured variants as they are now; skip those that fail."""
    variants = {}
    for name in settings.variants:
        try:
            variants[name] = resolve_variant(name, settings, root).variant
        except Fault:
            continue
    return variants


def _list_comparisons(
    store: Store, known_variants: Mapping[str, Variant], now: datetime
) -> Iterator[tuple[Experiment, LastRun]]:
    """List experiments with several variants on dev tasks, the latest run first."""
    sealed = store.held_out.list_sealed_digests()
    comparisons = []
    for experiment in store.list_experiments()[:MAX_EXPERIMENTS]:
        variants = [known_variants[key] for key in experiment.variants if key in known_variants]
        live = [v for v in variants if v.replay_of is None and not v.is_control]
        if len(live) < 2 or sealed.issuperset(experiment.tasks):
            continue
        started_at = store.experiments.last_start_time(experiment)
        if started_at is not None:
            last_run = LastRun(
                experiment=experiment.id,
                at=started_at,
                days=(now - started_at).days,
                tasks=len(experiment.tasks),
                variants=tuple(variant.name for variant in live),
            )
            comparisons.append((experiment, last_run))
    return iter(sorted(comparisons, key=lambda comparison: comparison[1].at, reverse=True))


def _covers_half(experiment: Experiment, digests: Collection[str]) -> bool:
    return bool(digests) and 2 * len(set(experiment.tasks) & set(digests)) >= len(digests)


def _due_sentences(
    last: LastRun | None, full: LastRun | None, limits: DueSettings
) -> Iterator[str]:
    if last is None:
        yield "No variants have been compared yet: run two of them with `closeloop run`."
    elif full is None:
        yield (
            "No comparison covers half of the dev tasks yet: `closeloop run` without "
            "task names runs all."
        )
    elif full.days > limits.days:
        yield (
            f"The last comparison on the whole set was {full.days} days ago, on "
            f"{full.at:%Y-%m-%d}: run one every quarter with `closeloop run`."
        )


def _change_sentences(changes: Sequence[SetupChange], last: LastRun | None) -> Iterator[str]:
    if changes and last is not None:
        names = ", ".join(change.name for change in changes[:MAX_NAMES])
        remainder = f" and {len(changes) - MAX_NAMES} more" if len(changes) > MAX_NAMES else ""
        comparison = f"the comparison of {last.at:%Y-%m-%d}"
        yield f"Changed since {comparison}: {names}{remainder}. Compare again."


def _stale_sentences(stale: Sequence[StaleTask], tasks: int) -> Iterator[str]:
    if stale:
        are = "is" if len(stale) == 1 else "are"
        yield (
            f"{len(stale)} of {count_with_noun(tasks, 'dev task')} {are} stale: update "
            "them, or create new ones with `closeloop mine`."
        )
