"""Calls written as Python, as old versions of OpenHands did: read, never run."""

from __future__ import annotations

import ast
from typing import Any

from closeloop.python_trees import parse_expression, parse_python

MAX_CODE_CHARS = 200_000
_EDITOR = "print(file_editor(**"
_SKILLS: dict[str, tuple[str, tuple[str, ...]]] = {
    "open_file": ("read_file", ("path", "first_line")),
    "create_file": ("create_file", ("path",)),
    "edit_file_by_replace": ("edit_file", ("path", "old_str", "new_str")),
    "insert_content_at_line": ("edit_file", ("path", "insert_line", "new_str")),
    "append_file": ("edit_file", ("path", "new_str")),
    "edit_file_by_line": ("edit_file", ("path", "start", "end", "new_str")),
}
_COMMON_PARAMETERS = {
    "file_name": "path",
    "filename": "path",
    "line_number": "first_line",
    "to_replace": "old_str",
    "new_content": "new_str",
    "content": "new_str",
}


def parse_skill_call(code: str) -> tuple[str, dict[str, Any]] | None:
    """The one call of a known helper that a cell holds, as a tool's name and arguments."""
    name = code.partition("(")[0].strip()
    if name not in _SKILLS or len(code) > MAX_CODE_CHARS:
        return None
    try:
        body = parse_python(code.strip()).body
        call = body[0].value if len(body) == 1 and isinstance(body[0], ast.Expr) else None
        if not isinstance(call, ast.Call):
            return None
        tool, names = _SKILLS[name]
        call_arguments = dict(zip(names, map(ast.literal_eval, call.args), strict=False))
        for keyword in call.keywords:
            key = keyword.arg or ""
            call_arguments[_COMMON_PARAMETERS.get(key, key)] = ast.literal_eval(keyword.value)
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        return None
    return tool, call_arguments


def parse_editor_arguments(code: str) -> dict[str, Any]:
    """What the editor was given, where it was called by way of a cell."""
    if not code.startswith(_EDITOR) or not code.endswith("))") or len(code) > MAX_CODE_CHARS:
        return {}
    try:
        editor_arguments = ast.literal_eval(parse_expression(code[len(_EDITOR) : -2]))
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        return {}
    return (
        editor_arguments
        if isinstance(editor_arguments, dict)
        and all(isinstance(key, str) for key in editor_arguments)
        else {}
    )
