"""Values and parameters of a function that it never reads."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from closeloop.changes.quality.changed_file import ChangedFile, OldFunctions, find_old_function
from closeloop.records.inspection import SourceFunction, SourceModule
from closeloop.records.record import Record

LineMessage = tuple[int, str]

_WORD = re.compile(r"[A-Za-z_$][\w$]*")
_ASSIGNED_NAME = r"([A-Za-z_$][\w$]*)\s*(?::[^=]{1,60})?=(?![=>])"
_SCRIPT_ASSIGNMENT = re.compile(r"\s*(?:const|let|var)\s+" + _ASSIGNED_NAME)
_PYTHON_ASSIGNMENT = re.compile(r"\s*" + _ASSIGNED_NAME)
_READS_ALL = frozenset({"locals", "vars", "eval", "exec", "global", "arguments"})
_STUB = re.compile(r"pass$|\.\.\.$|raise NotImplementedError|return NotImplemented|.*\"\"\"$")


class _ModuleUses(Record):
    """How the names of a file are used."""

    given: frozenset[tuple[int, str]]
    """Where each gets a value."""
    values: frozenset[str]
    """Those that are handed around, not only called."""
    in_types: frozenset[int]
    """Lines of types, whose fields may be read from elsewhere."""


def find_unused_locals(
    file: ChangedFile, module: SourceModule, before: OldFunctions
) -> Iterator[LineMessage]:
    """What is named just once in its function, where it gets its value, is never read."""
    if module.language in ("go", "java", "rust"):
        # Their compilers and linters say it, as they build.
        return
    uses: _ModuleUses | None = None
    for function in module.functions:
        inside = range(function.first_line, function.last_line + 1)
        if file.added.isdisjoint(inside):
            continue
        uses = uses or _collect_uses(module)
        words = Counter(word for number in inside for word in _WORD.findall(file.line_at(number)))
        if _READS_ALL.isdisjoint(words):
            yield from _unused_variables(file, function, words, uses)
            if module.language == "python":
                yield from _unused_parameters(file, function, words, uses, before)


def _collect_uses(module: SourceModule) -> _ModuleUses:
    return _ModuleUses(
        given=frozenset((one.line, one.text) for one in module.names if one.kind == "definition"),
        values=frozenset(
            one.text for one in module.names if one.kind not in ("call", "definition")
        ),
        in_types=frozenset(
            number for one in module.types for number in range(one.first_line, one.last_line + 1)
        ),
    )


def _unused_variables(
    file: ChangedFile, function: SourceFunction, words: Counter[str], uses: _ModuleUses
) -> Iterator[LineMessage]:
    pattern = (
        _PYTHON_ASSIGNMENT if file.path.endswith((".py", ".pyi", ".pyw")) else _SCRIPT_ASSIGNMENT
    )
    is_method = function.first_line in uses.in_types
    for number in range(function.first_line + 1, function.last_line + 1):
        match = pattern.match(file.line_at(number)) if number in file.added else None
        if match is None or words[match[1]] > 1 or match[1].startswith("_"):
            continue
        if (number, match[1]) not in uses.given or match[1] in map(
            _parameter_name, function.parameters
        ):
            continue
        if is_method or number not in uses.in_types:
            yield number, f"`{match[1]}` is given a value and not used."


def _unused_parameters(
    file: ChangedFile,
    function: SourceFunction,
    words: Counter[str],
    uses: _ModuleUses,
    past: OldFunctions,
) -> Iterator[LineMessage]:
    """New in a plain function that is only ever called: nobody else dictates them."""
    if "." in function.qualified or function.decorators or function.name in uses.values:
        return
    before = find_old_function(past, file, function)
    if (before is None and function.public) or _STUB.match(
        file.line_at(function.last_line).strip()
    ):
        return
    old = set(map(_parameter_name, before.parameters)) if before else set()
    for name in map(_parameter_name, function.parameters):
        if name and name not in old and words[name] == 1:
            yield function.first_line, f"`{function.name}` does not use its parameter `{name}`."


def _parameter_name(parameter: str) -> str | None:
    """Its name; None for those that gather others, or say by `_` that they are not used."""
    match = re.match(r"[A-Za-z]\w*", parameter)
    return match[0] if match and match[0] not in ("self", "cls", "args", "kwargs") else None
