"""What the user forbids or demands, as far as a machine can check it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, lru_cache
from itertools import chain
from typing import Literal

from ahocorasick_rs import AhoCorasick

from closeloop.process.check_results import last_line
from closeloop.process.edit_contents import (
    StandingChanges,
    deletes_path,
    diff_edit,
    is_scratch_path,
    is_source_path,
    is_test_source,
    list_code_changes,
)
from closeloop.process.rule_helpers import cache_on_reading, truncate_line
from closeloop.process.text_facts import (
    MAX_TEXT_CHARS,
    build_automaton,
    find_matching_lines,
    mentions_any,
    parse_facts,
    split_paragraph,
    split_paragraphs,
    split_sentences,
)
from closeloop.process.verification import is_run
from closeloop.records.change import LaneReading, TraceStep
from closeloop.records.record import Record
from closeloop.records.trace import Command, Edit, Message
from closeloop.text.client_markup import strip_client_markup
from closeloop.text.wording import compile_lazily, matches_globs

# Patterns of how people forbid and demand things.


QUOTED_LINE = compile_lazily(r"\n[ \t]*>[^\n]*")
PASTED_BLOCK = compile_lazily(
    r"<(pr_description|issue|issue_description|problem_statement|files?|code|output|logs?|diff|documents?)>"
    r"(?:[^<]*(?:<(?!/\1>)[^<]*)*</\1>|[ \t]*\n[^<]*(?:<(?!/\1>)[^<]*)*\Z)",
    re.IGNORECASE,
)
"""What stands between two tags; or after one on a line of its own, where it is never closed."""
BULLET_LIST = compile_lazily(r":(?:[ \t]*\n[ \t]*[-*•][ \t]+[^\n]+)+")
BULLET_ITEM = compile_lazily(r"\n[ \t]*[-*•][ \t]+")

NEGATION = (
    r"(?:(?:^|[,:(*–—-]\s*|\b(?:please|you|but|and|also|or|then|just|however|remember|important|we"
    r"(?=\s+(?:must|should)))\s+)"
    r"(?:do\s+not|don['’]?t|never|must\s+not|mustn['’]?t|should\s+(?:not|never)|shouldn['’]?t"
    r"|may\s+not|are\s+not\s+(?:allowed|permitted)\s+to|not\s+to)|\byou\s+can(?:not|['’]?t))\s+"
    r"(?:ever\s+|please\s+|try\s+to\s+|attempt\s+to\s+|directly\s+|actually\s+)?"
    r"(?:\w+(?:,\s+\w+)?,?\s+(?:or|and)\s+)?"
)
NEGATIVE_WORDS = (
    "do not", "don't", "don’t", "dont", "never", "must not", "mustn", "should not", "shouldn",
    "may not", "are not", "not to", "cannot", "can't", "can’t", "cant", "avoid", "without",
    "refrain",
)  # fmt: skip
"""Without one of these a sentence forbids nothing."""
WITHOUT = r"\b(?:avoid|without|refrain\s+from)\s+(?:ever\s+)?"
NEGATED = compile_lazily(rf"{NEGATION}|{WITHOUT}", re.IGNORECASE)
CHANGE_VERB = (
    r"touch|modify|edit|chang|change|alter|overwrite|rewrite|refactor|update|rename|move|reformat"
    r"|write\s+to|mess\s+with|make\s+(?:any\s+|other\s+)*(?:changes?|edits?|modifications?)"
    r"(?:\s+(?:to|in))?"
)
CHANGING_VERB = (
    r"touching|modifying|editing|changing|altering|overwriting|rewriting|refactoring|updating"
    r"|renaming|moving|making\s+(?:any\s+)?changes\s+(?:to|in)"
)
CHANGE_STEMS = (
    "touch", "modif", "edit", "chang", "alter", "writ", "refactor", "updat", "renam", "mov", "mess",
    "format", "mak", "delet",
)  # fmt: skip
CHANGE_FORBIDDEN = compile_lazily(
    rf"(?:{NEGATION}(?:{CHANGE_VERB})|{WITHOUT}(?:{CHANGING_VERB}))\b:?(?P<object>.*)",
    re.IGNORECASE | re.DOTALL,
)
DELETE_FORBIDDEN = compile_lazily(
    rf"(?:{NEGATION}(?:delete|remove)|{WITHOUT}(?:deleting|removing))\b(?P<object>.*)",
    re.IGNORECASE | re.DOTALL,
)
LEAVE_ALONE = compile_lazily(
    r"\b(?:leave|keep)\s+(?P<object>.{1,200}?)\s+(?:alone|untouched|unchanged|unmodified|intact"
    r"|as\s+(?:it|they|is|are)\b)",
    re.IGNORECASE,
)
STAYS_UNCHANGED = compile_lazily(
    r"\s(?:(?:is|are)\s+off[- ]limits|(?:must|should|has\s+to|have\s+to)\s+(?:stay|remain)\s+"
    r"(?:unchanged|untouched|unmodified|intact|as\s))",
    re.IGNORECASE,
)
ONLY_CHANGE = compile_lazily(
    r"(?:^|[,:(*–—-]\s*|\b(?:please|you(?:\s+can|\s+may)?|should|must|and|but|so)\s+)"
    r"(?:only\s+(?:touch|modify|edit|change|alter|update|work\s+(?:in|on)|make\s+changes\s+(?:to|in))"
    r"|(?:touch|modify|edit|change|alter|update|make\s+changes\s+(?:to|in))\s+only)\b(?P<object>.*)"
    r"|\b(?:limit|restrict|confine|keep)\s+(?:all\s+|your\s+|the\s+|any\s+)*"
    r"(?:changes|edits|work|yourself)\s+(?:strictly\s+)?(?:to|within|in)\b(?P<within>.*)"
    rf"|(?:{NEGATION}(?:{CHANGE_VERB})|{WITHOUT}(?:{CHANGING_VERB}))\s+(?:any\s*thing|any\s+(?:other\s+)?files?|files|code)"
    r"\s+(?:else\s+)?(?:outside(?:\s+of)?|but|except(?:\s+for)?|other\s+than|beyond)\b(?P<except>.*)",
    re.IGNORECASE | re.DOTALL,
)
MAY_BOUND = compile_lazily(
    r"only\s+(?:touch|modify|edit|change|alter|update|work|make)"
    r"|(?:touch|modify|edit|change|alter|update|to|in)\s+only"
    r"|(?:limit|restrict|confine|keep)\s+(?:all\s+|your\s+|the\s+|any\s+)*"
    r"(?:changes|edits|work|yourself)",
    re.IGNORECASE,
)
"""Without this or a prohibition with one of those, the pattern above finds nothing."""
EXCEPTION_WORDS = ("outside", "but", "except", "other", "beyond")
NO_EDITS = compile_lazily(
    rf"(?:{NEGATION}|\bwithout\s+)(?:(?:{CHANGE_VERB}|{CHANGING_VERB}|write|writing|creat(?:e|ing)\s+or\s+edit)\s+"
    r"(?:any\s+|or\s+\w+\s+|the\s+|your\s+)*(?:files?|code|codebase|anything|source\s+code)"
    r"|make\s+(?:any\s+)?(?:changes?|edits?)|(?:edit|code|implement)(?=\s+yet)|implement\s+(?:anything|it)|start\s+(?:coding|implementing))"
    r"(?P<rest>\s*(?:$|[.!;,)]|yet|for\s+now|until|before|at\s+all|just|only).*)",
    re.IGNORECASE | re.DOTALL,
)
NO_FILES = compile_lazily(
    rf"{NEGATION}(?:create|add|generate)\s+(?:any\s+|new\s+|extra\s+|additional\s+|a\s+)*"
    r"(?P<what>markdown|documentation|docs?|readme|summary)?\s*files?\b(?P<rest>.*)",
    re.IGNORECASE | re.DOTALL,
)
NO_PACKAGES = compile_lazily(
    rf"(?:(?:{NEGATION})(?:add|introduce|install|pull\s+in|bring\s+in)|{WITHOUT}(?:adding|introducing"
    r"|installing)|(?P<no>(?:^|[,:(*-]\s*|\b(?:and|but|with|add)\s+)no))\s+"
    r"(?P<new>(?:any\s+|a\s+|new\s+|extra\s+|more\s+|further\s+|third[- ]party\s+|external\s+"
    r"|additional\s+|runtime\s+)*)(?:dependenc(?:y|ies)|packages?|librar(?:y|ies)|requirements)\b"
    r"(?P<rest>.*)",
    re.IGNORECASE | re.DOTALL,
)
NO_START = compile_lazily(r"(?:^|[,:(*-]\s*|\b(?:and|but|with|add)\s+)no(?=\s)", re.IGNORECASE)
PROGRAMS = (
    "alembic|bun|cargo|conda|curl|docker|gh|git|gradle|helm|kubectl|make|mvn|npm|npx|pip|pip3|pnpm"
    "|poetry|prettier|psql|rm|rsync|scp|sed|ssh|sudo|terraform|uv|wget|yarn|black|pytest|tox|python"
)
RUN_FORBIDDEN = compile_lazily(
    rf"(?:{NEGATION}(?:run|execute|use)|{WITHOUT}(?:running|executing|using))\s+"
    rf"(?:the\s+|any\s+)*(?:`(?P<quoted>(?:{PROGRAMS})(?: [^`\n]{{1,60}})?)`"
    rf"|(?P<bare>(?:{PROGRAMS})(?:\s+[a-z][a-z-]*)?)(?=\s*(?:$|[.,;:!?)]|here|at\s+all|unless)))"
    r"(?P<rest>.*)",
    re.IGNORECASE | re.DOTALL,
)
GIT_FORBIDDEN = compile_lazily(
    rf"{NEGATION}(?P<verb>git\s+commit|git\s+push|commit|force[- ]?push|push|rebase)"
    r"(?P<rest>\s*(?:$|[.,;:!?()]|(?:any\w*|your|the|my|it|them|this|these|changes|code|commits?|yet"
    r"|until|unless|without|or|and|directly|by|on\s+your"
    r"|to\s+(?:the\s+|a\s+)?`?(?:main|master|origin|remote|github|git|dev\w*|prod\w*|release\w*|repo\w*"
    r"|branch\w*))\b).*)",
    re.IGNORECASE | re.DOTALL,
)
PARTIAL_OBJECT = compile_lazily(
    r"(?:\s+(?:and|or)\s+(?:push|commit))?\s+(?:the|my|your|this|that|these|those)\s+"
    r"(?!(?:[\w-]+\s+){0,2}(?:changes?|code|work|commits?|branch\w*|edits?|fix\w*|results?|diff|patch"
    r"|repo\w*)\b|(?:yet|until|unless|without|or|and|to|directly|by|for|before|when|if)\b)\w",
    re.IGNORECASE,
)
"""After `do not commit`: something that is not all of the work."""
PURPOSE = compile_lazily(
    r"(?![^.;!?]*\b(?:because|since|need|have|has|takes?|wants?)\b)"
    r"[^.;!?]*\bto\s+(?!(?:the|an?|my|your|this|that)\b)[a-z]",
    re.IGNORECASE,
)
"""After `do not run X`: what not to run it for, which leaves other uses of it."""
PACKAGE_TOOLS = "bun|npm|pnpm|yarn|pip|uv|poetry|pipenv|conda"
PREFERRED_TOOL = compile_lazily(
    rf"\buse\s+`?(?P<good>{PACKAGE_TOOLS})`?,?\s+(?:and\s+)?(?:not|never|instead\s+of|rather\s+than)\s+"
    rf"`?(?P<bad>{PACKAGE_TOOLS})\b",
    re.IGNORECASE,
)
SIGNATURE = compile_lazily(
    rf"(?:(?:{NEGATION})(?:{CHANGE_VERB}|break)|{WITHOUT}(?:{CHANGING_VERB}|breaking)|\b(?:keep|preserve))\s+"
    r"(?:`(?P<owner>\w+)(?:\(\))?`['’]s\s+|the\s+|any\s+|its\s+|their\s+|existing\s+|public\s+|function\s+|method\s+)*"
    r"signatures?\b(?:\s+of\s+(?:the\s+)?`?(?P<name>\w+)(?:\(\))?`?)?",
    re.IGNORECASE,
)
INDENTATION = compile_lazily(
    r"\b(?:use|indent\s+with)\s+(?P<good>tabs|spaces)(?=\s*(?:$|[.,;!)]|for\s+indent|instead|rather"
    r"|not\b|and\s+not))|\b(?P<first>tabs|spaces),?\s+not\s+(?:tabs|spaces)\b",
    re.IGNORECASE,
)
CLAUSE_END = compile_lazily(
    r"\b(?:unless|except|if|when|where|while|but|because|since|so that|as they|as it|until|before"
    r"|instead|rather|yet|for now|only|just|without)\b|[;!?]|\.(?=\s|$)| [–—-]+ ",
    re.IGNORECASE,
)
UNLESS_ASKED = compile_lazily(
    r"\A\W*(?:unless|except|if|when|until|before|without)\b.{0,30}?\b(?:ask|asked|asking|told|tell|say"
    r"|said|request|requested|approv\w*|permission|confirm\w*|instructed)\b",
    re.IGNORECASE | re.DOTALL,
)
CONDITION = compile_lazily(r"\A\W*(?:unless|except|if|when|where|while|without)\b", re.IGNORECASE)
NAMED_FOLDER = compile_lazily(r"`?([\w.@-]+(?:/[\w.@-]+)*)/?`?\s+(?:folder|directory|dir)\b")
SLASHED_PATH = compile_lazily(
    r"(?:\A\W*(?:the\s+)?|,\s*|\b(?:in|inside|within|of|outside|under|below)\s+(?:the\s+)?)"
    r"((?:[\w.@*-]+/)+[\w.@*-]*)"
)
FILLER_WORD = compile_lazily(
    r"\b(?:the|this|that|these|any|any\s+of|all|my|our|your|existing|current|generated|or|and|files?"
    r"|folders?|director(?:y|ies)|modules?|packages?|scripts?|code|anything|contents?|in|under|inside"
    r"|within|of|at|tests?|cases?|config\w*|source|like|such\s+as|e\.g\.)(?![\w/.])",
    re.IGNORECASE,
)
KNOWN_FILE = compile_lazily(
    r"(?<![\w./-])(?:Makefile|Dockerfile|Gemfile|Jenkinsfile|\.env|\.github|\.gitignore)(?![\w/-])"
)
WANTS_TESTS = compile_lazily(
    r"(?:^|[.!,;*-]\s*|\b(?:and|then|please|also|to)\s+)(?:add|write|extend|update|fix|include|create)\s+"
    r"(?:\w+\s+){0,4}?tests?\b",
    re.IGNORECASE | re.MULTILINE,
)
TEST_WORDS = compile_lazily(
    r"\A\W*(?:the\s+|any\s+|of\s+|existing\s+|unit\s+|your\s+|our\s+|all\s+|other\s+|provided\s+)*"
    r"tests?\b(?!/|\s+(?:data|command|runner|script|plan|logic))",
    re.IGNORECASE,
)

NUMBERED_ITEM = compile_lazily(r"^[ \t]*(\d{1,2})[.)][ \t]+(\S[^\n]*)", re.MULTILINE)
REPRODUCE_STEP = compile_lazily(
    r"\breproduc\w+\b|\bconfirm the (?:error|bug|issue|failure|problem)\b|\bfailing test\b",
    re.IGNORECASE,
)
CHANGE_STEP = compile_lazily(
    r"\W*(?:(?:then|next|now|and|finally)\W+)?"
    r"(?:edit|fix|change|modify|implement|repair|patch|resolve|make the (?:change|fix))\b",
    re.IGNORECASE,
)
LOOSE_STEP = compile_lazily(
    r"\b(?:optional\w*|recommend\w*|suggest\w*|might|may|could|consider|if (?:possible|needed|you)"
    r"|try to|for example|e\.g|example)\b",
    re.IGNORECASE,
)
"""A step, or a list of them, that leaves the choice."""
REPRODUCE_FIRST = compile_lazily(
    r"\b(?:first\b,?\s+reproduce|reproduce\b[^.;]{0,80}?(?:\bfirst\b(?!\s+(?:time|place))"
    r"|\bbefore\s+(?:you\s+)?(?:chang|edit|fix|touch|modify)))",
    re.IGNORECASE,
)


ConstraintKind = Literal[
    "leave", "keep", "only", "no edits", "no new files", "command", "dependencies", "signature",
    "tabs", "spaces", "reproduce first",
]  # fmt: skip

MAX_CONSTRAINTS = 50
"""Constraints of one lane that are kept; nobody states more, a pasted document might."""
ALL_TESTS = "the tests"
"""The object that means every file of tests."""
DOCUMENT_GLOBS = ("**/*.md", "**/*.rst")

_MAX_SENTENCE_CHARS = 800
"""Characters of a sentence that are read; people do not write longer ones."""
_HEADING_LINES = 5
"""Lines before a list that may say whether it is binding."""


class UserConstraint(Record):
    """Something stated that an action can break."""

    kind: ConstraintKind
    words: str
    """The words of the user, truncated."""
    objects: tuple[str, ...] = ()
    """Globs, a command's words, or a symbol's name; none means any."""
    passing: bool = False
    """Whether it ends with the user's next message, as in `plan first, do not edit yet`."""
    number: int = 0
    """Number of the event that states it."""
    until: int | None = None
    """Number of the event that withdraws it, if there is one."""


