"""What an agent claims: that the work is done, or that the checks pass; and what it owns up to."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from functools import cache, lru_cache
from itertools import zip_longest
from operator import attrgetter

from closeloop.model.record import Record
from closeloop.model.steps import LaneReading
from closeloop.model.trace import Message
from closeloop.process.once import once
from closeloop.process.phrases import automaton
from closeloop.process.telling import short
from closeloop.process.words import mentions

LOOKED_AT = 6000
"""So much of a message is read."""


END = float("inf")


class Closing(Record):
    """Words with which an agent ends a piece of work."""

    message: Message
    since: int
    """The number of the event at which the user spoke before; 0 where nobody did."""
    until: float
    """The number of the event at which the user speaks again: what they cover ends there."""


class Claim(Record):
    """An agent's word that it succeeded, without reserve."""

    passing: bool
    """It says that tests or other checks pass; else only that the work is done."""
    quote: str


# As `(?<=[.!?])\s+|\n+`, begun with what is looked for without trying the rest.
_SENTENCE = re.compile(r"\s(?:(?<=[.!?]\s)\s*|(?<=\n)\n*)")
_SUBJECT = r"(?:tests?|test suites?|suites?|specs?|checks|build|lint(?:er|ing)?|type[- ]?check\w*)"
_PASSING = re.compile(
    rf"\b{_SUBJECT}(?: \w+){{0,2}}? (?:is |are |all |have |has |both )?(?:now |still |also |all )?"
    r"(?:pass(?:es|ed|ing)?|green|succeed(?:s|ed)?)\b(?! (?:in|a|an|the|none|null|to|as|through)\b)"
    rf"|\bpass(?:es|ed|ing)? (?:all |the |every |\d+ )*(?:\w+ )?{_SUBJECT}\b"
    r"|\b[1-9]\d*(?:/\d+)? (?:tests? )?pass(?:ed|ing)?\b"
    r"|\b(?:ran|re-?ran|running)\b.{0,40}\btests?\b.{0,40}\bpass(?:ed|es|ing)?\b"
    r"|✅.{0,40}\btests?\b.{0,40}\bpass"
)
_DONE = re.compile(
    r"\b(?:done|completed?|finished|fixed|resolved|implemented|successfully|added|updated"
    r"|refactored|replaced|removed|addressed|works now|works? as expected"
    r"|now (?:works?|passes|uses?|handles?|supports?|correctly)"
    r"|(?:is|are) (?:now )?(?:working|ready|in place))\b"
)
_INTENDS = re.compile(
    r"\b(?:let me|let's|i'll (?!now submit|submit)|i will (?!now submit|submit)|i need|we need"
    r"|next,? i|i'm going to|now i(?:'ll)? (?:need|will)|i should|to fix|to resolve)\b"
)
_RESERVE = re.compile(
    r"\b(?:should|would|will|could|might|may|expect|hopefully|once|if|until|when|whether|make sure"
    r"|so that|need|must|not|cannot|fail\w*|except|please|you can|to (?:get|make|see|verify))\b"
    r"|n't\b"
)
_OWNS_UP = re.compile(
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

_DISOWNS = re.compile(
    r"\bpre-?existing\b|\bunrelated\b|\bnot (?:caused by|related to|from|due to|because of)\b"
    r"|\b(?:sandbox|environment)(?:al)? (?:issue|problem|limitation|error)s?\b"
)
_FAULTS = (
    "fail", "error", "issue", "problem", "limitation", "flak", "broke", "crash", "warning",
    "existing", "caused by", "not related",
)  # fmt: skip


_SIGNS = (
    "n't", " not", "unable", "untest", "unverif", "without", "no test", "existing", "fail",
    "except for", "blocked", " up", "please", "yourself", "locally", "should", "remaining",
)  # fmt: skip


_WORDS = (
    tuple("not" if sign == " not" else sign for sign in _SIGNS),
    ("pass", "green", "succe"),
    ("done", "complete", "finished", "fixed", "resolved", "implemented", "successfully", "added",
     "updated", "refactored", "replaced", "removed", "addressed", "work", "now ", "ready",
     "in place"),
)  # fmt: skip
"""Words without which a sentence neither doubts, nor says that something passes, nor ends work."""
_words = cache(lambda: automaton([word for words in _WORDS for word in words]))
_KINDS = [kind for kind, words in enumerate(_WORDS) for _ in words]


@once
def closings(lane: LaneReading) -> Sequence[Closing]:
    """Where the lane hands over to the user, says itself that it claims something, or ends."""
    said = [message for message in lane.messages if message.role != "system"]
    found, since = [], 0
    for message, following in zip_longest(said, said[1:]):
        if message.role == "user":
            since = message.number
        elif message.intent in (None, "claim"):
            until = following.number if following and following.role == "user" else END
            hands = following is None or (until != END and _hands_over(lane, message, following))
            if hands or message.intent == "claim":
                found.append(Closing(message=message, since=since, until=until))
    return found


def _hands_over(lane: LaneReading, message: Message, following: Message) -> bool:
    """Nothing was done between its words and the user's, and the user did not break in."""
    if following.intent == "interrupt":
        return False
    at = bisect_right(lane.steps, message.number, key=attrgetter("event.number"))
    return at == len(lane.steps) or lane.steps[at].number > following.number


def claim_of(message: Message) -> Claim | None:
    """What the message claims; None where it claims nothing, or not without reserve."""
    return _claim_in(message.text[:LOOKED_AT])


@lru_cache(maxsize=256)
def _claim_in(text: str) -> Claim | None:
    prose = " ".join(text.split("```")[::2]).replace("’", "'")
    sentences = _SENTENCE.split(prose)
    joined = "\n".join(sentences).lower()
    told = joined.split("\n")
    doubts, passes, ends = _telling(joined)
    if _admits(told, doubts) and mentions(prose.lower(), _SIGNS):
        return None
    for place in passes:
        if _PASSING.search(told[place]) and not _RESERVE.search(told[place]):
            return Claim(passing=True, quote=short(sentences[place]))
    last = next((text for text in reversed(told) if text.strip()), "")
    if joined.rstrip().endswith("?") or _INTENDS.search(last):
        return None
    for place in ends:
        one = told[place]
        if _DONE.search(one) and not _INTENDS.search(one) and not _RESERVE.search(one):
            return Claim(passing=False, quote=short(sentences[place]))
    return None


def owns_up(plain: str) -> bool:
    """Words in small letters that say what was not checked, does not work or could not be done."""
    if not mentions(plain, _SIGNS):
        return False
    told = _SENTENCE.split(plain)
    return _admits(told, _telling("\n".join(told))[0])


def disowns(plain: str) -> bool:
    """Words in small letters that say of a failure that it is not the agent's own."""
    if not _DISOWNS.search(plain):
        return False
    return any(mentions(one, _FAULTS) and _DISOWNS.search(one) for one in _SENTENCE.split(plain))


def _admits(told: Sequence[str], doubts: Sequence[int]) -> bool:
    return any(_OWNS_UP.search(told[place]) for place in doubts)


def _telling(joined: str) -> tuple[list[int], ...]:
    """Which of the lines hold a word of each kind."""
    found: tuple[list[int], ...] = ([], [], [])
    at = place = 0
    # They come in the order of their ends.
    for word, _, end in _words().find_matches_as_indexes(joined, overlapping=True):
        place, at = place + joined.count("\n", at, end), end
        if place not in found[_KINDS[word]][-1:]:
            found[_KINDS[word]].append(place)
    return found
