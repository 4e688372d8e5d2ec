"""The review queue: work that passed its checks, or has none, for people to review."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

import msgspec
from msgspec.structs import replace

from closeloop.records.attempt import AWAITING_REVIEW, Attempt, AttemptRow, Grade
from closeloop.records.change import Change
from closeloop.records.errors import BadInput
from closeloop.records.evaluation import CRITERIA, HumanLabel, JudgedAspect
from closeloop.records.finding import FailureMode
from closeloop.records.pull_request import Correction, PullRow
from closeloop.records.record import Record, stable_fraction
from closeloop.records.settings import ModelSettings, ReviewSettings, Settings
from closeloop.records.task import Task, Variant
from closeloop.records.team_rules import (
    AnswerDegree,
    HumanReview,
    QueueStatus,
    ReviewAnswers,
    ReviewAssignment,
    ReviewItem,
    ReviewOutput,
    ReviewQuestion,
)
from closeloop.records.trace import AnyEvent, Handoff, LogEvent, Message, Trace
from closeloop.reviews.authorship import AgentSignsByName
from closeloop.store import Store
from closeloop.tasks.task_sets import require_unsealed
from closeloop.text.untrusted import parse_json, read_record, unknown_field_error
from closeloop.text.wording import matches_globs

# Remove the names of agents, models and variants from what reviewers see.


MASK = "[masked]"
MIN_NAME_CHARS = 3
"""Minimum length of a masked name: shorter ones are ordinary words, and agents do not know them."""
_GENERIC_NAME = re.compile(
    "agent|assistant|beta|chat|cli|code|coder|fast|file|flash|free|high|instruct|json|large|latest"
    "|light|local|low|max|mini|model|nano|open|plus|preview|pro|recorded|scripted|small|swe|test"
    "|text|thinking|toml|tool|turbo|ultra|yaml|yml",
    re.IGNORECASE,
)
"""Words of names that are also ordinary words."""
_NAME_WORD = re.compile(r"[A-Za-z]{3,}")
_VERSION = r"(?:[-_ ]?v?\d[\w.]*)*"
_ADDED_FILE_HEADS = ("diff --git ", "rename to ", "copy to ", "Binary files ")
"""Lines of a patch that name a file as it is after the change."""
_STRUCTURAL_FIELDS = ("lane", "call", "role", "intent", "action", "exit_from", "child")


class NameMask(Record):
    """The names that would reveal who made an attempt."""

    everywhere: tuple[str, ...]
    """Names of agents and models, in the forms they use for themselves."""
    variants: tuple[str, ...] = ()
    """Names of variants, which only people use: removed from prose, not from code."""

    def hide_in_words(self, text: str) -> str:
        """Return a message or a part of a trace without any of the names."""
        return _replace_names(text, (*self.everywhere, *self.variants))

    def hide_in_patch(self, patch: str, request: str) -> str:
        """Return a patch without the agents' names in the lines and files that it adds."""
        names = self._find_foreign_names(patch, request)
        lines = patch.split("\n")
        return "\n".join(_replace_names(line, names) if _is_added(line) else line for line in lines)

    def hide_in_paths(self, paths: Iterable[str], patch: str, request: str) -> tuple[str, ...]:
        """Return the files of a change, as the masked patch names them."""
        names = self._find_foreign_names(patch, request)
        return tuple(_replace_names(path, names) for path in paths)

    def _find_foreign_names(self, patch: str, request: str) -> tuple[str, ...]:
        """Return the names to hide: those that the request and the repository do not use
        themselves."""
        lines = (line for line in patch.split("\n") if line.startswith((" ", "-", "rename from ")))
        subject = "\n".join([request, *lines])
        return tuple(
            name for name in self.everywhere if not _compile_names((name,)).search(subject)
        )


def make_name_mask(variants: Iterable[Variant], models: Mapping[str, ModelSettings]) -> NameMask:
    """Return the mask for some variants; `models` are those that closeloop.toml names."""
    everywhere: dict[str, None] = {}
    variant_names: dict[str, None] = {}
    for variant in variants:
        settings = models.get(variant.model or "")
        configured = f"{settings.provider}/{settings.model}" if settings else ""
        for name in (variant.agent, variant.model or "", configured):
            everywhere |= dict.fromkeys(_name_forms(name))
        variant_names[variant.name] = None
    return NameMask(
        everywhere=tuple(name for name in everywhere if len(name) >= MIN_NAME_CHARS),
        variants=tuple(name for name in variant_names if len(name) >= MIN_NAME_CHARS),
    )


