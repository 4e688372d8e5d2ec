"""The life of a pull request, made of what was told of it: the same in whatever order it came."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from closeloop.code_digest import digest_code
from closeloop.records.pull_request import AuthorshipSign, Fact, PullDescription, PullRequest
from closeloop.reviews.authorship import (
    UNNAMED_AGENT,
    AgentSignsByName,
    Authorship,
    detect_authorship,
)
from closeloop.reviews.pull_facts import (
    combined_result,
    first_head,
    has_human_review,
    last_known_number,
    latest_checks,
    latest_comments,
    latest_reviews,
    list_descriptions,
    list_human_edits,
    list_pull_commits,
    list_pull_files,
    list_pushes,
    select_pointers,
)
from closeloop.reviews.review_rounds import PullActivity, list_review_rounds

FOLDING_MODULE = "closeloop.reviews.pull_updates"
"""What makes pull requests of facts, by the rules here, and says what became of the work."""


def compute_version() -> int:
    """A number for the code that folds facts: what other code has made is made again."""
    return int(digest_code(FOLDING_MODULE)[:12], 16)


def build_pull_request(
    facts: Sequence[Fact], number: int, agents: AgentSignsByName, attempt: str | None = None
) -> PullRequest | None:
    """What became of a pull request; None while nobody has described it."""
    descriptions = list_descriptions(facts)
    if not descriptions:
        return None
    last = descriptions[-1]
    until = last.merged or last.closed
    pushes = list_pushes(facts, last.opened, until)
    commits = list_pull_commits(facts, number, pushes)
    whose = detect_authorship(last, commits, agents)
    if attempt is not None:
        sign = AuthorshipSign(kind="attempt", value=attempt)
        whose = replace(whose, signs=(*whose.signs, sign), agent=whose.agent or UNNAMED_AGENT)
    checks = latest_checks(facts)
    activity = PullActivity(
        opened=last.opened,
        until=until,
        reviews=latest_reviews(facts, last.author, agents),
        comments=latest_comments(facts, last.author, agents),
        pushes=pushes,
        commits=commits,
        edits=list_human_edits(commits, pushes, last, agents) if whose.signs else (),
    )
    return replace(
        _build_outline(facts, number, descriptions, whose),
        attempt=attempt,
        files=list_pull_files(facts, commits),
        commits=commits,
        pushes=pushes,
        checks=checks,
        first_push=combined_result(first_head(facts, number, commits, checks), checks),
        last_push=combined_result(last.head, checks),
        reviews=activity.reviews,
        comments=activity.comments,
        rounds=list_review_rounds(activity),
        edits=activity.edits,
        pointers=select_pointers(facts, number, last, commits),
        reviewed=has_human_review(activity.reviews, activity.comments, until),
    )


def _build_outline(
    facts: Sequence[Fact], number: int, descriptions: Sequence[PullDescription], whose: Authorship
) -> PullRequest:
    """What a pull request says of itself."""
    last = descriptions[-1]
    return PullRequest(
        repo=facts[0].repo,
        number=number,
        source=facts[0].source,
        title=last.title,
        body=last.body,
        url=last.url,
        author=last.author,
        state=last.state,
        draft=last.draft,
        branch=last.branch,
        base=last.base,
        head=last.head,
        merge_commit=last.merge_commit,
        labels=last.labels,
        opened=last.opened,
        closed=last.closed,
        merged=last.merged,
        told=max(fact.at for fact in facts),
        signs=whose.signs,
        agent=whose.agent,
        task=whose.task,
        prompt=whose.prompt,
        files_changed=last_known_number(one.files for one in descriptions),
        added=last_known_number(one.added for one in descriptions),
        removed=last_known_number(one.removed for one in descriptions),
        version=compute_version(),
    )


def block_reason(pull: PullRequest) -> str | None:
    """Why no person is to be asked about it now; None when one may be."""
    if pull.state != "open":
        return f"it is {pull.state}"
    if pull.draft:
        return "it is a draft"
    check_names = [
        check.name
        for check in pull.checks
        if check.sha == pull.head and check.result == pull.last_push
    ]
    match pull.last_push:
        case "failed":
            return f"its checks fail: {', '.join(check_names[:5])}"
        case "running":
            return f"its checks are running: {', '.join(check_names[:5])}"
    return None
