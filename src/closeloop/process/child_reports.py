"""A child's report, and whether its parent uses it: files, check results, caveats."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from functools import cache, lru_cache
from itertools import islice
from typing import Literal

from ahocorasick_rs import AhoCorasick

from closeloop.process.agent_claims import parse_claim
from closeloop.process.edit_contents import diff_edit, is_scratch_path
from closeloop.process.handoff_briefs import (
    HandoffContext,
    child_makes_changes,
    is_reading_brief,
    short_names,
    step_input,
)
from closeloop.process.rule_helpers import list_git_verbs
from closeloop.process.text_facts import (
    build_automaton,
    contains_any,
    find_matching_lines,
    find_sentence_targets,
    find_targets,
    mentions_any,
    normalise_words,
    split_sentences,
    word_stems,
)
from closeloop.records.change import TraceStep
from closeloop.records.record import Record
from closeloop.records.trace import Command, Edit, Read, ToolUse
from closeloop.text.client_markup import strip_client_markup
from closeloop.text.wording import compile_lazily

# Gaps that a sub-agent reports in prose: not done, skipped, assumed, not run, unknown.
#
# English in many phrasings; German, French, Spanish, Portuguese, Italian, Russian, Chinese,
# Japanese and Korean in their common ones.


MAX_GAPS = 10

_WORK_VERB = (
    r"(?:\w+ )?(?:run|test|verif|check|finish|complet|implement|fix|reproduc|resolv|migrat)"
)
_DONE_WORD = r"(?:done|finished|completed?|tested|verified|fixed)\b"
_FAILURE = compile_lazily(
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
_OVER = compile_lazily(
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
_OMISSION = compile_lazily(
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
_FOREIGN_OMISSION = compile_lazily(
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
_INTENDED = compile_lazily(
    r"\b(?:as (?:asked|requested|instructed|specified|agreed|you)|intentional\w*|on purpose"
    r"|by design|out of scope|not (?:needed|necessary|required|applicable)|unnecessary|no longer"
    r"|per (?:the|your|instructions)|previously|originally|used to|root cause|caus(?:ed|ing)"
    r"|the bug|which (?:caused|made|meant|led|is why)|now (?:fixed|pass\w*|are|is|does)"
    r"|had (?:been|not))\b"
)
"""Deliberately left out, or the earlier state."""
_FIRST_PERSON = compile_lazily(r"\b(?:i|we)\b|^(?:could|unable|did|not)\b")
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


def _split_signs(table: str) -> list[str]:
    return table.strip().replace("\n", "|").split("|")


def matching_sentences(search: AhoCorasick, text: str) -> Iterator[tuple[str, str]]:
    """Yield sentences with one of the words, also in lower case."""
    lines = split_sentences(text)
    folded_text = fold_case("\n".join(lines))
    folded_lines = folded_text.split("\n")
    return (
        (lines[index], folded_lines[index]) for index in find_matching_lines(search, folded_text)
    )


def fold_case(text: str) -> str:
    """Return the text in lower case, with one kind of apostrophe."""
    return text.casefold().replace("’", "'")


@lru_cache(256)
def find_gaps(report: str, *, acts: bool) -> Sequence[str]:
    """Return sentences about what failed, was not done, was assumed or remains.

    For a child that may not have acted (`acts` is false) only statements about itself.
    """
    report = strip_client_markup(report)
    gaps = [
        line
        for line, folded in matching_sentences(_sign_automaton(), report)
        if _is_gap(folded, acts=acts)
    ]
    if acts and contains_any(_foreign_automaton(), fold_case(report)):
        foreign_sentences = matching_sentences(_foreign_automaton(), report)
        gaps += [line for line, folded in foreign_sentences if _FOREIGN_OMISSION.search(folded)]
    return list(dict.fromkeys(gaps))[:MAX_GAPS]


def mentions_gap(folded: str) -> bool:
    """Whether lower-case text says that something failed or is missing."""
    return any(pattern.search(folded) for pattern in (_FAILURE, _OMISSION, _FOREIGN_OMISSION))


def _is_gap(folded: str, *, acts: bool) -> bool:
    if not acts and not _FIRST_PERSON.search(folded):
        return False
    if _FAILURE.search(folded) and not _OVER.search(folded):
        return True
    return acts and _OMISSION.search(folded) is not None and not _INTENDED.search(folded)


MAX_FILES = 20
MAX_CHANGES = 500
LineRange = tuple[float, float]
"""First and last line."""
MAX_EDITS_PER_FILE = 50
"""Edits of the child stored per file."""

_CHECK_STATUS = compile_lazily(
    r"\b(?:tests?|suite|checks?|build|lint\w*|mypy|pytest|types?)\b[^.\n]{0,60}?\b"
    r"(?:pass\w*|fail\w*|green|red|broken|error\w*|succe\w*)\b|\b\d+ (?:passed|failed|failing)\b"
)
_outcome_automaton = cache(
    lambda: build_automaton(("pass", "fail", "green", "red", "broken", "error", "succe"))
)
_FAILING_STATUS = compile_lazily(
    r"\b(?:fail\w*|red|broken|errors?)\b(?<!0 failed)(?<!no errors)(?<!0 errors)(?<!0 failures)"
    r"(?<!no failures)"
)
_UNWRITTEN = compile_lazily(
    r"\b(?:writt?en?|add(?:ed)?|implement\w*|creat\w+|document\w+|told|assum\w+)\b"
)
"""What no check can make up for."""
_SUCCESS = compile_lazily(
    r"\b(?:done|complete[ds]?|pass(?:es|ed|ing)?|success\w*|finished|works?|ready|fixed|ported)\b"
)
_RESERVATION = compile_lazily(
    r"\b(?:no|not|yet|but|however|except|assum\w+|default\w*|missing|lacks?|later|follow-?up|still"
    r"|only|remain\w*|open|todo|need\w*|please|confirm)\b|n't\b"
)
_VAGUE_STEMS = frozenset(("change", "add", "implement", "told", "run", "work", "left"))
_CHECK_STEMS = frozenset(
    ("test", "suit", "check", "lint", "build", "pytest", "mypy", "fail", "run")
)
_CHANGE_STEMS = (
    "creat", "chang", "modif", "writ", "wrote", "updat", "add", "fix", "implement", "edit",
    "refactor", "remov", "delet", "renam",
)  # fmt: skip
_CHANGE_WORD = compile_lazily(rf"\b(?:{'|'.join(_CHANGE_STEMS)})")
_change_automaton = cache(lambda: build_automaton(_CHANGE_STEMS))
_GIT_RESTORE = compile_lazily(r"\bgit\s+(?:checkout|restore)\b")


class ReportFact(Record):
    """A fact of a report."""

    kind: Literal["file", "status", "caveat"]
    text: str


class RedoneEdit(Record):
    """Work of the child that the parent repeated or reverted."""

    path: str
    child: int
    parent: int
    """Numbers of the events."""
    undone: bool = False


def list_report_facts(handoff: HandoffContext) -> list[ReportFact]:
    """List changed files, check results, and problems."""
    if handoff.child and handoff.child.steps and not _child_did_work(handoff):
        return []
    if not (handoff.child and handoff.child.steps) and is_reading_brief(handoff.event.brief):
        return [ReportFact(kind="caveat", text=line) for line in list_caveats(handoff)]
    report = handoff.event.report or ""
    facts = [ReportFact(kind="file", text=path) for path in _list_reported_files(handoff, report)]
    statuses = (
        line
        for line, folded in matching_sentences(_outcome_automaton(), report)
        if _CHECK_STATUS.search(folded)
    )
    facts += [ReportFact(kind="status", text=line) for line in islice(statuses, 1)]
    return facts + [ReportFact(kind="caveat", text=line) for line in list_caveats(handoff)]


def list_caveats(handoff: HandoffContext) -> Sequence[str]:
    """Return sentences about what failed, could not be done or remains; not about the code's
    behaviour."""
    if handoff.child and handoff.child.steps:
        return find_gaps(handoff.event.report or "", acts=True) if _child_did_work(handoff) else ()
    return find_gaps(handoff.event.report or "", acts=child_makes_changes(handoff))


def parent_uses_fact(fact: ReportFact, handoff: HandoffContext) -> bool:
    """Whether the parent opens, checks, reports, passes on or builds on a fact."""
    checked = any(step.check for step in handoff.after)
    if fact.kind == "caveat":
        return _takes_up_gap(fact.text, handoff, checked=checked)
    if checked:
        return True
    if fact.kind == "file":
        names = short_names((fact.text,))
        return any(mentions_any(text, names) for text in _later_texts(handoff)) or _builds_on(
            handoff
        )
    # Claiming success after a report of failures contradicts the child.
    fails = _FAILING_STATUS.search(fold_case(fact.text)) is not None
    reported_failing = [
        _FAILING_STATUS.search(status[0]) is not None
        for message in handoff.messages
        for status in _CHECK_STATUS.finditer(fold_case(message.text))
    ]
    return fails in reported_failing or (not fails and _builds_on(handoff))


def _builds_on(handoff: HandoffContext) -> bool:
    """Whether the parent ends or keeps the work because of the report."""
    return any(parse_claim(message) for message in handoff.messages) or any(
        list_git_verbs(step) & {"commit", "push"} for step in handoff.after
    )


def _takes_up_gap(gap: str, handoff: HandoffContext, *, checked: bool) -> bool:
    """Whether the parent acts on a gap, or passes it on."""
    stems = word_stems(normalise_words(gap))
    is_unwritten = _UNWRITTEN.search(fold_case(gap)) is not None
    if checked and not is_unwritten and stems & _CHECK_STEMS:
        return True
    targets = short_names(find_targets(gap))
    child_paths = {path for step in handoff.work if step.changed for path in step.written}
    for step in handoff.after:
        if step.changed and (
            any("test" in path for path in step.written)
            if stems & {"test", "spec"}
            else not child_paths.isdisjoint(step.written)
        ):
            return True
        if mentions_any(step_input(step), targets) or _shares_stems(step_input(step), stems, 2):
            return True
    return any(
        mentions_any(sentence, targets) or _passes_on(sentence, stems)
        for message in handoff.messages
        for sentence in split_sentences(message.text)
    )


def _passes_on(sentence: str, stems: Set[str]) -> bool:
    """Whether a sentence is about the same thing without praise, or says what is wrong."""
    folded = fold_case(sentence)
    if mentions_gap(folded) or _RESERVATION.search(folded):
        return _shares_stems(sentence, stems, 1)
    return not _SUCCESS.search(folded) and _shares_stems(sentence, stems, 2)


def _shares_stems(text: str, stems: Set[str], count: int) -> bool:
    distinct_stems = stems - _VAGUE_STEMS
    return len(distinct_stems & word_stems(normalise_words(text))) >= max(
        1, min(count, len(distinct_stems))
    )


def find_redone_edits(handoff: HandoffContext, *, threshold: float = 0.9) -> list[RedoneEdit]:
    """Return the parent's edits that repeat or revert an edit of the child."""
    child_edits: dict[str, list[TraceStep]] = {}
    for step in handoff.work:
        if step.changed and isinstance(step.event, Edit):
            child_edits.setdefault(step.written[0], []).append(step)
    if not child_edits:
        return []
    return [
        redone_edit
        for step in handoff.after
        if step.changed and (redone_edit := _match_redone_edit(step, child_edits, threshold))
    ]