@lru_cache(maxsize=512)
def parse_constraints(text: str) -> tuple[UserConstraint, ...]:
    """Return what a text forbids or demands, in order."""
    text = strip_client_markup(text[:MAX_TEXT_CHARS])
    if ">" in text:
        text = PASTED_BLOCK.sub("\n", QUOTED_LINE.sub("\n", "\n" + text)[1:])
    text = BULLET_LIST.sub(lambda items: BULLET_ITEM.sub(", ", items[0]), text)
    constraints: dict[tuple[ConstraintKind, tuple[str, ...]], UserConstraint] = {}
    marked_sentences = (split_paragraph(line) for line in _lines_with_signs(split_paragraphs(text)))
    for sentence in _lines_with_signs(list(chain.from_iterable(marked_sentences))):
        for constraint in _parse_sentence(sentence[:_MAX_SENTENCE_CHARS]):
            constraints.setdefault((constraint.kind, constraint.objects), constraint)
    if (ordered := _parse_order(text)) is not None:
        constraints.setdefault((ordered.kind, ()), ordered)
    if any(ALL_TESTS in objects for _, objects in constraints) and any(
        WANTS_TESTS.search(line) for line in split_sentences(text) if "test" in line.lower()
    ):
        # A request for tests may require changes of existing ones.
        constraints = {
            key: constraint for key, constraint in constraints.items() if ALL_TESTS not in key[1]
        }
    return tuple(constraints.values())[:MAX_CONSTRAINTS]


