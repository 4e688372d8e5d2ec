"""Pull requests and sessions of agents as work: what was asked for, and the commit it led to."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
from msgspec.structs import replace

from closeloop.git import read_git_text
from closeloop.records.attempt import Attempt
from closeloop.records.errors import BadInput
from closeloop.records.record import Record
from closeloop.records.session import Session
from closeloop.records.trace import Command, Edit, Message, Trace
from closeloop.store import Store
from closeloop.tasks.mining.work_history import (
    GatheredWork,
    PastWork,
    SourcedWork,
    decode_whole_lines,
    format_remarks,
    list_past_work,
    unique_by_commit,
)

MAX_LINE_BYTES = 32 << 20
_CLOSING_REFERENCE = re.compile(
    r"(?i)\b(?:close[sd]?|fix(?:e[sd])?|resolve[sd]?)\b[:\s]{1,5}#(\d{1,9})\b"
)
_FAILED_CONCLUSIONS = ("failure", "timed_out", "startup_failure")


class ExportedUser(Record):
    login: str = ""


class ExportedPull(Record):
    """As GitHub's API answers, as far as it is used."""

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
    """One check of one push."""

    head_sha: str = ""
    name: str = ""
    conclusion: str | None = None


class PullExport(Record):
    """A pull request with all that belongs to it: a line of an export."""

    pull: ExportedPull
    issue: ExportedIssue | None = None
    comments: tuple[ExportedComment, ...] = ()
    checks: tuple[ExportedCheckRun, ...] = ()


def find_linked_issue(pull: ExportedPull) -> int | None:
    """The issue that a pull request says it closes."""
    match = _CLOSING_REFERENCE.search(f"{pull.title}\n{pull.body or ''}"[:20_000])
    return int(match[1]) if match else None


def read_pull_exports(path: Path) -> Iterator[PullExport]:
    """The lines of an export."""
    try:
        with path.open("rb") as opened:
            number = 0
            while line := opened.readline(MAX_LINE_BYTES + 1):
                number += 1
                if line.strip():
                    yield decode_pull_export(line, f"{path}, line {number}")
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}.") from error


def read_saved_exports(path: Path) -> dict[int, PullExport]:
    """What was kept of earlier answers, by number; torn lines do not count."""
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
        raise BadInput(f"{name} is no pull request as GitHub's API has it: {error}.") from error


