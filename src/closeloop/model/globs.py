"""Globs over the paths of a repository: what `scope` and `protected` are written in."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable
from functools import lru_cache


def matches(path: str, globs: Iterable[str]) -> bool:
    """Whether a path, written from the repository's root, is meant by one of the globs.

    `*` and `?` stay within one folder, `**` does not, `[…]` is one of some characters, and the
    plain name of a folder means everything below it.
    """
    return _compiled(tuple(globs)).fullmatch(_plain(path)) is not None


def literal(path: str) -> str:
    """A glob that means this path, whatever signs are in it."""
    return re.sub(r"([*?[])", r"[\1]", path)


@lru_cache(maxsize=256)
def _compiled(globs: tuple[str, ...]) -> re.Pattern[str]:
    patterns = [_expression(_plain(glob)) for glob in globs if glob]
    return re.compile("|".join(patterns) or r"(?!)", re.DOTALL)


def _plain(path: str) -> str:
    while path.startswith("./"):
        path = path[2:]
    return "" if path == "." else path.strip("/")


def _expression(glob: str) -> str:
    if not glob:
        return ".*"
    parts = glob.split("/")
    expression = ""
    for index, part in enumerate(parts):
        last = index == len(parts) - 1
        if parts[index : index + 2] == ["**", "**"]:
            continue
        if part == "**":
            expression += ".+" if last else "(?:[^/]+/)*"
        else:
            expression += _within_folder(part) + ("" if last else "/")
    # `src/*` must not reach into `src/a/b`, yet `packages/*/tests` means all that is below it.
    return expression if any(sign in parts[-1] for sign in "*?[") else expression + "(?:/.*)?"


def _within_folder(part: str) -> str:
    expression, position = "", 0
    while position < len(part):
        sign = part[position]
        position += 1
        if sign == "*":
            expression += "" if expression.endswith("[^/]*") else "[^/]*"
        elif sign == "?":
            expression += "[^/]"
        elif sign == "[" and (end := part.find("]", position + 1)) > 0:
            # `(?s:` and `)\Z` stand around what the standard library makes of the brackets.
            expression += "(?!/)" + fnmatch.translate(part[position - 1 : end + 1])[4:-3]
            position = end + 1
        else:
            expression += re.escape(sign)
    return expression