def _lines_with_signs(lines: Sequence[str]) -> Iterator[str]:
    return (
        lines[index] for index in find_matching_lines(_sign_automaton(), "\n".join(lines).lower())
    )


def _parse_order(text: str) -> UserConstraint | None:
    """Parse numbered steps that reproduce the failure before they change the code."""
    if "eproduc" not in text and "onfirm" not in text and "failing test" not in text:
        return None
    reproduce_quote = ""
    number, heading = 0, ""
    for item in NUMBERED_ITEM.finditer(text):
        if item[1] == "1":
            heading = " ".join(text[: item.start()].split("\n")[-_HEADING_LINES:])
            reproduce_quote, number = "", 0
        number += 1
        if int(item[1]) != number or LOOSE_STEP.search(heading):
            continue
        step = item[2][:_MAX_SENTENCE_CHARS]
        if reproduce_quote and CHANGE_STEP.match(step):
            return UserConstraint(kind="reproduce first", words=reproduce_quote, passing=True)
        if REPRODUCE_STEP.search(step) and not LOOSE_STEP.search(step):
            reproduce_quote = reproduce_quote or truncate_line(f"{item[1]}. {step}")
    return _parse_order_in_words(text)


def _parse_order_in_words(text: str) -> UserConstraint | None:
    lower_text, position = text.lower(), -1
    while (position := lower_text.find("reproduce", position + 1)) >= 0:
        if REPRODUCE_FIRST.search(lower_text, max(0, position - 20), position + 120):
            break
    else:
        return None
    for sentence in split_sentences(text):
        if REPRODUCE_FIRST.search(sentence) and not LOOSE_STEP.search(sentence):
            quote = truncate_line(" ".join(sentence.split()))
            return UserConstraint(kind="reproduce first", words=quote, passing=True)
    return None


