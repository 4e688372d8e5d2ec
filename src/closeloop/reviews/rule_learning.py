"""Learn from people's feedback on agents' work: corrections, rules and repeats.

pull requests and reviews ──► corrections ──► does it restate an active rule? repeats
└─► is it a rule of its own? proposed
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any

import anyio
import anyio.to_thread
from msgspec.structs import asdict, replace

from closeloop.providers.structured_reply import ask_json
from closeloop.records.errors import Fault, MachineFailed
from closeloop.records.protocols import Model
from closeloop.records.pull_request import Correction, Delivery, PullRequest, PullRow
from closeloop.records.record import Record, content_digest
from closeloop.records.team_rules import (
    ContextRecord,
    RepeatedRemark,
    RuleExample,
    RuleMatch,
    RuleParts,
    TeamRule,
)
from closeloop.records.trace import ChatMessage, ModelRequest
from closeloop.reviews.authorship import AgentSignsByName
from closeloop.reviews.pull_lifecycle import load_pull
from closeloop.reviews.remark_polarity import comparable_words, compare_remarks
from closeloop.reviews.review_corrections import (
    corrections_from_findings,
    example_from_remark,
    review_note_id,
)
from closeloop.reviews.rule_index import (
    ModelOpinion,
    RuleIndex,
    apply_opinion,
    build_rule,
    count_repeats,
    find_repeats,
    is_worded_remark,
    keep_to_confirmed,
    propose_rule,
    select_new_repeats,
    withdraw_repeats,
)
from closeloop.store import Store
from closeloop.store.fact_rows import current_owner, is_owner_dead
from closeloop.text.untrusted import DATA_RULE, fence_texts

# A model's opinion: how to word a remark as a rule, and whether it restates another.
#
# Remarks are data: they are fenced, the answer has a schema, and a program validates it before it
# is used.

MAX_SHOWN_CHARS = 2_000
MAX_RULE_CHARS = 300
RULE_PROMPT = (
    "You are given a reviewer's remark on a change to a program. If it asks for something that "
    "holds beyond this one change, put it into one short imperative sentence that the author of "
    "another change can follow, in the remark's language; keep names of code, and keep what is "
    "wanted wanted and what is not wanted unwanted. Otherwise say that it teaches nothing. "
    f"{DATA_RULE}"
)
SAME_PROMPT = (
    "You are given a rule and a reviewer's remark. Say `same` if whoever follows the rule would "
    "have made the remark unnecessary, `opposite` if the remark wants what the rule forbids or "
    f"forbids what it wants, and `other` in every other case. {DATA_RULE}"
)
_TEXT_SCHEMA = {"type": "string"}
RULE_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "teaches": {"type": "boolean"},
        "rule": _TEXT_SCHEMA,
        "verb": _TEXT_SCHEMA,
        "object": _TEXT_SCHEMA,
        "scope": _TEXT_SCHEMA,
        "polarity": {"type": "string", "enum": ["do", "avoid"]},
    },
    "required": ["teaches", "rule", "verb", "object", "scope", "polarity"],
    "additionalProperties": False,
}
SAME_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"relation": {"type": "string", "enum": ["same", "opposite", "other"]}},
    "required": ["relation"],
    "additionalProperties": False,
}


async def reword_as_rule(
    model: Model, example: RuleExample, plain: TeamRule | None
) -> TeamRule | None:
    """Return the rule in a model's words, or the pattern-based one if those invert the remark."""
    value = await _ask_model(model, RULE_PROMPT, {"remark": example.text}, RULE_SCHEMA)
    if value is None:
        return plain
    text = " ".join(str(value["rule"]).split())
    if not value["teaches"]:
        return None
    if (
        not comparable_words(text)
        or len(text) > MAX_RULE_CHARS
        or compare_remarks(text, example.text) == "opposite"
    ):
        return plain
    parts = RuleParts(
        verb=value["verb"][:MAX_RULE_CHARS] or None,
        object=value["object"][:MAX_RULE_CHARS],
        scope=value["scope"][:MAX_RULE_CHARS] or None,
        polarity=value["polarity"],
        by="model",
    )
    return replace(build_rule(text, example), canonical=parts)


async def ask_opinion(model: Model, rule: str, remark: str) -> ModelOpinion | None:
    """Ask a model how a remark relates to a rule; None if it gives no answer."""
    value = await _ask_model(model, SAME_PROMPT, {"rule": rule, "remark": remark}, SAME_SCHEMA)
    answer: ModelOpinion | None = value and value["relation"]
    return answer


