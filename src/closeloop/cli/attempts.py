"""Lists of agents, experiments and attempts, and the search over attempts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from msgspec.structs import replace

from closeloop.cli.console import JsonFlag, make_visible
from closeloop.records.attempt import AttemptMarks, AttemptSort, is_incomplete_recording
from closeloop.records.record import Record
from closeloop.text.search_text import SearchSnippet
from closeloop.text.wording import short_repository_name

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

    from closeloop.cli.config import ProjectConfiguration
    from closeloop.metrics.score_columns import ScoreCell
    from closeloop.records.attempt import AttemptRow
    from closeloop.records.experiment_plan import ExperimentStatus
    from closeloop.records.pull_request import PullRequest
    from closeloop.records.settings import Settings
    from closeloop.reviews.pull_board import BoardRow, PullCost
    from closeloop.reviews.pull_changes import FetchedChanges
    from closeloop.store import Store


# `closeloop admin agents`: which agents are installed, and how to install the others.


def agents(*, json: JsonFlag = False) -> None:
    """List agents with version and path, or the command that installs them."""
    from rich.table import Table

    from closeloop import plugins
    from closeloop.cli.console import print_json, print_parts

    with ThreadPoolExecutor() as pool:  # a program may take seconds to print its version
        descriptions = list(pool.map(_describe_agent, plugins.load_plugins("agents")))
    if json:
        print_json(descriptions)
        return
    table = Table(box=None)
    for name in ("agent", "version", "path", "install with"):
        table.add_column(name, no_wrap=name != "install with")
    for description in descriptions:
        cells = (
            description["name"],
            description["version"] or "–",
            description["path"] or "–",
            description["install"] or "",
        )
        table.add_row(*map(make_visible, cells))
    print_parts(table)


def _describe_agent(agent: Any) -> dict[str, Any]:
    """Describe an agent; one that is a separate program may be missing."""
    adapter = getattr(agent, "adapter", None)
    installation = agent.locate_program() if adapter else None
    is_missing = adapter is not None and adapter.program and installation is None
    return {
        "name": agent.name,
        "installed": not is_missing,
        "version": agent.version,
        "path": installation.path if installation else None,
        "install": adapter.install if adapter and is_missing else None,
    }


# `closeloop list experiments`, `closeloop admin pause` and `closeloop admin resume`.

MAX_NAMES = 3


def experiments(*, json: JsonFlag = False) -> None:
    """List experiments with their progress, cost and state, newest first."""
    from closeloop.attempts.run_resources import list_experiment_statuses
    from closeloop.cli.config import load_project
    from closeloop.store.store import open_existing_store

    project = load_project(Path.cwd())
    with open_existing_store(project.settings, project.root) as store:
        statuses = list_experiment_statuses(store)
    print_experiments(statuses, json=json)


def pause(experiment: str, /, *, json: JsonFlag = False) -> None:
    """Pause an experiment: no process starts an attempt of it; running attempts finish.

    Parameters
    ----------
    experiment
        The id of the experiment, or the beginning of it.
    """
    set_experiment_paused(experiment, paused=True, json=json)


def resume(experiment: str, /, *, json: JsonFlag = False) -> None:
    """Resume a paused experiment: `closeloop run` starts its attempts again.

    Parameters
    ----------
    experiment
        The id of the experiment, or the beginning of it.
    """
    set_experiment_paused(experiment, paused=False, json=json)


def set_experiment_paused(name: str, *, paused: bool, json: bool) -> None:
    from closeloop.attempts.run_resources import read_experiment_status
    from closeloop.cli.config import load_project
    from closeloop.metrics.attempt_measuring import find_experiment
    from closeloop.store.store import open_existing_store

    project = load_project(Path.cwd())
    with open_existing_store(project.settings, project.root) as store:
        experiment = find_experiment(store, name)
        store.experiments.set_paused(experiment.id, paused=paused)
        status = read_experiment_status(store, experiment, store.experiments.list_claimed_jobs())
    print_experiments([status], json=json)


def print_experiments(statuses: list[ExperimentStatus], *, json: bool) -> None:
    from rich.text import Text

    from closeloop.cli.console import print_json, print_parts

    if json:
        print_json(statuses)
    else:
        print_parts(
            experiments_table(statuses)
            if statuses
            else Text("No experiments yet: `closeloop run` creates one.")
        )
        if any(status.state == "stopped" for status in statuses):
            print_parts(Text("The command that started a stopped experiment continues it."))


def experiments_table(courses: list[ExperimentStatus]) -> Table:
    """Build a table with one row per experiment."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None)
    counts = ("done", "running", "not run")
    for name in ("experiment", "name", "tasks", "variants", *counts, "cost", "state"):
        table.add_column(name, no_wrap=name != "variants")
    for status in courses:
        names = ", ".join(status.variants[:MAX_NAMES])
        hidden_count = len(status.variants) - MAX_NAMES
        table.add_row(
            status.experiment.id,
            Text(make_visible(status.experiment.name or "–")),
            str(len(status.experiment.tasks)),
            Text(make_visible(names + (f" and {hidden_count} more" if hidden_count > 0 else ""))),
            f"{status.done} of {status.total}",
            str(status.running),
            str(status.not_run),
            "–" if status.cost is None else f"${status.cost:.2f}",
            f"{status.state}, {status.for_review} for review"
            if status.for_review
            else status.state,
        )
    return table