def convert_github_answer(value: Any, kind: type[Record]) -> Any:
    """A part of an answer, without what is not used."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise BadInput(f"GitHub answered in a way that is not known: {error}.") from error


def gather_pull_work(
    requests: Sequence[PullExport], repo: Path, modes: Mapping[str, Sequence[str]] | None = None
) -> GatheredWork:
    """Those that were merged and that this clone has, each with what people said.

    `modes` are the tags of the failure modes that were seen in them, by merge commit.
    """
    known = {work.commit: work for work in list_past_work(repo)}
    gathered, passed_over = [], {}
    for request in requests:
        pull = request.pull
        name = f"pull request {pull.number}"
        if pull.merged_at is None or pull.merge_commit_sha is None:
            passed_over[name] = "it was not merged"
        elif pull.merge_commit_sha not in known:
            passed_over[name] = "its commit is not in this clone's history"
        else:
            tags = (modes or {}).get(pull.merge_commit_sha, ())
            gathered.append(_work_from_pull(request, known[pull.merge_commit_sha], tags))
    return GatheredWork(given=unique_by_commit(gathered), passed_over=passed_over)


def _work_from_pull(request: PullExport, work: PastWork, modes: Sequence[str]) -> SourcedWork:
    pull = request.pull
    # Whoever wrote the issue did not know the fix yet.
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
    failed = [run for run in request.checks if run.conclusion in _FAILED_CONCLUSIONS]
    tags += ["failed-in-ci"] if failed else []
    failures = dict.fromkeys(
        f"{run.name or 'a check'}: {run.conclusion} at {run.head_sha[:7] or 'an earlier push'}"
        for run in failed
    )
    asked = format_remarks("Reviewers of the original change asked for this", remarks)
    broke = format_remarks(
        "Checks of the original change failed before it was accepted", list(failures)
    )
    return SourcedWork(
        work=msgspec.structs.replace(
            work, message=message.strip(), hindsight=request.issue is None
        ),
        tags=(*tags, *modes),
        rubric="\n\n".join(part for part in (asked, broke) if part),
    )


# Sessions of agents as work: what the user asked for, and the commit that it became.

MAX_SESSIONS = 50
MAX_COMMIT_DELAY = timedelta(days=14)
"""A commit this long after a session may still be its work."""
MIN_FILE_OVERLAP = 0.5
"""Of the files of session and commit together, the share that both have."""


def gather_session_work(
    store: Store, repo: Path, modes: Mapping[str, Sequence[str]]
) -> GatheredWork:
    """The latest sessions in a repository whose edits became a commit; `modes` by attempt."""
    past_work = list_past_work(repo)

    @cache
    def changed_files(work: PastWork) -> frozenset[str]:
        listed = read_git_text(repo, "diff", "--name-only", "-z", work.base, work.commit)
        return frozenset(filter(None, listed.split("\0")))

    gathered, passed_over = [], {}
    for row in store.list_attempts(origin="production", limit=MAX_SESSIONS):
        attempt, session, trace = (
            store.load_attempt(row.id),
            store.load_session(row.id),
            store.load_trace(row.id),
        )
        name = f"session {row.id}"
        if trace is None or not _is_same_repository(attempt, session, repo):
            passed_over[name] = "it went on elsewhere"
            continue
        user_messages = _user_messages(trace)
        edited = _edited_files(trace, repo, session)
        if not user_messages or not edited:
            passed_over[name] = "it asks for nothing, or changes nothing"
            continue
        nearby_work = [work for work in past_work if _is_near_session(work, attempt)]
        rated = [
            (len(edited & changed_files(work)) / len(edited | changed_files(work)), work)
            for work in nearby_work
        ]
        best = max(rated, key=lambda pair: (pair[0], -pair[1].at.timestamp()), default=None)
        if best is None or best[0] < MIN_FILE_OVERLAP:
            passed_over[name] = "no commit holds what it changed"
            continue
        gathered.append(_work_from_session(best[1], user_messages, trace, modes.get(row.id, ())))
    return GatheredWork(given=unique_by_commit(gathered), passed_over=passed_over)


def _work_from_session(
    work: PastWork, words: Sequence[str], trace: Trace, modes: Sequence[str]
) -> SourcedWork:
    failed = any(
        isinstance(one, Command) and one.exit_code not in (0, None) for one in trace.events
    )
    corrected = len(words) > 1
    tags = ["agent-session", *(["corrected"] if corrected else [])]
    tags += ["failed-on-the-way"] if failed else []
    return SourcedWork(
        work=replace(work, message=words[0], hindsight=False),
        tags=(*tags, *modes),
        rubric=format_remarks("The user corrected the original work like this", words[1:]),
    )


def _user_messages(trace: Trace) -> list[str]:
    """What the user said to the main agent, in order."""
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
    """The files that were changed, as the repository names them."""
    roots = [str(repo.resolve()), *([session.directory] if session and session.directory else [])]
    paths = set()
    for event in trace.events:
        if isinstance(event, Edit) and event.ok is not False:
            path = event.path.replace("\\", "/")
            for root in roots:
                path = path.removeprefix(f"{root.rstrip('/')}/")
            paths.add(str(PurePosixPath(path)))
    return frozenset(paths)


def _is_same_repository(made: Attempt, session: Session | None, repo: Path) -> bool:
    """Whether a session went on in this repository, or in another clone of it."""
    directory = session.directory if session else None
    if directory and PurePosixPath(directory).is_relative_to(str(repo.resolve())):
        return True
    name = (made.repo or directory or "").rstrip("/").removesuffix(".git")
    return PurePosixPath(name.replace(":", "/")).name == repo.resolve().name


def _is_near_session(work: PastWork, made: Attempt) -> bool:
    if made.started is None:
        return False
    return made.started <= work.at <= (made.ended or made.started) + MAX_COMMIT_DELAY
