"""out-of-scope-change, wide-change: files that nobody asked for, and more than a limit allows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePosixPath

from closeloop.changes.file_kinds import classify_file
from closeloop.records.change import (
    FileChange,
)
from closeloop.records.finding import Finding, Rule, Unmeasured
from closeloop.records.inspection import (
    Inspection,
)
from closeloop.text.wording import count_with_noun, matches_globs, package_folder

rules = (
    Rule(
        name="out-of-scope-change",
        version=1,
        about="A file is changed that lies outside what was asked for, and nobody says why.",
        severity="error",
        mode="scope creep",
        gates=True,
    ),
    Rule(
        name="wide-change",
        version=1,
        about="The change touches more files or modules than `check` in closeloop.toml allows.",
        severity="error",
        mode="scope creep",
        gates=True,
    ),
)

MAX_REQUEST_CHARS = 20_000
MAX_TARGETS = 200
_PATH = re.compile(r"[\w.@-]+(?:/[\w.@-]+)+|[\w-]+\.[A-Za-z]{1,5}\b")
_SYMBOL = re.compile(
    r"`([A-Za-z_][\w.]*)(?:\(\))?`|\b([a-z]+(?:_[a-z0-9]+)+|[A-Z][a-z]+[A-Z]\w+)\b"
)
_ALLOWED_KINDS = ("docs", "lockfile", "generated", "vendored", "data")
"""Kinds of files that follow from any change."""


def check(inspection: Inspection) -> Sequence[Finding | Unmeasured]:
    """What is wider than the limits, and what lies outside the scope."""
    return [*_find_wide_change(inspection), *_find_outside_files(inspection)]


def _find_wide_change(inspection: Inspection) -> Iterator[Finding]:
    """One finding for each limit that the files which people write go beyond."""
    paths = [file.path for file in inspection.files]
    settings, rule = inspection.settings, rules[1]
    touched = {"file": len(paths), "module": len({package_folder(path) for path in paths})}
    limits = {"file": settings.max_files, "module": settings.max_modules} if settings else {}
    for noun, most in limits.items():
        if most is not None and touched[noun] > most:
            yield Finding(
                rule=rule.name,
                version=rule.version,
                severity=rule.severity,
                mode=rule.mode,
                message=f"The change touches {count_with_noun(touched[noun], noun)}, and at most"
                f" {most} may be touched: split it, or say in its request why it is this wide.",
                places=(f"{paths[0]}:1",),
                source="check",
            )


def _find_outside_files(inspection: Inspection) -> Sequence[Finding | Unmeasured]:
    """Outside the task's declared scope for certain; else outside what the request points at."""
    task = inspection.task
    if task is not None and task.scope:
        outside = [
            file for file in inspection.change.files if not matches_globs(file.path, task.scope)
        ]
        return [_scope_finding(file, inspection, declared=task.scope) for file in outside]
    if not inspection.request:
        return []  # nobody said what was asked for, so nothing is outside of it
    targets = _find_targets(inspection, inspection.request[:MAX_REQUEST_CHARS])
    if not targets:
        reason = "the request names no file and no symbol of the repository"
        return [Unmeasured(rule=rules[0].name, reason=reason)]
    related = _related_files(inspection, targets)
    return [
        _scope_finding(file, inspection, declared=())
        for file in inspection.files
        if file.path not in related and not _accompanies_change(file, related, inspection)
    ]


def _find_targets(inspection: Inspection, request: str) -> set[str]:
    """Files that the request names, and those that define what it names."""
    paths = inspection.sides.tree("after")
    named: set[str] = set()
    by_name: dict[str, list[str]] = {}
    for path in paths:
        by_name.setdefault(PurePosixPath(path).name, []).append(path)
    for word in set(_PATH.findall(request)):
        ends = by_name.get(word.rsplit("/", 1)[-1], ())
        named.update(path for path in ends if path == word or path.endswith("/" + word))
        if word in paths:
            named.add(word)
    for quoted, plain in set(_SYMBOL.findall(request)):
        name = (quoted or plain).rsplit(".", 1)[-1]
        places = inspection.index.defined(name)
        if 0 < len(places) <= 5:
            named.update(path for path, _ in places)
    return set(sorted(named)[:MAX_TARGETS])


def _related_files(inspection: Inspection, targets: set[str]) -> set[str]:
    """The targets, what they import, and what imports them: one step, by the names of modules."""
    stems = {PurePosixPath(path).stem for path in targets} - {"__init__", "index", "mod", "main"}
    related = set(targets)
    for file in inspection.files:
        module = inspection.modules.get(("after", file.path))
        imported = (
            {part for one in module.imports for part in _import_parts(one.module, one.name)}
            if module
            else set()
        )
        if imported & stems:
            related.add(file.path)
    for path in targets:
        module = inspection.index.module(path)
        wanted = (
            {part for one in module.imports for part in _import_parts(one.module, one.name)}
            if module
            else set()
        )
        related.update(
            file.path for file in inspection.files if PurePosixPath(file.path).stem in wanted
        )
    return related


def _import_parts(module: str, name: str | None) -> Iterator[str]:
    yield from re.split(r"[./:]+", module)[-1:]
    if name:
        yield name


def _accompanies_change(file: FileChange, near: Iterable[str], inspection: Inspection) -> bool:
    """Tests, documents and the like go with a change; what is spoken of is not done silently."""
    if classify_file(file.path) in _ALLOWED_KINDS:
        return True
    name = PurePosixPath(file.path)
    if name.name in (inspection.request or "") or name.stem in {"__init__", "conftest"}:
        return True
    stems = {PurePosixPath(path).stem for path in near}
    return classify_file(file.path) == "test" and any(
        stem in name.stem for stem in stems if len(stem) > 3
    )


def _scope_finding(file: FileChange, inspection: Inspection, *, declared: Sequence[str]) -> Finding:
    rule = rules[0]
    line = min(inspection.added.get(file.path, frozenset()), default=1)
    if declared:
        scope = ", ".join(declared[:3]) + (", …" if len(declared) > 3 else "")
        message = f"{file.path} lies outside the task's scope ({scope})."
    else:
        message = f"{file.path} has nothing to do with what the request names: is it meant?"
    return Finding(
        rule=rule.name,
        version=rule.version,
        severity=rule.severity if declared else "info",
        mode=rule.mode,
        message=message,
        places=(f"{file.path}:{line}",),
        confidence=1.0 if declared else 0.5,
        source="check",
    )
