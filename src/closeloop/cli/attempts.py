"""What was tried, and by whom: agents, experiments, attempts and A/B tests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from closeloop.cli.console import JsonFlag, make_visible
from closeloop.text.wording import (
    format_percent,
    format_points_estimate,
    short_repository_name,
)

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from closeloop.metrics.score_columns import ScoreCell
    from closeloop.metrics.score_definitions import ScoreCatalogue
    from closeloop.records.attempt import AttemptRow
    from closeloop.records.experiment_plan import ExperimentStatus, Trial, TrialReport
    from closeloop.records.settings import Settings
    from closeloop.store import Store


# `closeloop agents`: which agents are on this machine, and how to get the others.


def agents(*, json: JsonFlag = False) -> None:
    """List every agent that `--agent` knows: its version and place, or the line that
    installs it.
    """
    from rich.table import Table

    from closeloop import plugins
    from closeloop.cli.console import (
        print_json,
        print_parts,
    )

    with ThreadPoolExecutor() as pool:  # a program that tells its version may take seconds
        descriptions = list(pool.map(_describe_agent, plugins.load_plugins("agents")))
    if json:
        print_json(descriptions)
        return
    table = Table(box=None)
    for name in ("agent", "version", "where", "to install it"):
        table.add_column(name, no_wrap=name != "to install it")
    for description in descriptions:
        cells = (
            description["name"],
            description["version"] or "–",
            description["path"] or "–",
            description["install"] or "",
        )
        table.add_row(*map(make_visible, cells))
    print_parts(table)


def _describe_agent(agent: Any) -> dict[str, Any]:
    """What is known of an agent; a program of others must be found first."""
    adapter = getattr(agent, "adapter", None)
    installation = agent.locate_program() if adapter else None
    is_missing = adapter is not None and adapter.program and installation is None
    return {
        "name": agent.name,
        "installed": not is_missing,
        "version": agent.version,
        "path": installation.path if installation else None,
        "install": adapter.install if adapter and is_missing else None,
    }


# `closeloop experiments`: how far each one is, and whether it may go on.

MAX_NAMES = 3


def experiments(
    action: Literal["list", "pause", "resume"] = "list",
    experiment: str | None = None,
    /,
    *,
    json: JsonFlag = False,
) -> None:
    """List experiments, the newest first; or hold one back, and let it go on.

    While an experiment is paused no process begins an attempt of it; those that run are finished.

    Parameters
    ----------
    action
        What to do: list, pause or resume.
    experiment
        Which one to pause or resume, by its id or the beginning of it.
    """
    from rich.text import Text

    from closeloop.attempts.experiment_status import (
        list_experiment_statuses,
        read_experiment_status,
    )
    from closeloop.cli.config import load_project
    from closeloop.cli.console import print_json, print_parts
    from closeloop.metrics.attempt_measuring import find_experiment
    from closeloop.records.errors import BadInput
    from closeloop.store.store_opening import open_existing_store

    project = load_project(Path.cwd())
    if action != "list" and experiment is None:
        raise BadInput(f"Say which one to {action}: `closeloop experiments` lists them.")
    with open_existing_store(project.settings, project.root) as store:
        if action == "list" and experiment is None:
            statuses = list_experiment_statuses(store)
        else:
            chosen_experiment = find_experiment(store, experiment)
            if action != "list":
                store.course.set_paused(chosen_experiment.id, paused=action == "pause")
            statuses = [
                read_experiment_status(store, chosen_experiment, store.course.list_claimed_jobs())
            ]
    if json:
        print_json(statuses)
    else:
        print_parts(
            experiments_table(statuses)
            if statuses
            else Text("No experiments: `closeloop run` makes one.")
        )


def experiments_table(courses: list[ExperimentStatus]) -> Table:
    """A row an experiment."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None)
    for name in ("experiment", "name", "tasks", "variants", "done", "running", "cost", "state"):
        table.add_column(name, no_wrap=name != "variants")
    for course in courses:
        names = ", ".join(course.variants[:MAX_NAMES])
        more = len(course.variants) - MAX_NAMES
        table.add_row(
            course.experiment.id,
            Text(make_visible(course.experiment.name or "–")),
            str(len(course.experiment.tasks)),
            Text(make_visible(names + (f" and {more} more" if more > 0 else ""))),
            f"{course.done}/{course.total}",
            str(course.running),
            "–" if course.cost is None else f"${course.cost:.2f}",
            course.state,
        )
    return table