OPTIONAL_COLUMNS = ("exit", "seconds", "turns", "why", "who")
"""Columns that a narrow terminal omits, in this order."""
MIN_TIME_WIDTH = 100
"""Width below which a terminal shows the day of an attempt, not the time."""


def optional_columns(rows: Sequence[AttemptRow]) -> tuple[str, ...]:
    """Return the columns to omit; in an experiment, variants matter more than costs."""
    is_experiment = any(row.variant_name for row in rows)
    return (*OPTIONAL_COLUMNS[:-1], "cost", "who") if is_experiment else OPTIONAL_COLUMNS


FILTER_FIELDS = ("agent", "model", "repo", "user", "rule", "experiment", "prompt", "arm")
"""What attempts are narrowed down by as `FIELD:VALUE`."""


def attempts(  # noqa: PLR0913 - one parameter for each flag
    *filters: str,
    task: str | None = None,
    variant: str | None = None,
    outcome: Literal["pass", "fail", "unscored"] | None = None,
    since: str | None = None,
    sort: AttemptSort = "newest",
    score: list[str] | None = None,
    limit: int = 50,
    json: JsonFlag = False,
) -> None:
    """List attempts and sessions with their titles and outcomes, without held-out tasks.

    Parameters
    ----------
    filters
        Only those of `agent:NAME`, `model:NAME`, `repo:NAME`, `user:NAME`, `rule:NAME`,
        `experiment:ID`, `prompt:ID` or `arm:TRIAL: VARIANT`; of several, those that match all.
    task
        Only attempts at this task.
    variant
        Only attempts of this variant.
    outcome
        Only attempts with this outcome.
    since
        Only those started since then: 24h, 7d, 2w, or a date such as 2026-11-01.
    sort
        The order: newest or oldest first, or highest cost, turns, findings or time first.
    score
        Add a column for this score, see `closeloop score list`; repeatable.
    limit
        Maximum number of rows.
    """
    from closeloop.cli.config import load_project
    from closeloop.cli.console import (
        print_json,
        print_line,
        print_parts,
        record_to_map,
        require_positive_flags,
    )
    from closeloop.cli.import_ import parse_since
    from closeloop.records.attempt import AttemptFilter
    from closeloop.store.store import open_existing_store

    require_positive_flags(limit=limit)
    project = load_project(Path.cwd())
    with open_existing_store(project.settings, project.root) as store:
        attempt_filter = AttemptFilter(
            task=task,
            variant=variant,
            outcome=outcome,
            since=parse_since(since),
            **parse_filters(filters, store),
        )
        sealed = store.held_out.list_sealed_digests()
        rows = store.listing.list_page(attempt_filter, limit, without=sealed, sort=sort)
        is_full = len(rows) == limit
        count = (
            store.listing.count_matches(attempt_filter, without=sealed) if is_full else len(rows)
        )
        if not rows and (task or variant):
            from closeloop.metrics.task_log import require_tried

            require_tried(store, task, variant)
        names = tuple(dict.fromkeys(score or ()))
        cells = load_cells(store, project.settings, rows, names)
        facts = load_listed_facts(store, rows)
        if attempt_filter.rule is not None:
            ids = [row.id for row in rows]
            findings = store.listing.find_rule_messages(ids, attempt_filter.rule)
            facts = replace(facts, findings=findings)
    if json:
        row_maps = [record_to_map(row) for row in rows]
        for fields in row_maps if names else ():
            fields["scores"] = cells_to_map(cells[fields["id"]], names)
        print_json(row_maps, count)
    elif rows:
        print_parts(
            attempts_table(rows, facts, cells, names),
            optional=optional_columns(rows),
            below=("found",),
        )
        if count > len(rows):
            print_line(f"{len(rows)} of {count:,} shown: --limit shows more.")
    else:
        is_all = not (filters or task or variant or outcome or since)
        advice = "No attempts match: remove a filter."
        print_line(
            "No attempts yet: `closeloop run` or `closeloop import` adds some."
            if is_all
            else advice
        )


