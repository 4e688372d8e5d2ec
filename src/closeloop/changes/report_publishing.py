"""Tell a pull request: a check run, one comment that is kept up to date, labels.

Everything is looked for before it is made, so that a run that was killed, repeated or raced by
another one leaves the same behind as one run does.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable
from pathlib import Path
from typing import Annotated, Any, TypeVar
from urllib.parse import quote

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from closeloop.changes.code_host import CodeHostClient, CodeHostRefused, CodeHostReplyLost
from closeloop.changes.reports import markdown_report
from closeloop.changes.reports.markdown_report import (
    BATCH_ANNOTATIONS,
    COMMENT_MARKER,
    CheckRun,
    render_comment,
)
from closeloop.changes.reports.report_text import is_clean
from closeloop.records.change import ChangeReport
from closeloop.records.errors import BadInput, Fault
from closeloop.records.record import Record, content_digest

# Which pull request a workflow was started for, read from the event that started it.

MAX_EVENT_BYTES = 25 << 20
"""Bytes; GitHub sends no larger events."""
MAX_REQUEST_CHARS = 20_000
"""Characters of what was asked for."""
WORKFLOW_ADVICE = "run it in a workflow that is started `on: pull_request`"

# Everything that ends up in an address or on a command line is held to its alphabet here.
_Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,100}/(?!\.{1,2}\Z)[A-Za-z0-9_.-]{1,100}\Z")]
_Commit = Annotated[str, Meta(pattern=r"^[0-9a-f]{40}([0-9a-f]{24})?\Z")]
_Address = Annotated[str, Meta(pattern=r"^https?://[A-Za-z0-9.:-]{1,255}/[A-Za-z0-9_./-]{1,300}\Z")]
_Number = Annotated[int, Meta(gt=0, lt=1 << 53)]
_QUEUE_BRANCH = re.compile(r"/gh-readonly-queue/.+/pr-(\d{1,9})-[0-9a-f]{40,64}\Z")


class WorkflowPull(Record):
    """A request to merge, as far as a check needs to know it."""

    repo: _Name
    """Where it is to be merged: `owner/name`."""
    number: _Number
    base: _Commit
    head: _Commit
    request: str
    """What it says it does: title and text. Written by anyone."""
    address: _Address | None = None
    """The repository's page."""
    fork: bool = False
    """Whether it comes from another repository: workflows then get a token that only reads."""
    queued: bool = False
    """Whether this is what a merge queue is about to merge: a commit of its own, with pull requests
    before it. It gets a check run alone."""

    @property
    def title(self) -> str:
        return f"#{self.number}"

    @property
    def files_url(self) -> str | None:
        """Where its files are shown as they are after the change."""
        return f"{self.address}/blob/{self.head}" if self.address else None


class _EventRepository(Record):
    full_name: _Name
    html_url: _Address | None = None


class _PullEnd(Record):
    sha: _Commit
    repo: _EventRepository | None = None
    """None where a fork was deleted since."""


class _EventPull(Record):
    number: _Number
    base: _PullEnd
    head: _PullEnd
    title: str = ""
    body: str | None = None


class _MergeGroup(Record):
    """What a merge queue tries: a pull request on top of those that are before it."""

    head_sha: _Commit
    base_sha: _Commit
    head_ref: str = ""


class _WorkflowEvent(Record):
    repository: _EventRepository
    pull_request: _EventPull | None = None
    merge_group: _MergeGroup | None = None


