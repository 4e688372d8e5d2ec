"""Publish a report on a pull request: a check run, one updated comment, labels.

Every object is looked up before it is created, so that a run that was killed, repeated or raced by
another one leaves the same result as a single run.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar
from urllib.parse import quote

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from closeloop.changes import report_formats
from closeloop.changes.code_host import (
    CodeHostClient,
    CodeHostRefused,
    CodeHostReplyLost,
    HostedRepository,
)
from closeloop.changes.report_formats import (
    BATCH_ANNOTATIONS,
    COMMENT_MARKER,
    CheckRun,
    is_clean,
    render_comment,
)
from closeloop.records.change import ChangeReport
from closeloop.records.errors import BadInput, Fault, MachineFailed
from closeloop.records.orchestration import DeliveredPull, DeliveryBranch, HostIssue
from closeloop.records.record import Record, content_digest
from closeloop.sandbox.workspaces.workspace_patches import git_folder, run_own_git

# The pull request that a workflow runs for, read from its event.

MAX_EVENT_BYTES = 25 << 20
"""Maximum bytes of an event; GitHub sends no larger ones."""
MAX_REQUEST_CHARS = 20_000
"""Maximum characters of the request."""
WORKFLOW_ADVICE = "run it in a workflow with `on: pull_request`"

# Everything used in an address or on a command line is checked for allowed characters here.
_Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,100}/(?!\.{1,2}\Z)[A-Za-z0-9_.-]{1,100}\Z")]
_Commit = Annotated[str, Meta(pattern=r"^[0-9a-f]{40}([0-9a-f]{24})?\Z")]
_Address = Annotated[str, Meta(pattern=r"^https?://[A-Za-z0-9.:-]{1,255}/[A-Za-z0-9_./-]{1,300}\Z")]
_Number = Annotated[int, Meta(gt=0, lt=1 << 53)]
_QUEUE_BRANCH = re.compile(r"/gh-readonly-queue/.+/pr-(\d{1,9})-[0-9a-f]{40,64}\Z")


class WorkflowPull(Record):
    """A pull request, with what a check needs to know of it."""

    repo: _Name
    """Target repository: `owner/name`."""
    number: _Number
    base: _Commit
    head: _Commit
    request: str
    """Title and description; untrusted, since anyone may write them."""
    address: _Address | None = None
    """The repository's page."""
    fork: bool = False
    """Whether it comes from another repository: workflows then get a read-only token."""
    queued: bool = False
    """Whether a merge queue is about to merge it: a commit of its own, on top of earlier pull
    requests. It gets only a check run."""

    @property
    def title(self) -> str:
        return f"#{self.number}"

    @property
    def files_url(self) -> str | None:
        """Return the URL of its files after the change."""
        return f"{self.address}/blob/{self.head}" if self.address else None


class _EventRepository(Record):
    full_name: _Name
    html_url: _Address | None = None


class _PullEnd(Record):
    sha: _Commit
    repo: _EventRepository | None = None
    """None if the fork was deleted."""


class _EventPull(Record):
    number: _Number
    base: _PullEnd
    head: _PullEnd
    title: str = ""
    body: str | None = None


class _MergeGroup(Record):
    """A merge queue's candidate: a pull request on top of those before it."""

    head_sha: _Commit
    base_sha: _Commit
    head_ref: str = ""


class _WorkflowEvent(Record):
    repository: _EventRepository
    pull_request: _EventPull | None = None
    merge_group: _MergeGroup | None = None


