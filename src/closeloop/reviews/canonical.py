"""A remark as a rule: one sentence that asks for something, and its parts."""

from __future__ import annotations

import re

from closeloop.model.memory import Canonical
from closeloop.model.settings import RepoRule
from closeloop.reviews.lexicon import STOP, VERBS
from closeloop.reviews.polarity import bare, directive, signs
from closeloop.reviews.words import MOST_TEXT, clauses_of, content, plain, stem, words_of

LONGEST = 300
FEWEST_WORDS = 3
"""Words with a meaning that a remark needs before it can teach anything."""

_CODE = re.compile(r"```.*?(?:```|\Z)", re.DOTALL)
_QUOTED = re.compile(r"^\s*>.*$", re.MULTILINE)
_MARKS = re.compile(r"<!--.*?(?:-->|\Z)|!?\[([^\]\n]{0,200})\]\([^)\n]{0,2000}\)", re.DOTALL)
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n\s*(?:[-*+]|\d+\.)?\s*")
_POLITE = re.compile(
    r"^(?:(?:hi|hey|hello|thanks|nit(?:pick)?|suggestion|minor|question|ok|hmm|also|please|kindly|"
    r"blocking|non-blocking|issue|todo)\b[ ,:!]*|@[\w-]+[ ,:]*)+",
    re.IGNORECASE,
)
_ASKED = re.compile(
    r"^(?:could|can|would|will) (?:you|we)(?: please)? "
    r"|^(?:(?:i think|imo|imho),? )?(?:that )?(?:you|we) (?:should|must|need to) "
    r"|^(?:let's|let us) (?!not)",
    re.IGNORECASE,
)
_NOT = {"don't", "never", "not", "avoid", "no", "do"}
_PLACE = re.compile(
    r"\b(?:in|inside|within|under|across) ((?:the |all |every )?[\w./-]+(?: \w+)?)$"
)
_FORBIDDEN = re.compile(
    r"\b(?:don't|do not|never|avoid|stop|no)\b(?: \w+){0,4} `([^`\n]{2,80})`"
    r"|\b(?:instead of|rather than|over|, not) (?:a |an |the )?`([^`\n]{2,80})`",
    re.IGNORECASE,
)
_ELSE = re.compile(r" (?:instead of|rather than|over) ")
_CALL = re.compile(r"([\w.]+)\(\)")


def teaches(text: str) -> bool:
    """Whether a remark asks for something, in enough words to be understood elsewhere."""
    said = prose(text)
    enough = len(content(said)) >= FEWEST_WORDS
    return enough and any(directive(clause) for clause in clauses_of(said))


def prose(text: str) -> str:
    """What a person wrote: no code blocks, no quotes of others, no hidden marks."""
    text = _CODE.sub(" ", text[:MOST_TEXT])
    return _MARKS.sub(lambda found: found[1] or " ", _QUOTED.sub(" ", text)).strip()


def rule_text(text: str) -> str:
    """The sentence of a remark that asks, as a rule says it."""
    sentences = [part.strip() for part in _SENTENCE.split(prose(text)) if part and part.strip()]
    asking = [one for one in sentences if teaches(one)] or sentences
    chosen = " ".join(asking[0].split()) if asking else ""
    if _ASKED.match(chosen := _POLITE.sub("", chosen)):
        chosen = _ASKED.sub("", chosen).replace("?", ".")
    chosen = _POLITE.sub("", chosen)
    if len(chosen) > LONGEST:
        chosen = f"{chosen[: LONGEST - 1]}…"
    end = "" if chosen.endswith((".", "?", "!", "…")) else "."
    return f"{chosen[:1].upper()}{chosen[1:]}{end}" if chosen else ""


def canonical(text: str) -> Canonical:
    """Verb, object, scope and polarity of a rule's first clause that asks, by patterns."""
    clauses = [clause for clause in clauses_of(text) if directive(clause)]
    if not clauses:
        return Canonical(object=plain(text)[:LONGEST])
    clause = _ELSE.split(bare(clauses[0]))[0]
    place = _PLACE.search(clause)
    said = words_of(clause[: place.start()] if place else clause)
    while said and (said[0] in _NOT or said[0] in STOP):
        said = said[1:]
    verb = said[0] if said and said[0] in VERBS else None
    about = said[1:] if verb else said
    told = signs(_ELSE.split(clauses[0])[0])
    wants = sum(told.get(stem(word), 0) for word in about) or sum(told.values())
    return Canonical(
        verb=verb or ("avoid" if wants < 0 else None),
        object=" ".join(about)[:LONGEST],
        scope=place[1] if place else None,
        polarity=None if wants == 0 else "do" if wants > 0 else "avoid",
    )


def paths_of(rule: Canonical, path: str | None) -> tuple[str, ...]:
    """Where the words name a folder that the remark's own place lies in: "in tests"."""
    if rule.scope is None or path is None:
        return ()
    named = {stem(word) for word in words_of(rule.scope)} - STOP
    folders = path.split("/")[:-1]
    for depth, folder in enumerate(folders, 1):
        if stem(folder.lower()) in named:
            return ("/".join(folders[:depth]) + "/**",)
    return ()


def check_of(name: str, text: str, paths: tuple[str, ...]) -> RepoRule | None:
    """How added lines show that a rule is broken: it forbids a piece of code by name."""
    found = _FORBIDDEN.search(text.replace("’", "'"))
    code = next((part for part in found.groups() if part), None) if found else None
    if code is None:
        return None
    call = _CALL.fullmatch(code)
    literal = f"{_escaped(call[1])}\\(" if call else _escaped(code)
    before = r"\b" if code[0].isalnum() or code[0] == "_" else ""
    after = r"\b" if literal[-1].isalnum() or literal[-1] == "_" else ""
    return RepoRule(name=name, message=text, text=f"{before}{literal}{after}", paths=paths)


def _escaped(code: str) -> str:
    return "".join(f"\\{sign}" if sign in r".^$*+?()[]{}|\\" else sign for sign in code)
