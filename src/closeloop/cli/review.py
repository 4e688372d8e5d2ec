"""`closeloop review`: review agents' changes one by one, with the keyboard."""

from __future__ import annotations

import os
import select
import sys
import time
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, get_args

from cyclopts import Parameter
from msgspec.structs import replace

from closeloop.cli.config import current_user, open_review_context
from closeloop.cli.console import print_json, print_line, print_warning
from closeloop.records.finding import FailureMode
from closeloop.records.record import Record
from closeloop.records.team_rules import HumanReview, ReviewItem, ReviewOutput, ReviewQuestion
from closeloop.records.trace import Trace
from closeloop.reviews.review_queue import get_answer, with_answer
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
    """Review agents' changes in the terminal: answer a few questions, give a verdict and add notes.

    The queue holds changes that passed their checks, and all results of tasks without a check.

    Press q to quit at any time; the same command continues where you stopped.

    Parameters
    ----------
    item
        An attempt, or a pull request as OWNER/NAME#12; the next item of the queue by default.
    reviewer
        The reviewer's name; your user name by default.
    assign
        Assign the item to this reviewer only.
    answers
        Read the answers from a JSON file, or from standard input with `-`: an object, or a list of
        objects. If one is invalid, none is saved.
    status
        Print only the size of the queue.
    json
        Print the item as JSON without asking questions; with --status, print the counts.
    """
    from closeloop.records.errors import BadInput
    from closeloop.reviews.review_queue import (
        ReviewQueue,
        assign_reviewer,
        queue_status,
        submit_reviews,
    )

    with open_review_context() as review_context:
        queue = ReviewQueue(
            store=review_context.store,
            settings=review_context.settings,
            agents=review_context.agents,
        )
        reviewer_name, now = reviewer or current_user(), datetime.now(UTC)
        if status:
            queue_counts = queue_status(queue, reviewer_name, now)
            counts = (
                f"{count_with_noun(queue_counts.items, 'item')}, {queue_counts.reviewed} reviewed"
            )
            print_json(queue_counts) if json else print_line(
                f"{counts}; {queue_counts.mine} for {reviewer_name}."
            )
            if queue_counts.without_change:
                print_warning(
                    f"{count_with_noun(queue_counts.without_change, 'pull request')} "
                    "cannot be reviewed because the diff is missing: download it with "
                    "`closeloop list pulls --fetch`."
                )
            if not json:
                print_likely_repeats(queue)
            return 0
        if assign is not None:
            if item is None:
                raise BadInput("Give the ITEM to assign.")
            assign_reviewer(queue, item, assign, now)
            print_line(f"{item} is assigned to {assign}.")
            return 0
        if answers is not None:
            submit_reviews(queue, read_answers_file(answers, item, reviewer_name, now))
            print_line("Saved.")
            return 0
        return review_queue(queue, item, reviewer_name, json=json)


def review_queue(queue: ReviewQueue, item: str | None, reviewer: str, *, json: bool) -> int:
    """Review one item after the other, until there is none or the reviewer quits."""

    from closeloop.reviews.review_queue import (
        load_blind_trace,
        load_draft,
        load_review_item,
        next_item,
        save_draft,
        submit_review,
    )

    while True:
        now = datetime.now(UTC)
        chosen_item = load_review_item(queue, item) if item else next_item(queue, reviewer, now)
        if json:
            print_json(chosen_item)
            return 0
        if chosen_item is None:
            print_line(
                "The review queue is empty. Changes that pass in `closeloop run`, and "
                "results of tasks without a check, appear here."
            )
            print_likely_repeats(queue)
            return 0
        blank = HumanReview(item=chosen_item.id, reviewer=reviewer, at=now, state="draft")
        saved_draft = load_draft(queue, chosen_item.id, reviewer)
        draft_begun = saved_draft if saved_draft and saved_draft.state == "draft" else blank
        try:
            keyboard = ReviewKeyboard(
                item=chosen_item,
                save=partial(save_draft, queue),
                load_trace=partial(load_blind_trace, queue, chosen_item.id),
            )
            finished_review = ask_for_review(keyboard, draft_begun)
        except ReviewQuit:
            was_reviewed = saved_draft is not None and saved_draft.state == "done"
            print_line(
                "Your earlier answers still count."
                if was_reviewed
                else "Saved so far; the same command continues."
            )
            return 0
        submit_review(queue, replace(finished_review, at=datetime.now(UTC)))
        if item:
            return 0


def print_likely_repeats(queue: ReviewQueue) -> None:
    """Say how many comments may repeat earlier ones, as these wait for a person too."""
    from closeloop.reviews.rule_editing import list_unconfirmed

    if waiting := len(list_unconfirmed(queue.store)):
        print_line(
            f"{count_with_noun(waiting, 'comment')} may repeat an earlier one: decide with "
            "`closeloop learn confirm`."
        )


