"""The user corrects the same thing a second time.

## What it looks for

Messages of the user after the first one, and after work of the agent, that repeat a correction:

- The user says that it was said before: `I told you`, `I asked for`, `as I said`, `you keep`, `why
  are you still`, `how many times`.
- The user says that nothing improved (`still doesn't work`, `even then`, `the same error again`),
  after the agent claimed success and the user had complained before.
- Two messages correct the same thing in similar words: both forbid or demand, and they share at
  least three significant words and 60 % of those of the shorter message.

The first two are recognised in English, German, French, Spanish, Portuguese, Italian, Russian,
Chinese and Japanese. The request sent again, also with changes, long messages, terminal output with
the text after it, and text of the client are not corrections.

## Why it matters

A correction that does not last costs trust and time. It is the clearest sign that something was
lost.

## Bad

```text
#3  user  Please use the logging module instead of print in the importer.
#4  edit  importer.py   print('row', row)
#6  user  I told you to use the logging module!
```

## Good

```text
#3  user  Please use the logging module instead of print in the importer.
#4  edit  importer.py   log.info('row %s', row)
#6  user  Good. Log the file's name, too.
```

## When it can be measured

If the trace contains the user's messages.

## Thresholds and silencing

`overlap` (0.6): the share of significant words that two corrections have in common.

```toml
[rules.repeated-correction]
overlap = 0.8

[[silence]]
rule = "repeated-correction"
task = "demo-*"
reason = "scripted users repeat themselves"
```

## How sure it is

It may gate. A repetition in very different words, without a hint that it is one, is missed.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from operator import attrgetter

from closeloop.process.agent_claims import list_closings, parse_claim
from closeloop.process.rule_helpers import truncate_line
from closeloop.process.text_facts import (
    MAX_TEXT_CHARS,
    mentions_any,
    normalise_words,
    split_sentences,
    word_stems,
)
from closeloop.process.user_corrections import (
    UserObjection,
    find_own_words,
    find_words_before_output,
    is_about,
    parse_objection,
)
from closeloop.records.change import LaneReading, TraceReading
from closeloop.records.finding import Finding, Rule, Unmeasured, make_finding
from closeloop.records.record import Record
from closeloop.records.trace import Message

rule = Rule(
    name="repeated-correction",
    version=4,
    about="The user corrects the same thing a second time.",
    severity="warning",
    mode="instruction drift",
    gates=True,
    thresholds={"overlap": 0.6},
)
MAX_CORRECTIONS = 50
"""Earlier corrections that are remembered."""
_MAX_MESSAGE_CHARS = 500
"""A longer message is a request or pasted text, and is not compared."""
_RESENT_LIKENESS = 0.8
"""Similarity of a request and its second, polished form."""
_MIN_WORDS = 3
_MIN_SHARED_WORDS = 2
_CORRECTION_WORDS = (
    "n't", "n’t", "not ", "never", "wrong", "instead", "still", "again", "i said", "i told",
    "i meant", "i asked", "should", "must", "forgot", "missed", "you keep", "stop", "actually",
    "please use", "please keep", "please remove", "revert", "undo",
)  # fmt: skip
_NEGATIVE_WORD = re.compile(
    r"\b(?:not|never|no|stop|without|avoid|remove|delete|revert|undo)\b|n['’]t\b", re.IGNORECASE
)
_COMPOUND_NAME = re.compile(r"\S*[\w-](?:/|://|-\w+-)[\w-]\S*")
"""An address, path or branch, whose words together name one thing."""
_DULL_STEMS = word_stems(
    normalise_words(
        "no nope wrong stop wait again still actually already said told asked meant wanted instead "
        "please forgot missed keep once more like think see look just really now that it is not do "
        "don't never should must"
    )
)


class _UserCorrection(Record):
    message: Message
    text: str
    words: frozenset[str]
    negative: bool


def detect(reading: TraceReading, limits: Mapping[str, float]) -> list[Finding] | Unmeasured:
    """Report one finding for each correction that was given before."""
    root = next(iter(reading.lanes.values()), None)
    if root is None or not root.users:
        return Unmeasured(rule=rule.name, reason="the trace contains no message of the user")
    findings: dict[int, Finding] = {}
    for message, before in _list_repetitions(root, limits["overlap"]):
        findings.setdefault(
            message.number,
            make_finding(
                rule,
                f"The user repeated a correction: “{_quote_correction(message)}”",
                [message.number, *before],
                lane=root.lane.id,
            ),
        )
    return [findings[number] for number in sorted(findings)]


def _quote_correction(message: Message) -> str:
    objection = parse_objection(message.text)
    return objection.quote if objection else truncate_line(find_own_words(message.text))


def _list_repetitions(root: LaneReading, overlap: float) -> Iterator[tuple[Message, Sequence[int]]]:
    """Yield messages that correct again, with the earlier events they repeat."""
    later_messages = [
        user for user in root.users[1:] if user.intent not in ("interrupt", "request")
    ]
    objections = {
        later_message.number: objection
        for later_message in later_messages
        if (objection := parse_objection(later_message.text)) is not None
    }
    for message in later_messages:
        objection = objections.get(message.number)
        if objection and objection.again and _has_work_between(root, root.users[0], message):
            yield message, _find_first_saying(root, message)
        elif (
            objection
            and objection.still
            and (before := _find_complaint_and_claim(root, message, objections))
        ):
            yield message, before
    if len(root.users) > 2:
        yield from _list_alike_corrections(root, later_messages, overlap)


def _find_first_saying(root: LaneReading, message: Message) -> tuple[int, ...]:
    """Return the user's earlier message with the most significant words in common."""
    stems = word_stems(normalise_words(find_own_words(message.text))) - _DULL_STEMS
    shared = [
        (len(stems & word_stems(normalise_words(user.text[:MAX_TEXT_CHARS]))), user.number)
        for user in root.users[-MAX_CORRECTIONS:]
        if user.number < message.number
    ]
    common, number = max(shared, default=(0, 0))
    return (number,) if common >= _MIN_SHARED_WORDS else ()