def mask_trace(trace: Trace, mask: NameMask) -> Trace:
    """Return the trace without names and without system prompts, which would reveal the variant."""
    events = tuple(
        _mask_event(event, mask)
        for event in trace.events
        if not (isinstance(event, Message) and event.role == "system")
    )
    lanes = tuple(msgspec.structs.replace(lane, agent=None, turns=()) for lane in trace.lanes)
    return msgspec.structs.replace(trace, reader="", lanes=lanes, events=events, skipped={})


def _mask_event(event: AnyEvent, mask: NameMask) -> AnyEvent:
    changed = {
        name: _mask_value(value, mask)
        for name in event.__struct_fields__
        if name not in _STRUCTURAL_FIELDS and isinstance(value := getattr(event, name), str | dict)
    }
    if isinstance(event, Handoff):
        changed["child"] = None
    return msgspec.structs.replace(event, **changed)


def _mask_value(value: Any, mask: NameMask) -> Any:
    if isinstance(value, str):
        return mask.hide_in_words(value)
    if isinstance(value, dict):
        return {key: _mask_value(item, mask) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_mask_value(item, mask) for item in value]
    return value


def _name_forms(name: str) -> list[str]:
    """Return a name such as `anthropic/claude-sonnet-4-5`, its last part, that part spaced, and its
    words."""
    last = re.split(r"[/:]", name)[-1]
    spaced = re.sub(r"[-_]+", " ", last)
    forms = (name, last, spaced, *_NAME_WORD.findall(name))
    return [form for form in forms if not _GENERIC_NAME.fullmatch(form)]


def _replace_names(text: str, names: tuple[str, ...]) -> str:
    return _compile_names(names).sub(MASK, text) if names else text


@lru_cache(64)
def _compile_names(names: tuple[str, ...]) -> re.Pattern[str]:
    alternatives = sorted({re.escape(name) for name in names}, key=len, reverse=True)
    pattern = rf"(?<![A-Za-z0-9])(?:{'|'.join(alternatives)}){_VERSION}(?![A-Za-z])"
    return re.compile(pattern, re.IGNORECASE)


def _is_added(line: str) -> bool:
    return line.startswith(("+", *_ADDED_FILE_HEADS))


# The questions to reviewers about an item, and what their answers mean.


YES_NO_KEYS = {"y": "yes", "n": "no"}
DEGREE_KEYS = {"y": "yes", "p": "partly", "n": "no"}
SCOPE_KEYS = {"y": "yes", "n": "no", "-": "none"}
DEFAULT_QUESTIONS = {
    "found-right-files": "Did it find the right files?",
    "asked-when-unclear": "Did it ask where the request was unclear, and only there?",
    "follows-conventions": "Does it follow the team's conventions?",
}
"""Questions on changes that no machine checks, until a team defines its own."""
ANSWER_FIELDS = (*ReviewAnswers.__struct_fields__, "reviewer", "at")
MAX_REVIEW_SECONDS = 86400.0
MAX_REVIEW_NOTE_CHARACTERS = 20_000
_YES_NO_FIELDS = ("contained", "approach", "merge")
_QUESTION_NAME = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*")
_CHECKED_QUESTIONS = (
    ReviewQuestion(
        name="contained", text="Is the change contained in the intended scope?", keys=YES_NO_KEYS
    ),
    ReviewQuestion(
        name="outside", text="Were files outside the scope changed correctly?", keys=SCOPE_KEYS
    ),
    ReviewQuestion(
        name="approach", text="Is this the approach the team would take?", keys=YES_NO_KEYS
    ),
    ReviewQuestion(name="merge", text="Merge it?", keys=YES_NO_KEYS),
)


def list_questions(
    settings: ReviewSettings, *, checked: bool, has_change: bool
) -> tuple[ReviewQuestion, ...]:
    """Return the questions: for checked work whether it fits in, for other work first if it is
    good."""
    accept = "Would you merge it as it is?" if has_change else "Would you use it as it is?"
    first = (ReviewQuestion(name="merge", text=accept, keys=YES_NO_KEYS),)
    default_questions = DEFAULT_QUESTIONS if has_change and not checked else {}
    return (
        *(_CHECKED_QUESTIONS if checked else first),
        *(
            ReviewQuestion(name=name, text=text, keys=DEGREE_KEYS, optional=True)
            for name, text in (_team_questions(settings) or default_questions).items()
        ),
        *(
            ReviewQuestion(
                name=name, text=f"{name.capitalize()}: good?", keys=DEGREE_KEYS, optional=True
            )
            for name in CRITERIA
        ),
    )


