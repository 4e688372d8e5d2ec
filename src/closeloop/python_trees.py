"""Parse Python source, one thread at a time.

Python 3.11 keeps the depth of the tree it is making in one place for all threads: two that parse
at once may both fail with a SystemError.
"""

from __future__ import annotations

import ast
from threading import Lock

_PARSER_LOCK = Lock()


def parse_python(source: str | bytes) -> ast.Module:
    """Return the syntax tree of a module."""
    with _PARSER_LOCK:
        return ast.parse(source)


def parse_expression(source: str) -> ast.expr:
    """Return the syntax tree of an expression."""
    with _PARSER_LOCK:
        return ast.parse(source, mode="eval").body
