"""The review queue: changes that passed their checks, put before people who answer for them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from msgspec.structs import replace

from closeloop.model.attempt import Attempt, Grade
from closeloop.model.calibration import Asked, Label
from closeloop.model.errors import BadInput
from closeloop.model.event import Event
from closeloop.model.finding import Mode
from closeloop.model.globs import matches
from closeloop.model.queue import Assigned, Degree, HumanReview, ReviewItem, Waiting
from closeloop.model.record import Record
from closeloop.model.review import Correction
from closeloop.model.settings import Settings
from closeloop.model.task import Task
from closeloop.reviewing.hydrating import hidden_attempts
from closeloop.reviewing.lives import shown
from closeloop.reviews.authorship import Agents
from closeloop.reviews.corrections import noted
from closeloop.reviews.queue import Desk, demand_whole, doubled, free, next_of
from closeloop.store import Store
from closeloop.tasks.seal import demand_open
from closeloop.traces.redact import redact

HELD_BACK = ("failed", "running")
"""What checks say of a change that nobody is asked about."""
LONGEST_NUMBER = 9


class Queue(Record):
    """An open queue: the store, and what the settings say of reviews and agents."""

    store: Store
    settings: Settings
    agents: Agents
    known: tuple[str, ...] | None = None
    """What waits, where somebody has just looked."""


def next_item(
    queue: Queue, reviewer: str, now: datetime, *, take: bool = True
) -> ReviewItem | None:
    """What somebody should look at now; if they take it, it is theirs for a day."""
    if not reviewer.strip():
        raise BadInput("Say who reviews: --reviewer NAME.")
    desk = desk_of(queue, now)
    chosen = next_of(desk, reviewer)
    if chosen is None:
        return None
    theirs = any(one.item == chosen and one.reviewer == reviewer for one in desk.assigned)
    if take and not theirs:
        queue.store.reviews.assign(Assigned(item=chosen, reviewer=reviewer, at=now))
    return item(queue, chosen)


def draft_of(queue: Queue, chosen: str, reviewer: str) -> HumanReview | None:
    """What somebody has answered of an item so far."""
    return next(iter(queue.store.reviews.all(item=chosen, reviewer=reviewer)), None)


def save_draft(queue: Queue, review: HumanReview) -> None:
    """Keep answers that are not all there yet."""
    queue.store.reviews.save(replace(redact(review)[0], item=review.item))


def submit(queue: Queue, review: HumanReview) -> None:
    """Keep somebody's answers; they are labels for judges too, and corrections to learn from."""
    demand_whole(review)
    reviewed = item(queue, review.item)
    review = replace(redact(review)[0], item=reviewed.id)
    store = queue.store
    store.reviews.save(review)
    store.judged.save_labels(labels_of(review, queue.settings.judge.rubric))
    golden = review.item in golden_of(queue)
    store.memory.save_corrections([] if golden else noted(review, reviewed))
    store.events.add(
        [
            Event(
                kind="review.answered",
                at=review.at,
                repo=reviewed.repo,
                attempt=review.item if reviewed.kind == "attempt" else None,
                details={"item": review.item, "reviewer": review.reviewer, "merge": review.merge},
            )
        ]
    )


def assign(queue: Queue, chosen: str, reviewer: str, now: datetime) -> None:
    """Ask somebody by name; others are not given the item then."""
    found = item(queue, chosen)
    queue.store.reviews.assign(Assigned(item=found.id, reviewer=reviewer, at=now, asked=True))


def standing(queue: Queue, reviewer: str, now: datetime) -> Waiting:
    """How much there is to do, and for whom."""
    desk = desk_of(queue, now)
    done = {one.item for one in desk.reviews if one.state == "done"}
    return Waiting(
        items=len(desk.waiting),
        reviewed=len(done & {*desk.waiting}),
        doubled=sum(doubled(one, desk.policy) for one in desk.waiting),
        golden=len(desk.golden),
        mine=sum(1 for _ in free(desk, reviewer)),
    )


def desk_of(queue: Queue, now: datetime) -> Desk:
    store = queue.store
    return Desk(
        waiting=tuple(waiting(store)) if queue.known is None else queue.known,
        golden=frozenset(golden_of(queue)),
        reviews=tuple(store.reviews.all()),
        assigned=tuple(store.reviews.assigned()),
        policy=queue.settings.review,
        now=now,
    )


def waiting(store: Store) -> list[str]:
    """Stage 1 is behind them: graded and passed, or open with no check that fails or runs.

    What was made for a held-out task stays out of sight.
    """
    names = [
        f"{row.repo}#{row.pull}"
        for row in reversed(store.pulls.rows(state="open", agent=True))
        if not row.draft and row.last_push not in HELD_BACK
    ]
    names += [name for name, _ in store.counts.passed()]
    hidden = hidden_items(store)
    return [name for name in names if name not in hidden]