def scored_questions(settings: ReviewSettings) -> dict[str, str]:
    """Return the questions whose answers become scores of the same name."""
    return {**DEFAULT_QUESTIONS, **_team_questions(settings)}


def _team_questions(settings: ReviewSettings) -> Mapping[str, str]:
    """Return the team's own questions, each with a name that is valid for a score."""
    require_named_questions(settings)
    return settings.questions


def require_named_questions(settings: ReviewSettings, file: str = "closeloop.toml") -> None:
    """Raise BadInput, naming the file, for a question without text or with an invalid score
    name."""
    reserved_names = {*ANSWER_FIELDS, *CRITERIA, "would-merge", "csrf", "shown"}
    for name, text in settings.questions.items():
        if not _QUESTION_NAME.fullmatch(name):
            raise BadInput(
                f"{file}: the name of the question {name!r} must consist of lower-case "
                "letters, digits and '-', as in `no-new-dependency`."
            )
        if name in reserved_names:
            raise BadInput(f"{file}: the question {name!r} is a built-in question: rename it.")
        if not text.strip():
            raise BadInput(f"{file}: the question {name!r} has no text: add one.")


def get_answer(review: ReviewAnswers, name: str) -> str | None:
    """Return the answer to a question; None if it is open."""
    if name in _YES_NO_FIELDS:
        return {True: "yes", False: "no", None: None}[getattr(review, name)]
    if name == "outside":
        return review.outside
    for criterion, degree in review.dimensions.items():
        if criterion == name:
            return degree
    return review.answers.get(name)


def with_answer(review: HumanReview, name: str, answer: str | None) -> HumanReview:
    """Return the review with one question answered, or left open."""
    if name in _YES_NO_FIELDS:
        return replace(review, **{name: None if answer is None else answer == "yes"})
    if name == "outside":
        return replace(review, outside=answer)
    field = "dimensions" if name in CRITERIA else "answers"
    other_answers = {key: value for key, value in getattr(review, field).items() if key != name}
    return replace(
        review, **{field: other_answers if answer is None else {**other_answers, name: answer}}
    )


def require_complete_review(review: HumanReview, questions: Sequence[ReviewQuestion]) -> None:
    """Raise BadInput if a question is unanswered, or an answer has no question."""
    for question in questions:
        if not question.optional and get_answer(review, question.name) is None:
            raise BadInput(f"A required answer is missing: {question.text}")
    question_names = {question.name for question in questions} - {*CRITERIA}
    fields = (*_YES_NO_FIELDS, "outside")
    for name in (
        *(field for field in fields if getattr(review, field) is not None),
        *review.answers,
    ):
        if name not in question_names:
            raise BadInput(
                f"There is no question {name!r} about {review.item}. Known: "
                f"{', '.join(sorted(question_names - {*ANSWER_FIELDS})) or 'none'}."
            )
    if not review.reviewer.strip():
        raise BadInput("The reviewer is unknown: add --reviewer NAME.")


def read_answers(
    content: bytes, file: str, item: str | None, reviewer: str, now: datetime
) -> list[HumanReview]:
    """Read the answers for one or several items from JSON; reviewer and item may be given
    separately."""
    value = parse_json(content, file)
    objects = value if isinstance(value, list) else [value]
    if not objects or not all(isinstance(entry, dict) for entry in objects):
        raise BadInput(f"{file} must contain one JSON object with answers, or a list of them.")
    defaults = {"reviewer": reviewer, "at": now.isoformat(), **({"item": item} if item else {})}
    return [
        read_answer_object(
            {**defaults, **answers}, file if len(objects) == 1 else f"{file}, {number}"
        )
        for number, answers in enumerate(objects, 1)
    ]


