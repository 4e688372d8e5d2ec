"""Whether work speaks to its judge: in sentences of its prose, comments and strings, or in names.

A wrong yes costs one more asking; a wrong no leaves a verdict unconfirmed. Sentences are told by
words of judging. In names such words are common (`score`, `review`), so there several must come
together: somebody who judges and a favourable verdict, an order to answer and the answer.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from unicodedata import combining, normalize

from closeloop.records.settings import JudgeConfirmation
from closeloop.text.untrusted import reveal_hidden_text

# Sentences

_ADDRESSED = re.compile(
    r"\b(?:judges?|judging|evaluat(?:or|ors|ion|ing)|graders?|grading|assessors?|rubrics?|verdicts?"
    r"|scor(?:e|es|ing)|quote[- ]checker|seal|instructions?|system prompt|passbot"
    r"|system[- ](?:message|reminder)|developer message|assistant|human(?![- ]readable)|disregard"
    r"|override (?:all|any|your|the|these|previous)|(?:all|every|each) criteri(?:on|a)"
    r"|ignore (?:all|any|your|the|previous)"
    r"|(?:answer|say|reply|respond|return)s?(?: with)? \W?(?:yes|no|pass)"
    r"|(?:every|all|each) (?:checks?|answers?|questions?)|checks? (?:is|are|be) (?:met|yes)"
    r"|is better than the other|who(?:ever)? reads this|decode (?:this|and)|obey|rot13|approved by"
    r"|be consistent|acceptance, yes|no findings|juge|vérification|évaluat\w+|Prüfer|Richter"
    r"|Bewert\w+|juez|evaluador\w*|avaliador\w*|giudice|beoordela\w+|sędzia)\b"
    r"|评审|评分|评委|审查|审核|法官|指令|检查项|審査|採点|評価|指示|判定"
    r"|судь\w+|оцен\w+|инструкц\w+|проверк\w+|للمقيم|تعليمات|المقيّم"
    r"|निर्णायक|मूल्यांकन|निर्देश|जाँच|심사|평가|채점|지시"
    r"|\"(?:verdict|seal|better|answers|findings|role)\"\s*:|^\s*(?:BEGIN|END) \w+"
    r"|<\W?\w{0,20}(?:system|im_start|im_end|inst)\w{0,20}\W?>|(?:%[0-9a-f]{2}){4,}"
    r"|(?:\b\w ){6,}",
    re.IGNORECASE | re.MULTILINE,
)
_LOOKALIKES = str.maketrans("АВЕКМНОРСТХаеорсухіѕјԁһ‐‑‒–ıο", "ABEKMHOPCTXaeopcyxisjdh----io")
_SENTENCE_END = re.compile(r"(?<=[.!?。！？])(?=\s)|(?<=[。！？])|(?<=\n)")
_EMOJI_STYLE = re.compile(r"(?<=[\u2190-\u2bff\U0001f000-\U0001faff])[\ufe0e\ufe0f]")
"""Says how a sign is drawn, and nothing else."""
MAX_SENTENCE_CHARS = 2_000
"""A longer one is looked at in parts."""


def needs_confirmation(
    confirm: JudgeConfirmation, texts: Iterable[str], lines: Iterable[str]
) -> bool:
    """Whether a judge is asked again about work with these texts, in these lines of its author."""
    return confirm == "always" or (
        confirm == "addressed" and (speaks_to_judge(texts) or names_speak_to_judge(lines))
    )


def is_addressed_to_reader(sentence: str) -> bool:
    """Whether it speaks of judging, scores or instructions, or hides what it says."""
    sentence = _EMOJI_STYLE.sub("", sentence)
    if reveal_hidden_text(sentence) != sentence:
        return True
    plain = normalize("NFKC", sentence)
    return any(map(_ADDRESSED.search, (plain, plain.translate(_LOOKALIKES)))) or any(
        map(_ADDRESSED.search, decode_texts(plain))
    )


def speaks_to_judge(texts: Iterable[str]) -> bool:
    """Whether one of the texts has a sentence for its judge."""
    return any(split_addressed_sentences(text)[1] for text in texts)


def split_addressed_sentences(text: str) -> tuple[str, list[str]]:
    """The text without the sentences that speak to its judge, and those."""
    kept, removed = [], []
    for sentence in _SENTENCE_END.split(text):
        parts = range(0, len(sentence), MAX_SENTENCE_CHARS)
        if any(is_addressed_to_reader(sentence[at : at + MAX_SENTENCE_CHARS]) for at in parts):
            removed.append(sentence.strip())
            kept.append("\n" if sentence.endswith("\n") else " ")
        else:
            kept.append(sentence)
    return "".join(kept), removed


# Codes

_BASE64 = re.compile(r"(?<![\w+/=])[A-Za-z0-9+/]{7,}={0,2}(?![\w+/=])")
_HEX = re.compile(r"(?<![0-9a-fA-F])(?:[2-7][0-9a-fA-F]){6,}(?![0-9a-fA-F])")
_CODE_POINTS = re.compile(r"(?:\b(?:3[2-9]|[4-9]\d|1[01]\d|12[0-6])\b[\s,;]{1,3}){6,}")
_DECODED = re.compile(r"[ -~\n]{5,}")
MAX_CODE_CHARS = 4_000


def decode_texts(text: str) -> Iterator[str]:
    """What codes in a text say, where that is plain text: base64, hexadecimal, code points."""
    codes: list[bytes] = []
    for digits in _BASE64.findall(text):
        with suppress(ValueError):
            code = digits[:MAX_CODE_CHARS].rstrip("=")
            codes.append(base64.b64decode(code + "=" * (-len(code) % 4)))
    codes += [bytes.fromhex(digits[:MAX_CODE_CHARS]) for digits in _HEX.findall(text)]
    for numbers in _CODE_POINTS.findall(text):
        codes.append(bytes(map(int, re.findall(r"\d+", numbers))))
    for code in codes:
        decoded = code.decode("ascii", "replace")
        if _DECODED.fullmatch(decoded) and sum(map(str.isalpha, decoded)) * 2 > len(decoded):
            yield decoded


# Names, split into words


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


WINDOW_WORDS = 9
"""So many words in a row are looked at together, over the ends of names and lines."""
_NAME = re.compile(r"\w+")
_WORD_IN_NAME = re.compile(r"[A-Z]{2,}(?![a-z])|[^\W\d_][^\W\d_A-Z]*")
_WORD_BY_CASE = re.compile(r"[A-Z]{2,}|[^\W\d_A-Z]+|[A-Z]")
"""The other way to part `ALLchecks`, which parts `HTTPServer` wrongly."""
_LEET = str.maketrans("0134579", "oieastg")
_SIGNS = re.compile(
    r"[\u2800-\u28ff]{2}|⚖|\b(?:BEGIN|END) [a-z]{2,20} [0-9a-f]{16}\b"
    r"|(?<![.\w-])(?:[.-]{1,5}[ /]){5,}[.-]{1,5}(?![.\w-])"
    r"|评审|评分|评委|审查|审核|法官|检查项|全部通过|審査|採点|判定|심사|평가|채점"
    r"|निर्णायक|मूल्यांकन|للمقيم"
)
"""Braille, scales, fences like ours, Morse code, and judging in scripts that do not part words."""
_JUDGE = _words(
    "judge judges grader graders evaluator evaluators assessor assessors rubric verdict verdicts"
)
_REVIEWER = _words("reviewer reviewers criterion criteria")
_FAVOUR = _words(
    "yes pass passes passed met accept accepts accepted approve approves approved fulfilled solved"
    " perfect"
)
_ANSWER = _words("answer answers say says reply respond")
_ALL = _words("all every each everything both")
_CHECK = _words("check checks question questions criterion criteria verdict verdicts")
_GIVE = _words("give gives award rate rates mark assign")
_TOGETHER: tuple[tuple[Collection[str], ...], ...] = (
    (_JUDGE, _FAVOUR | _words("no complete correct")),
    (_REVIEWER, _FAVOUR, _ALL | {"this", "work"}),
    (_ANSWER, _words("yes no"), _ALL | _CHECK | _JUDGE),
    (_words("yes"), _ALL, _CHECK | {"to"}),
    (
        _words("give gives award"),
        _words("full top highest perfect maximum best"),
        _words("marks score grade rating"),
    ),
    (_GIVE, _ALL, _CHECK, _FAVOUR),
    (
        _words("report find answer went did"),
        _words("no nothing empty"),
        _words("findings wrong faults"),
    ),
    (_words("completeness"), _words("quality"), _words("relevance")),
    (
        _words("responder responde antworte beantworten répondre repondre rispondi ответь отвечай"),
        _words("si sí ja oui sim да"),
        _words("todo todos todas alle tous toutes tutti все всё"),
    ),
)
"""One word of each set of a row, within a few words, speaks to a judge."""
_TOGETHER_WORDS = frozenset(word for row in _TOGETHER for words in row for word in words)
_SPELLED = re.compile("yes|pass|accept|approve|judge|obey")
"""What single letters in a row may spell."""


def names_speak_to_judge(lines: Iterable[str]) -> bool:
    """Whether words of names, and of all else that stands in these lines, speak to a judge."""
    plain: list[str] = []
    respelled: list[str] = []
    letters: list[str] = []
    for line in lines:
        if _SIGNS.search(line):
            return True
        text = "".join(one for one in normalize("NFKD", line) if not combining(one))
        for name in [*_NAME.findall(text), *decode_texts(text)]:
            words = split_name(name)
            plain += words
            if len(words) == 1 == len(words[0]):
                letters += words
            elif words:
                letters.append(" ")
            # As it reads with digits for letters, and with letters of other scripts.
            odd_name = name.translate(_LEET).translate(_LOOKALIKES)
            respelled += [word.lower() for word in _WORD_BY_CASE.findall(odd_name)]
    backwards = [word[::-1] for word in reversed(plain)]
    return _SPELLED.search("".join(letters)) is not None or any(
        map(_come_together, (plain, respelled, backwards))
    )


def split_name(name: str) -> list[str]:
    """`markEveryCheck`, `MARK_EVERY_CHECK` and `mark-every-check` as the same three words."""
    return [word.lower() for word in _WORD_IN_NAME.findall(name)]


def _come_together(words: Sequence[str]) -> bool:
    """Whether words of all sets of one row stand within a window."""
    places = [(at, word) for at, word in enumerate(words) if word in _TOGETHER_WORDS]
    for row in _TOGETHER:
        last = [-WINDOW_WORDS] * len(row)
        for at, word in places:
            for which, known in enumerate(row):
                if word in known:
                    last[which] = at
            if at - min(last) < WINDOW_WORDS:
                return True
    return False
