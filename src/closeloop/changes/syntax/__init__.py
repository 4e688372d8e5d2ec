"""Syntax of source files: what a file's text says, in the languages that we know well."""

from __future__ import annotations

from array import array
from functools import cache
from importlib import import_module

import msgspec
from tree_sitter import Language as Compiled
from tree_sitter import Parser, Query

from closeloop.changes.syntax.file_outline import Outline, build_outline, extract_words
from closeloop.changes.syntax.grammar import Grammar
from closeloop.changes.syntax.tree_walk import TreeWalk, parse_in_pieces
from closeloop.records.inspection import (
    Language,
    SourceModule,
)

__all__ = ["MAX_SOURCE_BYTES", "Outline", "extract_words", "outline_source", "parse_module"]

MAX_SOURCE_BYTES = 2_000_000
"""Larger files are not read."""

_GRAMMAR_PLACES: dict[Language, tuple[str, str]] = {
    "python": ("python", "GRAMMAR"),
    "javascript": ("javascript", "JAVASCRIPT"),
    "typescript": ("javascript", "TYPESCRIPT"),
    "tsx": ("javascript", "TSX"),
    "go": ("go", "GRAMMAR"),
    "java": ("java", "GRAMMAR"),
    "rust": ("rust", "GRAMMAR"),
}


def parse_module(language: Language, content: bytes) -> SourceModule:
    """All that is read of one file. What cannot be parsed is told; the rest is read anyway."""
    if len(content) > MAX_SOURCE_BYTES:
        return SourceModule(language=language, note="Not read: it is over 2 MB.")
    grammar, parser, query = _load_grammar(language)
    tree, end = parse_in_pieces(parser, content)
    brief = build_outline(language, content[:end], tree, query, grammar.imports)
    module = TreeWalk(grammar, content).read(language, tree)
    return msgspec.structs.replace(
        module,
        prints=tuple(array("Q", brief.prints)),
        print_lines=tuple(array("I", brief.print_lines)),
        note=module.note
        or (_truncation_note(language, content, end) if end < len(content) else None),
    )


def outline_source(language: Language, content: bytes, printed: bool = True) -> Outline:
    """What is kept of every file of a repository, with fingerprints or without."""
    if len(content) > MAX_SOURCE_BYTES:
        return Outline()
    grammar, parser, query = _load_grammar(language)
    tree, end = parse_in_pieces(parser, content)
    return build_outline(language, content[:end], tree, query, grammar.imports, printed)


def _truncation_note(language: Language, content: bytes, end: int) -> str:
    line = content.count(b"\n", 0, end) + 1
    return f"Read to line {line} only: it does not look like {language}."


@cache
def _load_grammar(language: Language) -> tuple[Grammar, Parser, Query]:
    module, name = _GRAMMAR_PLACES[language]
    grammar: Grammar = getattr(import_module(f"{__name__}.{module}"), name)
    compiled = Compiled(grammar.load())
    imports = " ".join(f"({kind}) @import" for kind in grammar.imports)
    return grammar, Parser(compiled), Query(compiled, f"{grammar.outline}\n{imports}")
