"""Shared infrastructure: files whose faults reach far beyond their own feature."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from closeloop.changes.kinds import is_test, kind_of
from closeloop.changes.risk.dependents import Graph
from closeloop.changes.risk.labels import is_source
from closeloop.model.inspection import Index, Inspection, Module, Type
from closeloop.model.plural import plural
from closeloop.model.report import Factor

QUANTILE = 0.95
FEWEST = 10
DERIVED = 3
"""A file is shared when so many files import it, and more than import nearly all others; a class
when so many others derive from it."""
_TOOLING = re.compile(
    r"(?:^|/)(?:\.editorconfig|\.gitignore|\.gitattributes|\.pre-commit-config\.yaml|\.prettier.*|"
    r"\.eslint.*|eslint\.config\.\w+|ruff\.toml|\.flake8|mypy\.ini|tox\.ini|noxfile\.py|\.pylintrc|"
    r"\.golangci\.ya?ml|\.dockerignore|\.npmignore|codecov\.ya?ml|\.codecov\.yml|\.readthedocs\.ya?ml|"
    r"mkdocs\.yml|jest\.config\.\w+|vitest\.config\.\w+|codeowners|justfile|makefile|\.mailmap|"
    r"\.github/(?:dependabot\.yml|issue_template/.*|funding\.yml|.*template.*))$",
    re.IGNORECASE,
)
_SAID = {
    "ci": "changes CI/CD",
    "schema": "changes a schema",
    "migration": "adds or changes a migration",
    "config": "changes configuration",
    "tooling": "changes the setup of tools",
}
_WHY = {"ci": "; no test covers what runs there, and it may reach secrets"}
_WEIGHTS = {"ci": 3.4, "schema": 3.8, "migration": 3.7, "config": 2.1, "tooling": 0.5}


def kind_factors(inspection: Inspection) -> Iterator[Factor]:
    """CI/CD, schemas, migrations and configuration, by the kind of file."""
    places: dict[str, list[str]] = {}
    for file in inspection.change.files:
        kind: str = kind_of(file.path)
        if kind == "config" and _TOOLING.search(file.path):
            kind = "tooling"
        if kind in _SAID and (file.added or file.removed or file.binary):
            places.setdefault(kind, []).append(file.path)
    for kind, paths in places.items():
        yield Factor(
            name=kind,
            axis="impact",
            text=f"{_SAID[kind]}: {listed(paths)}{_WHY.get(kind, '')}",
            weight=_WEIGHTS[kind],
            value=float(len(paths)),
            places=tuple(paths[:5]),
        )


def fan_in_factor(inspection: Inspection, graph: Graph) -> Factor | None:
    """How many files import what was changed; a shared utility where that is unusually many."""
    sources = [file.path for file in inspection.files if is_source(file.path)]
    changed = {file.path for file in inspection.files}
    reached = {one for path in sources for one in graph.get(path, ()) if one not in changed}
    if not reached:
        return None
    bound = shared_from(graph)
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
        text = f"{plural(len(reached), 'file')} {verb} what it changes"
        weight = 1.2 if len(reached) >= 5 else 0.6
    return Factor(
        name="dependents",
        axis="impact",
        text=text,
        weight=weight,
        value=float(len(reached)),
        places=tuple(sorted(reached)[:5]),
    )


def shared_from(graph: Graph) -> int:
    """From how many importers on a file is shared by the whole repository."""
    counts = sorted(len(importers) for importers in graph.values())
    return max(FEWEST, counts[int(len(counts) * QUANTILE)]) if counts else FEWEST


def base_class_factor(inspection: Inspection, graph: Graph) -> Factor | None:
    """Classes that others derive from, where the change touches their lines."""
    index: Index = inspection.index
    derived: dict[str, list[str]] = {}
    for file in inspection.files:
        before = inspection.modules.get(("before", file.old_path or file.path))
        if before is None or is_test(file.path):
            continue
        touched = {
            one.name for one in _touched(before, inspection.removed, file.old_path or file.path)
        }
        after = inspection.modules.get(("after", file.path))
        touched |= (
            {one.name for one in _touched(after, inspection.added, file.path)} if after else set()
        )
        touched &= {one.name for one in before.types}
        for importer in sorted(graph.get(file.path, ()))[:200] if touched else ():
            module = index.module(importer) if not is_test(importer) else None
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
    return Factor(
        name="base class",
        axis="impact",
        text=f"changes the base class `{most}`, from which"
        f" {plural(number, 'class', 'classes')} elsewhere {verb}",
        weight=2.4 if number >= DERIVED else 1.3,
        value=float(sum(map(len, derived.values()))),
        places=tuple(derived[most][:5]),
    )


def _touched(module: Module, lines: Mapping[str, frozenset[int]], path: str) -> Iterator[Type]:
    changed = lines.get(path, frozenset())
    for one in module.types:
        if any(one.first_line <= line <= one.last_line for line in changed):
            yield one


def listed(paths: list[str]) -> str:
    """`a.sql`, or `a.sql and 2 more`."""
    return paths[0] if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"