def find_repeated_lookups(
    handoff: HandoffContext, changed: Set[str]
) -> list[tuple[TraceStep, TraceStep]]:
    """Return reads and searches of the child that the parent repeats, with the repeats.

    Changing files are left out, and so is a read from the middle of a file, which looks up what the
    report pointed to.
    """
    child_lookups: dict[str, tuple[TraceStep, LineRange]] = {}
    for step in handoff.work:
        for key in _lookup_keys(step, changed):
            child_step, (start, end) = child_lookups.get(key, (step, _line_range(step)))
            line_range = _line_range(step)
            child_lookups[key] = child_step, (min(start, line_range[0]), max(end, line_range[1]))
    pairs: dict[str, tuple[TraceStep, TraceStep]] = {}
    for step in handoff.after if child_lookups else ():
        for key in _lookup_keys(step, changed):
            if key in child_lookups and key not in pairs:
                child_step, (start, end) = child_lookups[key]
                lines = _line_range(step)
                if child_step.number < step.number and start == lines[0] and lines[1] <= end:
                    pairs[key] = child_step, step
    return list(pairs.values())


def count_lookups(handoff: HandoffContext, changed: Set[str]) -> int:
    """Count the different things the child looked up."""
    return len({key for step in handoff.work for key in _lookup_keys(step, changed)})


