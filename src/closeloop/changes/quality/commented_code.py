"""Code that was commented out instead of removed: a part of dead-code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from textwrap import dedent

from closeloop.changes.quality.changed_file import ChangedFile
from closeloop.changes.syntax import parse_module
from closeloop.records.inspection import Language

MIN_COMMENTED_LINES = 3
"""So many lines of it in a row."""
_CODE_LINE = re.compile(
    r"[;{}]\s*$|^\s*(?:return|raise|throw|import|from|def|class|if|for|while|else|elif|try|func|fn"
    r"|let|const|var)\b.*[:;{)\w]$|^\s*[\w.\[\]'\"]+\s*[-+*/:]?=\s*\S|^\s*[\w.]+\(.*\)[;,]?\s*$"
)
_EXAMPLE = re.compile(
    r"\b(?:examples?|e\.g\.|for instance|usage|for example|like this|such as|equivalent)\b|>>> ",
    re.IGNORECASE,
)
_LEAD_IN = re.compile(r"^\s*(?:#|//)+ ?[A-Z][a-z]*(?: [\w`\"'(),.-]+){2,}:\s*$", re.MULTILINE)
"""A sentence that ends in a colon: what follows it is shown."""
_WRAPPERS = {
    "go": "package p\nfunc f() {\n%s\n}\n",
    "java": "class A { void f() {\n%s\n} }\n",
    "rust": "fn f() {\n%s\n}\n",
}


def find_commented_code(file: ChangedFile, language: Language) -> Iterator[tuple[int, str]]:
    """Blocks of comments that parse as code, and read like it."""
    mark = re.compile(r"\s*#(?![!:])" if language == "python" else r"\s*//(?![/!])")
    for first, lines in file.added_blocks():
        at = 0
        while at < len(lines):
            end = at
            while end < len(lines) and mark.match(lines[end]):
                end += 1
            if end - at >= MIN_COMMENTED_LINES and not _is_example(lines[at:end]):
                block = [mark.sub("", line, count=1) for line in lines[at:end]]
                if _is_code(block, language):
                    yield first + at, f"{end - at} lines of code are commented out: remove them."
            at = max(end, at + 1)


def _is_example(comment: list[str]) -> bool:
    """Whether the comment shows how something is used: it says so, or leads up to it in words."""
    text = "\n".join(comment)
    return _EXAMPLE.search(text) is not None or _LEAD_IN.search(text) is not None


def _is_code(block: list[str], language: Language) -> bool:
    written = [line for line in block if line.strip()]
    if sum(_CODE_LINE.search(line) is not None for line in written) < max(2, 0.7 * len(written)):
        return False
    text = dedent("\n".join(block))
    return any(
        not parse_module(language, source.encode()).broken_lines
        for source in (text, _WRAPPERS.get(language, "%s") % text)
    )
