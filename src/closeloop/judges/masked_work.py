"""Work with its author's words masked: a favourable verdict must survive that.

An agent's text can address a judge, and nothing in the answer of a model that obeys distinguishes
it from an honest one. So a favourable verdict counts only if the same judge, asked again about the
same work without its author's words, reaches it too.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from unicodedata import normalize

from msgspec.structs import replace

from closeloop.judges.rubric import reaches_threshold
from closeloop.records.evaluation import (
    CRITERIA,
    CriterionScore,
    Evaluation,
    JudgeCase,
    JudgeSample,
    QuestionSeals,
    Rubric,
    TaskOutput,
)
from closeloop.records.record import Record
from closeloop.records.trace import (
    AnyEvent,
    Command,
    Edit,
    Handoff,
    Message,
    Read,
    Thought,
    ToolUse,
)
from closeloop.text.text_masking import (
    PROSE_SUFFIXES,
    TEXT_LINE,
    CodeMasker,
    KnownTexts,
    collect_known_texts,
    mask_patch,
    split_patch_files,
    split_patch_lines,
)
from closeloop.text.untrusted import draw_seal, is_blank, reveal_hidden_text
from closeloop.text.wording import compile_lazily, truncate_words

# Sentences of prose addressed to a judge. Code is masked as a whole; prose that is itself judged
# cannot be, so these are removed from it, and one is cited if a verdict is withheld.

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
"""Selects how a sign is drawn, and has no other meaning."""
MAX_SENTENCE_CHARS = 2_000
"""A longer sentence is examined in parts."""


def is_addressed_to_reader(sentence: str) -> bool:
    """Whether it is about judging, scores or instructions, or hides its content."""
    sentence = _EMOJI_STYLE.sub("", sentence)
    if reveal_hidden_text(sentence) != sentence:
        return True
    plain = normalize("NFKC", sentence)
    return any(map(_ADDRESSED.search, (plain, plain.translate(_LOOKALIKES)))) or any(
        map(_ADDRESSED.search, decode_texts(plain))
    )


def split_addressed_sentences(text: str) -> tuple[str, list[str]]:
    """Return the text without the sentences addressed to its judge, and those sentences."""
    kept_parts, removed_sentences = [], []
    for sentence in _SENTENCE_END.split(text):
        parts = range(0, len(sentence), MAX_SENTENCE_CHARS)
        if any(
            is_addressed_to_reader(sentence[start : start + MAX_SENTENCE_CHARS]) for start in parts
        ):
            removed_sentences.append(sentence.strip())
            kept_parts.append("\n" if sentence.endswith("\n") else " ")
        else:
            kept_parts.append(sentence)
    return "".join(kept_parts), removed_sentences


# Codes

_BASE64 = compile_lazily(r"(?<![\w+/=])[A-Za-z0-9+/]{7,}={0,2}(?![\w+/=])")
_HEX = compile_lazily(r"(?<![0-9a-fA-F])(?:[2-7][0-9a-fA-F]){6,}(?![0-9a-fA-F])")
_CODE_POINTS = compile_lazily(r"(?:\b(?:3[2-9]|[4-9]\d|1[01]\d|12[0-6])\b[\s,;]{1,3}){6,}")
_DECODED = compile_lazily(r"[ -~\n]{5,}")
MAX_CODE_CHARS = 4_000


def decode_texts(text: str) -> Iterator[str]:
    """Yield encoded plain text: base64, hexadecimal, code points."""
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


# Masking

MASKING_VERSION = 4
"""Part of a judge's version, because masking affects the verdict."""
MAX_CRITERION_DROP = 0.3
"""Largest acceptable drop of a criterion's score without the text."""
MAX_CITED_CHARS = 160
MAX_MASKED_CHARS = 240_000
"""Maximum length of one text: twice what a judge is shown of a change."""
_ASKS_FOR_TEXT = compile_lazily(
    r"\b(?:readme|documentation|docs?|changelog|release notes|docstrings?|tutorial|man page)\b"
    r"|\.(?:md|rst|txt|adoc)\b",
    re.IGNORECASE,
)


