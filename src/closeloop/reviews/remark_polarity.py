"""Remarks of reviewers: their words, what they ask for, and the rule they make."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import Literal

from closeloop.records.settings import RepoRule
from closeloop.records.team_rules import RuleParts
from closeloop.text.wording import compile_lazily

# The vocabulary of polarity: English as reviewers write it.

STOP_WORDS = frozenset(
    """
    a about above after again all also an and any anybody are as at be been before being below but
    by came can could did do does doing done down each else even ever every few for from further had
    has have he her here him his how i if ill im in into is it its itself ive just let lets like
    made make makes making may maybe me might more most much must my need needs nit of off on once
    one only or other our out over own per please quite really shall should so some such sure than
    that thats the their them then there theres these they this those to too under until up us very
    via want wants was we well were when where which while who will with would yet you your youre
    """.split()  # noqa: SIM905 - a hundred quotes are hard to read
)
"""Words that are common to most remarks."""
REQUEST_VERBS = frozenset(
    """
    add adjust align allow annotate apply ask assert avoid bind break build call cap capitalise
    capitalize catch change check choose clean close comment commit compare compress compute
    consider convert copy cover create declare default define delete depend deprecate disable
    discuss document drop edit enable encode ensure escape exclude explain export extract fail fake
    fetch find fix follow forbid format freeze generate give group guard handle hard-code hardcode
    have hide hold ignore implement import include indent index initialise initialize inject inline
    introduce invert keep leave limit link list load lock log make mark merge migrate mock move name
    narrow omit open order override parse pass persist pick pin prefer prefix print provide put
    query quote raise read redact refactor regenerate release remove rename render reorder replace
    require reset restore retry return reuse revert rotate round run save set shorten show simplify
    skip sleep sort specify split squash stop store strip swallow take tell test throw time toggle
    translate trim type unify update upgrade use validate verify wait wrap write
    """.split()  # noqa: SIM905 - a hundred quotes are hard to read
)
"""Verbs with which a request begins."""
ORDER_WORDS = frozenset(
    """
    above after before below between by calls convert depends extends first from if imports inside
    into over replace replaced than then to under unless when with wrap wraps
    """.split()  # noqa: SIM905 - a hundred quotes are hard to read
)
"""Words around which the order of other words matters."""
HARMLESS_WORDS = frozenset(
    """
    a again alway an and are be can code could diff do does everywher generally here i is it its
    just let lets must my need needs nit now of our patch please pr pull really request shall should
    so such that the their there these thing this those to us very we will would you your
    """.split()  # noqa: SIM905
)
"""Small words and stems that do not change what is wanted."""
ANTONYMS = {
    "immut": "mut", "immutabl": "mut", "mutabl": "mut", "async": "sync", "asynchronou": "sync",
    "synchronou": "sync", "disabl": "enabl", "unsaf": "saf", "implicit": "explicit",
    "privat": "public", "nest": "flat", "deni": "allow", "optional": "requir", "hidden": "shown",
    "unsort": "sort", "unexport": "public", "singl": "doubl",
}  # fmt: skip
"""Stems, each with the stem it is compared as."""
NEGATIVE_ANTONYMS = frozenset(
    """
    async asynchronou deni disabl hidden immut immutabl implicit nest optional privat singl unexport
    unsaf unsort
    """.split()  # noqa: SIM905 - a hundred quotes are hard to read
)
"""The stems among them that mean the opposite of the stem they are compared as."""
SYNONYMS = {"newlin": "lin", "empty": "blank", "nil": "null", "delet": "remov", "export": "public"}
"""Stems that reviewers use for the same thing, each with the stem it counts as."""
WORDINGS = {
    "blank line": ("new line", "newline", "empty line", "line break"),
    "boolean": ("bool",),
    "changelog": ("change log", "release note", "upgrade note"),
    "configuration": ("config", "setting"),
    "constant": ("const",),
    "directory": ("dir", "folder"),
    "documentation": ("doc comment", "docblock", "docstring", "godoc", "javadoc", "jsdoc"),
    "function": ("fn", "func", "method"),
    "hardcode": ("hard-code", "hard code", "hard-coding", "hard coding", "hardcoding"),
    "integer": ("int",),
    "issue": ("bug", "jira", "ticket"),
    "license": ("licence",),
    "null": ("nil", "none", "nullptr", "undefined"),
    "parameter": ("arg", "argument", "param"),
    "private": ("non-exported", "non-public", "unexported"),
    "public": ("export",),
    "pull request": ("changeset", "merge request", "mr", "patch", "pr"),
    "remove": ("delete", "ditch", "drop", "eliminate", "get rid of", "strip"),
    "space": ("white space", "whitespace"),
    "test": ("spec",),
    "throw": ("raise",),
    "translate": ("i18n", "localise", "localize"),
    "type annotation": ("type hint", "typehint"),
    "unnecessary": ("extraneous", "needless", "redundant", "spurious", "superfluous", "unneeded"),
    "variable": ("var",),
    "wildcard": ("asterisk", "star"),
}
"""Phrases that reviewers use for the same thing, each with the name used in comparison."""
GENERAL_VERBS = frozenset(
    "add avoid chang keep mak need prefer put remov us use want".split()  # noqa: SIM905
)
"""Stems of verbs that apply to anything: alone they have no subject."""
JUDGING_WORDS = frozenset(
    """
    extra extraneou miss necessary needles redundant spuriou stray superfluou unneed unnecessary
    unus
    """.split()  # noqa: SIM905
)
"""Stems that express an opinion of a thing, and are themselves neither wanted nor unwanted."""


# Clauses and their meaningful words, in English as reviewers write it.

MAX_REMARK_CHARS = 4000
_CLAUSE_END = compile_lazily(
    r"[.;:!?\n]+(?=\s|$)|,(?=\s)|\s[-–—]+\s|\b(?:but|because|so that|since)\b"
)
_PURPOSE = compile_lazily(
    r"\b(?:so(?: that)? (?:we|you|it|they|i|users?|people)|otherwise)\b[^.;!?]*"
)
"""The purpose of a request: itself neither wanted nor unwanted."""
_CONTRAST = compile_lazily(
    r"(?:, | and |, and )not (?!(?:used|needed|necessary|required|sure|only|just|really|yet)\b)"
)
"""Precedes what is not wanted: "spaces, not tabs"."""
_BLANK_LINE = compile_lazily(r"\b(?:new|empty) ?lines?\b|\bline breaks?\b")
WORD = compile_lazily(r"\w+(?:'\w+)?")
_OPENING_MARKS = compile_lazily(r"^[(\"'*_]+")
_CLOSING_MARKS = compile_lazily(r"[.,;:!?…)\"'*_]+$")
_INNER_MARK = compile_lazily(r"(?<=\w)[-'](?=\w)")
_SUFFIXES = ("ations", "ation", "ings", "ing", "ies", "ied", "ers", "ed", "es", "er", "s")


def normalise_remark(text: str) -> str:
    """Return the text in lower case, with straight quotes and single spaces, truncated."""
    text = text[:MAX_REMARK_CHARS].encode("utf-8", "replace").decode()
    text = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(text.replace("’", "'").replace("`", "").split())


def comparable_words(text: str) -> str:
    """Return a text without case, spacing and sentence punctuation.

    Other characters stay: `==` and `!=` are different requests.
    """
    tokens = (
        _OPENING_MARKS.sub("", _CLOSING_MARKS.sub("", token)) or token
        for token in normalise_remark(text).split()
    )
    return " ".join(tokens)


def code_words(text: str) -> set[str]:
    """Return the words that contain something other than letters: operators, names in code."""
    return {
        token
        for token in comparable_words(text).split()
        if not _INNER_MARK.sub("", token).isalnum()
    }


def content_words(text: str) -> set[str]:
    """Return the words that carry meaning."""
    return {*find_words(normalise_remark(text))} - STOP_WORDS


def split_clauses(text: str) -> list[str]:
    """Split a text into clauses that each state or request one thing."""
    plain = _BLANK_LINE.sub("blank line", _PURPOSE.sub(" ", normalise_remark(text)))
    plain = _CONTRAST.sub(" instead of ", plain)
    return [part.strip() for part in _CLAUSE_END.split(plain) if part and part.strip()]


def find_words(text: str) -> list[str]:
    return WORD.findall(text)


def stem_word(word: str) -> str:
    """Return a rough stem, the same for the forms of a word: tests, testing, tested."""
    for suffix in _SUFFIXES:
        if word.endswith(suffix) and len(word) - len(suffix) >= 3:
            word = word.removesuffix(suffix)
            break
    if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "sl":
        word = word[:-1]
    return word.removesuffix("e") if len(word) > 3 else word


RemarkRelation = Literal["same", "opposite", "unclear"]

MIN_SHARED_SHARE = 0.4
"""Share of the shorter remark's words that the other must have for both to be on one subject."""
MIN_SIGNED_SHARE = 0.3
"""Minimum share of the longer remark's words that must have comparable polarity."""

