"""Past work: commits, pull requests and agent sessions, with their requests and results."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, Literal, TypeVar

import msgspec
from msgspec.structs import replace

from closeloop.git import read_git_text, try_git_text
from closeloop.records.attempt import Attempt
from closeloop.records.errors import BadInput, MachineFailed
from closeloop.records.record import Record, Time
from closeloop.records.task import Task
from closeloop.records.trace import Command, Edit, Message, Session, Trace
from closeloop.store import Store
from closeloop.text.wording import compile_lazily

# Past work: a repository's history as pieces of work.


MAX_COMMITS = 100_000
MAX_PULL_COMMITS = 50
"""Maximum commits of one pull request whose messages are read."""
MAX_BODIES = 2
"""Maximum commit messages used, of those about the title's subject."""
MAX_SUBJECTS = 5
MAX_MESSAGE_CHARS = 20_000
MIN_MESSAGE_WORDS = 6
"""Minimum words of a message that says what is wanted; with fewer, other text is added."""
_LOG_FORMAT = "%H%x00%P%x00%ct%x00%B%x00%x01"
_PULL_REQUEST_MERGE = compile_lazily(
    r"Merged? (?:pull request|pr|in\b|branch '[^']+' into)|.*See merge request", re.I | re.DOTALL
)
_TITLED_MERGE = compile_lazily(r"(?!Merge\b)[^\n]{1,300}\(#\d{1,9}\)\s*(?:\n|$)")
"""A pull request merged under its own title."""
_SIDE_BRANCH = compile_lazily(
    r"Merge (?:remote-tracking )?(?:branch )?['`\"](?:[\w.-]+/)?(?:v?\d[\w.]*|stable|main|master"
    r"|develop\w*|maint\w*|release\w*)\b",
    re.I,
)


class HistoryCommit(Record):
    """A commit as read from the log."""

    id: str
    parents: tuple[str, ...]
    at: Time
    message: str


class PastWork(Record):
    """One accepted piece of work: a commit, or a merged pull request as a whole."""

    commit: str
    base: str
    """The first parent."""
    at: Time
    message: str
    hindsight: bool = True
    """Whether the author knew the work; not so for an issue, or a user's first words."""


def list_past_work(repo: Path | str, since: str | None = None, tip: str = "HEAD") -> list[PastWork]:
    """Return every accepted piece of work in a commit's history.

    A merged pull request counts once; a merged branch, such as a release's, by its own commits.
    """
    commits = {commit.id: commit for commit in _read_log(repo, since, tip)}
    if not commits:
        return []
    visited: dict[str, HistoryCommit] = {}
    starts = [read_git_text(repo, "rev-parse", tip).strip()]
    while starts:
        commit_id: str | None = starts.pop()
        while commit_id in commits and commit_id not in visited:
            commit = visited[commit_id] = commits[commit_id]
            if len(commit.parents) > 1 and not _is_pull_request(commit.message):
                starts.extend(commit.parents[1:])
            commit_id = commit.parents[0] if commit.parents else None
    past_work = [
        PastWork(
            commit=commit.id,
            base=commit.parents[0],
            at=commit.at,
            message=_work_message(commit, commits, visited),
        )
        for commit in visited.values()
        if commit.parents and (len(commit.parents) == 1 or _is_pull_request(commit.message))
    ]
    return sorted(past_work, key=lambda work: work.at, reverse=True)


def is_shallow_clone(repo: Path | str) -> bool:
    """Return whether the repository is a shallow clone."""
    return read_git_text(repo, "rev-parse", "--is-shallow-repository").strip() == "true"


def find_nearest_tag(repo: Path | str, commit: str) -> str | None:
    """Return the tag of the last release before a commit."""
    try:
        return read_git_text(repo, "describe", "--tags", "--abbrev=0", commit).strip() or None
    except BadInput:
        return None


def list_files_at(repo: Path | str, commit: str) -> list[str]:
    """Return the names of all files of a commit."""
    listing = read_git_text(repo, "ls-tree", "-r", "-z", "--name-only", commit)
    return listing.removesuffix("\0").split("\0") if listing else []