def attempts(
    *,
    task: str | None = None,
    variant: str | None = None,
    outcome: Literal["pass", "fail", "unscored"] | None = None,
    score: list[str] | None = None,
    limit: int = 50,
    json: JsonFlag = False,
) -> None:
    """List attempts and their outcomes, the newest first; those at held-out tasks are left out.

    Parameters
    ----------
    task
        Only attempts at this task.
    variant
        Only attempts of this variant.
    outcome
        Only attempts that ended so.
    score
        A column for this one: any that `closeloop scores` lists; may be given again.
    limit
        How many at the most.
    """
    from closeloop.attempts.experiment_run import merging_shares
    from closeloop.cli.config import load_project
    from closeloop.cli.console import (
        print_json,
        print_line,
        print_parts,
        record_to_map,
        require_positive_flags,
    )
    from closeloop.metrics.task_repeats import require_tried
    from closeloop.store.metrics_section import AttemptSpan
    from closeloop.store.store_opening import open_existing_store

    require_positive_flags(limit=limit)
    project = load_project(Path.cwd())
    with open_existing_store(project.settings, project.root) as store:
        rows = store.list_attempts(
            task=task,
            variant_name=variant,
            outcome=outcome,
            recorded=True,
            limit=limit,
            without_tasks=store.held_out.list_sealed_digests(),
        )
        if not rows:
            require_tried(store, task, variant)
        unchecked = tuple(row.id for row in rows if row.is_for_review)
        would_merge = merging_shares(store, AttemptSpan(attempts=unchecked))
        names = tuple(dict.fromkeys(score or ()))
        cells = load_cells(store, project.settings, rows, names)
    if json and names:
        print_json(
            [record_to_map(row) | {"scores": cells_to_map(cells[row.id], names)} for row in rows]
        )
    elif json:
        print_json(rows)
    elif rows:
        print_parts(attempts_table(rows, would_merge, cells, names))
    else:
        is_all = not (task or variant or outcome)
        advice = "No attempt is like that: leave out a filter."
        print_line("No attempts: `closeloop run` makes some." if is_all else advice)


def load_cells(
    store: Store, settings: Settings, rows: Sequence[AttemptRow], names: Sequence[str]
) -> dict[str, tuple[ScoreCell, ...]]:
    """By attempt a cell for each of the scores; no trace is read for them."""
    if not names:
        return {}
    from closeloop.metrics.attempt_measuring import project_rulebook
    from closeloop.metrics.attempt_table import load_attempt_table
    from closeloop.metrics.score_columns import attach_scores, list_score_cells, project_scores
    from closeloop.store.metrics_section import AttemptSpan

    span = AttemptSpan(attempts=tuple(row.id for row in rows))
    work = load_attempt_table(store, project_rulebook(settings), span, again=None)
    return list_score_cells(
        attach_scores(work, store, project_scores(settings), names, span), names
    )


def cells_to_map(cells: Sequence[ScoreCell], names: Sequence[str]) -> dict[str, Any]:
    """By name a number, words, or None where nobody said anything."""
    return {name: [*cell.labels] or cell.value for name, cell in zip(names, cells, strict=True)}


def format_cell(cell: ScoreCell) -> str:
    if cell.labels:
        return ", ".join(cell.labels)
    return "–" if cell.value is None else f"{cell.value:.4g}"


