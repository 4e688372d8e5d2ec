"""Pull requests as they stand: made of the facts, linked to the work behind them, and delivered."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from msgspec.structs import replace

from closeloop.records.attempt import Attempt
from closeloop.records.change import Change, Risk, RiskLevel
from closeloop.records.errors import BadInput
from closeloop.records.pull_request import Delivery, Fact, PullRequest, PullRow
from closeloop.records.record import content_digest
from closeloop.records.request_delivery import DeliveryBranch
from closeloop.records.session import Session
from closeloop.records.trace import Trace
from closeloop.reviews.agent_prompts import MIN_PROMPT_ID_CHARS
from closeloop.reviews.authorship import ATTEMPT_TRAILER, AgentSignsByName
from closeloop.reviews.pull_lifecycle import (
    RecordedWork,
    build_pull_request,
    compute_version,
    events_from_change,
    events_from_fact,
)
from closeloop.reviews.review_corrections import count_remarks
from closeloop.store import Store
from closeloop.store.event_section import delivery_step_key
from closeloop.text.redaction import redact_record
from closeloop.text.wording import package_folder, repository_name

MAIN_BRANCHES = ("main", "master", "trunk", "develop")
RISK_LABELS: dict[str, RiskLevel] = {
    "risk:low": "low",
    "risk:medium": "medium",
    "risk:high": "high",
    "risk:critical": "critical",
}
UNKNOWN_AGENT = "unknown"
"""What readers call a program that a recording does not name."""
MAX_CHECKS_READ = 20
"""Not every one looks at the risk."""


def save_facts(facts: Sequence[Fact], store: Store, agents: AgentSignsByName) -> list[PullRequest]:
    """Save what was told; the pull requests that it is about, as they stand now."""
    touched = add_facts(facts, store)
    return [pull for key in touched if (pull := refresh_pull(*key, store, agents)) is not None]


def add_facts(facts: Sequence[Fact], store: Store) -> list[tuple[str, int]]:
    """Save what was told, rid of secrets; repository and number of every pull it is about."""
    redacted_facts = [redact_record(fact)[0] for fact in facts]
    store.pulls.add_facts(redacted_facts, events_from_fact)
    return store.pulls.find_touched_pulls(redacted_facts)


def refresh_pull(
    repo: str, number: int, store: Store, agents: AgentSignsByName
) -> PullRequest | None:
    """Put a pull request together again, link it, and say what became of the work."""
    facts = store.pulls.list_facts(repo, number)
    bare = build_pull_request(facts, number, agents)
    if bare is None:
        return None
    linked = find_recorded_attempt(bare, store)
    recorded = load_recorded_work(linked, store) if linked else None
    pull = build_pull_request(facts, number, agents, recorded) if recorded else bare
    assert pull is not None
    if pull.signs and linked is None:
        pull = replace(pull, attempt=_save_placeholder(pull, store))
    pull = add_change_size(pull, store)
    risk = load_checked_risk(pull, store)
    row = replace(
        build_pull_row(pull),
        risk=labelled_risk(pull) or (risk.level if risk else None),
        has_change=load_pull_change(pull, store) is not None,
    )
    known = store.pulls.save_pull(row, lambda old: [*events_from_change(old, row, pull)])
    if pull.attempt is not None:
        store.pulls.save_delivery(build_delivery(pull, store))
    if known and known.attempt and known.attempt != pull.attempt:
        # The work behind it is known better now: what stood for it tells nothing any more.
        store.pulls.save_delivery(Delivery(attempt=known.attempt, at=pull.told))
        for other in _other_pulls_of(known.attempt, pull, store)[:1]:
            refresh_pull(other.repo, other.pull, store, agents)
        for review in store.reviews.list_reviews(item=f"{repo}#{number}"):
            store.reviews.save_review(review)  # its scores are of the work that is known now
    return pull


def load_pull(repo: str, number: int, store: Store, agents: AgentSignsByName) -> PullRequest:
    """A pull request with its whole life; BadInput where there is none."""
    row = store.pulls.load_pull(repo, number)
    facts = store.pulls.list_facts(repo, number)
    pull = build_pull_request(facts, number, agents)
    if pull is None:
        raise BadInput(f"No pull request {repo}#{number}: `closeloop pulls` lists them.")
    pull = add_change_size(pull, store)
    attempt = row.attempt if row else None
    if attempt in (None, placeholder_id(pull)):
        return replace(pull, attempt=attempt)
    assert attempt is not None
    recorded = load_recorded_work(attempt, store)
    return add_change_size(build_pull_request(facts, number, agents, recorded) or pull, store)


def refresh_all_pulls(store: Store, agents: AgentSignsByName) -> int:
    """Put together again what other code has made; how many that were."""
    old = [row for row in store.pulls.list_pulls() if row.version != compute_version()]
    for row in old:
        refresh_pull(row.repo, row.pull, store, agents)
    return len(old)


def build_pull_row(pull: PullRequest) -> PullRow:
    """What a list shows of a pull request."""
    return PullRow(
        repo=pull.repo,
        pull=pull.number,
        source=pull.source,
        title=pull.title,
        url=pull.url,
        author=pull.author,
        asked_by=pull.asked_by,
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
        comments=count_remarks(pull),
        edits=len(pull.edits),
        pointers=len(pull.pointers),
        first_push=pull.first_push,
        last_push=pull.last_push,
        risk=labelled_risk(pull),
        reviewed=pull.reviewed,
        files=pull.files_changed,
        added=pull.added,
        removed=pull.removed,
        version=pull.version,
    )


def load_pull_change(pull: PullRequest, store: Store) -> Change | None:
    """The diff of its newest commit; of a branch that nobody pushed to, that of the work."""
    change = store.pulls.load_change(pull.repo, pull.number, pull.head) if pull.head else None
    if change is None and pull.attempt and not pull.edits and len(pull.pushes) <= 1:
        change = store.load_change(pull.attempt)
    return change if change is not None and change.files else None


def add_change_size(pull: PullRequest, store: Store) -> PullRequest:
    """With the sizes of its diff, where nobody told them otherwise."""
    edits = pull.files or ()
    is_known = bool(edits) and all(file.added is not None for file in edits)
    added = sum(file.added or 0 for file in edits) if is_known else None
    removed = sum(file.removed or 0 for file in edits) if is_known else None
    files = len(edits) or None
    size = store.pulls.load_change_size(pull.repo, pull.number, pull.head) if pull.head else None
    if size is not None:
        files, added, removed = size
    return replace(
        pull,
        files_changed=files if pull.files_changed is None else pull.files_changed,
        added=added if pull.added is None else pull.added,
        removed=removed if pull.removed is None else pull.removed,
    )


# The work behind it


def find_recorded_attempt(pull: PullRequest, store: Store) -> str | None:
    """The recorded work that a pull request came from: by its branch, or by what names it.

    A branch of a fork may be called anything, by anybody.
    """
    branch = "" if pull.fork else pull.branch or ""
    if branch.startswith("closeloop/"):
        name = branch.rpartition("/")[2]
        if store.pulls.has_attempt(name) and _has_delivered_commit(pull, name, store):
            return name
    if (named := _attempt_in_trailers(pull, store)) is not None:
        return named
    own = placeholder_id(pull)
    for name in store.pulls.attempts_naming(pull.url) if pull.url else ():
        if name != own:
            return name
    if branch in ("", pull.base, *MAIN_BRANCHES):
        return None
    for name, repo, started in store.pulls.attempts_on_branch(branch):
        if name != own and _is_same_repo(repo, pull.repo) and _started_before(started, pull.opened):
            return name
    return None


def _attempt_in_trailers(pull: PullRequest, store: Store) -> str | None:
    """The attempt that a trailer names, where no other pull request came from it.

    A commit that is picked for another branch has the trailer too, and anybody can copy it.
    """
    for sign in reversed(pull.signs):  # ours stands last, after what anybody may have written
        key, _, name = sign.value.partition(": ")
        if sign.kind == "trailer" and key == ATTEMPT_TRAILER and store.pulls.has_attempt(name):
            is_ours = not pull.fork and _has_delivered_commit(pull, name, store)
            return name if is_ours and not _other_pulls_of(name, pull, store) else None
    return None


def _has_delivered_commit(pull: PullRequest, attempt: str, store: Store) -> bool:
    """Whether the commit that `closeloop deliver` made is or was in it; so where none is known."""
    key = delivery_step_key(attempt, "branched")
    branch = store.steps.load_step(key, DeliveryBranch)
    moves = (sha for push in pull.pushes for sha in (push.before, push.after))
    commits = (commit.sha for commit in pull.commits)
    return branch is None or branch.commit in (pull.head, *moves, *commits)


def _other_pulls_of(attempt: str, pull: PullRequest, store: Store) -> list[PullRow]:
    """Pull requests beside this one that came from an attempt."""
    rows = store.pulls.list_pulls(attempt=attempt)
    return [row for row in rows if (row.repo, row.pull) != (pull.repo, pull.number)]


def load_recorded_work(attempt: str, store: Store) -> RecordedWork:
    """Which program did a piece of work, and who ran it."""
    work = store.load_attempt(attempt)
    variant = store.load_variant(work.variant) if work.variant else None
    session = None if variant else store.load_session(attempt)
    agent = variant.agent if variant else session.agent if session else None
    return RecordedWork(
        attempt=attempt,
        agent=None if agent == UNKNOWN_AGENT else agent,
        user=work.user,
        delivered=bool(store.steps.list_steps(delivery_step_key(attempt, "requested"))),
    )


def _is_same_repo(address: str | None, repo: str) -> bool:
    """Whether the address of a clone is that of a repository: `git@host:owner/name.git`."""
    return address is not None and repository_name(address).lower() == repo.lower()


def _started_before(started: datetime | None, opened: datetime) -> bool:
    return started is not None and started <= opened


def placeholder_id(pull: PullRequest) -> str:
    """The name of the attempt that stands for unrecorded work."""
    return content_digest("pull request", pull.source, pull.repo, pull.number)[:12]


def _save_placeholder(pull: PullRequest, store: Store) -> str:
    """An attempt for work of which there is nothing but the pull request."""
    name = placeholder_id(pull)
    if not store.pulls.has_attempt(name):
        attempt = Attempt(
            id=name,
            origin="production",
            task=pull.task,
            variant=_find_variant(pull, store),
            started=pull.opened,
            exit="finished",
            branch=pull.branch,
            repo=pull.repo,
            user=pull.asked_by,
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
        store.pulls.save_pull_attempt(attempt, session, pull.title)
    return name


def _find_variant(pull: PullRequest, store: Store) -> str | None:
    """The variant that has the prompt which the commits name, if only one has."""
    if pull.prompt is None or len(pull.prompt) < MIN_PROMPT_ID_CHARS:
        return None
    matching_keys = [
        key
        for key, variant in store.numbers.load_variants().items()
        if variant.prompt and variant.prompt.startswith(pull.prompt)
    ]
    return matching_keys[0] if len(matching_keys) == 1 else None


# What became of it


def build_delivery(pull: PullRequest, store: Store) -> Delivery:
    """What people did with the work, as far as it is known; repeated mistakes stay as they were."""
    assert pull.attempt is not None
    before = store.pulls.load_delivery(pull.attempt)
    attempt = store.load_attempt(pull.attempt)
    started = attempt.started if attempt.id != placeholder_id(pull) else None
    ended = pull.state != "open"
    merged = pull.state == "merged"
    end = pull.merged or pull.closed if ended else None
    # Git alone does not know what people said.
    told_all = pull.source != "git"
    # Where nobody knows whether it passes, only what people mended would count: as failures.
    judged = has_passed(pull.last_push) is not None or attempt.origin == "experiment"
    looked_at = bool(pull.edits) or (merged and bool(pull.commits))
    paths = [file.path for file in pull.files or ()]
    risk = load_checked_risk(pull, store)
    return Delivery(
        attempt=pull.attempt,
        at=pull.told,
        passed=has_passed(pull.last_push),
        merged=merged if ended else None,
        corrected=bool(pull.edits) if looked_at and judged else None,
        reviewed=pull.reviewed if ended and told_all else None,
        seconds_in_review=(end - pull.opened).total_seconds() if end and told_all else None,
        cycles=len(pull.rounds) if ended and told_all else None,
        regressed=bool(pull.pointers) if merged else None,
        files=pull.files_changed if pull.files_changed is not None else len(paths) or None,
        modules=len({package_folder(path) for path in paths}) or None,
        dependents=count_dependents(risk) if risk else None,
        risk=labelled_risk(pull) or (risk.level if risk else None),
        first_review=merged and not pull.rounds if ended and told_all and pull.reviewed else None,
        first_push=has_passed(pull.first_push),
        comments=count_remarks(pull) if ended and told_all else None,
        seconds_to_open=_seconds_between(started, pull.opened),
        repeated=before.repeated if before else None,
        repeated_unconfirmed=before.repeated_unconfirmed if before else None,
    )


def _seconds_between(started: datetime | None, opened: datetime) -> float | None:
    """None where the work began after the pull request: then it is not where it came from."""
    return None if started is None or started > opened else (opened - started).total_seconds()


def labelled_risk(pull: PullRequest) -> RiskLevel | None:
    """The level that a check of the change has put on it as a label."""
    return next((RISK_LABELS[label] for label in pull.labels if label in RISK_LABELS), None)


def load_checked_risk(pull: PullRequest, store: Store) -> Risk | None:
    """What the last check to tell a level said of the work, or of the commit that it ended in."""
    about = store.reports.list_reports(MAX_CHECKS_READ, attempt=pull.attempt)
    if pull.head:
        about += store.reports.list_reports(MAX_CHECKS_READ, repo=pull.repo, head=pull.head)
    row = next((one for one in about if one.level), None)
    stored = store.reports.load_report(row.number) if row else None
    return stored[1].risk if stored else None


def count_dependents(risk: Risk) -> int | None:
    """How many files import what the change touches; None where that was not looked at."""
    if any(one.rule == "dependents" for one in risk.unmeasured):
        return None
    return next((int(one.value or 0) for one in risk.factors if one.name == "dependents"), 0)


def has_passed(result: str | None) -> bool | None:
    return {"passed": True, "failed": False}.get(result or "")