def find_words_at(
    repo: Path | str,
    commit: str,
    words: Sequence[str],
    takes_path: Callable[[str], bool] = lambda path: True,
) -> frozenset[str]:
    """Return which of the words occur in the files of a commit, among accepted paths."""
    if not words:
        return frozenset()
    grep_options = [part for word in words for part in ("-e", word)]
    try:
        matches = read_git_text(
            repo, "grep", "-z", "-o", "-w", "-I", "-F", *grep_options, commit, "--"
        )
    except BadInput:  # git reports "no match" by failing
        return frozenset()
    fields = (line.partition("\0") for line in matches.split("\n"))
    return frozenset(word for path, _, word in fields if takes_path(path))


def _read_log(repo: Path | str, since: str | None, tip: str) -> Iterator[HistoryCommit]:
    limits = [f"--max-count={MAX_COMMITS}", *([f"--since={since}"] if since else [])]
    for entry in read_git_text(repo, "log", f"--format={_LOG_FORMAT}", *limits, tip).split("\x01"):
        fields = entry.lstrip("\n").split("\0")
        if len(fields) >= 4:
            yield HistoryCommit(
                id=fields[0],
                parents=tuple(fields[1].split()),
                at=datetime.fromtimestamp(int(fields[2]), UTC),
                message=_decode_text(fields[3][:MAX_MESSAGE_CHARS]).strip(),
            )