def read_pull_event(path: Path) -> WorkflowPull:
    """The pull request of an event; BadInput says why there is none."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_EVENT_BYTES + 1)
    except OSError as error:
        raise BadInput(
            f"The event {path} cannot be read ({error.strerror}): {WORKFLOW_ADVICE}."
        ) from None
    if len(content) > MAX_EVENT_BYTES:
        raise BadInput(
            f"The event {path} is over {MAX_EVENT_BYTES >> 20} MB: it is none of GitHub's."
        )
    try:
        event = msgspec.json.decode(content, type=_WorkflowEvent)
    except (ValueError, RecursionError) as error:
        message = str(error)[:200]
        raise BadInput(
            f"{path} is no event of a pull request ({message}): {WORKFLOW_ADVICE}."
        ) from None
    if event.merge_group is not None:
        return _build_queued_pull(event.repository, event.merge_group, path)
    if event.pull_request is None:
        raise BadInput(f"The event {path} is about no pull request: {WORKFLOW_ADVICE}.")
    return _build_workflow_pull(event.repository, event.pull_request)


def _build_queued_pull(
    repository: _EventRepository, group: _MergeGroup, path: Path
) -> WorkflowPull:
    number = _QUEUE_BRANCH.search(group.head_ref)
    if number is None:
        raise BadInput(f"The event {path} names no pull request of the queue: {WORKFLOW_ADVICE}.")
    return WorkflowPull(
        repo=repository.full_name,
        number=int(number[1]),
        base=group.base_sha,
        head=group.head_sha,
        request="",
        address=_page_address(repository),
        queued=True,
    )


def _page_address(repository: _EventRepository) -> str | None:
    address = repository.html_url
    return address if address and address.endswith(f"/{repository.full_name}") else None


def _build_workflow_pull(repository: _EventRepository, pull: _EventPull) -> WorkflowPull:
    source = pull.head.repo.full_name if pull.head.repo else None
    return WorkflowPull(
        repo=repository.full_name,
        number=pull.number,
        base=pull.base.sha,
        head=pull.head.sha,
        request=f"{pull.title}\n\n{pull.body or ''}".strip()[:MAX_REQUEST_CHARS],
        address=_page_address(repository),
        fork=source != repository.full_name,
    )


CHECK_NAME = "closeloop"
HOLD_LABEL = "hold"
LABEL_COLOURS = {
    "risk:low": "0e8a16",
    "risk:medium": "fbca04",
    "risk:high": "d93f0b",
    "risk:critical": "b60205",
    HOLD_LABEL: "b60205",
}
MOVED_ON_NOTE = "The pull request has moved on: comment and labels are left to its newer run."
LABEL_DESCRIPTIONS = {HOLD_LABEL: "A person must look at it before it is merged"}


Kind = TypeVar("Kind")


class PublishedReport(Record):
    """What a pull request was told."""

    comment: str | None = None
    """The comment's address; None where there is none, as with a clean change."""
    check: str | None = None
    labels: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """What could not be done, and why."""


class _CommentAuthor(Record):
    login: str
    type: str = ""


class _IssueComment(Record):
    id: int
    html_url: str
    body: str | None = None
    user: _CommentAuthor | None = None


class _CheckRunOutput(Record):
    annotations_count: int = 0


class _ExistingCheckRun(Record):
    id: int
    status: str
    html_url: str | None = None
    external_id: str | None = None
    output: _CheckRunOutput = _CheckRunOutput()


class _CheckRunPage(Record):
    check_runs: list[_ExistingCheckRun]


class _IssueLabel(Record):
    name: str


class _LabelEvent(Record):
    event: str
    label: _IssueLabel | None = None
    actor: _CommentAuthor | None = None


class _PullHead(Record):
    sha: str


class _PullState(Record):
    head: _PullHead


async def publish_report(
    hub: CodeHostClient,
    pull: WorkflowPull,
    report: ChangeReport,
    summary: Path | None = None,
) -> PublishedReport:
    """Tell the pull request. What is refused goes to the file of the job's summary instead."""
    refused: dict[str, list[str]] = {}

    async def tried(what: str, doing: Awaitable[Kind]) -> Kind | None:
        try:
            return await doing
        except Fault as fault:
            refused.setdefault(_refusal_reason(fault, pull), []).append(what)
            return None

    page = render_comment(report, blobs=pull.files_url)
    run = markdown_report.build_check_run(report, blobs=pull.files_url)
    published = PublishedReport(
        check=await tried("check run", publish_check_run(hub, pull.head, run))
    )
    moved = not pull.queued and await _has_moved_on(hub, pull)
    if not moved and not pull.queued:
        me = await hub.fetch_login()
        wanted = {f"risk:{report.risk.level}"} if report.risk else set()
        wanted |= {HOLD_LABEL} if report.held else set()
        quiet = is_clean(report)
        published = replace(
            published,
            comment=await tried("comment", publish_comment(hub, pull, page, me, quiet=quiet)),
            labels=await tried("labels", publish_labels(hub, pull, wanted, me)) or (),
        )
    notes = [f"Not written: {', '.join(what)}. {reason}." for reason, what in refused.items()]
    notes += [MOVED_ON_NOTE] if moved else []
    if refused and summary:
        with summary.open("a", encoding="utf-8", errors="replace") as file:
            file.write(f"{page}\n")
        notes.append("The report is in the summary of the job instead.")
    return replace(published, notes=tuple(notes))