def find_named_paths(text: str) -> tuple[str, ...]:
    """Return the files and folders that a text names, as globs."""
    names = [fact.text for fact in parse_facts(text) if fact.kind == "path" or _is_glob(fact.text)]
    names += SLASHED_PATH.findall(text) + NAMED_FOLDER.findall(text) + KNOWN_FILE.findall(text)
    clean_names = (name.rstrip(".").removeprefix("./").rstrip("/") for name in names)
    return tuple(dict.fromkeys(name for name in clean_names if name.strip("./*")))


def _is_glob(text: str) -> bool:
    return "*" in text and " " not in text and "(" not in text


def _lowercase_words(text: str) -> str:
    return " ".join(text.lower().split())


# Cached: the same prompts occur repeatedly.
@lru_cache(maxsize=4096)
def _parse_sentence(sentence: str) -> tuple[UserConstraint, ...]:
    constraints = []
    lowercase_sentence = _lowercase_words(sentence)
    forbids = None if mentions_any(lowercase_sentence, NEGATIVE_WORDS) else False
    for negative, hints, other_hints, parse in _CONSTRAINT_PARSERS:
        if (negative and forbids is False) or not mentions_any(lowercase_sentence, hints):
            continue
        if other_hints and not mentions_any(lowercase_sentence, other_hints):
            continue
        if negative and forbids is None:
            forbids = bool(_find_negations(sentence))
        if forbids or not negative:
            for kind, objects, passing in parse(sentence):
                quote = truncate_line(" ".join(sentence.split()))
                constraints.append(
                    UserConstraint(kind=kind, words=quote, objects=objects, passing=passing)
                )
    return tuple(constraints)


@lru_cache(maxsize=16)
def _find_negations(sentence: str) -> tuple[int, ...]:
    """Return the positions where a prohibition begins."""
    starts = []
    match = NEGATED.search(sentence)
    while match:
        starts.append(match.start())
        match = NEGATED.search(sentence, match.start() + 1)
    return tuple(starts)


def _match_prohibition(pattern: re.Pattern[str], sentence: str) -> re.Match[str] | None:
    """Match a pattern where a prohibition begins, which is faster than a search."""
    for start in _find_negations(sentence):
        if match := pattern.match(sentence, start):
            return match
    return None


ParsedConstraints = Iterable[tuple[ConstraintKind, tuple[str, ...], bool]]


def _split_clause(text: str) -> tuple[str, str]:
    """Split a text into the object of its verb and the condition after it."""
    clause_end = CLAUSE_END.search(text)
    return (text[: clause_end.start()], text[clause_end.start() :]) if clause_end else (text, "")