def read_answers_file(
    file: Path, item: str | None, reviewer: str, now: datetime
) -> list[HumanReview]:
    """Read answers from a file; the command line may give the reviewer and the item."""
    from closeloop.cli.console import read_file_content
    from closeloop.reviews.review_queue import read_answers

    content = (
        sys.stdin.buffer.read(MAX_ANSWERS_BYTES)
        if str(file) == "-"
        else read_file_content(file, MAX_ANSWERS_BYTES)
    )
    return read_answers(content, str(file), item, reviewer, now)


# Single keys from the keyboard; without a terminal, the first letter of a line.

ENTER = "\n"
END_OF_INPUT = "\x04"
"""End of the input, or Control-D."""


def read_key() -> str:
    """Read the next key, in lower case."""
    if not sys.stdin.isatty():
        line = sys.stdin.readline()
        return END_OF_INPUT if not line else (line.strip()[:1].lower() or ENTER)
    with _unbuffered_input():
        pressed = _read_character()
    return {"\r": ENTER, "": END_OF_INPUT}.get(pressed, pressed.lower())


def _read_character() -> str:
    """Read one character from the terminal; later ones remain for the next reader."""
    decoder = getincrementaldecoder("utf-8")("replace")
    while byte := os.read(sys.stdin.fileno(), 1):
        if character := decoder.decode(byte):
            return character
    return ""


def has_waiting_input() -> bool:
    """Check whether the terminal has unread input, typed or pasted."""
    with _unbuffered_input():
        return bool(select.select([sys.stdin], [], [], 0)[0])


def read_line() -> str | None:
    """Read a line of text; None at the end of the input."""
    text = sys.stdin.readline()
    return text.strip() if text else None


@contextmanager
def _unbuffered_input() -> Iterator[None]:
    """Read keys as they are pressed; Control-C still interrupts."""
    try:
        import termios
        import tty
    except ImportError:  # if input arrives by line, keys do too
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin, termios.TCSADRAIN)  # the default would discard keys typed ahead
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


# One item of the review queue at the keyboard: questions, a verdict and notes.

FAILURE_MODES: tuple[FailureMode, ...] = get_args(FailureMode)
KEY_HELP = (
    "y yes · p partly · n no · a all good · d show the diff · t show the trace · b "
    "back · q quit, to continue later"
)
ANSWER_WORDS = {"yes": "yes", "no": "no", "partly": "partly", "none": "none was changed"}


class ReviewQuit(Exception):
    """The reviewer quits, to continue later."""


class ReviewKeyboard(Record):
    """One item at the keyboard: callbacks that show its evidence and save each answer."""

    item: ReviewItem
    save: Callable[[HumanReview], None]
    load_trace: Callable[[], Trace | None]

    def show_evidence(self, pressed: str) -> None:
        """Show the evidence that a key stands for."""
        if pressed == "d":
            print_outputs(self.item, "patch")
        elif pressed == "t":
            print_trace(self.load_trace())
        else:
            print_line(KEY_HELP)


def ask_for_review(keyboard: ReviewKeyboard, draft: HumanReview) -> HumanReview:
    """Ask all questions, saving every answer at once; raise ReviewQuit to continue later."""
    started_at = time.monotonic()
    print_review_item(keyboard.item)
    questions = keyboard.item.questions
    index = next(
        (
            index
            for index, question in enumerate(questions)
            if get_answer(draft, question.name) is None
        ),
        len(questions),
    )
    if index > 0:
        print_line(f"You have already answered {index} of {len(questions)}.")
    while index <= len(questions):
        pressed = ""
        if index == len(questions):
            suggested = keyboard.item.suggested
            tags = ask_failure_tags(suggested if draft.tags is None else draft.tags, keyboard)
            draft = draft if tags is None else replace(draft, tags=tags)
            pressed = "b" if tags is None else ""
        else:
            pressed = ask_question(questions[index], keyboard)
            draft = apply_key(draft, pressed, questions, index)
        keyboard.save(draft)
        if pressed == "a":
            break
        index = max(0, index - 1) if pressed == "b" else index + 1
    notes = "" if pressed == "a" else ask_for_notes()
    spent = (draft.seconds or 0.0) + time.monotonic() - started_at
    tags = draft.tags or ()  # `a` means that nothing went wrong
    return replace(
        draft, tags=tags, notes=notes or draft.notes, seconds=round(spent, 1), state="done"
    )


