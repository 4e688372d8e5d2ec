"""`closeloop insights`: what agents said they lacked, grouped and counted."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from closeloop.cli.console import make_visible, print_json, print_line, print_parts
from closeloop.cli.review_context import ReviewContext, current_user, open_review_context

if TYPE_CHECKING:
    from rich.table import Table

    from closeloop.records.team_rules import InsightTheme


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
    from closeloop.reviews.agent_context import list_themes

    with open_review_context() as at:
        themes = list_themes(at.store, at.encoder, (repo,) if repo else ())
        if rule is not None:
            add_rule_from_theme(at, find_theme(themes, rule), text, repo, json=json)
            return
    if line is not None:
        add_prompt_line(text or find_theme(themes, line).text, to)
    elif json:
        print_json(themes)
    elif themes:
        print_parts(themes_table(themes))
    else:
        print_line("No agent was asked what it lacked: `closeloop run --feedback` asks.")


def find_theme(found: list[InsightTheme], number: int) -> InsightTheme:
    from closeloop.records.errors import BadInput

    chosen = next((theme for theme in found if theme.number == number), None)
    if chosen is None:
        raise BadInput(f"There is no theme {number}: `closeloop insights` lists {len(found)}.")
    return chosen


def add_rule_from_theme(
    at: ReviewContext, theme: InsightTheme, text: str | None, repo: str | None, *, json: bool
) -> None:
    from closeloop.reviews.prompt_context import clone_repository_name
    from closeloop.reviews.rule_editing import add_rule

    rule_repo = repo or clone_repository_name(theme.repo or str(at.root))
    new_rule = add_rule(
        at.store, text or theme.text, rule_repo, current_user(), datetime.now(UTC), "insight"
    )
    print_json(new_rule) if json else print_line(
        f"{new_rule.id} is {new_rule.state}: {new_rule.text}"
    )


def add_prompt_line(text: str, to: Path | None) -> None:
    """One line; a file that ends without a line's end gets one first."""
    from closeloop.cli.argument_files import report_write_errors

    prompt_line = f"- {' '.join(text.split())}\n"
    if to is None:
        print_line(prompt_line.rstrip("\n"))
        return
    with report_write_errors(to):
        before = to.read_bytes() if to.exists() else b""
        line_break = b"" if not before or before.endswith(b"\n") else b"\n"
        to.write_bytes(before + line_break + prompt_line.encode())
    print_line(f"{to}: {prompt_line.rstrip()}")


def themes_table(found: list[InsightTheme]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None)
    for title in ("theme", "attempts", "last said", "what was lacking"):
        table.add_column(title, justify="right" if title in ("theme", "attempts") else "left")
    for theme in found:
        table.add_row(
            str(theme.number),
            str(theme.count),
            f"{theme.last:%Y-%m-%d}",
            Text(make_visible(theme.text)),
        )
    return table
