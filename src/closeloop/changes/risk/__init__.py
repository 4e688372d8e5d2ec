"""How much may go wrong with a change, and why: likelihood and impact, joined by a stated table."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from closeloop.changes.risk.api import api_changes
from closeloop.changes.risk.coverage import Coverage
from closeloop.changes.risk.dependencies import dependency_changes
from closeloop.changes.risk.dependents import graph_of
from closeloop.changes.risk.factors import (
    api_factors,
    coverage_factor,
    dependency_factors,
    history_factor,
    surface_factor,
)
from closeloop.changes.risk.fit import Model, chance_of, rank_of
from closeloop.changes.risk.history import History, files
from closeloop.changes.risk.labels import is_source
from closeloop.changes.risk.level import level_of, reasons_of
from closeloop.changes.risk.shared import base_class_factor, fan_in_factor, kind_factors
from closeloop.changes.risk.surface import surface_of
from closeloop.model.finding import Unmeasured
from closeloop.model.inspection import Inspection
from closeloop.model.report import Factor, Risk

__all__ = ["assess"]

Told = Iterator[Factor | Unmeasured | None]


def assess(
    inspection: Inspection,
    *,
    history: History | None,
    model: Model,
    coverage: Coverage | Unmeasured | None = None,
) -> Risk:
    """The level of a change with its reasons; a dimension that fails is left out and named."""
    surface = surface_of(inspection)
    rank = rank_of(model, surface.source_added, surface.files)
    factors = [surface_factor(surface, rank, model)]
    unmeasured: list[Unmeasured] = []
    dimensions: dict[str, Callable[[], Told]] = {
        "shared files": lambda: iter(kind_factors(inspection)),
        "dependents": lambda: _reach(inspection),
        "API": lambda: api_factors(api_changes(inspection), inspection.sides),
        "dependencies": lambda: _dependencies(inspection),
        "coverage": lambda: iter((coverage_factor(inspection, coverage),)),
        "history": lambda: _history(inspection, history),
    }
    for name, look in dimensions.items():
        for told in _safely(name, look):
            if isinstance(told, Unmeasured):
                unmeasured.append(told)
            elif told is not None:
                factors.append(told)
    factors.sort(key=lambda factor: -factor.weight)
    level = level_of(rank, factors)
    return Risk(
        level=level,
        reasons=reasons_of(level, factors),
        factors=tuple(factors),
        likelihood=rank,
        chance=chance_of(model, surface.source_added, surface.files),
        unmeasured=tuple(unmeasured),
    )


def _safely(name: str, look: Callable[[], Told]) -> list[Factor | Unmeasured | None]:
    """Hostile sources may break any reader; the other dimensions still count."""
    try:
        return list(look())
    except Exception as error:
        return [Unmeasured(rule=name, reason=f"it could not be read ({type(error).__name__})")]


def _reach(inspection: Inspection) -> Told:
    if not any(is_source(file.path) for file in inspection.files):
        return
    graph = graph_of(inspection.index.imports(), _go_modules(inspection))
    yield fan_in_factor(inspection, graph)
    yield base_class_factor(inspection, graph)


def _go_modules(inspection: Inspection) -> Mapping[str, str]:
    """The folder of each Go module of the repository, by its name."""
    found: dict[str, str] = {}
    sides = inspection.sides
    for path in sides.tree("after"):
        if path == "go.mod" or path.endswith("/go.mod"):
            name = re.search(rb"^module\s+(\S+)", sides.read("after", path) or b"", re.MULTILINE)
            if name:
                found[name[1].decode("utf-8", "replace")] = path.rpartition("/")[0]
    return found


def _dependencies(inspection: Inspection) -> Told:
    asked, unread = dependency_changes(inspection)
    yield from dependency_factors(asked)
    yield from unread


def _history(inspection: Inspection, history: History | None) -> Told:
    if history is None or not history.past:
        why = history.cut if history and history.cut else "the repository has none yet"
        yield Unmeasured(rule="history", reason=why)
        return
    sources = [file for file in inspection.files if is_source(file.path)]
    yield history_factor(files(history, [file.old_path or file.path for file in sources]))
    if history.cut:
        yield Unmeasured(rule="older history", reason=history.cut)
