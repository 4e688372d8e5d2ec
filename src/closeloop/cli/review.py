"""`closeloop review`: look at what agents made, one change after the other, by the keyboard."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from closeloop.cli.console import say, say_json
from closeloop.cli.shelves import me, opened
from closeloop.model.plural import plural

if TYPE_CHECKING:
    from closeloop.model.queue import HumanReview
    from closeloop.reviewing.queue import Queue

LARGEST = 1 << 20


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
    from closeloop.model.errors import BadInput
    from closeloop.reviewing.queue import Queue, standing, submit
    from closeloop.reviewing.queue import assign as give

    with opened() as at:
        queue = Queue(store=at.store, settings=at.settings, agents=at.agents)
        who, now = reviewer or me(), datetime.now(UTC)
        if status:
            found = standing(queue, who, now)
            counts = f"{plural(found.items, 'item')}, {found.reviewed} of them reviewed"
            say_json(found) if json else say(f"{counts}; {found.mine} for {who}.")
            return 0
        if assign is not None:
            if item is None:
                raise BadInput("Name the item that is to be assigned.")
            give(queue, item, assign, now)
            say(f"{item} is for {assign}.")
            return 0
        if answers is not None:
            submit(queue, read_answers(answers, item, who, now))
            say("Thank you.")
            return 0
        return go(queue, item, who, json=json)


def go(queue: Queue, item: str | None, who: str, *, json: bool) -> int:
    """One item after the other, until there is none or the reviewer quits."""
    from msgspec.structs import replace

    from closeloop.cli.reviewing import Quit, review_item
    from closeloop.model.queue import HumanReview
    from closeloop.reviewing.queue import draft_of, next_item, save_draft, submit
    from closeloop.reviewing.queue import item as named

    while True:
        now = datetime.now(UTC)
        chosen = named(queue, item) if item else next_item(queue, who, now)
        if json:
            say_json(chosen)
            return 0
        if chosen is None:
            say("Nothing waits for you. What passes in `closeloop run` comes here.")
            return 0
        blank = HumanReview(item=chosen.id, reviewer=who, at=now, state="draft")
        kept = draft_of(queue, chosen.id, who)
        begun = kept if kept and kept.state == "draft" else blank
        try:
            done = review_item(chosen, begun, lambda draft: save_draft(queue, draft))
        except Quit:
            again = kept is not None and kept.state == "done"
            say("Your earlier answers still count." if again else "Kept as far as it goes.")
            return 0
        submit(queue, replace(done, at=datetime.now(UTC)))
        if item:
            return 0


def read_answers(file: Path, item: str | None, who: str, now: datetime) -> HumanReview:
    """Answers from a file; who and what they are about may be said on the command line."""
    import sys

    import msgspec

    from closeloop.cli.files import content_of
    from closeloop.model.errors import BadInput
    from closeloop.model.queue import HumanReview

    content = sys.stdin.buffer.read(LARGEST) if str(file) == "-" else content_of(file, LARGEST)
    try:
        given = msgspec.json.decode(content)
        if not isinstance(given, dict):
            raise BadInput(f"{file} should hold one JSON object.")
        said = {"reviewer": who, "at": now.isoformat(), **({"item": item} if item else {})}
        return msgspec.convert({**said, **given, "state": "done"}, HumanReview)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{file} holds no answers: {error}.") from error
