"""`closeloop prompt`: the prompts that agents ran under, and what changed between them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from closeloop.cli.console import make_visible, print_json, print_line, print_parts
from closeloop.cli.review_context import open_review_context

if TYPE_CHECKING:
    from rich.table import Table

    from closeloop.records.prompt_uses import PromptProposal, PromptUse


def log(*, json: bool = False) -> None:
    """List every prompt, the newest first, with what ran under it.

    Parameters
    ----------
    json
        Print one JSON document instead.
    """
    from closeloop.reviews.prompt_log import list_prompt_uses

    with open_review_context() as at:
        prompt_uses = list_prompt_uses(at.store)
    if json:
        print_json(prompt_uses)
    elif prompt_uses:
        print_parts(prompts_table(prompt_uses))
    else:
        print_line("No prompt is known: `closeloop run` keeps those that it uses.")


def prompts_table(found: list[PromptUse]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None)
    for title in ("prompt", "variants", "attempts", "pull requests", "from", "until", "begins"):
        table.add_column(title)
    for prompt_use in found:
        days = [f"{day:%Y-%m-%d}" if day else "–" for day in (prompt_use.first, prompt_use.last)]
        opening = Text(make_visible(prompt_use.opening[:60]))
        variants = Text(make_visible(", ".join(prompt_use.variants)))
        pulls = f"{len(prompt_use.pulls)}"
        table.add_row(prompt_use.id[:12], variants, f"{prompt_use.attempts}", pulls, *days, opening)
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
    from closeloop.reviews.prompt_log import find_prompt

    with open_review_context() as at:
        prompt_version = find_prompt(at.store, prompt)
    print_json(prompt_version) if json else print_line(prompt_version.text.rstrip("\n"))


def diff(old: str, new: str, *, json: bool = False) -> int:
    """Show what differs between two prompts, and the runs that would tell whether it matters.

    Exits with 1 when they differ.

    Parameters
    ----------
    old
        By its id or the beginning of it.
    new
        The one that it is held against.
    json
        Print one JSON document instead.
    """
    from closeloop.reviews.prompt_diff import diff_prompts, propose_prompt_runs
    from closeloop.reviews.prompt_log import find_prompt, list_prompt_uses

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


def restore(prompt: str, *, to: Path, json: bool = False) -> None:
    """Write a prompt into a file, as it was, to run agents with it again.

    Parameters
    ----------
    prompt
        By its id or the beginning of it.
    to
        The file; what it holds now is shown as a difference first.
    json
        Print one JSON document instead.
    """
    import difflib

    from closeloop.cli.argument_files import report_write_errors
    from closeloop.reviews.prompt_log import find_prompt

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