class MaskedCase(Record):
    """A case to ask about again, and what was masked in it."""

    case: JudgeCase
    hidden: tuple[str, ...]
    """Texts of the author, those addressed to a reader first."""


def mask_case(case: JudgeCase, rubric: Rubric) -> MaskedCase | None:
    """Return the case without its author's words; None if there are none."""
    output, hidden = mask_output(case, rubric, case.output)
    facts = tuple(replace(fact, text="(text left out)") for fact in case.facts)
    # Other tasks of a plan do not matter for this verdict; a planner may have written them.
    other_tasks = [task for task in case.plan if task != case.task]
    if output == case.output and not facts and not other_tasks and case.site is None:
        return None
    hidden += [*(fact.text for fact in case.facts), *(task.prompt for task in other_tasks)]
    seals = QuestionSeals(common=case.seals.common if case.seals else draw_seal(), own=draw_seal())
    masked = replace(
        case, output=output, unmasked=case.output, facts=facts, plan=(), site=None, seals=seals
    )
    return MaskedCase(case=masked, hidden=tuple(hidden))


def mask_output(
    case: JudgeCase, rubric: Rubric, output: TaskOutput
) -> tuple[TaskOutput, list[str]]:
    """Return one output with its author's words masked, and those words."""
    output = replace(
        output,
        text=_cut_lines(output.text),
        change=output.change and _cut_lines(output.change),
        reference=output.reference and _cut_lines(output.reference),
    )
    prose = (case.request, case.task.prompt, case.task.wanted or "")
    base_lines = _lines_of_base(output.change or "") if case.base_known else ""
    known_texts = collect_known_texts(prose, [output.reference or "", base_lines])
    asks_for_text = rubric.subject == "text" or bool(_ASKS_FOR_TEXT.search("\n".join(prose)))
    change, hidden = _mask_change(output.change or "", known_texts, case.base_known, asks_for_text)
    text = ""
    if not is_blank(output.change or ""):
        hidden += output.text.splitlines()  # a closing message is no proof
    elif rubric.subject == "text":
        text, hidden = split_addressed_sentences(output.text)
    else:
        masker = CodeMasker(known_texts)
        text = "\n".join(map(masker.mask_line, output.text.splitlines()))
        hidden = output.text.splitlines()
    masked = replace(output, text=text, change=change or None if output.change else output.change)
    return masked, hidden


def _cut_lines(text: str) -> str:
    """Return both ends of a long text in whole lines, as much as a judge is shown."""
    if len(text) <= MAX_MASKED_CHARS:
        return text
    half = MAX_MASKED_CHARS // 2
    head, tail = text[:half].rpartition("\n")[0], text[-half:].partition("\n")[2]
    return f"{head}\n{tail}"


def _lines_of_base(patch: str) -> str:
    """Return the patch without its added lines."""
    return "\n".join(line for line in split_patch_lines(patch) if line[:1] in ("-", " ", "@"))


def _mask_change(
    patch: str, known_texts: KnownTexts, base_known: bool, asks_for_text: bool
) -> tuple[str, list[str]]:
    """Mask code; if prose was requested, only remove the sentences addressed to a reader from
    it."""
    if is_blank(patch):
        return patch, []
    if not asks_for_text:
        masked, masker = mask_patch(patch, known_texts, is_base_known=base_known)
        return masked, list(masker.hidden)
    parts, hidden = [], list[str]()
    for section in filter(None, split_patch_files(patch)):
        path = re.search(r"^\+\+\+ (?:\"?b/)?([^\t\n\"]+)", section, re.MULTILINE)
        suffix = path[1].strip().rpartition(".")[2].lower() if path else ""
        masked, masker = mask_patch(section, known_texts, is_base_known=base_known)
        if suffix in PROSE_SUFFIXES:
            head, _, _ = masked.partition("\n@@")
            body, removed_sentences = split_addressed_sentences(section.partition("\n@@")[2])
            hidden += removed_sentences
            masked = f"{head}\n@@{body}"
        else:
            hidden += masker.hidden
        parts.append(masked)
    return "\n".join(part for part in parts if part.strip()), hidden