_POLITE_WORDS = compile_lazily(
    r"^(?:(?:please|kindly|nit(?:pick)?|suggestion|minor|also|and|then|so|or|hmm|ok|well|perhaps|"
    r"maybe|probably|optional|just|always|could (?:you|we|this)|can (?:you|we|this)|would you|"
    r"(?:could|can|should)n?'t (?:you|we|this|it|these)|should (?:you|we|this|it|these)|"
    r"(?:i think|i guess|i believe|i feel like|it seems(?: like)?|looks like)(?= (?:we|you) )|"
    r"you (?:should|must|need to|could|can)|we (?:should|must|need to|could)|let'?s|i would|i'd|"
    r"try to|make sure (?:that |to )?|remember to|be sure to)\b[ ,:]*)+"
)
_WISH_WORDS = compile_lazily(
    r"\b(?:should|must|needs?|has to|have to|ought|never|always|don't|do not|avoid|prefer|please|"
    r"let's|no longer|not our style|belongs?|could you|can you|would you|shall|instead|rather|"
    r"would (?:love|like|be (?:nice|good|great|better))|worth)\b"
)
_MISSING_WORDS = compile_lazily(
    r"\b(?:lacks?|missing|has no|have no|there is no|there's no|"
    r"(?:is|are)(?: not|n't| never) (?=(?:yet |being )?(?:checked|cleaned|closed|covered|"
    r"documented|escaped|formatted|freed|handled|indented|initiali[sz]ed|logged|marked|released|"
    r"sanitized|sorted|tested|translated|validated|verified|wrapped)\b))"
)
_NEEDLESS_WORDS = compile_lazily(
    r"\b(?:unnecessary|unneeded|needless|redundant|superfluous|spurious|stray|extraneous|"
    r"not (?:needed|necessary|required|used)|(?:is|are)n't (?:needed|necessary|required|used)|"
    r"no need (?:to|for|of)|(?:do|does)n't need|do(?:es)? not need|no longer (?:needed|used)|"
    r"(?:can|could|should|must|to) (?:now )?be (?:removed|deleted|dropped)|"
    r"unused|never used|what's the point of|what is the point of)\b"
)
"""Words that mark their object as unwanted, without an explicit request."""
_DOUBTING_QUESTION = compile_lazily(
    r"(?:then |so |and )?(?:why (?:do |did |does |is |are |was |were |would |to |the |a |an |this |"
    r"these |change|bother )|what(?:'s| is) the (?:point|purpose|use|value) of |"
    r"do(?:es)? (?:we|you|i|this|it|that|these|the \w+) (?:really|actually|even|still) |"
    r"does (?:this|it|that|the \w+) (?=need to )|are (?:we|you) sure |"
    r"(?:is|are) (?=(?:this|it|that|these|those|the)\b.{0,60}\b(?:needed|necessary|required)\b))"
)
_NEGATIVE_QUESTION = compile_lazily(
    r"(?:why|(?:is|are|do|does|did|should|would|could)n't (?:it|this|that|there|we|you|these)\b)"
)
"""A negated question: it means yes, or nothing."""
_NEGATION = compile_lazily(
    r"\b(?:not|never|nobody|none|neither|hardly|rarely|seldom|cannot|can't|won't|"
    r"(?:do|does|did|is|are|was|must|should|could|would)n't)\b"
)
_NEGATED_MODAL = compile_lazily(
    r"\b(?:must|should|may|can|could)(?: not\b|n't\b|not\b| never\b)|\bcannot\b"
)
_REJECTION = compile_lazily(
    r"(?<!\.)\b(?:no|without|avoid(?:ing|s)?|stop|skip(?:ping)?|ignor(?:e|es|ing)|forbid|omit|"
    r"refrain from|remov(?:e|es|ing)|delet(?:e|es|ing)|drop(?:ping)?|strip|get rid of|disable|"
    r"exclude|out of|instead of|rather than|in place of|prohibit|ban|disallow|reject|forget|hide)\b"
)
_PREFERENCE = compile_lazily(r"\bprefer(?:red|ring|s)?\b[^,]*?\b(over|to)\b")
_ANTONYM_TARGETS = frozenset(ANTONYMS.values())


