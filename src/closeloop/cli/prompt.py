"""`closeloop prompt`: the prompts that agents ran under, and what changed between them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from closeloop.cli.console import say, say_json, show, visible
from closeloop.cli.shelves import opened

if TYPE_CHECKING:
    from rich.table import Table

    from closeloop.model.prompts import PromptUse, Proposal


def log(*, json: bool = False) -> None:
    """List every prompt, the newest first, with what ran under it.

    Parameters
    ----------
    json
        Print one JSON document instead.
    """
    from closeloop.reviewing.prompting import log

    with opened() as at:
        found = log(at.store)
    if json:
        say_json(found)
    elif found:
        show(table_of(found))
    else:
        say("No prompt is known: `closeloop run` keeps those that it uses.")


def table_of(found: list[PromptUse]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None)
    for title in ("prompt", "variants", "attempts", "pull requests", "from", "until", "begins"):
        table.add_column(title)
    for one in found:
        days = [f"{day:%Y-%m-%d}" if day else "–" for day in (one.first, one.last)]
        opening = Text(visible(one.opening[:60]))
        variants = Text(visible(", ".join(one.variants)))
        pulls = f"{len(one.pulls)}"
        table.add_row(one.id[:12], variants, f"{one.attempts}", pulls, *days, opening)
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
    from closeloop.reviewing.prompting import find

    with opened() as at:
        found = find(at.store, prompt)
    say_json(found) if json else say(found.text.rstrip("\n"))


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
    from closeloop.reviewing.prompting import find, log
    from closeloop.reviews.prompts import differences, proposal

    with opened() as at:
        before, after = find(at.store, old), find(at.store, new)
        used = {one.id: one for one in log(at.store)}
    lines = list(differences(before, after))
    proposed = proposal(used[before.id], used[after.id]) if lines else None
    if json:
        say_json({"diff": lines, "proposal": proposed})
    else:
        say("\n".join(lines) or "They are the same.")
        tell(proposed)
    return 1 if lines else 0


def tell(proposed: Proposal | None) -> None:
    if proposed is not None:
        say(f"\n{proposed.note} To see whether the change does any good:")
        for command in proposed.commands:
            say(f"  {command}")


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

    from closeloop.cli.files import writing
    from closeloop.reviewing.prompting import find

    with opened() as at:
        found = find(at.store, prompt)
    with writing(to):
        before = to.read_text(encoding="utf-8", errors="replace") if to.exists() else ""
        to.write_bytes(found.text.encode())
    if json:
        say_json({"prompt": found.id, "file": str(to), "changed": before != found.text})
        return
    if before and before != found.text:
        lines = difflib.unified_diff(
            before.splitlines(), found.text.splitlines(), str(to), found.id[:12], lineterm=""
        )
        say("\n".join(lines))
    say(f"{to} holds the prompt {found.id[:12]}.")
