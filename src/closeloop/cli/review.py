"""`closeloop review`: look at what agents made, one change after the other, by the keyboard."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from closeloop.cli.console import print_json, print_line
from closeloop.cli.review_context import current_user, open_review_context
from closeloop.records.plural import count_with_noun

if TYPE_CHECKING:
    from closeloop.records.review_items import HumanReview
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
    from msgspec.structs import replace

    from closeloop.cli.review_prompts import ReviewQuit, ask_for_review
    from closeloop.records.review_items import HumanReview
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
    import sys

    import msgspec

    from closeloop.cli.argument_files import read_file_content
    from closeloop.records.errors import BadInput
    from closeloop.records.review_items import HumanReview

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
