"""`closeloop prompt`: the system prompts of agents, and the results under each."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from closeloop.cli.config import open_review_context
from closeloop.cli.console import JsonFlag, make_visible, print_json, print_line, print_parts
from closeloop.text.wording import format_percent, format_percent_range, format_points_estimate

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from closeloop.metrics.score_columns import ScoreCatalogue
    from closeloop.records.experiment_plan import PromptEffect, Trial, TrialReport
    from closeloop.records.team_rules import PromptProposal, PromptUse
    from closeloop.store import Store


def log(*, json: JsonFlag = False) -> None:
    """List prompts, newest first, with the number of attempts and pull requests that used each."""
    from closeloop.reviews.agent_prompts import list_prompt_uses

    with open_review_context() as review_context:
        prompt_uses = list_prompt_uses(review_context.store)
    if json:
        print_json(prompt_uses)
    elif prompt_uses:
        print_parts(prompts_table(prompt_uses))
    else:
        print_line(
            "No prompts yet: `closeloop run`, `closeloop import` and `closeloop prompt "
            "add` store them."
        )


def prompts_table(uses: list[PromptUse]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None)
    titles = ("prompt", "name", "seen in", "used by", "attempts", "pull requests", "from", "until")
    for title in (*titles, "begins"):
        table.add_column(title)
    for prompt_use in uses:
        days = [f"{day:%Y-%m-%d}" if day else "–" for day in (prompt_use.first, prompt_use.last)]
        opening = Text(make_visible(prompt_use.opening[:60]))
        variants = Text(make_visible(", ".join(prompt_use.variants)))
        pulls = f"{len(prompt_use.pulls)}"
        name = Text(make_visible(prompt_use.name or "–"))
        counts = (f"{prompt_use.attempts}", pulls)
        table.add_row(
            Text(make_visible(prompt_use.id[:12])),
            name,
            prompt_use.source,
            variants,
            *counts,
            *days,
            opening,
        )
    return table


def show_(prompt: str, *, json: bool = False) -> None:
    """Print a stored prompt.

    Parameters
    ----------
    prompt
        An id, or a prefix of it.
    json
        Print one JSON document instead, with tools and settings.
    """
    from closeloop.reviews.agent_prompts import find_prompt

    with open_review_context() as review_context:
        prompt_version = find_prompt(review_context.store, prompt)
    print_json(prompt_version) if json else print_line(prompt_version.text.rstrip("\n"))


def diff(old: str, new: str, *, json: JsonFlag = False) -> int:
    """Compare two prompts, and print the command that tests the difference.

    Exit code 1 when they differ.

    Parameters
    ----------
    old
        An id, or a prefix of it.
    new
        The prompt to compare with.
    """
    from closeloop.reviews.agent_prompts import (
        diff_prompts,
        find_prompt,
        list_prompt_uses,
        propose_prompt_runs,
    )

    with open_review_context() as review_context:
        before, after = (
            find_prompt(review_context.store, old),
            find_prompt(review_context.store, new),
        )
        uses_by_id = {
            prompt_use.id: prompt_use for prompt_use in list_prompt_uses(review_context.store)
        }
    lines = list(diff_prompts(before, after))
    prompt_proposal = (
        propose_prompt_runs(uses_by_id[before.id], uses_by_id[after.id]) if lines else None
    )
    if json:
        print_json({"diff": lines, "proposal": prompt_proposal})
    else:
        print_line("\n".join(lines) or "The prompts are the same.")
        print_proposal(prompt_proposal)
    return 1 if lines else 0


def print_proposal(proposed: PromptProposal | None) -> None:
    if proposed is not None:
        print_line(f"\n{proposed.note} To test the effect of the change:")
        for command in proposed.commands:
            print_line(f"  {command}")


def restore(prompt: str, *, out: Path, json: JsonFlag = False) -> None:
    """Write a stored prompt to a file, to run agents with it again.

    Parameters
    ----------
    prompt
        An id, or a prefix of it.
    out
        The file to write; the difference from its present content is printed.
    """

    from closeloop.cli.console import report_write_errors
    from closeloop.reviews.agent_prompts import find_prompt

    with open_review_context() as review_context:
        prompt_version = find_prompt(review_context.store, prompt)
    with report_write_errors(out):
        before = out.read_text(encoding="utf-8", errors="replace") if out.exists() else ""
        out.write_bytes(prompt_version.text.encode())
    if json:
        print_json(
            {
                "prompt": prompt_version.id,
                "file": str(out),
                "changed": before != prompt_version.text,
            }
        )
        return
    if before and before != prompt_version.text:
        lines = difflib.unified_diff(
            before.splitlines(),
            prompt_version.text.splitlines(),
            str(out),
            prompt_version.id[:12],
            lineterm="",
        )
        print_line("\n".join(lines))
    print_line(f"Wrote prompt {prompt_version.id[:12]} to {out}.")


def add(
    file: Path,
    *,
    name: str | None = None,
    agent: str | None = None,
    repo: str | None = None,
    since: str | None = None,
    json: JsonFlag = False,
) -> None:
    """Store the system prompt of an agent that closeloop does not run.

    Parameters
    ----------
    file
        The file with the prompt.
    name
        A name for it: the trailer `Prompt-Version: NAME` or the label `prompt:NAME` on a pull
        request refers to it.
    agent
        Assume this prompt for future work of this agent that names no prompt.
    repo
        Only for work in this repository, as OWNER/NAME.
    since
        Start at this date instead of now, such as 2026-11-01.
    """
    from closeloop.cli.import_ import parse_since
    from closeloop.records.errors import BadInput
    from closeloop.reviews.agent_prompts import add_prompt

    if agent is None and (repo or since):
        raise BadInput("--repo and --since need an agent: add --agent NAME.")
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{file} cannot be read as text: choose another file.") from error
    with open_review_context(make=True) as review_context:
        prompt = add_prompt(
            review_context.store, text, name=name, agent=agent, repo=repo, since=parse_since(since)
        )
    print_json(prompt) if json else print_line(f"Stored {prompt.id[:12]}.")


def results(
    prompt: str, against: str | None = None, *, score: str = "merge rate", json: JsonFlag = False
) -> int:
    """Test whether a rate improved with a prompt. Exit code 4 when there is too little data.

    Parameters
    ----------
    prompt
        An id, a prefix of it, or a name.
    against
        The version to compare with; by default the one that the same agents used before.
    score
        The rate: any that `closeloop score list` lists.
    """
    from closeloop.cli.metrics import load_scored_work
    from closeloop.metrics.variant_trials import measure_prompt_effect
    from closeloop.reviews.agent_prompts import find_prompt_before, find_prompt_id

    with load_scored_work([score]) as (work, store, _):
        new = find_prompt_id(store, prompt)
        old = find_prompt_id(store, against) if against else find_prompt_before(store, new)
        effect = measure_prompt_effect(work, old, new, score)
    print_json(effect) if json else print_parts(*render_prompt_effect(effect))
    return 4 if effect.comparison.difference is None else 0


def render_prompt_effect(effect: PromptEffect) -> Iterator[RenderableType]:
    """Render the verdict first, then its evidence."""
    from rich.text import Text

    from closeloop.metrics.variant_trials import describe_needed

    comparison = effect.comparison
    new, old = (make_visible(name[:12]) for name in (effect.new, effect.old))
    yield Text(
        f"{effect.metric} with {new} compared with {old}: {comparison.verdict}", style="bold"
    )
    for name, estimate in ((old, effect.before), (new, effect.after)):
        rate = (
            "unknown"
            if estimate is None
            else f"{format_percent(estimate.value)} "
            f"({format_percent_range(estimate.low, estimate.high)})"
        )
        yield Text(f"  {name}  {rate}, n {estimate.n if estimate else 0}")
    if (difference := comparison.difference) is not None:
        change = format_points_estimate(difference.value, difference.low, difference.high)
        yield Text(f"  difference {change}")
    if needed_text := describe_needed(comparison):
        yield Text(f"  {needed_text}", style="dim")
    for note in effect.notes:
        yield Text(note, style="yellow")


# `closeloop ab`: assign work in production to variants at random, and see which is better.


DEFAULT_SCORE = "task completion rate"
CALL_COLOURS = {"better": "green", "worse": "red", "hopeless": "yellow"}


def start(
    name: str,
    *,
    variants: str,
    score: str = DEFAULT_SCORE,
    horizon: int | None = None,
    json: JsonFlag = False,
) -> None:
    """Start an A/B test: work is assigned to variants at random. The first is the baseline.

    Parameters
    ----------
    name
        The name of the test.
    variants
        The variants and their shares of the work, such as `a=0.5,b=0.5`.
    score
        The rate that decides, see `closeloop score list`.
    horizon
        Test once, after this many outcomes; by default results may be read at any time.
    """
    from closeloop.cli.config import load_project_scores, open_metrics_store
    from closeloop.cli.console import print_json, print_line

    with open_metrics_store(make=True) as (store, _):
        started = start_trial(store, name, variants, score, horizon, load_project_scores())
    print_json(started) if json else print_line(
        f"The A/B test {name!r} has started; {started.metric} decides."
    )


def assign(name: str, key: str, *, json: JsonFlag = False) -> None:
    """Print the variant that a piece of work is assigned to, always the same for one key.

    Parameters
    ----------
    name
        The name of the test; `memory` is the control group of team rules, see `memory.control`.
    key
        What is assigned: the id of a task, a branch, or the id of an attempt.
    """
    from closeloop.cli.config import open_metrics_store
    from closeloop.cli.console import print_json, print_line
    from closeloop.metrics.variant_trials import assign_variant

    with open_metrics_store() as (store, _):
        trial = find_trial(store, name, DEFAULT_SCORE)
        assignment = assign_variant(store, trial, key, datetime.now(UTC))
    print_json(assignment) if json else print_line(assignment.variant)


def status(name: str, *, score: str = DEFAULT_SCORE, json: JsonFlag = False) -> int:
    """Print the results of an A/B test. Exit code 1 when they cannot be trusted.

    Parameters
    ----------
    name
        The name of the test; `memory` is the control group of team rules, see `memory.control`.
    score
        The rate that decides `memory`; other tests have theirs from the start.
    """
    from closeloop.cli.config import (
        load_project_scores,
        open_metrics_store,
        print_measuring_progress,
    )
    from closeloop.cli.console import print_json, print_parts
    from closeloop.metrics.variant_trials import report_trial

    with open_metrics_store() as (store, rulebook):
        trial = find_trial(store, name, score)
        report = report_trial(
            store, rulebook, trial, print_measuring_progress, load_project_scores()
        )
    print_json(report) if json else print_parts(*render_trial_report(report))
    return 1 if report.refusal else 0


def start_trial(
    store: Store,
    name: str,
    variants: str,
    score: str,
    horizon: int | None,
    catalogue: ScoreCatalogue,
) -> Trial:
    """Start a trial; it cannot be changed, because a changed trial would show nothing."""
    from msgspec.structs import replace

    from closeloop.metrics.variant_trials import MEMORY_TRIAL, parse_shares, require_rate
    from closeloop.records.errors import BadInput
    from closeloop.records.experiment_plan import Trial

    if len(shares := parse_shares(variants)) < 2:
        raise BadInput("An A/B test needs two variants or more: --variants a=0.5,b=0.5.")
    if name == MEMORY_TRIAL:
        raise BadInput(
            f"{name!r} is reserved for the control group of team rules: choose another name."
        )
    if horizon is not None and horizon < 2:
        raise BadInput("--horizon must be 2 or more outcomes.")
    require_rate(score, catalogue)
    new_trial = Trial(
        name=name, shares=shares, metric=score, horizon=horizon, started=datetime.now(UTC)
    )
    saved_trial = store.trials.start_trial(new_trial)
    if replace(saved_trial, started=new_trial.started) != new_trial:
        raise BadInput(f"The A/B test {name!r} exists with other settings: choose another name.")
    return saved_trial


def find_trial(store: Store, name: str, score: str) -> Trial:
    """Return a running trial; for the trial of memory, `score` selects the deciding score."""
    from closeloop.cli.config import load_project
    from closeloop.metrics.variant_trials import MEMORY_TRIAL, list_trials
    from closeloop.records.errors import BadInput, unknown_name_error

    memory = load_project(Path.cwd()).settings.memory
    trials = {trial.name: trial for trial in list_trials(store, memory, score)}
    if name == MEMORY_TRIAL and name not in trials:
        raise BadInput(
            "No work has been given team rules yet: set memory.control to the share of work "
            "without them, and give them by `closeloop learn context --key NAME` or memory.hydrate."
        )
    if name not in trials:
        raise unknown_name_error("A/B test", name, sorted(trials))
    return trials[name]


def render_trial_report(report: TrialReport) -> Iterator[RenderableType]:
    """Render one row per variant, then the conclusion."""
    from rich.table import Table
    from rich.text import Text

    from closeloop.metrics.variant_trials import REPORTED_METRICS, describe_needed

    names = dict.fromkeys((report.trial.metric, *REPORTED_METRICS))
    table = Table(box=None)
    table.add_column("")
    for title in ("share", "assigned", "outcomes", *names):
        table.add_column(title, justify="right")

    def format_cell(name: str, value: float | None) -> str:
        if value is None:
            return "unknown"
        if name == report.trial.metric or name.endswith(" rate"):
            return format_percent(value)
        return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"

    for arm in report.arms:
        table.add_row(
            Text(make_visible(arm.variant)),
            format_percent(arm.share),
            f"{arm.assigned:,}",
            f"{arm.outcomes:,}",
            *(format_cell(name, arm.rates.get(name)) for name in names),
        )
    yield table
    if report.ratio is not None:
        yield Text(
            f"assigned in the planned shares: {report.ratio.method}, p {report.ratio.p:.3g}",
            style="dim",
        )
    for standing in report.standings:
        difference = standing.difference
        bounds = (
            f" {format_points_estimate(difference.value, difference.low, difference.high)}"
            if difference
            else ""
        )
        text = Text(f"{make_visible(standing.variant)}{bounds}: {standing.comparison.verdict}; ")
        yield text.append(standing.why, style=f"bold {CALL_COLOURS.get(standing.call, 'default')}")
        if needed_text := describe_needed(standing.comparison):
            yield Text(f"  {needed_text}", style="dim")
    if report.refusal:
        yield Text(make_visible(report.refusal), style="bold yellow")
