"""Sessions of agents as work: what the user asked for, and the commit that it became."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import cache
from pathlib import Path, PurePosixPath

from msgspec.structs import replace

from closeloop.git import read_git_text
from closeloop.records.attempt import Attempt
from closeloop.records.session import Session
from closeloop.records.trace import Command, Edit, Message, Trace
from closeloop.store import Store
from closeloop.tasks.mining.gathered_work import (
    GatheredWork,
    SourcedWork,
    format_remarks,
    unique_by_commit,
)
from closeloop.tasks.mining.work_history import PastWork, list_past_work

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
