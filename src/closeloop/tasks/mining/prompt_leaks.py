"""Whether a request gives the answer away."""

from __future__ import annotations

import builtins
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache

from closeloop.records.record import Record
from closeloop.tasks.mining.string_literals import (
    find_message,
    iter_literals,
    remove_strings,
)

# What a patch says, without a parser: the words, names and texts of its lines.

MAX_LINE_CHARS = 2_000
MAX_TEXTS = 400
MAX_MESSAGES = 24
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{2,80}")
_NAME_IN_USE = re.compile(
    r"(?:[.@(\[]|\b(?:def|class|import|func|function|fn|type|const|let|var) )"
    r"([A-Za-z_][A-Za-z0-9_]{2,80})\b(?![ ][a-z])|\b([A-Za-z_][A-Za-z0-9_]{2,80})(?=\(|\[| ?=[^=])"
)
_DEFINITION = re.compile(
    r"\b(?:def|class|func|function|fn)(?: \([^()]{1,80}\))? ([A-Za-z]\w{2,80})\b"
)
_OWN_NAME = re.compile(r"(?<![.\w])([A-Za-z_]\w{2,80})\b|\.([A-Za-z_]\w{2,80})\b(?!\()")
_COMMENT = re.compile(r"^\s*(?:#|//|\*|/\*)|\s(?:#|//)\s.*$")
_REMARK = re.compile(r"^\s*(?:#(?![\[!]|include|define)|//|/?\*(?:\s|\*|$)).*|\s(?:#|//)\s.*$")


