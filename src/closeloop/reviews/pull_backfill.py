"""Import past pull requests from GitHub, GitLab and git; an interrupted import resumes."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex
from typing import Any, Protocol, TypeVar
from urllib.parse import quote

from msgspec.structs import replace

from closeloop.changes.change_sides import DEEPEN_ADVICE
from closeloop.changes.risk.change_history import DefectLabels, MainlineStep, read_mainline_steps
from closeloop.git import (
    REFETCH_HINT,
    GitRepository,
    decode_git_path,
    find_repository,
    is_missing_object,
    run_git_in,
)
from closeloop.records.change import Change
from closeloop.records.errors import BadInput, MachineFailed
from closeloop.records.pull_request import (
    BackReference,
    Fact,
    FileEdit,
    PullCommit,
    PullDescription,
    PullExtent,
    PullRequest,
    Push,
    Review,
    ReviewComment,
    ReviewState,
)
from closeloop.records.record import Record
from closeloop.reviews.authorship import AgentSignsByName, parse_trailers
from closeloop.reviews.host_pulls import (
    GITLAB_STATES,
    GithubCheckRun,
    GithubComment,
    GithubCommit,
    GithubFacts,
    GithubFile,
    GithubPull,
    GithubReview,
    GitlabCommit,
    GitlabFacts,
    GitlabPosition,
    GitlabUser,
    is_gitlab_bot,
    name_people,
    parse_gitlab_time,
    to_file_edits,
)
from closeloop.reviews.pull_changes import GitlabFileDiff, change_from_github, change_from_gitlab
from closeloop.reviews.pull_facts import MAX_ITEMS, MAX_TEXT_CHARS, FactBuilder, message_title
from closeloop.reviews.pull_lifecycle import build_pull_request, find_recorded_attempt, save_facts
from closeloop.store import Store

MAX_CHECKED_COMMITS = 10
"""Maximum commits of a pull request whose checks are fetched: half the first, half the last."""
MAX_SIZED_COMMITS = 20
"""Maximum commits by people whose files are fetched."""
BEGINNING_TIME = "1970-01-01T00:00:00Z"
_COMMIT_SHA = re.compile(r"[0-9a-f]{40,64}")

Kind = TypeVar("Kind")
CountCallback = Callable[[int], None]
"""Called with the number done so far."""


class CodeHost(Protocol):
    """One repository at its host, read page by page."""

    async def request_json(
        self,
        method: str,
        path: str,
        kind: type[Kind],
        payload: dict[str, Any] | None = None,
        *,
        again: bool = True,
    ) -> Kind: ...

    def list_pages(self, path: str, kind: type[Kind]) -> AsyncIterator[Kind]: ...


class UpdatedItem(Protocol):
    """An item that a host lists by time of change."""

    @property
    def number(self) -> int: ...

    @property
    def updated_at(self) -> str: ...


Dated = TypeVar("Dated", bound=UpdatedItem)


class BackfillRequest(Record):
    """What to fetch, and where to store it."""

    repo: str
    store: Store
    agents: AgentSignsByName
    report_count: CountCallback

    @property
    def place(self) -> str:
        return f"backfill:{self.repo}"

    def start_time(self, since: datetime | None) -> str:
        """Return the time to fetch from: as given, else where the last run stopped."""
        if since is not None:
            return since.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return self.store.events.load_position(self.place) or BEGINNING_TIME

    def save_change(self, pull: PullRequest, change: Change) -> None:
        """Save the diff of its newest commit."""
        if pull.head and change.files:
            fetched_at = datetime.now(UTC)
            self.store.pulls.save_change(self.repo, pull.number, pull.head, change, fetched_at)

    def save_pull(self, facts: list[Fact], updated: str) -> None:
        """Save the facts of one pull request; the next run begins here."""
        save_facts(facts, self.store, self.agents)
        self.store.events.save_position(self.place, updated)


class _UpdatedIssue(Record):
    """An issue or a pull request, listed by time of change."""

    number: int
    updated_at: str
    pull_request: dict[str, Any] | None = None


class _CommitCheckRuns(Record):
    check_runs: tuple[GithubCheckRun, ...] = ()


async def backfill_github(
    host: CodeHost, request: BackfillRequest, since: datetime | None = None
) -> int:
    """Fetch all pull requests that changed since the last run, and return how many."""
    saved = 0
    async for issue in list_updated_since(
        request.start_time(since), lambda start: _list_updated_issues(host, start)
    ):
        if issue.pull_request is not None:
            request.save_pull(
                await fetch_github_facts(host, request, issue.number), issue.updated_at
            )
            saved += 1
            request.report_count(saved)
    return saved


async def list_updated_since(
    start: str, pages: Callable[[str], AsyncIterator[list[Dated]]]
) -> AsyncIterator[Dated]:
    """Yield what changed since a time, oldest first; what changes meanwhile comes again."""
    yielded: set[tuple[int, str]] = set()
    while True:
        before = start
        async for page in pages(start):
            for item in page:
                if (item.number, item.updated_at) not in yielded:
                    yielded.add((item.number, item.updated_at))
                    yield item
                start = max(start, item.updated_at)
            # Items that change meanwhile move to the end, and shift others between pages: query
            # again from this time instead of paging.
            if start > before:
                break
        if start == before:
            return


async def _list_updated_issues(host: CodeHost, start: str) -> AsyncIterator[list[_UpdatedIssue]]:
    """Yield pages of what changed since a time, oldest first."""
    order = "state=all&sort=updated&direction=asc"
    try:
        # Only issues can be filtered by time; they include pull requests.
        async for page in host.list_pages(
            f"issues?{order}&since={quote(start)}", list[_UpdatedIssue]
        ):
            yield page
    except MachineFailed as refused:
        if getattr(refused, "status", None) != 410:
            raise
        # There are no issues in this repository.
        pulls = [
            pull
            async for page in host.list_pages(f"pulls?{order}", list[_UpdatedIssue])
            for pull in page
        ]
        yield [replace(pull, pull_request={}) for pull in pulls if pull.updated_at >= start]


async def fetch_github_facts(host: CodeHost, request: BackfillRequest, number: int) -> list[Fact]:
    """Return all that GitHub still has on a pull request; of an agent's, more is fetched."""
    builder = GithubFacts(request.repo, datetime.now(UTC))
    try:
        pull = await host.request_json("GET", f"pulls/{number}", GithubPull)
    except MachineFailed as refused:
        if getattr(refused, "status", None) in (404, 410):
            return []
        raise
    commits = await fetch_list(host, f"pulls/{number}/commits", GithubCommit)
    names = tuple(commit.sha for commit in commits if _COMMIT_SHA.fullmatch(commit.sha))
    facts = [
        *builder.pull_facts(pull),
        *(builder.commit_fact(number, commit) for commit in commits),
    ]
    facts.append(builder.extent_fact(number, PullExtent(commits=names), pull.updated_at))
    reviews = await fetch_list(host, f"pulls/{number}/reviews", GithubReview)
    facts += [
        builder.review_fact(number, review, None)
        for review in reviews
        if review.state.upper() != "PENDING"
    ]
    for path in (f"pulls/{number}/comments", f"issues/{number}/comments"):
        facts += [
            builder.comment_fact(number, comment)
            for comment in await fetch_list(host, path, GithubComment)
        ]
    pull_request = build_pull_request(facts, number, request.agents)
    if pull_request is not None and (
        pull_request.signs or find_recorded_attempt(pull_request, request.store)
    ):
        facts += await _fetch_agent_details(host, builder, pull_request, request)
    return facts


