"""Files in which a change leaves what runs as it was: comments, docstrings, versions in CI."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator

import msgspec
from tree_sitter import Node

from closeloop.changes.file_kinds import classify_file, language_of
from closeloop.changes.risk.api.api_members import parse_syntax_root
from closeloop.python_trees import parse_python
from closeloop.records.change import FileChange
from closeloop.records.inspection import ChangeSide, Inspection, Language, SourceModule

MAX_COMPARED_BYTES = 500_000
_HASH_COMMENTS = (
    ".yml",
    ".yaml",
    ".toml",
    ".cfg",
    ".ini",
    ".conf",
    ".sh",
    "dockerfile",
    "makefile",
)
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_WHOLE_COMMENT = re.compile(r"\s*#")
_TRAILING_COMMENT = re.compile(r"\s+#[^'\"]*$")
_VERSION = re.compile(
    r"\b[0-9a-f]{40}\b|(?:\bv)?\d+(?:[.x*]\d*)*(?:-?(?:dev|rc|alpha|beta|nightly)\d*)?"
)
_VERSION_LIST = re.compile(r"(['\"]?\w*-?#['\"]?)(?:\s*,\s*['\"]?\w*-?#['\"]?)+")


def leave_out_unchanged_code(inspection: Inspection) -> Inspection:
    """The change without the files of which only comments, docstrings or layout differ."""
    same = {file.path for file in inspection.files if _has_same_code(inspection, file)}
    # What was only formatted anew is no longer among the files, but still among the change's.
    known = {file.path for file in inspection.files}
    sources = {file.path for file in inspection.change.files if language_of(file.path)}
    same |= {path for path in sources - known if path.endswith((".py", ".pyi"))}
    if not same:
        return inspection
    change = inspection.change
    return msgspec.structs.replace(
        inspection,
        change=msgspec.structs.replace(
            change, files=tuple(file for file in change.files if file.path not in same)
        ),
        files=tuple(file for file in inspection.files if file.path not in same),
        added={path: lines for path, lines in inspection.added.items() if path not in same},
        removed={path: lines for path, lines in inspection.removed.items() if path not in same},
    )


def is_version_bump(inspection: Inspection, path: str) -> bool:
    """Whether a CI file says the same but for versions: of actions, images and interpreters."""
    before, after = (_read_text(inspection, side, path) for side in _SIDES)
    if before is None or after is None:
        return False
    return _without_versions(before) == _without_versions(after)


def _has_same_code(inspection: Inspection, file: FileChange) -> bool:
    if file.status != "changed" or file.old_path not in (None, file.path):
        return False
    # What tests say changes no level: there is no need to parse them.
    if classify_file(file.path) == "test":
        return False
    language = language_of(file.path)
    if language is None and not file.path.lower().endswith(_HASH_COMMENTS):
        return False
    if language is not None and not _has_same_names(inspection, file.path):
        return False
    before, after = (_read_text(inspection, side, file.path) for side in _SIDES)
    if before is None or after is None:
        return False
    if language is None:
        return list(_code_lines(before)) == list(_code_lines(after))
    read: Callable[[str], object] = (
        _dump_python if language == "python" else lambda text: _list_tokens(language, text)
    )
    try:
        return read(before) == read(after)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def _has_same_names(inspection: Inspection, path: str) -> bool:
    """Whether both ends name the same in the same order: else there is no need to compare more."""
    before, after = (inspection.modules.get((side, path)) for side in _SIDES)
    if before is None or after is None or before.broken_lines or after.broken_lines:
        return False
    return _name_sequence(before) == _name_sequence(after)


def _name_sequence(module: SourceModule) -> list[tuple[str, str]]:
    return [(one.text, one.kind) for one in module.names]


def _read_text(inspection: Inspection, side: ChangeSide, path: str) -> str | None:
    content: bytes | None = inspection.sides.read(side, path)
    if content is None or len(content) > MAX_COMPARED_BYTES:
        return None
    return str(content, "utf-8", "replace")


def _dump_python(text: str) -> str:
    """The syntax tree as text, without places and docstrings."""
    tree = parse_python(text)
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and node.body and _is_docstring(node.body[0]):
            node.body = node.body[1:]
    return ast.dump(tree)


def _is_docstring(statement: ast.stmt) -> bool:
    value = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def _list_tokens(language: Language, text: str) -> list[bytes]:
    return [node.text or b"" for node in _walk_leaves(parse_syntax_root(language, text.encode()))]


def _walk_leaves(root: Node) -> Iterator[Node]:
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if "comment" in node.type:
            continue
        if node.children:
            waiting.extend(reversed(node.children))
        else:
            yield node


def _code_lines(text: str) -> Iterator[str]:
    """Lines without comments; a mark inside quotes begins none."""
    for line in text.splitlines():
        if line.strip() and not _WHOLE_COMMENT.match(line):
            yield _TRAILING_COMMENT.sub("", line).rstrip()


def _without_versions(text: str) -> list[str]:
    """What the file says, with a sign for each version; several in a row count as one."""
    lines: list[str] = []
    for line in _code_lines(text):
        plain = _VERSION_LIST.sub(r"\1", _VERSION.sub("#", line))
        if "#" not in plain or not lines or lines[-1] != plain:
            lines.append(plain)
    return lines


_SIDES: tuple[ChangeSide, ChangeSide] = ("before", "after")