def _decode_text(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace").replace("\0", "")


def _is_pull_request(message: str) -> bool:
    match = _PULL_REQUEST_MERGE.match(message) or _TITLED_MERGE.match(message)
    return bool(match) and not _SIDE_BRANCH.match(message)


def _work_message(
    commit: HistoryCommit, commits: dict[str, HistoryCommit], visited: dict[str, HistoryCommit]
) -> str:
    """Return a merged pull request's title and the bodies of its commit messages."""
    if len(commit.parents) == 1:
        return commit.message
    message_parts = [
        pull_commit.message.partition("\n")
        for pull_commit in _list_pull_commits(commit, commits, visited)
    ]
    title = commit.message
    if not _TITLED_MERGE.match(title):
        title = title.partition("\n")[2].strip() or (message_parts[0][0] if message_parts else "")
    related_parts = [
        message_part
        for message_part in message_parts
        if _significant_words(title) & _significant_words(message_part[0])
    ] or message_parts
    bodies = [body.strip() for _, _, body in related_parts if body.strip()][:MAX_BODIES]
    if len(" ".join((title, *bodies)).split()) < MIN_MESSAGE_WORDS:
        subjects = dict.fromkeys(subject for subject, _, _ in related_parts)
        bodies = [
            subject
            for subject in subjects
            if _significant_words(subject) - _significant_words(title)
        ][:MAX_SUBJECTS]
    paragraphs = dict.fromkeys(text for text in (title, *bodies) if text)
    return "\n\n".join(paragraphs)[:MAX_MESSAGE_CHARS]


def _significant_words(text: str) -> set[str]:
    return {word.lower() for word in re.findall(r"\w{4,}", text)} - {"with", "from", "when", "this"}


def _list_pull_commits(
    commit: HistoryCommit, commits: dict[str, HistoryCommit], visited: dict[str, HistoryCommit]
) -> list[HistoryCommit]:
    """Return the commits of a pull request, oldest first, without merges from its target."""
    pull_commits: dict[str, HistoryCommit] = {}
    pending = list(commit.parents[1:])
    while pending and len(pull_commits) < MAX_PULL_COMMITS:
        commit_id = pending.pop()
        if commit_id in commits and commit_id not in visited and commit_id not in pull_commits:
            pull_commits[commit_id] = commits[commit_id]
            pending.extend(commits[commit_id].parents[:1])
    return [
        pull_commit
        for pull_commit in reversed(pull_commits.values())
        if len(pull_commit.parents) < 2
    ]


# The ledger: which commits were tried, with what result, so that mining can resume.

Kind = TypeVar("Kind", bound=Record)
LEDGER_VERSION = 1
"""Version of how candidates are made and proved: entries of another one are tried again."""


class LedgerEntry(Record):
    """The result of trying one commit."""

    commit: str
    state: Literal["proved", "refused", "failed"]
    """Failed: for reasons that may be temporary."""
    why: str | None = None
    task: str | None = None
    change: str | None = None
    """Digest of its change: the same work may have been committed twice."""
    base: str | None = None
    """The commit that its task starts from."""
    commands: str | None = None
    """Digest of the commands that were configured."""
    at: Time
    seconds: float
    version: int = LEDGER_VERSION


def read_ledger(path: Path) -> dict[str, LedgerEntry]:
    """Return the last entry of every commit, without damaged lines and other versions."""
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise MachineFailed(f"{path} cannot be read: {error.strerror}.") from error
    entries = decode_whole_lines(lines, LedgerEntry)
    return {entry.commit: entry for entry in entries if entry.version == LEDGER_VERSION}


def decode_whole_lines(lines: Iterable[bytes], kind: type[Kind]) -> Iterator[Kind]:
    """Yield the records of a file, one per line, without damaged lines."""
    for line in lines:
        with suppress(ValueError, RecursionError):
            yield msgspec.json.decode(line, type=kind)


def append_entry(path: Path, entry: Record) -> None:
    """Append a complete line, even if the previous one is damaged."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(b"\n" + msgspec.json.encode(entry) + b"\n")
    except OSError as error:
        raise MachineFailed(f"{path} cannot be written: {error.strerror}.") from error


# Work from a given source, with further facts beside the commit.

MAX_REMARKS = 20
MAX_REMARK_CHARS = 500


class SourcedWork(Record):
    """One accepted piece of work, with the request as its message."""

    work: PastWork
    tags: tuple[str, ...] = ()
    rubric: str | None = None
    """Remarks of reviewers or the user during the work."""


class GatheredWork(Record):
    """The work of a source to try, and why the rest cannot be."""

    works: tuple[SourcedWork, ...]
    passed_over: dict[str, str] = {}


def with_source_tags(task: Task, source: SourcedWork | None) -> Task:
    """Add the tags and remarks of its source to a proved task; neither is part of the request."""
    if source is None:
        return task
    tags = dict.fromkeys([*task.tags, *source.tags])
    return replace(task, tags=tuple(tags), rubric=source.rubric or task.rubric)


def format_remarks(title: str, texts: Sequence[str]) -> str | None:
    """Format people's remarks as a list, truncated."""
    remarks = [" ".join(text.split())[:MAX_REMARK_CHARS] for text in texts]
    lines = [f"- {remark}" for remark in remarks if remark][:MAX_REMARKS]
    return "\n".join([f"{title}:", *lines]) if lines else None


def unique_by_commit(works: Iterable[SourcedWork]) -> tuple[SourcedWork, ...]:
    """Return each commit once, as first given."""
    by_commit: dict[str, SourcedWork] = {}
    for sourced in works:
        by_commit.setdefault(sourced.work.commit, sourced)
    return tuple(by_commit.values())


# Commits that the user names.


def gather_named_work(repo: Path, names: str) -> GatheredWork | None:
    """Return the work of some commits, given as revisions or ranges with commas between; None if
    git knows none of that name."""
    named: dict[str, str] = {}
    for name in names.split(","):
        limit = () if ".." in name else ("--max-count=1",)
        commits = try_git_text(repo, "rev-list", *limit, "--end-of-options", name, "--").split()
        if not commits and ".." not in name:
            return None
        named |= dict.fromkeys(commits, commits[0] if commits else "")
    works = {
        work.commit: work
        for tip in dict.fromkeys(named.values())
        for work in list_past_work(repo, tip=tip)
        if work.commit in named
    }
    return GatheredWork(works=tuple(SourcedWork(work=work) for work in works.values()))


# Pull requests and agent sessions as work: the request, and the resulting commit.


MAX_LINE_BYTES = 32 << 20
_CLOSING_REFERENCE = compile_lazily(
    r"(?i)\b(?:close[sd]?|fix(?:e[sd])?|resolve[sd]?)\b[:\s]{1,5}#(\d{1,9})\b"
)
_FAILED_CONCLUSIONS = ("failure", "timed_out", "startup_failure")


class ExportedUser(Record):
    login: str = ""


class ExportedPull(Record):
    """A pull request in GitHub's API format, reduced to the fields used."""

    number: int
    title: str
    body: str | None = None
    merged_at: str | None = None
    merge_commit_sha: str | None = None
    user: ExportedUser | None = None


class ExportedIssue(Record):
    title: str
    body: str | None = None


class ExportedComment(Record):
    body: str | None = None
    user: ExportedUser | None = None


class ExportedCheckRun(Record):
    """One check run of one push."""

    head_sha: str = ""
    name: str = ""
    conclusion: str | None = None


class PullExport(Record):
    """A pull request with everything that belongs to it: a line of an export."""

    pull: ExportedPull
    issue: ExportedIssue | None = None
    comments: tuple[ExportedComment, ...] = ()
    checks: tuple[ExportedCheckRun, ...] = ()


def find_linked_issue(pull: ExportedPull) -> int | None:
    """Return the issue that a pull request says it closes."""
    match = _CLOSING_REFERENCE.search(f"{pull.title}\n{pull.body or ''}"[:20_000])
    return int(match[1]) if match else None


def read_pull_exports(path: Path) -> Iterator[PullExport]:
    """Yield the lines of an export."""
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                if line.strip():
                    yield decode_pull_export(line, f"{path}, line {number}")
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}.") from error


