"""`closeloop review`: look at what agents made, one change after the other, by the keyboard."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

from cyclopts import Parameter
from msgspec.structs import replace

from closeloop.cli.config import current_user, open_review_context
from closeloop.cli.console import print_json, print_line
from closeloop.records.finding import FailureMode
from closeloop.records.record import Record
from closeloop.records.team_rules import REVIEW_QUESTIONS, HumanReview, ReviewItem
from closeloop.text.wording import count_with_noun

if TYPE_CHECKING:
    from closeloop.reviews.review_queue import ReviewQueue


MAX_ANSWERS_BYTES = 1 << 20


def review(
    item: str | None = None,
    *,
    reviewer: str | None = None,
    assign: str | None = None,
    answers: Annotated[Path | None, Parameter(allow_leading_hyphen=True)] = None,
    status: bool = False,
    json: bool = False,
) -> int:
    """Review changes that passed their checks: three questions, a verdict, and what to note.

    Quit with q whenever you like: the same command goes on where you were.

    Parameters
    ----------
    item
        An attempt, or a pull request as owner/name#12; the queue's next when not given.
    reviewer
        Who reviews; the user of this machine when not given.
    assign
        Give the item to this reviewer, and to nobody else.
    answers
        A JSON file with the answers, `-` for standard input, instead of the keyboard.
    status
        Only say how much there is to do.
    json
        Print JSON: the item, without asking anything; with --status, the numbers.
    """
    from closeloop.records.errors import BadInput
    from closeloop.reviews.review_queue import ReviewQueue, queue_status, submit_review
    from closeloop.reviews.review_queue import assign_reviewer as give

    with open_review_context() as at:
        queue = ReviewQueue(store=at.store, settings=at.settings, agents=at.agents)
        reviewer_name, now = reviewer or current_user(), datetime.now(UTC)
        if status:
            queue_counts = queue_status(queue, reviewer_name, now)
            counts = (
                f"{count_with_noun(queue_counts.items, 'item')}, {queue_counts.reviewed} of them"
                " reviewed"
            )
            print_json(queue_counts) if json else print_line(
                f"{counts}; {queue_counts.mine} for {reviewer_name}."
            )
            return 0
        if assign is not None:
            if item is None:
                raise BadInput("Name the item that is to be assigned.")
            give(queue, item, assign, now)
            print_line(f"{item} is for {assign}.")
            return 0
        if answers is not None:
            submit_review(queue, read_answers_file(answers, item, reviewer_name, now))
            print_line("Thank you.")
            return 0
        return review_queue(queue, item, reviewer_name, json=json)


def review_queue(queue: ReviewQueue, item: str | None, who: str, *, json: bool) -> int:
    """One item after the other, until there is none or the reviewer quits."""

    from closeloop.reviews.review_queue import load_draft, next_item, save_draft, submit_review
    from closeloop.reviews.review_queue import load_review_item as named

    while True:
        now = datetime.now(UTC)
        chosen_item = named(queue, item) if item else next_item(queue, who, now)
        if json:
            print_json(chosen_item)
            return 0
        if chosen_item is None:
            print_line("Nothing waits for you. What passes in `closeloop run` comes here.")
            return 0
        blank = HumanReview(item=chosen_item.id, reviewer=who, at=now, state="draft")
        saved_draft = load_draft(queue, chosen_item.id, who)
        draft_begun = saved_draft if saved_draft and saved_draft.state == "draft" else blank
        try:
            finished_review = ask_for_review(
                chosen_item, draft_begun, lambda draft: save_draft(queue, draft)
            )
        except ReviewQuit:
            was_reviewed = saved_draft is not None and saved_draft.state == "done"
            print_line(
                "Your earlier answers still count." if was_reviewed else "Kept as far as it goes."
            )
            return 0
        submit_review(queue, replace(finished_review, at=datetime.now(UTC)))
        if item:
            return 0


def read_answers_file(file: Path, item: str | None, who: str, now: datetime) -> HumanReview:
    """Answers from a file; who and what they are about may be said on the command line."""

    import msgspec

    from closeloop.cli.console import read_file_content
    from closeloop.records.errors import BadInput

    content = (
        sys.stdin.buffer.read(MAX_ANSWERS_BYTES)
        if str(file) == "-"
        else read_file_content(file, MAX_ANSWERS_BYTES)
    )
    try:
        answers = msgspec.json.decode(content)
        if not isinstance(answers, dict):
            raise BadInput(f"{file} should hold one JSON object.")
        defaults = {"reviewer": who, "at": now.isoformat(), **({"item": item} if item else {})}
        return msgspec.convert({**defaults, **answers, "state": "done"}, HumanReview)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{file} holds no answers: {error}.") from error


# Single keys from the keyboard; a line's first letter where there is no terminal.

ENTER = "\n"
END_OF_INPUT = "\x04"
"""Nothing more will come: the end of the input, or Control-D."""


def read_key() -> str:
    """The next key, in lower case."""
    if not sys.stdin.isatty():
        line = sys.stdin.readline()
        return END_OF_INPUT if not line else (line.strip()[:1].lower() or ENTER)
    with _unbuffered_input():
        pressed = sys.stdin.read(1)
    return {"\r": ENTER, "": END_OF_INPUT}.get(pressed, pressed.lower())


def read_line() -> str | None:
    """A line of text; None at the end of the input."""
    text = sys.stdin.readline()
    return text.strip() if text else None


@contextmanager
def _unbuffered_input() -> Iterator[None]:
    """Keys as they are pressed; Control-C still stops us."""
    try:
        import termios
        import tty
    except ImportError:  # where keys come by the line, they do so
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


# One item of the review queue at the keyboard: three questions, a verdict, and what to note.

FAILURE_MODES: tuple[FailureMode, ...] = get_args(FailureMode)
CRITERIA = ("completeness", "quality", "relevance")
KEY_HELP = "y yes · n no · d the diff · b back · q quit, to go on later"


class ReviewStep(Record):
    """One question, with the keys that answer it."""

    name: str
    question: str
    keys: dict[str, Any]
    told: str


class ReviewQuit(Exception):
    """The reviewer will go on later."""


REVIEW_STEPS = (
    ReviewStep(
        name="contained",
        question=REVIEW_QUESTIONS["contained"],
        keys={"y": True, "n": False},
        told="y/n",
    ),
    ReviewStep(
        name="outside",
        question=REVIEW_QUESTIONS["outside"],
        keys={"y": "yes", "n": "no", "-": "none"},
        told="y/n, - none was changed",
    ),
    ReviewStep(
        name="approach",
        question=REVIEW_QUESTIONS["approach"],
        keys={"y": True, "n": False},
        told="y/n",
    ),
    ReviewStep(name="merge", question="Merge it?", keys={"y": True, "n": False}, told="y/n"),
    *(
        ReviewStep(
            name=name,
            question=f"{name.capitalize()}: good?",
            keys={"y": "yes", "p": "partly", "n": "no", ENTER: None},
            told="y/p/n, Enter to pass",
        )
        for name in CRITERIA
    ),
)


def ask_for_review(
    item: ReviewItem, draft: HumanReview, save: Callable[[HumanReview], None]
) -> HumanReview:
    """The answers to all questions; every answer is saved as it is given. Quit to go on later."""
    began = time.monotonic()
    print_review_item(item)
    place = next(
        (at for at, step in enumerate(REVIEW_STEPS) if not _has_answer(draft, step)),
        len(REVIEW_STEPS),
    )
    if place > 0:
        print_line(
            f"You have answered {min(place, len(REVIEW_STEPS))} of {len(REVIEW_STEPS)} already."
        )
    while place <= len(REVIEW_STEPS):
        if place == len(REVIEW_STEPS):
            tags = ask_failure_tags(draft.tags or item.suggested, item)
            draft = draft if tags is None else replace(draft, tags=tags)
            goes_back = tags is None
        else:
            pressed = ask_step(REVIEW_STEPS[place], item)
            goes_back = pressed == "b"
            draft = (
                draft
                if goes_back
                else _with_answer(draft, REVIEW_STEPS[place], REVIEW_STEPS[place].keys[pressed])
            )
        save(draft)
        place = max(0, place - 1) if goes_back else place + 1
    print_line("Notes, in one line; Enter for none:")
    notes = read_line()
    if notes is None:
        raise ReviewQuit
    spent = (draft.seconds or 0.0) + time.monotonic() - began
    return replace(draft, notes=notes or draft.notes, seconds=round(spent, 1), state="done")


def ask_step(step: ReviewStep, item: ReviewItem) -> str:
    """The key that answers, or `b`."""
    print_line(f"\n{step.question} ({step.told})")
    while True:
        pressed = read_key()
        if pressed in step.keys or pressed == "b":
            return pressed
        if pressed in ("q", END_OF_INPUT):
            raise ReviewQuit
        print_line(review_diff_text(item) if pressed == "d" else KEY_HELP)


def review_diff_text(item: ReviewItem) -> str:
    return item.patch or "The change itself is not kept here: see its page."


def ask_failure_tags(
    chosen: tuple[FailureMode, ...], item: ReviewItem
) -> tuple[FailureMode, ...] | None:
    """Numbers turn a failure mode on and off; what is suggested is on already. None goes back."""
    chosen_modes = {mode: mode in chosen for mode in FAILURE_MODES}
    while True:
        marks = [
            f"{at} {'✓' if chosen_modes[mode] else ' '} {mode}"
            for at, mode in enumerate(FAILURE_MODES, 1)
        ]
        print_line("\nWhat went wrong? (1–5 on and off, Enter when done)\n  " + "\n  ".join(marks))
        pressed = read_key()
        if pressed == ENTER:
            return tuple(mode for mode in FAILURE_MODES if chosen_modes[mode])
        if pressed in ("q", END_OF_INPUT):
            raise ReviewQuit
        if pressed == "b":
            return None
        if pressed == "d":
            print_line(review_diff_text(item))
        if pressed.isdecimal() and 1 <= int(pressed) <= len(FAILURE_MODES):
            mode = FAILURE_MODES[int(pressed) - 1]
            chosen_modes[mode] = not chosen_modes[mode]


def print_review_item(item: ReviewItem) -> None:
    """What was asked for, what was touched, what the checks say; the diff by `d`."""
    print_line(f"\n── {item.title} {'(blind)' if item.blind else ''}".rstrip())
    if item.url:
        print_line(item.url)
    if item.request.strip():
        print_line(item.request.strip())
    print_line(f"\nscope: {', '.join(item.scope) or 'not declared'} · {item.checks}")
    for path in item.files:
        print_line(f"  {'outside  ' if path in item.outside else ''}{path}")
    print_line(KEY_HELP)


def _has_answer(draft: HumanReview, step: ReviewStep) -> bool:
    if step.name in CRITERIA:
        return step.name in draft.dimensions
    return getattr(draft, step.name) is not None


def _with_answer(draft: HumanReview, step: ReviewStep, value: Any) -> HumanReview:
    if step.name not in CRITERIA:
        return replace(draft, **{step.name: value})
    others = {name: told for name, told in draft.dimensions.items() if name != step.name}
    return replace(draft, dimensions=others if value is None else {**others, step.name: value})
