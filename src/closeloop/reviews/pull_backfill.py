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
    tell: CountCallback

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
            at = datetime.now(UTC)
            self.store.pulls.save_change(self.repo, pull.number, pull.head, change, at)

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
    hub: CodeHost, wanted: BackfillRequest, since: datetime | None = None
) -> int:
    """Fetch all pull requests that changed since the last run, and return how many."""
    done = 0
    async for one in list_updated_since(
        wanted.start_time(since), lambda start: _list_updated_issues(hub, start)
    ):
        if one.pull_request is not None:
            wanted.save_pull(await fetch_github_facts(hub, wanted, one.number), one.updated_at)
            done += 1
            wanted.tell(done)
    return done


async def list_updated_since(
    start: str, pages: Callable[[str], AsyncIterator[list[Dated]]]
) -> AsyncIterator[Dated]:
    """Yield what changed since a time, oldest first; what changes meanwhile comes again."""
    seen: set[tuple[int, str]] = set()
    while True:
        before = start
        async for page in pages(start):
            for one in page:
                if (one.number, one.updated_at) not in seen:
                    seen.add((one.number, one.updated_at))
                    yield one
                start = max(start, one.updated_at)
            # What is touched meanwhile moves to the end, and what follows it to another page:
            # rather than turn pages, ask again from here.
            if start > before:
                break
        if start == before:
            return


async def _list_updated_issues(hub: CodeHost, start: str) -> AsyncIterator[list[_UpdatedIssue]]:
    """Yield pages of what changed since a time, oldest first."""
    order = "state=all&sort=updated&direction=asc"
    try:
        # Only issues can be asked for since a time; pull requests are among them.
        async for page in hub.list_pages(
            f"issues?{order}&since={quote(start)}", list[_UpdatedIssue]
        ):
            yield page
    except MachineFailed as refused:
        if getattr(refused, "status", None) != 410:
            raise
        # There are no issues in this repository.
        every = [
            one
            async for page in hub.list_pages(f"pulls?{order}", list[_UpdatedIssue])
            for one in page
        ]
        yield [replace(one, pull_request={}) for one in every if one.updated_at >= start]


async def fetch_github_facts(hub: CodeHost, wanted: BackfillRequest, number: int) -> list[Fact]:
    """Return all that GitHub still has on a pull request; of an agent's, more is fetched."""
    tell = GithubFacts(wanted.repo, datetime.now(UTC))
    try:
        pull = await hub.request_json("GET", f"pulls/{number}", GithubPull)
    except MachineFailed as refused:
        if getattr(refused, "status", None) in (404, 410):
            return []
        raise
    commits = await fetch_list(hub, f"pulls/{number}/commits", GithubCommit)
    names = tuple(commit.sha for commit in commits if _COMMIT_SHA.fullmatch(commit.sha))
    facts = [*tell.pull_facts(pull), *(tell.commit_fact(number, commit) for commit in commits)]
    facts.append(tell.extent_fact(number, PullExtent(commits=names), pull.updated_at))
    reviews = await fetch_list(hub, f"pulls/{number}/reviews", GithubReview)
    facts += [
        tell.review_fact(number, review, None)
        for review in reviews
        if review.state.upper() != "PENDING"
    ]
    for path in (f"pulls/{number}/comments", f"issues/{number}/comments"):
        facts += [
            tell.comment_fact(number, one) for one in await fetch_list(hub, path, GithubComment)
        ]
    pull_request = build_pull_request(facts, number, wanted.agents)
    if pull_request is not None and (
        pull_request.signs or find_recorded_attempt(pull_request, wanted.store)
    ):
        facts += await _fetch_agent_details(hub, tell, pull_request, wanted)
    return facts


async def _fetch_agent_details(
    hub: CodeHost, tell: GithubFacts, pull: PullRequest, wanted: BackfillRequest
) -> list[Fact]:
    """Return what an agent's pull request changed, its CI results, and what people fixed."""
    number = pull.number
    files = tuple(await fetch_list(hub, f"pulls/{number}/files", GithubFile))
    wanted.save_change(pull, change_from_github(files))
    facts = [tell.extent_fact(number, PullExtent(files=to_file_edits(files)), pull.told)]
    shas = [commit.sha for commit in pull.commits]
    half = MAX_CHECKED_COMMITS // 2
    for sha in dict.fromkeys([*shas[:half], *shas[-half:]]):
        runs = await hub.request_json(
            "GET", f"commits/{sha}/check-runs?per_page=100", _CommitCheckRuns
        )
        facts += [tell.check_fact("check_run", run) for run in runs.check_runs]
    for edit in pull.edits[:MAX_SIZED_COMMITS]:
        facts.append(
            tell.commit_fact(
                number, await hub.request_json("GET", f"commits/{edit.sha}", GithubCommit)
            )
        )
    return facts


