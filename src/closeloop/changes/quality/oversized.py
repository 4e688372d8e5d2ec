"""oversized-function and oversized-class: a function or class grew too large and does several
jobs."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

from closeloop.changes.quality.changed_file import (
    MIN_GROWTH_SHARE,
    ChangedFile,
    OldFunctions,
    find_old_function,
    index_old_functions,
    is_inline_test,
    list_changed_files,
    make_check_finding,
)
from closeloop.records.change import Inspection, SourceFunction, SourceModule, SourceType
from closeloop.records.finding import Finding, Rule, Unmeasured

rules = (
    Rule(
        name="oversized-function",
        version=2,
        about="A function has too many lines of code, and more than before.",
        severity="warning",
        thresholds={"function_lines": 80, "growth": MIN_GROWTH_SHARE},
    ),
    Rule(
        name="oversized-class",
        version=1,
        about="A class has too many methods, and more than before.",
        severity="warning",
        thresholds={"class_methods": 25, "growth": MIN_GROWTH_SHARE},
    ),
)

MIN_STATEMENTS = 20
"""Minimum statements: with fewer, the lines are a table."""
MAX_METHODS = 300
"""Maximum methods for which jobs are listed."""
MIN_JOB_METHODS = 3
"""Minimum methods that share an attribute to count as a job."""
_COMMENT = re.compile(r"\s*(?:#|//|/?\*|$)")
_QUOTES = ('"""', "'''")
_TEXT = re.compile(r"\"{3}.*?\"{3}|'{3}.*?'{3}")
_STRING = re.compile(r"\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'")
_BRACKET = re.compile(r"[()\[\]{}]")


def check(inspection: Inspection) -> Sequence[Finding | Unmeasured]:
    """Check changed functions and classes against the limits, without docstrings and comments."""
    findings: list[Finding] = []
    before = index_old_functions(inspection)
    for file in list_changed_files(inspection, "source"):
        if file.after:
            findings += _oversized_functions(file, before, inspection)
            findings += _oversized_classes(file, file.after, inspection.settings.class_methods)
    return findings


def _oversized_functions(
    file: ChangedFile, functions: OldFunctions, inspection: Inspection
) -> Iterator[Finding]:
    limit = inspection.settings.function_lines
    old: list[str] | None = None
    for function in file.after.functions if file.after else ():
        function_lines = range(function.first_line, function.last_line + 1)
        added_lines = file.added.intersection(function_lines)
        small = len(function_lines) <= limit or function.statements < MIN_STATEMENTS
        if small or not added_lines or is_inline_test(function):
            continue
        size = count_code_lines(file.lines, function)
        if size <= limit:
            continue
        before = find_old_function(functions, file, function)
        if old is None:
            old_text = inspection.sides.read("before", file.old_path) or b""
            old = old_text.decode("utf-8", "replace").split("\n")
        size_before = _size_before(before, file, old)
        if _has_grown(size, size_before, limit):
            size_note = f" ({size_before} before)" if size_before else ""
            yield make_check_finding(
                rules[0],
                f"`{function.qualified}` has {size} lines of code{size_note}, more "
                f"than {limit}: split it into named parts.",
                f"{file.path}:{min(added_lines) if size_before else function.first_line}",
            )


def _size_before(before: SourceFunction | None, file: ChangedFile, old: Sequence[str]) -> int:
    if before is None:
        return 0
    is_same_file = file.before is not None and before in file.before.functions
    return (
        count_code_lines(old, before) if is_same_file else before.last_line - before.first_line + 1
    )


def count_code_lines(lines: Sequence[str], function: SourceFunction) -> int:
    """Count lines that are neither blank, comment nor text; a wrapped statement counts once."""
    count, closing = 0, ""
    open_brackets: list[str] = []
    for line in lines[function.first_line - 1 : function.last_line]:
        bare = line.strip()
        if closing:
            closing = "" if closing in bare else closing
            continue
        if _COMMENT.match(line):
            continue
        # A brace opens a block in most languages: its content is not a wrapped line.
        count += not bare.startswith(_QUOTES) and not (open_brackets and open_brackets[-1] in "([")
        plain = _TEXT.sub("", bare)
        closing = next((quote for quote in _QUOTES if quote in plain), "")
        plain = _STRING.sub("", plain.partition(closing)[0] if closing else plain)
        for sign in _BRACKET.findall(plain.partition("#")[0]):
            if sign in "([{":
                open_brackets.append(sign)
            elif open_brackets:
                open_brackets.pop()
    return count


def _oversized_classes(file: ChangedFile, module: SourceModule, limit: int) -> Iterator[Finding]:
    old = {type_.qualified: type_ for type_ in file.before.types} if file.before else {}
    for type_ in module.types:
        added_lines = file.added.intersection(range(type_.first_line, type_.last_line + 1))
        before = old.get(type_.qualified)
        if added_lines and _has_grown(type_.methods, before.methods if before else 0, limit):
            size_before = f" ({before.methods} before)" if before else ""
            yield make_check_finding(
                rules[1],
                f"`{type_.qualified}` has {type_.methods} methods{size_before}, more than"
                f" {limit}{_describe_jobs(module, type_)}.",
                f"{file.path}:{min(added_lines) if before else type_.first_line}",
            )


def _has_grown(size: int, size_before: int, limit: int) -> bool:
    return size > limit and size > size_before * (
        1 + MIN_GROWTH_SHARE if size_before > limit else 1
    )


def _describe_jobs(module: SourceModule, type_: SourceType) -> str:
    """Describe groups of methods that share no attribute, if there are several."""
    methods = [
        function
        for function in module.functions
        if function.qualified == f"{type_.qualified}.{function.name}"
        and not function.name.startswith("__")
        and function.name != "constructor"
    ]
    if len(methods) > MAX_METHODS:
        return ""
    groups: list[tuple[set[str], list[str]]] = []
    used_names: dict[str, set[str]] = defaultdict(set)
    for name in module.names:
        if name.receiver in ("self", "this"):
            for method in methods:
                if method.first_line <= name.line <= method.last_line:
                    used_names[method.name].add(name.text)
    for member in methods:
        shared, names = used_names[member.name] | {member.name}, [member.name]
        for group in [group for group in groups if group[0] & shared]:
            groups.remove(group)
            shared, names = shared | group[0], group[1] + names
        groups.append((shared, names))
    jobs = sorted(
        (names for _, names in groups if len(names) >= MIN_JOB_METHODS), key=len, reverse=True
    )
    if len(jobs) < 2:
        return ""
    return (
        ": methods around "
        + " and methods around ".join(f"`{job[0]}`" for job in jobs[:3])
        + " share nothing"
    )
