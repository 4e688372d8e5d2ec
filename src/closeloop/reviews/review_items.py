"""What a reviewer sees of an item: what was asked, what came of it, and what is to be answered."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from closeloop.records.attempt import AWAITING_REVIEW, Attempt, AttemptRow, Grade
from closeloop.records.change import Change
from closeloop.records.errors import BadInput
from closeloop.records.finding import FailureMode
from closeloop.records.pull_request import Correction
from closeloop.records.record import Record, stable_fraction
from closeloop.records.settings import Settings
from closeloop.records.task import Task
from closeloop.records.team_rules import ReviewItem, ReviewOutput
from closeloop.records.trace import Trace
from closeloop.reviews.authorship import AgentSignsByName
from closeloop.reviews.pull_updates import load_pull, load_pull_change
from closeloop.reviews.review_blinding import NameMask, make_name_mask, mask_trace
from closeloop.reviews.review_questions import list_questions
from closeloop.store import Store
from closeloop.tasks.sealed_tasks import require_unsealed
from closeloop.text.wording import matches_globs

MAX_NUMBER_DIGITS = 9
SIDE_LABELS = "ABCD"
"""So many attempts at one task are shown side by side."""


class ReviewQueue(Record):
    """An open queue: the store, and what the settings say of reviews and agents."""

    store: Store
    settings: Settings
    agents: AgentSignsByName
    known: tuple[str, ...] | None = None
    """What waits, where somebody has just looked."""


def load_review_item(queue: ReviewQueue, name: str) -> ReviewItem:
    """A pull request as `owner/name#12`, or an attempt."""
    repo, mark, number = name.rpartition("#")
    if mark and number.isdecimal() and len(number) <= MAX_NUMBER_DIGITS:
        return _item_from_pull(queue, repo, int(number))
    return _item_from_attempt(queue, name)


def _item_from_attempt(queue: ReviewQueue, name: str) -> ReviewItem:
    """Nothing of it tells which variant made it: attempts of an experiment are comparisons."""
    store = queue.store
    attempt = store.load_attempt(name)
    grade = store.load_grade(attempt.id)
    task = load_open_task(store, attempt)
    request = task.prompt if task else ""
    rows = _list_task_rows(store, attempt)
    mask = _mask_variants(queue, rows)
    peers = _choose_peers(rows, attempt)
    outputs = {
        peer: _load_output(store, peer, request, mask, label)
        for label, peer in zip(SIDE_LABELS, peers, strict=False)
    }
    output = outputs.pop(attempt.id, None) or _load_output(store, attempt.id, request, mask)
    patch = (store.load_change(attempt.id) or Change()).patch
    checked = grade is None or grade.outcome.cause != AWAITING_REVIEW
    has_change = bool(output.files) and (task is None or task.repo is not None)
    return ReviewItem(
        id=attempt.id,
        kind="attempt",
        title=attempt.task or attempt.id,
        request=request,
        repo=task.repo if task else attempt.repo,
        scope=task.scope if task else (),
        rubric=(task.rubric or "") if task else "",
        output=output,
        others=tuple(outputs.values()),
        outside=mask.hide_in_paths(grade.out_of_scope, patch, request) if grade else (),
        questions=list_questions(queue.settings.review, checked=checked, has_change=has_change),
        checks=_describe_grade(grade) if checked else "no automatic check",
        suggested=_suggest_modes(grade),
        blind=attempt.origin == "experiment",
    )


def _list_task_rows(store: Store, attempt: Attempt) -> list[AttemptRow]:
    """All attempts at the same task, where they are an experiment's."""
    if attempt.origin != "experiment" or attempt.task_digest is None:
        return []
    return store.list_attempts(task_digests=[attempt.task_digest])


def _choose_peers(rows: Sequence[AttemptRow], attempt: Attempt) -> list[str]:
    """The attempt among those of other variants that people compare it with: at the same repeat.

    By lot, so that their order tells nothing.
    """
    compared = [
        row
        for row in rows
        if row.number == attempt.number and row.is_for_review and row.replay_of is None
    ]
    by_variant = {row.variant: row.id for row in sorted(compared, key=lambda row: row.retry)}
    peers = sort_by_lot(by_variant.values())
    if attempt.id not in peers or len(peers) == 1:
        return []
    shown = peers[: len(SIDE_LABELS)]
    return shown if attempt.id in shown else [*shown[:-1], attempt.id]


