"""An agent's claims: that the work is done or the checks pass; and its admissions."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import cache, lru_cache
from itertools import zip_longest
from operator import attrgetter

from closeloop.process.edit_contents import list_code_changes
from closeloop.process.rule_helpers import cache_on_reading, truncate_line
from closeloop.process.text_facts import build_automaton, mentions_any
from closeloop.records.change import LaneReading, TraceReading
from closeloop.records.record import Record
from closeloop.records.trace import Message, ToolUse
from closeloop.text.wording import compile_lazily

# Patterns of how agents say that they are done, that checks pass, and that they are not sure.


_CHECK_SUBJECT = (
    r"(?:tests?|test suites?|suites?|specs?|checks|build|lint(?:er|ing)?|type[- ]?check\w*)"
)
PASSING_CLAIM = compile_lazily(
    rf"\b{_CHECK_SUBJECT}(?: \w+){{0,2}}? (?:is |are |all |have |has |both )?(?:now |still |also"
    r" |all )?"
    r"(?:pass(?:es|ed|ing)?|green|succeed(?:s|ed)?)\b(?! (?:in|a|an|the|none|null|to|as|through)\b)"
    rf"|\bpass(?:es|ed|ing)? (?:all |the |every |\d+ )*(?:\w+ )?{_CHECK_SUBJECT}\b"
    r"|\b[1-9]\d*(?:/\d+)? (?:tests? )?pass(?:ed|ing)?\b"
    r"|\b(?:ran|re-?ran|running)\b.{0,40}\btests?\b.{0,40}\bpass(?:ed|es|ing)?\b"
    r"|✅.{0,40}\btests?\b.{0,40}\bpass"
    r"|\b(?:tested|verified)(?: and|,) (?:(?:it|everything|all|is|are|now|confirmed) )*"
    r"work(?:s|ing)\b"
    # German, French, Spanish, Portuguese, Italian, Russian, Chinese, Japanese
    r"|\btests (?:\w+ ){0,3}?(?:grün|durch|erfolgreich|bestanden)\b|\btests? (?:passent"
    r"|réussissent|sont (?:au )?verts?)\b"
    r"|\b(?:pruebas|tests) (?:\w+ )?(?:pasan|pasaron|pasando|en verde)\b"
    r"|\btestes (?:\w+ )?(?:passam|passaram|passando)\b|\btest (?:\w+ )?(?:passano|passati)\b"
    r"|\bтесты (?:\w+ )?(?:проходят|прошли|пройдены|зел[её]ные)\b"
    r"|测试(?:用例)?(?:已|都|均|也|全部|全|已经)*通过|テスト(?:は|が|も)?(?:すべて|全て|全部"
    r"|全件)?(?:に)?(?:通|パス|成功|合格)"
)
_DONE_VERB = (
    r"(?:done|completed|finished|fixed|resolved|implemented|addressed|solved|corrected|added"
    r"|updated"
    r"|refactored|replaced|removed|modified|changed|created|reverted|rewritten|migrated|renamed)"
)
_OPENING = (
    r"(?:[^\w`]|thought:|summary:|perfect\b|great\b|excellent\b|ok(?:ay)?\b|yes\b|yep\b|sure\b"
    r"|all set\b|and\b|successfully\b|now\b|both\b|all\b|\d+[.)] )*"
)
OPENING_CLAIM = compile_lazily(
    rf"{_OPENING}(?:{_DONE_VERB}|complete(?=[.!]|$))\b(?! (?:in|by|as|from|with|when|upon)\b)"
    r"|[^\w`]*(?:the|it|this|both|all|`)[^:?]*\bnow (?:uses?|handles?|supports?|correctly"
    r"|properly)\b"
    r"|[^\w`]*[\w`./ -]{1,40}? (?:is|are) (?:now |fully )*(?:implemented|fixed|resolved)(?=[.,!]|$)"
)
"""Sentences whose first words say that something is done."""
DONE_CLAIM = compile_lazily(
    r"\b(?:(?:i|we)(?:'ve| have)? (?:now |also |just |successfully |already |then |fully "
    rf"|believe i have )*(?:{_DONE_VERB}|made(?! sure\b))"
    r"|(?:has|have) (?:now |all |both |also |already |successfully )*been (?:\w+ly |now )*"
    rf"(?:{_DONE_VERB}|made|applied)"
    rf"|(?:is|are) (?:now |all |fully |successfully |both )+(?:{_DONE_VERB}|complete|working"
    r"|ready|in place)"
    r"|(?:task|work|fix|fixes|implementation|changes?|solution|issue|bug|error|problem|feature"
    r"|refactoring|migration|everything|rebase|conflicts?)\b[^,;:]{0,60}?\b(?:is|are|was|were) "
    r"(?:\w+ly )?(?:done|completed?|finished|fixed|resolved|implemented|addressed|working|ready"
    r"|in place)"
    r"|(?<![^\s])(?:the|your|our) [\w`./ -]{1,40}? (?:is|are) (?:\w+ly )?(?:done|completed?"
    r"|finished|fixed|resolved|implemented|ported|repaired|written)(?= *[.!:,;]|$| and\b)"
    r"|(?:conflicts?|issues?|bugs?|errors?|tasks?|work) (?:resolved|fixed|completed?|done"
    r"|addressed)"
    rf"|successfully {_DONE_VERB}|{_DONE_VERB} successfully"
    r"|(?:this|that|it|(?:fix|change|solution)s?(?: has| have)?) (?:completes|resolve[sd]"
    r"|fixe[sd]|solve[sd]|addresse[sd]) (?:the|this|that|our|your)"
    r"|works now|works? as (?:expected|required|intended)|everything (?:now )?works"
    r"|(?:fix|solution|implementation|change) (?:\w+ )?works?|now (?:works?|passes)"
    r"|(?:i'm|i am|we're|we are|that's|it's|all|(?:all|all of (?:it|this|that)) is)"
    r" (?:all |now )?(?:done|finished|set)"
    r"|(?:i'm|i am|we're|we are|it's|is|are) (?:now |all )?(?:ready|good) to (?:merge"
    r"|go(?=[.!]|$)))\b"
)
OTHER_CLAIM = compile_lazily(
    # German, French, Spanish, Portuguese, Italian, Russian, Chinese, Japanese
    rf"^{_OPENING}(?:fertig|erledigt|behoben|umgesetzt|terminé|corrigé|c'est (?:fait|corrigé"
    r"|terminé|réglé)|listo|hecho|corregido|solucionado|implementado|pronto|feito|concluído"
    r"|corrigido|fatto|risolto|completato|готово|исправлено|сделано|реализовано)\b"
    r"|\b(?:(?:ist|sind|wurde|wurden) (?:\w+ ){0,4}?(?:behoben|erledigt|fertig|umgesetzt"
    r"|implementiert|gelöst|korrigiert)"
    r"|ich habe (?:\w+ ){1,8}?(?:behoben|umgesetzt|implementiert|korrigiert|hinzugefügt|gefixt"
    r"|angepasst)"
    r"|j'ai (?:bien )?(?:corrigé|implémenté|ajouté|résolu|terminé|modifié)|(?:est|sont|a été"
    r"|ont été) (?:maintenant )?(?:corrigé|résolu|implémenté|terminé)\w*"
    r"|(?:está|están|quedó|queda|ha sido|fue|foi|foram) (?:\w+ )?(?:listo|corregid\w+"
    r"|arreglad\w+|implementad\w+|solucionad\w+|resuelt\w+|corrigid\w+|resolvid\w+|concluíd\w+"
    r"|pront[oa])|he (?:corregido|arreglado|implementado|solucionado|añadido)"
    r"|(?:corrigi|implementei|resolvi|adicionei) (?:o|a|os|as)"
    r"|ho (?:corretto|risolto|implementato|sistemato|aggiunto)"
    r"|я (?:исправил|добавил|реализовал|сделал)а?|(?:ошибка|проблема|баг) (?:исправлен|решен"
    r"|устранен)\w*)\b"
    r"|(?:已|已经|均已|都已)(?:成功)?(?:修复|完成|解决|实现|修改|更新|添加)|(?:修复|修改"
    r"|改)(?:完成|好了|完毕)|搞定了?|(?:修正|実装|対応|解決|完了|更新|追加)(?:が完了)?"
    r"(?:しました|済みです)"
)
OTHER_WORDS = (
    "fertig", "erledigt", "behoben", "umgesetzt", "implementiert", "korrigiert", "gefixt",
    "angepasst", "fait", "listo", "hecho", "correg", "soluciona", "implementad", "pronto", "feito",
    "corrig", "fatto", "risolto", "completato", "arregla", "resuelt", "resolvi", "implementei",
    "adicionei", "corretto", "implementato", "sistemato", "aggiunto",
)  # fmt: skip
"""One of these is in every claim of `OTHER_CLAIM` written in ASCII."""
WHOLE_CLAIM = compile_lazily(
    r"\b(?:done|complete|completed|finished|fix\w*|resolved|implemented|addressed|solved|works?"
    r"|ready)\b"
    r"|[^\x00-\x7f]"
)
"""A claim about the whole work is quoted before others of the message."""
INTENTION = compile_lazily(
    r"\b(?:let me (?!know|summari)|let's (?!summari)|(?:i'll|i will) (?!(?:now )?(?:submit|finish"
    r"|conclude|end))|i need|we need"
    r"|next,? i|i'm going to|now i(?:'ll)? (?:need|will)|i should|to fix|to resolve)\b"
)
MORE_OFFERED = compile_lazily(
    r"\b(?:would you like|do you want|do you have|is there|are there|shall i|want me)\b.*"
    r"\b(?:any|anything|additional|further|other|else|more)\b"
)
"""A closing question that expresses no doubt."""
RESERVATION = compile_lazily(
    r"\b(?:should|would|will|could|might|may|expect|hopefully|once|if|until|when|whether|make sure"
    r"|so that|need|must|not|cannot|fail\w*|except|please|you can|to (?:get|make|see|verify)"
    r"|seems?|looks? like|appears?|assum\w+|perhaps|maybe"
    r"|already (?:was|were|is|are)|propos\w+|explaining|suggest\w*|why|how|plan(?:ned)?"
    r"|nicht|kein\w*|sollten?|wenn|falls|pas|devrait|devraient|si|debería\w*|não|deve(?:ria)?m?|se"
    r"|non"
    r"|dovrebbe|не|должн\w+|если)\b"
    r"|n't\b|未|没|不|如果|应该|可能|请|尽量|ません|ない|はず|たら|ください|下さい|限り"
    r"|\b(?:as far as (?:possible|i can|i could)|to the best of my|best[- ]effort|bitte|soweit"
    r"|veuillez|merci de|dans la mesure du possible|por favor|en la medida de lo posible"
    r"|na medida do possível|per favore|per quanto possibile|пожалуйста|по возможности)\b"
)
INSTRUCTION = compile_lazily(
    r"\W*(?:step \d+\W*)?(?:\d+[.)]\W*)?(?:\*\*[^*\n]{1,60}\*\*:?\s*)?"
    r"(?:(?:then|next|now|finally|first|lastly|also|after(?:wards| [^,]{4,60}))\b,? )?"
    r"(?:i )?(?:run|re-?run|execute|check|verify|confirm|validate|apply|install|open|restart|try"
    r"|replace|ensure|make sure|follow|add|modify|update|change|use|save|copy|set|test|investigate"
    r"|locate|identify|create|implement|review|rebuild|write) "
    r"(?:that|if|whether|the|your|it|this|these|those|any|a|an|all|necessary|[`*'\"])"
)
"""Instructions to the user, and steps of a plan."""
PROPOSAL = compile_lazily(
    r"\b(?:we|i) (?:need to|can|must|should)\b|\bhere(?:'s| is) (?:how|the step)"
    r"|\b(?:by |follow )these steps\b"
)
"""The message says what to do, not what was done."""
PROPOSED_CLAIM = compile_lazily(
    r"\b(?:this|that|it|the (?:fix|change|solution)s?|this test)(?: \w+){0,3}? "
    r"(?:resolves|fixes|solves|addresses|completes|confirms|works?)\b"
)
"""A claim in the present tense; in a proposal it is about what would be."""
PURPOSE = compile_lazily(
    r"\b(?:ensur(?:e[sd]?|ing)|to (?:confirm|check|validate|test)"
    r"|confirm(?:ing)? (?:that|whether|if)|made sure|my (?:goal|aim|task|plan)"
    r"|(?:goal|aim|task|plan) is|want(?:s|ed)? (?:to|the)|trying to)\b"
)
"""What follows is what something is for."""
REVIEW_WISH = compile_lazily(
    r"\bplease (?:re-?|double[- ]?)?(?:review|check)\b|\bdouble[- ]check (?:it|this|the|my|these)\b"
)
"""The agent asks the user to check the work."""
ADMISSION = compile_lazily(
    r"\b(?:could|can|did|do|was|were|have|has|had|am|is)(?:n't| not|not)(?: \w+){0,3}? "
    r"(?:run|ran|test|tested|verif\w+|execut\w+|validat\w+|confirm\w*|fix\w*|pass|find"
    r"|complete\w*)\b"
    r"|\b(?:unable to|not able to|untested|unverified|not (?:yet )?(?:verified|tested|complete\w*)"
    r"|without (?:running|testing|verifying)|no tests? (?:were|was|are|is) |nothing (?:was"
    r"|has been) (?:run|tested|executed|checked)|not run|pre-?existing"
    r"|(?:still|currently|remaining|unrelated) (?:\w+ ){0,3}?fail\w*"
    r"|[1-9]\d* (?:tests? |checks? )?(?:fail(?:s|ed|ures?)?|(?:is |are )failing)"
    r"|fail\w* (?:\w+ ){0,6}?(?:unrelated|remain\w*|before|already|environment\w*|network|flaky)"
    r"|(?<!no )(?<!zero )(?<!0 )(?<!the )(?<!all )(?<!any )remaining (?:issue|problem|failure)s?"
    r"|remaining (?:issue|problem)s? (?:is|are)(?! (?:now |all )?(?:fixed|resolved|addressed|gone))"
    r"|tests? (?:still )?fails?|except for|blocked|not possible|give up|gave up"
    r"|please (?:run|test|verify|check|try)|(?:run|verify|test) (?:it |this )?(?:yourself|locally)"
    r"|nicht (?:getestet|geprüft|ausführen|ausgeführt|laufen lassen)|ungetestet|schlägt noch fehl"
    r"|(?:n'ai|n'a) pas (?:pu|testé|exécuté|vérifié)|non testé|échouent? encore"
    r"|no (?:pude|he podido|probé|ejecuté)|sin probar|(?:todavía|aún) fallan?"
    r"|não (?:consegui|testei|executei|rodei|verifiquei)|ainda falham?"
    r"|non (?:ho potuto|testato)|не (?:удалось|смог|проверял|тестировал|запускал)\w*)\b"
    r"|未能|无法|没有(?:运行|测试|验证)|未(?:运行|测试|验证)|仍(?:然)?失败|できませんでした"
    r"|確認していません|未確認|未テスト"
)
HEDGE = re.compile(
    r"\bshould (?:now )?(?:work|pass|fix|resolve|address|be (?:fixed|resolved|working|good))\b"
)
"""Expected success: neither a claim nor an admission."""
CLAIM_WORDS: tuple[tuple[str, ...], ...] = (
    ("n't", "not", "nothing", "unable", "untest", "unverif", "without", "no test", "existing",
     "fail", "except for", "blocked", " up", "please", "yourself", "locally", "should", "remaining",
     "nicht", "ungetestet", "n'a", "testé", "échou", "no pud", "no he", "no prob", "no eje",
     "sin probar", "aún", "todavía",
     "não", "ainda", "non ho", "non test", "не ", "未", "无法", "没有", "失败",
     "ませんでした", "ていません"),
    ("pass", "green", "succe", "tested", "verified", "grün", "durch", "erfolgreich", "bestanden",
     "réussi", "vert", "pasa", "verde", "проход", "прошли", "пройден", "зел", "通", "パス", "成功",
     "合格"),
    ("done", "complete", "finished", "fixe", "resolve", "implement", "success", "added", "updated",
     "refactored", "replaced", "removed", "addresse", "work", "now ", "ready", "in place",
     "all set",
     "solve", "corrected", "modified", "changed", "created", "reverted", "rewritten", "migrated",
     "renamed", "made", "good to", "fertig", "erledigt", "behoben", "umgesetzt", "gelöst",
     "korrigiert", "hinzugefügt", "angepasst", "fait", "corrigé", "terminé", "réglé", "résolu",
     "implémenté", "ajouté", "modifié", "listo", "hecho", "correg", "soluciona", "arregla",
     "resuelt", "añadido", "pronto", "feito", "conclu", "corrigi", "resolv", "adicionei", "fatto",
     "risolto", "completato", "corretto", "sistemato", "aggiunto", "готово", "исправ", "сделан",
     "сделал", "реализова", "добавил", "решен", "устранен", "修", "完", "解决", "实现", "更新",
     "添加", "搞定", "改", "実装", "対応", "解決", "追加"),
)  # fmt: skip
"""Words without which a sentence expresses no doubt, no pass and no end of work."""


MAX_MESSAGE_CHARS = 6000
"""Characters of a message that are read."""
MAX_MESSAGES = 50
"""Messages after a failing check that are searched for the agent's comment on it."""

