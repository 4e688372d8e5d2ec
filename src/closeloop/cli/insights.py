"""`closeloop insights`: what agents said they lacked, grouped and counted."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from closeloop.cli.console import say, say_json, show, visible
from closeloop.cli.shelves import Opened, me, opened

if TYPE_CHECKING:
    from rich.table import Table

    from closeloop.model.memory import Theme


def insights(
    *,
    repo: str | None = None,
    rule: int | None = None,
    line: int | None = None,
    to: Path | None = None,
    text: str | None = None,
    json: bool = False,
) -> None:
    """List what agents lacked, the commonest first; make a rule, or a line of a prompt, of one.

    Parameters
    ----------
    repo
        Only of this repository, by its path or as owner/name.
    rule
        Make a rule of the theme with this number: agents are told it from now on.
    line
        Make a line of a prompt of the theme with this number; printed, or added with --to.
    to
        The file that the line is added to.
    text
        Better words for the rule or the line.
    json
        Print one JSON document instead.
    """
    from closeloop.reviewing.hydrating import themes_of

    with opened() as at:
        found = themes_of(at.store, at.encoder, (repo,) if repo else ())
        if rule is not None:
            make_rule(at, numbered(found, rule), text, repo, json=json)
            return
    if line is not None:
        add_line(text or numbered(found, line).text, to)
    elif json:
        say_json(found)
    elif found:
        show(table_of(found))
    else:
        say("No agent was asked what it lacked: `closeloop run --feedback` asks.")


def numbered(found: list[Theme], number: int) -> Theme:
    from closeloop.model.errors import BadInput

    chosen = next((theme for theme in found if theme.number == number), None)
    if chosen is None:
        raise BadInput(f"There is no theme {number}: `closeloop insights` lists {len(found)}.")
    return chosen


def make_rule(at: Opened, theme: Theme, text: str | None, repo: str | None, *, json: bool) -> None:
    from closeloop.reviewing.briefing import called
    from closeloop.reviewing.memory import add

    held = repo or called(theme.repo or str(at.root))
    made = add(at.store, text or theme.text, held, me(), datetime.now(UTC), "insight")
    say_json(made) if json else say(f"{made.id} is {made.state}: {made.text}")


def add_line(text: str, to: Path | None) -> None:
    """One line; a file that ends without a line's end gets one first."""
    from closeloop.cli.files import writing

    told = f"- {' '.join(text.split())}\n"
    if to is None:
        say(told.rstrip("\n"))
        return
    with writing(to):
        before = to.read_bytes() if to.exists() else b""
        apart = b"" if not before or before.endswith(b"\n") else b"\n"
        to.write_bytes(before + apart + told.encode())
    say(f"{to}: {told.rstrip()}")


def table_of(found: list[Theme]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None)
    for title in ("theme", "attempts", "last said", "what was lacking"):
        table.add_column(title, justify="right" if title in ("theme", "attempts") else "left")
    for one in found:
        table.add_row(
            str(one.number), str(one.count), f"{one.last:%Y-%m-%d}", Text(visible(one.text))
        )
    return table