def sort_by_lot(attempts: Iterable[str]) -> list[str]:
    """In an order that tells nothing of who made which."""
    return sorted(attempts, key=lambda name: stable_fraction("side", name))


def _mask_variants(queue: ReviewQueue, rows: Sequence[AttemptRow]) -> NameMask:
    """The names of all variants that tried a task: none of them may tell whose work is whose."""
    variants = map(queue.store.load_variant, {row.variant for row in rows if row.variant})
    return make_name_mask(filter(None, variants), queue.settings.models)


def _load_output(
    store: Store, name: str, request: str, mask: NameMask, label: str = ""
) -> ReviewOutput:
    attempt = store.load_attempt(name)
    change = store.load_change(name) or Change()
    ended = "" if attempt.exit == "finished" else attempt.exit.replace("_", " ")
    if ended and attempt.cause:
        ended = f"{ended}: {attempt.cause}"
    return ReviewOutput(
        label=label,
        files=mask.hide_in_paths((file.path for file in change.files), change.patch, request),
        patch=mask.hide_in_patch(change.patch, request),
        answer=mask.hide_in_words(attempt.summary or ""),
        ended=mask.hide_in_words(ended),
    )


def load_blind_trace(queue: ReviewQueue, name: str, label: str = "") -> Trace | None:
    """How an attempt, or the one of that label beside it, came about, without names."""
    attempt = queue.store.load_attempt(name)
    load_open_task(queue.store, attempt)
    rows = _list_task_rows(queue.store, attempt)
    peers = dict(zip(SIDE_LABELS, _choose_peers(rows, attempt), strict=False))
    if label and label not in peers:
        raise BadInput(f"There is no attempt {label!r} beside {attempt.id}.")
    trace = queue.store.load_trace(peers.get(label, attempt.id))
    return trace and mask_trace(trace, _mask_variants(queue, rows))


def _describe_grade(grade: Grade | None) -> str:
    if grade is None:
        return "not graded"
    fixed, kept = grade.fail_to_pass, grade.pass_to_pass
    parts = [f"{fixed[0]} of {fixed[1]} tests mended"] if fixed else []
    parts += [f"{kept[0]} of {kept[1]} still pass"] if kept else []
    return ", ".join(parts) or grade.outcome.result


def _suggest_modes(grade: Grade | None) -> tuple[FailureMode, ...]:
    modes: list[FailureMode] = []
    if grade and grade.out_of_scope:
        modes.append("scope creep")
    if grade and grade.broken:
        modes.append("silent regression")
    return tuple(modes)


def _item_from_pull(queue: ReviewQueue, repo: str, number: int) -> ReviewItem:
    store = queue.store
    pull = load_pull(repo, number, store, queue.agents)
    change = load_pull_change(pull, store)
    task = load_open_task(store, store.load_attempt(pull.attempt)) if pull.attempt else None
    files = tuple(file.path for file in (change.files if change else pull.files or ()))
    blind = _is_in_trial(store, {pull.branch, pull.attempt, pull.task})
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
        output=ReviewOutput(files=files, patch=change.patch if change else ""),
        outside=tuple(path for path in files if scope and not matches_globs(path, scope)),
        questions=list_questions(queue.settings.review, checked=True, has_change=True),
        checks=f"checks {pull.last_push}" if pull.last_push else "no checks are known",
        suggested=_collect_suggested_modes(store.memory.list_corrections(repo=repo, pull=number)),
        blind=blind,
    )


def load_open_task(store: Store, attempt: Attempt) -> Task | None:
    """What was asked for; BadInput where that stays sealed."""
    task = store.load_task(attempt.task_digest) if attempt.task_digest else None
    require_unsealed(task)
    return task


def _is_in_trial(store: Store, names: set[str | None]) -> bool:
    trials = store.trials
    return any(
        one.key in names
        for trial in trials.list_trial_names()
        for one in trials.list_assignments(trial)
    )


def _collect_suggested_modes(corrections: Sequence[Correction]) -> tuple[FailureMode, ...]:
    """What people's remarks so far speak for."""
    return tuple(dict.fromkeys(mode for one in corrections for mode in one.suggested))
