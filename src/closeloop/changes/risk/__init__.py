"""The risk of a change: likelihood and impact, combined by a published table."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from closeloop.changes.affected_tests import Coverage, find_runnable_lines
from closeloop.changes.change_sides import ChangeSides
from closeloop.changes.file_kinds import classify_file, language_of
from closeloop.changes.risk.api_changes import ApiChange, find_added_names, find_api_changes
from closeloop.changes.risk.change_history import (
    ChangeSize,
    FileHistory,
    History,
    is_product_source,
    list_file_histories,
    measure_change_size,
)
from closeloop.changes.risk.dependencies import DependencyChange, find_dependency_changes
from closeloop.changes.risk.import_graph import (
    base_class_factor,
    build_import_graph,
    fan_in_factor,
    kind_factors,
    leave_out_unchanged_code,
    summarise_paths,
)
from closeloop.changes.risk.online_packages import AGE_RULE
from closeloop.changes.risk.risk_model import (
    BANDS,
    RiskModel,
    describe_size_effect,
    determine_risk_level,
    estimate_chance,
    explain_level,
    impact_row,
    likelihood_band,
    rank_change,
    risk_reasons,
)
from closeloop.records.change import FileChange, Inspection, Risk, RiskFactor
from closeloop.records.finding import Unmeasured
from closeloop.records.settings import CheckSettings
from closeloop.text.wording import count_with_noun, format_percent

# Each dimension of risk as a factor: a description and a weight.


_SURFACE_SCALE = 0.74
"""Keeps size, however large, below factors that break something: those explain the level."""
_MAX_MISSED_SHARE = 0.5
_MIN_MISSED_LINES = 5
"""Minimum uncovered lines; fewer count as few, whatever their share."""
_MAX_SHOWN = 3
_MIN_PAST_CHANGES = 5
"""Minimum changes of a file without a fix; fewer say nothing about it."""


def surface_factor(
    surface: ChangeSize, rank: float, model: RiskModel, file_count: int
) -> RiskFactor:
    """Return size as a rank among past changes: the likelihood. `file_count` counts unchanged code
    too."""
    band = [name for name, _ in BANDS].index(likelihood_band(rank))
    if surface.source_added is not None:
        text = (
            f"adds {count_with_noun(surface.source_added, 'line')} to source files, in"
            f" {count_with_noun(surface.files, 'file')} of"
            f" {count_with_noun(surface.modules, 'module')}; {_describe_rank(rank, model)}"
        )
    elif file_count > surface.files:
        others = count_with_noun(surface.files, "other file")
        beside = f" beside {others} that {'is' if surface.files == 1 else 'are'} no source"
        text = (
            "changes only comments, docstrings, layout or generated files"
            f"{beside if surface.files else ''}, so little can break"
        )
    else:
        files = count_with_noun(surface.files, "file")
        text = f"touches no source files ({files} changed), so little can break"
    return RiskFactor(
        name="surface",
        axis="likelihood",
        text=text,
        weight=_SURFACE_SCALE * (band + rank),
        value=float(surface.added),
    )


def _describe_rank(rank: float, model: RiskModel) -> str:
    """Describe how large the change is, and what that means."""
    among = f"the {model.past:,} past changes here" if model.past else "changes in other projects"
    is_small = likelihood_band(rank) == "small"
    exceeded = 1 - rank if is_small else rank
    share = "nearly all" if exceeded > 0.995 else format_percent(exceeded)
    effect = describe_size_effect(model, is_small=is_small)
    text = f"{share} of {among} add {'as many lines or more' if is_small else 'fewer lines'}"
    return f"{text}, and {effect}" if effect else text


def api_factors(changes: Sequence[ApiChange], sides: ChangeSides) -> Iterator[RiskFactor]:
    """Yield API changes that break callers, and those that callers only notice."""
    breaks = [change for change in changes if change.breaking]
    softer = [change for change in changes if not change.breaking]
    if breaks:
        is_internal = all(
            not is_published(sides, change.place.rpartition(":")[0]) for change in breaks
        )
        breaking = "callers elsewhere can break"
        if is_internal:
            breaking = "only callers in this repository can break, as nothing here is published"
        yield RiskFactor(
            name="breaking API",
            axis="impact",
            text=f"{_join_api_changes(breaks)}; {breaking}",
            weight=2.7 if is_internal else 3.9,
            value=float(len(breaks)),
            places=tuple(change.place for change in breaks[:5]),
        )
    if softer:
        yield RiskFactor(
            name="API",
            axis="impact",
            text=f"{_join_api_changes(softer)}; existing calls still work",
            weight=2.2,
            value=float(len(softer)),
            places=tuple(change.place for change in softer[:5]),
        )


def added_api_factor(inspection: Inspection) -> RiskFactor | None:
    """Return new names that others may come to rely on, if others can install them."""
    names = {
        name: place
        for name, place in find_added_names(inspection).items()
        if is_published(inspection.sides, place.rpartition(":")[0])
    }
    if not names:
        return None
    first, suffix = next(iter(names)), f" and {len(names) - 1} more" if len(names) > 1 else ""
    return RiskFactor(
        name="added API",
        axis="impact",
        text=f"adds `{first}`{suffix} to the API, on which others may come to rely",
        weight=2.0,
        value=float(len(names)),
        places=tuple(names.values())[:5],
    )


def is_published(sides: ChangeSides, path: str) -> bool:
    """Return whether others may install what the file belongs to."""
    language = language_of(path)
    names = {
        "python": ("pyproject.toml", "setup.py", "setup.cfg"),
        "rust": ("Cargo.toml",),
        "javascript": ("package.json",),
        "typescript": ("package.json",),
        "tsx": ("package.json",),
    }.get(language or "")
    if names is None:
        return True
    folder = path
    while folder:
        folder = folder.rpartition("/")[0]
        for name in names:
            content = sides.read("before", f"{folder}/{name}" if folder else name)
            if content is not None:
                private = rb"Private :: Do Not Upload|\"private\"\s*:\s*true|^publish\s*=\s*false"
                return not re.search(private, content, re.MULTILINE)
    return False


def dependency_factors(changes: Sequence[DependencyChange]) -> Iterator[RiskFactor]:
    """Yield new dependencies, and changed versions of existing ones."""
    for change in changes:
        if change.new and change.warnings:
            yield RiskFactor(
                name="new dependency",
                axis="impact",
                text=f"{change.text}: {'; '.join(change.warnings)}",
                weight=2.8,
                places=(change.path,),
            )
    plain = [change for change in changes if change.new and not change.warnings]
    if plain:
        suffix = f" and {len(plain) - 1} more" if len(plain) > 1 else ""
        yield RiskFactor(
            name="new dependency",
            axis="impact",
            text=f"{plain[0].text}{suffix}, whose code then runs with yours",
            weight=2.3,
            value=float(len(plain)),
            places=tuple(sorted({change.path for change in plain})),
        )
    bumped = [change for change in changes if not change.new]
    if bumped:
        suffix = f" and {len(bumped) - 1} more" if len(bumped) > 1 else ""
        warning_text = "".join(
            f": {warning}" for change in bumped[:1] for warning in change.warnings[:1]
        )
        yield RiskFactor(
            name="bumped dependency",
            axis="impact",
            text=f"{bumped[0].text}{suffix}, which may behave differently{warning_text}",
            weight=2.2 if any(change.warnings for change in bumped) else 2.0,
            value=float(len(bumped)),
            places=tuple(sorted({change.path for change in bumped})),
        )


def coverage_factor(
    inspection: Inspection, coverage: Coverage | Unmeasured | None
) -> RiskFactor | Unmeasured | None:
    """Return changed lines that no test reaches."""
    files = [file for file in inspection.files if _can_be_covered(file, inspection)]
    if not files:
        return None
    if coverage is None:
        return Unmeasured(rule="coverage", reason="there is no data; check.coverage measures it")
    if isinstance(coverage, Unmeasured):
        return coverage
    covered, missed, places, stale = 0, 0, [], []
    for file in files:
        lines = inspection.added[file.path]
        if file.path in coverage.stale:
            stale.append(file.path)
            continue
        file_coverage = coverage.files.get(file.path)
        content = inspection.sides.read("after", file.path) or b""
        can_run = find_runnable_lines(content) if language_of(file.path) == "python" else lines
        if file_coverage is None:
            missed_lines = lines & can_run
        else:
            missed_lines = lines & (
                file_coverage.missed
                if file_coverage.missed is not None
                else can_run - file_coverage.covered
            )
            covered += len(lines & file_coverage.covered)
        missed += len(missed_lines)
        places += [f"{file.path}:{line}" for line in sorted(missed_lines)[:_MAX_SHOWN]]
    if stale:
        reason = f"{coverage.source} is older than {summarise_paths(stale)}: measure again"
        return Unmeasured(rule="coverage", reason=reason)
    if not covered + missed:
        return None
    low = missed / (covered + missed) > _MAX_MISSED_SHARE and missed >= _MIN_MISSED_LINES
    text = f"tests cover every changed executable line ({covered}), so mistakes are noticed"
    if missed:
        total_text, suffix = (
            count_with_noun(covered + missed, "changed line"),
            ", …" if missed > _MAX_SHOWN else "",
        )
        shown = f"{', '.join(places[:_MAX_SHOWN])}{suffix}"
        text = f"no test covers {missed} of {total_text}, so mistakes there go unnoticed: {shown}"
    return RiskFactor(
        name="coverage",
        axis="impact",
        text=text,
        weight=2.6 if low else 1.5 if missed else 0.4,
        value=missed / (covered + missed),
        places=tuple(places[:5]),
    )


def _can_be_covered(file: FileChange, inspection: Inspection) -> bool:
    added = inspection.added.get(file.path)
    return (
        bool(added) and classify_file(file.path) == "source" and language_of(file.path) is not None
    )


def history_factor(files: dict[str, FileHistory]) -> RiskFactor | None:
    """Return the history of the changed files; only reported, as at equal size it predicts little.

    None if they have too few changes.
    """
    if not files:
        return None
    path, worst = max(files.items(), key=lambda item: (item[1].reverts, item[1].fixes))
    if worst.fixes or worst.reverts:
        counts = {"fixed something": worst.fixes, "was reverted": worst.reverts}
        facts = " and ".join(f"{count} {label}" for label, count in counts.items() if count)
        changes = count_with_noun(worst.changes, "past change")
        text = f"of {changes} of {path}, {facts}: mistakes were made there before"
    elif worst.changes >= _MIN_PAST_CHANGES:
        text = f"none of the {worst.changes} past changes of {path} was a fix or a revert"
    else:
        return None
    return RiskFactor(
        name="history",
        axis="likelihood",
        text=text,
        weight=min(0.3, 0.01 * worst.fixes + 0.1 * worst.reverts),
        value=float(sum(file.changes for file in files.values())),
        places=(path,),
    )


def _join_api_changes(changes: Sequence[ApiChange]) -> str:
    texts = [
        f"{change.text}{' (was deprecated)' if change.announced else ''}"
        for change in changes[:_MAX_SHOWN]
    ]
    hidden_count = len(changes) - len(texts)
    return "; ".join(texts) + (f"; and {hidden_count} more" if hidden_count else "")


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
    """Return a change's risk level with reasons; a dimension that fails is left out and named."""
    settings = inspection.settings or CheckSettings()
    file_count = len(inspection.change.files)
    inspection = leave_out_unchanged_code(inspection)
    surface = measure_change_size(inspection)
    rank = rank_change(model, surface.source_added, surface.files)
    factors = [surface_factor(surface, rank, model, file_count)]
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
    for name, find_factors in dimensions.items():
        for factor in _run_dimension(name, find_factors):
            if isinstance(factor, Unmeasured):
                unmeasured.append(factor)
            elif factor is not None:
                factors.append(factor)
    factors.sort(key=lambda factor: -factor.weight)
    level = determine_risk_level(rank, factors, settings)
    chance = estimate_chance(model, surface.source_added, surface.files)
    row = impact_row(factors, settings.risk_rows)
    uncovered = any(factor.name == "coverage" and factor.value for factor in factors)
    return Risk(
        level=level,
        reasons=risk_reasons(level, factors),
        factors=tuple(factors),
        likelihood=rank,
        chance=chance,
        note=explain_level(level, row, model.held, chance, uncovered=uncovered),
        unmeasured=tuple(unmeasured),
    )


