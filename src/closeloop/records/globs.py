"""Globs over the paths of a repository: what `scope` and `protected` are written in."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable
from functools import lru_cache


def matches_globs(path: str, globs: Iterable[str]) -> bool:
    """Whether a path, written from the repository's root, is meant by one of the globs.

    `*` and `?` stay within one folder, `**` does not, `[…]` is one of some characters, and the
    plain name of a folder means everything below it.
    """
    return _compile_globs(tuple(globs)).fullmatch(_normalise_path(path)) is not None


def escape_glob(path: str) -> str:
    """A glob that means this path, whatever signs are in it."""
    return re.sub(r"([*?[])", r"[\1]", path)


@lru_cache(maxsize=256)
def _compile_globs(globs: tuple[str, ...]) -> re.Pattern[str]:
    patterns = [_translate_glob(_normalise_path(glob)) for glob in globs if glob]
    return re.compile("|".join(patterns) or r"(?!)", re.DOTALL)


def _normalise_path(path: str) -> str:
    while path.startswith("./"):
        path = path[2:]
    return "" if path == "." else path.strip("/")


def _translate_glob(glob: str) -> str:
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
            expression += _translate_segment(part) + ("" if last else "/")
    # `src/*` must not reach into `src/a/b`, yet `packages/*/tests` means all that is below it.
    return expression if any(sign in parts[-1] for sign in "*?[") else expression + "(?:/.*)?"


def _translate_segment(part: str) -> str:
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
