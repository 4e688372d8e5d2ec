"""`closeloop context`: what the next agent should know of this repository."""

from __future__ import annotations

import difflib
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from closeloop.cli.console import print_json, print_line, print_warning
from closeloop.cli.review_context import ReviewContext, open_review_context

if TYPE_CHECKING:
    from closeloop.reviews.agent_context import UpcomingWork

NO_RULES_MESSAGE = (
    "Nothing is to be told, for no rule is active here: "
    "`closeloop memory learn` proposes rules, `closeloop memory add` writes one down."
)


def context(  # noqa: PLR0913 - one parameter for each flag
    *,
    repo: str | None = None,
    task: str | None = None,
    key: str | None = None,
    tokens: int | None = None,
    into: Path | None = None,
    write: bool = False,
    json: bool = False,
) -> int:
    """Print the rules and hints that matter to a task, quoted and with their origin.

    Parameters
    ----------
    repo
        As owner/name; the one that this clone came from when not given.
    task
        What the agent will be asked: the id of a task, or the request itself.
    key
        Under which it is remembered what was told, such as a branch.
        It may fall to the control arm then, which is told nothing.
    tokens
        The most that may be told; memory.tokens when not given.
    into
        Show what would change in this file, such as AGENTS.md or CLAUDE.md.
    write
        Change it.
    json
        Print one JSON document instead.
    """
    from closeloop.records.errors import BadInput
    from closeloop.reviews.agent_context import give_context

    if write and into is None:
        raise BadInput("Name the file to write: --into AGENTS.md.")
    if tokens is not None and tokens < 1:
        raise BadInput(f"{tokens} tokens hold nothing: give more.")
    with open_review_context() as at:
        work = describe_work(at, repo or at.repo, task, key)
        agent_context = give_context(
            at.rule_index, work, at.settings.memory, datetime.now(UTC), tokens
        )
    if json:
        print_json(agent_context)
    elif into is None:
        print_line(agent_context.text.rstrip("\n") or NO_RULES_MESSAGE)
    if into is not None:
        update_context_file(into, agent_context.text, write=write, quiet=json)
    return 0


def describe_work(at: ReviewContext, repo: str, task: str | None, key: str | None) -> UpcomingWork:
    """What is about to be done; a single word may be the id of a task."""
    from closeloop.reviews.agent_context import UpcomingWork

    names = (str(at.root),)
    request_work = UpcomingWork(repo=repo, text=task or "", key=key, names=names)
    if task is None or " " in task.strip() or not (at.root / at.settings.tasks).is_dir():
        return request_work
    from closeloop import flow

    chosen_task = flow.select_tasks(at.settings, at.root, [task])[0]
    return UpcomingWork(
        repo=repo,
        text=chosen_task.prompt,
        scope=chosen_task.scope,
        key=key or chosen_task.id,
        names=names,
    )


def update_context_file(file: Path, block: str, *, write: bool, quiet: bool) -> None:
    """Show the difference that our block makes to a file, and make it where that is asked for."""
    from closeloop.cli.argument_files import write_named_file as put
    from closeloop.records.errors import BadInput
    from closeloop.reviews.context_text import update_managed_block

    try:
        content = file.read_bytes().decode() if file.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{file} cannot be read as text ({error}): name another.") from error
    new_content = update_managed_block(content, block)
    if not quiet:
        lines = difflib.unified_diff(
            content.splitlines(), new_content.splitlines(), str(file), str(file), lineterm=""
        )
        print_line("\n".join(lines) or f"{file} is up to date.")
    if write and new_content != content:
        put(file, new_content.encode())
    elif new_content != content:
        print_warning(f"{file} is as it was: add --write to change it.")