def _run_dimension(
    name: str, find_factors: Callable[[], FactorStream]
) -> list[RiskFactor | Unmeasured | None]:
    """Run one dimension; hostile sources may break any reader, and the others still count."""
    try:
        return list(find_factors())
    except Exception as error:
        return [Unmeasured(rule=name, reason=f"it could not be read ({type(error).__name__})")]


def _dependent_factors(inspection: Inspection) -> FactorStream:
    if not any(is_product_source(file.path) for file in inspection.files):
        return
    graph = build_import_graph(inspection.index.imports(), _go_modules(inspection))
    yield fan_in_factor(inspection, graph)
    yield base_class_factor(inspection, graph)


def _go_modules(inspection: Inspection) -> Mapping[str, str]:
    """Return the folder of each Go module of the repository, by its name."""
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
    if not settings.online and any(change.new and change.package for change in changes):
        reason = "unknown, because network access is off; `check.online` allows it"
        yield Unmeasured(rule=AGE_RULE, reason=reason)


def _history_factors(inspection: Inspection, history: History | None) -> FactorStream:
    if history is None or not history.past:
        reason = history.cut if history and history.cut else "the repository has none yet"
        yield Unmeasured(rule="history", reason=reason)
        return
    sources = [file for file in inspection.files if is_product_source(file.path)]
    yield history_factor(
        list_file_histories(history, [file.old_path or file.path for file in sources])
    )
    if history.cut:
        yield Unmeasured(rule="older history", reason=history.cut)