def parse_filters(texts: Sequence[str], store: Store) -> dict[str, Any]:
    """Parse filters typed as `agent:codex`; ids may be shortened."""
    from closeloop.records.errors import BadInput, unknown_name_error

    filters: dict[str, str] = {}
    for text in texts:
        field, _, value = text.partition(":")
        if field not in FILTER_FIELDS or not value:
            fields = ", ".join(FILTER_FIELDS)
            raise BadInput(f"{text!r} is not a filter: write FIELD:VALUE, with one of {fields}.")
        filters[field] = value.strip()
    if "prompt" in filters:
        from closeloop.reviews.agent_prompts import find_prompt_id

        filters["prompt"] = find_prompt_id(store, filters["prompt"])
    if "experiment" in filters:
        from closeloop.metrics.attempt_measuring import find_experiment

        filters["experiment"] = find_experiment(store, filters["experiment"]).id
    if "arm" in filters and filters["arm"] not in (arms := store.trials.list_arms()):
        raise unknown_name_error("arm", filters["arm"], arms)
    return filters


def find(  # noqa: PLR0913 - one parameter for each flag
    text: str,
    *,
    since: str | None = None,
    until: str | None = None,
    agent: str | None = None,
    rule: str | None = None,
    sort: AttemptSort = "newest",
    limit: int = 20,
    json: JsonFlag = False,
) -> None:
    """Search sessions and attempts: requests, messages, commands, paths and findings.

    Parameters
    ----------
    text
        Words, or beginnings of words, that must all occur; a phrase "in quotes".
    since
        Only those started since then: 24h, 7d, 2w, or a date such as 2026-11-01.
    until
        Only those started before then; a date includes that day.
    agent
        Only those of this agent.
    rule
        Only those with a finding of this rule.
    sort
        The order: newest or oldest first, or highest cost, turns, findings or time first.
    limit
        Maximum number of rows.
    """
    from closeloop.cli.config import load_project
    from closeloop.cli.console import (
        print_json,
        print_line,
        print_parts,
        record_to_map,
        require_positive_flags,
        require_utf8_text,
    )
    from closeloop.cli.import_ import parse_since
    from closeloop.records.attempt import MAX_SEARCH_CHARS, AttemptFilter
    from closeloop.records.errors import BadInput
    from closeloop.store.store import open_existing_store
    from closeloop.text.search_text import parse_search

    require_positive_flags(limit=limit)
    require_utf8_text(text, "The search text")
    phrases = parse_search(text)
    if not phrases:
        raise BadInput("Give at least one word or number to search for.")
    if len(text) > MAX_SEARCH_CHARS:
        raise BadInput(f"The search text is too long: at most {MAX_SEARCH_CHARS} characters.")
    attempt_filter = AttemptFilter(
        q=text,
        since=parse_since(since),
        until=parse_since(until, is_end=True),
        agent=agent,
        rule=rule,
    )
    project = load_project(Path.cwd())
    with open_existing_store(project.settings, project.root) as store:
        if not store.is_read_only:
            store.search.index_missing()
        sealed = store.held_out.list_sealed_digests()
        rows = store.listing.list_page(attempt_filter, limit, without=sealed, sort=sort)
        count = store.listing.count_matches(attempt_filter, without=sealed)
        snippets = store.search.find_snippets([row.id for row in rows], phrases)
        facts = load_listed_facts(store, rows, snippets)
    if json:
        row_maps = [record_to_map(row) | {"snippet": snippets.get(row.id)} for row in rows]
        print_json(row_maps, count)
    elif rows:
        print_parts(
            attempts_table(rows, facts, {}, ()), optional=optional_columns(rows), below=("match",)
        )
        if count > len(rows):
            print_line(
                f"{len(rows)} of {count:,} shown: --limit shows more, --since narrows the search."
            )
    else:
        all_of = "" if len(phrases) == 1 else f"all of the {len(phrases)} words and phrases "
        print_line(
            f"No session contains {all_of}{make_visible(text)}. Try fewer words, or beginnings "
            "of words."
        )