def ask_for_notes() -> str:
    """Read the reviewer's notes."""
    print_line("Notes, in one line; Enter for none:")
    notes = read_line()
    if notes is None:
        raise ReviewQuit
    return notes


def apply_key(
    draft: HumanReview, pressed: str, questions: Sequence[ReviewQuestion], index: int
) -> HumanReview:
    """Return the draft with the question at that index answered; with `a`, all open ones."""
    if pressed == "b":
        return draft
    if pressed != "a":
        question = questions[index]
        return with_answer(draft, question.name, question.keys.get(pressed))
    for question in questions:
        if get_answer(draft, question.name) is None:
            draft = with_answer(draft, question.name, question.keys.get("-", question.keys["y"]))
    return draft


def ask_question(question: ReviewQuestion, keyboard: ReviewKeyboard) -> str:
    """Return the key that answers, `b` to go back, `a` for all, or Enter to skip an optional
    question."""
    keys = [f"{key} {ANSWER_WORDS[answer]}" for key, answer in question.keys.items()]
    keys += ["Enter to skip"] if question.optional else []
    print_line(f"\n{question.text} ({', '.join(keys)})")
    while True:
        pressed = read_key()
        if pressed in question.keys or pressed in ("a", "b"):
            return pressed
        if pressed == ENTER and question.optional:
            return pressed
        if pressed in ("q", END_OF_INPUT):
            raise ReviewQuit
        keyboard.show_evidence(pressed)


def ask_failure_tags(
    initial_modes: tuple[FailureMode, ...], keyboard: ReviewKeyboard
) -> tuple[FailureMode, ...] | None:
    """Toggle failure modes by number; suggested ones are on. None goes back."""
    chosen_modes = {mode: mode in initial_modes for mode in FAILURE_MODES}
    while True:
        lines = [
            f"{number} {'✓' if chosen_modes[mode] else ' '} {mode}"
            for number, mode in enumerate(FAILURE_MODES, 1)
        ]
        print_line(
            "\nWhat went wrong? (press 1–5 to select or clear, Enter when done)\n  "
            + "\n  ".join(lines)
        )
        pressed = read_key()
        if pressed == ENTER:
            return tuple(mode for mode in FAILURE_MODES if chosen_modes[mode])
        if pressed in ("q", END_OF_INPUT):
            raise ReviewQuit
        if pressed == "b":
            return None
        if pressed.isdecimal() and 1 <= int(pressed) <= len(FAILURE_MODES):
            mode = FAILURE_MODES[int(pressed) - 1]
            chosen_modes[mode] = not chosen_modes[mode]
        else:
            keyboard.show_evidence(pressed)


def print_review_item(item: ReviewItem) -> None:
    """Print the request, the result and the checks; `d` shows the diff."""
    print_line(f"\n── {item.title} {'(blind)' if item.blind else ''}".rstrip())
    if item.url:
        print_line(item.url)
    if item.request.strip():
        print_line(item.request.strip())
    if item.rubric.strip():
        print_line(f"\nrubric of a good result: {item.rubric.strip()}")
    print_line(f"\nscope: {', '.join(item.scope) or 'not declared'} · {item.checks}")
    for path in item.output.files:
        print_line(f"  {'outside  ' if path in item.outside else ''}{path}")
    if item.others or item.output.answer or item.output.ended:
        print_outputs(item, "answer")
    print_line(KEY_HELP)


def print_outputs(item: ReviewItem, field: Literal["patch", "answer"]) -> None:
    """Print the changes or answers; attempts at one request side by side."""
    from rich.table import Table
    from rich.text import Text

    from closeloop.cli.console import make_visible, print_parts

    if not item.others:
        print_line(_describe_output(item.output, field))
        return
    table = Table(show_lines=True)
    outputs = sorted((item.output, *item.others), key=lambda output: output.label)
    for output in outputs:
        asked_text = ", which you are asked about" if output == item.output else ""
        table.add_column(f"{output.label}{asked_text}", ratio=1, overflow="fold")
    table.add_row(*(Text(make_visible(_describe_output(output, field))) for output in outputs))
    print_parts(table)


def _describe_output(output: ReviewOutput, field: Literal["patch", "answer"]) -> str:
    if field == "answer":
        answer = output.answer.strip() or "no answer was given"
        return f"{answer}\n({output.ended})" if output.ended else answer
    if output.patch or not output.files:
        return output.patch or "nothing was changed"
    return "The diff is not stored here: open the pull request's page."


def print_trace(trace: Trace | None) -> None:
    """Print the trace, without the names of agent and model."""
    from closeloop.cli.console import print_parts
    from closeloop.cli.show import render_trace_events

    if trace is None:
        print_line("No trace was recorded.")
    else:
        print_parts(*render_trace_events(trace, full=False))