async def fetch_list(hub: CodeHost, path: str, kind: type[Kind]) -> list[Kind]:
    """Fetch all pages of a list."""
    items: list[Kind] = []
    async for page in hub.list_pages(path, list[kind]):  # type: ignore[valid-type]
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
    hub: CodeHost, wanted: BackfillRequest, since: datetime | None = None
) -> int:
    """Fetch all merge requests that changed since the last run, and return how many."""
    done = 0
    order = "merge_requests?state=all&order_by=updated_at&sort=asc"

    def pages(start: str) -> AsyncIterator[list[_GitlabMergeRequest]]:
        return hub.list_pages(f"{order}&updated_after={quote(start)}", list[_GitlabMergeRequest])

    async for one in list_updated_since(wanted.start_time(since), pages):
        wanted.save_pull(await fetch_gitlab_facts(hub, wanted, one), one.updated_at)
        done += 1
        wanted.tell(done)
    return done


async def fetch_gitlab_facts(
    hub: CodeHost, wanted: BackfillRequest, one: _GitlabMergeRequest
) -> list[Fact]:
    """Return all that GitLab still has on a merge request."""
    tell = GitlabFacts(wanted.repo, datetime.now(UTC))
    at = parse_gitlab_time(one.updated_at) or tell.heard
    root = f"merge_requests/{one.iid}"
    description = _describe_listed_request(one, tell)
    facts = [*tell.description_facts(one.iid, description, at)]
    commits = [*reversed(await fetch_list(hub, f"{root}/commits", GitlabCommit))]
    facts += [tell.commit_fact(commit, at, pull=one.iid) for commit in commits]
    facts += _facts_from_versions(
        await fetch_list(hub, f"{root}/versions", _GitlabDiffVersion), one.iid, tell
    )
    for note in await fetch_list(hub, f"{root}/notes?sort=asc", _GitlabNote):
        facts += _facts_from_note(note, one.iid, tell)
    files: tuple[FileEdit, ...] | None = None
    pull_request = build_pull_request(facts, one.iid, wanted.agents)
    if pull_request is not None and pull_request.signs:
        change = change_from_gitlab(await fetch_list(hub, f"{root}/diffs", GitlabFileDiff))
        wanted.save_change(pull_request, change)
        files = tuple(FileEdit(path=file.path) for file in change.files)
        for run in await fetch_list(hub, f"{root}/pipelines", _GitlabPipeline):
            ended = (
                parse_gitlab_time(run.updated_at) or parse_gitlab_time(run.created_at) or tell.heard
            )
            facts.append(tell.pipeline_fact(run.id, run.sha, run.status, run.source, ended))
    extent = PullExtent(files=files, commits=tuple(commit.id for commit in commits[:MAX_ITEMS]))
    return [*facts, tell.extent_fact(one.iid, extent, at)]


def _describe_listed_request(one: _GitlabMergeRequest, tell: GitlabFacts) -> PullDescription:
    state = GITLAB_STATES.get(one.state, "closed")
    return PullDescription(
        title=one.title[:MAX_TEXT_CHARS],
        body=(one.description or "")[:MAX_TEXT_CHARS],
        url=one.web_url,
        author=one.author.username or None if one.author else None,
        bot=is_gitlab_bot(one.author),
        state=state,
        draft=one.draft,
        branch=one.source_branch,
        fork=one.source_project_id != one.target_project_id,
        base=one.target_branch,
        head=one.sha,
        merge_commit=(one.squash_commit_sha or one.merge_commit_sha) if state == "merged" else None,
        labels=one.labels,
        assignees=name_people(one.assignees),
        opened=parse_gitlab_time(one.created_at) or tell.heard,
        closed=parse_gitlab_time(one.closed_at) or parse_gitlab_time(one.merged_at),
        merged=parse_gitlab_time(one.merged_at) if state == "merged" else None,
        merged_by=one.merged_by.username or None if one.merged_by else None,
    )


def _facts_from_versions(
    versions: list[_GitlabDiffVersion], number: int, tell: GitlabFacts
) -> list[Fact]:
    """Return a push for every version of the diff; GitLab lists the newest first."""
    facts = []
    before: str | None = None
    for version in reversed(versions):
        after = version.head_commit_sha
        if after is None or after == before:
            continue
        push = Push(
            after=after, before=before, at=parse_gitlab_time(version.created_at) or tell.heard
        )
        facts.append(tell.push_fact(number, push))
        before = after
    return facts


