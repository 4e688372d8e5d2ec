"""Sessions of agents as work: what the user asked for, and the commit that it became."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import cache
from pathlib import Path, PurePosixPath

from msgspec.structs import replace

from closeloop.git import read_text
from closeloop.mining.given import Gathered, Given, distinct, said
from closeloop.model.attempt import Attempt
from closeloop.model.session import Session
from closeloop.model.trace import Command, Edit, Message, Trace
from closeloop.store import Store
from closeloop.tasks.mining.history import Work, works

MOST_SESSIONS = 50
LATEST = timedelta(days=14)
"""A commit this long after a session may still be its work."""
LIKENESS = 0.5
"""Of the files of session and commit together, the share that both have."""


def from_sessions(store: Store, repo: Path, modes: Mapping[str, Sequence[str]]) -> Gathered:
    """The latest sessions in a repository whose edits became a commit; `modes` by attempt."""
    accepted = works(repo)

    @cache
    def changed(work: Work) -> frozenset[str]:
        listed = read_text(repo, "diff", "--name-only", "-z", work.base, work.commit)
        return frozenset(filter(None, listed.split("\0")))

    given, passed_over = [], {}
    for row in store.attempts(origin="production", limit=MOST_SESSIONS):
        made, session, trace = store.attempt(row.id), store.session(row.id), store.trace(row.id)
        name = f"session {row.id}"
        if trace is None or not _is_here(made, session, repo):
            passed_over[name] = "it went on elsewhere"
            continue
        words = _words(trace)
        edited = _edited(trace, repo, session)
        if not words or not edited:
            passed_over[name] = "it asks for nothing, or changes nothing"
            continue
        near = [work for work in accepted if _is_near(work, made)]
        rated = [(len(edited & changed(work)) / len(edited | changed(work)), work) for work in near]
        best = max(rated, key=lambda pair: (pair[0], -pair[1].at.timestamp()), default=None)
        if best is None or best[0] < LIKENESS:
            passed_over[name] = "no commit holds what it changed"
            continue
        given.append(_given(best[1], words, trace, modes.get(row.id, ())))
    return Gathered(given=distinct(given), passed_over=passed_over)


def _given(work: Work, words: Sequence[str], trace: Trace, modes: Sequence[str]) -> Given:
    failed = any(
        isinstance(one, Command) and one.exit_code not in (0, None) for one in trace.events
    )
    corrected = len(words) > 1
    tags = ["agent-session", *(["corrected"] if corrected else [])]
    tags += ["failed-on-the-way"] if failed else []
    return Given(
        work=replace(work, message=words[0], hindsight=False),
        tags=(*tags, *modes),
        rubric=said("The user corrected the original work like this", words[1:]),
    )


def _words(trace: Trace) -> list[str]:
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


def _edited(trace: Trace, repo: Path, session: Session | None) -> frozenset[str]:
    """The files that were changed, as the repository names them."""
    roots = [str(repo.resolve()), *([session.directory] if session and session.directory else [])]
    found = set()
    for event in trace.events:
        if isinstance(event, Edit) and event.ok is not False:
            path = event.path.replace("\\", "/")
            for root in roots:
                path = path.removeprefix(f"{root.rstrip('/')}/")
            found.add(str(PurePosixPath(path)))
    return frozenset(found)


def _is_here(made: Attempt, session: Session | None, repo: Path) -> bool:
    """Whether a session went on in this repository, or in another clone of it."""
    directory = session.directory if session else None
    if directory and PurePosixPath(directory).is_relative_to(str(repo.resolve())):
        return True
    name = (made.repo or directory or "").rstrip("/").removesuffix(".git")
    return PurePosixPath(name.replace(":", "/")).name == repo.resolve().name


def _is_near(work: Work, made: Attempt) -> bool:
    if made.started is None:
        return False
    return made.started <= work.at <= (made.ended or made.started) + LATEST
