"""Learn from what people say of agents' work: corrections, rules, and what came again.

pull requests and reviews ──► corrections ──► does it restate an active rule? repeats
                                          └─► is it a rule of its own? proposed
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from typing import Any

from msgspec.structs import asdict, replace

from closeloop.changes.reports.telling import place_of
from closeloop.model.delivery import Delivery
from closeloop.model.memory import Example, Near, Offer, Repeat
from closeloop.model.protocols import Model
from closeloop.model.record import Record, digest
from closeloop.model.review import Correction, PullRequest, PullRow
from closeloop.reviewing.asking import as_rule, opinion
from closeloop.reviewing.lives import shown
from closeloop.reviewing.shelf import Shelf
from closeloop.reviews.authorship import Agents
from closeloop.reviews.corrections import corrections_of, note_id
from closeloop.reviews.repeats import counted, is_remark, judged, merged, repeats_of, withdrawn
from closeloop.reviews.rules import proposed, settled
from closeloop.store import Store

_NAMED = re.compile(r" \([^()]{1,200}\)\.$")
"""The name that a check puts after a rule's text."""


class Learned(Record):
    """What a look at the reviews brought."""

    pulls: int = 0
    """Pull requests that were looked at, as they had changed."""
    corrections: int = 0
    proposed: int = 0
    examples: int = 0
    """Remarks that are one more example of a rule."""
    repeated: int = 0
    candidates: int = 0
    """Remarks that may restate a rule: somebody should look."""


class School(Record):
    """What learning is done with."""

    shelf: Shelf
    agents: Agents
    model: Model | None = None
    always: bool = False
    """New rules are active at once."""
    stopped: Callable[[], bool] = bool
    """Whether to leave the rest for the next time."""

    @property
    def store(self) -> Store:
        return self.shelf.store


async def learn(school: School, repo: str | None = None) -> Learned:
    """Look at every agent's pull request that has changed, the oldest first."""
    store = school.store
    total = Learned()
    known = store.events.places("memory:")
    findings = store.memory.findings()
    for row in sorted(store.pulls.rows(repo=repo, agent=True), key=lambda row: row.opened):
        place = f"memory:{row.repo}#{row.pull}"
        about = f"{row.told.isoformat()}{findings.get(row.attempt or '', '')}"
        if known.get(place) == _mark(school.shelf, row, about):
            continue
        if school.stopped():
            return total
        total = added(total, await study(school, shown(row.repo, row.pull, store, school.agents)))
        store.events.move(place, _mark(school.shelf, row, about))
    return added(total, await study_notes(school, repo))


async def study_notes(school: School, repo: str | None) -> Learned:
    """What people noted in the queue, each time that they change it."""
    store, total = school.store, Learned()
    reviews = {note_id(one): one for one in store.reviews.all() if one.state == "done"}
    known = store.events.places("memory:") if reviews else {}
    for note in store.memory.corrections(repo=repo) if reviews else ():
        review = reviews.get(note.id)
        mark = digest(note.text, note.tags)[:16]
        if review is None or known.get(f"memory:{note.id}") == mark:
            continue
        began = _began(store, note) or review.at
        total = added(total, await take(school, [note], began, None, taught=()))
        store.events.move(f"memory:{note.id}", mark)
    return total


def _began(store: Store, note: Correction) -> datetime | None:
    """When the work was begun that a note is about."""
    if note.pull is not None:
        row = store.pulls.row(note.repo, note.pull)
        return row.opened if row else None
    return store.attempt(note.attempt).started if note.attempt else None


def _mark(shelf: Shelf, row: PullRow, about: str) -> str:
    """Changes when there is more to be learned: more was told, or an older rule became active."""
    return f"{digest(about)[:12]} {shelf.older(row.repo, row.opened)}"


async def study(school: School, pull: PullRequest) -> Learned:
    """All that one pull request teaches; its delivery then tells how much came again."""
    told = _told_to(school.store, pull)
    done = await take(school, corrections_of(pull), pull.opened, told)
    for finding in findings_of(school.store, pull):
        again, _ = await restate(school, finding, pull.opened, told)
        done = added(done, again)
    if pull.attempt is not None:
        deliver(school.store, pull)
    return replace(done, pulls=1)


def findings_of(store: Store, pull: PullRequest) -> list[Correction]:
    """What a judge and a check found wrong with the work last. It teaches no rule."""
    if pull.attempt is None:
        return []
    evaluation = next(iter(store.judged.evaluations(attempt=pull.attempt)), None)
    found = [
        _finding(pull, (evaluation.id, number), issue.text, evaluation.at)
        for number, issue in enumerate(evaluation.issues if evaluation else ())
        if evaluation is not None and issue.source == "judge"
    ]
    row = next(iter(store.reports.rows(1, attempt=pull.attempt)), None)
    kept = store.reports.report(row.number) if row else None
    # What a check says of itself is no remark: only rules of the repository and models speak so.
    said = {
        _NAMED.sub(".", one.message): one.places
        for one in (kept[1].findings if kept else ())
        if one.silenced is None and (one.rule == "repo-rule" or one.source == "judge")
    }
    for text, places in said.items():
        path = place_of(places[0]).path if places else None
        made = _finding(pull, ("check", pull.repo, pull.number), text, kept[0].at if kept else None)
        found.append(replace(made, path=path))
    return found


