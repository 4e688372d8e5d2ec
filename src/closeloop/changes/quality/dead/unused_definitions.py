"""Imports, private functions and private types that nothing uses."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import PurePosixPath

from closeloop.changes.quality.changed_file import ChangedFile, list_changed_files
from closeloop.records.inspection import (
    Inspection,
    SourceFunction,
    SourceImport,
    SourceModule,
    SourceType,
)

LineMessage = tuple[int, str]

_WORD = re.compile(r"[A-Za-z_$][\w$]*")
_SCRIPTS = ("javascript", "typescript", "tsx")
_ENTRY_STEMS = frozenset({"__init__", "index", "mod", "lib", "conftest", "main", "apps"})
_PLAIN_DECORATORS = frozenset(
    {"staticmethod", "classmethod", "property", "cached_property", "functools.cache", "cache",
     "functools.lru_cache", "lru_cache", "contextmanager", "contextlib.contextmanager"}
)  # fmt: skip
"""Others may hand the function to somebody."""
_HOOKS = frozenset({"readObject", "writeObject", "readResolve", "writeReplace", "main", "init"})


def count_added_words(inspection: Inspection) -> Counter[str]:
    """Every word of all added lines, in whatever file."""
    words: Counter[str] = Counter()
    for file in list_changed_files(inspection):
        for number in file.added:
            words.update(_WORD.findall(file.line_at(number)))
    return words


def find_unused_definitions(
    file: ChangedFile, module: SourceModule, words: Counter[str], inspection: Inspection
) -> Iterator[LineMessage]:
    """By words, so that what is only spoken of counts as used: what remains is certain."""
    word_counts = Counter(word for line in file.lines for word in _WORD.findall(line[:2000]))
    yield from _unused_imports(file, module, word_counts)
    yield from _unused_definitions(file, module, words, inspection)


def _unused_imports(
    file: ChangedFile, module: SourceModule, here: Counter[str]
) -> Iterator[LineMessage]:
    if module.language in ("go", "rust") or PurePosixPath(file.path).stem in _ENTRY_STEMS:
        # Compilers say it of Go's; in Rust a trait is used without its name.
        return
    old = {(one.module, one.name) for one in file.before.imports} if file.before else set()
    for one in module.imports:
        name = one.alias or one.name or one.module.partition(".")[0]
        own = file.line_at(one.line)
        if one.line not in file.added or (one.module, one.name) in old:
            continue
        if name in ("*", "React") or name.startswith("_") or one.module == "__future__":
            continue
        if not _is_used_locally(one, file, module) or not _WORD.fullmatch(name):
            continue
        if here[name] <= _WORD.findall(own).count(name):
            yield one.line, f"`{name}` is imported and not used."


def _is_used_locally(one: SourceImport, file: ChangedFile, module: SourceModule) -> bool:
    """At the top of the file, and only to be used in it."""
    own = file.line_at(one.line)
    if one.alias == one.name and one.alias is not None:
        return False
    if module.language in _SCRIPTS:
        bound = one.name is not None or one.alias is not None
        return bound and not re.match(r"\s*export\b", own) and not _is_exported(one, file)
    if module.language == "python":
        if "#" in own:
            return False
        for number in range(one.line, max(one.line - 100, 0), -1):
            if re.match(r"\s*(?:from|import)\b", file.line_at(number)):
                return not file.line_at(number)[:1].isspace()
        return False
    return True


def _is_exported(one: SourceImport, file: ChangedFile) -> bool:
    """`export { … } from`, over several lines."""
    above = (file.line_at(number) for number in range(one.line, max(one.line - 100, 0), -1))
    start = next((line for line in above if re.match(r"\s*(?:import|export)\b", line)), "")
    return start.lstrip().startswith("export")


def _unused_definitions(
    file: ChangedFile, module: SourceModule, words: Counter[str], inspection: Inspection
) -> Iterator[LineMessage]:
    if module.language in _SCRIPTS and not (
        module.imports or any("export" in x for x in file.lines)
    ):
        # A script of a page: its functions may be called from there.
        return
    free = [one for one in module.functions if _is_free(one, module)]
    alone = [one for one in module.types if not one.bases]
    every: list[SourceFunction | SourceType] = [*free, *alone]
    for one in every:
        if (
            one.public
            or one.first_line not in file.added
            or not _has_own_declaration(one, file, module)
        ):
            continue
        inside = range(one.first_line, one.last_line + 1)
        own = sum(
            _WORD.findall(file.line_at(number)).count(one.name)
            for number in inside
            if number in file.added
        )
        if words[one.name] <= own and not _is_mentioned_elsewhere(one.name, words, inspection):
            yield one.first_line, f"Nothing uses `{one.qualified}`."


def _has_own_declaration(
    one: SourceFunction | SourceType, file: ChangedFile, module: SourceModule
) -> bool:
    """Named by a declaration of its own, and by nobody's convention."""
    name, line = one.name, file.line_at(one.first_line)
    if name.startswith("__") or name in _HOOKS or not _WORD.fullmatch(name):
        return False
    if module.language in _SCRIPTS:
        return bool(
            re.search(rf"\b(?:function\*?|const|let|var|class)\s+{re.escape(name)}\b", line)
        )
    if module.language == "java":
        return "private " in line
    if module.language == "rust":
        return one.qualified == name
    return True


def _is_free(function: SourceFunction, module: SourceModule) -> bool:
    """Neither registered by a decorator nor asked for by a class above."""
    plain = {one.partition("(")[0] for one in function.decorators} <= _PLAIN_DECORATORS
    owner = function.qualified.rpartition(".")[0]
    above = next((one for one in module.types if one.qualified == owner), None)
    return plain and not (above and above.bases)


def _is_mentioned_elsewhere(name: str, words: Counter[str], inspection: Inspection) -> bool:
    """Named elsewhere; or put together there: `_do_` is enough for `_do_get`."""
    parts = [name[: at + 1] for at, letter in enumerate(name[:-1]) if letter == "_" and at > 0]
    return any(inspection.index.known(one) for one in (name, *parts)) or any(
        words[part] for part in parts
    )
