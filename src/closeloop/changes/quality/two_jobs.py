"""two-jobs: a class or module consists of parts that have nothing in common."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from closeloop.changes.quality.changed_file import (
    ChangedFile,
    is_example_file,
    list_changed_files,
    make_check_finding,
)
from closeloop.records.change import Inspection, SourceFunction, SourceModule, SourceType
from closeloop.records.finding import Finding, Rule, Unmeasured
from closeloop.records.record import Record

rules = (
    Rule(
        name="two-jobs",
        version=1,
        about="A class or module splits into parts that share nothing, and did not before.",
        severity="info",
        thresholds={"class_members": 3, "module_members": 5},
    ),
)

MIN_CLASS_MEMBERS = 3
MIN_OWN_FIELDS = 2
"""A job of a class: minimum methods that share fields, and minimum fields that only they use."""
MIN_MODULE_MEMBERS = 5
"""Minimum functions of one job of a module, which call each other and have imports of their own."""
MAX_STRAY_MEMBERS = 2
"""Maximum members without a job; with more, it is a collection by design."""
MAX_MEMBERS = 300
_LANGUAGES = ("python", "javascript", "typescript", "tsx", "java")
_CONSTRUCTORS = ("constructor",)


class _Job(Record):
    """Members that share something, directly or through others."""

    members: tuple[str, ...]
    uses: frozenset[str]


def check(inspection: Inspection) -> Sequence[Finding | Unmeasured]:
    """Report only what the change caused, and only if every part is a job by itself."""
    return [
        finding
        for file in list_changed_files(inspection, "source")
        if file.after and file.after.language in _LANGUAGES and not is_example_file(file.path)
        for finding in (*_split_classes(file, file.after), *_split_module(file, file.after))
    ]


def _split_classes(file: ChangedFile, module: SourceModule) -> Iterator[Finding]:
    old = {type_.qualified: type_ for type_ in file.before.types} if file.before else {}
    for type_ in module.types:
        class_lines = range(type_.first_line, type_.last_line + 1)
        if set(type_.bases) - {"object"} or file.added.isdisjoint(class_lines):
            continue  # members shared through a base class are unknown
        jobs = _list_class_jobs(module, type_)
        before = old.get(type_.qualified)
        if len(jobs) < 2 or (
            before and file.before and len(_list_class_jobs(file.before, before)) >= len(jobs)
        ):
            continue
        line = type_.first_line if before is None else min(file.added.intersection(class_lines))
        yield make_check_finding(
            rules[0],
            f"`{type_.qualified}` does {len(jobs)} jobs: {_describe_jobs(jobs)} share "
            "no field and do not call each other: consider splitting it.",
            f"{file.path}:{line}",
            confidence=0.6,
        )


def _list_class_jobs(module: SourceModule, type_: SourceType) -> list[_Job]:
    """Return groups of methods with fields of their own; empty if methods stand alone."""
    methods = {
        function.name: function
        for function in module.functions
        if function.qualified == f"{type_.qualified}.{function.name}"
        and not (function.name.startswith("__") or function.name in _CONSTRUCTORS)
    }
    if not 2 * MIN_CLASS_MEMBERS <= len(methods) <= MAX_MEMBERS:
        return []
    uses: dict[str, set[str]] = {name: {name} for name in methods}
    for name in module.names:
        if name.receiver in ("self", "this"):
            for method in methods.values():
                if method.first_line <= name.line <= method.last_line:
                    uses[method.name].add(name.text)
    jobs = _group_members(uses)
    large = [
        job
        for job in jobs
        if len(job.members) >= MIN_CLASS_MEMBERS
        and len(job.uses - methods.keys()) >= MIN_OWN_FIELDS
    ]
    strays = len(methods) - sum(len(job.members) for job in large)
    return large if strays <= MAX_STRAY_MEMBERS else []


def _split_module(file: ChangedFile, module: SourceModule) -> Iterator[Finding]:
    jobs = _list_module_jobs(module)
    if len(jobs) < 2 or (file.before and len(_list_module_jobs(file.before)) >= len(jobs)):
        return
    yield make_check_finding(
        rules[0],
        f"This module does {len(jobs)} jobs: {_describe_jobs(jobs)} share neither code nor imports:"
        " consider a module for each.",
        f"{file.path}:{min(file.added, default=1)}",
        confidence=0.6,
    )


def _list_module_jobs(module: SourceModule) -> list[_Job]:
    """Return groups of functions that use each other, each with imports of its own."""
    functions = [function for function in module.functions if "." not in function.qualified]
    if module.types or not 2 * MIN_MODULE_MEMBERS <= len(functions) <= MAX_MEMBERS:
        return []
    imported = {
        source_import.alias or source_import.name or source_import.module.partition(".")[0]
        for source_import in module.imports
    }
    uses = _module_uses(module, functions)
    jobs = _group_members(uses)
    large = [job for job in jobs if len(job.members) >= MIN_MODULE_MEMBERS and job.uses & imported]
    strays = len(functions) - sum(len(job.members) for job in large)
    return large if strays <= MAX_STRAY_MEMBERS else []


def _module_uses(
    module: SourceModule, functions: Sequence[SourceFunction]
) -> Mapping[str, set[str]]:
    """Return the names of the module that each function uses: functions, constants, imports."""
    outside = {
        name.text
        for name in module.names
        if name.kind == "definition"
        and not any(
            function.first_line <= name.line <= function.last_line for function in functions
        )
    }
    outside |= {function.name for function in functions}
    outside |= {
        source_import.alias or source_import.name or source_import.module.partition(".")[0]
        for source_import in module.imports
    }
    uses: dict[str, set[str]] = {function.name: {function.name} for function in functions}
    for name in module.names:
        used_names = {name.text, (name.receiver or "").partition(".")[0]} & outside
        for candidate in functions if used_names else ():
            if candidate.first_line <= name.line <= candidate.last_line:
                uses[candidate.name] |= used_names
    return uses


def _group_members(uses: Mapping[str, set[str]]) -> list[_Job]:
    """Group members that use a common name; largest group first."""
    groups: list[tuple[set[str], list[str]]] = []
    for member, names in uses.items():
        shared, members = set(names), [member]
        for group in [group for group in groups if group[0] & shared]:
            groups.remove(group)
            shared, members = shared | group[0], group[1] + members
        groups.append((shared, members))
    groups.sort(key=lambda group: -len(group[1]))
    return [_Job(members=tuple(members), uses=frozenset(shared)) for shared, members in groups]


def _describe_jobs(jobs: Sequence[_Job]) -> str:
    return " and ".join(
        ", ".join(f"`{name}`" for name in job.members[:3]) + (", …" if len(job.members) > 3 else "")
        for job in jobs[:3]
    )