def read_pull_event(path: Path) -> WorkflowPull:
    """Return the pull request of an event; BadInput says why there is none."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_EVENT_BYTES + 1)
    except OSError as error:
        raise BadInput(
            f"The event {path} cannot be read ({error.strerror}): {WORKFLOW_ADVICE}."
        ) from None
    if len(content) > MAX_EVENT_BYTES:
        raise BadInput(
            f"The event {path} is larger than {MAX_EVENT_BYTES >> 20} MB, so it is not from GitHub."
        )
    try:
        event = msgspec.json.decode(content, type=_WorkflowEvent)
    except (ValueError, RecursionError) as error:
        message = str(error)[:200]
        raise BadInput(
            f"{path} is not an event of a pull request ({message}): {WORKFLOW_ADVICE}."
        ) from None
    if event.merge_group is not None:
        return _build_queued_pull(event.repository, event.merge_group, path)
    if event.pull_request is None:
        raise BadInput(f"The event {path} is not about a pull request: {WORKFLOW_ADVICE}.")
    return _build_workflow_pull(event.repository, event.pull_request)


def _build_queued_pull(
    repository: _EventRepository, group: _MergeGroup, path: Path
) -> WorkflowPull:
    number = _QUEUE_BRANCH.search(group.head_ref)
    if number is None:
        raise BadInput(
            f"The event {path} names no pull request of the merge queue: {WORKFLOW_ADVICE}."
        )
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
MOVED_ON_NOTE = "The pull request has newer commits: their run writes the comment and labels."
LABEL_DESCRIPTIONS = {HOLD_LABEL: "A person must review it before it is merged"}


Kind = TypeVar("Kind")


class PublishedReport(Record):
    """What was published on a pull request."""

    comment: str | None = None
    """The comment's URL; None if there is none, as for a clean change."""
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
    client: CodeHostClient, pull: WorkflowPull, report: ChangeReport, summary: Path | None = None
) -> PublishedReport:
    """Publish the report. If that is refused, write it to the job's summary file instead."""
    refused: dict[str, list[str]] = {}

    async def tried(name: str, operation: Awaitable[Kind]) -> Kind | None:
        try:
            return await operation
        except Fault as fault:
            refused.setdefault(_refusal_reason(fault, pull), []).append(name)
            return None

    page = render_comment(report, blobs=pull.files_url)
    run = report_formats.build_check_run(report, blobs=pull.files_url)
    published = PublishedReport(
        check=await tried("check run", publish_check_run(client, pull.head, run))
    )
    moved = not pull.queued and await _has_moved_on(client, pull)
    if not moved and not pull.queued:
        me = await client.fetch_login()
        wanted_labels = {f"risk:{report.risk.level}"} if report.risk else set()
        wanted_labels |= {HOLD_LABEL} if report.held else set()
        quiet = is_clean(report)
        published = replace(
            published,
            comment=await tried("comment", publish_comment(client, pull, page, me, quiet=quiet)),
            labels=await tried("labels", publish_labels(client, pull, wanted_labels, me)) or (),
        )
    notes = [f"Not written: {', '.join(names)}. {reason}." for reason, names in refused.items()]
    notes += [MOVED_ON_NOTE] if moved else []
    if refused and summary:
        with summary.open("a", encoding="utf-8", errors="replace") as file:
            file.write(f"{page}\n")
        notes.append("The report is in the summary of the job instead.")
    return replace(published, notes=tuple(notes))


async def publish_check_run(client: CodeHostClient, head: str, run: CheckRun) -> str | None:
    """Publish the check run of a commit, completing one that was interrupted; return its URL."""
    identity = f"{CHECK_NAME}-{content_digest(run.conclusion, run.title, run.annotations)[:32]}"
    identity_fields = {"name": CHECK_NAME, "head_sha": head, "external_id": identity}

    async def settle() -> str | None:
        existing_run = await _find_check_run(client, head, identity)
        if existing_run is None:
            first = identity_fields | _batch_payload(run, 0)
            existing_run = await client.request_json(
                "POST", "check-runs", _ExistingCheckRun, first, again=False
            )
            sent = BATCH_ANNOTATIONS
        else:
            sent = existing_run.output.annotations_count
        is_complete = existing_run.status == "completed"
        while not is_complete:
            # They are added to existing ones: none is sent again unless it is missing.
            path, batch = f"check-runs/{existing_run.id}", _batch_payload(run, sent)
            await client.request_json("PATCH", path, _ExistingCheckRun, batch, again=False)
            is_complete, sent = "conclusion" in batch, sent + BATCH_ANNOTATIONS
        return existing_run.html_url

    return await client.retry_lost_replies(settle)


