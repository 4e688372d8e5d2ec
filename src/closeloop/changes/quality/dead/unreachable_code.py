"""Statements after one that never goes on."""

from __future__ import annotations

from collections.abc import Iterator

from closeloop.changes.quality.changed_file import ChangedFile

_END_KEYWORDS = {
    "return_statement": "return",
    "raise_statement": "raise",
    "throw_statement": "throw",
    "break_statement": "break",
    "continue_statement": "continue",
}
_LANGUAGES = {"python": "python", "javascript": "javascript", "typescript": "typescript",
              "tsx": "tsx", "go": "go"}  # fmt: skip
"""The others' compilers say it."""
_ALLOWED_AFTER_END = frozenset(
    {"function_declaration", "generator_function_declaration", "class_declaration", "comment",
     "break_statement", "labeled_statement", "type_alias_declaration", "interface_declaration",
     "empty_statement"}
)  # fmt: skip
"""What is declared for the whole block, or ends a case that returns."""
_BLOCKS = frozenset({"block", "statement_block", "statement_list"})
MAX_TEXT_CHARS = 1_000_000


def find_unreachable_code(file: ChangedFile) -> Iterator[tuple[int, str]]:
    """The first line that is not reached, where it or the end before it is new."""
    language = _LANGUAGES.get(file.after.language) if file.after else None
    text = "\n".join(file.lines)
    if language is None or len(text) > MAX_TEXT_CHARS:
        return
    from ast_grep_py import SgRoot

    kinds = [kind for kind in _END_KEYWORDS if language == "python" or kind != "raise_statement"]
    kinds = [kind for kind in kinds if language not in ("python", "go") or kind[:5] != "throw"]
    for node in SgRoot(text, language).root().find_all(any=[{"kind": kind} for kind in kinds]):
        following = node.next()
        while following is not None and (
            not following.is_named() or following.kind() in _ALLOWED_AFTER_END
        ):
            following = following.next()
        parent = node.parent()
        if following is None or parent is None or parent.kind() not in _BLOCKS:
            continue
        line = following.range().start.line + 1
        if "yield" in following.text() or not {line, node.range().start.line + 1} & file.added:
            continue
        yield (
            line,
            f"This is never reached: the line before it ends with `{_END_KEYWORDS[node.kind()]}`.",
        )