async def publish_check_run(hub: CodeHostClient, head: str, run: CheckRun) -> str | None:
    """The check run of a commit, finished where an earlier run was cut off; its address."""
    identity = f"{CHECK_NAME}-{content_digest(run.conclusion, run.title, run.annotations)[:32]}"
    identity_fields = {"name": CHECK_NAME, "head_sha": head, "external_id": identity}

    async def settle() -> str | None:
        existing_run = await _find_check_run(hub, head, identity)
        if existing_run is None:
            first = identity_fields | _batch_payload(run, 0)
            existing_run = await hub.request_json(
                "POST", "check-runs", _ExistingCheckRun, first, again=False
            )
            sent = BATCH_ANNOTATIONS
        else:
            sent = existing_run.output.annotations_count
        done = existing_run.status == "completed"
        while not done:
            # They are added to those there are: none is sent again before it is known to lack.
            path, more = f"check-runs/{existing_run.id}", _batch_payload(run, sent)
            await hub.request_json("PATCH", path, _ExistingCheckRun, more, again=False)
            done, sent = "conclusion" in more, sent + BATCH_ANNOTATIONS
        return existing_run.html_url

    return await hub.retry_lost_replies(settle)


def _batch_payload(run: CheckRun, sent: int) -> dict[str, Any]:
    """What is to be sent after so many annotations; with the last ones, the conclusion."""
    payload: dict[str, Any] = {
        "status": "in_progress",
        "output": markdown_report.check_run_output(run, sent),
    }
    if sent + BATCH_ANNOTATIONS >= len(run.annotations):
        payload |= {"status": "completed", "conclusion": run.conclusion}
    return payload


async def _find_check_run(
    hub: CodeHostClient, head: str, identity: str
) -> _ExistingCheckRun | None:
    """Our last run, where it says the same; others that were cut off are called off."""
    path = f"commits/{head}/check-runs?check_name={CHECK_NAME}&filter=all"
    ours = [
        run
        async for page in hub.list_pages(path, _CheckRunPage)
        for run in page.check_runs
        if (run.external_id or "").startswith(f"{CHECK_NAME}-")
    ]
    last = max(ours, key=lambda run: run.id, default=None)
    same = last if last and last.external_id == identity else None
    for run in ours:
        if run is not same and run.status != "completed":
            over = {"status": "completed", "conclusion": "cancelled"}
            await hub.request_json("PATCH", f"check-runs/{run.id}", _ExistingCheckRun, over)
    return same


async def publish_comment(
    hub: CodeHostClient, pull: WorkflowPull, text: str, me: str | None, *, quiet: bool
) -> str | None:
    """Our one comment, with this text; a quiet one is not begun, only kept up to date."""
    written: dict[int, _IssueComment] = {}

    async def ours() -> list[_IssueComment]:
        """The oldest first, also one that is not listed yet."""
        listed = written | {one.id: one for one in await _list_own_comments(hub, pull, me)}
        return [listed[identity] for identity in sorted(listed)]

    async def settle() -> str | None:
        comments = await ours()
        if not comments and not quiet:
            path = f"issues/{pull.number}/comments"
            new = await hub.request_json("POST", path, _IssueComment, {"body": text}, again=False)
            written[new.id] = new
            # Another run may have written at the same time: the oldest stays.
            comments = await ours()
        if not comments:
            return None
        first, *others = comments
        if (first.body or "").split() != text.split():
            await _rewrite_comment(hub, first, text, written)
        for other in others:
            await hub.delete_path(f"issues/comments/{other.id}")
        return first.html_url

    return await hub.retry_lost_replies(settle)