def _batch_payload(run: CheckRun, sent: int) -> dict[str, Any]:
    """Return the next payload after `sent` annotations; the last one has the conclusion."""
    payload: dict[str, Any] = {
        "status": "in_progress",
        "output": report_formats.check_run_output(run, sent),
    }
    if sent + BATCH_ANNOTATIONS >= len(run.annotations):
        payload |= {"status": "completed", "conclusion": run.conclusion}
    return payload


async def _find_check_run(
    client: CodeHostClient, head: str, identity: str
) -> _ExistingCheckRun | None:
    """Return our last run if it says the same; cancel others that were interrupted."""
    path = f"commits/{head}/check-runs?check_name={CHECK_NAME}&filter=all"
    own_runs = [
        run
        async for page in client.list_pages(path, _CheckRunPage)
        for run in page.check_runs
        if (run.external_id or "").startswith(f"{CHECK_NAME}-")
    ]
    last = max(own_runs, key=lambda run: run.id, default=None)
    matching_run = last if last and last.external_id == identity else None
    for run in own_runs:
        if run is not matching_run and run.status != "completed":
            over = {"status": "completed", "conclusion": "cancelled"}
            await client.request_json("PATCH", f"check-runs/{run.id}", _ExistingCheckRun, over)
    return matching_run


async def publish_comment(
    client: CodeHostClient, pull: WorkflowPull, text: str, me: str | None, *, quiet: bool
) -> str | None:
    """Update our only comment; create it unless `quiet`."""
    created: dict[int, _IssueComment] = {}

    async def ours() -> list[_IssueComment]:
        """Return our comments, oldest first, including one that is not listed yet."""
        comments_by_id = created | {
            comment.id: comment for comment in await _list_own_comments(client, pull, me)
        }
        return [comments_by_id[identity] for identity in sorted(comments_by_id)]

    async def settle() -> str | None:
        comments = await ours()
        if not comments and not quiet:
            path = f"issues/{pull.number}/comments"
            new = await client.request_json(
                "POST", path, _IssueComment, {"body": text}, again=False
            )
            created[new.id] = new
            # Another run may have written at the same time: the oldest stays.
            comments = await ours()
        if not comments:
            return None
        first, *duplicates = comments
        if (first.body or "").split() != text.split():
            await _rewrite_comment(client, first, text, created)
        for duplicate in duplicates:
            await client.delete_path(f"issues/comments/{duplicate.id}")
        return first.html_url

    return await client.retry_lost_replies(settle)


async def _rewrite_comment(
    client: CodeHostClient, old: _IssueComment, text: str, created: dict[int, _IssueComment]
) -> None:
    try:
        await client.request_json(
            "PATCH", f"issues/comments/{old.id}", _IssueComment, {"body": text}
        )
    except CodeHostRefused as refused:
        if refused.status != 404:
            raise
        created.pop(old.id, None)
        raise CodeHostReplyLost("the comment was deleted while it was being updated") from None


async def _list_own_comments(
    client: CodeHostClient, pull: WorkflowPull, me: str | None
) -> list[_IssueComment]:
    """Return comments written by us; our marker alone is not enough, anybody can write it."""

    def is_ours(author: _CommentAuthor | None) -> bool:
        return author is not None and (author.login == me if me else author.type == "Bot")

    return [
        comment
        async for page in client.list_pages(f"issues/{pull.number}/comments", list[_IssueComment])
        for comment in page
        if (comment.body or "").startswith(COMMENT_MARKER) and is_ours(comment.user)
    ]


async def publish_labels(
    client: CodeHostClient, pull: WorkflowPull, wanted_labels: set[str], me: str | None
) -> tuple[str, ...]:
    """Set the wanted labels, and remove others that are ours to set."""
    path = f"issues/{pull.number}/labels"
    present_labels = {
        label.name.lower()
        async for page in client.list_pages(path, list[_IssueLabel])
        for label in page
    }
    for name in sorted(present_labels & LABEL_COLOURS.keys() - wanted_labels):
        if name != HOLD_LABEL or await _is_own_hold(client, pull, me):
            await client.delete_path(f"{path}/{quote(name, safe='')}")
    missing = sorted(wanted_labels - present_labels)
    for name in missing:
        await _ensure_label(client, name)
    if missing:
        await client.request_json("POST", path, list[_IssueLabel], {"labels": missing})
    return tuple(sorted(wanted_labels))