def _child_did_work(handoff: HandoffContext) -> bool:
    """Whether the child changed or checked something, so that its report is about its own work."""
    return bool(handoff.child and (handoff.child.changes or handoff.child.checks))


def _list_reported_files(handoff: HandoffContext, report: str) -> list[str]:
    """Return files that the report names and the child changed, or says it did."""
    if handoff.child is not None and handoff.child.steps:
        written_paths = dict.fromkeys(
            path for step in handoff.child.changes[-MAX_CHANGES:] for path in step.written
        )
        return [
            path
            for path in written_paths
            if not is_scratch_path(path) and any(name in report for name in short_names((path,)))
        ][:MAX_FILES]
    reported_names = (
        name
        for line, folded in matching_sentences(_change_automaton(), report)
        if ("/" in line or "." in line) and _CHANGE_WORD.search(folded)
        for name in find_sentence_targets(line)
        if "/" in name or "." in name
    )
    return list(dict.fromkeys(reported_names))[:MAX_FILES]


def _later_texts(handoff: HandoffContext) -> Iterator[str]:
    yield from (message.text for message in handoff.messages)
    yield from (step_input(step) for step in handoff.after)


def _match_redone_edit(
    step: TraceStep, child_edits: Mapping[str, list[TraceStep]], threshold: float
) -> RedoneEdit | None:
    event = step.event
    if isinstance(event, Command):
        return _match_restore(step, child_edits) if _GIT_RESTORE.search(event.command) else None
    if not isinstance(event, Edit) or step.written[0] not in child_edits:
        return None
    path, parent_lines = step.written[0], diff_edit(event)
    for edit in reversed(child_edits[path][-MAX_EDITS_PER_FILE:]):
        assert isinstance(edit.event, Edit), edit
        child_lines = diff_edit(edit.event)
        if edit.number > step.number or parent_lines is None or child_lines is None:
            continue
        if _are_lines_alike(child_lines.added, parent_lines.added, threshold):
            return RedoneEdit(path=path, child=edit.number, parent=step.number)
        if _are_lines_alike(child_lines.added, parent_lines.removed, threshold) and (
            child_lines.removed == parent_lines.added
            or _are_lines_alike(child_lines.removed, parent_lines.added, threshold)
        ):
            return RedoneEdit(path=path, child=edit.number, parent=step.number, undone=True)
    return None


