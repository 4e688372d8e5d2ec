"""What a patch says, without a parser: the words, names and texts of its lines."""

from __future__ import annotations

import builtins
import re
from collections.abc import Iterator
from functools import lru_cache

from closeloop.records.record import Record

MAX_LINE_CHARS = 2_000
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{2,80}")
_NAME_IN_USE = re.compile(
    r"(?:[.@(\[]|\b(?:def|class|import|func|function|fn|type|const|let|var) )"
    r"([A-Za-z_][A-Za-z0-9_]{2,80})\b(?![ ][a-z])|\b([A-Za-z_][A-Za-z0-9_]{2,80})(?=\(|\[| ?=[^=])"
)
_DEFINITION = re.compile(
    r"\b(?:def|class|func|function|fn)(?: \([^()]{1,80}\))? ([A-Za-z]\w{2,80})\b"
)
_STRING_LITERAL = re.compile(r'"([^"\\\n]{8,200})"|' + r"'([^'\\\n]{8,200})'")
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


def find_message_literals(lines: tuple[str, ...]) -> frozenset[str]:
    """String literals that read like a message: a space in them, and some length."""
    literals = (one or two for line in lines for one, two in _STRING_LITERAL.findall(line))
    return frozenset(text.strip() for text in literals if " " in text.strip())


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

    What the fix only calls behind a dot, it did not make: that is a method of something else.
    """
    fix, proof = split_patch_lines(source), split_patch_lines(tests)
    old_names = (
        find_identifiers(fix.removed)
        | find_identifiers(fix.kept)
        | find_identifiers(proof.removed)
        | find_identifiers(proof.kept)
    )
    own_names = {one or two for line in fix.added for one, two in _OWN_NAME.findall(line)}
    return (
        (find_used_names(fix.added) & find_used_names(proof.added) & own_names)
        - old_names
        - frozenset(dir(builtins))
    )


def find_defined_names(patch: str) -> frozenset[str]:
    """Functions and classes that a patch adds, by their names."""
    return frozenset(
        name for line in split_patch_lines(patch).added for name in _DEFINITION.findall(line)
    )


def find_expected_messages(source: str, tests: str) -> tuple[str, ...]:
    """Texts that the tests look for and the fix brings: nobody could guess their wording."""
    fix, proof = split_patch_lines(source), split_patch_lines(tests)
    old_text = "\n".join((*fix.removed, *fix.kept))
    new_text = "\n".join(find_message_literals(strip_comments(fix.added)))
    wanted = (
        text
        for text in find_message_literals(proof.added)
        if text in new_text and text not in old_text
    )
    return tuple(sorted(wanted))