def _is_checkable(condition: str) -> bool:
    """Whether there is no condition, or only that the user asks for it."""
    return CONDITION.match(condition) is None or UNLESS_ASKED.match(condition) is not None


def _parse_no_edits(sentence: str) -> ParsedConstraints:
    match = _match_prohibition(NO_EDITS, sentence)
    if match and not find_named_paths(match["rest"]) and _is_checkable(match["rest"]):
        yield "no edits", (), True


@lru_cache(maxsize=16)
def _match_bound(sentence: str) -> re.Match[str] | None:
    beyond = mentions_any(sentence.lower(), EXCEPTION_WORDS) and _find_negations(sentence)
    return ONLY_CHANGE.search(sentence) if beyond or MAY_BOUND.search(sentence) else None


def _parse_only(sentence: str) -> ParsedConstraints:
    match = _match_bound(sentence)
    if match:
        object_text = match["object"] or match["within"] or match["except"] or ""
        clause, condition = _split_clause(object_text)
        paths = find_named_paths(clause)
        # "Only change X if …" is a condition on X, not a bound on the rest.
        if paths and not CONDITION.match(condition):
            yield "only", paths, False


def _parse_forbidden_paths(sentence: str) -> ParsedConstraints:
    if _match_bound(sentence):
        return
    for pattern, kind in ((CHANGE_FORBIDDEN, "leave"), (DELETE_FORBIDDEN, "keep")):
        match = _match_prohibition(pattern, sentence)
        if match and not SIGNATURE.search(sentence):
            yield from _parse_objects(match["object"], "leave" if kind == "leave" else "keep")


def _parse_leave_alone(sentence: str) -> ParsedConstraints:
    if _match_bound(sentence):
        return
    if alone := LEAVE_ALONE.search(sentence):
        yield from _parse_objects(alone["object"], "leave")
    elif stays_match := STAYS_UNCHANGED.search(sentence):
        subject = re.split("[,:]", sentence[: stays_match.start()])[-1]
        yield from _parse_objects(subject[-200:], "leave")


def _parse_objects(text: str, kind: ConstraintKind) -> ParsedConstraints:
    clause, condition = _split_clause(text)
    if not _is_checkable(condition):
        return
    paths = find_named_paths(clause)
    if TEST_WORDS.match(clause):
        yield kind, (ALL_TESTS,), False
    # "The behaviour of a.py" is about something in the file, not about the file.
    before = clause[: clause.find(paths[0])] if paths else ""
    if paths and not FILLER_WORD.sub("", before).strip("`'\"*_:,( "):
        yield kind, paths, False


def _parse_no_new_files(sentence: str) -> ParsedConstraints:
    match = _match_prohibition(NO_FILES, sentence)
    if (
        match
        and _is_checkable(_split_clause(match["rest"])[1])
        and not _split_clause(match["rest"])[0].strip(" .!")
    ):
        yield "no new files", DOCUMENT_GLOBS if match["what"] else (), False


def _parse_no_packages(sentence: str) -> ParsedConstraints:
    starts = {*_find_negations(sentence), *(match.start() for match in NO_START.finditer(sentence))}
    attempted_matches = (NO_PACKAGES.match(sentence, start) for start in sorted(starts))
    match = next(filter(None, attempted_matches), None)
    if (
        match
        and _is_checkable(_split_clause(match["rest"])[1])
        and (match["new"] or not match["no"])
    ):
        yield "dependencies", (), False


def _parse_forbidden_commands(sentence: str) -> ParsedConstraints:
    run_match = _match_prohibition(RUN_FORBIDDEN, sentence)
    if (
        run_match
        and _is_checkable(run_match["rest"].strip())
        and not PURPOSE.match(run_match["rest"])
    ):
        yield "command", tuple((run_match["quoted"] or run_match["bare"]).lower().split()), False
    git_match = _match_prohibition(GIT_FORBIDDEN, sentence)
    if (
        git_match
        and _is_checkable(_split_clause(git_match["rest"])[1])
        and not PARTIAL_OBJECT.match(git_match["rest"])
    ):
        forced = "force" in git_match["verb"].lower()
        verb = "push" if forced else git_match["verb"].lower().split()[-1]
        branch = re.match(
            r"\s+(?:directly\s+|anything\s+)?to\s+(?:the\s+)?`?([\w./-]+)", git_match["rest"]
        )
        extra_words = ("--force",) if forced else ()
        if branch and branch[1] not in ("remote", "origin", "github", "any", "the"):
            extra_words = (branch[1].rstrip("."),)
        yield "command", ("git", verb, *extra_words), False


def _parse_preferred_tool(sentence: str) -> ParsedConstraints:
    preference = PREFERRED_TOOL.search(sentence)
    if preference and preference["good"].lower() != preference["bad"].lower():
        yield "command", (preference["bad"].lower(),), False


def _parse_style(sentence: str) -> ParsedConstraints:
    signature = SIGNATURE.search(sentence)
    if signature:
        name = signature["owner"] or signature["name"]
        yield "signature", (name,) if name and name not in ("the", "each", "any") else (), False
    indent = INDENTATION.search(sentence)
    if indent:
        good = (indent["good"] or indent["first"]).lower()
        yield ("tabs" if good == "tabs" else "spaces"), (), False


_NEGATIVE_WORDS = ("no ", "not", "n't", "n’t", "dont", "never", "avoid", "without", "refrain")
_UNCHANGED_WORDS = (
    "alone", "untouched", "unchanged", "unmodified", "intact", " as ", "off limits", "off-limits",
)  # fmt: skip
_CHANGE_WORDS = ("touch", "modif", "edit", "chang", "alter", "updat", "work", "yourself")
_STYLE_WORDS = (*_NEGATIVE_WORDS, "cant", "use ", "indent", "keep", "preserve")

