"""`closeloop score` and `closeloop score list`: score attempts, and list their scores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from closeloop.cli.console import JsonFlag, make_visible
from closeloop.text.wording import count_with_noun, format_percent

if TYPE_CHECKING:
    from rich.console import RenderableType

    from closeloop.records.score import ScoreSummary


def score(
    attempt: str | None = None,
    *values: str,
    note: str = "",
    reviewer: str | None = None,
    source: Literal["person", "judge", "code"] = "person",
    file: Annotated[Path | None, Parameter(allow_leading_hyphen=True)] = None,
    json: JsonFlag = False,
) -> None:
    """Score an attempt, or many attempts from a file; if one score is invalid, none is saved.

    Parameters
    ----------
    attempt
        The id of the attempt, or the beginning of it.
    values
        The scores, such as `would-merge=yes quality=0.8`.
    note
        A comment.
    reviewer
        Who gives the score; your user name by default. A later score replaces an earlier one.
    source
        `person`, `judge` or `code`.
    file
        A CSV or JSONL file, or - for JSONL from standard input, with the fields `attempt`, `name`
        and `value`, and `note` and `by` where they differ from line to line.
    """
    from datetime import UTC, datetime

    from closeloop.cli.config import current_user, load_project, load_project_scores
    from closeloop.cli.console import print_json, print_line
    from closeloop.metrics.score_columns import ScoreIntake, read_score_file, read_typed_scores
    from closeloop.records.errors import BadInput
    from closeloop.store.store import open_existing_store

    if (file is None) == (attempt is None):
        raise BadInput("Give an attempt and its scores, or a file of scores with --file.")
    rows, lines = (
        read_score_file(file)
        if file is not None
        else (read_typed_scores(attempt or "", values, note), ())
    )
    project = load_project(Path.cwd())
    intake = ScoreIntake(
        catalogue=load_project_scores(),
        source=source,
        by=reviewer or current_user(),
        now=datetime.now(UTC),
    )
    with open_existing_store(project.settings, project.root) as store:
        given = intake.read_rows(rows, store, lines)
        added = store.scores.add_scores(given)
    if json:
        print_json(given)
        return
    again = f"; {len(given) - added:,} already stored" if added < len(given) else ""
    print_line(f"{count_with_noun(added, 'score')} saved{again}.")


def scores(*, json: JsonFlag = False) -> None:
    """List every score: its meaning, its source, and how many attempts have it."""
    from closeloop.cli.config import load_project_scores
    from closeloop.cli.console import print_json, print_parts
    from closeloop.cli.metrics import load_scored_work
    from closeloop.metrics.score_columns import summarise_scores

    with load_scored_work(()) as (work, store, _):
        summaries = summarise_scores(work, store, load_project_scores())
    print_json(summaries) if json else print_parts(*render_scores(summaries))


def render_scores(summaries: Sequence[ScoreSummary]) -> Iterator[RenderableType]:
    """A line a score and source; those that people and judges gave first."""
    from rich.table import Table
    from rich.text import Text

    if not summaries:
        yield Text("No attempts yet: `closeloop run` and `closeloop import` add some.")
        return
    table = Table(box=None)
    for name in ("score", "source", "kind", "better"):
        table.add_column(name, no_wrap=True)
    for name in ("attempts", "coverage"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("meaning", ratio=1)
    for one in sorted(summaries, key=lambda one: one.last is None):
        definition = one.definition
        table.add_row(
            Text(make_visible(definition.name)),
            one.source,
            f"{definition.kind}, {definition.unit}" if definition.unit else definition.kind,
            definition.better or "–",
            f"{one.attempts:,}",
            "–" if one.coverage is None else format_percent(one.coverage),
            Text(make_visible(definition.says), style="dim"),
        )
    yield table
