"""What an agent claims: that the work is done, or that the checks pass; and what it owns up to."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import cache, lru_cache
from itertools import zip_longest
from operator import attrgetter

from closeloop.process.claim_phrases import (
    ADMISSION,
    CLAIM_WORDS,
    DONE_CLAIM,
    INSTRUCTION,
    INTENTION,
    MORE_OFFERED,
    OPENING_CLAIM,
    OTHER_CLAIM,
    OTHER_WORDS,
    PASSING_CLAIM,
    RESERVATION,
    REVIEW_WISH,
    WHOLE_CLAIM,
)
from closeloop.process.rule_helpers import cache_on_reading, truncate_line
from closeloop.process.text_words import build_automaton, mentions_any
from closeloop.records.inspection import (
    LaneReading,
)
from closeloop.records.record import Record
from closeloop.records.trace import (
    Message,
    ToolUse,
)

MAX_MESSAGE_CHARS = 6000
"""So much of a message is read."""
MAX_MESSAGES = 50
"""So many messages after a failing check are searched for what the agent says of it."""

END_TOOLS = frozenset(("finish", "submit", "exit"))
NO_END = float("inf")


class ClosingMessage(Record):
    """Words with which an agent ends a piece of work."""

    message: Message
    since: int
    """The number of the event at which the user spoke before; 0 where nobody did."""
    until: float
    """The number of the event at which the user speaks again: what they cover ends there."""


class SuccessClaim(Record):
    """An agent's word that it succeeded, without reserve."""

    passing: bool
    """It says that tests or other checks pass; else only that the work is done."""
    quote: str


# A quotation, a link, a row of a table, what a tool printed.
_PASSED_ON_LINE = re.compile(r"^[ \t]*(?:>|- \[|\||\[).*", re.MULTILINE)
# As `(?<=[.!?])\s+|\n+`, begun with what is looked for without trying the rest.
_ASCII_SENTENCE_BREAK = re.compile(r"\s(?:(?<=[.!?]\s)\s*|(?<=\n)\n*)")
_SENTENCE_BREAK = re.compile(rf"{_ASCII_SENTENCE_BREAK.pattern}|(?<=[。！？])")
_DISCLAIMER = re.compile(
    r"\bpre-?existing\b|\bunrelated\b|\bnot (?:caused by|related to|from|due to|because of)\b"
    r"|\b(?:sandbox|environment)(?:al)? (?:issue|problem|limitation|error)s?\b"
)
_FAULT_WORDS = (
    "fail", "error", "issue", "problem", "limitation", "flak", "broke", "crash", "warning",
    "existing", "caused by", "not related",
)  # fmt: skip


_claim_word_automaton = cache(
    lambda: build_automaton([word for words in CLAIM_WORDS for word in words])
)
_CLAIM_WORD_KINDS = [kind for kind, words in enumerate(CLAIM_WORDS) for _ in words]


def ends_work(event: object) -> bool:
    """A call of the tool by which an agent says that it is done."""
    return isinstance(event, ToolUse) and event.name.lower() in END_TOOLS


@cache_on_reading
def list_closings(lane: LaneReading) -> Sequence[ClosingMessage]:
    """Where the lane hands over to the user, says itself that it claims something, or ends."""
    spoken_messages = [message for message in lane.messages if message.role != "system"]
    closing_messages, since = [], 0
    for message, following in zip_longest(spoken_messages, spoken_messages[1:]):
        if message.role == "user":
            since = message.number
        elif message.intent in (None, "claim"):
            until = following.number if following and following.role == "user" else NO_END
            hands_over = following is None or (
                until != NO_END and _hands_over(lane, message, following)
            )
            if hands_over or message.intent == "claim":
                closing_messages.append(ClosingMessage(message=message, since=since, until=until))
    return closing_messages


def _hands_over(lane: LaneReading, message: Message, following: Message) -> bool:
    """Nothing was done between its words and the user's, and the user did not break in."""
    if following.intent == "interrupt":
        return False
    at = bisect_right(lane.steps, message.number, key=attrgetter("event.number"))
    return at == len(lane.steps) or lane.steps[at].number > following.number