HintWords = tuple[str, ...]
_CONSTRAINT_PARSERS: tuple[
    tuple[bool, HintWords, HintWords, Callable[[str], ParsedConstraints]], ...
] = (
    (True, ("file", "code", "anything", "change", "edit", "implement"), (), _parse_no_edits),
    (False, ("only", "limit", "restrict", "confine", "keep"), _CHANGE_WORDS, _parse_only),
    (True, EXCEPTION_WORDS, (), _parse_only),
    (True, CHANGE_STEMS, (), _parse_forbidden_paths),
    (
        False,
        ("leave", "keep", "off limits", "off-limits", "stay", "remain"),
        _UNCHANGED_WORDS,
        _parse_leave_alone,
    ),
    (True, ("file",), (), _parse_no_new_files),
    (
        False,
        ("dependenc", "package", "librar", "requirements"),
        _NEGATIVE_WORDS,
        _parse_no_packages,
    ),
    (
        True,
        ("run", "execut", "use", "using", "commit", "push", "rebase"),
        (),
        _parse_forbidden_commands,
    ),
    (False, tuple(PACKAGE_TOOLS.split("|")), ("use ",), _parse_preferred_tool),
    (False, ("signature", "tabs", "spaces"), _STYLE_WORDS, _parse_style),
)
"""Whether a prohibition is required, two sets of required words, and the parser to call."""


_TELLING_WORD = {"off limits": "limits", "off-limits": "limits"} | {
    words: "not" for words in NEGATIVE_WORDS if " " in words
}
"""The most distinctive word of a phrase, since any white space may separate its words."""


@cache
def _sign_automaton() -> AhoCorasick:
    """Return an automaton for the words that every constraint contains one of."""
    words = {
        word for negative, hints, _, _ in _CONSTRAINT_PARSERS if not negative for word in hints
    }
    words |= set(NEGATIVE_WORDS)
    words = {_TELLING_WORD.get(word, word) for word in words}
    return build_automaton(sorted(words))


# Whether an action breaks a constraint.
#
# How long a user's constraint applies.


@cache_on_reading
def list_constraints(lane: LaneReading) -> Sequence[UserConstraint]:
    """List the constraints in the user's messages, each with the event that ends it."""
    messages = lane.users
    placed_constraints: list[UserConstraint] = []
    for index, message in enumerate(messages):
        for constraint in parse_constraints(message.text):
            if len(placed_constraints) < MAX_CONSTRAINTS:
                end = _find_constraint_end(
                    constraint, messages[index + 1 : index + 1 + MAX_CONSTRAINTS]
                )
                placed_constraints.append(_place_constraint(constraint, message.number, end))
    return placed_constraints


def constraints_from_brief(brief: str, number: int) -> Sequence[UserConstraint]:
    """Return the constraints of a brief, which apply to all of the child's work."""
    return [_place_constraint(constraint, number, None) for constraint in parse_constraints(brief)]


def _place_constraint(constraint: UserConstraint, number: int, until: int | None) -> UserConstraint:
    return UserConstraint(
        kind=constraint.kind,
        words=constraint.words,
        objects=constraint.objects,
        passing=constraint.passing,
        number=number,
        until=until,
    )


def _find_constraint_end(original: UserConstraint, later_messages: Sequence[Message]) -> int | None:
    """Return the message that mentions the object again without repeating the constraint."""
    lifting_words = _LIFTING_WORDS.get(original.kind, ()) or tuple(
        name.rstrip("*/").rpartition("/")[2].lower().removeprefix("the ").rstrip("s")
        for name in original.objects
    )
    for message in later_messages:
        is_repeated = any(
            constraint.kind == original.kind for constraint in parse_constraints(message.text)
        )
        if is_repeated:
            continue
        if original.passing or (
            original.kind == "only" and message.intent not in ("answer", "interrupt")
        ):
            return message.number
        lowercase_text = message.text[:MAX_TEXT_CHARS].lower()
        if any(word in lowercase_text for word in lifting_words if word):
            return message.number
    return None


_LIFTING_WORDS: dict[ConstraintKind, tuple[str, ...]] = {
    "dependencies": ("install", "dependenc", "package", "librar"),
    "no new files": ("create", "new file", "write"),
    "signature": ("signature", "parameter", "argument"),
    "tabs": ("tabs", "spaces", "indent"),
    "spaces": ("tabs", "spaces", "indent"),
}