class PatchLines(Record):
    """The lines of a patch, by sign."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()


def iter_patch_lines(patch: str) -> Iterator[tuple[str, str]]:
    """The lines of all hunks in order, each behind its sign."""
    inside = False
    for line in patch.split("\n"):
        if line.startswith(("diff --git ", "GIT binary patch")):
            inside = False
        elif line.startswith("@@ -"):
            inside = True
        elif inside and line[:1] in ("+", "-", " "):
            yield line[0], line[1 : MAX_LINE_CHARS + 1]


@lru_cache(maxsize=8)
def split_patch_lines(patch: str) -> PatchLines:
    """The lines of all hunks, by their signs."""
    lines_by_sign: dict[str, list[str]] = {"+": [], "-": [], " ": []}
    for sign, line in iter_patch_lines(patch):
        lines_by_sign[sign].append(line)
    return PatchLines(
        added=tuple(lines_by_sign["+"]),
        removed=tuple(lines_by_sign["-"]),
        kept=tuple(lines_by_sign[" "]),
    )


@lru_cache(maxsize=32)
def find_identifiers(lines: tuple[str, ...]) -> frozenset[str]:
    """Identifiers of three letters and more, comments left out."""
    return frozenset(name for line in lines for name in _IDENTIFIER.findall(_COMMENT.sub("", line)))


@lru_cache(maxsize=32)
def find_used_names(lines: tuple[str, ...]) -> frozenset[str]:
    """Names that stand as only code writes them: called, assigned, imported, behind a dot."""
    return frozenset(
        next(filter(None, found)) for line in lines for found in _NAME_IN_USE.findall(line)
    )


@lru_cache(maxsize=8)
def strip_comments(lines: tuple[str, ...]) -> tuple[str, ...]:
    """Lines without comments, and without examples of what an interpreter says."""
    example = re.compile(r"\s*(?:>>>|\.\.\.) ")
    above = ("", *lines)
    code_lines = (
        line for last, line in zip(above, lines, strict=False) if not example.match(f"{last} ")
    )
    return tuple(_REMARK.sub("", line) for line in code_lines if not example.match(line))


def find_introduced_names(source: str, tests: str) -> frozenset[str]:
    """Names that both the fix and its tests bring: what the tests need it to be called.

    What the fix only calls behind a dot, it did not make: that is a method of something else. Nor
    are helpers asked for that the tests define for themselves.
    """
    fix, proof = split_patch_lines(source), split_patch_lines(tests)
    old_names = (
        find_identifiers(fix.removed)
        | find_identifiers(fix.kept)
        | find_identifiers(proof.removed)
        | find_identifiers(proof.kept)
    )
    fix_code, test_code = (
        tuple(remove_strings("\n".join(lines)).split("\n")) for lines in (fix.added, proof.added)
    )
    own_names = {one or two for line in fix_code for one, two in _OWN_NAME.findall(line)}
    return (
        (find_used_names(fix_code) & find_used_names(test_code) & own_names)
        - old_names
        - frozenset(dir(builtins))
        - (find_defined_names(tests) - find_defined_names(source))
    )


def find_defined_names(patch: str) -> frozenset[str]:
    """Functions and classes that a patch adds, by their names."""
    return frozenset(
        name for line in split_patch_lines(patch).added for name in _DEFINITION.findall(line)
    )


def find_expected_messages(source: str, tests: str) -> tuple[str, ...]:
    """Texts that the tests look for and the fix brings: nobody could guess their wording.

    Also those that the fix puts together: by f-strings, `%`, `format`, or from several literals.
    """
    fix, proof = split_patch_lines(source), split_patch_lines(tests)
    old_text = "\n".join((*fix.removed, *fix.kept))
    old_templates = {*iter_literals("\n".join(fix.removed)), *iter_literals("\n".join(fix.kept))}
    new_templates = [
        (text, _list_words(text))
        for text in dict.fromkeys(iter_literals("\n".join(strip_comments(fix.added))))
        if text not in old_templates and " " in text.strip()
    ]
    # Lines without quotes may stand in a text of several lines.
    unquoted = (line.strip() for line in proof.added if not re.search("[\"'`]", line))
    texts = [*iter_literals("\n".join(proof.added)), *unquoted]
    wanted: dict[str, None] = {}
    for text in dict.fromkeys(texts[:MAX_TEXTS]):
        words = _list_words(text)
        for template, template_words in new_templates[:MAX_TEXTS]:
            found = find_message(text, template) if words & template_words else None
            if found and found not in old_text:
                wanted[found] = None
    whole = sorted(one for one in wanted if not _is_part_of_other(one, wanted))
    return tuple(whole[:MAX_MESSAGES])


def _list_words(text: str) -> set[str]:
    return {*re.findall(r"\w{3,}", text)}


def _is_part_of_other(text: str, others: Iterable[str]) -> bool:
    return any(text != other and text in other for other in others)


MIN_LINE_CHARS = 12
MIN_KEPT_CHARS = 40
"""Characters that can stand without telling how it was done."""
COMPOUND_NAME = re.compile(r".*(?:_|[a-z][A-Z]|[A-Z]{2}[a-z]|\d).*")
_SENTENCE_BREAK = re.compile(r"((?<=[.!?])(?<!e\.g\.)(?<!i\.e\.)[ \n]+(?=[A-Z`\"'])|\n(?=[-*] ))")
_CODE_SIGN = re.compile(r"[=(){}\[\];.<>]|\w_\w")
_QUOTED_CODE = re.compile(r"`([^`\n]{3,200})`")
_FIX_INTRO = re.compile(
    r"(?i)(?:to )?(?:fix|solve|mend|address)(?:ed)?(?: this| it| that| the \w+)?(?::|,? by )"
    r"|this (?:fix|patch|commit|change|pr|revision) (?:updates|captures|moves|replaces|rewrites"
    r"|refactors|modifies|extracts) "
    r"|(?:\w+ )?(?:changes|implementation details|how)(?: made)?:"
    r"|(?:this|it|the \w+) (?:is|was|has been) (?:fixed|solved) by "
    r"|the (?:fix|solution) (?:is|was) "
    r"|(?:fix|solution|implementation):|internally,? this change "
)
"""How a sentence begins that tells the way instead of the aim, as do the others behind it."""
_WORK_REPORT = re.compile(
    r"(?:Instead,? )?(?:Use|Replace|Switch|Move|Build|Store|Cache|Wrap|Compute|Collect|Capture"
    r"|Copy|Refactor|Extract|Rewrite|Register|Track|Anchor|Compare(?!d? to )|Call|Guard|Scale"
    r"|Introduce)"
    r"(?:e?d|s)? (?!with\b|of\b)"
    r"|The (?:\w+ )?tests? |(?:[-*] )?(?:Also )?(?:[Aa]dd|[Uu]pdat|[Aa]djust|[Ee]xten|[Ee]nhanc)\w*"
    r" (?:[\w-]+ ){0,3}(?:[A-Z]\w*\.)?[Tt]ests?(?:\b|_)"
    r"|I(?:'ve| have)? (?:not |also |only |just )?(?:added(?! the ability| support| an? option)"
    r"|changed|moved|removed|replaced|made|gone|refactored|tested|updated|chose|decided) "
    r"|[^.\n]{0,99}\b(?:full|whole|entire|other|existing) (?:test )?(?:suite|tests)\b[^.\n]{0,40}"
    r" pass"
)
"""In a message's body, what was done to the code; what it is to do is said in other words."""