# Combination of the two answers


def cite_hidden_text(hidden: Sequence[str]) -> str:
    """Return the text that most likely addresses the judge."""
    texts = [truncate_words(text.strip().strip("#/*<>!-\"' "), MAX_CITED_CHARS) for text in hidden]
    texts = [text for text in texts if text]
    addressed_text = next((text for text in texts if is_addressed_to_reader(text)), None)
    return addressed_text or max(texts, key=len, default="")


def withhold_unless_confirmed(
    first: Evaluation, second: Evaluation, masked: MaskedCase, rubric: Rubric
) -> Evaluation:
    """Return the first evaluation, a pass, if the second confirms it; otherwise no verdict."""
    sample = JudgeSample(judge=second.judge, score=second.score, passed=second.passed)
    drops = [
        f"{name} is {after:.2f} instead of {before:.2f}"
        for name in CRITERIA
        if (before := first.criterion_score(name)) is not None
        and (after := second.criterion_score(name)) is not None
        and not reaches_threshold(after, before - MAX_CRITERION_DROP)
    ]
    if second.passed is True and not drops:
        return replace(first, without_text=sample)
    return replace(
        first,
        passed=None,
        score=None,
        spread=None,
        criteria=tuple(CriterionScore(name=name, score=None) for name in CRITERIA),
        abstained=_withholding_reason(second, drops, masked, rubric),
        without_text=sample,
    )


def is_withheld(evaluation: Evaluation) -> bool:
    """Whether the judge favoured the work, but not without its author's words."""
    return evaluation.passed is None and evaluation.without_text is not None


def _withholding_reason(
    second: Evaluation, drops: Sequence[str], masked: MaskedCase, rubric: Rubric
) -> str:
    if rubric.subject == "code" and is_blank(masked.case.output.change or ""):
        return (
            "all there is to judge is text the agent wrote: if the task asks for text, judge it "
            'by a rubric with subject = "text"'
        )
    if second.passed is None:
        reason = f" ({second.abstained})" if second.abstained else ""
        return f"the judge could not confirm it without text the agent wrote{reason}"
    cited = cite_hidden_text(masked.hidden)
    change = "; ".join(drops) if second.passed else "it fails"
    quote = f"; the agent wrote: “{cited}”" if cited else ""
    return f"the verdict depends on text the agent wrote: without it {change}{quote}"


# Events of a trace

MAX_EVENT_CHARS = 700


def mask_events(events: Sequence[AnyEvent]) -> dict[int, str]:
    """Return the actions by event number, without words of the agent or of command output."""
    prose = [event.text for event in events if isinstance(event, Message) and event.role == "user"]
    masker = CodeMasker(collect_known_texts(prose))
    return {event.number: _describe_masked_event(event, masker) for event in events}


def _describe_masked_event(event: AnyEvent, masker: CodeMasker) -> str:
    masker.start_file("")
    match event:
        case Message(role="user"):
            return f"user says: {event.text[:MAX_EVENT_CHARS]}"
        case Message():
            return f"{event.role} says: {TEXT_LINE}"
        case Command():
            code = "" if event.exit_code is None else f" (exit code {event.exit_code})"
            command = masker.mask_line(" ".join(event.command[:MAX_EVENT_CHARS].split()))
            return f"runs: {command}{code}"
        case Edit():
            masker.start_file(event.path)
            lines = (event.patch or event.after or "")[:MAX_EVENT_CHARS].splitlines()
            head = f"edits {masker.mask_path(event.path)} ({event.action}):"
            return "\n".join([head, *(line[:1] + masker.mask_line(line[1:]) for line in lines)])
        case Read():
            return f"reads {masker.mask_path(event.path)}"
        case Thought():
            return f"agent thinks: {TEXT_LINE}"
        case Handoff():
            return "hands off"
        case ToolUse():
            return f"uses {masker.mask_word(event.name)}"
    return "note"
