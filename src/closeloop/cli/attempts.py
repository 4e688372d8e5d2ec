"""What was tried, and by whom: agents, experiments and attempts, listed, found and branched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from closeloop.cli.console import JsonFlag, make_visible
from closeloop.records.attempt import AttemptMarks, AttemptSort
from closeloop.records.record import Record
from closeloop.text.search_text import SearchSnippet
from closeloop.text.wording import short_repository_name

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from closeloop.metrics.score_columns import ScoreCell
    from closeloop.records.attempt import AttemptRow
    from closeloop.records.experiment_plan import ExperimentStatus
    from closeloop.records.settings import Settings
    from closeloop.store import Store


# `closeloop agents`: which agents are on this machine, and how to get the others.


def agents(*, json: JsonFlag = False) -> None:
    """List every agent that `--agent` knows: its version and place, or the line that
    installs it.
    """
    from rich.table import Table

    from closeloop import plugins
    from closeloop.cli.console import (
        print_json,
        print_parts,
    )

    with ThreadPoolExecutor() as pool:  # a program that tells its version may take seconds
        descriptions = list(pool.map(_describe_agent, plugins.load_plugins("agents")))
    if json:
        print_json(descriptions)
        return
    table = Table(box=None)
    for name in ("agent", "version", "where", "to install it"):
        table.add_column(name, no_wrap=name != "to install it")
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
    """What is known of an agent; a program of others must be found first."""
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


# `closeloop experiments`: how far each one is, and whether it may go on.

MAX_NAMES = 3


def experiments(
    action: Literal["list", "pause", "resume"] = "list",
    experiment: str | None = None,
    /,
    *,
    json: JsonFlag = False,
) -> None:
    """List experiments, the newest first; or hold one back, and let it go on.

    While an experiment is paused no process begins an attempt of it; those that run are finished.

    Parameters
    ----------
    action
        What to do: list, pause or resume.
    experiment
        Which one to pause or resume, by its id or the beginning of it.
    """
    from rich.text import Text

    from closeloop.attempts.experiment_status import (
        list_experiment_statuses,
        read_experiment_status,
    )
    from closeloop.cli.config import load_project
    from closeloop.cli.console import print_json, print_parts
    from closeloop.metrics.attempt_measuring import find_experiment
    from closeloop.records.errors import BadInput
    from closeloop.store.store_opening import open_existing_store

    project = load_project(Path.cwd())
    if action != "list" and experiment is None:
        raise BadInput(f"Say which one to {action}: `closeloop experiments` lists them.")
    with open_existing_store(project.settings, project.root) as store:
        if action == "list" and experiment is None:
            statuses = list_experiment_statuses(store)
        else:
            chosen_experiment = find_experiment(store, experiment)
            if action != "list":
                store.course.set_paused(chosen_experiment.id, paused=action == "pause")
            statuses = [
                read_experiment_status(store, chosen_experiment, store.course.list_claimed_jobs())
            ]
    if json:
        print_json(statuses)
    else:
        print_parts(
            experiments_table(statuses)
            if statuses
            else Text("No experiments: `closeloop run` makes one.")
        )


def experiments_table(courses: list[ExperimentStatus]) -> Table:
    """A row an experiment."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None)
    for name in ("experiment", "name", "tasks", "variants", "done", "running", "cost", "state"):
        table.add_column(name, no_wrap=name != "variants")
    for course in courses:
        names = ", ".join(course.variants[:MAX_NAMES])
        more = len(course.variants) - MAX_NAMES
        table.add_row(
            course.experiment.id,
            Text(make_visible(course.experiment.name or "–")),
            str(len(course.experiment.tasks)),
            Text(make_visible(names + (f" and {more} more" if more > 0 else ""))),
            f"{course.done}/{course.total}",
            str(course.running),
            "–" if course.cost is None else f"${course.cost:.2f}",
            course.state,
        )
    return table


OPTIONAL_COLUMNS = ("exit", "seconds", "turns", "why", "who")
"""What a narrow terminal does without, the first one first."""