def hidden_items(store: Store) -> set[str]:
    """What was made for held-out tasks, and pull requests that came of it."""
    hidden = hidden_attempts(store)
    rows = store.pulls.rows(agent=True) if hidden else ()
    return hidden | {f"{row.repo}#{row.pull}" for row in rows if row.attempt in hidden}


def golden_of(queue: Queue) -> set[str]:
    """Items of which it is known, by other means, what they are worth."""
    labels = queue.store.judged.labels(queue.settings.judge.rubric)
    golden = {one.item for one in labels if one.golden and one.asked == "overall"}
    return golden - hidden_items(queue.store) if golden else golden


def labels_of(review: HumanReview, rubric: str) -> list[Label]:
    """What a review says to calibration; `partly` says neither."""
    said: dict[Asked, Degree] = {"overall": "yes" if review.merge else "no"}
    said.update(review.dimensions.items())
    return [
        Label(
            item=review.item,
            rubric=rubric,
            asked=asked,
            label="pass" if degree == "yes" else "fail",
            person=review.reviewer,
            at=review.at,
        )
        for asked, degree in said.items()
        if degree != "partly"
    ]


# What a person sees of an item


def item(queue: Queue, name: str) -> ReviewItem:
    """A pull request as `owner/name#12`, or an attempt."""
    repo, mark, number = name.rpartition("#")
    if mark and number.isdecimal() and len(number) <= LONGEST_NUMBER:
        return _pull(queue, repo, int(number))
    return _attempt(queue.store, name)


def _attempt(store: Store, name: str) -> ReviewItem:
    """Nothing of it tells which variant made it: attempts of an experiment are comparisons."""
    attempt = store.attempt(name)
    change = store.change(attempt.id)
    grade = store.grade(attempt.id)
    task = task_of(store, attempt)
    return ReviewItem(
        id=attempt.id,
        kind="attempt",
        title=attempt.task or attempt.id,
        request=task.prompt if task else "",
        repo=task.repo if task else attempt.repo,
        scope=task.scope if task else (),
        files=tuple(file.path for file in change.files) if change else (),
        outside=grade.out_of_scope if grade else (),
        patch=change.patch if change else "",
        checks=_checks(grade),
        suggested=_suggested(grade),
        blind=attempt.origin == "experiment",
    )


def _checks(grade: Grade | None) -> str:
    if grade is None:
        return "not graded"
    fixed, kept = grade.fail_to_pass, grade.pass_to_pass
    told = [f"{fixed[0]} of {fixed[1]} tests mended"] if fixed else []
    told += [f"{kept[0]} of {kept[1]} still pass"] if kept else []
    return ", ".join(told) or grade.outcome.result


def _suggested(grade: Grade | None) -> tuple[Mode, ...]:
    found: list[Mode] = []
    if grade and grade.out_of_scope:
        found.append("scope creep")
    if grade and grade.broken:
        found.append("silent regression")
    return tuple(found)


def _pull(queue: Queue, repo: str, number: int) -> ReviewItem:
    store = queue.store
    pull = shown(repo, number, store, queue.agents)
    change = store.change(pull.attempt) if pull.attempt else None
    task = task_of(store, store.attempt(pull.attempt)) if pull.attempt else None
    files = tuple(file.path for file in pull.files or ())
    blind = _in_trial(store, {pull.branch, pull.attempt, pull.task})
    scope = task.scope if task else ()
    return ReviewItem(
        id=f"{repo}#{number}",
        kind="pull",
        title=pull.title,
        request=pull.body,
        repo=repo,
        # A page at the host names its author.
        url=None if blind else pull.url,
        scope=scope,
        files=files,
        outside=tuple(path for path in files if scope and not matches(path, scope)),
        patch=change.patch if change else "",
        checks=f"checks {pull.last_push}" if pull.last_push else "no checks are known",
        suggested=_spoken_of(store.memory.corrections(repo=repo, pull=number)),
        blind=blind,
    )


def task_of(store: Store, attempt: Attempt) -> Task | None:
    """What was asked for; BadInput where that stays sealed."""
    task = store.task(attempt.task_digest) if attempt.task_digest else None
    demand_open(task)
    return task


def _in_trial(store: Store, names: set[str | None]) -> bool:
    trials = store.trials
    return any(one.key in names for trial in trials.names() for one in trials.assigned(trial))


def _spoken_of(corrections: Sequence[Correction]) -> tuple[Mode, ...]:
    """What people's remarks so far speak for."""
    return tuple(dict.fromkeys(mode for one in corrections for mode in one.suggested))
