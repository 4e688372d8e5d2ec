"""One item of the review queue at the keyboard: three questions, a verdict, and what to note."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, get_args

from msgspec.structs import replace

from closeloop.cli import keyboard
from closeloop.cli.console import print_line
from closeloop.records.finding import FailureMode
from closeloop.records.record import Record
from closeloop.records.review_items import HumanReview, ReviewItem
from closeloop.reviews.queue_policy import REVIEW_QUESTIONS

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
            keys={"y": "yes", "p": "partly", "n": "no", keyboard.ENTER: None},
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
    notes = keyboard.read_line()
    if notes is None:
        raise ReviewQuit
    spent = (draft.seconds or 0.0) + time.monotonic() - began
    return replace(draft, notes=notes or draft.notes, seconds=round(spent, 1), state="done")


def ask_step(step: ReviewStep, item: ReviewItem) -> str:
    """The key that answers, or `b`."""
    print_line(f"\n{step.question} ({step.told})")
    while True:
        pressed = keyboard.read_key()
        if pressed in step.keys or pressed == "b":
            return pressed
        if pressed in ("q", keyboard.END_OF_INPUT):
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
        pressed = keyboard.read_key()
        if pressed == keyboard.ENTER:
            return tuple(mode for mode in FAILURE_MODES if chosen_modes[mode])
        if pressed in ("q", keyboard.END_OF_INPUT):
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