END_TOOLS = frozenset(("finish", "submit", "exit"))
NO_END = float("inf")


class ClosingMessage(Record):
    """The message with which an agent ends a piece of work."""

    message: Message
    since: int
    """Number of the user's previous message event; 0 if there is none."""
    until: float
    """Number of the user's next message event, where its scope ends."""


class SuccessClaim(Record):
    """An unreserved claim of success."""

    passing: bool
    """Whether it says that tests or other checks pass; otherwise only that the work is done."""
    quote: str


# A quotation, a link, a row of a table, a tool's output.
_PASSED_ON_LINE = compile_lazily(r"^[ \t]*(?:>|- \[|\||\[).*", re.MULTILINE)
# Same as `(?<=[.!?])\s+|\n+`, but begins with the searched character, which is faster.
_ASCII_SENTENCE_BREAK = compile_lazily(r"\s(?:(?<=[.!?]\s)\s*|(?<=\n)\n*)")
_SENTENCE_BREAK = compile_lazily(rf"{_ASCII_SENTENCE_BREAK.pattern}|(?<=[。！？])")
_DISCLAIMER = compile_lazily(
    r"\bpre-?existing\b|\bunrelated\b|\bnot (?:caused by|related to|from|due to|because of)\b"
    r"|\b(?:sandbox|environment)(?:al)? (?:issue|problem|limitation|error)s?\b"
)
_FAULT_WORDS = (
    "fail", "error", "issue", "problem", "limitation", "flak", "broke", "crash", "warning",
    "existing", "caused by", "not related",
)  # fmt: skip


