"""`closeloop prompt`: the system prompts that agents ran under, and what came of each."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from closeloop.cli.config import open_review_context
from closeloop.cli.console import (
    JsonFlag,
    make_visible,
    print_json,
    print_line,
    print_parts,
)
from closeloop.text.wording import format_percent, format_percent_range, format_points_estimate

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from closeloop.records.experiment_plan import PromptEffect
    from closeloop.records.team_rules import PromptProposal, PromptUse


def log(*, json: JsonFlag = False) -> None:
    """List every prompt, the newest first, with what ran under it."""
    from closeloop.reviews.agent_prompts import list_prompt_uses

    with open_review_context() as at:
        prompt_uses = list_prompt_uses(at.store)
    if json:
        print_json(prompt_uses)
    elif prompt_uses:
        print_parts(prompts_table(prompt_uses))
    else:
        print_line("No prompt is known: `closeloop run`, `import` and `prompt add` bring them.")


def prompts_table(found: list[PromptUse]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None)
    titles = ("prompt", "name", "seen in", "used by", "attempts", "pull requests", "from", "until")
    for title in (*titles, "begins"):
        table.add_column(title)
    for prompt_use in found:
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
    """Print a prompt as it was.

    Parameters
    ----------
    prompt
        By its id or the beginning of it.
    json
        Print one JSON document instead: the tools and settings too.
    """
    from closeloop.reviews.agent_prompts import find_prompt

    with open_review_context() as at:
        prompt_version = find_prompt(at.store, prompt)
    print_json(prompt_version) if json else print_line(prompt_version.text.rstrip("\n"))


def diff(old: str, new: str, *, json: JsonFlag = False) -> int:
    """Show what differs between two prompts, and the runs that would tell whether it matters.

    Exits with 1 when they differ.

    Parameters
    ----------
    old
        By its id or the beginning of it.
    new
        The one that it is held against.
    """
    from closeloop.reviews.agent_prompts import (
        diff_prompts,
        find_prompt,
        list_prompt_uses,
        propose_prompt_runs,
    )

    with open_review_context() as at:
        before, after = find_prompt(at.store, old), find_prompt(at.store, new)
        uses_by_id = {one.id: one for one in list_prompt_uses(at.store)}
    lines = list(diff_prompts(before, after))
    prompt_proposal = (
        propose_prompt_runs(uses_by_id[before.id], uses_by_id[after.id]) if lines else None
    )
    if json:
        print_json({"diff": lines, "proposal": prompt_proposal})
    else:
        print_line("\n".join(lines) or "They are the same.")
        print_proposal(prompt_proposal)
    return 1 if lines else 0


def print_proposal(proposed: PromptProposal | None) -> None:
    if proposed is not None:
        print_line(f"\n{proposed.note} To see whether the change does any good:")
        for command in proposed.commands:
            print_line(f"  {command}")


def restore(prompt: str, *, to: Path, json: JsonFlag = False) -> None:
    """Write a prompt into a file, as it was, to run agents with it again.

    Parameters
    ----------
    prompt
        By its id or the beginning of it.
    to
        The file; what it holds now is shown as a difference first.
    """

    from closeloop.cli.console import report_write_errors
    from closeloop.reviews.agent_prompts import find_prompt

    with open_review_context() as at:
        prompt_version = find_prompt(at.store, prompt)
    with report_write_errors(to):
        before = to.read_text(encoding="utf-8", errors="replace") if to.exists() else ""
        to.write_bytes(prompt_version.text.encode())
    if json:
        print_json(
            {"prompt": prompt_version.id, "file": str(to), "changed": before != prompt_version.text}
        )
        return
    if before and before != prompt_version.text:
        lines = difflib.unified_diff(
            before.splitlines(),
            prompt_version.text.splitlines(),
            str(to),
            prompt_version.id[:12],
            lineterm="",
        )
        print_line("\n".join(lines))
    print_line(f"{to} holds the prompt {prompt_version.id[:12]}.")


def add(
    file: Path,
    *,
    name: str | None = None,
    agent: str | None = None,
    repo: str | None = None,
    since: str | None = None,
    json: JsonFlag = False,
) -> None:
    """Store the system prompt of an agent that works elsewhere, as a version.

    Parameters
    ----------
    file
        The file that holds it.
    name
        What to call it: a trailer `Prompt-Version: NAME` or a label `prompt:NAME` then names it.
    agent
        Work of this agent that names no prompt runs under it from now on.
    repo
        Only its work in this repository, as owner/name.
    since
        Not from now on but from this date, such as 2026-11-01.
    """
    from closeloop.cli.import_ import parse_since
    from closeloop.records.errors import BadInput
    from closeloop.reviews.agent_prompts import add_prompt

    if agent is None and (repo or since):
        raise BadInput("Say whose prompt it is: --agent NAME.")
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{file} cannot be read as text: name another file.") from error
    with open_review_context() as at:
        prompt = add_prompt(
            at.store, text, name=name, agent=agent, repo=repo, since=parse_since(since)
        )
    print_json(prompt) if json else print_line(f"{prompt.id[:12]} is stored.")


def results(
    prompt: str,
    against: str | None = None,
    *,
    score: str = "merge rate",
    json: JsonFlag = False,
) -> int:
    """Say whether a rate improved after a version of a prompt. Exits with 4 where none can say.

    Parameters
    ----------
    prompt
        By its id, the beginning of it, or its name.
    against
        The version it is held against; the one that the same agents used before when not given.
    score
        The rate: any that `closeloop scores` lists.
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
    """The verdict first, then what it rests on."""
    from rich.text import Text

    from closeloop.metrics.variant_trials import describe_needed

    comparison = effect.comparison
    new, old = (make_visible(name[:12]) for name in (effect.new, effect.old))
    yield Text(f"{effect.metric} under {new} against {old}: {comparison.verdict}", style="bold")
    for name, one in ((old, effect.before), (new, effect.after)):
        rate = (
            "not known"
            if one is None
            else f"{format_percent(one.value)} ({format_percent_range(one.low, one.high)})"
        )
        yield Text(f"  {name}  {rate}, n {one.n if one else 0}")
    if (seen := comparison.difference) is not None:
        change = format_points_estimate(seen.value, seen.low, seen.high)
        yield Text(f"  difference {change}")
    if needed := describe_needed(comparison):
        yield Text(f"  {needed}", style="dim")
    for note in effect.notes:
        yield Text(note, style="yellow")
