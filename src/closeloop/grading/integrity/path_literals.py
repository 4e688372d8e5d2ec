"""Paths in the string literals of code, found by text: Python, JavaScript, Go, Rust and others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

_LISTING = re.compile(
    r"\b(?:iterdir|listdir|scandir|os\.walk|readdir(?:Sync)?|ReadDir|WalkDir|read_dir|Walk)\b"
)
"""Calls that read a folder, whatever its files are called."""
_RECURSIVE = re.compile(r"\brglob\b|\*\*|\b(?:os\.walk|WalkDir|Walk)\b|recursive")
OWN_FOLDER = re.compile(
    r"\b(?:__file__|__path__|__dirname|import\.meta|CARGO_MANIFEST_DIR|resources|pkgutil"
    r"|pkg_resources|embed|__package__|runtime\.Caller)\b"
)
"""How code finds the folder that it lies in."""
_PATTERN = re.compile(r"""["'`/]([^"'`/\s]*(?:[*}]|%[sdv])[^"'`/\s]*|\.\w[\w.]*)(?=["'`])""")
_PLACEHOLDER = re.compile(r".*\}|%[sdv]")
_VARIABLE = re.compile(r"[*{}%$]")


def find_literals(text: str, segment: str) -> Iterator[re.Match[str]]:
    """Literals with a segment in their path: group 1 is what comes before it, 2 what after."""
    if segment and segment in text:
        expression = r"""(?<=["'`])((?:[^"'`\s]*[/}])?)%s((?:/[^"'`\s]*)?)(?=["'`])"""
        yield from re.finditer(expression % re.escape(segment), text)


def fixed_part(literal: str) -> str:
    """What of a path in a literal comes after its last placeholder."""
    return re.split(r"[}*]|%[sdv]", literal)[-1]


def find_folder_literals(text: str, name: str) -> Iterator[re.Match[str]]:
    """Literals that may mean a folder of this name, or all the files in it; no keys of mappings."""
    for literal in find_literals(text, name):
        rest = literal[2].strip("/")
        named_file = rest and not _VARIABLE.search(rest)
        is_key = text[literal.end() + 1 : literal.end() + 2] == ":"
        is_index = re.search(r"[\w)\]]\[$", text[max(0, literal.start() - 3) : literal.start() - 1])
        if not named_file and not is_key and not is_index:
            yield literal


@lru_cache(maxsize=128)
def list_name_patterns(text: str) -> tuple[str, ...]:
    """Globs of names that code reads: `*.json`, `f"{name}.txt"`, `name + ".golden"`."""
    globs: dict[str, None] = {}
    for pattern in _PATTERN.findall(text):
        glob = _PLACEHOLDER.sub("*", pattern)
        if "." in glob or "*" in pattern:
            globs[f"*{glob}" if glob.startswith(".") else glob] = None
    return (*globs, *(("*",) if _LISTING.search(text) else ()))


@lru_cache(maxsize=128)
def reads_subfolders(text: str) -> bool:
    """Whether code reads files of folders however deep."""
    return _RECURSIVE.search(text) is not None