_claim_word_automaton = cache(
    lambda: build_automaton([word for words in CLAIM_WORDS for word in words])
)
_CLAIM_WORD_KINDS = [kind for kind, words in enumerate(CLAIM_WORDS) for _ in words]


def ends_work(event: object) -> bool:
    """Whether it is a call of the tool that ends the work."""
    return isinstance(event, ToolUse) and event.name.lower() in END_TOOLS


_REFUSAL = compile_lazily(
    r"\b(?:i|we)(?:['’]m| am| are)? (?:(?:can(?:not|['’]t| not)|could(?: not|n['’]t)|will not"
    r"|won['’]t|must decline to|unable to|not able to) (?:do|help|complete|finish|solve|fix"
    r"|implement|make|assist|comply|continue|proceed|perform|fulfil|resolve)"
    r"|giving up|give up|gave up)\b"
)
MAX_REFUSAL_CHARS = 1000


def find_refusal(reading: TraceReading) -> Message | None:
    """Return the last message of an agent that changed no code and says that it cannot."""
    root = next(iter(reading.lanes.values()), None)
    if root is None or any(list_code_changes(lane) for lane in reading.lanes.values()):
        return None
    last = next((message for message in reversed(root.messages) if message.role == "agent"), None)
    if last is None or not _REFUSAL.search(last.text[-MAX_REFUSAL_CHARS:].lower()):
        return None
    return last


