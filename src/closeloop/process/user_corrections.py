"""What a user says against the work: that it was said before, or is not as the agent claims."""

from __future__ import annotations

import re
from functools import cache, lru_cache

from closeloop.process import correction_phrases as phrases
from closeloop.process.rule_helpers import truncate_line
from closeloop.process.text_words import (
    CODE_FENCE,
    build_automaton,
    contains_any,
    mentions_any,
    normalise_words,
    word_stems,
)
from closeloop.records.record import Record
from closeloop.text.client_markup import strip_client_markup

MAX_OBJECTION_CHARS = 1200
"""Of a longer message only the first and last lines are the user's; the rest is pasted."""
_MAX_EDGE_LINES = 2
_MAX_SENTENCE_CHARS = 400
"""A longer one was not typed in anger."""
_MAX_FAULT_CHARS = 160
"""A longer sentence that names a fault describes code."""
_REQUEST_MARK = "## My request for Codex:\n"
"""Before it stands what the editor adds."""
_SENTENCE = re.compile(r"[^.!?。！？\n]+(?:\.(?=\w)[^.!?。！？\n]*)*[.!?。！？]*")
# What a terminal or a tool printed, a quoted line, a heading, a place in a log. A word is taken as
# a whole and then looked at: every line of a message is asked.
_PASTED_LINE = re.compile(
    r"^\s*+(?:[❯$%➜>|#+⎿•]|\S[^\s@]*+@\S+[:~]|(?:FAIL|FAILED|ERROR|error|Error|fatal|panic|Traceback"
    r"|warning|time=|---|===)\b"
    r"|(?=[\w./-]++:\d)[\w./-]+\.\w+:|at \S+ \(|\[[\w:.-]+\] |\w++(?<=\wError)|\d{2,4}[-:/]\d\d)"
)
_REVIEW_MARK = re.compile(
    r"\b(?:low|medium|high|critical)(?: severity\b| ?[:–—-])|\bnitpick\b|\b(?:my|code"
    r"|codex) review\b"
    r"|\bverdict\b|\bP[0-3]\b",
    re.IGNORECASE,
)
_QUOTATION = re.compile(r"\"[^\"\n]{0,300}\"|“[^”\n]{0,300}”|`[^`\n]{0,200}`")
_ACCUSING_QUESTION = re.compile(r"^(?:but |so |hey,? |and )*(?:why|how come|what do you mean)\b")


_other_word_automaton = cache(lambda: build_automaton(phrases.OTHER_WORDS))


class UserObjection(Record):
    """A user's word against what the agent did or claimed."""

    quote: str
    again: bool
    """The user had said it before."""
    refuted: bool
    """What was claimed is not so."""
    still: bool = False
    """It is as it was before the agent's last work."""
    subject: frozenset[str] = frozenset()
    """Of a fault that is named without saying whose: telling words that must be the claim's too."""


def parse_objection(text: str) -> UserObjection | None:
    """What the message holds against the work; None where it asks, tells or wishes something."""
    return _parse_objection_text(text[:20_000])


@lru_cache(maxsize=1024)
def _parse_objection_text(text: str) -> UserObjection | None:
    best: UserObjection | None = None
    for match in _SENTENCE.finditer(find_own_words(text)):
        sentence = match[0].strip()
        if len(sentence) > _MAX_SENTENCE_CHARS:
            continue
        objection = _parse_sentence(sentence)
        if objection is not None and (best is None or _rank(objection) > _rank(best)):
            best = objection
    return None if best is None or _REVIEW_MARK.search(text) else best


def _rank(objection: UserObjection) -> tuple[bool, bool, bool]:
    return objection.again, not objection.subject, objection.still


@lru_cache(maxsize=256)
def find_own_words(text: str) -> str:
    """What the user typed, without the client's texts, code, quotations and pasted output."""
    text = strip_client_markup(text.rpartition(_REQUEST_MARK)[2])
    if "```" in text:
        text = CODE_FENCE.sub("\n", text)
    lines = [line for line in text.splitlines() if line.strip() and not _PASTED_LINE.match(line)]
    if sum(map(len, lines)) > MAX_OBJECTION_CHARS:
        lines = lines[:_MAX_EDGE_LINES] + lines[_MAX_EDGE_LINES:][-_MAX_EDGE_LINES:]
    return "\n".join(lines)


def _parse_sentence(sentence: str) -> UserObjection | None:
    plain = _QUOTATION.sub("it", sentence).lower().replace("’", "'").strip(" \t\"'*_-–—")
    is_other = not plain.isascii() or contains_any(_other_word_automaton(), plain)
    again = (is_other and phrases.OTHER_AGAIN.search(plain) is not None) or (
        mentions_any(plain, phrases.AGAIN_WORDS)
        and phrases.ENGLISH_AGAIN.search(plain) is not None
        and not phrases.NOT_AGAIN.search(plain)
    )
    refuted, still, subject = False, False, frozenset[str]()
    if not plain.endswith(("?", "？")) or _ACCUSING_QUESTION.match(plain):
        if is_other and phrases.OTHER_REFUTED.search(plain):
            refuted = True
        elif mentions_any(plain, phrases.FAULT_WORDS):
            refuted, still, subject = _parse_fault(plain)
    if not again and not refuted:
        return None
    return UserObjection(
        quote=truncate_line(sentence), again=again, refuted=refuted, still=still, subject=subject
    )


def _parse_fault(plain: str) -> tuple[bool, bool, frozenset[str]]:
    """Whether something is not so, is as before, and what it is where that is only named."""
    if phrases.UNCERTAIN.search(plain):
        return False, False, frozenset()
    if phrases.ENGLISH_STILL.search(plain) and not phrases.HARMLESS_STILL.search(plain):
        return True, True, frozenset()
    if phrases.ENGLISH_REFUTED.search(plain):
        return True, False, frozenset()
    fault = phrases.FAULT.search(plain)
    if fault is None or plain.endswith("?") or len(plain) > _MAX_FAULT_CHARS:
        return False, False, frozenset()
    if phrases.CHECK_NAME.search(plain):
        return True, False, frozenset()
    subject = word_stems(normalise_words(plain[: fault.start()]))
    return bool(subject), False, subject
