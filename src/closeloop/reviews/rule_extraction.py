"""A remark as a rule: one sentence that asks for something, and its parts."""

from __future__ import annotations

import re

from closeloop.records.settings import RepoRule
from closeloop.records.team_rules import RuleParts
from closeloop.reviews.lexicon import REQUEST_VERBS, STOP_WORDS
from closeloop.reviews.remark_polarity import is_directive, strip_politeness, word_signs
from closeloop.reviews.remark_words import (
    MAX_REMARK_CHARS,
    content_words,
    find_words,
    normalise_remark,
    split_clauses,
    stem_word,
)

MAX_RULE_CHARS = 300
MIN_RULE_WORDS = 3
"""Words with a meaning that a remark needs before it can teach anything."""

_CODE_BLOCK = re.compile(r"```.*?(?:```|\Z)", re.DOTALL)
_QUOTED_LINE = re.compile(r"^\s*>.*$", re.MULTILINE)
_HIDDEN_MARKS = re.compile(r"<!--.*?(?:-->|\Z)|!?\[([^\]\n]{0,200})\]\([^)\n]{0,2000}\)", re.DOTALL)
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n\s*(?:[-*+]|\d+\.)?\s*")
_POLITE_OPENING = re.compile(
    r"^(?:(?:hi|hey|hello|thanks|nit(?:pick)?|suggestion|minor|question|ok|hmm|also|please|kindly|"
    r"blocking|non-blocking|issue|todo)\b[ ,:!]*|@[\w-]+[ ,:]*)+",
    re.IGNORECASE,
)
_REQUEST_OPENING = re.compile(
    r"^(?:could|can|would|will) (?:you|we)(?: please)? "
    r"|^(?:(?:i think|imo|imho),? )?(?:that )?(?:you|we) (?:should|must|need to) "
    r"|^(?:let's|let us) (?!not)",
    re.IGNORECASE,
)
_NEGATIONS = {"don't", "never", "not", "avoid", "no", "do"}
_SCOPE_PHRASE = re.compile(
    r"\b(?:in|inside|within|under|across) ((?:the |all |every )?[\w./-]+(?: \w+)?)$"
)
_FORBIDDEN_CODE = re.compile(
    r"\b(?:don't|do not|never|avoid|stop|no)\b(?: \w+){0,4} `([^`\n]{2,80})`"
    r"|\b(?:instead of|rather than|over|, not) (?:a |an |the )?`([^`\n]{2,80})`",
    re.IGNORECASE,
)
_ALTERNATIVE = re.compile(r" (?:instead of|rather than|over) ")
_CODE_CALL = re.compile(r"([\w.]+)\(\)")


def is_teaching_remark(text: str) -> bool:
    """Whether a remark asks for something, in enough words to be understood elsewhere."""
    remark = remark_prose(text)
    enough = len(content_words(remark)) >= MIN_RULE_WORDS
    return enough and any(is_directive(clause) for clause in split_clauses(remark))


def remark_prose(text: str) -> str:
    """What a person wrote: no code blocks, no quotes of others, no hidden marks."""
    text = _CODE_BLOCK.sub(" ", text[:MAX_REMARK_CHARS])
    return _HIDDEN_MARKS.sub(lambda found: found[1] or " ", _QUOTED_LINE.sub(" ", text)).strip()


def extract_rule_text(text: str) -> str:
    """The sentence of a remark that asks, as a rule says it."""
    sentences = [
        part.strip() for part in _SENTENCE_END.split(remark_prose(text)) if part and part.strip()
    ]
    asking = [one for one in sentences if is_teaching_remark(one)] or sentences
    chosen = " ".join(asking[0].split()) if asking else ""
    if _REQUEST_OPENING.match(chosen := _POLITE_OPENING.sub("", chosen)):
        chosen = _REQUEST_OPENING.sub("", chosen).replace("?", ".")
    chosen = _POLITE_OPENING.sub("", chosen)
    if len(chosen) > MAX_RULE_CHARS:
        chosen = f"{chosen[: MAX_RULE_CHARS - 1]}…"
    end = "" if chosen.endswith((".", "?", "!", "…")) else "."
    return f"{chosen[:1].upper()}{chosen[1:]}{end}" if chosen else ""


def parse_rule_parts(text: str) -> RuleParts:
    """Verb, object, scope and polarity of a rule's first clause that asks, by patterns."""
    clauses = [clause for clause in split_clauses(text) if is_directive(clause)]
    if not clauses:
        return RuleParts(object=normalise_remark(text)[:MAX_RULE_CHARS])
    clause = _ALTERNATIVE.split(strip_politeness(clauses[0]))[0]
    place = _SCOPE_PHRASE.search(clause)
    clause_words = find_words(clause[: place.start()] if place else clause)
    while clause_words and (clause_words[0] in _NEGATIONS or clause_words[0] in STOP_WORDS):
        clause_words = clause_words[1:]
    verb = clause_words[0] if clause_words and clause_words[0] in REQUEST_VERBS else None
    object_words = clause_words[1:] if verb else clause_words
    signs_by_word = word_signs(_ALTERNATIVE.split(clauses[0])[0])
    wants = sum(signs_by_word.get(stem_word(word), 0) for word in object_words) or sum(
        signs_by_word.values()
    )
    return RuleParts(
        verb=verb or ("avoid" if wants < 0 else None),
        object=" ".join(object_words)[:MAX_RULE_CHARS],
        scope=place[1] if place else None,
        polarity=None if wants == 0 else "do" if wants > 0 else "avoid",
    )


def infer_rule_paths(rule: RuleParts, path: str | None) -> tuple[str, ...]:
    """Where the words name a folder that the remark's own place lies in: "in tests"."""
    if rule.scope is None or path is None:
        return ()
    named = {stem_word(word) for word in find_words(rule.scope)} - STOP_WORDS
    folders = path.split("/")[:-1]
    for depth, folder in enumerate(folders, 1):
        if stem_word(folder.lower()) in named:
            return ("/".join(folders[:depth]) + "/**",)
    return ()


def build_rule_check(name: str, text: str, paths: tuple[str, ...]) -> RepoRule | None:
    """How added lines show that a rule is broken: it forbids a piece of code by name."""
    match = _FORBIDDEN_CODE.search(text.replace("’", "'"))
    code = next((part for part in match.groups() if part), None) if match else None
    if code is None:
        return None
    call = _CODE_CALL.fullmatch(code)
    literal = f"{_escape_code(call[1])}\\(" if call else _escape_code(code)
    before = r"\b" if code[0].isalnum() or code[0] == "_" else ""
    after = r"\b" if literal[-1].isalnum() or literal[-1] == "_" else ""
    return RepoRule(name=name, message=text, text=f"{before}{literal}{after}", paths=paths)


def _escape_code(code: str) -> str:
    return "".join(f"\\{sign}" if sign in r".^$*+?()[]{}|\\" else sign for sign in code)