class ListedFacts(Record):
    """Facts about attempts in a list besides their rows."""

    would_merge: dict[str, float] = {}
    """By attempt, the share of reviewers who would merge it, if no check decides."""
    marks: dict[str, AttemptMarks] = {}
    snippets: dict[str, SearchSnippet] = {}
    findings: dict[str, str] = {}
    """By attempt, what the rule found that the list is narrowed to."""


def load_listed_facts(
    store: Store, rows: Sequence[AttemptRow], snippets: Mapping[str, SearchSnippet] | None = None
) -> ListedFacts:
    from closeloop.store.metrics_section import AttemptSpan

    unchecked = tuple(row.id for row in rows if row.is_for_review)
    return ListedFacts(
        would_merge=store.scores.load_merging_shares(AttemptSpan(attempts=unchecked))
        if unchecked
        else {},
        marks=store.listing.load_marks([row.id for row in rows]),
        snippets=dict(snippets or {}),
    )


def load_cells(
    store: Store, settings: Settings, rows: Sequence[AttemptRow], names: Sequence[str]
) -> dict[str, tuple[ScoreCell, ...]]:
    """Return by attempt a cell for each score, without reading a trace."""
    if not names:
        return {}
    from closeloop.metrics.attempt_measuring import project_rulebook
    from closeloop.metrics.attempt_table import load_attempt_table
    from closeloop.metrics.score_columns import attach_scores, list_score_cells, project_scores
    from closeloop.store.metrics_section import AttemptSpan

    span = AttemptSpan(attempts=tuple(row.id for row in rows))
    work = load_attempt_table(store, project_rulebook(settings), span, remeasure=None)
    return list_score_cells(
        attach_scores(work, store, project_scores(settings), names, span), names
    )


def cells_to_map(cells: Sequence[ScoreCell], names: Sequence[str]) -> dict[str, Any]:
    """Return by score a number, a label, or None if it has no value."""
    return {name: [*cell.labels] or cell.value for name, cell in zip(names, cells, strict=True)}


def format_cell(cell: ScoreCell) -> str:
    if cell.labels:
        return ", ".join(cell.labels)
    return "–" if cell.value is None else f"{cell.value:.4g}"