def compare_remarks(first: str, second: str) -> RemarkRelation:
    """Return how two remarks relate: same, opposite or unclear."""
    relation = _compare_signs(first, second, word_signs(first), word_signs(second))
    if relation != "unclear":
        return relation
    # A long remark contains one request among reasons: every request is compared with every other.
    clauses, other_clauses = list_clause_signs(first), list_clause_signs(second)
    agreements = {
        _compare_objects(clause, other_clause)
        for clause in clauses
        for other_clause in other_clauses
    }
    return "opposite" if -1 in agreements and 1 not in agreements else "unclear"


def wants_contrary(first: str, second: str) -> bool:
    """Return whether one text wants a thing that the other does not want."""
    signs, other_signs = word_signs(first), word_signs(second)
    shared = (signs.keys() & other_signs.keys()) - GENERAL_VERBS
    return sum(signs[word] * other_signs[word] for word in shared) < 0


@lru_cache(maxsize=4096)
def list_clause_signs(text: str) -> list[dict[str, int]]:
    """Return what each clause of a text wants."""
    return [word_signs(clause) for clause in split_clauses(text)]


def _compare_objects(first_signs: dict[str, int], second_signs: dict[str, int]) -> int:
    """Return -1 if two clauses want the opposite for the same things, 1 if the same, 0 if
    unclear."""
    first_signs, second_signs = (
        {word: sign for word, sign in signs.items() if word not in GENERAL_VERBS}
        for signs in (first_signs, second_signs)
    )
    signed = [
        first_signs[word] * second_signs[word] for word in first_signs.keys() & second_signs.keys()
    ]
    if not any(signed) or len(signed) * 2 <= min(len(first_signs), len(second_signs)):
        return 0
    return -1 if sum(signed) < 0 else 1