async def _ensure_label(client: CodeHostClient, name: str) -> None:
    """Create a label that the repository does not have."""
    try:
        await client.request_json("GET", f"labels/{quote(name, safe='')}", _IssueLabel)
    except CodeHostRefused as refused:
        if refused.status != 404:
            raise
        description = LABEL_DESCRIPTIONS.get(
            name, f"Risk of the change according to closeloop: {name[5:]}"
        )
        payload = {"name": name, "color": LABEL_COLOURS[name], "description": description}
        try:
            await client.request_json("POST", "labels", _IssueLabel, payload)
        except CodeHostRefused as taken:
            if taken.status != 422:
                raise


async def _is_own_hold(client: CodeHostClient, pull: WorkflowPull, me: str | None) -> bool:
    """Return whether we set the label: one that a person set is not ours to remove."""
    actor = None
    async for page in client.list_pages(f"issues/{pull.number}/events", list[_LabelEvent]):
        for event in page:
            if event.event == "labeled" and event.label and event.label.name.lower() == HOLD_LABEL:
                actor = event.actor.login if event.actor else None
    return actor is not None and actor == me


async def _has_moved_on(client: CodeHostClient, pull: WorkflowPull) -> bool:
    """Return whether commits were added since, so that the report is outdated."""
    try:
        current = await client.request_json("GET", f"pulls/{pull.number}", _PullState)
    except Fault:
        return False
    return current.head.sha != pull.head


def _refusal_reason(fault: Fault, pull: WorkflowPull) -> str:
    if isinstance(fault, CodeHostRefused) and fault.status in (403, 404):
        if pull.fork:
            return f"{fault}: on a pull request from a fork the token is read-only"
        return f"{fault}: give the job `permissions: {{checks: write, pull-requests: write}}`"
    return str(fault).rstrip(".")


# Pull requests that we open: the issue, the pushed branch, exactly one pull request.
#
# Every object is looked up before it is created, so that any step can be repeated: the branch is
# pushed to where it already is, and an existing pull request of that branch is left as it is.


MAX_ISSUE_CHARS = 60_000
HostConnection = AbstractAsyncContextManager[CodeHostClient]
_TRIED_BRANCH = "{commit}:refs/heads/closeloop/access"
_INVALID_STATUSES = (400, 409, 422)
_GIT_REFUSAL = re.compile(
    r"error: 40[134]|denied|not found|not appear|could not read|authentication", re.IGNORECASE
)


class PullDraft(Record):
    """A pull request to open."""

    title: str
    body: str
    target: str
    branch: DeliveryBranch
    held: bool = False
    """Open it as a draft, with a label."""


# Issues


class _IssueAuthor(Record):
    login: str | None = None
    username: str | None = None


class _IssueAnswer(Record):
    """An issue as GitHub, GitLab or `gh issue view --json` return it."""

    title: str
    number: int | None = None
    iid: int | None = None
    body: str | None = None
    description: str | None = None
    html_url: str | None = None
    web_url: str | None = None
    url: str | None = None
    user: _IssueAuthor | None = None
    author: _IssueAuthor | None = None


async def fetch_issue(client: CodeHostClient, repo: str, number: int) -> HostIssue:
    """Fetch an issue; BadInput if there is none."""
    try:
        answer = await client.request_json("GET", f"issues/{number}", _IssueAnswer)
    except CodeHostRefused as refused:
        if refused.status in (404, 410):
            raise BadInput(f"{repo} has no issue {number}, or the token may not read it.") from None
        raise
    return replace(_issue_from_answer(answer, number), closable=True)


def issue_from_map(value: Any, name: str, host: HostedRepository | None = None) -> HostIssue:
    """Read an issue that was saved as JSON; BadInput if it is not one."""
    try:
        answer = msgspec.convert(value, _IssueAnswer)
    except msgspec.ValidationError as error:
        raise BadInput(
            f"{name} is not an issue ({error}): save the JSON that the code host returns."
        ) from None
    issue = _issue_from_answer(answer, 0)
    # If it belongs to another repository, the number means another issue here.
    pages = (
        [f"{host.page}{part}/{issue.number}" for part in ("/issues", "/-/issues")] if host else ()
    )
    return replace(issue, closable=bool(issue.number) and issue.url in pages)


