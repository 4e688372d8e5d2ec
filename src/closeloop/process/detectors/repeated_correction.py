"""The user had to give the same correction a second time.

## What it looks for

Messages of the user after the first that correct something: marked so by the reader, or told by
their words (`no`, `I said`, `still`, `don't`, `instead`, …). Two of them are the same when at
least 60 % of the telling words of the shorter one, and three words, are in both, and both forbid
or both demand.

The agent must have acted in between. The request pasted again, long messages, output of a
terminal and the canned words of a tool are no corrections.

## Why it matters

A correction that does not stick costs trust first, and then time. It is the plainest sign that
something was lost on the way.

## Bad

```text
#3  user  Please use the logging module instead of print in the importer.
#4  edit  importer.py   print('row', row)
#6  user  I said: use the logging module in the importer instead of print!
```

## Good

```text
#3  user  Please use the logging module instead of print in the importer.
#4  edit  importer.py   log.info('row %s', row)
#6  user  Good. Log the file's name, too.
```

## When it can be measured

When the trace shows what the user said. Only English is told apart by its words.

## Thresholds and silencing

`overlap` (0.6): the share of telling words that two corrections have in common.

```toml
[rules.repeated-correction]
overlap = 0.8

[[silence]]
rule = "repeated-correction"
task = "demo-*"
reason = "scripted users repeat themselves"
```

## How sure it is

It may gate. It finds repetitions in like words only; the same thing said in quite other words is
missed.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Mapping
from operator import attrgetter

from closeloop.process.rule_helpers import truncate_line
from closeloop.process.text_words import mentions_any, normalise_words, split_sentences, word_stems
from closeloop.records.finding import Finding, Rule, Unmeasured, make_finding
from closeloop.records.inspection import (
    LaneReading,
    TraceReading,
)
from closeloop.records.record import Record
from closeloop.records.trace import (
    Message,
)

rule = Rule(
    name="repeated-correction",
    version=2,
    about="The user corrects the same thing a second time.",
    severity="warning",
    mode="instruction drift",
    gates=True,
    thresholds={"overlap": 0.6},
)
MAX_CORRECTIONS = 50
"""So many earlier corrections are kept in mind."""
_MAX_MESSAGE_CHARS = 500
"""A longer message is a request or pasted text."""
_MIN_WORDS = 3
_CORRECTION_WORDS = (
    "n't", "n’t", "not ", "never", "wrong", "instead", "still", "again", "i said", "i told",
    "i meant", "i asked", "should", "must", "forgot", "missed", "you keep", "stop", "actually",
    "please use", "please keep", "please remove", "revert", "undo",
)  # fmt: skip
_NEGATIVE_WORD = re.compile(
    r"\b(?:not|never|no|stop|without|avoid|remove|delete|revert|undo)\b|n['’]t\b", re.IGNORECASE
)
# Words of the tool, not of the user, or what a terminal printed.
_TOOL_TEXT = re.compile(
    r"user (?:doesn['’]t want to proceed|wants to clarify|denied execution)|please continue"
    r"|^(?:\S{1,40})?\s*[❯$%➜]\s|^\w+: option\b"
    r"|^\S+@\S+[:~]|^(?:FAIL|ERROR|Traceback)\b|^\s+at \S+ \(",
    re.IGNORECASE | re.MULTILINE,
)
_REQUEST_MARK = "## My request for Codex:\n"
"""Before it stands what the editor adds."""
_COMPOUND_NAME = re.compile(r"\S*[\w-](?:/|://|-\w+-)[\w-]\S*")
"""An address, path or branch: its words together name one thing."""
_DULL_STEMS = word_stems(
    normalise_words(
        "no nope wrong stop wait again still actually already said told asked meant wanted instead "
        "please forgot missed keep once more like think see look just really now that it is not do "
        "don't never should must"
    )
)


class _UserCorrection(Record):
    message: Message
    words: frozenset[str]
    negative: bool


def detect(reading: TraceReading, limits: Mapping[str, float]) -> list[Finding] | Unmeasured:
    """One finding for each correction that was given before."""
    root = next(iter(reading.lanes.values()), None)
    if root is None or not root.users:
        return Unmeasured(rule=rule.name, reason="nothing that the user said is on record")
    findings = []
    earlier: deque[_UserCorrection] = deque(maxlen=MAX_CORRECTIONS)
    for now in _list_corrections(root):
        before = next(
            (one for one in earlier if _is_same_correction(one, now, limits["overlap"])), None
        )
        if before is not None and _has_work_between(root, before.message, now.message):
            findings.append(
                make_finding(
                    rule,
                    f"The user had to say again: “{truncate_line(now.message.text)}”",
                    [now.message.number, before.message.number],
                    lane=root.lane.id,
                )
            )
        earlier.append(now)
    return sorted(findings, key=lambda finding: min(finding.events))


def _list_corrections(root: LaneReading) -> Iterator[_UserCorrection]:
    for message in root.users[1:] if len(root.users) > 2 else ():
        text = message.text
        if len(text) > _MAX_MESSAGE_CHARS or message.intent in ("interrupt", "request", "answer"):
            continue
        corrects = message.intent == "correction" or _is_correction(text.lower())
        if corrects and not _TOOL_TEXT.search(text):
            correction = _correcting_text(text)
            words = (
                word_stems(normalise_words(_COMPOUND_NAME.sub(_join_name, correction)))
                - _DULL_STEMS
            )
            if len(words) >= _MIN_WORDS:
                negative = _NEGATIVE_WORD.search(correction) is not None
                yield _UserCorrection(message=message, words=words, negative=negative)


def _correcting_text(text: str) -> str:
    """The sentences that correct; all of them where the words alone do not tell which do."""
    request = text.rpartition(_REQUEST_MARK)[2]
    correcting_sentences = [one for one in split_sentences(request) if _is_correction(one.lower())]
    return " ".join(correcting_sentences) or request


def _join_name(name: re.Match[str]) -> str:
    return "".join(filter(str.isalnum, name[0]))


def _is_correction(plain: str) -> bool:
    return plain.startswith(("no ", "no,", "nope")) or mentions_any(plain, _CORRECTION_WORDS)


def _is_same_correction(one: _UserCorrection, other: _UserCorrection, overlap: float) -> bool:
    if one.negative != other.negative:
        return False
    common = len(one.words & other.words)
    fewer, more = sorted((len(one.words), len(other.words)))
    return common >= _MIN_WORDS and common >= overlap * fewer and common >= 0.4 * more


def _has_work_between(root: LaneReading, one: Message, other: Message) -> bool:
    """A message that was only sent twice is no second correction."""
    at = bisect_right(root.steps, one.number, key=attrgetter("event.number"))
    return at < len(root.steps) and root.steps[at].number < other.number