def read_answer_object(answers: dict[str, Any], name: str) -> HumanReview:
    """Read the answers for one item; an error names the key or the value."""
    for key in answers:
        if key not in ANSWER_FIELDS:
            raise unknown_field_error(name, key, ANSWER_FIELDS)
    review = read_record(answers, HumanReview, name)
    for problem in _find_bad_values(review):
        raise BadInput(f"{name}: {problem}.")
    return review


def _find_bad_values(review: HumanReview) -> Iterator[str]:
    for criterion in review.dimensions:
        if criterion not in CRITERIA:
            yield f"no criterion {criterion!r}; known: {', '.join(CRITERIA)}"
    seconds = review.seconds
    if seconds is not None and not (math.isfinite(seconds) and 0 <= seconds <= MAX_REVIEW_SECONDS):
        yield f"'seconds', the duration of the review, must be from 0 to {MAX_REVIEW_SECONDS:.0f}"
    if len(review.notes) > MAX_REVIEW_NOTE_CHARACTERS:
        yield f"'notes' has more than {MAX_REVIEW_NOTE_CHARACTERS:,} characters: shorten it"


# What a reviewer sees of an item: the request, the result, and the questions.


MAX_NUMBER_DIGITS = 9
SIDE_LABELS = "ABCD"
"""Labels of attempts at one task shown side by side; their number is the maximum."""


class ReviewQueue(Record):
    """An open queue: the store, and the settings of reviews and agents."""

    store: Store
    settings: Settings
    agents: AgentSignsByName
    known: tuple[str, ...] | None = None
    """Waiting items, if already loaded."""


def load_review_item(queue: ReviewQueue, name: str) -> ReviewItem:
    """Load an item: a pull request as `owner/name#12`, or an attempt."""
    repo, separator, number = name.rpartition("#")
    if separator and number.isdecimal() and len(number) <= MAX_NUMBER_DIGITS:
        return _item_from_pull(queue, repo, int(number))
    return _item_from_attempt(queue, name)


def _item_from_attempt(queue: ReviewQueue, name: str) -> ReviewItem:
    """Return an attempt as an item that does not reveal its variant; in an experiment, a
    comparison."""
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
    """Return all attempts at the same task, if they are part of an experiment."""
    if attempt.origin != "experiment" or attempt.task_digest is None:
        return []
    return store.list_attempts(task_digests=[attempt.task_digest])


def _choose_peers(rows: Sequence[AttemptRow], attempt: Attempt) -> list[str]:
    """Return the attempt and those of other variants at the same repeat, to compare side by side.

    In random order, so that the order reveals nothing.
    """
    compared = [
        row
        for row in rows
        if row.number == attempt.number
        and row.is_for_review
        and row.replay_of is None
        and not row.is_control
    ]
    by_variant = {row.variant: row.id for row in sorted(compared, key=lambda row: row.retry)}
    peers = sort_by_lot(by_variant.values())
    if attempt.id not in peers or len(peers) == 1:
        return []
    shown_peers = peers[: len(SIDE_LABELS)]
    return shown_peers if attempt.id in shown_peers else [*shown_peers[:-1], attempt.id]


def sort_by_lot(attempts: Iterable[str]) -> list[str]:
    """Return the attempts in a random but stable order that reveals nothing about who made
    which."""
    return sorted(attempts, key=lambda name: stable_fraction("side", name))


def _mask_variants(queue: ReviewQueue, rows: Sequence[AttemptRow]) -> NameMask:
    """Return a mask of the names of all variants that tried a task, so that none reveals its
    work."""
    variants = map(queue.store.load_variant, {row.variant for row in rows if row.variant})
    return make_name_mask(filter(None, variants), queue.settings.models)


def _load_output(
    store: Store, name: str, request: str, mask: NameMask, label: str = ""
) -> ReviewOutput:
    attempt = store.load_attempt(name)
    change = store.load_change(name) or Change()
    exit_note = "" if attempt.exit == "finished" else attempt.exit.replace("_", " ")
    if exit_note and attempt.cause:
        exit_note = f"{exit_note}: {attempt.cause}"
    return ReviewOutput(
        label=label,
        files=mask.hide_in_paths((file.path for file in change.files), change.patch, request),
        patch=mask.hide_in_patch(change.patch, request),
        answer=mask.hide_in_words(attempt.summary or ""),
        ended=mask.hide_in_words(exit_note),
    )


