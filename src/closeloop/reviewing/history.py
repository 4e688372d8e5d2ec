"""What git alone remembers of pull requests: merges, reverts, and fixes by the lines they mend."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex

from msgspec.structs import replace

from closeloop.changes.revisions import DEEPEN
from closeloop.changes.risk.labels import Labels
from closeloop.changes.risk.log import Step, steps
from closeloop.git import REFETCH, Repository, find, lacks, run_in, text
from closeloop.model.errors import BadInput, MachineFailed
from closeloop.model.review import Commit, Fact, FileEdit, Pointer
from closeloop.reviewing.backfill import Tell
from closeloop.reviewing.lives import keep
from closeloop.reviews.authorship import Agents
from closeloop.reviews.lifecycle_pointers import title_of
from closeloop.reviews.plain_git import Landed, facts_of, pointing
from closeloop.store import Store

MOST_COMMITS = 20_000
AT_ONCE = 200
LONGEST = 20_000
_FORMAT = "%H%x00%P%x00%ct%x00%aN%x00%aE%x00%B%x00"


def import_history(folder: Path, repo: str | None, store: Store, agents: Agents, tell: Tell) -> int:
    """Read the history of a clone; how many pull requests it holds."""
    repository = find(folder)
    if repository is None:
        raise BadInput(f"{folder} is no git repository: name a clone.")
    name = repo or str(repository.root)
    if repository.shallow:
        raise BadInput(f"{folder} is a shallow clone: {DEEPEN}.")
    known = {row.pull for row in store.pulls.rows(repo=name) if row.source != "git"}
    try:
        landed = list(main_line(repository))
        fixes = list(mended(repository, name))
    except MachineFailed as fault:
        if lacks(str(fault)):
            raise BadInput(f"{folder} lacks a part of its history: {REFETCH}.") from fault
        raise
    facts: list[Fact] = []
    done = 0
    for one in landed:
        # Where the host told of it, git adds only what came later.
        told = [fact for fact in facts_of(one, name) if fact.pull not in known]
        done += bool(told)
        facts += [*told, *pointing(one, name)]
        if len(facts) >= AT_ONCE:
            keep(facts, store, agents)
            facts = []
            tell(done)
    keep([*facts, *fixes], store, agents)
    tell(done)
    return done


def main_line(repository: Repository) -> Iterator[Landed]:
    """The commits of the main line, oldest first, each merge with what it brought."""
    commits = {commit.sha: (commit, parents) for commit, parents in _commits(repository)}
    line: list[str] = []
    sha = next(iter(commits), None)
    while sha is not None and sha in commits:
        line.append(sha)
        parents = commits[sha][1]
        sha = parents[0] if parents else None
    taken = set(line)
    for sha in reversed(line):
        commit, parents = commits[sha]
        brought: list[Commit] = []
        waiting = [*parents[1:]]
        while waiting:
            other = waiting.pop()
            if other in taken or other not in commits:
                continue
            taken.add(other)
            brought.append(commits[other][0])
            waiting += commits[other][1]
        ordered = sorted(brought, key=lambda one: (one.at, one.sha))
        yield Landed(commit=commit, parents=parents, brought=tuple(ordered))


def _commits(repository: Repository) -> Iterator[tuple[Commit, tuple[str, ...]]]:
    """Newest first, from where the clone stands."""
    mark = token_hex(16)  # which no message can hold
    told = run_in(
        repository,
        *("-c", "core.quotePath=false", "-c", "log.showSignature=false"),
        *("log", f"-n{MOST_COMMITS}", "--topo-order", "--numstat", "--no-renames", "--no-color"),
        *("--no-ext-diff", f"--format={mark}{_FORMAT}", "HEAD", "--"),
    )
    for part in told.split(mark.encode())[1:]:
        fields = part.split(b"\0")
        if len(fields) != 7:
            continue
        sha, parents, at, name, email, message = (text(field) for field in fields[:6])
        named = tuple(parents.split())
        yield (
            Commit(
                sha=sha,
                at=datetime.fromtimestamp(min(int(at), 1 << 36), UTC),
                message=message.strip()[:LONGEST],
                author=name or None,
                email=email or None,
                merge=len(named) > 1,
                files=tuple(_files(fields[6])),
            ),
            named,
        )


def _files(numstat: bytes) -> Iterator[FileEdit]:
    for line in numstat.splitlines():
        added, tab, rest = line.partition(b"\t")
        removed, _, path = rest.partition(b"\t")
        if tab and path:
            sizes = [int(size) if size.isdigit() else None for size in (added, removed)]
            yield FileEdit(path=text(path), added=sizes[0], removed=sizes[1])


def mended(repository: Repository, repo: str) -> Iterator[Fact]:
    """Steps of the main line whose lines a later fix replaced, soon after."""
    labels = Labels()
    seen: list[Step] = []
    for step in steps(repository, "HEAD", MOST_COMMITS):
        labels.add(step)
        seen.append(replace(step, files=()))
    yield from _repairs(labels, seen, repo)


def _repairs(labels: Labels, seen: Sequence[Step], repo: str) -> Iterator[Fact]:
    for fixing, broken in dict.fromkeys(labels.repairs):
        fix, sha = seen[fixing], seen[broken].id
        at = datetime.fromtimestamp(fix.at, UTC)
        title = title_of(fix.message)
        pointer = Pointer(kind="fix", at=at, how="blame", sha=sha, by=fix.id, title=title)
        key = f"pointer:fix:{sha}:{fix.id}"
        yield Fact(source="git", repo=repo, sha=sha, at=at, key=key, what=pointer)