def _compare_signs(
    first: str, second: str, first_signs: dict[str, int], second_signs: dict[str, int]
) -> RemarkRelation:
    shared = first_signs.keys() & second_signs.keys()
    if not shared or len(shared) < MIN_SHARED_SHARE * min(len(first_signs), len(second_signs)):
        return "unclear"
    signed_words = [word for word in shared if first_signs[word] and second_signs[word]]
    opposed_words = [word for word in signed_words if first_signs[word] != second_signs[word]]
    has_enough_signed = len(signed_words) >= MIN_SIGNED_SHARE * max(
        len(first_signs), len(second_signs)
    )
    if has_enough_signed and (
        len(opposed_words) * 2 > len(signed_words)
        or any(word in _ANTONYM_TARGETS for word in opposed_words)
    ):
        return "opposite"
    # Any other verb may invert it: to "undo adding tests" is not to add them.
    equal = not (first_signs.keys() ^ second_signs.keys()) - HARMLESS_WORDS
    sure = equal and signed_words and not opposed_words and len(signed_words) == len(shared)
    return "same" if sure and not _may_invert(first, second) else "unclear"


def _may_invert(first: str, second: str) -> bool:
    """Return whether a small word, or the word order around one, may invert the meaning."""
    first_words, second_words = (
        find_words(normalise_remark(first)),
        find_words(normalise_remark(second)),
    )
    if (
        code_words(first) != code_words(second)
        or ({*first_words} ^ {*second_words}) & STOP_WORDS - HARMLESS_WORDS
    ):
        return True
    if _count_denials(first) != _count_denials(second):
        return True
    if not ORDER_WORDS & {*first_words, *second_words}:
        return False
    shared = {*first_words} & {*second_words} - STOP_WORDS
    return [word for word in first_words if word in shared] != [
        word for word in second_words if word in shared
    ]


def _count_denials(text: str) -> int:
    """Count the negations in a text, including clauses that say nothing else."""
    text = normalise_remark(text)
    return len(_NEGATION.findall(text)) + len(_REJECTION.findall(text))