async def _fetch_agent_details(
    host: CodeHost, builder: GithubFacts, pull: PullRequest, request: BackfillRequest
) -> list[Fact]:
    """Return what an agent's pull request changed, its CI results, and what people fixed."""
    number = pull.number
    files = tuple(await fetch_list(host, f"pulls/{number}/files", GithubFile))
    request.save_change(pull, change_from_github(files))
    facts = [builder.extent_fact(number, PullExtent(files=to_file_edits(files)), pull.told)]
    shas = [commit.sha for commit in pull.commits]
    half = MAX_CHECKED_COMMITS // 2
    for sha in dict.fromkeys([*shas[:half], *shas[-half:]]):
        runs = await host.request_json(
            "GET", f"commits/{sha}/check-runs?per_page=100", _CommitCheckRuns
        )
        facts += [builder.check_fact("check_run", run) for run in runs.check_runs]
    for edit in pull.edits[:MAX_SIZED_COMMITS]:
        facts.append(
            builder.commit_fact(
                number, await host.request_json("GET", f"commits/{edit.sha}", GithubCommit)
            )
        )
    return facts


async def fetch_list(host: CodeHost, path: str, kind: type[Kind]) -> list[Kind]:
    """Fetch all pages of a list."""
    items: list[Kind] = []
    async for page in host.list_pages(path, list[kind]):  # type: ignore[valid-type]
        items += page
    return items[:MAX_ITEMS]