@cache_on_reading
def list_closings(lane: LaneReading) -> Sequence[ClosingMessage]:
    """List where the lane hands over to the user, claims something, or ends."""
    spoken_messages = [message for message in lane.messages if message.role != "system"]
    closing_messages, last_user_number = [], 0
    for message, following in zip_longest(spoken_messages, spoken_messages[1:]):
        if message.role == "user":
            last_user_number = message.number
        elif message.intent in (None, "claim"):
            next_user_number = (
                following.number if following and following.role == "user" else NO_END
            )
            hands_over = following is None or (
                next_user_number != NO_END and _hands_over(lane, message, following)
            )
            if hands_over or message.intent == "claim":
                closing_messages.append(
                    ClosingMessage(message=message, since=last_user_number, until=next_user_number)
                )
    return closing_messages


def _hands_over(lane: LaneReading, message: Message, following: Message) -> bool:
    """Whether nothing was done between its message and the user's, and the user did not
    interrupt."""
    if following.intent == "interrupt":
        return False
    index = bisect_right(lane.steps, message.number, key=attrgetter("event.number"))
    return index == len(lane.steps) or lane.steps[index].number > following.number


def parse_claim(message: Message) -> SuccessClaim | None:
    """Return the claim of a message; None if it claims nothing, or with reservations."""
    return _parse_claim_text(message.text[:MAX_MESSAGE_CHARS])