def parse_claim(message: Message) -> SuccessClaim | None:
    """What the message claims; None where it claims nothing, or not without reserve."""
    return _parse_claim_text(message.text[:MAX_MESSAGE_CHARS])


@lru_cache(maxsize=256)
def _parse_claim_text(text: str) -> SuccessClaim | None:
    prose = _PASSED_ON_LINE.sub("", " ".join(text.split("```")[::2]).replace("’", "'"))
    sentences = _split_sentences(prose)
    joined = "\n".join(sentences).lower()
    lines = joined.split("\n")
    doubts, passes, ends = _claim_word_lines(joined)
    if _has_admission(lines, doubts):
        return None
    for place in passes:
        if PASSING_CLAIM.search(lines[place]) and not _is_reserved(lines[place]):
            return SuccessClaim(passing=True, quote=truncate_line(sentences[place]))
    last = next((line.rstrip() for line in reversed(lines) if line.strip()), "")
    if INTENTION.search(last) or (last.endswith("?") and not MORE_OFFERED.search(last)):
        return None
    if ends and REVIEW_WISH.search(joined):
        return None
    quoted = None
    for place in ends:
        if (quoted is None or WHOLE_CLAIM.search(lines[place])) and _is_done_claim(lines[place]):
            quoted = place
            if WHOLE_CLAIM.search(lines[place]):
                break
    if quoted is None:
        return None
    return SuccessClaim(passing=False, quote=truncate_line(sentences[quoted]))


def _split_sentences(text: str) -> list[str]:
    return (_ASCII_SENTENCE_BREAK if text.isascii() else _SENTENCE_BREAK).split(text)


def _is_done_claim(line: str) -> bool:
    claims = OPENING_CLAIM.match(line) or DONE_CLAIM.search(line)
    if not claims and (not line.isascii() or mentions_any(line, OTHER_WORDS)):
        claims = OTHER_CLAIM.search(line)
    return bool(claims) and not INTENTION.search(line) and not _is_reserved(line)


def _is_reserved(line: str) -> bool:
    return RESERVATION.search(line) is not None or INSTRUCTION.match(line) is not None


def admits_problem(plain: str) -> bool:
    """Words in small letters that say what was not checked, does not work or could not be done."""
    lines = _split_sentences(plain)
    return _has_admission(lines, _claim_word_lines("\n".join(lines))[0])


def disclaims_failure(plain: str) -> bool:
    """Words in small letters that say of a failure that it is not the agent's own."""
    if not _DISCLAIMER.search(plain):
        return False
    return any(
        mentions_any(one, _FAULT_WORDS) and _DISCLAIMER.search(one)
        for one in _split_sentences(plain)
    )


def has_disclaimer(lane: LaneReading, failing: int, until: int) -> bool:
    """It told the user, between two events, that the failure is not of its making."""
    at = bisect_left(lane.messages, failing, key=attrgetter("number"))
    return any(
        message.role == "agent" and disclaims_failure(message.text[:MAX_MESSAGE_CHARS].lower())
        for message in lane.messages[at : at + MAX_MESSAGES]
        if message.number < until
    )


def _has_admission(told: Sequence[str], doubts: Sequence[int]) -> bool:
    return any(ADMISSION.search(told[place]) for place in doubts)


def _claim_word_lines(joined: str) -> tuple[list[int], ...]:
    """Which of the lines hold a word of each kind."""
    lines_by_kind: tuple[list[int], ...] = ([], [], [])
    at = place = 0
    # They come in the order of their ends.
    for word, _, end in _claim_word_automaton().find_matches_as_indexes(joined, overlapping=True):
        place, at = place + joined.count("\n", at, end), end
        if place not in lines_by_kind[_CLAIM_WORD_KINDS[word]][-1:]:
            lines_by_kind[_CLAIM_WORD_KINDS[word]].append(place)
    return lines_by_kind
