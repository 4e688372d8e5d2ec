"""The life of a pull request, made of what was told of it: the same in whatever order it came."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from closeloop.code_digest import digest_code
from closeloop.model.review import Description, Fact, PullRequest, Sign
from closeloop.reviews.authorship import UNNAMED, Agents, Authorship, authorship
from closeloop.reviews.lifecycle_facts import (
    checks_of,
    comments_of,
    commits_of,
    described,
    edits_of,
    files_of,
    first_head,
    is_reviewed,
    known,
    pointers_of,
    pushes_of,
    result_at,
    reviews_of,
)
from closeloop.reviews.lifecycle_rounds import Activity, rounds_of

FOLDING_MODULE = "closeloop.reviewing.lives"
"""What makes pull requests of facts, by the rules here, and says what became of the work."""


def compute_version() -> int:
    """A number for the code that folds facts: what other code has made is made again."""
    return int(digest_code(FOLDING_MODULE)[:12], 16)


def life(
    facts: Sequence[Fact], number: int, agents: Agents, attempt: str | None = None
) -> PullRequest | None:
    """What became of a pull request; None while nobody has described it."""
    descriptions = described(facts)
    if not descriptions:
        return None
    last = descriptions[-1]
    until = last.merged or last.closed
    pushes = pushes_of(facts, last.opened, until)
    commits = commits_of(facts, number, pushes)
    whose = authorship(last, commits, agents)
    if attempt is not None:
        sign = Sign(kind="attempt", value=attempt)
        whose = replace(whose, signs=(*whose.signs, sign), agent=whose.agent or UNNAMED)
    checks = checks_of(facts)
    activity = Activity(
        opened=last.opened,
        until=until,
        reviews=reviews_of(facts, last.author, agents),
        comments=comments_of(facts, last.author, agents),
        pushes=pushes,
        commits=commits,
        edits=edits_of(commits, pushes, last, agents) if whose.signs else (),
    )
    return replace(
        _outline(facts, number, descriptions, whose),
        attempt=attempt,
        files=files_of(facts, commits),
        commits=commits,
        pushes=pushes,
        checks=checks,
        first_push=result_at(first_head(facts, number, commits, checks), checks),
        last_push=result_at(last.head, checks),
        reviews=activity.reviews,
        comments=activity.comments,
        rounds=rounds_of(activity),
        edits=activity.edits,
        pointers=pointers_of(facts, number, last, commits),
        reviewed=is_reviewed(activity.reviews, activity.comments, until),
    )


def _outline(
    facts: Sequence[Fact], number: int, descriptions: Sequence[Description], whose: Authorship
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
        files_changed=known(one.files for one in descriptions),
        added=known(one.added for one in descriptions),
        removed=known(one.removed for one in descriptions),
        version=compute_version(),
    )


def held(pull: PullRequest) -> str | None:
    """Why no person is to be asked about it now; None when one may be."""
    if pull.state != "open":
        return f"it is {pull.state}"
    if pull.draft:
        return "it is a draft"
    said = [
        check.name
        for check in pull.checks
        if check.sha == pull.head and check.result == pull.last_push
    ]
    match pull.last_push:
        case "failed":
            return f"its checks fail: {', '.join(said[:5])}"
        case "running":
            return f"its checks are running: {', '.join(said[:5])}"
    return None