# Past merge requests, fetched from GitLab.

REVIEW_VERDICTS: dict[str, ReviewState] = {
    "approved this merge request": "approved",
    "requested changes": "changes_requested",
    "unapproved this merge request": "dismissed",
}
"""GitLab's own system notes about reviews, with the verdict they mean."""


class _GitlabMergeRequest(Record):
    iid: int
    title: str = ""
    description: str | None = None
    state: str = "opened"
    draft: bool = False
    author: GitlabUser | None = None
    merged_by: GitlabUser | None = None
    labels: tuple[str, ...] = ()
    assignees: tuple[GitlabUser, ...] = ()
    source_branch: str | None = None
    target_branch: str | None = None
    source_project_id: int | None = None
    target_project_id: int | None = None
    sha: str | None = None
    merge_commit_sha: str | None = None
    squash_commit_sha: str | None = None
    web_url: str | None = None
    created_at: str | None = None
    updated_at: str = ""
    merged_at: str | None = None
    closed_at: str | None = None

    @property
    def number(self) -> int:
        return self.iid


class _GitlabNote(Record):
    id: int
    body: str = ""
    author: GitlabUser | None = None
    created_at: str | None = None
    updated_at: str | None = None
    system: bool = False
    position: GitlabPosition | None = None


class _GitlabDiffVersion(Record):
    id: int
    head_commit_sha: str | None = None
    created_at: str | None = None


class _GitlabPipeline(Record):
    id: int
    sha: str = ""
    status: str = ""
    source: str | None = None
    created_at: str | None = None
    updated_at: str | None = None


async def backfill_gitlab(
    host: CodeHost, request: BackfillRequest, since: datetime | None = None
) -> int:
    """Fetch all merge requests that changed since the last run, and return how many."""
    saved = 0
    order = "merge_requests?state=all&order_by=updated_at&sort=asc"

    def pages(start: str) -> AsyncIterator[list[_GitlabMergeRequest]]:
        return host.list_pages(f"{order}&updated_after={quote(start)}", list[_GitlabMergeRequest])

    async for merge_request in list_updated_since(request.start_time(since), pages):
        request.save_pull(
            await fetch_gitlab_facts(host, request, merge_request), merge_request.updated_at
        )
        saved += 1
        request.report_count(saved)
    return saved


async def fetch_gitlab_facts(
    host: CodeHost, request: BackfillRequest, merge_request: _GitlabMergeRequest
) -> list[Fact]:
    """Return all that GitLab still has on a merge request."""
    builder = GitlabFacts(request.repo, datetime.now(UTC))
    updated_at = parse_gitlab_time(merge_request.updated_at) or builder.heard
    root = f"merge_requests/{merge_request.iid}"
    description = _describe_listed_request(merge_request, builder)
    facts = [*builder.description_facts(merge_request.iid, description, updated_at)]
    commits = [*reversed(await fetch_list(host, f"{root}/commits", GitlabCommit))]
    facts += [builder.commit_fact(commit, updated_at, pull=merge_request.iid) for commit in commits]
    facts += _facts_from_versions(
        await fetch_list(host, f"{root}/versions", _GitlabDiffVersion), merge_request.iid, builder
    )
    for note in await fetch_list(host, f"{root}/notes?sort=asc", _GitlabNote):
        facts += _facts_from_note(note, merge_request.iid, builder)
    files: tuple[FileEdit, ...] | None = None
    pull_request = build_pull_request(facts, merge_request.iid, request.agents)
    if pull_request is not None and pull_request.signs:
        change = change_from_gitlab(await fetch_list(host, f"{root}/diffs", GitlabFileDiff))
        request.save_change(pull_request, change)
        files = tuple(FileEdit(path=file.path) for file in change.files)
        for run in await fetch_list(host, f"{root}/pipelines", _GitlabPipeline):
            ended_at = (
                parse_gitlab_time(run.updated_at)
                or parse_gitlab_time(run.created_at)
                or builder.heard
            )
            facts.append(builder.pipeline_fact(run.id, run.sha, run.status, run.source, ended_at))
    extent = PullExtent(files=files, commits=tuple(commit.id for commit in commits[:MAX_ITEMS]))
    return [*facts, builder.extent_fact(merge_request.iid, extent, updated_at)]


