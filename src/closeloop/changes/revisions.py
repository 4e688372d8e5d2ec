"""Which two commits are meant."""

from __future__ import annotations

import difflib
import re

from closeloop import git
from closeloop.records.errors import BadInput
from closeloop.records.record import Record

DEEPEN_ADVICE = "run `git fetch --unshallow`, or `--deepen=100` (in a workflow: `fetch-depth: 0`)"
SINCE_PATTERN = re.compile(r"(HEAD|@)[~^][~^\d]*")
COMMIT_PATTERN = re.compile(r"[0-9a-f]{7,64}")


class CommitRange(Record):
    """Where a change begins and ends."""

    base: str | None
    """None is nothing at all: before the first commit."""
    head: str
    title: str


def resolve_range(repository: git.GitRepository, wanted: str, base: str | None) -> CommitRange:
    """`main..feature`, `HEAD~3` (all since then), a branch (all since it left), or a commit."""
    left, dots, right = wanted.partition("..")
    if dots and base:
        raise BadInput(f"{wanted!r} has a base already: leave out {base!r}, or name one end.")
    if dots or base:
        old, new = base or left or "HEAD", right.removeprefix(".") or "HEAD" if dots else wanted
        start, head = resolve_commits(repository, old, new)
        return CommitRange(
            base=_merge_base(repository, old, start, head), head=head, title=f"{old}..{new}"
        )
    (head,) = resolve_commits(repository, wanted)
    if SINCE_PATTERN.fullmatch(wanted):
        return resolve_range(repository, f"{wanted}..HEAD", None)
    trunk = _target_branch(repository, wanted)
    if trunk:
        return resolve_range(repository, f"{trunk}..{wanted}", None)
    return CommitRange(
        base=_parent_commit(repository, head), head=head, title=f"commit {head[:10]}"
    )


def find_merge_base(repository: git.GitRepository, old: str) -> str:
    """Where the current commit left the line of `old`."""
    start, head = resolve_commits(repository, old, "HEAD")
    return _merge_base(repository, old, start, head)


def _merge_base(repository: git.GitRepository, old: str, start: str, head: str) -> str:
    merge_base = start if start == head else git.query_git(repository, "merge-base", start, head)
    if merge_base in (start, head):
        return merge_base
    cut = repository.shallow_commits
    if merge_base is None:
        if cut:
            raise BadInput(f"This shallow clone does not reach back to {old!r}: {DEEPEN_ADVICE}.")
        raise BadInput(f"{old!r} has no history in common with the change: name another base.")
    between = git.query_git(repository, "rev-list", start, head, f"^{merge_base}") if cut else None
    if between and not cut.isdisjoint(between.split()):
        raise BadInput(f"This shallow clone hides where the change left {old!r}: {DEEPEN_ADVICE}.")
    return merge_base


def resolve_commits(repository: git.GitRepository, *names: str) -> list[str]:
    """The commits of those names; BadInput names the nearest one there is."""
    for name in names:
        if name.startswith("-") or "\0" in name:
            raise _unknown_revision(repository, name)
    expressions = [f"{name}^{{commit}}" for name in names]
    try:
        return git.decode_git_path(git.run_git_in(repository, "rev-parse", *expressions)).split()
    except git.GitFailed:
        for name, question in zip(names, expressions, strict=True):
            if git.query_git(repository, "rev-parse", "--verify", "-q", question) is None:
                raise _unknown_revision(repository, name) from None
        raise


def _unknown_revision(repository: git.GitRepository, name: str) -> BadInput:
    # This fails where the repository itself cannot be read, and says why.
    listed = git.decode_git_path(
        git.run_git_in(repository, "for-each-ref", "--format=%(refname:short)")
    )
    if name == "HEAD" or not listed:
        return BadInput(f"{repository.root} has no commits yet: make one, then try again.")
    if repository.shallow_commits:
        return BadInput(f"This shallow clone has no {name!r}: {DEEPEN_ADVICE}.")
    if COMMIT_PATTERN.fullmatch(name):
        return BadInput(f"There is no commit {name!r} here: fetch it, or name another one.")
    known = listed.split()
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    near = [other for other in known if other.endswith(f"/{name}")][:1] or near
    hint = f"did you mean {near[0]!r}?" if near else "`git branch -a` lists the branches."
    return BadInput(f"There is no branch, tag or commit {name!r} here: {hint}")


def _target_branch(repository: git.GitRepository, name: str) -> str | None:
    """For a branch, the one it will go to; None where a commit was named some other way."""
    full = (
        git.query_git(repository, "rev-parse", "--symbolic-full-name", "--verify", "-q", name) or ""
    )
    if name in ("HEAD", "@") or not full.startswith(("refs/heads/", "refs/remotes/")):
        return None
    own = full.split("/", 2)[2]
    default = _default_branch(repository)
    upstream = git.query_git(repository, "rev-parse", "--abbrev-ref", "-q", f"{name}@{{upstream}}")
    if default and own not in (default, default.removeprefix("origin/"), f"origin/{default}"):
        # What a branch was pushed to usually bears its name, and is no more than a copy of it.
        return upstream if upstream and not upstream.endswith(f"/{own}") else default
    if upstream:
        return upstream
    raise BadInput(f"No branch is known that {name!r} left: name both ends, as in A..{name}.")


def _default_branch(repository: git.GitRepository) -> str | None:
    origin_head = git.query_git(
        repository, "symbolic-ref", "--short", "-q", "refs/remotes/origin/HEAD"
    )
    for name in (origin_head, "origin/main", "origin/master", "main", "master"):
        if name and git.query_git(repository, "rev-parse", "--verify", "-q", f"{name}^{{commit}}"):
            return name
    return None


def _parent_commit(repository: git.GitRepository, commit: str) -> str | None:
    if commit in repository.shallow_commits:
        raise BadInput(f"This shallow clone lacks what was before {commit[:10]}: {DEEPEN_ADVICE}.")
    return git.query_git(repository, "rev-parse", "--verify", "-q", f"{commit}^1")