def attempts_table(
    rows: Sequence[AttemptRow],
    would_merge: Mapping[str, float],
    cells: Mapping[str, Sequence[ScoreCell]],
    names: Sequence[str],
) -> Table:
    """A row an attempt; what only people can score, by their reviews; then the scores."""
    from rich.table import Table
    from rich.text import Text

    from closeloop.cli.run_output import OUTCOME_MARKS, failure_reason

    table = Table(box=None)
    for name in ("attempt", "task", "variant", "no.", "", "exit", "turns", "seconds", "why"):
        table.add_column(name, no_wrap=name != "why")
    for name in names:
        table.add_column(name, justify="right")
    for row in rows:
        imported = row.origin == "production" and row.outcome is None
        by_review = row.is_for_review and row.id in would_merge
        merged = by_review and would_merge[row.id] > 0.5
        outcome = ("pass" if merged else "fail") if by_review else row.outcome or "unscored"
        mark, colour = ("·", "dim") if imported else OUTCOME_MARKS[outcome]
        agent = " ".join(name for name in (row.agent, row.model) if name)
        number = str(row.number) + (f" (retry {row.retry})" if row.retry else "")
        number += f" (replay of {row.replay_of[:12]})" if row.replay_of else ""
        table.add_row(
            row.id,
            Text(make_visible(row.task or short_repository_name(row.repo) or "–")),
            Text(make_visible(row.variant_name or agent or "–")),
            "" if imported else number,
            Text(mark, style=colour),
            row.exit,
            "–" if row.turns is None else str(row.turns),
            "–" if row.seconds is None else f"{row.seconds:.1f}",
            Text("by review" if by_review else failure_reason(row), style="dim"),
            *(Text(make_visible(format_cell(cell))) for cell in cells.get(row.id, ())),
        )
    return table


# `closeloop branch`: what an attempt changed, as a branch to look at, run or merge.


def branch(attempt: str, *, json: JsonFlag = False) -> None:
    """Make a git branch of what an attempt changed, in the task's repository.

    Work tree, index and HEAD are left as they are.

    Parameters
    ----------
    attempt
        The id of the attempt, or the beginning of it.
    """
    from closeloop.attempts.attempt_saving import branch_stored_attempt
    from closeloop.cli.config import load_project
    from closeloop.cli.console import print_json, print_line
    from closeloop.store.store_opening import open_existing_store

    project = load_project(Path.cwd())
    with open_existing_store(project.settings, project.root) as store:
        new_branch = branch_stored_attempt(store, attempt)
    line = f"{new_branch.name} in {new_branch.repo}"
    print_json(new_branch) if json else print_line(line)


# `closeloop ab`: assign work in production to variants at random, and see which is better.

CALL_COLOURS = {"better": "green", "worse": "red", "hopeless": "yellow"}


def ab(  # noqa: PLR0913 - one parameter for each flag
    action: Literal["start", "assign", "status"],
    name: str,
    key: str | None = None,
    *,
    variants: str | None = None,
    score: str = "task completion rate",
    horizon: int | None = None,
    json: bool = False,
) -> int:
    """Start a trial, ask which variant a piece of work falls to, or see how the trial stands.

    Parameters
    ----------
    action
        `start`, `assign` or `status`.
    name
        Of the trial; `memory` is that of the control arm of memory, by `memory.control`.
    key
        What is assigned: a task's id, a branch or an attempt's id.
    variants
        Who shares the work, such as `a=0.5,b=0.5`; the others are held against the first.
    score
        The rate that decides: any that `closeloop scores` lists.
    horizon
        Look once, after so many outcomes; without it, look as often as you like.
    json
        Print one JSON document.
    """
    from closeloop.cli.config import (
        load_project_scores,
        open_metrics_store,
        print_measuring_progress,
    )
    from closeloop.cli.console import print_json, print_line, print_parts
    from closeloop.metrics.variant_trials import assign_variant, report_trial

    catalogue = load_project_scores()
    with open_metrics_store(make=action == "start") as (store, book):
        if action == "start":
            started = start_trial(store, name, variants, score, horizon, catalogue)
            print_json(started) if json else print_line(
                f"Trial {name!r} is on: {started.metric} decides."
            )
            return 0
        trial = find_trial(store, name, score)
        if action == "assign":
            assignment = assign_variant(store, trial, key or "", datetime.now(UTC))
            print_json(assignment) if json else print_line(assignment.variant)
            return 0
        report = report_trial(store, book, trial, print_measuring_progress, catalogue)
    print_json(report) if json else print_parts(*render_trial_report(report))
    return 1 if report.refusal else 0


