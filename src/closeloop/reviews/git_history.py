"""What git alone remembers of pull requests: merges, reverts, and fixes by the lines they mend."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex

from msgspec.structs import replace

from closeloop.changes.change_sides import DEEPEN_ADVICE
from closeloop.changes.risk.git_log import DefectLabels, MainlineStep, read_mainline_steps
from closeloop.git import (
    REFETCH_HINT,
    GitRepository,
    decode_git_path,
    find_repository,
    is_missing_object,
    run_git_in,
)
from closeloop.records.errors import BadInput, MachineFailed
from closeloop.records.pull_request import (
    BackReference,
    Fact,
    FileEdit,
    PullCommit,
    PullDescription,
    PullExtent,
    Review,
)
from closeloop.records.record import Record
from closeloop.reviews.authorship import AgentSignsByName, parse_trailers
from closeloop.reviews.pull_backfill import CountCallback
from closeloop.reviews.pull_facts import FactBuilder, message_title
from closeloop.reviews.pull_updates import save_facts
from closeloop.store import Store

# Pull requests that only git remembers: merges and squashed commits of the main line.

_PULL_MERGE = re.compile(
    r"Merge (?:pull request|PR) #(\d{1,9})(?: from [^/\s]{1,100}/(\S{1,250})|: *(\S.{0,500}))?"
)
_BRANCH_MERGE = re.compile(r"Merge (?:remote-tracking )?branch '(?:origin/)?([^']{1,250})'")
_SQUASHED_TITLE = re.compile(r"^(.{1,500}?) \((?:PR )?#(\d{1,9})\)$")
_MERGE_REQUEST = re.compile(r"See merge request \S{0,300}!(\d{1,9})\b")


class LandedCommit(Record):
    """One commit, and what it brought to the main line."""

    commit: PullCommit
    parents: tuple[str, ...]
    brought: tuple[PullCommit, ...] = ()
    """Of a merge: the commits of its branch, oldest first."""


class MergedPull(Record):
    """What a commit of the main line says of the pull request that it is."""

    number: int
    title: str
    body: str
    branch: str | None = None


def parse_merged_pull(landed: LandedCommit) -> MergedPull | None:
    """The pull request that a commit of the main line is; None where it is none."""
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
    """Says what git says."""

    source = "git"


def merged_pull_facts(landed: LandedCommit, repo: str) -> Iterator[Fact]:
    """A merged pull request as git tells it: no review but what trailers say, no checks."""
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
    """What a commit, or what it brought, says that it takes back or repairs."""
    commit = landed.commit
    for one in (commit, *landed.brought):
        yield from GitFacts(repo, commit.at).pointer_facts(one.message, commit.sha, commit.at)


def _sum_file_edits(commits: Sequence[PullCommit]) -> tuple[FileEdit, ...]:
    """The files of several commits, their lines added up."""
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
    """Read the history of a clone; how many pull requests it holds."""
    repository = find_repository(folder)
    if repository is None:
        raise BadInput(f"{folder} is no git repository: name a clone.")
    name = repo or str(repository.root)
    if repository.shallow_commits:
        raise BadInput(f"{folder} is a shallow clone: {DEEPEN_ADVICE}.")
    known = {row.pull for row in store.pulls.list_pulls(repo=name) if row.source != "git"}
    try:
        landed = list(list_landed_commits(repository))
        fixes = list(repair_facts(repository, name))
    except MachineFailed as fault:
        if is_missing_object(str(fault)):
            raise BadInput(f"{folder} lacks a part of its history: {REFETCH_HINT}.") from fault
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
    """The commits of the main line, oldest first, each merge with what it brought."""
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
    """Newest first, from where the clone stands."""
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
    """Steps of the main line whose lines a later fix replaced, soon after."""
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