def attempts_table(
    rows: Sequence[AttemptRow],
    facts: ListedFacts,
    cells: Mapping[str, Sequence[ScoreCell]],
    names: Sequence[str],
) -> Table:
    """Build a table with one row per attempt; results by reviews if no check decides; then the
    scores."""
    from rich.table import Table
    from rich.text import Text

    from closeloop.cli.console import (
        OUTCOME_MARKS,
        failure_reason,
        open_console,
        unconfirmed_pass_note,
    )
    from closeloop.text.wording import format_dollars

    output = open_console()
    is_narrow = output.is_terminal and output.width < MIN_TIME_WIDTH
    time_format = "%Y-%m-%d" if is_narrow else "%Y-%m-%d %H:%M"
    table = Table(box=None)
    table.add_column("attempt", no_wrap=True)
    table.add_column("when", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("what", min_width=18)
    for name in ("cost", *names):
        table.add_column(name, justify="right")
    table.add_column("findings", min_width=20, max_width=20)
    table.add_column("who", max_width=20)
    for name in ("turns", "seconds", "exit", "why"):
        table.add_column(name, justify="right" if name in ("turns", "seconds") else "left")
    if facts.snippets:
        table.add_column("match")
    if facts.findings:
        table.add_column("found")
    for row in rows:
        imported = row.origin == "production" and row.outcome is None
        by_review = row.is_for_review and row.id in facts.would_merge
        merged = by_review and facts.would_merge[row.id] > 0.5
        outcome = ("pass" if merged else "fail") if by_review else row.outcome or "unscored"
        sign, colour = ("·", "dim") if imported else OUTCOME_MARKS[outcome]
        marks = facts.marks.get(row.id)
        agent_name = row.variant_name or " ".join(name for name in (row.agent, row.model) if name)
        table.add_row(
            row.id,
            "–" if row.started is None else f"{row.started:{time_format}}",
            Text(sign, style=colour),
            describe_listed(row),
            "–" if row.cost is None else format_dollars(row.cost),
            *(Text(make_visible(format_cell(cell))) for cell in cells.get(row.id, ())),
            "–" if marks is None else ", ".join(marks.rules) or "none",
            Text(make_visible(agent_name or "–")),
            "–" if row.turns is None else str(row.turns),
            "–" if row.seconds is None else f"{row.seconds:.1f}",
            "incomplete" if is_incomplete_recording(row.origin, row.cause) else row.exit,
            Text(
                "by review" if by_review else failure_reason(row) or unconfirmed_pass_note(row),
                style="dim",
            ),
            *([render_snippet(facts.snippets.get(row.id))] if facts.snippets else []),
            *([Text(make_visible(facts.findings.get(row.id, "")))] if facts.findings else []),
        )
    return table


def describe_listed(row: AttemptRow) -> Text:
    """Return the title and the number of the repeat."""
    from rich.text import Text

    title = row.title or short_repository_name(row.repo) or "–"
    notes = [f"no. {row.number}"] if row.number > 1 else []
    notes += [f"retry {row.retry}"] if row.retry else []
    notes += [f"replay of {row.replay_of[:12]}"] if row.replay_of else []
    notes += ["a control"] if row.is_control else []
    return Text(make_visible(title + (f" ({', '.join(notes)})" if notes else "")))


def render_snippet(snippet: SearchSnippet | None) -> Text:
    """Render a snippet with the matches in brackets."""
    from rich.text import Text

    if snippet is None:
        return Text()
    return Text.assemble(
        (make_visible(snippet.before), "dim"),
        (f"[{make_visible(snippet.match)}]", "bold yellow"),
        (make_visible(snippet.after), "dim"),
    )


# Pull requests: `closeloop list pulls` and `closeloop show OWNER/NAME#12`.


RISK_COLOURS = {"critical": "bold red", "high": "red", "medium": "yellow"}
NO_CHANGE_REASON = "its diff is not stored: download it with `closeloop list pulls --fetch`"
CHECK_MARKS = {"passed": "✓", "failed": "✗", "running": "…", "skipped": "·"}


class PullListing(Record):
    """Pull requests, and totals that also count those not listed."""

    items: tuple[BoardRow, ...]
    total: int
    merged: int
    unreviewed: int
    """Merged without a review by another person; not counted if git is the only source."""
    reverted: int
    """Merged, and later reverted or fixed."""


def pulls(  # noqa: PLR0913 - one parameter for each flag
    *,
    repo: str | None = None,
    state: Literal["open", "merged", "closed"] | None = None,
    author: Literal["agents", "people"] | None = None,
    sort: Literal["care", "newest", "size", "cost"] = "care",
    fetch: bool = False,
    limit: int = 50,
    json: JsonFlag = False,
) -> None:
    """List pull requests, those that need most care first; `closeloop show` shows one.

    Parameters
    ----------
    repo
        Only those of this repository.
    state
        Only this state.
    author
        Only those of agents, or of people.
    sort
        The order: most care needed, newest, largest or most expensive first.
    fetch
        Download missing diffs from the code host or this clone.
    limit
        Maximum number of rows; totals count all pull requests.
    """
    from closeloop.cli.config import load_project
    from closeloop.cli.console import print_json, print_parts, require_positive_flags
    from closeloop.reviews.pull_board import list_board
    from closeloop.store.store import open_existing_store

    require_positive_flags(limit=limit)
    project = load_project(Path.cwd())
    with open_existing_store(project.settings, project.root) as store:
        if fetch:
            fetched = fetch_changes(store, project, repo)
            print_json(fetched) if json else print_parts(*render_fetched(fetched))
            return
        by_agent = None if author is None else author == "agents"
        rows = store.pulls.list_pulls(repo=repo, state=state, agent=by_agent)
        board = list_board(store, rows, store.pulls.list_pulls(), sort)
    listing = build_pull_listing(board, limit)
    print_json(listing) if json else print_parts(*pulls_table(listing))


def show_pull(name: str, store: Store, settings: Settings, *, json: bool) -> None:
    """Print the history of one pull request."""
    from closeloop.cli.console import print_json, print_parts
    from closeloop.reviews.authorship import merge_known_agents
    from closeloop.reviews.pull_board import PullCost, load_pull_costs
    from closeloop.reviews.pull_lifecycle import load_pull

    agents = merge_known_agents(settings.pulls.agents)
    pull_request = load_pull(*parse_pull_name(name, store), store, agents)
    row = store.pulls.load_pull(pull_request.repo, pull_request.number)
    if json:
        print_json(pull_request)
        return
    costs = load_pull_costs(store, [row], store.pulls.list_pulls(agent=True)) if row else {}
    cost = next(iter(costs.values()), PullCost())
    has_change = row is not None and row.has_change
    print_parts(*render_pull_life(pull_request, cost, has_change=has_change))


def fetch_changes(store: Store, project: ProjectConfiguration, repo: str | None) -> FetchedChanges:
    """Download missing diffs with the credentials of the environment."""
    import os
    from functools import partial

    import anyio

    from closeloop.changes.code_host import open_code_host
    from closeloop.cli.check import cache_folder
    from closeloop.reviews.authorship import merge_known_agents
    from closeloop.reviews.pull_board import RiskAssessment
    from closeloop.reviews.pull_changes import fetch_missing_changes, list_pulls_without_change

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

    clone = f", {fetched.from_clone} from this clone" if fetched.from_clone else ""
    yield Text(f"{count_with_noun(fetched.fetched, 'diff')} fetched{clone}.")
    for name, reason in fetched.missing.items():
        yield Text(make_visible(f"{name}: {reason}"), style="yellow")


def parse_pull_name(pull: str, store: Store) -> tuple[str, int]:
    """Parse the repository and number that a user typed."""
    from closeloop.records.errors import BadInput

    repo, _, number = pull.replace("!", "#").rpartition("#")
    if not number.isdecimal() or len(number) > 12:
        raise BadInput(f"{pull!r} is not a pull request: write OWNER/NAME#12.")
    if repo:
        return repo, int(number)
    known_repos = {row.repo for row in store.pulls.list_pulls() if row.pull == int(number)}
    if len(known_repos) > 1:
        raise BadInput(
            f"{len(known_repos)} repositories have a #{number}: write OWNER/NAME#{number}."
        )
    return (min(known_repos) if known_repos else ""), int(number)


def build_pull_listing(board: Sequence[BoardRow], limit: int) -> PullListing:
    merged = [row.pull for row in board if row.pull.state == "merged"]
    return PullListing(
        items=tuple(board[:limit]),
        total=len(board),
        merged=len(merged),
        unreviewed=sum(not row.reviewed for row in merged if row.source != "git"),
        reverted=sum(row.pointers > 0 for row in merged),
    )


def pulls_table(listing: PullListing) -> Iterator[RenderableType]:
    from rich.table import Table
    from rich.text import Text

    from closeloop.cli.console import make_visible
    from closeloop.text.wording import format_dollars

    if not listing.items:
        yield Text("No pull requests yet: `closeloop import --github OWNER/NAME` imports them.")
        return
    table = Table(box=None)
    numbers = ("size", "rounds", "cost")
    for name in ("pull request", "state", "agent", "risk", "CI", *numbers, "title", "why"):
        justify: Literal["left", "right"] = "right" if name in numbers else "left"
        table.add_column(name, no_wrap=name not in ("title", "why"), justify=justify)
    for board_row in listing.items:
        row = board_row.pull
        state = "draft" if row.state == "open" and row.draft else row.state
        checks = (
            f"{CHECK_MARKS.get(row.first_push or '', '–')}"
            f" {CHECK_MARKS.get(row.last_push or '', '–')}"
        )
        table.add_row(
            Text(make_visible(f"{row.repo}#{row.pull}")),
            Text(state + (", reverted" if row.pointers else "")),
            Text(make_visible(row.agent or "–")),
            Text(board_row.risk or "–", style=RISK_COLOURS.get(board_row.risk or "", "dim")),
            checks,
            format_size(row.added, row.removed),
            str(row.rounds),
            "–" if board_row.cost is None else format_dollars(board_row.cost),
            Text(make_visible(row.title)),
            Text(", ".join(board_row.reasons[:3]), style="dim"),
        )
    if (hidden_count := listing.total - len(listing.items)) > 0:
        table.caption = f"… and {hidden_count:,} more: --limit {listing.total} lists all"
    yield table
    yield Text(
        f"{listing.merged} merged · {listing.unreviewed} without review · "
        f"{listing.reverted} reverted or fixed later",
        style="dim",
    )


def format_size(added: int | None, removed: int | None) -> str:
    """Format a size: `+12 −3`; empty if unknown."""
    return "–" if added is None or removed is None else f"+{added:,} −{removed:,}"


def describe_pull_cost(cost: PullCost) -> str:
    """Describe what the work cost, or why that is unknown."""
    from closeloop.text.wording import count_with_noun, format_dollars

    if not cost.sessions:
        return "unknown: there is no recording of the work"
    sessions = count_with_noun(cost.sessions, "session")
    if cost.cost is None:
        return f"unknown for {cost.without_cost} of {sessions}"
    return f"{format_dollars(cost.cost)} in {sessions}"


def render_pull_life(
    pull: PullRequest, cost: PullCost, *, has_change: bool
) -> Iterator[RenderableType]:
    """Render the events of a pull request, in order."""
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
        "requested by": pull.asked_by,
        "size": None if pull.added is None else format_size(pull.added, pull.removed),
        "attempt": pull.attempt,
        "task": pull.task,
        "prompt": pull.prompt,
        "first push": pull.first_push,
        "cost": describe_pull_cost(cost) if pull.agent else None,
        "blocked": (block_reason(pull) or (None if has_change else NO_CHANGE_REASON))
        if pull.state == "open" and pull.agent
        else None,
    }
    facts = Table(box=None, show_header=False)
    for name, value in pull_facts.items():
        if value:
            facts.add_row(Text(name, style="dim"), Text(make_visible(value)))
    yield facts
    events_table = Table(box=None, show_header=False)
    for time, description in sorted(_list_pull_events(pull), key=lambda event: event[0]):
        events_table.add_row(
            Text(time[:16].replace("T", " "), style="dim"), Text(make_visible(description))
        )
    yield events_table


