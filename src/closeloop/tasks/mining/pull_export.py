"""Pull requests as work: what was asked for, what reviewers wanted, what was merged."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from closeloop.records.errors import BadInput
from closeloop.records.record import Record
from closeloop.tasks.mining.gathered_work import (
    GatheredWork,
    SourcedWork,
    format_remarks,
    unique_by_commit,
)
from closeloop.tasks.mining.mining_ledger import decode_whole_lines
from closeloop.tasks.mining.work_history import PastWork, list_past_work

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


def gather_pull_work(requests: Sequence[PullExport], repo: Path) -> GatheredWork:
    """Those that were merged and that this clone has, each with what people said."""
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
            gathered.append(_work_from_pull(request, known[pull.merge_commit_sha]))
    return GatheredWork(given=unique_by_commit(gathered), passed_over=passed_over)


def _work_from_pull(request: PullExport, work: PastWork) -> SourcedWork:
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
    tags += (
        ["failed-in-ci"]
        if any(run.conclusion in _FAILED_CONCLUSIONS for run in request.checks)
        else []
    )
    return SourcedWork(
        work=msgspec.structs.replace(
            work, message=message.strip(), hindsight=request.issue is None
        ),
        tags=tuple(tags),
        rubric=format_remarks("Reviewers of the original change asked for this", remarks),
    )
