"""What reviewers are asked about an item, and what their answers come to."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from msgspec.structs import replace

from closeloop.records.errors import BadInput
from closeloop.records.evaluation import CRITERIA
from closeloop.records.settings import ReviewSettings
from closeloop.records.team_rules import HumanReview, ReviewAnswers, ReviewQuestion
from closeloop.text.record_reading import parse_json, read_record, unknown_field_error

YES_NO_KEYS = {"y": "yes", "n": "no"}
DEGREE_KEYS = {"y": "yes", "p": "partly", "n": "no"}
SCOPE_KEYS = {"y": "yes", "n": "no", "-": "none"}
DEFAULT_QUESTIONS = {
    "found-right-files": "Did it find the right files?",
    "asked-when-unclear": "Did it ask where the request was unclear, and only there?",
    "follows-conventions": "Does it follow the team's conventions?",
}
"""Asked of changes that no machine checks, until a team has questions of its own."""
ANSWER_FIELDS = (*ReviewAnswers.__struct_fields__, "reviewer", "at")
MAX_REVIEW_SECONDS = 86400.0
_YES_NO_FIELDS = ("contained", "approach", "merge")
_QUESTION_NAME = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*")
_CHECKED_QUESTIONS = (
    ReviewQuestion(
        name="contained",
        text="Is the change contained in the intended scope?",
        keys=YES_NO_KEYS,
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
    """What is asked: of checked work whether it fits in, of other work first if it is any good."""
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
    """The questions whose answers become scores of their own names."""
    return {**DEFAULT_QUESTIONS, **_team_questions(settings)}


def _team_questions(settings: ReviewSettings) -> Mapping[str, str]:
    """The team's own, each with a name that can become a score's."""
    require_named_questions(settings)
    return settings.questions


def require_named_questions(settings: ReviewSettings, file: str = "closeloop.toml") -> None:
    """BadInput, which names the file, for a question without words or a name that is no score's."""
    taken = {*ANSWER_FIELDS, *CRITERIA, "would-merge", "csrf", "shown"}
    for name, text in settings.questions.items():
        if not _QUESTION_NAME.fullmatch(name):
            raise BadInput(
                f"{file}: the question {name!r} must be named in small letters, digits "
                "and '-', as in `no-new-dependency`."
            )
        if name in taken:
            raise BadInput(f"{file}: the question {name!r} is asked anyway: rename it.")
        if not text.strip():
            raise BadInput(f"{file}: the question {name!r} says nothing: write it out.")


def get_answer(review: ReviewAnswers, name: str) -> str | None:
    """The word that answers a question; None where it is open."""
    if name in _YES_NO_FIELDS:
        return {True: "yes", False: "no", None: None}[getattr(review, name)]
    if name == "outside":
        return review.outside
    for criterion, degree in review.dimensions.items():
        if criterion == name:
            return degree
    return review.answers.get(name)


def with_answer(review: HumanReview, name: str, word: str | None) -> HumanReview:
    """The review with one question answered, or left open."""
    if name in _YES_NO_FIELDS:
        return replace(review, **{name: None if word is None else word == "yes"})
    if name == "outside":
        return replace(review, outside=word)
    field = "dimensions" if name in CRITERIA else "answers"
    others = {key: kept for key, kept in getattr(review, field).items() if key != name}
    return replace(review, **{field: others if word is None else {**others, name: word}})


def require_complete_review(review: HumanReview, questions: Sequence[ReviewQuestion]) -> None:
    """BadInput for answers that leave a question open, or answer one that is not asked."""
    for question in questions:
        if not question.optional and get_answer(review, question.name) is None:
            raise BadInput(f"Answer this too: {question.text}")
    asked = {question.name for question in questions} - {*CRITERIA}
    fields = (*_YES_NO_FIELDS, "outside")
    for name in (*(one for one in fields if getattr(review, one) is not None), *review.answers):
        if name not in asked:
            raise BadInput(
                f"There is no question {name!r} about {review.item}: "
                f"known are {', '.join(sorted(asked - {*ANSWER_FIELDS})) or 'none'}."
            )
    if not review.reviewer.strip():
        raise BadInput("Say who reviews: --reviewer NAME.")


def read_answers(
    content: bytes, file: str, item: str | None, who: str, now: datetime
) -> list[HumanReview]:
    """Answers from JSON, of one item or of several; who and what about may be said beside it."""
    value = parse_json(content, file)
    objects = value if isinstance(value, list) else [value]
    if not objects or not all(isinstance(one, dict) for one in objects):
        raise BadInput(f"{file} should hold one JSON object with answers, or a list of them.")
    defaults = {"reviewer": who, "at": now.isoformat(), **({"item": item} if item else {})}
    return [
        read_answer_object({**defaults, **answers}, file if len(objects) == 1 else f"{file}, {at}")
        for at, answers in enumerate(objects, 1)
    ]


def read_answer_object(answers: dict[str, Any], name: str) -> HumanReview:
    """One item's answers; a fault names the key or the value."""
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
            yield f"no dimension {criterion!r}: known are {', '.join(CRITERIA)}"
    seconds = review.seconds
    if seconds is not None and not (math.isfinite(seconds) and 0 <= seconds <= MAX_REVIEW_SECONDS):
        yield f"'seconds' must be from 0 to {MAX_REVIEW_SECONDS:.0f}, the time that a review took"