_FUNCTION_SIGNATURE = compile_lazily(
    r"\b(?:def|function|func|fn)\s+(?:\([^()]{0,80}\)\s*)?(\w+)\s*\(([^()]{0,600})\)"
)
_ADDS_PACKAGE = compile_lazily(
    r"\b(?:(?:npm|yarn|pnpm|bun|poetry|uv|pdm|cargo|bundle)\s+add|npm\s+(?:install|i)|go\s+get"
    r"|composer\s+require)\s+(?:(?!-g\b|--global\b|--help\b|--dry-run\b)-\S+\s+)*(?!-)[\w@]"
)
_VERSION_OPERATOR = r"(?:[=<>~!]=|[<>@])"
_QUOTED_PACKAGE = compile_lazily(
    rf"['\"]([A-Za-z][\w.-]*)(?:\[[^\]]*\])?\s*{_VERSION_OPERATOR}[^'\"]*['\"],?\Z"
)
_TOML_PACKAGE = compile_lazily(r"([A-Za-z][\w-]*)\s*=\s*(?:\"[\^~>=<*]*\d|\"\*|\{.*\bversion\b)")
_REQUIREMENT_LINE = compile_lazily(r"([A-Za-z][\w.-]*)(?:\[.*\])?\s*(?:[=<>~!]=|\Z)")
_JSON_PACKAGE = compile_lazily(r'"([@\w./-]+)":\s*"(?:[\^~>=]*\d|workspace:|\*|latest|git|npm:)')
_MANIFESTS = (
    (compile_lazily(r"requirements[\w-]*\.(?:txt|in)\Z"), (_REQUIREMENT_LINE,)),
    (compile_lazily(r"package\.json\Z"), (_JSON_PACKAGE,)),
    (
        compile_lazily(r"(?:pyproject\.toml|setup\.py|setup\.cfg)\Z"),
        (_QUOTED_PACKAGE, _TOML_PACKAGE),
    ),
    (compile_lazily(r"Cargo\.toml\Z"), (_TOML_PACKAGE,)),
    (compile_lazily(r"go\.mod\Z"), (compile_lazily(r"(?:require\s+)?(\S+\.\S+)\s+v\d"),)),
    (compile_lazily(r"Gemfile\Z"), (compile_lazily(r"gem\s+['\"]([\w-]+)"),)),
)
_NOT_PACKAGES = frozenset(
    (
        "version",
        "edition",
        "rust-version",
        "python",
        "requires-python",
        "node",
        "npm",
        "line-length",
    )
)
_RUN_DEMAND = compile_lazily(r"\b(?:execut\w+|run|bash\w*|python)\b", re.IGNORECASE)
_SETUP_FAULT = compile_lazily(
    r"^[\w.]*\b(ModuleNotFoundError|SyntaxError|IndentationError|NameError|ImproperlyConfigured"
    r"|AppRegistryNotReady)\b|can't open file|doesn't declare an explicit app_label|no such table"
    r"|Settings already configured"
)
"""Errors of a script that failed before it reached its purpose."""
_MAX_LINE_CHARS = 300
_MIN_INDENTED_LINES = 3
"""Indented lines that an edit must add before its indentation is judged."""


class ConstraintBreach(Record):
    """An action that breaks a constraint, and how."""

    step: TraceStep
    what: str


def find_breaches(
    constraint: UserConstraint, lane: LaneReading, standing_changes: StandingChanges
) -> Iterator[ConstraintBreach]:
    """Yield the actions of a lane that break the constraint while it applies, in order."""
    end = constraint.until or float("inf")
    if constraint.kind == "reproduce first":
        yield from _find_early_changes(constraint, lane, standing_changes)
        return
    finder = _BREACH_FINDERS.get(constraint.kind)
    if finder is None:
        yield from _find_file_breaches(constraint, lane, standing_changes)
        return
    steps = lane.commands if constraint.kind == "command" else lane.steps
    for step in steps if constraint.kind in _COMMAND_KINDS else lane.edits:
        if constraint.number < step.number < end:
            description = finder(constraint, step)
            if description is not None:
                yield ConstraintBreach(step=step, what=description)


def _find_early_changes(
    constraint: UserConstraint, lane: LaneReading, standing_changes: StandingChanges
) -> Iterator[ConstraintBreach]:
    """Yield changes of existing code before any run that could reproduce the fault."""
    end = constraint.until or float("inf")
    trials = [step for step in lane.steps if constraint.number < step.number and is_run(step)]
    run = next((step for step in trials if not _fails_in_setup(step, lane.request or "")), None)
    if run is None and not lane.commands and not _RUN_DEMAND.search(constraint.words):
        # The agent may have been unable to run anything.
        return
    end = min(end, run.number) if run is not None else end
    last_answered = max((step.index for step in lane.steps if step.failed is not None), default=-1)
    for step in list_code_changes(lane):
        path = next((path for path in step.written if _was_there(path, standing_changes)), None)
        if (
            path is not None
            and step.index <= last_answered
            and constraint.number < step.number < end
        ):
            is_tried = bool(trials) and trials[0].number < step.number
            when = "the fault had been shown" if is_tried else "a script or a test had been run"
            yield ConstraintBreach(step=step, what=f"changed {path} before {when}")


def _fails_in_setup(step: TraceStep, request: str) -> bool:
    """Whether it only printed an error of its own, which the request does not mention."""
    if not step.failed or not isinstance(step.event, Command):
        return False
    fault = _SETUP_FAULT.search(last_line(step))
    if fault is None or (fault[1] or fault[0]) in request:
        return False
    head, trace, _ = (step.event.output or "").partition("Traceback (most recent call last)")
    return not trace or not head.replace(step.event.command, "").strip()


def _was_there(path: str, standing_changes: StandingChanges) -> bool:
    """Whether an existing source file stays changed; tests do not count, they may reproduce it."""
    return (
        path in standing_changes.changed
        and path not in standing_changes.made
        and is_source_path(path)
        and not is_scratch_path(path)
        and not is_test_source(path)
    )


def _find_file_breaches(
    constraint: UserConstraint, lane: LaneReading, standing_changes: StandingChanges
) -> Iterator[ConstraintBreach]:
    """Yield changes of files that the constraint protects."""
    end = constraint.until or float("inf")
    is_forbidden: dict[str, bool] = {}
    for step in lane.changes:
        if step.event.lane == lane.lane.id and constraint.number < step.number < end:
            for path in step.written:
                if path not in is_forbidden:
                    is_forbidden[path] = _is_forbidden_change(path, constraint, standing_changes)
            broken_path = next((path for path in step.written if is_forbidden[path]), None)
            is_deleted = broken_path is not None and deletes_path(step, broken_path)
            if broken_path is not None and (constraint.kind != "keep" or is_deleted):
                yield ConstraintBreach(
                    step=step, what=f"{'deleted' if is_deleted else 'changed'} {broken_path}"
                )
    for path, step in standing_changes.handed_in.items() if constraint.kind != "keep" else ():
        in_time = step.event.lane == lane.lane.id and constraint.number < step.number < end
        if in_time and _is_forbidden_change(path, constraint, standing_changes):
            yield ConstraintBreach(step=step, what=f"changed {path}")