def load_blind_trace(queue: ReviewQueue, name: str, label: str = "") -> Trace | None:
    """Return the masked trace of an attempt, or of the one with that label beside it."""
    attempt = queue.store.load_attempt(name)
    load_open_task(queue.store, attempt)
    rows = _list_task_rows(queue.store, attempt)
    peers = dict(zip(SIDE_LABELS, _choose_peers(rows, attempt), strict=False))
    if label and label not in peers:
        raise BadInput(f"There is no attempt {label!r} to compare with {attempt.id}.")
    trace = queue.store.load_trace(peers.get(label, attempt.id))
    return trace and mask_trace(trace, _mask_variants(queue, rows))


def _describe_grade(grade: Grade | None) -> str:
    if grade is None:
        return "not graded"
    fixed, still_passing = grade.fail_to_pass, grade.pass_to_pass
    parts = [f"{fixed[0]} of {fixed[1]} tests fixed"] if fixed else []
    parts += [f"{still_passing[0]} of {still_passing[1]} still pass"] if still_passing else []
    return ", ".join(parts) or grade.outcome.result


def _suggest_modes(grade: Grade | None) -> tuple[FailureMode, ...]:
    modes: list[FailureMode] = []
    if grade and grade.out_of_scope:
        modes.append("scope creep")
    if grade and grade.broken:
        modes.append("silent regression")
    return tuple(modes)


def _item_from_pull(queue: ReviewQueue, repo: str, number: int) -> ReviewItem:
    from closeloop.reviews.pull_lifecycle import load_pull, load_pull_change

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
        # The page at the code host shows the author.
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
    """Return the task; raise BadInput if it is sealed."""
    task = store.load_task(attempt.task_digest) if attempt.task_digest else None
    require_unsealed(task)
    return task


def _is_in_trial(store: Store, names: set[str | None]) -> bool:
    trials = store.trials
    return any(
        assignment.key in names
        for trial in trials.list_trial_names()
        for assignment in trials.list_assignments(trial)
    )


def _collect_suggested_modes(corrections: Sequence[Correction]) -> tuple[FailureMode, ...]:
    """Return the failure modes that people's remarks so far suggest."""
    return tuple(dict.fromkeys(mode for correction in corrections for mode in correction.suggested))


# Assignment of items to reviewers: one at a time, some twice, some with a known answer.

CLAIM_DURATION = timedelta(hours=24)
"""Time after which a claimed but unfinished item is free again."""
_cached_fraction = lru_cache(1 << 17)(stable_fraction)


class QueueState(Record):
    """The state of the queue when a reviewer asks for an item."""

    waiting: tuple[str, ...]
    """Items in order of arrival."""
    golden: frozenset[str] = frozenset()
    reviews: tuple[HumanReview, ...] = ()
    assigned: tuple[ReviewAssignment, ...] = ()
    policy: ReviewSettings = ReviewSettings()
    now: datetime


class QueueClaims(Record):
    """Which reviewers claimed or were assigned which items."""

    at: dict[str, set[str]]
    named: dict[str, set[str]]


def collect_claims(queue_state: QueueState) -> QueueClaims:
    """Collect all claims once, for any number of later lookups."""
    reviewers_by_item: dict[str, set[str]] = {}
    assignees_by_item: dict[str, set[str]] = {}
    for review in queue_state.reviews:
        reviewers_by_item.setdefault(review.item, set()).add(review.reviewer)
    for assignment in queue_state.assigned:
        if queue_state.now - assignment.at < CLAIM_DURATION:
            reviewers_by_item.setdefault(assignment.item, set()).add(assignment.reviewer)
        if assignment.asked:
            assignees_by_item.setdefault(assignment.item, set()).add(assignment.reviewer)
    return QueueClaims(at=reviewers_by_item, named=assignees_by_item)


def needs_two_reviews(item: str, policy: ReviewSettings) -> bool:
    """Return whether two people review an item: random, and hidden from the reviewers."""
    return _cached_fraction("double", policy.seed, item) < policy.double