def _describe_listed_request(listed: _GitlabMergeRequest, builder: GitlabFacts) -> PullDescription:
    state = GITLAB_STATES.get(listed.state, "closed")
    return PullDescription(
        title=listed.title[:MAX_TEXT_CHARS],
        body=(listed.description or "")[:MAX_TEXT_CHARS],
        url=listed.web_url,
        author=listed.author.username or None if listed.author else None,
        bot=is_gitlab_bot(listed.author),
        state=state,
        draft=listed.draft,
        branch=listed.source_branch,
        fork=listed.source_project_id != listed.target_project_id,
        base=listed.target_branch,
        head=listed.sha,
        merge_commit=(listed.squash_commit_sha or listed.merge_commit_sha)
        if state == "merged"
        else None,
        labels=listed.labels,
        assignees=name_people(listed.assignees),
        opened=parse_gitlab_time(listed.created_at) or builder.heard,
        closed=parse_gitlab_time(listed.closed_at) or parse_gitlab_time(listed.merged_at),
        merged=parse_gitlab_time(listed.merged_at) if state == "merged" else None,
        merged_by=listed.merged_by.username or None if listed.merged_by else None,
    )


def _facts_from_versions(
    versions: list[_GitlabDiffVersion], number: int, builder: GitlabFacts
) -> list[Fact]:
    """Return a push for every version of the diff; GitLab lists the newest first."""
    facts = []
    before: str | None = None
    for version in reversed(versions):
        after = version.head_commit_sha
        if after is None or after == before:
            continue
        push = Push(
            after=after, before=before, at=parse_gitlab_time(version.created_at) or builder.heard
        )
        facts.append(builder.push_fact(number, push))
        before = after
    return facts


def _facts_from_note(note: _GitlabNote, number: int, builder: GitlabFacts) -> list[Fact]:
    """Return the fact of a note: a comment, or a review that GitLab noted."""
    created_at = parse_gitlab_time(note.created_at) or builder.heard
    author = note.author.username or None if note.author else None
    if note.system:
        state = REVIEW_VERDICTS.get(note.body.strip())
        if state is None:
            return []
        name = f"{number}-{author}-{created_at.isoformat()}"
        review = Review(
            id=name, by=author, bot=is_gitlab_bot(note.author), state=state, at=created_at
        )
        return [builder.make_fact(review, created_at, "review", name, state, pull=number)]
    comment = ReviewComment(
        id=f"note-{note.id}",
        by=author,
        bot=is_gitlab_bot(note.author),
        body=note.body,
        at=created_at,
    )
    return [
        builder.comment_fact(
            number, comment, note.position, parse_gitlab_time(note.updated_at) or created_at
        )
    ]


# Pull requests from git alone: merges, reverts, and fixes by the lines they replace.
#
# Pull requests from git alone: merges and squashed commits of the main line.

_PULL_MERGE = re.compile(
    r"Merge (?:pull request|PR) #(\d{1,9})(?: from [^/\s]{1,100}/(\S{1,250})|: *(\S.{0,500}))?"
)
_BRANCH_MERGE = re.compile(r"Merge (?:remote-tracking )?branch '(?:origin/)?([^']{1,250})'")
_SQUASHED_TITLE = re.compile(r"^(.{1,500}?) \((?:PR )?#(\d{1,9})\)$")
_MERGE_REQUEST = re.compile(r"See merge request \S{0,300}!(\d{1,9})\b")


class LandedCommit(Record):
    """One commit of the main line, with the commits that it merged."""

    commit: PullCommit
    parents: tuple[str, ...]
    brought: tuple[PullCommit, ...] = ()
    """Of a merge: the commits of its branch, oldest first."""


class MergedPull(Record):
    """What a commit of the main line says about its pull request."""

    number: int
    title: str
    body: str
    branch: str | None = None


def parse_merged_pull(landed: LandedCommit) -> MergedPull | None:
    """Return the pull request that a commit of the main line merged; None if it merged none."""
    lines = landed.commit.message.strip().splitlines() or [""]
    body_lines = [line for line in lines[1:] if line.strip()]
    body = "\n".join(lines[1:]).strip()
    request = _MERGE_REQUEST.search(landed.commit.message)
    if match := _PULL_MERGE.match(lines[0]):
        title = match[3] or (body_lines[0] if body_lines else lines[0])
        return MergedPull(number=int(match[1]), title=title, body=body, branch=match[2])
    if match := _SQUASHED_TITLE.match(lines[0]):
        return MergedPull(number=int(match[2]), title=match[1], body=body)
    if len(landed.parents) < 2 and request is None:
        return None
    branch = _BRANCH_MERGE.match(lines[0])
    return MergedPull(
        # Without a number it gets one derived from its commit: the same at every reading.
        number=int(request[1]) if request else int(landed.commit.sha[:8], 16),
        title=body_lines[0] if branch and body_lines else lines[0],
        body=body,
        branch=branch[1] if branch else None,
    )


