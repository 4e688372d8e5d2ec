"""Gaps that a sub-agent reports in ordinary words: not done, skipped, assumed, not run, unknown.

English in many phrasings; German, French, Spanish, Portuguese, Italian, Russian, Chinese, Japanese
and Korean in their common ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache

from ahocorasick_rs import AhoCorasick

from closeloop.process.text_words import (
    build_automaton,
    contains_any,
    find_matching_lines,
    split_sentences,
)
from closeloop.text.client_markup import strip_client_markup

MAX_GAPS = 10

_WORK_VERB = (
    r"(?:\w+ )?(?:run|test|verif|check|finish|complet|implement|fix|reproduc|resolv|migrat)"
)
_DONE_WORD = r"(?:done|finished|completed?|tested|verified|fixed)\b"
_FAILURE = re.compile(
    r"(?:^|[:;,–—-]\s*|\b(?:i|we|but|however,?|and)\s+)(?:could(?: not|n't)"
    r"|(?:was |am |were )?unable to|(?:was|were) not able to"
    rf"|(?:did|have)(?: not|n't) {_WORK_VERB}"
    rf"|not (?:yet )?(?:implemented|run|{_DONE_WORD})(?! \w+ing\b))"
    r"|\bcould not be (?:run|tested|verified|migrated|completed|finished|fixed|built|installed)\b"
    rf"|\b(?:is|are) (?:still )?not (?:yet )?{_DONE_WORD}"
    r"|\b(?:is|are) (?:still )?(?:untested|unfinished)\b"
    r"|\bstill (?:fails?|failing|broken|red)\b|\bremains? (?:broken|open|unfixed|to be done)\b"
    r"|\b[1-9]\d* (?:tests?|checks?|specs?) (?:still |now )?fail"
    r"|\b[1-9]\d* fail(?:ed|ures?|ing)(?=\s*(?:[,.;:)]|$|and \d|in \d))"
    r"|\btests? (?:still |now )?fails?\b|\b(?:todo|not done|open (?:issues?|points?))\s*:"
    r"|\bblocked (?:by|on)\b"
)
_OVER = re.compile(
    r"\b(?:no (?:test|fail|error|issue|problem|check)\w*|none|zero|was failing|were failing|"
    r"previously|used to|had been|before|without|originally|if|when|would|should|expected|"
    r"as (?:asked|requested|instructed)|now (?:fixed|pass\w*)|(?:is|are) fixed|pass now|"
    r"fixed (?:it|this|that|them))\b"
)
"""Failures that are over, or conditions."""
_OWN = r"(?:^|[:;,–—(-]\s*|\b(?:i|we|but|however,?|so)\s+(?:have |had |then |also |just |only )?)"
_LEFT = (
    r"(?:assumed|guessed|omitted|deferred|postponed)\b"
    r"|skipped (?:the|this|that|it|all|\w+ing|\w*tests?)\b"
)
_OMISSION = re.compile(
    rf"{_OWN}(?:{_LEFT})|\b(?:i|we)\b[^.;]{{0,80}}\band (?:so |then |therefore )?(?:{_LEFT})"
    r"|\b(?:was|were|has|have)(?: not|n't) (?:yet )?(?:been )?(?:written|implemented|done|run"
    r"|executed|tested|migrated|finished|completed|verified|ported|documented)\b"
    r"|\b(?:tests?|docs?|documentation|changelog)\b[^.;]{0,30}\b(?:was|were|has|have)(?: not|n't)"
    r" (?:been )?(?:updated|added|covered|created)\b"
    r"|\bnot told\b|n't told\b|\b(?:nobody|no one) (?:said|told)\b"
    r"|\b(?:was|were)(?: not|n't) (?:specified|given|stated|said)\b"
    r"|\bbrief (?:does|did)(?: not|n't) (?:say|specify|state|mention|tell)\b"
    r"|\bno (?:unit |new |integration |e2e )?tests? (?:(?:were|was|are|is|have been|has been) )?"
    r"(?:written|added|exist|yet|run)\b"
    r"|(?<!no )\b(?:todo|fixme)s?\b(?! list)"
    r"|\bleft (?:\w+ ){0,5}?(?:out|open|undone|unfinished|unimplemented|for later"
    r"|as a follow-?up)\b"
    r"|\b(?:remains? to be|yet to be|still (?:to (?:do|be)|missing|lacks?|open))\b"
    rf"|{_OWN}did(?: not|n't) (?:run|write|test|verify|finish|complete|implement|update|migrate"
    r"|get to|have time|manage|cover|build|execute)\b(?! (?:any )?(?:other|new|anything))"
    r"|\bwithout (?:running|testing|verifying) (?:it|the|this|them)\b"
)
_FOREIGN_OMISSION = re.compile(
    r"\bnicht (?:geschrieben|getestet|umgesetzt|ausgeführt|gelaufen|geprüft|erledigt|implementiert"
    r"|gesagt|angegeben)\b|\bkonnten?\b[^.;]{0,60}\b(?:nicht|keine?)\b|\bhabe\b[^.;]{0,60}"
    r"\b(?:angenommen|übersprungen|ausgelassen|weggelassen)\b|\bungetestet\b|\bfehl(?:t|en) noch\b"
    r"|\bn'(?:ai|a|ont) pas (?:été )?(?:pu|écrit|fait|testé|exécuté|lancé|implémenté|dit|précisé)"
    r"|\bj'ai (?:supposé|présumé|sauté|laissé|omis)|\bnon testée?s?\b|\breste à (?:faire|écrire)\b"
    r"|\bno (?:pude|he podido|se (?:escrib|ejecut|prob|hizo|implement|indic|dijo)\w*|escribí|probé"
    r"|ejecuté|implementé)|\b(?:supuse|asumí|he asumido|omití|me salté)|\bsin probar\b"
    r"|\b(?:falta|faltan) (?:por )?(?:escribir|probar|hacer|implementar)\b|\bquedan? pendientes?\b"
    r"|\bnão (?:consegui|testei|executei|escrevi|implementei|fo(?:i|ram) (?:escrit|testad|executad"
    r"|implementad|informad|dit)\w*)|\b(?:eu )?(?:assumi|presumi|pulei) "
    r"|\bnon (?:ho (?:potuto|scritto|testato|eseguito|implementato)|sono riuscit\w|(?:è stat\w|sono"
    r" stati?e?) (?:scritt|testat|eseguit|implementat|dett)\w*)|\bho (?:assunto|supposto|saltato)\b"
    r"|не (?:удалось|смог|написан|выполнен|запуска|протестирован|сделан|реализован|указан|сказан)"
    r"|предположил|пропустил|осталось (?:сделать|написать)"
    r"|未(?:完成|测试|实现|编写|运行|说明)|没有(?:完成|测试|实现|编写|运行|写|说明|告诉)|无法|假设|跳过了"
    r"|未(?:実装|テスト|完了|対応)|(?:でき|してい|書いてい)ません|と仮定|スキップし"
    r"|(?:하지|작성하지|실행하지) (?:못|않)|못했|가정했|건너뛰"
)
_INTENDED = re.compile(
    r"\b(?:as (?:asked|requested|instructed|specified|agreed|you)|intentional\w*|on purpose"
    r"|by design|out of scope|not (?:needed|necessary|required|applicable)|unnecessary|no longer"
    r"|per (?:the|your|instructions)|previously|originally|used to|root cause|caus(?:ed|ing)"
    r"|the bug|which (?:caused|made|meant|led|is why)|now (?:fixed|pass\w*|are|is|does)"
    r"|had (?:been|not))\b"
)
"""Left out on purpose, or how things were before."""
_FIRST_PERSON = re.compile(r"\b(?:i|we)\b|^(?:could|unable|did|not)\b")
_SIGNS = """
not|n't|unable|untested|unfinished|still|remain|fail|todo|fixme|open|blocked|assum|guess|omit|defer
postpon|skipped|nobody|no one|no test|no unit|no new|no integ|no e2e|left|yet to|without
"""
_FOREIGN_SIGNS = """
nicht|konnte|angenommen|überspr|ausgelassen|weggelassen|ungetestet|noch|n'ai pas|n'a pas|n'ont|j'ai
non test|reste à|no pu|no he|no se|no esc|no pro|no eje|no imp|supuse|asum|omití|me salté|sin prob
falta|pendiente|não|assumi|presumi|pulei|non ho|non sono|non è|ho assunto|supposto|saltato
не |пропуст|предполож|осталось|未|没有|无法|假设|跳过|ません|仮定|スキップ|못|않|가정했|건너뛰
"""
_sign_automaton = cache(lambda: build_automaton(_split_signs(_SIGNS)))
_foreign_automaton = cache(lambda: build_automaton(_split_signs(_FOREIGN_SIGNS)))
"""Without one of these there is no such sentence."""


def _split_signs(signs: str) -> list[str]:
    return signs.strip().replace("\n", "|").split("|")


def matching_sentences(search: AhoCorasick, text: str) -> Iterator[tuple[str, str]]:
    """Sentences that hold a word, with the same in small letters."""
    lines = split_sentences(text)
    joined = fold_case("\n".join(lines))
    plain = joined.split("\n")
    return ((lines[place], plain[place]) for place in find_matching_lines(search, joined))


def fold_case(text: str) -> str:
    """In small letters, with one kind of apostrophe."""
    return text.casefold().replace("’", "'")


@lru_cache(256)
def find_gaps(report: str, *, acts: bool) -> Sequence[str]:
    """Sentences that say what failed, was not done, assumed or left.

    Of a child that may not have acted (`acts` is false) only what it says of itself.
    """
    report = strip_client_markup(report)
    gaps = [
        line
        for line, plain in matching_sentences(_sign_automaton(), report)
        if _is_gap(plain, acts=acts)
    ]
    if acts and contains_any(_foreign_automaton(), fold_case(report)):
        foreign = matching_sentences(_foreign_automaton(), report)
        gaps += [line for line, plain in foreign if _FOREIGN_OMISSION.search(plain)]
    return list(dict.fromkeys(gaps))[:MAX_GAPS]


def mentions_gap(plain: str) -> bool:
    """Whether words in small letters say that something failed or is not there."""
    return any(one.search(plain) for one in (_FAILURE, _OMISSION, _FOREIGN_OMISSION))


def _is_gap(plain: str, *, acts: bool) -> bool:
    if not acts and not _FIRST_PERSON.search(plain):
        return False
    if _FAILURE.search(plain) and not _OVER.search(plain):
        return True
    return acts and _OMISSION.search(plain) is not None and not _INTENDED.search(plain)
