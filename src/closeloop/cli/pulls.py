"""`closeloop pulls`: pull requests, whose work they are, and what became of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from closeloop.cli.console import JsonFlag
from closeloop.records.record import Record

if TYPE_CHECKING:
    from rich.console import RenderableType

    from closeloop.cli.config import ProjectConfiguration
    from closeloop.records.pull_request import PullRequest
    from closeloop.reviews.pull_board import BoardRow
    from closeloop.reviews.pull_changes import FetchedChanges
    from closeloop.store import Store

RISK_COLOURS = {"critical": "bold red", "high": "red", "medium": "yellow"}
NO_CHANGE_REASON = "its diff is not known: `closeloop pulls --fetch` asks for it"
CHECK_MARKS = {"passed": "✓", "failed": "✗", "running": "…", "skipped": "·"}


class PullListing(Record):
    """Pull requests, and what all of them add up to, those too that are not listed."""

    pulls: tuple[BoardRow, ...]
    count: int
    merged: int
    unreviewed: int
    """Merged though no person but the author had looked; not counted where only git tells."""
    reverted: int
    """Merged, and later reverted or fixed."""


def pulls(  # noqa: PLR0913 - one parameter for each flag
    pull: str | None = None,
    *,
    repo: str | None = None,
    state: Literal["open", "merged", "closed"] | None = None,
    by: Literal["agents", "people"] | None = None,
    sort: Literal["care", "newest", "size", "cost"] = "care",
    fetch: bool = False,
    limit: int = 50,
    json: JsonFlag = False,
) -> None:
    """List pull requests, what deserves care first, or show the life of one.

    Parameters
    ----------
    pull
        One to show: OWNER/NAME#12, or 12 where only one repository is known.
    repo
        Only those of this repository.
    state
        Only those in this state.
    by
        Only those of agents, or of people.
    sort
        What comes first: what deserves care, the newest, the largest or the dearest.
    fetch
        Ask code hosts and this clone for the diffs that are not stored yet.
    limit
        How many are listed at the most; all are counted.
    """
    from closeloop.cli.config import load_project
    from closeloop.cli.console import print_json, print_parts, require_positive_flags
    from closeloop.reviews.authorship import merge_known_agents
    from closeloop.reviews.pull_board import list_board
    from closeloop.reviews.pull_updates import load_pull
    from closeloop.store.store_opening import open_existing_store

    require_positive_flags(limit=limit)
    project = load_project(Path.cwd())
    with open_existing_store(project.settings, project.root) as store:
        if fetch:
            fetched = fetch_changes(store, project, repo)
            print_json(fetched) if json else print_parts(*render_fetched(fetched))
            return
        if pull is not None:
            pull_request = load_pull(
                *parse_pull_name(pull, store),
                store,
                merge_known_agents(project.settings.pulls.agents),
            )
            row = store.pulls.load_pull(pull_request.repo, pull_request.number)
            has_change = row is not None and row.has_change
            print_json(pull_request) if json else print_parts(
                *render_pull_life(pull_request, has_change=has_change)
            )
            return
        by_agent = None if by is None else by == "agents"
        rows = store.pulls.list_pulls(repo=repo, state=state, agent=by_agent)
        board = list_board(store, rows, sort)
    listing = build_pull_listing(board, limit)
    print_json(listing) if json else print_parts(*pulls_table(listing))


def fetch_changes(store: Store, project: ProjectConfiguration, repo: str | None) -> FetchedChanges:
    """Ask for the diffs that are missing, with the credentials of the environment."""
    import os
    from functools import partial

    import anyio

    from closeloop.changes.host_credentials import open_code_host
    from closeloop.cli.check import cache_folder
    from closeloop.reviews.authorship import merge_known_agents
    from closeloop.reviews.pull_changes import fetch_missing_changes, list_pulls_without_change
    from closeloop.reviews.pull_risk import RiskAssessment

    cache, checks = cache_folder(project, os.environ), project.settings.check
    return anyio.run(
        fetch_missing_changes,
        store,
        merge_known_agents(project.settings.pulls.agents),
        list_pulls_without_change(store, repo),
        partial(open_code_host, environ=os.environ),
        (project.root,),
        RiskAssessment(cache=cache, settings=checks),
    )


def render_fetched(fetched: FetchedChanges) -> Iterator[RenderableType]:
    from rich.text import Text

    from closeloop.cli.console import make_visible
    from closeloop.text.wording import count_with_noun

    clone = f", {fetched.from_clone} of them from this clone" if fetched.from_clone else ""
    yield Text(f"{count_with_noun(fetched.fetched, 'diff')} fetched{clone}.")
    for name, why in fetched.missing.items():
        yield Text(make_visible(f"{name}: {why}"), style="yellow")


def parse_pull_name(pull: str, store: Store) -> tuple[str, int]:
    """Repository and number of what a person typed."""
    from closeloop.records.errors import BadInput

    repo, _, number = pull.replace("!", "#").rpartition("#")
    if not number.isdecimal() or len(number) > 12:
        raise BadInput(f"{pull!r} names no pull request: write OWNER/NAME#12.")
    if repo:
        return repo, int(number)
    known_repos = {row.repo for row in store.pulls.list_pulls() if row.pull == int(number)}
    if len(known_repos) > 1:
        raise BadInput(
            f"{len(known_repos)} repositories have a #{number}: write OWNER/NAME#{number}."
        )
    return (min(known_repos) if known_repos else ""), int(number)


def build_pull_listing(board: Sequence[BoardRow], limit: int) -> PullListing:
    merged = [one.pull for one in board if one.pull.state == "merged"]
    return PullListing(
        pulls=tuple(board[:limit]),
        count=len(board),
        merged=len(merged),
        unreviewed=sum(not row.reviewed for row in merged if row.source != "git"),
        reverted=sum(row.pointers > 0 for row in merged),
    )


def pulls_table(listing: PullListing) -> Iterator[RenderableType]:
    from rich.table import Table
    from rich.text import Text

    from closeloop.cli.console import make_visible
    from closeloop.metrics.metric_figures import format_dollars

    if not listing.pulls:
        yield Text("No pull requests: `closeloop import --github OWNER/NAME` asks for them.")
        return
    table = Table(box=None)
    numbers = ("size", "rounds", "cost")
    for name in ("pull request", "state", "agent", "risk", "CI", *numbers, "title", "why"):
        justify: Literal["left", "right"] = "right" if name in numbers else "left"
        table.add_column(name, no_wrap=name not in ("title", "why"), justify=justify)
    for one in listing.pulls:
        row = one.pull
        state = "draft" if row.state == "open" and row.draft else row.state
        checks = (
            f"{CHECK_MARKS.get(row.first_push or '', '–')}"
            f" {CHECK_MARKS.get(row.last_push or '', '–')}"
        )
        table.add_row(
            Text(make_visible(f"{row.repo}#{row.pull}")),
            Text(state + (", reverted" if row.pointers else "")),
            Text(make_visible(row.agent or "–")),
            Text(one.risk or "–", style=RISK_COLOURS.get(one.risk or "", "dim")),
            checks,
            format_size(row.added, row.removed),
            str(row.rounds),
            "–" if one.cost is None else format_dollars(one.cost),
            Text(make_visible(row.title)),
            Text(", ".join(one.reasons[:3]), style="dim"),
        )
    if (more := listing.count - len(listing.pulls)) > 0:
        table.caption = f"… and {more:,} more: --limit {listing.count} lists all of them"
    yield table
    yield Text(
        f"{listing.merged} merged · {listing.unreviewed} without review · "
        f"{listing.reverted} reverted or fixed later",
        style="dim",
    )


def format_size(added: int | None, removed: int | None) -> str:
    """`+12 −3`; nothing where nobody told."""
    return "–" if added is None or removed is None else f"+{added:,} −{removed:,}"


def render_pull_life(pull: PullRequest, *, has_change: bool) -> Iterator[RenderableType]:
    """What happened to one, in order."""
    from rich.table import Table
    from rich.text import Text

    from closeloop.cli.console import make_visible
    from closeloop.reviews.pull_lifecycle import block_reason

    yield Text(make_visible(f"{pull.repo}#{pull.number}  {pull.title}"), style="bold")
    authorship = ", ".join(f"{sign.kind} {sign.value}" for sign in pull.signs) or "a person's"
    pull_facts = {
        "state": pull.state
        + (", reverted" if pull.pointers else "")
        + ("" if pull.reviewed or pull.source == "git" else ", no review"),
        "agent": f"{pull.agent} ({authorship})" if pull.agent else authorship,
        "asked by": pull.asked_by,
        "size": None if pull.added is None else format_size(pull.added, pull.removed),
        "attempt": pull.attempt,
        "task": pull.task,
        "prompt": pull.prompt,
        "first push": pull.first_push,
        "held": (block_reason(pull) or (None if has_change else NO_CHANGE_REASON))
        if pull.state == "open" and pull.agent
        else None,
    }
    facts = Table(box=None, show_header=False)
    for name, value in pull_facts.items():
        if value:
            facts.add_row(Text(name, style="dim"), Text(make_visible(value)))
    yield facts
    events_table = Table(box=None, show_header=False)
    for at, what in sorted(_list_pull_events(pull), key=lambda one: one[0]):
        events_table.add_row(Text(at[:16].replace("T", " "), style="dim"), Text(make_visible(what)))
    yield events_table


def _list_pull_events(pull: PullRequest) -> Iterator[tuple[str, str]]:
    yield pull.opened.isoformat(), f"opened by {pull.author or 'somebody who is gone'}"
    for push in pull.pushes:
        if push.before:
            forced = "force-pushed" if push.forced else "pushed"
            yield push.at.isoformat(), f"{forced} {push.after[:7]} by {push.by or '?'}"
    for check in pull.checks:
        yield check.at.isoformat(), f"check {check.name} {check.result} at {check.sha[:7]}"
    for review in pull.reviews:
        yield review.at.isoformat(), f"review by {review.by or '?'}: {review.state}"
    for comment in pull.comments:
        place = f" at {comment.path}:{comment.line}" if comment.path else ""
        comment_text = " ".join(comment.body.split())[:80]
        yield comment.at.isoformat(), f"{comment.by or '?'}{place}: {comment_text}"
    for review_round in pull.rounds:
        end = (review_round.ended or review_round.started).isoformat()
        yield (
            end,
            f"round {review_round.number} "
            + ("answered" if review_round.answer else "not answered"),
        )
    for edit in pull.edits:
        sizes = [file.added for file in edit.files or () if file.added is not None]
        added = f"+{sum(sizes)}" if sizes else ""
        paths = ", ".join(file.path for file in (edit.files or ())[:3])
        where = " ".join(filter(None, (added, paths))) or "files not known"
        yield edit.at.isoformat(), f"edit by {edit.by or '?'}: {where}"
    if pull.merged or pull.closed:
        yield (pull.merged or pull.closed or pull.told).isoformat(), pull.state
    for pointer in pull.pointers:
        word = "reverted" if pointer.kind == "revert" else "fixed"
        yield (
            pointer.at.isoformat(),
            f"{word} by {pointer.by[:10]} ({pointer.how}): {pointer.title}",
        )