def read_saved_exports(path: Path) -> dict[int, PullExport]:
    """Return stored exports by number, without damaged lines."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_bytes().splitlines() if path.exists() else []
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}.") from error
    return {request.pull.number: request for request in decode_whole_lines(lines, PullExport)}


def decode_pull_export(line: bytes, name: str) -> PullExport:
    try:
        return msgspec.json.decode(line, type=PullExport)
    except (ValueError, RecursionError) as error:
        raise BadInput(
            f"{name} is not a pull request in the format of GitHub's API: {error}."
        ) from error


def convert_github_answer(value: Any, kind: type[Record]) -> Any:
    """Convert a part of a response, dropping unused fields."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise BadInput(f"GitHub's response has an unknown format: {error}.") from error


def gather_pull_work(
    requests: Sequence[PullExport], repo: Path, modes: Mapping[str, Sequence[str]] | None = None
) -> GatheredWork:
    """Return merged pull requests that this clone has, each with people's remarks.

    `modes` are tags of the failure modes seen in them, by merge commit.
    """
    work_by_commit = {work.commit: work for work in list_past_work(repo)}
    gathered, passed_over = [], {}
    for request in requests:
        pull = request.pull
        name = f"pull request {pull.number}"
        if pull.merged_at is None or pull.merge_commit_sha is None:
            passed_over[name] = "it was not merged"
        elif pull.merge_commit_sha not in work_by_commit:
            passed_over[name] = "its commit is not in this clone's history"
        else:
            tags = (modes or {}).get(pull.merge_commit_sha, ())
            gathered.append(_work_from_pull(request, work_by_commit[pull.merge_commit_sha], tags))
    return GatheredWork(works=unique_by_commit(gathered), passed_over=passed_over)


def _work_from_pull(request: PullExport, work: PastWork, modes: Sequence[str]) -> SourcedWork:
    pull = request.pull
    # The author of the issue did not know the fix yet.
    description = request.issue or pull
    message = f"{description.title}\n\n{description.body or ''}"
    author = pull.user.login if pull.user else None
    remarks = [
        comment.body
        for comment in request.comments
        if comment.body and (comment.user is None or comment.user.login != author)
    ]
    tags = ["pull-request"]
    tags += ["reviewed"] if remarks else []
    failed_checks = [run for run in request.checks if run.conclusion in _FAILED_CONCLUSIONS]
    tags += ["failed-in-ci"] if failed_checks else []
    failures = dict.fromkeys(
        f"{run.name or 'a check'}: {run.conclusion} at {run.head_sha[:7] or 'an earlier push'}"
        for run in failed_checks
    )
    review_remarks = format_remarks("Reviewers of the original change asked for this", remarks)
    check_remarks = format_remarks(
        "Checks of the original change failed before it was accepted", list(failures)
    )
    return SourcedWork(
        work=msgspec.structs.replace(
            work, message=message.strip(), hindsight=request.issue is None
        ),
        tags=(*tags, *modes),
        rubric="\n\n".join(part for part in (review_remarks, check_remarks) if part),
    )


