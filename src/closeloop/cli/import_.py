"""`closeloop import`: read the sessions that agents recorded into the store."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from closeloop.cli.console import JsonFlag, make_visible
from closeloop.records.record import Record
from closeloop.text.wording import count_with_noun, truncate_words

if TYPE_CHECKING:
    from rich.console import RenderableType

    from closeloop.records.settings import Settings
    from closeloop.records.trace import ImportSummary, SessionFilter
    from closeloop.reviews.pull_backfill import BackfillRequest, CountCallback
    from closeloop.store import Store


WATCH_SECONDS = 2.0
MAX_LESSON_TITLE = 70


def import_(  # noqa: PLR0913 - one parameter for each flag
    *paths: Path,
    watch: bool = False,
    since: str | None = None,
    folder: Path | None = None,
    jobs: int | None = None,
    github: str | None = None,
    gitlab: str | None = None,
    git: Path | None = None,
    json: JsonFlag = False,
) -> int:
    """Import sessions that coding agents recorded, from files or folders.

    Unchanged files that were imported before are skipped. Secrets are redacted first.
    With --github, --gitlab or --git, pull requests and their outcomes are imported instead.

    Parameters
    ----------
    paths
        Files and folders; by default the folders where agents save their sessions.
    watch
        Keep importing new sessions until stopped.
    since
        Only sessions active since then: 24h, 7d, 2w, or a date such as 2026-11-01.
    folder
        Only sessions that worked in this folder.
    jobs
        Number of files read at once; by default the number of processors.
    github
        Import the pull requests of OWNER/NAME from GitHub, with the token in GITHUB_TOKEN.
    gitlab
        Import the merge requests of GROUP/NAME from GitLab, with the token in GITLAB_TOKEN.
    git
        Import merges, reverts and later fixes from the history of this clone.
    """
    from closeloop.cli.console import require_positive_flags
    from closeloop.records.errors import BadInput
    from closeloop.records.trace import SessionFilter
    from closeloop.traces.file_source import default_folders

    require_positive_flags(jobs=jobs)
    if github or gitlab or git:
        pull_options = PullImportOptions(
            github=github, gitlab=gitlab, git=git, since=parse_since(since)
        )
        return import_pulls(pull_options, json=json)
    source_paths = list(paths) or default_folders(Path.home())
    if not source_paths:
        raise BadInput(f"No agent sessions found in {Path.home()}: give a file or a folder.")
    import_filter = SessionFilter(
        since=parse_since(since), repo=str(folder.resolve()) if folder else None
    )
    return import_paths(
        source_paths, import_filter, jobs or os.cpu_count() or 1, watch=watch, json=json
    )


def import_paths(
    source_paths: list[Path], session_filter: SessionFilter, jobs: int, *, watch: bool, json: bool
) -> int:
    """Import sessions once, or repeatedly with `watch`; print the result."""
    from closeloop.cli.config import load_project
    from closeloop.cli.console import print_detail, print_json, print_parts, print_warning
    from closeloop.flow import import_sessions
    from closeloop.records.settings import has_store
    from closeloop.store import make_store
    from closeloop.store.store import open_project_store
    from closeloop.traces.file_source import contains_recording

    if not watch:
        require_a_readable_place(source_paths)
    project = load_project(Path.cwd())
    # Where nothing can be read, no store is left behind that was not there before.
    is_kept = watch or has_store(project.settings, project.root) or contains_recording(source_paths)
    with (
        open_project_store(project.settings, project.root) if is_kept else make_store(":memory:")
    ) as store:
        while True:
            with show_import_progress(quiet=json or watch) as report_progress:
                tally = import_sessions(
                    source_paths,
                    store,
                    session_filter=session_filter,
                    jobs=jobs,
                    report_progress=report_progress,
                )
            if not watch or any(count.new for count in tally.formats.values()):
                print_json(tally) if json else print_parts(*import_tables(tally))
            for warning in () if watch else import_warnings(tally):
                print_warning(warning)
            for path in () if watch else tally.other_paths:
                print_detail(f"not a recording: {path}")
            if not watch and (unlisted_count := tally.others - len(tally.other_paths)) > 0:
                print_detail(f"… and {unlisted_count:,} more that are not recordings")
            if not watch and not json:
                print_parts(*list_lessons(store, project.settings, jobs))
            if not watch:
                return 0 if has_readable_recording(tally) else 2
            time.sleep(WATCH_SECONDS)


def require_a_readable_place(source_paths: list[Path]) -> None:
    """Raise BadInput if none of the paths exists, before a store is made for nothing."""
    from closeloop.records.errors import BadInput

    reasons = []
    for path in source_paths:
        try:
            path.stat()
        except OSError as error:
            reasons.append(f"{path}: {error.strerror or 'cannot be read'}")
        else:
            return
    raise BadInput(f"Nothing could be read: {'; '.join(reasons)}.")


def parse_since(text: str | None, *, is_end: bool = False) -> datetime | None:
    """Parse `--since` or `--until`, in this machine's time zone unless it names another."""
    from closeloop.text.wording import parse_moment

    if text is None:
        return None
    return parse_moment(text, datetime.now(UTC), zone=None, is_end=is_end)