@lru_cache(maxsize=4096)
def word_signs(text: str) -> dict[str, int]:
    """Return for each stem 1 if it is wanted, -1 if unwanted, 0 if that is not said."""
    signs_by_stem: dict[str, int] = {}
    for clause in split_clauses(text):
        for word, sign in _clause_signs(clause):
            before = signs_by_stem.get(word)
            signs_by_stem[word] = (
                sign if before in (None, 0) else before if sign in (0, before) else 0
            )
    return signs_by_stem


def is_directive(clause: str) -> bool:
    """Return whether a clause requests something rather than states it."""
    first = strip_politeness(clause).split()[:2]
    if not first:
        return False
    if is_complaint(clause):
        return True
    if _NEGATIVE_QUESTION.match(clause):
        return False
    if first[0] in REQUEST_VERBS and len(first) > 1:
        return True
    if _MISSING_WORDS.search(clause):
        return False
    return strip_politeness(clause) != clause or bool(_WISH_WORDS.search(clause))


def is_complaint(clause: str) -> bool:
    """Return whether a clause only calls something missing, needless or strange."""
    return _complaint_sign(clause)[0] != 0


def _complaint_sign(clause: str) -> tuple[int, str]:
    """Return 1 if the clause calls something missing, -1 if needless, else 0.

    Also returns the clause without the words that say so.
    """
    for sign, pattern in ((1, _MISSING_WORDS), (-1, _NEEDLESS_WORDS), (-1, _DOUBTING_QUESTION)):
        match = pattern.search(clause)
        if match is None or (pattern is _DOUBTING_QUESTION and match.start() > 0):
            continue
        remainder = clause[: match.start()] + " " * len(match[0]) + clause[match.end() :]
        # "Remove the unused import" asks; in "unused import", "import" is no verb.
        first = strip_politeness(clause[: match.start()]).split()[:1]
        asks = bool(first) and first[0] in REQUEST_VERBS
        rejects = pattern is not _DOUBTING_QUESTION and _REJECTION.search(remainder)
        if not asks and not rejects and not _NEGATION.search(remainder):
            return sign, remainder
    return 0, clause


def strip_politeness(clause: str) -> str:
    """Return a clause without polite phrases."""
    return _POLITE_WORDS.sub("", clause)


def _clause_signs(clause: str) -> list[tuple[str, int]]:
    """Return the words of a clause with their signs.

    "Not" inverts its whole clause; "without" and the like what comes after them.
    """
    complaint, clause = _complaint_sign(clause)
    asks = complaint != 0 or is_directive(clause)
    clause = _POLITE_WORDS.sub(lambda phrase: " " * len(phrase[0]), clause)
    sign = complaint or (-1 if len(_NEGATION.findall(clause)) % 2 else 1)
    # "X must not do Y" is no objection to X.
    modal = _NEGATED_MODAL.search(clause)
    neutral = modal.start() if modal else 0
    reversals = [match.end() for match in _REJECTION.finditer(clause)]
    reversals += [match.end() for match in _PREFERENCE.finditer(clause)]
    clause_signs = []
    for match in WORD.finditer(clause):
        word = match[0]
        if (
            word in STOP_WORDS
            or _NEGATION.fullmatch(word)
            or word in ("no", "non", "without", "instead", "rather")
        ):
            continue
        key = stem_word(word)
        turned = sum(end <= match.start() for end in reversals) + (key in NEGATIVE_ANTONYMS)
        turned += clause[max(match.start() - 4, 0) : match.start()] in ("non-", "non ")
        is_signed = asks and match.start() >= neutral
        value = sign * (-1) ** turned if is_signed and key not in JUDGING_WORDS else 0
        key = SYNONYMS.get(key, key)
        clause_signs.append((ANTONYMS.get(key, key), value))
    return clause_signs


# The forms in which remarks are compared.

_NAME_BY_WORDING = {word: name for name, words in WORDINGS.items() for word in words}
_WORDING = re.compile(
    rf"\b({'|'.join(sorted(_NAME_BY_WORDING, key=len, reverse=True))})(?:s|d|ed|ing)?\b"
)
_CODE_SPAN = re.compile(r"`([^`\n]*)`")
_CODE_WORD = re.compile(r"[A-Za-z]{2,12}")
_NAME_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_NAME_MARKS = re.compile(r"[_./()`]+")
_PART_END = re.compile(
    r"(?<=[.!?])\s+|\n+|\s[-–—]+\s|(?<=\w\w)[;:]\s|,\s(?=(?:but|so|and|because|since)\b)"
)
_PLEASANTRY = re.compile(
    r"(?:thanks?|lgtm|looks good|great|nice|cool|awesome|good (?:catch|job|point)|sorry|hi|hello|"
    r"hey|same here|what do you think)\b"
)
MAX_PARTS = 12
"""Maximum parts of a remark that are compared; the first ones."""


