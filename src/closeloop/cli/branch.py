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
    from closeloop.attempts.attempt_saving import branch_stored_attempt
    from closeloop.cli.config import load_project
    from closeloop.cli.console import print_json, print_line

    project = load_project(Path.cwd())
    with flow.open_existing_store(project.settings, project.root) as store:
        new_branch = branch_stored_attempt(store, attempt)
    if json:
        print_json(new_branch)
    else:
        print_line(f"{new_branch.name} in {new_branch.repo}")
