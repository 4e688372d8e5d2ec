"""Files of Python of which a change alters the layout alone, as a formatter does."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from closeloop.changes.change_sides import ChangeSides
from closeloop.changes.quality.unsafe_code import find_ruff
from closeloop.python_trees import parse_python
from closeloop.records.change import FileChange

RUFF_SECONDS = 60
MAX_PARSED_FILES = 200
"""So many files that ruff formats differently have their syntax trees compared."""
MAX_PARSED_BYTES = 500_000
_WORD = re.compile(rb"\w+")
_LINE_LENGTH = 320
"""The most that ruff takes: the less it wraps, the fewer ways there are to write the same."""
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)

_Ends = tuple[bytes, bytes]


def find_layout_changes(sides: ChangeSides, files: Iterable[FileChange]) -> frozenset[str]:
    """The paths of files that say the same in the same words, comments and all.

    A change of anything else nearly always changes a word, so that it costs nothing to look.
    """
    candidates: dict[str, _Ends] = {}
    imports_split: dict[str, _Ends] = {}
    for file in files:
        # What moved is a change of its own, however little else was done to it.
        if file.path.endswith((".py", ".pyi")) and file.status == "changed":
            before = sides.read("before", file.path)
            after = sides.read("after", file.path)
            if before and after:
                words = _count_words(before), _count_words(after)
                if words[0] == words[1]:
                    candidates[file.path] = before, after
                elif _splits_imports(*words):
                    imports_split[file.path] = before, after
    same = _find_same_formatting(candidates) if candidates else frozenset()
    left = {path: ends for path, ends in candidates.items() if path not in same} | imports_split
    parsed = list(left.items())[:MAX_PARSED_FILES]
    return same | {path for path, ends in parsed if _has_same_syntax(*ends)}


def _count_words(content: bytes) -> Counter[bytes]:
    """In no order, because a formatter may move a comment; it writes `.5` as `0.5` too."""
    words = Counter(_WORD.findall(content.lower()))
    del words[b"0"]
    words[b"rb"] += words.pop(b"br", 0)
    return words


def _splits_imports(before: Counter[bytes], after: Counter[bytes]) -> bool:
    """Whether a module is named more or less often, as by isort, and no word is new or gone."""
    return before.keys() == after.keys() and before[b"import"] != after[b"import"]


def _find_same_formatting(candidates: Mapping[str, _Ends]) -> frozenset[str]:
    """Those that look the same once ruff, which never changes what code does, formatted them."""
    with tempfile.TemporaryDirectory(prefix="closeloop-") as name:
        places: dict[str, tuple[Path, Path]] = {}
        for number, (path, ends) in enumerate(candidates.items()):
            places[path] = Path(name, f"{number}a.py"), Path(name, f"{number}b.py")
            for place, content in zip(places[path], ends, strict=True):
                place.write_bytes(content)
        options = ["--line-length", str(_LINE_LENGTH)]
        options += ["--config", "format.skip-magic-trailing-comma=true"]
        try:
            subprocess.run(
                [find_ruff(), "format", "--isolated", "--no-cache", "--quiet", *options, name],
                capture_output=True,
                timeout=RUFF_SECONDS,
                check=False,
            )
        except (OSError, subprocess.SubprocessError):
            return frozenset()
        return frozenset(
            path for path, (one, other) in places.items() if one.read_bytes() == other.read_bytes()
        )


def _has_same_syntax(before: bytes, after: bytes) -> bool:
    if max(len(before), len(after)) > MAX_PARSED_BYTES:
        return False
    try:
        return _trees_match(parse_python(before), parse_python(after))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def _trees_match(before: ast.AST, after: ast.AST) -> bool:
    """Whether two syntax trees are the same but for places, and docstrings as a reader sees them.

    What is imported from one module in a row counts as one import.
    """
    pairs: list[tuple[object, object]] = [(before, after)]
    while pairs:
        one, other = pairs.pop()
        if one.__class__ is not other.__class__:
            return False
        if isinstance(one, ast.AST):
            _normalise_body(one)
            _normalise_body(other)
            pairs += [
                (getattr(one, name, None), getattr(other, name, None)) for name in one._fields
            ]
        elif isinstance(one, list):
            if len(one) != len(other):  # type: ignore[arg-type]
                return False
            pairs += zip(one, other, strict=True)  # type: ignore[call-overload]
        elif one != other:
            return False
    return True


def _normalise_body(node: object) -> None:
    """Join imports of a block, and strip the docstring that it begins with."""
    body = getattr(node, "body", None)
    if not isinstance(body, list):
        return
    _join_imports(body)
    if isinstance(node, _DOCUMENTED) and body:
        value = body[0].value if isinstance(body[0], ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            value.value = inspect.cleandoc(value.value).strip()


def _join_imports(body: list[ast.stmt]) -> None:
    """`from a import b` and `from a import c` become one statement, with its names in order."""
    for at in range(len(body) - 1, -1, -1):
        one, above = body[at], body[at - 1] if at else None
        if not isinstance(one, ast.ImportFrom):
            continue
        if isinstance(above, ast.ImportFrom) and _module_key(above) == _module_key(one):
            above.names += one.names
            del body[at]
        else:
            one.names.sort(key=lambda name: (name.name, name.asname or ""))


def _module_key(one: ast.ImportFrom) -> tuple[str | None, int]:
    return one.module, one.level