def _list_pull_events(pull: PullRequest) -> Iterator[tuple[str, str]]:
    yield pull.opened.isoformat(), f"opened by {pull.author or 'a deleted user'}"
    for push in pull.pushes:
        if push.before:
            forced = "force-pushed" if push.forced else "pushed"
            yield push.at.isoformat(), f"{forced} {push.after[:7]} by {push.by or '?'}"
    for check in pull.checks:
        yield check.at.isoformat(), f"check {check.name} {check.result} at {check.sha[:7]}"
    for review in pull.reviews:
        yield review.at.isoformat(), f"review by {review.by or '?'}: {review.state}"
    for comment in pull.comments:
        location = f" at {comment.path}:{comment.line}" if comment.path else ""
        comment_text = " ".join(comment.body.split())[:80]
        yield comment.at.isoformat(), f"{comment.by or '?'}{location}: {comment_text}"
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
        files_text = " ".join(filter(None, (added, paths))) or "files unknown"
        yield edit.at.isoformat(), f"edit by {edit.by or '?'}: {files_text}"
    if pull.merged or pull.closed:
        yield (pull.merged or pull.closed or pull.told).isoformat(), pull.state
    for pointer in pull.pointers:
        verb = "reverted" if pointer.kind == "revert" else "fixed"
        yield (
            pointer.at.isoformat(),
            f"{verb} by {pointer.by[:10]} ({pointer.how}): {pointer.title}",
        )
