"""`closeloop purge`: take a secret that got in out of the store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType

    from closeloop.attempts.secret_purge import PurgeResult
    from closeloop.records.purge import Purge


def purge(
    *,
    file: Path | None = None,
    variable: str | None = None,
    all_known: bool = False,
    list: bool = False,  # noqa: A002 - what people type
    yes: bool = False,
    json: bool = False,
) -> None:
    """Remove a secret from everything that is stored; say first what would be removed.

    The secret comes on standard input, unless a file or a variable is named: never as an
    argument, which other users and the shell's history would keep.

    Parameters
    ----------
    file
        A file that holds the secret and nothing else.
    variable
        The environment variable that holds the secret.
    all_known
        Remove all secrets that redaction knows today, from everything but the tasks.
    list
        Show what was purged before: who, when, and from how many records.
    yes
        Do it. Without this, records are only counted.
    json
        Print one JSON document instead.
    """
    import getpass
    import platform

    from msgspec.structs import replace

    from closeloop import flow
    from closeloop.attempts.secret_purge import files_with_secret, purge_known_forms, purge_secret
    from closeloop.attempts.unsaved_results import ATTEMPTS_FOLDER, recover_batches
    from closeloop.cli.config import load_project
    from closeloop.cli.console import print_json, print_parts
    from closeloop.orchestration.orchestration_run import UNSAVED_PLANS
    from closeloop.records.errors import BadInput

    if sum((file is not None, variable is not None, all_known, list)) > 1:
        raise BadInput("Choose one: --file, --variable, --all-known or --list.")
    secret = None if all_known or list else read_secret(file, variable)
    project = load_project(Path.cwd())
    who = f"{getpass.getuser()}@{platform.node()}"
    with flow.open_existing_store(project.settings, project.root) as store:
        if list:
            tombstones = store.purges.list_purges()
            print_json(tombstones) if json else print_parts(*render_tombstones(tombstones))
            return
        if yes:  # what no database took lies in files, and is purged with the rest
            for folder in (ATTEMPTS_FOLDER, UNSAVED_PLANS):
                recover_batches(store, project.root / folder)
        if secret is None:
            result = purge_known_forms(store, who=who, apply=yes)
        else:
            result = purge_secret(store, secret, who=who, apply=yes)
            files_left = tuple(files_with_secret(secret, project.root / ".closeloop"))
            result = replace(result, files=files_left)
    print_json(result) if json else print_parts(*render_purge_result(result))


def read_secret(file: Path | None, variable: str | None) -> str:
    """The secret, without the line's end that editors add."""
    import getpass
    import os
    import sys

    from closeloop.records.errors import BadInput

    if file is not None:
        try:
            secret = file.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "it is not text"
            raise BadInput(f"{file} cannot be read ({reason}): name another.") from error
    elif variable is not None:
        if variable not in os.environ:
            raise BadInput(f"The variable {variable} is not set: set it to the secret.")
        secret = os.environ[variable]
    elif sys.stdin.isatty():
        secret = getpass.getpass("The secret: ")
    else:
        secret = sys.stdin.read()
    if not secret.strip():
        raise BadInput("No secret was given: write it to standard input, a file or a variable.")
    return secret.rstrip("\r\n")


def render_purge_result(result: PurgeResult) -> Iterator[RenderableType]:
    """What was removed, or would be."""
    from rich.text import Text

    from closeloop.records.plural import count_with_noun

    records = count_with_noun(result.records, "record")
    places = ", ".join(f"{count} in {table}" for table, count in result.places.items())
    where = f" ({places})" if places else ""
    if not result.records:
        yield Text("Nothing that is stored holds it." + (" Old bytes are erased." * result.done))
    elif result.done:
        yield Text(f"Removed from {records}{where}. Revoke the secret: others may have read it.")
    else:
        yield Text(f"It stands in {records}{where}. `closeloop purge --yes` removes it.")
    for table, count in result.left.items():
        left_records = count_with_noun(count, "record")
        yield Text(f"{left_records} of {table} left alone: name a secret to remove it there too.")
    for name in result.files:
        yield Text(f"Still in {name}: delete that file.", style="yellow")


def render_tombstones(tombstones: list[Purge]) -> Iterator[RenderableType]:
    """A line for each purge."""
    from rich.text import Text

    from closeloop.records.plural import count_with_noun

    if not tombstones:
        yield Text("Nothing was purged.")
    for tombstone in tombstones:
        purged_what = "a secret" if tombstone.kind == "secret" else "all known forms"
        records = count_with_noun(tombstone.records, "record")
        yield Text(
            f"{tombstone.at:%Y-%m-%d %H:%M} {tombstone.who} removed {purged_what} from {records}"
        )
