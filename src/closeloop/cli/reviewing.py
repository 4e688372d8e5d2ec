"""One item of the review queue at the keyboard: three questions, a verdict, and what to note."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, get_args

from msgspec.structs import replace

from closeloop.cli import keys
from closeloop.cli.console import say
from closeloop.model.finding import Mode
from closeloop.model.queue import HumanReview, ReviewItem
from closeloop.model.record import Record
from closeloop.reviews.queue import QUESTIONS

MODES: tuple[Mode, ...] = get_args(Mode)
CRITERIA = ("completeness", "quality", "relevance")
HELP = "y yes · n no · d the diff · b back · q quit, to go on later"


class Step(Record):
    """One question, with the keys that answer it."""

    name: str
    question: str
    keys: dict[str, Any]
    told: str


class Quit(Exception):
    """The reviewer will go on later."""


STEPS = (
    Step(
        name="contained",
        question=QUESTIONS["contained"],
        keys={"y": True, "n": False},
        told="y/n",
    ),
    Step(
        name="outside",
        question=QUESTIONS["outside"],
        keys={"y": "yes", "n": "no", "-": "none"},
        told="y/n, - none was changed",
    ),
    Step(
        name="approach",
        question=QUESTIONS["approach"],
        keys={"y": True, "n": False},
        told="y/n",
    ),
    Step(name="merge", question="Merge it?", keys={"y": True, "n": False}, told="y/n"),
    *(
        Step(
            name=name,
            question=f"{name.capitalize()}: good?",
            keys={"y": "yes", "p": "partly", "n": "no", keys.ENTER: None},
            told="y/p/n, Enter to pass",
        )
        for name in CRITERIA
    ),
)


def review_item(
    item: ReviewItem, draft: HumanReview, save: Callable[[HumanReview], None]
) -> HumanReview:
    """The answers to all questions; every answer is saved as it is given. Quit to go on later."""
    began = time.monotonic()
    show_item(item)
    place = next((at for at, step in enumerate(STEPS) if not _answered(draft, step)), len(STEPS))
    if place > 0:
        say(f"You have answered {min(place, len(STEPS))} of {len(STEPS)} already.")
    while place <= len(STEPS):
        if place == len(STEPS):
            tags = ask_tags(draft.tags or item.suggested, item)
            draft = draft if tags is None else replace(draft, tags=tags)
            back = tags is None
        else:
            pressed = ask(STEPS[place], item)
            back = pressed == "b"
            draft = draft if back else _with(draft, STEPS[place], STEPS[place].keys[pressed])
        save(draft)
        place = max(0, place - 1) if back else place + 1
    say("Notes, in one line; Enter for none:")
    notes = keys.line()
    if notes is None:
        raise Quit
    spent = (draft.seconds or 0.0) + time.monotonic() - began
    return replace(draft, notes=notes or draft.notes, seconds=round(spent, 1), state="done")


def ask(step: Step, item: ReviewItem) -> str:
    """The key that answers, or `b`."""
    say(f"\n{step.question} ({step.told})")
    while True:
        pressed = keys.key()
        if pressed in step.keys or pressed == "b":
            return pressed
        if pressed in ("q", keys.END):
            raise Quit
        say(diff_of(item) if pressed == "d" else HELP)


def diff_of(item: ReviewItem) -> str:
    return item.patch or "The change itself is not kept here: see its page."


def ask_tags(chosen: tuple[Mode, ...], item: ReviewItem) -> tuple[Mode, ...] | None:
    """Numbers turn a failure mode on and off; what is suggested is on already. None goes back."""
    held = {mode: mode in chosen for mode in MODES}
    while True:
        marks = [f"{at} {'✓' if held[mode] else ' '} {mode}" for at, mode in enumerate(MODES, 1)]
        say("\nWhat went wrong? (1–5 on and off, Enter when done)\n  " + "\n  ".join(marks))
        pressed = keys.key()
        if pressed == keys.ENTER:
            return tuple(mode for mode in MODES if held[mode])
        if pressed in ("q", keys.END):
            raise Quit
        if pressed == "b":
            return None
        if pressed == "d":
            say(diff_of(item))
        if pressed.isdecimal() and 1 <= int(pressed) <= len(MODES):
            mode = MODES[int(pressed) - 1]
            held[mode] = not held[mode]


def show_item(item: ReviewItem) -> None:
    """What was asked for, what was touched, what the checks say; the diff by `d`."""
    say(f"\n── {item.title} {'(blind)' if item.blind else ''}".rstrip())
    if item.url:
        say(item.url)
    if item.request.strip():
        say(item.request.strip())
    say(f"\nscope: {', '.join(item.scope) or 'not declared'} · {item.checks}")
    for path in item.files:
        say(f"  {'outside  ' if path in item.outside else ''}{path}")
    say(HELP)


def _answered(draft: HumanReview, step: Step) -> bool:
    if step.name in CRITERIA:
        return step.name in draft.dimensions
    return getattr(draft, step.name) is not None


def _with(draft: HumanReview, step: Step, value: Any) -> HumanReview:
    if step.name not in CRITERIA:
        return replace(draft, **{step.name: value})
    others = {name: told for name, told in draft.dimensions.items() if name != step.name}
    return replace(draft, dimensions=others if value is None else {**others, step.name: value})
