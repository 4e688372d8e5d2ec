"""`closeloop context`: what the next agent should know of this repository."""

from __future__ import annotations

import difflib
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from closeloop.cli.console import say, say_json, warn
from closeloop.cli.shelves import Opened, opened

if TYPE_CHECKING:
    from closeloop.reviewing.hydrating import Work

NOTHING = (
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
    from closeloop.model.errors import BadInput
    from closeloop.reviewing.hydrating import hydrate

    if write and into is None:
        raise BadInput("Name the file to write: --into AGENTS.md.")
    if tokens is not None and tokens < 1:
        raise BadInput(f"{tokens} tokens hold nothing: give more.")
    with opened() as at:
        work = work_of(at, repo or at.repo, task, key)
        found = hydrate(at.shelf, work, at.settings.memory, datetime.now(UTC), tokens)
    if json:
        say_json(found)
    elif into is None:
        say(found.text.rstrip("\n") or NOTHING)
    if into is not None:
        update(into, found.text, write=write, quiet=json)
    return 0


def work_of(at: Opened, repo: str, task: str | None, key: str | None) -> Work:
    """What is about to be done; a single word may be the id of a task."""
    from closeloop.reviewing.hydrating import Work

    names = (str(at.root),)
    plain = Work(repo=repo, text=task or "", key=key, names=names)
    if task is None or " " in task.strip() or not (at.root / at.settings.tasks).is_dir():
        return plain
    from closeloop import flow

    chosen = flow.choose(at.settings, at.root, [task])[0]
    return Work(
        repo=repo, text=chosen.prompt, scope=chosen.scope, key=key or chosen.id, names=names
    )


def update(file: Path, block: str, *, write: bool, quiet: bool) -> None:
    """Show the difference that our block makes to a file, and make it where that is asked for."""
    from closeloop.cli.files import write as put
    from closeloop.model.errors import BadInput
    from closeloop.reviews.hydration import managed

    try:
        content = file.read_bytes().decode() if file.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{file} cannot be read as text ({error}): name another.") from error
    changed = managed(content, block)
    if not quiet:
        lines = difflib.unified_diff(
            content.splitlines(), changed.splitlines(), str(file), str(file), lineterm=""
        )
        say("\n".join(lines) or f"{file} is up to date.")
    if write and changed != content:
        put(file, changed.encode())
    elif changed != content:
        warn(f"{file} is as it was: add --write to change it.")
