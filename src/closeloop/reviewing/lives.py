"""Pull requests as they stand: made of the facts, linked to the work behind them, and delivered."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from msgspec.structs import replace

from closeloop.changes.risk.surface import module_of
from closeloop.model.addresses import repository_name
from closeloop.model.attempt import Attempt
from closeloop.model.delivery import Delivery
from closeloop.model.errors import BadInput
from closeloop.model.record import digest
from closeloop.model.report import Level
from closeloop.model.review import Fact, PullRequest, PullRow
from closeloop.model.session import Session
from closeloop.model.trace import Trace
from closeloop.reviewing.prompting import NAMED
from closeloop.reviewing.telling import told_by, told_by_change
from closeloop.reviews.authorship import Agents
from closeloop.reviews.lifecycle import compute_version, life
from closeloop.store import Store
from closeloop.traces.redact import redact

MAIN = ("main", "master", "trunk", "develop")
RISKS: dict[str, Level] = {
    "risk:low": "low",
    "risk:medium": "medium",
    "risk:high": "high",
    "risk:critical": "critical",
}
LAST_CHECKS = 20
"""Not every one looks at the risk."""


def keep(facts: Sequence[Fact], store: Store, agents: Agents) -> list[PullRequest]:
    """Save what was told, rid of secrets; the pull requests that it is about, as they stand now."""
    clean = [redact(fact)[0] for fact in facts]
    store.pulls.add_facts(clean, told_by)
    touched = store.pulls.touched(clean)
    return [pull for key in touched if (pull := renew(*key, store, agents)) is not None]


def renew(repo: str, number: int, store: Store, agents: Agents) -> PullRequest | None:
    """Put a pull request together again, link it, and say what became of the work."""
    facts = store.pulls.facts(repo, number)
    bare = life(facts, number, agents)
    if bare is None:
        return None
    linked = recorded(bare, store)
    pull = life(facts, number, agents, linked) if linked else bare
    assert pull is not None
    if pull.signs and linked is None:
        pull = replace(pull, attempt=_made(pull, store))
    row = row_of(pull)
    known = store.pulls.save(row, lambda old: [*told_by_change(old, row, pull)])
    if pull.attempt is not None:
        store.pulls.deliver(delivered(pull, store))
    if known and known.attempt and known.attempt != pull.attempt:
        # The work behind it is known better now: what stood for it tells nothing any more.
        store.pulls.deliver(Delivery(attempt=known.attempt, at=pull.told))
    return pull


def shown(repo: str, number: int, store: Store, agents: Agents) -> PullRequest:
    """A pull request with its whole life; BadInput where there is none."""
    row = store.pulls.row(repo, number)
    facts = store.pulls.facts(repo, number)
    pull = life(facts, number, agents)
    if pull is None:
        raise BadInput(f"No pull request {repo}#{number}: `closeloop pulls` lists them.")
    attempt = row.attempt if row else None
    if attempt in (None, made_id(pull)):
        return replace(pull, attempt=attempt)
    return life(facts, number, agents, attempt) or pull


def renew_all(store: Store, agents: Agents) -> int:
    """Put together again what other code has made; how many that were."""
    old = [row for row in store.pulls.rows() if row.version != compute_version()]
    for row in old:
        renew(row.repo, row.pull, store, agents)
    return len(old)


def row_of(pull: PullRequest) -> PullRow:
    """What a list shows of a pull request."""
    return PullRow(
        repo=pull.repo,
        pull=pull.number,
        source=pull.source,
        title=pull.title,
        url=pull.url,
        author=pull.author,
        agent=pull.agent,
        attempt=pull.attempt,
        task=pull.task,
        prompt=pull.prompt,
        state=pull.state,
        draft=pull.draft,
        branch=pull.branch,
        head=pull.head,
        merge_commit=pull.merge_commit,
        opened=pull.opened,
        closed=pull.merged or pull.closed,
        told=pull.told,
        rounds=len(pull.rounds),
        comments=sum(comment.counts for comment in pull.comments),
        edits=len(pull.edits),
        pointers=len(pull.pointers),
        first_push=pull.first_push,
        last_push=pull.last_push,
        risk=risk_of(pull),
        reviewed=pull.reviewed,
        version=pull.version,
    )


# The work behind it


def recorded(pull: PullRequest, store: Store) -> str | None:
    """The recorded work that a pull request came from: by its branch, or by what names it."""
    branch = pull.branch or ""
    if branch.startswith("closeloop/"):
        name = branch.rpartition("/")[2]
        if store.pulls.has_attempt(name):
            return name
    own = made_id(pull)
    for name in store.pulls.attempts_naming(pull.url) if pull.url else ():
        if name != own:
            return name
    if branch in ("", pull.base, *MAIN):
        return None
    for name, repo, started in store.pulls.attempts_on(branch):
        if name != own and _same_repo(repo, pull.repo) and _before(started, pull.opened):
            return name
    return None


def _same_repo(address: str | None, repo: str) -> bool:
    """Whether the address of a clone is that of a repository: `git@host:owner/name.git`."""
    return address is not None and repository_name(address).lower() == repo.lower()


def _before(started: datetime | None, opened: datetime) -> bool:
    return started is not None and started <= opened


def made_id(pull: PullRequest) -> str:
    """The name of the attempt that stands for unrecorded work."""
    return digest("pull request", pull.source, pull.repo, pull.number)[:12]


def _made(pull: PullRequest, store: Store) -> str:
    """An attempt for work of which there is nothing but the pull request."""
    name = made_id(pull)
    if not store.pulls.has_attempt(name):
        attempt = Attempt(
            id=name,
            origin="production",
            task=pull.task,
            variant=_variant(pull, store),
            started=pull.opened,
            exit="finished",
            branch=pull.branch,
            repo=pull.repo,
            user=pull.author,
            links={"pull request": pull.url} if pull.url else {},
        )
        session = Session(
            id=f"{pull.repo}#{pull.number}",
            agent=pull.agent or "agent",
            trace=Trace(reader="pull-request", reader_version=1),
            started=pull.opened,
            branch=pull.branch,
            links=attempt.links,
        )
        store.pulls.keep_attempt(attempt, session)
    return name


def _variant(pull: PullRequest, store: Store) -> str | None:
    """The variant that has the prompt which the commits name, if only one has."""
    if pull.prompt is None or len(pull.prompt) < NAMED:
        return None
    found = [
        key
        for key, variant in store.numbers.variants().items()
        if variant.prompt and variant.prompt.startswith(pull.prompt)
    ]
    return found[0] if len(found) == 1 else None


# What became of it


def delivered(pull: PullRequest, store: Store) -> Delivery:
    """What people did with the work, as far as it is known; repeated mistakes stay as they were."""
    assert pull.attempt is not None
    before = store.pulls.delivery(pull.attempt)
    attempt = store.attempt(pull.attempt)
    started = attempt.started if attempt.id != made_id(pull) else None
    ended = pull.state != "open"
    merged = pull.state == "merged"
    # Git alone does not know what people said.
    told_all = pull.source != "git"
    # Where nobody knows whether it passes, only what people mended would count: as failures.
    judged = passed(pull.last_push) is not None or attempt.origin == "experiment"
    looked_at = bool(pull.edits) or (merged and bool(pull.commits))
    paths = [file.path for file in pull.files or ()]
    return Delivery(
        attempt=pull.attempt,
        at=pull.told,
        passed=passed(pull.last_push),
        merged=merged if ended else None,
        corrected=bool(pull.edits) if looked_at and judged else None,
        cycles=len(pull.rounds) if ended and told_all else None,
        regressed=bool(pull.pointers) if merged else None,
        files=pull.files_changed if pull.files_changed is not None else len(paths) or None,
        modules=len({module_of(path) for path in paths}) or None,
        risk=risk_of(pull) or checked_as(pull, store),
        first_review=merged and not pull.rounds if ended and told_all and pull.reviewed else None,
        first_push=passed(pull.first_push),
        comments=sum(one.counts for one in pull.comments) if ended and told_all else None,
        seconds_to_open=(pull.opened - started).total_seconds() if started else None,
        repeated=before.repeated if before else None,
        repeated_unconfirmed=before.repeated_unconfirmed if before else None,
    )


def risk_of(pull: PullRequest) -> Level | None:
    """The level that a check of the change has put on it as a label."""
    return next((RISKS[label] for label in pull.labels if label in RISKS), None)


def checked_as(pull: PullRequest, store: Store) -> Level | None:
    """The level that the last check to tell one gave the work, or the commit that it ended in."""
    about = store.reports.rows(LAST_CHECKS, attempt=pull.attempt)
    if pull.head:
        about += store.reports.rows(LAST_CHECKS, repo=pull.repo, head=pull.head)
    return next((one.level for one in about if one.level), None)


def passed(result: str | None) -> bool | None:
    return {"passed": True, "failed": False}.get(result or "")
