"""The user had to say the same twice."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Mapping
from operator import attrgetter

from closeloop.model.finding import Finding, Rule, Unmeasured, found
from closeloop.model.record import Record
from closeloop.model.steps import LaneReading, Reading
from closeloop.model.trace import Message
from closeloop.process.telling import short
from closeloop.process.words import mentions, sentences, stems, words_of

rule = Rule(
    name="repeated-correction",
    version=2,
    about="The user corrects the same thing a second time.",
    severity="warning",
    mode="instruction drift",
    gates=True,
    thresholds={"overlap": 0.6},
)
MOST = 50
"""So many earlier corrections are kept in mind."""
_LENGTH = 500
"""A longer message is a request or pasted text."""
_LEAST_WORDS = 3
_TELLING = (
    "n't", "n’t", "not ", "never", "wrong", "instead", "still", "again", "i said", "i told",
    "i meant", "i asked", "should", "must", "forgot", "missed", "you keep", "stop", "actually",
    "please use", "please keep", "please remove", "revert", "undo",
)  # fmt: skip
_NEGATIVE = re.compile(
    r"\b(?:not|never|no|stop|without|avoid|remove|delete|revert|undo)\b|n['’]t\b", re.IGNORECASE
)
# Words of the tool, not of the user, or what a terminal printed.
_NOT_SAID = re.compile(
    r"user (?:doesn['’]t want to proceed|wants to clarify|denied execution)|please continue"
    r"|^(?:\S{1,40})?\s*[❯$%➜]\s|^\w+: option\b"
    r"|^\S+@\S+[:~]|^(?:FAIL|ERROR|Traceback)\b|^\s+at \S+ \(",
    re.IGNORECASE | re.MULTILINE,
)
_REQUEST = "## My request for Codex:\n"
"""Before it stands what the editor adds."""
_NAME = re.compile(r"\S*[\w-](?:/|://|-\w+-)[\w-]\S*")
"""An address, path or branch: its words together name one thing."""
_DULL = stems(
    words_of(
        "no nope wrong stop wait again still actually already said told asked meant wanted instead "
        "please forgot missed keep once more like think see look just really now that it is not do "
        "don't never should must"
    )
)


class _Correction(Record):
    message: Message
    words: frozenset[str]
    negative: bool


def detect(reading: Reading, limits: Mapping[str, float]) -> list[Finding] | Unmeasured:
    """One finding for each correction that was given before."""
    root = next(iter(reading.lanes.values()), None)
    if root is None or not root.users:
        return Unmeasured(rule=rule.name, reason="nothing that the user said is on record")
    findings = []
    earlier: deque[_Correction] = deque(maxlen=MOST)
    for now in _corrections(root):
        before = next((one for one in earlier if _is_same(one, now, limits["overlap"])), None)
        if before is not None and _worked_between(root, before.message, now.message):
            findings.append(
                found(
                    rule,
                    f"The user had to say again: “{short(now.message.text)}”",
                    [now.message.number, before.message.number],
                    lane=root.lane.id,
                )
            )
        earlier.append(now)
    return sorted(findings, key=lambda finding: min(finding.events))


def _corrections(root: LaneReading) -> Iterator[_Correction]:
    for message in root.users[1:] if len(root.users) > 2 else ():
        text = message.text
        if len(text) > _LENGTH or message.intent in ("interrupt", "request", "answer"):
            continue
        corrects = message.intent == "correction" or _is_told(text.lower())
        if corrects and not _NOT_SAID.search(text):
            told = _corrective(text)
            words = stems(words_of(_NAME.sub(_as_one, told))) - _DULL
            if len(words) >= _LEAST_WORDS:
                negative = _NEGATIVE.search(told) is not None
                yield _Correction(message=message, words=words, negative=negative)


def _corrective(text: str) -> str:
    """The sentences that correct; all of them where the words alone do not tell which do."""
    told = text.rpartition(_REQUEST)[2]
    kept = [one for one in sentences(told) if _is_told(one.lower())]
    return " ".join(kept) or told


def _as_one(name: re.Match[str]) -> str:
    return "".join(filter(str.isalnum, name[0]))


def _is_told(plain: str) -> bool:
    return plain.startswith(("no ", "no,", "nope")) or mentions(plain, _TELLING)


def _is_same(one: _Correction, other: _Correction, overlap: float) -> bool:
    if one.negative != other.negative:
        return False
    common = len(one.words & other.words)
    fewer, more = sorted((len(one.words), len(other.words)))
    return common >= _LEAST_WORDS and common >= overlap * fewer and common >= 0.4 * more


def _worked_between(root: LaneReading, one: Message, other: Message) -> bool:
    """A message that was only sent twice is no second correction."""
    at = bisect_right(root.steps, one.number, key=attrgetter("event.number"))
    return at < len(root.steps) and root.steps[at].number < other.number
