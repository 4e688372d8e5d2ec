"""Facts in a text, and whether another text holds them: what must survive from one to the next.

Paths, names, numbers and quotes are found in any language; restrictions only in English.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain
from typing import Literal

from closeloop.model.record import Record
from closeloop.process.commands import doing_of
from closeloop.process.words import CHANGES, FENCE, TEXT, mentions, sentences, stems, words_of

Kind = Literal["prohibition", "constraint", "path", "symbol", "number", "quote", "command"]
Units = tuple[str, frozenset[str]]

MOST = 60
"""Facts of one text that are told apart."""


class Fact(Record):
    """One thing that a text states."""

    kind: Kind
    text: str
    """As it is written; of a restriction the whole sentence."""
    sentence: str
    targets: tuple[str, ...] = ()
    """Paths and names that a restriction is about."""
    always: bool = False
    """A restriction on the work itself, whatever part of it is done: `Never touch db/`."""


class Said(Record):
    """A text, prepared to be asked for facts."""

    text: str
    words: str
    """Its words alone, with a space on both sides."""
    stems: frozenset[str]


_SPAN = re.compile(r"`([^`\n]{1,200})`")
_QUOTED = re.compile(r'"([^"\n]{3,160})"|“([^”\n]{3,160})”')
_LINK = re.compile(r"\b\w+://\S+")
_PATH = re.compile(r"(?<![\w/.:@+-])(?:~?/|\.{1,2}/)?(?:[\w.@+-]+/)*[\w.@+-]*[\w+]/?(?![\w/])")
_OF_FILES = """
py pyi ipynb js jsx ts tsx mjs cjs vue go rs java kt kts rb php cs c h cc cpp hpp swift scala sh ps1
sql htm html css scss less json json5 jsonl yml yaml toml ini cfg conf env lock md rst txt csv tsv
xml proto tf gradle patch diff log dat bin feature
"""
_ENDINGS = frozenset(_OF_FILES.split())
_NAME = re.compile(
    r"(?<![\w/.-])(?:[A-Za-z_]\w*\.)*(?:[A-Za-z][A-Za-z0-9]*_\w+|_+[A-Za-z]\w+|[A-Z]?[a-z][a-z0-9]*[A-Z]\w*"
    r"|[A-Za-z_]\w*(?=\(\)))(?![\w/]|\.\w)"
)
_CAPITAL, _DIGIT = re.compile(r"[a-z0-9][A-Z]"), re.compile(r"\d")
_IDENTIFIER = re.compile(r"(?:[A-Za-z_]\w*[.:]+)*([A-Za-z_]\w*)(?:\(.*\))?")
_VALUE = re.compile(r"(-?)(?:([$€£]) ?)?(\d+(?:\.\d+)*)(?: ([%$€£]|[a-zµ]+))?")
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
_NUMBER = re.compile(
    r"[-−$€£\d](?<![\w.#/-].)(?:(?<=[-−])[$€£]?\d+|(?<=[$€£])\d+|(?<=\d)\d*)"
    r"(?:[.,]\d+)*(?:\s?(?:[%€$£]|(?:"
    + "|".join(sorted((word for word in _UNITS if word.isalpha()), key=len, reverse=True))
    + r")\b))?(?![\w/]*[/-]\d)",
    re.IGNORECASE,
)
_SPELLED = "zero one two three four five six seven eight nine ten eleven twelve"
_COUNTS = {word: str(count) for count, word in enumerate(_SPELLED.split())}
_CONSTANTS = ("none", "null", "nil", "true", "false", "self")
_CHANGE = f"(?:{'|'.join(CHANGES)})"
_ACT = (
    rf"(?:{_CHANGE}|remov|delet|renam|break|add|us(?:e|ing)\b|install|commit|push|creat|introduc|"
    r"refactor|reformat|mov(?:e|ing)\b|import|skip|disabl|hard-?cod|mock|bump|upgrad|downgrad|merg)"
)
_START = r"(?:^|[,:;(–—-]\s*|\b(?:and|but|please|so|also|then|you)\s+)"
_FORBIDS = re.compile(
    rf"{_START}(?:do not|don'?t|never|avoid|refrain from)\s+(?:\w+\s+){{0,2}}?{_ACT}"
    r"|\bleave\b[^.]{0,60}?\b(?:alone|untouched|unchanged|as (?:it|they|is|are))\b"
    rf"|\bwithout\s+{_CHANGE}"
    rf"|\b(?:must|may|should|shall) not be (?:\w+ )?{_CHANGE}"
    r"|\bis off[- ]limits\b"
)
_FORBIDDING = ("not", "n't", "dont", "never", "avoid", "refrain", "leave", "without", "off")
_RESTRICTS = re.compile(
    rf"\bonly\b.{{0,100}}\b{_CHANGE}"
    rf"|{_START}(?:keep|preserve|stick to|reuse|use only|only use|use the existing)\s"
    r"|\b(?:stays?|remains?) (?:where|as|untouched|unchanged|the same)\b"
)
_RESTRICTING = ("only", "keep", "preserve", "stick to", "reuse", "existing", "stay", "remain")
_DEMANDS = re.compile(
    r"\b(?:must|shall|at most|at least|no more than|always)\b"
    rf"|\b(?:should not|never)\s+(?:\w+\s+)?{_ACT}"
)
_DEMANDING = (
    "must", "shall", "at most", "at least", "no more than", "always", "should not", "never",
)  # fmt: skip
_NEGATIVE = re.compile(
    r"\b(?:not|don'?t|never|avoid|leave|only|just|alone|untouched|unchanged|without|nothing|keep|preserve|"
    r"must|limits?|no (?:other|new|changes?)|read-?only|uniquement|pas|nur|kein\w*)\b"
)
_CLOSED = re.compile(
    rf"\bno other (?:file|code|change|part|module)|\bnothing else\b|\bread-?only\b"
    rf"|\bonly\b(?:[^.\n]|\.\w){{0,80}}\b{_CHANGE}|{_CHANGE}\w{{0,9}}[^.\n]{{0,20}}\bonly\b"
    rf"|(?:do not|don'?t|never) {_CHANGE}\w* (?:any|files?\b|code\b|anything|other)|autre chose"
)


@lru_cache(256)
def said(text: str) -> Said:
    """A text, prepared to be asked for facts."""
    text = text[:TEXT]
    words = words_of(text)
    return Said(text=text, words=words, stems=stems(words))


@lru_cache(256)
def _numbers(words: str) -> frozenset[Units]:
    return frozenset(_values(words))


@lru_cache(256)
def _restricts(text: str) -> bool:
    """It says what not to do, or to do only some of it."""
    return _NEGATIVE.search(_plain(text)) is not None


@lru_cache(256)
def _is_closed(text: str) -> bool:
    """It forbids all other changes: `Touch no other file`."""
    return _CLOSED.search(_plain(text)) is not None


@lru_cache(256)
def facts_of(text: str) -> tuple[Fact, ...]:
    """What a text states that a reader of it needs, in its order, each once."""
    text = text[:TEXT]
    facts: dict[tuple[Kind, str], Fact] = {}
    for fact in chain(chain.from_iterable(map(_stated, sentences(text))), _fenced(text)):
        facts.setdefault((fact.kind, fact.text), fact)
        if len(facts) == MOST:
            break
    return tuple(facts.values())


def _fenced(text: str) -> Iterator[Fact]:
    """Checks in blocks of code."""
    for fence in FENCE.finditer(text):
        for line in fence[1].splitlines()[:20]:
            if _checks(line):
                yield Fact(kind="command", text=line.strip(), sentence=line.strip())


def holds(text: Said, fact: Fact) -> bool:
    """Whether a text states the fact, in other words too where it is a restriction."""
    if words_of(fact.text) in text.words:
        return True
    if fact.kind == "path":
        return any(form in text.words for form in _forms(fact.text))
    if fact.kind == "symbol":
        return words_of(fact.text.rpartition(".")[2]) in text.words
    if fact.kind == "number":
        return all(_holds_value(text, value) for value in _values(words_of(fact.text)))
    if fact.kind == "command":
        return _share(stems(words_of(fact.text)), text.stems) >= 0.7
    return fact.kind in ("prohibition", "constraint") and _holds_restriction(text, fact)


@lru_cache(256)
def targets_of(text: str) -> tuple[str, ...]:
    """Files and code that a text is about; what it says to leave alone is not among them."""
    return tuple(
        dict.fromkeys(name for sentence in sentences(text) for name in targets_in(sentence))
    )


def targets_in(sentence: str) -> Sequence[str]:
    """The same, of one sentence."""
    targets = [
        name
        for kind, name in _named(sentence)
        if kind == "path" or (kind == "symbol" and not (name.isalpha() and name.islower()))
    ]
    return () if targets and _forbids(_plain(sentence)) else targets


def _forbids(plain: str) -> bool:
    return mentions(plain, _FORBIDDING) and _FORBIDS.search(plain) is not None


def _demands(plain: str) -> bool:
    return mentions(plain, _DEMANDING) and _DEMANDS.search(plain) is not None


def same_path(one: str, other: str) -> bool:
    """Whether two spellings may mean one file: one of them ends in the other."""
    one, other = (part.replace("\\", "/").removeprefix("./").strip("/") for part in (one, other))
    long, short = (one, other) if len(one) >= len(other) else (other, one)
    return bool(short) and (long == short or long.endswith("/" + short))


def _plain(text: str) -> str:
    return text.casefold().replace("’", "'")


@lru_cache(1024)
def _stated(sentence: str) -> tuple[Fact, ...]:
    """Facts of one sentence: its restriction first, then what it names."""
    named = _named(sentence)
    plain = _plain(sentence)
    forbids = _forbids(plain)
    restricts = not forbids and mentions(plain, _RESTRICTING) and bool(_RESTRICTS.search(plain))
    facts = [Fact(kind=kind, text=text, sentence=sentence) for kind, text in named]
    if not forbids and not restricts and not _demands(plain):
        return tuple(facts)
    restriction = Fact(
        kind="prohibition" if forbids else "constraint",
        text=sentence,
        sentence=sentence,
        targets=tuple(text for kind, text in named if kind in ("path", "symbol")),
        always=forbids or restricts,
    )
    return restriction, *facts


@lru_cache(2048)
def _named(sentence: str) -> tuple[tuple[Kind, str], ...]:
    return tuple(_names_in(sentence))


def _names_in(sentence: str) -> Iterator[tuple[Kind, str]]:
    rest = _LINK.sub(" ", sentence) if "://" in sentence else sentence
    if "`" in rest:
        yield from _spans(rest)
        rest = _SPAN.sub(" ` ", rest)
    if '"' in rest or "“" in rest:
        yield from (("quote", quote[1] or quote[2]) for quote in _QUOTED.finditer(rest))
        rest = _QUOTED.sub(" ` ", rest)
    if "/" in rest or "." in rest.rstrip("."):
        words = " ".join([word for word in rest.split() if "/" in word or "." in word])
        for path in dict.fromkeys(_PATH.findall(words)):
            if ("/" in path or "." in path) and _is_path(path):
                yield "path", path
                rest = rest.replace(path, " ")
    if "_" in rest or "()" in rest or _CAPITAL.search(rest):
        words = " ".join([word for word in rest.split() if _may_name(word)])
        yield from (("symbol", name[0]) for name in _NAME.finditer(words))
    if _DIGIT.search(rest):
        yield from (("number", one.strip()) for one in _NUMBER.findall(rest) if _tells(one))


def _may_name(word: str) -> bool:
    if "_" in word or "()" in word:
        return True
    return not word.islower() and _CAPITAL.search(word) is not None


def _spans(text: str) -> Iterator[tuple[Kind, str]]:
    for span in _SPAN.finditer(text):
        if kind := _kind_of_span(span[1]):
            yield kind, span[1].partition("(")[0] if kind == "symbol" else span[1].strip()


def _kind_of_span(text: str) -> Kind | None:
    text = text.strip()
    if _checks(text):
        return "command"
    if " " not in text and _is_path(text):
        return "path"
    if _NUMBER.fullmatch(text):
        return "number"
    if _IDENTIFIER.fullmatch(text):
        return None if text.casefold() in _CONSTANTS else "symbol"
    return "quote" if len(text) > 2 else None


def _checks(line: str) -> bool:
    line = line.strip().removeprefix("$ ")
    return 3 < len(line) <= 200 and " " in line and bool(doing_of(line).checks)


def _is_path(text: str) -> bool:
    """With an ending of files, or with folders that are no fraction and no `and/or`."""
    _, dot, ending = text.rpartition(".")
    if dot and ending in _ENDINGS:
        return len(text) > 3
    parts = [part for part in text.replace("\\", "/").split("/") if part]
    if not any(len(part) > 1 and part.lstrip(".")[:1].isalpha() for part in parts):
        return False
    return text.startswith(("./", "../", "~/", "/")) or len(parts) > 2 or text.endswith("/")


def _forms(path: str) -> Iterator[str]:
    """How a file may be called: from its last folder on, as a module, by its name where telling."""
    parts = [part for part in path.split("/") if part and part.strip(".")]
    if not parts:
        return
    name = parts[-1]
    stem = name.partition(".")[0] or name
    if len(parts) > 1:
        yield words_of("/".join(parts[-2:]))
        yield words_of("/".join([parts[-2], stem]))
    if stem not in ("__init__", "index", "main", "mod", "README", "test", "tests"):
        yield words_of(name)


def _tells(number: str) -> bool:
    """A number worth passing on: with a unit, a decimal point, or of two digits and more."""
    digits = sum(sign.isdigit() for sign in number)
    return digits > 1 or not number[0].isdigit() or not number[-1].isdigit()


def _values(words: str) -> Iterator[Units]:
    """Numbers with the unit that follows, spelled in one way: `5.00 EUR` and `5 €` are one."""
    for word, digit in _COUNTS.items():
        if f" {word} " in words:
            words = words.replace(f" {word} ", f" {digit} ")
    # Digits and unit are one word in `30s`.
    words = re.sub(r"(?<= )(\d+(?:\.\d+)*)([a-zµ]+)(?= )", r"\1 \2", words)
    for sign, before, digits, after in _VALUE.findall(words.replace("- ", "-")):
        value = digits.rstrip("0").rstrip(".") if digits.count(".") == 1 else digits
        unit = _UNITS.get(before or after)
        yield sign + (value or "0"), frozenset((unit,) if unit else ())


def _holds_value(text: Said, value: Units) -> bool:
    """The number with this unit, or without any: `7, 21 and 45 days` names its unit once."""
    (number, unit), there = value, _numbers(text.words)
    return (
        value in there
        or (number, frozenset()) in there
        or (not unit and any(number == other for other, _ in there))
    )


def _holds_restriction(text: Said, fact: Fact) -> bool:
    if fact.always and _is_closed(text.text):
        return True
    if fact.targets:
        named = (Fact(kind="path", text=name, sentence="") for name in fact.targets)
        return _restricts(text.text) and any(holds(text, name) for name in named)
    return _share(stems(words_of(fact.sentence)), text.stems) >= 0.6


def _share(wanted: Iterable[str], there: frozenset[str]) -> float:
    words = frozenset(wanted)
    return len(words & there) / len(words) if words else 1.0