async def _rewrite_comment(
    hub: CodeHostClient, old: _IssueComment, text: str, made: dict[int, _IssueComment]
) -> None:
    try:
        await hub.request_json("PATCH", f"issues/comments/{old.id}", _IssueComment, {"body": text})
    except CodeHostRefused as refused:
        if refused.status != 404:
            raise
        made.pop(old.id, None)
        raise CodeHostReplyLost("the comment was taken away while it was being written") from None


async def _list_own_comments(
    hub: CodeHostClient, pull: WorkflowPull, me: str | None
) -> list[_IssueComment]:
    """Comments that we wrote. Anybody can write what ours begin with, so that is not enough."""

    def is_ours(author: _CommentAuthor | None) -> bool:
        return author is not None and (author.login == me if me else author.type == "Bot")

    return [
        one
        async for page in hub.list_pages(f"issues/{pull.number}/comments", list[_IssueComment])
        for one in page
        if (one.body or "").startswith(COMMENT_MARKER) and is_ours(one.user)
    ]


async def publish_labels(
    hub: CodeHostClient, pull: WorkflowPull, wanted: set[str], me: str | None
) -> tuple[str, ...]:
    """The labels that are wanted, and none of the others that are ours to set."""
    path = f"issues/{pull.number}/labels"
    present_labels = {
        one.name.lower() async for page in hub.list_pages(path, list[_IssueLabel]) for one in page
    }
    for name in sorted(present_labels & LABEL_COLOURS.keys() - wanted):
        if name != HOLD_LABEL or await _is_own_hold(hub, pull, me):
            await hub.delete_path(f"{path}/{quote(name, safe='')}")
    missing = sorted(wanted - present_labels)
    for name in missing:
        await _ensure_label(hub, name)
    if missing:
        await hub.request_json("POST", path, list[_IssueLabel], {"labels": missing})
    return tuple(sorted(wanted))


async def _ensure_label(hub: CodeHostClient, name: str) -> None:
    """Make a label that the repository does not have."""
    try:
        await hub.request_json("GET", f"labels/{quote(name, safe='')}", _IssueLabel)
    except CodeHostRefused as refused:
        if refused.status != 404:
            raise
        description = LABEL_DESCRIPTIONS.get(
            name, f"How risky closeloop finds the change: {name[5:]}"
        )
        payload = {"name": name, "color": LABEL_COLOURS[name], "description": description}
        try:
            await hub.request_json("POST", "labels", _IssueLabel, payload)
        except CodeHostRefused as taken:
            if taken.status != 422:
                raise


async def _is_own_hold(hub: CodeHostClient, pull: WorkflowPull, me: str | None) -> bool:
    """Whether it was us who set the label: what a person holds is that person's to let go."""
    who = None
    async for page in hub.list_pages(f"issues/{pull.number}/events", list[_LabelEvent]):
        for one in page:
            if one.event == "labeled" and one.label and one.label.name.lower() == HOLD_LABEL:
                who = one.actor.login if one.actor else None
    return who is not None and who == me


async def _has_moved_on(hub: CodeHostClient, pull: WorkflowPull) -> bool:
    """Whether commits were added since: then what we found is no longer about its head."""
    try:
        now = await hub.request_json("GET", f"pulls/{pull.number}", _PullState)
    except Fault:
        return False
    return now.head.sha != pull.head


def _refusal_reason(fault: Fault, pull: WorkflowPull) -> str:
    if isinstance(fault, CodeHostRefused) and fault.status in (403, 404):
        if pull.fork:
            return f"{fault}: for a pull request from a fork the token only reads"
        return f"{fault}: give the job `permissions: {{checks: write, pull-requests: write}}`"
    return str(fault).rstrip(".")
