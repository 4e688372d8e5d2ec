"""Facts in a text, and whether another text holds them: what must survive from one to the next.

Paths, names, numbers and quotes are found in any language; restrictions only in English.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, lru_cache
from itertools import chain
from typing import Literal

from ahocorasick_rs import AhoCorasick, Implementation

from closeloop.process.command_analysis import analyse_command
from closeloop.records.record import Record
from closeloop.text.client_markup import strip_client_markup
from closeloop.text.wording import compile_lazily

# A text as its words and its sentences.


MAX_TEXT_CHARS = 20_000
"""Characters of a text that are examined: a request is shorter, a pasted log is not."""
SHORT_TEXT_CHARS = 400
# Characters that change the meaning are kept: 3 < 5, -5, 50 %, 1.2 and 1.2.3.
_WORD_TOKEN = compile_lazily(r"\w++(?:\.\d++)*|[<>%$€£](?:(?<=[<>])=)?|!=|-(?<![\w)]-)(?=\d)")
CODE_FENCE = compile_lazily(r"```[^\n`]{0,40}\n(.*?)(?:```|\Z)", re.DOTALL)
_WRAPPED_LINE = compile_lazily(r"\n(?<=[^\n]{60}\n)(?<![.!?:;\n]\n)(?=[ \t]*[^\s\-*•>#\d|])")
_SENTENCE_BREAK = compile_lazily(r"(?<=[.!?;])[\s*_]+")
_SENTENCE_END = compile_lazily(r"[.!?;][\s*_]")
_BULLET = compile_lazily(r"^\s*(?:[-*•>#]+|\(?\d{1,2}[.)])\s+")
_STOP_WORD_LIST = """
the and that this these those with from for into onto are was were will would should could can may
might must shall has have had not but you your our their its his her they them then than when where
what which who how why all any each every some one also just there here such been being does did
done doing make made let please need needs want wants use used using sure only never always more
most other another out off over under about after before between because
"""
_STOP_WORDS = frozenset(_STOP_WORD_LIST.split())
CHANGE_STEMS = ("chang", "touch", "edit", "modif", "alter", "rewrit", "writ")


def normalise_words(text: str) -> str:
    """Return only the words of a text, with a space on both sides, so that whole words match."""
    return _long_words(text) if len(text) > SHORT_TEXT_CHARS else _short_words(text)


def _compute_words(text: str) -> str:
    normalised = text if text.isascii() else unicodedata.normalize("NFKC", text)
    return f" {' '.join(_WORD_TOKEN.findall(normalised.casefold()))} "


# Short texts are facts, which are searched for repeatedly; long ones are few and large, and repeat
# only around several handoffs.
_long_words, _short_words = lru_cache(64)(_compute_words), lru_cache(4096)(_compute_words)


@lru_cache(256)
def split_sentences(text: str) -> tuple[str, ...]:
    """Return sentences and list items, without code blocks."""
    return tuple(
        [sentence for line in split_paragraphs(text) for sentence in split_paragraph(line)]
    )


def split_paragraphs(text: str) -> list[str]:
    """Return paragraphs without code blocks; wrapped lines are joined."""
    text = text[:MAX_TEXT_CHARS]
    if "```" in text:
        text = CODE_FENCE.sub("\n", text)
    return _WRAPPED_LINE.sub(" ", text).splitlines()


def split_paragraph(paragraph: str) -> list[str]:
    """Return the sentences of a paragraph."""
    text = paragraph.strip()
    if text and not text[0].isalpha():
        text = _BULLET.sub("", paragraph).strip()
    if _SENTENCE_END.search(text):
        return list(filter(None, map(str.strip, _SENTENCE_BREAK.split(text))))
    return [text] if text else []


def word_stems(words: str) -> frozenset[str]:
    """Return the significant words of a text, without endings."""
    return _long_stems(words) if len(words) > SHORT_TEXT_CHARS else _short_stems(words)


def _compute_stems(words: str) -> frozenset[str]:
    all_words = set(words.split())
    if "_" in words:
        all_words.update(words.replace("_", " ").split())
    return frozenset([_stem_word(word) for word in all_words - _STOP_WORDS if len(word) > 2])


_long_stems, _short_stems = lru_cache(256)(_compute_stems), lru_cache(4096)(_compute_stems)


def mentions_any(text: str, words: Sequence[str]) -> bool:
    """Whether one of these words is in a text."""
    for word in words:  # noqa: SIM110 - a loop is three times as fast as a generator
        if word in text:
            return True
    return False


@lru_cache(8192)
def _stem_word(word: str) -> str:
    if word.startswith(CHANGE_STEMS):
        return "change"
    if word[-1] not in "gsdey":
        return word
    for ending in ("ings", "ing", "ies", "ed", "es", "s", "e", "y"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word[: -len(ending)]
    return word


# Search for many phrases at once: their first letters by one automaton, the rest by a pattern.

_PHRASE_STEM = compile_lazily(r"(?:[\w' -](?![?*+{]))+")
"""The constant beginning of a phrase."""


def compile_phrases(*alternatives: str) -> Callable[[str], bool]:
    """Compile phrases of whole words, each a pattern with a constant beginning."""
    pattern = re.compile(rf"\b(?:{'|'.join(alternatives)})\b")
    stems = [_phrase_stem(phrase) for phrase in alternatives]

    @cache
    def search() -> AhoCorasick:
        return AhoCorasick(stems, implementation=Implementation.DFA)

    return lambda text: find_first_match(pattern, search(), text) is not None


def _phrase_stem(phrase: str) -> str:
    match = _PHRASE_STEM.match(phrase)
    assert match is not None, f"{phrase!r} does not begin with plain letters"
    return match[0]


def find_first_match(
    pattern: re.Pattern[str], search: AhoCorasick, text: str
) -> re.Match[str] | None:
    """Return the first match of a pattern, tried only where one of its first words occurs."""
    matches = search.find_matches_as_indexes(text, overlapping=True)
    for start in sorted([start for _, start, _ in matches]):
        if match := pattern.match(text, start):
            return match
    return None


def find_matching_lines(search: AhoCorasick, text: str) -> Iterator[int]:
    """Return the indices of lines with one of the words, in order."""
    position = line_index = 0
    last_index = -1
    for _, start, _ in search.find_matches_as_indexes(text):
        line_index, position = line_index + text.count("\n", position, start), start
        if line_index != last_index:
            last_index = line_index
            yield line_index


def contains_any(search: AhoCorasick, text: str) -> bool:
    """Whether one of the words sought is there: where it stands takes longer to find."""
    return bool(search.find_matches_as_strings(text))


def build_automaton(words: Sequence[str]) -> AhoCorasick:
    """Build an automaton that finds all words in one pass."""
    return AhoCorasick(words, implementation=Implementation.DFA)


FactKind = Literal["prohibition", "constraint", "path", "symbol", "number", "quote", "command"]
NumberWithUnit = tuple[str, frozenset[str]]

MAX_FACTS = 60
"""Facts of one text that are told apart."""


class TextFact(Record):
    """One thing that a text states."""

    kind: FactKind
    text: str
    """As it is written; of a restriction the whole sentence."""
    sentence: str
    targets: tuple[str, ...] = ()
    """Paths and names that a restriction is about."""
    always: bool = False
    """A restriction on the work itself, whatever part of it is done: `Never touch db/`."""


class PreparedText(Record):
    """Normalise a text once, to look up facts in it."""

    text: str
    words: str
    """Its words alone, with a space on both sides."""
    stems: frozenset[str]


_CODE_SPAN = compile_lazily(r"`([^`\n]{1,200})`")
_QUOTED_TEXT = compile_lazily(r'"([^"\n]{3,160})"|“([^”\n]{3,160})”')
_LINK = compile_lazily(r"\b\w+://\S+")
_PATH = compile_lazily(r"(?<![\w/.:@+-])(?:~?/|\.{1,2}/)?(?:[\w.@+-]+/)*[\w.@+-]*[\w+]/?(?![\w/])")
_FILE_ENDING_LIST = """
py pyi ipynb js jsx ts tsx mjs cjs vue go rs java kt kts rb php cs c h cc cpp hpp swift scala sh ps1
sql htm html css scss less json json5 jsonl yml yaml toml ini cfg conf env lock md rst txt csv tsv
xml proto tf gradle patch diff log dat bin feature
"""
_FILE_ENDINGS = frozenset(_FILE_ENDING_LIST.split())
_NAME = compile_lazily(
    r"(?<![\w/.-])(?:[A-Za-z_]\w*\.)*(?:[A-Za-z][A-Za-z0-9]*_\w+|_+[A-Za-z]\w+|[A-Z]?[a-z][a-z0-9]*[A-Z]\w*"
    r"|[A-Za-z_]\w*(?=\(\)))(?![\w/]|\.\w)"
)
_CAPITAL, _DIGIT = compile_lazily(r"[a-z0-9][A-Z]"), compile_lazily(r"\d")
_IDENTIFIER = compile_lazily(r"(?:[A-Za-z_]\w*[.:]+)*([A-Za-z_]\w*)(?:\(.*\))?")
_NUMBER_WITH_UNIT = compile_lazily(r"(-?)(?:([$€£]) ?)?(\d+(?:\.\d+)*)(?: ([%$€£]|[a-zµ]+))?")
_UNITS = {
    word: unit
    for unit, words in {
        "%": "% percent pct",
        "eur": "€ eur euro euros",
        "usd": "$ usd dollar dollars",
        "gbp": "£ gbp",
        "ms": "ms millisecond milliseconds msec",
        "us": "µs us microseconds",
        "s": "s sec secs second seconds",
        "min": "min mins minute minutes",
        "h": "h hour hours hr hrs",
        "day": "d day days",
        "week": "week weeks",
        "month": "month months",
        "year": "year years",
        "b": "b byte bytes",
        "kb": "kb kib",
        "mb": "mb mib",
        "gb": "gb gib",
        "px": "px pixel pixels",
        "char": "char chars character characters",
        "line": "line lines",
    }.items()
    for word in words.split()
}
_NUMBER = compile_lazily(
    r"[-−$€£\d](?<![\w.#/-].)(?:(?<=[-−])[$€£]?\d+|(?<=[$€£])\d+|(?<=\d)\d*)"
    r"(?:[.,]\d+)*(?:\s?(?:[%€$£]|(?:"
    + "|".join(sorted((word for word in _UNITS if word.isalpha()), key=len, reverse=True))
    + r")\b))?(?![\w/]*[/-]\d)",
    re.IGNORECASE,
)
_SPELLED_NUMBERS = "zero one two three four five six seven eight nine ten eleven twelve"
_SPELLED_DIGITS = {word: str(count) for count, word in enumerate(_SPELLED_NUMBERS.split())}
_LITERAL_NAMES = ("none", "null", "nil", "true", "false", "self")
_CHANGE_VERB = f"(?:{'|'.join(CHANGE_STEMS)})"
_ACTION_VERB = (
    rf"(?:{_CHANGE_VERB}|remov|delet|renam|break|add|us(?:e|ing)\b|install|commit|push|creat|introduc|"
    r"refactor|reformat|mov(?:e|ing)\b|import|skip|disabl|hard-?cod|mock|bump|upgrad|downgrad|merg)"
)
_CLAUSE_START = r"(?:^|[,:;(–—-]\s*|\b(?:and|but|please|so|also|then|you)\s+)"
_PROHIBITION = compile_lazily(
    rf"{_CLAUSE_START}(?:do not|don'?t|never|avoid|refrain from)\s+(?:\w+\s+){{0,2}}?{_ACTION_VERB}"
    r"|\bleave\b[^.]{0,60}?\b(?:alone|untouched|unchanged|as (?:it|they|is|are))\b"
    rf"|\bwithout\s+{_CHANGE_VERB}"
    rf"|\b(?:must|may|should|shall) not be (?:\w+ )?{_CHANGE_VERB}"
    r"|\bis off[- ]limits\b"
)
_PROHIBITION_WORDS = ("not", "n't", "dont", "never", "avoid", "refrain", "leave", "without", "off")
_RESTRICTION = compile_lazily(
    rf"\bonly\b.{{0,100}}\b{_CHANGE_VERB}"
    rf"|{_CLAUSE_START}(?:keep|preserve|stick to|reuse|use only|only use|use the existing)\s"
    r"|\b(?:stays?|remains?) (?:where|as|untouched|unchanged|the same)\b"
)
_RESTRICTION_WORDS = ("only", "keep", "preserve", "stick to", "reuse", "existing", "stay", "remain")
_DEMAND = compile_lazily(
    r"\b(?:must|shall|at most|at least|no more than|always)\b"
    rf"|\b(?:should not|never)\s+(?:\w+\s+)?{_ACTION_VERB}"
)
_DEMAND_WORDS = (
    "must", "shall", "at most", "at least", "no more than", "always", "should not", "never",
)  # fmt: skip
_LIMITING_WORD = compile_lazily(
    r"\b(?:not|don'?t|never|avoid|leave|only|just|alone|untouched|unchanged|without|nothing|keep|preserve|"
    r"must|limits?|no (?:other|new|changes?)|read-?only|uniquement|pas|nur|kein\w*)\b"
)
_NO_OTHER_CHANGES = compile_lazily(
    rf"\bno other (?:file|code|change|part|module)|\bnothing else\b|\bread-?only\b"
    rf"|\bonly\b(?:[^.\n]|\.\w){{0,80}}\b{_CHANGE_VERB}|{_CHANGE_VERB}\w{{0,9}}[^.\n]{{0,20}}\bonly\b"
    rf"|(?:do not|don'?t|never) {_CHANGE_VERB}\w* (?:any|files?\b|code\b|anything|other)|autre"
    r" chose"
)


@lru_cache(256)
def prepare_text(text: str) -> PreparedText:
    """Normalise a text once, to look up facts in it."""
    text = text[:MAX_TEXT_CHARS]
    words = normalise_words(text)
    return PreparedText(text=text, words=words, stems=word_stems(words))


@lru_cache(256)
def _numbers_with_units(words: str) -> frozenset[NumberWithUnit]:
    return frozenset(_parse_numbers(words))


@lru_cache(256)
def _is_restrictive(text: str) -> bool:
    """Whether a text restricts what to do."""
    return _LIMITING_WORD.search(_fold_case(text)) is not None


@lru_cache(256)
def _forbids_other_changes(text: str) -> bool:
    """Whether a text forbids all other changes, as `Touch no other file` does."""
    return _NO_OTHER_CHANGES.search(_fold_case(text)) is not None


@lru_cache(256)
def parse_facts(text: str) -> tuple[TextFact, ...]:
    """Return the facts that a text states, in order, without repeats."""
    text = strip_client_markup(text[:MAX_TEXT_CHARS])
    facts: dict[tuple[FactKind, str], TextFact] = {}
    for fact in chain(
        chain.from_iterable(map(_parse_sentence_facts, split_sentences(text))),
        _facts_in_code_blocks(text),
    ):
        facts.setdefault((fact.kind, fact.text), fact)
        if len(facts) == MAX_FACTS:
            break
    return tuple(facts.values())


def _facts_in_code_blocks(text: str) -> Iterator[TextFact]:
    """Yield commands that check, in code blocks."""
    for fence in CODE_FENCE.finditer(text):
        for line in fence[1].splitlines()[:20]:
            if _is_check_command(line):
                yield TextFact(kind="command", text=line.strip(), sentence=line.strip())


def states_fact(text: PreparedText, fact: TextFact) -> bool:
    """Whether a text states the fact, in other words too where it is a restriction."""
    if normalise_words(fact.text) in text.words:
        return True
    if fact.kind == "path":
        return any(form in text.words for form in _path_forms(fact.text))
    if fact.kind == "symbol":
        return normalise_words(fact.text.rpartition(".")[2]) in text.words
    if fact.kind == "number":
        return all(
            _states_number(text, value) for value in _parse_numbers(normalise_words(fact.text))
        )
    if fact.kind == "command":
        return _share_present(word_stems(normalise_words(fact.text)), text.stems) >= 0.7
    return fact.kind in ("prohibition", "constraint") and _states_restriction(text, fact)


@lru_cache(256)
def find_targets(text: str) -> tuple[str, ...]:
    """Return files and code names that a text is about, without those to leave alone."""
    return tuple(
        dict.fromkeys(
            name for sentence in split_sentences(text) for name in find_sentence_targets(sentence)
        )
    )


def find_sentence_targets(sentence: str) -> Sequence[str]:
    """Return files and code names that a sentence is about, unless it is a prohibition."""
    targets = [
        name
        for kind, name in _names_in_sentence(sentence)
        if kind == "path" or (kind == "symbol" and not (name.isalpha() and name.islower()))
    ]
    return () if targets and _is_prohibition(_fold_case(sentence)) else targets


def _is_prohibition(folded: str) -> bool:
    return mentions_any(folded, _PROHIBITION_WORDS) and _PROHIBITION.search(folded) is not None


def _is_demand(folded: str) -> bool:
    return mentions_any(folded, _DEMAND_WORDS) and _DEMAND.search(folded) is not None


def is_same_path(first: str, second: str) -> bool:
    """Whether two spellings may mean one file: one of them ends in the other."""
    first, second = (
        part.replace("\\", "/").removeprefix("./").strip("/") for part in (first, second)
    )
    longer, shorter = (first, second) if len(first) >= len(second) else (second, first)
    return bool(shorter) and (longer == shorter or longer.endswith("/" + shorter))


def _fold_case(text: str) -> str:
    return text.casefold().replace("’", "'")


@lru_cache(1024)
def _parse_sentence_facts(sentence: str) -> tuple[TextFact, ...]:
    """Return the facts of a sentence: its restriction first, then what it names."""
    names = _names_in_sentence(sentence)
    folded_sentence = _fold_case(sentence)
    is_prohibition = _is_prohibition(folded_sentence)
    is_restriction = (
        not is_prohibition
        and mentions_any(folded_sentence, _RESTRICTION_WORDS)
        and bool(_RESTRICTION.search(folded_sentence))
    )
    facts = [TextFact(kind=kind, text=text, sentence=sentence) for kind, text in names]
    if not is_prohibition and not is_restriction and not _is_demand(folded_sentence):
        return tuple(facts)
    restriction = TextFact(
        kind="prohibition" if is_prohibition else "constraint",
        text=sentence,
        sentence=sentence,
        targets=tuple(text for kind, text in names if kind in ("path", "symbol")),
        always=is_prohibition or is_restriction,
    )
    return restriction, *facts


@lru_cache(2048)
def _names_in_sentence(sentence: str) -> tuple[tuple[FactKind, str], ...]:
    return tuple(_find_names(sentence))


def _find_names(sentence: str) -> Iterator[tuple[FactKind, str]]:
    remaining_text = _LINK.sub(" ", sentence) if "://" in sentence else sentence
    if "`" in remaining_text:
        yield from _names_in_spans(remaining_text)
        remaining_text = _CODE_SPAN.sub(" ` ", remaining_text)
    if '"' in remaining_text or "“" in remaining_text:
        yield from (
            ("quote", quote[1] or quote[2]) for quote in _QUOTED_TEXT.finditer(remaining_text)
        )
        remaining_text = _QUOTED_TEXT.sub(" ` ", remaining_text)
    if "/" in remaining_text or "." in remaining_text.rstrip("."):
        candidates = " ".join(
            [word for word in remaining_text.split() if "/" in word or "." in word]
        )
        for path in dict.fromkeys(_PATH.findall(candidates)):
            if ("/" in path or "." in path) and _looks_like_path(path):
                yield "path", path
                remaining_text = remaining_text.replace(path, " ")
    if "_" in remaining_text or "()" in remaining_text or _CAPITAL.search(remaining_text):
        candidates = " ".join([word for word in remaining_text.split() if _may_be_name(word)])
        yield from (("symbol", name[0]) for name in _NAME.finditer(candidates))
    if _DIGIT.search(remaining_text):
        yield from (
            ("number", number.strip())
            for number in _NUMBER.findall(remaining_text)
            if _is_telling_number(number)
        )


def _may_be_name(word: str) -> bool:
    if "_" in word or "()" in word:
        return True
    return not word.islower() and _CAPITAL.search(word) is not None


def _names_in_spans(text: str) -> Iterator[tuple[FactKind, str]]:
    for span in _CODE_SPAN.finditer(text):
        if kind := _span_kind(span[1]):
            yield kind, span[1].partition("(")[0] if kind == "symbol" else span[1].strip()


def _span_kind(text: str) -> FactKind | None:
    text = text.strip()
    if _is_check_command(text):
        return "command"
    if " " not in text and _looks_like_path(text):
        return "path"
    if _NUMBER.fullmatch(text):
        return "number"
    if _IDENTIFIER.fullmatch(text):
        return None if text.casefold() in _LITERAL_NAMES else "symbol"
    return "quote" if len(text) > 2 else None


def _is_check_command(line: str) -> bool:
    line = line.strip().removeprefix("$ ")
    return 3 < len(line) <= 200 and " " in line and bool(analyse_command(line).checks)


def _looks_like_path(text: str) -> bool:
    """Whether it has a file ending or folders; a fraction and `and/or` are not paths."""
    _, dot, ending = text.rpartition(".")
    if dot and ending in _FILE_ENDINGS:
        return len(text) > 3
    parts = [part for part in text.replace("\\", "/").split("/") if part]
    if not any(len(part) > 1 and part.lstrip(".")[:1].isalpha() for part in parts):
        return False
    return text.startswith(("./", "../", "~/", "/")) or len(parts) > 2 or text.endswith("/")


def _path_forms(path: str) -> Iterator[str]:
    """Yield spellings of a file: with its last folder, as a module, and its name if distinctive."""
    parts = [part for part in path.split("/") if part and part.strip(".")]
    if not parts:
        return
    name = parts[-1]
    stem = name.partition(".")[0] or name
    if len(parts) > 1:
        yield normalise_words("/".join(parts[-2:]))
        yield normalise_words("/".join([parts[-2], stem]))
    if stem not in ("__init__", "index", "main", "mod", "README", "test", "tests"):
        yield normalise_words(name)


def _is_telling_number(number: str) -> bool:
    """Whether a number has a unit, a decimal point, or at least two digits."""
    digits = sum(char.isdigit() for char in number)
    return digits > 1 or not number[0].isdigit() or not number[-1].isdigit()


def _parse_numbers(words: str) -> Iterator[NumberWithUnit]:
    """Yield numbers with their units, normalised: `5.00 EUR` and `5 €` are equal."""
    for word, digit in _SPELLED_DIGITS.items():
        if f" {word} " in words:
            words = words.replace(f" {word} ", f" {digit} ")
    # Digits and unit are one word in `30s`.
    words = re.sub(r"(?<= )(\d+(?:\.\d+)*)([a-zµ]+)(?= )", r"\1 \2", words)
    for sign, before, digits, after in _NUMBER_WITH_UNIT.findall(words.replace("- ", "-")):
        value = digits.rstrip("0").rstrip(".") if digits.count(".") == 1 else digits
        unit = _UNITS.get(before or after)
        yield sign + (value or "0"), frozenset((unit,) if unit else ())


def _states_number(text: PreparedText, value: NumberWithUnit) -> bool:
    """Whether a text has the number with this unit or with none.

    `7, 21 and 45 days` names its unit once.
    """
    (number, unit), stated_numbers = value, _numbers_with_units(text.words)
    return (
        value in stated_numbers
        or (number, frozenset()) in stated_numbers
        or (not unit and any(number == stated_number for stated_number, _ in stated_numbers))
    )


def _states_restriction(text: PreparedText, fact: TextFact) -> bool:
    if fact.always and _forbids_other_changes(text.text):
        return True
    if fact.targets:
        target_facts = (TextFact(kind="path", text=target, sentence="") for target in fact.targets)
        return _is_restrictive(text.text) and any(
            states_fact(text, target) for target in target_facts
        )
    return _share_present(word_stems(normalise_words(fact.sentence)), text.stems) >= 0.6


def _share_present(expected: Iterable[str], present: frozenset[str]) -> float:
    expected_words = frozenset(expected)
    return len(expected_words & present) / len(expected_words) if expected_words else 1.0