async def _ask_model(model: Model, system: str, texts: dict[str, str], schema: Any) -> Any:
    message = ChatMessage(role="user", text=fence_texts(texts, max_chars=MAX_SHOWN_CHARS))
    request = ModelRequest(messages=(message,), system=system, schema=schema, temperature=0.0)
    try:
        return (await ask_json(model, request)).value
    except MachineFailed:
        return None


class LearningSummary(Record):
    """The result of one learning pass over the reviews."""

    pulls: int = 0
    """Pull requests that changed and were processed."""
    corrections: int = 0
    proposed: int = 0
    examples: int = 0
    """Remarks that became another example of a rule."""
    repeated: int = 0
    candidates: int = 0
    """Remarks that may restate a rule, for a person to review."""
    compared: int = 0
    """Remarks compared with what had been said before the work."""
    withdrawn: int = 0
    """Corrections whose comment or commit is gone, withdrawn with what they taught."""


class LearningContext(Record):
    """What learning works with: the rule index, the known agents and a model."""

    shelf: RuleIndex
    agents: AgentSignsByName
    model: Model | None = None
    always: bool = False
    """Whether new rules are active at once."""
    stopped: Callable[[], bool] = bool
    """Returns whether to leave the rest for the next run."""

    @property
    def store(self) -> Store:
        return self.shelf.store


class ChangedPull(Record):
    """A pull request with something new to learn from."""

    row: PullRow
    about: str
    """Digest of what arrived about it, to detect changes."""


def list_changed_pulls(context: LearningContext, repo: str | None) -> Iterator[ChangedPull]:
    """Yield every agent's pull request with something new to learn from, oldest first.

    What counts is when data arrived, not when it happened: a comment may arrive after later ones.
    """
    store = context.store
    positions = store.events.list_positions("memory:")
    arrived, findings = store.memory.fact_markers(), store.memory.finding_markers()
    rows = store.pulls.list_pulls(repo=repo, agent=True)
    for row in sorted(rows, key=lambda row: (row.opened, row.repo, row.pull)):
        markers = f"{arrived.get((row.repo, row.pull))} {findings.get(row.attempt or '', '')}"
        changed = ChangedPull(row=row, about=content_digest(markers, row))
        if positions.get(_pull_place(row)) != _progress_mark(context.shelf, changed):
            yield changed


def mark_pull_learned(context: LearningContext, changed: ChangedPull) -> None:
    """Save how far learning has come with a pull request."""
    progress = _progress_mark(context.shelf, changed)
    context.store.events.save_position(_pull_place(changed.row), progress)


def _pull_place(row: PullRow) -> str:
    return f"memory:{row.repo}#{row.pull}"


def _progress_mark(rule_index: RuleIndex, changed: ChangedPull) -> str:
    """Return a marker that changes if more data arrived, or more had been said before the work."""
    row = changed.row
    count, digest = rule_index.texts_before(row.repo, row.opened)
    return f"{changed.about[:12]} {count} {digest} {rule_index.encoder.id}"


class ChangedNote(Record):
    """A note in the review queue that is new or changed."""

    correction: Correction
    began: datetime
    """When the work that it is about began."""


def list_changed_notes(context: LearningContext, repo: str | None) -> Iterator[ChangedNote]:
    """Yield people's notes in the queue, again after each change."""
    store = context.store
    reviews = {
        review_note_id(review): review
        for review in store.reviews.list_reviews()
        if review.state == "done"
    }
    positions = store.events.list_positions("memory:") if reviews else {}
    for note in store.memory.list_corrections(repo=repo) if reviews else ():
        review = reviews.get(note.id)
        if review is not None and positions.get(f"memory:{note.id}") != _note_mark(note):
            yield ChangedNote(correction=note, began=_work_started_at(store, note) or review.at)


def mark_note_learned(context: LearningContext, changed: ChangedNote) -> None:
    """Save that a note was learned from, in its current form."""
    note = changed.correction
    context.store.events.save_position(f"memory:{note.id}", _note_mark(note))


def _note_mark(note: Correction) -> str:
    return content_digest(note.text, note.tags)[:16]


def _work_started_at(store: Store, note: Correction) -> datetime | None:
    """Return when the work that a note is about began."""
    if note.pull is not None:
        row = store.pulls.load_pull(note.repo, note.pull)
        return row.opened if row else None
    return store.load_attempt(note.attempt).started if note.attempt else None