def _match_restore(
    step: TraceStep, child_edits: Mapping[str, list[TraceStep]]
) -> RedoneEdit | None:
    for path in step.written:
        edits = child_edits.get(path, ())
        if edits and edits[0].number < step.number:
            return RedoneEdit(path=path, child=edits[0].number, parent=step.number, undone=True)
    return None


def _are_lines_alike(
    first_lines: tuple[str, ...], second_lines: tuple[str, ...], threshold: float
) -> bool:
    """Whether the lines are nearly the same, and too many to be a coincidence."""
    first, second = (
        {line for line in lines if len(line) > 3} for lines in (first_lines, second_lines)
    )
    if sum(map(len, first)) < 20 and first:
        return False
    return bool(first and second) and len(first & second) >= threshold * len(first | second)


def _line_range(step: TraceStep) -> LineRange:
    """Return the lines that a step shows; all for a command."""
    event = step.event
    if not isinstance(event, Read):
        return 1, float("inf")
    return event.first_line or 1, event.last_line or float("inf")


def _lookup_keys(step: TraceStep, changed: Set[str]) -> Iterator[str]:
    """Yield what a step looks up; files that somebody changes are left out."""
    event = step.event
    if isinstance(event, ToolUse):
        if event.ok is not False and re.search(r"(?i)grep|search|glob|find", event.name):
            yield f"{event.name} {event.arguments}"
    elif step.effect and step.effect.searches:
        yield " ".join(step_input(step).split())
    else:
        for path in step.read:
            if path not in changed:
                yield path