def find_leaks(prompt: str, source: str, tests: str, *, title: bool = False) -> list[str]:
    """What of the fix is in the request: whole lines of code, and names that only the fix brings.

    Names and lines that the tests have too are no answer: they are what is asked for. A title may
    name what is used, though not what is invented.
    """
    fix, proof = split_patch_lines(source), split_patch_lines(tests)
    prompt_text = _collapse_spaces(prompt)
    test_text = _collapse_spaces("\n".join((*proof.added, *proof.removed, *proof.kept)))
    leaked_lines = []
    for line in dict.fromkeys(_collapse_spaces(line) for line in fix.added):
        is_code = len(line) >= MIN_LINE_CHARS and _CODE_SIGN.search(line)
        if is_code and line in prompt_text and line not in test_text:
            leaked_lines.append(line)
    if not title:
        leaked_lines += _leaked_fragments(prompt, fix, test_text)
    old = find_identifiers(fix.removed) | find_identifiers(fix.kept)
    test_names = find_identifiers((*proof.added, *proof.removed, *proof.kept))
    new_names = find_used_names(fix.added)
    if title:
        new_names = find_defined_names(source) | {
            name for name in new_names if name.startswith("_")
        }
    own_names = {name for name in new_names - old - test_names if COMPOUND_NAME.fullmatch(name)}
    own_names -= {name for name in own_names if name.startswith("__") and name.endswith("__")}
    return [*leaked_lines, *sorted(own_names & find_identifiers(tuple(prompt.split("\n"))))]


def remove_leaks(prompt: str, source: str, tests: str) -> str:
    """The request without the sentences that give the answer away."""
    kept: list[str] = []
    for paragraph in prompt.split("\n\n"):
        sound = ""
        for sentence, gap in _split_sentences(paragraph):
            title = not kept and not sound
            if not find_leaks(sentence, source, tests, title=title):
                sound += sentence + gap
        kept.append(sound.strip("\n").rstrip())
    return "\n\n".join(filter(None, kept))


def remove_solution(message: str, tests: str) -> str:
    """What somebody wrote who had done the work, without how it was done."""
    kept: list[str] = []
    for paragraph in message.split("\n\n"):
        sound = ""
        for sentence, gap in _split_sentences(paragraph):
            enough = len(f"{kept}{sound}") > MIN_KEPT_CHARS
            if enough and _FIX_INTRO.match(sentence):
                break
            if not (enough and _reports_work(sentence, tests)):
                sound += sentence + gap
        kept.append(sound.strip("\n").rstrip())
    return "\n\n".join(filter(None, kept))


def _reports_work(sentence: str, tests: str) -> bool:
    """Whether it tells how the code was changed, and nothing that the tests use."""
    return _WORK_REPORT.match(sentence) is not None and not any(
        piece in tests for piece in _QUOTED_CODE.findall(sentence)
    )


def _leaked_fragments(prompt: str, fix: PatchLines, public: str) -> list[str]:
    """Pieces of code, set as such, that the fix brings and nothing else has."""
    quoted = [piece.strip() for piece in _QUOTED_CODE.findall(prompt)]
    if not quoted:
        return []
    new = _collapse_spaces("\n".join(strip_comments(fix.added)))
    old = _collapse_spaces("\n".join((*fix.removed, *fix.kept)))
    new_pieces = [one for one in quoted if one in new and one not in old and one not in public]
    return [
        piece
        for piece in new_pieces
        if len(piece) >= 5 and _CODE_SIGN.search(piece.removesuffix("()"))
    ]


def _split_sentences(paragraph: str) -> Iterator[tuple[str, str]]:
    """Each with the space behind it."""
    parts = [*_SENTENCE_BREAK.split(paragraph), ""]
    yield from zip(parts[::2], parts[1::2], strict=True)


def _collapse_spaces(text: str) -> str:
    return " ".join(text.split())