def _is_forbidden_change(
    path: str, constraint: UserConstraint, standing_changes: StandingChanges
) -> bool:
    """Whether the constraint forbids changing this file, and the change was not undone."""
    if path not in standing_changes.changed and path not in standing_changes.handed_in:
        return False
    if is_scratch_path(path):
        return False
    kind, objects = constraint.kind, constraint.objects
    is_own_file = path in standing_changes.made and standing_changes.made[path] > constraint.number
    if kind == "no edits":
        return is_source_path(path) or not _is_about_code(constraint.words.lower())
    if kind == "no new files":
        return is_own_file and (not objects or matches_globs(path, objects))
    if ALL_TESTS in objects:
        return is_test_source(path) and not is_own_file
    is_named = _matches_objects(path, objects)
    return not is_named if kind == "only" else is_named and not is_own_file


def _is_about_code(text: str) -> bool:
    """Whether it is about code only: `do not write code yet` allows writing a plan."""
    return "code" in text and not any(word in text for word in ("file", "any", "change", "edit"))


def _matches_objects(path: str, objects: Sequence[str]) -> bool:
    """Whether one of the names matches the path, starting at any folder."""
    globs = [name for name in objects if any(char in name for char in "*?[")]
    folders = f"/{path}/"
    return any(f"/{name.strip('/')}/" in folders for name in objects if name not in globs) or (
        bool(globs) and matches_globs(path, globs_in_any_folder(globs))
    )


def globs_in_any_folder(globs: Sequence[str]) -> tuple[str, ...]:
    """Return the globs, and each so that it matches below any folder."""
    return tuple(glob for pattern in globs for glob in (pattern, f"**/{pattern}"))


def _find_command_breach(constraint: UserConstraint, step: TraceStep) -> str | None:
    event, words = step.event, constraint.objects
    if not isinstance(event, Command) or step.effect is None or words[0] not in event.command:
        return None
    if not any(program.split()[0] == words[0] for program in step.effect.programs if program):
        return None
    if event.stopped == "not executed" or "--dry-run" in event.command or "--help" in event.command:
        return None
    options = r"(?:\s+(?:-[Cc]\s+\S+|--?[\w-]+(?:=\S+)?))*"
    pattern = rf"(?<![\w./-]){re.escape(words[0])}"
    if len(words) > 1:
        pattern += rf"{options}\s+{re.escape(words[1])}(?![\w-])"
    for argument in words[2:]:
        argument_pattern = (
            r"(?:--force(?:-with-lease)?|-f)" if argument == "--force" else re.escape(argument)
        )
        pattern += rf"[^;&|\n]{{0,200}}?(?<![\w/]){argument_pattern}(?![\w/])"
    return f"ran `{' '.join(words)}`" if re.search(pattern, event.command) else None


def _find_package_breach(constraint: UserConstraint, step: TraceStep) -> str | None:
    event = step.event
    if isinstance(event, Command):
        if step.failed is not True and (match := _ADDS_PACKAGE.search(event.command)):
            start = event.command[match.start() :].split("\n", 1)[0]
            return f"ran `{start[:60]}`"
        return None
    if isinstance(event, Edit) and step.changed:
        for name, patterns in _MANIFESTS:
            if name.search(event.path):
                added = _list_added_packages(event, patterns)
                return f"added {added[0]} to {step.written[0]}" if added else None
    return None


def _list_added_packages(event: Edit, patterns: Sequence[re.Pattern[str]]) -> list[str]:
    lines = diff_edit(event)
    # A rewritten file also contains its previous lines.
    if lines is None or event.action == "create":
        return []
    removed_text = " ".join(lines.removed)
    short_lines = [line for line in lines.added if len(line) < _MAX_LINE_CHARS]
    package_matches = (pattern.match(line) for line in short_lines for pattern in patterns)
    names = [package_match[1] for package_match in package_matches if package_match]
    return [name for name in names if name not in removed_text and name not in _NOT_PACKAGES]


def _find_signature_breach(constraint: UserConstraint, step: TraceStep) -> str | None:
    event = step.event
    if not isinstance(event, Edit) or not step.changed or not is_source_path(event.path):
        return None
    if event.before is not None and event.after is not None:
        before, after = event.before, event.after
    elif (lines := diff_edit(event)) is not None:
        before, after = "\n".join(lines.removed), "\n".join(lines.added)
    else:
        return None
    old_signatures = {
        name: "".join(parameters.split())
        for name, parameters in _FUNCTION_SIGNATURE.findall(before)
    }
    for name, new_parameters in _FUNCTION_SIGNATURE.findall(after):
        applies = name in constraint.objects or (
            not constraint.objects and not name.startswith(("_", "test"))
        )
        if (
            applies
            and name in old_signatures
            and old_signatures[name] != "".join(new_parameters.split())
        ):
            return f"changed the signature of {name}"
    return None


def _find_indentation_breach(constraint: UserConstraint, step: TraceStep) -> str | None:
    event = step.event
    if not isinstance(event, Edit) or not step.changed or not is_source_path(event.path):
        return None
    if event.after is not None:
        lines = event.after[:20_000].splitlines()
    else:
        patch = (event.patch or "")[:20_000].splitlines()
        lines = [line[1:] for line in patch if line.startswith("+")]
    tabs = sum(line.startswith("\t") for line in lines)
    spaces = sum(line.startswith("  ") and not line.lstrip().startswith("*") for line in lines)
    wrong_count, right_count = (spaces, tabs) if constraint.kind == "tabs" else (tabs, spaces)
    if wrong_count < _MIN_INDENTED_LINES or right_count:
        return None
    return f"indented {step.written[0]} with {'spaces' if constraint.kind == 'tabs' else 'tabs'}"


_COMMAND_KINDS = ("command", "dependencies")
_BREACH_FINDERS: dict[ConstraintKind, Callable[[UserConstraint, TraceStep], str | None]] = {
    "command": _find_command_breach,
    "dependencies": _find_package_breach,
    "signature": _find_signature_breach,
    "tabs": _find_indentation_breach,
    "spaces": _find_indentation_breach,
}