@lru_cache(maxsize=256)
def _parse_claim_text(text: str) -> SuccessClaim | None:
    prose = _PASSED_ON_LINE.sub("", " ".join(text.split("```")[::2]).replace("’", "'"))
    sentences = _split_sentences(prose)
    lower_text = "\n".join(sentences).lower()
    lines = lower_text.split("\n")
    doubt_indexes, pass_indexes, done_indexes = _claim_word_lines(lower_text)
    if _has_admission(lines, doubt_indexes) or any(
        HEDGE.search(lines[index]) for index in doubt_indexes
    ):
        return None
    for pass_index in pass_indexes:
        if PASSING_CLAIM.search(lines[pass_index]) and not _is_reserved(lines[pass_index]):
            return SuccessClaim(passing=True, quote=truncate_line(sentences[pass_index]))
    last = next((line.rstrip() for line in reversed(lines) if line.strip()), "")
    if INTENTION.search(last) or (last.endswith("?") and not MORE_OFFERED.search(last)):
        return None
    if done_indexes and REVIEW_WISH.search(lower_text):
        return None
    quoted_index = None
    for done_index in _leave_out_proposed(lower_text, lines, done_indexes):
        if (quoted_index is None or WHOLE_CLAIM.search(lines[done_index])) and _is_done_claim(
            lines[done_index]
        ):
            quoted_index = done_index
            if WHOLE_CLAIM.search(lines[done_index]):
                break
    if quoted_index is None:
        return None
    return SuccessClaim(passing=False, quote=truncate_line(sentences[quoted_index]))