def remark_parts(text: str) -> list[str]:
    """Return a remark and each meaningful sentence of it, in plain words, for an encoder.

    A request among reasons and examples is so found by its own sentence. Polite phrases are
    removed, and code that is only named, since it differs from place to place.
    """
    prose = _CODE_SPAN.sub(
        lambda code: code[1] if _CODE_WORD.fullmatch(code[1]) else "this", remark_prose(text)
    )
    parts = [strip_politeness(_split_names(part)) for part in _PART_END.split(prose)]
    meaningful = [
        part
        for part in parts
        if len(content_words(part)) >= MIN_RULE_WORDS and not _PLEASANTRY.match(part)
    ]
    whole_text = strip_politeness(_split_names(prose))
    return list(dict.fromkeys([whole_text or text, *meaningful]))[:MAX_PARTS]


def common_wording(text: str) -> str:
    """Return a remark without polite phrases, with one word for each set of synonyms."""
    plain = strip_politeness(_split_names(remark_prose(text) or text))
    return _WORDING.sub(lambda match: _NAME_BY_WORDING[match[1]], plain)


def _split_names(text: str) -> str:
    """Return lower case, with the words of names separated: `isEmpty()` becomes "is empty"."""
    return normalise_remark(_NAME_MARKS.sub(" ", _NAME_HUMP.sub(" ", text[:MAX_REMARK_CHARS])))


# A remark as a rule: one sentence that requests something, and its parts.

MAX_RULE_CHARS = 300
MIN_RULE_WORDS = 2
"""Minimum meaningful words of a remark that can become a rule."""

_CODE_BLOCK = compile_lazily(r"```.*?(?:```|\Z)", re.DOTALL)
_QUOTED_LINE = compile_lazily(r"^\s*>.*$", re.MULTILINE)
_HIDDEN_MARKS = compile_lazily(
    r"<!--.*?(?:-->|\Z)|!?\[([^\]\n]{0,200})\]\([^)\n]{0,2000}\)", re.DOTALL
)
_SENTENCE_END = compile_lazily(r"(?<=[.!?])\s+|\n\s*(?:[-*+]|\d+\.)?\s*")
_POLITE_OPENING = compile_lazily(
    r"^(?:(?:hi|hey|hello|thanks|nit(?:pick)?|suggestion|minor|question|ok|hmm|also|please|kindly|"
    r"blocking|non-blocking|issue|todo)\b[ ,:!]*|@[\w-]+[ ,:]*)+",
    re.IGNORECASE,
)
_REQUEST_OPENING = compile_lazily(
    r"^(?:could|can|would|will) (?:you|we)(?: please)? "
    r"|^(?:(?:i think|imo|imho),? )?(?:that )?(?:you|we) (?:should|must|need to) "
    r"|^(?:let's|let us) (?!not)",
    re.IGNORECASE,
)
_NEGATIONS = {"don't", "never", "not", "avoid", "no", "do"}
_SCOPE_PHRASE = compile_lazily(
    r"\b(?:in|inside|within|under|across) ((?:the |all |every )?[\w./-]+(?: \w+)?)$"
)
_FORBIDDEN_CODE = compile_lazily(
    r"\b(?:don't|do not|never|avoid|stop|no)\b(?: \w+){0,4} `([^`\n]{2,80})`"
    r"|\b(?:instead of|rather than|over|, not) (?:a |an |the )?`([^`\n]{2,80})`",
    re.IGNORECASE,
)
_ALTERNATIVE = compile_lazily(r" (?:instead of|rather than|over) ")
_CODE_CALL = compile_lazily(r"([\w.]+)\(\)")


def is_teaching_remark(text: str) -> bool:
    """Return whether a remark requests something, in enough words to be understood elsewhere."""
    remark = remark_prose(text)
    has_enough_words = len(content_words(remark)) >= MIN_RULE_WORDS
    return has_enough_words and any(is_directive(clause) for clause in split_clauses(remark))


