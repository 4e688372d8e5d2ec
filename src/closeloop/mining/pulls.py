"""Pull requests as work: what was asked for, what reviewers wanted, what was merged."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from closeloop.mining.given import Gathered, Given, distinct, said
from closeloop.mining.ledger import whole_lines
from closeloop.model.errors import BadInput
from closeloop.model.record import Record
from closeloop.tasks.mining.history import Work, works

LONGEST_LINE = 32 << 20
_CLOSES = re.compile(r"(?i)\b(?:close[sd]?|fix(?:e[sd])?|resolve[sd]?)\b[:\s]{1,5}#(\d{1,9})\b")
_FAILED = ("failure", "timed_out", "startup_failure")


class Person(Record):
    login: str = ""


class Pull(Record):
    """As GitHub's API answers, as far as it is used."""

    number: int
    title: str
    body: str | None = None
    merged_at: str | None = None
    merge_commit_sha: str | None = None
    user: Person | None = None


class Issue(Record):
    title: str
    body: str | None = None


class Comment(Record):
    body: str | None = None
    user: Person | None = None


class Run(Record):
    """One check of one push."""

    head_sha: str = ""
    conclusion: str | None = None


class Request(Record):
    """A pull request with all that belongs to it: a line of an export."""

    pull: Pull
    issue: Issue | None = None
    comments: tuple[Comment, ...] = ()
    checks: tuple[Run, ...] = ()


def linked(pull: Pull) -> int | None:
    """The issue that a pull request says it closes."""
    found = _CLOSES.search(f"{pull.title}\n{pull.body or ''}"[:20_000])
    return int(found[1]) if found else None


def read_requests(path: Path) -> Iterator[Request]:
    """The lines of an export."""
    try:
        with path.open("rb") as opened:
            number = 0
            while line := opened.readline(LONGEST_LINE + 1):
                number += 1
                if line.strip():
                    yield request_of(line, f"{path}, line {number}")
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}.") from error


def kept_requests(path: Path) -> dict[int, Request]:
    """What was kept of earlier answers, by number; torn lines do not count."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_bytes().splitlines() if path.exists() else []
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}.") from error
    return {request.pull.number: request for request in whole_lines(lines, Request)}


def request_of(line: bytes, name: str) -> Request:
    try:
        return msgspec.json.decode(line, type=Request)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{name} is no pull request as GitHub's API has it: {error}.") from error


def converted(value: Any, kind: type[Record]) -> Any:
    """A part of an answer, without what is not used."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise BadInput(f"GitHub answered in a way that is not known: {error}.") from error


def from_pulls(requests: Sequence[Request], repo: Path) -> Gathered:
    """Those that were merged and that this clone has, each with what people said."""
    known = {work.commit: work for work in works(repo)}
    given, passed_over = [], {}
    for request in requests:
        pull = request.pull
        name = f"pull request {pull.number}"
        if pull.merged_at is None or pull.merge_commit_sha is None:
            passed_over[name] = "it was not merged"
        elif pull.merge_commit_sha not in known:
            passed_over[name] = "its commit is not in this clone's history"
        else:
            given.append(_given(request, known[pull.merge_commit_sha]))
    return Gathered(given=distinct(given), passed_over=passed_over)


def _given(request: Request, work: Work) -> Given:
    pull = request.pull
    # Whoever wrote the issue did not know the fix yet.
    asked = request.issue or pull
    message = f"{asked.title}\n\n{asked.body or ''}"
    author = pull.user.login if pull.user else None
    remarks = [
        comment.body
        for comment in request.comments
        if comment.body and (comment.user is None or comment.user.login != author)
    ]
    tags = ["pull-request"]
    tags += ["reviewed"] if remarks else []
    tags += ["failed-in-ci"] if any(run.conclusion in _FAILED for run in request.checks) else []
    return Given(
        work=msgspec.structs.replace(
            work, message=message.strip(), hindsight=request.issue is None
        ),
        tags=tuple(tags),
        rubric=said("Reviewers of the original change asked for this", remarks),
    )