async def learn_from_findings(
    context: LearningContext, pull: PullRequest, given_context: ContextRecord | None
) -> LearningSummary:
    """Record whether a judge or a check found again what reviewers had said and people accepted."""
    total = LearningSummary()
    for finding in corrections_from_findings(context.store, pull):
        summary = await record_repeats(
            context, finding, pull.opened, given_context, active_only=True
        )
        total = add_summaries(total, replace(summary, compared=0))
    return total


async def learn_from_corrections(
    context: LearningContext,
    corrections: Sequence[Correction],
    started_at: datetime,
    given_context: ContextRecord | None,
    *,
    relearn: bool = False,
) -> LearningSummary:
    """Save the corrections of one piece of work, with what they repeat and propose.

    A correction is saved after all that was learned from it, so an interrupted run repeats it
    without harm. Corrections known in the same words make no rule again, unless `relearn` is set.
    """
    if not corrections:
        return LearningSummary()
    memory = context.store.memory
    stored = {
        correction.id: correction
        for correction in memory.list_corrections(
            repo=corrections[0].repo, pull=corrections[0].pull
        )
    }
    total = LearningSummary()
    for new_correction in corrections:
        before = stored.get(new_correction.id)
        if is_worded_remark(new_correction):
            total = add_summaries(
                total, await record_repeats(context, new_correction, started_at, given_context)
            )
            if relearn or before is None or before.text != new_correction.text:
                context.shelf.withdraw_examples(
                    new_correction.id,
                    new_correction.repo or None,
                    new_correction.text,
                    context.always,
                )
                total = add_summaries(total, await _learn_rule(context, new_correction))
        if before != new_correction:
            memory.save_corrections([new_correction])
            is_new = before is None or before.text != new_correction.text
            total = add_summaries(total, LearningSummary(corrections=int(is_new)))
    return total


def withdraw_corrections(
    context: LearningContext, pull: PullRequest, corrections: Sequence[Correction]
) -> LearningSummary:
    """Withdraw what was learned from comments and commits that no longer exist."""
    memory = context.store.memory
    current_ids = {current.id for current in corrections}
    reviewed = {review_note_id(review) for review in context.store.reviews.list_reviews()}
    withdrawn = [
        replace(correction, withdrawn=True)
        for correction in memory.list_corrections(repo=pull.repo, pull=pull.number)
        if correction.id not in current_ids and correction.id not in reviewed
    ]
    known_repeats = memory.list_repeats(repo=pull.repo, pull=pull.number) if withdrawn else []
    for removed in withdrawn:
        context.shelf.withdraw_examples(removed.id, removed.repo or None, None, context.always)
        memory.save_repeats(withdraw_repeats(removed, (), known_repeats))
        memory.save_corrections([removed])
    return LearningSummary(withdrawn=len(withdrawn))


async def record_repeats(
    context: LearningContext,
    remark: Correction,
    started_at: datetime,
    given_context: ContextRecord | None,
    *,
    active_only: bool = False,
) -> LearningSummary:
    """Save which rules a remark repeats, of those said before the work began."""
    memory = context.store.memory
    repo = remark.repo or None
    matches = context.shelf.find_restated(remark.text, repo, remark.path, started_at)
    matches = [match for match in matches if match.rule.state == "active" or not active_only]
    known_repeats = memory.list_repeats(repo=remark.repo, pull=remark.pull)
    candidates = find_repeats(remark, matches, started_at, context.shelf.encoder.id, given_context)
    candidates = keep_to_confirmed(remark, candidates, known_repeats)
    new_repeats = await _add_opinions(
        context.model, select_new_repeats(candidates, known_repeats), matches
    )
    memory.save_repeats([*new_repeats, *withdraw_repeats(remark, candidates, known_repeats)])
    counts = count_repeats(new_repeats)
    texts, _ = context.shelf.texts_before(remark.repo, started_at)
    return LearningSummary(
        repeated=counts.repeated, candidates=counts.unconfirmed, compared=int(texts > 0)
    )


async def _add_opinions(
    model: Model | None, new_repeats: Sequence[RepeatedRemark], matches: Sequence[RuleMatch]
) -> list[RepeatedRemark]:
    """Add a model's opinion to each, if there is a model."""
    if model is None:
        return list(new_repeats)
    by_rule = {match.rule.id: match for match in matches}
    repeats = []
    for repeat in new_repeats:
        rule_match = by_rule[repeat.rule]
        model_opinion = await ask_opinion(model, rule_match.rule.text, repeat.text)
        repeats.append(
            repeat if model_opinion is None else apply_opinion(repeat, rule_match, model_opinion)
        )
    return repeats