def _find_complaint_and_claim(
    root: LaneReading, message: Message, objections: Mapping[int, UserObjection]
) -> tuple[int, int] | None:
    """Return the claim that it answers, and the user's complaint before that claim."""
    closing = next(
        (closing for closing in list_closings(root) if closing.until == message.number), None
    )
    if closing is None or parse_claim(closing.message) is None:
        return None
    complaint = closing.since if closing.since in objections else None
    if complaint is None and _is_complaint(root.users[0], closing.since):
        complaint = closing.since
    if not complaint:
        return None
    before = root.users[bisect_right(root.users, complaint, key=attrgetter("number")) - 1]
    if not is_about(objections[message.number], (closing.message.text, before.text)):
        return None
    return complaint, closing.message.number


def _is_complaint(request: Message, number: int) -> bool:
    """Whether the first request says that something does not work."""
    objection = parse_objection(request.text) if request.number == number else None
    return objection is not None and objection.refuted


def _list_alike_corrections(
    root: LaneReading, messages: Sequence[Message], overlap: float
) -> Iterator[tuple[Message, Sequence[int]]]:
    earlier: deque[_UserCorrection] = deque(maxlen=MAX_CORRECTIONS)
    for correction in _list_corrections(messages):
        previous = next(
            (
                candidate
                for candidate in earlier
                if _is_same_correction(candidate, correction, overlap)
            ),
            None,
        )
        if previous is not None and _has_work_between(root, previous.message, correction.message):
            yield correction.message, (previous.message.number,)
        earlier.append(correction)


def _list_corrections(messages: Sequence[Message]) -> Iterator[_UserCorrection]:
    for message in messages:
        text = find_own_words(message.text)
        if not 0 < len(text) <= _MAX_MESSAGE_CHARS or message.intent == "answer":
            continue
        if message.intent != "correction" and not _is_correction(text.lower()):
            continue
        correction = _correcting_text(find_words_before_output(message.text))
        stems = word_stems(normalise_words(_COMPOUND_NAME.sub(_join_name, correction)))
        if len(stems - _DULL_STEMS) >= _MIN_WORDS:
            yield _UserCorrection(
                message=message,
                text=text,
                words=stems - _DULL_STEMS,
                negative=_NEGATIVE_WORD.search(correction) is not None,
            )


def _correcting_text(text: str) -> str:
    """Return the sentences that correct; all if the words alone do not show which."""
    correcting_sentences = [
        sentence
        for sentence in split_sentences(text)
        if _is_correction(sentence.lower()) and not sentence.endswith("?")
    ]
    return " ".join(correcting_sentences) or text


def _join_name(name: re.Match[str]) -> str:
    return "".join(filter(str.isalnum, name[0]))


def _is_correction(lower_text: str) -> bool:
    return lower_text.startswith(("no ", "no,", "nope")) or mentions_any(
        lower_text, _CORRECTION_WORDS
    )


def _is_same_correction(first: _UserCorrection, second: _UserCorrection, overlap: float) -> bool:
    if first.negative != second.negative:
        return False
    common = len(first.words & second.words)
    smaller, larger = sorted((len(first.words), len(second.words)))
    if common < _MIN_WORDS or common < overlap * smaller or common < 0.4 * larger:
        return False
    # The same message sent again, perhaps edited, is no repetition.
    matcher = SequenceMatcher(None, first.text, second.text)
    bounds = (matcher.real_quick_ratio, matcher.quick_ratio, matcher.ratio)
    return any(ratio() < _RESENT_LIKENESS for ratio in bounds)


def _has_work_between(root: LaneReading, first: Message, second: Message) -> bool:
    """Whether there was work in between: a message sent twice is not a second correction."""
    index = bisect_right(root.steps, first.number, key=attrgetter("event.number"))
    return index < len(root.steps) and root.steps[index].number < second.number