def _finding(
    pull: PullRequest, name: tuple[Any, ...], text: str, at: datetime | None
) -> Correction:
    return Correction(
        id=digest("finding", *name, text)[:16],
        repo=pull.repo,
        pull=pull.number,
        attempt=pull.attempt,
        kind="note",
        text=text,
        at=at or pull.told,
    )


async def take(
    school: School,
    found: Sequence[Correction],
    began: datetime,
    told: Offer | None,
    taught: Collection[str] | None = None,
) -> Learned:
    """Keep corrections of one piece of work, and what they repeat and propose.

    Of those that were `taught` before, which are all that are known in these words unless it is
    said, no rule is made again.
    """
    if not found:
        return Learned()
    memory = school.store.memory
    repo, pull = found[0].repo, found[0].pull
    words = {one.id: one.text for one in memory.corrections(repo=repo, pull=pull)}
    new = [one for one in found if words.get(one.id) != one.text]
    known = {one.id for one in found} - {one.id for one in new}
    memory.save_corrections(new)
    total = Learned(corrections=len(new))
    for remark in filter(is_remark, found):
        again, near = await restate(school, remark, began, told)
        total = added(total, again)
        if remark.id not in (known if taught is None else taught):
            total = added(total, await _teach(school, remark, near))
    return total


async def restate(
    school: School, remark: Correction, began: datetime, told: Offer | None
) -> tuple[Learned, list[Near]]:
    """Keep what a remark repeats of the rules that are older than the work; the rules near it."""
    memory = school.store.memory
    near = school.shelf.restated(remark.text, remark.repo or None, remark.path)
    made = repeats_of(remark, near, began, school.shelf.encoder.id, told)
    held = memory.repeats(repo=remark.repo, pull=remark.pull)
    fresh = await _thought(school.model, merged(made, held), near)
    memory.save_repeats([*fresh, *withdrawn(remark, near, held)])
    counts = counted(fresh)
    return Learned(repeated=counts.repeated, candidates=counts.unconfirmed), near


async def _thought(
    model: Model | None, fresh: Sequence[Repeat], near: Sequence[Near]
) -> list[Repeat]:
    """With a model's opinion of each, where there is a model."""
    if model is None:
        return list(fresh)
    by_rule = {one.rule.id: one for one in near}
    found = []
    for one in fresh:
        like = by_rule[one.rule]
        thought = await opinion(model, like.rule.text, one.text)
        found.append(one if thought is None else judged(one, like, thought))
    return found


async def _teach(school: School, remark: Correction, near: Sequence[Near]) -> Learned:
    """One more example of a rule that is known, or a rule of its own for somebody to look at."""
    example = example_of(remark)
    if (same := settled(near)) is not None:
        school.shelf.keep(replace(same.rule, examples=(example,)))
        return Learned(examples=1)
    rule = proposed(example)
    if school.model is not None:
        rule = await as_rule(school.model, example, rule)
    if rule is None or school.shelf.rule(rule.id) is not None:
        return Learned()
    if school.always:
        rule = replace(rule, state="active", activated=rule.since)
    school.shelf.keep(rule)
    return Learned(proposed=1)


def example_of(remark: Correction) -> Example:
    """A correction as the example of a rule."""
    return Example(
        key=remark.id,
        source="comment" if remark.kind == "comment" else "review",
        text=remark.text,
        repo=remark.repo or None,
        pull=remark.pull,
        path=remark.path,
        by=remark.by,
        at=remark.at,
    )


def _told_to(store: Store, pull: PullRequest) -> Offer | None:
    """What the agent had been told before its work, where that was logged."""
    keys = [key for key in (pull.attempt, pull.branch, pull.task) if key]
    offers = store.memory.offers(pull.repo, keys)
    return offers[-1] if offers else None


def deliver(store: Store, pull: PullRequest) -> None:
    """Say how many of the remarks on a piece of work repeat what was known."""
    assert pull.attempt is not None
    counts = counted(store.memory.repeats(repo=pull.repo, pull=pull.number))
    before = store.pulls.delivery(pull.attempt) or Delivery(attempt=pull.attempt, at=pull.told)
    now = replace(before, repeated=counts.repeated, repeated_unconfirmed=counts.unconfirmed)
    if asdict(now) != asdict(before):
        store.pulls.deliver(now)


def added(one: Learned, other: Learned) -> Learned:
    return Learned(**{name: getattr(one, name) + getattr(other, name) for name in asdict(one)})