def choose_next_item(queue_state: QueueState, reviewer: str) -> str | None:
    """Return the reviewer's next item: a draft, one assigned or claimed, then a golden or free
    one."""
    own_states = {
        review.item: review.state for review in queue_state.reviews if review.reviewer == reviewer
    }
    drafts = [item for item, state in own_states.items() if state == "draft"]
    if drafts:
        return drafts[-1]
    known_items = {*queue_state.waiting, *queue_state.golden}
    own_assignments = [
        assignment for assignment in queue_state.assigned if assignment.reviewer == reviewer
    ]
    claimed = [
        assignment
        for assignment in own_assignments
        if not assignment.asked and queue_state.now - assignment.at < CLAIM_DURATION
    ]
    for candidate in (*(candidate for candidate in own_assignments if candidate.asked), *claimed):
        if candidate.item not in own_states and candidate.item in known_items:
            return candidate.item
    done_count = sum(state == "done" for state in own_states.values())
    seed = queue_state.policy.seed
    golden = sorted(
        queue_state.golden - own_states.keys(),
        key=lambda item: _cached_fraction(seed, reviewer, item),
    )
    if (
        golden
        and _cached_fraction("golden", seed, reviewer, done_count) < queue_state.policy.golden
    ):
        return golden[0]
    return next(list_free_items(queue_state, reviewer), None)


def list_free_items(queue_state: QueueState, reviewer: str) -> Iterator[str]:
    """Yield the items that need a reviewer and may go to this one, in order of arrival."""
    claims = collect_claims(queue_state)
    own_items = {review.item for review in queue_state.reviews if review.reviewer == reviewer}
    for item in queue_state.waiting:
        if item in queue_state.golden or item in own_items:
            continue
        if item in claims.named and reviewer not in claims.named[item]:
            continue
        other_reviewers = claims.at.get(item, set()) - {reviewer}
        if not other_reviewers or (
            len(other_reviewers) == 1 and needs_two_reviews(item, queue_state.policy)
        ):
            yield item


BLOCKING_RESULTS = ("failed", "running")
"""Check results with which a change is not shown to reviewers."""


def next_item(
    queue: ReviewQueue, reviewer: str, now: datetime, *, take: bool = True
) -> ReviewItem | None:
    """Return the reviewer's next item; with `take`, it is claimed for a day."""
    if not reviewer.strip():
        raise BadInput("The reviewer is unknown: add --reviewer NAME.")
    queue_state = load_queue_state(queue, now)
    item = choose_next_item(queue_state, reviewer)
    if item is None:
        return None
    is_assigned = any(
        assignment.item == item and assignment.reviewer == reviewer
        for assignment in queue_state.assigned
    )
    if take and not is_assigned:
        queue.store.reviews.add_assignment(ReviewAssignment(item=item, reviewer=reviewer, at=now))
    return load_review_item(queue, item)


def load_draft(queue: ReviewQueue, item: str, reviewer: str) -> HumanReview | None:
    """Return a reviewer's answers on an item so far."""
    return next(iter(queue.store.reviews.list_reviews(item=item, reviewer=reviewer)), None)


def save_draft(queue: ReviewQueue, review: HumanReview) -> None:
    """Save incomplete answers."""
    from closeloop.text.redaction import redact_record

    queue.store.reviews.save_review(replace(redact_record(review)[0], item=review.item))


def submit_review(queue: ReviewQueue, review: HumanReview) -> None:
    """Save a review; its answers also become labels for judges, and corrections to learn from."""
    submit_reviews(queue, [review])


def submit_reviews(queue: ReviewQueue, reviews: Sequence[HumanReview]) -> None:
    """Save the answers for several items: all, or none if one of them is invalid."""
    reviewed_items = [load_review_item(queue, review.item) for review in reviews]
    for review, reviewed in zip(reviews, reviewed_items, strict=True):
        require_complete_review(review, reviewed.questions)
    for review, reviewed in zip(reviews, reviewed_items, strict=True):
        _save_review(queue, review, reviewed)


def _save_review(queue: ReviewQueue, review: HumanReview, reviewed: ReviewItem) -> None:
    from closeloop.reviews.review_corrections import corrections_from_review
    from closeloop.text.redaction import redact_record

    review = replace(redact_record(review)[0], item=reviewed.id)
    store = queue.store
    store.reviews.save_review(review)
    store.judged.save_labels(labels_from_review(review, queue.settings.judge.rubric))
    golden = review.item in list_golden_items(queue)
    store.memory.save_corrections([] if golden else corrections_from_review(review, reviewed))
    store.events.add(
        [
            LogEvent(
                kind="review.answered",
                at=review.at,
                repo=reviewed.repo,
                attempt=review.item if reviewed.kind == "attempt" else None,
                details={"item": review.item, "reviewer": review.reviewer, "merge": review.merge},
            )
        ]
    )


