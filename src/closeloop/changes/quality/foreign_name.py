"""foreign-name: a new name is written in another style than the names around it."""

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
"""So large a part of so many names makes a style."""
MAX_NEIGHBOURS = 8
"""So many files beside it are asked where the file itself has too few names."""

NameSort = Literal["function", "type", "variable"]
_STYLES = {
    "snake_case": re.compile(r"_*[a-z][a-z0-9]*(?:_[a-z0-9]+)+_*"),
    "camelCase": re.compile(r"_*[a-z][a-z0-9]*(?:[A-Z][a-z0-9]*)+"),
    "PascalCase": re.compile(r"_*[A-Z][a-z0-9]+(?:[A-Z][a-z0-9]*)*|_*[A-Z][a-z0-9]*[A-Z][a-z]\w*"),
}
_CASE_SENSITIVE_VISIBILITY = ("go",)
"""Languages where the first letter says who may use a name, not how it is written."""


def check(inspection: Inspection) -> Sequence[Finding | Unmeasured]:
    """Only names that nothing else in the repository has, and that nothing outside dictates."""
    files = group_sources_by_folder(inspection)
    return [
        one
        for file in list_changed_files(inspection, "source")
        for one in _find_foreign_names(file, files, inspection)
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
    """None where a name fits several styles, or none."""
    style = next((one for one, pattern in _STYLES.items() if pattern.fullmatch(name)), None)
    return (
        "camelCase" if style == "PascalCase" and language in _CASE_SENSITIVE_VISIBILITY else style
    )


def _list_names(module: SourceModule) -> Iterator[tuple[NameSort, str, int]]:
    """Everything that the file gives a name to."""
    own = {one.name for one in module.functions} | {one.name for one in module.types}
    for function in module.functions:
        yield "function", function.name, function.first_line
    for type_ in module.types:
        yield "type", type_.name, type_.first_line
    for name in module.names:
        if name.kind == "definition" and name.receiver is None and name.text not in own:
            yield "variable", name.text, name.line


def _list_coined_names(
    file: ChangedFile, module: SourceModule
) -> Iterator[tuple[NameSort, str, int]]:
    """Names that were free to choose: no overrides, no decorated hooks, no keys of data."""
    fixed = {one.qualified for one in module.types if one.bases}
    hooks = {
        one.name
        for one in module.functions
        if one.decorators or one.qualified.rpartition(".")[0] in fixed
    }
    for sort, name, line in _list_names(module):
        if line in file.added and name not in hooks and not name.startswith("__"):
            yield sort, name, line


def _is_imposed_name(sort: NameSort, name: str, text: str) -> bool:
    """Written as a text beside it, or a key, or one of many names that come from elsewhere."""
    if f"'{name}'" in text or f'"{name}"' in text:
        return True
    return sort == "variable" and any(
        re.match(r"\s*(?::(?!=)|[,}\]])", rest) for rest in text.split(name)[1:]
    )


def _count_styles(
    file: ChangedFile, files: Mapping[str, Sequence[str]], inspection: Inspection
) -> dict[NameSort, Counter[str]]:
    """Styles by the sort of name: of the file's other lines, else with the files beside it."""
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