class GitFacts(FactBuilder):
    """Builds facts from git's history."""

    source = "git"


def merged_pull_facts(landed: LandedCommit, repo: str) -> Iterator[Fact]:
    """Yield the facts of a merged pull request in git: no checks, and reviews only from
    trailers."""
    merged_pull = parse_merged_pull(landed)
    if merged_pull is None:
        return
    commit = landed.commit
    merged_commits = landed.brought or (commit,)
    first = merged_commits[0]
    builder = GitFacts(repo, commit.at)
    number = merged_pull.number
    description = PullDescription(
        title=merged_pull.title,
        body=merged_pull.body,
        author=first.author,
        state="merged",
        branch=merged_pull.branch,
        head=merged_commits[-1].sha,
        merge_commit=commit.sha,
        opened=min(first.at, commit.at),
        closed=commit.at,
        merged=commit.at,
    )
    name = (number, commit.sha)
    yield builder.make_fact(
        description, commit.at, "description", *name, pull=number, sha=commit.sha
    )
    for merged_commit in merged_commits:
        yield builder.make_fact(
            merged_commit,
            merged_commit.at,
            "commit",
            merged_commit.sha,
            "git",
            pull=number,
            sha=merged_commit.sha,
        )
    extent = PullExtent(
        files=_sum_file_edits(merged_commits),
        commits=tuple(merged_commit.sha for merged_commit in merged_commits),
    )
    yield builder.make_fact(extent, commit.at, "extent", *name, pull=number)
    texts = (commit.message, *(merged_commit.message for merged_commit in landed.brought))
    for reviewer in dict.fromkeys(
        value for text in texts for key, value in parse_trailers(text) if key == "reviewed-by"
    ):
        review = Review(id=f"{commit.sha}-{reviewer}", by=reviewer, state="approved", at=commit.at)
        yield builder.make_fact(review, commit.at, "review", review.id, "approved", pull=number)


def landed_pointer_facts(landed: LandedCommit, repo: str) -> Iterator[Fact]:
    """Yield what a commit, or the commits that it merged, say that they revert or fix."""
    commit = landed.commit
    for candidate in (commit, *landed.brought):
        yield from GitFacts(repo, commit.at).pointer_facts(candidate.message, commit.sha, commit.at)


def _sum_file_edits(commits: Sequence[PullCommit]) -> tuple[FileEdit, ...]:
    """Return the files of several commits, with their line counts added up."""
    line_counts: dict[str, list[int]] = {}
    for commit in commits:
        for file in commit.files or ():
            sums = line_counts.setdefault(file.path, [0, 0])
            sums[0] += file.added or 0
            sums[1] += file.removed or 0
    return tuple(
        FileEdit(path=path, added=added_lines, removed=removed_lines)
        for path, (added_lines, removed_lines) in line_counts.items()
    )


MAX_COMMITS = 20_000
FACTS_PER_BATCH = 200
MAX_MESSAGE_CHARS = 20_000
_LOG_FORMAT = "%H%x00%P%x00%ct%x00%aN%x00%aE%x00%B%x00"


def import_git_history(
    folder: Path,
    repo: str | None,
    store: Store,
    agents: AgentSignsByName,
    report_count: CountCallback,
) -> int:
    """Read the history of a clone, and return the number of its pull requests."""
    repository = find_repository(folder)
    if repository is None:
        raise BadInput(f"{folder} is not a git repository: give a clone.")
    name = repo or str(repository.root)
    if repository.shallow_commits:
        raise BadInput(f"{folder} is a shallow clone: {DEEPEN_ADVICE}.")
    host_pulls = {row.pull for row in store.pulls.list_pulls(repo=name) if row.source != "git"}
    try:
        landed = list(list_landed_commits(repository))
        fixes = list(repair_facts(repository, name))
    except MachineFailed as fault:
        if is_missing_object(str(fault)):
            raise BadInput(f"{folder} is a partial clone: {REFETCH_HINT}.") from fault
        raise
    facts: list[Fact] = []
    imported = 0
    for landing in landed:
        # If the host reported it, git adds only later facts.
        merged_facts = [
            fact for fact in merged_pull_facts(landing, name) if fact.pull not in host_pulls
        ]
        imported += bool(merged_facts)
        facts += [*merged_facts, *landed_pointer_facts(landing, name)]
        if len(facts) >= FACTS_PER_BATCH:
            save_facts(facts, store, agents)
            facts = []
            report_count(imported)
    save_facts([*facts, *fixes], store, agents)
    report_count(imported)
    return imported


