"""Syntax of source files: what a file's text says, in the languages that we know well."""

from __future__ import annotations

from array import array
from functools import cache
from importlib import import_module

import msgspec
from tree_sitter import Language as Compiled
from tree_sitter import Parser, Query

from closeloop.changes.syntax.grammar import Grammar
from closeloop.changes.syntax.outline import Outline, outline, words
from closeloop.changes.syntax.patience import parse_patiently
from closeloop.changes.syntax.walk import Walk
from closeloop.model.inspection import Language, Module

__all__ = ["LARGEST", "Outline", "parse", "skim", "words"]

LARGEST = 2_000_000
"""Larger files are not read."""

_WHERE: dict[Language, tuple[str, str]] = {
    "python": ("python", "GRAMMAR"),
    "javascript": ("javascript", "JAVASCRIPT"),
    "typescript": ("javascript", "TYPESCRIPT"),
    "tsx": ("javascript", "TSX"),
    "go": ("go", "GRAMMAR"),
    "java": ("java", "GRAMMAR"),
    "rust": ("rust", "GRAMMAR"),
}


def parse(language: Language, content: bytes) -> Module:
    """All that is read of one file. What cannot be parsed is told; the rest is read anyway."""
    if len(content) > LARGEST:
        return Module(language=language, note="Not read: it is over 2 MB.")
    grammar, parser, query = _known(language)
    tree, end = parse_patiently(parser, content)
    brief = outline(language, content[:end], tree, query, grammar.imports)
    module = Walk(grammar, content).read(language, tree)
    return msgspec.structs.replace(
        module,
        prints=tuple(array("Q", brief.prints)),
        print_lines=tuple(array("I", brief.print_lines)),
        note=module.note or (_unlike(language, content, end) if end < len(content) else None),
    )


def skim(language: Language, content: bytes, printed: bool = True) -> Outline:
    """What is kept of every file of a repository, with fingerprints or without."""
    if len(content) > LARGEST:
        return Outline()
    grammar, parser, query = _known(language)
    tree, end = parse_patiently(parser, content)
    return outline(language, content[:end], tree, query, grammar.imports, printed)


def _unlike(language: Language, content: bytes, end: int) -> str:
    line = content.count(b"\n", 0, end) + 1
    return f"Read to line {line} only: it does not look like {language}."


@cache
def _known(language: Language) -> tuple[Grammar, Parser, Query]:
    module, name = _WHERE[language]
    grammar: Grammar = getattr(import_module(f"{__name__}.{module}"), name)
    compiled = Compiled(grammar.load())
    imports = " ".join(f"({kind}) @import" for kind in grammar.imports)
    return grammar, Parser(compiled), Query(compiled, f"{grammar.outline}\n{imports}")