def _issue_from_answer(answer: _IssueAnswer, number: int) -> HostIssue:
    author = answer.user or answer.author
    return HostIssue(
        number=answer.iid or answer.number or number,
        title=answer.title,
        body=(answer.body or answer.description or "")[:MAX_ISSUE_CHARS],
        # If there is a web page, `url` is the API's address.
        url=answer.html_url or answer.web_url or answer.url,
        author=(author.login or author.username) if author else None,
    )


# The branch


async def require_delivery_access(
    repo: str, opening: HostConnection, host: HostedRepository, base: str, target: str
) -> None:
    """Raise BadInput if we may not push a branch or open a pull request; creates nothing."""
    try:
        async with opening as client:
            await _require_base(client, host, base)
            async with _open_push(repo, client, host, base) as run_git:
                await run_git("push", "-q", "--dry-run", _TRIED_BRANCH.format(commit=base))
            await _try_opening(client, host, target)
    except MachineFailed as refused:
        if not isinstance(refused, CodeHostRefused) and not _GIT_REFUSAL.search(str(refused)):
            raise
        raise BadInput(
            f"{host.page} does not accept a pull request ({str(refused).rstrip('.')}): "
            "set a token that may write contents and pull requests, or use --dry-run."
        ) from None


async def _try_opening(client: CodeHostClient, host: HostedRepository, target: str) -> None:
    """Request a pull request of a branch into itself: with permission, it is rejected as
    invalid."""
    title = "closeloop: may pull requests be opened?"
    path, payload = "pulls", {"title": title, "head": target, "base": target}
    if host.kind == "gitlab":
        path = "merge_requests"
        payload = {"title": title, "source_branch": target, "target_branch": target}
    try:
        await client.request_json("POST", path, Record, payload)
    except CodeHostRefused as refused:
        if refused.status not in _INVALID_STATUSES:
            raise


async def push_branch(
    repo: str, client: CodeHostClient, host: HostedRepository, branch: DeliveryBranch
) -> None:
    """Push a branch to the host, without other commits that only the clone has."""
    await _require_base(client, host, branch.base)
    name = f"refs/heads/{branch.name}"
    async with _open_push(repo, client, host, branch.commit) as run_git:
        try:
            # If it exists already, people may have continued it.
            if not await run_git("ls-remote", name):
                await run_git("push", "-q", f"{branch.commit}:{name}")
        except MachineFailed as refused:
            raise MachineFailed(
                f"The branch {branch.name} cannot be pushed to {host.page}: {refused}"
            ) from None


@asynccontextmanager
async def _open_push(
    repo: str, client: CodeHostClient, host: HostedRepository, commit: str
) -> AsyncIterator[Callable[..., Awaitable[str]]]:
    """Open git with our token, through a repository of our own.

    Hooks, helpers and remotes of the user's repository are not used.
    """
    # In the environment: anybody on this machine can read command lines.
    header = {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"http.{host.page}.git.extraHeader",
        "GIT_CONFIG_VALUE_0": client.git_header(),
    }
    with tempfile.TemporaryDirectory(prefix="closeloop-") as own_repo:
        kind = "sha256" if len(commit) == 64 else "sha1"
        await run_own_git(
            own_repo, "init", "-q", "--bare", "--template=", f"--object-format={kind}"
        )
        _borrow_objects(Path(own_repo), Path(git_folder(repo)))

        async def run_git(*arguments: str) -> str:
            *options, refspec = arguments
            return await run_own_git(
                own_repo, *options, "--", f"{host.page}.git", refspec, env=header
            )

        yield run_git


def _borrow_objects(borrower: Path, lender: Path) -> None:
    """Use another repository's objects as alternates."""
    (borrower / "objects/info").mkdir(exist_ok=True)
    (borrower / "objects/info/alternates").write_text(f"{lender}/objects\n")
    if (shallow := lender / "shallow").is_file():
        (borrower / "shallow").write_bytes(shallow.read_bytes())