def attempts(  # noqa: PLR0913 - one parameter for each flag
    *,
    task: str | None = None,
    variant: str | None = None,
    outcome: Literal["pass", "fail", "unscored"] | None = None,
    since: str | None = None,
    sort: AttemptSort = "newest",
    score: list[str] | None = None,
    limit: int = 50,
    json: JsonFlag = False,
) -> None:
    """List attempts with their titles and outcomes; those at held-out tasks are left out.

    Parameters
    ----------
    task
        Only attempts at this task.
    variant
        Only attempts of this variant.
    outcome
        Only attempts that ended so.
    since
        Only those that began then or later: 24h, 7d, 2w, or a date such as 2026-11-01.
    sort
        The newest, the oldest, or those first that cost most, took most turns or time, or have
        most findings.
    score
        A column for this one: any that `closeloop scores` lists; may be given again.
    limit
        How many at the most.
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
    from closeloop.store.store_opening import open_existing_store

    require_positive_flags(limit=limit)
    wanted = AttemptFilter(task=task, variant=variant, outcome=outcome, since=parse_since(since))
    project = load_project(Path.cwd())
    with open_existing_store(project.settings, project.root) as store:
        rows = store.listing.list_page(
            wanted, limit, without=store.held_out.list_sealed_digests(), sort=sort
        )
        if not rows and (task or variant):
            from closeloop.metrics.task_repeats import require_tried

            require_tried(store, task, variant)
        names = tuple(dict.fromkeys(score or ()))
        cells = load_cells(store, project.settings, rows, names)
        facts = load_listed_facts(store, rows)
    if json and names:
        print_json(
            [record_to_map(row) | {"scores": cells_to_map(cells[row.id], names)} for row in rows]
        )
    elif json:
        print_json(rows)
    elif rows:
        print_parts(attempts_table(rows, facts, cells, names), optional=OPTIONAL_COLUMNS)
    else:
        is_all = not (task or variant or outcome or since)
        advice = "No attempt is like that: leave out a filter."
        print_line("No attempts: `closeloop run` makes some." if is_all else advice)


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
    """Find sessions and attempts by what they say: requests, messages, commands, paths, findings.

    Parameters
    ----------
    text
        Words that must all be there, whole or as beginnings; "in quotes", a phrase.
    since
        Only those that began then or later: 24h, 7d, 2w, or a date such as 2026-11-01.
    until
        Only those that began before; a date includes its day.
    agent
        Only those of this agent.
    rule
        Only those with a finding of this rule.
    sort
        The newest, the oldest, or those first that cost most, took most turns or time, or have
        most findings.
    limit
        How many at the most.
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
    from closeloop.store.store_opening import open_existing_store
    from closeloop.text.search_text import parse_search
    from closeloop.text.wording import count_with_noun

    require_positive_flags(limit=limit)
    require_utf8_text(text, "What to find")
    phrases = parse_search(text)
    if not phrases:
        raise BadInput("Say what to find: at least one word or number.")
    if len(text) > MAX_SEARCH_CHARS:
        raise BadInput(f"That is too much to find at once: at most {MAX_SEARCH_CHARS} characters.")
    wanted = AttemptFilter(
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
        rows = store.listing.list_page(wanted, limit, without=sealed, sort=sort)
        count = store.listing.count_matches(wanted, without=sealed)
        snippets = store.search.find_snippets([row.id for row in rows], phrases)
        facts = load_listed_facts(store, rows, snippets)
    if json:
        found = [record_to_map(row) | {"snippet": snippets.get(row.id)} for row in rows]
        print_json({"count": count, "attempts": record_to_map(found)})
    elif rows:
        print_parts(attempts_table(rows, facts, {}, ()), optional=OPTIONAL_COLUMNS, below=("says",))
        if count > len(rows):
            print_line(f"{len(rows)} of {count:,}: --limit shows more, --since fewer.")
    else:
        words = count_with_noun(len(phrases), "word or phrase", "words and phrases")
        print_line(f"Nothing has all of {words}. Try fewer, or the beginning of a word.")


class ListedFacts(Record):
    """What a list says of attempts besides their rows."""

    would_merge: dict[str, float] = {}
    """By attempt, the share of reviewers who would merge it, where nothing else is checked."""
    marks: dict[str, AttemptMarks] = {}
    snippets: dict[str, SearchSnippet] = {}


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
    """By attempt a cell for each of the scores; no trace is read for them."""
    if not names:
        return {}
    from closeloop.metrics.attempt_measuring import project_rulebook
    from closeloop.metrics.attempt_table import load_attempt_table
    from closeloop.metrics.score_columns import attach_scores, list_score_cells, project_scores
    from closeloop.store.metrics_section import AttemptSpan

    span = AttemptSpan(attempts=tuple(row.id for row in rows))
    work = load_attempt_table(store, project_rulebook(settings), span, again=None)
    return list_score_cells(
        attach_scores(work, store, project_scores(settings), names, span), names
    )


def cells_to_map(cells: Sequence[ScoreCell], names: Sequence[str]) -> dict[str, Any]:
    """By name a number, words, or None where nobody said anything."""
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
    """A row an attempt; what only people can score, by their reviews; then the scores."""
    from rich.table import Table
    from rich.text import Text

    from closeloop.cli.run_output import OUTCOME_MARKS, failure_reason
    from closeloop.metrics.metric_figures import format_dollars

    table = Table(box=None)
    table.add_column("attempt", no_wrap=True)
    table.add_column("when", min_width=10)
    table.add_column("", no_wrap=True)
    table.add_column("what", min_width=18)
    for name in ("cost", *names):
        table.add_column(name, justify="right")
    table.add_column("findings", min_width=20, max_width=20)
    table.add_column("who", max_width=20)
    for name in ("turns", "seconds", "exit", "why"):
        table.add_column(name, justify="right" if name in ("turns", "seconds") else "left")
    if facts.snippets:
        table.add_column("says")
    for row in rows:
        imported = row.origin == "production" and row.outcome is None
        by_review = row.is_for_review and row.id in facts.would_merge
        merged = by_review and facts.would_merge[row.id] > 0.5
        outcome = ("pass" if merged else "fail") if by_review else row.outcome or "unscored"
        mark, colour = ("·", "dim") if imported else OUTCOME_MARKS[outcome]
        marks = facts.marks.get(row.id)
        who = row.variant_name or " ".join(name for name in (row.agent, row.model) if name)
        table.add_row(
            row.id,
            "–" if row.started is None else f"{row.started:%Y-%m-%d %H:%M}",
            Text(mark, style=colour),
            describe_listed(row),
            "–" if row.cost is None else format_dollars(row.cost),
            *(Text(make_visible(format_cell(cell))) for cell in cells.get(row.id, ())),
            "–" if marks is None else ", ".join(marks.rules) or "none",
            Text(make_visible(who or "–")),
            "–" if row.turns is None else str(row.turns),
            "–" if row.seconds is None else f"{row.seconds:.1f}",
            row.exit,
            Text("by review" if by_review else failure_reason(row), style="dim"),
            *([render_snippet(facts.snippets.get(row.id))] if facts.snippets else []),
        )
    return table


def describe_listed(row: AttemptRow) -> Text:
    """The title, and which repeat it is."""
    from rich.text import Text

    title = row.title or short_repository_name(row.repo) or "–"
    notes = [f"no. {row.number}"] if row.number > 1 else []
    notes += [f"retry {row.retry}"] if row.retry else []
    notes += [f"replay of {row.replay_of[:12]}"] if row.replay_of else []
    return Text(make_visible(title + (f" ({', '.join(notes)})" if notes else "")))


def render_snippet(snippet: SearchSnippet | None) -> Text:
    """A piece of the text, with what was searched for in brackets."""
    from rich.text import Text

    if snippet is None:
        return Text()
    return Text.assemble(
        (make_visible(snippet.before), "dim"),
        (f"[{make_visible(snippet.match)}]", "bold yellow"),
        (make_visible(snippet.after), "dim"),
    )


# `closeloop branch`: what an attempt changed, as a branch to look at, run or merge.


def branch(attempt: str, *, json: JsonFlag = False) -> None:
    """Make a git branch of what an attempt changed, in the task's repository.

    Work tree, index and HEAD are left as they are.

    Parameters
    ----------
    attempt
        The id of the attempt, or the beginning of it.
    """
    from closeloop.attempts.attempt_saving import branch_stored_attempt
    from closeloop.cli.config import load_project
    from closeloop.cli.console import print_json, print_line
    from closeloop.store.store_opening import open_existing_store

    project = load_project(Path.cwd())
    with open_existing_store(project.settings, project.root) as store:
        new_branch = branch_stored_attempt(store, attempt)
    line = f"{new_branch.name} in {new_branch.repo}"
    print_json(new_branch) if json else print_line(line)