def assign_reviewer(queue: ReviewQueue, item: str, reviewer: str, now: datetime) -> None:
    """Assign an item to a reviewer; it is not offered to others then."""
    review_item = load_review_item(queue, item)
    queue.store.reviews.add_assignment(
        ReviewAssignment(item=review_item.id, reviewer=reviewer, at=now, asked=True)
    )


def queue_status(queue: ReviewQueue, reviewer: str, now: datetime) -> QueueStatus:
    """Return how much there is to review, and for whom."""
    queue_state = load_queue_state(queue, now)
    done_items = {review.item for review in queue_state.reviews if review.state == "done"}
    return QueueStatus(
        items=len(queue_state.waiting),
        reviewed=len(done_items & {*queue_state.waiting}),
        doubled=sum(needs_two_reviews(item, queue_state.policy) for item in queue_state.waiting),
        golden=len(queue_state.golden),
        without_change=len(list_pulls_awaiting_change(queue.store)),
        mine=sum(1 for _ in list_free_items(queue_state, reviewer)),
    )


def load_queue_state(queue: ReviewQueue, now: datetime) -> QueueState:
    store = queue.store
    return QueueState(
        waiting=tuple(list_waiting_items(store)) if queue.known is None else queue.known,
        golden=frozenset(list_golden_items(queue)),
        reviews=tuple(store.reviews.list_reviews()),
        assigned=tuple(store.reviews.list_assignments()),
        policy=queue.settings.review,
        now=now,
    )


def list_waiting_items(store: Store) -> list[str]:
    """Return the items that passed stage 1 and wait for a person.

    These are open pull requests without a failing or running check, attempts that no machine
    checks, and attempts graded as passed. Excluded are work on held-out tasks and pull requests
    whose diff is not stored.
    """
    names = [f"{row.repo}#{row.pull}" for row in _list_ready_pulls(store, has_change=True)]
    names += _list_unchecked_attempts(store)
    names += [name for name, _ in store.counts.list_passed_attempts()]
    hidden = hidden_items(store)
    return [name for name in names if name not in hidden]


def list_pulls_awaiting_change(store: Store) -> list[str]:
    """Return the pull requests that would wait for a person if their diff were stored."""
    return [f"{row.repo}#{row.pull}" for row in _list_ready_pulls(store, has_change=False)]


def _list_ready_pulls(store: Store, *, has_change: bool) -> list[PullRow]:
    rows = store.pulls.list_pulls(state="open", agent=True, has_change=has_change)
    return [
        row for row in reversed(rows) if not row.draft and row.last_push not in BLOCKING_RESULTS
    ]


def _list_unchecked_attempts(store: Store) -> list[str]:
    """Return attempts that only people and judges score; those shown together are adjacent."""
    groups: dict[tuple[str | None, int], list[str]] = {}
    for row in store.counts.list_unchecked_attempts():
        groups.setdefault((row.task_digest, row.number), []).append(row.attempt)
    return [name for group in groups.values() for name in sort_by_lot(group)]


def hidden_items(store: Store) -> set[str]:
    """Return the work on held-out tasks, and the pull requests that came from it."""
    from closeloop.reviews.agent_context import hidden_attempts

    hidden = hidden_attempts(store)
    rows = store.pulls.list_pulls(agent=True) if hidden else ()
    return hidden | {f"{row.repo}#{row.pull}" for row in rows if row.attempt in hidden}


def list_golden_items(queue: ReviewQueue) -> set[str]:
    """Return the items whose correct answers are known by other means."""
    labels = queue.store.judged.list_labels(queue.settings.judge.rubric)
    golden = {label.item for label in labels if label.golden and label.asked == "overall"}
    return golden - hidden_items(queue.store) if golden else golden


def labels_from_review(review: HumanReview, rubric: str) -> list[HumanLabel]:
    """Return the calibration labels of a review; `partly` gives none."""
    answers: dict[JudgedAspect, AnswerDegree] = {"overall": "yes" if review.merge else "no"}
    answers.update(review.dimensions.items())
    return [
        HumanLabel(
            item=review.item,
            rubric=rubric,
            asked=aspect,
            label="pass" if degree == "yes" else "fail",
            person=review.reviewer,
            at=review.at,
        )
        for aspect, degree in answers.items()
        if degree != "partly"
    ]
