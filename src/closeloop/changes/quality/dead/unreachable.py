"""Statements after one that never goes on."""

from __future__ import annotations

from collections.abc import Iterator

from closeloop.changes.quality.changed import Changed

_ENDS = {
    "return_statement": "return",
    "raise_statement": "raise",
    "throw_statement": "throw",
    "break_statement": "break",
    "continue_statement": "continue",
}
_LANGUAGES = {"python": "python", "javascript": "javascript", "typescript": "typescript",
              "tsx": "tsx", "go": "go"}  # fmt: skip
"""The others' compilers say it."""
_FINE = frozenset(
    {"function_declaration", "generator_function_declaration", "class_declaration", "comment",
     "break_statement", "labeled_statement", "type_alias_declaration", "interface_declaration",
     "empty_statement"}
)  # fmt: skip
"""What is declared for the whole block, or ends a case that returns."""
_BLOCKS = frozenset({"block", "statement_block", "statement_list"})
MOST_TEXT = 1_000_000


def find(file: Changed) -> Iterator[tuple[int, str]]:
    """The first line that is not reached, where it or the end before it is new."""
    language = _LANGUAGES.get(file.after.language) if file.after else None
    text = "\n".join(file.lines)
    if language is None or len(text) > MOST_TEXT:
        return
    from ast_grep_py import SgRoot

    kinds = [kind for kind in _ENDS if language == "python" or kind != "raise_statement"]
    kinds = [kind for kind in kinds if language not in ("python", "go") or kind[:5] != "throw"]
    for node in SgRoot(text, language).root().find_all(any=[{"kind": kind} for kind in kinds]):
        following = node.next()
        while following is not None and (not following.is_named() or following.kind() in _FINE):
            following = following.next()
        parent = node.parent()
        if following is None or parent is None or parent.kind() not in _BLOCKS:
            continue
        line = following.range().start.line + 1
        if "yield" in following.text() or not {line, node.range().start.line + 1} & file.added:
            continue
        yield line, f"This is never reached: the line before it ends with `{_ENDS[node.kind()]}`."
