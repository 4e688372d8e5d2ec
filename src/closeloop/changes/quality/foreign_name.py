"""foreign-name: a new name has another style than the names around it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from closeloop.changes.file_kinds import classify_file
from closeloop.changes.quality.changed_file import (
    ChangedFile,
    group_sources_by_folder,
    list_changed_files,
    list_neighbours,
    make_check_finding,
)
from closeloop.records.change import Inspection, SourceModule
from closeloop.records.finding import Finding, Rule, Unmeasured

rules = (
    Rule(
        name="foreign-name",
        version=1,
        about="A new name has another style than nearly all names of its kind in the repository.",
        severity="warning",
        thresholds={"share": 0.9, "names": 10},
    ),
)

SHARE, NAMES = 0.9, 10
"""Minimum share of a minimum number of names that makes a style."""
MAX_NEIGHBOURS = 8
"""Maximum files beside it that are read if the file has too few names."""

NameSort = Literal["function", "type", "variable"]
_STYLES = {
    "snake_case": re.compile(r"_*[a-z][a-z0-9]*(?:_[a-z0-9]+)+_*"),
    "camelCase": re.compile(r"_*[a-z][a-z0-9]*(?:[A-Z][a-z0-9]*)+"),
    "PascalCase": re.compile(r"_*[A-Z][a-z0-9]+(?:[A-Z][a-z0-9]*)*|_*[A-Z][a-z0-9]*[A-Z][a-z]\w*"),
}
_CASE_SENSITIVE_VISIBILITY = ("go",)
"""Languages where the case of the first letter sets a name's visibility."""


def check(inspection: Inspection) -> Sequence[Finding | Unmeasured]:
    """Check only names that are new to the repository and that nothing outside dictates."""
    files = group_sources_by_folder(inspection)
    return [
        foreign_name
        for file in list_changed_files(inspection, "source")
        for foreign_name in _find_foreign_names(file, files, inspection)
    ]


def _find_foreign_names(
    file: ChangedFile, files: Mapping[str, Sequence[str]], inspection: Inspection
) -> Iterator[Finding]:
    if file.after is None:
        return
    counts: dict[NameSort, Counter[str]] | None = None
    reported: set[str] = set()
    for sort, name, line in _list_coined_names(file, file.after):
        style = _name_style(name, file.after.language)
        if style is None or name in reported or inspection.index.known(name):
            continue
        counts = counts or _count_styles(file, files, inspection)
        usual = _usual_style(counts[sort])
        if usual is None or usual == style or (sort != "type" and style == "PascalCase"):
            continue
        if _is_imposed_name(sort, name, file.line_at(line)):
            continue
        reported.add(name)
        usual_count, total = counts[sort][usual], counts[sort].total()
        yield make_check_finding(
            rules[0],
            f"`{name}` is {style}; {usual_count} of {total} {sort} names here are {usual}.",
            f"{file.path}:{line}",
            confidence=0.9,
        )


def _name_style(name: str, language: str) -> str | None:
    """Return the style of a name; None if it fits several or none."""
    style = next(
        (candidate for candidate, pattern in _STYLES.items() if pattern.fullmatch(name)), None
    )
    return (
        "camelCase" if style == "PascalCase" and language in _CASE_SENSITIVE_VISIBILITY else style
    )


def _list_names(module: SourceModule) -> Iterator[tuple[NameSort, str, int]]:
    """Yield every name that the file defines."""
    own_names = {function.name for function in module.functions} | {
        type_.name for type_ in module.types
    }
    for function in module.functions:
        yield "function", function.name, function.first_line
    for type_ in module.types:
        yield "type", type_.name, type_.first_line
    for name in module.names:
        if name.kind == "definition" and name.receiver is None and name.text not in own_names:
            yield "variable", name.text, name.line


def _list_coined_names(
    file: ChangedFile, module: SourceModule
) -> Iterator[tuple[NameSort, str, int]]:
    """Yield freely chosen names: no overrides, decorated hooks or keys of data."""
    derived_types = {type_.qualified for type_ in module.types if type_.bases}
    hooks = {
        function.name
        for function in module.functions
        if function.decorators or function.qualified.rpartition(".")[0] in derived_types
    }
    for sort, name, line in _list_names(module):
        if line in file.added and name not in hooks and not name.startswith("__"):
            yield sort, name, line


def _is_imposed_name(sort: NameSort, name: str, text: str) -> bool:
    """Return whether the name comes from elsewhere: a text beside it, a key, or one of many."""
    if f"'{name}'" in text or f'"{name}"' in text:
        return True
    return sort == "variable" and any(
        re.match(r"\s*(?::(?!=)|[,}\]])", suffix) for suffix in text.split(name)[1:]
    )


def _count_styles(
    file: ChangedFile, files: Mapping[str, Sequence[str]], inspection: Inspection
) -> dict[NameSort, Counter[str]]:
    """Count styles by sort of name, in the file's other lines, else also in files beside it."""
    counts: dict[NameSort, Counter[str]] = {
        "function": Counter(),
        "type": Counter(),
        "variable": Counter(),
    }
    assert file.after
    for sort, name, line in _list_names(file.after):
        if line not in file.added and (style := _name_style(name, file.after.language)):
            counts[sort][style] += 1
    neighbours = [
        path for path in list_neighbours(file.path, files) if classify_file(path) == "source"
    ]
    for path in neighbours[:MAX_NEIGHBOURS]:
        if all(count.total() >= NAMES for count in counts.values()):
            break
        module = inspection.index.module(path)
        for sort, name, _ in _list_names(module) if module else ():
            if style := _name_style(name, file.after.language):
                counts[sort][style] += 1
    return counts


def _usual_style(counts: Counter[str]) -> str | None:
    total = counts.total()
    if total < NAMES:
        return None
    style, number = counts.most_common(1)[0]
    return style if number >= SHARE * total else None
