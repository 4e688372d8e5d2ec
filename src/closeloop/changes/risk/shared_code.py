"""Shared infrastructure: files whose faults reach far beyond their own feature."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from closeloop.changes.file_kinds import classify_file, is_test_file
from closeloop.changes.risk.defect_labels import is_product_source
from closeloop.changes.risk.import_graph import ImportGraph
from closeloop.records.change_report import RiskFactor
from closeloop.records.inspection import Inspection, SourceIndex, SourceModule, SourceType
from closeloop.records.plural import count_with_noun

SHARED_QUANTILE = 0.95
MIN_IMPORTERS = 10
MIN_DERIVED_CLASSES = 3
"""A file is shared when so many files import it, and more than import nearly all others; a class
when so many others derive from it."""
_TOOLING_PATHS = re.compile(
    r"(?:^|/)(?:\.editorconfig|\.gitignore|\.gitattributes|\.pre-commit-config\.yaml|\.prettier.*|"
    r"\.eslint.*|eslint\.config\.\w+|ruff\.toml|\.flake8|mypy\.ini|tox\.ini|noxfile\.py|\.pylintrc|"
    r"\.golangci\.ya?ml|\.dockerignore|\.npmignore|codecov\.ya?ml|\.codecov\.yml|\.readthedocs\.ya?ml|"
    r"mkdocs\.yml|jest\.config\.\w+|vitest\.config\.\w+|codeowners|justfile|makefile|\.mailmap|"
    r"\.github/(?:dependabot\.yml|issue_template/.*|funding\.yml|.*template.*))$",
    re.IGNORECASE,
)
_KIND_TEXTS = {
    "ci": "changes CI/CD",
    "schema": "changes a schema",
    "migration": "adds or changes a migration",
    "config": "changes configuration",
    "tooling": "changes the setup of tools",
}
_KIND_REASONS = {"ci": "; no test covers what runs there, and it may reach secrets"}
_KIND_WEIGHTS = {"ci": 3.4, "schema": 3.8, "migration": 3.7, "config": 2.1, "tooling": 0.5}


def kind_factors(inspection: Inspection) -> Iterator[RiskFactor]:
    """CI/CD, schemas, migrations and configuration, by the kind of file."""
    places: dict[str, list[str]] = {}
    for file in inspection.change.files:
        kind: str = classify_file(file.path)
        if kind == "config" and _TOOLING_PATHS.search(file.path):
            kind = "tooling"
        if kind in _KIND_TEXTS and (file.added or file.removed or file.binary):
            places.setdefault(kind, []).append(file.path)
    for kind, paths in places.items():
        yield RiskFactor(
            name=kind,
            axis="impact",
            text=f"{_KIND_TEXTS[kind]}: {summarise_paths(paths)}{_KIND_REASONS.get(kind, '')}",
            weight=_KIND_WEIGHTS[kind],
            value=float(len(paths)),
            places=tuple(paths[:5]),
        )


def fan_in_factor(inspection: Inspection, graph: ImportGraph) -> RiskFactor | None:
    """How many files import what was changed; a shared utility where that is unusually many."""
    sources = [file.path for file in inspection.files if is_product_source(file.path)]
    changed = {file.path for file in inspection.files}
    reached = {one for path in sources for one in graph.get(path, ()) if one not in changed}
    if not reached:
        return None
    bound = shared_threshold(graph)
    # The face of a package is imported by everybody, and holds little that can break.
    shared = [
        path
        for path in sources
        if len(graph.get(path, ())) >= bound and not path.endswith("__init__.py")
    ]
    if shared:
        most = max(shared, key=lambda path: len(graph[path]))
        text = f"changes shared code: {len(graph[most])} files import {most}"
        weight = 2.5
    else:
        verb = "imports" if len(reached) == 1 else "import"
        text = f"{count_with_noun(len(reached), 'file')} {verb} what it changes"
        weight = 1.2 if len(reached) >= 5 else 0.6
    return RiskFactor(
        name="dependents",
        axis="impact",
        text=text,
        weight=weight,
        value=float(len(reached)),
        places=tuple(sorted(reached)[:5]),
    )


def shared_threshold(graph: ImportGraph) -> int:
    """From how many importers on a file is shared by the whole repository."""
    counts = sorted(len(importers) for importers in graph.values())
    return (
        max(MIN_IMPORTERS, counts[int(len(counts) * SHARED_QUANTILE)]) if counts else MIN_IMPORTERS
    )


def base_class_factor(inspection: Inspection, graph: ImportGraph) -> RiskFactor | None:
    """Classes that others derive from, where the change touches their lines."""
    index: SourceIndex = inspection.index
    derived: dict[str, list[str]] = {}
    for file in inspection.files:
        before = inspection.modules.get(("before", file.old_path or file.path))
        if before is None or is_test_file(file.path):
            continue
        touched = {
            one.name
            for one in _touched_types(before, inspection.removed, file.old_path or file.path)
        }
        after = inspection.modules.get(("after", file.path))
        touched |= (
            {one.name for one in _touched_types(after, inspection.added, file.path)}
            if after
            else set()
        )
        touched &= {one.name for one in before.types}
        for importer in sorted(graph.get(file.path, ()))[:200] if touched else ():
            module = index.module(importer) if not is_test_file(importer) else None
            for one in module.types if module else ():
                for base in {
                    each.rpartition(".")[2].partition("[")[0] for each in one.bases
                } & touched:
                    derived.setdefault(base, []).append(f"{importer}:{one.first_line}")
    if not derived:
        return None
    most = max(derived, key=lambda name: len(derived[name]))
    number = len(derived[most])
    verb = "derives" if number == 1 else "derive"
    return RiskFactor(
        name="base class",
        axis="impact",
        text=f"changes the base class `{most}`, from which"
        f" {count_with_noun(number, 'class', 'classes')} elsewhere {verb}",
        weight=2.4 if number >= MIN_DERIVED_CLASSES else 1.3,
        value=float(sum(map(len, derived.values()))),
        places=tuple(derived[most][:5]),
    )


def _touched_types(
    module: SourceModule, lines: Mapping[str, frozenset[int]], path: str
) -> Iterator[SourceType]:
    changed = lines.get(path, frozenset())
    for one in module.types:
        if any(one.first_line <= line <= one.last_line for line in changed):
            yield one


def summarise_paths(paths: list[str]) -> str:
    """`a.sql`, or `a.sql and 2 more`."""
    return paths[0] if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"