def remark_prose(text: str) -> str:
    """Return what a person wrote, without code blocks, quotations and hidden markers."""
    text = _CODE_BLOCK.sub(" ", text[:MAX_REMARK_CHARS])
    return _HIDDEN_MARKS.sub(lambda match: match[1] or " ", _QUOTED_LINE.sub(" ", text)).strip()


def extract_rule_text(text: str) -> str:
    """Return the sentence of a remark that makes the request, worded as a rule."""
    sentences = [
        part.strip() for part in _SENTENCE_END.split(remark_prose(text)) if part and part.strip()
    ]
    directives = [sentence for sentence in sentences if is_teaching_remark(sentence)] or sentences
    rule_text = " ".join(directives[0].split()) if directives else ""
    if _REQUEST_OPENING.match(rule_text := _POLITE_OPENING.sub("", rule_text)):
        rule_text = _REQUEST_OPENING.sub("", rule_text).replace("?", ".")
    rule_text = _POLITE_OPENING.sub("", rule_text)
    if len(rule_text) > MAX_RULE_CHARS:
        rule_text = f"{rule_text[: MAX_RULE_CHARS - 1]}…"
    end = "" if rule_text.endswith((".", "?", "!", "…")) else "."
    return f"{rule_text[:1].upper()}{rule_text[1:]}{end}" if rule_text else ""


def parse_rule_parts(text: str) -> RuleParts:
    """Return verb, object, scope and polarity of a rule's first directive clause, by patterns."""
    clauses = [clause for clause in split_clauses(text) if is_directive(clause)]
    if not clauses:
        return RuleParts(object=normalise_remark(text)[:MAX_RULE_CHARS])
    clause = _ALTERNATIVE.split(strip_politeness(clauses[0]))[0]
    scope_match = _SCOPE_PHRASE.search(clause)
    clause_words = find_words(clause[: scope_match.start()] if scope_match else clause)
    # "Avoid types" and "no tests" name things, though "type" and "test" may be verbs.
    names_thing = bool(clause_words) and clause_words[0] in ("avoid", "no")
    while clause_words and (clause_words[0] in _NEGATIONS or clause_words[0] in STOP_WORDS):
        clause_words = clause_words[1:]
    begins_with_verb = bool(clause_words) and clause_words[0] in REQUEST_VERBS
    verb = clause_words[0] if begins_with_verb and not names_thing else None
    object_words = clause_words[1:] if verb else clause_words
    signs_by_word = word_signs(_ALTERNATIVE.split(clauses[0])[0])
    sign_sum = sum(signs_by_word.get(stem_word(word), 0) for word in object_words) or sum(
        signs_by_word.values()
    )
    return RuleParts(
        verb=verb or ("avoid" if sign_sum < 0 else None),
        object=" ".join(object_words)[:MAX_RULE_CHARS],
        scope=scope_match[1] if scope_match else None,
        polarity=None if sign_sum == 0 else "do" if sign_sum > 0 else "avoid",
    )


def infer_rule_paths(rule: RuleParts, path: str | None) -> tuple[str, ...]:
    """Return a glob of the folder that the words name ("in tests"), if the remark's path is in
    it."""
    if rule.scope is None or path is None:
        return ()
    scope_stems = {stem_word(word) for word in find_words(rule.scope)} - STOP_WORDS
    folders = path.split("/")[:-1]
    for depth, folder in enumerate(folders, 1):
        if stem_word(folder.lower()) in scope_stems:
            return ("/".join(folders[:depth]) + "/**",)
    return ()


def build_rule_check(name: str, text: str, paths: tuple[str, ...]) -> RepoRule | None:
    """Return a check of added lines if the rule forbids a piece of code by name, else None."""
    match = _FORBIDDEN_CODE.search(text.replace("’", "'"))
    code = next((part for part in match.groups() if part), None) if match else None
    if code is None:
        return None
    call = _CODE_CALL.fullmatch(code)
    literal = f"{escape_code(call[1])}\\(" if call else escape_code(code)
    before = r"\b" if code[0].isalnum() or code[0] == "_" else ""
    after = r"\b" if literal[-1].isalnum() or literal[-1] == "_" else ""
    return RepoRule(name=name, message=text, text=f"{before}{literal}{after}", paths=paths)


def escape_code(code: str) -> str:
    return "".join(f"\\{sign}" if sign in r".^$*+?()[]{}|\\" else sign for sign in code)