def _facts_from_note(note: _GitlabNote, number: int, tell: GitlabFacts) -> list[Fact]:
    """Return the fact of a note: a comment, or a review that GitLab noted."""
    at = parse_gitlab_time(note.created_at) or tell.heard
    who = note.author.username or None if note.author else None
    if note.system:
        state = REVIEW_VERDICTS.get(note.body.strip())
        if state is None:
            return []
        name = f"{number}-{who}-{at.isoformat()}"
        review = Review(id=name, by=who, bot=is_gitlab_bot(note.author), state=state, at=at)
        return [tell.make_fact(review, at, "review", name, state, pull=number)]
    comment = ReviewComment(
        id=f"note-{note.id}", by=who, bot=is_gitlab_bot(note.author), body=note.body, at=at
    )
    return [
        tell.comment_fact(number, comment, note.position, parse_gitlab_time(note.updated_at) or at)
    ]


# Pull requests from git alone: merges, reverts, and fixes by the lines they replace.


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
    rest = [line for line in lines[1:] if line.strip()]
    body = "\n".join(lines[1:]).strip()
    request = _MERGE_REQUEST.search(landed.commit.message)
    if match := _PULL_MERGE.match(lines[0]):
        title = match[3] or (rest[0] if rest else lines[0])
        return MergedPull(number=int(match[1]), title=title, body=body, branch=match[2])
    if match := _SQUASHED_TITLE.match(lines[0]):
        return MergedPull(number=int(match[2]), title=match[1], body=body)
    if len(landed.parents) < 2 and request is None:
        return None
    branch = _BRANCH_MERGE.match(lines[0])
    return MergedPull(
        # Without a number it gets one of its commit's: the same whenever it is read.
        number=int(request[1]) if request else int(landed.commit.sha[:8], 16),
        title=rest[0] if branch and rest else lines[0],
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
    brought = landed.brought or (commit,)
    first = brought[0]
    tell = GitFacts(repo, commit.at)
    number = merged_pull.number
    description = PullDescription(
        title=merged_pull.title,
        body=merged_pull.body,
        author=first.author,
        state="merged",
        branch=merged_pull.branch,
        head=brought[-1].sha,
        merge_commit=commit.sha,
        opened=min(first.at, commit.at),
        closed=commit.at,
        merged=commit.at,
    )
    name = (number, commit.sha)
    yield tell.make_fact(description, commit.at, "description", *name, pull=number, sha=commit.sha)
    for one in brought:
        yield tell.make_fact(one, one.at, "commit", one.sha, "git", pull=number, sha=one.sha)
    extent = PullExtent(files=_sum_file_edits(brought), commits=tuple(one.sha for one in brought))
    yield tell.make_fact(extent, commit.at, "extent", *name, pull=number)
    texts = (commit.message, *(one.message for one in landed.brought))
    for who in dict.fromkeys(
        value for text in texts for key, value in parse_trailers(text) if key == "reviewed-by"
    ):
        review = Review(id=f"{commit.sha}-{who}", by=who, state="approved", at=commit.at)
        yield tell.make_fact(review, commit.at, "review", review.id, "approved", pull=number)


def landed_pointer_facts(landed: LandedCommit, repo: str) -> Iterator[Fact]:
    """Yield what a commit, or the commits that it merged, say that they revert or fix."""
    commit = landed.commit
    for one in (commit, *landed.brought):
        yield from GitFacts(repo, commit.at).pointer_facts(one.message, commit.sha, commit.at)


def _sum_file_edits(commits: Sequence[PullCommit]) -> tuple[FileEdit, ...]:
    """Return the files of several commits, with their line counts added up."""
    added: dict[str, list[int]] = {}
    for commit in commits:
        for file in commit.files or ():
            sums = added.setdefault(file.path, [0, 0])
            sums[0] += file.added or 0
            sums[1] += file.removed or 0
    return tuple(FileEdit(path=path, added=one, removed=two) for path, (one, two) in added.items())


MAX_COMMITS = 20_000
FACTS_PER_BATCH = 200
MAX_MESSAGE_CHARS = 20_000
_LOG_FORMAT = "%H%x00%P%x00%ct%x00%aN%x00%aE%x00%B%x00"


def import_git_history(
    folder: Path, repo: str | None, store: Store, agents: AgentSignsByName, tell: CountCallback
) -> int:
    """Read the history of a clone, and return the number of its pull requests."""
    repository = find_repository(folder)
    if repository is None:
        raise BadInput(f"{folder} is not a git repository: give a clone.")
    name = repo or str(repository.root)
    if repository.shallow_commits:
        raise BadInput(f"{folder} is a shallow clone: {DEEPEN_ADVICE}.")
    known = {row.pull for row in store.pulls.list_pulls(repo=name) if row.source != "git"}
    try:
        landed = list(list_landed_commits(repository))
        fixes = list(repair_facts(repository, name))
    except MachineFailed as fault:
        if is_missing_object(str(fault)):
            raise BadInput(f"{folder} is a partial clone: {REFETCH_HINT}.") from fault
        raise
    facts: list[Fact] = []
    done = 0
    for one in landed:
        # Where the host told of it, git adds only what came later.
        merged_facts = [fact for fact in merged_pull_facts(one, name) if fact.pull not in known]
        done += bool(merged_facts)
        facts += [*merged_facts, *landed_pointer_facts(one, name)]
        if len(facts) >= FACTS_PER_BATCH:
            save_facts(facts, store, agents)
            facts = []
            tell(done)
    save_facts([*facts, *fixes], store, agents)
    tell(done)
    return done


def list_landed_commits(repository: GitRepository) -> Iterator[LandedCommit]:
    """Yield the commits of the main line, oldest first, each merge with the commits it merged."""
    commits = {commit.sha: (commit, parents) for commit, parents in _read_commits(repository)}
    line: list[str] = []
    sha = next(iter(commits), None)
    while sha is not None and sha in commits:
        line.append(sha)
        parents = commits[sha][1]
        sha = parents[0] if parents else None
    taken = set(line)
    for sha in reversed(line):
        commit, parents = commits[sha]
        brought: list[PullCommit] = []
        waiting = [*parents[1:]]
        while waiting:
            other = waiting.pop()
            if other in taken or other not in commits:
                continue
            taken.add(other)
            brought.append(commits[other][0])
            waiting += commits[other][1]
        ordered = sorted(brought, key=lambda one: (one.at, one.sha))
        yield LandedCommit(commit=commit, parents=parents, brought=tuple(ordered))


def _read_commits(repository: GitRepository) -> Iterator[tuple[PullCommit, tuple[str, ...]]]:
    """Yield commits and their parents, newest first, from the clone's HEAD."""
    mark = token_hex(16)  # which no message can hold
    log_output = run_git_in(
        repository,
        *("-c", "core.quotePath=false", "-c", "log.showSignature=false"),
        *("log", f"-n{MAX_COMMITS}", "--topo-order", "--numstat", "--no-renames", "--no-color"),
        *("--no-ext-diff", f"--format={mark}{_LOG_FORMAT}", "HEAD", "--"),
    )
    for part in log_output.split(mark.encode())[1:]:
        fields = part.split(b"\0")
        if len(fields) != 7:
            continue
        sha, parents, at, name, email, message = (decode_git_path(field) for field in fields[:6])
        parent_shas = tuple(parents.split())
        yield (
            PullCommit(
                sha=sha,
                at=datetime.fromtimestamp(min(int(at), 1 << 36), UTC),
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
        added, tab, rest = line.partition(b"\t")
        removed, _, path = rest.partition(b"\t")
        if tab and path:
            sizes = [int(size) if size.isdigit() else None for size in (added, removed)]
            yield FileEdit(path=decode_git_path(path), added=sizes[0], removed=sizes[1])


def repair_facts(repository: GitRepository, repo: str) -> Iterator[Fact]:
    """Yield commits of the main line whose lines a later fix soon replaced."""
    labels = DefectLabels()
    seen: list[MainlineStep] = []
    for step in read_mainline_steps(repository, "HEAD", MAX_COMMITS):
        labels.add_step(step)
        seen.append(replace(step, files=()))
    yield from _facts_from_labels(labels, seen, repo)


def _facts_from_labels(
    labels: DefectLabels, seen: Sequence[MainlineStep], repo: str
) -> Iterator[Fact]:
    for fixing, broken in dict.fromkeys(labels.repairs):
        fix, sha = seen[fixing], seen[broken].id
        at = datetime.fromtimestamp(fix.at, UTC)
        title = message_title(fix.message)
        pointer = BackReference(kind="fix", at=at, how="blame", sha=sha, by=fix.id, title=title)
        key = f"pointer:fix:{sha}:{fix.id}"
        yield Fact(source="git", repo=repo, sha=sha, at=at, key=key, what=pointer)