# Agent sessions as work: the user's request, and the resulting commit.

MAX_SESSIONS = 50
MAX_COMMIT_DELAY = timedelta(days=14)
"""Maximum delay after a session of a commit that may be its work."""
MIN_FILE_OVERLAP = 0.5
"""Minimum share of common files among those of session and commit."""


def gather_session_work(
    store: Store, repo: Path, modes: Mapping[str, Sequence[str]]
) -> GatheredWork:
    """Return the latest sessions whose edits became a commit; `modes` by attempt."""
    past_work = list_past_work(repo)

    @cache
    def changed_files(work: PastWork) -> frozenset[str]:
        listing = read_git_text(repo, "diff", "--name-only", "-z", work.base, work.commit)
        return frozenset(filter(None, listing.split("\0")))

    gathered, passed_over = [], {}
    for row in store.list_attempts(origin="production", limit=MAX_SESSIONS):
        attempt, session, trace = (
            store.load_attempt(row.id),
            store.load_session(row.id),
            store.load_trace(row.id),
        )
        name = f"session {row.id}"
        if trace is None or not _is_same_repository(attempt, session, repo):
            passed_over[name] = "it continues elsewhere"
            continue
        user_messages = _user_messages(trace)
        edited = _edited_files(trace, repo, session)
        if not user_messages or not edited:
            passed_over[name] = "it has no request or no change"
            continue
        nearby_work = [work for work in past_work if _is_near_session(work, attempt)]
        rated = [
            (len(edited & changed_files(work)) / len(edited | changed_files(work)), work)
            for work in nearby_work
        ]
        best = max(rated, key=lambda pair: (pair[0], -pair[1].at.timestamp()), default=None)
        if best is None or best[0] < MIN_FILE_OVERLAP:
            passed_over[name] = "no commit contains its change"
            continue
        gathered.append(_work_from_session(best[1], user_messages, trace, modes.get(row.id, ())))
    return GatheredWork(works=unique_by_commit(gathered), passed_over=passed_over)


def _work_from_session(
    work: PastWork, user_messages: Sequence[str], trace: Trace, modes: Sequence[str]
) -> SourcedWork:
    failed = any(
        isinstance(event, Command) and event.exit_code not in (0, None) for event in trace.events
    )
    corrected = len(user_messages) > 1
    tags = ["agent-session", *(["corrected"] if corrected else [])]
    tags += ["failed-on-the-way"] if failed else []
    return SourcedWork(
        work=replace(work, message=user_messages[0], hindsight=False),
        tags=(*tags, *modes),
        rubric=format_remarks("The user corrected the original work like this", user_messages[1:]),
    )


def _user_messages(trace: Trace) -> list[str]:
    """Return the user's messages to the main agent, in order."""
    main = trace.lanes[0].id if trace.lanes else None
    return [
        event.text.strip()
        for event in trace.events
        if isinstance(event, Message)
        and event.role == "user"
        and event.text.strip()
        and (main is None or event.lane == main)
    ]


def _edited_files(trace: Trace, repo: Path, session: Session | None) -> frozenset[str]:
    """Return the edited files, as paths in the repository."""
    roots = [str(repo.resolve()), *([session.directory] if session and session.directory else [])]
    paths = set()
    for event in trace.events:
        if isinstance(event, Edit) and event.ok is not False:
            path = event.path.replace("\\", "/")
            for root in roots:
                path = path.removeprefix(f"{root.rstrip('/')}/")
            paths.add(str(PurePosixPath(path)))
    return frozenset(paths)


def _is_same_repository(attempt: Attempt, session: Session | None, repo: Path) -> bool:
    """Return whether a session ran in this repository, or in another clone of it."""
    directory = session.directory if session else None
    if directory and PurePosixPath(directory).is_relative_to(str(repo.resolve())):
        return True
    name = (attempt.repo or directory or "").rstrip("/").removesuffix(".git")
    return PurePosixPath(name.replace(":", "/")).name == repo.resolve().name


def _is_near_session(work: PastWork, attempt: Attempt) -> bool:
    if attempt.started is None:
        return False
    return attempt.started <= work.at <= (attempt.ended or attempt.started) + MAX_COMMIT_DELAY
