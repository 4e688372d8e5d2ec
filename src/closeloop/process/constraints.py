"""What the user forbids or demands, as far as a machine can check it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cache, lru_cache
from typing import Literal

from ahocorasick_rs import AhoCorasick, Implementation

from closeloop.model.record import Record
from closeloop.process.needs import facts_of
from closeloop.process.telling import short
from closeloop.process.words import TEXT, mentions, sentences

Kind = Literal[
    "leave", "keep", "only", "no edits", "no new files", "command", "dependencies", "signature",
    "tabs", "spaces",
]  # fmt: skip

MOST = 50
"""Constraints of one lane that are kept; nobody states more, a pasted document might."""
TESTS = "the tests"
"""The object that means every file of tests."""
DOCUMENTS = ("**/*.md", "**/*.rst")

_PASTED = re.compile(
    r"^[ \t]*>.*$"
    r"|<(pr_description|issue|issue_description|problem_statement|files?|code|output|logs?|diff|documents?|system-reminder)>.*?(?:</\1>|\Z)",
    re.DOTALL | re.MULTILINE | re.IGNORECASE,
)
_SENTENCE = 800
"""So much of a sentence is read: a longer one was not written by a person."""
_LIST = re.compile(r":(?:[ \t]*\n[ \t]*[-*•][ \t]+[^\n]+)+")
_ITEM = re.compile(r"\n[ \t]*[-*•][ \t]+")

_NOT = (
    r"(?:(?:^|[,:(*–—-]\s*|\b(?:please|you|but|and|also|or|then|just|however|remember|important|we"
    r"(?=\s+(?:must|should)))\s+)"
    r"(?:do\s+not|don['’]?t|never|must\s+not|mustn['’]?t|should\s+(?:not|never)|shouldn['’]?t"
    r"|may\s+not|are\s+not\s+(?:allowed|permitted)\s+to|not\s+to)|\byou\s+can(?:not|['’]?t))\s+"
    r"(?:ever\s+|please\s+|try\s+to\s+|attempt\s+to\s+|directly\s+|actually\s+)?"
    r"(?:\w+(?:,\s+\w+)?,?\s+(?:or|and)\s+)?"
)
_NEGATIVE = (
    "do not", "don't", "don’t", "dont", "never", "must not", "mustn", "should not", "shouldn",
    "may not", "are not", "not to", "you can", "avoid", "without", "refrain",
)  # fmt: skip
"""Without one of these a sentence forbids nothing."""
_WITHOUT = r"\b(?:avoid|without|refrain\s+from)\s+(?:ever\s+)?"
_NEGATED = re.compile(rf"{_NOT}|{_WITHOUT}", re.IGNORECASE)
_CHANGE = (
    r"touch|modify|edit|chang|change|alter|overwrite|rewrite|refactor|update|rename|move|reformat"
    r"|write\s+to|mess\s+with|make\s+(?:any\s+|other\s+)*(?:changes?|edits?|modifications?)"
    r"(?:\s+(?:to|in))?"
)
_CHANGING = (
    r"touching|modifying|editing|changing|altering|overwriting|rewriting|refactoring|updating"
    r"|renaming|moving|making\s+(?:any\s+)?changes\s+(?:to|in)"
)
_VERBS = (
    "touch", "modif", "edit", "chang", "alter", "writ", "refactor", "updat", "renam", "mov", "mess",
    "format", "mak", "delet",
)  # fmt: skip
_FORBIDDEN = re.compile(
    rf"(?:{_NOT}(?:{_CHANGE})|{_WITHOUT}(?:{_CHANGING}))\b:?(?P<object>.*)",
    re.IGNORECASE | re.DOTALL,
)
_KEPT = re.compile(
    rf"(?:{_NOT}(?:delete|remove)|{_WITHOUT}(?:deleting|removing))\b(?P<object>.*)",
    re.IGNORECASE | re.DOTALL,
)
_ALONE = re.compile(
    r"\b(?:leave|keep)\s+(?P<object>.{1,200}?)\s+(?:alone|untouched|unchanged|unmodified|intact"
    r"|as\s+(?:it|they|is|are)\b)",
    re.IGNORECASE,
)
_STAYS = re.compile(
    r"\s(?:(?:is|are)\s+off[- ]limits|(?:must|should|has\s+to|have\s+to)\s+(?:stay|remain)\s+"
    r"(?:unchanged|untouched|unmodified|intact|as\s))",
    re.IGNORECASE,
)
_ONLY = re.compile(
    r"(?:^|[,:(*–—-]\s*|\b(?:please|you(?:\s+can|\s+may)?|should|must|and|but|so)\s+)"
    r"(?:only\s+(?:touch|modify|edit|change|alter|update|work\s+(?:in|on)|make\s+changes\s+(?:to|in))"
    r"|(?:touch|modify|edit|change|alter|update|make\s+changes\s+(?:to|in))\s+only)\b(?P<object>.*)"
    r"|\b(?:limit|restrict|confine|keep)\s+(?:all\s+|your\s+|the\s+|any\s+)*"
    r"(?:changes|edits|work|yourself)\s+(?:strictly\s+)?(?:to|within|in)\b(?P<within>.*)"
    rf"|(?:{_NOT}(?:{_CHANGE})|{_WITHOUT}(?:{_CHANGING}))\s+(?:any\s*thing|any\s+(?:other\s+)?files?|files|code)"
    r"\s+(?:else\s+)?(?:outside(?:\s+of)?|but|except(?:\s+for)?|other\s+than|beyond)\b(?P<except>.*)",
    re.IGNORECASE | re.DOTALL,
)
_NOTHING = re.compile(
    rf"(?:{_NOT}|\bwithout\s+)(?:(?:{_CHANGE}|{_CHANGING}|write|writing|creat(?:e|ing)\s+or\s+edit)\s+"
    r"(?:any\s+|or\s+\w+\s+|the\s+|your\s+)*(?:files?|code|codebase|anything|source\s+code)"
    r"|make\s+(?:any\s+)?(?:changes?|edits?)|(?:edit|code|implement)(?=\s+yet)|implement\s+(?:anything|it)|start\s+(?:coding|implementing))"
    r"(?P<rest>\s*(?:$|[.!;,)]|yet|for\s+now|until|before|at\s+all|just|only).*)",
    re.IGNORECASE | re.DOTALL,
)
_NO_FILES = re.compile(
    rf"{_NOT}(?:create|add|generate)\s+(?:any\s+|new\s+|extra\s+|additional\s+|a\s+)*"
    r"(?P<what>markdown|documentation|docs?|readme|summary)?\s*files?\b(?P<rest>.*)",
    re.IGNORECASE | re.DOTALL,
)
_NO_PACKAGES = re.compile(
    rf"(?:(?:{_NOT})(?:add|introduce|install|pull\s+in|bring\s+in)|{_WITHOUT}(?:adding|introducing"
    r"|installing)|(?P<no>(?:^|[,:(*-]\s*|\b(?:and|but|with|add)\s+)no))\s+"
    r"(?P<new>(?:any\s+|a\s+|new\s+|extra\s+|more\s+|further\s+|third[- ]party\s+|external\s+"
    r"|additional\s+|runtime\s+)*)(?:dependenc(?:y|ies)|packages?|librar(?:y|ies)|requirements)\b"
    r"(?P<rest>.*)",
    re.IGNORECASE | re.DOTALL,
)
_PROGRAMS = (
    "alembic|bun|cargo|conda|curl|docker|gh|git|gradle|helm|kubectl|make|mvn|npm|npx|pip|pip3|pnpm"
    "|poetry|prettier|psql|rm|rsync|scp|sed|ssh|sudo|terraform|uv|wget|yarn|black|pytest|tox|python"
)
_RUN = re.compile(
    rf"(?:{_NOT}(?:run|execute|use)|{_WITHOUT}(?:running|executing|using))\s+"
    rf"(?:the\s+|any\s+)*(?:`(?P<quoted>(?:{_PROGRAMS})(?: [^`\n]{{1,60}})?)`"
    rf"|(?P<bare>(?:{_PROGRAMS})(?:\s+[a-z][a-z-]*)?)(?=\s*(?:$|[.,;:!?)]|here|at\s+all|unless)))"
    r"(?P<rest>.*)",
    re.IGNORECASE | re.DOTALL,
)
_GIT = re.compile(
    rf"{_NOT}(?P<verb>git\s+commit|git\s+push|commit|force[- ]?push|push|rebase)"
    r"(?P<rest>\s*(?:$|[.,;:!?()]|(?:any\w*|your|the|my|it|them|this|these|changes|code|commits?|yet"
    r"|until|unless|without|or|and|directly|by|on\s+your"
    r"|to\s+(?:the\s+|a\s+)?`?(?:main|master|origin|remote|github|git|dev\w*|prod\w*|release\w*|repo\w*"
    r"|branch\w*))\b).*)",
    re.IGNORECASE | re.DOTALL,
)
_TOOLS = "bun|npm|pnpm|yarn|pip|uv|poetry|pipenv|conda"
_RATHER = re.compile(
    rf"\buse\s+`?(?P<good>{_TOOLS})`?,?\s+(?:and\s+)?(?:not|never|instead\s+of|rather\s+than)\s+"
    rf"`?(?P<bad>{_TOOLS})\b",
    re.IGNORECASE,
)
_SIGNATURE = re.compile(
    rf"(?:(?:{_NOT})(?:{_CHANGE}|break)|{_WITHOUT}(?:{_CHANGING}|breaking)|\b(?:keep|preserve))\s+"
    r"(?:`(?P<owner>\w+)(?:\(\))?`['’]s\s+|the\s+|any\s+|its\s+|their\s+|existing\s+|public\s+|function\s+|method\s+)*"
    r"signatures?\b(?:\s+of\s+(?:the\s+)?`?(?P<name>\w+)(?:\(\))?`?)?",
    re.IGNORECASE,
)
_INDENT = re.compile(
    r"\b(?:use|indent\s+with)\s+(?P<good>tabs|spaces)(?=\s*(?:$|[.,;!)]|for\s+indent|instead|rather"
    r"|not\b|and\s+not))|\b(?P<first>tabs|spaces),?\s+not\s+(?:tabs|spaces)\b",
    re.IGNORECASE,
)
_BUT = re.compile(
    r"\b(?:unless|except|if|when|where|while|but|because|since|so that|as they|as it|until|before"
    r"|instead|rather|yet|for now|only|just|without)\b|[;!?]|\.(?=\s|$)| [–—-]+ ",
    re.IGNORECASE,
)
_ASKED = re.compile(
    r"\A\W*(?:unless|except|if|when|until|before|without)\b.{0,30}?\b(?:ask|asked|asking|told|tell|say"
    r"|said|request|requested|approv\w*|permission|confirm\w*|instructed)\b",
    re.IGNORECASE | re.DOTALL,
)
_CONDITION = re.compile(r"\A\W*(?:unless|except|if|when|where|while|without)\b", re.IGNORECASE)
_FOLDER = re.compile(r"`?([\w.@-]+(?:/[\w.@-]+)*)/?`?\s+(?:folder|directory|dir)\b")
_SLASHED = re.compile(
    r"(?:\A\W*(?:the\s+)?|,\s*|\b(?:in|inside|within|of|outside|under|below)\s+(?:the\s+)?)"
    r"((?:[\w.@*-]+/)+[\w.@*-]*)"
)
_FILLER = re.compile(
    r"\b(?:the|this|that|these|any|any\s+of|all|my|our|your|existing|current|generated|or|and|files?"
    r"|folders?|director(?:y|ies)|modules?|packages?|scripts?|code|anything|contents?|in|under|inside"
    r"|within|of|at|tests?|cases?|config\w*|source|like|such\s+as|e\.g\.)(?![\w/.])",
    re.IGNORECASE,
)
_KNOWN = re.compile(
    r"(?<![\w./-])(?:Makefile|Dockerfile|Gemfile|Jenkinsfile|\.env|\.github|\.gitignore)(?![\w/-])"
)
_WANTS_TESTS = re.compile(
    r"(?:^|[.!,;*-]\s*|\b(?:and|then|please|also|to)\s+)(?:add|write|extend|update|fix|include|create)\s+"
    r"(?:\w+\s+){0,4}?tests?\b",
    re.IGNORECASE | re.MULTILINE,
)
_TEST_WORDS = re.compile(
    r"\A\W*(?:the\s+|any\s+|of\s+|existing\s+|unit\s+|your\s+|our\s+|all\s+|other\s+|provided\s+)*"
    r"tests?\b(?!/|\s+(?:data|command|runner|script|plan|logic))",
    re.IGNORECASE,
)


class Constraint(Record):
    """Something stated that an action can break."""

    kind: Kind
    words: str
    """As it was said, shortened."""
    objects: tuple[str, ...] = ()
    """Globs, a command's words, or a symbol's name; none means any."""
    passing: bool = False
    """It holds only until the user speaks again: plan first, do not edit yet."""
    number: int = 0
    """The event that states it."""
    until: int | None = None
    """The event from which it holds no more, where one takes it back."""


@lru_cache(maxsize=512)
def stated(text: str) -> tuple[Constraint, ...]:
    """Everything that a text forbids or demands, in its order."""
    text = text[:TEXT]
    if "<" in text or ">" in text:
        text = _PASTED.sub("\n", text)
    text = _LIST.sub(lambda items: _ITEM.sub(", ", items[0]), text)
    made: dict[tuple[Kind, tuple[str, ...]], Constraint] = {}
    for sentence in sentences(text):
        if _telling().find_matches_as_indexes(_plain(sentence)):
            for one in _said(sentence[:_SENTENCE]):
                made.setdefault((one.kind, one.objects), one)
    if any(TESTS in objects for _, objects in made) and any(
        _WANTS_TESTS.search(line) for line in sentences(text) if "test" in line.lower()
    ):
        # Who is to write tests may well have to touch those that are there.
        made = {key: one for key, one in made.items() if TESTS not in key[1]}
    return tuple(made.values())[:MOST]


def named_paths(text: str) -> tuple[str, ...]:
    """Files and folders that a text names, as globs."""
    names = [fact.text for fact in facts_of(text) if fact.kind == "path" or _is_glob(fact.text)]
    names += _SLASHED.findall(text) + _FOLDER.findall(text) + _KNOWN.findall(text)
    tidy = (name.rstrip(".").removeprefix("./").rstrip("/") for name in names)
    return tuple(dict.fromkeys(name for name in tidy if name.strip("./*")))


def _is_glob(text: str) -> bool:
    return "*" in text and " " not in text and "(" not in text


def _plain(text: str) -> str:
    return " ".join(text.lower().split())


def _said(sentence: str) -> Iterable[Constraint]:
    plain = _plain(sentence)
    forbids = mentions(plain, _NEGATIVE) and _NEGATED.search(sentence) is not None
    for negative, hints, make in _MAKERS:
        if (forbids or not negative) and mentions(plain, hints):
            for kind, objects, passing in make(sentence):
                words = short(" ".join(sentence.split()))
                yield Constraint(kind=kind, words=words, objects=objects, passing=passing)


Made = Iterable[tuple[Kind, tuple[str, ...], bool]]


def _clause(rest: str) -> tuple[str, str]:
    """What the verb governs, and the condition behind it."""
    cut = _BUT.search(rest)
    return (rest[: cut.start()], rest[cut.start() :]) if cut else (rest, "")


def _holds(condition: str) -> bool:
    """A condition other than being asked cannot be checked."""
    return _CONDITION.match(condition) is None or _ASKED.match(condition) is not None


def _no_edits(sentence: str) -> Made:
    found = _NOTHING.search(sentence)
    if found and not named_paths(found["rest"]) and _holds(found["rest"]):
        yield "no edits", (), True


@lru_cache(maxsize=16)
def _bounds(sentence: str) -> re.Match[str] | None:
    return _ONLY.search(sentence)


def _only(sentence: str) -> Made:
    found = _bounds(sentence)
    if found:
        told = found["object"] or found["within"] or found["except"] or ""
        clause, condition = _clause(told)
        paths = named_paths(clause)
        # "Only change X if …" is a condition on X, not a bound on the rest.
        if paths and not _CONDITION.match(condition):
            yield "only", paths, False


def _paths(sentence: str) -> Made:
    if _bounds(sentence):
        return
    for pattern, kind in ((_FORBIDDEN, "leave"), (_KEPT, "keep")):
        found = pattern.search(sentence)
        if found and not _SIGNATURE.search(sentence):
            yield from _objects(found["object"], "leave" if kind == "leave" else "keep")


def _alone(sentence: str) -> Made:
    if _bounds(sentence):
        return
    if alone := _ALONE.search(sentence):
        yield from _objects(alone["object"], "leave")
    elif stays := _STAYS.search(sentence):
        subject = re.split("[,:]", sentence[: stays.start()])[-1]
        yield from _objects(subject[-200:], "leave")


def _objects(told: str, kind: Kind) -> Made:
    clause, condition = _clause(told)
    if not _holds(condition):
        return
    paths = named_paths(clause)
    if _TEST_WORDS.match(clause):
        yield kind, (TESTS,), False
    # "The behaviour of a.py" is about something in the file, not about the file.
    before = clause[: clause.find(paths[0])] if paths else ""
    if paths and not _FILLER.sub("", before).strip("`'\"*_:,( "):
        yield kind, paths, False


def _files(sentence: str) -> Made:
    found = _NO_FILES.search(sentence)
    if found and _holds(_clause(found["rest"])[1]) and not _clause(found["rest"])[0].strip(" .!"):
        yield "no new files", DOCUMENTS if found["what"] else (), False


def _packages(sentence: str) -> Made:
    found = _NO_PACKAGES.search(sentence)
    if found and _holds(_clause(found["rest"])[1]) and (found["new"] or not found["no"]):
        yield "dependencies", (), False


def _commands(sentence: str) -> Made:
    ran = _RUN.search(sentence)
    if ran and _holds(ran["rest"].strip()):
        yield "command", tuple((ran["quoted"] or ran["bare"]).lower().split()), False
    git = _GIT.search(sentence)
    if git and _holds(_clause(git["rest"])[1]):
        forced = "force" in git["verb"].lower()
        verb = "push" if forced else git["verb"].lower().split()[-1]
        branch = re.match(
            r"\s+(?:directly\s+|anything\s+)?to\s+(?:the\s+)?`?([\w./-]+)", git["rest"]
        )
        more = ("--force",) if forced else ()
        if branch and branch[1] not in ("remote", "origin", "github", "any", "the"):
            more = (branch[1].rstrip("."),)
        yield "command", ("git", verb, *more), False


def _rather(sentence: str) -> Made:
    rather = _RATHER.search(sentence)
    if rather and rather["good"].lower() != rather["bad"].lower():
        yield "command", (rather["bad"].lower(),), False


def _style(sentence: str) -> Made:
    signature = _SIGNATURE.search(sentence)
    if signature:
        name = signature["owner"] or signature["name"]
        yield "signature", (name,) if name and name not in ("the", "each", "any") else (), False
    indent = _INDENT.search(sentence)
    if indent:
        good = (indent["good"] or indent["first"]).lower()
        yield ("tabs" if good == "tabs" else "spaces"), (), False


_MAKERS: tuple[tuple[bool, tuple[str, ...], Callable[[str], Made]], ...] = (
    (True, ("file", "code", "anything", "change", "edit", "implement"), _no_edits),
    (False, ("only", "limit", "restrict", "confine", "keep"), _only),
    (True, ("outside", "but", "except", "other than", "beyond"), _only),
    (True, _VERBS, _paths),
    (False, ("leave", "keep", "off", "stay", "remain"), _alone),
    (True, ("file",), _files),
    (False, ("dependenc", "package", "librar", "requirements"), _packages),
    (True, ("run", "execut", "use", "using", "commit", "push", "rebase"), _commands),
    (False, tuple(_TOOLS.split("|")), _rather),
    (False, ("signature", "tabs", "spaces"), _style),
)
"""Whether it takes a prohibition, one of the words that it takes, and what then reads it."""


@cache
def _telling() -> AhoCorasick:
    words = {word for negative, hints, _ in _MAKERS if not negative for word in hints}
    return AhoCorasick([*_NEGATIVE, *sorted(words)], implementation=Implementation.DFA)