def start_trial(
    store: Store,
    name: str,
    variants: str | None,
    score: str,
    horizon: int | None,
    catalogue: ScoreCatalogue,
) -> Trial:
    """Written once: a trial that is changed while it runs shows nothing."""
    from msgspec.structs import replace

    from closeloop.metrics.variant_trials import MEMORY_TRIAL, parse_shares, require_rate
    from closeloop.records.errors import BadInput
    from closeloop.records.experiment_plan import Trial

    if variants is None or len(shares := parse_shares(variants)) < 2:
        raise BadInput("A trial needs two variants or more: add --variants a=0.5,b=0.5.")
    if name == MEMORY_TRIAL:
        raise BadInput(f"{name!r} is the trial of the control arm of memory: choose another name.")
    if horizon is not None and horizon < 2:
        raise BadInput(f"A horizon of {horizon} shows nothing: give the number of outcomes.")
    require_rate(score, catalogue)
    new_trial = Trial(
        name=name, shares=shares, metric=score, horizon=horizon, started=datetime.now(UTC)
    )
    saved_trial = store.trials.start_trial(new_trial)
    if replace(saved_trial, started=new_trial.started) != new_trial:
        raise BadInput(f"Trial {name!r} was started otherwise and stays so: choose another name.")
    return saved_trial


def find_trial(store: Store, name: str, score: str) -> Trial:
    """A trial that runs; of memory's, the score that decides is chosen when one looks."""
    from closeloop.cli.config import load_project
    from closeloop.metrics.variant_trials import list_trials
    from closeloop.records.errors import unknown_name_error

    memory = load_project(Path.cwd()).settings.memory
    trials = {one.name: one for one in list_trials(store, memory, score)}
    if name not in trials:
        raise unknown_name_error("trial", name, sorted(trials))
    return trials[name]


def render_trial_report(report: TrialReport) -> Iterator[RenderableType]:
    """A row a variant, then what may be called."""
    from rich.table import Table
    from rich.text import Text

    from closeloop.metrics.variant_trials import REPORTED_METRICS, describe_needed

    names = dict.fromkeys((report.trial.metric, *REPORTED_METRICS))
    table = Table(box=None)
    table.add_column("")
    for title in ("share", "assigned", "outcomes", *names):
        table.add_column(title, justify="right")
    for arm in report.arms:
        cells = [arm.rates.get(name) for name in names]
        table.add_row(
            Text(make_visible(arm.variant)),
            format_percent(arm.share),
            f"{arm.assigned:,}",
            f"{arm.outcomes:,}",
            *("not known" if cell is None else f"{cell:.3g}" for cell in cells),
        )
    yield table
    if report.ratio is not None:
        yield Text(f"shares: {report.ratio.method}, p {report.ratio.p:.3g}", style="dim")
    for standing in report.standings:
        difference = standing.difference
        bounds = (
            f" {format_points_estimate(difference.value, difference.low, difference.high)}"
            if difference
            else ""
        )
        text = Text(f"{make_visible(standing.variant)}{bounds}: {standing.comparison.verdict}; ")
        yield text.append(standing.why, style=f"bold {CALL_COLOURS.get(standing.call, 'default')}")
        if needed := describe_needed(standing.comparison):
            yield Text(f"  {needed}", style="dim")
    if report.refusal:
        yield Text(make_visible(report.refusal), style="bold yellow")
