"""How much may go wrong with a change, and why: likelihood and impact, joined by a stated table."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from closeloop.changes.coverage import Coverage
from closeloop.changes.risk.api import find_api_changes
from closeloop.changes.risk.change_history import History, list_file_histories, measure_change_size
from closeloop.changes.risk.dependencies import find_dependency_changes
from closeloop.changes.risk.git_log import is_product_source
from closeloop.changes.risk.import_graph import (
    base_class_factor,
    build_import_graph,
    fan_in_factor,
    kind_factors,
)
from closeloop.changes.risk.online_packages import AGE_RULE
from closeloop.changes.risk.risk_factors import (
    added_api_factor,
    api_factors,
    coverage_factor,
    dependency_factors,
    history_factor,
    surface_factor,
)
from closeloop.changes.risk.risk_matrix import (
    determine_risk_level,
    explain_level,
    impact_row,
    risk_reasons,
)
from closeloop.changes.risk.risk_model import RiskModel, estimate_chance, rank_change
from closeloop.changes.risk.unchanged_code import leave_out_unchanged_code
from closeloop.records.change import (
    Risk,
    RiskFactor,
)
from closeloop.records.finding import Unmeasured
from closeloop.records.inspection import (
    Inspection,
)
from closeloop.records.settings import CheckSettings

__all__ = ["assess_risk"]

FactorStream = Iterator[RiskFactor | Unmeasured | None]


def assess_risk(
    inspection: Inspection,
    *,
    history: History | None,
    model: RiskModel,
    coverage: Coverage | Unmeasured | None = None,
    cache: Path | None = None,
) -> Risk:
    """The level of a change with its reasons; a dimension that fails is left out and named."""
    settings = inspection.settings or CheckSettings()
    touched = len(inspection.change.files)
    inspection = leave_out_unchanged_code(inspection)
    surface = measure_change_size(inspection)
    rank = rank_change(model, surface.source_added, surface.files)
    factors = [surface_factor(surface, rank, model, touched)]
    unmeasured: list[Unmeasured] = []
    dimensions: dict[str, Callable[[], FactorStream]] = {
        "shared files": lambda: iter(kind_factors(inspection)),
        "dependents": lambda: _dependent_factors(inspection),
        "API": lambda: api_factors(find_api_changes(inspection), inspection.sides),
        "added API": lambda: iter((added_api_factor(inspection),)),
        "dependencies": lambda: _dependency_factors(inspection, settings, cache),
        "coverage": lambda: iter((coverage_factor(inspection, coverage),)),
        "history": lambda: _history_factors(inspection, history),
    }
    for name, look in dimensions.items():
        for factor in _run_dimension(name, look):
            if isinstance(factor, Unmeasured):
                unmeasured.append(factor)
            elif factor is not None:
                factors.append(factor)
    factors.sort(key=lambda factor: -factor.weight)
    level = determine_risk_level(rank, factors, settings)
    chance = estimate_chance(model, surface.source_added, surface.files)
    row = impact_row(factors, settings.risk_rows)
    return Risk(
        level=level,
        reasons=risk_reasons(level, factors),
        factors=tuple(factors),
        likelihood=rank,
        chance=chance,
        note=explain_level(level, row, model.held, chance),
        unmeasured=tuple(unmeasured),
    )


def _run_dimension(
    name: str, look: Callable[[], FactorStream]
) -> list[RiskFactor | Unmeasured | None]:
    """Hostile sources may break any reader; the other dimensions still count."""
    try:
        return list(look())
    except Exception as error:
        return [Unmeasured(rule=name, reason=f"it could not be read ({type(error).__name__})")]


def _dependent_factors(inspection: Inspection) -> FactorStream:
    if not any(is_product_source(file.path) for file in inspection.files):
        return
    graph = build_import_graph(inspection.index.imports(), _go_modules(inspection))
    yield fan_in_factor(inspection, graph)
    yield base_class_factor(inspection, graph)


def _go_modules(inspection: Inspection) -> Mapping[str, str]:
    """The folder of each Go module of the repository, by its name."""
    folders: dict[str, str] = {}
    sides = inspection.sides
    for path in sides.tree("after"):
        if path == "go.mod" or path.endswith("/go.mod"):
            name = re.search(rb"^module\s+(\S+)", sides.read("after", path) or b"", re.MULTILINE)
            if name:
                folders[name[1].decode("utf-8", "replace")] = path.rpartition("/")[0]
    return folders


def _dependency_factors(
    inspection: Inspection, settings: CheckSettings, cache: Path | None
) -> FactorStream:
    changes, unread = find_dependency_changes(inspection, cache)
    yield from dependency_factors(changes)
    yield from unread
    if not settings.online and any(one.new and one.package for one in changes):
        reason = "not known, as nothing is asked over the network; `check.online` allows it"
        yield Unmeasured(rule=AGE_RULE, reason=reason)


def _history_factors(inspection: Inspection, history: History | None) -> FactorStream:
    if history is None or not history.past:
        why = history.cut if history and history.cut else "the repository has none yet"
        yield Unmeasured(rule="history", reason=why)
        return
    sources = [file for file in inspection.files if is_product_source(file.path)]
    yield history_factor(
        list_file_histories(history, [file.old_path or file.path for file in sources])
    )
    if history.cut:
        yield Unmeasured(rule="older history", reason=history.cut)
