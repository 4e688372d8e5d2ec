"""`closeloop branch`: what an attempt changed, as a branch to look at, run or merge."""

from __future__ import annotations

from pathlib import Path


def branch(attempt: str, *, json: bool = False) -> None:
    """Make a git branch of what an attempt changed, in the task's repository.

    Work tree, index and HEAD are left as they are.

    Parameters
    ----------
    attempt
        The id of the attempt, or the beginning of it.
    json
        Print one JSON document instead.
    """
    from closeloop import flow
    from closeloop.cli.config import load
    from closeloop.cli.console import say, say_json
    from closeloop.running.keeping import branch_for

    found = load(Path.cwd())
    with flow.open_kept_store(found.settings, found.root) as store:
        made = branch_for(store, attempt)
    if json:
        say_json(made)
    else:
        say(f"{made.name} in {made.repo}")
