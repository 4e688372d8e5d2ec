"""What an agent claims: that the work is done, or that the checks pass; and what it owns up to."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from functools import cache, lru_cache
from itertools import zip_longest
from operator import attrgetter

from closeloop.process.rule_helpers import cache_on_reading, truncate_line
from closeloop.process.text_words import build_automaton, mentions_any
from closeloop.records.inspection import (
    LaneReading,
)
from closeloop.records.record import Record
from closeloop.records.trace import (
    Message,
)

MAX_MESSAGE_CHARS = 6000
"""So much of a message is read."""


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


# As `(?<=[.!?])\s+|\n+`, begun with what is looked for without trying the rest.
_SENTENCE_BREAK = re.compile(r"\s(?:(?<=[.!?]\s)\s*|(?<=\n)\n*)")
_CHECK_SUBJECT = (
    r"(?:tests?|test suites?|suites?|specs?|checks|build|lint(?:er|ing)?|type[- ]?check\w*)"
)
_PASSING_CLAIM = re.compile(
    rf"\b{_CHECK_SUBJECT}(?: \w+){{0,2}}? (?:is |are |all |have |has |both )?(?:now |still |also"
    r" |all )?"
    r"(?:pass(?:es|ed|ing)?|green|succeed(?:s|ed)?)\b(?! (?:in|a|an|the|none|null|to|as|through)\b)"
    rf"|\bpass(?:es|ed|ing)? (?:all |the |every |\d+ )*(?:\w+ )?{_CHECK_SUBJECT}\b"
    r"|\b[1-9]\d*(?:/\d+)? (?:tests? )?pass(?:ed|ing)?\b"
    r"|\b(?:ran|re-?ran|running)\b.{0,40}\btests?\b.{0,40}\bpass(?:ed|es|ing)?\b"
    r"|✅.{0,40}\btests?\b.{0,40}\bpass"
)
_DONE_CLAIM = re.compile(
    r"\b(?:done|completed?|finished|fixed|resolved|implemented|successfully|added|updated"
    r"|refactored|replaced|removed|addressed|works now|works? as expected"
    r"|now (?:works?|passes|uses?|handles?|supports?|correctly)"
    r"|(?:is|are) (?:now )?(?:working|ready|in place))\b"
)
_INTENTION = re.compile(
    r"\b(?:let me|let's|i'll (?!now submit|submit)|i will (?!now submit|submit)|i need|we need"
    r"|next,? i|i'm going to|now i(?:'ll)? (?:need|will)|i should|to fix|to resolve)\b"
)
_RESERVATION = re.compile(
    r"\b(?:should|would|will|could|might|may|expect|hopefully|once|if|until|when|whether|make sure"
    r"|so that|need|must|not|cannot|fail\w*|except|please|you can|to (?:get|make|see|verify))\b"
    r"|n't\b"
)
_ADMISSION = re.compile(
    r"\b(?:could|can|did|do|was|were|have|has|had|am|is)(?:n't| not|not)(?: \w+){0,3}? "
    r"(?:run|ran|test|tested|verif\w+|execut\w+|validat\w+|confirm\w*|fix\w*|pass|find|complete\w*)\b"
    r"|\b(?:unable to|not able to|untested|unverified|not (?:yet )?(?:verified|tested|complete\w*)"
    r"|without (?:running|testing|verifying)|no tests? (?:were|was|are|is) |not run|pre-?existing"
    r"|(?:still|currently|remaining|unrelated) (?:\w+ ){0,3}?fail\w*"
    r"|[1-9]\d* (?:tests? |checks? )?(?:fail(?:s|ed|ures?)?|(?:is |are )failing)"
    r"|fail\w* (?:\w+ ){0,6}?(?:unrelated|remain\w*|before|already|environment\w*|network|flaky)"
    r"|(?<!no )(?<!zero )(?<!0 )(?<!the )(?<!all )(?<!any )remaining (?:issue|problem|failure)s?"
    r"|remaining (?:issue|problem)s? (?:is|are)(?! (?:now |all )?(?:fixed|resolved|addressed|gone))"
    r"|tests? (?:still )?fails?|except for|blocked|not possible|give up|gave up"
    r"|please (?:run|test|verify|check|try)|(?:run|verify|test) (?:it |this )?(?:yourself|locally)"
    r"|should (?:now )?(?:work|pass|fix|resolve|address|be (?:fixed|resolved|working|good)))\b"
)

_DISCLAIMER = re.compile(
    r"\bpre-?existing\b|\bunrelated\b|\bnot (?:caused by|related to|from|due to|because of)\b"
    r"|\b(?:sandbox|environment)(?:al)? (?:issue|problem|limitation|error)s?\b"
)
_FAULT_WORDS = (
    "fail", "error", "issue", "problem", "limitation", "flak", "broke", "crash", "warning",
    "existing", "caused by", "not related",
)  # fmt: skip


_ADMISSION_WORDS = (
    "n't", " not", "unable", "untest", "unverif", "without", "no test", "existing", "fail",
    "except for", "blocked", " up", "please", "yourself", "locally", "should", "remaining",
)  # fmt: skip


_CLAIM_WORDS = (
    tuple("not" if sign == " not" else sign for sign in _ADMISSION_WORDS),
    ("pass", "green", "succe"),
    ("done", "complete", "finished", "fixed", "resolved", "implemented", "successfully", "added",
     "updated", "refactored", "replaced", "removed", "addressed", "work", "now ", "ready",
     "in place"),
)  # fmt: skip
"""Words without which a sentence neither doubts, nor says that something passes, nor ends work."""
_claim_word_automaton = cache(
    lambda: build_automaton([word for words in _CLAIM_WORDS for word in words])
)
_CLAIM_WORD_KINDS = [kind for kind, words in enumerate(_CLAIM_WORDS) for _ in words]


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
    prose = " ".join(text.split("```")[::2]).replace("’", "'")
    sentences = _SENTENCE_BREAK.split(prose)
    joined = "\n".join(sentences).lower()
    lines = joined.split("\n")
    doubts, passes, ends = _claim_word_lines(joined)
    if _has_admission(lines, doubts) and mentions_any(prose.lower(), _ADMISSION_WORDS):
        return None
    for place in passes:
        if _PASSING_CLAIM.search(lines[place]) and not _RESERVATION.search(lines[place]):
            return SuccessClaim(passing=True, quote=truncate_line(sentences[place]))
    last = next((text for text in reversed(lines) if text.strip()), "")
    if joined.rstrip().endswith("?") or _INTENTION.search(last):
        return None
    for place in ends:
        line = lines[place]
        if (
            _DONE_CLAIM.search(line)
            and not _INTENTION.search(line)
            and not _RESERVATION.search(line)
        ):
            return SuccessClaim(passing=False, quote=truncate_line(sentences[place]))
    return None


def admits_problem(plain: str) -> bool:
    """Words in small letters that say what was not checked, does not work or could not be done."""
    if not mentions_any(plain, _ADMISSION_WORDS):
        return False
    lines = _SENTENCE_BREAK.split(plain)
    return _has_admission(lines, _claim_word_lines("\n".join(lines))[0])


def disclaims_failure(plain: str) -> bool:
    """Words in small letters that say of a failure that it is not the agent's own."""
    if not _DISCLAIMER.search(plain):
        return False
    return any(
        mentions_any(one, _FAULT_WORDS) and _DISCLAIMER.search(one)
        for one in _SENTENCE_BREAK.split(plain)
    )


def _has_admission(told: Sequence[str], doubts: Sequence[int]) -> bool:
    return any(_ADMISSION.search(told[place]) for place in doubts)


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