@contextmanager
def show_import_progress(*, quiet: bool) -> Iterator[Callable[[ImportSummary], None]]:
    """Show one counting line on a terminal."""
    from closeloop.cli.console import open_console

    output = open_console(stderr=True)
    if quiet or not output.is_terminal:
        yield lambda tally: None
        return
    with output.status("looking for sessions") as status:

        def update_status(tally: ImportSummary) -> None:
            sessions = sum(count.sessions for count in tally.formats.values())
            files = sum(count.files for count in tally.formats.values())
            status.update(
                f"{count_with_noun(sessions, 'session')} in {count_with_noun(files, 'file')}, "
                f"{tally.unchanged:,} unchanged"
            )

        yield update_status


def import_tables(tally: ImportSummary) -> Iterator[RenderableType]:
    """Build tables of the result, by format."""
    from rich.table import Table
    from rich.text import Text

    if tally.formats:
        table = Table(box=None)
        table.add_column("format", no_wrap=True)
        for name in ("files", "sessions", "new", "events", "calls", "paired"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("skipped", overflow="fold")
        for name, count in tally.formats.items():
            numbers = (count.files, count.sessions, count.new, count.events, count.calls)
            skipped = ", ".join(f"{number} × {reason}" for reason, number in count.skipped.items())
            cells = [f"{number:,}" for number in (*numbers, count.paired)]
            table.add_row(
                Text(make_visible(name)), *cells, Text(make_visible(skipped), style="dim")
            )
        yield table
    notes = [
        (tally.unchanged, "unchanged file", "unchanged files"),
        (tally.unwanted, "excluded by the filters", "excluded by the filters"),
    ]
    if has_readable_recording(tally):  # else the warning says it
        notes.append(
            (tally.others, "file that is not a recording", "files that are not recordings")
        )
    if line := " · ".join(count_with_noun(*note) for note in notes if note[0]):
        yield Text(line, style="dim")
    if tally.redacted:
        redacted_rules = ", ".join(f"{number} × {rule}" for rule, number in tally.redacted.items())
        yield Text(f"redacted: {redacted_rules}", style="yellow")


MAX_LISTED_NAMES = 6


def list_lessons(store: Store, settings: Settings, jobs: int) -> Iterator[RenderableType]:
    """Render the first lessons from the sessions; nothing if there are none."""
    from rich.text import Text

    from closeloop.cli.measure import show_measuring_progress
    from closeloop.metrics.attempt_measuring import project_rulebook
    from closeloop.metrics.triage import NO_FAILURE_REASON
    from closeloop.metrics.work_summary import learn_from_sessions
    from closeloop.text.wording import format_dollars

    lessons = learn_from_sessions(
        store,
        project_rulebook(settings),
        lambda total: show_measuring_progress(total, quiet=False),
        jobs=jobs,
    )
    if lessons is None:
        return
    yield Text("\nSummary of your sessions", style="bold")
    line = count_with_noun(lessons.sessions, "session")
    if lessons.first and lessons.last:
        line += f" from {lessons.first:%Y-%m-%d} to {lessons.last:%Y-%m-%d}"
    if lessons.cost is not None:
        line += f", {format_dollars(lessons.cost)} known"
    if lessons.unknown_cost:
        line += f", {lessons.unknown_cost:,} without a known cost"
    yield Text(f" {line}")
    for name, counts in (("agents", lessons.agents), ("problems", lessons.rules)):
        if counts:
            counted_names = [f"{make_visible(key)} {count:,}" for key, count in counts.items()]
            ellipsis = ["…"] if len(counted_names) > MAX_LISTED_NAMES else []
            yield Text(f" {name}: {', '.join(counted_names[:MAX_LISTED_NAMES] + ellipsis)}")
    for session in lessons.costliest[:1]:
        reasons_text = f" ({', '.join(session.why[:3])})" if session.why else ""
        yield _name_session(
            "costliest", f"{format_dollars(session.cost or 0.0)} ", session.title, reasons_text
        )
        yield Text(f"   closeloop show {session.attempt}", style="cyan")
    for first in lessons.look_first[:1]:
        reasons = [reason.text for reason in first.reasons if reason.effect < 0]
        reasons_text = "; ".join(reasons[:2]) or NO_FAILURE_REASON
        yield _name_session("most likely failed", "", first.title, f" ({reasons_text})")
        yield Text(f"   closeloop show {first.attempt}", style="cyan")
    is_recent = lessons.last and datetime.now(UTC) - lessons.last < timedelta(days=7)
    triage = "closeloop triage" if is_recent else "closeloop triage --since all"
    yield Text(f"{triage}   # sessions, most likely failures first, and why", style="cyan")
    yield Text("closeloop serve   # all sessions in the browser", style="cyan")


def _name_session(label: str, before: str, title: str | None, reasons_text: str) -> RenderableType:
    from rich.text import Text

    quoted = f"“{truncate_words(title, MAX_LESSON_TITLE)}”" if title else "a session"
    return Text(make_visible(f" {label}: {before}{quoted}{reasons_text}"))


def has_readable_recording(tally: ImportSummary) -> bool:
    """Check whether any recording was readable, now or earlier, selected or not."""
    was_read = any(count.sessions for count in tally.formats.values())
    return bool(was_read or tally.unchanged > tally.empty or tally.unwanted)


def import_warnings(tally: ImportSummary) -> Iterator[str]:
    """Yield what could not be read, and where to look."""
    yield from tally.troubles
    if (unlisted_count := tally.unreadable - len(tally.troubles)) > 0:
        yield f"{count_with_noun(unlisted_count, 'more file')} could not be read."
    for name, count in tally.formats.items():
        if count.callless_sessions:
            yield _describe_callless_sessions(name, count.callless_sessions)
    if has_readable_recording(tally):
        return
    if tally.formats or tally.empty:
        yield (
            "Nothing could be read: no recording contains a complete session; the "
            "skipped files are listed above."
        )
    elif tally.others:
        yield (
            f"Nothing could be read: {count_with_noun(tally.others, 'file')} skipped, "
            + ("which is not a recording" if tally.others == 1 else "which are not recordings")
            + " of an agent that closeloop supports (-v names the first ones)."
        )
    elif tally.unreadable:
        yield "Nothing could be read."
    else:
        yield "Nothing could be read: no files found."


def _describe_callless_sessions(name: str, count: int) -> str:
    sessions = count_with_noun(count, "session holds", "sessions hold")
    return (
        f"{name}: {sessions} results but no calls: the format of the calls is not "
        "recognised, so these sessions cannot be measured. Please report this format."
    )


# `closeloop import --github`: past pull requests and their outcomes.

_REPO_NAME = re.compile(r"[\w.-]{1,100}(?:/[\w.-]{1,100}){1,20}")


class PullImportOptions(Record):
    """Which pull requests to import."""

    github: str | None = None
    gitlab: str | None = None
    git: Path | None = None
    since: datetime | None = None


class PullImportResult(Record):
    """The result of an import of pull requests."""

    repo: str
    pulls: int
    """Number read in this run."""
    known: int
    agents: int
    """How many of the stored pull requests (`known`) are by agents."""


def import_pulls(past: PullImportOptions, *, json: bool) -> int:
    """Import pull requests; return exit code 2 if there are none."""
    from closeloop.cli.config import load_project
    from closeloop.cli.console import print_json, print_line
    from closeloop.records.errors import BadInput
    from closeloop.reviews.authorship import merge_known_agents
    from closeloop.reviews.pull_backfill import BackfillRequest, import_git_history
    from closeloop.store.store import open_project_store

    if sum(source is not None for source in (past.github, past.gitlab, past.git)) != 1:
        raise BadInput("Give one of --github, --gitlab and --git.")
    project = load_project(Path.cwd())
    agents = merge_known_agents(project.settings.pulls.agents)
    with (
        open_project_store(project.settings, project.root) as store,
        count_imported_pulls(json) as report_count,
    ):
        if past.git is not None:
            repo = _find_origin(past.git)
            read_count = import_git_history(past.git, repo, store, agents, report_count)
            repo = repo or str(past.git.resolve())
        else:
            repo = require_repo_name(past.github or past.gitlab or "")
            backfill = BackfillRequest(
                repo=repo, store=store, agents=agents, report_count=report_count
            )
            read_count = _import_from_host(past, backfill)
        rows = store.pulls.list_pulls(repo=repo)
    known_count = len(rows)
    agent_count = sum(row.agent is not None for row in rows)
    if json:
        print_json(
            PullImportResult(repo=repo, pulls=read_count, known=known_count, agents=agent_count)
        )
    else:
        print_line(
            f"{repo}: {count_with_noun(read_count, 'pull request')} imported; "
            f"{agent_count} of {known_count} stored ones are by agents"
        )
    return 0 if known_count else 2


def require_repo_name(repo: str) -> str:
    from closeloop.records.errors import BadInput

    if not _REPO_NAME.fullmatch(repo) or any(part in (".", "..") for part in repo.split("/")):
        raise BadInput(f"{repo!r} is not a repository name: write OWNER/NAME.")
    return repo


def _import_from_host(past: PullImportOptions, backfill: BackfillRequest) -> int:
    import anyio

    from closeloop.changes.code_host import GITLAB_API, open_gitlab
    from closeloop.cli.mine import open_github_repo
    from closeloop.reviews.pull_backfill import backfill_github, backfill_gitlab

    async def import_from_host() -> int:
        if past.github is not None:
            async with open_github_repo(backfill.repo, os.environ) as code_host:
                return await backfill_github(code_host, backfill, past.since)
        token, api = (
            os.environ.get("GITLAB_TOKEN", ""),
            os.environ.get("GITLAB_API_URL", GITLAB_API),
        )
        async with open_gitlab(backfill.repo, token, api) as code_host:
            return await backfill_gitlab(code_host, backfill, past.since)

    return anyio.run(import_from_host)


def _find_origin(folder: Path) -> str | None:
    """Return `owner/name` from the URL of a clone's origin; None if it has none."""
    from closeloop.cli.mine import origin_repo_name
    from closeloop.records.errors import BadInput

    try:
        return origin_repo_name(folder)
    except BadInput:
        return None


@contextmanager
def count_imported_pulls(quiet: bool) -> Iterator[CountCallback]:
    """Show one counting line on a terminal."""
    from closeloop.cli.console import open_console

    output = open_console(stderr=True)
    if quiet or not output.is_terminal:
        yield lambda count: None
        return
    with output.status("requesting pull requests") as status:
        yield lambda count: status.update(f"{count_with_noun(count, 'pull request')} read")