def _leave_out_proposed(
    lower_text: str, lines: Sequence[str], done_indexes: Sequence[int]
) -> Sequence[int]:
    """Return the lines that may be claims, without those that say what a proposal would do."""
    proposal = PROPOSAL.search(lower_text) if done_indexes else None
    if proposal is None:
        return done_indexes
    first = lower_text.count("\n", 0, proposal.start())
    return [
        index for index in done_indexes if index <= first or not PROPOSED_CLAIM.search(lines[index])
    ]


def _split_sentences(text: str) -> list[str]:
    return (_ASCII_SENTENCE_BREAK if text.isascii() else _SENTENCE_BREAK).split(text)


def _is_done_claim(line: str) -> bool:
    is_heading = line.rstrip("*_ ").endswith(":")
    claims = (None if is_heading else OPENING_CLAIM.match(line)) or DONE_CLAIM.search(line)
    if claims and is_heading and not WHOLE_CLAIM.search(line):
        return False
    if claims and claims.start() and PURPOSE.search(line, 0, claims.start() + 1):
        return False
    if not claims and (not line.isascii() or mentions_any(line, OTHER_WORDS)):
        claims = OTHER_CLAIM.search(line)
    return bool(claims) and not INTENTION.search(line) and not _is_reserved(line)


def _is_reserved(line: str) -> bool:
    return RESERVATION.search(line) is not None or INSTRUCTION.match(line) is not None


def admits_problem(lower_text: str) -> bool:
    """Whether lower-case text says what was not checked, does not work or could not be done."""
    lines = _split_sentences(lower_text)
    return _has_admission(lines, _claim_word_lines("\n".join(lines))[0])


def disclaims_failure(lower_text: str) -> bool:
    """Whether lower-case text says that a failure is not the agent's own."""
    if not _DISCLAIMER.search(lower_text):
        return False
    return any(
        mentions_any(sentence, _FAULT_WORDS) and _DISCLAIMER.search(sentence)
        for sentence in _split_sentences(lower_text)
    )


def has_disclaimer(lane: LaneReading, failing_number: int, end_number: int) -> bool:
    """Whether it told the user, between two events, that the failure is not its own."""
    start = bisect_left(lane.messages, failing_number, key=attrgetter("number"))
    return any(
        message.role == "agent" and disclaims_failure(message.text[:MAX_MESSAGE_CHARS].lower())
        for message in lane.messages[start : start + MAX_MESSAGES]
        if message.number < end_number
    )


def _has_admission(lines: Sequence[str], doubt_indexes: Sequence[int]) -> bool:
    return any(ADMISSION.search(lines[index]) for index in doubt_indexes)


def _claim_word_lines(text: str) -> tuple[list[int], ...]:
    """Return which lines contain a word of each kind."""
    lines_by_kind: tuple[list[int], ...] = ([], [], [])
    position = line = 0
    # In the order of their ends.
    for word_index, _, end in _claim_word_automaton().find_matches_as_indexes(
        text, overlapping=True
    ):
        line, position = line + text.count("\n", position, end), end
        if line not in lines_by_kind[_CLAIM_WORD_KINDS[word_index]][-1:]:
            lines_by_kind[_CLAIM_WORD_KINDS[word_index]].append(line)
    return lines_by_kind
