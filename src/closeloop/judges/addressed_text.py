"""Sentences of prose that are meant for a judge, found by words of judging.

Code is masked as a whole. Prose that is itself judged cannot be, so sentences like these are taken
out of it; and where a verdict is withheld, one of them is cited.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from contextlib import suppress
from unicodedata import normalize

from closeloop.text.untrusted import reveal_hidden_text
from closeloop.text.wording import compile_lazily

# Sentences

_ADDRESSED = compile_lazily(
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
_SENTENCE_END = compile_lazily(r"(?<=[.!?。！？])(?=\s)|(?<=[。！？])|(?<=\n)")
_EMOJI_STYLE = compile_lazily(r"(?<=[\u2190-\u2bff\U0001f000-\U0001faff])[\ufe0e\ufe0f]")
"""Says how a sign is drawn, and nothing else."""
MAX_SENTENCE_CHARS = 2_000
"""A longer one is looked at in parts."""


def is_addressed_to_reader(sentence: str) -> bool:
    """Whether it speaks of judging, scores or instructions, or hides what it says."""
    sentence = _EMOJI_STYLE.sub("", sentence)
    if reveal_hidden_text(sentence) != sentence:
        return True
    plain = normalize("NFKC", sentence)
    return any(map(_ADDRESSED.search, (plain, plain.translate(_LOOKALIKES)))) or any(
        map(_ADDRESSED.search, decode_texts(plain))
    )


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

_BASE64 = compile_lazily(r"(?<![\w+/=])[A-Za-z0-9+/]{7,}={0,2}(?![\w+/=])")
_HEX = compile_lazily(r"(?<![0-9a-fA-F])(?:[2-7][0-9a-fA-F]){6,}(?![0-9a-fA-F])")
_CODE_POINTS = compile_lazily(r"(?:\b(?:3[2-9]|[4-9]\d|1[01]\d|12[0-6])\b[\s,;]{1,3}){6,}")
_DECODED = compile_lazily(r"[ -~\n]{5,}")
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