async def _learn_rule(context: LearningContext, remark: Correction) -> LearningSummary:
    """Save a remark as another example of a known rule, or as a proposed rule.

    The rule depends only on the remark's words and on people's decisions, so the order of remarks
    does not matter.
    """
    example = example_from_remark(remark)
    rule_index, repo = context.shelf, remark.repo or None
    if any(
        example.text == remark.text
        for rule in rule_index.rules_of_example(remark.id, repo)
        for example in rule.examples
        if example.key == remark.id
    ):
        return LearningSummary()
    edited_rule = rule_index.find_touched(remark.text, repo, remark.path)
    if edited_rule is not None:
        rule_index.add_example(replace(edited_rule, examples=(example,)), always=context.always)
        return LearningSummary(examples=1)
    rule = propose_rule(example)
    if context.model is not None:
        rule = await reword_as_rule(context.model, example, rule)
    if rule is None:
        return LearningSummary()
    is_new = rule_index.add_example(rule, always=context.always)
    return LearningSummary(proposed=1) if is_new else LearningSummary(examples=1)


def find_context_record(store: Store, pull: PullRequest) -> ContextRecord | None:
    """Return the context that the agent got before its work, if it was logged."""
    keys = [key for key in (pull.attempt, pull.branch, pull.task) if key]
    offers = store.memory.list_offers(pull.repo, keys)
    return offers[-1] if offers else None


def update_delivery(store: Store, pull: PullRequest, *, compared: bool = True) -> None:
    """Save how many remarks on a piece of work repeat known rules.

    Zero is saved only if there was something to compare them with.
    """
    if pull.attempt is None:
        return
    counts = count_repeats(store.memory.list_repeats(repo=pull.repo, pull=pull.number))
    before = store.pulls.load_delivery(pull.attempt) or Delivery(attempt=pull.attempt, at=pull.told)
    updated = replace(
        before,
        repeated=counts.repeated if compared else None,
        repeated_unconfirmed=counts.unconfirmed if compared else None,
    )
    if asdict(updated) != asdict(before):
        store.pulls.save_delivery(updated)


def recount_repeats(store: Store, decided: RepeatedRemark, agents: AgentSignsByName) -> None:
    """Count the repeats of a pull request again, after a person decided on one."""
    if decided.pull is None or store.pulls.load_pull(decided.repo, decided.pull) is None:
        return
    update_delivery(store, load_pull(decided.repo, decided.pull, store, agents))


def was_compared(context: LearningContext, pull: PullRequest) -> bool:
    """Return whether any rule existed before a piece of work, for remarks on it to repeat."""
    return context.shelf.texts_before(pull.repo, pull.opened)[0] > 0


def add_summaries(*parts: LearningSummary) -> LearningSummary:
    names = LearningSummary.__struct_fields__
    return LearningSummary(**{name: sum(getattr(part, name) for part in parts) for name in names})


# Learn in the background of a server: whenever there is news, in one process at a time.

LEARNING_JOB = "memory:learning"
LEASE_SECONDS = 300.0
LOOK_SECONDS, TROUBLED_SECONDS = 1.0, 60.0
IDLE_FACTOR = 9
"""Learning pauses this many times as long as it worked, so that receiving has priority."""
_log = logging.getLogger(__name__)


async def run_learning_worker(store: Store, learn: Callable[[], object]) -> None:
    """Learn whenever there is news, until cancelled; failures are retried, and logged once."""
    last_news: tuple[object, ...] | None = None
    last_error = ""
    while True:
        pause = LOOK_SECONDS
        try:
            news = await anyio.to_thread.run_sync(store.memory.learning_marker)
            if news != last_news:
                busy_seconds = await anyio.to_thread.run_sync(learn_once, store, learn)
                if busy_seconds is not None:
                    last_news, last_error = news, ""
                    pause = max(pause, IDLE_FACTOR * busy_seconds)
        except Exception as error:
            pause = TROUBLED_SECONDS
            if str(error) != last_error:
                is_fault = isinstance(error, Fault)
                _log.warning("Nothing is learned from reviews: %s", error, exc_info=not is_fault)
                last_error = str(error)
        await anyio.sleep(pause)


def learn_once(store: Store, learn: Callable[[], object]) -> float | None:
    """Learn once, and return the CPU seconds used; None while another process learns."""
    if not store.claim_job(LEARNING_JOB, current_owner(), LEASE_SECONDS, is_owner_dead):
        return None
    started = time.thread_time()
    try:
        learn()
    finally:
        store.release_jobs(current_owner(), LEARNING_JOB)
    return time.thread_time() - started