def list_landed_commits(repository: GitRepository) -> Iterator[LandedCommit]:
    """Yield the commits of the main line, oldest first, each merge with the commits it merged."""
    commits = {commit.sha: (commit, parents) for commit, parents in _read_commits(repository)}
    main_line: list[str] = []
    sha = next(iter(commits), None)
    while sha is not None and sha in commits:
        main_line.append(sha)
        parents = commits[sha][1]
        sha = parents[0] if parents else None
    seen_shas = set(main_line)
    for sha in reversed(main_line):
        commit, parents = commits[sha]
        merged_commits: list[PullCommit] = []
        pending = [*parents[1:]]
        while pending:
            parent_sha = pending.pop()
            if parent_sha in seen_shas or parent_sha not in commits:
                continue
            seen_shas.add(parent_sha)
            merged_commits.append(commits[parent_sha][0])
            pending += commits[parent_sha][1]
        ordered = sorted(merged_commits, key=lambda merged: (merged.at, merged.sha))
        yield LandedCommit(commit=commit, parents=parents, brought=tuple(ordered))


def _read_commits(repository: GitRepository) -> Iterator[tuple[PullCommit, tuple[str, ...]]]:
    """Yield commits and their parents, newest first, from the clone's HEAD."""
    separator = token_hex(16)  # a byte that no message contains
    log_output = run_git_in(
        repository,
        *("-c", "core.quotePath=false", "-c", "log.showSignature=false"),
        *("log", f"-n{MAX_COMMITS}", "--topo-order", "--numstat", "--no-renames", "--no-color"),
        *("--no-ext-diff", f"--format={separator}{_LOG_FORMAT}", "HEAD", "--"),
    )
    for part in log_output.split(separator.encode())[1:]:
        fields = part.split(b"\0")
        if len(fields) != 7:
            continue
        sha, parents, timestamp, name, email, message = (
            decode_git_path(field) for field in fields[:6]
        )
        parent_shas = tuple(parents.split())
        yield (
            PullCommit(
                sha=sha,
                at=datetime.fromtimestamp(min(int(timestamp), 1 << 36), UTC),
                message=message.strip()[:MAX_MESSAGE_CHARS],
                author=name or None,
                email=email or None,
                merge=len(parent_shas) > 1,
                files=tuple(_parse_numstat(fields[6])),
            ),
            parent_shas,
        )


def _parse_numstat(numstat: bytes) -> Iterator[FileEdit]:
    for line in numstat.splitlines():
        added, tab, tail = line.partition(b"\t")
        removed, _, path = tail.partition(b"\t")
        if tab and path:
            sizes = [int(size) if size.isdigit() else None for size in (added, removed)]
            yield FileEdit(path=decode_git_path(path), added=sizes[0], removed=sizes[1])


def repair_facts(repository: GitRepository, repo: str) -> Iterator[Fact]:
    """Yield commits of the main line whose lines a later fix soon replaced."""
    labels = DefectLabels()
    steps: list[MainlineStep] = []
    for step in read_mainline_steps(repository, "HEAD", MAX_COMMITS):
        labels.add_step(step)
        steps.append(replace(step, files=()))
    yield from _facts_from_labels(labels, steps, repo)


def _facts_from_labels(
    labels: DefectLabels, steps: Sequence[MainlineStep], repo: str
) -> Iterator[Fact]:
    for fixing, broken in dict.fromkeys(labels.repairs):
        fix, sha = steps[fixing], steps[broken].id
        fixed_at = datetime.fromtimestamp(fix.at, UTC)
        title = message_title(fix.message)
        pointer = BackReference(
            kind="fix", at=fixed_at, how="blame", sha=sha, by=fix.id, title=title
        )
        key = f"pointer:fix:{sha}:{fix.id}"
        yield Fact(source="git", repo=repo, sha=sha, at=fixed_at, key=key, what=pointer)
