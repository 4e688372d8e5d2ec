"""What a patch says, without a parser: the words, names and texts of its lines."""

from __future__ import annotations

import builtins
import re
from collections.abc import Iterator
from functools import lru_cache

from closeloop.model.record import Record

LARGEST_LINE = 2_000
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{2,80}")
_USED = re.compile(
    r"(?:[.@(\[]|\b(?:def|class|import|func|function|fn|type|const|let|var) )"
    r"([A-Za-z_][A-Za-z0-9_]{2,80})\b(?![ ][a-z])|\b([A-Za-z_][A-Za-z0-9_]{2,80})(?=\(|\[| ?=[^=])"
)
_DEFINED = re.compile(r"\b(?:def|class|func|function|fn)(?: \([^()]{1,80}\))? ([A-Za-z]\w{2,80})\b")
_TEXT = re.compile(r'"([^"\\\n]{8,200})"|' + r"'([^'\\\n]{8,200})'")
_OWN = re.compile(r"(?<![.\w])([A-Za-z_]\w{2,80})\b|\.([A-Za-z_]\w{2,80})\b(?!\()")
_COMMENT = re.compile(r"^\s*(?:#|//|\*|/\*)|\s(?:#|//)\s.*$")
_REMARK = re.compile(r"^\s*(?:#(?![\[!]|include|define)|//|/?\*(?:\s|\*|$)).*|\s(?:#|//)\s.*$")


class Sides(Record):
    """The lines of a patch, by sign."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()


def signed(patch: str) -> Iterator[tuple[str, str]]:
    """The lines of all hunks in order, each behind its sign."""
    inside = False
    for line in patch.split("\n"):
        if line.startswith(("diff --git ", "GIT binary patch")):
            inside = False
        elif line.startswith("@@ -"):
            inside = True
        elif inside and line[:1] in ("+", "-", " "):
            yield line[0], line[1 : LARGEST_LINE + 1]


@lru_cache(maxsize=8)
def sides(patch: str) -> Sides:
    """The lines of all hunks, by their signs."""
    found: dict[str, list[str]] = {"+": [], "-": [], " ": []}
    for sign, line in signed(patch):
        found[sign].append(line)
    return Sides(added=tuple(found["+"]), removed=tuple(found["-"]), kept=tuple(found[" "]))


@lru_cache(maxsize=32)
def names(lines: tuple[str, ...]) -> frozenset[str]:
    """Identifiers of three letters and more, comments left out."""
    return frozenset(name for line in lines for name in _NAME.findall(_COMMENT.sub("", line)))


@lru_cache(maxsize=32)
def used(lines: tuple[str, ...]) -> frozenset[str]:
    """Names that stand as only code writes them: called, assigned, imported, behind a dot."""
    return frozenset(next(filter(None, found)) for line in lines for found in _USED.findall(line))


def texts(lines: tuple[str, ...]) -> frozenset[str]:
    """String literals that read like a message: a space in them, and some length."""
    found = (one or two for line in lines for one, two in _TEXT.findall(line))
    return frozenset(text.strip() for text in found if " " in text.strip())


@lru_cache(maxsize=8)
def uncommented(lines: tuple[str, ...]) -> tuple[str, ...]:
    """Lines without comments, and without examples of what an interpreter says."""
    example = re.compile(r"\s*(?:>>>|\.\.\.) ")
    above = ("", *lines)
    told = (line for last, line in zip(above, lines, strict=False) if not example.match(f"{last} "))
    return tuple(_REMARK.sub("", line) for line in told if not example.match(line))


def introduced(source: str, tests: str) -> frozenset[str]:
    """Names that both the fix and its tests bring: what the tests need it to be called.

    What the fix only calls behind a dot, it did not make: that is a method of something else.
    """
    fix, proof = sides(source), sides(tests)
    old = names(fix.removed) | names(fix.kept) | names(proof.removed) | names(proof.kept)
    own = {one or two for line in fix.added for one, two in _OWN.findall(line)}
    return (used(fix.added) & used(proof.added) & own) - old - frozenset(dir(builtins))


def defined(patch: str) -> frozenset[str]:
    """Functions and classes that a patch adds, by their names."""
    return frozenset(name for line in sides(patch).added for name in _DEFINED.findall(line))


def messages(source: str, tests: str) -> tuple[str, ...]:
    """Texts that the tests look for and the fix brings: nobody could guess their wording."""
    fix, proof = sides(source), sides(tests)
    old = "\n".join((*fix.removed, *fix.kept))
    brought = "\n".join(texts(uncommented(fix.added)))
    wanted = (text for text in texts(proof.added) if text in brought and text not in old)
    return tuple(sorted(wanted))