async def _require_base(client: CodeHostClient, host: HostedRepository, base: str) -> None:
    path = "commits" if host.kind == "github" else "repository/commits"
    try:
        await client.request_json("GET", f"{path}/{base}", Record)
    except CodeHostRefused as refused:
        if refused.status not in (404, 422):
            raise
        raise BadInput(
            f"Commit {base[:12]}, which the branch starts from, is not at {host.page} "
            "or not readable: push it, then run the same command again."
        ) from None


# The pull request


class _OpenedPullRequest(Record):
    number: int
    html_url: str
    draft: bool = False


class _OpenedMergeRequest(Record):
    iid: int
    web_url: str
    draft: bool = False


async def open_pull(
    client: CodeHostClient, host: HostedRepository, draft: PullDraft, report: ChangeReport
) -> DeliveredPull:
    """Return the branch's pull request, opening it if there is none, and publish the report."""
    if host.kind == "gitlab":
        return await _open_gitlab_pull(client, host, draft, report)
    pull = await client.retry_lost_replies(lambda: _settle_github_pull(client, host, draft))
    published = await publish_report(client, _workflow_pull(host, draft, pull), report)
    notes = [*published.notes]
    if draft.held and not pull.draft:
        notes.append(
            "This repository has no draft pull requests: only the label shows that it is blocked."
        )
    return DeliveredPull(
        host="github",
        repo=host.repo,
        number=pull.number,
        url=pull.html_url,
        draft=pull.draft,
        labels=published.labels,
        notes=tuple(notes),
    )


async def _settle_github_pull(
    client: CodeHostClient, host: HostedRepository, draft: PullDraft
) -> _OpenedPullRequest:
    """Return the branch's pull request in any state, else open one."""
    owner = host.repo.partition("/")[0]
    path = f"pulls?state=all&head={quote(f'{owner}:{draft.branch.name}', safe='')}"
    existing = await client.request_json("GET", path, list[_OpenedPullRequest])
    if existing:
        return existing[0]
    payload = {
        "title": draft.title,
        "body": draft.body,
        "head": draft.branch.name,
        "base": draft.target,
        "draft": draft.held,
    }
    try:
        return await client.request_json("POST", "pulls", _OpenedPullRequest, payload, again=False)
    except CodeHostRefused as refused:
        if refused.status == 422 and "already exists" in str(refused):
            raise CodeHostReplyLost(str(refused)) from None  # another process was first: look again
        if refused.status == 422 and draft.held and "draft" in str(refused).lower():
            return await _settle_github_pull(client, host, replace(draft, held=False))
        raise


def _workflow_pull(
    host: HostedRepository, draft: PullDraft, pull: _OpenedPullRequest
) -> WorkflowPull:
    return WorkflowPull(
        repo=host.repo,
        number=pull.number,
        base=draft.branch.base,
        head=draft.branch.commit,
        request=draft.title,
        address=host.page,
    )


async def _open_gitlab_pull(
    client: CodeHostClient, host: HostedRepository, draft: PullDraft, report: ChangeReport
) -> DeliveredPull:
    """Open a merge request; its description ends with the report."""
    labels = [f"risk:{report.risk.level}"] if report.risk else []
    labels += [HOLD_LABEL] if draft.held else []
    name = quote(draft.branch.name, safe="")
    payload = {
        "title": f"Draft: {draft.title}" if draft.held else draft.title,
        "description": f"{draft.body}\n\n{render_comment(report)}",
        "source_branch": draft.branch.name,
        "target_branch": draft.target,
        "labels": ",".join(labels),
    }

    async def settle() -> _OpenedMergeRequest:
        path = f"merge_requests?state=all&source_branch={name}"
        existing = await client.request_json("GET", path, list[_OpenedMergeRequest])
        if existing:
            return existing[0]
        try:
            return await client.request_json(
                "POST", "merge_requests", _OpenedMergeRequest, payload, again=False
            )
        except CodeHostRefused as refused:
            if refused.status != 409:
                raise
            raise CodeHostReplyLost(str(refused)) from None

    pull = await client.retry_lost_replies(settle)
    return DeliveredPull(
        host="gitlab",
        repo=host.repo,
        number=pull.iid,
        url=pull.web_url,
        draft=pull.draft,
        labels=tuple(labels),
    )
